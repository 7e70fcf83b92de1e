/* The library "fft" on CUDA: cuFFT. A module is one plan of the script's, which is one of cuFFT's
 * for each direction, or one for both. Work areas are arguments, as those of cuBLAS are (blas.c):
 * cuFFT allocates none. Its tables of roots belong to its plans, and are nobody's to count.
 *
 * cuFFT scales nothing without callbacks that have to be compiled, so a kernel of ours follows.
 * The inverse of a real plan reads a copy, unless it may overwrite: cuFFT says of several
 * dimensions that it destroys what it reads, and promises nothing of one. */
#include <cufft.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/toolkit.h"
#include "backend/fft.h"

#define FFT_TABLE(X)                                                                               \
    X(cufftCreate)                                                                                 \
    X(cufftDestroy)                                                                                \
    X(cufftSetAutoAllocation)                                                                      \
    X(cufftMakePlanMany64)                                                                         \
    X(cufftSetStream)                                                                              \
    X(cufftSetWorkArea)                                                                            \
    X(cufftExecC2C) X(cufftExecR2C) X(cufftExecC2R) X(cufftExecZ2Z) X(cufftExecD2Z) X(cufftExecZ2D)

#define WORK_ALIGNMENT 256u
#define SCALE_THREADS 256u
#define SCALE_BLOCKS_PER_MULTIPROCESSOR 16u

struct cuda_fft {
    CUmodule scale_module;
    CUfunction scale_f32, scale_f64;
#define X(name) __typeof__(name) *name;
    FFT_TABLE(X)
#undef X
};

struct made_fft {
    struct fft_plan plan;
    bool has[FFT_DIRECTION_COUNT];
    cufftHandle handles[FFT_DIRECTION_COUNT]; /* may be one */
    uint64_t work_bytes[FFT_DIRECTION_COUNT];
    uint64_t copy_bytes[FFT_DIRECTION_COUNT]; /* of those: what comes first, for what is read */
};

/* ---- the kernel that scales ---- */

struct scale_args {
    uint64_t base, count;
    struct fft_loops loops;
    double factor;
};

/* For each of `count` numbers: where it is among the loops, from the innermost outwards. One loop
 * alone, which is what packed sides come to, takes one step of it. */
#define SCALE_STEP(n, size, stride)                                                                \
    "  ld.param.u64 %size, [" size "];\n"                                                          \
    "  ld.param.u64 %stride, [" stride "];\n"                                                      \
    "  setp.lt.u64 %p1, %left, %size;\n"                                                           \
    "  @%p1 bra LAST" n ";\n"                                                                      \
    "  div.u64 %next, %left, %size;\n"                                                             \
    "  mul.lo.u64 %product, %next, %size;\n"                                                       \
    "  sub.u64 %left, %left, %product;\n"                                                          \
    "  mad.lo.u64 %offset, %left, %stride, %offset;\n"                                             \
    "  mov.u64 %left, %next;\n"                                                                    \
    "  bra NEXT" n ";\n"                                                                           \
    "LAST" n ":\n"                                                                                 \
    "  mad.lo.u64 %offset, %left, %stride, %offset;\n"                                             \
    "  bra FOUND;\n"                                                                               \
    "NEXT" n ":\n"
#define SCALE_ENTRY(type, shift, factor)                                                           \
    ".visible .entry gpulua_scale_" type "(\n"                                                     \
    "  .param .u64 base, .param .u64 count,\n"                                                     \
    "  .param .u64 n0, .param .u64 n1, .param .u64 n2, .param .u64 n3, .param .u64 n4,\n"          \
    "  .param .u64 s0, .param .u64 s1, .param .u64 s2, .param .u64 s3, .param .u64 s4,\n"          \
    "  .param .f64 factor)\n"                                                                      \
    "{\n"                                                                                          \
    "  .reg .pred %p0, %p1;\n"                                                                     \
    "  .reg .b32 %thread, %block, %threads, %blocks, %low;\n"                                      \
    "  .reg .b64 %base, %count, %at, %step, %left, %next, %product, %size, %stride, %offset;\n"    \
    "  .reg .f64 %wide;\n"                                                                         \
    "  .reg ." type " %factor, %value;\n"                                                          \
    "  ld.param.u64 %base, [base];\n"                                                              \
    "  ld.param.u64 %count, [count];\n"                                                            \
    "  ld.param.f64 %wide, [factor];\n"                                                            \
    "  " factor ", %wide;\n"                                                                       \
    "  cvta.to.global.u64 %base, %base;\n"                                                         \
    "  mov.u32 %thread, %tid.x;\n"                                                                 \
    "  mov.u32 %block, %ctaid.x;\n"                                                                \
    "  mov.u32 %threads, %ntid.x;\n"                                                               \
    "  mov.u32 %blocks, %nctaid.x;\n"                                                              \
    "  mul.wide.u32 %at, %block, %threads;\n"                                                      \
    "  cvt.u64.u32 %next, %thread;\n"                                                              \
    "  add.u64 %at, %at, %next;\n"                                                                 \
    "  mul.wide.u32 %step, %blocks, %threads;\n"                                                   \
    "EACH:\n"                                                                                      \
    "  setp.ge.u64 %p0, %at, %count;\n"                                                            \
    "  @%p0 bra DONE;\n"                                                                           \
    "  mov.u64 %left, %at;\n"                                                                      \
    "  mov.u64 %offset, 0;\n" SCALE_STEP("4", "n4", "s4") SCALE_STEP("3", "n3", "s3")              \
        SCALE_STEP("2", "n2", "s2") SCALE_STEP("1", "n1", "s1")                                    \
            SCALE_STEP("0", "n0", "s0") "FOUND:\n"                                                 \
                                        "  shl.b64 %offset, %offset, " shift ";\n"                 \
                                        "  add.u64 %offset, %base, %offset;\n"                     \
                                        "  ld.global." type " %value, [%offset];\n"                \
                                        "  mul.rn." type " %value, %value, %factor;\n"             \
                                        "  st.global." type " [%offset], %value;\n"                \
                                        "  add.u64 %at, %at, %step;\n"                             \
                                        "  bra EACH;\n"                                            \
                                        "DONE:\n"                                                  \
                                        "  ret;\n"                                                 \
                                        "}\n"
const char gpu_cuda_scale_ptx[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n" SCALE_ENTRY("f32", "2", "cvt.rn.f32.f64 %factor")
        SCALE_ENTRY("f64", "3", "mov.f64 %factor");

/* Both, so that a call, which may be one of a graph that is captured, loads nothing. */
static gpulua_status scale_prepare(struct backend_device *device, struct cuda_fft *fft,
                                   struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    gpulua_status status = gpu_cuda_own_kernel(device, gpu_cuda_scale_ptx, "gpulua_scale_f32",
                                               &fft->scale_module, &fft->scale_f32, error);
    if (status == GPULUA_OK) {
        status =
            CU(device, error,
               cu->cuModuleGetFunction(&fft->scale_f64, fft->scale_module, "gpulua_scale_f64"));
    }
    if (status == GPULUA_OK && cu->cuFuncLoad != NULL) {
        status = CU(device, error, cu->cuFuncLoad(fft->scale_f64));
    }
    return status;
}

/* ---- opening ---- */

static gpulua_status load(struct cuda_fft *fft, struct backend_error *error) {
    static const char *const names[] = {"libcufft.so.12", "libcufft.so.11", NULL};
    void *library = NULL;
    gpulua_status status = gpu_cuda_toolkit_load("cuFFT (libcufft, part of the CUDA toolkit)",
                                                 "GPULUA_LIBCUFFT", names, &library, error);
    if (status != GPULUA_OK) {
        return status;
    }
    struct {
        const char *name;
        void *to;
    } const wanted[] = {
#define X(name) {#name, &fft->name},
        FFT_TABLE(X)
#undef X
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *symbol = dlsym(library, wanted[i].name);
        if (symbol == NULL) {
            return gpu_backend_fail(error, GPULUA_LIBRARY_UNAVAILABLE, 0,
                                    "the library that is taken for cuFFT has no %s: version 11 or "
                                    "newer is needed",
                                    wanted[i].name);
        }
        memcpy(wanted[i].to, &symbol, sizeof symbol);
    }
    return GPULUA_OK;
}

static gpulua_status open_fft(struct backend_device *device, struct backend_error *error) {
    if (device->fft != NULL) {
        return GPULUA_OK;
    }
    struct cuda_fft *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    device->fft = made;
    gpulua_status status = load(made, error);
    if (status == GPULUA_OK) {
        status = scale_prepare(device, made, error);
    }
    if (status != GPULUA_OK) {
        gpu_cuda_fft_close(device);
    }
    return status;
}

void gpu_cuda_fft_close(struct backend_device *device) {
    struct cuda_fft *fft = device->fft;
    if (fft != NULL && fft->scale_module != NULL && gpu_cuda_enter(device, NULL) == GPULUA_OK) {
        (void)device->cu.cuModuleUnload(fft->scale_module);
    }
    device->fft = NULL;
    free(fft);
}

/* cuFFT has no function for the names of its results, and versions have not the same ones: by
 * number. */
static gpulua_status fft_result(cufftResult result, const char *call, struct backend_error *error) {
    static const char *const names[] = {"CUFFT_SUCCESS",
                                        "CUFFT_INVALID_PLAN",
                                        "CUFFT_ALLOC_FAILED",
                                        "CUFFT_INVALID_TYPE",
                                        "CUFFT_INVALID_VALUE",
                                        "CUFFT_INTERNAL_ERROR",
                                        "CUFFT_EXEC_FAILED",
                                        "CUFFT_SETUP_FAILED",
                                        "CUFFT_INVALID_SIZE",
                                        "CUFFT_UNALIGNED_DATA",
                                        "CUFFT_INCOMPLETE_PARAMETER_LIST",
                                        "CUFFT_INVALID_DEVICE",
                                        "CUFFT_PARSE_ERROR",
                                        "CUFFT_NO_WORKSPACE",
                                        "CUFFT_NOT_IMPLEMENTED",
                                        "CUFFT_LICENSE_ERROR",
                                        "CUFFT_NOT_SUPPORTED",
                                        "CUFFT_MISSING_DEPENDENCY",
                                        "CUFFT_NVRTC_FAILURE",
                                        "CUFFT_NVJITLINK_FAILURE",
                                        "CUFFT_NVSHMEM_FAILURE"};
    int number = (int)result;
    if (__builtin_expect(number == 0, 1)) {
        return GPULUA_OK;
    }
    gpulua_status status = number == 2                                   ? GPULUA_OUT_OF_MEMORY
                           : number == 8 || number == 14 || number == 16 ? GPULUA_UNSUPPORTED
                                                                         : GPULUA_LIBRARY_ERROR;
    bool is_known = number > 0 && number < (int)(sizeof names / sizeof names[0]);
    return gpu_backend_fail(error, status, number, "%.*s: %s (%d)", (int)strcspn(call, "("), call,
                            is_known ? names[number] : "an unknown result", number);
}
#define FFT(fft, error, call) fft_result((fft)->call, #call, (error))

/* ---- plans ---- */

static cufftType type_of(const struct fft_plan *plan, enum fft_direction direction) {
    if (!plan->is_real) {
        return plan->is_f64 ? CUFFT_Z2Z : CUFFT_C2C;
    }
    return direction == FFT_FORWARD ? (plan->is_f64 ? CUFFT_D2Z : CUFFT_R2C)
                                    : (plan->is_f64 ? CUFFT_Z2D : CUFFT_C2R);
}

/* How many places an index takes in the storage, from the second one on; the first says nothing. */
static void embed(const struct fft_plan *plan, const struct fft_side *side, bool is_x,
                  long long *embedded) {
    embedded[0] = gpu_fft_size(plan, is_x, 0);
    for (int64_t i = 1; i < plan->rank; i++) {
        embedded[i] = side->strides[i - 1] / side->strides[i];
    }
}

static gpulua_status make_handle(const struct cuda_fft *fft, const struct fft_plan *plan,
                                 enum fft_direction direction, cufftHandle *handle,
                                 uint64_t *work_bytes, struct backend_error *error) {
    bool from_x = direction == FFT_FORWARD;
    const struct fft_side *from = gpu_fft_side(plan, from_x), *to = gpu_fft_side(plan, !from_x);
    long long sizes[FFT_RANK_MAX], in[FFT_RANK_MAX], out[FFT_RANK_MAX];
    size_t bytes = 0;
    for (int i = 0; i < FFT_RANK_MAX; i++) {
        sizes[i] = plan->sizes[i];
    }
    embed(plan, from, from_x, in);
    embed(plan, to, !from_x, out);
    gpulua_status status = FFT(fft, error, cufftCreate(handle));
    if (status != GPULUA_OK) {
        return status;
    }
    status = FFT(fft, error, cufftSetAutoAllocation(*handle, 0));
    if (status == GPULUA_OK) {
        status = FFT(fft, error,
                     cufftMakePlanMany64(*handle, (int)plan->rank, sizes, in,
                                         from->strides[plan->rank - 1], from->distance, out,
                                         to->strides[plan->rank - 1], to->distance,
                                         type_of(plan, direction), (long long)plan->batch, &bytes));
    }
    if (status != GPULUA_OK) {
        (void)fft->cufftDestroy(*handle);
    }
    *work_bytes = bytes;
    return status;
}

static void drop(struct backend_device *device, void *own) {
    struct made_fft *made = own;
    if (made != NULL && gpu_cuda_enter(device, NULL) == GPULUA_OK) {
        bool is_one = made->handles[FFT_FORWARD] == made->handles[FFT_INVERSE];
        if (made->has[FFT_FORWARD]) {
            (void)device->fft->cufftDestroy(made->handles[FFT_FORWARD]);
        }
        if (made->has[FFT_INVERSE] && !(made->has[FFT_FORWARD] && is_one)) {
            (void)device->fft->cufftDestroy(made->handles[FFT_INVERSE]);
        }
    }
    free(made);
}

static gpulua_status make_direction(const struct cuda_fft *fft, struct made_fft *made,
                                    enum fft_direction direction, struct backend_error *error) {
    const struct fft_plan *plan = &made->plan;
    gpulua_status status = GPULUA_OK;
    if (direction == FFT_INVERSE && made->has[FFT_FORWARD] && !plan->is_real &&
        memcmp(&plan->x, &plan->f, sizeof plan->x) == 0) {
        made->handles[FFT_INVERSE] = made->handles[FFT_FORWARD];
        made->work_bytes[FFT_INVERSE] = made->work_bytes[FFT_FORWARD];
    } else {
        status = make_handle(fft, plan, direction, &made->handles[direction],
                             &made->work_bytes[direction], error);
    }
    made->has[direction] = status == GPULUA_OK;
    return status;
}

static gpulua_status make(struct backend_device *device, const char *options, void **own,
                          char **description, struct backend_error *error) {
    struct made_fft *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    struct fft_plan *plan = &made->plan;
    gpulua_status status = gpu_fft_parse(options, plan, error);
    if (status == GPULUA_OK && plan->has_forward) {
        status = make_direction(device->fft, made, FFT_FORWARD, error);
    }
    if (status == GPULUA_OK && plan->has_inverse) {
        status = make_direction(device->fft, made, FFT_INVERSE, error);
    }
    if (status == GPULUA_OK && plan->has_inverse && plan->is_real && !plan->may_overwrite) {
        made->copy_bytes[FFT_INVERSE] = (gpu_fft_span_bytes(plan, false) + WORK_ALIGNMENT - 1) /
                                        WORK_ALIGNMENT * WORK_ALIGNMENT;
        made->work_bytes[FFT_INVERSE] += made->copy_bytes[FFT_INVERSE];
    }
    if (status == GPULUA_OK) {
        *description = gpu_fft_describe(plan, made->work_bytes);
        status = *description != NULL
                     ? GPULUA_OK
                     : gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    if (status != GPULUA_OK) {
        drop(device, made);
        return status;
    }
    *own = made;
    return GPULUA_OK;
}

/* ---- scaling ---- */

static gpulua_status scale(struct backend_device *device, struct backend_stream *stream,
                           const struct fft_plan *plan, bool is_x, void *base, double factor,
                           struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    const struct cuda_fft *fft = device->fft;
    struct scale_args args = {.base = (uint64_t)(uintptr_t)base, .count = 1, .factor = factor};
    gpu_fft_loops(plan, is_x, &args.loops);
    for (int i = 0; i < FFT_LOOPS; i++) {
        args.count *= args.loops.sizes[i];
    }
    uint64_t blocks = (args.count + SCALE_THREADS - 1) / SCALE_THREADS;
    uint64_t blocks_max = (uint64_t)SCALE_BLOCKS_PER_MULTIPROCESSOR * device->facts.multiprocessors;
    blocks = blocks < blocks_max ? blocks : blocks_max;
    size_t args_bytes = sizeof args;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &args, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &args_bytes, CU_LAUNCH_PARAM_END};
    return CU(device, error,
              cu->cuLaunchKernel(plan->is_f64 ? fft->scale_f64 : fft->scale_f32, (unsigned)blocks,
                                 1, 1, SCALE_THREADS, 1, 1, 0, stream->handle, NULL, extra));
}

/* ---- calls ---- */

static gpulua_status execute(const struct cuda_fft *fft, cufftHandle handle, cufftType type,
                             enum fft_direction direction, void *in, void *out,
                             struct backend_error *error) {
    int sign = direction == FFT_FORWARD ? CUFFT_FORWARD : CUFFT_INVERSE;
    switch (type) {
    case CUFFT_C2C:
        return FFT(fft, error, cufftExecC2C(handle, in, out, sign));
    case CUFFT_Z2Z:
        return FFT(fft, error, cufftExecZ2Z(handle, in, out, sign));
    case CUFFT_R2C:
        return FFT(fft, error, cufftExecR2C(handle, in, out));
    case CUFFT_D2Z:
        return FFT(fft, error, cufftExecD2Z(handle, in, out));
    case CUFFT_C2R:
        return FFT(fft, error, cufftExecC2R(handle, in, out));
    default:
        return FFT(fft, error, cufftExecZ2D(handle, in, out));
    }
}

static gpulua_status check(const struct made_fft *made, const struct fft_call *call,
                           enum fft_direction direction, struct backend_error *error) {
    uint64_t alignment = gpu_fft_elem_bytes(&made->plan, false);
    uint64_t in = (uint64_t)(uintptr_t)call->in, out = (uint64_t)(uintptr_t)call->out;
    if (!made->has[direction] || call->work_bytes < made->work_bytes[direction] ||
        (call->work == NULL && made->work_bytes[direction] > 0)) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "not a direction of this plan, or no work area");
    }
    if (in % alignment != 0 || out % alignment != 0) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                                "what goes %s does not begin at a multiple of %" PRIu64
                                " bytes, as cuFFT needs it",
                                in % alignment != 0 ? "in" : "out", alignment);
    }
    return GPULUA_OK;
}

static gpulua_status run(struct backend_device *device, const struct made_fft *made,
                         struct backend_stream *stream, const struct fft_call *call,
                         enum fft_direction direction, struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    const struct cuda_fft *fft = device->fft;
    const struct fft_plan *plan = &made->plan;
    cufftHandle handle = made->handles[direction];
    gpulua_status status = check(made, call, direction, error);
    if (status == GPULUA_OK) {
        status = FFT(fft, error, cufftSetStream(handle, (cudaStream_t)stream->handle));
    }
    if (status != GPULUA_OK) {
        return status;
    }
    char *work = call->work;
    void *in = (void *)(uintptr_t)call->in;
    if (made->copy_bytes[direction] > 0) {
        if (in != call->out) {
            status =
                CU(device, error,
                   cu->cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)work, (CUdeviceptr)(uintptr_t)in,
                                         gpu_fft_span_bytes(plan, false), stream->handle));
            in = work;
        }
        work += made->copy_bytes[direction];
    }
    if (status == GPULUA_OK && made->work_bytes[direction] > made->copy_bytes[direction]) {
        status = FFT(fft, error, cufftSetWorkArea(handle, work));
    }
    if (status == GPULUA_OK) {
        status = execute(fft, handle, type_of(plan, direction), direction, in, call->out, error);
    }
    if (status == GPULUA_OK && call->scale != 1) {
        status =
            scale(device, stream, plan, direction == FFT_INVERSE, call->out, call->scale, error);
    }
    return status;
}

#define X(name, direction)                                                                         \
    static gpulua_status run_##name(struct backend_device *device, void *made,                     \
                                    struct backend_stream *stream, const void *args,               \
                                    struct backend_error *error) {                                 \
        return run(device, made, stream, args, direction, error);                                  \
    }
FFT_CALLS(X)
#undef X

static const struct cuda_toolkit_call calls[] = {
#define X(name, direction) {#name, run_##name, sizeof(struct fft_call)},
    FFT_CALLS(X)
#undef X
};

const struct cuda_toolkit gpu_cuda_fft = {
    .name = "fft",
    .open = open_fft,
    .calls = calls,
    .call_count = sizeof calls / sizeof calls[0],
    .make = make,
    .drop = drop,
    .calls_repeat = true,
};
