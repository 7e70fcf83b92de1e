/* Graphs: captured from a stream of their own, so that the work slots make nodes by the same calls
 * that do the work elsewhere. What follows what is not taken from the order on that stream: before
 * each node the driver is told what the next call is to follow (cuStreamUpdateCaptureDependencies),
 * and behind it what that call has made is asked (cuStreamGetCaptureInfo).
 *
 * Each node stands for at most one node of the driver's. Where work made several that nothing
 * joins, or where a node without work has several dependencies, an empty node joins them: n nodes
 * behind m others through a node without work are then n + m edges and not n * m.
 *
 * The capture is a relaxed one (CU_STREAM_CAPTURE_MODE_RELAXED): it forbids no call on other
 * streams, may be ended from any thread, and the stream, being non-blocking, has nothing to do with
 * the default one. What it still forbids is to query or wait for the stream or the context
 * (capture_count). A call on the stream that the driver refuses ends the capture: nothing of the
 * graph can be used any more, and cuStreamEndCapture hands out none. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "backend/cuda/graph.h"
#include "backend/cuda/tracer.h"
#include "backend/cuda/tracer_nodes.h"

#define GRAPH_DRIVER_VERSION 12030 /* that of the newest entry point */
#define GRAPH_DRIVER_TEXT "12.3 (driver 545)"
#define GRAPH_NODES_MAX (UINT32_MAX / 4)

/* The version is looked at, too: a driver that is asked for a newer version of an entry point than
 * it has may hand out an older one with other parameters. */
void gpu_cuda_graphs_init(struct backend_device *device) {
    const struct cuda_driver *cu = &device->cu;
    device->has_graphs =
        cu->version >= GRAPH_DRIVER_VERSION && cu->cuStreamBeginCapture != NULL &&
        cu->cuStreamEndCapture != NULL && cu->cuStreamGetCaptureInfo != NULL &&
        cu->cuStreamUpdateCaptureDependencies != NULL && cu->cuGraphAddEmptyNode != NULL &&
        cu->cuGraphInstantiateWithFlags != NULL && cu->cuGraphUpload != NULL &&
        cu->cuGraphLaunch != NULL && cu->cuGraphExecDestroy != NULL && cu->cuGraphDestroy != NULL &&
        cu->cuGraphGetNodes != NULL && cu->cuGraphNodeGetType != NULL &&
        cu->cuGraphKernelNodeGetParams != NULL && cu->cuGraphExecKernelNodeSetParams != NULL &&
        cu->cuGraphMemcpyNodeGetParams != NULL && cu->cuGraphExecMemcpyNodeSetParams != NULL &&
        cu->cuGraphMemsetNodeGetParams != NULL && cu->cuGraphExecMemsetNodeSetParams != NULL;
}

/* ---- making ---- */

/* The priority is of no importance: a graph runs with that of the stream it is launched on. */
gpulua_status gpu_cuda_capture_begin(struct backend_graph *graph, struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    gpulua_status status =
        CU(device, error,
           cu->cuStreamCreateWithPriority(&graph->stream.handle, CU_STREAM_NON_BLOCKING,
                                          device->facts.priority_lowest));
    if (status != GPULUA_OK) {
        graph->stream.handle = NULL;
        return status;
    }
    status = CU(device, error,
                cu->cuStreamBeginCapture(graph->stream.handle, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (status != GPULUA_OK) {
        if (device->lost == CUDA_SUCCESS) {
            (void)CU(device, NULL, cu->cuStreamDestroy(graph->stream.handle));
        }
        graph->stream.handle = NULL;
        return status;
    }
    device->capture_count++;
    return GPULUA_OK;
}

/* The stream is captured no more; what has been captured is in *captured if all is well. */
gpulua_status gpu_cuda_capture_end(struct backend_graph *graph, CUgraph *captured,
                                   struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    gpulua_status status =
        CU(device, error, cu->cuStreamEndCapture(graph->stream.handle, captured));
    if (status != GPULUA_OK) {
        *captured = NULL;
    } else if (*captured == NULL) {
        status = gpu_backend_fail(error, GPULUA_DRIVER, 0, "cuStreamEndCapture gave no graph");
    }
    if (device->lost == CUDA_SUCCESS) {
        (void)CU(device, NULL, cu->cuStreamDestroy(graph->stream.handle));
    }
    graph->stream.handle = NULL;
    device->capture_count--;
    return status;
}

gpulua_status gpu_cuda_graph_check(const struct backend_graph *graph, enum graph_state wanted,
                                   struct backend_error *error) {
    static const char *const are[] = {[GRAPH_CAPTURING] = "is still being made",
                                      [GRAPH_BUILT] = "is made already",
                                      [GRAPH_FAILED] = "could not be made"};
    return graph->state == wanted ? GPULUA_OK
                                  : gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                                     "the graph %s", are[graph->state]);
}

gpulua_status gpu_cuda_graph_begin(struct backend_device *device, struct backend_graph **graph,
                                   struct backend_stream **stream, struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status != GPULUA_OK) {
        return status;
    }
    if (!device->has_graphs) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                                "graphs need a CUDA driver of version " GRAPH_DRIVER_TEXT
                                " or later: this one is of version %d.%d",
                                cu->version / 1000, cu->version % 1000 / 10);
    }
    /* Loading code may wait for the context. Without the kernel some fills fail, when they come. */
    if (gpu_cuda_fill_prepare(device, NULL) == GPULUA_DEVICE_LOST) {
        return gpu_cuda_lost(device, error);
    }
    struct backend_graph *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    made->device = device;
    made->stream.device = device;
    made->stream.is_captured = true;
    status = gpu_cuda_capture_begin(made, error);
    if (status != GPULUA_OK) {
        free(made);
        return status;
    }
    made->map = gpu_cuda_node_map(device);
    gpu_cuda_link(&device->graphs, &made->link);
    *graph = made;
    *stream = &made->stream;
    return GPULUA_OK;
}

/* What the last node stands for: what is now on the stream to be followed. Data of the edges
 * (kernels that may start before another is over) is dropped: who follows the node follows the end
 * of all of it. */
gpulua_status gpu_cuda_graph_settle(struct backend_graph *graph, struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph handle = NULL;
    const CUgraphNode *ends = NULL;
    const CUgraphEdgeData *edges = NULL;
    size_t end_count = 0;
    gpulua_status status = CU(device, error,
                              cu->cuStreamGetCaptureInfo(graph->stream.handle, &capture, NULL,
                                                         &handle, &ends, &edges, &end_count));
    if (status != GPULUA_OK) {
        return status;
    }
    if (capture != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        return gpu_backend_fail(error, GPULUA_CAPTURE_INVALIDATED,
                                (int32_t)CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                                "the driver has given up the capture of a graph: a call for it was "
                                "refused, or somebody in this process has waited for all of the "
                                "device meanwhile");
    }
    if (graph->node_count == 0 || end_count == 0) {
        return GPULUA_OK;
    }
    struct graph_node *node = &graph->nodes[graph->node_count - 1];
    if (end_count > 1) {
        /* The driver's array may be handed to calls on the graph, says cuStreamGetCaptureInfo. */
        return CU(device, error, cu->cuGraphAddEmptyNode(&node->handle, handle, ends, end_count));
    }
    node->handle = ends[0];
    if (graph->dep_count == 1 && graph->deps[0] == ends[0]) {
        node->same_as = graph->dep_node;
        graph->nodes[graph->dep_node].taken_by = 0; /* nothing of the driver's follows it by that */
    }
    return GPULUA_OK;
}

/* Room for one more node with so many dependencies; deps is not NULL then. */
gpulua_status gpu_cuda_graph_reserve(struct backend_graph *graph, uint32_t dep_count,
                                     struct backend_error *error) {
    if (graph->node_count == graph->node_max) {
        uint32_t max = graph->node_max > 0 ? 2 * graph->node_max : 16;
        struct graph_node *grown =
            max <= GRAPH_NODES_MAX ? realloc(graph->nodes, max * sizeof *grown) : NULL;
        if (grown == NULL) {
            return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0,
                                    "no host memory for a graph of more than %" PRIu32 " nodes",
                                    graph->node_max);
        }
        graph->nodes = grown;
        graph->node_max = max;
    }
    if (graph->deps == NULL || dep_count > graph->dep_max) {
        uint32_t max = dep_count > 16 ? dep_count : 16;
        CUgraphNode *grown = realloc(graph->deps, max * sizeof *grown);
        if (grown == NULL) {
            return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0,
                                    "no host memory for %" PRIu32 " dependencies", dep_count);
        }
        graph->deps = grown;
        graph->dep_max = max;
    }
    return GPULUA_OK;
}

static gpulua_status node_begin(struct backend_graph *graph, const uint32_t *deps,
                                uint32_t dep_count, struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    uint32_t number = graph->node_count;
    gpulua_status status = gpu_cuda_graph_settle(graph, error);
    if (status == GPULUA_OK) {
        status = gpu_cuda_graph_reserve(graph, dep_count, error);
    }
    if (status != GPULUA_OK) {
        return status;
    }
    /* Nodes may stand for the same one of the driver's, which takes each only once. */
    graph->dep_count = 0;
    for (uint32_t i = 0; i < dep_count; i++) {
        assert(deps[i] < number);
        uint32_t first = graph->nodes[deps[i]].same_as;
        struct graph_node *node = &graph->nodes[first];
        if (node->handle != NULL && node->taken_by != number + 1) {
            node->taken_by = number + 1;
            graph->dep_node = first;
            graph->deps[graph->dep_count++] = node->handle;
        }
    }
    status = CU(device, error,
                cu->cuStreamUpdateCaptureDependencies(graph->stream.handle, graph->deps, NULL,
                                                      graph->dep_count,
                                                      CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    if (status == GPULUA_OK) {
        graph->nodes[number] =
            (struct graph_node){.same_as = number, .number = ++graph->told_count};
        graph->node_count++;
    }
    return status;
}

gpulua_status gpu_cuda_graph_node(struct backend_graph *graph, const uint32_t *deps,
                                  uint32_t dep_count, struct backend_error *error) {
    gpulua_status status = gpu_cuda_enter(graph->device, error);
    if (status == GPULUA_OK) {
        status = gpu_cuda_graph_check(graph, GRAPH_CAPTURING, error);
    }
    if (status != GPULUA_OK) {
        return status;
    }
    status = node_begin(graph, deps, dep_count, error);
    if (status != GPULUA_OK) {
        graph->state = GRAPH_FAILED;
    }
    return status;
}

gpulua_status gpu_cuda_graph_end(struct backend_graph *graph, struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status == GPULUA_OK) {
        status = gpu_cuda_graph_check(graph, GRAPH_CAPTURING, error);
    }
    if (status != GPULUA_OK) {
        return status;
    }
    graph->state = GRAPH_FAILED; /* until it is made */
    assert(graph->frame == NULL);
    status = gpu_cuda_graph_settle(graph, error);
    if (status == GPULUA_OK) {
        status = gpu_cuda_capture_end(graph, &graph->handle, error);
    }
    if (status == GPULUA_OK) {
        status = CU(device, error, cu->cuGraphInstantiateWithFlags(&graph->exec, graph->handle, 0));
    }
    if (status == GPULUA_OK) {
        gpu_cuda_node_map_end(device, graph->map, 0, graph->handle, graph->nodes,
                              graph->node_count);
        gpu_cuda_node_map_seal(graph->map);
        graph->state = GRAPH_BUILT;
    } else {
        graph->exec = NULL;
    }
    return status;
}

/* ---- launching ---- */

/* That a launch on another stream comes behind an upload is not among what the driver promises
 * (uploads are in order with launches before them, launches with launches before them): an event
 * sees to it, once. */
gpulua_status gpu_cuda_graph_upload(struct backend_stream *stream, struct backend_graph *graph,
                                    struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    CUevent over = NULL;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status == GPULUA_OK) {
        status = gpu_cuda_graph_check(graph, GRAPH_BUILT, error);
    }
    if (status != GPULUA_OK || graph->is_uploaded) {
        return status;
    }
    status = CU(device, error, cu->cuEventCreate(&over, CU_EVENT_DISABLE_TIMING));
    if (status != GPULUA_OK) {
        return status;
    }
    status = CU(device, error, cu->cuGraphUpload(graph->exec, stream->handle));
    if (status == GPULUA_OK) {
        status = CU(device, error, cu->cuEventRecord(over, stream->handle));
    }
    if (status != GPULUA_OK) {
        if (device->lost == CUDA_SUCCESS) {
            (void)CU(device, NULL, cu->cuEventDestroy(over));
        }
        return status;
    }
    graph->upload_over = over;
    graph->upload_stream = stream;
    graph->is_uploaded = true;
    return GPULUA_OK;
}

static gpulua_status upload_wait(struct backend_graph *graph, const struct backend_stream *stream,
                                 struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status == GPULUA_OK && stream != graph->upload_stream) {
        status = CU(device, error, cu->cuStreamWaitEvent(stream->handle, graph->upload_over, 0));
    }
    return status;
}

/* Behind a launch others wait for that. The driver keeps an event for as long as it is waited for.
 */
static void upload_forget(struct backend_graph *graph) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    (void)CU(device, NULL, cu->cuEventDestroy(graph->upload_over));
    graph->upload_over = NULL;
}

/* "Each launch is ordered behind both any previous work in hStream and any previous launches of
 * hGraphExec" (cuGraphLaunch): two launches of one graph need nothing of ours. A fault inside of it
 * ends the device, as one of a plain launch does, and is seen there. */
gpulua_status gpu_cuda_graph_launch(struct backend_stream *stream, uint64_t seq,
                                    struct backend_graph *graph, struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    (void)seq;
    gpulua_status status = device->lost == CUDA_SUCCESS
                               ? gpu_cuda_graph_check(graph, GRAPH_BUILT, error)
                               : gpu_cuda_lost(device, error);
    if (status == GPULUA_OK && graph->upload_over != NULL) {
        status = upload_wait(graph, stream, error);
    }
    if (status != GPULUA_OK) {
        return status;
    }
    if (__builtin_expect(graph->map != NULL, 0)) {
        gpu_cuda_trace_graph(graph->map);
    }
    CUresult result;
    device->launches_prepared = true;
    CU_HOT(device, result, cu->cuGraphLaunch(graph->exec, stream->handle));
    graph->is_uploaded = graph->is_uploaded || result == CUDA_SUCCESS;
    if (__builtin_expect(graph->upload_over != NULL && result == CUDA_SUCCESS, 0)) {
        upload_forget(graph);
    }
    if (__builtin_expect(result != CUDA_SUCCESS && graph->map != NULL, 0)) {
        gpu_cuda_trace_graph_failed();
    }
    return gpu_cuda_result(device, result, "cuGraphLaunch", __FILE__, __LINE__, error);
}

/* ---- the end ---- */

/* Of a lost device only our own memory is freed. */
void gpu_cuda_graph_destroy(struct backend_device *device, struct backend_graph *graph) {
    const struct cuda_driver *cu = &device->cu;
    if (graph == NULL) {
        return;
    }
    bool is_well = gpu_cuda_enter(device, NULL) == GPULUA_OK;
    gpu_cuda_control_abandon(graph, is_well);
    if (graph->stream.handle != NULL && is_well) {
        (void)gpu_cuda_capture_end(graph, &graph->handle, NULL);
    } else if (graph->stream.handle != NULL) {
        device->capture_count--;
    }
    if (graph->upload_over != NULL && is_well && device->lost == CUDA_SUCCESS) {
        (void)CU(device, NULL, cu->cuEventDestroy(graph->upload_over));
    }
    if (graph->exec != NULL && is_well && device->lost == CUDA_SUCCESS) {
        (void)CU(device, NULL, cu->cuGraphExecDestroy(graph->exec));
    }
    if (graph->handle != NULL && is_well && device->lost == CUDA_SUCCESS) {
        (void)CU(device, NULL, cu->cuGraphDestroy(graph->handle));
    }
    gpu_cuda_unlink(&graph->link);
    gpu_cuda_node_map_drop(graph->map);
    free(graph->nodes);
    free(graph->deps);
    free(graph);
}
