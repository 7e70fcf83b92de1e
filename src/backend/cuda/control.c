/* Conditional nodes of graphs.
 *
 * The driver's decides by a number that only a kernel can set (cudaGraphSetConditional), so a
 * kernel of ours is put in front of it, which reads the value and sets the number; behind all that
 * is in the body of a loop it is put once more. It is shipped as PTX: the function that it calls is
 * none of the toolkit's libraries but the driver's own, which links it when it loads the PTX (ptxas
 * knows its name without any declaration of it elsewhere, and code that nvlink has linked with
 * libcudadevrt names it as undefined still), so that neither the toolkit nor a build for each
 * architecture is needed.
 *
 * A body is captured like a graph, on a stream of its own, into the graph that the driver has made
 * for it (cuStreamBeginCaptureToGraph); the graph's stream stands for that one meanwhile.
 *
 * Until 12.8 the driver's nodes have one body each. There a node with more of them is several, one
 * behind the other, each with a number of its own; all numbers are set in front of all of them, so
 * that what one body does to the value is nothing to the others.
 *
 * In a body each conditional node follows the one before it, whether or not it has to: two of them
 * beside each other in a loop never end (the second turn, with the drivers 580 and 13.0). */
#include <assert.h>
#include <stdlib.h>

#include "backend/cuda/graph.h"
#include "backend/cuda/tracer_nodes.h"

#define CONTROL_DRIVER_VERSION 12040
#define CONTROL_DRIVER_TEXT "12.4 (driver 550)"
#define BRANCHES_DRIVER_VERSION 12080

/* gpulua_choose(handle, address, elem_bytes, mode, first, count). Sets for the value v there: */
enum choose_mode {
    CHOOSE_TRUTH, /* v != 0 */
    CHOOSE_EQUAL, /* v == first */
    CHOOSE_INDEX  /* v - first, or count if that is more */
};
static const char choose_ptx[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);\n"
    ".visible .entry gpulua_choose(\n"
    "  .param .u64 handle, .param .u64 address, .param .u32 elem_bytes,\n"
    "  .param .u32 mode, .param .u32 first, .param .u32 count)\n"
    "{\n"
    "  .reg .pred %p<6>;\n"
    "  .reg .b32 %bytes, %mode, %first, %count, %truth, %equal, %index, %chosen;\n"
    "  .reg .b64 %handle, %address, %value, %low, %high;\n"
    "  ld.param.u64 %handle, [handle];\n"
    "  ld.param.u64 %address, [address];\n"
    "  ld.param.u32 %bytes, [elem_bytes];\n"
    "  ld.param.u32 %mode, [mode];\n"
    "  ld.param.u32 %first, [first];\n"
    "  ld.param.u32 %count, [count];\n"
    "  cvta.to.global.u64 %address, %address;\n"
    "  setp.eq.u32 %p0, %bytes, 1;\n"
    "  @%p0 bra ONE;\n"
    "  setp.eq.u32 %p1, %bytes, 2;\n"
    "  @%p1 bra TWO;\n"
    "  setp.eq.u32 %p2, %bytes, 4;\n"
    "  @%p2 bra FOUR;\n"
    "  ld.global.u64 %value, [%address];\n"
    "  bra READ;\n"
    "ONE:\n"
    "  ld.global.u8 %value, [%address];\n"
    "  bra READ;\n"
    "TWO:\n"
    "  ld.global.u16 %value, [%address];\n"
    "  bra READ;\n"
    "FOUR:\n"
    "  ld.global.u32 %value, [%address];\n"
    "READ:\n"
    "  setp.ne.u64 %p3, %value, 0;\n"
    "  selp.u32 %truth, 1, 0, %p3;\n"
    "  cvt.u64.u32 %low, %first;\n"
    "  sub.u64 %value, %value, %low;\n"
    "  setp.eq.u64 %p4, %value, 0;\n"
    "  selp.u32 %equal, 1, 0, %p4;\n"
    "  cvt.u64.u32 %high, %count;\n"
    "  min.u64 %value, %value, %high;\n"
    "  cvt.u32.u64 %index, %value;\n"
    "  setp.eq.u32 %p5, %mode, 1;\n"
    "  selp.u32 %chosen, %equal, %index, %p5;\n"
    "  setp.eq.u32 %p5, %mode, 0;\n"
    "  selp.u32 %chosen, %truth, %chosen, %p5;\n"
    "  {\n"
    "    .param .b64 to;\n"
    "    .param .b32 number;\n"
    "    st.param.b64 [to], %handle;\n"
    "    st.param.b32 [number], %chosen;\n"
    "    call.uni cudaGraphSetConditional, (to, number);\n"
    "  }\n"
    "  ret;\n"
    "}\n";

/* A node whose bodies are being made, and what the graph was at before. */
struct graph_frame {
    struct graph_frame *outer;
    struct backend_control control;
    CUgraphConditionalHandle handles[WIRE_CONTROL_BODIES_MAX]; /* of a loop: one */
    CUgraph bodies[WIRE_CONTROL_BODIES_MAX];                   /* the driver's */
    uint32_t body;                                             /* the one at hand */
    uint32_t part;                                             /* of the map that it is */
    CUstream stream;
    struct graph_node *nodes;
    uint32_t node_count, node_max;
};

void gpu_cuda_control_init(struct backend_device *device) {
    const struct cuda_driver *cu = &device->cu;
    device->has_control = device->has_graphs && cu->version >= CONTROL_DRIVER_VERSION &&
                          cu->cuStreamBeginCaptureToGraph != NULL &&
                          cu->cuGraphConditionalHandleCreate != NULL && cu->cuGraphAddNode != NULL;
    device->has_branches = device->has_control && cu->version >= BRANCHES_DRIVER_VERSION;
}

gpulua_status gpu_cuda_control_prepare(struct backend_device *device, struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status != GPULUA_OK) {
        return status;
    }
    if (!device->has_control) {
        return gpu_backend_fail(
            error, GPULUA_UNSUPPORTED, 0,
            "conditional nodes of graphs need a CUDA driver of version " CONTROL_DRIVER_TEXT
            " or later: this one is of version %d.%d",
            cu->version / 1000, cu->version % 1000 / 10);
    }
    return gpu_cuda_own_kernel(device, choose_ptx, "gpulua_choose", &device->choose_module,
                               &device->choose_function, error);
}

/* ---- the node ---- */

static gpulua_status choose_put(struct backend_graph *graph, const struct backend_control *control,
                                CUgraphConditionalHandle handle, enum choose_mode mode,
                                uint32_t first, struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    struct {
        uint64_t handle, address;
        uint32_t elem_bytes, mode, first, count;
    } args = {.handle = handle,
              .address = control->address,
              .elem_bytes = control->elem_bytes,
              .mode = (uint32_t)mode,
              .first = first,
              .count = control->body_count};
    size_t args_bytes = sizeof args;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &args, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &args_bytes, CU_LAUNCH_PARAM_END};
    return CU(device, error,
              cu->cuLaunchKernel(device->choose_function, 1, 1, 1, 1, 1, 1, 0, graph->stream.handle,
                                 NULL, extra));
}

/* What of the driver's graph is to be followed now. */
static gpulua_status capture_look(const struct backend_graph *graph, CUgraph *handle,
                                  const CUgraphNode **ends, size_t *end_count,
                                  struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUgraphEdgeData *edges = NULL;
    gpulua_status status = CU(device, error,
                              cu->cuStreamGetCaptureInfo(graph->stream.handle, &capture, NULL,
                                                         handle, ends, &edges, end_count));
    if (status == GPULUA_OK && capture != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        status =
            gpu_backend_fail(error, GPULUA_DRIVER, (int32_t)CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                             "the driver has given up the capture of a graph");
    }
    return status;
}

/* How many of the driver's nodes stand for it, each with so many bodies. */
static uint32_t part_count(const struct backend_device *device,
                           const struct backend_control *control) {
    return device->has_branches ? 1 : control->body_count;
}

static gpulua_status numbers_set(struct backend_graph *graph, struct graph_frame *frame,
                                 CUgraph handle, struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    const struct backend_control *control = &frame->control;
    uint32_t parts = part_count(device, control);
    bool is_switch = control->kind == WIRE_CONTROL_SWITCH;
    gpulua_status status = GPULUA_OK;
    for (uint32_t i = 0; i < parts && status == GPULUA_OK; i++) {
        status = CU(
            device, error,
            cu->cuGraphConditionalHandleCreate(&frame->handles[i], handle, device->context, 0, 0));
    }
    for (uint32_t i = 0; i < parts && status == GPULUA_OK; i++) {
        enum choose_mode mode = is_switch && device->has_branches ? CHOOSE_INDEX
                                : is_switch || i > 0              ? CHOOSE_EQUAL
                                                                  : CHOOSE_TRUTH;
        uint32_t first = is_switch ? i + 1 : 0; /* the second body of an if_ is that for 0 */
        status = choose_put(graph, control, frame->handles[i], mode, first, error);
    }
    return status;
}

static gpulua_status parts_add(struct backend_graph *graph, struct graph_frame *frame,
                               struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    const struct backend_control *control = &frame->control;
    uint32_t parts = part_count(device, control), size = control->body_count / parts;
    CUgraphNode nodes[WIRE_CONTROL_BODIES_MAX];
    CUgraph handle = NULL;
    const CUgraphNode *ends = NULL;
    size_t end_count = 0;
    gpulua_status status = capture_look(graph, &handle, &ends, &end_count, error);
    if (status == GPULUA_OK && end_count != 1) {
        status = gpu_backend_fail(error, GPULUA_DRIVER, 0, "a kernel was captured as %zu nodes",
                                  end_count);
    }
    CUgraphNode before = status == GPULUA_OK ? ends[0] : NULL; /* the last that sets a number */
    for (uint32_t i = 0; i < parts && status == GPULUA_OK; i++) {
        CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
        params.conditional.handle = frame->handles[i];
        params.conditional.type = control->kind == WIRE_CONTROL_WHILE ? CU_GRAPH_COND_TYPE_WHILE
                                  : control->kind == WIRE_CONTROL_SWITCH && device->has_branches
                                      ? CU_GRAPH_COND_TYPE_SWITCH
                                      : CU_GRAPH_COND_TYPE_IF;
        params.conditional.size = size;
        params.conditional.ctx = device->context;
        status =
            CU(device, error, cu->cuGraphAddNode(&nodes[i], handle, &before, NULL, 1, &params));
        before = status == GPULUA_OK ? nodes[i] : before;
        for (uint32_t k = 0; k < size && status == GPULUA_OK; k++) {
            frame->bodies[i * size + k] = params.conditional.phGraph_out[k];
        }
    }
    return status != GPULUA_OK
               ? status
               : CU(device, error,
                    cu->cuStreamUpdateCaptureDependencies(graph->stream.handle, &before, NULL, 1,
                                                          CU_STREAM_SET_CAPTURE_DEPENDENCIES));
}

/* ---- bodies ---- */

/* The graph's stream and nodes are the body's from here on. On failure it has no stream. */
static gpulua_status body_open(struct backend_graph *graph, struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    struct graph_frame *frame = graph->frame;
    CUstream stream = NULL;
    frame->part = gpu_cuda_node_map_begin(graph->map, frame->nodes[frame->node_count - 1].number);
    graph->stream.handle = NULL;
    graph->nodes = NULL;
    graph->node_count = graph->node_max = graph->dep_count = graph->control_count = 0;
    gpulua_status status = CU(device, error,
                              cu->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING,
                                                             device->facts.priority_lowest));
    if (status != GPULUA_OK) {
        return status;
    }
    status = CU(device, error,
                cu->cuStreamBeginCaptureToGraph(stream, frame->bodies[frame->body], NULL, NULL, 0,
                                                CU_STREAM_CAPTURE_MODE_RELAXED));
    if (status != GPULUA_OK) {
        if (device->lost == CUDA_SUCCESS) {
            (void)CU(device, NULL, cu->cuStreamDestroy(stream));
        }
        return status;
    }
    device->capture_count++;
    graph->stream.handle = stream;
    return GPULUA_OK;
}

/* What has been captured is the conditional node's. */
static gpulua_status body_close(struct backend_graph *graph, bool is_well,
                                struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    gpulua_status status = GPULUA_OK;
    CUgraph handle = NULL;
    if (graph->stream.handle != NULL && is_well) {
        status = CU(device, error, cu->cuStreamEndCapture(graph->stream.handle, &handle));
        if (status == GPULUA_OK) {
            const struct graph_frame *frame = graph->frame;
            gpu_cuda_node_map_end(device, graph->map, frame->part, frame->bodies[frame->body],
                                  graph->nodes, graph->node_count);
        }
        if (device->lost == CUDA_SUCCESS) {
            (void)CU(device, NULL, cu->cuStreamDestroy(graph->stream.handle));
        }
    }
    device->capture_count -= graph->stream.handle != NULL;
    free(graph->nodes);
    graph->stream.handle = NULL;
    graph->nodes = NULL;
    return status;
}

static void frame_pop(struct backend_graph *graph) {
    struct graph_frame *frame = graph->frame;
    graph->stream.handle = frame->stream;
    graph->nodes = frame->nodes;
    graph->node_count = frame->node_count;
    graph->node_max = frame->node_max;
    graph->dep_count = 0; /* they were the body's */
    graph->control_count = graph->node_count;
    graph->frame = frame->outer;
    free(frame);
}

void gpu_cuda_control_abandon(struct backend_graph *graph, bool is_well) {
    while (graph->frame != NULL) {
        (void)body_close(graph, is_well && graph->device->lost == CUDA_SUCCESS, NULL);
        frame_pop(graph);
    }
}

/* Behind all that nothing in the body follows. */
static gpulua_status loop_close(struct backend_graph *graph, struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    gpulua_status status = gpu_cuda_graph_settle(graph, error);
    if (status == GPULUA_OK) {
        status = gpu_cuda_graph_reserve(graph, graph->node_count, error);
    }
    if (status != GPULUA_OK) {
        return status;
    }
    graph->dep_count = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct graph_node *node = &graph->nodes[i];
        if (node->handle != NULL && node->same_as == i && node->taken_by == 0) {
            graph->deps[graph->dep_count++] = node->handle;
        }
    }
    status = CU(device, error,
                cu->cuStreamUpdateCaptureDependencies(graph->stream.handle, graph->deps, NULL,
                                                      graph->dep_count,
                                                      CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    return status == GPULUA_OK ? choose_put(graph, &graph->frame->control, graph->frame->handles[0],
                                            CHOOSE_TRUTH, 0, error)
                               : status;
}

/* ---- slots ---- */

/* The node at hand follows the body's last conditional one, if it does not yet. */
static gpulua_status follow_last(struct backend_graph *graph, struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    struct graph_node *last = graph->frame != NULL && graph->control_count > 0
                                  ? &graph->nodes[graph->control_count - 1]
                                  : NULL;
    if (last == NULL || last->handle == NULL || last->taken_by == graph->node_count) {
        return GPULUA_OK;
    }
    last->taken_by = graph->node_count;
    return CU(device, error,
              cu->cuStreamUpdateCaptureDependencies(graph->stream.handle, &last->handle, NULL, 1,
                                                    CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
}

static gpulua_status control_begin(struct backend_graph *graph, struct graph_frame *frame,
                                   struct backend_error *error) {
    CUgraph handle = NULL;
    const CUgraphNode *ends = NULL;
    size_t end_count = 0;
    gpulua_status status = follow_last(graph, error);
    if (status == GPULUA_OK) {
        status = capture_look(graph, &handle, &ends, &end_count, error);
    }
    if (status == GPULUA_OK) {
        status = numbers_set(graph, frame, handle, error);
    }
    return status == GPULUA_OK ? parts_add(graph, frame, error) : status;
}

gpulua_status gpu_cuda_graph_control(struct backend_graph *graph,
                                     const struct backend_control *control,
                                     struct backend_error *error) {
    gpulua_status status = gpu_cuda_enter(graph->device, error);
    if (status == GPULUA_OK) {
        status = gpu_cuda_graph_check(graph, GRAPH_CAPTURING, error);
    }
    if (status != GPULUA_OK) {
        return status;
    }
    assert(graph->device->choose_function != NULL && graph->node_count > 0);
    struct graph_frame *frame = calloc(1, sizeof *frame);
    graph->state = GRAPH_FAILED; /* until it is there */
    if (frame == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    frame->control = *control;
    status = control_begin(graph, frame, error);
    if (status != GPULUA_OK) {
        free(frame);
        return status;
    }
    frame->outer = graph->frame;
    frame->stream = graph->stream.handle;
    frame->nodes = graph->nodes;
    frame->node_count = graph->node_count;
    frame->node_max = graph->node_max;
    graph->frame = frame;
    status = body_open(graph, error);
    if (status == GPULUA_OK) {
        graph->state = GRAPH_CAPTURING;
    }
    return status;
}

gpulua_status gpu_cuda_graph_body_end(struct backend_graph *graph, struct backend_error *error) {
    gpulua_status status = gpu_cuda_enter(graph->device, error);
    if (status == GPULUA_OK) {
        status = gpu_cuda_graph_check(graph, GRAPH_CAPTURING, error);
    }
    if (status != GPULUA_OK) {
        return status;
    }
    struct graph_frame *frame = graph->frame;
    assert(frame != NULL);
    graph->state = GRAPH_FAILED; /* until it is at the next */
    status = frame->control.kind == WIRE_CONTROL_WHILE ? loop_close(graph, error)
                                                       : gpu_cuda_graph_settle(graph, error);
    if (status == GPULUA_OK) {
        status = body_close(graph, true, error);
    }
    if (status == GPULUA_OK && ++frame->body < frame->control.body_count) {
        status = body_open(graph, error);
    } else if (status == GPULUA_OK) {
        frame_pop(graph);
    }
    if (status == GPULUA_OK) {
        graph->state = GRAPH_CAPTURING;
    }
    return status;
}
