/* The binary interface of DLPack, in our words (https://dmlc.github.io/dlpack/latest/c_api.html;
 * the unversioned struct is that of 0.x). Field order and widths are what counts; enums are 32 bits
 * wide. The names of the two structs are theirs, because gpulua.h declares them for hosts. */
#ifndef GPU_HOST_DLPACK_H
#define GPU_HOST_DLPACK_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define DLPACK_MAJOR 1u
#define DLPACK_MINOR 0u

/* Kinds of devices: X(number, name) */
#define DLPACK_DEVICE_TABLE(X)                                                                     \
    X(1, CPU)                                                                                      \
    X(2, CUDA)                                                                                     \
    X(3, CUDA_HOST)                                                                                \
    X(4, OPENCL)                                                                                   \
    X(7, VULKAN)                                                                                   \
    X(8, METAL)                                                                                    \
    X(9, VPI)                                                                                      \
    X(10, ROCM)                                                                                    \
    X(11, ROCM_HOST)                                                                               \
    X(12, EXT_DEV)                                                                                 \
    X(13, CUDA_MANAGED)                                                                            \
    X(14, ONEAPI)                                                                                  \
    X(15, WEBGPU)                                                                                  \
    X(16, HEXAGON)                                                                                 \
    X(17, MAIA)
enum dlpack_device_kind {
#define X(number, name) DLPACK_##name = number,
    DLPACK_DEVICE_TABLE(X)
#undef X
};

enum dlpack_type_code {
    DLPACK_INT = 0,
    DLPACK_UINT = 1,
    DLPACK_FLOAT = 2,
    DLPACK_OPAQUE = 3,
    DLPACK_BFLOAT = 4,
    DLPACK_COMPLEX = 5, /* bits: of both parts */
    DLPACK_BOOL = 6     /* more behind it: floats of 8 bits and fewer */
};

struct dlpack_device {
    int32_t kind;
    int32_t ordinal;
};

struct dlpack_type {
    uint8_t code;
    uint8_t bits;   /* of one lane */
    uint16_t lanes; /* 1: scalars */
};

struct dlpack_tensor {
    void *data;
    struct dlpack_device device;
    int32_t dim_count;
    struct dlpack_type type;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: compact, row by row */
    uint64_t byte_offset;
};

/* The consumer calls the deleter once, from any thread, when it needs the tensor no more; NULL:
 * there is nothing to do. */
struct DLManagedTensor {
    struct dlpack_tensor tensor;
    void *context;
    void (*deleter)(struct DLManagedTensor *self);
};

#define DLPACK_FLAG_READ_ONLY UINT64_C(1)
#define DLPACK_FLAG_IS_COPIED UINT64_C(2)

/* Of another major version only version, context and deleter mean what they mean here. */
struct DLManagedTensorVersioned {
    struct {
        uint32_t major, minor;
    } version;
    void *context;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    struct dlpack_tensor tensor;
};

static_assert(sizeof(struct dlpack_tensor) == 32 + 2 * sizeof(void *) &&
                  offsetof(struct dlpack_tensor, byte_offset) == 40,
              "as the interface has it");
static_assert(sizeof(struct DLManagedTensor) == 64, "as the interface has it");
static_assert(sizeof(struct DLManagedTensorVersioned) == 80 &&
                  offsetof(struct DLManagedTensorVersioned, tensor) == 32,
              "as the interface has it");

#endif
