/* The memory of the Lua states that are ours: as C's allocator, but for small blocks, which scripts
 * make and drop all the time (a handle for each launch), from lists by size, and within a limit. */
#ifndef GPU_HOST_HEAP_H
#define GPU_HOST_HEAP_H

#include <stddef.h>
#include <stdint.h>

#include <lua.h>

struct heap;

/* limit_bytes 0: none. NULL: no memory. */
struct heap *gpu_heap_create(uint64_t limit_bytes);
/* It has no limit any more. */
void gpu_heap_lift(struct heap *heap);
/* From now on tables get no more than GPU_HEAP_KEYS_MAX keys outside of their sequence: there is no
 * memory for those that do. A table that grows is filled anew, which takes the square of their
 * number where a script has chosen keys that all hash alike, and nothing can stop it. */
#define GPU_HEAP_KEYS_MAX 8192u
void gpu_heap_bound_tables(struct heap *heap);
/* Everything of it is given back, freed or not. NULL is fine. */
void gpu_heap_destroy(struct heap *heap);
/* A lua_Alloc; `user` is the heap. Takes blocks of C's allocator, too. */
void *gpu_heap_alloc(void *user, void *block, size_t old_bytes, size_t new_bytes);

/* A new state with such a heap, which is to be destroyed after lua_close. NULL: no memory. */
lua_State *gpu_heap_state(uint64_t limit_bytes, struct heap **heap);

#endif
