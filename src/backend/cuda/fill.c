/* Fills.
 *
 * The driver's memsets know elements of 1, 2 and 4 bytes. One of 8 or 16 bytes that repeats a
 * smaller one (zero, for the most part) is filled as that. Any other goes through a kernel of our
 * own, shipped as PTX so that it needs no compiler library: one pass with 16-byte stores. Strided
 * two-dimensional memsets would do without it, but pass over the memory 2 or 4 times, a quarter of
 * each sector at a time. */
#include <inttypes.h>
#include <string.h>

#include "backend/cuda/device.h"

#define FILL_THREADS 256u
#define FILL_BLOCKS_PER_MULTIPROCESSOR 16u

/* fill(base, vector_count, head_count, tail_count, r0, r1, r2, r3): `base` is where the 16-byte
 * stores begin, each storing r0 to r3; in front of it lie head_count words (r backwards from r3),
 * behind the vectors tail_count words (r forwards). Threads with the lowest numbers see to these.
 */
const char gpu_cuda_fill_ptx[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .entry gpulua_fill(\n"
    "  .param .u64 base, .param .u64 vector_count,\n"
    "  .param .u32 head_count, .param .u32 tail_count,\n"
    "  .param .u32 p0, .param .u32 p1, .param .u32 p2, .param .u32 p3)\n"
    "{\n"
    "  .reg .pred %p<8>;\n"
    "  .reg .b32 %r0, %r1, %r2, %r3, %value, %index, %head, %tail;\n"
    "  .reg .b32 %thread, %block, %threads, %blocks, %low;\n"
    "  .reg .b64 %base, %count, %at, %step, %number, %offset, %end;\n"
    "  ld.param.u64 %base, [base];\n"
    "  ld.param.u64 %count, [vector_count];\n"
    "  ld.param.u32 %head, [head_count];\n"
    "  ld.param.u32 %tail, [tail_count];\n"
    "  ld.param.u32 %r0, [p0];\n"
    "  ld.param.u32 %r1, [p1];\n"
    "  ld.param.u32 %r2, [p2];\n"
    "  ld.param.u32 %r3, [p3];\n"
    "  cvta.to.global.u64 %base, %base;\n"
    "  mov.u32 %thread, %tid.x;\n"
    "  mov.u32 %block, %ctaid.x;\n"
    "  mov.u32 %threads, %ntid.x;\n"
    "  mov.u32 %blocks, %nctaid.x;\n"
    "  mad.lo.u32 %low, %block, %threads, %thread;\n"
    "  cvt.u64.u32 %number, %low;\n"
    "  mul.wide.u32 %step, %blocks, %threads;\n"
    /* vectors */
    "  mov.u64 %at, %number;\n"
    "VECTORS:\n"
    "  setp.ge.u64 %p0, %at, %count;\n"
    "  @%p0 bra WORDS;\n"
    "  shl.b64 %offset, %at, 4;\n"
    "  add.u64 %offset, %base, %offset;\n"
    "  st.global.v4.u32 [%offset], {%r0, %r1, %r2, %r3};\n"
    "  add.u64 %at, %at, %step;\n"
    "  bra VECTORS;\n"
    /* head: word number - head_count, counted from base */
    "WORDS:\n"
    "  setp.ge.u32 %p1, %low, %head;\n"
    "  @%p1 bra TAIL;\n"
    "  sub.u32 %index, %low, %head;\n"
    "  mul.wide.s32 %offset, %index, 4;\n"
    "  add.u64 %offset, %base, %offset;\n"
    "  and.b32 %index, %index, 3;\n"
    "  setp.eq.u32 %p2, %index, 1;\n"
    "  setp.eq.u32 %p3, %index, 2;\n"
    "  setp.eq.u32 %p4, %index, 3;\n"
    "  selp.b32 %value, %r1, %r0, %p2;\n"
    "  selp.b32 %value, %r2, %value, %p3;\n"
    "  selp.b32 %value, %r3, %value, %p4;\n"
    "  st.global.u32 [%offset], %value;\n"
    /* tail: word `number` behind the last vector */
    "TAIL:\n"
    "  setp.ge.u32 %p5, %low, %tail;\n"
    "  @%p5 bra DONE;\n"
    "  shl.b64 %end, %count, 4;\n"
    "  add.u64 %end, %base, %end;\n"
    "  mul.wide.u32 %offset, %low, 4;\n"
    "  add.u64 %offset, %end, %offset;\n"
    "  setp.eq.u32 %p2, %low, 1;\n"
    "  setp.eq.u32 %p3, %low, 2;\n"
    "  selp.b32 %value, %r1, %r0, %p2;\n"
    "  selp.b32 %value, %r2, %value, %p3;\n"
    "  st.global.u32 [%offset], %value;\n"
    "DONE:\n"
    "  ret;\n"
    "}\n";

gpulua_status gpu_cuda_own_kernel(struct backend_device *device, const char *ptx, const char *name,
                                  CUmodule *module, CUfunction *function,
                                  struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    CUmodule loaded = NULL;
    CUfunction found = NULL;
    if (*function != NULL) {
        return GPULUA_OK;
    }
    gpulua_status status = CU(device, error, cu->cuModuleLoadDataEx(&loaded, ptx, 0, NULL, NULL));
    if (status != GPULUA_OK) {
        return status;
    }
    status = CU(device, error, cu->cuModuleGetFunction(&found, loaded, name));
    if (status == GPULUA_OK && cu->cuFuncLoad != NULL) {
        status = CU(device, error, cu->cuFuncLoad(found)); /* as in module.c */
    }
    if (status != GPULUA_OK) {
        if (device->lost == CUDA_SUCCESS) {
            (void)cu->cuModuleUnload(loaded);
        }
        return status;
    }
    *module = loaded;
    *function = found;
    return GPULUA_OK;
}

gpulua_status gpu_cuda_fill_prepare(struct backend_device *device, struct backend_error *error) {
    return gpu_cuda_own_kernel(device, gpu_cuda_fill_ptx, "gpulua_fill", &device->fill_module,
                               &device->fill_function, error);
}

/* `pattern`: the four words that repeat from dst on, which is aligned to 4. */
static gpulua_status fill_words(struct backend_stream *stream, uint64_t dst,
                                const uint32_t pattern[4], uint64_t word_count,
                                struct backend_error *error) {
    struct backend_device *device = stream->device;
    const struct cuda_driver *cu = &device->cu;
    gpulua_status status = gpu_cuda_fill_prepare(device, error);
    if (status != GPULUA_OK) {
        return status;
    }
    uint32_t head = (uint32_t)((16 - dst % 16) % 16 / 4);
    head = head > word_count ? (uint32_t)word_count : head;
    struct cuda_fill_args args = {.base = dst + 4 * (uint64_t)head,
                                  .vector_count = (word_count - head) / 4,
                                  .head_count = head,
                                  .tail_count = (uint32_t)((word_count - head) % 4)};
    for (uint32_t i = 0; i < 4; i++) {
        args.words[i] = pattern[(head + i) % 4];
    }
    uint64_t blocks = (args.vector_count + FILL_THREADS - 1) / FILL_THREADS;
    uint64_t blocks_max = (uint64_t)FILL_BLOCKS_PER_MULTIPROCESSOR * device->facts.multiprocessors;
    blocks = blocks < blocks_max ? blocks : blocks_max;
    blocks = blocks > 0 ? blocks : 1;
    size_t args_bytes = sizeof args;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &args, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &args_bytes, CU_LAUNCH_PARAM_END};
    return CU(device, error,
              cu->cuLaunchKernel(device->fill_function, (unsigned)blocks, 1, 1, FILL_THREADS, 1, 1,
                                 0, stream->handle, NULL, extra));
}

gpulua_status gpu_cuda_fill(struct backend_stream *stream, uint64_t seq, uint64_t dst,
                            const void *element, uint32_t elem_bytes, uint64_t elem_count,
                            struct backend_error *error) {
    struct backend_device *device = stream->device;
    const struct cuda_driver *cu = &device->cu;
    (void)seq; /* faults end the device, and are seen there */
    bool is_size = elem_bytes > 0 && elem_bytes <= 16 && (elem_bytes & (elem_bytes - 1)) == 0;
    if (!is_size || elem_count > SIZE_MAX / 16) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "a fill of %" PRIu64 " elements of %" PRIu32 " bytes", elem_count,
                                elem_bytes);
    }
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status != GPULUA_OK || elem_count == 0) {
        return status;
    }
    uint32_t pattern[4] = {0};
    uint32_t period = gpu_wire_fill_period(element, elem_bytes);
    /* An element aligned to less than its own size can still be filled by words, or by bytes where
     * it is all one byte. */
    if (dst % (period < 4 ? period : 4) != 0) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "a fill of %" PRIu32 "-byte elements at an address that is no "
                                "multiple of %" PRIu32,
                                elem_bytes, period < 4 ? period : 4);
    }
    size_t count = (size_t)elem_count * (elem_bytes / period);
    for (uint32_t i = 0; i < sizeof pattern; i += period) {
        memcpy((char *)pattern + i, element, period);
    }
    switch (period) {
    case 1:
        return CU(device, error,
                  cu->cuMemsetD8Async(dst, (unsigned char)pattern[0], count, stream->handle));
    case 2:
        return CU(device, error,
                  cu->cuMemsetD16Async(dst, (unsigned short)pattern[0], count, stream->handle));
    case 4:
        return CU(device, error, cu->cuMemsetD32Async(dst, pattern[0], count, stream->handle));
    default:
        return fill_words(stream, dst, pattern, (uint64_t)count * (period / 4), error);
    }
}
