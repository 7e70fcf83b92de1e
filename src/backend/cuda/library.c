/* Opening the libraries that the backend needs (see library.h). */
#include "backend/cuda/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/tracer.h"
#include "backend/dynamic.h"
#include "backend/text.h"

#define PATH_BYTES 4096

/* ---- the driver ---- */

static void *driver_symbol(void *library, PFN_cuGetProcAddress_v12000 ask,
                           PFN_cuGetProcAddress_v11030 ask_old, const char *name, int version,
                           const char *symbol) {
    void *found = NULL;
    if (ask != NULL) {
        CUdriverProcAddressQueryResult answer;
        if (ask(name, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &answer) ==
                CUDA_SUCCESS &&
            found != NULL) {
            return found;
        }
    } else if (ask_old != NULL) {
        if (ask_old(name, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM) == CUDA_SUCCESS &&
            found != NULL) {
            return found;
        }
    }
    return dlsym(library, symbol);
}

/* ISO C has no conversion from an object pointer to a function pointer; POSIX promises the bits. */
static void set_pointer(void *to, void *from) {
    memcpy(to, &from, sizeof from);
}

gpulua_status gpu_cuda_driver_open(struct cuda_driver *driver, struct backend_error *error) {
    static const char *const usual[] = {"libcuda.so.1", "libcuda.so", NULL};
    const char *asked[] = {getenv("GPULUA_LIBCUDA"), NULL};
    bool is_asked = asked[0] != NULL && asked[0][0] != '\0';
    memset(driver, 0, sizeof *driver);
    gpulua_status status =
        gpu_backend_library_open("the CUDA driver (libcuda, part of the NVIDIA driver)",
                                 is_asked ? asked : usual, NULL, &driver->library, error);
    if (status != GPULUA_OK) {
        return status;
    }
    PFN_cuGetProcAddress_v12000 ask;
    PFN_cuGetProcAddress_v11030 ask_old;
    set_pointer(&ask, dlsym(driver->library, "cuGetProcAddress_v2"));
    set_pointer(&ask_old, dlsym(driver->library, "cuGetProcAddress"));
#define X(required, name, wanted, symbol)                                                          \
    set_pointer(&driver->name,                                                                     \
                driver_symbol(driver->library, ask, ask_old, #name, wanted, symbol));              \
    if ((required) && driver->name == NULL) {                                                      \
        return gpu_backend_fail(error, GPULUA_LIBRARY_UNAVAILABLE, 0,                              \
                                "the CUDA driver has no " #name                                    \
                                " (version %d of it): it is too old, or not a driver",             \
                                wanted);                                                           \
    }
    CUDA_DRIVER_TABLE(X)
#undef X
    if (driver->cuDriverGetVersion(&driver->version) != CUDA_SUCCESS) {
        driver->version = 0;
    }
    return GPULUA_OK;
}

/* ---- NVRTC ---- */

static const char *under(char path[PATH_BYTES], const char *variable, const char *folder) {
    const char *base = getenv(variable);
    path[0] = '\0';
    if (base != NULL && base[0] != '\0' &&
        snprintf(path, PATH_BYTES, "%s/%s", base, folder) >= PATH_BYTES) {
        path[0] = '\0';
    }
    return path;
}

static bool has_headers(const char *folder) {
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/cuda_fp16.h", folder);
    return folder[0] != '\0' && length < (int)sizeof path && access(path, R_OK) == 0;
}

/* The headers that belong to the library that was loaded come before any others. */
static void find_headers(struct cuda_nvrtc *nvrtc) {
    char beside[PATH_BYTES] = "", above[PATH_BYTES] = "", home[PATH_BYTES], path[PATH_BYTES];
    Dl_info info;
    void *symbol;
    memcpy(&symbol, &nvrtc->nvrtcVersion, sizeof symbol);
    char *real = NULL;
    if (dladdr(symbol, &info) != 0 && info.dli_fname != NULL) {
        real = realpath(info.dli_fname, NULL);
    }
    char *slash = real != NULL ? strrchr(real, '/') : NULL;
    if (slash != NULL && slash - real < PATH_BYTES - 32) {
        *slash = '\0';
        snprintf(beside, sizeof beside, "%.*s/../include", PATH_BYTES - 32, real);
        snprintf(above, sizeof above, "%.*s/../../include", PATH_BYTES - 32, real);
    }
    free(real);
    const char *const candidates[] = {beside,
                                      above,
                                      under(home, "CUDA_HOME", "include"),
                                      under(path, "CUDA_PATH", "include"),
                                      "/usr/local/cuda/include",
                                      "/opt/cuda/include",
                                      "/usr/include"};
    nvrtc->include[0] = '\0';
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
        if (has_headers(candidates[i])) {
            snprintf(nvrtc->include, sizeof nvrtc->include, "%s", candidates[i]);
            return;
        }
    }
}

gpulua_status gpu_cuda_toolkit_load(const char *what, const char *variable,
                                    const char *const *names, void **library,
                                    struct backend_error *error) {
    const char *asked[] = {getenv(variable), NULL};
    bool is_asked = asked[0] != NULL && asked[0][0] != '\0';
    char home[PATH_BYTES], path[PATH_BYTES];
    const char *const folders[] = {under(home, "CUDA_HOME", "lib64"),
                                   under(path, "CUDA_PATH", "lib64"), "/usr/local/cuda/lib64",
                                   "/opt/cuda/lib64", NULL};
    return gpu_backend_library_open(what, is_asked ? asked : names, is_asked ? NULL : folders,
                                    library, error);
}

gpulua_status gpu_cuda_nvrtc_open(struct cuda_nvrtc *nvrtc, struct backend_error *error) {
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", NULL};
    memset(nvrtc, 0, sizeof *nvrtc);
    gpulua_status status =
        gpu_cuda_toolkit_load("the CUDA compiler library (libnvrtc, part of the CUDA toolkit)",
                              "GPULUA_LIBNVRTC", names, &nvrtc->library, error);
    if (status != GPULUA_OK) {
        return status;
    }
#define X(name)                                                                                    \
    set_pointer(&nvrtc->name, dlsym(nvrtc->library, #name));                                       \
    if (nvrtc->name == NULL) {                                                                     \
        return gpu_backend_fail(error, GPULUA_LIBRARY_UNAVAILABLE, 0,                              \
                                "libnvrtc has no " #name ": it is too old, or not NVRTC");         \
    }
    CUDA_NVRTC_TABLE(X)
#undef X
    if (nvrtc->nvrtcVersion(&nvrtc->major, &nvrtc->minor) != NVRTC_SUCCESS) {
        return gpu_backend_fail(error, GPULUA_LIBRARY_ERROR, 0, "nvrtcVersion failed");
    }
    find_headers(nvrtc);
    return GPULUA_OK;
}

/* ---- what --info shows ---- */

static void describe_library(struct text *text, const char *name, gpulua_status status,
                             const void *symbol, int major, int minor,
                             const struct backend_error *error) {
    Dl_info info;
    if (status != GPULUA_OK) {
        gpu_text_format(text, "missing\t%s\t%s\n", name, error->message);
    } else if (dladdr(symbol, &info) != 0 && info.dli_fname != NULL) {
        gpu_text_format(text, "found\t%s\t%s (%d.%d)\n", name, info.dli_fname, major, minor);
    } else {
        gpu_text_format(text, "found\t%s\t(%d.%d)\n", name, major, minor);
    }
}

void gpu_cuda_describe(struct text *text) {
    struct backend_error error;
    struct cuda_driver driver;
    struct cuda_nvrtc nvrtc;
    const void *symbol = NULL;
    gpu_backend_error_init(&error);
    gpulua_status status = gpu_cuda_driver_open(&driver, &error);
    if (status == GPULUA_OK) {
        memcpy(&symbol, &driver.cuInit, sizeof symbol);
    }
    describe_library(text, "CUDA driver", status, symbol, driver.version / 1000,
                     driver.version % 1000 / 10, &error);
    status = gpu_cuda_nvrtc_open(&nvrtc, &error);
    if (status == GPULUA_OK) {
        memcpy(&symbol, &nvrtc.nvrtcVersion, sizeof symbol);
    }
    describe_library(text, "NVRTC", status, symbol, nvrtc.major, nvrtc.minor, &error);
    if (status == GPULUA_OK && nvrtc.include[0] != '\0') {
        gpu_text_format(text, "found\tCUDA headers\t%s\n", nvrtc.include);
    } else if (status == GPULUA_OK) {
        gpu_text_format(text, "missing\tCUDA headers\tno folder with cuda_fp16.h was found\n");
    }
    gpu_cuda_tracer_describe(text);
    free(error.log);
}
