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

static void node_do(struct backend_stream *stream, const struct cpu_item *run, uint32_t node) {
    struct backend_graph *graph = run->u.run.graph;
    struct cpu_item *item = graph->nodes[node].item;
    if (item == NULL) {
        return;
    }
    /* Nobody is told this number: the launch's random choices follow from it. */
    item->seq = run->seq + ((uint64_t)node << 32);
    if (item->kind == CPU_ITEM_LAUNCH) {
        gpu_check_launch_now(&item->u.launch->launch, run->u.run.free_count);
    }
    (void)gpu_cpu_item_do(stream, item);
}

struct cpu_item *gpu_cpu_graph_failed_checked(const struct backend_graph *graph) {
    return graph->order->failed;
}

static bool has_failed(const struct backend_graph *graph, uint32_t node) {
    const struct cpu_item *item = graph->nodes[node].item;
    return item != NULL && item->kind == CPU_ITEM_LAUNCH &&
           atomic_load_explicit(&item->u.launch->launch.failed, memory_order_relaxed) != 0;
}

void gpu_cpu_graph_run_checked(struct backend_stream *stream, const struct cpu_item *item) {
    struct backend_graph *graph = item->u.run.graph;
    struct cpu_graph_order *order = graph->order;
    struct cpu_schedule *schedule = stream->device->schedule;
    uint32_t count = graph->node_count, ready_count = 0;
    uint32_t late = count > 0 ? count - 1 - gpu_cpu_schedule_below(schedule, count) : 0;
    bool is_late_ready = false;
    gpu_cpu_graph_clear(graph);
    graph->slot = stream->slot;
    graph->seq = item->seq;
    order->failed = NULL;
    for (uint32_t i = 0; i < count; i++) {
        order->pending[i] = graph->nodes[i].dep_count;
        if (order->pending[i] == 0 && i == late) {
            is_late_ready = true;
        } else if (order->pending[i] == 0) {
            order->ready[ready_count++] = i;
        }
    }
    while (ready_count > 0 || is_late_ready) {
        uint32_t node = late;
        if (ready_count > 0) {
            uint32_t at = gpu_cpu_schedule_below(schedule, ready_count);
            node = order->ready[at];
            order->ready[at] = order->ready[--ready_count];
        } else {
            is_late_ready = false;
        }
        node_do(stream, item, node);
        if (has_failed(graph, node)) {
            order->failed = graph->nodes[node].item;
            return;
        }
        for (size_t i = order->first[node]; i < order->first[node + 1u]; i++) {
            uint32_t next = order->dependents[i];
            if (--order->pending[next] != 0) {
                continue;
            }
            if (next == late) {
                is_late_ready = true;
            } else {
                order->ready[ready_count++] = next;
            }
        }
    }
}
