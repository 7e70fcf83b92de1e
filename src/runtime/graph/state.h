/* What the files of runtime/graph share. */
#ifndef GPU_RUNTIME_GRAPH_STATE_H
#define GPU_RUNTIME_GRAPH_STATE_H

#include "runtime/graph.h"
#include "runtime/state.h"

#define GPU_NODE_NONE UINT32_MAX

/* The numbers of blocks in a list. */
struct graph_place {
    const struct gpu_block *block; /* compared alone; NULL: free */
    uint32_t number;
};
struct graph_index {
    struct graph_place *places; /* owned */
    uint32_t capacity, count;
};

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
};

struct graph_edge {
    uint32_t from;
    uint32_t track;  /* the first one that is a reason */
    uint32_t via;    /* while it is sought: a node that `from` goes before, or GPU_NODE_NONE */
    uint8_t reasons; /* enum gpu_edge_reason */
};

struct graph_node {
    struct wire_record *record; /* owned; without waits; NULL: none (a join of the wire's) */
    const char *label;          /* interned */
    struct gpu_site site;
    uint32_t edge_first, edge_count; /* towards it */
    uint32_t use_first, use_count;
};

/* Nodes and what orders them. */
struct graph_body {
    struct graph_node *nodes; /* owned, as all of these */
    uint32_t node_count, node_capacity;
    struct graph_edge *edges;
    uint32_t edge_count, edge_capacity;
    struct gpu_use *uses; /* of the nodes; blocks retained by the tracks */
    uint32_t use_count, use_capacity;
    struct graph_track *tracks;
    uint32_t track_count, track_capacity;
    struct graph_index index;    /* of the tracks, by block */
    struct gpu_kernel **kernels; /* each retained: of the newest node, if it is a launch */
    uint32_t kernel_count, kernel_capacity;
    /* For the edges of the node at hand. */
    struct graph_edge *found;
    uint32_t found_count, found_capacity;
    uint32_t *marks, *stack; /* one for each node */
    uint32_t mark;
    uint32_t mark_capacity;
};

/* ---- index.c ---- */
/* GPU_NODE_NONE: it has none. */
uint32_t gpu_graph_index_find(const struct graph_index *index, const struct gpu_block *block);
/* Where its number stands; one that is new has GPU_NODE_NONE, to be set. NULL: no memory. */
uint32_t *gpu_graph_index_make(struct graph_index *index, const struct gpu_block *block);
void gpu_graph_index_finish(struct graph_index *index);

/* ---- body.c ---- */
/* Grows the array at *items so that one more fits. False: no memory. */
bool gpu_graph_grow(void **items, uint32_t *capacity, uint32_t count, size_t item_bytes);
/* The record is copied, with payload_bytes behind its header. False: no memory, and the body is
 * good for nothing more. */
bool gpu_graph_add(struct graph_body *body, const struct wire_record *record,
                   uint32_t payload_bytes, const char *label, const struct gpu_site *site,
                   const struct gpu_use *uses, uint32_t use_count);
bool gpu_graph_keep_kernel(struct graph_body *body, struct gpu_kernel *kernel);
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

/* ---- capture.c ---- */
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
bool gpu_capture_keep_kernel(struct gpu_capture *capture, struct gpu_kernel *kernel);

/* ---- pool.c ---- */
gpulua_status gpu_pool_add(struct gpu_pool *pool, struct gpu_block *block, struct gpu_error *error);
/* PoolSealed, unless it takes new blocks. */
gpulua_status gpu_pool_check_open(const struct gpu_pool *pool, const char *what,
                                  struct gpu_error *error);
/* By a graph or a capture, which counts until unuse; NULL is fine there. */
void gpu_pool_use(struct gpu_pool *pool);
void gpu_pool_unuse(struct gpu_pool *pool);
struct gpu_block *gpu_pool_order(const struct gpu_pool *pool);

/* ---- graph.c ---- */
const struct graph_body *gpu_graph_body(const struct gpu_graph *graph);
/* Takes what the body owns, also when it fails. */
gpulua_status gpu_graph_create(struct gpu_pool *pool, struct graph_body *body, const char *label,
                               struct gpu_graph **graph, struct gpu_error *error);

#endif
