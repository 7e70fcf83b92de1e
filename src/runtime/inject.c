/* Injected failures (see runtime/device.h): counted where the real ones would come from. */
#include "runtime/state.h"

void gpu_device_inject(struct gpu_device *device, gpulua_injection what, uint64_t n) {
    GPU_ENTER(device);
    device->injected[what] = n;
    device->is_injected = false;
    for (int i = 0; i < GPU_INJECT_COUNT; i++) {
        device->is_injected |= device->injected[i] != 0;
    }
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
