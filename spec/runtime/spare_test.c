/* What a spare knows before its turn: modules, kernels, streams, the arena. That it does, is seen
 * by taking away what they are made of: the text of a module. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/module.h"
#include "runtime/state.h"
#include "runtime/work.h"

#define PATIENCE_NS INT64_C(20000000000)

static int passed, failed;
static struct gpu_error error;

static void check(bool condition, const char *name) {
    printf("%s - %s\n", condition ? "ok" : "not ok", name);
    if (!condition) {
        printf("# %s\n", error.message);
    }
    *(condition ? &passed : &failed) += 1;
}

/* ---- a device ---- */

static struct gpu_device *open_device(bool has_spare, bool is_checked) {
    struct gpu_device_info info = {.name = "cpu",
                                   .isolation = GPULUA_ISOLATE_PROCESS,
                                   .restarts_max = 100,
                                   .has_spare = has_spare,
                                   .is_checked = is_checked};
    struct gpu_device *device = NULL;
    if (gpu_device_open(&info, &device, &error)) {
        printf("# %s\n", error.message);
    }
    return device;
}

static void close_device(struct gpu_device *device) {
    gpu_device_close(device, 1000);
    gpu_device_release(device);
}

static void wait_a_little(struct gpu_device *device) {
    gpu_device_nap(device, 1000000);
    (void)gpu_device_poll(device);
}

/* Another one takes over. */
static bool replace(struct gpu_device *device) {
    int64_t end_ns = gpu_clock_ns() + PATIENCE_NS;
    kill(gpu_device_pid(device), SIGKILL);
    while (gpu_device_state(device) == GPU_DEVICE_OPEN && gpu_clock_ns() < end_ns) {
        wait_a_little(device);
    }
    while (gpu_device_state(device) != GPU_DEVICE_OPEN && gpu_clock_ns() < end_ns) {
        wait_a_little(device);
    }
    return gpu_device_state(device) == GPU_DEVICE_OPEN;
}

static bool has_taken(struct gpu_device *device, const struct gpu_told *told) {
    return told->spare_seq != 0 && gpu_wire_link_has_taken(device->link, told->position);
}

static bool takes(struct gpu_device *device, const struct gpu_told *told) {
    int64_t end_ns = gpu_clock_ns() + PATIENCE_NS;
    while (!has_taken(device, told) && gpu_clock_ns() < end_ns) {
        wait_a_little(device);
    }
    return has_taken(device, told);
}

/* ---- modules ---- */

static struct gpu_module *compile(struct gpu_device *device, const char *text) {
    struct gpu_module_info source = {
        .kind = GPU_MODULE_SOURCE, .name = "told.cu", .text = text, .text_bytes = strlen(text)};
    struct gpu_module *module = NULL;
    struct gpu_op *op = NULL;
    if (gpu_module_create(device, &source, &module, &op, &error) == GPULUA_OK) {
        (void)gpu_op_wait(op, -1, &error);
    }
    gpu_op_release(op);
    return module;
}

static void spoil(struct gpu_module *module) {
    ((char *)gpu_block_host_bytes(module->image))[0] = '?';
}

#define ONE "extern \"C\" __global__ void k(int *x) { x[0] = 1; }\n"
#define TWO "extern \"C\" __global__ void k(int *x) { x[0] = 2; }\n"

/* What the kernel writes; 0: it does not run. */
static int run(struct gpu_kernel *kernel, struct gpu_stream *stream) {
    struct gpu_device *device = kernel->module->device;
    struct gpu_block_info info = {.byte_count = 64},
                          host_info = {.byte_count = 64, .is_host = true};
    struct gpu_block *block = NULL, *host = NULL;
    struct gpu_op *op = NULL;
    int found = 0;
    if (gpu_block_create(device, &info, &block, &error) == GPULUA_OK &&
        gpu_block_create(device, &host_info, &host, &error) == GPULUA_OK) {
        struct gpu_ref from = {block, 0, 64, GPU_TYPE_I32}, to = {host, 0, 64, GPU_TYPE_I32};
        struct gpu_submit submit = {.stream = stream};
        struct gpu_arg arg = {.ref = &from};
        struct gpu_launch launch = {.submit = submit,
                                    .kernel = kernel,
                                    .grid = {1, 1, 1},
                                    .block = {1, 1, 1},
                                    .args = &arg,
                                    .arg_count = 1};
        bool is_well = gpu_work_launch(&launch, NULL, &error) == GPULUA_OK &&
                       gpu_work_copy(&submit, &to, &from, &op, &error) == GPULUA_OK &&
                       gpu_op_wait(op, -1, &error) == GPULUA_OK && gpu_op_status(op) == GPULUA_OK;
        found = is_well ? *(int *)gpu_block_host_bytes(host) : 0;
    }
    if (op) {
        gpu_op_observe(op);
    }
    gpu_op_release(op);
    gpu_block_release(host);
    gpu_block_release(block);
    return found;
}

struct script {
    struct gpu_device *device;
    struct gpu_stream *stream;
    struct gpu_module *module;
    struct gpu_kernel *kernel;
};

static bool begin(struct script *script, bool has_spare) {
    *script = (struct script){.device = open_device(has_spare, false)};
    struct gpu_stream_info info = {0};
    return script->device &&
           gpu_stream_create(script->device, &info, &script->stream, &error) == GPULUA_OK &&
           (script->module = compile(script->device, ONE)) != NULL &&
           gpu_module_kernel(script->module, "k", NULL, &script->kernel, &error) == GPULUA_OK &&
           run(script->kernel, script->stream) == 1;
}

static void end(struct script *script) {
    gpu_kernel_release(script->kernel);
    gpu_module_release(script->module);
    if (script->stream) {
        gpu_stream_release(script->stream);
    }
    close_device(script->device);
}

/* ---- told beforehand ---- */

static void test_told(void) {
    struct script script = {0};
    bool is_well = false, is_told = false, knows = false;
    for (int tries = 0; tries < 10 && !knows; tries++) { /* one that is slow does not take over */
        if (tries > 0) {
            end(&script);
        }
        is_well = begin(&script, true);
        is_told = is_well && takes(script.device, &script.module->told) &&
                  has_taken(script.device, &script.stream->told) &&
                  script.module->told_entry_count == 1 &&
                  script.device->recovery.told_arena_bytes >= WIRE_ARENA_CHUNK_BYTES;
        spoil(script.module);
        knows = is_told && replace(script.device) && !script.module->is_missing;
    }
    check(is_told, "a spare is told of modules, kernels, streams and the arena");
    check(knows, "what it knows needs not be made anew");
    check(is_well && run(script.kernel, script.stream) == 1, "and does what it did");
    check(is_well && run(script.kernel, script.stream) == 1, "on streams that go on counting");
    check(is_well && takes(script.device, &script.module->told),
          "and the next spare is told the same");
    /* It cannot load what has been spoilt: then it is nothing that it knows. */
    check(is_well && replace(script.device) && script.module->is_missing &&
              run(script.kernel, script.stream) == 0,
          "what it could not make is made when it has taken over, or missing");
    gpu_error_finish(&error);
    ((char *)gpu_block_host_bytes(script.module->image))[0] = 'e';
    check(is_well && replace(script.device) && run(script.kernel, script.stream) == 1,
          "until it can be made");
    end(&script);
}

static void test_without(void) {
    struct script script;
    bool is_well = begin(&script, false);
    spoil(script.module);
    check(is_well && replace(script.device) && script.module->is_missing &&
              script.module->told.spare_seq == 0,
          "without a spare it is made anew, from what there is");
    end(&script);
}

static void test_checked(void) {
    struct gpu_device *device = open_device(true, true);
    struct gpu_module *module = compile(device, ONE);
    check(module && module->told.spare_seq == 0, "in check mode nobody is told beforehand");
    gpu_module_release(module);
    close_device(device);
}

/* ---- told of what has gone ---- */

/* A spare looks half a second after it was started. */
static void test_closed(void) {
    struct gpu_device *device = open_device(true, false);
    struct gpu_module *module = compile(device, ONE);
    struct gpu_told told = module->told;
    bool was_late = !has_taken(device, &told);
    gpu_module_release(module);
    gpu_device_run_deferred(device);
    check(was_late && device->stats.modules_live == 0 && device->recovery.unread,
          "the text of a closed module that the spare has still to look at stays");
    bool is_well = takes(device, &told);
    (void)gpu_device_poll(device);
    check(is_well && !device->recovery.unread, "until it has");
    struct gpu_module *other = compile(device, TWO);
    struct gpu_kernel *kernel = NULL;
    is_well = gpu_module_kernel(other, "k", NULL, &kernel, &error) == GPULUA_OK &&
              takes(device, &other->told) && replace(device);
    struct gpu_stream *stream = NULL;
    is_well = is_well && gpu_device_task_stream(device, 0, &stream, &error) == GPULUA_OK;
    check(is_well && run(kernel, stream) == 2, "and the next one is itself");
    gpu_kernel_release(kernel);
    gpu_module_release(other);
    close_device(device);
}

/* It takes over before it has looked at anything, and is told of nothing that is gone. */
static void test_early(void) {
    struct gpu_device *device = open_device(true, false);
    struct gpu_module *module = compile(device, ONE), *other = compile(device, TWO);
    struct gpu_kernel *kernel = NULL;
    struct gpu_stream *stream = NULL;
    bool is_well = gpu_module_kernel(other, "k", NULL, &kernel, &error) == GPULUA_OK;
    gpu_module_release(module);
    gpu_device_run_deferred(device);
    is_well = is_well && device->recovery.unread && replace(device);
    check(is_well && !device->recovery.unread,
          "one that takes over makes nothing first that nobody has any more");
    is_well = is_well && gpu_device_task_stream(device, 0, &stream, &error) == GPULUA_OK;
    check(is_well && run(kernel, stream) == 2, "and what somebody has");
    gpu_kernel_release(kernel);
    gpu_module_release(other);
    close_device(device);
}

/* Of what it was told nothing may be taken for something else. */
static const struct wire_link_ops *ops_before;
static int refused_opcode;

static bool tell_in_part(struct wire_link *link, const struct wire_record *record,
                         uint64_t *position) {
    return record->opcode != refused_opcode && ops_before->tell_spare(link, record, position);
}

static struct wire_link_ops refuse(struct gpu_device *device, int opcode) {
    ops_before = device->link->ops;
    refused_opcode = opcode;
    struct wire_link_ops ops = *ops_before;
    ops.tell_spare = tell_in_part;
    return ops;
}

static void test_numbers(void) {
    struct script script;
    bool is_well = begin(&script, true) && takes(script.device, &script.module->told);
    struct wire_link_ops ops = refuse(script.device, WIRE_OP_MODULE_UNLOAD);
    script.device->link->ops = &ops;
    uint32_t id = script.module->id;
    gpu_kernel_release(script.kernel);
    script.kernel = NULL;
    gpu_module_release(script.module);
    gpu_device_run_deferred(script.device);
    refused_opcode = WIRE_OP_MODULE_COMPILE;
    script.module = compile(script.device, TWO);
    is_well = is_well && script.module->id == id && script.module->told.spare_seq == 0 &&
              gpu_module_kernel(script.module, "k", NULL, &script.kernel, &error) == GPULUA_OK;
    check(is_well && replace(script.device) && run(script.kernel, script.stream) == 2,
          "a module under the number of one that has gone is another");
    end(&script);
}

static void test_streams(void) {
    struct script script;
    bool is_well = begin(&script, true) && takes(script.device, &script.module->told);
    struct wire_link_ops ops = refuse(script.device, WIRE_OP_STREAM_DESTROY);
    script.device->link->ops = &ops;
    uint32_t slot = script.stream->slot;
    gpu_stream_release(script.stream);
    script.stream = NULL;
    gpu_device_run_deferred(script.device);
    refused_opcode = WIRE_OP_STREAM_CREATE;
    struct gpu_stream_info info = {.priority = script.device->facts.priority_highest};
    is_well = is_well && gpu_stream_create(script.device, &info, &script.stream, &error) == 0 &&
              script.stream->slot == slot && run(script.kernel, script.stream) == 1;
    check(is_well && replace(script.device) && run(script.kernel, script.stream) == 1,
          "as is a stream in the place of one that has gone");
    end(&script);
}

/* There is no room for what is to be told. */
static void test_full(void) {
    struct script script;
    bool is_well = begin(&script, true);
    struct gpu_stream_info info = {0};
    bool is_full = false;
    for (uint32_t i = 0; is_well && !is_full && i < 20000; i++) {
        struct gpu_stream *stream = NULL;
        is_well = gpu_stream_create(script.device, &info, &stream, &error) == GPULUA_OK;
        if (is_well) {
            is_full = stream->told.spare_seq == 0;
            gpu_stream_release(stream);
            gpu_device_run_deferred(script.device);
        }
    }
    printf("# the ring was %sfull\n", is_full ? "" : "never ");
    check(is_well && replace(script.device) && run(script.kernel, script.stream) == 1,
          "where a spare cannot be told all, the rest is made as ever");
    end(&script);
}

int main(void) {
    test_told();
    test_without();
    test_checked();
    test_closed();
    test_early();
    test_numbers();
    test_streams();
    test_full();
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
