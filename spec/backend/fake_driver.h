/* For the tests of backend/cuda: builds fake_cuda.c, the driver without a GPU, and opens it. */
#ifndef SPEC_BACKEND_FAKE_DRIVER_H
#define SPEC_BACKEND_FAKE_DRIVER_H

#include "backend/backend.h"
#include "fake.h"
#include "tap.h"

static const struct backend_ops *const ops = &gpu_backend_cuda;
static void *fake;
#define FAKE(type, name) (*(type *)dlsym(fake, "fake_" #name))

static inline void fail_next(const char *call, int code, int skip) {
    snprintf((char *)dlsym(fake, "fake_fail_name"), 64, "%s", call);
    FAKE(int, fail_code) = code;
    FAKE(int, fail_skip) = skip;
}

static inline bool build(void) {
    char library[256];
    if (!make_folder()) {
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
