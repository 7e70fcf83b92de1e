/* Pools: the blocks that graphs need, in the order in which they were registered. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/graph/state.h"

struct pool_entry {
    struct gpu_block *block; /* retained */
    bool by_hand;            /* recorded by the script */
    uint64_t capture;        /* the only one that has wanted it; 0: others have, too */
};

struct gpu_pool {
    uint32_t refs;
    uint64_t number;           /* given out once in this process, from 1 */
    struct gpu_pool *next;     /* of the device */
    struct gpu_device *device; /* retained */
    bool is_sealed;
    uint32_t user_count;        /* graphs, and captures that have not ended */
    struct pool_entry *entries; /* owned; in order */
    uint32_t count, capacity;
    struct gpu_index index;  /* of the blocks */
    struct gpu_block *order; /* retained: has no memory; launches of its graphs write it */
    struct gpu_deferred release;
    bool is_deferred;
};

static _Atomic uint64_t numbers;

gpulua_status gpu_pool_create(struct gpu_device *device, struct gpu_pool **pool,
                              struct gpu_error *error) {
    GPU_ENTER(device);
    gpulua_status status = gpu_device_check(device, error);
    if (status) {
        return status;
    }
    struct gpu_pool *made = calloc(1, sizeof *made);
    struct gpu_block *order = made ? gpu_block_create_external(device, 0, 0, "pool") : NULL;
    if (!order) {
        free(made);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a pool");
    }
    made->refs = 1;
    made->number = atomic_fetch_add(&numbers, 1) + 1;
    made->device = gpu_device_keep(device);
    made->order = order;
    made->next = device->pools;
    device->pools = made;
    *pool = made;
    return GPULUA_OK;
}

struct gpu_pool *gpu_pool_retain(struct gpu_pool *pool) {
    GPU_ENTER(pool->device);
    pool->refs++;
    return pool;
}

static void drop_blocks(struct gpu_pool *pool) {
    for (uint32_t i = 0; i < pool->count; i++) {
        gpu_block_release(pool->entries[i].block);
    }
    free(pool->entries);
    gpu_index_finish(&pool->index);
    pool->entries = NULL;
    pool->count = pool->capacity = 0;
}

static void run_release(struct gpu_device *device, struct gpu_deferred *deferred) {
    struct gpu_pool *pool =
        (struct gpu_pool *)(void *)((char *)deferred - offsetof(struct gpu_pool, release));
    pool->is_deferred = false;
    if (pool->refs > 0) {
        return;
    }
    struct gpu_pool **link = &device->pools;
    while (*link != pool) {
        link = &(*link)->next;
    }
    *link = pool->next;
    drop_blocks(pool);
    gpu_block_release(pool->order);
    free(pool);
    gpu_device_drop(device);
}

void gpu_pool_release(struct gpu_pool *pool) {
    if (!pool) {
        return;
    }
    GPU_ENTER_WHOLE(pool->device);
    if (--pool->refs > 0 || pool->is_deferred) {
        return;
    }
    pool->is_deferred = true;
    gpu_device_defer(pool->device, &pool->release, run_release);
}

struct gpu_pool *gpu_pool_find(struct gpu_device *device, uint64_t number) {
    GPU_ENTER(device);
    gpu_device_run_deferred(device); /* who was the last to hold one may have let go just now */
    struct gpu_pool *pool = device->pools;
    while (pool && (pool->number != number || pool->refs == 0)) {
        pool = pool->next;
    }
    return pool ? gpu_pool_retain(pool) : NULL;
}

/* ---- what it holds ---- */

gpulua_status gpu_pool_check_open(const struct gpu_pool *pool, const char *what,
                                  struct gpu_error *error) {
    if (!pool->is_sealed) {
        return GPULUA_OK;
    }
    return gpu_error_set(error, GPULUA_POOL_SEALED, "pool %llu is sealed: %s cannot be added to it",
                         (unsigned long long)pool->number, what);
}

static gpulua_status check_open_for(const struct gpu_pool *pool, const struct gpu_block *block,
                                    struct gpu_error *error) {
    if (!pool->is_sealed) {
        return GPULUA_OK; /* without words for it */
    }
    char name[GPU_BLOCK_NAME_BYTES], what[GPU_BLOCK_NAME_BYTES + 16];
    snprintf(what, sizeof what, "a buffer (%s)", gpu_block_name(block, name));
    return gpu_pool_check_open(pool, what, error);
}

gpulua_status gpu_pool_add(struct gpu_pool *pool, struct gpu_block *block, uint64_t capture,
                           struct gpu_error *error) {
    if (block->byte_count == 0) { /* order alone is no memory */
        return GPULUA_OK;
    }
    uint32_t known = gpu_index_find(&pool->index, block);
    if (known != GPU_NODE_NONE) {
        struct pool_entry *entry = &pool->entries[known];
        entry->capture = entry->capture == capture ? capture : 0;
        return GPULUA_OK;
    }
    gpulua_status status = check_open_for(pool, block, error);
    if (status) {
        return status;
    }
    uint32_t *number = gpu_index_make(&pool->index, block);
    if (!number || !gpu_graph_grow((void **)&pool->entries, &pool->capacity, pool->count,
                                   sizeof *pool->entries)) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY,
                             "no host memory to register allocation %llu",
                             (unsigned long long)block->number);
    }
    *number = pool->count;
    pool->entries[pool->count++] =
        (struct pool_entry){.block = gpu_block_retain(block), .capture = capture};
    return GPULUA_OK;
}

/* Lets go of what `is_kept` says no to. */
static void sift(struct gpu_pool *pool,
                 bool (*is_kept)(const struct pool_entry *entry, const void *user),
                 const void *user) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < pool->count; i++) {
        if (is_kept(&pool->entries[i], user)) {
            pool->entries[kept++] = pool->entries[i];
        } else {
            gpu_block_release(pool->entries[i].block);
        }
    }
    if (kept == pool->count) {
        return;
    }
    pool->count = kept;
    gpu_index_finish(&pool->index);
    for (uint32_t i = 0; i < kept; i++) {
        uint32_t *number = gpu_index_make(&pool->index, pool->entries[i].block);
        if (number) { /* else it may be registered once more: no harm is done */
            *number = i;
        }
    }
}

/* What a graph needs of its pool: what its nodes use, what it has made, and where that lies. */
struct needs {
    const struct graph_body *body;
    struct gpu_index made;
};

static bool is_needed(const struct pool_entry *entry, const void *user) {
    const struct needs *needs = user;
    return entry->by_hand || gpu_graph_find_track(needs->body, entry->block) != GPU_NODE_NONE ||
           gpu_index_find(&needs->made, entry->block) != GPU_INDEX_NONE;
}

static bool note_made(struct needs *needs, const struct gpu_block *block) {
    uint32_t *number = block ? gpu_index_make(&needs->made, block) : NULL;
    if (number) {
        *number = 0;
    }
    return !block || number;
}

void gpu_pool_shed(struct gpu_pool *pool, const struct graph_body *body) {
    if (pool->user_count != 1 || pool->is_sealed) {
        return;
    }
    struct needs needs = {.body = body};
    bool is_known = true;
    for (uint32_t i = 0; i < body->made_count && is_known; i++) {
        is_known = note_made(&needs, body->made[i]) && note_made(&needs, body->made[i]->home);
    }
    if (is_known) { /* without memory for it all stays for now */
        sift(pool, is_needed, &needs);
    }
    gpu_index_finish(&needs.made);
}

static bool is_of_others(const struct pool_entry *entry, const void *user) {
    return entry->by_hand || entry->capture != *(const uint64_t *)user;
}

void gpu_pool_forget(struct gpu_pool *pool, uint64_t capture) {
    sift(pool, is_of_others, &capture);
}

gpulua_status gpu_pool_check(struct gpu_pool *pool, const struct gpu_ref *ref,
                             struct gpu_error *error) {
    GPU_ENTER(pool->device);
    gpulua_status status = gpu_ref_check(ref, pool->device, "record of a pool", error);
    if (status == GPULUA_OK && ref->block->is_temporary && ref->block->home) {
        return gpu_temporary_settle(ref->block, NULL, "record of a pool", error); /* says why not */
    }
    bool is_new = status == GPULUA_OK && ref->block->byte_count > 0 &&
                  gpu_index_find(&pool->index, ref->block) == GPU_NODE_NONE;
    return is_new ? check_open_for(pool, ref->block, error) : status;
}

gpulua_status gpu_pool_record(struct gpu_pool *pool, const struct gpu_ref *ref,
                              struct gpu_error *error) {
    GPU_ENTER(pool->device);
    gpulua_status status = gpu_ref_check(ref, pool->device, "record of a pool", error);
    if (status == GPULUA_OK && gpu_block_is_of_capture(ref->block)) { /* it is to be more */
        status = gpu_temporary_use(ref->block, NULL, "record of a pool", error);
    }
    if (status == GPULUA_OK) {
        status = gpu_pool_add(pool, ref->block, 0, error);
    }
    uint32_t number = gpu_index_find(&pool->index, ref->block);
    if (status == GPULUA_OK && number != GPU_NODE_NONE) {
        pool->entries[number].by_hand = true;
    }
    return status;
}

gpulua_status gpu_pool_clear(struct gpu_pool *pool, struct gpu_error *error) {
    GPU_ENTER(pool->device);
    gpu_device_run_deferred(pool->device); /* graphs that were closed just now */
    if (pool->user_count > 0) {
        return gpu_error_set(error, GPULUA_POOL_IN_USE,
                             "pool %llu cannot be cleared: %u graphs or captures use it",
                             (unsigned long long)pool->number, pool->user_count);
    }
    drop_blocks(pool);
    return GPULUA_OK;
}

void gpu_pool_use(struct gpu_pool *pool) {
    pool->refs++;
    pool->user_count++;
}

void gpu_pool_unuse(struct gpu_pool *pool) {
    if (pool) {
        pool->user_count--;
        gpu_pool_release(pool);
    }
}

struct gpu_block *gpu_pool_order(const struct gpu_pool *pool) {
    return pool->order;
}

void gpu_pool_seal(struct gpu_pool *pool, bool is_sealed) {
    GPU_ENTER(pool->device);
    pool->is_sealed = is_sealed;
}
bool gpu_pool_is_sealed(const struct gpu_pool *pool) {
    GPU_ENTER(pool->device);
    return pool->is_sealed;
}
struct gpu_block *gpu_pool_arena(const struct gpu_pool *pool, uint64_t byte_count) {
    struct gpu_block *found = NULL;
    for (uint32_t i = 0; i < pool->count; i++) {
        struct gpu_block *block = pool->entries[i].block;
        if (block->is_arena && !block->is_freed && block->epoch == pool->device->epoch &&
            block->byte_count >= byte_count && (!found || block->byte_count < found->byte_count)) {
            found = block;
        }
    }
    return found;
}
uint32_t gpu_pool_count(const struct gpu_pool *pool) {
    GPU_ENTER(pool->device);
    return pool->count;
}
uint64_t gpu_pool_number(const struct gpu_pool *pool) {
    return pool->number;
}
struct gpu_device *gpu_pool_device(const struct gpu_pool *pool) {
    return pool->device;
}
