/* Command records: everything the device does, as plain data.
 *
 * The script side builds a record in scratch and publishes it whole; the executor consumes records
 * in order. A record is
 *
 *     struct wire_record | wait_count * struct wire_wait | payload
 *
 * padded to 16 bytes, at most WIRE_RECORD_BYTES_MAX long. Larger data goes by reference into the
 * arena. Handles (module, kernel, slab, stream slot) are chosen by the script side and are small
 * integers that index the executor's tables.
 *
 * Two kinds of operation. Work belongs to a stream: it carries (stream, seq) and is over when the
 * stream's word in the completion page has reached seq. A request belongs to no stream: it carries
 * a request number in seq, and a reply with that number comes back, in any order.
 *
 * Failures. Every work record names the operations whose output it reads (WIRE_WAIT_DEPENDS). The
 * executor skips a record one of whose dependencies it knows to have failed, and one flagged
 * WIRE_FLAG_SKIP; it completes skipped records in order and reports nothing for them, because the
 * script side draws the same conclusion from the same dependencies. */
#ifndef GPU_WIRE_RECORD_H
#define GPU_WIRE_RECORD_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define WIRE_RECORD_BYTES_MAX (32u * 1024u)
#define WIRE_STREAMS_MAX 512u /* stream slots; slot 0 is the first task stream */
#define WIRE_WAITS_MAX 255u
#define WIRE_POISON_BYTE 0xDB /* what freed memory is filled with that is watched */

/* clang-format off */
/* Opcodes: X(name, is it stream work) */
#define WIRE_OPCODE_TABLE(X)                                                                                          \
    X(NOP, 0)             /* nothing; ring padding and tests */                                                       \
    X(OPEN, 0)            /* request: open the device; payload: text options; reply: wire_device_facts */             \
    X(ARENA_REGISTER, 0)  /* u.arena: pin a chunk of the arena; no reply, failing is not an error */                   \
    X(SLAB_CREATE, 0)     /* request: object = slab number, u.slab.bytes; reply: status only */                       \
    X(SLAB_DESTROY, 0)    /* object; the script side has waited for every use; its number may be used again */        \
    X(POOL_ALLOC, 0)      /* request: object = slab number, u.slab.bytes, stream = slot: from the driver's pool, for   \
                             work on the stream from here on; reply: status only; ended by SLAB_DESTROY */            \
    X(SLAB_ADOPT, 0)      /* request: object = slab number, u.foreign.address and bytes: memory of this process that   \
                             somebody else owns is that slab until SLAB_DESTROY. Inline alone; reply: status only */  \
    X(SLAB_FIND, 0)       /* request: object = slab number, or 0: the one that has any of u.foreign's bytes. Inline    \
                             alone; reply: wire_slab_facts */                                                         \
    X(POOL_TRIM, 0)       /* the pool gives back to the system what it keeps */                                       \
    X(STREAM_CREATE, 0)   /* stream = slot, u.stream; no reply: failure fails the work put on it */                    \
    X(STREAM_DESTROY, 0)  /* stream = slot; after all its work */                                                     \
    X(STREAM_NATIVE, 0)   /* request: stream = slot; inline alone; reply: wire_stream_facts */                        \
    X(CAPTURE_BEGIN, 0)   /* request: u.capture.stream, one of somebody else's or one of ours as the driver knows    \
                             it, and its mode: the host captures it. Inline alone, as the next two */                 \
    X(CAPTURE_LOOK, 0)    /* request: u.capture.stream; reply: wire_capture_facts */                                  \
    X(CAPTURE_END, 0)     /* request: u.capture.stream; reply: wire_capture_facts */                                  \
    X(STREAM_GIVE, 0)     /* request: stream = slot, u.foreign.seq and stream: that stream of somebody else's goes on  \
                             when (slot, seq) is over. Inline alone; reply: status only */                            \
    X(MODULE_COMPILE, 0)  /* request: object = module, u.module (source in arena), payload: text options,             \
                             those of backend_source, and a line "source NAME": the source's name for                 \
                             messages; reply: the module's description */                                             \
    X(MODULE_LOAD, 0)     /* request: object = module, u.module (PTX, cubin in arena); reply: description */          \
    X(MODULE_LIBRARY, 0)  /* request: object = module, payload: a library's name, and behind a line break text         \
                             options; reply: description. Its calls are the module's kernels */                       \
    X(MODULE_UNLOAD, 0)   /* object = module; its kernels go with it */                                               \
    X(KERNEL_GET, 0)      /* request: object = kernel, u.kernel.module, payload: name; reply: wire_kernel_facts */    \
    X(GLOBAL_GET, 0)      /* request: object = slab number for the variable, u.kernel.module, payload: name;          \
                             reply: wire_global_facts; the variable then is that slab */                              \
    X(MEMORY_INFO, 0)     /* request: reply: wire_memory_facts */                                                     \
    X(DESCRIBE, 0)        /* request: reply: text, see describe in backend.h */                                       \
    X(FORGET_FAILURES, 0) /* u.failures.count: the script has seen that many failures; later records carry SKIP */    \
    X(BLOCK_CREATE, 0)    /* u.block, payload: its label; check mode only: what memory there is, in order with the     \
                             work that uses it */                                                                     \
    X(BLOCK_WRITTEN, 0)   /* u.block: check mode only: somebody else may write these bytes, and none of them count as  \
                             never written */                                                                         \
    X(BLOCK_FREE, 0)      /* u.block, payload: where, or "": the script has freed it; it may be in use */              \
    X(BLOCK_OVER, 0)      /* u.block: freed, and every use of it is over: its memory may become another's */           \
    X(ASK, 0)             /* check mode only: the script waits for (stream, seq); seq 0: for any work. Until then     \
                             the device need not do any */                                                            \
    X(GRAPH_BEGIN, 0)     /* object = graph number, u.graph: its nodes follow, each a record of work with             \
                             WIRE_FLAG_NODE, and then GRAPH_END. No reply: failing fails GRAPH_END */                 \
    X(GRAPH_END, 0)       /* request: object = graph number; the graph can be launched */                             \
    X(GRAPH_DESTROY, 0)   /* object = graph number; launches of it may be in flight. Its number may be used again */  \
    X(CLOSE, 0)           /* request: finish all work, free everything, then the executor ends */                     \
    X(TRACE_FLUSH, 0)     /* request: every time of what is over is told before the answer; reply: status only */         \
    X(LABEL, 0)           /* object = a label's number, from 1; payload: its text. For ranges (ranges/ranges.h) */     \
    X(LAUNCH, 1)          /* object = kernel, u.launch; payload: arguments, reloc_count uint16 offsets, then, at a     \
                             multiple of 8, use_count struct wire_use (check mode only) */                            \
    X(COPY, 1)            /* u.copy: device to device */                                                              \
    X(UPLOAD, 1)          /* u.copy: src is an arena offset */                                                        \
    X(DOWNLOAD, 1)        /* u.copy: dst is an arena offset */                                                        \
    X(FILL, 1)            /* u.fill */                                                                                \
    X(MARK, 1)            /* nothing but its waits: stream:wait, stream:mark */                                       \
    X(GRAPH_LAUNCH, 1)    /* object = graph number */                                                                 \
    X(GRAPH_UPLOAD, 1)    /* object = graph number: what its first launch would do beside launching */                \
    X(CONTROL, 1)         /* of a graph alone: a conditional node, u.control. The nodes of its first body follow, and  \
                             BODY_END, and so on for each body. In a body nodes are counted from 0 again: what their   \
                             waits name are nodes of that body */                                                     \
    X(BODY_END, 1)        /* of a graph alone: no more nodes for the body at hand. Numbered as a node, but none */     \
    X(STREAM_TAKE, 1)     /* u.foreign.stream: behind all that is on that stream of somebody else's. Inline alone */
/* clang-format on */

enum wire_opcode {
#define X(name, is_work) WIRE_OP_##name,
    WIRE_OPCODE_TABLE(X)
#undef X
        WIRE_OPCODE_COUNT
};

/* A device address on the wire: slab number in the upper 20 bits, byte offset in the lower 44. 0 is
 * NULL; slab numbers start at 1. */
#define WIRE_SLAB_SHIFT 44
#define WIRE_SLABS_MAX ((1u << 20) - 1u)
static inline uint64_t gpu_wire_address(uint32_t slab, uint64_t byte_offset) {
    return ((uint64_t)slab << WIRE_SLAB_SHIFT) | byte_offset;
}
static inline uint32_t gpu_wire_address_slab(uint64_t address) {
    return (uint32_t)(address >> WIRE_SLAB_SHIFT);
}
static inline uint64_t gpu_wire_address_offset(uint64_t address) {
    return address & ((UINT64_C(1) << WIRE_SLAB_SHIFT) - 1);
}

enum {
    WIRE_FLAG_SKIP = 1,  /* do not run; complete in order (the script knows that an input failed) */
    WIRE_FLAG_NODE = 2,  /* of a graph: not done now. seq is gpu_wire_node_seq, the stream means
                            nothing, and each wait names in its seq a node that goes before. Behind
                            the graph's end: what a node that is in no body does in launches to
                            come, and the node in seq does not count those in bodies */
    WIRE_FLAG_FAULT = 4, /* tests: the device is lost here, as by a fault of the work itself */
    WIRE_FLAG_DIE = 8,   /* tests: and here its process is gone, if it has one */
    WIRE_FLAG_AHEAD = 16, /* a stream, module or kernel, told to a spare before its turn: nothing is
                             answered. Asked for when it has taken over, it is there already */
    WIRE_FLAG_UNHELD = 32, /* nobody has a handle on it: what marks its end may come later */
    WIRE_FLAG_COVERS = 64, /* whoever waits for the one before it on its stream may wait for it */
    WIRE_FLAGS_REPLAY = WIRE_FLAG_UNHELD | WIRE_FLAG_COVERS, /* one of many that count as one */
    WIRE_WAIT_ORDER = 1, /* hazard on another stream: do not start before (stream, seq) is over */
    WIRE_WAIT_DEPENDS =
        2, /* reads its output: do not run if it failed; alone it orders nothing (same stream) */
};

/* Conditional nodes (CONTROL). */
enum wire_control_kind {
    WIRE_CONTROL_IF,    /* the first body unless the value is 0, else the second one, if there is */
    WIRE_CONTROL_WHILE, /* the body again and again, until the value is 0 in front of it */
    WIRE_CONTROL_SWITCH /* the n-th body for the value n, from 1; none for any other */
};
#define WIRE_CONTROL_BODIES_MAX 64u /* fewer than 128: so the sign of small values is no matter */
#define WIRE_CONTROL_DEPTH_MAX 16u  /* bodies within bodies */

/* Which body is done for a value of elem_bytes at `value`, from 0; body_count: none. */
static inline uint32_t gpu_wire_control_choose(uint32_t kind, uint32_t body_count,
                                               const void *value, uint32_t elem_bytes) {
    const unsigned char *bytes = (const unsigned char *)value;
    uint64_t number = 0;
    for (uint32_t i = elem_bytes; i > 0; i--) {
        number = number << 8 | bytes[i - 1];
    }
    if (kind == WIRE_CONTROL_SWITCH) {
        return number >= 1 && number <= body_count ? (uint32_t)number - 1 : body_count;
    }
    return number != 0 ? 0 : kind == WIRE_CONTROL_IF ? 1 : body_count;
}

/* How a capture of the host's concerns other calls of the driver, and how it is. */
enum wire_capture_mode { WIRE_CAPTURE_GLOBAL, WIRE_CAPTURE_THREAD_LOCAL, WIRE_CAPTURE_RELAXED };
enum wire_capture_state { WIRE_CAPTURE_NONE, WIRE_CAPTURE_ACTIVE, WIRE_CAPTURE_INVALIDATED };

/* Nodes of a graph have numbers from 0; what a node waits for has a lower one. */
static inline uint64_t gpu_wire_node_seq(uint32_t graph, uint32_t node) {
    return (uint64_t)graph << 32 | node;
}

struct wire_wait {
    uint32_t stream; /* slot */
    uint32_t flags;
    uint64_t seq;
};

/* What a launch declares that it does with a range of memory. */
struct wire_use {
    uint64_t address; /* wire address */
    uint64_t bytes;
    uint32_t access; /* WIRE_USE_READ, WIRE_USE_WRITE: written, and not read before; or both */
    uint16_t param;  /* of the kernel, from 0 */
    uint16_t part;   /* among all of its parameters' parts, from 0 */
    char name[48];   /* "x", of a part of a structure "p.x"; "" if unknown */
};
enum { WIRE_USE_READ = 1, WIRE_USE_WRITE = 2 };

struct wire_record {
    uint32_t length_bytes; /* all of it, a multiple of 16 */
    uint8_t opcode;
    uint8_t flags;
    uint8_t wait_count;
    uint8_t reserved;
    uint32_t stream; /* slot */
    uint32_t object; /* kernel, module or slab */
    uint64_t seq;    /* position on the stream, from 1; or request number, from 1 */
    union {
        struct {
            uint32_t grid[3];
            uint16_t block[3];
            uint16_t reloc_count; /* arguments that are wire addresses: the executor replaces them
                                     in place */
            uint32_t shared_bytes;
            uint32_t args_bytes; /* laid out as a C struct of the parameters */
            uint16_t use_count;
            /* Calls a library: what that puts on the device follows from the arguments, so a node
             * of a graph does not get others. */
            uint16_t is_library;
        } launch;
        struct {
            uint64_t dst, src; /* wire address, or arena offset on the host's side */
            uint64_t bytes;
        } copy;
        struct {
            uint64_t dst; /* wire address */
            uint64_t elem_count;
            uint64_t pattern[2]; /* one element, little endian */
            uint32_t elem_bytes; /* 1, 2, 4, 8 or 16 */
        } fill;
        struct {
            uint64_t after_ns; /* of a spare, on the monotonic clock: not before that or its turn */
        } open;
        struct {
            uint64_t byte_offset, bytes;
        } arena;
        struct {
            uint64_t address; /* wire address */
            uint64_t bytes;
            uint64_t number;    /* of the allocation: from 1, never reused */
            uint8_t is_scratch; /* a graph's temporary: no launch finds what another left */
        } block;
        struct {
            uint64_t bytes;
        } slab;
        struct {
            uint64_t address, bytes; /* as this process sees it */
            uint64_t stream;         /* the driver's handle */
            uint64_t seq;
        } foreign;
        struct {
            uint64_t stream;     /* the driver's handle */
            uint32_t mode;       /* enum wire_capture_mode */
            uint32_t is_dropped; /* CAPTURE_END: nobody wants the graph */
            uint64_t seq; /* CAPTURE_LOOK: can that be waited for, on this stream; 0: no matter */
        } capture;
        struct {
            int32_t priority;    /* CUDA's: lower runs first, 0 is the default */
            uint32_t is_foreign; /* the host's, that the device was opened with */
            uint64_t number;     /* never reused */
        } stream;
        struct {
            uint64_t arena_offset, bytes; /* source text or image */
            uint64_t number;              /* never reused */
        } module;
        struct {
            uint32_t module;
        } kernel;
        struct {
            uint64_t count;
        } failures;
        struct {
            uint32_t node_count;    /* with those of bodies, and the ends of bodies */
            uint32_t control_count; /* conditional nodes among them */
        } graph;
        struct {
            uint64_t address; /* wire address of the value */
            uint32_t kind;    /* enum wire_control_kind */
            uint32_t elem_bytes, body_count;
        } control;
        /* Of work that is not in a graph: behind all that the others have of it. */
        struct {
            uint64_t theirs[4];
            uint32_t theirs_too;
            uint32_t label; /* its number; 0: nobody asks for ranges */
        } named;
    } u;
};
static_assert(sizeof(struct wire_record) == 64, "one cache line");
static_assert(offsetof(struct wire_record, u.named.label) >=
                      offsetof(struct wire_record, u.launch.is_library) + sizeof(uint16_t) &&
                  offsetof(struct wire_record, u.named.label) >=
                      offsetof(struct wire_record, u.fill.elem_bytes) + sizeof(uint32_t),
              "behind the others");
#define WIRE_LABEL_BYTES 256u /* of a text, with its NUL */
static_assert(sizeof(struct wire_wait) == 16, "keeps the payload aligned");

/* The bytes after which a fill's element repeats itself: devices have a command for each, so a node
 * of a graph can get another element of the same period, and of no other. */
static inline uint32_t gpu_wire_fill_period(const void *element, uint32_t elem_bytes) {
    const unsigned char *bytes = element;
    uint32_t period = elem_bytes;
    while (period > 1 && memcmp(bytes, bytes + period / 2, period / 2) == 0) {
        period /= 2;
    }
    return period;
}

static inline struct wire_wait *gpu_wire_record_waits(const struct wire_record *record) {
    return (struct wire_wait *)(uintptr_t)(record + 1);
}
static inline void *gpu_wire_record_payload(const struct wire_record *record) {
    return gpu_wire_record_waits(record) + record->wait_count;
}
/* Of a record that is long enough for its waits. */
static inline uint32_t gpu_wire_record_payload_bytes(const struct wire_record *record) {
    return record->length_bytes - (uint32_t)sizeof *record -
           record->wait_count * (uint32_t)sizeof(struct wire_wait);
}
/* Where the uses of a launch begin in its payload. */
static inline uint32_t gpu_wire_launch_uses_offset(uint32_t args_bytes, uint32_t reloc_count) {
    return (args_bytes + reloc_count * (uint32_t)sizeof(uint16_t) + 7u) & ~7u;
}

/* Replies, in the other direction, through the reply ring. Padded to 16 bytes; text is
 * NUL-terminated. */
enum wire_reply_kind {
    WIRE_REPLY_RESULT = 1,  /* of request `seq`; status 0 and a body, or a status and a text */
    WIRE_REPLY_FAILURE = 2, /* work (stream, seq) failed. Published before its word moves */
    WIRE_REPLY_LOST =
        3, /* the device faulted for good: everything not over is lost; text says why */
    WIRE_REPLY_LOG = 4, /* a line for the host's log */
    WIRE_REPLY_RAN = 5, /* check mode: work (stream, seq) has been done; body: struct wire_point of
                           what could  have been done then, itself among it, by slot */
    WIRE_REPLY_TOUCHED = 7, /* check mode: what the launch (stream, seq), or one of its nodes, has
                               done to a variable, whose name is the text; body: struct
                               wire_touched. Published before its word moves */
    WIRE_REPLY_TIMES = 6 /* traced: when work was done; body: struct wire_times, which may tell of
                            one piece of work several times: of parts of it */
};

struct wire_reply {
    uint32_t length_bytes; /* all of it, a multiple of 16 */
    uint16_t kind;
    uint16_t status; /* gpulua_status */
    uint32_t stream;
    int32_t driver_code; /* or 0 */
    uint64_t seq;
    uint32_t text_bytes; /* text behind the header, without its NUL; 0: none */
    uint32_t body_bytes; /* binary behind the text (at the next multiple of 16); 0: none */
};
static_assert(sizeof(struct wire_reply) == 32, "layout");

/* A longer log or description is cut and says so. */
#define WIRE_REPLY_TEXT_BYTES_MAX (48u * 1024u)

static inline const char *gpu_wire_reply_text(const struct wire_reply *reply) {
    return reply->text_bytes ? (const char *)(reply + 1) : "";
}
static inline const void *gpu_wire_reply_body(const struct wire_reply *reply) {
    return (const char *)(reply + 1) +
           ((reply->text_bytes ? reply->text_bytes + 1u + 15u : 0u) & ~15u);
}

/* Bodies of replies. */
struct wire_point {
    uint64_t seq;
    uint32_t stream;
    uint32_t reserved;
};

#define WIRE_PLACE_NAME_BYTES 256u
#define WIRE_PLACES_MAX 2u

/* Who did something in a kernel, and where in its source; texts with their NULs. */
struct wire_place {
    uint32_t block[3], thread[3];
    uint32_t line, caller_line; /* 0: not known; not in a function that the kernel calls */
    char source[WIRE_PLACE_NAME_BYTES], caller[WIRE_PLACE_NAME_BYTES];
};

/* Of FAILURE, where it is known: which node of the graph failed, counted as in wire_times; behind
 * it, place_count struct wire_place: what failed, and of a race what it is in a race with. */
struct wire_failed {
    uint32_t node, place_count, reserved[2];
};

/* Of MODULE_COMPILE. */
#define WIRE_NOT_KEPT_BYTES 240u
struct wire_compiled {
    int64_t took_ns;                    /* the compiler, or the cache */
    uint32_t was_cached, reserved;      /* no compiler has run, the cache had it */
    char not_kept[WIRE_NOT_KEPT_BYTES]; /* why the cache has not taken it; "": it has */
};

/* In `node`, instead of a node: so many pieces of work, which may be none, are not told of by node.
 */
#define WIRE_NODES_MISSING UINT32_C(0x80000000)

/* On the monotonic clock of the host; 0 to 0: not known. `node`: of the graph that was launched,
 * which node's work it was, counted from 1; 0: all of the operation's, or nobody can tell. */
struct wire_times {
    uint32_t stream, node;
    uint64_t seq;
    int64_t begin_ns, end_ns;
};

/* How it is known when work was done: not at all; by events, before the word of the work moves; by
 * the device, at some time (TRACE_FLUSH). */
enum wire_timing { WIRE_TIMING_NONE, WIRE_TIMING_EVENTS, WIRE_TIMING_LATE };

struct wire_device_facts {
    uint64_t memory_bytes;
    uint32_t multiprocessors;
    uint32_t compute; /* 90 for 9.0; 0 on the CPU device */
    uint32_t warp_threads;
    uint32_t block_threads_max;
    uint32_t block_max[3];
    uint32_t grid_max[3];
    uint32_t shared_bytes_max; /* dynamic and static per block, opt-in included */
    int32_t priority_lowest, priority_highest;
    uint32_t driver_version; /* 13000 for 13.0 */
    uint32_t timing;         /* enum wire_timing: of a traced device */
    uint32_t has_words;      /* 1: the device writes words behind its work, and is to */
    /* What a multiprocessor holds at once; 0: not known. */
    uint32_t mp_threads, mp_blocks, mp_registers, mp_shared_bytes;
    uint32_t shared_reserved_bytes; /* that the system takes of each block's */
    int32_t ordinal;                /* cuda:N */
    uint32_t graph_node_bytes; /* what a graph takes on the device for each of its nodes, about */
    char name[96];             /* "NVIDIA H200", the CPU's model name */
};

struct wire_kernel_facts {
    uint32_t block_threads_max;
    uint32_t shared_bytes_static;
    uint32_t registers;       /* per thread; 0 if unknown */
    uint32_t local_bytes;     /* per thread */
    uint32_t param_count;     /* UINT32_MAX: the driver does not say */
    uint32_t param_bytes[64]; /* sizes as the driver reports them, first 64 */
    uint32_t param_offset[64];
    uint32_t occupancy_blocks; /* resident blocks per multiprocessor at 256 threads, no dynamic
                                  shared memory */
};

struct wire_global_facts {
    uint64_t address, bytes; /* where the executor has it */
};

/* What a launch has done to bytes of a variable of its module. */
struct wire_touch {
    uint64_t begin, end;
    uint32_t access; /* WIRE_USE_READ, WIRE_USE_WRITE, or both; WIRE_USE_ATOMIC besides: by atomic
                        operations alone */
    uint32_t reserved;
};
enum { WIRE_USE_ATOMIC = 4, WIRE_TOUCHES_MAX = 1024 };
/* As many of these follow it as there is room for. */
struct wire_touched {
    uint64_t address; /* as in wire_global_facts */
    uint32_t module, reserved;
};

struct wire_slab_facts {
    uint64_t address, bytes; /* where it begins for the device; with what lies before `begin` */
    uint64_t begin;          /* offset of its first byte: adopted memory begins anywhere */
    uint32_t slab;           /* 0: there is none */
    uint32_t reserved;
};

struct wire_stream_facts {
    uint64_t native; /* the driver's handle */
};

struct wire_capture_facts {
    uint64_t graph;   /* the driver's handle; 0: none */
    uint32_t state;   /* enum wire_capture_state */
    uint32_t is_owed; /* the event behind what was asked about, for as long as that lasts */
};

struct wire_memory_facts {
    uint64_t bytes_free, bytes_total;
};

#endif
