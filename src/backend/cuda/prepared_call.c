/* A library's calls that are made again and again with the same arguments.
 *
 * From some time on such a call is launched as an executable graph of what the library puts on a
 * stream for it. To the device that is the same work; on the host it saves what the library does
 * before each launch of its own: choosing kernels and setting them up (measured: docs/results.md).
 * That a call has the same arguments means that it is the same work only of libraries that say so
 * (`calls_repeat`).
 *
 * Nothing depends on them: where one cannot be made, or the driver refuses it, the call itself
 * decides what is wrong. An executable graph that is destroyed while it runs is freed by the driver
 * when it is over (cuGraphExecDestroy). */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/graph.h"
#include "backend/cuda/toolkit.h"

#define PLACES 64u /* calls with different arguments, of a device */
#define NODES_MAX 64u

static_assert(CUDA_PREPARED_STALE > PLACES, "a round of that many calls keeps all");

struct cuda_prepared_calls {
    uint64_t call_count;
    uint64_t
        hashes[PLACES]; /* of the arguments: beside each other, as each call looks through them */
    struct place {
        const struct cuda_toolkit_call *call; /* NULL: free */
        const void *made;                     /* the module's that is called; compared only */
        uint64_t used;                        /* call_count when it was */
        uint32_t heat;                        /* calls, until it is worth it */
        bool is_unfit;                        /* what the call does cannot be prepared */
        CUgraphExec exec;                     /* owned; NULL: not made yet */
        uint32_t args_bytes;
        _Alignas(8) uint8_t args[CUDA_CALL_ARGS_MAX];
    } places[PLACES];
};

static void place_empty(struct backend_device *device, struct place *place) {
    const struct cuda_driver *cu = &device->cu;
    if (place->exec != NULL && gpu_cuda_enter(device, NULL) == GPULUA_OK) {
        (void)CU(device, NULL, cu->cuGraphExecDestroy(place->exec));
    }
    device->prepared_count -= place->exec != NULL;
    *place = (struct place){0};
}

static bool is_of(const struct place *place, const struct backend_kernel *kernel) {
    return place->call == kernel->call && place->made == kernel->call_made;
}

void gpu_cuda_prepared_calls_forget(struct backend_device *device,
                                    const struct backend_kernel *kernel) {
    struct cuda_prepared_calls *calls = device->prepared_calls;
    for (size_t i = 0; calls != NULL && i < PLACES; i++) {
        struct place *place = &calls->places[i];
        if (kernel == NULL || is_of(place, kernel)) {
            place_empty(device, place);
        }
    }
    if (kernel == NULL) {
        free(calls);
        device->prepared_calls = NULL;
    }
}

static uint64_t hash_of(const uint8_t *args, uint32_t bytes) {
    uint64_t hash = bytes;
    for (uint32_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, args + i, bytes - i < 8 ? bytes - i : 8);
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return hash;
}

/* The place of a call with these arguments; one that is free or stale becomes its own. NULL: all
 * are in use. */
static struct place *place_of(struct backend_device *device, const struct backend_launch *launch) {
    struct cuda_prepared_calls *calls = device->prepared_calls;
    uint64_t hash = hash_of(launch->args, launch->args_bytes), now = ++calls->call_count;
    for (size_t i = 0; i < PLACES; i++) {
        struct place *place = &calls->places[i];
        if (calls->hashes[i] == hash && is_of(place, launch->kernel) &&
            place->args_bytes == launch->args_bytes &&
            memcmp(place->args, launch->args, launch->args_bytes) == 0) {
            place->used = now;
            return place;
        }
    }
    size_t oldest = 0;
    for (size_t i = 1; i < PLACES; i++) {
        oldest = calls->places[i].used < calls->places[oldest].used ? i : oldest;
    }
    struct place *place = &calls->places[oldest];
    if (place->call != NULL && now - place->used < CUDA_PREPARED_STALE) {
        return NULL;
    }
    place_empty(device, place);
    calls->hashes[oldest] = hash;
    place->call = launch->kernel->call;
    place->made = launch->kernel->call_made;
    place->used = now;
    place->args_bytes = launch->args_bytes;
    memcpy(place->args, launch->args, launch->args_bytes);
    return place;
}

/* Only nodes that may run as often as one likes: memory that the library allocates itself may not.
 * And there has to be one. */
static bool is_fit(struct backend_device *device, CUgraph graph) {
    const struct cuda_driver *cu = &device->cu;
    CUgraphNode nodes[NODES_MAX];
    size_t count = 0;
    if (cu->cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0 ||
        count > NODES_MAX || cu->cuGraphGetNodes(graph, nodes, &count) != CUDA_SUCCESS) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type;
        if (cu->cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS ||
            (type != CU_GRAPH_NODE_TYPE_KERNEL && type != CU_GRAPH_NODE_TYPE_MEMCPY &&
             type != CU_GRAPH_NODE_TYPE_MEMSET && type != CU_GRAPH_NODE_TYPE_EMPTY)) {
            return false;
        }
    }
    return true;
}

/* Puts what the call does into place->exec; left NULL where that cannot be. */
static void place_make(const struct backend_launch *launch, struct place *place) {
    struct backend_device *device = launch->kernel->device;
    const struct cuda_driver *cu = &device->cu;
    struct backend_graph capture = {.device = device,
                                    .stream = {.device = device, .is_captured = true}};
    CUgraph captured = NULL;
    struct backend_error error;
    gpu_backend_error_init(&error);
    if (gpu_cuda_enter(device, NULL) != GPULUA_OK ||
        gpu_cuda_capture_begin(&capture, NULL) != GPULUA_OK) {
        return;
    }
    gpulua_status status =
        gpu_cuda_toolkit_call(launch, &capture.stream, &error); /* not on launch->stream */
    free(error.log);
    if (gpu_cuda_capture_end(&capture, &captured, NULL) == GPULUA_OK && status == GPULUA_OK &&
        is_fit(device, captured) &&
        cu->cuGraphInstantiateWithFlags(&place->exec, captured, 0) != CUDA_SUCCESS) {
        place->exec = NULL;
    }
    if (captured != NULL && device->lost == CUDA_SUCCESS) {
        (void)CU(device, NULL, cu->cuGraphDestroy(captured));
    }
    device->prepared_count += place->exec != NULL;
}

bool gpu_cuda_prepared_call(const struct backend_launch *launch) {
    struct backend_device *device = launch->kernel->device;
    const struct cuda_driver *cu = &device->cu;
    if (!device->has_prepared || !device->has_graphs || device->lost != CUDA_SUCCESS) {
        return false;
    }
    if (device->prepared_calls == NULL) {
        device->prepared_calls = calloc(1, sizeof *device->prepared_calls);
        if (device->prepared_calls == NULL) {
            return false;
        }
    }
    struct place *place = place_of(device, launch);
    if (place == NULL || place->is_unfit) {
        return false;
    }
    if (place->exec == NULL) {
        if (place->heat++ < CUDA_PREPARED_AFTER || device->prepared_count >= CUDA_PREPARED_MAX) {
            return false;
        }
        place_make(launch, place);
        place->is_unfit = place->exec == NULL;
        if (place->is_unfit) {
            return false;
        }
    }
    CUresult result;
    CU_HOT(device, result, cu->cuGraphLaunch(place->exec, launch->stream->handle));
    return gpu_cuda_result(device, result, "cuGraphLaunch", __FILE__, __LINE__, NULL) == GPULUA_OK;
}
