/* Injected failures (see runtime/device.h): counted where the real ones would come from. */
#include <stdlib.h>
#include <string.h>

#include "runtime/state.h"
#include "runtime/work.h"

static void note(struct gpu_device *device) {
    device->is_injected = device->slow.kernel != NULL;
    for (int i = 0; i < GPU_INJECT_COUNT; i++) {
        device->is_injected |= device->injected[i] != 0;
    }
}

void gpu_device_inject(struct gpu_device *device, gpulua_injection what, uint64_t n) {
    GPU_ENTER(device);
    device->injected[what] = n;
    note(device);
}

gpulua_status gpu_device_inject_slow(struct gpu_device *device, struct gpu_kernel *kernel,
                                     const char *name, int64_t ns, struct gpu_error *error) {
    GPU_ENTER(device);
    struct gpu_kernel *before = device->slow.kernel;
    char *copy = kernel ? strdup(name) : NULL;
    if (kernel && !copy) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a name");
    }
    free(device->slow.name);
    device->slow.kernel = kernel ? gpu_kernel_retain(kernel) : NULL;
    device->slow.name = copy;
    device->slow.ns = ns;
    gpu_kernel_release(before);
    note(device);
    return GPULUA_OK;
}

gpulua_status gpu_inject_delay(const struct gpu_launch *launch, struct gpu_error *error) {
    struct gpu_device *device = launch->submit.stream->device;
    if (!device->slow.kernel || launch->submit.capture ||
        strcmp(device->slow.name, gpu_kernel_name(launch->kernel)) != 0) {
        return GPULUA_OK;
    }
    const struct gpu_arg ns = {.scalar = {.i = device->slow.ns}};
    struct gpu_launch delay = {.submit = launch->submit,
                               .kernel = gpu_kernel_retain(device->slow.kernel),
                               .grid = {1, 1, 1},
                               .block = {1, 1, 1},
                               .args = &ns,
                               .arg_count = 1};
    delay.submit.label = NULL; /* the delay's own */
    gpulua_status status = gpu_device_inject_slow(device, NULL, NULL, 0, error);
    if (status == GPULUA_OK) {
        status = gpu_work_launch(&delay, NULL, error);
    }
    gpu_kernel_release(delay.kernel);
    return status;
}

bool gpu_inject_due(struct gpu_device *device, gpulua_injection what) {
    if (device->injected[what] == 0 || --device->injected[what] != 0) {
        return false;
    }
    gpu_device_inject(device, what, 0);
    return true;
}

uint8_t gpu_inject_flags(struct gpu_device *device) {
    bool is_fault = gpu_inject_due(device, GPULUA_INJECT_FAULT);
    bool is_lost = gpu_inject_due(device, GPULUA_INJECT_LOST);
    return (uint8_t)((is_fault ? WIRE_FLAG_FAULT : 0) | (is_lost ? WIRE_FLAG_DIE : 0));
}
