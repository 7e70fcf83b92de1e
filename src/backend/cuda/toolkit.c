/* Modules of libraries' calls (see toolkit.h). */
#include "backend/cuda/toolkit.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct cuda_toolkit *const libraries[] = {&gpu_cuda_blas, &gpu_cuda_fft,
                                                       &gpu_cuda_rng};

/* Libraries bring what they need, such as the factors of a transform, to the device on the driver's
 * default stream, and may return before it is there. Streams of ours do not wait for that one.
 * While the host captures streams it is not waited for: that could break them off. */
static gpulua_status wait_for_default(struct backend_device *device, struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    return gpu_cuda_may_be_captured()
               ? GPULUA_OK
               : CU(device, error, cu->cuStreamSynchronize(CU_STREAM_LEGACY));
}

gpulua_status gpu_cuda_library_module(struct backend_device *device, const char *name,
                                      const char *options, struct backend_module **module,
                                      char **description, struct backend_error *error) {
    const struct cuda_toolkit *library = NULL;
    *description = NULL;
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries && library == NULL; i++) {
        library = strcmp(libraries[i]->name, name) == 0 ? libraries[i] : NULL;
    }
    if (library == NULL || (library->make == NULL && options[0] != '\0')) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                                "CUDA devices have no library '%s'%s%s", name,
                                options[0] != '\0' ? " with options " : "", options);
    }
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status == GPULUA_OK) {
        status = library->open(device, error);
    }
    void *own = NULL;
    if (status == GPULUA_OK && library->make != NULL) {
        status = library->make(device, options, &own, description, error);
    }
    if (status != GPULUA_OK) {
        return status;
    }
    status = wait_for_default(device, error);
    struct backend_module *made = calloc(1, sizeof *made);
    if (library->make == NULL) {
        *description = strdup(library->description);
    }
    if (status == GPULUA_OK && (made == NULL || *description == NULL)) {
        status = gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    if (status != GPULUA_OK) {
        if (library->drop != NULL) {
            library->drop(device, own);
        }
        free(made);
        free(*description);
        *description = NULL;
        return status;
    }
    made->device = device;
    made->library = library;
    made->library_made = own;
    gpu_cuda_link(&device->modules, &made->link);
    *module = made;
    return GPULUA_OK;
}

gpulua_status gpu_cuda_toolkit_kernel(const struct backend_module *module, const char *name,
                                      struct backend_kernel *kernel,
                                      struct wire_kernel_facts *facts,
                                      struct backend_error *error) {
    const struct cuda_toolkit *library = module->library;
    for (size_t i = 0; i < library->call_count; i++) {
        if (strcmp(library->calls[i].name, name) == 0) {
            kernel->call = &library->calls[i];
            kernel->call_made = module->library_made;
            kernel->call_repeats = library->calls_repeat;
            memset(facts, 0, sizeof *facts);
            facts->block_threads_max = 1;
            facts->param_count = UINT32_MAX;
            return GPULUA_OK;
        }
    }
    return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0, "the library '%s' has no call '%s'",
                            library->name, name);
}

gpulua_status gpu_cuda_toolkit_call(const struct backend_launch *launch,
                                    struct backend_stream *stream, struct backend_error *error) {
    _Alignas(16) uint8_t args[CUDA_CALL_ARGS_MAX];
    memcpy(args, launch->args, launch->args_bytes);
    return launch->kernel->call->run(launch->kernel->device, launch->kernel->call_made, stream,
                                     args, error);
}

gpulua_status gpu_cuda_toolkit_launch(const struct backend_launch *launch,
                                      struct backend_error *error) {
    const struct cuda_toolkit_call *call = launch->kernel->call;
    /* Arguments end where the last one does, structs at a multiple of 8. */
    if (launch->args_bytes + 7 < call->args_bytes || launch->args_bytes > CUDA_CALL_ARGS_MAX) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "%" PRIu32 " bytes of arguments: %s takes %" PRIu32,
                                launch->args_bytes, call->name, call->args_bytes);
    }
    if (launch->stream->patched != NULL) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                                "a library's call in a graph cannot be changed");
    }
    if (launch->kernel->call_repeats && !launch->stream->is_captured &&
        gpu_cuda_prepared_call(launch)) {
        return GPULUA_OK;
    }
    gpulua_status status = gpu_cuda_enter(launch->kernel->device, error);
    return status != GPULUA_OK ? status : gpu_cuda_toolkit_call(launch, launch->stream, error);
}
