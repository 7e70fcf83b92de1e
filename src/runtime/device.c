/* Devices: opening, closing, publishing records, small services. */
#include "runtime/device.h"
#include "ranges/ranges.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/flight.h"
#include "runtime/hooks.h"
#include "runtime/locate.h"
#include "runtime/memory/stack.h"
#include "runtime/recovery.h"
#include "runtime/report.h"
#include "runtime/watchdog.h"
#include "wire/memory.h"

/* ---- names ---- */

struct target {
    const char *kind;
    int ordinal;        /* negative: that of the host's context */
    bool may_fall_back; /* nothing was asked for by name */
};

static gpulua_status parse_name(const char *name, struct target *target, struct gpu_error *error) {
    *target = (struct target){.kind = "cuda", .may_fall_back = !name || !name[0]};
    if (target->may_fall_back || strcmp(name, "cuda") == 0) {
        return GPULUA_OK;
    }
    if (strcmp(name, "cpu") == 0) {
        target->kind = "cpu";
        return GPULUA_OK;
    }
    if (strncmp(name, "cuda:", 5) == 0 && name[5] >= '0' && name[5] <= '9') {
        char *end = NULL;
        unsigned long ordinal = strtoul(name + 5, &end, 10);
        if (*end == '\0' && ordinal < 1024) {
            target->ordinal = (int)ordinal;
            return GPULUA_OK;
        }
    }
    return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                         "unknown device '%.60s': it is \"cpu\", \"cuda\" or \"cuda:N\"", name);
}

/* ---- opening ---- */

static void on_open(struct gpu_op *op, void *user, const struct wire_reply *reply) {
    (void)op;
    struct gpu_device *device = user;
    if (reply && reply->status == GPULUA_OK && reply->body_bytes >= sizeof device->facts) {
        memcpy(&device->facts, gpu_wire_reply_body(reply), sizeof device->facts);
        device->facts.name[sizeof device->facts.name - 1] = '\0';
    }
}

static void on_memory_info(struct gpu_op *op, void *user, const struct wire_reply *reply) {
    (void)op;
    if (reply && reply->status == GPULUA_OK &&
        reply->body_bytes >= sizeof(struct wire_memory_facts)) {
        memcpy(user, gpu_wire_reply_body(reply), sizeof(struct wire_memory_facts));
    }
}

static gpulua_status open_link(struct gpu_device *device, const struct gpu_device_info *info,
                               const struct target *target, struct gpu_error *error) {
    struct wire_link_info link = {
        .interrupt = device->interrupt, .on_reply = gpu_device_on_reply, .user = device};
    char path[4096];
    bool is_cpu = strcmp(target->kind, "cpu") == 0;
    device->isolation = info->isolation;
    if (device->isolation == GPULUA_ISOLATE_DEFAULT) {
        device->isolation =
            is_cpu && !info->is_confined ? GPULUA_ISOLATE_NONE : GPULUA_ISOLATE_PROCESS;
    }
    if (info->is_confined && (!is_cpu || device->isolation != GPULUA_ISOLATE_PROCESS)) {
        return gpu_error_set(error, GPULUA_UNSUPPORTED,
                             "only the CPU device can be confined, in a process of its own");
    }
    device->is_confined = info->is_confined;
    if ((info->cuda_context || info->cuda_stream) && is_cpu) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "the CPU device has no CUDA context: cuda_context and cuda_stream are "
                             "for GPUs");
    }
    if ((info->cuda_context && device->isolation == GPULUA_ISOLATE_PROCESS) ||
        (info->cuda_stream && device->isolation != GPULUA_ISOLATE_NONE)) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT, "%s",
                             info->cuda_stream
                                 ? "cuda_stream is for devices with isolation none: on a thread or "
                                   "in a process of its own work is put there at other times"
                                 : "cuda_context is for devices with isolation none or thread: a "
                                   "process of its own has contexts of its own");
    }
    if (device->isolation == GPULUA_ISOLATE_PROCESS) {
        gpulua_status status = gpu_locate_executor(info->executor_path, path, sizeof path, error);
        if (status) {
            return status;
        }
        link.program = (struct wire_program){
            .path = path, .is_confined = info->is_confined, .cache_path = info->cache_path};
        link.transport = WIRE_TRANSPORT_PROCESS;
    } else {
        link.transport = device->isolation == GPULUA_ISOLATE_THREAD ? WIRE_TRANSPORT_THREAD
                                                                    : WIRE_TRANSPORT_INLINE;
    }
    if (!gpu_recovery_init(device, info->restarts_max, info->restarts_window_s)) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a device");
    }
    device->recovery.has_spare = info->has_spare;
    gpu_watchdog_init(device, info->watchdog_s);
    device->stats.limit_restarts = device->recovery.restarts_max;
    struct wire_error failed = {0};
    device->link = gpu_wire_link_open(&link, &failed);
    if (!device->link) {
        gpu_error_set(error, failed.status, "%s", failed.message);
        error->driver_code = failed.driver_code;
        return failed.status;
    }
    return GPULUA_OK;
}

#define COREDUMP_PATH_BYTES_MAX 400 /* so that messages have room for it */

/* Where core dumps are to go. Later lives of the device may have another folder to be in, so it is
 * made absolute. */
static gpulua_status find_coredump(struct gpu_device *device, const struct gpu_device_info *info,
                                   const struct target *target, struct gpu_error *error) {
    char path[PATH_MAX];
    bool can_dump = device->isolation == GPULUA_ISOLATE_PROCESS && strcmp(device->kind, "cpu") != 0;
    const char *folder = info->coredump_path;
    if (folder && !can_dump) {
        return gpu_error_set(error, GPULUA_UNSUPPORTED,
                             "coredump: only a GPU in a process of its own (isolate = \"process\") "
                             "leaves core dumps");
    }
    folder = folder || !can_dump ? folder : getenv("GPULUA_COREDUMP");
    if (!folder || !folder[0]) {
        return GPULUA_OK;
    }
    struct stat about;
    const char *reason = !realpath(folder, path) || stat(path, &about) ? strerror(errno)
                         : !S_ISDIR(about.st_mode)                     ? "it is not a folder"
                         : access(path, W_OK | X_OK)                   ? strerror(errno)
                                                                       : NULL;
    if (reason) {
        return gpu_error_set(error, GPULUA_IO, "coredump: no file can be made in '%.300s': %s",
                             folder, reason);
    }
    size_t length = strlen(path);
    if (length > COREDUMP_PATH_BYTES_MAX || strpbrk(path, "%\n")) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "coredump: at most %d bytes without '%%' and line breaks expected, as "
                             "the driver takes them, got '%.300s'",
                             COREDUMP_PATH_BYTES_MAX, path);
    }
    /* Later devices have files of their own, and so has each process. */
    snprintf(path + length, PATH_MAX - length, "/gpulua-%.10s%d-%lld", target->kind,
             target->ordinal, (long long)time(NULL));
    device->coredump_base = strdup(path);
    return device->coredump_base
               ? GPULUA_OK
               : gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a device");
}

/* Brings in the memory that launches write to in turn, until the op is over. */
static void populate_until(struct gpu_device *device, struct gpu_op *op) {
    const struct {
        void *base;
        uint64_t bytes;
    } parts[] = {
        {device->link->page, gpu_wire_page_span(WIRE_COMMAND_RING_BYTES, 0)},
        {device->flight.uses, GPU_FLIGHT_USES_MAX * sizeof *device->flight.uses},
        {device->flight.data, GPU_FLIGHT_DATA_BYTES},
    };
    const uint64_t step = UINT64_C(1) << 16;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        for (uint64_t at = 0; at < parts[i].bytes && !gpu_op_is_over(op); at += step) {
            uint64_t left = parts[i].bytes - at;
            gpu_wire_memory_populate((uint8_t *)parts[i].base + at, left < step ? left : step);
        }
    }
}

static void put_name(struct gpu_device *device, int ordinal, const char *label) {
    if (strcmp(device->kind, "cpu") == 0) {
        snprintf(device->name, sizeof device->name, "cpu");
    } else {
        snprintf(device->name, sizeof device->name, "%s:%d", device->kind, ordinal);
    }
    char kept[64];
    (void)gpu_label_copy(kept, sizeof kept, label);
    const char *quote = kept[0] ? "'" : "";
    snprintf(device->title, sizeof device->title, "%s%s%s%s%s", device->name, quote[0] ? " " : "",
             quote, kept, quote);
}

static gpulua_status open_device(struct gpu_device *device, const struct gpu_device_info *info,
                                 const struct target *target, struct gpu_error *error) {
    struct wire_record *record = (struct wire_record *)(void *)device->scratch;
    memset(record, 0, sizeof *record);
    record->opcode = WIRE_OP_OPEN;
    char check[48] = "", context[32] = "", stream[32] = "";
    gpulua_status status = find_coredump(device, info, target, error);
    if (status) {
        return status;
    }
    const char *order = info->is_checked ? info->order : NULL, *coredump = device->coredump_base;
    if (info->is_checked) {
        snprintf(check, sizeof check, "check %llu\n%s", (unsigned long long)info->seed,
                 info->is_hashed ? "hashes\n" : "");
    }
    static const char *const completions[] = {[GPULUA_COMPLETION_WORD] = "",
                                              [GPULUA_COMPLETION_EVENT] = "completion event\n",
                                              [GPULUA_COMPLETION_BLOCK] = "completion block\n"};
    if (info->cuda_context) {
        snprintf(context, sizeof context, "context %" PRIxPTR "\n", (uintptr_t)info->cuda_context);
    }
    if (info->cuda_stream) {
        snprintf(stream, sizeof stream, "stream %" PRIxPTR "\n", (uintptr_t)info->cuda_stream);
    }
    int length = snprintf(
        gpu_wire_record_payload(record), 8192,
        "backend %s\nordinal %d\n%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s", target->kind, target->ordinal,
        context, stream, gpu_ranges_are_on ? "ranges\n" : "", device->trace ? "traced\n" : "",
        info->is_unsettled ? "unsettled\n" : "", completions[device->completion],
        coredump ? "coredump " : "", coredump ? coredump : "", coredump ? "\n" : "",
        device->is_exact ? "exact\n" : "", check, order ? "order " : "", order ? order : "",
        order ? "\n" : "", info->cache_path ? "cache " : "",
        info->cache_path ? info->cache_path : "", info->cache_path ? "\n" : "");
    if (length < 0 || length >= 8192) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "the cache path or the order is too long");
    }
    record->length_bytes = ((uint32_t)sizeof *record + (uint32_t)length + 1u + 15u) & ~15u;
    if (!gpu_recovery_keep_open(device, record)) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a device");
    }
    struct gpu_op *op = NULL;
    status = gpu_request(device, record, "open", on_open, device, &op, error);
    if (!status) {
        populate_until(device, op);
        status = gpu_request_end(op, error);
    }
    if (status) {
        return status;
    }
    if (info->cuda_context) {
        put_name(device, (int)device->facts.ordinal, info->label);
    }
    bool is_timed = device->facts.timing == WIRE_TIMING_EVENTS; /* that tell of its end, too */
    if (is_timed ||
        (device->completion == GPULUA_COMPLETION_WORD && device->facts.has_words == 0)) {
        if (device->is_exact && device->on_log) {
            device->on_log(device->log_user,
                           is_timed
                               ? "attribution = \"exact\" does nothing while events tell how "
                                 "long work takes"
                               : "attribution = \"exact\" does nothing while the device writes "
                                 "no words");
        }
        device->completion = GPULUA_COMPLETION_EVENT;
        device->is_exact = false;
    }
    /* Without words nobody knows how far a stream had come that has not been asked since. */
    device->suspects_max = device->is_exact ? 1
                           : device->completion == GPULUA_COMPLETION_WORD
                               ? GPU_SUSPECTS_PER_STREAM_MAX
                               : UINT32_MAX;
    struct wire_memory_facts memory = {0};
    struct wire_record ask = {.length_bytes = sizeof ask, .opcode = WIRE_OP_MEMORY_INFO};
    status = gpu_request_wait(device, &ask, "memory", on_memory_info, &memory, error);
    if (status) {
        return status;
    }
    device->recovery.first_free_bytes = memory.bytes_free;
    device->stats.limit_arena_bytes = device->link->arena_bytes;
    device->stats.budget_bytes = info->budget_bytes ? info->budget_bytes : memory.bytes_free;
    gpu_account_init(&device->account, device->stats.budget_bytes);
    gpu_recovery_keep_spare(device);
    return GPULUA_OK;
}

/* Of the device are the rings, the descriptors and the process or thread that does the work: a
 * second voice there would end what is the parent's, when the child only ends. So in the child it
 * is closed, and what it had is left as it is. */
static void in_child(struct gpu_fork *fork) {
    struct gpu_device *device =
        (struct gpu_device *)(void *)((char *)fork - offsetof(struct gpu_device, fork));
    if (!device->is_torn) {
        gpu_repeat_end(device);
    }
    device->is_inherited = device->is_closing = true;
    device->state = GPU_DEVICE_CLOSED;
    device->link = NULL;
}

static struct gpu_device *create(const struct gpu_device_info *info, const struct target *target) {
    struct gpu_device *device = calloc(1, sizeof *device);
    if (!device) {
        return NULL;
    }
    device->refs = 1;
    device->epoch = 1;
    device->interrupt = info->interrupt;
    device->cuda_stream = (uint64_t)(uintptr_t)info->cuda_stream;
    device->is_unfenced = info->is_unfenced;
    device->unfenced_wait = info->unfenced_wait;
    device->is_checked = info->is_checked;
    /* By hashes, work is done as it comes: see docs/architecture.md. */
    device->patient_until_ns = INT64_MAX;
    device->is_ordered = info->is_checked && !info->is_hashed && strcmp(target->kind, "cpu") == 0;
    bool is_default = device->is_ordered || info->completion == GPULUA_COMPLETION_DEFAULT;
    device->completion = is_default ? GPULUA_COMPLETION_WORD : info->completion;
    device->is_exact = info->is_exact;
    device->seed = device->random = info->seed;
    device->on_log = info->on_log;
    device->flight_path = info->flight_path ? strdup(info->flight_path) : NULL;
    device->flight_folder =
        info->flight_folder ? strdup(info->flight_folder) : gpu_flight_folder(info->flight_path);
    device->log_user = info->log_user;
    device->observer = info->is_checked ? info->observer : NULL;
    device->requests_tail = &device->requests;
    device->retiring_tail = &device->retiring;
    device->deferred_tail = &device->deferred;
    snprintf(device->kind, sizeof device->kind, "%s", target->kind);
    put_name(device, target->ordinal, info->label);
    device->stats.limit_task_streams = GPU_TASK_STREAMS;
    device->stats.limit_user_streams = GPU_USER_STREAMS_MAX;
    device->stats.limit_ops_in_flight =
        info->ops_in_flight_max > 0 && info->ops_in_flight_max < GPU_OPS_IN_FLIGHT_MAX
            ? info->ops_in_flight_max
            : GPU_OPS_IN_FLIGHT_MAX;
    device->stats.limit_staging_bytes = GPU_STAGING_BYTES_MAX;
    device->stats.limit_block_bytes = GPU_BLOCK_BYTES_MAX;
    device->stats.limit_slabs = WIRE_SLABS_MAX;
    device->stats.limit_labels = GPU_INTERN_MAX;
    device->stats.limit_source_bytes = GPU_SOURCE_BYTES_MAX;
    device->stats.limit_params = GPU_PARAMS_MAX;
    device->stats.limit_args_bytes = GPU_ARGS_BYTES_MAX;
    device->stats.limit_spans = GPU_SPANS_MAX;
    device->stats.limit_flight_ops = GPU_FLIGHT_OPS_MAX;
    device->stats.limit_memory_depth = GPU_MEMORY_DEPTH_MAX;
    device->stats.limit_oom_hooks = GPU_HOOKS_MAX;
    device->stats.limit_quarantine_bytes = GPU_CHECK_QUARANTINE_BYTES;
    device->stats.limit_bodies = WIRE_CONTROL_BODIES_MAX;
    device->stats.limit_body_depth = WIRE_CONTROL_DEPTH_MAX;
    gpu_account_init(&device->account, 0);
    device->trace =
        info->traced_ops_max ? gpu_trace_create(device->title, info->traced_ops_max) : NULL;
    if ((info->flight_path && !device->flight_path) ||
        (info->flight_folder && !device->flight_folder) ||
        (info->traced_ops_max && !device->trace) || !gpu_flight_init(&device->flight) ||
        !gpu_failures_init(device) || !gpu_memory_open(device)) {
        gpu_memory_close(device);
        gpu_flight_finish(&device->flight);
        free(device->flight_path);
        free(device->flight_folder);
        gpu_trace_release(device->trace);
        gpu_failure_release(device->failure_spare);
        free(device->failed);
        free(device);
        return NULL;
    }
    device->fork.in_child = in_child;
    gpu_fork_add(&device->fork);
    return device;
}

static gpulua_status open_target(const struct gpu_device_info *info, const struct target *target,
                                 struct gpu_device **opened, struct gpu_error *error) {
    struct gpu_device *device = create(info, target);
    if (!device) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a device");
    }
    gpulua_status status = open_link(device, info, target, error);
    if (status == GPULUA_OK) {
        status = open_device(device, info, target, error);
    }
    if (status) {
        gpu_device_close(device, 0);
        gpu_device_release(device);
        return status;
    }
    *opened = device;
    return GPULUA_OK;
}

gpulua_status gpu_device_open(const struct gpu_device_info *info, struct gpu_device **device,
                              struct gpu_error *error) {
    struct target target;
    gpulua_status status = parse_name(info->name, &target, error);
    if (status == GPULUA_OK && ((int)info->completion < GPULUA_COMPLETION_DEFAULT ||
                                (int)info->completion > GPULUA_COMPLETION_BLOCK)) {
        status = gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                               "completion of device: no gpulua_completion has the number %d",
                               (int)info->completion);
    }
    if (status == GPULUA_OK && info->is_exact && info->completion > GPULUA_COMPLETION_WORD) {
        status = gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                               "attribution of device: \"exact\" needs a word behind each "
                               "operation, which completion = \"word\" alone has");
    }
    if (status) {
        return status;
    }
    bool is_shared = info->cuda_context || info->cuda_stream;
    if (info->cuda_context && (target.may_fall_back || strcmp(info->name, "cuda") == 0)) {
        target.ordinal = -1;
    }
    status = open_target(info, &target, device, error);
    if (target.may_fall_back && !is_shared &&
        (status == GPULUA_NO_DEVICE || status == GPULUA_LIBRARY_UNAVAILABLE ||
         status == GPULUA_UNSUPPORTED)) {
        gpu_error_finish(error);
        target.kind = "cpu";
        status = open_target(info, &target, device, error);
    }
    return status;
}

void gpu_device_set_tasks(struct gpu_device *device, const struct gpu_tasks *tasks) {
    struct gpu_seat *seat = gpu_seat_of(device);
    *(seat ? &seat->tasks : &device->tasks) = tasks;
}

void gpu_device_hold_calls(bool are_held) {
    gpu_executor_hold(are_held);
}

void gpu_device_trace_flush(struct gpu_device *device) {
    GPU_ENTER(device);
    bool can_ask = device->trace && device->facts.timing != WIRE_TIMING_NONE && device->link &&
                   device->state == GPU_DEVICE_OPEN && !device->is_polling;
    struct wire_record record = {.length_bytes = sizeof record, .opcode = WIRE_OP_TRACE_FLUSH};
    struct gpu_error error = {0};
    if (can_ask && gpu_request_wait(device, &record, "trace", NULL, NULL, &error)) {
        gpu_error_finish(&error);
    }
}

struct gpu_trace *gpu_device_trace(const struct gpu_device *device) {
    return device->trace;
}

struct gpu_device *gpu_device_retain(struct gpu_device *device) {
    GPU_ENTER(device);
    device->refs++;
    return device;
}

static void destroy(struct gpu_device *device) {
    struct gpu_op *op;
    gpu_fork_remove(&device->fork);
    while ((op = device->op_free)) {
        device->op_free = op->next;
        free(op);
    }
    gpu_origins_finish(&device->origins);
    for (uint32_t i = 0; i < device->failed_count; i++) {
        gpu_failure_release(device->failed[i].failure);
    }
    for (uint32_t i = 0; i < device->unobserved_count; i++) {
        gpu_failure_release(device->unobserved[i]);
    }
    for (uint32_t i = 0; i < device->interned_capacity; i++) {
        free((void *)(uintptr_t)device->interned[i]);
    }
    gpu_flight_finish(&device->flight);
    gpu_memory_close(device); /* still there if no link was ever open */
    gpu_account_finish(&device->account);
    gpu_blocks_finish(device);
    gpu_id_pool_finish(&device->slab_ids);
    gpu_failure_release(device->failure_spare);
    gpu_hooks_release(device->hooks);
    gpu_trace_release(device->trace);
    free(device->backlog);
    free(device->failed);
    free(device->unobserved);
    free(device->interned);
    gpu_index_finish(&device->labels);
    gpu_id_pool_finish(&device->module_ids);
    gpu_id_pool_finish(&device->kernel_ids);
    gpu_id_pool_finish(&device->graph_ids);
    free(device->coredump_base);
    free(device->flight_path);
    free(device->flight_folder);
    gpu_error_finish(&device->lost);
    gpu_recovery_free(device);
    if (device->share) {
        device->share->device = NULL; /* who holds its lock ends it */
    }
    free(device);
}

void gpu_device_release(struct gpu_device *device) {
    if (!device) {
        return;
    }
    GPU_ENTER_WHOLE(device);
    if (device->refs-- > 1) {
        return;
    }
    device->refs = 1; /* closing may retain and release */
    gpu_device_close(device, 0);
    if (--device->refs == 0) {
        destroy(device);
    }
}

/* ---- closing ---- */

/* For the answer that it is closed. Tearing a CUDA context down takes a while, but not for ever. A
 * process that somebody else may have hears that it ends, and does. */
#define ANSWER_NS INT64_C(2000000000)
#define CONFINED_ANSWER_NS INT64_C(30000000)

static void ask_to_close(struct gpu_device *device, int64_t timeout_ns) {
    struct gpu_error ignored = {0};
    struct gpu_op *op = NULL;
    struct wire_record record = {.length_bytes = sizeof record, .opcode = WIRE_OP_CLOSE};
    if (gpu_request(device, &record, "close", NULL, NULL, &op, &ignored) == GPULUA_OK) {
        const atomic_int *interrupt = device->interrupt;
        device->interrupt = NULL; /* this is how an interrupt ends */
        (void)gpu_op_wait(op, timeout_ns, &ignored);
        device->interrupt = interrupt;
        gpu_op_observe(op);
        gpu_op_release(op);
    }
    gpu_error_finish(&ignored);
}

void gpu_device_close(struct gpu_device *device, int64_t timeout_ms) {
    GPU_ENTER(device);
    if (device->is_closing || !device->link) {
        if (!device->link) {
            device->state = GPU_DEVICE_CLOSED;
        }
        return;
    }
    device->is_closing = true;
    gpu_device_retain(device);
    (void)gpu_device_inject_slow(device, NULL, NULL, 0, NULL);
    if (device->state == GPU_DEVICE_RETURNING) {
        device->state = GPU_DEVICE_LOST;
        device->recovery.was_returning = true;
    }
    int64_t start_ns = gpu_clock_ns();
    int64_t timeout_ns = timeout_ms * 1000000;
    struct gpu_error ignored = {0};
    const atomic_int *interrupt = device->interrupt;
    device->interrupt = NULL;
    gpu_exports_collect(device);
    /* Lent memory of the device stays, and with it the executor; what was borrowed goes back.
     * Either way all work has to be over. */
    bool is_lent = gpu_exports_have_device_memory(device);
    bool is_shared = is_lent || device->imports;
    (void)gpu_device_wait_idle(device, is_shared ? -1 : timeout_ns, &ignored);
    gpu_error_finish(&ignored);
    device->interrupt = interrupt;
    if (!is_lent && device->state == GPU_DEVICE_OPEN && device->stats.ops_in_flight == 0) {
        int64_t left_ns = timeout_ns - (gpu_clock_ns() - start_ns);
        int64_t answer_ns = device->is_confined ? CONFINED_ANSWER_NS : ANSWER_NS;
        ask_to_close(device, left_ns > answer_ns ? left_ns : answer_ns);
    }
    gpu_streams_finish(device);
    if (device->state != GPU_DEVICE_LOST) {
        device->state = GPU_DEVICE_CLOSED;
    }
    char text[160];
    snprintf(text, sizeof text, "device %s was closed before this was over", device->title);
    gpu_device_fail_all(device, text, 0, true);
    gpu_recovery_finish(device);
    gpu_watchdog_finish(device);
    gpu_reports_close(device);
    gpu_modules_close(device);
    gpu_device_run_deferred(device);
    gpu_device_retry_later(device);
    gpu_device_run_deferred(device);
    gpu_memory_close(device);
    struct wire_link *link = device->link;
    device->link = NULL;
    if (!is_lent) {
        link->ops->close(link);
    }
    gpu_device_run_deferred(device);
    gpu_exports_leave(device);
    gpu_imports_return(device);
    if (device->host_block_count > 0) {
        device->mapped_link = link;
    } else {
        gpu_device_end_link(device, link);
    }
    device->state = GPU_DEVICE_CLOSED;
    gpu_device_release(device);
}

static void on_description(struct gpu_op *op, void *user, const struct wire_reply *reply) {
    char **text = user;
    (void)op;
    if (reply && reply->status == GPULUA_OK) {
        *text = strdup(gpu_wire_reply_text(reply));
    }
}

gpulua_status gpu_device_describe(struct gpu_device *device, char **text, struct gpu_error *error) {
    GPU_ENTER(device);
    struct wire_record record = {.length_bytes = sizeof record, .opcode = WIRE_OP_DESCRIBE};
    *text = NULL;
    gpulua_status status =
        gpu_request_wait(device, &record, "describe", on_description, text, error);
    if (status == GPULUA_OK && !*text) {
        status = gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a description");
    }
    return status;
}

/* That it is lost, and what may have been the cause. */
static void copy_loss(const struct gpu_device *device, struct gpu_error *error) {
    gpu_error_copy(error, &device->lost);
    if (device->recovery.loss) {
        gpu_error_copy_suspects(error, &device->recovery.loss->error);
    }
}

gpulua_status gpu_device_check_open(struct gpu_device *device, struct gpu_error *error) {
    if (device->state == GPU_DEVICE_OPEN && device->link) {
        return GPULUA_OK;
    }
    int late_pid = gpu_recovery_late_pid(device);
    if (device->state == GPU_DEVICE_RETURNING || late_pid > 0) {
        char late[80] = "";
        if (late_pid > 0) {
            snprintf(late, sizeof late, " when its former process %d, which was killed, has ended",
                     late_pid);
        }
        copy_loss(device, error);
        size_t length = strlen(error->message);
        snprintf(error->message + length, sizeof error->message - length,
                 "; it is coming up again%s", late);
        error->code = GPULUA_DEVICE_LOST;
        return error->code;
    }
    if (device->state == GPU_DEVICE_LOST) {
        copy_loss(device, error);
        return error->code;
    }
    return gpu_error_set(error, GPULUA_CLOSED,
                         device->is_inherited
                             ? "device %s is of the process that has forked this one"
                             : "device %s is closed",
                         device->title);
}

gpulua_status gpu_device_check(struct gpu_device *device, struct gpu_error *error) {
    GPU_ENTER(device);
    if (gpu_device_is_left(device)) {
        return gpu_error_set(error, GPULUA_CLOSED, "device %s is closed", device->title);
    }
    return gpu_device_check_open(device, error);
}

/* ---- publishing and deferred work ---- */

static bool keep_for_later(struct gpu_device *device, const struct wire_record *record) {
    size_t bytes = device->backlog_bytes + record->length_bytes;
    if (bytes > device->backlog_capacity) {
        uint8_t *grown = realloc(device->backlog, 2 * bytes);
        if (!grown) {
            return false;
        }
        device->backlog = grown;
        device->backlog_capacity = 2 * bytes;
    }
    memcpy(device->backlog + device->backlog_bytes, record, record->length_bytes);
    device->backlog_bytes = bytes;
    return true;
}

static gpulua_status send_backlog(struct gpu_device *device) {
    gpulua_status status = GPULUA_OK;
    while (status == GPULUA_OK && device->backlog_sent_bytes < device->backlog_bytes) {
        const struct wire_record *record =
            (const void *)(device->backlog + device->backlog_sent_bytes);
        status = device->link->ops->publish(device->link, record);
        if (status == GPULUA_OK) {
            device->backlog_sent_bytes += record->length_bytes;
        }
    }
    if (status == GPULUA_OK) {
        device->backlog_bytes = device->backlog_sent_bytes = 0;
    }
    return status;
}

/* Whatever is in front of it may never end: who closes the device or is interrupted has no time for
 * that, nor whose time is up, and a poll never waits. */
static bool is_in_haste(const struct gpu_device *device) {
    return device->is_closing || device->is_polling || gpu_device_is_interrupted(device) ||
           gpu_time_is_up(device);
}

static gpulua_status publish(struct gpu_device *device, const struct wire_record *record,
                             bool can_refuse, struct gpu_error *error) {
    gpulua_status status = GPULUA_DEVICE_LOST;
    for (bool has_waited = false; device->link; has_waited = true) {
        if (device->backlog_bytes > 0 && !can_refuse && is_in_haste(device) &&
            device->state != GPU_DEVICE_LOST && keep_for_later(device, record)) {
            status = GPULUA_OK; /* waiting for those in front of it would take as long for each */
            break;
        }
        status = device->backlog_bytes > 0 ? send_backlog(device) : GPULUA_OK;
        if (status == GPULUA_OK) {
            status = device->link->ops->publish(device->link, record);
        }
        if (__builtin_expect(status != GPULUA_TIMEOUT, 1)) {
            break;
        }
        device->stats.throttles += !has_waited;
        gpu_watchdog_look(device);
        if (device->state == GPU_DEVICE_LOST) {
            status = GPULUA_DEVICE_LOST;
            break;
        }
        if (can_refuse && (device->is_closing || gpu_device_is_interrupted(device))) {
            return gpu_error_set(error, GPULUA_INTERRUPTED,
                                 "interrupted while the device had no room for more, with %llu "
                                 "operations in flight",
                                 (unsigned long long)device->stats.ops_in_flight);
        }
        if (can_refuse && gpu_time_is_told(device, "waiting for room for more work", error)) {
            return GPULUA_TIMEOUT;
        }
        if (!can_refuse && is_in_haste(device) && keep_for_later(device, record)) {
            status = GPULUA_OK;
            break;
        }
    }
    if (status) {
        gpu_device_lose(device, 0, "its executor is gone"); /* unless the link has said more */
        gpu_share_lost(device);
        return gpu_device_check_open(device, error);
    }
    gpu_share_touched(device);
    device->stats.records++;
    device->stats.record_bytes += record->length_bytes;
    if (device->is_ordered && device->state != GPU_DEVICE_LOST) { /* a lost one may hang */
        gpu_ask_settle(device);
    }
    return GPULUA_OK;
}

void gpu_device_send_backlog(struct gpu_device *device) {
    device->link->never_waits = true;
    (void)send_backlog(device); /* a dead link says so when it is asked next */
    device->link->never_waits = false;
}

gpulua_status gpu_device_publish(struct gpu_device *device, const struct wire_record *record,
                                 struct gpu_error *error) {
    return publish(device, record, false, error);
}

gpulua_status gpu_device_publish_or_not(struct gpu_device *device, const struct wire_record *record,
                                        struct gpu_error *error) {
    return publish(device, record, true, error);
}

void gpu_device_defer(struct gpu_device *device, struct gpu_deferred *deferred,
                      void (*run)(struct gpu_device *device, struct gpu_deferred *self)) {
    deferred->next = NULL;
    deferred->run = run;
    if (!device->link) { /* closed: nobody will call again, and no executor is there to be called */
        run(device, deferred);
        return;
    }
    *device->deferred_tail = deferred;
    device->deferred_tail = &deferred->next;
}

void gpu_device_defer_later(struct gpu_device *device, struct gpu_deferred *deferred,
                            void (*run)(struct gpu_device *device, struct gpu_deferred *self)) {
    deferred->run = run;
    deferred->next = device->later;
    device->later = deferred;
}

void gpu_device_retry_later(struct gpu_device *device) {
    while (device->later) {
        struct gpu_deferred *deferred = device->later;
        device->later = deferred->next;
        gpu_device_defer(device, deferred, deferred->run);
    }
}

void gpu_device_run_deferred(struct gpu_device *device) {
    gpu_device_retain(device);
    gpu_exports_collect(device);
    while (device->deferred) {
        struct gpu_deferred *deferred = device->deferred;
        device->deferred = deferred->next;
        if (!device->deferred) {
            device->deferred_tail = &device->deferred;
        }
        deferred->run(device, deferred);
    }
    device->refs--; /* the caller holds one: this is never the last */
    assert(device->refs > 0);
}

/* ---- small services ---- */

enum gpu_device_state gpu_device_state(const struct gpu_device *device) {
    GPU_ENTER(device);
    return (enum gpu_device_state)device->state;
}
const char *gpu_device_name(const struct gpu_device *device) {
    return device->name;
}
const char *gpu_device_title(const struct gpu_device *device) {
    return device->title;
}
bool gpu_device_is_checked(const struct gpu_device *device) {
    return device->is_checked;
}
uint64_t gpu_device_seed(const struct gpu_device *device) {
    return device->seed;
}
const char *gpu_device_kind(const struct gpu_device *device) {
    return device->kind;
}
const char *gpu_device_kin(const struct gpu_device *device, const struct gpu_device *other) {
    return device != other && strcmp(device->name, other->name) == 0 ? "another opening of "
                                                                     : "device ";
}

gpulua_isolation gpu_device_isolation(const struct gpu_device *device) {
    return device->isolation;
}
uint64_t gpu_device_budget_bytes(const struct gpu_device *device) {
    return device->account.limit_bytes;
}
uint64_t gpu_device_epoch(const struct gpu_device *device) {
    GPU_ENTER(device);
    return device->epoch;
}
const struct wire_device_facts *gpu_device_facts(const struct gpu_device *device) {
    return &device->facts;
}
int gpu_device_pid(const struct gpu_device *device) {
    GPU_ENTER(device);
    return device->link ? gpu_wire_link_pid(device->link) : 0;
}

void gpu_device_stats(struct gpu_device *device, struct gpu_stats *stats) {
    GPU_ENTER(device);
    gpu_device_want_any(device); /* or who asks until all is over would never hear of it */
    device->stats.errors_unobserved = 0;
    for (uint32_t i = 0; i < device->unobserved_count; i++) {
        device->stats.errors_unobserved += !device->unobserved[i]->is_observed;
    }
    *stats = device->stats;
    stats->drops = device->trace ? gpu_trace_dropped(device->trace) : 0;
    if (device->link) { /* of this life of the device */
        const struct wire_page *page = device->link->page;
        uint64_t ended = atomic_load_explicit(&page->events_ended, memory_order_relaxed);
        uint64_t made = atomic_load_explicit(&page->events_made, memory_order_relaxed);
        stats->events_created += made; /* those of former lives are there */
        stats->events_live = made - ended;
    }
}

static uint64_t hash_text(const char *text) { /* FNV-1a, 64 bits */
    uint64_t hash = UINT64_C(14695981039346656037);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        hash = (hash ^ *c) * UINT64_C(1099511628211);
    }
    return hash;
}

static bool grow_interned(struct gpu_device *device) {
    uint32_t capacity = device->interned_capacity ? device->interned_capacity * 2 : 64;
    const char **grown = calloc(capacity, sizeof(const char *));
    if (!grown) {
        return false;
    }
    for (uint32_t i = 0; i < device->interned_capacity; i++) {
        if (device->interned[i]) {
            uint64_t at = hash_text(device->interned[i]) & (capacity - 1);
            while (grown[at]) {
                at = (at + 1) & (capacity - 1);
            }
            grown[at] = device->interned[i];
        }
    }
    free(device->interned);
    device->interned = grown;
    device->interned_capacity = capacity;
    return true;
}

const char *gpu_device_intern(struct gpu_device *device, const char *text) {
    GPU_ENTER(device);
    if (device->interned_count * 2 >= device->interned_capacity && !grow_interned(device)) {
        return NULL;
    }
    uint64_t at = hash_text(text) & (device->interned_capacity - 1);
    while (device->interned[at]) {
        if (strcmp(device->interned[at], text) == 0) {
            return device->interned[at];
        }
        at = (at + 1) & (device->interned_capacity - 1);
    }
    if (device->interned_count >= GPU_INTERN_MAX) {
        device->stats.overflows++;
        return "(too many labels)";
    }
    char *copy = strdup(text);
    if (!copy) {
        return NULL;
    }
    device->interned[at] = copy;
    device->interned_count++;
    return copy;
}

bool gpu_id_take(struct gpu_id_pool *pool, uint32_t *id) {
    if (pool->free_count > 0) {
        *id = pool->free_ids[--pool->free_count];
        return true;
    }
    /* Room to give every id back is made when it is taken, so that giving back cannot fail. */
    if (pool->next == pool->free_capacity) {
        uint32_t capacity = pool->free_capacity ? pool->free_capacity * 2 : 32;
        uint32_t *grown = realloc(pool->free_ids, capacity * sizeof *grown);
        if (!grown) {
            return false;
        }
        pool->free_ids = grown;
        pool->free_capacity = capacity;
    }
    *id = ++pool->next;
    return true;
}

void gpu_id_give(struct gpu_id_pool *pool, uint32_t id) {
    assert(pool->free_count < pool->free_capacity);
    pool->free_ids[pool->free_count++] = id;
}

void gpu_id_pool_finish(struct gpu_id_pool *pool) {
    free(pool->free_ids);
    *pool = (struct gpu_id_pool){0};
}
