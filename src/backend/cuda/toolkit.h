/* Libraries of the CUDA toolkit whose calls are launched like kernels (library_open of backend.h).
 * toolkit.c makes modules of them; each library has a file: blas.c, fft.c, rng.c. */
#ifndef GPU_CUDA_TOOLKIT_H
#define GPU_CUDA_TOOLKIT_H

#include "backend/cuda/device.h"

/* Puts the call on the stream; `made` is its module's. The context is current; `args` has at least
 * args_bytes and is aligned to 16. */
typedef gpulua_status cuda_toolkit_run(struct backend_device *device, void *made,
                                       struct backend_stream *stream, const void *args,
                                       struct backend_error *error);

struct cuda_toolkit_call {
    const char *name;
    cuda_toolkit_run *run;
    uint32_t args_bytes;
};

struct cuda_toolkit {
    const char *name;
    /* Makes what the device has of it, the first time. */
    gpulua_status (*open)(struct backend_device *device, struct backend_error *error);
    const struct cuda_toolkit_call *calls;
    size_t call_count;
    const char *description;
    /* Where each module has something of its own, made from options behind open: then instead of
     * description. drop gives it back; its work is over, or the device lost. */
    gpulua_status (*make)(struct backend_device *device, const char *options, void **made,
                          char **description, struct backend_error *error);
    void (*drop)(struct backend_device *device, void *made);
    bool calls_repeat; /* a call with the same arguments does the same work again, and no other */
};
#define CUDA_CALL_ARGS_MAX 512u

/* The call with that name of a module that is a library. */
gpulua_status gpu_cuda_toolkit_kernel(const struct backend_module *module, const char *name,
                                      struct backend_kernel *kernel,
                                      struct wire_kernel_facts *facts, struct backend_error *error);
gpulua_status gpu_cuda_toolkit_launch(const struct backend_launch *launch,
                                      struct backend_error *error);

/* Puts the call on a stream, which need not be the launch's. The context is current. */
gpulua_status gpu_cuda_toolkit_call(const struct backend_launch *launch,
                                    struct backend_stream *stream, struct backend_error *error);

/* ---- prepared_call.c ---- */
/* True: the call was made often enough to be launched as a graph, and has been. */
bool gpu_cuda_prepared_call(const struct backend_launch *launch);
/* A call is about to go, with what its module has of the library; NULL: all, and the device. */
void gpu_cuda_prepared_calls_forget(struct backend_device *device,
                                    const struct backend_kernel *kernel);

/* ---- blas.c, blas_epilogue.c ---- */
extern const struct cuda_toolkit gpu_cuda_blas;
void gpu_cuda_blas_close(struct backend_device *device); /* its work is over, or the device lost */

/* ---- rng.c ---- */
extern const struct cuda_toolkit gpu_cuda_rng;
void gpu_cuda_rng_close(struct backend_device *device); /* likewise */
/* ---- fft.c ---- */
extern const struct cuda_toolkit gpu_cuda_fft;
void gpu_cuda_fft_close(struct backend_device *device); /* likewise; modules are gone */

#endif
