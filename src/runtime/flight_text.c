/* The flight ring as text: a Lua chunk of calls with one table each, in the order in which somebody
 * who does all of it again needs them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/flight.h"
#include "runtime/graph/state.h"
#include "runtime/writer.h"

/* What has been said already, so that it is said once. */
struct numbers {
    uint64_t *all; /* owned; in rising order */
    size_t count, capacity;
    bool is_short; /* there was no memory for one */
};

struct text {
    struct gpu_writer *out;
    struct gpu_device *device;
    const struct gpu_flight *flight;
    const struct gpu_block **live; /* by number */
    size_t live_count;
    struct numbers modules, kernels, blocks, graphs;
};

/* True: it is new. */
static bool add_number(struct numbers *numbers, uint64_t number) {
    size_t low = 0, high = numbers->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (numbers->all[middle] < number) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low < numbers->count && numbers->all[low] == number) {
        return false;
    }
    if (numbers->count == numbers->capacity) {
        size_t capacity = numbers->capacity ? 2 * numbers->capacity : 256;
        uint64_t *all = realloc(numbers->all, capacity * sizeof *all);
        if (!all) {
            numbers->is_short = true;
            return false;
        }
        numbers->all = all;
        numbers->capacity = capacity;
    }
    memmove(&numbers->all[low + 1], &numbers->all[low],
            (numbers->count - low) * sizeof *numbers->all);
    numbers->all[low] = number;
    numbers->count++;
    return true;
}

/* ---- Lua's words ---- */

static void put_string(struct gpu_writer *out, const char *string) {
    gpu_put(out, "\"");
    for (const unsigned char *at = (const unsigned char *)string; *at; at++) {
        if (*at == '"' || *at == '\\') {
            gpu_put(out, "\\%c", *at);
        } else if (*at == '\n') {
            gpu_put(out, "\\n");
        } else if (*at < ' ' || *at == 0x7f) {
            gpu_put(out, "\\%03u", *at);
        } else {
            gpu_put(out, "%c", *at);
        }
    }
    gpu_put(out, "\"");
}

/* Between brackets that it has not got itself, where it can be read so. */
static void put_source(struct gpu_writer *out, const char *text) {
    char closing[16] = "]=]";
    size_t level = 1, length = strlen(text);
    /* Nor may its end and the closing have one together: "]=" and "]=]". */
    while (level < sizeof closing - 3 &&
           (strstr(text, closing) ||
            (length > level && memcmp(text + length - level - 1, closing, level + 1) == 0))) {
        level++;
        memset(closing + 1, '=', level);
        memcpy(closing + 1 + level, "]", 2);
    }
    if (strchr(text, '\r') ||
        level == sizeof closing - 3) { /* Lua makes another line break of \r */
        put_string(out, text);
        return;
    }
    gpu_put(out, "[%.*s[\n%s%s", (int)level, closing + 1, text, closing);
}

static void put_field(struct gpu_writer *out, const char *name, const char *string) {
    gpu_put(out, ", %s = ", name);
    put_string(out, string);
}

static void put_label(struct gpu_writer *out, const char *label, const struct gpu_site *site) {
    if (label && label[0]) {
        put_field(out, "label", label);
    }
    if (site->source) {
        gpu_put(out, ", at = ");
        char text[300];
        snprintf(text, sizeof text, "%.255s:%d", site->source, site->line);
        put_string(out, text);
    }
}

/* As Lua reads it, whatever the host's locale writes for a decimal point. */
static void put_number(struct gpu_writer *out, double number, int digits) {
    char text[40], plain[44];
    size_t length = 0;
    if (isnan(number) || isinf(number)) {
        gpu_put(out, isnan(number) ? "nan" : number < 0 ? "-inf" : "inf");
        return;
    }
    snprintf(text, sizeof text, "%.*g", digits, number);
    for (const char *at = text; *at; at++) {
        bool is_plain = strchr("0123456789+-e", *at) != NULL;
        if (is_plain || (length > 0 && plain[length - 1] != '.')) {
            plain[length++] = is_plain ? *at : '.';
        }
    }
    plain[length] = '\0';
    /* Lua's -0 is a whole number, which has no sign. */
    gpu_put(out, "%s%s", plain, strcmp(plain, "-0") == 0 ? ".0" : "");
}

static void put_float(struct gpu_writer *out, enum gpu_type type, const uint8_t *bytes) {
    uint16_t half;
    float single;
    double number;
    switch (gpu_type_bytes(type)) {
    case 2:
        memcpy(&half, bytes, sizeof half);
        put_number(out, type == GPU_TYPE_F16 ? gpu_type_f16_to(half) : gpu_type_bf16_to(half), 9);
        return;
    case 4:
        memcpy(&single, bytes, sizeof single);
        put_number(out, (double)single, 9);
        return;
    default:
        memcpy(&number, bytes, sizeof number);
        put_number(out, number, 17);
    }
}

static void put_scalar(struct gpu_writer *out, enum gpu_type type, const uint8_t *bytes) {
    uint32_t byte_count = gpu_type_bytes(type);
    uint64_t bits = 0;
    switch (gpu_type_class(type)) {
    case GPU_CLASS_FLOAT:
        put_float(out, type, bytes);
        return;
    case GPU_CLASS_COMPLEX:
        gpu_put(out, "{ ");
        put_float(out, type == GPU_TYPE_C64 ? GPU_TYPE_F32 : GPU_TYPE_F64, bytes);
        gpu_put(out, ", ");
        put_float(out, type == GPU_TYPE_C64 ? GPU_TYPE_F32 : GPU_TYPE_F64, bytes + byte_count / 2);
        gpu_put(out, " }");
        return;
    case GPU_CLASS_UNSIGNED:
        memcpy(&bits, bytes, byte_count); /* little endian, as devices are */
        gpu_put(out, bits > INT64_MAX ? "0x%llx" : "%llu", (unsigned long long)bits);
        return;
    case GPU_CLASS_SIGNED:
        memcpy(&bits, bytes, byte_count);
        if (byte_count < 8 && bits >> (8 * byte_count - 1)) {
            bits |= ~UINT64_C(0) << (8 * byte_count);
        }
        if (bits == (uint64_t)INT64_MIN) { /* which Lua has no decimal for */
            gpu_put(out, "math.mininteger");
            return;
        }
        gpu_put(out, "%lld", (long long)bits);
        return;
    }
}

static void put_range(struct gpu_writer *out, const struct gpu_flight_use *use) {
    gpu_put(out, "at(%llu, %llu, %llu)", (unsigned long long)use->block_number,
            (unsigned long long)use->byte_begin, (unsigned long long)use->byte_end);
}

/* ---- what operations are about ---- */

static void put_module(struct text *text, const struct gpu_recipe *recipe) {
    static const char *const kinds[] = {[GPU_MODULE_SOURCE] = "source",
                                        [GPU_MODULE_IMAGE] = "code",
                                        [GPU_MODULE_LIBRARY] = "library"};
    if (!add_number(&text->modules, recipe->number)) {
        return;
    }
    gpu_put(text->out, "module { %llu, \"%s\"", (unsigned long long)recipe->number,
            kinds[recipe->kind]);
    put_field(text->out, "name", recipe->name);
    if (recipe->options && recipe->options[0]) {
        put_field(text->out, "options", recipe->options);
    }
    if (recipe->text) {
        gpu_put(text->out, ", text = ");
        put_source(text->out, recipe->text);
    }
    gpu_put(text->out, " }\n");
}

static void put_kernel(struct text *text, const struct gpu_form *form) {
    if (!form || !add_number(&text->kernels, form->number)) {
        return;
    }
    put_module(text, form->recipe);
    gpu_put(text->out, "kernel { %llu, module = %llu", (unsigned long long)form->number,
            (unsigned long long)form->recipe->number);
    put_field(text->out, "name", form->name);
    if (form->by_hand) {
        put_field(text->out, "signature", form->by_hand);
    }
    gpu_put(text->out, " }\n");
}

static int by_number(const void *a, const void *b) {
    const struct gpu_block *x = *(const struct gpu_block *const *)a;
    const struct gpu_block *y = *(const struct gpu_block *const *)b;
    return (x->number > y->number) - (x->number < y->number);
}

/* False: no memory. */
static bool list_blocks(struct text *text) {
    size_t count = 0;
    for (const struct gpu_block *block = text->device->blocks; block; block = block->next) {
        count++;
    }
    text->live = malloc((count + 1) * sizeof *text->live);
    for (const struct gpu_block *block = text->device->blocks; text->live && block;
         block = block->next) {
        text->live[text->live_count++] = block;
    }
    if (text->live) {
        qsort(text->live, text->live_count, sizeof *text->live, by_number);
    }
    return text->live != NULL;
}

static const struct gpu_block *find_block(const struct text *text, uint64_t number) {
    const struct gpu_block sought = {.number = number}, *key = &sought;
    const struct gpu_block *const *found =
        bsearch(&key, text->live, text->live_count, sizeof *text->live, by_number);
    return found ? *found : NULL;
}

static void put_block(struct text *text, const struct gpu_flight_use *use) {
    if (use->is_module || use->is_staging || !add_number(&text->blocks, use->block_number)) {
        return;
    }
    const struct gpu_flight *flight = text->flight;
    const struct gpu_block *block = find_block(text, use->block_number);
    const struct gpu_flight_name *name = NULL;
    for (uint64_t i = flight->name_count; !block && !name && i > 0; i--) {
        const struct gpu_flight_name *known = &flight->names[(i - 1) % GPU_FLIGHT_NAMES_MAX];
        name = known->block_number == use->block_number ? known : NULL;
        if (flight->name_count - i >= GPU_FLIGHT_NAMES_MAX - 1) {
            break;
        }
    }
    if (block && block->module) {
        put_module(text, block->module->recipe);
    }
    gpu_put(text->out, "buffer { %llu, bytes = %llu", (unsigned long long)use->block_number,
            (unsigned long long)use->block_bytes);
    if (use->type < GPU_TYPE_COUNT) {
        gpu_put(text->out, ", type = \"%s\"", gpu_type_name((enum gpu_type)use->type));
    }
    if (use->is_host) {
        gpu_put(text->out, ", host = true");
    }
    if (block && block->module) {
        gpu_put(text->out, ", variable = ");
        put_string(text->out, block->label);
        gpu_put(text->out, ", module = %llu", (unsigned long long)block->module->recipe->number);
    }
    if (use->is_filled) {
        gpu_put(text->out, ", filled = true");
    }
    if (block) {
        put_label(text->out, block->label, &block->site);
    } else if (name) {
        put_label(text->out, name->label, &name->site);
    }
    gpu_put(text->out, " }\n");
}

/* ---- one operation, or one node of a graph ---- */

/* The range that an argument points to: of several that begin there the next in their order. */
static const struct gpu_flight_use *find_use(const struct gpu_flight_use *uses, uint32_t count,
                                             uint64_t address, uint32_t *next) {
    for (uint32_t i = 0; i < count; i++) {
        const struct gpu_flight_use *use = &uses[(*next + i) % count];
        if (!use->is_module && use->address + use->byte_begin == address) {
            *next = (*next + i + 1) % count;
            return use;
        }
    }
    return NULL;
}

static void put_args(struct gpu_writer *out, const struct gpu_signature *signature,
                     const uint8_t *args, const struct gpu_flight_use *uses, uint32_t use_count) {
    uint32_t next = 0;
    gpu_put(out, ", args = {");
    for (uint32_t i = 0; i < signature->param_count; i++) {
        const struct gpu_param *param = &signature->params[i];
        gpu_put(out, i ? ", " : " ");
        if (param->kind == GPU_PARAM_SCALAR) {
            put_scalar(out, param->type, args + param->byte_offset);
            continue;
        }
        uint64_t address;
        memcpy(&address, args + param->byte_offset, sizeof address);
        const struct gpu_flight_use *use =
            address ? find_use(uses, use_count, address, &next) : NULL;
        if (use) {
            put_range(out, use);
        } else {
            gpu_put(out, address ? "lost" : "null");
        }
    }
    gpu_put(out, " }");
}

static void put_launch(struct gpu_writer *out, const uint32_t grid[3], const uint16_t block[3],
                       uint32_t shared_bytes) {
    gpu_put(out, ", grid = { %u, %u, %u }, block = { %u, %u, %u }", grid[0], grid[1], grid[2],
            block[0], block[1], block[2]);
    if (shared_bytes) {
        gpu_put(out, ", shared = %u", shared_bytes);
    }
}

/* All that it uses; of a copy that says all. */
static void put_uses(struct gpu_writer *out, const struct gpu_flight_use *uses, uint32_t count) {
    const char *before = ", uses = { ";
    for (uint32_t i = 0; i < count; i++) {
        if (uses[i].is_module || uses[i].is_staging) {
            continue;
        }
        gpu_put(out, "%s", before);
        gpu_put(out, "{ ");
        put_range(out, &uses[i]);
        gpu_put(out, ", \"%s%s\" }", uses[i].access & GPU_READ ? "r" : "",
                uses[i].access & GPU_WRITE ? "w" : "");
        before = ", ";
    }
    if (before[2] != 'u') {
        gpu_put(out, " }");
    }
}

static const char *word_of(uint8_t opcode) {
    switch (opcode) {
    case WIRE_OP_LAUNCH:
        return "launch";
    case WIRE_OP_FILL:
        return "fill";
    case WIRE_OP_COPY:
    case WIRE_OP_UPLOAD:
    case WIRE_OP_DOWNLOAD:
        return "copy";
    case WIRE_OP_GRAPH_LAUNCH:
        return "graph";
    case WIRE_OP_GRAPH_UPLOAD:
        return "upload";
    case WIRE_OP_CONTROL:
        return "control";
    default:
        return "mark";
    }
}

static void put_pattern(struct gpu_writer *out, const uint8_t *pattern, uint32_t byte_count) {
    gpu_put(out, ", element = \"");
    for (uint32_t i = 0; i < byte_count; i++) {
        gpu_put(out, "%02x", pattern[i]);
    }
    gpu_put(out, "\"");
}

/* ---- graphs ---- */

static struct gpu_flight_use use_of(const struct gpu_use *use) {
    return gpu_flight_use_of(use->block, use->byte_begin, use->byte_end, use->access);
}

static void put_node(struct text *text, const struct graph_body *body,
                     const struct graph_node *node, struct gpu_flight_use *uses) {
    struct gpu_writer *out = text->out;
    const struct wire_record *record = node->record;
    for (uint32_t i = 0; i < node->use_count; i++) {
        uses[i] = use_of(&body->uses[node->use_first + i]);
    }
    gpu_put(out, "  { %u, \"%s\"", node->number, word_of(record->opcode));
    put_label(out, node->label, &node->site);
    if (record->opcode == WIRE_OP_LAUNCH && node->kernel) {
        gpu_put(out, ", kernel = %llu", (unsigned long long)node->kernel->form->number);
        put_launch(out, record->u.launch.grid, record->u.launch.block,
                   record->u.launch.shared_bytes);
        put_args(out, node->kernel->signature, (const uint8_t *)(record + 1), uses,
                 node->use_count);
    } else if (record->opcode == WIRE_OP_FILL) {
        put_pattern(out, (const uint8_t *)record->u.fill.pattern, record->u.fill.elem_bytes);
    }
    put_uses(out, uses, node->use_count);
    gpu_put(out, " },\n");
}

/* As it is now: what was launched of an earlier version, or is gone, shows what it used alone. */
static void put_graph(struct text *text, const struct gpu_graph *graph) {
    const struct graph_body *body = &graph->body;
    uint32_t most = 0;
    bool is_plain = true;
    for (uint32_t i = 0; i < body->node_count; i++) {
        const struct graph_node *node = &body->nodes[i];
        most = node->use_count > most ? node->use_count : most;
        is_plain = is_plain && !node->control;
    }
    struct gpu_flight_use *uses = is_plain ? calloc(most + 1u, sizeof *uses) : NULL;
    if (!uses || !add_number(&text->graphs, graph->number)) {
        text->graphs.is_short = text->graphs.is_short || (is_plain && !uses);
        free(uses);
        return;
    }
    for (uint32_t i = 0; i < body->node_count; i++) {
        const struct graph_node *node = &body->nodes[i];
        if (node->kernel) {
            put_kernel(text, node->kernel->form);
        }
        for (uint32_t k = 0; k < node->use_count; k++) {
            uses[0] = use_of(&body->uses[node->use_first + k]);
            put_block(text, &uses[0]);
        }
    }
    gpu_put(text->out, "graph { %llu", (unsigned long long)graph->number);
    if (graph->label[0]) {
        put_field(text->out, "label", graph->label);
    }
    gpu_put(text->out, ", nodes = {\n");
    for (uint32_t i = 0; i < body->node_count; i++) {
        put_node(text, body, &body->nodes[i], uses);
    }
    gpu_put(text->out, "} }\n");
    free(uses);
}

/* ---- operations ---- */

static const struct gpu_flight_op *flight_op(const struct gpu_flight *flight, uint64_t index) {
    return &flight->ops[index % GPU_FLIGHT_OPS_MAX];
}

static bool has_uses(const struct gpu_flight *flight, const struct gpu_flight_op *op) {
    return op->use_count <= GPU_FLIGHT_USES_MAX &&
           op->use_first + GPU_FLIGHT_USES_MAX >= flight->use_count;
}

static bool has_data(const struct gpu_flight *flight, const struct gpu_flight_op *op) {
    return op->data_bytes > 0 && op->data_first + GPU_FLIGHT_DATA_BYTES >= flight->data_count;
}

/* In one piece, in `room`. */
static uint32_t get_uses(const struct gpu_flight *flight, const struct gpu_flight_op *op,
                         struct gpu_flight_use *room) {
    uint32_t count = has_uses(flight, op) ? op->use_count : 0;
    for (uint32_t i = 0; i < count; i++) {
        room[i] = flight->uses[(op->use_first + i) % GPU_FLIGHT_USES_MAX];
    }
    return count;
}

static void put_fate(const struct text *text, const struct gpu_flight_op *op) {
    const char *fate = op->fate == GPU_FLIGHT_SUSPECT                 ? "may have been running"
                       : op->fate == GPU_FLIGHT_NOT_STARTED           ? "had not started"
                       : gpu_op_find_pending(text->device, op->point) ? "pending"
                                                                      : NULL;
    if (fate) {
        put_field(text->out, "fate", fate);
    }
}

static void put_op(struct text *text, const struct gpu_flight_op *op, struct gpu_flight_use *uses) {
    struct gpu_writer *out = text->out;
    uint32_t count = get_uses(text->flight, op, uses);
    gpu_put(out, "op { %llu, \"%s\", stream = %llu", (unsigned long long)op->number,
            word_of(op->opcode), (unsigned long long)op->stream_number);
    put_label(out, op->label, &op->site);
    put_fate(text, op);
    if (op->flags & WIRE_FLAG_SKIP) {
        gpu_put(out, ", skipped = true");
    }
    const uint8_t *data = text->flight->data + op->data_first % GPU_FLIGHT_DATA_BYTES;
    if (op->form) {
        gpu_put(out, ", kernel = %llu", (unsigned long long)op->form->number);
        put_launch(out, op->launch.grid, op->launch.block, op->shared_bytes);
        bool has_args = has_data(text->flight, op) || op->form->signature->args_bytes == 0;
        if (has_args && has_uses(text->flight, op)) {
            put_args(out, op->form->signature, data, uses, count);
        }
    } else if (op->opcode == WIRE_OP_FILL && has_data(text->flight, op)) {
        put_pattern(out, data, op->data_bytes);
    } else if (gpu_graph_launched(text->device, op)) {
        gpu_put(out, ", graph = %llu", (unsigned long long)op->graph.number);
    }
    put_uses(out, uses, count);
    gpu_put(out, has_uses(text->flight, op) ? " }\n" : ", forgotten = true }\n");
}

/* The newest block that something forgotten may have written. */
static uint64_t last_forgotten(const struct gpu_flight *flight) {
    uint64_t last = flight->block_last;
    uint64_t first =
        flight->op_count > GPU_FLIGHT_OPS_MAX ? flight->op_count - GPU_FLIGHT_OPS_MAX : 0;
    for (uint64_t i = first; i < flight->op_count; i++) {
        const struct gpu_flight_op *op = flight_op(flight, i);
        last = has_uses(flight, op) || op->block_last < last ? last : op->block_last;
    }
    return last;
}

/* `buffers`: they are numbered as they are made, and later ones have had nothing in them. */
static void put_head(const struct text *text) {
    struct gpu_writer *out = text->out;
    const struct gpu_device *device = text->device;
    uint64_t count = text->flight->op_count;
    gpu_put(out,
            "-- The operations that a device was given last, with their arguments; what was in "
            "memory is "
            "not in here.\n"
            "-- To do them again on the CPU device in check mode: gpulua --replay FILE\n");
    gpu_put(out, "flight { format = 1");
    put_field(out, "version", gpulua_version());
    put_field(out, "device", device->name);
    put_field(out, "model", device->facts.name);
    gpu_put(out, ", ops = %llu, of = %llu",
            (unsigned long long)(count < GPU_FLIGHT_OPS_MAX ? count : GPU_FLIGHT_OPS_MAX),
            (unsigned long long)count);
    gpu_put(out, ", buffers = %llu", (unsigned long long)last_forgotten(text->flight));
    if (device->recovery.last.code) {
        put_field(out, "lost", device->recovery.last.message);
    }
    gpu_put(out, " }\n");
}

static void put_all(struct text *text, struct gpu_flight_use *uses) {
    const struct gpu_flight *flight = text->flight;
    uint64_t first =
        flight->op_count > GPU_FLIGHT_OPS_MAX ? flight->op_count - GPU_FLIGHT_OPS_MAX : 0;
    put_head(text);
    for (uint64_t i = first; i < flight->op_count; i++) {
        const struct gpu_flight_op *op = flight_op(flight, i);
        uint32_t count = get_uses(flight, op, uses);
        put_kernel(text, op->form);
        for (uint32_t k = 0; k < count; k++) {
            put_block(text, &uses[k]);
        }
        const struct gpu_graph *graph = gpu_graph_launched(text->device, op);
        if (graph) {
            put_graph(text, graph);
        }
        put_op(text, op, uses);
    }
}

/* Returns how long it is, or 0: there was no memory. */
static size_t write(struct gpu_device *device, struct gpu_flight_use *uses, char *to, size_t room) {
    struct gpu_writer writer = {.text = to, .room = room};
    struct text text = {.out = &writer, .device = device, .flight = &device->flight};
    bool is_short = !list_blocks(&text);
    if (!is_short) {
        put_all(&text, uses);
    }
    is_short = is_short || text.modules.is_short || text.kernels.is_short || text.blocks.is_short ||
               text.graphs.is_short;
    free(text.live);
    free(text.modules.all);
    free(text.kernels.all);
    free(text.blocks.all);
    free(text.graphs.all);
    return is_short ? 0 : writer.length;
}

gpulua_status gpu_flight_text(struct gpu_device *device, char **text, size_t *byte_count,
                              struct gpu_error *error) {
    GPU_ENTER(device);
    struct gpu_flight_use *uses = malloc(GPU_FLIGHT_USES_MAX * sizeof *uses);
    size_t length = uses ? write(device, uses, NULL, 0) : 0;
    char *made = length ? malloc(length + 1) : NULL;
    bool is_whole = made && write(device, uses, made, length + 1) == length;
    free(uses);
    if (!is_whole) {
        free(made);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for the flight of %s",
                             device->name);
    }
    *text = made;
    *byte_count = length;
    return GPULUA_OK;
}
