/* Blocks: memory on the device, or pinned memory shared with the executor, with an identity and a
 * history of uses.
 *
 * A block is identified by device, epoch and allocation number (from 1, never reused). Refs of the
 * binding (buffers, views, slices) each retain their block and carry a byte range and a type. The
 * last release, or gpu_block_free, ends the block; its memory is reused only when every use of it
 * has finished on every stream. */
#ifndef GPU_RUNTIME_MEMORY_H
#define GPU_RUNTIME_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/device.h"
#include "runtime/op.h"
#include "runtime/resource.h"
#include "runtime/types.h"

struct gpu_block;

/* What a launch or a copy is given: a typed range of a block. Embedded in the binding's buffer
 * userdata. */
struct gpu_ref {
    struct gpu_block *block; /* retained by whoever owns the ref; NULL: closed */
    uint64_t byte_offset;
    uint64_t byte_count;
    enum gpu_type type;
};

/* Of device memory, when the device comes up again after a loss. */
enum gpu_keeping {
    GPU_KEEP_NOTHING, /* it is stale */
    GPU_KEEP_SPACE,   /* it is there, and what is in it is undefined */
    GPU_KEEP_PLACE,   /* the same, and reading it is refused until it is written */
    GPU_KEEP_CONTENT  /* it has what the script wrote last */
};
/* What is held. */
enum gpu_holding {
    GPU_HOLDS_BUFFER,
    GPU_HOLDS_HOST,      /* pinned memory of the host */
    GPU_HOLDS_POOL,      /* what the temporaries of a pool's graphs lie in */
    GPU_HOLDS_TEMPORARY, /* in a pool: no memory of its own */
    GPU_HOLDS_VARIABLE,  /* a module's: in the driver's memory */
    GPU_HOLDS_IMPORT,    /* another library's */
    GPU_HOLDS_GRAPH,     /* the nodes of a graph, estimated */
    GPU_HOLDS_OWN,       /* gpulua's: staging, images of modules, copies to restore from, reports */
    GPU_HOLDING_COUNT
};
struct gpu_memory_entry {
    enum gpu_holding kind;
    uint64_t number; /* of the block; of a graph, among the device's graphs. Never reused */
    char label[48];
    struct gpu_site site;  /* where the script asked for it, if that is known */
    uint64_t byte_count;   /* asked for */
    uint64_t memory_bytes; /* and what it takes with its alignment; 0: in somebody else's */
    int64_t age_ns;        /* -1: not known */
    bool is_host;
    bool is_freed; /* work in flight uses it still */
};
/* All of it, in no order, malloc'ed. OutOfMemory. Does not wait. */
gpulua_status gpu_device_memory_map(struct gpu_device *device, struct gpu_memory_entry **entries,
                                    uint32_t *count, struct gpu_error *error);

struct gpu_block_info {
    uint64_t byte_count; /* > 0 */
    enum gpu_keeping keeping;
    const char *label; /* or NULL */
    bool is_label_cut; /* it is the beginning of a longer one */
    bool is_host;      /* pinned host memory in the arena */
    bool is_hidden;    /* gpulua's own: check mode is not told of it */
    bool is_scratch;   /* of a temporary: a graph's launch has no history there */
    bool is_reserved;  /* gpu_memory_reserve has made room for it; used up by success and failure */
    struct gpu_memory *memory; /* NULL: the device's default. Not for host memory */
    struct gpu_stream
        *stream; /* of the allocation, where that is in the order of streams; or NULL */
    struct gpu_site site;
    /* A full collection of garbage that may hold memory: called with `caller` when memory is short,
     * before anything is said to fail. May release anything and create blocks. NULL: none. */
    void (*collect)(void *caller);
    void *caller;
};
/* OutOfBudget (fields filled; requested > limit in all, or it does not fit now), OutOfMemory. What
 * does not fit now is tried once more, when garbage is collected and what is freed but in use has
 * ended. Blocks for that, and to ask the executor (slab: only to grow). */
gpulua_status gpu_block_create(struct gpu_device *device, const struct gpu_block_info *info,
                               struct gpu_block **block, struct gpu_error *error);
struct gpu_block *gpu_block_retain(struct gpu_block *block);
void gpu_block_release(struct gpu_block *block);
/* A temporary without memory: nothing may use it but what gpu_temporary_use allows. Size and label
 * of `info` count. OutOfBudget: it would be too much by itself. */
gpulua_status gpu_block_create_temporary(struct gpu_device *device,
                                         const struct gpu_block_info *info,
                                         struct gpu_block **block, struct gpu_error *error);
/* From here on it is an ordinary block, with memory of its own. gpu_block_create's codes. */
gpulua_status gpu_block_settle(struct gpu_block *block, struct gpu_error *error);
/* The same from the owner's own calls, never from a finaliser: what nobody uses comes free at once.
 */
void gpu_block_close(struct gpu_block *block);
/* Ends the block for every ref: later use is UseAfterFree. Idempotent. */
void gpu_block_free(struct gpu_block *block);
/* Where the script is about to close or free it: for check mode, which names that line. */
void gpu_block_ends_at(struct gpu_block *block, const struct gpu_site *site);

/* "allocation 8 'x', made at main.lua:3", as far as it is known, into `text`, which is given back.
 */
#define GPU_BLOCK_NAME_BYTES 192u
const char *gpu_block_name(const struct gpu_block *block, char *text);

/* In this order: closed ref, closed device, lost device, earlier epoch, freed block. `what` names
 * the argument: "argument 2 (x) of kernel 'saxpy'". `device`: the device it must belong to, or
 * NULL. */
gpulua_status gpu_ref_check(const struct gpu_ref *ref, struct gpu_device *device, const char *what,
                            struct gpu_error *error);
/* The same behind a wait for work on it, which began when its device was in that epoch (0: there
 * was none): also DeviceLost if the device has come up again since, with what the block had before
 * or without it. Whoever asks has observed the loss. */
gpulua_status gpu_ref_check_since(const struct gpu_ref *ref, uint32_t epoch, const char *what,
                                  struct gpu_error *error);

/* Of a block whose content is kept: whether there is a copy of it, that the device may come up
 * again with; how often the script has written it; and that `bytes`, as many as the ref has, are in
 * it from here on. */
bool gpu_ref_is_durable(const struct gpu_ref *ref);
bool gpu_ref_has_copy(const struct gpu_ref *ref);
uint64_t gpu_ref_copy_version(const struct gpu_ref *ref);
void gpu_ref_keep(const struct gpu_ref *ref, const void *bytes);

/* Between threads, of a shared device: another handle of what `from` has at this moment (closed, if
 * that is), and the end of such a one. */
void gpu_ref_copy(struct gpu_device *device, const struct gpu_ref *from, struct gpu_ref *to);
void gpu_ref_close(struct gpu_device *device, struct gpu_ref *ref);

struct gpu_device *gpu_block_device(const struct gpu_block *block);
uint64_t gpu_block_number(const struct gpu_block *block);
/* Is its content built anew behind a loss, also when the caller has let go of it? */
bool gpu_block_is_rebuilt_for_others(const struct gpu_block *block);
/* The device's block of that number, retained; NULL: it is gone, or freed. */
struct gpu_block *gpu_device_find_block(struct gpu_device *device, uint64_t number);
uint64_t gpu_block_bytes(const struct gpu_block *block);
/* See struct gpu_observer; *NULL: none. `base`: which byte of it the block's first one is. */
void **gpu_block_shadow(struct gpu_block *block, uint64_t *base);
const char *gpu_block_label(const struct gpu_block *block); /* or "" */
/* What it was made for: graphs take no other in its place. */
void gpu_block_set_type(struct gpu_block *block, enum gpu_type type);
bool gpu_block_is_host(const struct gpu_block *block);
bool gpu_block_is_freed(const struct gpu_block *block);
/* Was it lost with a life of the device's that is over? */
bool gpu_block_is_stale(const struct gpu_block *block);
bool gpu_block_is_foreign(const struct gpu_block *block); /* see exchange.h */
bool gpu_block_is_read_only(const struct gpu_block *block);
/* Does it begin at a multiple? Up to 512 bytes: that is what blocks of our own are aligned to. */
bool gpu_ref_is_aligned(const struct gpu_ref *ref, uint64_t byte_count);
/* Can its uses be ordered by streams? Strict recorders refuse what cannot (StreamMisuse). */
bool gpu_block_is_trackable(const struct gpu_block *block);
struct gpu_memory *gpu_block_memory(const struct gpu_block *block); /* borrowed; NULL: external */
/* What a block of so many bytes takes: rounded. */
uint64_t gpu_block_granted_bytes(uint64_t byte_count);
/* What lies behind each block that has others beside it, so that in check mode an access past an
 * end hits none of them. No budget counts it. */
uint64_t gpu_block_gap_bytes(const struct gpu_device *device);
/* Host blocks: where its bytes are in this process. Wait for its uses first. */
void *gpu_block_host_bytes(const struct gpu_block *block);

/* Is everything over that touches (for_write) or writes these bytes? */
bool gpu_ref_is_idle(const struct gpu_ref *ref, bool for_write);
/* An op that must be over before the host may read (or, for_write, write) them: retained; NULL:
 * idle. Several may be needed: call again after that one is over. */
struct gpu_op *gpu_ref_pending(const struct gpu_ref *ref, bool for_write);
/* Has a failure left some of the bytes undefined? A copy of it goes to `error` (NULL: not wanted).
 * Polls the device if that is needed to know. Whoever asks has observed it. */
bool gpu_ref_failure(const struct gpu_ref *ref, struct gpu_error *error);
/* Host memory that the script has just written, in place, while nothing was pending there: what was
 * to be there before, and failed, is not asked for any more. */
void gpu_ref_overwritten(const struct gpu_ref *ref);

/* ---- staging: bounded, byte-accounted transfer memory in the arena ---- */

struct gpu_staging {
    uint8_t *bytes; /* in this process */
    uint64_t byte_count;
    uint64_t arena_offset;
    void *owner; /* private */
};
/* At most GPU_STAGING_CHUNK_BYTES at once: larger transfers go in pieces. Blocks while the bound is
 * reached. */
#define GPU_STAGING_CHUNK_BYTES (UINT64_C(1) << 24)
/* Would it be there at once, and leave room for one more of any size? Who holds it until something
 * is over that only a later turn of the loop sees asks first: those who cannot wait for such a turn
 * find room then. */
bool gpu_staging_has_room(struct gpu_device *device, uint64_t byte_count);
gpulua_status gpu_staging_acquire(struct gpu_device *device, uint64_t byte_count,
                                  struct gpu_staging *staging, struct gpu_error *error);
/* Gives it back. Work that was submitted with it may still be running: its memory waits for that.
 * Idempotent. */
void gpu_staging_release(struct gpu_device *device, struct gpu_staging *staging);

#endif
