/* Graphs in check mode: a launch is one operation of its stream, and does the nodes one after
 * another, in an order that their dependencies allow and the seed chooses: one node, another one
 * with each launch, comes as late as it may; the others are chosen evenly from what is ready. So
 * where an edge is missing, a seed in about as many as there are nodes shows it for certain. */
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/check/check.h"
#include "backend/cpu/check/schedule.h"
#include "backend/cpu/graph.h"

struct cpu_graph_order {
    size_t *first;        /* owned: of each node and the end, in the list */
    uint32_t *dependents; /* owned: the other way round than the graph's dependencies */
    uint32_t *pending;    /* owned: dependencies that are not over, of each node, in a run */
    uint32_t *ready;      /* owned */
    struct cpu_item *failed;
};

void gpu_cpu_graph_order_destroy(struct cpu_graph_order *order) {
    if (order != NULL) {
        free(order->first);
        free(order->dependents);
        free(order->pending);
        free(order->ready);
        free(order);
    }
}

struct cpu_graph_order *gpu_cpu_graph_order_create(const struct backend_graph *graph) {
    struct cpu_graph_order *order = calloc(1, sizeof *order);
    uint32_t count = graph->node_count;
    if (order == NULL) {
        return NULL;
    }
    order->first = calloc(count + (size_t)2, sizeof *order->first);
    order->dependents = calloc(graph->dep_count + 1, sizeof *order->dependents);
    order->pending = calloc(count + (size_t)1, sizeof *order->pending);
    order->ready = calloc(count + (size_t)1, sizeof *order->ready);
    if (order->first == NULL || order->dependents == NULL || order->pending == NULL ||
        order->ready == NULL) {
        gpu_cpu_graph_order_destroy(order);
        return NULL;
    }
    /* Counted two further on: where one's begin, and after filling in, where the next one's do. */
    for (size_t i = 0; i < graph->dep_count; i++) {
        order->first[graph->deps[i] + 2u]++;
    }
    for (uint32_t i = 2; i <= count; i++) {
        order->first[i] += order->first[i - 1];
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct cpu_node *node = &graph->nodes[i];
        for (size_t k = node->first_dep; k < node->first_dep + node->dep_count; k++) {
            order->dependents[order->first[graph->deps[k] + 1u]++] = i;
        }
    }
    return order;
}

struct cpu_item *gpu_cpu_graph_failed_checked(const struct backend_graph *graph) {
    return graph->order->failed;
}

/* Where a run is: nobody is told the number, but the launches' random choices follow from it. */
struct place {
    struct backend_stream *stream;
    const struct cpu_item *run;
    uint64_t seq;
};

static struct cpu_item *body_do(const struct place *place, const struct backend_graph *graph);

/* The node's item, or one in its bodies, that has failed; NULL: none has. */
static struct cpu_item *control_do(const struct place *place, const struct cpu_control *control) {
    struct place inner = *place;
    struct cpu_item *failed = NULL;
    const struct backend_graph *body = gpu_cpu_control_choose(control);
    while (body != NULL && failed == NULL) {
        inner.seq += UINT64_C(0x9e3779b97f4a7c15); /* another one with each pass */
        failed = body_do(&inner, body);
        body = control->what.kind == WIRE_CONTROL_WHILE ? gpu_cpu_control_choose(control) : NULL;
    }
    return failed;
}

static struct cpu_item *node_do(const struct place *place, const struct backend_graph *graph,
                                uint32_t node) {
    struct cpu_item *item = graph->nodes[node].item;
    if (item == NULL) {
        return NULL;
    }
    item->seq = place->seq + ((uint64_t)node << 32);
    if (item->kind == CPU_ITEM_CONTROL) {
        const struct place inner = {place->stream, place->run, item->seq};
        return control_do(&inner, item->u.control);
    }
    if (item->kind == CPU_ITEM_LAUNCH) {
        gpu_check_launch_now(&item->u.launch->launch, place->run->u.run.free_count);
    }
    (void)gpu_cpu_item_do(place->stream, item);
    bool has_failed =
        item->kind == CPU_ITEM_LAUNCH &&
        atomic_load_explicit(&item->u.launch->launch.failed, memory_order_relaxed) != 0;
    return has_failed ? item : NULL;
}

/* Nodes that may be done, but for the one that comes as late as it may. */
struct front {
    struct cpu_graph_order *order;
    uint32_t ready_count, late;
    bool is_late_ready;
};

static void front_add(struct front *front, uint32_t node) {
    if (node == front->late) {
        front->is_late_ready = true;
    } else {
        front->order->ready[front->ready_count++] = node;
    }
}

static uint32_t front_take(struct front *front, struct cpu_schedule *schedule) {
    if (front->ready_count == 0) {
        front->is_late_ready = false;
        return front->late;
    }
    uint32_t *ready = front->order->ready;
    uint32_t at = gpu_cpu_schedule_below(schedule, front->ready_count), node = ready[at];
    ready[at] = ready[--front->ready_count];
    return node;
}

static struct cpu_item *body_do(const struct place *place, const struct backend_graph *graph) {
    struct cpu_schedule *schedule = graph->device->schedule;
    struct cpu_graph_order *order = graph->order;
    uint32_t count = graph->node_count;
    struct front front = {.order = order};
    front.late = count > 0 ? count - 1 - gpu_cpu_schedule_below(schedule, count) : 0;
    for (uint32_t i = 0; i < count; i++) {
        order->pending[i] = graph->nodes[i].dep_count;
        if (order->pending[i] == 0) {
            front_add(&front, i);
        }
    }
    while (front.ready_count > 0 || front.is_late_ready) {
        uint32_t node = front_take(&front, schedule);
        struct cpu_item *failed = node_do(place, graph, node);
        if (failed != NULL) {
            return failed;
        }
        for (size_t i = order->first[node]; i < order->first[node + 1u]; i++) {
            if (--order->pending[order->dependents[i]] == 0) {
                front_add(&front, order->dependents[i]);
            }
        }
    }
    return NULL;
}

void gpu_cpu_graph_run_checked(struct backend_stream *stream, struct cpu_item *item) {
    struct backend_graph *graph = item->u.run.graph;
    const struct place place = {stream, item, item->seq};
    gpu_cpu_graph_prepare(graph, item);
    gpu_check_scratch_begin(graph->device->check);
    graph->slot = stream->slot;
    graph->seq = item->seq;
    graph->order->failed = body_do(&place, graph);
}
