/* The floor that gpulua is measured against: the same small work with the CUDA driver alone, in C.
 *
 * Prints `name value unit` lines (medians of repeats); bench/run.sh interleaves this program with
 * gpulua. With bench/script.lua as its argument it runs that and has it make the driver's round
 * trips between its own (between.h), in the context that gpulua has opened: who finds one open
 * shares it, and warms nothing up. The driver is opened with dlopen, so the program builds anywhere
 * and says so where there is no GPU. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "measure.h"

#if __has_include(<cuda.h>)
#include <cuda.h>

#define REPEATS 21

/* saxpy for any GPU of compute capability 5.0 and newer; the driver compiles it. */
static const char *const saxpy_ptx =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry saxpy(.param .u32 n, .param .f32 a, .param .u64 x, .param .u64 y) {\n"
    ".reg .pred %p; .reg .f32 %f<4>; .reg .b32 %r<6>; .reg .b64 %d<6>;\n"
    "ld.param.u32 %r1, [n]; ld.param.f32 %f1, [a]; ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y];\n"
    "mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, "
    "%r4;\n"
    "setp.ge.s32 %p, %r5, %r1; @%p bra DONE;\n"
    "cvta.to.global.u64 %d1, %d1; cvta.to.global.u64 %d2, %d2; mul.wide.s32 %d3, %r5, 4;\n"
    "add.s64 %d4, %d1, %d3; add.s64 %d5, %d2, %d3;\n"
    "ld.global.f32 %f2, [%d4]; ld.global.f32 %f3, [%d5]; fma.rn.f32 %f3, %f1, %f2, %f3;\n"
    "st.global.f32 [%d5], %f3; DONE: ret; }\n";

#define DRIVER(X)                                                                                  \
    X(cuMemsetD8_v2, CUresult, (CUdeviceptr, unsigned char, size_t))                               \
    X(cuMemHostAlloc, CUresult, (void **, size_t, unsigned))                                       \
    X(cuMemHostGetDevicePointer_v2, CUresult, (CUdeviceptr *, void *, unsigned))                   \
    X(cuStreamWaitEvent, CUresult, (CUstream, CUevent, unsigned))                                  \
    X(cuStreamWriteValue64_v2, CUresult, (CUstream, CUdeviceptr, cuuint64_t, unsigned))

#include "between.h"
#include "driver.h"

static void print_median(const char *name, double *values, int count, const char *unit) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    printf("%s %.1f %s\n", name, values[count / 2], unit);
}

static CUstream stream, other_stream;
static CUevent events[2];
static CUfunction saxpy;
static void *args[4], *other_args[4]; /* x and y the other way round */
static volatile uint64_t *word;
static CUdeviceptr word_address;
static uint64_t ticket;

static void launch(void) {
    CK(p_cuLaunchKernel(saxpy, 4, 1, 1, 256, 1, 1, 0, stream, args, NULL));
}

static void round_trip(void) {
    launch();
    CK(p_cuStreamWriteValue64_v2(stream, word_address, ++ticket, 0));
    while (*word < ticket) {}
}

/* Each on the stream that the one before was not on, behind it: fences as one writes them by hand.
 */
static void alternate(int count) {
    for (int i = 0; i < count; i++) {
        CUstream self = i & 1 ? other_stream : stream;
        CK(p_cuStreamWaitEvent(self, events[1 - (i & 1)], 0));
        CK(p_cuLaunchKernel(saxpy, 4, 1, 1, 256, 1, 1, 0, self, i & 1 ? other_args : args, NULL));
        CK(p_cuEventRecord(events[i & 1], self));
    }
    CK(p_cuStreamSynchronize(stream));
    CK(p_cuStreamSynchronize(other_stream));
}

static void measure(void) {
    double values[REPEATS];
    for (int i = 0; i < 2000; i++) {
        launch();
    }
    CK(p_cuStreamSynchronize(stream));
    for (int r = 0; r < REPEATS; r++) {
        double start = now_ns();
        for (int i = 0; i < 500; i++) {
            launch();
        }
        values[r] = (now_ns() - start) / 500;
        CK(p_cuStreamSynchronize(stream));
    }
    print_median("launch_burst", values, REPEATS, "ns");
    for (int r = 0; r < 7; r++) {
        double start = now_ns();
        for (int i = 0; i < 20000; i++) {
            launch();
        }
        CK(p_cuStreamSynchronize(stream));
        values[r] = (now_ns() - start) / 20000;
    }
    print_median("launch_sustained", values, 7, "ns");
    for (int r = 0; r < 7; r++) {
        double start = now_ns();
        alternate(20000);
        values[r] = (now_ns() - start) / 20000;
    }
    print_median("two_streams", values, 7, "ns");
    for (int r = 0; r < REPEATS; r++) {
        double start = now_ns();
        for (int i = 0; i < 200; i++) {
            round_trip();
        }
        values[r] = (now_ns() - start) / 200;
    }
    print_median("round_trip", values, REPEATS, "ns");
    for (int r = 0; r < REPEATS; r++) {
        usleep(10000);
        double start = now_ns();
        round_trip();
        values[r] = now_ns() - start;
    }
    print_median("round_trip_idle", values, REPEATS, "ns");
}

static bool prepare(void) {
    static CUdeviceptr x, y;
    static int n = 1024;
    static float a = 2;
    CUmodule module;
    if (!driver_open()) {
        return false;
    }
    CK(p_cuModuleLoadData(&module, saxpy_ptx));
    CK(p_cuModuleGetFunction(&saxpy, module, "saxpy"));
    CK(p_cuMemAlloc_v2(&x, 4096));
    CK(p_cuMemAlloc_v2(&y, 4096));
    CK(p_cuMemsetD8_v2(x, 0, 4096));
    CK(p_cuMemsetD8_v2(y, 0, 4096));
    CK(p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CK(p_cuMemHostAlloc((void **)(uintptr_t)&word, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    CK(p_cuMemHostGetDevicePointer_v2(&word_address, (void *)(uintptr_t)word, 0));
    *word = 0;
    CK(p_cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING));
    CK(p_cuEventCreate(&events[0], CU_EVENT_DISABLE_TIMING));
    CK(p_cuEventCreate(&events[1], CU_EVENT_DISABLE_TIMING));
    other_args[0] = args[0] = &n;
    other_args[1] = args[1] = &a;
    other_args[2] = &y;
    other_args[3] = &x;
    args[2] = &x;
    args[3] = &y;
    return true;
}

/* round_trips(count): nanoseconds of each. */
static int raw_round_trips(lua_State *L) {
    lua_Integer count = luaL_checkinteger(L, 1);
    if (!word && !prepare()) {
        return luaL_error(L, "no driver");
    }
    double start = now_ns();
    for (lua_Integer i = 0; i < count; i++) {
        round_trip();
    }
    lua_pushnumber(L, (now_ns() - start) / (double)count);
    return 1;
}

int main(int count, char **arguments) {
    if (count > 1) {
        static const luaL_Reg raw[] = {{"round_trips", raw_round_trips}, {NULL, NULL}};
        return run_between(arguments[1], raw);
    }
    if (prepare()) {
        measure();
    }
    return 0;
}
#else
int main(void) {
    puts("# built without cuda.h");
    return 0;
}
#endif
