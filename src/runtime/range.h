/* A two-level segregated-fit allocator of ranges in something that is not addressable here: device
 * slabs, the arena. Good fit in constant time, neighbours coalesce, all bookkeeping in host memory.
 * Source of the algorithm: Masmano, Ripoll, Crespo, Real: "TLSF: a new dynamic memory allocator for
 * real-time systems" (2004). */
#ifndef GPU_RUNTIME_RANGE_H
#define GPU_RUNTIME_RANGE_H

#include <stdbool.h>
#include <stdint.h>

#define GPU_RANGE_ALIGN_BYTES 512u /* every range starts and ends at a multiple */

struct gpu_range_node; /* one range, used or free; owned by the allocator */
struct gpu_range_allocator;

struct gpu_range {
    uint32_t region;      /* which region (slab number, arena chunk run) */
    uint64_t byte_offset; /* in it */
    uint64_t byte_count;  /* as rounded up */
    struct gpu_range_node *node;
};

struct gpu_range_allocator *gpu_range_allocator_create(void);
void gpu_range_allocator_destroy(struct gpu_range_allocator *allocator); /* NULL is fine */

/* A new region of space, at least GPU_RANGE_ALIGN_BYTES. `region` is any number that no other
 * region has (0 only if take_free is not used). False: no host memory. */
bool gpu_range_region_add(struct gpu_range_allocator *allocator, uint32_t region,
                          uint64_t byte_count);
/* Removes the smallest wholly free region from the allocator and returns it, with its bytes in
 * *byte_count; 0: none is wholly free. */
uint32_t gpu_range_region_take_free(struct gpu_range_allocator *allocator, uint64_t *byte_count);

/* The region at that place in the order of no meaning, with all its bytes; 0: there are no more. */
uint32_t gpu_range_region_at(const struct gpu_range_allocator *allocator, uint32_t place,
                             uint64_t *byte_count);

/* False: nothing fits (or no host memory for the bookkeeping). byte_count > 0. */
bool gpu_range_alloc(struct gpu_range_allocator *allocator, uint64_t byte_count,
                     struct gpu_range *range);
void gpu_range_free(struct gpu_range_allocator *allocator, const struct gpu_range *range);

uint64_t gpu_range_bytes_used(const struct gpu_range_allocator *allocator);
uint64_t gpu_range_bytes_total(const struct gpu_range_allocator *allocator);

#endif
