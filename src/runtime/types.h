/* Element types of buffers and kernel parameters. */
#ifndef GPU_RUNTIME_TYPES_H
#define GPU_RUNTIME_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* clang-format off */
/* X(C name, name, bytes of an element, class) */
#define GPU_TYPE_TABLE(X)                \
    X(I8, "i8", 1, GPU_CLASS_SIGNED)     \
    X(U8, "u8", 1, GPU_CLASS_UNSIGNED)   \
    X(I16, "i16", 2, GPU_CLASS_SIGNED)   \
    X(U16, "u16", 2, GPU_CLASS_UNSIGNED) \
    X(I32, "i32", 4, GPU_CLASS_SIGNED)   \
    X(U32, "u32", 4, GPU_CLASS_UNSIGNED) \
    X(I64, "i64", 8, GPU_CLASS_SIGNED)   \
    X(U64, "u64", 8, GPU_CLASS_UNSIGNED) \
    X(F16, "f16", 2, GPU_CLASS_FLOAT)    \
    X(BF16, "bf16", 2, GPU_CLASS_FLOAT)  \
    X(F32, "f32", 4, GPU_CLASS_FLOAT)    \
    X(F64, "f64", 8, GPU_CLASS_FLOAT)    \
    X(C64, "c64", 8, GPU_CLASS_COMPLEX)  \
    X(C128, "c128", 16, GPU_CLASS_COMPLEX)
/* clang-format on */

enum gpu_class { GPU_CLASS_SIGNED, GPU_CLASS_UNSIGNED, GPU_CLASS_FLOAT, GPU_CLASS_COMPLEX };

enum gpu_type {
#define X(name, text, bytes, class) GPU_TYPE_##name,
    GPU_TYPE_TABLE(X)
#undef X
        GPU_TYPE_COUNT
};

const char *gpu_type_name(enum gpu_type type);
uint32_t gpu_type_bytes(enum gpu_type type);
enum gpu_class gpu_type_class(enum gpu_type type);
/* The type of that name (`length` bytes long), or GPU_TYPE_COUNT. */
enum gpu_type gpu_type_parse(const char *name, size_t length);
/* The same with "f32x4": the element type and lanes, 1 to 4. False: it is no type; *lanes 0: there
 * are no such vectors of it. */
bool gpu_type_parse_vector(const char *name, size_t length, enum gpu_type *type, uint8_t *lanes);

/* IEEE binary16 and bfloat16, rounding to nearest even; NaN stays NaN, overflow becomes infinity.
 */
uint16_t gpu_type_f16_from(double value);
double gpu_type_f16_to(uint16_t bits);
uint16_t gpu_type_bf16_from(double value);
double gpu_type_bf16_to(uint16_t bits);

#endif
