/* Requests: each gets exactly one reply, with or without a device. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/text.h"
#include "executor/executor.h"
#include "ranges/ranges.h"
#include "wire/sync.h"

#define NAP_NS_MIN 20000u
#define NAP_NS_MAX 1000000u

/* The payload as text: a copy, NUL-terminated. malloc'ed; NULL: no memory. */
static char *payload_text(const struct wire_record *record) {
    return strndup(gpu_wire_record_payload(record), gpu_wire_record_payload_bytes(record));
}

static void answer_status(struct wire_executor *executor, const struct wire_record *record,
                          gpulua_status status, const char *text) {
    gpu_executor_answer(executor, record->seq, status, 0, text, NULL, 0);
}

/* ---- the device ---- */

static void on_failed(void *user, uint32_t stream, uint64_t seq, uint32_t node,
                      const struct backend_failure *failure) {
    if (failure->status == GPULUA_DEVICE_LOST) {
        gpu_executor_lose(user, 0, failure->text);
    } else {
        gpu_executor_fail(user, stream, seq, node, 0, failure);
    }
}

static void on_ran(void *user, uint32_t stream, uint64_t seq, const struct wire_point *ready,
                   uint32_t ready_count) {
    gpu_executor_ran(user, stream, seq, ready, ready_count);
}

static void on_touched(void *user, uint32_t stream, uint64_t seq,
                       const struct backend_touched *touched) {
    gpu_executor_touched(user, stream, seq, touched);
}

static void on_lost(void *user, int32_t driver_code, const char *text) {
    gpu_executor_lose(user, driver_code, text);
}

static void on_alarmed(void *user, bool is_alarmed) {
    gpu_executor_alarm(user, is_alarmed);
}

static void on_log(void *user, const char *line) {
    gpu_executor_log(user, line);
}

static void on_timed(void *user, uint32_t stream, uint64_t seq, uint32_t node, int64_t begin_ns,
                     int64_t end_ns) {
    gpu_executor_timed(user, stream, seq, node, begin_ns, end_ns);
}

static void on_moved(void *user) {
    gpu_executor_wake_if_wanted(user);
}

struct open_options {
    char backend[32];
    int ordinal;
    void *context, *stream;                 /* the host's */
    const char *cache_path, *coredump_base; /* borrowed from the text */
    bool is_checked;
    bool is_hashed; /* by hashes, also where the backend could do more */
    uint64_t seed;
    const char *order; /* borrowed from the text */
    bool is_exact;     /* a word behind each operation */
    bool is_traced;
    bool is_unsettled; /* for twins of race tests alone */
    gpulua_completion completion;
};

/* Lines "backend NAME", "ordinal N", "context HEX", "stream HEX", "cache PATH", "coredump BASE",
 * "check SEED", "hashes", "order CHOICES", "exact", "ranges", "traced", "unsettled",
 * "completion event", "completion block"; cuts `text` up. */
static void parse_open(char *text, struct open_options *options) {
    char *rest = text;
    char *line;
    while ((line = strsep(&rest, "\n")) != NULL) {
        if (strncmp(line, "backend ", 8) == 0) {
            strncpy(options->backend, line + 8, sizeof options->backend - 1);
        } else if (strncmp(line, "ordinal ", 8) == 0) {
            options->ordinal = (int)strtol(line + 8, NULL, 10);
        } else if (strncmp(line, "context ", 8) == 0) {
            options->context = (void *)(uintptr_t)strtoull(line + 8, NULL, 16);
        } else if (strncmp(line, "stream ", 7) == 0) {
            options->stream = (void *)(uintptr_t)strtoull(line + 7, NULL, 16);
        } else if (strncmp(line, "check ", 6) == 0) {
            options->is_checked = true;
            options->seed = strtoull(line + 6, NULL, 10);
        } else if (strcmp(line, "hashes") == 0) {
            options->is_hashed = true;
        } else if (strcmp(line, "exact") == 0) {
            options->is_exact = true;
        } else if (strcmp(line, "traced") == 0) {
            options->is_traced = true;
        } else if (strcmp(line, "unsettled") == 0) {
            options->is_unsettled = true;
        } else if (strcmp(line, "completion event") == 0) {
            options->completion = GPULUA_COMPLETION_EVENT;
        } else if (strcmp(line, "completion block") == 0) {
            options->completion = GPULUA_COMPLETION_BLOCK;
        } else if (strcmp(line, "ranges") == 0) {
            gpu_ranges_enable();
        } else if (strncmp(line, "order ", 6) == 0) {
            options->order = line + 6;
        } else if (strncmp(line, "cache ", 6) == 0 && line[6] != '\0') {
            options->cache_path = line + 6;
        } else if (strncmp(line, "coredump ", 9) == 0) {
            options->coredump_base = line + 9;
        }
    }
}

/* What the device has when it is open. */
static gpulua_status open_on(struct wire_executor *executor, const struct backend_ops *ops,
                             const struct backend_open_info *info, bool is_hashed,
                             struct backend_error *error) {
    gpulua_status status = ops->device_open(info, &executor->device, error);
    if (status != GPULUA_OK) {
        executor->device = NULL;
        return status;
    }
    executor->ops = ops;
    if (is_hashed && gpu_executor_verify_create(executor, error) != GPULUA_OK) {
        ops->device_close(executor->device);
        executor->device = NULL;
        return error->status;
    }
    if (executor->is_traced) {
        executor->tells_times = ops->tells_times != NULL && ops->tells_times(executor->device);
        executor->completion =
            executor->tells_times ? executor->completion : GPULUA_COMPLETION_EVENT;
    }
    struct wire_device_facts facts = {0};
    ops->device_facts(executor->device, &facts);
    executor->page_is_writable =
        executor->completion == GPULUA_COMPLETION_WORD && facts.has_words != 0;
    if (ops->host_register != NULL && executor->page_is_writable) {
        struct backend_error unused = {0};
        executor->page_is_writable = ops->host_register(executor->device, executor->page,
                                                        WIRE_PAGE_BYTES, &unused) == GPULUA_OK;
        executor->page_is_registered = executor->page_is_writable;
        free(unused.log);
    }
    return GPULUA_OK;
}

static gpulua_status open_device(struct wire_executor *executor, struct open_options *options,
                                 struct backend_error *error) {
    const struct backend_ops *ops = gpu_backend_find(options->backend);
    if (ops == NULL) {
        return gpu_backend_fail(
            error, GPULUA_UNSUPPORTED, 0,
            "this build of gpulua has no backend '%s': the headers of its "
            "toolkit (cuda.h, nvrtc.h) were not there when it was built; install "
            "them, and make it again",
            options->backend);
    }
    executor->is_checked = options->is_checked;
    executor->ops_per_word = options->is_exact ? 1 : EXECUTOR_OPS_PER_WORD;
    /* In check mode work is done when somebody asks, and verified by more of it: there are no times
     * that would say anything. */
    executor->is_traced = options->is_traced && !options->is_checked && ops->event_times != NULL;
    executor->is_unsettled = options->is_unsettled;
    executor->completion = options->completion;
    bool is_hashed = options->is_checked && (options->is_hashed || !ops->sees_accesses);
    if (is_hashed && options->order != NULL) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                                "check mode by hashes decides nothing about the order of work: "
                                "'order' is for the CPU device's own");
    }
    const struct backend_open_info info = {
        .ordinal = options->ordinal,
        .context = options->context,
        .stream = options->stream,
        .cache_path = options->cache_path,
        .coredump_base = options->coredump_base,
        .is_checked = options->is_checked && !is_hashed,
        .seed = options->seed,
        .order = options->order,
        .is_apart = executor->info.place == WIRE_EXECUTOR_APART,
        .sleeps = executor->completion == GPULUA_COMPLETION_BLOCK,
        .is_timed = executor->is_traced,
        .sink = {.user = executor,
                 .failed = on_failed,
                 .ran = on_ran,
                 .touched = on_touched,
                 .lost = on_lost,
                 .alarmed = on_alarmed,
                 .log = on_log,
                 .moved = on_moved,
                 .timed = on_timed},
    };
    int before = ops->calls_begin != NULL ? ops->calls_begin(false) : -1;
    gpulua_status status = open_on(executor, ops, &info, is_hashed, error);
    if (ops->calls_end != NULL) {
        ops->calls_end(before);
    }
    return status;
}

static void take_open(struct wire_executor *executor, const struct wire_record *record) {
    struct backend_error error = {0};
    struct open_options options = {.completion = GPULUA_COMPLETION_WORD};
    char *text = payload_text(record);
    if (text == NULL) {
        answer_status(executor, record, GPULUA_OUT_OF_MEMORY, "out of memory");
        return;
    }
    parse_open(text, &options);
    gpu_executor_await_charge(executor, record->u.open.after_ns);
    bool is_told = gpu_range_push(GPU_RANGE_OPEN, options.backend, (uint64_t)options.ordinal);
    if (executor->device != NULL) {
        gpu_backend_fail(&error, GPULUA_INVALID_ARGUMENT, 0, "a device is open already");
    } else {
        open_device(executor, &options, &error);
    }
    if (error.status != GPULUA_OK) {
        gpu_executor_answer_error(executor, record->seq, &error);
    } else {
        struct wire_device_facts facts;
        memset(&facts, 0, sizeof facts);
        executor->ops->device_facts(executor->device, &facts);
        facts.has_words = executor->page_is_writable;
        facts.timing = executor->tells_times ? WIRE_TIMING_LATE
                       : executor->is_traced ? WIRE_TIMING_EVENTS
                                             : WIRE_TIMING_NONE;
        gpu_executor_answer(executor, record->seq, GPULUA_OK, 0, NULL, &facts, sizeof facts);
    }
    gpu_range_pop(is_told);
    free(error.log);
    free(text);
}

/* Behind what lies in a capture of the host's there is no event: then for what is before it. */
static bool must_wait(struct wire_executor *executor, uint32_t slot,
                      const struct executor_stream *stream) {
    if (gpu_executor_is_over(executor, slot, stream->last_seq)) {
        return false;
    }
    uint64_t count = stream->event_count, last = stream->event_capacity - 1;
    return !stream->is_taken ||
           (count > 0 &&
            !gpu_executor_is_over(executor, slot, stream->events[(count - 1) & last].seq));
}

/* All work is over, or the device is lost. A kernel that never ends keeps us here: under process
 * the script side kills us. */
static void wait_for_work(struct wire_executor *executor) {
    if (executor->ops->ask != NULL) {
        executor->ops->ask(executor->device, NULL, 0);
    }
    for (uint32_t slot = 0; slot < executor->stream_limit; slot++) {
        struct executor_stream *stream = executor->streams[slot];
        uint64_t nap_ns = NAP_NS_MIN;
        while (stream != NULL && must_wait(executor, slot, stream)) {
            struct backend_error error = {0};
            if (executor->ops->device_status(executor->device, &error) != GPULUA_OK) {
                gpu_executor_lose(executor, error.driver_code, error.message);
            }
            free(error.log);
            gpu_executor_replies_flush(executor);
            gpu_wire_nap_ns(nap_ns);
            nap_ns = nap_ns * 2 < NAP_NS_MAX ? nap_ns * 2 : NAP_NS_MAX;
        }
    }
}

void gpu_executor_device_close(struct wire_executor *executor) {
    gpu_executor_compile_stop(executor);
    gpu_executor_watch_stop(executor);
    if (executor->device != NULL) {
        gpu_executor_words(executor);
        wait_for_work(executor);
    }
    gpu_executor_sleepers_stop(executor);
    gpu_executor_objects_free(executor);
    if (executor->device != NULL) {
        gpu_executor_verify_destroy(executor);
        if (executor->page_is_registered) {
            executor->ops->host_unregister(executor->device, executor->page);
        }
        executor->ops->device_close(executor->device);
        executor->device = NULL;
    }
}

static void take_close(struct wire_executor *executor, const struct wire_record *record) {
    gpu_executor_device_close(executor);
    if (executor->tells_times) {
        gpu_executor_trace_flush(executor); /* what has come with the end */
    }
    executor->is_closed = true;
    atomic_store_explicit(&executor->page->state, WIRE_STATE_CLOSED, memory_order_release);
    answer_status(executor, record, GPULUA_OK, NULL);
}

/* ---- what needs a device ---- */

static gpulua_status alloc_pooled(struct wire_executor *executor, const struct wire_record *record,
                                  struct executor_slab *made, struct backend_error *error) {
    const struct executor_stream *stream = executor->streams[record->stream];
    if (executor->ops->pool_alloc == NULL) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                                "the driver of this device has no memory pool");
    }
    if (stream == NULL || stream->stream == NULL) {
        return gpu_backend_fail(error, GPULUA_CLOSED, 0, "stream slot %" PRIu32 " is not there",
                                record->stream);
    }
    return executor->ops->pool_alloc(stream->stream, made->bytes, &made->slab, &made->address,
                                     error);
}

static gpulua_status create_slab(struct wire_executor *executor, const struct wire_record *record,
                                 struct backend_error *error) {
    struct executor_slab *row = gpu_executor_slab_new(executor, record->object, error);
    if (row == NULL) {
        return error->status;
    }
    struct executor_slab made = {.bytes = record->u.slab.bytes};
    gpulua_status status = record->opcode == WIRE_OP_POOL_ALLOC
                               ? alloc_pooled(executor, record, &made, error)
                               : executor->ops->slab_create(executor->device, made.bytes,
                                                            &made.slab, &made.address, error);
    if (status == GPULUA_OK) {
        *row = made;
    }
    return status;
}

static gpulua_status load_module(struct wire_executor *executor, const struct wire_record *record,
                                 struct backend_error *error) {
    const void *image =
        gpu_executor_arena(executor, record->u.module.arena_offset, record->u.module.bytes);
    struct executor_module *row =
        gpu_executor_row_make(&executor->modules, record->object, EXECUTOR_OBJECTS_MAX);
    if (row == NULL) {
        return gpu_executor_row_missing(error, "module", record->object, EXECUTOR_OBJECTS_MAX);
    }
    if (image == NULL || row->state != MODULE_NONE) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "module number %" PRIu32 " or its image cannot be used",
                                record->object);
    }
    gpu_executor_loads(executor);
    gpulua_status status = executor->ops->module_load(
        executor->device, image, record->u.module.bytes, false, &row->module, error);
    if (status == GPULUA_OK) {
        row->state = MODULE_READY;
    } else {
        row->module = NULL;
    }
    return status;
}

/* `*description`: malloc'ed. */
static gpulua_status open_library(struct wire_executor *executor, const struct wire_record *record,
                                  char **description, struct backend_error *error) {
    struct executor_module *row =
        gpu_executor_row_make(&executor->modules, record->object, EXECUTOR_OBJECTS_MAX);
    char *name = payload_text(record);
    gpulua_status status = GPULUA_OK;
    if (row == NULL || name == NULL) {
        status = gpu_executor_row_missing(error, "module", record->object, EXECUTOR_OBJECTS_MAX);
    } else if (row->state != MODULE_NONE) {
        status = gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                  "module number %" PRIu32 " cannot be used", record->object);
    } else if (executor->ops->library_open == NULL) {
        status = gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0, "this device knows no libraries");
    } else {
        char *options = strchr(name, '\n');
        if (options != NULL) {
            *options++ = '\0';
        }
        gpu_executor_loads(executor);
        status = executor->ops->library_open(executor->device, name, options != NULL ? options : "",
                                             &row->module, description, error);
        if (status == GPULUA_OK) {
            row->state = MODULE_READY;
        } else {
            row->module = NULL;
        }
    }
    free(name);
    return status;
}

/* The module that a KERNEL_GET or GLOBAL_GET names. */
static struct backend_module *module_of(struct wire_executor *executor,
                                        const struct wire_record *record,
                                        struct backend_error *error) {
    const struct executor_module *row =
        gpu_executor_row(&executor->modules, record->u.kernel.module);
    if (row == NULL || row->state != MODULE_READY) {
        gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0, "module %" PRIu32 " is not loaded",
                         record->u.kernel.module);
        return NULL;
    }
    return row->module;
}

static gpulua_status get_kernel(struct wire_executor *executor, const struct wire_record *record,
                                struct wire_kernel_facts *facts, struct backend_error *error) {
    struct backend_module *module = module_of(executor, record, error);
    if (module == NULL) {
        return error->status;
    }
    struct executor_kernel *row =
        gpu_executor_row_make(&executor->kernels, record->object, EXECUTOR_OBJECTS_MAX);
    char *name = payload_text(record);
    if (row == NULL || name == NULL) {
        free(name);
        return gpu_executor_row_missing(error, "kernel", record->object, EXECUTOR_OBJECTS_MAX);
    }
    struct executor_kernel made = {.module = record->u.kernel.module};
    gpulua_status status =
        executor->ops->kernel_get(module, name, &made.kernel, &made.prints, facts, error);
    if (status == GPULUA_OK) {
        *row = made;
        if (executor->verify != NULL) {
            gpu_executor_verify_kernel(executor, record->object, name);
        }
    }
    free(name);
    return status;
}

static gpulua_status get_global(struct wire_executor *executor, const struct wire_record *record,
                                struct wire_global_facts *facts, struct backend_error *error) {
    struct backend_module *module = module_of(executor, record, error);
    if (module == NULL) {
        return error->status;
    }
    struct executor_slab *row = gpu_executor_slab_new(executor, record->object, error);
    if (row == NULL) {
        return error->status;
    }
    char *name = payload_text(record);
    if (name == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "out of memory");
    }
    struct executor_slab made = {.module = record->u.kernel.module};
    gpulua_status status =
        executor->ops->global_get(module, name, &made.address, &made.bytes, error);
    if (status == GPULUA_OK) {
        *row = made;
        facts->address = made.address;
        facts->bytes = made.bytes;
    }
    free(name);
    return status;
}

static void take_describe(struct wire_executor *executor, const struct wire_record *record) {
    struct text text = {0};
    for (size_t i = 0; gpu_backend_table[i] != NULL; i++) {
        gpu_backend_table[i]->describe(&text);
    }
    gpu_cache_describe(executor->cache_path, &text);
    gpu_executor_answer(executor, record->seq, text.failed ? GPULUA_OUT_OF_MEMORY : GPULUA_OK, 0,
                        text.failed ? "no host memory" : gpu_text_get(&text), NULL, 0);
    gpu_text_finish(&text);
}

/* For profilers; true: to be popped. */
static bool push_range(const struct wire_record *record) {
    switch (record->opcode) {
    case WIRE_OP_SLAB_CREATE:
    case WIRE_OP_POOL_ALLOC:
        return gpu_range_push(GPU_RANGE_ALLOCATE, NULL, record->u.slab.bytes);
    case WIRE_OP_MODULE_LOAD:
    case WIRE_OP_MODULE_LIBRARY:
        return gpu_range_push(GPU_RANGE_LOAD, NULL, record->object);
    case WIRE_OP_GRAPH_END:
        return gpu_range_push(GPU_RANGE_INSTANTIATE, NULL, record->object);
    default:
        return false;
    }
}

/* A request that the device answers: runs it, then replies. */
static void take_device_request(struct wire_executor *executor, const struct wire_record *record) {
    struct backend_error error = {0};
    union {
        struct wire_kernel_facts kernel;
        struct wire_global_facts global;
        struct wire_memory_facts memory;
        struct wire_slab_facts slab;
        struct wire_stream_facts stream;
        struct wire_capture_facts capture;
    } body;
    uint32_t body_bytes = 0;
    char *text = NULL;
    bool is_told = push_range(record);
    if (executor->graves != NULL) { /* whose memory may be what it needs */
        gpu_executor_graves_look(executor, false);
    }
    memset(&body, 0, sizeof body);
    switch (record->opcode) {
    case WIRE_OP_SLAB_CREATE:
    case WIRE_OP_POOL_ALLOC:
        create_slab(executor, record, &error);
        break;
    case WIRE_OP_SLAB_ADOPT:
        gpu_executor_adopt(executor, record, &error);
        break;
    case WIRE_OP_SLAB_FIND:
        gpu_executor_slab_find(executor, record, &body.slab, &error);
        body_bytes = sizeof body.slab;
        break;
    case WIRE_OP_STREAM_NATIVE:
        gpu_executor_stream_native(executor, record, &body.stream, &error);
        body_bytes = sizeof body.stream;
        break;
    case WIRE_OP_CAPTURE_BEGIN:
    case WIRE_OP_CAPTURE_LOOK:
    case WIRE_OP_CAPTURE_END:
        gpu_executor_capture(executor, record, &body.capture, &error);
        body_bytes = sizeof body.capture;
        break;
    case WIRE_OP_STREAM_GIVE:
        gpu_executor_stream_give(executor, record, &error);
        break;
    case WIRE_OP_MODULE_COMPILE:
    case WIRE_OP_MODULE_LOAD:
    case WIRE_OP_MODULE_LIBRARY:
        if (gpu_executor_module_claim(executor, record)) {
            break;
        }
        if (record->opcode == WIRE_OP_MODULE_LOAD) {
            load_module(executor, record, &error);
        } else if (record->opcode == WIRE_OP_MODULE_LIBRARY) {
            open_library(executor, record, &text, &error);
        } else if (gpu_executor_compile_start(executor, record, &error) == GPULUA_OK) {
            return; /* answered when it is done */
        }
        break;
    case WIRE_OP_GRAPH_END:
        gpu_executor_graph_end(executor, record, &error);
        break;
    case WIRE_OP_KERNEL_GET:
        get_kernel(executor, record, &body.kernel, &error);
        body_bytes = sizeof body.kernel;
        break;
    case WIRE_OP_GLOBAL_GET:
        get_global(executor, record, &body.global, &error);
        body_bytes = sizeof body.global;
        break;
    default:
        executor->ops->memory_info(executor->device, &body.memory, &error);
        if (executor->verify != NULL) {
            /* The rest is for hashes, 8 bytes for each 64. */
            body.memory.bytes_free -= body.memory.bytes_free / 9;
        }
        body_bytes = sizeof body.memory;
        break;
    }
    gpu_range_pop(is_told);
    if (error.status == GPULUA_OK) {
        gpu_executor_answer(executor, record->seq, GPULUA_OK, 0, text, &body, body_bytes);
    } else {
        if (error.status == GPULUA_DEVICE_LOST) {
            gpu_executor_lose(executor, error.driver_code, error.message);
        }
        gpu_executor_answer_error(executor, record->seq, &error);
    }
    free(text);
    free(error.log);
}

/* What cannot be had now is not missed: it is asked for when its turn comes, and answered then.
 * That may have come meanwhile: then what is needed no longer would be made first. */
static void take_ahead(struct wire_executor *executor, const struct wire_record *record) {
    struct backend_error error = {0};
    if (record->opcode == WIRE_OP_KERNEL_GET) {
        struct wire_kernel_facts facts;
        get_kernel(executor, record, &facts, &error);
    } else if (!gpu_executor_module_claim(executor, record)) {
        char *description = NULL;
        gpulua_status status = record->opcode == WIRE_OP_MODULE_COMPILE
                                   ? gpu_executor_compile_ahead(executor, record, &error)
                               : record->opcode == WIRE_OP_MODULE_LOAD
                                   ? load_module(executor, record, &error)
                                   : open_library(executor, record, &description, &error);
        struct executor_module *row = gpu_executor_row(&executor->modules, record->object);
        if (status == GPULUA_OK && row != NULL) {
            row->is_ahead = true;
            row->number = record->u.module.number;
        }
        free(description);
    }
    if (error.status == GPULUA_DEVICE_LOST) {
        gpu_executor_lose(executor, error.driver_code, error.message);
    }
    free(error.log);
}

void gpu_executor_request(struct wire_executor *executor, const struct wire_record *record) {
    if ((record->flags & WIRE_FLAG_AHEAD) != 0) {
        if (executor->device != NULL &&
            !atomic_load_explicit(&executor->is_lost, memory_order_relaxed) &&
            atomic_load_explicit(&executor->page->is_in_charge, memory_order_acquire) == 0) {
            take_ahead(executor, record);
        }
    } else if (record->opcode == WIRE_OP_CLOSE) {
        take_close(executor, record);
    } else if (atomic_load_explicit(&executor->is_lost, memory_order_relaxed)) {
        answer_status(executor, record, GPULUA_DEVICE_LOST, "the device is lost");
    } else if (executor->is_closed) {
        answer_status(executor, record, GPULUA_CLOSED, "the device is closed");
    } else if (record->opcode == WIRE_OP_OPEN) {
        take_open(executor, record);
    } else if (executor->device == NULL) {
        answer_status(executor, record, GPULUA_NO_DEVICE, "no device is open");
    } else if (record->opcode == WIRE_OP_DESCRIBE) {
        take_describe(executor, record);
    } else if (record->opcode == WIRE_OP_TRACE_FLUSH) {
        gpu_executor_trace_flush(executor);
        answer_status(executor, record, GPULUA_OK, NULL);
    } else {
        take_device_request(executor, record);
    }
}
