#include "host/heap.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <lauxlib.h>

#define GRAIN_BYTES 16u
#if defined(__SANITIZE_ADDRESS__)
#define SMALL_BYTES_MAX 0u /* each block is watched by itself */
#else
#define SMALL_BYTES_MAX 256u
#endif
#define CHUNK_BYTES (64u << 10)

/* Blocks of C's allocator begin at multiples of 16; ours lie 8 behind those, which tells them apart
 * and is all that Lua wants. */
#define OWN_OFFSET 8u

struct chunk {
    struct chunk *next;
    uint64_t unused; /* so that a block behind it lies as it should */
    uint8_t bytes[];
};
_Static_assert(sizeof(struct chunk) % GRAIN_BYTES == 0, "see OWN_OFFSET");

struct free_block {
    struct free_block *next;
};

/* What Lua 5.4 asks for, on machines of 64 bits: an element of a table, and the userdata that it
 * makes in front of the memory of a long luaL_Buffer. */
#define NODE_BYTES 24u
#define BOX_BYTES 48u

struct heap {
    uint64_t limit_bytes, used_bytes;
    size_t nodes_bytes_min; /* of the elements of tables that are refused */
    bool is_after_box;      /* the newest block is such a userdata */
    struct chunk *chunks;
    uint8_t *top, *end; /* of the newest chunk: not cut yet */
    struct free_block *free[SMALL_BYTES_MAX / GRAIN_BYTES + 1];
};

struct heap *gpu_heap_create(uint64_t limit_bytes) {
    struct heap *heap = calloc(1, sizeof *heap);
    if (heap) {
        heap->limit_bytes = limit_bytes ? limit_bytes : UINT64_MAX;
        heap->nodes_bytes_min = SIZE_MAX;
    }
    return heap;
}

void gpu_heap_destroy(struct heap *heap) {
    while (heap && heap->chunks) {
        struct chunk *chunk = heap->chunks;
        heap->chunks = chunk->next;
        free(chunk);
    }
    free(heap);
}

void gpu_heap_lift(struct heap *heap) {
    heap->limit_bytes = UINT64_MAX;
}

void gpu_heap_bound_tables(struct heap *heap) {
    heap->nodes_bytes_min = (size_t)2 * GPU_HEAP_KEYS_MAX * NODE_BYTES;
}

/* Elements of a table are a power of two, and of no type. So is the memory of a buffer, but just in
 * front of it there comes its box. */
static bool is_of_nodes(const struct heap *heap, size_t type, size_t bytes) {
    size_t count = bytes / NODE_BYTES;
    return type == 0 && bytes % NODE_BYTES == 0 && (count & (count - 1)) == 0 &&
           !heap->is_after_box;
}

static size_t class_of(size_t bytes) {
    return (bytes + GRAIN_BYTES - 1) / GRAIN_BYTES;
}

/* Brings its pages in at once, because one at a time, at the first touch of each, they cost as much
 * as what is done with them. A wish: it takes Linux 5.14. */
static void populate(struct chunk *chunk) {
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)chunk + page_bytes - 1) & ~(page_bytes - 1);
    uintptr_t end = ((uintptr_t)chunk + CHUNK_BYTES) & ~(page_bytes - 1);
    (void)madvise((void *)begin, end - begin, MADV_POPULATE_WRITE);
}

static void *cut(struct heap *heap, size_t bytes) {
    if ((size_t)(heap->end - heap->top) < bytes) {
        struct chunk *chunk = malloc(CHUNK_BYTES);
        if (!chunk) {
            return NULL;
        }
        populate(chunk);
        chunk->next = heap->chunks;
        heap->chunks = chunk;
        heap->top = chunk->bytes + OWN_OFFSET;
        heap->end = (uint8_t *)chunk + CHUNK_BYTES;
    }
    void *block = heap->top;
    heap->top += bytes;
    return block;
}

static inline void *take(struct heap *heap, size_t bytes) {
    if (bytes > SMALL_BYTES_MAX) {
        return malloc(bytes);
    }
    struct free_block **list = &heap->free[class_of(bytes)];
    struct free_block *block = *list;
    if (block) {
        *list = block->next;
        return block;
    }
    return cut(heap, class_of(bytes) * GRAIN_BYTES);
}

static bool is_own(const void *block) {
    return (uintptr_t)block % GRAIN_BYTES == OWN_OFFSET;
}

static inline void give(struct heap *heap, void *block, size_t bytes) {
    if (!is_own(block)) {
        free(block);
        return;
    }
    struct free_block **list = &heap->free[class_of(bytes)];
    ((struct free_block *)block)->next = *list;
    *list = block;
}

static void *move(struct heap *heap, void *block, size_t old_bytes, size_t new_bytes) {
    if (is_own(block) && class_of(old_bytes) == class_of(new_bytes)) {
        return block;
    }
    if (!is_own(block) && new_bytes > SMALL_BYTES_MAX) {
        return realloc(block, new_bytes);
    }
    void *moved = take(heap, new_bytes);
    if (!moved) {
        return new_bytes <= old_bytes ? block : NULL; /* shrinking may not fail */
    }
    memcpy(moved, block, old_bytes < new_bytes ? old_bytes : new_bytes);
    give(heap, block, old_bytes);
    return moved;
}

/* Kept out of gpu_heap_alloc, which has few registers to save without it. */
__attribute__((noinline)) static void *resize(struct heap *heap, void *block, size_t old_bytes,
                                              size_t new_bytes) {
    uint64_t used_bytes = heap->used_bytes - old_bytes + new_bytes;
    if (new_bytes > old_bytes && used_bytes > heap->limit_bytes) {
        return NULL;
    }
    void *made = move(heap, block, old_bytes, new_bytes);
    if (made) {
        heap->used_bytes = used_bytes;
    }
    return made;
}

/* For new blocks Lua passes a type in old_bytes. */
void *gpu_heap_alloc(void *user, void *block, size_t old_bytes, size_t new_bytes) {
    struct heap *heap = user;
    if (new_bytes == 0) {
        if (block) {
            heap->used_bytes -= old_bytes;
            give(heap, block, old_bytes);
        }
        return NULL;
    }
    if (block) {
        return resize(heap, block, old_bytes, new_bytes);
    }
    if (heap->used_bytes + new_bytes > heap->limit_bytes ||
        (new_bytes >= heap->nodes_bytes_min && is_of_nodes(heap, old_bytes, new_bytes))) {
        return NULL;
    }
    heap->is_after_box = old_bytes == LUA_TUSERDATA && new_bytes == BOX_BYTES;
    void *made = take(heap, new_bytes);
    if (made) {
        heap->used_bytes += new_bytes;
    }
    return made;
}

lua_State *gpu_heap_state(uint64_t limit_bytes, struct heap **heap) {
    lua_State *L = luaL_newstate(); /* with its ways to panic and to warn */
    *heap = L ? gpu_heap_create(limit_bytes) : NULL;
    if (L && !*heap) {
        lua_close(L);
        return NULL;
    }
    if (L) {
        (*heap)->used_bytes =
            (uint64_t)lua_gc(L, LUA_GCCOUNT) * 1024 + (uint64_t)lua_gc(L, LUA_GCCOUNTB);
        lua_setallocf(L, gpu_heap_alloc, *heap);
    }
    return L;
}
