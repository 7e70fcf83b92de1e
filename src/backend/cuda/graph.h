/* Inside graphs of the CUDA backend: graph.c (the slots), control.c (conditional nodes), patch.c
 * (changing nodes). */
#ifndef GPU_CUDA_GRAPH_H
#define GPU_CUDA_GRAPH_H

#include "backend/cuda/device.h"

/* What an executable graph takes of the device's memory for a node, about, as measured on an H200:
 * the driver does not say (the graph attributes of the device count what memory nodes allocate, and
 * there are none), and what is free before and after changes with every process. */
#define CUDA_GRAPH_NODE_BYTES 10240u

enum graph_state { GRAPH_CAPTURING, GRAPH_BUILT, GRAPH_FAILED };

struct graph_node {
    CUgraphNode handle; /* of the driver's graph; NULL: it stands for nothing */
    uint32_t same_as;   /* the first node that stands for the handle: itself, mostly */
    uint32_t taken_by;  /* the newest node that has the handle among its dependencies, and 1 */
    uint32_t number;    /* of all nodes, with those of bodies, counted from 1 */
};

struct backend_graph {
    struct link link;
    struct backend_device *device; /* borrowed */
    struct backend_stream stream;  /* its handle is owned; NULL: it is captured no more */
    enum graph_state state;
    struct graph_node *nodes; /* owned; the last one's handle is not known yet while capturing */
    uint32_t node_count, node_max;
    uint32_t told_count; /* nodes, with those of bodies */
    CUgraphNode *deps;   /* owned: what the driver was told of the last node, each once */
    uint32_t dep_count, dep_max;
    uint32_t dep_node; /* of which node the last of them is */
    uint32_t patched_node;
    struct graph_frame *frame; /* owned; bodies that are being made, the innermost first */
    uint32_t control_count;    /* of the nodes of the body, up to its last conditional one */
    CUgraph handle;            /* owned; NULL: not yet. Kept, because patches name its nodes */
    CUgraphExec exec;          /* owned; NULL: not yet */
    struct cuda_node_map *map; /* traced: see tracer_nodes.h; NULL: none */
    bool is_uploaded;          /* or launched */
    CUevent upload_over;       /* owned; NULL: no upload that a launch has to wait for */
    const struct backend_stream *upload_stream; /* compared only */
};

/* ---- graph.c ---- */
/* Between these, what is put on graph->stream is captured. */
gpulua_status gpu_cuda_capture_begin(struct backend_graph *graph, struct backend_error *error);
/* What has been captured is in *captured, if all is well. */
gpulua_status gpu_cuda_capture_end(struct backend_graph *graph, CUgraph *captured,
                                   struct backend_error *error);
/* What the last node stands for: what is now on the stream to be followed. */
gpulua_status gpu_cuda_graph_settle(struct backend_graph *graph, struct backend_error *error);
/* Room for one more node with so many dependencies; deps is not NULL then. */
gpulua_status gpu_cuda_graph_reserve(struct backend_graph *graph, uint32_t dep_count,
                                     struct backend_error *error);
gpulua_status gpu_cuda_graph_check(const struct backend_graph *graph, enum graph_state wanted,
                                   struct backend_error *error);

/* ---- control.c ---- */
/* Bodies that have not ended never will; the graph is where it was in front of them. */
void gpu_cuda_control_abandon(struct backend_graph *graph, bool is_well);

#endif
