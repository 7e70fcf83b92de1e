/* backend/cuda against fake_cuda.c: what it asks of the driver, what it makes of the driver's
 * answers, and that nothing leaks or is called after the device is lost. What kernels compute is
 * tested where there is a GPU. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/backend.h"
#include "tap.h"

static struct tap tap;

#ifdef GPULUA_CUDA

#include "fake_driver.h"

static void opening(void) {
    struct backend_error error = {0};
    struct backend_device *device = NULL;
    struct wire_device_facts facts;
    struct wire_memory_facts memory;
    tap_check(&tap, ops->device_count(&error) == 1, "device_count");
    FAKE(int, devices) = 0;
    tap_check(&tap,
              ops->device_count(&error) == 0 && error.status == GPULUA_NO_DEVICE &&
                  strstr(error.message, "CUDA_ERROR_NO_DEVICE (100") != NULL &&
                  strstr(error.message, "cuInit(0)") != NULL,
              "no device, in the driver's words");
    FAKE(int, devices) = 1;
    struct backend_open_info info = {.ordinal = 1};
    tap_check(&tap,
              ops->device_open(&info, &device, &error) == GPULUA_NO_DEVICE && device == NULL &&
                  strstr(error.message, "cuda:1") != NULL,
              "an ordinal that is not there");
    device = open_device();
    ops->device_facts(device, &facts);
    tap_check(&tap,
              facts.compute == 90 && facts.multiprocessors == 132 && facts.warp_threads == 32 &&
                  facts.shared_bytes_max == 232448 && facts.priority_highest == -5 &&
                  facts.driver_version == 13000 && facts.mp_threads == 2048 &&
                  facts.mp_blocks == 32 && facts.mp_registers == 65536 &&
                  facts.mp_shared_bytes == 233472 && facts.shared_reserved_bytes == 1024 &&
                  strcmp(facts.name, "Fake GPU 0") == 0,
              "facts");
    tap_check(&tap,
              ops->memory_info(device, &memory, &error) == GPULUA_OK &&
                  memory.bytes_free * 2 == memory.bytes_total,
              "memory_info");
    tap_check(&tap, ops->device_status(device, &error) == GPULUA_OK, "device_status: well");
    ops->device_close(device);
    tap_check(&tap, FAKE(long, live) == 0, "closing leaves nothing");
}

/* Every call on the way of opening and using a device fails once. */
static void faults_while_opening(void) {
    static const char *const calls[] = {"cuInit",          "cuDeviceGetCount",
                                        "cuDeviceGet",     "cuDevicePrimaryCtxRetain",
                                        "cuCtxSetCurrent", "cuDeviceGetAttribute",
                                        "cuDeviceGetName", "cuDeviceTotalMem_v2",
                                        "cuEventCreate",   "cuCtxGetStreamPriorityRange"};
    bool good = true;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        struct backend_error error = {0};
        struct backend_device *device = NULL;
        struct backend_open_info info = {.ordinal = 0};
        fail_next(calls[i], 999, 0);
        gpulua_status status = ops->device_open(&info, &device, &error);
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(calls[i], "_"), calls[i]);
        bool one = status == GPULUA_DRIVER && device == NULL && FAKE(long, live) == 0 &&
                   error.driver_code == 999 && strstr(error.message, name) != NULL;
        if (!one) {
            printf("# %s: %s, %ld live\n", calls[i], error.message, FAKE(long, live));
        }
        good = good && one;
    }
    tap_check(&tap, good, "each call of opening failing: named, nothing left");
}

static void slabs(void) {
    struct backend_error error = {0};
    struct backend_device *device = open_device();
    struct backend_slab *slab = NULL, *other = NULL;
    uint64_t address = 0;
    long before = FAKE(long, live);
    tap_check(&tap,
              ops->slab_create(device, 1000, &slab, &address, &error) == GPULUA_OK &&
                  address % 512 == 0 && FAKE(int, handle_type) == 1,
              "a slab, with an exportable handle");
    memset((void *)(uintptr_t)address, 1, 1000);
    tap_check(&tap,
              ops->slab_create(device, UINT64_C(1) << 60, &other, &address, &error) ==
                      GPULUA_OUT_OF_MEMORY &&
                  other == NULL,
              "out of memory");
    tap_check(&tap,
              ops->slab_create(device, UINT64_MAX, &other, &address, &error) ==
                      GPULUA_OUT_OF_MEMORY &&
                  ops->slab_create(device, 0, &other, &address, &error) == GPULUA_INVALID_ARGUMENT,
              "sizes that cannot be");
    ops->slab_destroy(device, slab);
    ops->slab_destroy(device, NULL);
    tap_check(&tap, FAKE(long, live) == before, "slabs leave nothing");
    fail_next("cuMemCreate", 800, 0); /* exporting not permitted */
    tap_check(&tap,
              ops->slab_create(device, 1000, &slab, &address, &error) == GPULUA_OK &&
                  FAKE(int, handle_type) == 0,
              "without an exportable handle where that is not permitted");
    ops->slab_destroy(device, slab);
    slab = NULL;
    fail_next("cuMemSetAccess", 801, 0);
    tap_check(&tap,
              ops->slab_create(device, 1000, &slab, &address, &error) != GPULUA_OK &&
                  slab == NULL && strstr(error.message, "cuMemSetAccess") != NULL &&
                  FAKE(long, live) == before &&
                  ops->slab_create(device, 1000, &slab, &address, &error) == GPULUA_OK,
              "of no other kind of memory than the first slab");
    ops->slab_destroy(device, slab);
    ops->device_close(device);
    FAKE(int, attribute_off) = 103; /* handles that can be exported */
    device = open_device();
    FAKE(int, attribute_off) = 0;
    before = FAKE(long, live);
    fail_next("cuMemSetAccess", 801, 0);
    tap_check(&tap, ops->slab_create(device, 1000, &slab, &address, &error) == GPULUA_OK,
              "without the virtual-memory interface where that fails");
    memset((void *)(uintptr_t)address, 1, 1000);
    ops->slab_destroy(device, slab);
    tap_check(&tap, FAKE(long, live) == before, "nothing left of the attempts");
    fail_next("cuMemAlloc_v2", 2, 0);
    tap_check(&tap,
              ops->slab_create(device, 1000, &slab, &address, &error) == GPULUA_OUT_OF_MEMORY &&
                  strstr(error.message, "cuMemAlloc") != NULL,
              "out of memory there");
    ops->device_close(device);
}

static void pools(void) {
    struct backend_error error = {0};
    struct backend_device *device = open_device();
    struct backend_stream *stream = NULL;
    struct backend_slab *slab = NULL, *other = NULL;
    uint64_t address = 0;
    ops->stream_create(device, 0, 0, &stream, &error);
    long before = FAKE(long, live);
    ops->pool_trim(device);
    tap_check(&tap, FAKE(int, pool_trims) == 0 && FAKE(long, live) == before,
              "no pool is made before it is needed");
    static const char *const calls[] = {"cuMemPoolCreate", "cuMemPoolSetAttribute",
                                        "cuStreamCreateWithPriority", "cuMemAllocFromPoolAsync"};
    bool good = true;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        fail_next(calls[i], 2, 0);
        good = ops->pool_alloc(stream, 1000, &slab, &address, &error) == GPULUA_OUT_OF_MEMORY &&
               strstr(error.message, calls[i]) != NULL && slab == NULL && good;
        good = good && (i == 3 || FAKE(long, live) == before);
    }
    tap_check(&tap, good, "each call of making one failing: named, nothing left");
    tap_check(&tap,
              ops->pool_alloc(stream, 1000, &slab, &address, &error) == GPULUA_OK &&
                  address % 512 == 0 && FAKE(uint64_t, pool_kept_bytes) == UINT64_MAX,
              "memory from the pool, which keeps what it has");
    memset((void *)(uintptr_t)address, 1, 1000);
    tap_check(&tap,
              ops->pool_alloc(stream, UINT64_C(1) << 60, &other, &address, &error) ==
                      GPULUA_OUT_OF_MEMORY &&
                  ops->pool_alloc(stream, 0, &other, &address, &error) == GPULUA_INVALID_ARGUMENT &&
                  other == NULL,
              "sizes that cannot be");
    ops->slab_destroy(device, slab);
    ops->pool_trim(device);
    tap_check(&tap, FAKE(int, pool_trims) == 1 && FAKE(long, live) == before + 2,
              "freed on the pool's own stream, and trimmed");
    ops->pool_alloc(stream, 1000, &slab, &address, &error);
    ops->device_close(device);
    tap_check(&tap, FAKE(long, live) == 0, "closing leaves nothing, also of what was not freed");
}

static void streams(void) {
    struct backend_error error = {0};
    struct backend_device *device = open_device();
    struct backend_stream *stream = NULL;
    struct backend_event *event = NULL;
    static _Atomic uint64_t page[8], other[2];
    bool clamped = true;
    for (int priority = -100; priority <= 100; priority += 50) {
        clamped = ops->stream_create(device, 0, priority, &stream, &error) == GPULUA_OK && clamped;
        clamped = clamped && FAKE(int, priority) == (priority < 0 ? -5 : 0);
        ops->stream_destroy(device, stream);
    }
    tap_check(&tap, clamped, "priorities are clamped");
    ops->stream_create(device, 0, 0, &stream, &error);
    ops->event_create(device, &event, &error);
    tap_check(&tap, ops->stream_word(stream, &page[1], 5, &error) == GPULUA_UNSUPPORTED,
              "a word outside of registered memory: unsupported");
    tap_check(&tap,
              ops->host_register(device, other, sizeof other, &error) == GPULUA_OK &&
                  ops->host_register(device, page, sizeof page, &error) == GPULUA_OK &&
                  FAKE(unsigned, register_flags) == 3,
              "registering host memory");
    bool written = true;
    for (int i = 0; i < 8; i++) {
        written = written &&
                  ops->stream_word(stream, &page[i], (uint64_t)i + 1, &error) == GPULUA_OK &&
                  page[i] == (uint64_t)i + 1;
    }
    written = written && ops->stream_word(stream, &other[1], 9, &error) == GPULUA_OK;
    tap_check(&tap, written && other[1] == 9, "words through the device's addresses");
    ops->host_unregister(device, page);
    tap_check(&tap,
              ops->stream_word(stream, &page[0], 7, &error) == GPULUA_UNSUPPORTED && page[0] == 1 &&
                  ops->stream_word(stream, &other[0], 7, &error) == GPULUA_OK,
              "not after unregistering");
    tap_check(&tap,
              ops->event_record(event, stream, &error) == GPULUA_OK &&
                  ops->stream_wait(stream, event, &error) == GPULUA_OK &&
                  ops->event_query(event, &error) == BACKEND_DONE,
              "an event that is over");
    FAKE(int, pending) = 1;
    tap_check(&tap, ops->event_query(event, &error) == BACKEND_PENDING, "one that is not");
    tap_check(&tap, ops->device_status(device, &error) == GPULUA_OK, "pending work is no fault");
    ops->flush_output(device);
    tap_check(&tap, ops->device_status(device, &error) == GPULUA_OK,
              "flushing does not wait for busy streams");
    FAKE(int, pending) = 0;
    ops->flush_output(device);
    fail_next("cuEventQuery", 999, 0);
    tap_check(&tap,
              ops->event_query(event, &error) == BACKEND_FAILED && error.status == GPULUA_DRIVER &&
                  ops->event_query(event, &error) == BACKEND_DONE,
              "a query that fails");
    fail_next("cuStreamQuery", 900, 0); /* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED */
    tap_check(&tap,
              ops->stream_query(stream, &error) == BACKEND_PENDING &&
                  ops->stream_query(stream, &error) == BACKEND_DONE &&
                  ops->device_status(device, &error) == GPULUA_OK,
              "a stream of which a capture lets nobody tell is no loss");
    ops->device_close(device);
    tap_check(&tap, FAKE(long, live) == 0, "closing frees streams, events, registrations");
    FAKE(int, attribute_off) = 122;
    device = open_device();
    ops->stream_create(device, 0, 0, &stream, &error);
    ops->host_register(device, page, sizeof page, &error);
    tap_check(&tap, ops->stream_word(stream, &page[0], 5, &error) == GPULUA_UNSUPPORTED,
              "a device whose streams write no words");
    FAKE(int, attribute_off) = 0;
    ops->device_close(device);
}

static bool filled(const unsigned char *memory, size_t start, const void *element,
                   size_t elem_bytes, size_t count, size_t total) {
    for (size_t i = 0; i < total; i++) {
        bool inside = i >= start && i < start + elem_bytes * count;
        unsigned char wanted =
            inside ? ((const unsigned char *)element)[(i - start) % elem_bytes] : 0xee;
        if (memory[i] != wanted) {
            return false;
        }
    }
    return true;
}

static void copies_and_fills(void) {
    struct backend_error error = {0};
    struct backend_device *device = open_device();
    struct backend_stream *stream = NULL;
    struct backend_slab *slab = NULL;
    uint64_t base = 0;
    char back[16] = "";
    ops->stream_create(device, 0, 0, &stream, &error);
    ops->slab_create(device, 1 << 20, &slab, &base, &error);
    unsigned char *memory = (unsigned char *)(uintptr_t)base;
    tap_check(&tap,
              ops->upload(stream, 1, base, "0123456789", 11, &error) == GPULUA_OK &&
                  ops->copy(stream, 2, base + 100, base, 11, &error) == GPULUA_OK &&
                  ops->download(stream, 3, back, base + 100, 11, &error) == GPULUA_OK &&
                  strcmp(back, "0123456789") == 0,
              "copies in, about, and out");
    tap_check(&tap,
              ops->upload(stream, 1, 0, NULL, 0, &error) == GPULUA_OK &&
                  ops->fill(stream, 1, base, "xxxx", 4, 0, &error) == GPULUA_OK,
              "nothing to do");
    static const char patterns[][17] = {"ABCDEFGHIJKLMNOP", "AAAAAAAAAAAAAAAA", "ABABABABABABABAB",
                                        "ABCDABCDABCDABCD", "ABCDEFGHABCDEFGH", "AAAAAAAAAAAAAAAB"};
    bool good = true;
    for (size_t p = 0; p < sizeof patterns / sizeof patterns[0]; p++) {
        for (uint32_t bytes = 1; bytes <= 16; bytes *= 2) {
            for (size_t offset = 0; offset < 32; offset += bytes < 4 ? bytes : 4) {
                for (size_t count = 1; count < 40; count += count < 8 ? 1 : 7) {
                    memset(memory, 0xee, 1024);
                    good = good &&
                           ops->fill(stream, 1, base + 64 + offset, patterns[p], bytes, count,
                                     &error) == GPULUA_OK &&
                           filled(memory, 64 + offset, patterns[p], bytes, count, 1024);
                }
            }
        }
    }
    tap_check(&tap, good, "fills of all sizes, patterns, alignments");
    memset(memory, 0xee, 1 << 20);
    good = ops->fill(stream, 1, base + 8, patterns[0], 8, 100001, &error) == GPULUA_OK &&
           filled(memory, 8, patterns[0], 8, 100001, 1 << 20);
    tap_check(&tap, good && FAKE(unsigned, block) == 256, "a large fill by the kernel");
    tap_check(
        &tap,
        ops->fill(stream, 1, base + 2, patterns[0], 8, 1, &error) == GPULUA_INVALID_ARGUMENT &&
            ops->fill(stream, 1, base, patterns[0], 3, 1, &error) == GPULUA_INVALID_ARGUMENT &&
            ops->fill(stream, 1, base, patterns[0], 32, 1, &error) == GPULUA_INVALID_ARGUMENT &&
            ops->fill(stream, 1, base, patterns[0], 4, UINT64_MAX, &error) ==
                GPULUA_INVALID_ARGUMENT,
        "fills that cannot be");
    ops->device_close(device);
    tap_check(&tap, FAKE(long, live) == 0, "nothing left");
}

static const char ptx[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
                          ".visible .entry kern(.param .u32 a, .param .u64 b) { ret; }\n"
                          ".visible .global .u64 vari;\n";

static void modules(void) {
    FAKE(int, loaded) = 0;
    struct backend_error error = {0};
    struct backend_device *device = open_device();
    struct backend_module *module = NULL;
    struct backend_kernel *kernel = NULL;
    struct backend_stream *stream = NULL;
    struct wire_kernel_facts facts;
    uint64_t address = 0, bytes = 0;
    bool prints = true;
    ops->stream_create(device, 0, 0, &stream, &error);
    tap_check(&tap,
              ops->module_load(device, ptx, sizeof ptx - 1, false, &module, &error) == GPULUA_OK,
              "PTX without its NUL");
    tap_check(&tap,
              ops->kernel_get(module, "kern", &kernel, &prints, &facts, &error) == GPULUA_OK &&
                  !prints && FAKE(int, loaded) == 2 && facts.param_count == 2 &&
                  facts.param_bytes[0] == 4 && facts.param_offset[1] == 8 &&
                  facts.block_threads_max == 1024 && facts.shared_bytes_static == 1000 &&
                  facts.occupancy_blocks == 8,
              "a kernel and its facts");
    tap_check(&tap,
              ops->kernel_get(module, "absent", &kernel, &prints, &facts, &error) ==
                      GPULUA_INVALID_ARGUMENT &&
                  strstr(error.message, "no kernel 'absent'") != NULL,
              "a kernel that is not there");
    tap_check(&tap,
              ops->global_get(module, "vari", &address, &bytes, &error) == GPULUA_OK &&
                  address != 0 && bytes == 8 &&
                  ops->global_get(module, "absent", &address, &bytes, &error) ==
                      GPULUA_INVALID_ARGUMENT,
              "variables");
    struct {
        int a;
        uint64_t b;
    } args = {.a = 3, .b = 4};
    struct backend_launch launch = {.kernel = kernel,
                                    .stream = stream,
                                    .grid = {2, 3, 4},
                                    .block = {32, 2, 1},
                                    .args = &args,
                                    .args_bytes = sizeof args};
    tap_check(&tap,
              ops->launch(&launch, &error) == GPULUA_OK && FAKE(size_t, args_bytes) == 16 &&
                  memcmp(dlsym(fake, "fake_args"), &args, 4) == 0 &&
                  memcmp(dlsym(fake, "fake_grid"), launch.grid, sizeof launch.grid) == 0 &&
                  memcmp(dlsym(fake, "fake_block"), launch.block, sizeof launch.block) == 0,
              "a launch");
    launch.args_bytes = 8;
    tap_check(&tap, ops->launch(&launch, &error) == GPULUA_INVALID_ARGUMENT,
              "too few bytes of arguments");
    launch.args_bytes = sizeof args;
    launch.shared_bytes = 100000;
    tap_check(&tap,
              ops->launch(&launch, &error) == GPULUA_OK && FAKE(unsigned, shared) == 100000 &&
                  FAKE(int, opted_in) == 232448 - 1000,
              "much shared memory: the kernel opts in");
    FAKE(int, opted_in) = 300000;
    tap_check(&tap, ops->launch(&launch, &error) == GPULUA_OK && FAKE(int, opted_in) == 300000,
              "once");
    struct backend_module *unloadable = NULL;
    long live = FAKE(long, live);
    fail_next("cuFuncLoad", 2, 1);
    tap_check(&tap,
              ops->module_load(device, ptx, sizeof ptx, false, &unloadable, &error) ==
                      GPULUA_OUT_OF_MEMORY &&
                  FAKE(long, live) == live,
              "a kernel that cannot be loaded: its module goes");
    launch.shared_bytes = 232448;
    tap_check(&tap, ops->launch(&launch, &error) == GPULUA_INVALID_ARGUMENT, "more than there is");
    launch.shared_bytes = 0;
    launch.block[0] = 2048;
    tap_check(&tap,
              ops->launch(&launch, &error) == GPULUA_DRIVER &&
                  strstr(error.message, "cuLaunchKernel") != NULL &&
                  ops->device_status(device, &error) == GPULUA_OK,
              "a launch that the driver refuses does not end the device");
    ops->module_unload(device, module);
    static const char bad[] = ".version 7.0\n.target sm_75\nbad instruction\n";
    error = (struct backend_error){0};
    tap_check(&tap,
              ops->module_load(device, bad, sizeof bad, false, &module, &error) ==
                      GPULUA_COMPILE_FAILED &&
                  error.log != NULL && strstr(error.log, "line 3") != NULL,
              "PTX that does not assemble: the log");
    free(error.log);
    error = (struct backend_error){0};
    tap_check(&tap,
              ops->module_load(device, "hello", 5, false, &module, &error) ==
                      GPULUA_INVALID_ARGUMENT &&
                  ops->module_load(device, ptx, sizeof ptx, true, &module, &error) ==
                      GPULUA_INVALID_ARGUMENT,
              "bytes that are no module");
    static const char talks[] =
        ".version 7.0\n.target sm_75\n.extern .func vprintf;\n.entry kern()";
    tap_check(&tap,
              ops->module_load(device, talks, sizeof talks, false, &module, &error) == GPULUA_OK &&
                  ops->kernel_get(module, "kern", &kernel, &prints, &facts, &error) == GPULUA_OK &&
                  prints,
              "kernels that print");
    ops->device_close(device);
    tap_check(&tap, FAKE(long, live) == 0, "closing unloads");
}

/* ---- prepared launches ---- */

static struct backend_kernel *kernel_of(struct backend_module *module, const char *name) {
    struct backend_error error = {0};
    struct backend_kernel *kernel = NULL;
    struct wire_kernel_facts facts;
    bool prints;
    (void)ops->kernel_get(module, name, &kernel, &prints, &facts, &error);
    return kernel;
}

/* `count` launches, each with other arguments and another grid; true: each arrived as it was. */
static bool launch_many(struct backend_stream *stream, struct backend_kernel *kernel, int count) {
    static int number;
    bool good = true;
    for (int i = 0; i < count; i++) {
        struct backend_error error = {0};
        struct {
            int a;
            uint64_t b;
        } args = {.a = ++number, .b = 4};
        struct backend_launch launch = {.kernel = kernel,
                                        .stream = stream,
                                        .grid = {1 + (uint32_t)number % 7, 3, 4},
                                        .block = {32, 2, 1},
                                        .shared_bytes = (uint32_t)number % 3 * 16,
                                        .args = &args,
                                        .args_bytes = sizeof args};
        good = good && ops->launch(&launch, &error) == GPULUA_OK &&
               memcmp(dlsym(fake, "fake_args"), &args, sizeof args.a) == 0 &&
               memcmp(dlsym(fake, "fake_grid"), launch.grid, sizeof launch.grid) == 0 &&
               FAKE(unsigned, shared) == launch.shared_bytes;
    }
    return good;
}

static int prepared_launches(void) {
    int count = FAKE(int, graph_launches);
    FAKE(int, graph_launches) = 0;
    return count;
}

static void prepared(void) {
    static const char code[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
                               "k0 k1 k2 k3 k4 k5 k6 k7 k8 k9 ka kb kc\n";
    struct backend_error error = {0};
    struct backend_device *device = open_device();
    struct backend_module *module = NULL, *other = NULL;
    struct backend_stream *a = NULL, *b = NULL;
    struct backend_kernel *kernels[12];
    ops->stream_create(device, 0, 0, &a, &error);
    ops->stream_create(device, 1, 0, &b, &error);
    ops->module_load(device, code, sizeof code, false, &module, &error);
    ops->module_load(device, code, sizeof code, false, &other, &error);
    for (int i = 0; i < 12; i++) {
        char name[] = {'k', "0123456789ab"[i], '\0'};
        kernels[i] = kernel_of(module, name);
    }
    long before = FAKE(long, live);
    (void)prepared_launches();
    tap_check(&tap, launch_many(a, kernels[0], 100) && prepared_launches() == 100 - 16,
              "from the 17th launch on a stream by a graph, with its own arguments and shape");
    tap_check(&tap, launch_many(b, kernels[0], 20) && prepared_launches() == 4,
              "each stream has its own");
    tap_check(&tap, FAKE(long, live) == before + 4, "a graph and its executable form for each");

    bool good = true;
    for (int i = 0; i < 600; i++) {
        good = launch_many(a, kernels[i % 12], 1) && good;
    }
    tap_check(&tap, good && prepared_launches() == 600 / 12 * 8 - 7 * 16,
              "of twelve kernels in turn eight keep their places");
    tap_check(&tap, FAKE(long, live) == before + 2 + 16, "and no more are made");
    tap_check(&tap, launch_many(a, kernels[11], 600) && prepared_launches() > 300,
              "a place that has gone stale is another's");
    tap_check(&tap, FAKE(long, live) == before + 2 + 16, "which takes over what is there");

    fail_next("cuGraphLaunch", 1, 0);
    tap_check(&tap, launch_many(a, kernels[11], 1) && prepared_launches() == 0,
              "one that is refused is launched plainly");
    tap_check(&tap, launch_many(a, kernels[11], 20) && prepared_launches() == 4, "and later again");
    fail_next("cuGraphExecKernelNodeSetParams_v2", 1, 0);
    tap_check(&tap, launch_many(a, kernels[11], 18) && prepared_launches() == 1,
              "the same where its arguments are refused");
    (void)launch_many(a, kernels[11], 16);
    FAKE(int, graph_launches) = 0;
    struct backend_launch bad = {
        .kernel = kernels[11], .stream = a, .grid = {1, 1, 1}, .block = {2048, 1, 1}};
    bad.args = code;
    bad.args_bytes = 16;
    tap_check(&tap,
              ops->launch(&bad, &error) == GPULUA_DRIVER &&
                  strstr(error.message, "cuLaunchKernel") != NULL,
              "what is wrong is said as without");
    error = (struct backend_error){0};

    /* A kernel of the other module takes a place over, without using it yet; its module goes, and
     * the place is still good. Then the module of the kernels that use theirs goes. */
    struct backend_kernel *guest = kernel_of(other, "kc");
    (void)launch_many(b, kernels[1], 300);
    good = launch_many(b, guest, 3);
    ops->module_unload(device, other);
    tap_check(&tap, good && launch_many(b, kernels[1], 20), "a module unloaded before its turn");
    ops->module_unload(device, module);
    ops->module_load(device, code, sizeof code, false, &module, &error);
    (void)prepared_launches();
    kernels[0] = kernel_of(module, "k0");
    tap_check(&tap, launch_many(a, kernels[0], 40) && prepared_launches() == 24,
              "prepared launches go with their module");
    fail_next("cuGraphInstantiateWithFlags", 2, 0);
    tap_check(&tap, launch_many(b, kernels[0], 40) && prepared_launches() == 40 - 33,
              "one that cannot be made now is made later");
    fail_next("cuGraphLaunch", 700, 0);
    bad.kernel = kernels[0];
    bad.block[0] = 32;
    tap_check(&tap, ops->launch(&bad, &error) == GPULUA_DEVICE_LOST && error.driver_code == 700,
              "a fault found there");
    FAKE(int, sticky) = 0;
    ops->device_close(device);
    FAKE(long, live) = 0; /* it goes with the process */

    setenv("GPULUA_PREPARED", "0", 1);
    device = open_device();
    unsetenv("GPULUA_PREPARED");
    ops->stream_create(device, 0, 0, &a, &error);
    ops->module_load(device, code, sizeof code, false, &module, &error);
    (void)prepared_launches();
    tap_check(&tap, launch_many(a, kernel_of(module, "k0"), 40) && prepared_launches() == 0,
              "GPULUA_PREPARED=0: none");
    ops->device_close(device);
    device = open_device();
    ops->stream_create(device, 0, 0, &a, &error);
    ops->module_load(device, code, sizeof code, false, &module, &error);
    (void)launch_many(a, kernel_of(module, "k0"), 40);
    ops->stream_destroy(device, a);
    ops->device_close(device);
    tap_check(&tap, FAKE(long, live) == 0, "closing streams leaves nothing of them");
}

/* warm.c: what it fetches is what the next launch will need, plain or prepared. */
static void warming(void) {
    static _Alignas(4096) _Atomic uint64_t page[8];
    static const char code[] = ".version 7.0\n.target sm_75\n.address_size 64\nk0 k1\n";
    struct backend_error error = {0};
    struct backend_device *device = open_device();
    struct backend_module *module = NULL;
    struct backend_stream *a = NULL;
    ops->host_register(device, page, sizeof page, &error);
    ops->stream_create(device, 0, 0, &a, &error);
    ops->module_load(device, code, sizeof code, false, &module, &error);
    struct backend_kernel *often = kernel_of(module, "k0"), *once = kernel_of(module, "k1");
    (void)prepared_launches();
    bool good = true;
    for (int i = 0; i < 40; i++) { /* however often it was warmed up */
        good = ops->warm(device, &page[1]) && good;
    }
    tap_check(&tap, good && prepared_launches() == 0, "warming is plain where launches are");
    (void)launch_many(a, often, 20);
    (void)prepared_launches();
    good = ops->warm(device, &page[1]);
    tap_check(&tap, good && prepared_launches() == 1, "and prepared where the newest launch was");
    good = ops->warm(device, &page[1]);
    tap_check(&tap, good && prepared_launches() == 1, "and again");
    (void)launch_many(a, once, 1);
    good = ops->warm(device, &page[1]);
    tap_check(&tap, good && prepared_launches() == 0, "and plain behind a plain one");
    good = ops->warm(device, &page[1]) && launch_many(a, often, 1);
    tap_check(&tap, good && prepared_launches() == 1, "what is prepared stays so");
    ops->stream_destroy(device, a);
    ops->device_close(device);
    tap_check(&tap, FAKE(long, live) == 0, "closing leaves nothing");
}

/* Compiled on this machine, loaded by the fake driver: symbols, and the cache. */
static void compiling(void) {
    struct backend_error error = {0};
    struct backend_device *device = open_device();
    struct backend_source source = {
        .name = "kernels.cu",
        .text = "template <class T> __global__ void t(T *x) { *x = 1; } __constant__ int c; "
                "namespace n { __global__ void k(int a, float *b) { *b = (float)a * (float)c; } }",
        .options = "name t<double>"};
    void *image = NULL, *again = NULL;
    size_t image_bytes = 0, again_bytes = 0;
    char *description = NULL, *described = NULL;
    gpulua_status status =
        ops->module_compile(device, &source, &image, &image_bytes, &description, &error);
    if (status == GPULUA_LIBRARY_UNAVAILABLE) {
        tap_skip(&tap, "compiling", error.message);
        ops->device_close(device);
        return;
    }
    tap_equal(&tap, description,
              "kernel n::k a: i32, b: inout f32*\nkernel t<double> x: inout f64*\n"
              "global c i32 1 const\n",
              "a description");
    struct backend_module *module = NULL;
    struct backend_kernel *kernel = NULL;
    struct wire_kernel_facts facts;
    uint64_t address, bytes;
    bool prints = true;
    tap_check(&tap,
              ops->module_load(device, image, image_bytes, true, &module, &error) == GPULUA_OK &&
                  ops->kernel_get(module, "n::k", &kernel, &prints, &facts, &error) == GPULUA_OK &&
                  !prints &&
                  ops->kernel_get(module, "t<double>", &kernel, &prints, &facts, &error) ==
                      GPULUA_OK &&
                  ops->global_get(module, "c", &address, &bytes, &error) == GPULUA_OK,
              "names of the description can be had");
    tap_check(&tap,
              ops->kernel_get(module, "_ZN1n1kEiPf", &kernel, &prints, &facts, &error) ==
                      GPULUA_INVALID_ARGUMENT &&
                  ops->kernel_get(module, "c", &kernel, &prints, &facts, &error) ==
                      GPULUA_INVALID_ARGUMENT,
              "others cannot");
    char command[300];
    snprintf(command, sizeof command, "ls %s/*.cuda | wc -l | grep -qx ' *1'", folder);
    tap_check(&tap, system(command) == 0, "one entry in the cache");
    struct wire_compiled outcome = {0};
    source.outcome = &outcome;
    status = ops->module_compile(device, &source, &again, &again_bytes, &described, &error);
    tap_check(&tap, outcome.was_cached, "from the cache, and says so");
    outcome.was_cached = false;
    tap_check(&tap,
              status == GPULUA_OK && again_bytes == image_bytes &&
                  memcmp(again, image, image_bytes) == 0 && strcmp(described, description) == 0,
              "compiled again: the same");
    free(again);
    free(described);
    source.options = "name t<float>";
    status = ops->module_compile(device, &source, &again, &again_bytes, &described, &error);
    tap_check(&tap,
              status == GPULUA_OK && !outcome.was_cached && strstr(described, "t<float>") != NULL,
              "other options, another entry");
    free(again);
    free(described);
    /* A second link to each: an entry that was written again would have only one. */
    snprintf(command, sizeof command,
             "cd %s && [ $(ls *.cuda | wc -l) = 2 ] && touch -d @1 *.cuda && "
             "for f in *.cuda; do ln $f $f.kept || exit 1; done",
             folder);
    bool aged = system(command) == 0;
    status = ops->module_compile(device, &source, &again, &again_bytes, &described, &error);
    snprintf(command, sizeof command,
             "cd %s && [ $(find . -name '*.cuda' -newermt @2 | wc -l) = 1 ] && "
             "[ -z \"$(find . -name '*.cuda' -links 1)\" ]",
             folder);
    tap_check(&tap, aged && status == GPULUA_OK && system(command) == 0,
              "a hit reads its entry and only that");
    free(again);
    free(described);
    free(image);
    free(description);
    ops->device_close(device);
    tap_check(&tap, FAKE(long, live) == 0, "nothing left");
}

/* After a fault nothing may be asked of the driver again, and closing must come back. */
static void losing(void) {
    static const int codes[] = {700, 716, 719, 710, 717, 718, 702};
    bool good = true, quiet = true;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        struct backend_error error = {0};
        struct backend_device *device = open_device();
        struct backend_stream *stream = NULL, *more = NULL;
        struct backend_event *event = NULL;
        struct backend_slab *slab = NULL;
        struct backend_module *module = NULL;
        struct wire_memory_facts memory;
        static _Atomic uint64_t page[2];
        uint64_t address;
        good = ops->stream_create(device, 0, 0, &stream, &error) == GPULUA_OK &&
               ops->event_create(device, &event, &error) == GPULUA_OK &&
               ops->slab_create(device, 64, &slab, &address, &error) == GPULUA_OK &&
               ops->host_register(device, page, sizeof page, &error) == GPULUA_OK &&
               ops->module_load(device, ptx, sizeof ptx, false, &module, &error) == GPULUA_OK &&
               good;
        FAKE(int, calls_after_loss) = 0;
        if (i % 2 == 0) {
            fail_next("cuEventQuery", codes[i], 0);
            good = good && ops->event_query(event, &error) == BACKEND_FAILED;
        } else { /* nobody asks after work: the status finds out */
            FAKE(int, sticky) = codes[i];
            good = good && ops->device_status(device, &error) == GPULUA_DEVICE_LOST;
            FAKE(int, calls_after_loss) = 0;
        }
        good = good && error.status == GPULUA_DEVICE_LOST && error.driver_code == codes[i] &&
               strstr(error.message, "text of the driver") != NULL;
        struct backend_error later = {0};
        good = good && ops->device_status(device, &later) == GPULUA_DEVICE_LOST &&
               strcmp(later.message, error.message) == 0 && later.driver_code == codes[i] &&
               ops->event_query(event, &error) == BACKEND_FAILED &&
               ops->stream_query(stream, &error) == BACKEND_FAILED &&
               ops->event_record(event, stream, &error) == GPULUA_DEVICE_LOST &&
               ops->stream_word(stream, &page[0], 1, &error) == GPULUA_DEVICE_LOST &&
               ops->stream_wait(stream, event, &error) == GPULUA_DEVICE_LOST &&
               ops->copy(stream, 1, address, address, 1, &error) == GPULUA_DEVICE_LOST &&
               ops->fill(stream, 1, address, "x", 1, 1, &error) == GPULUA_DEVICE_LOST &&
               ops->stream_create(device, 1, 0, &more, &error) == GPULUA_DEVICE_LOST &&
               ops->memory_info(device, &memory, &error) == GPULUA_DEVICE_LOST;
        ops->flush_output(device);
        ops->event_destroy(device, event);
        ops->stream_destroy(device, stream);
        ops->module_unload(device, module);
        ops->slab_destroy(device, slab);
        ops->host_unregister(device, page);
        ops->device_close(device);
        quiet = quiet && FAKE(int, calls_after_loss) == 0;
        FAKE(int, sticky) = 0;
        FAKE(long, live) = 0; /* it goes with the process */
    }
    tap_check(&tap, good, "a fault: lost, with code and text, for every slot");
    tap_check(&tap, quiet, "and the driver is left alone");
    struct backend_device *device = open_device();
    struct backend_stream *stream = NULL;
    ops->stream_create(device, 0, 0, &stream, NULL);
    FAKE(int, calls_after_loss) = 0;
    fail_next("cuCtxSynchronize", 700, 0);
    ops->device_close(device);
    tap_check(&tap, FAKE(int, calls_after_loss) == 0, "a fault found while closing");
    FAKE(int, sticky) = 0;
    FAKE(long, live) = 0;
}

/* All of gpulua on the fake, in check mode, which on CUDA hashes what launches may not change. */
static void checked(void) {
    static const char script[] =
        "local gpu = require 'gpulua'\n"
        "local dev <close> = gpu.device('cuda', { check = true, isolate = arg[1] })\n"
        "local mod = dev:compile 'extern \"C\" __global__ void poke(int n, int *x) { x[n] = 7; }'\n"
        "local lie = mod:kernel('poke', 'n: i32, x: in i32*')\n"
        "local x = dev:buffer('i32', 100, { label = 'x' }):fill(1)\n"
        "local y = dev:buffer('i32', 100, { label = 'y' }):fill(1)\n"
        "local one = { grid = 1, block = 1 }\n"
        "for i = 0, 40 do mod.poke:launch(one, i, x):await() end\n"
        "for i = 0, 40, 20 do print(select(2, lie:launch(one, i, y):join()).message) end\n"
        "x:fill(2)\n"
        "print(select(2, mod.poke:launch(one, 100, x):join()).message)\n"
        "lie:launch(one, 20, y):await()\n" /* changes nothing any more */
        "x:fill(2)\n"
        "mod.poke:launch(one, 99, x):await()\n"
        "print(x:read()[99], x:read()[100])\n";
    static const char *const wanted[] = {
        "kernel 'poke' wrote buffer 'y', declared in, at one of the bytes 0 to 63, allocation",
        "kernel 'poke' wrote buffer 'y', declared in, at one of the bytes 64 to 127, allocation",
        "kernel 'poke' wrote buffer 'y', declared in, at one of the bytes 128 to 191, allocation",
        "argument 2 ('x')",
        "kernel 'poke' wrote outside of every buffer, at one of the bytes 400 to 447 counted from "
        "buffer 'x', allocation",
        "just behind the nearest range declared, argument 2 ('x'), buffer 'x'",
        "\n2\t7\n",
    };
    const char *transports[] = {"none", "process"}, *products = getenv("GPULUA_BUILD");
    char path[256], command[1024], output[4096];
    snprintf(path, sizeof path, "%s/checked.lua", folder);
    FILE *file = products != NULL ? fopen(path, "w") : NULL;
    if (file == NULL) {
        tap_skip(&tap, "check mode", "GPULUA_BUILD does not say where gpulua is");
        return;
    }
    fputs(script, file);
    fclose(file);
    for (size_t t = 0; t < 2; t++) {
        snprintf(command, sizeof command, "%s/gpulua %s %s 2>&1", products, path, transports[t]);
        FILE *pipe = popen(command, "r");
        size_t bytes = pipe != NULL ? fread(output, 1, sizeof output - 1, pipe) : 0;
        output[bytes] = '\0';
        int status = pipe != NULL ? pclose(pipe) : -1;
        if (strstr(output, "libnvrtc") != NULL) {
            tap_skip(&tap, "check mode", "no NVRTC");
            continue;
        }
        bool good = status == 0;
        for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
            good = good && strstr(output, wanted[i]) != NULL;
        }
        if (!tap_check(&tap, good, "check mode finds what a launch changes, and nothing else")) {
            printf("# status %#x\n# %s\n", (unsigned)status, output);
        }
    }
}

int main(void) {
    if (!build()) {
        tap_skip(&tap, "everything", "no compiler for the fake driver");
        return tap_finish(&tap);
    }
    opening();
    faults_while_opening();
    slabs();
    pools();
    streams();
    copies_and_fills();
    modules();
    prepared();
    warming();
    compiling();
    checked();
    losing();
    remove_folder();
    return tap_finish(&tap);
}

#else

int main(void) {
    tap_skip(&tap, "everything", "this build has no cuda backend");
    return tap_finish(&tap);
}

#endif
