/* Graphs: work that is recorded instead of being done, and then launched as one operation, again
 * and again.
 *
 * What is submitted with `gpu_submit.capture` set becomes a node. Edges between nodes come from
 * what they read and write, never from the stream or the order in which they were submitted: of a
 * linear script only the true dependencies are left. A launch of the graph is one operation to the
 * recorder, with all that its nodes use. The graph keeps every block and module that it uses. */
#ifndef GPU_RUNTIME_GRAPH_H
#define GPU_RUNTIME_GRAPH_H

#include "runtime/work.h"

struct gpu_pool;

/* Reasons of an edge; one may have several. */
enum gpu_edge_reason { GPU_EDGE_RAW = 1, GPU_EDGE_WAR = 2, GPU_EDGE_WAW = 4 };

struct gpu_graph_info {
    uint32_t node_count, edge_count; /* with those of bodies */
    uint64_t replays;                /* launches so far */
    uint64_t uploads;                /* that did something: 0 or 1 */
    uint64_t device_bytes; /* of the device's budget, by itself; 0: it is not there at the moment */
    const char *label;     /* or "" */
};

/* ---- pools ----
 *
 * A pool keeps blocks for graphs: those that its captures use, and those that are recorded by hand.
 * They go, in the order in which they came, with the last reference. Graphs of one pool run one
 * after the other. Sealed, it takes no block that it has not. */
gpulua_status gpu_pool_create(struct gpu_device *device, struct gpu_pool **pool,
                              struct gpu_error *error);
struct gpu_pool *gpu_pool_retain(struct gpu_pool *pool);
void gpu_pool_release(struct gpu_pool *pool);
/* Retained for the caller; NULL: the device has none of that number. */
struct gpu_pool *gpu_pool_find(struct gpu_device *device, uint64_t number);
/* PoolSealed; gpu_ref_check's codes. Nothing, if it is there. */
gpulua_status gpu_pool_record(struct gpu_pool *pool, const struct gpu_ref *ref,
                              struct gpu_error *error);
/* Would it be refused for another reason than want of memory? Records nothing. */
gpulua_status gpu_pool_check(struct gpu_pool *pool, const struct gpu_ref *ref,
                             struct gpu_error *error);
/* Lets go of all. PoolInUse: a graph or a capture uses it. */
gpulua_status gpu_pool_clear(struct gpu_pool *pool, struct gpu_error *error);
void gpu_pool_seal(struct gpu_pool *pool, bool is_sealed);
bool gpu_pool_is_sealed(const struct gpu_pool *pool);
uint32_t gpu_pool_count(const struct gpu_pool *pool);  /* blocks */
uint64_t gpu_pool_number(const struct gpu_pool *pool); /* from 1; never reused in this process */
struct gpu_device *gpu_pool_device(const struct gpu_pool *pool);

/* ---- capturing ----
 *
 * Begins one for the device of submit->stream; the label is the graph's. `pool`: NULL for one
 * of its own. Nothing is sent to the device before the capture is finished. Does not block.
 * InvalidArgument: a pool of another device. */
gpulua_status gpu_capture_create(const struct gpu_submit *submit, struct gpu_pool *pool,
                                 struct gpu_capture **capture, struct gpu_error *error);
/* A block that was made inside the capture stays in its pool. `block` NULL: whether one could be.
 * PoolSealed. */
gpulua_status gpu_capture_keep(struct gpu_capture *capture, struct gpu_block *block,
                               struct gpu_error *error);
/* One for an update of the graph, with its pool and label. */
gpulua_status gpu_capture_again(struct gpu_graph *graph, const struct gpu_submit *submit,
                                struct gpu_capture **capture, struct gpu_error *error);
/* In such a capture: what the one before made at this place, if the same is wanted: it is used
 * again, or another handle of it made, retained for the caller. NULL: make one. */
struct gpu_block *gpu_capture_made_before(struct gpu_capture *capture, uint64_t byte_count,
                                          const char *label, bool is_host);
/* Would it need less memory, or find more, if garbage were collected before it ends? */
bool gpu_capture_wants_collect(struct gpu_capture *capture);
struct gpu_capture *gpu_capture_retain(struct gpu_capture *capture);
void gpu_capture_release(struct gpu_capture *capture);
/* Ends it and drops what it has recorded; work that is submitted into it from now on is refused.
 * Idempotent. */
void gpu_capture_cancel(struct gpu_capture *capture);
struct gpu_device *gpu_capture_device(const struct gpu_capture *capture);
const char *gpu_capture_label(const struct gpu_capture *capture); /* interned by the device */
bool gpu_capture_is_active(const struct gpu_capture *capture);
uint32_t gpu_capture_count(const struct gpu_capture *capture); /* nodes so far */
/* Ends it and makes a graph of it. EmptyCapture: no node; CaptureInvalidated: something could not
 * be recorded, or it has been ended. Blocks until the device has the graph. */
gpulua_status gpu_capture_finish(struct gpu_capture *capture, struct gpu_graph **graph,
                                 struct gpu_error *error);

/* ---- conditional nodes ----
 *
 * A body is a capture of its own, begun inside another one (a body, too, maybe), whose nodes become
 * one node of that one together. Which body is done is decided on the device, by an integer that is
 * read when the node is reached; a loop's is read again behind each pass. */
enum gpu_control_kind { GPU_CONTROL_IF, GPU_CONTROL_WHILE, GPU_CONTROL_SWITCH };
#define GPU_CONTROL_BODIES_MAX 64u
#define GPU_CONTROL_DEPTH_MAX 16u /* bodies within bodies */

struct gpu_control {
    enum gpu_control_kind kind;
    const struct gpu_ref *value;       /* one element of an integer type */
    struct gpu_capture *const *bodies; /* IF: 1 or 2, the second for 0; WHILE: 1; SWITCH: any */
    uint32_t body_count;
};
/* Its pool is the capture's. Capacity: too deep. gpu_capture_finish's codes but EmptyCapture. */
gpulua_status gpu_control_begin(struct gpu_capture *capture, const char *label,
                                struct gpu_capture **body, struct gpu_error *error);
/* A value that can decide, of that device? InvalidArgument, gpu_ref_check's codes. */
gpulua_status gpu_control_check(const struct gpu_ref *value, struct gpu_device *device,
                                const char *what, struct gpu_error *error);
/* The bodies have ended, and are a node of submit->capture. EmptyCapture: one has no node;
 * InvalidArgument: a loop never writes its value, so that it could not end; gpu_control_check's
 * codes. Nothing has ended then. */
gpulua_status gpu_control_add(const struct gpu_submit *submit, const struct gpu_control *control,
                              struct gpu_op **op, struct gpu_error *error);

/* ---- graphs ---- */

struct gpu_graph *gpu_graph_retain(struct gpu_graph *graph);
/* The last reference ends it; launches in flight go on, and keep its memory until they are over. */
void gpu_graph_release(struct gpu_graph *graph);
struct gpu_pool *gpu_graph_pool(const struct gpu_graph *graph); /* borrowed */
struct gpu_device *gpu_graph_device(const struct gpu_graph *graph);
void gpu_graph_info(const struct gpu_graph *graph, struct gpu_graph_info *info);
/* Ends for the device, not for scripts, the graph that was launched longest ago, of those whose
 * launches are over, which gives its memory back at once: its next launch makes it anew there.
 * Where none of them is over, waits for one, for so long (negative: until it is). False: there is
 * none, or *status, of that wait, is set. */
bool gpu_graphs_evict(struct gpu_device *device, int64_t patience_ns, struct gpu_error *error,
                      gpulua_status *status);
/* The same behind OutOfMemory, before that is tried again: what *status and *error say is over
 * then. Also of graphs that have gone while they ran. False: it is to be told, or what the wait
 * failed with. */
bool gpu_graphs_evict_for(gpulua_status *status, struct gpu_device *device, int64_t patience_ns,
                          struct gpu_error *error);
/* All nodes as one operation on submit->stream, behind what conflicts with any of them. With
 * submit->capture its nodes become that capture's. UseAfterFree: a block of it was freed.
 * OutOfBudget: it is not there any more, and there is no room for it. Blocks while the ring is full
 * or too much is in flight, and until the device has made it anew, if that is so. */
gpulua_status gpu_graph_launch(struct gpu_graph *graph, const struct gpu_submit *submit,
                               struct gpu_op **op, struct gpu_error *error);
/* Memory that was made in a capture and is given out by who captured it: no graph's alone from here
 * on, also where conditional nodes use it. */
void gpu_graph_give_out(struct gpu_block *block);
/* Is all memory there that it was captured with? Stale, UseAfterFree: what is not. */
gpulua_status gpu_graph_check(struct gpu_graph *graph, struct gpu_error *error);
/* What the first launch would do beside launching, in advance. The second time nothing. */
gpulua_status gpu_graph_upload(struct gpu_graph *graph, const struct gpu_submit *submit,
                               struct gpu_error *error);
/* What an update or a bind did. */
struct gpu_graph_change {
    uint32_t patched;  /* nodes that got other arguments */
    uint32_t restaged; /* of these: writes, whose data lies somewhere else each time */
    bool is_rebuilt;   /* the sequence, or what follows what, is another one */
    char why[512];     /* the first node that makes it another one, and how */
    /* The first node that got other arguments, from 1, and what it is; 0: none did. */
    uint32_t node;
    const char *label; /* interned */
    struct gpu_site site;
};
/* That node in words. */
void gpu_graph_change_text(const struct gpu_graph_change *change, char *text, size_t room);
/* Makes it be what the capture has recorded, whose pool has to be the graph's, and ends that.
 * Launches before are not affected, launches behind it are what the capture says. Where kinds of
 * work, kernels and edges are the same, only nodes whose arguments have changed are sent (does not
 * block); else, if `may_rebuild`, the device gets a new graph (blocks until it has), if not it is
 * TopologyChanged and the graph stays what it was. EmptyCapture, CaptureInvalidated: it stays, too.
 */
gpulua_status gpu_graph_update(struct gpu_graph *graph, struct gpu_capture *capture,
                               bool may_rebuild, struct gpu_graph_change *change,
                               struct gpu_error *error);
/* What a name stands for: a buffer's label, or "kernel#n.parameter" (the n-th launch of the kernel
 * or of that label in the graph, from 1, which can be left out where there is one; a parameter's
 * name, or its number from 1; of fills and copies dst and src). */
struct gpu_graph_place {
    uint64_t origin; /* of all that this block stood for when it was captured; 0: one place */
    uint32_t node, index;
    uint32_t index_im;             /* of a library's complex factor: its other part; or index */
    const struct gpu_param *param; /* of a launch; NULL: of a fill or a copy, or of a buffer */
    bool is_many;                  /* a buffer's label */
    enum gpu_type type;            /* of the place, or the buffer; GPU_TYPE_COUNT: any */
    uint64_t byte_count;           /* of the buffer */
};
/* The names of a graph in order, for whoever looks up many. */
struct gpu_graph_names;
/* How much memory they take, until the graph changes. */
size_t gpu_graph_names_bytes(const struct gpu_graph *graph);
/* Writes them to `memory`, aligned as malloc's. They last until the graph changes. */
const struct gpu_graph_names *gpu_graph_names_make(const struct gpu_graph *graph, void *memory);
/* InvalidArgument: nothing has the name, or several have: lists what there is. `names` of that
 * graph; NULL: all nodes are looked at. */
gpulua_status gpu_graph_find(const struct gpu_graph *graph, const struct gpu_graph_names *names,
                             const char *name, struct gpu_graph_place *place,
                             struct gpu_error *error);
struct gpu_graph_bind {
    const char *name; /* for messages */
    struct gpu_graph_place place;
    struct gpu_ref ref; /* block NULL: a NULL pointer, or a scalar */
    union gpu_scalar scalar, scalar_im;
};
/* As gpu_graph_update, with what the graph has, but for these, which are put into the order of its
 * nodes. All or nothing. InvalidArgument: two for one place. */
gpulua_status gpu_graph_bind(struct gpu_graph *graph, const struct gpu_submit *submit,
                             struct gpu_graph_bind *binds, uint32_t count,
                             struct gpu_graph_change *change, struct gpu_error *error);
/* A second graph of the same nodes, with temporaries and a pool of its own, so that both run beside
 * each other as far as nothing else is written by both. Unsupported: it has conditional nodes.
 * gpu_capture_finish's codes; blocks as that. */
gpulua_status gpu_graph_fork(struct gpu_graph *graph, const struct gpu_submit *submit,
                             struct gpu_graph **fork, struct gpu_error *error);
/* Where the node of a launch under way was captured: `node` as the device counts them (wire_times).
 * False: nobody knows any more. */
bool gpu_graph_node_site(const struct gpu_op *launch, uint32_t node, struct gpu_site *site);
/* As text for Graphviz: nodes with label and line, edges with their reasons and buffers. Returns
 * how long it is, and writes as much of it as there is room for, with a NUL behind it. */
size_t gpu_graph_dot(const struct gpu_graph *graph, char *text, size_t room);

#endif
