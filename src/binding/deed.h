/* What check mode keeps of an operation, and of who has used which bytes of a block. */
#ifndef GPU_BINDING_DEED_H
#define GPU_BINDING_DEED_H

#include "binding/clock.h"
#include "runtime/device.h"

struct deed_use {
    uint64_t block_number, byte_begin, byte_end, base;
    uint8_t access; /* enum gpu_access */
    bool is_private, is_variable, is_atomic;
    char label[32]; /* of the buffer, or the variable's name */
};

/* One operation, as it was submitted. */
struct deed {
    uint32_t refs;
    uint32_t strand;
    uint64_t time;       /* of the strand */
    struct clock *known; /* retained: what the strand knew then */
    char name[64];       /* "1.2#5": the fifth of the second task that the first one spawned */
    char label[64], source[64];
    int line;
    uint64_t stream, seq;
    bool is_script;              /* no operation: what the script itself does to a host buffer */
    struct gpu_seen_wait *waits; /* owned */
    uint32_t wait_count;
    uint32_t use_count;
    struct deed_use uses[];
};

/* NULL: no memory. Strand, time, known and name are the caller's to fill. */
struct deed *gpu_lua_deed_create(const struct gpu_submission *submission);
void gpu_lua_deed_use(struct deed_use *use, const struct gpu_seen_use *seen);
struct deed *gpu_lua_deed_retain(struct deed *deed);
void gpu_lua_deed_release(struct deed *deed); /* NULL is fine */
/* Was `earlier` known to the task of `later` when that was submitted? */
bool gpu_lua_deed_knew(const struct deed *later, const struct deed *earlier);

/* The uses of a block, by range: the newest write, and the newest read and the newest atomic
 * operation of each strand since. */
struct trail;

/* Calls visit for each earlier use that this one conflicts with, until that returns false. */
void gpu_lua_trail_look(const struct trail *trail, const struct deed_use *use,
                        bool (*visit)(void *user, struct deed *earlier, bool earlier_writes,
                                      uint64_t byte_begin, uint64_t byte_end),
                        void *user);
/* The same for every use of a range, whichever. */
void gpu_lua_trail_each(const struct trail *trail, uint64_t byte_begin, uint64_t byte_end,
                        void (*visit)(void *user, struct deed *deed), void *user);
/* *trail may be NULL: it is made. What one deed does to bytes in a row is one range; what has
 * followed it there already stays, and nothing there races with it. False: no memory. */
bool gpu_lua_trail_note(struct trail **trail, const struct deed_use *use, struct deed *deed);
void gpu_lua_trail_destroy(struct trail *trail);

#endif
