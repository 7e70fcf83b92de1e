/* Changing nodes of graphs that are there, for launches that come later: see graph.c. */
#include <assert.h>

#include "backend/cuda/graph.h"

/* The node itself is the driver's place in the executable graph. A launch sets its parameters there
 * (gpu_cuda_graph_patch_launch); a copy or a fill is captured once more, alone, and the driver is
 * asked what the node that came of it is. */
gpulua_status gpu_cuda_graph_patch(struct backend_graph *graph, uint32_t node, bool is_launch,
                                   struct backend_error *error) {
    gpulua_status status = gpu_cuda_graph_check(graph, GRAPH_BUILT, error);
    if (status == GPULUA_OK && !is_launch) { /* that asks afterwards, as any launch */
        status = gpu_cuda_enter(graph->device, error);
    }
    if (status != GPULUA_OK) {
        return status;
    }
    assert(node < graph->node_count);
    graph->patched_node = node;
    graph->stream.patched = is_launch ? graph : NULL;
    return is_launch ? GPULUA_OK : gpu_cuda_capture_begin(graph, error);
}

gpulua_status gpu_cuda_graph_patch_launch(struct backend_graph *graph,
                                          const CUDA_KERNEL_NODE_PARAMS_v2 *params,
                                          struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    CUresult result;
    CU_HOT(device, result,
           cu->cuGraphExecKernelNodeSetParams(graph->exec, graph->nodes[graph->patched_node].handle,
                                              params));
    return gpu_cuda_result(device, result, "cuGraphExecKernelNodeSetParams", __FILE__, __LINE__,
                           error);
}

/* `single`: the one node of the graph that has just been captured, of the same kind as `node`. */
static gpulua_status params_set(struct backend_graph *graph, CUgraphNode node, CUgraphNode single,
                                struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY, wanted = CU_GRAPH_NODE_TYPE_EMPTY;
    gpulua_status status = CU(device, error, cu->cuGraphNodeGetType(single, &type));
    if (status == GPULUA_OK) {
        status = CU(device, error, cu->cuGraphNodeGetType(node, &wanted));
    }
    if (status != GPULUA_OK) {
        return status;
    }
    CUDA_KERNEL_NODE_PARAMS_v2 kernel;
    CUDA_MEMCPY3D copy;
    CUDA_MEMSET_NODE_PARAMS fill;
    if (type != wanted) {
        return gpu_backend_fail(error, GPULUA_DRIVER, 0,
                                "the driver makes another kind of node of the work that a node of "
                                "a graph is to do now (%d, was %d)",
                                (int)type, (int)wanted);
    }
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        status = CU(device, error, cu->cuGraphKernelNodeGetParams(single, &kernel));
        return status != GPULUA_OK
                   ? status
                   : CU(device, error,
                        cu->cuGraphExecKernelNodeSetParams(graph->exec, node, &kernel));
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        status = CU(device, error, cu->cuGraphMemcpyNodeGetParams(single, &copy));
        return status != GPULUA_OK ? status
                                   : CU(device, error,
                                        cu->cuGraphExecMemcpyNodeSetParams(graph->exec, node, &copy,
                                                                           device->context));
    case CU_GRAPH_NODE_TYPE_MEMSET:
        status = CU(device, error, cu->cuGraphMemsetNodeGetParams(single, &fill));
        return status != GPULUA_OK ? status
                                   : CU(device, error,
                                        cu->cuGraphExecMemsetNodeSetParams(graph->exec, node, &fill,
                                                                           device->context));
    default:
        return gpu_backend_fail(error, GPULUA_DRIVER, 0,
                                "a node of a graph cannot be changed: it is of kind %d", (int)type);
    }
}

static gpulua_status patch_take(struct backend_graph *graph, CUgraph captured,
                                struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    CUgraphNode single[2];
    size_t count = 2;
    gpulua_status status = CU(device, error, cu->cuGraphGetNodes(captured, single, &count));
    if (status != GPULUA_OK || count == 0) {
        return status; /* nothing, as before */
    }
    CUgraphNode node = graph->nodes[graph->patched_node].handle;
    if (count > 1 || node == NULL) {
        return gpu_backend_fail(error, GPULUA_DRIVER, 0,
                                "the driver makes %zu nodes of what is one of a graph", count);
    }
    return params_set(graph, node, single[0], error);
}

gpulua_status gpu_cuda_graph_patched(struct backend_graph *graph, gpulua_status status,
                                     struct backend_error *error) {
    struct backend_device *device = graph->device;
    const struct cuda_driver *cu = &device->cu;
    if (graph->stream.patched != NULL) {
        graph->stream.patched = NULL;
        return status;
    }
    CUgraph captured = NULL;
    gpulua_status ended =
        gpu_cuda_capture_end(graph, &captured, status == GPULUA_OK ? error : NULL);
    if (status == GPULUA_OK) {
        status = ended;
    }
    if (status == GPULUA_OK) {
        status = patch_take(graph, captured, error);
    }
    if (captured != NULL && device->lost == CUDA_SUCCESS) {
        (void)CU(device, NULL, cu->cuGraphDestroy(captured));
    }
    return status;
}
