/* Graphs with the CUDA driver alone, in C: what bench/graphs.lua is measured against. With that
 * script as its argument it runs it and has it launch the driver's graphs between its own
 * (between.h).
 *
 * A program is a number of kernels, dealt out in turn to chains that share nothing. It is captured
 * from one stream, as everybody does it, which gives one chain; and put together by hand with the
 * true edges. Prints `name value unit` lines (medians). The driver is opened with dlopen, so the
 * program builds anywhere and says so where there is no GPU. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"

#if __has_include(<cuda.h>)
#include <cuda.h>

#define REPEATS 15
#define BURST 20
#define CHAINS_MAX 64
#define NODES_MAX 128
#define PLACES 16

/* bench/tick.ptx: x[thread] += 1, after so many ticks of the clock. Run it from the tree's root. */
static char tick_ptx[4096];

static int read_kernel(void) {
    FILE *file = fopen("bench/tick.ptx", "r");
    size_t bytes = file ? fread(tick_ptx, 1, sizeof tick_ptx - 1, file) : 0;
    if (file) {
        fclose(file);
    }
    return bytes > 0;
}

#define DRIVER(X)                                                                                  \
    X(cuStreamBeginCapture_v2, CUresult, (CUstream, CUstreamCaptureMode))                          \
    X(cuStreamEndCapture, CUresult, (CUstream, CUgraph *))                                         \
    X(cuGraphCreate, CUresult, (CUgraph *, unsigned))                                              \
    X(cuGraphAddKernelNode_v2, CUresult,                                                           \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS_v2 *))   \
    X(cuGraphInstantiateWithFlags, CUresult, (CUgraphExec *, CUgraph, unsigned long long))         \
    X(cuGraphLaunch, CUresult, (CUgraphExec, CUstream))                                            \
    X(cuGraphExecKernelNodeSetParams_v2, CUresult,                                                 \
      (CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v2 *))                              \
    X(cuStreamWriteValue64_v2, CUresult, (CUstream, CUdeviceptr, cuuint64_t, unsigned))            \
    X(cuMemHostAlloc, CUresult, (void **, size_t, unsigned))                                       \
    X(cuMemHostGetDevicePointer_v2, CUresult, (CUdeviceptr *, void *, unsigned))                   \
    X(cuGraphExecDestroy, CUresult, (CUgraphExec))                                                 \
    X(cuGraphDestroy, CUresult, (CUgraph))

#include "between.h"
#include "driver.h"
#include "host/dlpack.h"

static CUstream stream;
static CUfunction tick;
static CUevent events[BURST];
static CUdeviceptr buffers[CHAINS_MAX], word;
static double captured_ns; /* of the capture before */

static CUgraph captured(int nodes, int chains, uint64_t ticks) {
    CUgraph graph;
    double start = now_ns();
    CK(p_cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < nodes; i++) {
        void *args[] = {&buffers[i % chains], &ticks};
        CK(p_cuLaunchKernel(tick, 1, 1, 1, 32, 1, 1, 0, stream, args, NULL));
    }
    CK(p_cuStreamEndCapture(stream, &graph));
    captured_ns = now_ns() - start;
    return graph;
}

static CUgraphNode made[NODES_MAX]; /* of the newest of these */

static CUgraph by_hand_on(const CUdeviceptr *on, int nodes, int chains, uint64_t ticks) {
    CUgraph graph;
    CK(p_cuGraphCreate(&graph, 0));
    for (int i = 0; i < nodes; i++) {
        CUdeviceptr buffer = on[i % chains];
        void *args[] = {&buffer, &ticks};
        CUDA_KERNEL_NODE_PARAMS_v2 params = driver_node(tick, args);
        CK(p_cuGraphAddKernelNode_v2(&made[i], graph, i < chains ? NULL : &made[i - chains],
                                     i < chains ? 0 : 1, &params));
    }
    return graph;
}

static CUgraph by_hand(int nodes, int chains, uint64_t ticks) {
    return by_hand_on(buffers, nodes, chains, ticks);
}

/* What lies behind each launch: nothing; an event, by which somebody could tell when it is over;
 * behind every eighth alone a word, as gpulua writes it behind work that differs, so that
 * no more than eight can be suspects; both. */
static const char *const behind_names[] = {"", "_with_event", "_with_words", "_with_both"};
enum { BEHIND_NOTHING, BEHIND_EVENT, BEHIND_WORD, BEHIND_BOTH, BEHIND_COUNT };
#define LAUNCHES_PER_WORD 8

static double launch_many(CUgraphExec exec, int count, int behind, double *enqueue_ns) {
    double start = now_ns();
    for (int i = 0; i < count; i++) {
        CK(p_cuGraphLaunch(exec, stream));
        if (behind == BEHIND_EVENT || behind == BEHIND_BOTH) {
            CK(p_cuEventRecord(events[i % BURST], stream));
        }
        if (behind >= BEHIND_WORD && i % LAUNCHES_PER_WORD == LAUNCHES_PER_WORD - 1) {
            CK(p_cuStreamWriteValue64_v2(stream, word, (cuuint64_t)i,
                                         CU_STREAM_WRITE_VALUE_DEFAULT));
        }
    }
    *enqueue_ns = (now_ns() - start) / count;
    CK(p_cuStreamSynchronize(stream));
    return (now_ns() - start) / count;
}

/* Enqueueing a launch of it, while the device has room; and a launch of many, until all are over.
 */
static void measure(const char *name, CUgraph graph, int replays) {
    CUgraphExec exec;
    double enqueue[BEHIND_COUNT][REPEATS], replay[BEHIND_COUNT][REPEATS], unused;
    CK(p_cuGraphInstantiateWithFlags(&exec, graph, 0));
    CK(p_cuGraphLaunch(exec, stream));
    CK(p_cuStreamSynchronize(stream));
    for (int r = 0; r < REPEATS; r++) {
        for (int behind = 0; behind < BEHIND_COUNT; behind++) {
            (void)launch_many(exec, BURST, behind, &enqueue[behind][r]);
            replay[behind][r] = launch_many(exec, replays, behind, &unused);
        }
    }
    for (int behind = 0; behind < BEHIND_COUNT; behind++) {
        printf("%s_enqueue%s %.0f ns\n%s_replay%s %.2f us\n", name, behind_names[behind],
               median(enqueue[behind], REPEATS), name, behind_names[behind],
               median(replay[behind], REPEATS) / 1000);
    }
    CK(p_cuGraphExecDestroy(exec));
    CK(p_cuGraphDestroy(graph));
}

/* A kernel takes as long as its memory lies far from where it runs, so each of some buffers. */
static void measure_places(void) {
    double least = INFINITY, most = 0, unused;
    for (int i = 0; i < PLACES; i++) {
        CUgraphExec exec;
        CUgraph graph = by_hand_on(&buffers[i], 10, 1, 0);
        double replay[REPEATS];
        CK(p_cuGraphInstantiateWithFlags(&exec, graph, 0));
        for (int r = 0; r < REPEATS; r++) {
            replay[r] = launch_many(exec, 200, BEHIND_NOTHING, &unused);
        }
        least = fmin(least, median(replay, REPEATS));
        most = fmax(most, median(replay, REPEATS));
        CK(p_cuGraphExecDestroy(exec));
        CK(p_cuGraphDestroy(graph));
    }
    printf("chain_10_replay_least %.2f us\nchain_10_replay_most %.2f us\n", least / 1000,
           most / 1000);
}

/* Enqueueing a launch of a graph of that many nodes, or more, each of which is given another number
 * before it. */
static double patch_and_launch(CUgraphExec exec, int patched) {
    CK(p_cuGraphLaunch(exec, stream));
    CK(p_cuStreamSynchronize(stream));
    double start = now_ns();
    for (uint64_t i = 0; i < BURST; i++) {
        uint64_t ticks = i % 2;
        void *args[] = {&buffers[0], &ticks};
        CUDA_KERNEL_NODE_PARAMS_v2 params = driver_node(tick, args);
        for (int k = 0; k < patched; k++) {
            CK(p_cuGraphExecKernelNodeSetParams_v2(exec, made[k], &params));
        }
        CK(p_cuGraphLaunch(exec, stream));
    }
    double took_ns = (now_ns() - start) / BURST;
    CK(p_cuStreamSynchronize(stream));
    return took_ns;
}

/* What one number more takes that is given to a node before each launch, of so many. */
static void measure_patches(int nodes) {
    CUgraphExec exec;
    CUgraph graph = by_hand(nodes, 1, 0);
    double values[2][REPEATS];
    CK(p_cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int r = 0; r < REPEATS; r++) {
        values[0][r] = patch_and_launch(exec, 1);
        values[1][r] = patch_and_launch(exec, nodes);
    }
    double one = median(values[0], REPEATS), all = median(values[1], REPEATS);
    printf("patch_%d_first %.0f ns\npatch_%d_each_more %.0f ns\n", nodes, one, nodes,
           (all - one) / (nodes - 1));
    CK(p_cuGraphExecDestroy(exec));
    CK(p_cuGraphDestroy(graph));
}

static void run(void) {
    measure_patches(10);
    measure_patches(100);
    measure_places();
    measure("chain_1", captured(1, 1, 0), 5000);
    measure("chain_10", captured(10, 1, 0), 2000);
    measure("chain_100", captured(100, 1, 0), 300);
    measure("small_4x24_one_chain", captured(96, 4, 0), 300);
    measure("small_4x24", by_hand(96, 4, 0), 1000);
    measure("broad_64", by_hand(64, 64, 0), 1000);
    measure("10us_8x12_one_chain", captured(96, 8, 18000), 30);
    measure("10us_8x12", by_hand(96, 8, 18000), 200);
    double values[REPEATS];
    for (int r = 0; r < REPEATS; r++) {
        CK(p_cuGraphDestroy(captured(100, 1, 0)));
        values[r] = captured_ns;
    }
    printf("capture_100 %.1f us\n", median(values, REPEATS) / 1000);
}

/* Where the buffer lies, which both see under none. */
static CUdeviceptr address_of(lua_State *L, int index) {
    gpulua_buffer *buffer = NULL;
    struct DLManagedTensorVersioned *tensor = NULL;
    if (gpulua_to_buffer(L, index, &buffer) || gpulua_dlpack_export(L, buffer, NULL, &tensor)) {
        luaL_error(L, "%s", gpulua_last_error(NULL)->message);
    }
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)tensor->tensor.data;
    tensor->deleter(tensor);
    return address;
}

/* raw.use(n, chains, buffer): the graph that raw.burst launches is one of n kernels, in so many
 * chains; of one chain, on the buffer. */
static CUgraphExec used;
static int raw_use(lua_State *L) {
    static CUgraph graph; /* whose nodes are named by those of it */
    CUdeviceptr on = lua_isnoneornil(L, 3) ? buffers[0] : address_of(L, 3);
    if (used) {
        CK(p_cuGraphExecDestroy(used));
        CK(p_cuGraphDestroy(graph));
    }
    int nodes = (int)luaL_checkinteger(L, 1), chains = (int)luaL_checkinteger(L, 2);
    graph = by_hand_on(chains == 1 ? &on : buffers, nodes, chains, 0);
    CK(p_cuGraphInstantiateWithFlags(&used, graph, 0));
    double unused;
    (void)launch_many(used, 1, BEHIND_NOTHING, &unused);
    return 0;
}

/* raw.patch(n) -> nanoseconds that a launch takes of which n nodes are given another number. */
static int raw_patch(lua_State *L) {
    lua_pushnumber(L, patch_and_launch(used, (int)luaL_checkinteger(L, 1)));
    return 1;
}

/* raw.burst(n) -> nanoseconds that enqueueing each of n launches takes; and all of each, until the
 * last is over. */
static int raw_burst(lua_State *L) {
    double enqueue_ns;
    double all_ns = launch_many(used, (int)luaL_checkinteger(L, 1), BEHIND_NOTHING, &enqueue_ns);
    lua_pushnumber(L, enqueue_ns);
    lua_pushnumber(L, all_ns);
    return 2;
}

int main(int count, char **args) {
    if (!driver_open()) {
        return 0;
    }
    if (!read_kernel()) {
        puts("# bench/tick.ptx cannot be read");
        return 1;
    }
    CUmodule module;
    CK(p_cuModuleLoadData(&module, tick_ptx));
    CK(p_cuModuleGetFunction(&tick, module, "tick"));
    for (int i = 0; i < CHAINS_MAX; i++) {
        CK(p_cuMemAlloc_v2(&buffers[i], 4096));
    }
    CK(p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    void *page;
    CK(p_cuMemHostAlloc(&page, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    CK(p_cuMemHostGetDevicePointer_v2(&word, page, 0));
    for (int i = 0; i < BURST; i++) {
        CK(p_cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
    }
    if (count > 1) {
        static const luaL_Reg raw[] = {
            {"use", raw_use}, {"burst", raw_burst}, {"patch", raw_patch}, {NULL, NULL}};
        return run_between(args[1], raw);
    }
    run();
    return 0;
}
#else
int main(void) {
    puts("# built without cuda.h");
    return 0;
}
#endif
