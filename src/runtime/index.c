/* Which number something has in some list: open addressing, half empty. */
#include <stdlib.h>

#include "runtime/state.h"

static struct gpu_place *place_of(const struct gpu_index *index, const void *key) {
    uint32_t mask = index->capacity - 1;
    uint32_t at = (uint32_t)((uint64_t)(uintptr_t)key * UINT64_C(0x9e3779b97f4a7c15) >> 32) & mask;
    while (index->places[at].key && index->places[at].key != key) {
        at = (at + 1) & mask;
    }
    return &index->places[at];
}

static bool grow(struct gpu_index *index) {
    struct gpu_index grown = {.capacity = index->capacity == 0 ? 32 : index->capacity * 2,
                              .count = index->count};
    grown.places = calloc(grown.capacity, sizeof *grown.places);
    if (!grown.places) {
        return false;
    }
    for (uint32_t i = 0; i < index->capacity; i++) {
        if (index->places[i].key) {
            *place_of(&grown, index->places[i].key) = index->places[i];
        }
    }
    free(index->places);
    *index = grown;
    return true;
}

uint32_t gpu_index_find(const struct gpu_index *index, const void *key) {
    const struct gpu_place *place = index->capacity != 0 ? place_of(index, key) : NULL;
    return place && place->key ? place->number : GPU_INDEX_NONE;
}

uint32_t *gpu_index_make(struct gpu_index *index, const void *key) {
    if (index->count * 2 >= index->capacity && !grow(index)) {
        return NULL;
    }
    struct gpu_place *place = place_of(index, key);
    if (!place->key) {
        *place = (struct gpu_place){.key = key, .number = GPU_INDEX_NONE};
        index->count++;
    }
    return &place->number;
}

void gpu_index_finish(struct gpu_index *index) {
    free(index->places);
    *index = (struct gpu_index){0};
}
