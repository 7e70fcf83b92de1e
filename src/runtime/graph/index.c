/* Which number a block has in some list: open addressing, half empty. */
#include <stdlib.h>

#include "runtime/graph/state.h"

static struct graph_place *place_of(const struct graph_index *index,
                                    const struct gpu_block *block) {
    uint32_t mask = index->capacity - 1;
    uint32_t at = (uint32_t)(block->number * UINT64_C(0x9e3779b97f4a7c15) >> 32) & mask;
    while (index->places[at].block && index->places[at].block != block) {
        at = (at + 1) & mask;
    }
    return &index->places[at];
}

static bool grow(struct graph_index *index) {
    struct graph_index grown = {.capacity = index->capacity == 0 ? 32 : index->capacity * 2,
                                .count = index->count};
    grown.places = calloc(grown.capacity, sizeof *grown.places);
    if (!grown.places) {
        return false;
    }
    for (uint32_t i = 0; i < index->capacity; i++) {
        if (index->places[i].block) {
            *place_of(&grown, index->places[i].block) = index->places[i];
        }
    }
    free(index->places);
    *index = grown;
    return true;
}

uint32_t gpu_graph_index_find(const struct graph_index *index, const struct gpu_block *block) {
    const struct graph_place *place = index->capacity != 0 ? place_of(index, block) : NULL;
    return place && place->block ? place->number : GPU_NODE_NONE;
}

uint32_t *gpu_graph_index_make(struct graph_index *index, const struct gpu_block *block) {
    if (index->count * 2 >= index->capacity && !grow(index)) {
        return NULL;
    }
    struct graph_place *place = place_of(index, block);
    if (!place->block) {
        *place = (struct graph_place){.block = block, .number = GPU_NODE_NONE};
        index->count++;
    }
    return &place->number;
}

void gpu_graph_index_finish(struct graph_index *index) {
    free(index->places);
    *index = (struct graph_index){0};
}
