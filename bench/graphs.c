/* Graphs with the CUDA driver alone, in C: what bench/graphs.lua is measured against.
 *
 * A program is a number of kernels, dealt out in turn to chains that share nothing. It is captured
 * from one stream, as everybody does it, which gives one chain; and put together by hand with the
 * true edges. Prints `name value unit` lines (medians). The driver is opened with dlopen, so the
 * program builds anywhere and says so where there is no GPU. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"

#if __has_include(<cuda.h>)
#include <cuda.h>

#define REPEATS 15
#define BURST 20
#define CHAINS_MAX 8
#define NODES_MAX 128

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
    X(cuGraphExecDestroy, CUresult, (CUgraphExec))                                                 \
    X(cuGraphDestroy, CUresult, (CUgraph))

#include "driver.h"

static CUstream stream;
static CUfunction tick;
static CUevent events[BURST];
static CUdeviceptr buffers[CHAINS_MAX];
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

static CUgraph by_hand(int nodes, int chains, uint64_t ticks) {
    CUgraph graph;
    static CUgraphNode made[NODES_MAX];
    CK(p_cuGraphCreate(&graph, 0));
    for (int i = 0; i < nodes; i++) {
        void *args[] = {&buffers[i % chains], &ticks};
        CUDA_KERNEL_NODE_PARAMS_v2 params = driver_node(tick, args);
        CK(p_cuGraphAddKernelNode_v2(&made[i], graph, i < chains ? NULL : &made[i - chains],
                                     i < chains ? 0 : 1, &params));
    }
    return graph;
}

/* Enqueueing a launch of it, while the device has room; a launch of many, until all are over; and
 * both with an event behind each, by which somebody could tell when it is over. */
static void measure(const char *name, CUgraph graph, int replays) {
    CUgraphExec exec;
    double enqueue[REPEATS], watched[REPEATS], replay[REPEATS], watched_replay[REPEATS];
    CK(p_cuGraphInstantiateWithFlags(&exec, graph, 0));
    CK(p_cuGraphLaunch(exec, stream));
    CK(p_cuStreamSynchronize(stream));
    for (int r = 0; r < REPEATS; r++) {
        int burst = BURST;
        double start = now_ns();
        for (int i = 0; i < burst; i++) {
            CK(p_cuGraphLaunch(exec, stream));
        }
        enqueue[r] = (now_ns() - start) / burst;
        CK(p_cuStreamSynchronize(stream));
        start = now_ns();
        for (int i = 0; i < burst; i++) {
            CK(p_cuGraphLaunch(exec, stream));
            CK(p_cuEventRecord(events[i], stream));
        }
        watched[r] = (now_ns() - start) / burst;
        CK(p_cuStreamSynchronize(stream));
        start = now_ns();
        for (int i = 0; i < replays; i++) {
            CK(p_cuGraphLaunch(exec, stream));
        }
        CK(p_cuStreamSynchronize(stream));
        replay[r] = (now_ns() - start) / replays;
        start = now_ns();
        for (int i = 0; i < replays; i++) {
            CK(p_cuGraphLaunch(exec, stream));
            CK(p_cuEventRecord(events[i % BURST], stream));
        }
        CK(p_cuStreamSynchronize(stream));
        watched_replay[r] = (now_ns() - start) / replays;
    }
    printf("%s_enqueue %.0f ns\n%s_enqueue_with_event %.0f ns\n", name, median(enqueue, REPEATS),
           name, median(watched, REPEATS));
    printf("%s_replay %.2f us\n%s_replay_with_event %.2f us\n", name,
           median(replay, REPEATS) / 1000, name, median(watched_replay, REPEATS) / 1000);
    CK(p_cuGraphExecDestroy(exec));
    CK(p_cuGraphDestroy(graph));
}

static void run(void) {
    measure("chain_1", captured(1, 1, 0), 5000);
    measure("chain_10", captured(10, 1, 0), 2000);
    measure("chain_100", captured(100, 1, 0), 300);
    measure("small_4x24_one_chain", captured(96, 4, 0), 300);
    measure("small_4x24", by_hand(96, 4, 0), 1000);
    measure("10us_8x12_one_chain", captured(96, 8, 18000), 30);
    measure("10us_8x12", by_hand(96, 8, 18000), 200);
    double values[REPEATS];
    for (int r = 0; r < REPEATS; r++) {
        CK(p_cuGraphDestroy(captured(100, 1, 0)));
        values[r] = captured_ns;
    }
    printf("capture_100 %.1f us\n", median(values, REPEATS) / 1000);
}

int main(void) {
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
    for (int i = 0; i < BURST; i++) {
        CK(p_cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
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
