/* The two memories of a link: the page with its rings behind it, and the arena. */
#ifndef GPU_WIRE_MEMORY_H
#define GPU_WIRE_MEMORY_H

#include <stdint.h>

#include "wire/link.h"
#include "wire/ring.h"

#define WIRE_PAGE_BYTES ((sizeof(struct wire_page) + 4095u) & ~(uint64_t)4095u)
#define WIRE_ARENA_BYTES_MIN (4 * WIRE_ARENA_CHUNK_BYTES) /* below this a link is of no use */

/* Bytes of the page and both rings. */
uint64_t gpu_wire_page_span(uint32_t command_bytes, uint32_t reply_bytes);

/* Maps a fresh page, its rings' sizes filled in; with `fd` in a memfd that another process can map
 * (owned by the caller), else private to this process. NULL: `error` filled. */
struct wire_page *gpu_wire_page_create(int *fd, struct wire_error *error);
void gpu_wire_page_destroy(struct wire_page *page); /* NULL is fine */

/* Reserves the arena, at most `bytes_max`; `fd` as above. Halves what it asks for until the system
 * grants it: address space may be limited. */
uint8_t *gpu_wire_arena_create(int *fd, uint64_t bytes_max, uint64_t *arena_bytes,
                               struct wire_error *error);
void gpu_wire_arena_destroy(uint8_t *arena, uint64_t arena_bytes); /* NULL is fine */

/* The other side: maps what gpu_wire_page_create and gpu_wire_arena_create made, checked against
 * the size of the file and the magic. NULL: `error` filled. */
struct wire_page *gpu_wire_page_map(int fd, struct wire_error *error);
uint8_t *gpu_wire_arena_map(int fd, uint64_t arena_bytes, struct wire_error *error);

/* Brings the pages that lie wholly in there in at once, because one at a time, at the first touch
 * of each, they cost as much as the work on them. A wish: an older kernel does as before. */
void gpu_wire_memory_populate(void *base, uint64_t bytes);

/* One side's view of a ring of the page. */
void gpu_wire_ring_command(struct wire_ring *ring, struct wire_page *page);
void gpu_wire_ring_reply(struct wire_ring *ring, struct wire_page *page);

/* Formats into error->message and returns status. `error` may be NULL. */
gpulua_status gpu_wire_fail(struct wire_error *error, gpulua_status status, int32_t code,
                            const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
