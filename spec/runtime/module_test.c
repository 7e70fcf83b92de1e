/* What a module's kernels and variables take of the device's numbers, and what is believed of a
 * kernel that the driver says nothing of. */
#include <stdio.h>
#include <string.h>

#include "backend/tap.h"
#include "runtime/device.h"
#include "runtime/module.h"
#include "runtime/op.h"
#include "runtime/state.h"

static struct tap tap;
static struct gpu_error error;

static struct gpu_device *open_device(gpulua_isolation isolation) {
    struct gpu_device_info info = {.name = "cpu", .isolation = isolation, .restarts_max = -1};
    struct gpu_device *device = NULL;
    if (gpu_device_open(&info, &device, &error)) {
        printf("# %s\n", error.message);
    }
    return device;
}

static struct gpu_module *compile(struct gpu_device *device) {
    static const char text[] =
        "__device__ int table[16];\n"
        "extern \"C\" __global__ void k(int n, int *x) { x[0] = n + table[0]; }\n";
    struct gpu_module_info source = {
        .kind = GPU_MODULE_SOURCE, .name = "module", .text = text, .text_bytes = sizeof text - 1};
    struct gpu_module *module = NULL;
    struct gpu_op *op = NULL;
    bool is_well = gpu_module_create(device, &source, &module, &op, &error) == GPULUA_OK &&
                   gpu_op_wait(op, -1, &error) == GPULUA_OK && gpu_op_status(op) == GPULUA_OK;
    gpu_op_release(op);
    return is_well ? module : NULL;
}

static gpulua_status take_kernel(struct gpu_module *module, const char *name,
                                 const char *signature) {
    struct gpu_kernel *kernel = NULL;
    gpu_error_finish(&error);
    gpulua_status status = gpu_module_kernel(module, name, signature, &kernel, &error);
    gpu_kernel_release(kernel);
    return status;
}

static gpulua_status take_variable(struct gpu_module *module, const char *name) {
    struct gpu_block *block = NULL;
    enum gpu_type type;
    bool is_constant;
    gpu_error_finish(&error);
    gpulua_status status = gpu_module_global(module, name, &block, &type, &is_constant, &error);
    gpu_block_release(block);
    gpu_device_run_deferred(gpu_module_device(module));
    return status;
}

static void check(bool good, const char *transport, const char *what) {
    char line[160];
    snprintf(line, sizeof line, "%s: %s", transport, what);
    tap_check(&tap, good, line);
}

/* Over and over, as a script may that keeps none of them. */
static void numbers(struct gpu_module *module, const char *transport) {
    enum { ROUNDS = 100 };
    struct gpu_device *device = gpu_module_device(module);
    bool good = true;
    uint32_t slabs = device->slab_ids.next;
    for (int i = 0; i < ROUNDS; i++) {
        good = good && take_variable(module, "table") == GPULUA_OK;
    }
    check(good && device->slab_ids.next <= slabs + 1, transport,
          "variables that are asked for again and again take one number");
    for (int i = 0; i < ROUNDS; i++) {
        good = good && take_variable(module, "nothing") == GPULUA_INVALID_ARGUMENT;
    }
    check(good && device->slab_ids.next <= slabs + 1, transport, "those that are not there none");
    for (int i = 0; i < ROUNDS; i++) {
        good = good && take_kernel(module, "k", NULL) == GPULUA_OK &&
               take_kernel(module, "k", "n: i32, x: out i32*") == GPULUA_OK;
    }
    check(good && module->entry_count == 1, transport,
          "a kernel that is asked for again and again takes one number");
    module->kernel_count = 0; /* as of code that does not tell what is in it */
    module->kind = GPU_MODULE_IMAGE;
    uint32_t kernels = device->kernel_ids.next;
    for (int i = 0; i < ROUNDS; i++) {
        good = good && take_kernel(module, "nothing", "n: i32") == GPULUA_INVALID_ARGUMENT;
    }
    check(good && module->entry_count == 1 && device->kernel_ids.next <= kernels + 1, transport,
          "one that is not there none");
    module->kernel_count = 1;
    module->kind = GPU_MODULE_SOURCE;
}

/* As of drivers before 12.4. */
static void unknown_parameters(struct gpu_module *module, const char *transport) {
    bool is_set = module->entry_count == 1;
    if (is_set) {
        module->entries[0].facts.param_count = UINT32_MAX;
    }
    gpulua_status more = take_kernel(module, "k", "n: i32, x: out i32*, more: i32");
    bool is_said = strstr(error.message, "3 parameters, the compiled kernel has 2") != NULL;
    check(is_set && more == GPULUA_INVALID_ARGUMENT && is_said &&
              take_kernel(module, "k", "n: i32") == GPULUA_INVALID_ARGUMENT &&
              take_kernel(module, "k", "n: i32, x: i64") == GPULUA_INVALID_ARGUMENT &&
              take_kernel(module, "k", "n: i32, x: out i32*") == GPULUA_OK,
          transport, "a signature is compared with the source where the driver says nothing");
}

int main(void) {
    static const struct {
        gpulua_isolation isolation;
        const char *name;
    } transports[] = {{GPULUA_ISOLATE_NONE, "none"},
                      {GPULUA_ISOLATE_PROCESS, "process"},
                      {GPULUA_ISOLATE_THREAD, "thread"}};
    for (int i = 0; i < 3; i++) {
        struct gpu_device *device = open_device(transports[i].isolation);
        struct gpu_module *module = device ? compile(device) : NULL;
        check(module != NULL, transports[i].name, "a module");
        if (module) {
            numbers(module, transports[i].name);
            unknown_parameters(module, transports[i].name);
        }
        gpu_module_release(module);
        if (device) {
            gpu_device_close(device, 5000);
        }
        gpu_device_release(device);
    }
    gpu_error_finish(&error);
    return tap_finish(&tap);
}
