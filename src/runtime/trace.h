/* What a traced device was given: each operation with when the script asked for it, when the device
 * did it, and when the script could know; what it used, what it waited for, and which line it was.
 *
 * One log for each traced device, which grows, up to a limit, and may outlive the device: it has
 * texts of its own. Times are ns of the monotonic clock. Everything here is for the device's owner
 * thread; of a shared device, for any: its log has a lock of its own, which is held for no longer
 * than a call. What is in the log stays where it is and as it is, but for rows of operations, which
 * are copied. */
#ifndef GPU_RUNTIME_TRACE_H
#define GPU_RUNTIME_TRACE_H

#include <stdbool.h>
#include <stdint.h>

/* Beyond that operations, and spans, are counted and not kept; about 300 bytes each. */
#define GPU_TRACE_OPS_MAX 2000000u

struct gpu_trace;
struct gpu_device;
struct gpu_envelope;
struct gpu_graph;
struct gpu_op;
struct gpu_param;
struct gpu_stats;
struct wire_record;
struct wire_times;

enum gpu_trace_kind {
    GPU_TRACE_LAUNCH,
    GPU_TRACE_LIBRARY,
    GPU_TRACE_COPY,
    GPU_TRACE_UPLOAD,
    GPU_TRACE_DOWNLOAD,
    GPU_TRACE_FILL,
    GPU_TRACE_MARK,
    GPU_TRACE_GRAPH,
    GPU_TRACE_KIND_COUNT
};
enum gpu_trace_outcome { GPU_TRACE_PENDING, GPU_TRACE_SUCCEEDED, GPU_TRACE_FAILED };

struct gpu_traced_op {
    uint64_t stream, seq;  /* the stream's number, and the place on it */
    uint32_t label;        /* text */
    uint32_t kernel;       /* see gpu_trace_kernel; 0: it launched none */
    uint32_t source;       /* text; 0: by no line of a script */
    uint32_t stream_label; /* text; 0: it has none */
    int32_t line;
    uint64_t task;              /* the number of the task that gave it; 0: none */
    int64_t asked_ns, given_ns; /* the call began; the device had its record */
    int64_t begun_ns, ended_ns; /* on the device; 0: not known */
    int64_t over_ns;            /* the script's side knew; 0: it has not yet */
    uint64_t bytes;             /* that it moved; of launches, that it declares to use */
    uint64_t held_bytes;        /* of the device, that the script had when it was given */
    uint64_t use_first, wait_first, arg_first;
    uint32_t use_count, wait_count;
    uint32_t form;      /* of the kernel, with its parameters; 0: its arguments are not known */
    uint32_t graph;     /* that it launched, among those of the log, from 1; 0: none */
    uint64_t node_last; /* row of the node that was timed last, counted from 1; 0: none */
    bool lacks_nodes;   /* not all that its nodes did is among them */
    uint32_t grid[3];
    uint16_t block[3];
    uint8_t kind, outcome;
    uint32_t seat;                 /* of a shared device: whose it is, from 1; 0: nobody's */
    uint32_t slot, next, previous; /* of this slot, counted from 1; 0: none */
};
struct gpu_traced_use {
    uint64_t block_number, byte_begin, byte_end;
    uint64_t address; /* of byte_begin, as arguments have it */
    uint32_t label;   /* text; 0: it has none */
    uint8_t access;   /* enum gpu_access */
    bool is_host, is_module;
};
/* What a node of a launched graph took, or a part of it. */
struct gpu_traced_node {
    uint64_t before; /* the row before of this launch, counted from 1; 0: none */
    uint64_t bytes;  /* that a copy or a fill moved */
    uint32_t node;   /* of the graph, counted from 0: of what is in a body, the conditional node */
    uint32_t label;  /* text */
    uint32_t kernel; /* see gpu_trace_kernel; 0: it is no launch */
    uint32_t source; /* text; 0: by no line of a script */
    int32_t line;
    int64_t begun_ns, ended_ns;
    uint8_t kind;
    bool is_in_body;
};
/* A fence: it started when that one was over. */
struct gpu_traced_wait {
    uint64_t op; /* which, counted from 1; 0: not in the log */
};

/* What a script did on the host's side. */
enum gpu_span_kind { GPU_SPAN_RUN, GPU_SPAN_WAIT, GPU_SPAN_RANGE };
struct gpu_traced_span {
    uint64_t task; /* its number; 0: outside tasks */
    int64_t begun_ns, ended_ns;
    uint64_t op;            /* of a wait: for which, counted from 1; 0: for none that is kept */
    uint32_t device;        /* in whose log that is, as the binding counts them */
    uint32_t label, source; /* texts; of RUN where the task was spawned, else which line it was */
    int32_t line;
    uint8_t kind;
};

struct gpu_trace *gpu_trace_create(const char *device_name, uint32_t ops_max);
struct gpu_trace *gpu_trace_retain(struct gpu_trace *trace);
void gpu_trace_release(struct gpu_trace *trace); /* NULL: nothing */
/* From here on several threads may have it, which nobody else knows yet. False: no memory. */
bool gpu_trace_share(struct gpu_trace *trace);

/* ---- noting; the device's own ---- */
void gpu_trace_note(struct gpu_trace *trace, const struct gpu_op *op,
                    const struct gpu_envelope *envelope, const struct wire_record *record);
void gpu_trace_note_times(struct gpu_trace *trace, const struct wire_times *times, uint32_t count);
void gpu_trace_note_end(struct gpu_trace *trace, const struct gpu_op *op);
/* Memory of the device that the script has got, or that it has given back. */
struct gpu_block;
void gpu_trace_note_memory(struct gpu_trace *trace, const struct gpu_block *block, bool is_begin);
void gpu_trace_forget_memory(struct gpu_trace *trace); /* it is all gone */
/* ns that the operation took on the device; -1: not known. */
int64_t gpu_trace_device_ns(const struct gpu_trace *trace, uint64_t op_number);

/* ---- spans, of a log that is no device's ---- */
/* A text of its own for the log; 0: "", or no memory. Beyond GPU_TRACE_TEXTS_MAX of them all others
 * are one. */
#define GPU_TRACE_TEXTS_MAX 262144u
uint32_t gpu_trace_keep_text(struct gpu_trace *trace, const char *text);
/* Is there room for one more span? What has none is counted. */
bool gpu_trace_has_span_room(struct gpu_trace *trace);
void gpu_trace_add_span(struct gpu_trace *trace, const struct gpu_traced_span *span);
uint64_t gpu_trace_span_count(const struct gpu_trace *trace);
const struct gpu_traced_span *gpu_trace_span(const struct gpu_trace *trace, uint64_t number);

/* ---- asking ---- */
/* Which row the operation has; 0: none. */
uint64_t gpu_trace_find(const struct gpu_trace *trace, uint64_t op_number);
const char *gpu_trace_device_name(const struct gpu_trace *trace);
uint64_t gpu_trace_count(const struct gpu_trace *trace);
uint64_t gpu_trace_dropped(const struct gpu_trace *trace);
/* A copy of that row, counted from 1, as it is now. */
void gpu_trace_op(const struct gpu_trace *trace, uint64_t number, struct gpu_traced_op *op);
const struct gpu_traced_use *gpu_trace_use(const struct gpu_trace *trace,
                                           const struct gpu_traced_op *op, uint32_t index);
/* The name, a text, and whether other kernels of the log, of other source, have it, too. */
uint32_t gpu_trace_kernel(const struct gpu_trace *trace, uint32_t kernel, bool *is_shared);
/* The parameters of the kernel that it launched, and where the argument for one of them is, in
 * byte_count bytes. NULL: there is none, or it is not known. */
const struct gpu_param *gpu_trace_param(const struct gpu_trace *trace,
                                        const struct gpu_traced_op *op, uint32_t index);
const uint8_t *gpu_trace_arg(const struct gpu_trace *trace, const struct gpu_traced_op *op,
                             const struct gpu_param *param);
const struct gpu_traced_wait *gpu_trace_wait(const struct gpu_trace *trace,
                                             const struct gpu_traced_op *op, uint32_t index);
/* The nodes of the launch that were timed, the last one first: op->node_last is one's row, and
 * `before` the next one's. */
const struct gpu_traced_node *gpu_trace_node(const struct gpu_trace *trace, uint64_t row);
/* Did it launch a graph with conditional nodes? */
bool gpu_trace_has_bodies(const struct gpu_trace *trace, const struct gpu_traced_op *op);
/* A copy of the newest launch of the graph that the device has ended; false: there is none. */
bool gpu_trace_newest_of(const struct gpu_trace *trace, const struct gpu_graph *graph,
                         struct gpu_traced_op *op);
const char *gpu_trace_text(const struct gpu_trace *trace, uint32_t number); /* "" for 0 */
uint32_t gpu_trace_text_count(const struct gpu_trace *trace);
void gpu_trace_note_compilations(struct gpu_trace *trace, const struct gpu_stats *stats);
/* The most that memory of that label, or made by that line, has taken; 0: there was none. */
uint64_t gpu_trace_peak_bytes(const struct gpu_trace *trace, uint32_t text);
/* What the device has counted, as of the operation that was given last. */
struct gpu_trace_counts {
    uint64_t waits_issued, waits_elided, bytes_live_max;
    uint64_t compilations, compile_ns, cache_hits;
};
struct gpu_trace_counts gpu_trace_counts(const struct gpu_trace *trace);
const char *gpu_trace_kind_name(enum gpu_trace_kind kind);

#endif
