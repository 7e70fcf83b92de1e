/* Which earlier work an operation has to wait for (hazards.c), and work that repeats itself
 * (repeat.c). */
#ifndef GPU_RUNTIME_HAZARDS_H
#define GPU_RUNTIME_HAZARDS_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/module.h"
#include "wire/record.h"

struct gpu_block;
struct gpu_device;
struct gpu_envelope;
struct gpu_graph;
struct gpu_stream;
struct gpu_submit;

/* A place in the order of work: over when the slot's word has reached seq. seq 0: nothing. */
struct gpu_point {
    uint32_t slot;
    uint64_t seq;
};

/* What an operation does to bytes of a block. */
struct gpu_use {
    struct gpu_block *block;
    uint64_t byte_begin, byte_end; /* in the block */
    uint8_t access;                /* enum gpu_access */
};

#define GPU_USES_MAX (2u * GPU_PARAMS_MAX + 1u)
struct gpu_waits {
    struct wire_wait items[WIRE_WAITS_MAX];
    uint32_t count;
    struct gpu_failure *failure; /* borrowed: an input is known to have failed */
    bool is_full;                /* some did not fit: put these behind a mark and ask again */
    bool last_depends;
    struct gpu_point last; /* the write that was looked at last: as a rule that of many uses */
    bool is_behind_over;   /* it reads what the device's newest operation wrote, which is over */
};
/* The waits, and room for the commit, made before anything is enqueued. False: no memory. */
bool gpu_hazards_find(struct gpu_stream *stream, const struct gpu_use *uses, uint32_t use_count,
                      struct gpu_waits *waits);
/* That was given the device as this. */
void gpu_hazards_commit(struct gpu_point point, const struct gpu_use *uses, uint32_t use_count);

/* ---- repeat.c ----
 *
 * A launch of a graph right behind one of the same graph, on the same stream, with nothing else of
 * the device's between them, waits for what that one waited for, and for that one; and what it does
 * to the history of its blocks is to raise a number. So, from the third on, neither takes the
 * longer the more the graph uses: the waits are those of the second, and the history is owed, until
 * somebody looks at one, or changes one.
 *
 * A fourth launch that nobody has a handle on, and for which nothing has to be looked at, differs
 * from the third by one number: the device is given it, and all that else is noted of it is owed,
 * its operation and its place in the flight ring, too, until anything else is asked of the device
 * (GPU_ENTER), or it says something. */
#define GPU_REPEATS_OWED_MAX 63u
struct gpu_repeat {
    const struct gpu_use *uses; /* borrowed: of the newest operation, if it launched a graph; NULL:
                                   it did not, or uses something else by now */
    uint32_t use_count;
    bool is_known; /* it was a second launch, or a later one; with these waits: */
    uint8_t wait_count;
    struct wire_wait waits[WIRE_WAITS_MAX]; /* seq 0: the launch before */
    bool is_owed;           /* the history's newest number is an older one than `point` */
    struct gpu_point point; /* of that launch */
    uint64_t stream_number;

    struct gpu_graph *graph; /* borrowed: a launch of it needs its number alone; NULL: of none */
    uint32_t owed_count;     /* such launches up to `point`; NULL above: 0 */
    uint64_t task;           /* whose they are, and where from: all of them the same */
    struct gpu_site site;
    const char *label; /* interned or static */
    struct {
        _Alignas(16) struct wire_record record;
        struct wire_wait wait; /* for the one before it, if anything of it is read */
    } next;
};
/* Is a launch of a graph that uses these a third one, or a later one? */
bool gpu_repeat_is(const struct gpu_stream *stream, const struct gpu_use *uses);
/* Its waits. */
void gpu_repeat_find(const struct gpu_stream *stream, struct gpu_waits *waits);
/* The device has been given it. */
void gpu_repeat_commit(struct gpu_stream *stream, const struct gpu_envelope *envelope,
                       uint64_t seq);
/* Is all else as it was at the third launch, so that the next one may be given by its number? */
bool gpu_repeat_may_owe(const struct gpu_graph *graph, const struct gpu_submit *submit);
/* From here on they are. Whatever begins with GPU_ENTER ends it, and each reply. */
void gpu_repeat_begin(struct gpu_graph *graph, const struct gpu_submit *submit);
/* One of these. False: it is not, and nothing has been done. */
bool gpu_repeat_again(struct gpu_graph *graph, const struct gpu_submit *submit);
/* What is owed of them is noted. */
void gpu_repeat_end(struct gpu_device *device);
/* Before a history is looked at: all of them are as new as can be. */
void gpu_repeat_settle(struct gpu_device *device);
/* The same before one is changed by somebody else, and before what the graph uses is: the next
 * launch finds its waits anew. */
void gpu_repeat_forget(struct gpu_device *device);

#endif
