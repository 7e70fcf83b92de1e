/* Kernels on the CPU device: compiling CUDA C with the machine's C++ compiler, loading the result,
 * and running blocks of a launch. Knows nothing of streams and queues: device.c hands ranges of
 * blocks to its workers, which call gpu_cpu_blocks_run.
 *
 * compile.c (compiler, shim, token pass, description), module.c (loading), fibre.c (threads of a
 * block as fibres, only where a kernel has barriers or warp operations), shim/ (the headers that
 * kernels are compiled against; embedded into the library at build time, written into the cache
 * folder when needed). */
#ifndef GPU_CPU_KERNEL_H
#define GPU_CPU_KERNEL_H

#include "backend/backend.h"

struct cpu_kernel; /* = struct backend_kernel of the CPU backend */
struct cpu_module; /* = struct backend_module of the CPU backend */

/* As module_compile, module_load, ... of backend.h. */
/* `is_checked`: for check mode, with access instrumentation. */
gpulua_status gpu_cpu_module_compile(const char *cache_path, bool is_checked,
                                     const struct backend_source *source, void **image,
                                     size_t *image_bytes, char **description,
                                     struct backend_error *error);
gpulua_status gpu_cpu_module_load(const char *cache_path, const void *image, size_t image_bytes,
                                  bool compiled, struct cpu_module **module,
                                  struct backend_error *error);
void gpu_cpu_module_unload(struct cpu_module *module);
gpulua_status gpu_cpu_kernel_get(struct cpu_module *module, const char *name,
                                 struct cpu_kernel **kernel, struct wire_kernel_facts *facts,
                                 struct backend_error *error);
gpulua_status gpu_cpu_global_get(struct cpu_module *module, const char *name, uint64_t *address,
                                 uint64_t *bytes, struct backend_error *error);

/* One launch while it runs; shared by the workers that run its blocks. */
struct cpu_launch {
    struct cpu_kernel *kernel;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;
    const void *args; /* a copy that lives as long as the launch */
    /* First failure (kernel assert), written once under `failed`: 0 none, 1 being written, 2
     * written. */
    _Atomic uint32_t failed;
    gpulua_status failure_status;
    uint32_t failure_place_count;
    struct wire_place failure_places[WIRE_PLACES_MAX];
    char failure[768]; /* "kernel 'k': assertion `i < 3' failed at pipeline.lua:7, block (3,0,0),
                          thread (17,0,0)" */
};

/* Runs blocks first .. first + count - 1 (x fastest) on the calling thread, one after another;
 * stops early once the launch has failed. Scratch (fibre stacks, shared memory) is kept per thread
 * and freed by gpu_cpu_thread_finish. */
void gpu_cpu_blocks_run(struct cpu_launch *launch, uint64_t first, uint64_t count);
void gpu_cpu_thread_finish(void);

/* Can a range of blocks be split over threads at will? True for all but kernels that ask otherwise.
 */
#define CPU_BLOCK_THREADS_MAX 1024u
#define CPU_SHARED_BYTES_MAX (228u * 1024u) /* static and dynamic shared memory of a block */

#endif
