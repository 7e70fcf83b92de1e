/* Modules, kernels, variables. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/compile.h"
#include "backend/cuda/device.h"
#include "backend/cuda/image.h"
#include "backend/cuda/toolkit.h"

#define JIT_LOG_BYTES 16384

gpulua_status gpu_cuda_module_compile(struct backend_device *device,
                                      const struct backend_source *source, void **image,
                                      size_t *image_bytes, char **description,
                                      struct backend_error *error) {
    if (!device->nvrtc_is_open) {
        gpulua_status status = gpu_cuda_nvrtc_open(&device->nvrtc, error);
        if (status != GPULUA_OK) {
            return status;
        }
        device->nvrtc_is_open = true;
    }
    return gpu_cuda_compile(&device->nvrtc, device->facts.compute, device->cache_path, source,
                            image, image_bytes, description, error);
}

/* What is wrong with the code is the user's affair, not the driver's. */
static gpulua_status load_status(CUresult result, gpulua_status status, bool has_log) {
    switch ((int)result) {
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_INVALID_SOURCE:
    case CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND:
        return has_log ? GPULUA_COMPILE_FAILED : GPULUA_INVALID_ARGUMENT;
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_INVALID_VALUE:
        return GPULUA_INVALID_ARGUMENT;
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
        return GPULUA_LIBRARY_UNAVAILABLE;
    default:
        return status;
    }
}

static gpulua_status code_load(struct backend_device *device, const void *code, CUmodule *handle,
                               struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    char *log = calloc(1, JIT_LOG_BYTES);
    if (log == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    CUjit_option names[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)(JIT_LOG_BYTES - 1)};
    CUresult result = cu->cuModuleLoadDataEx(handle, code, 2, names, values);
    gpulua_status status =
        gpu_cuda_result(device, result, "cuModuleLoadDataEx", __FILE__, __LINE__, error);
    if (status != GPULUA_OK && status != GPULUA_DEVICE_LOST && error != NULL) {
        status = load_status(result, status, log[0] != '\0');
        error->status = status;
        if (log[0] != '\0') {
            free(error->log);
            error->log = log;
            log = NULL;
        }
    }
    free(log);
    return status;
}

/* Left to itself the driver loads a kernel when it is first asked for, and its first launch then
 * waits for whatever runs on the device (measured: docs/results.md). */
static gpulua_status functions_load(struct backend_device *device, CUmodule handle,
                                    struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    unsigned count = 0;
    if (cu->cuModuleGetFunctionCount == NULL || cu->cuModuleEnumerateFunctions == NULL ||
        cu->cuFuncLoad == NULL) {
        return GPULUA_OK; /* a driver before 12.4 */
    }
    gpulua_status status = CU(device, error, cu->cuModuleGetFunctionCount(&count, handle));
    if (status != GPULUA_OK || count == 0) {
        return status;
    }
    CUfunction *functions = calloc(count, sizeof(CUfunction));
    if (functions == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    status = CU(device, error, cu->cuModuleEnumerateFunctions(functions, count, handle));
    for (unsigned i = 0; i < count && status == GPULUA_OK; i++) {
        status = CU(device, error, cu->cuFuncLoad(functions[i]));
    }
    free(functions);
    return status;
}

gpulua_status gpu_cuda_module_load(struct backend_device *device, const void *image,
                                   size_t image_bytes, bool compiled,
                                   struct backend_module **module, struct backend_error *error) {
    struct cuda_image parts = {.code = image, .code_bytes = image_bytes};
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status != GPULUA_OK) {
        return status;
    }
    const char *why = "it is not what module_compile made";
    enum cuda_code kind = CUDA_CODE_NONE;
    if (!compiled || gpu_cuda_image_read(image, image_bytes, &parts)) {
        kind = gpu_cuda_code_kind(parts.code, parts.code_bytes, &why);
    }
    if (kind == CUDA_CODE_NONE) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "%zu bytes cannot be loaded as a module: %s", image_bytes, why);
    }
    struct backend_module *made = calloc(1, sizeof *made);
    /* A copy: PTX needs its NUL, and the driver wants code aligned. */
    char *code = malloc(parts.code_bytes + 1);
    if (made == NULL || code == NULL) {
        status = gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
        goto fail;
    }
    memcpy(code, parts.code, parts.code_bytes);
    code[parts.code_bytes] = '\0';
    made->device = device;
    made->prints = compiled ? parts.prints : gpu_cuda_code_prints(parts.code, parts.code_bytes);
    if (compiled) {
        made->symbols = strdup(parts.symbols);
        if (made->symbols == NULL) {
            status = gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
            goto fail;
        }
    }
    status = code_load(device, code, &made->handle, error);
    if (status != GPULUA_OK) {
        goto fail;
    }
    status = functions_load(device, made->handle, error);
    if (status != GPULUA_OK) {
        (void)device->cu.cuModuleUnload(made->handle);
        goto fail;
    }
    free(code);
    gpu_cuda_link(&device->modules, &made->link);
    *module = made;
    return GPULUA_OK;

fail:
    free(made != NULL ? made->symbols : NULL);
    free(made);
    free(code);
    return status;
}

void gpu_cuda_module_unload(struct backend_device *device, struct backend_module *module) {
    const struct cuda_driver *cu = &device->cu;
    if (module == NULL) {
        return;
    }
    for (struct link *at = device->streams.next; at != &device->streams; at = at->next) {
        for (struct backend_kernel *kernel = module->kernels; kernel; kernel = kernel->next) {
            gpu_cuda_prepared_forget((struct backend_stream *)(void *)at, kernel);
        }
    }
    for (struct backend_kernel *kernel = module->kernels; kernel; kernel = kernel->next) {
        gpu_cuda_prepared_calls_forget(device, kernel);
    }
    if (module->library != NULL && module->library->drop != NULL) {
        module->library->drop(device, module->library_made);
    }
    if (module->library == NULL && gpu_cuda_enter(device, NULL) == GPULUA_OK) {
        (void)CU(device, NULL, cu->cuModuleUnload(module->handle));
    }
    while (module->kernels != NULL) {
        struct backend_kernel *kernel = module->kernels;
        module->kernels = kernel->next;
        free(kernel);
    }
    gpu_cuda_unlink(&module->link);
    free(module->symbols);
    free(module);
}

/* The symbol of `name`: of a compiled module from its table, else the name itself. malloc'ed. */
static gpulua_status symbol_find(const struct backend_module *module, char kind, const char *name,
                                 char **symbol, struct backend_error *error) {
    if (module->symbols == NULL) {
        *symbol = strdup(name);
    } else {
        struct cuda_image table = {.symbols = module->symbols};
        *symbol = gpu_cuda_image_symbol(&table, kind, name);
    }
    if (*symbol == NULL) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0, "the module has no %s '%s'",
                                kind == 'k' ? "kernel" : "variable", name);
    }
    return GPULUA_OK;
}

static gpulua_status not_found(struct backend_error *error, const char *what, const char *name) {
    return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, (int32_t)CUDA_ERROR_NOT_FOUND,
                            "the module has no %s '%s'", what, name);
}

/* ---- kernels ---- */

/* Sizes and offsets of the parameters, as far as the driver tells. */
static void params_read(const struct backend_kernel *kernel, struct wire_kernel_facts *facts,
                        uint32_t *args_bytes) {
    const struct cuda_driver *cu = &kernel->device->cu;
    facts->param_count = UINT32_MAX;
    *args_bytes = 0;
    if (cu->cuFuncGetParamInfo == NULL) {
        return;
    }
    uint32_t count = 0;
    for (;; count++) {
        size_t offset = 0, bytes = 0;
        CUresult result = cu->cuFuncGetParamInfo(kernel->function, count, &offset, &bytes);
        if (result == CUDA_ERROR_INVALID_VALUE) {
            break; /* there are no more */
        }
        if (result != CUDA_SUCCESS) {
            return;
        }
        if (count < sizeof facts->param_bytes / sizeof facts->param_bytes[0]) {
            facts->param_bytes[count] = (uint32_t)bytes;
            facts->param_offset[count] = (uint32_t)offset;
        }
        *args_bytes = (uint32_t)(offset + bytes);
    }
    facts->param_count = count;
}

static gpulua_status facts_read(struct backend_kernel *kernel, struct wire_kernel_facts *facts,
                                struct backend_error *error) {
    struct backend_device *device = kernel->device;
    const struct cuda_driver *cu = &device->cu;
    const struct {
        CUfunction_attribute attribute;
        uint32_t *value;
    } wanted[] = {
        {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &facts->block_threads_max},
        {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &facts->shared_bytes_static},
        {CU_FUNC_ATTRIBUTE_NUM_REGS, &facts->registers},
        {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &facts->local_bytes},
    };
    memset(facts, 0, sizeof *facts);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        int value = 0;
        gpulua_status status = CU(
            device, error, cu->cuFuncGetAttribute(&value, wanted[i].attribute, kernel->function));
        if (status != GPULUA_OK) {
            return status;
        }
        *wanted[i].value = value > 0 ? (uint32_t)value : 0;
    }
    int blocks = 0;
    /* 0 where 256 threads are more than the kernel can have. */
    if (cu->cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel->function, 256, 0) ==
            CUDA_SUCCESS &&
        blocks > 0) {
        facts->occupancy_blocks = (uint32_t)blocks;
    }
    params_read(kernel, facts, &kernel->args_bytes);
    uint32_t fixed = facts->shared_bytes_static;
    uint32_t most = device->facts.shared_bytes_max, usual = device->shared_bytes_default;
    kernel->shared_bytes_max = most > fixed ? most - fixed : 0;
    kernel->shared_bytes_ready = usual > fixed ? usual - fixed : 0;
    return GPULUA_OK;
}

gpulua_status gpu_cuda_kernel_get(struct backend_module *module, const char *name,
                                  struct backend_kernel **kernel, bool *prints,
                                  struct wire_kernel_facts *facts, struct backend_error *error) {
    struct backend_device *device = module->device;
    const struct cuda_driver *cu = &device->cu;
    char *symbol = NULL;
    struct backend_kernel *made = NULL;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status == GPULUA_OK && module->library == NULL) {
        status = symbol_find(module, 'k', name, &symbol, error);
    }
    if (status == GPULUA_OK) {
        made = calloc(1, sizeof *made);
        status = made != NULL ? GPULUA_OK
                              : gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    if (status == GPULUA_OK && module->library != NULL) {
        made->device = device;
        status = gpu_cuda_toolkit_kernel(module, name, made, facts, error);
    } else if (status == GPULUA_OK) {
        made->device = device;
        CUresult result = cu->cuModuleGetFunction(&made->function, module->handle, symbol);
        status =
            result == CUDA_ERROR_NOT_FOUND
                ? not_found(error, "kernel", name)
                : gpu_cuda_result(device, result, "cuModuleGetFunction", __FILE__, __LINE__, error);
        if (status == GPULUA_OK) {
            status = facts_read(made, facts, error);
        }
    }
    free(symbol);
    if (status != GPULUA_OK) {
        free(made);
        return status;
    }
    made->next = module->kernels;
    module->kernels = made;
    *kernel = made;
    *prints = module->prints;
    return GPULUA_OK;
}

gpulua_status gpu_cuda_global_get(struct backend_module *module, const char *name,
                                  uint64_t *address, uint64_t *bytes, struct backend_error *error) {
    struct backend_device *device = module->device;
    const struct cuda_driver *cu = &device->cu;
    char *symbol = NULL;
    gpulua_status status = module->library == NULL ? gpu_cuda_enter(device, error)
                                                   : not_found(error, "variable", name);
    if (status == GPULUA_OK) {
        status = symbol_find(module, 'g', name, &symbol, error);
    }
    if (status == GPULUA_OK) {
        CUdeviceptr found = 0;
        size_t size = 0;
        CUresult result = cu->cuModuleGetGlobal(&found, &size, module->handle, symbol);
        status =
            result == CUDA_ERROR_NOT_FOUND
                ? not_found(error, "variable", name)
                : gpu_cuda_result(device, result, "cuModuleGetGlobal", __FILE__, __LINE__, error);
        *address = (uint64_t)found;
        *bytes = size;
    }
    free(symbol);
    return status;
}
