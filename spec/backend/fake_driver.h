/* For the tests of backend/cuda: builds fake_cuda.c, the driver without a GPU, and opens it. */
#ifndef SPEC_BACKEND_FAKE_DRIVER_H
#define SPEC_BACKEND_FAKE_DRIVER_H

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/backend.h"
#include "tap.h"

static const struct backend_ops *const ops = &gpu_backend_cuda;
static void *fake;
static char folder[] = "/tmp/gpulua-cuda-test-XXXXXX";

#define FAKE(type, name) (*(type *)dlsym(fake, "fake_" #name))

static inline void fail_next(const char *call, int code, int skip) {
    snprintf((char *)dlsym(fake, "fake_fail_name"), 64, "%s", call);
    FAKE(int, fail_code) = code;
    FAKE(int, fail_skip) = skip;
}

/* `name`.c of this folder as a shared library; its path in `library`. NULL: it cannot be. */
static inline void *build_fake(const char *name, char library[256]) {
    char command[1024], source[512];
    const char *compiler = getenv("CC");
    snprintf(library, 256, "%s/%s.so", folder, name);
    snprintf(source, sizeof source, "%s", __FILE__);
    char *slash = strrchr(source, '/');
    snprintf(slash != NULL ? slash + 1 : source, 32, "%s.c", name);
    snprintf(command, sizeof command, "%s -std=gnu11 -D_GNU_SOURCE -O1 -shared -fPIC -o %s %s",
             compiler != NULL && compiler[0] != '\0' ? compiler : "cc", library, source);
    return system(command) == 0 ? dlopen(library, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static inline bool build(void) {
    char library[256];
    if (mkdtemp(folder) == NULL) {
        return false;
    }
    fake = build_fake("fake_cuda", library);
    setenv("GPULUA_LIBCUDA", library, 1);
    return fake != NULL;
}

static inline struct backend_device *open_device(void) {
    struct backend_error error = {0};
    struct backend_device *device = NULL;
    struct backend_open_info info = {.ordinal = 0, .cache_path = folder};
    if (ops->device_open(&info, &device, &error) != GPULUA_OK) {
        printf("# %s\n", error.message);
        return NULL;
    }
    return device;
}

#endif
