/* Nodes (tracer_nodes.h).
 *
 * The lower half of CUPTI's id counts the nodes of a graph in the order in which they were made. In
 * the executable graph, which the upper half is of there, it counts those of the graph itself, then
 * those of the first conditional node's first body, then what is in bodies of that, and so on (seen
 * with CUPTI 13.0, not documented). */
#include "backend/cuda/tracer_nodes.h"

#include <stdlib.h>

#include "backend/cuda/tracer.h"

void gpu_cuda_node_map_retain(struct cuda_node_map *map) {
    atomic_fetch_add_explicit(&map->ref_count, 1, memory_order_relaxed);
}

void gpu_cuda_node_map_release(struct cuda_node_map *map) {
    if (map == NULL || atomic_fetch_sub_explicit(&map->ref_count, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (uint32_t i = 0; i < map->part_count; i++) {
        free(map->parts[i].entries);
    }
    free(map->parts);
    free(map->entries);
    free(map);
}

struct cuda_node_map *gpu_cuda_node_map(struct backend_device *device) {
    struct cuda_node_map *map = gpu_cuda_tells_times(device) ? calloc(1, sizeof *map) : NULL;
    if (map != NULL) {
        atomic_init(&map->ref_count, 1);
        (void)gpu_cuda_node_map_begin(map, 0);
    }
    return map;
}

uint32_t gpu_cuda_node_map_begin(struct cuda_node_map *map, uint32_t number) {
    if (map == NULL || map->is_broken) {
        return 0;
    }
    if (map->part_count == map->part_max) {
        uint32_t room = map->part_max != 0 ? map->part_max * 2 : 1;
        struct map_part *grown = realloc(map->parts, room * sizeof *grown);
        if (grown == NULL) {
            map->is_broken = true;
            return 0;
        }
        map->parts = grown;
        map->part_max = room;
    }
    map->parts[map->part_count] = (struct map_part){.number = number};
    return map->part_count++;
}

void gpu_cuda_node_map_end(struct backend_device *device, struct cuda_node_map *map, uint32_t part,
                           CUgraph handle, const struct graph_node *nodes, uint32_t count) {
    const struct cuda_driver *cu = &device->cu;
    if (map == NULL || map->is_broken) {
        return;
    }
    size_t all = 0;
    struct map_entry *entries = malloc((count + (size_t)1) * sizeof *entries);
    map->is_broken = entries == NULL || cu->cuGraphGetNodes == NULL ||
                     cu->cuGraphGetNodes(handle, NULL, &all) != CUDA_SUCCESS;
    uint32_t end = 0;
    for (uint32_t i = 0; i < count && !map->is_broken; i++) {
        uint64_t id = 0;
        map->is_broken = nodes[i].handle != NULL && !gpu_cuda_tracer_node_id(nodes[i].handle, &id);
        if (nodes[i].handle != NULL && (uint32_t)id >= end) {
            end = (uint32_t)id + 1;
        }
        entries[i] = (struct map_entry){.end = end, .number = nodes[i].number};
    }
    if (map->is_broken) {
        free(entries);
        return;
    }
    /* Behind all of a loop's body is what decides whether it goes on. */
    entries[count] = (struct map_entry){.end = end > (uint32_t)all ? end : (uint32_t)all,
                                        .number = map->parts[part].number};
    map->parts[part].entries = entries;
    map->parts[part].entry_count = count + 1;
}

void gpu_cuda_node_map_seal(struct cuda_node_map *map) {
    uint32_t count = 0, before = 0;
    if (map == NULL || map->is_broken) {
        return;
    }
    for (uint32_t i = 0; i < map->part_count; i++) {
        count += map->parts[i].entry_count;
    }
    map->entries = malloc(count * sizeof *map->entries);
    for (uint32_t i = 0; i < map->part_count && map->entries != NULL; i++) {
        struct map_part *part = &map->parts[i];
        for (uint32_t k = 0; k < part->entry_count; k++) {
            map->entries[map->entry_count++] = (struct map_entry){
                .end = before + part->entries[k].end, .number = part->entries[k].number};
        }
        before = part->entry_count > 0 ? map->entries[map->entry_count - 1].end : before;
        free(part->entries);
        *part = (struct map_part){0};
    }
}

void gpu_cuda_node_map_drop(struct cuda_node_map *map) {
    if (map != NULL) {
        atomic_store_explicit(&map->is_over, true, memory_order_relaxed);
        gpu_cuda_node_map_release(map);
    }
}

/* The first whose end is behind it. */
uint32_t gpu_cuda_node_map_find(const struct cuda_node_map *map, uint64_t id) {
    uint32_t index = (uint32_t)id, low = 0, high = map->entry_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (map->entries[middle].end > index) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low < map->entry_count ? map->entries[low].number : 0;
}
