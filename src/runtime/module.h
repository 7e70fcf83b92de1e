/* Modules, kernels and their signatures. */
#ifndef GPU_RUNTIME_MODULE_H
#define GPU_RUNTIME_MODULE_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/memory.h"

#define GPU_PARAMS_MAX 128u
#define GPU_ARGS_BYTES_MAX 4096u /* of a launch; CUDA's limit before 12.1 */

enum gpu_access { GPU_READ = 1, GPU_WRITE = 2, GPU_READ_WRITE = 3 };

enum gpu_param_kind {
    GPU_PARAM_SCALAR,
    GPU_PARAM_POINTER,
    GPU_PARAM_UNSUPPORTED /* needs a signature by hand: a struct by value, a pointer to pointers */
};
/* What an argument of a launch is: a parameter of the kernel, or a part of one that is a structure,
 * a vector or an array in a structure. */
struct gpu_param {
    enum gpu_param_kind kind;
    enum gpu_type type; /* element type; GPU_TYPE_COUNT for void pointers and unsupported ones */
    uint8_t lanes;      /* 1; 2 to 4 for float2* and kin */
    uint8_t access;     /* enum gpu_access, of pointers */
    bool is_out;        /* declared `out`: written, never read before */
    uint16_t number;    /* of the kernel's parameter, from 1 */
    uint32_t byte_offset, byte_count;   /* in the arguments, laid out as a C struct */
    uint32_t whole_offset, whole_bytes; /* of the kernel's parameter */
    char name[48];                      /* "" if unknown; of a part with those it is in: "p.n" */
    char text[80];                      /* "in f32*", as signature() shows it */
};
/* How the parts lie in each other: what was opened is closed, and there is a VALUE for each
 * param. */
enum gpu_part_kind { GPU_PART_VALUE, GPU_PART_OPEN, GPU_PART_CLOSE };
#define GPU_PARTS_DEEP 10u /* so many lie in each other at most */
struct gpu_part {
    uint8_t kind;
    uint16_t length; /* of an array that is opened; 0: it is none */
    char name[48];   /* of a value or of what is opened; "" if unknown */
    char text[8];    /* of a vector that is opened: "bf16x4"; "" is none */
};
struct gpu_signature {
    uint32_t param_count;
    uint32_t number_count; /* of the kernel's parameters */
    uint32_t part_count;   /* 0: each of them is a param */
    uint32_t args_bytes;
    bool has_gaps;             /* bytes of the arguments that belong to no parameter */
    bool has_context;          /* a gpulua_ctx, which gpulua fills in, behind the parameters */
    struct gpu_param params[]; /* param_count, and the gpulua_ctx */
};
/* Parses "n: i32, a: f32, x: in f32*, y: out f32x4*, in void*" (names optional; `inout` and nothing
 * mean both ways; "?C-TYPE/BYTES/ALIGNMENT" from compilers), "v: f32x4" and structures, "p: {n:
 * i32, m: f32[16], x: in f32*[2]}". InvalidArgument with the position. malloc'ed; free() it. */
gpulua_status gpu_signature_parse(const char *text, struct gpu_signature **signature,
                                  struct gpu_error *error);
/* part_count of them, in the signature's memory. */
static inline const struct gpu_part *gpu_signature_parts(const struct gpu_signature *signature) {
    return (const struct gpu_part *)(signature->params + signature->param_count +
                                     signature->has_context);
}

/* The part behind this one and, of what is opened, behind all that is in it. */
const struct gpu_part *gpu_part_behind(const struct gpu_part *part);
/* How many of the parts from there to `end` are values. */
uint32_t gpu_part_values(const struct gpu_part *part, const struct gpu_part *end);
/* As a script would write it, without the gpulua_ctx. Returns the length; what has no room, as in
 * snprintf, is left out. */
size_t gpu_signature_write(const struct gpu_signature *signature, char *to, size_t room);
/* The param that is the part `path`, "p.rows.2.n": at each dot by name or by place, "1.1.2.2".
 * UINT32_MAX: there is none, or no parts at all. */
uint32_t gpu_signature_find(const struct gpu_signature *signature, const char *path);

struct gpu_module;
struct gpu_kernel;

enum gpu_module_kind {
    GPU_MODULE_SOURCE, /* CUDA C, to compile */
    GPU_MODULE_IMAGE,  /* PTX, cubin */
    GPU_MODULE_LIBRARY /* of calls that are launched like kernels; its name is all there is */
};
struct gpu_module_info {
    const char *name; /* for messages: "pipeline.lua:12"; of a library: which one */
    const char *text; /* unless it is a library */
    uint64_t text_bytes;
    enum gpu_module_kind kind;
    const char *options; /* lines as in backend.h */
    struct gpu_site site;
};
/* Starts compiling or loading beside other work: `*op` (retained) is over when the module can be
 * used or has failed (CompileFailed with log, InvalidArgument, LibraryUnavailable). `*module` is
 * retained for the caller either way. */
gpulua_status gpu_module_create(struct gpu_device *device, const struct gpu_module_info *info,
                                struct gpu_module **module, struct gpu_op **op,
                                struct gpu_error *error);
struct gpu_module *gpu_module_retain(struct gpu_module *module);
void gpu_module_release(struct gpu_module *module);
struct gpu_device *gpu_module_device(const struct gpu_module *module);
const char *gpu_module_name(const struct gpu_module *module);
/* Kernels that the compiler found, in source order; none for PTX and cubins. Borrowed. */
uint32_t gpu_module_kernel_count(const struct gpu_module *module);
const char *gpu_module_kernel_name(const struct gpu_module *module, uint32_t index);
/* A number that the library told of the module. False: it told none of that name. */
bool gpu_module_value(const struct gpu_module *module, const char *name, uint64_t *value);

/* `signature` NULL: the compiler's; required for PTX and cubins. Checked against what the driver
 * reports. Blocks for a round trip (about 10 us) the first time. InvalidArgument (no such kernel:
 * lists what there is; signature does not fit). */
gpulua_status gpu_module_kernel(struct gpu_module *module, const char *name, const char *signature,
                                struct gpu_kernel **kernel, struct gpu_error *error);
struct gpu_kernel *gpu_kernel_retain(struct gpu_kernel *kernel);
void gpu_kernel_release(struct gpu_kernel *kernel);
const char *gpu_kernel_name(const struct gpu_kernel *kernel);
struct gpu_module *gpu_kernel_module(const struct gpu_kernel *kernel);
const struct gpu_signature *gpu_kernel_signature(const struct gpu_kernel *kernel);
const struct wire_kernel_facts *gpu_kernel_facts(const struct gpu_kernel *kernel);

/* A module-scope variable as a block of its own. Blocks for a round trip. `*type` from the
 * compiler, u8 if unknown;
 * `*is_constant`: kernels only read it. The block is retained for the caller and keeps the module
 * alive. */
gpulua_status gpu_module_global(struct gpu_module *module, const char *name,
                                struct gpu_block **block, enum gpu_type *type, bool *is_constant,
                                struct gpu_error *error);

#endif
