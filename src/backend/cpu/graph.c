/* Graphs of the CPU device: putting them together, and running them (see graph.h). */
#include "backend/cpu/graph.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/check/check.h"

static gpulua_status fail_memory(struct backend_error *error) {
    return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "out of memory");
}

bool gpu_cpu_graph_room(void *list, size_t wanted, size_t *capacity, size_t item_bytes) {
    void **items = list;
    if (wanted <= *capacity) {
        return true;
    }
    size_t room = wanted < 8 ? 16 : 2 * wanted;
    void *grown = realloc(*items, room * item_bytes);
    if (grown == NULL) {
        return false;
    }
    *items = grown;
    *capacity = room;
    return true;
}

/* ---- putting one together ---- */

gpulua_status gpu_cpu_graph_begin(struct backend_device *device, struct backend_graph **graph,
                                  struct backend_stream **stream, struct backend_error *error) {
    struct backend_graph *made = calloc(1, sizeof *made);
    struct backend_stream *recorder =
        made != NULL ? gpu_cpu_stream_make(device, UINT32_MAX, 0) : NULL;
    if (recorder == NULL) {
        free(made);
        return fail_memory(error);
    }
    recorder->recorder = made;
    made->device = device;
    made->recorder = recorder;
    made->root = made->open = made;
    atomic_init(&made->has_failed, false);
    made->next = device->graphs;
    made->link = &device->graphs;
    if (made->next != NULL) {
        made->next->link = &made->next;
    }
    device->graphs = made;
    *graph = made;
    *stream = recorder;
    return GPULUA_OK;
}

gpulua_status gpu_cpu_graph_node(struct backend_graph *graph, const uint32_t *deps,
                                 uint32_t dep_count, struct backend_error *error) {
    graph->told_count++;
    graph = graph->open;
    if (!gpu_cpu_graph_room(&graph->nodes, graph->node_count + (size_t)1, &graph->node_capacity,
                            sizeof *graph->nodes) ||
        !gpu_cpu_graph_room(&graph->deps, graph->dep_count + dep_count, &graph->dep_capacity,
                            sizeof *graph->deps)) {
        return fail_memory(error);
    }
    for (uint32_t i = 0; i < dep_count; i++) {
        assert(deps[i] < graph->node_count);
        graph->deps[graph->dep_count + i] = deps[i];
    }
    graph->nodes[graph->node_count++] =
        (struct cpu_node){.first_dep = graph->dep_count, .dep_count = dep_count};
    graph->dep_count += dep_count;
    return GPULUA_OK;
}

static void item_free(struct backend_device *device, struct cpu_item *item) {
    if (item->kind == CPU_ITEM_LAUNCH) {
        free(item->u.launch);
    } else if (item->kind == CPU_ITEM_CONTROL) {
        gpu_cpu_control_destroy(device, item->u.control);
    }
    free(item);
}

void gpu_cpu_graph_take(struct backend_graph *graph, struct cpu_item *item) {
    item->graph = graph;
    if (graph->is_patching) {
        item->seq = graph->patched_node;
        item->next = NULL;
        struct cpu_node *patched = &graph->nodes[graph->patched_node];
        if (patched->item == NULL || patched->item->kind != item->kind) {
            graph->patch_differs = true;
            item_free(graph->device, item);
            return;
        }
        if (patched->patch != NULL) { /* which no launch has taken along yet */
            struct cpu_item other = *patched->patch;
            patched->patch->elem_bytes = item->elem_bytes;
            patched->patch->u = item->u;
            item->u = other.u;
            item_free(graph->device, item);
            return;
        }
        patched->patch = item;
        if (graph->last_patch != NULL) {
            graph->last_patch->next = item;
        } else {
            graph->patches = item;
        }
        graph->last_patch = item;
        return;
    }
    const struct backend_graph *open = graph->open;
    assert(open->node_count > 0);
    struct cpu_node *node = &open->nodes[open->node_count - 1];
    assert(node->item == NULL);
    node->item = item;
    item->node = graph->told_count;
}

void gpu_cpu_graph_node_begin(struct cpu_item *item) {
    item->begun_ns = gpu_cpu_clock_ns();
}

void gpu_cpu_graph_node_end(const struct cpu_item *item) {
    const struct backend_graph *graph = item->graph;
    const struct backend_sink *sink = &graph->device->sink;
    if (sink->timed != NULL) {
        sink->timed(sink->user, graph->slot, graph->seq, item->node, item->begun_ns,
                    gpu_cpu_clock_ns());
    }
}

gpulua_status gpu_cpu_graph_seal(struct backend_graph *graph, struct backend_error *error) {
    if (graph->device->schedule != NULL) {
        graph->order = gpu_cpu_graph_order_create(graph);
        return graph->order != NULL ? GPULUA_OK : fail_memory(error);
    }
    if (!gpu_cpu_graph_plan(graph)) {
        return fail_memory(error);
    }
    for (uint32_t i = 1; i < graph->lane_count; i++) {
        graph->lanes[i].stream = gpu_cpu_stream_make(graph->device, UINT32_MAX, 0);
        if (graph->lanes[i].stream == NULL) {
            return fail_memory(error);
        }
    }
    return GPULUA_OK;
}

/* The work slot puts its item in between; one that makes none leaves the node as it is. */
gpulua_status gpu_cpu_graph_patch(struct backend_graph *graph, uint32_t node, bool is_launch,
                                  struct backend_error *error) {
    (void)is_launch;
    (void)error;
    assert(node < graph->node_count);
    graph->is_patching = true;
    graph->patch_differs = false;
    graph->patched_node = node;
    return GPULUA_OK;
}

gpulua_status gpu_cpu_graph_patched(struct backend_graph *graph, gpulua_status status,
                                    struct backend_error *error) {
    graph->is_patching = false;
    return graph->patch_differs && status == GPULUA_OK
               ? gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                  "node %u of a graph is work of another kind", graph->patched_node)
               : status;
}

static void patches_free(struct backend_device *device, struct cpu_item *patch) {
    while (patch != NULL) {
        struct cpu_item *next = patch->next;
        item_free(device, patch);
        patch = next;
    }
}

static void patches_apply(struct backend_graph *graph, struct cpu_item *patches) {
    for (struct cpu_item *patch = patches; patch != NULL; patch = patch->next) {
        struct cpu_item *item = graph->nodes[patch->seq].item;
        assert(item != NULL && item->kind == patch->kind);
        struct cpu_item old = *item;
        item->elem_bytes = patch->elem_bytes;
        item->u = patch->u;
        patch->u = old.u;
    }
    patches_free(graph->device, patches);
}

gpulua_status gpu_cpu_graph_end(struct backend_graph *graph, struct backend_error *error) {
    assert(graph->open == graph);
    return gpu_cpu_graph_seal(graph, error);
}

void gpu_cpu_graph_free(struct backend_device *device, struct backend_graph *graph) {
    if (graph == NULL) {
        return;
    }
    for (uint32_t i = 1; i < graph->lane_count; i++) {
        if (graph->lanes[i].stream != NULL) {
            /* Waits for who has done the last of it and is about to leave. */
            gpu_cpu_stream_destroy(device, graph->lanes[i].stream);
        }
    }
    for (uint32_t i = 0; i < graph->node_count; i++) {
        if (graph->nodes[i].item != NULL) {
            item_free(device, graph->nodes[i].item);
        }
    }
    patches_free(device, graph->patches);
    gpu_cpu_ticket_release(graph->over);
    gpu_cpu_graph_order_destroy(graph->order);
    free(graph->marks);
    free(graph->tickets);
    free(graph->nodes);
    free(graph->deps);
    free(graph);
}

void gpu_cpu_graph_destroy(struct backend_device *device, struct backend_graph *graph) {
    gpu_cpu_stream_destroy(device, graph->recorder);
    *graph->link = graph->next;
    if (graph->next != NULL) {
        graph->next->link = graph->link;
    }
    gpu_cpu_graph_free(device, graph);
}

/* ---- launching ---- */

gpulua_status gpu_cpu_graph_upload(struct backend_stream *stream, struct backend_graph *graph,
                                   struct backend_error *error) {
    (void)stream;
    (void)graph;
    (void)error;
    return GPULUA_OK; /* it is where it runs */
}

/* Of this launch alone: behind the one before, and with an event for the next. */
gpulua_status gpu_cpu_graph_launch(struct backend_stream *stream, uint64_t seq,
                                   struct backend_graph *graph, struct backend_error *error) {
    struct backend_device *device = graph->device;
    bool waits = graph->over != NULL && !gpu_cpu_ticket_has_fired(graph->over);
    struct cpu_ticket *ticket = gpu_cpu_ticket_create();
    struct cpu_item *wait = waits ? gpu_cpu_item_make(stream, CPU_ITEM_WAIT, 0, 0) : NULL;
    struct cpu_item *run = gpu_cpu_item_make(stream, CPU_ITEM_GRAPH, seq, 0);
    struct cpu_item *over = gpu_cpu_item_make(stream, CPU_ITEM_EVENT, 0, 0);
    if (ticket == NULL || (waits && wait == NULL) || run == NULL || over == NULL) {
        gpu_cpu_ticket_release(ticket);
        free(wait);
        free(run);
        free(over);
        return fail_memory(error);
    }
    run->u.run.graph = graph;
    for (struct cpu_item *patch = graph->patches; patch != NULL; patch = patch->next) {
        graph->nodes[patch->seq].patch = NULL;
    }
    run->u.run.patches = graph->patches;
    graph->patches = graph->last_patch = NULL;
    run->u.run.free_count = device->check != NULL ? device->check->free_count : 0;
    if (waits) {
        wait->u.ticket = graph->over; /* and its reference */
        gpu_cpu_item_put(stream, wait);
    } else {
        gpu_cpu_ticket_release(graph->over);
    }
    gpu_cpu_item_put(stream, run);
    gpu_cpu_ticket_retain(ticket);
    graph->over = ticket;
    over->u.ticket = ticket;
    gpu_cpu_item_put(stream, over);
    return GPULUA_OK;
}

/* ---- a run ---- */

static void clear_nodes(const struct backend_graph *graph) {
    for (uint32_t i = 0; i < graph->node_count; i++) {
        struct cpu_item *item = graph->nodes[i].item;
        if (item != NULL && item->kind == CPU_ITEM_LAUNCH) {
            atomic_store_explicit(&item->u.launch->launch.failed, 0, memory_order_relaxed);
            item->u.launch->launch.failure[0] = '\0';
        } else if (item != NULL && item->kind == CPU_ITEM_CONTROL) {
            const struct cpu_control *control = item->u.control;
            for (uint32_t k = 0; k < control->what.body_count; k++) {
                clear_nodes(control->bodies[k]);
            }
        }
    }
}

void gpu_cpu_graph_prepare(struct backend_graph *graph, struct cpu_item *run) {
    patches_apply(graph, run->u.run.patches);
    run->u.run.patches = NULL;
    if (atomic_load_explicit(&graph->has_failed, memory_order_relaxed)) {
        atomic_store_explicit(&graph->has_failed, false, memory_order_relaxed);
        clear_nodes(graph);
    }
}

/* Most lanes begin with a wait for a node on another: they park here, without a worker coming by,
 * unless the node is over already. One whose last run somebody is just leaving is his. */
static void lane_start(const struct cpu_lane *lane, int priority) {
    struct backend_stream *stream = lane->stream;
    struct cpu_item *first = lane->first;
    pthread_mutex_lock(&stream->lock);
    bool was_active = stream->is_active;
    bool can_park = !was_active && first->kind == CPU_ITEM_WAIT;
    stream->priority = priority;
    stream->head = can_park ? first->next : first;
    stream->tail = lane->last;
    stream->is_active = true;
    pthread_mutex_unlock(&stream->lock);
    if (!was_active && !(can_park && gpu_cpu_ticket_park(first->u.ticket, stream))) {
        gpu_cpu_pool_ready(stream);
    }
}

void gpu_cpu_graph_run(struct backend_stream *stream, struct backend_graph *graph) {
    const struct cpu_lane *own = &graph->lanes[0];
    for (size_t i = 0; i < graph->ticket_count; i++) {
        atomic_store_explicit(&graph->tickets[i].parked, NULL, memory_order_relaxed);
    }
    for (uint32_t i = 1; i < graph->lane_count; i++) {
        lane_start(&graph->lanes[i], stream->priority);
    }
    if (graph->lane_count == 0 || own->first == NULL) {
        return;
    }
    pthread_mutex_lock(&stream->lock);
    own->last->next = stream->head;
    if (stream->head == NULL) {
        stream->tail = own->last;
    }
    stream->head = own->first;
    pthread_mutex_unlock(&stream->lock);
}

void gpu_cpu_graph_start(struct backend_stream *stream, struct cpu_item *item) {
    struct backend_graph *graph = item->u.run.graph;
    gpu_cpu_graph_prepare(graph, item);
    graph->slot = stream->slot;
    graph->seq = item->seq;
    gpu_cpu_graph_run(stream, graph);
}

bool gpu_cpu_graph_has_failed(const struct backend_graph *graph) {
    return atomic_load_explicit(&graph->has_failed, memory_order_relaxed);
}

bool gpu_cpu_graph_fail(struct backend_graph *graph, uint32_t *slot, uint64_t *seq) {
    *slot = graph->slot;
    *seq = graph->seq;
    return !atomic_exchange_explicit(&graph->has_failed, true, memory_order_relaxed);
}
