/* Modules and kernels: asking the executor to compile and load, and keeping what it answered. */
#include "runtime/module.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/memory/stack.h"
#include "runtime/recovery.h"
#include "runtime/report.h"
#include "runtime/structure.h"

#define NAME_CHARS_MAX 4095u /* of kernels and variables */

struct gpu_described_kernel {
    char *name, *signature; /* owned */
};

struct gpu_described_global {
    char *name; /* owned */
    enum gpu_type type;
    uint64_t elem_count;
    bool is_constant;
};

struct gpu_described_value {
    char *name; /* owned */
    uint64_t value;
};

/* ---- the description that compilers and libraries give ---- */

static char *copy_range(const char *from, size_t length) {
    char *copy = malloc(length + 1);
    if (copy) {
        memcpy(copy, from, length);
        copy[length] = '\0';
    }
    return copy;
}

/* Template instances have blanks and commas in their names; their name ends where the signature
 * starts: behind the last bracket that is open at a blank. */
static size_t name_length(const char *at, size_t line_length) {
    int depth = 0;
    for (size_t i = 0; i < line_length; i++) {
        if (at[i] == '<' || at[i] == '(') {
            depth++;
        } else if (at[i] == '>' || at[i] == ')') {
            depth--;
        } else if (at[i] == ' ' && depth == 0) {
            return i;
        }
    }
    return line_length;
}

static bool add_kernel(struct gpu_module *module, const char *at, size_t length) {
    struct gpu_described_kernel *grown =
        realloc(module->kernels, (module->kernel_count + 1u) * sizeof *grown);
    if (!grown) {
        return false;
    }
    module->kernels = grown;
    size_t name = name_length(at, length);
    size_t rest = name < length ? name + 1 : length;
    struct gpu_described_kernel *kernel = &grown[module->kernel_count];
    kernel->name = copy_range(at, name);
    kernel->signature = copy_range(at + rest, length - rest);
    module->kernel_count++;
    return kernel->name && kernel->signature;
}

static bool add_global(struct gpu_module *module, const char *at, size_t length) {
    struct gpu_described_global *grown =
        realloc(module->globals, (module->global_count + 1u) * sizeof *grown);
    if (!grown) {
        return false;
    }
    module->globals = grown;
    struct gpu_described_global *global = &grown[module->global_count];
    char *line = copy_range(at, length);
    char kind[16] = "";
    unsigned long long count = 0;
    size_t name = name_length(at, length);
    global->name = copy_range(at, name);
    /* TYPE COUNT KIND; a type that is none of ours is as the compiler says it, blanks and all. */
    const char *type = line ? line + (name < length ? name + 1 : length) : "";
    const char *last = strrchr(type, ' ');
    const char *middle = last ? memrchr(type, ' ', (size_t)(last - type)) : NULL;
    bool is_well = global->name && middle && sscanf(middle, " %llu %15s", &count, kind) == 2;
    uint8_t lanes; /* of vectors the elements count */
    bool is_ours =
        gpu_type_parse_vector(type, is_well ? (size_t)(middle - type) : 0, &global->type, &lanes) &&
        lanes > 0;
    global->type = is_ours ? global->type : GPU_TYPE_COUNT;
    global->elem_count = is_ours ? count * lanes : count;
    global->is_constant = strcmp(kind, "const") == 0;
    module->access = global->is_constant ? module->access : GPU_READ_WRITE;
    module->global_count++;
    free(line);
    return is_well;
}

static bool add_value(struct gpu_module *module, const char *at, size_t length) {
    struct gpu_described_value *grown =
        realloc(module->values, (module->value_count + 1u) * sizeof *grown);
    if (!grown) {
        return false;
    }
    module->values = grown;
    size_t name = name_length(at, length);
    struct gpu_described_value *value = &grown[module->value_count++];
    value->name = copy_range(at, name);
    value->value = strtoull(at + name, NULL, 10);
    return value->name && name < length;
}

static bool read_description(struct gpu_module *module, const char *text) {
    while (*text) {
        const char *end = strchr(text, '\n');
        size_t length = end ? (size_t)(end - text) : strlen(text);
        bool is_well = true;
        if (length > 7 && memcmp(text, "kernel ", 7) == 0) {
            is_well = add_kernel(module, text + 7, length - 7);
        } else if (length > 7 && memcmp(text, "global ", 7) == 0) {
            is_well = add_global(module, text + 7, length - 7);
        } else if (length > 6 && memcmp(text, "value ", 6) == 0) {
            is_well = add_value(module, text + 6, length - 6);
        }
        if (!is_well) {
            return false;
        }
        text += length + (end != NULL);
    }
    return true;
}

/* ---- creation ---- */

static void finish(struct gpu_module *module) {
    struct gpu_device *device = module->device;
    for (uint32_t i = 0; i < module->kernel_count; i++) {
        free(module->kernels[i].name);
        free(module->kernels[i].signature);
    }
    for (uint32_t i = 0; i < module->global_count; i++) {
        free(module->globals[i].name);
    }
    for (uint32_t i = 0; i < module->value_count; i++) {
        free(module->values[i].name);
    }
    for (uint32_t i = 0; i < module->entry_count; i++) {
        gpu_id_give(&device->kernel_ids, module->entries[i].id);
        free(module->entries[i].name);
    }
    if (module->has_id) {
        gpu_id_give(&device->module_ids, module->id);
    }
    free(module->kernels);
    free(module->globals);
    free(module->values);
    free(module->entries);
    gpu_recipe_release(module->recipe);
    gpu_block_release(module->image);
    gpu_block_release(module->hazards);
    device->stats.modules_live--;
    *module->link = module->next;
    if (module->next) {
        module->next->link = module->link;
    }
    free(module);
    gpu_device_release(device);
}

static void tell_not_kept(struct gpu_device *device, const struct wire_compiled *compiled) {
    if (compiled->not_kept[0] == '\0' || device->has_told_not_kept || !device->on_log) {
        return;
    }
    device->has_told_not_kept = true;
    char line[512];
    snprintf(line, sizeof line, "device %s: compiled kernels are not kept: %.*s", device->title,
             (int)sizeof compiled->not_kept, compiled->not_kept);
    device->on_log(device->log_user, line);
}

/* What was loaded, not compiled, has no such body. */
static void count_compilation(struct gpu_device *device, const struct wire_reply *reply) {
    struct wire_compiled compiled;
    if (reply->body_bytes != sizeof compiled) {
        return;
    }
    memcpy(&compiled, gpu_wire_reply_body(reply), sizeof compiled);
    tell_not_kept(device, &compiled);
    if (compiled.was_cached) {
        device->stats.cache_hits++;
    } else {
        device->stats.compilations++;
        device->stats.compile_ns += (uint64_t)compiled.took_ns;
    }
    if (device->trace) {
        gpu_trace_note_compilations(device->trace, &device->stats);
    }
}

static void on_module(struct gpu_op *op, void *user, const struct wire_reply *reply) {
    struct gpu_module *module = user;
    if (op->failure || op->device->recovery.restarts_max == 0) {
        gpu_block_release(module->image);
        module->image = NULL;
    }
    if (op->failure) {
        struct gpu_error *error = &op->failure->error;
        if (error->code == GPULUA_COMPILE_FAILED && reply) {
            struct gpu_op_info info = error->op;
            const char *log = gpu_wire_reply_text(reply);
            gpu_error_set(error, GPULUA_COMPILE_FAILED, "%s does not compile:\n%s", module->name,
                          log);
            error->log = strdup(log);
            error->op = info;
        }
    } else if (reply && read_description(module, gpu_wire_reply_text(reply))) {
        module->is_loaded = true;
        count_compilation(op->device, reply);
        gpu_module_tell(module);
    } else {
        op->failure = gpu_failure_create();
        if (op->failure) {
            gpu_error_set(&op->failure->error, GPULUA_OUT_OF_MEMORY,
                          "no host memory for the description of %s, or it is damaged",
                          module->name);
        } else {
            op->failure = gpu_failure_without_memory(op->device);
        }
    }
    gpu_module_release(module); /* the request's */
}

void gpu_modules_close(struct gpu_device *device) {
    gpu_recovery_drop_unread(device, true);
    for (struct gpu_module *module = device->modules; module; module = module->next) {
        gpu_block_release(module->image);
        module->image = NULL;
    }
}

static gpulua_status put_text(struct gpu_module *module, const struct gpu_module_info *info,
                              struct gpu_error *error) {
    struct gpu_block_info block = {
        .byte_count = info->text_bytes + 1, .label = "module", .is_host = true, .is_hidden = true};
    gpulua_status status = gpu_block_create(module->device, &block, &module->image, error);
    if (status) {
        return status;
    }
    char *bytes = gpu_block_host_bytes(module->image);
    memcpy(bytes, info->text, info->text_bytes);
    bytes[info->text_bytes] = '\0';
    return GPULUA_OK;
}

static const struct {
    uint8_t opcode;
    const char *label, *prefix;
} kinds[] = {[GPU_MODULE_SOURCE] = {WIRE_OP_MODULE_COMPILE, "compile", "source "},
             [GPU_MODULE_IMAGE] = {WIRE_OP_MODULE_LOAD, "load", "source "},
             [GPU_MODULE_LIBRARY] = {WIRE_OP_MODULE_LIBRARY, "library", ""}};

/* In scratch memory, such as the device's. NULL: the options are too long. */
static struct wire_record *build(const struct gpu_module *module, void *scratch) {
    struct wire_record *record = scratch;
    memset(record, 0, sizeof *record);
    record->opcode = kinds[module->kind].opcode;
    record->object = module->id;
    record->u.module.number = module->number;
    if (module->image) {
        record->u.module.arena_offset = module->image->address;
        record->u.module.bytes = module->text_bytes;
    }
    size_t room = WIRE_RECORD_BYTES_MAX - sizeof *record - 16;
    int length =
        snprintf(gpu_wire_record_payload(record), room, "%s%s\n%s", kinds[module->kind].prefix,
                 module->name, module->options ? module->options : "");
    if (length < 0 || (size_t)length >= room) {
        return NULL;
    }
    record->length_bytes = ((uint32_t)sizeof *record + (uint32_t)length + 1u + 15u) & ~15u;
    return record;
}

static gpulua_status send(struct gpu_module *module, struct gpu_op **op, struct gpu_error *error) {
    struct wire_record *record = build(module, module->device->scratch);
    if (!record) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "%.200s: the compile options are longer than %zu bytes", module->name,
                             WIRE_RECORD_BYTES_MAX - sizeof *record - 16);
    }
    gpulua_status status =
        gpu_device_check_open(module->device, error); /* a wait may have found out */
    if (status) {
        return status;
    }
    gpu_module_retain(module); /* the request's */
    status = gpu_request_unchecked(module->device, record, kinds[module->kind].label, on_module,
                                   module, op, error);
    if (status == GPULUA_OUT_OF_MEMORY) {
        gpu_module_release(module); /* there is no request; where the link is dead, it ends */
    }
    return status;
}

gpulua_status gpu_module_create(struct gpu_device *device, const struct gpu_module_info *info,
                                struct gpu_module **module, struct gpu_op **op,
                                struct gpu_error *error) {
    GPU_ENTER(device);
    gpulua_status status = gpu_device_check(device, error);
    if (status) {
        return status;
    }
    if (info->kind != GPU_MODULE_LIBRARY &&
        (info->text_bytes == 0 || info->text_bytes > GPU_SOURCE_BYTES_MAX)) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "%s: a module is made of 1 to %llu bytes, not %llu", info->name,
                             (unsigned long long)GPU_SOURCE_BYTES_MAX,
                             (unsigned long long)info->text_bytes);
    }
    gpu_device_run_deferred(device);
    struct gpu_module *made = calloc(1, sizeof *made);
    if (!made) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a module");
    }
    made->refs = 1;
    made->device = gpu_device_retain(device);
    made->access = GPU_READ;
    made->next = device->modules;
    made->link = &device->modules;
    if (made->next) {
        made->next->link = &made->next;
    }
    device->modules = made;
    device->stats.modules_live++;
    made->number = ++device->module_number_next;
    made->recipe = gpu_recipe_create(info, made->number);
    made->hazards = gpu_block_create_external(device, 0, 0, "module");
    made->has_id = gpu_id_take(&device->module_ids, &made->id);
    if (!made->recipe || !made->hazards || !made->has_id) {
        gpu_module_release(made);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a module");
    }
    made->kind = (uint8_t)info->kind;
    made->text_bytes = info->text_bytes;
    made->name = made->recipe->name;
    made->options = made->recipe->options;
    if (made->kind != GPU_MODULE_LIBRARY) {
        status = put_text(made, info, error);
    }
    if (status == GPULUA_OK) {
        status = send(made, op, error);
    }
    if (status) {
        gpu_module_release(made);
        return status;
    }
    *module = made;
    return GPULUA_OK;
}

struct gpu_module *gpu_module_retain(struct gpu_module *module) {
    GPU_ENTER(module->device);
    module->refs++;
    return module;
}

/* Unloading has to wait for every launch: it is put off again and again until all are over. */
static bool is_in_use(struct gpu_device *device, const struct gpu_module *module) {
    return (module->hazards && !gpu_block_uses_over(module->hazards)) ||
           !gpu_ops_are_over(device, module->launched);
}

static void run_release(struct gpu_device *device, struct gpu_deferred *deferred) {
    struct gpu_module *module =
        (struct gpu_module *)(void *)((char *)deferred - offsetof(struct gpu_module, release));
    module->is_deferred = false;
    if (module->refs > 0) {
        return;
    }
    bool is_told = gpu_recovery_is_told(device, &module->told);
    bool is_there =
        device->state == GPU_DEVICE_OPEN ||
        (device->state == GPU_DEVICE_RETURNING && (device->recovery.is_restoring || is_told));
    if (device->link && is_there && is_in_use(device, module)) {
        module->is_deferred = true;
        gpu_device_defer_later(device, &module->release, run_release);
        return;
    }
    struct wire_record record = {
        .length_bytes = sizeof record, .opcode = WIRE_OP_MODULE_UNLOAD, .object = module->id};
    if (device->link && is_there) {
        struct gpu_error ignored = {0};
        if (module->has_id) {
            (void)gpu_device_publish(device, &record, &ignored);
        }
        gpu_error_finish(&ignored);
    }
    gpu_recovery_leave_unread(device, module->image, &module->told);
    module->image = NULL;
    if (is_told) {
        (void)gpu_recovery_tell(device, &record, &module->told);
    }
    finish(module);
}

void gpu_module_release(struct gpu_module *module) {
    if (!module) {
        return;
    }
    GPU_ENTER_WHOLE(module->device);
    if (--module->refs > 0 || module->is_deferred) {
        return;
    }
    module->is_deferred = true;
    gpu_device_defer(module->device, &module->release, run_release);
}

/* ---- kernels ---- */

struct gpu_device *gpu_module_device(const struct gpu_module *module) {
    return module->device;
}
const char *gpu_module_name(const struct gpu_module *module) {
    return module->name;
}
uint32_t gpu_module_kernel_count(const struct gpu_module *module) {
    return module->kernel_count;
}
const char *gpu_module_kernel_name(const struct gpu_module *module, uint32_t index) {
    return module->kernels[index].name;
}

bool gpu_module_value(const struct gpu_module *module, const char *name, uint64_t *value) {
    for (uint32_t i = 0; i < module->value_count; i++) {
        if (strcmp(module->values[i].name, name) == 0) {
            *value = module->values[i].value;
            return true;
        }
    }
    return false;
}

static void destroy_kernel(struct gpu_kernel *kernel) {
    struct gpu_module *module = kernel->module;
    module->device->stats.kernels_live--;
    gpu_form_release(kernel->form);
    free(kernel);
    gpu_module_release(module);
}

static struct gpu_module_entry *find_entry(const struct gpu_module *module, uint32_t id) {
    struct gpu_module_entry *entry = module->entries;
    while (entry->id != id) {
        entry++;
    }
    return entry;
}

static void on_kernel(struct gpu_op *op, void *user, const struct wire_reply *reply) {
    (void)op;
    struct gpu_kernel *kernel = user;
    if (reply && reply->status == GPULUA_OK && reply->body_bytes >= sizeof kernel->facts) {
        memcpy(&kernel->facts, gpu_wire_reply_body(reply), sizeof kernel->facts);
        struct gpu_module_entry *entry = find_entry(kernel->module, kernel->id);
        entry->facts = kernel->facts;
        entry->is_known = true;
    }
}

static const char *find_signature(const struct gpu_module *module, const char *name) {
    for (uint32_t i = 0; i < module->kernel_count; i++) {
        if (strcmp(module->kernels[i].name, name) == 0) {
            return module->kernels[i].signature;
        }
    }
    return NULL;
}

static bool is_name_character(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

/* Does the source say a word that the name, "ns::name<float>", may be of? */
static bool is_in_source(const struct gpu_module *module, const char *name) {
    size_t length = strcspn(name, "<");
    const char *scope = memrchr(name, ':', length);
    const char *word = scope ? scope + 1 : name;
    length -= (size_t)(word - name);
    const char *text = length > 0 ? module->recipe->text : NULL;
    for (const char *at = text; at && (at = memmem(at, strlen(at), word, length)); at += length) {
        if (!(at > text && is_name_character(at[-1])) && !is_name_character(at[length])) {
            return true;
        }
    }
    return false;
}

/* "; it has 'a', 'b'", or nothing; in `list`, cut at its end. */
static void add_name(char *list, size_t list_bytes, const char *name) {
    size_t used = strlen(list);
    snprintf(list + used, list_bytes - used, "%s'%s'", used ? ", " : "; it has ", name);
}

static gpulua_status no_such_kernel(const struct gpu_module *module, const char *name,
                                    struct gpu_error *error) {
    char list[600] = "";
    for (uint32_t i = 0; i < module->kernel_count; i++) {
        add_name(list, sizeof list, module->kernels[i].name);
    }
    return gpu_error_set(error, GPULUA_INVALID_ARGUMENT, "%s has no kernel '%s'%s%s", module->name,
                         name, list[0] ? list : "; it has none",
                         is_in_source(module, name)
                             ? " (which one of a template, or of several of one name, "
                               "`names` of compile says: \"kernel<float>\", "
                               "\"(void (*)(float *))kernel\")"
                             : "");
}

static gpulua_status no_such_global(const struct gpu_module *module, const char *name,
                                    struct gpu_error *error) {
    char list[600] = "";
    for (uint32_t i = 0; i < module->global_count; i++) {
        add_name(list, sizeof list, module->globals[i].name);
    }
    return gpu_error_set(error, GPULUA_INVALID_ARGUMENT, "%s has no variable '%s'%s", module->name,
                         name, list[0] ? list : "; it has none");
}

static gpulua_status wrong_count(const struct gpu_kernel *kernel, uint32_t count,
                                 uint32_t compiled_count, struct gpu_error *error) {
    return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                         "signature of kernel '%s': %u parameters, the compiled kernel has %u",
                         kernel->name, count, compiled_count);
}

/* What the driver says of the parameters has the last word on counts and sizes. */
static gpulua_status check_params(const struct gpu_kernel *kernel, struct gpu_error *error) {
    const struct gpu_signature *signature = kernel->signature;
    const struct wire_kernel_facts *facts = &kernel->facts;
    if (facts->param_count == UINT32_MAX) {
        return GPULUA_OK;
    }
    uint32_t count = signature->number_count + signature->has_context;
    if (facts->param_count != count) {
        return wrong_count(kernel, count, facts->param_count, error);
    }
    uint32_t known = sizeof facts->param_bytes / sizeof facts->param_bytes[0];
    for (uint32_t i = 0; i < signature->param_count + signature->has_context; i++) {
        const struct gpu_param *param = &signature->params[i]; /* the last may be the gpulua_ctx */
        uint32_t at = param->number - 1u;
        if (at < known && (param->whole_bytes != facts->param_bytes[at] ||
                           param->whole_offset != facts->param_offset[at])) {
            char what[sizeof param->text + 2] = "a structure or vector";
            if (strchr(param->name, '.') == NULL) {
                snprintf(what, sizeof what, "'%s'", param->text);
            }
            return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                                 "signature of kernel '%s', parameter %u: %s is %u bytes at offset "
                                 "%u, the compiled kernel has %u bytes at %u",
                                 kernel->name, param->number, what, param->whole_bytes,
                                 param->whole_offset, facts->param_bytes[at],
                                 facts->param_offset[at]);
        }
    }
    return GPULUA_OK;
}

static bool is_pointer(const struct gpu_param *param) {
    size_t length = strlen(param->text);
    return param->kind == GPU_PARAM_POINTER ||
           (param->kind == GPU_PARAM_UNSUPPORTED && length > 0 && param->text[length - 1] == '*');
}

/* By size alone a structure could be taken for a pointer, and what is in it for an address. */
static gpulua_status check_pointers(const struct gpu_kernel *kernel, const char *described,
                                    struct gpu_error *error) {
    const struct gpu_signature *signature = kernel->signature;
    struct gpu_signature *prototype = NULL;
    gpulua_status status = GPULUA_OK;
    struct gpu_error ignored = {0};
    if (gpu_signature_parse(described, &prototype, &ignored) != GPULUA_OK) {
        gpu_error_finish(&ignored); /* what launches cannot take as it is */
        return GPULUA_OK;
    }
    uint32_t count = signature->number_count + signature->has_context;
    uint32_t described_count = prototype->number_count + prototype->has_context;
    if (count != described_count) { /* the driver may not have said so */
        status = wrong_count(kernel, count, described_count, error);
    }
    for (uint32_t i = 0; i < signature->param_count && status == GPULUA_OK; i++) {
        const struct gpu_param *param = &signature->params[i], *wanted = prototype->params;
        while (wanted->number != param->number) {
            wanted++;
        }
        if (is_pointer(wanted) && param->kind != GPU_PARAM_POINTER) {
            status = gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                                   "signature of kernel '%s', parameter %u: a value, where the "
                                   "kernel has a pointer ('%s'); 'inout void*' takes any buffer "
                                   "for it",
                                   kernel->name, param->number, wanted->text);
        }
    }
    free(prototype);
    return status;
}

/* In scratch memory, such as the device's. */
static struct wire_record *build_entry(const struct gpu_module *module,
                                       const struct gpu_module_entry *entry, void *scratch) {
    struct wire_record *record = scratch;
    size_t name_bytes = strlen(entry->name) + 1;
    memset(record, 0, sizeof *record);
    record->opcode = WIRE_OP_KERNEL_GET;
    record->object = entry->id;
    record->u.kernel.module = module->id;
    memcpy(gpu_wire_record_payload(record), entry->name, name_bytes);
    record->length_bytes = ((uint32_t)(sizeof *record + name_bytes) + 15u) & ~15u;
    return record;
}

static void drop_entry(struct gpu_module *module, struct gpu_module_entry *entry) {
    uint32_t index = (uint32_t)(entry - module->entries);
    gpu_id_give(&module->device->kernel_ids, entry->id);
    free(entry->name);
    memmove(entry, entry + 1, (--module->entry_count - index) * sizeof *entry);
    module->told_entry_count -= index < module->told_entry_count;
}

/* The executor's is the same, whatever its signature. */
static bool get_known_kernel(struct gpu_kernel *kernel) {
    const struct gpu_module *module = kernel->module;
    for (uint32_t i = 0; i < module->entry_count && !module->is_missing; i++) {
        const struct gpu_module_entry *entry = &module->entries[i];
        if (entry->is_known && strcmp(entry->name, kernel->name) == 0) {
            kernel->id = entry->id;
            kernel->facts = entry->facts;
            return true;
        }
    }
    return false;
}

static gpulua_status get_kernel(struct gpu_kernel *kernel, struct gpu_error *error) {
    struct gpu_module *module = kernel->module;
    struct gpu_device *device = module->device;
    if (get_known_kernel(kernel)) {
        return GPULUA_OK;
    }
    if (strlen(kernel->name) > NAME_CHARS_MAX) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "a kernel's name has at most %u characters", NAME_CHARS_MAX);
    }
    struct gpu_module_entry entry = {.name = strdup(kernel->name)};
    struct gpu_module_entry *entries =
        realloc(module->entries, (module->entry_count + 1u) * sizeof *entries);
    if (entries) {
        module->entries = entries;
    }
    if (!entries || !entry.name || !gpu_id_take(&device->kernel_ids, &entry.id)) {
        free(entry.name);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for kernel '%s'",
                             kernel->name);
    }
    kernel->id = entry.id;
    module->entries[module->entry_count++] = entry;
    gpulua_status status = gpu_request_wait(device, build_entry(module, &entry, device->scratch),
                                            "kernel", on_kernel, kernel, error);
    if (status == GPULUA_OK) {
        gpu_module_tell(module);
    } else {
        drop_entry(module, find_entry(module, entry.id)); /* others may have come meanwhile */
    }
    return status;
}

/* ---- another life of the device ---- */

void gpu_module_tell(struct gpu_module *module) {
    struct gpu_device *device = module->device;
    if (!device->recovery.has_spare || !module->is_loaded || module->refs == 0) {
        return;
    }
    /* The device's may have what is about to be sent to somebody else. */
    void *scratch = malloc(WIRE_RECORD_BYTES_MAX);
    bool is_told = scratch && gpu_recovery_is_told(device, &module->told);
    if (scratch && !is_told) {
        struct wire_record *record = build(module, scratch);
        module->told_entry_count = 0;
        is_told = record && gpu_recovery_tell(device, record, &module->told);
    }
    for (; is_told && module->told_entry_count < module->entry_count; module->told_entry_count++) {
        const struct gpu_module_entry *entry = &module->entries[module->told_entry_count];
        if (!gpu_recovery_tell(device, build_entry(module, entry, scratch), &module->told)) {
            break;
        }
    }
    free(scratch);
}

static void on_restored(struct gpu_device *device, void *user, const struct wire_reply *reply) {
    struct gpu_module *module = user;
    for (uint32_t i = 0; reply && i < module->entry_count; i++) {
        gpu_recovery_request(device, build_entry(module, &module->entries[i], device->scratch),
                             "kernel", false, NULL, NULL);
    }
    module->is_missing = !reply;
    bool is_last = device->recovery.has_memory; /* once more, when all memory is there */
    if (!reply && is_last && device->state == GPU_DEVICE_RETURNING && device->on_log) {
        char line[384];
        snprintf(line, sizeof line,
                 "device %s came up again without %.160s, which could not be loaded", device->title,
                 module->name);
        device->on_log(device->log_user, line);
    }
    gpu_module_release(module); /* the request's */
}

void gpu_module_restore(struct gpu_module *module) {
    struct wire_record *record =
        module->is_loaded && module->refs > 0 ? build(module, module->device->scratch) : NULL;
    if (!record) {
        return;
    }
    /* Its variables have their first values again. */
    gpu_history_finish(&module->hazards->history);
    gpu_history_init(&module->hazards->history, module->hazards->byte_count);
    gpu_recovery_request(module->device, record, kinds[module->kind].label, false, on_restored,
                         gpu_module_retain(module));
}

gpulua_status gpu_module_kernel(struct gpu_module *module, const char *name, const char *signature,
                                struct gpu_kernel **kernel, struct gpu_error *error) {
    GPU_ENTER(module->device);
    gpulua_status status = gpu_device_check(module->device, error);
    if (status) {
        return status;
    }
    if (!module->is_loaded) { /* its description may be there in part */
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "%s was not loaded", module->name);
    }
    const char *described = find_signature(module, name);
    if (!described && (module->kernel_count > 0 || module->kind == GPU_MODULE_SOURCE)) {
        return no_such_kernel(module, name, error);
    }
    if (!signature && !described) {
        return gpu_error_set(
            error, GPULUA_INVALID_ARGUMENT,
            "kernel '%s' of %s needs a signature: compiled code does not tell the types of its "
            "parameters",
            name, module->name);
    }
    struct gpu_kernel *made = calloc(1, sizeof *made);
    if (!made) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for kernel '%s'", name);
    }
    made->refs = 1;
    made->module = gpu_module_retain(module);
    module->device->stats.kernels_live++;
    made->form =
        gpu_form_create(module->recipe, ++module->device->kernel_number_next, name, signature);
    made->label = gpu_device_intern(module->device, name);
    const struct gpu_recipe *recipe = module->recipe;
    if (made->form && !signature && recipe->text) {
        made->form->signature = gpu_structures_signature(described, recipe->text, recipe->options);
    }
    if (!made->form || !made->label) {
        status = gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for kernel '%s'", name);
    } else if (!made->form->signature) {
        status =
            gpu_signature_parse(signature ? signature : described, &made->form->signature, error);
    }
    if (status == GPULUA_OK) {
        made->name = made->form->name;
        made->signature = made->form->signature;
    }
    if (status == GPULUA_OK && made->signature->args_bytes > GPU_ARGS_BYTES_MAX) {
        status = gpu_error_set(error, GPULUA_UNSUPPORTED,
                               "kernel '%s' takes %u bytes of arguments, the most is %u", name,
                               made->signature->args_bytes, GPU_ARGS_BYTES_MAX);
    }
    if (status == GPULUA_OK && made->signature->has_context) {
        made->source = gpu_device_intern(module->device, module->name);
        status = made->source ? gpu_reports_prepare(module->device, error)
                              : gpu_error_set(error, GPULUA_OUT_OF_MEMORY,
                                              "no host memory for kernel '%s'", name);
    }
    if (status == GPULUA_OK) {
        status = get_kernel(made, error);
    }
    if (status == GPULUA_OK) {
        status = check_params(made, error);
    }
    if (status == GPULUA_OK && signature && described) {
        status = check_pointers(made, described, error);
    }
    if (status) {
        destroy_kernel(made);
        return status;
    }
    *kernel = made;
    return GPULUA_OK;
}

struct gpu_kernel *gpu_kernel_retain(struct gpu_kernel *kernel) {
    GPU_ENTER(kernel->module->device);
    kernel->refs++;
    return kernel;
}

void gpu_kernel_release(struct gpu_kernel *kernel) {
    if (!kernel) {
        return;
    }
    GPU_ENTER_WHOLE(kernel->module->device);
    if (--kernel->refs == 0) {
        destroy_kernel(kernel);
    }
}

const char *gpu_kernel_name(const struct gpu_kernel *kernel) {
    return kernel->name;
}
struct gpu_module *gpu_kernel_module(const struct gpu_kernel *kernel) {
    return kernel->module;
}
const struct gpu_signature *gpu_kernel_signature(const struct gpu_kernel *kernel) {
    return kernel->signature;
}
const struct wire_kernel_facts *gpu_kernel_facts(const struct gpu_kernel *kernel) {
    return &kernel->facts;
}

/* ---- variables ---- */

static void on_global(struct gpu_op *op, void *user, const struct wire_reply *reply) {
    (void)op;
    if (reply && reply->status == GPULUA_OK &&
        reply->body_bytes >= sizeof(struct wire_global_facts)) {
        memcpy(user, gpu_wire_reply_body(reply), sizeof(struct wire_global_facts));
    }
}

/* What has been asked for before and is there is the same memory: one block, so that whoever frees
 * it, or copies from one part to another, does so for all. Names that may be cut off find none. */
static struct gpu_block *find_global(const struct gpu_module *module, const char *name) {
    const struct gpu_device *device = module->device;
    if (strlen(name) >= GPU_BLOCK_LABEL_BYTES - 1) {
        return NULL;
    }
    for (struct gpu_block *block = device->blocks; block; block = block->next) {
        if (block->module == module && !block->is_freed && block->epoch == device->epoch &&
            strcmp(block->label, name) == 0) {
            return gpu_block_retain(block);
        }
    }
    return NULL;
}

gpulua_status gpu_module_global(struct gpu_module *module, const char *name,
                                struct gpu_block **block, enum gpu_type *type, bool *is_constant,
                                struct gpu_error *error) {
    GPU_ENTER(module->device);
    struct gpu_device *device = module->device;
    gpulua_status status = gpu_device_check(device, error);
    if (status) {
        return status;
    }
    size_t name_bytes = strlen(name) + 1;
    if (name_bytes > NAME_CHARS_MAX + 1) {
        return gpu_error_set(error, GPULUA_CAPACITY, "a variable's name has at most %u characters",
                             NAME_CHARS_MAX);
    }
    *type = GPU_TYPE_U8;
    *is_constant = false;
    for (uint32_t i = 0; i < module->global_count; i++) {
        if (strcmp(module->globals[i].name, name) == 0) {
            *type =
                module->globals[i].type == GPU_TYPE_COUNT ? GPU_TYPE_U8 : module->globals[i].type;
            *is_constant = module->globals[i].is_constant;
        }
    }
    if ((*block = find_global(module, name))) {
        return GPULUA_OK;
    }
    uint32_t slab;
    status = gpu_slab_number_take(device, &slab, error);
    if (status) {
        return status;
    }
    struct wire_record *record = (struct wire_record *)(void *)device->scratch;
    struct wire_global_facts facts = {0};
    memset(record, 0, sizeof *record);
    record->opcode = WIRE_OP_GLOBAL_GET;
    record->object = slab;
    record->u.kernel.module = module->id;
    memcpy(gpu_wire_record_payload(record), name, name_bytes);
    record->length_bytes = ((uint32_t)(sizeof *record + name_bytes) + 15u) & ~15u;
    status = gpu_request_wait(device, record, "global", on_global, &facts, error);
    if (status) {
        gpu_slab_number_give(device, slab);
        return status == GPULUA_INVALID_ARGUMENT ? no_such_global(module, name, error) : status;
    }
    struct gpu_block *made =
        gpu_block_create_external(device, gpu_wire_address(slab, 0), facts.bytes, name);
    if (!made) {
        gpu_slab_number_give(device, slab);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for variable '%s'", name);
    }
    made->module = gpu_module_retain(module);
    made->variable_address = facts.address;
    *block = made;
    return GPULUA_OK;
}
