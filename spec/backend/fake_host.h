/* The made-up driver as a host calls it that uses CUDA itself, beside gpulua. */
#ifndef SPEC_BACKEND_FAKE_HOST_H
#define SPEC_BACKEND_FAKE_HOST_H

#include "backend/fake_driver.h"

#define HOST_DRIVER_TABLE(X)                                                                       \
    X(cuCtxCreate_v2, void **, unsigned, int)                                                      \
    X(cuCtxDestroy_v2, void *)                                                                     \
    X(cuCtxGetCurrent, void **)                                                                    \
    X(cuCtxSetCurrent, void *)                                                                     \
    X(cuDevicePrimaryCtxRetain, void **, int)                                                      \
    X(cuDevicePrimaryCtxRelease_v2, int)                                                           \
    X(cuStreamCreateWithPriority, void **, unsigned, int)                                          \
    X(cuStreamDestroy_v2, void *)                                                                  \
    X(cuStreamBeginCapture_v2, void *, int)                                                        \
    X(cuStreamEndCapture, void *, void **)                                                         \
    X(cuStreamIsCapturing, void *, int *)                                                          \
    X(cuGraphDestroy, void *)
static struct {
#define X(name, ...) int (*name)(__VA_ARGS__);
    HOST_DRIVER_TABLE(X)
#undef X
} cu;

/* The driver, with two GPUs. */
static inline bool build_host(void) {
    void *symbol;
    if (!build()) {
        return false;
    }
#define X(name, ...)                                                                               \
    symbol = dlsym(fake, #name);                                                                   \
    memcpy(&cu.name, &symbol, sizeof symbol);
    HOST_DRIVER_TABLE(X)
#undef X
    FAKE(int, devices) = 2;
    return true;
}

static inline void *current(void) {
    void *context = NULL;
    cu.cuCtxGetCurrent(&context);
    return context;
}

/* Of the host's; nothing is current behind it. */
static inline void *make_context(int ordinal) {
    void *context = NULL;
    cu.cuCtxCreate_v2(&context, 0, ordinal);
    cu.cuCtxSetCurrent(NULL);
    return context;
}

#endif
