/* Slabs, modules, kernels, streams, pinned chunks: tables indexed by the script side's numbers. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "executor/executor.h"

void *gpu_executor_row(const struct executor_table *table, uint32_t number) {
    if (number >= table->count) {
        return NULL;
    }
    return (uint8_t *)table->rows + (size_t)number * table->row_bytes;
}

void *gpu_executor_row_make(struct executor_table *table, uint32_t number, uint32_t limit) {
    if (number > limit) {
        return NULL;
    }
    if (number >= table->count) {
        uint32_t count = table->count < 16 ? 16 : table->count * 2;
        if (count <= number) {
            count = number + 1;
        }
        uint8_t *rows = realloc(table->rows, (size_t)count * table->row_bytes);
        if (rows == NULL) {
            return NULL;
        }
        memset(rows + (size_t)table->count * table->row_bytes, 0,
               (size_t)(count - table->count) * table->row_bytes);
        table->rows = rows;
        table->count = count;
    }
    return gpu_executor_row(table, number);
}

gpulua_status gpu_executor_row_missing(struct backend_error *error, const char *what,
                                       uint32_t number, uint32_t limit) {
    return number > limit ? gpu_backend_fail(error, GPULUA_CAPACITY, 0,
                                             "%s number %" PRIu32 " cannot be used", what, number)
                          : gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0,
                                             "no host memory for %s number "
                                             "%" PRIu32,
                                             what, number);
}

void gpu_executor_table_free(struct executor_table *table) {
    free(table->rows);
    table->rows = NULL;
    table->count = 0;
}

/* ---- addresses ---- */

gpulua_status gpu_executor_resolve(const struct wire_executor *executor, uint64_t address,
                                   uint64_t bytes, uint64_t *resolved,
                                   struct backend_error *error) {
    uint32_t number = gpu_wire_address_slab(address);
    uint64_t offset = gpu_wire_address_offset(address);
    const struct executor_slab *slab = gpu_executor_row(&executor->slabs, number);
    if (slab == NULL || slab->address == 0) {
        return gpu_backend_fail(error, GPULUA_USE_AFTER_FREE, 0, "slab %" PRIu32 " is not there",
                                number);
    }
    if (offset > slab->bytes || bytes > slab->bytes - offset) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_BOUNDS, 0,
                                "%" PRIu64 " bytes at offset %" PRIu64 " of a slab of %" PRIu64
                                " bytes",
                                bytes, offset, slab->bytes);
    }
    *resolved = slab->address + offset;
    return GPULUA_OK;
}

gpulua_status gpu_executor_resolve_arg(const struct wire_executor *executor, uint64_t address,
                                       uint64_t *resolved, struct backend_error *error) {
    if (gpu_wire_address_slab(address) != 0) {
        return gpu_executor_resolve(executor, address, 0, resolved, error);
    }
    const void *at = gpu_executor_arena(executor, gpu_wire_address_offset(address), 0);
    *resolved = (uint64_t)(uintptr_t)at;
    if (at != NULL && executor->ops->host_address != NULL) {
        *resolved = executor->ops->host_address(executor->device, at);
    }
    return *resolved != 0 ? GPULUA_OK
                          : gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                                             "host memory at offset %" PRIu64
                                             " of the arena cannot be reached by the device",
                                             gpu_wire_address_offset(address));
}

void *gpu_executor_arena(const struct wire_executor *executor, uint64_t byte_offset,
                         uint64_t bytes) {
    uint64_t limit = executor->info.arena_bytes;
    if (byte_offset > limit || bytes > limit - byte_offset) {
        return NULL;
    }
    return executor->info.arena + byte_offset;
}

struct executor_slab *gpu_executor_slab_new(struct wire_executor *executor, uint32_t number,
                                            struct backend_error *error) {
    struct executor_slab *row =
        number == 0 ? NULL : gpu_executor_row_make(&executor->slabs, number, WIRE_SLABS_MAX);
    if (row == NULL && number != 0) {
        gpu_executor_row_missing(error, "slab", number, WIRE_SLABS_MAX);
    } else if (row == NULL || row->address != 0) {
        gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                         "slab number %" PRIu32 " cannot be used", number);
        row = NULL;
    }
    return row;
}

void gpu_executor_slab_destroy(struct wire_executor *executor, uint32_t number) {
    struct executor_slab *slab = gpu_executor_row(&executor->slabs, number);
    if (slab != NULL && slab->address != 0) {
        if (slab->slab != NULL) {
            if (executor->verify != NULL) {
                gpu_executor_verify_slab_gone(executor, slab->address);
            }
            executor->ops->slab_destroy(executor->device, slab->slab);
        } else if (slab->is_adopted && executor->ops->memory_leave != NULL) {
            executor->ops->memory_leave(executor->device, slab->address + slab->begin);
        }
        *slab = (struct executor_slab){0};
    }
}

void gpu_executor_arena_register(struct wire_executor *executor, const struct wire_record *record) {
    uint64_t begin = executor->pinned_bytes;
    uint64_t end = record->u.arena.byte_offset + record->u.arena.bytes;
    /* A spare was told of some before its turn. What could not be pinned then is in the next. */
    void *base = end > begin ? gpu_executor_arena(executor, begin, end - begin) : NULL;
    if (executor->device == NULL || executor->ops->host_register == NULL || base == NULL) {
        return;
    }
    struct executor_pin *pin =
        gpu_executor_row_make(&executor->pinned, executor->pin_count, EXECUTOR_OBJECTS_MAX);
    if (pin == NULL) {
        return;
    }
    struct backend_error error = {0};
    if (executor->ops->host_register(executor->device, base, end - begin, &error) == GPULUA_OK) {
        pin->base = base;
        executor->pin_count++;
        executor->pinned_bytes = end;
    }
    free(error.log);
}

/* ---- streams ---- */

static void stream_make(struct wire_executor *executor, uint32_t slot,
                        struct executor_stream *stream) {
    if (executor->device == NULL) {
        gpu_backend_fail(&stream->failure, GPULUA_NO_DEVICE, 0, "no device is open");
        return;
    }
    const struct backend_ops *ops = executor->ops;
    gpulua_status status =
        !stream->is_foreign ? ops->stream_create(executor->device, slot, stream->priority,
                                                 &stream->stream, &stream->failure)
        : ops->stream_foreign != NULL
            ? ops->stream_foreign(executor->device, slot, &stream->stream, &stream->failure)
            : gpu_backend_fail(&stream->failure, GPULUA_UNSUPPORTED, 0,
                               "the device has no streams that others know");
    if (status != GPULUA_OK) {
        stream->stream = NULL;
        if (stream->failure.status == GPULUA_DEVICE_LOST) {
            gpu_executor_lose(executor, stream->failure.driver_code, stream->failure.message);
        }
    }
}

static void begin_at(struct wire_executor *executor, uint32_t slot,
                     struct executor_stream *stream) {
    /* Slots that are reused go on counting. */
    stream->last_seq = gpu_wire_page_done(executor->page, slot);
    stream->word_seq = stream->last_seq;
    /* Somebody may wait for work on it since before this record was taken. */
    executor->wishes_seen =
        atomic_load_explicit(&executor->page->wishes, memory_order_relaxed) - 1u;
}

void gpu_executor_stream_create(struct wire_executor *executor, const struct wire_record *record) {
    uint32_t slot = record->stream;
    struct executor_stream *ahead = executor->streams[slot];
    if (ahead != NULL && ahead->is_ahead && ahead->stream != NULL && !record->u.stream.is_foreign &&
        ahead->priority == record->u.stream.priority) {
        ahead->is_ahead = (record->flags & WIRE_FLAG_AHEAD) != 0;
        begin_at(executor, slot, ahead);
        return;
    }
    gpu_executor_stream_destroy(executor, slot);
    struct executor_stream *stream = calloc(1, sizeof *stream);
    struct executor_event *events = calloc(EXECUTOR_EVENTS, sizeof *events);
    /* Not one of the host's: another one in its place would be out of order. */
    executor->stream_is_owed[slot] =
        (stream == NULL || events == NULL) && !record->u.stream.is_foreign;
    if (stream == NULL || events == NULL) {
        free(stream);
        free(events);
        return; /* work put on it finds no stream, and fails with that */
    }
    stream->events = events;
    stream->event_capacity = EXECUTOR_EVENTS;
    executor->streams[slot] = stream;
    if (slot >= executor->stream_limit) {
        executor->stream_limit = slot + 1;
        atomic_store_explicit(&executor->wanted_limit, slot + 1, memory_order_release);
    }
    stream->priority = record->u.stream.priority;
    stream->is_foreign = record->u.stream.is_foreign != 0;
    stream->is_ahead = (record->flags & WIRE_FLAG_AHEAD) != 0;
    stream_make(executor, slot, stream);
    begin_at(executor, slot, stream);
}

void gpu_executor_stream_retry(struct wire_executor *executor, uint32_t slot) {
    struct executor_stream *stream = executor->streams[slot];
    if (stream == NULL && executor->stream_is_owed[slot]) {
        struct wire_record again = {.opcode = WIRE_OP_STREAM_CREATE, .stream = slot};
        gpu_executor_stream_create(executor, &again);
    } else if (stream != NULL && stream->failure.status == GPULUA_OUT_OF_MEMORY) {
        free(stream->failure.log);
        stream->failure = (struct backend_error){0};
        stream_make(executor, slot, stream);
    }
}

void gpu_executor_stream_destroy(struct wire_executor *executor, uint32_t slot) {
    struct executor_stream *stream = executor->streams[slot];
    executor->stream_is_owed[slot] = false;
    if (stream == NULL) {
        return;
    }
    if (stream->print_seq != 0) {
        gpu_executor_is_over(executor, slot, stream->last_seq);
    }
    if (stream->print_seq != 0) {
        executor->printing_count--;
    }
    for (uint32_t i = 0; i < executor->dirty_count; i++) {
        if (executor->dirty[i] == slot) {
            executor->dirty[i] = executor->dirty[--executor->dirty_count];
            break;
        }
    }
    if (stream->stream != NULL) {
        executor->ops->stream_destroy(executor->device, stream->stream);
        /* All its work was over; the words of the newest operations may never have been asked for.
         */
        if (!atomic_load_explicit(&executor->is_lost, memory_order_relaxed)) {
            if (executor->is_traced && !executor->tells_times) {
                gpu_executor_trace_tell(executor, slot, stream->last_seq);
            }
            gpu_executor_host_done(executor, slot, stream->last_seq);
        }
    }
    for (uint32_t i = 0; i < stream->event_capacity; i++) {
        struct backend_event *event = stream->events[i].event;
        if (event != NULL && !gpu_executor_sleepers_keep(executor, event)) {
            gpu_executor_event_end(executor, event);
        }
        if (stream->events[i].begin != NULL) {
            gpu_executor_event_end(executor, stream->events[i].begin);
        }
    }
    free(stream->events);
    free(stream->failure.log);
    free(stream);
    executor->streams[slot] = NULL;
}

/* ---- modules ---- */

static void forget_module_objects(struct wire_executor *executor, uint32_t number) {
    for (uint32_t i = 0; i < executor->kernels.count; i++) {
        struct executor_kernel *kernel = gpu_executor_row(&executor->kernels, i);
        if (kernel->kernel != NULL && kernel->module == number) {
            *kernel = (struct executor_kernel){0};
        }
    }
    for (uint32_t i = 0; i < executor->slabs.count; i++) {
        struct executor_slab *slab = gpu_executor_row(&executor->slabs, i);
        if (slab->address != 0 && slab->slab == NULL && slab->module == number) {
            *slab = (struct executor_slab){0};
        }
    }
}

/* NULL: no memory, and what is to be buried stays until the device is closed. */
static struct executor_grave *grave_make(uint32_t use_limit) {
    struct executor_grave *grave = malloc(sizeof *grave + use_limit * sizeof grave->uses[0]);
    if (grave != NULL) {
        *grave = (struct executor_grave){.next = NULL};
    }
    return grave;
}

static void bury(struct wire_executor *executor, struct executor_grave *grave) {
    struct executor_grave **link = &executor->graves;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = grave;
    gpu_executor_graves_look(executor, false);
}

void gpu_executor_bury_module(struct wire_executor *executor, struct backend_module *module) {
    struct executor_grave *grave = grave_make(executor->stream_limit);
    if (grave == NULL) {
        return;
    }
    grave->module = module;
    for (uint32_t slot = 0; slot < executor->stream_limit; slot++) {
        const struct executor_stream *stream = executor->streams[slot];
        if (stream != NULL && gpu_wire_page_done(executor->page, slot) < stream->last_seq) {
            grave->uses[grave->count++] = (struct executor_use){slot, stream->last_seq};
        }
    }
    bury(executor, grave);
}

void gpu_executor_bury_graph(struct wire_executor *executor, struct backend_graph *graph,
                             struct executor_use last) {
    struct executor_grave *grave = grave_make(1);
    if (grave == NULL) {
        return;
    }
    grave->graph = graph;
    grave->uses[0] = last;
    grave->count = last.seq != 0;
    bury(executor, grave);
}

/* A module that has come after a graph in the list may be one of the graph's: it stays as long. */
void gpu_executor_graves_look(struct wire_executor *executor, bool all) {
    struct executor_grave **link = &executor->graves;
    bool has_graph = false;
    if (!all && atomic_load_explicit(&executor->is_lost, memory_order_relaxed)) {
        return; /* all counts as over, but in this process it may still run */
    }
    while (*link != NULL) {
        struct executor_grave *grave = *link;
        while (grave->count > 0 &&
               (all || gpu_executor_is_over(executor, grave->uses[grave->count - 1].stream,
                                            grave->uses[grave->count - 1].seq))) {
            grave->count--;
        }
        if (grave->count == 0 && (grave->graph != NULL || !has_graph)) {
            *link = grave->next;
            if (grave->graph != NULL) {
                executor->ops->graph_destroy(executor->device, grave->graph);
            } else {
                executor->ops->module_unload(executor->device, grave->module);
            }
            free(grave);
        } else {
            has_graph |= grave->graph != NULL;
            link = &grave->next;
        }
    }
}

void gpu_executor_module_unload(struct wire_executor *executor, uint32_t number) {
    struct executor_module *row = gpu_executor_row(&executor->modules, number);
    if (row == NULL || row->state == MODULE_NONE) {
        return;
    }
    struct backend_module *module = row->module;
    /* A compilation under way finds the row changed and drops what it has made. */
    *row = (struct executor_module){0};
    forget_module_objects(executor, number);
    if (module != NULL) {
        gpu_executor_bury_module(executor, module);
    }
}

bool gpu_executor_module_claim(struct wire_executor *executor, const struct wire_record *record) {
    struct executor_module *row = gpu_executor_row(&executor->modules, record->object);
    if (row == NULL || !row->is_ahead) {
        return false;
    }
    if (row->number != record->u.module.number) {
        gpu_executor_module_unload(executor, record->object);
        return false;
    }
    row->is_ahead = (record->flags & WIRE_FLAG_AHEAD) != 0;
    return true;
}

/* ---- the end ---- */

void gpu_executor_objects_free(struct wire_executor *executor) {
    for (uint32_t slot = 0; slot < executor->stream_limit; slot++) {
        gpu_executor_stream_destroy(executor, slot);
    }
    if (executor->device != NULL) {
        for (uint32_t i = 0; i < executor->graphs.count; i++) {
            gpu_executor_graph_destroy(executor, i);
        }
        gpu_executor_graves_look(executor, true);
        for (uint32_t i = 0; i < executor->modules.count; i++) {
            struct executor_module *row = gpu_executor_row(&executor->modules, i);
            if (row->module != NULL) {
                executor->ops->module_unload(executor->device, row->module);
            }
        }
        for (uint32_t i = 0; i < executor->slabs.count; i++) {
            gpu_executor_slab_destroy(executor, i);
        }
        for (uint32_t i = 0; i < executor->pin_count; i++) {
            struct executor_pin *pin = gpu_executor_row(&executor->pinned, i);
            executor->ops->host_unregister(executor->device, pin->base);
        }
    }
    executor->pin_count = 0;
    executor->pinned_bytes = 0;
    gpu_executor_table_free(&executor->modules);
    gpu_executor_table_free(&executor->kernels);
    gpu_executor_table_free(&executor->labels);
    gpu_executor_table_free(&executor->slabs);
    gpu_executor_table_free(&executor->pinned);
    gpu_executor_table_free(&executor->graphs);
}
