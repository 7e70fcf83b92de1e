/* What the files of runtime/graph share. */
#ifndef GPU_RUNTIME_GRAPH_STATE_H
#define GPU_RUNTIME_GRAPH_STATE_H

#include "runtime/flight.h"
#include "runtime/graph.h"
#include "runtime/report.h"
#include "runtime/state.h"

#define GPU_NODE_NONE GPU_INDEX_NONE

/* Bytes of a block that the same nodes have used. */
struct graph_range {
    uint64_t byte_begin, byte_end;
    uint32_t writer;   /* the newest, or GPU_NODE_NONE */
    uint32_t *readers; /* owned; since then */
    uint32_t reader_count, reader_capacity;
};

/* A block as a graph uses it. */
struct graph_track {
    struct gpu_block *block;    /* retained */
    struct graph_range *ranges; /* owned; by byte_begin, apart from each other */
    uint32_t range_count, range_capacity;
    struct gpu_use *uses; /* owned; of all nodes together, as one operation */
    uint32_t use_count, use_capacity;
    bool has_maybe; /* some have, or had, GPU_USE_MAYBE */
};

struct graph_edge {
    uint32_t from;
    uint32_t track;  /* the first one that is a reason */
    uint32_t via;    /* while it is sought: a node that `from` goes before, or GPU_NODE_NONE */
    uint8_t reasons; /* enum gpu_edge_reason */
    bool reads;      /* memory that `from` has written: a module's block is order alone */
};

/* Is `name` that label of a block, or what it was before it was cut? */
static inline bool gpu_label_is(const char *label, bool is_cut, const char *name) {
    char kept[GPU_BLOCK_LABEL_BYTES];
    bool is_name_cut = gpu_label_copy(kept, sizeof kept, name);
    return strcmp(label, kept) == 0 && (is_cut || !is_name_cut);
}

/* What a node was submitted with: enough to submit it again with something else in its place. */
struct graph_ref {
    struct gpu_ref ref; /* block: retained by its track; NULL: a scalar, or a NULL pointer */
    /* The buffer that stood here when the graph was captured: binds go by it. */
    const char *name;    /* interned, or "" */
    uint64_t origin;     /* its block's number */
    uint64_t byte_count; /* of all of it */
    enum gpu_type type;  /* of its elements; GPU_TYPE_COUNT: not known */
    uint64_t byte_begin; /* where what stands for it now begins in the ref's block */
    bool is_name_cut;    /* see gpu_label_is */
    bool is_staged;      /* memory that a write's data came to lie in: another one each time */
};

struct graph_control;

/* Nodes that report, by their number among those: what a node depends on of them, at most as many
 * as a kernel looks at. */
struct graph_needs {
    uint32_t count, reporters[GPU_REPORT_NEEDS_MAX];
};
struct graph_reporter {
    uint32_t node;
    struct gpu_report *report; /* borrowed: of the launch at hand */
};

struct graph_node {
    struct wire_record *record; /* in the body's memory; without waits */
    struct gpu_kernel *kernel;  /* retained by the body; NULL: no launch */
    const char *label;          /* interned */
    struct gpu_site site;
    uint32_t edge_first, edge_count; /* towards it */
    uint32_t use_first, use_count;
    uint32_t ref_first, ref_count; /* one for each parameter; of a fill its target; of a copy its
                                      target and its source */
    uint32_t number;               /* in its body, counting joins of the wire's, too */
    uint32_t reporter;             /* its number among those; GPU_NODE_NONE: it is none */
    uint32_t needs;                /* of the body's; GPU_NODE_NONE: none */
    struct graph_control *control; /* retained; NULL: it is no conditional node */
    uint64_t made_kinds[2];        /* as the device has it: gpu_graph_copy_kinds */
};

/* Memory that goes all at once. */
struct graph_chunk {
    struct graph_chunk *next;
    size_t used, capacity;
    _Alignas(16) uint8_t bytes[];
};

/* Whose a block is that was made while a graph was captured. An update gives out again what was
 * made for the same, and never what is another graph's. */
enum graph_made_for {
    GRAPH_MADE_FOR_SCRIPT, /* it asked for a buffer */
    GRAPH_MADE_FOR_LAUNCH, /* of a graph in the capture, instead of a temporary of that */
    GRAPH_MADE_FOR_OTHER,  /* that graph's own, which its nodes go on using */
};

/* Nodes and what orders them. */
struct graph_body {
    struct graph_node *nodes; /* owned, as all of these */
    uint32_t node_count, node_capacity;
    struct graph_chunk *chunks; /* of their records, the newest first */
    struct graph_edge *edges;
    uint32_t edge_count, edge_capacity;
    struct gpu_use *uses; /* of the nodes; blocks retained by the tracks */
    uint32_t use_count, use_capacity;
    uint32_t *use_tracks; /* of each use: its block's track */
    uint32_t use_track_capacity;
    struct graph_track *tracks;
    uint32_t track_count, track_capacity;
    struct gpu_index index;      /* of the tracks, by block */
    struct gpu_kernel **kernels; /* each retained */
    uint32_t kernel_count, kernel_capacity;
    struct graph_ref *refs; /* of the nodes, and behind `refs_taken` of the one that is to come */
    uint32_t ref_count, ref_capacity, refs_taken;
    struct gpu_kernel *next_kernel; /* of the one that is to come */
    struct gpu_block **made;        /* while it was captured, in order; each retained */
    uint32_t made_count, made_capacity;
    uint8_t *made_for; /* enum graph_made_for, of each */
    uint32_t made_for_capacity;
    bool has_temporaries; /* among them, or had: addresses are known when it has ended */
    struct graph_reporter *reporters;
    uint32_t reporter_count, reporter_capacity;
    struct graph_needs *needs; /* of the nodes that have any */
    uint32_t needs_count, needs_capacity;
    /* For the edges of the node at hand. */
    struct graph_edge *found;
    uint32_t found_count, found_capacity;
    uint32_t *marks, *stack; /* one for each node */
    uint32_t mark;
    uint32_t mark_capacity;
};

/* What the executor has of a graph. */
struct graph_made {
    uint32_t id;
    bool has_id, is_there, is_uploaded; /* or launched */
    bool is_being_sent;
    const struct gpu_seat *sender; /* then: by whom, of a shared device */
    uint64_t device_bytes;         /* reserved for it */
    uint64_t used_at;              /* launched or made: the device's graph_clock then */
    struct gpu_point last;         /* its newest launch or upload there; seq 0: none */
};

/* Beside GPU_READ_WRITE, of a conditional node: it may write or not, and that is all why what was
 * there before counts. Only within bodies. */
#define GPU_USE_MAYBE 4u
/* Of such a use in a track: a later node has written all of it, so what reads it behind that does
 * not depend on what was there before. Not of nodes. */
#define GPU_USE_SETTLED 8u
static inline bool gpu_use_reads(uint8_t access) {
    return (access & (GPU_READ | GPU_USE_MAYBE)) == GPU_READ;
}

/* Those of a launch. */
struct graph_uses {
    struct gpu_use *list; /* owned */
    uint32_t count;
    uint32_t lone_count; /* the first of them: of lone blocks that may be written or not. What was
                            there counts as soon as somebody else uses them */
    uint64_t noted;      /* where the flight ring has them, from 1; 0: nowhere */
};

struct gpu_graph {
    uint32_t refs;
    struct gpu_device *device;      /* retained */
    uint64_t number;                /* of the device's graphs, from 1 */
    struct gpu_graph *next, **link; /* all of the device */
    struct graph_made made;
    bool is_deferred, is_counted;
    const char *label;     /* interned, or "" */
    struct gpu_pool *pool; /* used */
    struct graph_body body;
    struct graph_uses uses;
    uint64_t replays, uploads;
    uint64_t version;                       /* how often it has been changed */
    uint64_t checked_version, checked_ends; /* its blocks were all there; the device's block_ends */
    uint32_t traced; /* its number in the device's log, with that version; 0: none */
    uint64_t traced_version;
    struct gpu_deferred release;
};

/* A node of a graph as it is to be. */
struct graph_patch {
    uint32_t node;
    struct wire_record *record; /* in the memory of the capture's body, as long as the node's;
                                   NULL: the command is the same, and the device is not told */
    const char *label;
    struct gpu_site site;
    uint32_t ref_first; /* in the capture's body; GPU_NODE_NONE: its refs are the same */
};

/* How far the capture of an update has done what the graph does; see follow.c. */
struct graph_follow {
    struct gpu_graph *graph; /* retained; NULL: it is no update */
    uint64_t version;        /* of the graph, when it began */
    bool is_on;
    uint32_t count;              /* nodes so far */
    struct graph_patch *patches; /* owned; by node */
    uint32_t patch_count, patch_capacity;
};

/* Of a conditional node: never changed, and shared by the graphs that have the node. */
struct graph_control {
    uint32_t refs;
    uint32_t height; /* bodies within bodies, with its own: from 1 */
    enum gpu_control_kind kind;
    uint32_t body_count;
    struct graph_body bodies[];
};

/* ---- body.c ---- */
/* Grows the array at *items so that one more fits. False: no memory. */
bool gpu_graph_grow_full(void **items, uint32_t *capacity, uint32_t count, size_t item_bytes);
static inline bool gpu_graph_grow(void **items, uint32_t *capacity, uint32_t count,
                                  size_t item_bytes) {
    return count < *capacity || gpu_graph_grow_full(items, capacity, count, item_bytes);
}
/* With its payload, in the body's memory, length_bytes not rounded. NULL: no memory. */
struct wire_record *gpu_graph_copy_record(struct graph_body *body, const struct wire_record *record,
                                          uint32_t payload_bytes);
/* The record is copied, with payload_bytes behind its header. False: no memory, and the body is
 * good for nothing more. */
bool gpu_graph_add(struct graph_body *body, const struct wire_record *record,
                   uint32_t payload_bytes, const char *label, const struct gpu_site *site,
                   const struct gpu_use *uses, uint32_t use_count);
/* With what the next node is submitted: its kernel (NULL: no launch), then its refs. */
bool gpu_graph_keep_kernel(struct graph_body *body, struct gpu_kernel *kernel);
bool gpu_graph_keep_ref(struct graph_body *body, const struct gpu_ref *ref); /* NULL: none */
/* The index of a block's track; some node uses it. */
uint32_t gpu_graph_find_track(const struct graph_body *body, const struct gpu_block *block);
void gpu_graph_body_finish(struct graph_body *body);

/* ---- edges.c ---- */
/* The edges towards node `node`, which is the newest, reduced: none of them follows from others.
 * Appends them, and then notes what the node uses. False: no memory. */
bool gpu_graph_connect(struct graph_body *body, uint32_t node);
/* Have nodes before written every byte of it? */
bool gpu_graph_is_written(const struct graph_track *track, const struct gpu_use *use);
void gpu_graph_track_finish(struct graph_track *track);

/* ---- reports.c ---- */
/* Does the node report, and what does it depend on that does? While its edges are found and not
 * reduced yet. False: no memory. */
bool gpu_graph_note_reports(struct graph_body *body, uint32_t node);
/* One for each node that reports, and in front of them, if there are several, one for all of them;
 * linked, for the caller to release. NULL: there is no such node. */
gpulua_status gpu_graph_take_reports(struct gpu_graph *graph, struct gpu_report **first,
                                     struct gpu_error *error);
/* The device's nodes get those taken, and what they depend on behind these waits. In scratch. */
gpulua_status gpu_graph_send_reports(struct gpu_graph *graph, const struct gpu_report *first,
                                     const struct gpu_waits *waits, struct gpu_error *error);

/* ---- temporary.c ---- */
/* Does it stand for `block` of the graph that is updated? */
static inline bool gpu_temporary_is(const struct gpu_block *block, const struct gpu_block *known) {
    return block == known || (block && block->twin && block->twin == known);
}
/* Is it in the list of what was made? */
bool gpu_graph_has_made(const struct graph_body *body, const struct gpu_block *block);
/* May the capture's nodes use a lone block as their own, whatever became of the device? */
bool gpu_temporary_is_lone_of(const struct gpu_block *block, const struct gpu_capture *capture);
/* A lone block is an ordinary one from here on. */
void gpu_temporary_expose(struct gpu_block *block);
/* Is somebody else interested in it than the capture's body? */
bool gpu_temporary_is_held(const struct graph_body *body, const struct gpu_block *block);
/* Memory of its own, whoever of those that may use it asks, for a node whose addresses stay, or for
 * the script; see gpu_temporary_use. */
gpulua_status gpu_temporary_settle(struct gpu_block *block, const struct gpu_capture *capture,
                                   const char *what, struct gpu_error *error);
/* One to stand for a graph's temporary in its update. NULL: no memory. */
struct gpu_block *gpu_temporary_twin(const struct gpu_block *block);
/* Nothing comes of the capture: who has them still has buffers that were never written. */
void gpu_temporaries_leave(struct graph_body *body);
/* Into the list of what was made. False: no memory. */
bool gpu_graph_note_made(struct graph_body *body, struct gpu_block *block, uint64_t maker,
                         enum graph_made_for made_for);

/* ---- plan.c ---- */
/* Where the temporaries of a body that has ended lie: those that somebody holds get memory of their
 * own, the others share the pool's; then the addresses in its commands. `known`: a body of the same
 * nodes and edges, of the graph that is updated; if they can, all stay where they are in that.
 * NULL: there is none. */
gpulua_status gpu_graph_plan(struct graph_body *body, const struct graph_body *known,
                             struct gpu_capture *capture, struct gpu_error *error);

/* ---- follow.c ---- */
void gpu_follow_begin(struct graph_follow *follow, struct gpu_graph *graph);
void gpu_follow_finish(struct graph_follow *follow);
/* Is the work, whose kernel and refs are those of the node that is to come in `next`, what the
 * graph does at this place, but for arguments? False: the capture has to leave it. */
bool gpu_follow_add(struct graph_follow *follow, struct graph_body *next,
                    const struct gpu_envelope *envelope, const struct wire_record *record,
                    uint32_t payload_bytes);
/* Puts the nodes so far into `next`, in front of the one that is to come. False: no memory. */
bool gpu_follow_leave(struct graph_follow *follow, struct graph_body *next);

/* ---- control.c ---- */
struct graph_control *gpu_graph_control_retain(struct graph_control *control);
void gpu_graph_control_release(struct graph_control *control); /* NULL is fine */
/* Nodes, edges and conditional nodes of a body and of all bodies in it. */
struct graph_totals {
    uint32_t node_count, edge_count, control_count, body_count;
};
void gpu_graph_count(const struct graph_body *body, struct graph_totals *totals);

/* ---- capture.c ---- */
/* With bodies (NULL: none) that are retained. The pool is to know the blocks already. */
gpulua_status gpu_capture_put(struct gpu_capture *capture, const struct gpu_envelope *envelope,
                              const struct wire_record *record, uint32_t payload_bytes,
                              struct graph_control *control, struct gpu_error *error);
/* Half of something is in it, because of the error: nothing comes of it. */
void gpu_capture_break(struct gpu_capture *capture, const struct gpu_error *error);
/* The pool knows the blocks. PoolSealed. */
gpulua_status gpu_capture_note(struct gpu_capture *capture, const struct gpu_use *uses,
                               uint32_t use_count, struct gpu_error *error);
/* It has ended; `is_good`: and something has come of it. */
void gpu_capture_end(struct gpu_capture *capture, bool is_good);
/* Of it and of the bodies in it: given out once. */
uint64_t gpu_capture_number(const struct gpu_capture *capture);
/* Has it, or what it is a body of, made the block, or taken it over with a graph's nodes? */
bool gpu_capture_has_made(const struct gpu_capture *capture, const struct gpu_block *block);
/* What the capture is to have where a graph's has made `known`: borrowed. */
gpulua_status gpu_capture_make_again(struct gpu_capture *capture, struct gpu_block *known,
                                     enum graph_made_for made_for, struct gpu_block **block,
                                     struct gpu_error *error);
/* How many bodies it is in. */
uint32_t gpu_capture_depth(const struct gpu_capture *capture);
const struct graph_body *gpu_capture_body(const struct gpu_capture *capture);
/* In check mode: tells the observer of what is about to be captured, and whether that refuses it.
 */
gpulua_status gpu_capture_observe(struct gpu_capture *capture, const struct gpu_envelope *envelope,
                                  struct gpu_error *error);
gpulua_status gpu_capture_add(struct gpu_capture *capture, const struct gpu_envelope *envelope,
                              const struct wire_record *record, uint32_t payload_bytes,
                              struct gpu_op **op, struct gpu_error *error);
/* Whether work can be submitted into it. */
gpulua_status gpu_capture_check(const struct gpu_capture *capture, const char *label,
                                struct gpu_error *error);
/* An op of work that was captured: awaiting it is an error that says so. */
gpulua_status gpu_capture_op(struct gpu_capture *capture, const char *label,
                             const struct gpu_site *site, struct gpu_op **op,
                             struct gpu_error *error);
/* With what the work is submitted that is about to be added. False: no memory. */
bool gpu_capture_keep_launch(struct gpu_capture *capture, const struct gpu_launch *launch);
bool gpu_capture_keep_transfer(struct gpu_capture *capture, const struct gpu_ref *dst,
                               const struct gpu_ref *src);
/* The refs of the work that is about to be added stand for what these do. NULL: for themselves. */
void gpu_capture_name_refs(struct gpu_capture *capture, const struct graph_ref *like);
struct graph_follow *gpu_capture_follow(struct gpu_capture *capture);
const struct graph_ref *gpu_capture_refs(const struct gpu_capture *capture);
/* What it has recorded is the caller's from now on. OutOfMemory. */
gpulua_status gpu_capture_take(struct gpu_capture *capture, struct graph_body *body,
                               struct gpu_error *error);
struct gpu_pool *gpu_capture_pool(const struct gpu_capture *capture);

/* ---- pool.c ---- */
/* For the capture of that number. PoolSealed, unless it is there. */
gpulua_status gpu_pool_add(struct gpu_pool *pool, struct gpu_block *block, uint64_t capture,
                           struct gpu_error *error);
/* What only that capture has wanted, of which nothing came. */
void gpu_pool_forget(struct gpu_pool *pool, uint64_t capture);
/* PoolSealed, unless it takes new blocks. */
gpulua_status gpu_pool_check_open(const struct gpu_pool *pool, const char *what,
                                  struct gpu_error *error);
/* By a graph or a capture, which counts until unuse; NULL is fine there. */
void gpu_pool_use(struct gpu_pool *pool);
void gpu_pool_unuse(struct gpu_pool *pool);
struct gpu_block *gpu_pool_order(const struct gpu_pool *pool);
/* The smallest of its arenas that has room for so much; borrowed. NULL: none has. */
struct gpu_block *gpu_pool_arena(const struct gpu_pool *pool, uint64_t byte_count);
/* The only graph of the pool has the body now: what only it was registered for and needs no more
 * goes, unless the pool is sealed. */
void gpu_pool_shed(struct gpu_pool *pool, const struct graph_body *body);

/* ---- again.c ---- */
/* Something else in the place of a node's ref or scalar; `index` as in graph_node. */
typedef void gpu_graph_change_fn(void *user, uint32_t node, uint32_t index, struct graph_ref *ref,
                                 union gpu_scalar *scalar);
/* Submits the nodes of the body once more, into the capture. `is_launch`: of another graph, among
 * what else it records. `change` NULL: as they are. */
gpulua_status gpu_graph_submit_again(const struct graph_body *body, struct gpu_capture *capture,
                                     const struct gpu_submit *submit, bool is_launch,
                                     gpu_graph_change_fn *change, void *user,
                                     struct gpu_error *error);

/* ---- update.c ---- */
/* Why the second cannot be the first with other arguments; NULL: it can. */
const char *gpu_graph_is_other(const struct wire_record *a, const struct wire_record *b);
/* In scratch: what makes the device's node what the body's is now, whose payload is right behind
 * the header. */
struct wire_record *gpu_graph_patch_record(const struct gpu_graph *graph, uint32_t node);
/* The device's node becomes what the body's is now. `spare`: its record once more, in memory that
 * nobody needs (16-byte aligned, and as much as its length rounded up to that); NULL: scratch. */
void gpu_graph_patch(struct gpu_graph *graph, uint32_t node, struct wire_record *spare,
                     struct gpu_graph_change *change);

/* ---- exec.c ---- */
/* How many joins of the wire's the device has in front of it. */
uint32_t gpu_graph_node_joins(const struct graph_node *node);
/* Makes it there, if the budget has room for it: what was launched longest ago goes for that.
 * OutOfBudget, what the driver says. Blocks until the device has it. */
gpulua_status gpu_graph_send(struct gpu_graph *graph, struct gpu_error *error);
/* Is there room in the budget for so many bytes of a graph only if garbage goes, because all that
 * comes free by itself is not enough? */
bool gpu_graph_lacks_room(struct gpu_device *device, uint64_t byte_count);
/* Of a copy, what memory it goes to and comes from, as far as the driver refuses to make one such
 * copy of another (cuGraphExecMemcpyNodeSetParams: INVALID_VALUE "if the memory operands' mappings
 * changed"); of other nodes nothing. Of memory of others nothing is known but whose it is. */
void gpu_graph_copy_kinds(const struct graph_body *body, const struct graph_node *node,
                          uint64_t kinds[2]);
/* The device needs it no more; launches in flight go on. */
void gpu_graph_unsend(struct gpu_graph *graph);

/* ---- graph.c ---- */
/* What the operation in the flight ring has launched, if it is there and what it was then; or NULL.
 */
const struct gpu_graph *gpu_graph_launched(const struct gpu_device *device,
                                           const struct gpu_flight_op *op);
/* Capacity: the node's bodies would lie too deep in the capture. */
gpulua_status gpu_control_check_depth(const struct gpu_capture *capture,
                                      const struct graph_control *control, struct gpu_error *error);
/* Memory that a conditional node's bodies read and the body around it does not name: bytes to write
 * that an update has found to be the same as those that the node has. `control`, `uses`: or NULL;
 * says how many. */
uint32_t gpu_control_unnamed(const struct graph_body *body, const struct graph_control *control,
                             struct gpu_use *uses);
const struct graph_body *gpu_graph_body(const struct gpu_graph *graph);
/* What a launch uses: all that the nodes do, and the pool, one launch at a time. Lone blocks whose
 * content is carried from launch to launch become ordinary ones. False: no memory. */
bool gpu_graph_collect_uses(const struct graph_body *body, struct gpu_pool *pool,
                            struct graph_uses *uses);
/* Takes what the body owns, also when it fails; the body is empty then. */
gpulua_status gpu_graph_create(struct gpu_pool *pool, struct graph_body *body, const char *label,
                               struct gpu_graph **graph, struct gpu_error *error);

/* What the flight ring has of an operation, such as which graph it launched; NULL: it has forgotten
 * it, or not noted it yet. */
static inline struct gpu_flight_op *gpu_flight_entry(const struct gpu_flight *flight,
                                                     const struct gpu_op *op) {
    struct gpu_flight_op *entry =
        op->number > 0 ? &flight->ops[(op->number - 1) % GPU_FLIGHT_OPS_MAX] : NULL;
    return entry && entry->number == op->number ? entry : NULL;
}

#endif
