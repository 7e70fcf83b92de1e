/* What module.c knows of a loaded module, for run.c and compile.c. */
#ifndef GPU_CPU_MODULE_H
#define GPU_CPU_MODULE_H

#include "backend/cpu/kernel.h"
#include "backend/cpu/shim/gpulua_abi.h"

#define CPU_SHARED_STATIC_BYTES_MAX (48u * 1024u) /* as on a GPU */
#define CPU_ARGS_BYTES_MAX (32u * 1024u)          /* of a launch */

struct cpu_kernel {
    const struct cpu_kernel_table *table; /* borrowed from the module's code */
    struct cpu_module *module;            /* that has it; NULL: of a library */
    uint32_t args_bytes;
    uint32_t args_alignment;
    uint32_t shared_bytes_static;
    /* Of a library's call: does it; the table has its name alone. NULL: a kernel. */
    gpulua_status (*call)(void *made, const void *args, struct backend_error *error);
    void *call_made; /* borrowed from the module */
    /* What a block has taken lately, at most UINT32_MAX; 0: not known. Only a hint, see share.c. */
    _Atomic uint32_t block_ns;
};

struct cpu_module {
    void *handle; /* of dlopen */
    int file;     /* descriptor the code was loaded from; its number keeps the path unique */
    void *lines;  /* owned: what lines.c has read of it; NULL: nothing yet */
    const struct cpu_module_table *table;   /* borrowed from the code */
    struct cpu_kernel *kernels;             /* owned; table->kernel_count */
    struct cpu_module_table *library_table; /* owned, with its kernels: of a library; else NULL */
    const struct cpu_library *library;      /* library.h: of a library; else NULL */
    void *library_made;                     /* owned: what the library made for the module */
};

/* An image: header | description | padding to 4,096 | shared object. */
#define CPU_IMAGE_MAGIC "gpulua-cpu-1\n\0\0" /* 16 bytes with its NUL */
struct cpu_image_header {
    char magic[16];
    uint64_t description_bytes; /* with its NUL */
    uint64_t code_offset, code_bytes;
};

/* The parts of an image. False: it is none. */
bool gpu_cpu_image_open(const void *image, size_t image_bytes, const char **description,
                        const void **code, size_t *code_bytes);
/* The other way; `*image` malloc'ed. */
bool gpu_cpu_image_make(const char *description, const void *code, size_t code_bytes, void **image,
                        size_t *image_bytes);

/* Loads code. */
gpulua_status gpu_cpu_code_open(const void *code, size_t code_bytes, struct cpu_module *module,
                                struct backend_error *error);
void gpu_cpu_code_close(struct cpu_module *module);

/* Static shared memory of a kernel, from the code's symbols; 0 if they are not there. */
uint32_t gpu_cpu_code_shared_bytes(const void *code, size_t code_bytes, const char *kernel);

#endif
