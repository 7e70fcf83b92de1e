/* What loading code waits for, and who waits for it: a kernel spins for SPIN_MS, and meanwhile a
 * module is loaded; the same on a thread of its own, beside launches of this one. Times in ms.
 *
 *     build/bench/load */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "measure.h"

#if __has_include(<cuda.h>)
#include <cuda.h>

#define SPIN_MS 300u

#define DRIVER(X) X(cuCtxGetCurrent, CUresult, (CUcontext *))

#include "driver.h"

static const char spin_ptx[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                               ".visible .entry spin(.param .u64 ns) {\n"
                               "  .reg .u64 %begun, %now, %most; .reg .pred %goes_on;\n"
                               "  ld.param.u64 %most, [ns];\n"
                               "  mov.u64 %begun, %globaltimer;\n"
                               "AGAIN:\n"
                               "  mov.u64 %now, %globaltimer; sub.u64 %now, %now, %begun;\n"
                               "  setp.lt.u64 %goes_on, %now, %most;\n"
                               "  @%goes_on bra AGAIN;\n"
                               "  ret; }\n"
                               ".visible .entry nothing() { ret; }\n";

static CUcontext context;
static CUstream busy, other;
static CUfunction spin, nothing;
static double load_ms;

static double ms_since(double start_ns) {
    return (now_ns() - start_ns) / 1e6;
}

static void launch(CUfunction kernel, CUstream stream, uint64_t ns) {
    void *args[] = {&ns};
    CK(p_cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, kernel == spin ? args : NULL, NULL));
}

/* Never the same module twice. */
static void *load(void *unused) {
    static int count;
    char ptx[200];
    CUmodule module;
    snprintf(ptx, sizeof ptx,
             ".version 7.0\n.target sm_50\n.address_size 64\n"
             ".visible .entry k(.param .u64 p) { .reg .u64 %%p; ld.param.u64 %%p, [p];"
             " st.global.u32 [%%p], %d; ret; }\n",
             (int)getpid() * 10 + count++);
    (void)unused;
    CK(p_cuCtxSetCurrent(context));
    double start = now_ns();
    CK(p_cuModuleLoadData(&module, ptx));
    load_ms = ms_since(start);
    return NULL;
}

int main(void) {
    CUmodule module;
    pthread_t loader;
    if (!driver_open()) {
        return 0;
    }
    CK(p_cuCtxGetCurrent(&context));
    CK(p_cuModuleLoadData(&module, spin_ptx));
    CK(p_cuModuleGetFunction(&spin, module, "spin"));
    CK(p_cuModuleGetFunction(&nothing, module, "nothing"));
    CK(p_cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
    CK(p_cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    launch(spin, busy, 1);
    launch(nothing, other, 0);
    CK(p_cuStreamSynchronize(busy));
    CK(p_cuStreamSynchronize(other));
    load(NULL);
    printf("load_idle %.2f ms\n", load_ms);
    launch(spin, busy, SPIN_MS * UINT64_C(1000000));
    load(NULL);
    CK(p_cuStreamSynchronize(busy));
    printf("load_while_%u_ms_run %.2f ms\n", SPIN_MS, load_ms);

    double longest_ms = 0;
    launch(spin, busy, SPIN_MS * UINT64_C(1000000));
    if (pthread_create(&loader, NULL, load, NULL) != 0) {
        return 1;
    }
    for (double begun = now_ns(); ms_since(begun) < SPIN_MS;) {
        double start = now_ns();
        launch(nothing, other, 0);
        longest_ms = ms_since(start) > longest_ms ? ms_since(start) : longest_ms;
        usleep(1000);
    }
    pthread_join(loader, NULL);
    CK(p_cuStreamSynchronize(busy));
    CK(p_cuStreamSynchronize(other));
    printf("launch_beside_a_thread_that_loads %.2f ms, which took %.2f ms\n", longest_ms, load_ms);
    return 0;
}
#else
int main(void) {
    puts("# built without cuda.h");
    return 0;
}
#endif
