/* Check mode of devices that cannot see what kernels access: the bytes that a launch does not
 * declare as written are hashed before and after it, and a difference fails it.
 *
 *   verify.c         one launch: what to hash, in which order, and what came out
 *   verify_memory.c  what memory there is, and of which part the hashes are known
 *   verify_device.c  the kernels that hash, their memory on the device, waiting
 *   verify_find.c    a difference: where it is, and its text
 *
 * A chunk of VERIFY_CHUNK_BYTES has a hash of 8 bytes in a table that each slab gets beside it. The
 * hashes behind one launch are those before the next: only what copies, fills and declared writes
 * have changed is hashed anew. Chunks of which a launch may write a part get a hash of the rest,
 * for that launch alone.
 *
 * The hash of a chunk is the sum of one number for each word, which has the word's place in it and
 * can be computed back (gpu_verify_mix). So where one word alone has changed, the hash from before
 * says which, and what it was. */
#ifndef GPU_EXECUTOR_VERIFY_H
#define GPU_EXECUTOR_VERIFY_H

#include "executor/executor.h"

#define VERIFY_CHUNK_BYTES 64u
#define VERIFY_CHUNK_WORDS (VERIFY_CHUNK_BYTES / 4u)
#define VERIFY_GAP_BYTES 4096u /* watched before and behind each block, where nothing else is */
#define VERIFY_LABEL_BYTES 64u

struct verify_slab {
    uint64_t address, bytes;
    struct backend_slab *table; /* owned; NULL: not made yet */
    uint64_t table_address;
};

/* A block of the script's; a freed one is kept until its addresses are another's. */
struct verify_block {
    uint64_t address, bytes, number;
    uint64_t begin, end;             /* of what is hashed, itself and around; equal: nothing yet */
    uint64_t dirty_begin, dirty_end; /* of that, what the table does not know */
    bool is_freed;
    char label[VERIFY_LABEL_BYTES];
};

/* Bytes to hash, as the kernels take them. */
struct verify_span {
    uint64_t begin, end;
    uint64_t table; /* where the hash of its first chunk is */
    uint64_t chunk; /* chunks of the spans in front of it */
};

struct verify_spans {
    struct verify_span *list; /* owned */
    uint32_t *blocks;         /* owned: whose each is */
    uint32_t count, capacity;
    uint64_t chunk_count;
};

struct verify_range {
    uint64_t begin, end;
};

struct executor_verify {
    /* verify_memory.c: both by address */
    struct verify_slab *slabs; /* owned */
    uint32_t slab_count, slab_capacity;
    struct verify_block *blocks; /* owned; none overlap */
    uint32_t block_count, block_capacity;
    bool has_failed; /* no host memory for what has to be known: launches fail */

    /* for messages */
    struct executor_table kernels; /* char *, owned: their names */

    /* verify_device.c */
    struct backend_module *module;
    struct backend_kernel *take, *look;
    struct backend_event *event;
    struct backend_slab *scratch;
    uint64_t scratch_address, scratch_bytes;
    uint8_t *staging; /* owned */
    uint64_t staging_bytes;

    /* of the launch at hand */
    struct verify_range *writes; /* owned: declared, by address, none overlap */
    uint32_t write_count, write_capacity;
    struct verify_spans takes, looks;
    uint32_t edge_count;
};

/* A span whose hash is for this launch alone: `table` is an offset until there is room for it. */
#define VERIFY_EDGE (UINT64_C(1) << 63)

/* One more of a growing list; false: no memory. */
bool gpu_verify_grow(void *list, uint32_t count, uint32_t *capacity, size_t item_bytes);

/* ---- verify_memory.c ---- */
/* The slab that has the address; NULL: none that is known. */
struct verify_slab *gpu_verify_slab_of(const struct executor_verify *verify, uint64_t address);
/* Sets what is watched of and around each block, and what of it has to be hashed anew. */
void gpu_verify_watch(struct executor_verify *verify);
/* Nothing is known of what any memory holds. */
void gpu_verify_forget(struct executor_verify *verify);
/* The launch is over and good: the table knows all, but for what was declared as written. */
void gpu_verify_settle(struct executor_verify *verify);

/* ---- verify_device.c ---- */
gpulua_status gpu_verify_tables_make(struct wire_executor *executor, struct backend_error *error);
/* The launch between the hashes, on its stream, and the wait for it all. `*changed`: number of the
 * first chunk of `looks` that is not as it was, UINT64_MAX: none. */
gpulua_status gpu_verify_run(struct wire_executor *executor, const struct backend_launch *launch,
                             uint64_t *changed, struct backend_error *error);
/* Reads device memory; nothing else is under way. */
gpulua_status gpu_verify_read(struct wire_executor *executor, const struct backend_launch *launch,
                              void *to, uint64_t address, uint64_t bytes,
                              struct backend_error *error);
/* The number of the word at `place` of its chunk, and back. */
uint64_t gpu_verify_mix(uint32_t place, uint32_t word);
uint64_t gpu_verify_unmix(uint64_t number);

/* ---- verify_find.c ---- */
/* The error of a launch that has changed that chunk. */
gpulua_status gpu_verify_find(struct wire_executor *executor, const struct wire_record *record,
                              const struct backend_launch *launch, uint64_t changed,
                              struct backend_error *error);

#endif
