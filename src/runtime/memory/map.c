/* The map: what memory a device has given out, and to whom. */
#include <stdlib.h>
#include <string.h>

#include "runtime/graph/state.h"

static enum gpu_holding kind_of(const struct gpu_block *block) {
    return block->is_temporary                     ? GPU_HOLDS_TEMPORARY
           : block->module                         ? GPU_HOLDS_VARIABLE
           : block->is_foreign                     ? GPU_HOLDS_IMPORT
           : block->is_arena                       ? GPU_HOLDS_POOL
           : block->is_staging || block->is_hidden ? GPU_HOLDS_OWN
           : block->is_host                        ? GPU_HOLDS_HOST
                                                   : GPU_HOLDS_BUFFER;
}

/* Some blocks are nobody's memory, but something to be in order with. */
static bool is_shown(const struct gpu_block *block) {
    return block->byte_count > 0 && (!block->is_external || block->module || block->is_temporary);
}

static void describe(const struct gpu_block *block, int64_t now_ns,
                     struct gpu_memory_entry *entry) {
    *entry = (struct gpu_memory_entry){.kind = kind_of(block),
                                       .number = block->number,
                                       .site = block->site,
                                       .byte_count = block->byte_count,
                                       .memory_bytes = block->is_foreign ? block->byte_count
                                                                         : block->grant.byte_count,
                                       .age_ns = now_ns - block->made_ns,
                                       .is_host = block->is_host,
                                       .is_freed = block->is_freed};
    memcpy(entry->label, block->label, sizeof entry->label);
}

/* Of blocks that follow each other, as many as fit; counts all of them. */
static void add_blocks(const struct gpu_block *block, int64_t now_ns,
                       struct gpu_memory_entry *entries, uint32_t room, uint32_t *count) {
    for (; block; block = block->next) {
        if (is_shown(block)) {
            if (*count < room) {
                describe(block, now_ns, &entries[*count]);
            }
            ++*count;
        }
    }
}

static void add_graphs(const struct gpu_device *device, struct gpu_memory_entry *entries,
                       uint32_t room, uint32_t *count) {
    for (const struct gpu_graph *graph = device->graphs; graph; graph = graph->next) {
        if (graph->made.device_bytes == 0) {
            continue;
        }
        if (*count < room) {
            struct gpu_memory_entry *entry = &entries[*count];
            *entry = (struct gpu_memory_entry){.kind = GPU_HOLDS_GRAPH,
                                               .number = graph->number,
                                               .byte_count = graph->made.device_bytes,
                                               .memory_bytes = graph->made.device_bytes,
                                               .age_ns = -1};
            strncpy(entry->label, graph->label, sizeof entry->label - 1);
        }
        ++*count;
    }
}

static uint32_t list(const struct gpu_device *device, struct gpu_memory_entry *entries,
                     uint32_t room) {
    uint32_t count = 0;
    int64_t now_ns = gpu_clock_coarse_ns();
    add_blocks(device->blocks, now_ns, entries, room, &count);
    add_blocks(device->retiring, now_ns, entries, room, &count);
    add_graphs(device, entries, room, &count);
    return count;
}

gpulua_status gpu_device_memory_map(struct gpu_device *device, struct gpu_memory_entry **entries,
                                    uint32_t *count, struct gpu_error *error) {
    GPU_ENTER(device);
    gpu_device_reap(device); /* what is over is no news */
    uint32_t room = list(device, NULL, 0);
    *entries = calloc(room + 1u, sizeof **entries);
    if (!*entries) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a map of memory");
    }
    *count = list(device, *entries, room);
    return GPULUA_OK;
}
