/* The log of a traced device (trace.h): rows in pieces that stay where they are. */
#include "runtime/trace.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/graph/state.h"
#include "wire/memory.h"

#define PIECE_ROWS 4096u /* a power of two */

/* A node as the device counts them, those of bodies behind the one that has them: one of the
 * graph's, or a join of the wire's. */
struct traced_member {
    uint64_t bytes; /* that it moves */
    uint32_t node;  /* in the graph: of what is in a body, the conditional node */
    uint32_t label; /* text */
    uint32_t kernel, source;
    int32_t line;
    uint8_t kind;
    bool is_node, is_in_body;
};

/* Rows of one size, in pieces. */
struct rows {
    uint8_t **pieces; /* owned, each of them */
    uint32_t piece_count, piece_capacity;
    uint32_t row_bytes;
    uint64_t count;
};

struct gpu_trace {
    atomic_uint refs;
    pthread_mutex_t *lock; /* owned; NULL: one thread has it */
    char device_name[32];
    struct rows ops, uses, waits, spans, nodes;
    struct rows args; /* of 8 bytes; those of one launch lie together */
    struct traced_form {
        uint32_t text;
        uint64_t code;                   /* of which its module was made */
        bool is_name_shared;             /* with one of other code */
        struct gpu_signature *signature; /* owned; NULL: no memory */
    } * forms;                           /* owned: of kernels that were launched */
    uint32_t form_count;
    struct traced_graph {
        uint64_t number;
        uint32_t node_count;         /* as the device counts them */
        struct traced_member *nodes; /* owned */
        bool has_bodies;
    } * graphs; /* owned: that were launched, as they were then */
    uint32_t graph_count, graph_capacity;
    uint64_t member_count;  /* of all of them */
    uint64_t nodes_dropped; /* apart, because operations go on being kept */
    uint32_t ops_max;
    uint64_t dropped_count;
    uint64_t number_first; /* of the device's operations, which the first row is; 0: none yet */
    struct gpu_index texts_by_key; /* of interned and static ones, by their address */
    char **texts;                  /* owned, each of them; the first is "" */
    uint32_t text_count, text_capacity;
    struct { /* of memory under that label */
        uint64_t bytes, peak_bytes;
    } * held; /* owned: for each text */
    struct gpu_trace_counts counts;
    uint32_t *texts_by_content; /* owned: numbers, open addressing; 0: free */
    uint32_t content_capacity;  /* a power of two, more than twice text_count */
    /* Rows counted from 1; 0: none. */
    uint32_t newest[WIRE_STREAMS_MAX];
    uint32_t timed[WIRE_STREAMS_MAX]; /* whose times came last; before that, the first */
};

static const char *const kind_names[GPU_TRACE_KIND_COUNT] = {
    [GPU_TRACE_LAUNCH] = "launch", [GPU_TRACE_LIBRARY] = "library",   [GPU_TRACE_COPY] = "copy",
    [GPU_TRACE_UPLOAD] = "upload", [GPU_TRACE_DOWNLOAD] = "download", [GPU_TRACE_FILL] = "fill",
    [GPU_TRACE_MARK] = "mark",     [GPU_TRACE_GRAPH] = "graph",
};

/* ---- the lock ---- */

static inline pthread_mutex_t *enter(const struct gpu_trace *trace) {
    if (__builtin_expect(trace->lock != NULL, 0)) {
        pthread_mutex_lock(trace->lock);
    }
    return trace->lock;
}
static inline void leave(pthread_mutex_t *const *lock) {
    if (*lock) {
        pthread_mutex_unlock(*lock);
    }
}
/* Until the function returns. */
#define ENTER(trace)                                                                               \
    __attribute__((cleanup(leave), unused)) pthread_mutex_t *const entered = enter(trace)

/* ---- rows ---- */

static inline void *row_at(const struct rows *rows, uint64_t index) {
    return rows->pieces[index / PIECE_ROWS] + index % PIECE_ROWS * rows->row_bytes;
}

/* Room for one more. */
static bool make_row_room(struct rows *rows) {
    if (rows->count == (uint64_t)rows->piece_count * PIECE_ROWS) {
        if (rows->piece_count == rows->piece_capacity) {
            uint32_t capacity = rows->piece_capacity ? rows->piece_capacity * 2 : 16;
            uint8_t **grown = realloc(rows->pieces, capacity * sizeof *grown);
            if (!grown) {
                return false;
            }
            rows->pieces = grown;
            rows->piece_capacity = capacity;
        }
        uint8_t *piece = calloc(PIECE_ROWS, rows->row_bytes);
        if (!piece) {
            return false;
        }
        gpu_wire_memory_populate(piece, (uint64_t)PIECE_ROWS * rows->row_bytes);
        rows->pieces[rows->piece_count++] = piece;
    }
    return true;
}

/* A new one at the end, zeroed. NULL: no memory. */
static inline void *row_add(struct rows *rows) {
    return make_row_room(rows) ? row_at(rows, rows->count++) : NULL;
}

/* So many, at most a piece, in one piece. Their first is the last `count` of all. */
static void *rows_add(struct rows *rows, uint32_t count) {
    uint64_t left = PIECE_ROWS - rows->count % PIECE_ROWS;
    if (count > left) {
        rows->count += left; /* which nobody uses */
    }
    if (!make_row_room(rows)) {
        return NULL;
    }
    void *first = row_at(rows, rows->count);
    rows->count += count;
    return first;
}

static void rows_finish(struct rows *rows) {
    for (uint32_t i = 0; i < rows->piece_count; i++) {
        free(rows->pieces[i]);
    }
    free(rows->pieces);
}

/* ---- texts ---- */

static uint64_t hash_of(const char *text) { /* FNV-1a */
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *text; text++) {
        hash = (hash ^ (uint8_t)*text) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* Where the number of the text is, or belongs. */
static uint32_t *content_place(const struct gpu_trace *trace, const char *text) {
    uint32_t mask = trace->content_capacity - 1;
    uint32_t at = (uint32_t)hash_of(text) & mask;
    while (trace->texts_by_content[at] != 0 &&
           strcmp(trace->texts[trace->texts_by_content[at]], text) != 0) {
        at = (at + 1) & mask;
    }
    return &trace->texts_by_content[at];
}

/* Room for one more text. */
static bool make_text_room(struct gpu_trace *trace) {
    if (trace->text_count < trace->text_capacity) {
        return true;
    }
    uint32_t capacity = trace->text_capacity ? trace->text_capacity * 2 : 64;
    uint32_t *places = calloc((size_t)capacity * 4, sizeof *places);
    void *texts = places ? realloc(trace->texts, capacity * sizeof *trace->texts) : NULL;
    if (texts) {
        trace->texts = texts;
    }
    void *held = texts ? realloc(trace->held, capacity * sizeof *trace->held) : NULL;
    if (!held) {
        free(places);
        return false;
    }
    trace->held = held;
    memset(trace->held + trace->text_capacity, 0,
           (capacity - trace->text_capacity) * sizeof *trace->held);
    free(trace->texts_by_content);
    trace->texts_by_content = places;
    trace->text_capacity = capacity;
    trace->content_capacity = capacity * 4;
    for (uint32_t i = 1; i < trace->text_count; i++) {
        *content_place(trace, trace->texts[i]) = i;
    }
    return true;
}

uint32_t gpu_trace_keep_text(struct gpu_trace *trace, const char *text) {
    uint32_t *place = text && text[0] ? content_place(trace, text) : NULL;
    if (!place || *place != 0) {
        return place ? *place : 0;
    }
    if (trace->text_count >= GPU_TRACE_TEXTS_MAX) {
        text = "(more names than a trace keeps)";
        place = content_place(trace, text);
        if (*place != 0) {
            return *place;
        }
    }
    char *copy = make_text_room(trace) ? strdup(text) : NULL;
    if (!copy) {
        return 0;
    }
    *content_place(trace, text) = trace->text_count;
    trace->texts[trace->text_count] = copy;
    return trace->text_count++;
}

/* The number of an interned or static text; 0 also where there is no memory for it. */
static uint32_t text_number(struct gpu_trace *trace, const char *text) {
    uint32_t *place = text && text[0] ? gpu_index_make(&trace->texts_by_key, text) : NULL;
    if (place && *place == GPU_INDEX_NONE) {
        *place = gpu_trace_keep_text(trace, text);
    }
    return place ? *place : 0;
}

/* ---- the log ---- */

struct gpu_trace *gpu_trace_create(const char *device_name, uint32_t ops_max) {
    struct gpu_trace *trace = calloc(1, sizeof *trace);
    if (!trace) {
        return NULL;
    }
    atomic_init(&trace->refs, 1);
    trace->ops_max = ops_max;
    strncpy(trace->device_name, device_name, sizeof trace->device_name - 1);
    trace->ops.row_bytes = sizeof(struct gpu_traced_op);
    trace->uses.row_bytes = sizeof(struct gpu_traced_use);
    trace->waits.row_bytes = sizeof(struct gpu_traced_wait);
    trace->spans.row_bytes = sizeof(struct gpu_traced_span);
    trace->args.row_bytes = sizeof(uint64_t);
    trace->nodes.row_bytes = sizeof(struct gpu_traced_node);
    char *empty = make_text_room(trace) ? strdup("") : NULL;
    if (!empty) {
        gpu_trace_release(trace);
        return NULL;
    }
    trace->texts[trace->text_count++] = empty;
    return trace;
}

struct gpu_trace *gpu_trace_retain(struct gpu_trace *trace) {
    atomic_fetch_add_explicit(&trace->refs, 1, memory_order_relaxed);
    return trace;
}

bool gpu_trace_share(struct gpu_trace *trace) {
    trace->lock = malloc(sizeof *trace->lock);
    if (trace->lock) {
        pthread_mutex_init(trace->lock, NULL);
    }
    return trace->lock != NULL;
}

void gpu_trace_release(struct gpu_trace *trace) {
    if (!trace || atomic_fetch_sub_explicit(&trace->refs, 1, memory_order_acq_rel) > 1) {
        return;
    }
    if (trace->lock) {
        pthread_mutex_destroy(trace->lock);
        free(trace->lock);
    }
    rows_finish(&trace->ops);
    rows_finish(&trace->uses);
    rows_finish(&trace->waits);
    rows_finish(&trace->spans);
    rows_finish(&trace->args);
    rows_finish(&trace->nodes);
    for (uint32_t i = 0; i < trace->graph_count; i++) {
        free(trace->graphs[i].nodes);
    }
    free(trace->graphs);
    for (uint32_t i = 0; i < trace->form_count; i++) {
        free(trace->forms[i].signature);
    }
    free(trace->forms);
    gpu_index_finish(&trace->texts_by_key);
    for (uint32_t i = 0; i < trace->text_count; i++) {
        free(trace->texts[i]);
    }
    free(trace->texts);
    free(trace->texts_by_content);
    free(trace->held);
    free(trace);
}

/* ---- noting ---- */

/* The row of the operation with that number; NULL: it is not kept. */
static struct gpu_traced_op *find(const struct gpu_trace *trace, uint64_t op_number) {
    uint64_t index = op_number - trace->number_first;
    return op_number == 0 || op_number < trace->number_first || index >= trace->ops.count
               ? NULL
               : row_at(&trace->ops, index);
}

static void note_uses(struct gpu_trace *trace, struct gpu_traced_op *row,
                      const struct gpu_envelope *envelope) {
    row->use_first = trace->uses.count;
    for (uint32_t i = 0; i < envelope->use_count; i++) {
        const struct gpu_use *use = &envelope->uses[i];
        struct gpu_block *block = use->block;
        struct gpu_traced_use *to = row_add(&trace->uses);
        if (!to) {
            return;
        }
        if (block->traced_text == 0 && block->label[0] != '\0') {
            block->traced_text = gpu_trace_keep_text(trace, block->label);
        }
        *to = (struct gpu_traced_use){
            .block_number = block->number,
            .byte_begin = use->byte_begin,
            .byte_end = use->byte_end,
            .address = block->address + use->byte_begin,
            .label = block->traced_text,
            .access = use->access,
            .is_host = block->is_host,
            .is_module = block->byte_count == 0,
        };
        row->use_count++;
        row->bytes += to->is_module ? 0 : use->byte_end - use->byte_begin;
    }
}

/* Waits are for recent work: from the newest of the slot back. */
static uint64_t find_point(const struct gpu_trace *trace, uint32_t slot, uint64_t stream_seq) {
    uint32_t number = slot < WIRE_STREAMS_MAX ? trace->newest[slot] : 0;
    while (number != 0) {
        const struct gpu_traced_op *row = row_at(&trace->ops, number - 1);
        if (row->seq <= stream_seq) {
            return row->seq == stream_seq ? number : 0;
        }
        number = row->previous;
    }
    return 0;
}

static void note_waits(struct gpu_trace *trace, struct gpu_traced_op *row,
                       const struct wire_record *record) {
    const struct wire_wait *waits = gpu_wire_record_waits(record);
    row->wait_first = trace->waits.count;
    for (uint32_t i = 0; i < record->wait_count; i++) {
        struct gpu_traced_wait *to =
            waits[i].flags & WIRE_WAIT_ORDER ? row_add(&trace->waits) : NULL;
        if (to) {
            to->op = find_point(trace, waits[i].stream, waits[i].seq);
            row->wait_count++;
        }
    }
}

/* The same for the same source and options, which may be compiled again, and for what a library has
 * under one name. */
static uint64_t code_of(const struct gpu_recipe *recipe) {
    if (recipe->kind == GPU_MODULE_LIBRARY) {
        return 0;
    }
    uint64_t options = recipe->options ? hash_of(recipe->options) : 0;
    return recipe->text ? hash_of(recipe->text) ^ options : recipe->number;
}

static void note_shared_names(struct gpu_trace *trace, struct traced_form *made) {
    for (struct traced_form *form = trace->forms; form < made; form++) {
        if (form->text == made->text && form->code != made->code) {
            form->is_name_shared = made->is_name_shared = true;
        }
    }
}

/* The number of the form, counted from 1; 0: no memory. */
static uint32_t form_number(struct gpu_trace *trace, struct gpu_form *form) {
    if (form->traced_number != 0) {
        return form->traced_number;
    }
    const struct gpu_signature *from = form->signature;
    uint32_t count = trace->form_count; /* room for a power of two of them */
    if ((count & (count - 1)) == 0) {
        void *grown = realloc(trace->forms, (count ? count * 2 : 1) * sizeof *trace->forms);
        if (!grown) {
            return 0;
        }
        trace->forms = grown;
    }
    struct traced_form *made = &trace->forms[trace->form_count++];
    *made = (struct traced_form){.text = gpu_trace_keep_text(trace, form->name),
                                 .code = code_of(form->recipe)};
    note_shared_names(trace, made);
    size_t bytes = from ? sizeof *from + from->param_count * sizeof *from->params : 0;
    made->signature = from ? malloc(bytes) : NULL;
    if (made->signature) {
        memcpy(made->signature, from, bytes);
    }
    form->traced_number = trace->form_count;
    return form->traced_number;
}

static void note_args(struct gpu_trace *trace, struct gpu_traced_op *row,
                      const struct wire_record *record) {
    const struct gpu_signature *signature = trace->forms[row->form - 1].signature;
    if (!signature || signature->args_bytes != record->u.launch.args_bytes) {
        row->form = 0;
        return;
    }
    uint32_t words = (signature->args_bytes + 7u) / 8u;
    void *to = words > 0 ? rows_add(&trace->args, words) : NULL;
    if (to) {
        memcpy(to, gpu_wire_record_payload(record), signature->args_bytes);
        row->arg_first = trace->args.count - words;
    } else {
        row->form = 0;
    }
}

static enum gpu_trace_kind kind_of(const struct wire_record *record) {
    switch (record->opcode) {
    case WIRE_OP_LAUNCH:
        return record->u.launch.is_library ? GPU_TRACE_LIBRARY : GPU_TRACE_LAUNCH;
    case WIRE_OP_COPY:
        return GPU_TRACE_COPY;
    case WIRE_OP_UPLOAD:
        return GPU_TRACE_UPLOAD;
    case WIRE_OP_DOWNLOAD:
        return GPU_TRACE_DOWNLOAD;
    case WIRE_OP_FILL:
        return GPU_TRACE_FILL;
    case WIRE_OP_GRAPH_LAUNCH:
    case WIRE_OP_GRAPH_UPLOAD:
        return GPU_TRACE_GRAPH;
    default:
        return GPU_TRACE_MARK;
    }
}

static uint64_t moved_bytes(const struct wire_record *record) {
    switch (kind_of(record)) {
    case GPU_TRACE_COPY:
    case GPU_TRACE_UPLOAD:
    case GPU_TRACE_DOWNLOAD:
        return record->u.copy.bytes;
    case GPU_TRACE_FILL:
        return record->u.fill.elem_count * record->u.fill.elem_bytes;
    default:
        return 0;
    }
}

static uint32_t count_members(const struct graph_body *body) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < body->node_count; i++) {
        const struct graph_control *control = body->nodes[i].control;
        count += gpu_graph_node_joins(&body->nodes[i]) + 1;
        for (uint32_t k = 0; control && k < control->body_count; k++) {
            count += count_members(&control->bodies[k]);
        }
    }
    return count;
}

/* `outer`: the graph's node that it is in; NULL: it is the graph's own. Returns the place behind
 * the last. */
static struct traced_member *fill_members(struct gpu_trace *trace, const struct graph_body *body,
                                          const uint32_t *outer, struct traced_member *at) {
    for (uint32_t i = 0; i < body->node_count; i++) {
        const struct graph_node *node = &body->nodes[i];
        const struct graph_control *control = node->control;
        const uint32_t number = outer ? *outer : i;
        at += gpu_graph_node_joins(node);
        *at++ = (struct traced_member){
            .is_node = true,
            .is_in_body = outer != NULL,
            .node = number,
            .kind = control ? GPU_TRACE_MARK : (uint8_t)kind_of(node->record),
            .label = text_number(trace, node->label),
            .kernel = node->kernel ? form_number(trace, node->kernel->form) : 0,
            .source = text_number(trace, node->site.source),
            .line = node->site.line,
            .bytes = control ? 0 : moved_bytes(node->record)};
        for (uint32_t k = 0; control && k < control->body_count; k++) {
            at = fill_members(trace, &control->bodies[k], &number, at);
        }
    }
    return at;
}

static bool has_bodies(const struct graph_body *body) {
    bool has = false;
    for (uint32_t i = 0; i < body->node_count; i++) {
        has |= body->nodes[i].control != NULL;
    }
    return has;
}

/* As it is now: an update may change it. 0: no memory, or no room for the nodes of one more. */
static uint32_t graph_number(struct gpu_trace *trace, struct gpu_graph *graph) {
    if (graph->traced != 0 && graph->traced_version == graph->version) {
        return graph->traced;
    }
    const struct graph_body *body = &graph->body;
    uint32_t count = count_members(body);
    if (trace->member_count + count > trace->ops_max) {
        trace->nodes_dropped += body->node_count;
        return 0;
    }
    if (trace->graph_count == trace->graph_capacity) {
        uint32_t capacity = trace->graph_capacity ? trace->graph_capacity * 2 : 16;
        void *grown = realloc(trace->graphs, capacity * sizeof *trace->graphs);
        if (!grown) {
            return 0;
        }
        trace->graphs = grown;
        trace->graph_capacity = capacity;
    }
    struct traced_member *members = calloc(count + (size_t)1, sizeof *members);
    if (!members) {
        return 0;
    }
    fill_members(trace, body, NULL, members);
    trace->member_count += count;
    trace->graphs[trace->graph_count++] = (struct traced_graph){.number = graph->number,
                                                                .node_count = count,
                                                                .nodes = members,
                                                                .has_bodies = has_bodies(body)};
    graph->traced = trace->graph_count;
    graph->traced_version = graph->version;
    return graph->traced;
}

/* The text of the label of the stream that it is on; 0: it has none. */
static uint32_t stream_label(struct gpu_trace *trace, const struct gpu_op *op, uint32_t slot) {
    struct gpu_stream *stream = op->device->streams[slot];
    if (!stream || stream->number != op->stream_number) {
        return 0;
    }
    if (stream->traced_text == 0 && stream->label[0] != '\0') {
        stream->traced_text = gpu_trace_keep_text(trace, stream->label);
    }
    return stream->traced_text;
}

/* False: it is the first for which there is no room. */
static bool note(struct gpu_trace *trace, const struct gpu_op *op,
                 const struct gpu_envelope *envelope, const struct wire_record *record) {
    ENTER(trace);
    struct gpu_device *device = op->device;
    uint32_t slot = record->stream;
    int64_t given_ns = gpu_clock_ns(); /* before memory for the row is asked for */
    trace->counts.waits_issued = device->stats.waits_issued;
    trace->counts.waits_elided = device->stats.waits_elided;
    if (trace->number_first == 0) {
        trace->number_first = op->number;
    }
    /* Without a gap, so that numbers tell rows: when one could not be kept, no later one is. */
    struct gpu_traced_op *row = trace->dropped_count == 0 && trace->ops.count < trace->ops_max
                                    ? row_add(&trace->ops)
                                    : NULL;
    if (!row) {
        return trace->dropped_count++ > 0;
    }
    row->kind = (uint8_t)kind_of(record);
    row->stream = op->stream_number;
    row->stream_label = stream_label(trace, op, slot);
    row->seq = record->seq;
    row->slot = slot;
    row->label = text_number(trace, op->label);
    row->form = envelope->form ? form_number(trace, envelope->form) : 0;
    row->kernel = row->form;
    if (record->opcode == WIRE_OP_GRAPH_LAUNCH && envelope->graph) {
        row->graph = graph_number(trace, envelope->graph);
    }
    row->source = text_number(trace, op->site.source);
    row->line = op->site.line;
    row->task = op->task;
    row->seat = op->seat ? op->seat->number + 1 : 0;
    row->asked_ns = envelope->asked_ns;
    row->given_ns = given_ns;
    row->held_bytes = device->stats.bytes_live;
    if (record->opcode == WIRE_OP_LAUNCH) {
        memcpy(row->grid, record->u.launch.grid, sizeof row->grid);
        memcpy(row->block, record->u.launch.block, sizeof row->block);
    }
    if (row->form != 0) {
        note_args(trace, row, record);
    }
    note_uses(trace, row, envelope);
    if (row->kind >= GPU_TRACE_COPY && row->kind <= GPU_TRACE_FILL) {
        row->bytes = moved_bytes(record);
    }
    note_waits(trace, row, record);
    uint32_t number = (uint32_t)trace->ops.count;
    row->previous = trace->newest[slot];
    if (trace->newest[slot] != 0) {
        ((struct gpu_traced_op *)row_at(&trace->ops, trace->newest[slot] - 1))->next = number;
    }
    trace->newest[slot] = number;
    if (trace->timed[slot] == 0) {
        trace->timed[slot] = number;
    }
    return true;
}

void gpu_trace_note(struct gpu_trace *trace, const struct gpu_op *op,
                    const struct gpu_envelope *envelope, const struct wire_record *record) {
    const struct gpu_device *device = op->device;
    if (!note(trace, op, envelope, record) && device->on_log) {
        device->on_log(device->log_user,
                       "the trace is full: later operations are counted and not kept");
    }
}

/* The row of the slot's operation; from the one that was timed last, which is near. */
static struct gpu_traced_op *find_to_time(struct gpu_trace *trace, uint32_t slot, uint64_t seq) {
    uint32_t at = slot < WIRE_STREAMS_MAX ? trace->timed[slot] : 0;
    struct gpu_traced_op *row = at != 0 ? row_at(&trace->ops, at - 1) : NULL;
    while (row && row->seq != seq) {
        at = row->seq < seq ? row->next : row->previous;
        struct gpu_traced_op *near = at != 0 ? row_at(&trace->ops, at - 1) : NULL;
        bool is_between = near && (row->seq < seq) != (near->seq < seq) && near->seq != seq;
        row = is_between ? NULL : near;
    }
    if (row) {
        trace->timed[slot] = at;
    }
    return row;
}

/* As many as there may be operations, whose rows are the larger ones. */
static void note_node(struct gpu_trace *trace, struct gpu_traced_op *row,
                      const struct wire_times *times) {
    const struct traced_graph *graph = row->graph != 0 ? &trace->graphs[row->graph - 1] : NULL;
    const struct traced_member *member =
        graph && times->node <= graph->node_count ? &graph->nodes[times->node - 1] : NULL;
    if (!member || !member->is_node) {
        return;
    }
    struct gpu_traced_node *node =
        trace->nodes.count < trace->ops_max ? row_add(&trace->nodes) : NULL;
    if (!node) {
        trace->nodes_dropped++;
        row->lacks_nodes = true;
        return;
    }
    node->node = member->node;
    node->is_in_body = member->is_in_body;
    node->label = member->label;
    node->kernel = member->kernel;
    node->source = member->source;
    node->line = member->line;
    node->kind = member->kind;
    node->bytes = member->bytes;
    node->begun_ns = times->begin_ns;
    node->ended_ns = times->end_ns;
    node->before = row->node_last;
    row->node_last = trace->nodes.count;
}

void gpu_trace_note_times(struct gpu_trace *trace, const struct wire_times *times, uint32_t count) {
    ENTER(trace);
    for (uint32_t i = 0; i < count; i++) {
        struct gpu_traced_op *row = find_to_time(trace, times[i].stream, times[i].seq);
        if (row) {
            bool is_first = row->ended_ns == 0;
            if (times[i].end_ns != 0) {
                row->begun_ns = is_first || times[i].begin_ns < row->begun_ns ? times[i].begin_ns
                                                                              : row->begun_ns;
                row->ended_ns =
                    is_first || times[i].end_ns > row->ended_ns ? times[i].end_ns : row->ended_ns;
            }
            if (times[i].node & WIRE_NODES_MISSING) {
                trace->nodes_dropped += times[i].node & ~WIRE_NODES_MISSING;
                row->lacks_nodes = true;
            } else if (times[i].node != 0) {
                note_node(trace, row, &times[i]);
            }
        }
    }
}

void gpu_trace_note_end(struct gpu_trace *trace, const struct gpu_op *op) {
    ENTER(trace);
    struct gpu_traced_op *row = find(trace, op->number);
    if (row) {
        row->over_ns = op->device->seen_ns != 0 ? op->device->seen_ns : gpu_clock_ns();
        row->outcome = op->failure ? GPU_TRACE_FAILED : GPU_TRACE_SUCCEEDED;
    }
}

void gpu_trace_note_memory(struct gpu_trace *trace, const struct gpu_block *block, bool is_begin) {
    ENTER(trace);
    char site[300];
    const char *label = block->label;
    if (!label[0] && block->site.source) {
        snprintf(site, sizeof site, "%s:%d", block->site.source, block->site.line);
        label = site;
    }
    uint32_t text = gpu_trace_keep_text(trace, label);
    uint64_t bytes = block->grant.byte_count;
    if (is_begin) {
        trace->held[text].bytes += bytes;
    } else {
        trace->held[text].bytes -=
            bytes < trace->held[text].bytes ? bytes : trace->held[text].bytes;
    }
    if (trace->held[text].peak_bytes < trace->held[text].bytes) {
        trace->held[text].peak_bytes = trace->held[text].bytes;
    }
    trace->counts.bytes_live_max = block->device->stats.bytes_live_max;
}

void gpu_trace_note_compilations(struct gpu_trace *trace, const struct gpu_stats *stats) {
    ENTER(trace);
    trace->counts.compilations = stats->compilations;
    trace->counts.compile_ns = stats->compile_ns;
    trace->counts.cache_hits = stats->cache_hits;
}

void gpu_trace_forget_memory(struct gpu_trace *trace) {
    ENTER(trace);
    for (uint32_t i = 0; i < trace->text_count; i++) {
        trace->held[i].bytes = 0;
    }
}

int64_t gpu_trace_device_ns(const struct gpu_trace *trace, uint64_t op_number) {
    ENTER(trace);
    const struct gpu_traced_op *row = find(trace, op_number);
    return row && row->ended_ns != 0 ? row->ended_ns - row->begun_ns : -1;
}

/* ---- spans ---- */

bool gpu_trace_has_span_room(struct gpu_trace *trace) {
    bool has_room = trace->dropped_count == 0 && trace->spans.count < trace->ops_max;
    trace->dropped_count += !has_room;
    return has_room;
}

void gpu_trace_add_span(struct gpu_trace *trace, const struct gpu_traced_span *span) {
    struct gpu_traced_span *row = row_add(&trace->spans);
    if (row) {
        *row = *span;
    } else {
        trace->dropped_count++;
    }
}

uint64_t gpu_trace_span_count(const struct gpu_trace *trace) {
    return trace->spans.count;
}

const struct gpu_traced_span *gpu_trace_span(const struct gpu_trace *trace, uint64_t number) {
    return row_at(&trace->spans, number - 1);
}

/* ---- asking ---- */

uint64_t gpu_trace_find(const struct gpu_trace *trace, uint64_t op_number) {
    ENTER(trace);
    return find(trace, op_number) ? op_number - trace->number_first + 1 : 0;
}

const char *gpu_trace_device_name(const struct gpu_trace *trace) {
    return trace->device_name;
}

uint64_t gpu_trace_count(const struct gpu_trace *trace) {
    ENTER(trace);
    return trace->ops.count;
}

uint64_t gpu_trace_dropped(const struct gpu_trace *trace) {
    ENTER(trace);
    return trace->dropped_count + trace->nodes_dropped;
}

void gpu_trace_op(const struct gpu_trace *trace, uint64_t number, struct gpu_traced_op *op) {
    ENTER(trace);
    *op = *(const struct gpu_traced_op *)row_at(&trace->ops, number - 1);
}

bool gpu_trace_has_bodies(const struct gpu_trace *trace, const struct gpu_traced_op *op) {
    ENTER(trace);
    return op->graph != 0 && trace->graphs[op->graph - 1].has_bodies;
}

const struct gpu_traced_use *gpu_trace_use(const struct gpu_trace *trace,
                                           const struct gpu_traced_op *op, uint32_t index) {
    ENTER(trace);
    return row_at(&trace->uses, op->use_first + index);
}

uint32_t gpu_trace_kernel(const struct gpu_trace *trace, uint32_t kernel, bool *is_shared) {
    ENTER(trace);
    *is_shared = kernel != 0 && trace->forms[kernel - 1].is_name_shared;
    return kernel != 0 ? trace->forms[kernel - 1].text : 0;
}

const struct gpu_param *gpu_trace_param(const struct gpu_trace *trace,
                                        const struct gpu_traced_op *op, uint32_t index) {
    ENTER(trace);
    const struct gpu_signature *signature =
        op->form != 0 ? trace->forms[op->form - 1].signature : NULL;
    return signature && index < signature->param_count ? &signature->params[index] : NULL;
}

const uint8_t *gpu_trace_arg(const struct gpu_trace *trace, const struct gpu_traced_op *op,
                             const struct gpu_param *param) {
    ENTER(trace);
    return (const uint8_t *)row_at(&trace->args, op->arg_first) + param->byte_offset;
}

const struct gpu_traced_node *gpu_trace_node(const struct gpu_trace *trace, uint64_t row) {
    ENTER(trace);
    return row_at(&trace->nodes, row - 1);
}

bool gpu_trace_newest_of(const struct gpu_trace *trace, const struct gpu_graph *graph,
                         struct gpu_traced_op *op) {
    ENTER(trace);
    for (uint64_t number = trace->ops.count; number > 0; number--) {
        const struct gpu_traced_op *row = row_at(&trace->ops, number - 1);
        if (row->graph != 0 && row->ended_ns != 0 && row->outcome != GPU_TRACE_PENDING &&
            trace->graphs[row->graph - 1].number == graph->number) {
            *op = *row;
            return true;
        }
    }
    return false;
}

const struct gpu_traced_wait *gpu_trace_wait(const struct gpu_trace *trace,
                                             const struct gpu_traced_op *op, uint32_t index) {
    ENTER(trace);
    return row_at(&trace->waits, op->wait_first + index);
}

const char *gpu_trace_text(const struct gpu_trace *trace, uint32_t number) {
    ENTER(trace);
    return trace->texts[number < trace->text_count ? number : 0];
}

uint32_t gpu_trace_text_count(const struct gpu_trace *trace) {
    ENTER(trace);
    return trace->text_count;
}

uint64_t gpu_trace_peak_bytes(const struct gpu_trace *trace, uint32_t text) {
    ENTER(trace);
    return trace->held[text].peak_bytes;
}

struct gpu_trace_counts gpu_trace_counts(const struct gpu_trace *trace) {
    ENTER(trace);
    return trace->counts;
}

const char *gpu_trace_kind_name(enum gpu_trace_kind kind) {
    return kind_names[kind];
}
