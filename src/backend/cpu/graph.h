/* Inside graphs of the CPU device: graph.c (the slots, one run), lanes.c (which lane does which
 * node, and what it waits for), control.c (conditional nodes), check/graph.c (check mode: nodes one
 * after another).
 *
 * The items that work slots make on a graph's stream stay the graph's, and the same ones are done
 * with every launch: nothing is copied, so a launch costs its caller a few items, however large the
 * graph is. That works because launches of one graph never overlap: each waits for the one before.
 *
 * A lane is a list of items that are done one after another: nodes, waits for the tickets of nodes
 * on other lanes, and events that fire such tickets. All lanes are in the order of the nodes'
 * numbers, and a node waits for lower ones only, so they cannot wait for each other in a circle.
 * Lane 0 is done by the launching stream itself, and ends with waits for the ends of the others; a
 * chain is therefore what its items would be without a graph. Each other lane is a stream of the
 * graph's own, filled anew with every run.
 *
 * A body of a conditional node is a graph of its own that is no device's, with lanes of its own:
 * the lane that comes to the node does what is the first lane's of the body, and then goes on. */
#ifndef GPU_CPU_GRAPH_H
#define GPU_CPU_GRAPH_H

#include "backend/cpu/device.h"

#define CPU_GRAPH_LANES_MAX 64u
#define CPU_GRAPH_NODE_BYTES 512u     /* its item with arguments, and marks, about */
#define CPU_GRAPH_LANES_PER_WORKER 4u /* so that one that takes long holds up few others */

struct cpu_node {
    struct cpu_item *item; /* owned; NULL: only its dependencies */
    size_t first_dep;      /* in the graph's list */
    uint32_t dep_count;
    struct cpu_item *patch; /* among the graph's that no launch has taken along yet; or NULL */
};

struct cpu_lane {
    struct cpu_item *first, *last;
    struct backend_stream *stream; /* owned; lane 0: NULL */
};

struct cpu_graph_order; /* check/graph.c */

struct cpu_control {
    struct backend_control what;
    struct backend_graph **bodies; /* owned, each of them */
};

struct backend_graph {
    struct backend_device *device;
    struct backend_graph *next, **link; /* all graphs of the device */
    struct backend_stream *recorder;    /* owned; bodies: NULL */
    struct backend_graph *root;         /* whose body it is, at last; itself: no body */
    struct backend_graph *outer;        /* of a body: in which its node is */
    struct cpu_control *control;        /* of a body: its node; borrowed */
    uint32_t body;                      /* its number there */
    struct backend_graph *open;         /* root: which nodes are added to */
    uint32_t told_count;                /* root: nodes, with those of bodies */

    struct cpu_node *nodes; /* owned */
    uint32_t node_count;
    size_t node_capacity;
    uint32_t *deps; /* owned: of all nodes, one after the other's */
    size_t dep_count, dep_capacity;

    struct cpu_lane lanes[CPU_GRAPH_LANES_MAX];
    uint32_t lane_count;
    struct cpu_item *marks;     /* owned: waits and events of all lanes */
    struct cpu_ticket *tickets; /* owned: of nodes that other lanes wait for */
    size_t ticket_count;
    struct cpu_graph_order *order; /* owned; check mode: instead of lanes */

    struct cpu_ticket *over; /* the latest launch's; NULL: never launched */

    /* What nodes are to be: items of no queue, each with its node's number for `seq`, oldest first.
     * The next launch takes them along, and its run puts them into the nodes, because runs of
     * launches before it may be under way until then. */
    struct cpu_item *patches, *last_patch; /* owned */
    bool is_patching;
    bool patch_differs; /* the work at hand is not of the node's kind */
    uint32_t patched_node;

    /* Of the run that is under way. */
    uint32_t slot;
    uint64_t seq;
    _Atomic bool has_failed;
};

/* Makes room for `wanted` of them; false: no memory. */
bool gpu_cpu_graph_room(void *list, size_t wanted, size_t *capacity, size_t item_bytes);
/* Before a run: nodes are what they have been patched to be, and none has failed. */
void gpu_cpu_graph_prepare(struct backend_graph *graph, struct cpu_item *run);
/* Lanes, and streams for them; in check mode what that needs. */
gpulua_status gpu_cpu_graph_seal(struct backend_graph *graph, struct backend_error *error);
/* All lanes are under way, and what is to be done on the stream itself comes next there. */
void gpu_cpu_graph_run(struct backend_stream *stream, struct backend_graph *graph);
/* What a graph and a body have; NULL is fine. */
void gpu_cpu_graph_free(struct backend_device *device, struct backend_graph *graph);

/* ---- control.c ---- */
/* The body to be done now; NULL: none. */
struct backend_graph *gpu_cpu_control_choose(const struct cpu_control *control);
void gpu_cpu_control_destroy(struct backend_device *device, struct cpu_control *control);

/* ---- lanes.c ---- */
/* Fills in the lanes' items. False: no memory. */
bool gpu_cpu_graph_plan(struct backend_graph *graph);

/* ---- check/graph.c ---- */
/* NULL: no memory. */
struct cpu_graph_order *gpu_cpu_graph_order_create(const struct backend_graph *graph);
void gpu_cpu_graph_order_destroy(struct cpu_graph_order *order); /* NULL is fine */
/* Does all nodes on the calling thread, in one of the orders that their dependencies allow. */
void gpu_cpu_graph_run_checked(struct backend_stream *stream, struct cpu_item *item);

#endif
