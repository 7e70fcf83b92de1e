/* Statistics and logging: they watch what passes and change nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/memory/stack.h"

struct statistics_memory {
    struct gpu_memory base;
    struct gpu_memory_stats stats;
};

struct logging_memory {
    struct gpu_memory base;
    uint64_t event_count, drop_count;
    char *text;                                /* owned; a ring of lines that end with NUL */
    uint64_t text_bytes, text_begin, text_end; /* counted from the first byte ever written */
};

/* ---- statistics ---- */

static gpulua_status statistics_allocate(struct gpu_memory *base,
                                         struct gpu_memory_request *request,
                                         struct gpu_grant *grant, struct gpu_error *error) {
    struct gpu_memory_stats *stats = &((struct statistics_memory *)base)->stats;
    gpulua_status status = gpu_memory_allocate(base->upstream, request, grant, error);
    if (status) {
        stats->failures++;
        return status;
    }
    stats->allocs++;
    stats->blocks_live++;
    stats->bytes_live += grant->byte_count;
    stats->bytes_total += grant->byte_count;
    if (stats->bytes_live > stats->bytes_live_max) {
        stats->bytes_live_max = stats->bytes_live;
    }
    if (stats->blocks_live > stats->blocks_live_max) {
        stats->blocks_live_max = stats->blocks_live;
    }
    if (grant->byte_count > stats->largest_bytes) {
        stats->largest_bytes = grant->byte_count;
    }
    return GPULUA_OK;
}

static void statistics_deallocate(struct gpu_memory *base, struct gpu_grant *grant,
                                  const struct gpu_block *block) {
    struct gpu_memory_stats *stats = &((struct statistics_memory *)base)->stats;
    stats->frees++;
    stats->blocks_live--;
    stats->bytes_live -= grant->byte_count;
    gpu_memory_deallocate(base->upstream, grant, block);
}

void gpu_memory_stats(const struct gpu_memory *memory, struct gpu_memory_stats *stats) {
    GPU_ENTER(memory->device);
    const struct gpu_memory *found =
        gpu_memory_find((struct gpu_memory *)(uintptr_t)memory, GPU_MEMORY_STATISTICS);
    *stats =
        found ? ((const struct statistics_memory *)found)->stats : (struct gpu_memory_stats){0};
}

static const struct gpu_memory_ops statistics_ops = {
    .kind = "statistics", .allocate = statistics_allocate, .deallocate = statistics_deallocate};
const struct gpu_memory_class gpu_memory_statistics_class = {
    .ops = &statistics_ops, .bytes = sizeof(struct statistics_memory)};

/* ---- logging ---- */

static void put_line(struct logging_memory *memory, const char *line) {
    uint64_t bytes = strlen(line) + 1;
    if (bytes > memory->text_bytes - (memory->text_end - memory->text_begin)) {
        memory->drop_count++;
        return;
    }
    for (uint64_t i = 0; i < bytes; i++) {
        memory->text[memory->text_end++ % memory->text_bytes] = line[i];
    }
}

static void put_event(struct logging_memory *memory, const char *event, uint64_t byte_count,
                      uint64_t number, const char *label, const struct gpu_site *site) {
    char line[GPU_LOG_LINE_BYTES_MAX], place[80] = "";
    bool has_label = label && label[0];
    if (site && site->source) {
        snprintf(place, sizeof place, " at %.60s:%d", site->source, site->line);
    }
    snprintf(line, sizeof line, "%llu %s %llu bytes for allocation %llu%s%.48s%s%s",
             (unsigned long long)++memory->event_count, event, (unsigned long long)byte_count,
             (unsigned long long)number, has_label ? " '" : "", has_label ? label : "",
             has_label ? "'" : "", place);
    put_line(memory, line);
}

static gpulua_status logging_allocate(struct gpu_memory *base, struct gpu_memory_request *request,
                                      struct gpu_grant *grant, struct gpu_error *error) {
    gpulua_status status = gpu_memory_allocate(base->upstream, request, grant, error);
    put_event((struct logging_memory *)base, status ? "refuse" : "allocate", request->byte_count,
              request->number, request->label, &request->site);
    return status;
}

static void logging_deallocate(struct gpu_memory *base, struct gpu_grant *grant,
                               const struct gpu_block *block) {
    put_event((struct logging_memory *)base, "free", grant->byte_count, block->number, block->label,
              NULL);
    gpu_memory_deallocate(base->upstream, grant, block);
}

static struct logging_memory *logging_of(const struct gpu_memory *memory) {
    return (struct logging_memory *)gpu_memory_find((struct gpu_memory *)(uintptr_t)memory,
                                                    GPU_MEMORY_LOGGING);
}

bool gpu_memory_log_take(struct gpu_memory *memory, char line[GPU_LOG_LINE_BYTES_MAX]) {
    GPU_ENTER(memory->device);
    struct logging_memory *log = logging_of(memory);
    if (!log || log->text_begin == log->text_end) {
        return false;
    }
    for (uint64_t i = 0; i < GPU_LOG_LINE_BYTES_MAX; i++) {
        line[i] = log->text[log->text_begin++ % log->text_bytes];
        if (!line[i]) {
            break;
        }
    }
    return true;
}

void gpu_memory_log_drop(struct gpu_memory *memory) {
    GPU_ENTER(memory->device);
    struct logging_memory *log = logging_of(memory);
    if (log) {
        log->drop_count++;
    }
}

void gpu_memory_log_counts(const struct gpu_memory *memory, uint64_t *events, uint64_t *drops) {
    GPU_ENTER(memory->device);
    const struct logging_memory *log = logging_of(memory);
    *events = log ? log->event_count : 0;
    *drops = log ? log->drop_count : 0;
}

static gpulua_status logging_init(struct gpu_memory *base, const struct gpu_memory_info *info,
                                  struct gpu_error *error) {
    struct logging_memory *memory = (struct logging_memory *)base;
    if (info->text_bytes < GPU_LOG_LINE_BYTES_MAX || info->text_bytes > GPU_LOG_TEXT_BYTES_MAX) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "the text of a log has %u to %llu bytes, not %llu",
                             GPU_LOG_LINE_BYTES_MAX, (unsigned long long)GPU_LOG_TEXT_BYTES_MAX,
                             (unsigned long long)info->text_bytes);
    }
    memory->text = malloc(info->text_bytes);
    memory->text_bytes = info->text_bytes;
    return memory->text ? GPULUA_OK
                        : gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a log");
}

static void logging_finish(struct gpu_memory *base) {
    free(((struct logging_memory *)base)->text);
}

static const struct gpu_memory_ops logging_ops = {
    .kind = "logging",
    .allocate = logging_allocate,
    .deallocate = logging_deallocate,
    .finish = logging_finish,
};
const struct gpu_memory_class gpu_memory_logging_class = {
    .ops = &logging_ops, .bytes = sizeof(struct logging_memory), .init = logging_init};
