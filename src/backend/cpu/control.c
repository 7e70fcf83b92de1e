/* Conditional nodes of graphs on the CPU device (see graph.h).
 *
 * Nobody waits for a body: what of it is the launching stream's is put in front of what is left
 * there, as a graph's is, so that it takes no worker of its own, however deep bodies lie in bodies.
 * A loop puts its own item behind the body, and looks at the value again when it comes there. */
#include <assert.h>
#include <stdlib.h>

#include "backend/cpu/graph.h"

/* ---- putting one together ---- */

static struct cpu_control *control_make(struct backend_graph *graph,
                                        const struct backend_control *what) {
    struct cpu_control *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return NULL;
    }
    made->what = *what;
    made->bodies = calloc(what->body_count, sizeof *made->bodies);
    bool good = made->bodies != NULL;
    for (uint32_t i = 0; good && i < what->body_count; i++) {
        struct backend_graph *body = calloc(1, sizeof *body);
        made->bodies[i] = body;
        good = body != NULL;
        if (good) {
            body->device = graph->device;
            body->root = graph;
            body->outer = graph->open;
            body->control = made;
            body->body = i;
        }
    }
    if (!good) {
        gpu_cpu_control_destroy(graph->device, made);
        return NULL;
    }
    return made;
}

void gpu_cpu_control_destroy(struct backend_device *device, struct cpu_control *control) {
    for (uint32_t i = 0; control->bodies != NULL && i < control->what.body_count; i++) {
        gpu_cpu_graph_free(device, control->bodies[i]);
    }
    free((void *)control->bodies);
    free(control);
}

gpulua_status gpu_cpu_graph_control(struct backend_graph *graph,
                                    const struct backend_control *control,
                                    struct backend_error *error) {
    struct cpu_item *item = gpu_cpu_item_make(graph->recorder, CPU_ITEM_CONTROL, 0, 0);
    struct cpu_control *made = item != NULL ? control_make(graph, control) : NULL;
    if (made == NULL) {
        free(item);
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "out of memory");
    }
    item->u.control = made;
    gpu_cpu_graph_take(graph, item);
    graph->open = made->bodies[0];
    return GPULUA_OK;
}

gpulua_status gpu_cpu_graph_body_end(struct backend_graph *graph, struct backend_error *error) {
    struct backend_graph *body = graph->open;
    assert(body != graph);
    const struct cpu_control *control = body->control;
    gpulua_status status = gpu_cpu_graph_seal(body, error);
    bool is_last = body->body + 1 == control->what.body_count;
    graph->open = is_last ? body->outer : control->bodies[body->body + 1];
    return status;
}

/* ---- a run ---- */

struct backend_graph *gpu_cpu_control_choose(const struct cpu_control *control) {
    const struct backend_control *what = &control->what;
    uint32_t number =
        gpu_wire_control_choose((uint32_t)what->kind, what->body_count,
                                (const void *)(uintptr_t)what->address, what->elem_bytes);
    return number < what->body_count ? control->bodies[number] : NULL;
}

/* The item's place in its lane is where it is taken from: what comes behind it there is at the
 * head, so that its link stays what it is. */
static void put_again(struct backend_stream *stream, struct cpu_item *item) {
    pthread_mutex_lock(&stream->lock);
    item->next = stream->head;
    if (stream->head == NULL) {
        stream->tail = item;
    }
    stream->head = item;
    pthread_mutex_unlock(&stream->lock);
}

void gpu_cpu_control_start(struct backend_stream *stream, struct cpu_item *item) {
    const struct cpu_control *control = item->u.control;
    struct backend_graph *body = gpu_cpu_control_choose(control);
    if (body == NULL) {
        return;
    }
    if (control->what.kind == WIRE_CONTROL_WHILE) {
        put_again(stream, item);
    }
    gpu_cpu_graph_run(stream, body);
}
