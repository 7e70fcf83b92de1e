/* The runtime and the executor with every allocation failing, one after the other: each call says
 * so, nothing hangs or crashes, and once memory is there again the device works as if nothing had
 * been. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/tap.h"
#include "runtime/device.h"
#include "runtime/exchange.h"
#include "runtime/graph.h"
#include "runtime/memory.h"
#include "runtime/module.h"
#include "runtime/op.h"
#include "runtime/recovery.h"
#include "runtime/state.h"
#include "runtime/work.h"
#include "wire/transport.h"

static struct tap tap;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void) {
    tap_skip(&tap, "allocations that fail", "a sanitizer has an allocator of its own");
    return tap_finish(&tap);
}
#else

/* ---- an allocator that fails at the n-th call of this thread ---- */

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *block, size_t bytes);

static __thread long calls_left; /* 0: none fails */
static __thread bool fails_on;   /* the ones behind it, too */
static __thread bool has_failed;

static bool fails(void) {
    if (calls_left == 0 || (--calls_left > 0)) {
        return false;
    }
    calls_left = fails_on ? 1 : 0;
    has_failed = true;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes) {
    return fails() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
    return fails() ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *block, size_t bytes) {
    return fails() ? NULL : __libc_realloc(block, bytes);
}

/* ---- what a script does, in C ---- */

enum { COUNT = 1000 };
#define WAIT_NS INT64_C(20000000000)

struct run {
    struct gpu_device *device;
    struct gpu_block *a, *b, *host, *theirs, *made[3];
    struct gpu_export *lent;
    struct gpu_stream *stream;
    struct gpu_module *module;
    struct gpu_kernel *kernel;
    struct gpu_op *op;
    struct gpu_staging staging;
    struct gpu_capture *capture, *body;
    struct gpu_graph *graph, *fork;
    struct gpu_error error;
    bool is_wrong; /* it succeeded, and the result is not what it should be */
};

static gpulua_status wait_for(struct run *run, gpulua_status status) {
    if (status == GPULUA_OK && (status = gpu_op_wait(run->op, WAIT_NS, &run->error)) == GPULUA_OK) {
        status = gpu_op_status(run->op);
        gpu_op_observe(run->op);
    }
    gpu_op_release(run->op);
    run->op = NULL;
    return status;
}

static gpulua_status launch(struct run *run, struct gpu_submit *submit) {
    struct gpu_ref refs[2] = {{run->a, 0, COUNT * 4, GPU_TYPE_I32},
                              {run->b, 0, COUNT * 4, GPU_TYPE_I32}};
    struct gpu_arg args[3] = {{.scalar.i = COUNT}, {.ref = &refs[0]}, {.ref = &refs[1]}};
    struct gpu_launch work = {.submit = *submit,
                              .kernel = run->kernel,
                              .grid = {4, 1, 1},
                              .block = {256, 1, 1},
                              .args = args,
                              .arg_count = 3};
    return gpu_work_launch(&work, &run->op, &run->error);
}

/* Another library's memory, and how often it has been told that we need it no more. */
static int32_t foreign[COUNT];
static int foreign_held;

static void foreign_release(void *user) {
    (void)user;
    foreign_held--;
}

/* Theirs into a, inline; the host buffer lent to them. */
static gpulua_status exchange(struct run *run, const struct gpu_submit *submit,
                              const struct gpu_ref *a, const struct gpu_ref *host) {
    struct gpu_import_info info = {.address = (uint64_t)(uintptr_t)foreign,
                                   .byte_count = sizeof foreign,
                                   .is_ordered = true,
                                   .is_host = true,
                                   .release = foreign_release};
    uint64_t address;
    bool is_known;
    gpulua_status status = gpu_export_create(host, 64, &run->lent, &address, &run->error);
    if (status || gpu_device_isolation(run->device) != GPULUA_ISOLATE_NONE) {
        return status;
    }
    struct gpu_ref theirs = {.byte_count = sizeof foreign, .type = GPU_TYPE_I32};
    status =
        gpu_import(run->device, &info, &theirs.block, &theirs.byte_offset, &is_known, &run->error);
    if (status) {
        return status;
    }
    run->theirs = theirs.block;
    foreign_held++;
    return gpu_work_copy(submit, a, &theirs, NULL, &run->error);
}

/* A conditional node: the copy, since b is not 0. */
static gpulua_status branch(struct run *run, const struct gpu_submit *submit,
                            const struct gpu_ref *b, const struct gpu_ref *host) {
    const struct gpu_ref value = {b->block, 4, 4, GPU_TYPE_I32};
    gpulua_status status = gpu_control_begin(run->capture, "if", &run->body, &run->error);
    if (status) {
        return status;
    }
    struct gpu_submit inner = *submit;
    inner.capture = run->body;
    const struct gpu_control control = {
        .kind = GPU_CONTROL_IF, .value = &value, .bodies = &run->body, .body_count = 1};
    status = gpu_work_copy(&inner, host, b, NULL, &run->error);
    return status ? status : gpu_control_add(submit, &control, NULL, &run->error);
}

/* A graph of a fill, a launch and a copy: a and then the host buffer are 1 + 4. */
static gpulua_status capture(struct run *run, const struct gpu_submit *eager,
                             const struct gpu_ref *a, const struct gpu_ref *b,
                             const struct gpu_ref *host) {
    const int32_t one = 1, four = 4;
    gpulua_status status = gpu_work_fill(eager, a, &four, NULL, &run->error);
    if (status || (status = gpu_capture_create(eager, NULL, &run->capture, &run->error))) {
        return status;
    }
    struct gpu_submit submit = *eager;
    submit.capture = run->capture;
    if ((status = gpu_work_fill(&submit, b, &one, NULL, &run->error)) ||
        (status = launch(run, &submit))) {
        return status;
    }
    gpu_op_release(run->op);
    run->op = NULL;
    if ((status = branch(run, &submit, b, host)) ||
        (status = gpu_capture_finish(run->capture, &run->graph, &run->error)) ||
        (status = wait_for(run, gpu_graph_launch(run->graph, eager, &run->op, &run->error)))) {
        return status;
    }
    const int32_t *shared = gpu_block_host_bytes(run->host);
    for (int i = 0; i < COUNT; i++) {
        run->is_wrong |= shared[i] != 5;
    }
    return GPULUA_OK;
}

static gpulua_status make_temporary(struct run *run, struct gpu_block **block) {
    const struct gpu_block_info info = {.byte_count = COUNT * 4, .label = "temporary"};
    gpulua_status status = gpu_block_create_temporary(run->device, &info, block, &run->error);
    return status ? status : gpu_capture_keep(run->capture, *block, &run->error);
}

/* A graph with two temporaries of its own and one that is a buffer afterwards, and its fork: the
 * host buffer is 9. */
static gpulua_status temporaries(struct run *run, const struct gpu_submit *eager,
                                 const struct gpu_ref *host) {
    const int32_t nine = 9;
    struct gpu_ref refs[3] = {*host, *host, *host};
    struct gpu_submit submit = *eager;
    gpu_graph_release(run->graph);
    gpu_capture_release(run->capture);
    run->graph = NULL;
    run->capture = NULL;
    gpulua_status status = gpu_capture_create(eager, NULL, &run->capture, &run->error);
    submit.capture = run->capture;
    for (int i = 0; i < 3 && status == GPULUA_OK; i++) {
        status = make_temporary(run, &run->made[i]);
        refs[i].block = run->made[i];
    }
    if (status || (status = gpu_work_fill(&submit, &refs[0], &nine, NULL, &run->error)) ||
        (status = gpu_work_copy(&submit, &refs[1], &refs[0], NULL, &run->error)) ||
        (status = gpu_work_copy(&submit, &refs[2], &refs[1], NULL, &run->error)) ||
        (status = gpu_work_copy(&submit, host, &refs[2], NULL, &run->error))) {
        return status;
    }
    gpu_block_release(run->made[0]);
    gpu_block_release(run->made[1]);
    run->made[0] = run->made[1] = NULL;
    if ((status = gpu_capture_finish(run->capture, &run->graph, &run->error)) ||
        (status = gpu_graph_fork(run->graph, eager, &run->fork, &run->error)) ||
        (status = wait_for(run, gpu_graph_launch(run->graph, eager, &run->op, &run->error))) ||
        (status = wait_for(run, gpu_graph_launch(run->fork, eager, &run->op, &run->error)))) {
        return status;
    }
    const int32_t *shared = gpu_block_host_bytes(run->host);
    for (int i = 0; i < COUNT; i++) {
        run->is_wrong |= shared[i] != 9;
    }
    return GPULUA_OK;
}

static gpulua_status steps(struct run *run) {
    static const char source[] =
        "extern \"C\" __global__ void add(int n, const int *x, int *y) {"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] += x[i]; }";
    struct gpu_module_info module = {.name = "add.cu",
                                     .text = source,
                                     .text_bytes = sizeof source - 1,
                                     .kind = GPU_MODULE_SOURCE};
    struct gpu_block_info block = {.byte_count = COUNT * 4, .label = "block"};
    struct gpu_stream_info stream = {.label = "stream"};
    const int32_t three = 3, four = 4;
    gpulua_status status =
        gpu_module_create(run->device, &module, &run->module, &run->op, &run->error);
    if ((status = wait_for(run, status)) ||
        (status = gpu_module_kernel(run->module, "add", NULL, &run->kernel, &run->error)) ||
        (status = gpu_stream_create(run->device, &stream, &run->stream, &run->error)) ||
        (status = gpu_block_create(run->device, &block, &run->a, &run->error)) ||
        (status = gpu_block_create(run->device, &block, &run->b, &run->error)) ||
        (block.is_host = true,
         status = gpu_block_create(run->device, &block, &run->host, &run->error))) {
        return status;
    }
    struct gpu_stream *other;
    if ((status = gpu_device_task_stream(run->device, 5, &other, &run->error))) {
        return status;
    }
    struct gpu_submit submit = {.stream = run->stream, .label = "a label"};
    struct gpu_submit elsewhere = {.stream = other};
    struct gpu_ref a = {run->a, 0, COUNT * 4, GPU_TYPE_I32}, b = a, host = a;
    b.block = run->b;
    host.block = run->host;
    if ((status = gpu_work_fill(&submit, &a, &three, NULL, &run->error)) ||
        (status = gpu_work_fill(&elsewhere, &b, &four, NULL, &run->error)) ||
        (status = wait_for(run, launch(run, &submit))) ||
        (status = gpu_work_copy(&elsewhere, &a, &b, NULL, &run->error)) ||
        (status = gpu_work_copy(&submit, &host, &a, NULL, &run->error)) ||
        (status = gpu_staging_acquire(run->device, COUNT * 4, &run->staging, &run->error)) ||
        (status = wait_for(run, gpu_work_download(&elsewhere, &a, 0, &run->staging, COUNT * 4,
                                                  &run->op, &run->error))) ||
        (status = wait_for(run, gpu_work_mark(&submit, NULL, &run->op, &run->error))) ||
        (status = exchange(run, &submit, &a, &host))) {
        return status;
    }
    const int32_t *staged = (const int32_t *)(const void *)run->staging.bytes;
    const int32_t *shared = gpu_block_host_bytes(run->host);
    for (int i = 0; i < COUNT; i++) {
        run->is_wrong |= staged[i] != 7 || (!gpu_ref_failure(&host, NULL) && shared[i] != 7);
    }
    status = capture(run, &submit, &a, &b, &host);
    return status ? status : temporaries(run, &submit, &host);
}

/* Ends with everything released that it has made. */
static gpulua_status run_once(struct gpu_device *device, bool *is_wrong) {
    struct run run = {.device = device};
    gpulua_status status = steps(&run);
    *is_wrong = run.is_wrong;
    gpu_op_release(run.op);
    gpu_capture_release(run.body);
    gpu_capture_release(run.capture);
    gpu_graph_release(run.graph);
    gpu_graph_release(run.fork);
    for (int i = 0; i < 3; i++) {
        gpu_block_release(run.made[i]);
    }
    if (run.staging.owner) {
        gpu_staging_release(device, &run.staging);
    }
    gpu_block_release(run.a);
    gpu_block_release(run.b);
    gpu_block_release(run.host);
    gpu_block_release(run.theirs);
    if (run.lent) {
        gpu_export_return(run.lent);
    }
    gpu_kernel_release(run.kernel);
    gpu_module_release(run.module);
    gpu_stream_release(run.stream);
    gpu_error_finish(&run.error);
    return status;
}

static struct gpu_device *open_device(gpulua_isolation isolation) {
    struct gpu_device_info info = {.name = "cpu", .isolation = isolation};
    struct gpu_device *device = NULL;
    struct gpu_error error = {0};
    gpulua_status status = gpu_device_open(&info, &device, &error);
    gpu_error_finish(&error);
    return status ? NULL : device;
}

static void close_device(struct gpu_device *device) {
    if (device) {
        gpu_device_close(device, 5000);
        gpu_device_release(device);
    }
}

static bool is_clean(struct gpu_device *device) {
    struct gpu_error error = {0};
    struct gpu_stats stats;
    bool is_idle = gpu_device_wait_idle(device, WAIT_NS, &error) == GPULUA_OK;
    gpu_error_finish(&error);
    while (gpu_device_take_unobserved(device, false, &error)) {
        gpu_error_finish(&error);
    }
    (void)gpu_device_poll(device);
    (void)gpu_device_reap(device);
    gpu_device_stats(device, &stats);
    bool is_well = is_idle && stats.bytes_live == 0 && stats.blocks_live == 0 &&
                   stats.imports_live == 0 && stats.exports_live == 0 && foreign_held == 0 &&
                   stats.staging_bytes == 0 && stats.modules_live == 0 && stats.kernels_live == 0 &&
                   stats.graphs_live == 0 && stats.graph_bytes == 0;
    if (!is_well && gpu_device_state(device) == GPU_DEVICE_OPEN) {
        printf("# idle %d, %llu bytes live, %llu blocks, %llu staging, %llu modules, %llu kernels, "
               "%llu graphs\n",
               is_idle, (unsigned long long)stats.bytes_live, (unsigned long long)stats.blocks_live,
               (unsigned long long)stats.staging_bytes, (unsigned long long)stats.modules_live,
               (unsigned long long)stats.kernels_live, (unsigned long long)stats.graphs_live);
    }
    return is_well;
}

/* ---- tests ---- */

static int fd_count(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++) {
        count += lseek(fd, 0, SEEK_CUR) >= 0 || dup2(fd, fd) == fd;
    }
    return count;
}

static void test_open(gpulua_isolation isolation, const char *what) {
    bool good = true;
    int before = fd_count();
    long n = 0;
    for (has_failed = true; good && has_failed && n < 5000;) {
        has_failed = false;
        calls_left = ++n;
        struct gpu_device *device = open_device(isolation);
        calls_left = 0;
        good = (device || has_failed) && (!device || gpu_device_state(device) == GPU_DEVICE_OPEN);
        close_device(device);
        good = good && fd_count() == before;
        if (!good) {
            printf("# allocation %ld of opening\n", n);
        }
    }
    tap_check(&tap, good && n > 5, what);
}

/* `all_behind`: the allocations behind the failing one fail, too; `is_fresh`: of a device that has
 * done nothing before, so that it has nothing to use again. */
static void test_work(gpulua_isolation isolation, bool all_behind, bool is_fresh,
                      const char *what) {
    struct gpu_device *device = open_device(isolation);
    bool is_wrong, good = device && run_once(device, &is_wrong) == GPULUA_OK && !is_wrong;
    long n = 0;
    fails_on = all_behind;
    for (has_failed = true; good && has_failed && n < 5000;) {
        if (is_fresh) {
            close_device(device);
            device = open_device(isolation);
        }
        has_failed = false;
        calls_left = ++n;
        gpulua_status status = run_once(device, &is_wrong);
        calls_left = 0;
        bool was_good = (status == GPULUA_OK || has_failed) && !is_wrong;
        bool was_clean = is_clean(device);
        bool is_open = device && gpu_device_state(device) == GPU_DEVICE_OPEN;
        gpulua_status after = is_open ? run_once(device, &is_wrong) : GPULUA_DEVICE_LOST;
        good = was_good && was_clean && after == GPULUA_OK && !is_wrong;
        if (!good) {
            printf("# allocation %ld: %s; then open %d, clean %d, %s%s\n", n,
                   gpulua_status_name(status), is_open, was_clean, gpulua_status_name(after),
                   is_wrong ? ", wrong" : "");
        }
    }
    fails_on = false;
    close_device(device);
    tap_check(&tap, good && n > 10, what);
}

/* Lost while the n-th allocation fails: who wants to know hears of it, and that it is up again. */
static void test_loss(bool all_behind, const char *what) {
    bool good = true;
    long n = 0;
    fails_on = all_behind;
    for (has_failed = true; good && has_failed && n < 1000;) {
        struct gpu_device *device = open_device(GPULUA_ISOLATE_PROCESS);
        struct gpu_news *seen = device ? gpu_device_news(device) : NULL;
        struct gpu_error loss = {0};
        good = device && kill(gpu_device_pid(device), SIGKILL) == 0;
        has_failed = false;
        n++;
        while (good && gpu_device_state(device) == GPU_DEVICE_OPEN) {
            gpu_device_nap(device, 1000000);
            calls_left = n;
            (void)gpu_device_poll(device);
            calls_left = 0;
        }
        bool is_heard = good && gpu_device_has_news(device, seen) &&
                        gpu_device_next_news(device, &seen, &loss) &&
                        loss.code == GPULUA_DEVICE_LOST;
        gpu_error_finish(&loss);
        for (int i = 0; good && i < 20000 && gpu_device_state(device) != GPU_DEVICE_OPEN; i++) {
            gpu_device_nap(device, 1000000);
            (void)gpu_device_poll(device);
        }
        bool returns = good && gpu_device_has_news(device, seen) &&
                       !gpu_device_next_news(device, &seen, &loss);
        good = is_heard && returns;
        if (!good) {
            printf("# allocation %ld of a loss: heard %d, returns %d\n", n, is_heard, returns);
        }
        if (device) {
            gpu_device_leave_news(device, &seen);
        }
        close_device(device);
    }
    fails_on = false;
    tap_check(&tap, good && n > 1, what);
}

/* A graph of one fill of a block that lives on, launched once. */
static gpulua_status make_graph(struct run *run) {
    const struct gpu_block_info info = {
        .byte_count = COUNT * 4, .label = "kept", .keeping = GPU_KEEP_CONTENT};
    const struct gpu_stream_info named = {.label = "stream"};
    const int32_t one = 1;
    gpulua_status status = gpu_stream_create(run->device, &named, &run->stream, &run->error);
    if (status || (status = gpu_block_create(run->device, &info, &run->a, &run->error))) {
        return status;
    }
    struct gpu_ref a = {run->a, 0, COUNT * 4, GPU_TYPE_I32};
    struct gpu_submit eager = {.stream = run->stream}, submit = eager;
    if ((status = gpu_capture_create(&eager, NULL, &run->capture, &run->error))) {
        return status;
    }
    submit.capture = run->capture;
    if ((status = gpu_work_fill(&submit, &a, &one, NULL, &run->error)) ||
        (status = gpu_capture_finish(run->capture, &run->graph, &run->error))) {
        return status;
    }
    return wait_for(run, gpu_graph_launch(run->graph, &eager, &run->op, &run->error));
}

static void end_graph(struct run *run) {
    gpu_capture_release(run->capture);
    gpu_graph_release(run->graph);
    gpu_block_release(run->a);
    gpu_stream_release(run->stream);
    gpu_error_finish(&run->error);
    close_device(run->device);
}

/* Up again while the n-th allocation fails: what could not be brought back is stale, and so is the
 * launch of a graph with it, though nothing of the graph has been freed. */
static void test_return(void) {
    bool good = true, returns = true;
    long n = 0, stale_count = 0;
    for (has_failed = true; good && has_failed && n < 1000;) {
        struct run run = {.device = open_device(GPULUA_ISOLATE_PROCESS)};
        struct gpu_submit eager;
        good = run.device && make_graph(&run) == GPULUA_OK &&
               kill(gpu_device_pid(run.device), SIGKILL) == 0;
        eager = (struct gpu_submit){.stream = run.stream};
        has_failed = false;
        while (good && gpu_device_state(run.device) == GPU_DEVICE_OPEN) {
            gpu_device_nap(run.device, 1000000);
            (void)gpu_device_poll(run.device);
        }
        calls_left = ++n;
        for (int i = 0; good && i < 20000 && gpu_device_state(run.device) != GPU_DEVICE_OPEN; i++) {
            gpu_device_nap(run.device, 1000000);
            (void)gpu_device_poll(run.device);
        }
        calls_left = 0;
        returns = good && gpu_device_state(run.device) == GPU_DEVICE_OPEN;
        good = returns;
        struct gpu_ref a = {run.a, 0, COUNT * 4, GPU_TYPE_I32};
        gpulua_status expected = good ? gpu_ref_check(&a, run.device, "it", &run.error) : GPULUA_OK;
        gpulua_status status =
            good ? wait_for(&run, gpu_graph_launch(run.graph, &eager, &run.op, &run.error))
                 : GPULUA_OK;
        stale_count += expected == GPULUA_STALE;
        good = good && (expected == GPULUA_OK || expected == GPULUA_STALE) && status == expected;
        if (!good) {
            printf("# allocation %ld: the block is %s, the launch %s\n", n,
                   gpulua_status_name(expected), gpulua_status_name(status));
        }
        end_graph(&run);
    }
    tap_check(&tap, returns, "a device comes up again whichever allocation fails meanwhile");
    tap_check(&tap, good && stale_count > 0,
              "a graph with a block that did not come back is stale, though none of it was freed");
}

/* Launches of a graph behind each other, while the n-th allocation fails: what would be owed of
 * them has memory beforehand, or is not owed. */
static void test_launches(void) {
    enum { LAUNCHES = 100 };
    bool good = true, is_owed = false;
    long n = 0, good_count = 0;
    for (has_failed = true; good && has_failed && n < 1000;) {
        struct run run = {.device = open_device(GPULUA_ISOLATE_NONE)};
        good = run.device && make_graph(&run) == GPULUA_OK;
        const struct gpu_submit eager = {.stream = run.stream};
        uint64_t done = 0;
        struct gpu_stats before, stats;
        gpu_device_stats(run.device, &before);
        has_failed = false;
        calls_left = ++n;
        for (int i = 0; good && i < LAUNCHES; i++) {
            gpulua_status status = gpu_graph_launch(run.graph, &eager, NULL, &run.error);
            done += status == GPULUA_OK;
            good = status == GPULUA_OK || (has_failed && status == GPULUA_OUT_OF_MEMORY);
            is_owed |= has_failed && run.device->repeat.owed_count > 0;
        }
        calls_left = 0;
        gpulua_status idle =
            good ? gpu_device_wait_idle(run.device, WAIT_NS, &run.error) : GPULUA_TIMEOUT;
        gpu_device_stats(run.device, &stats);
        uint64_t failed = stats.ops_failed - before.ops_failed;
        /* The device may have had no memory for one launch; for an event that comes later. */
        good = good && idle == GPULUA_OK && stats.replays - before.replays == done &&
               stats.ops_completed - before.ops_completed + failed == done &&
               done >= LAUNCHES - 1 && failed <= 1;
        good_count += good;
        if (!good) {
            printf("# allocation %ld: of %" PRIu64 " launches %" PRIu64 " failed; then %s: %s\n", n,
                   done, failed, gpulua_status_name(idle), run.error.message);
        }
        end_graph(&run);
    }
    tap_check(&tap, good && is_owed && good_count > GPU_REPEATS_OWED_MAX,
              "launches of a graph go on, all are noted and the device stays, whichever allocation "
              "fails");
}

/* Two losses, and what is between and behind them, without memory for any of it. */
static void test_late_news(void) {
    struct gpu_device *device = open_device(GPULUA_ISOLATE_NONE);
    struct gpu_news *seen = gpu_device_news(device), *other = gpu_device_news(device);
    struct gpu_error loss = {0}, told = {0};
    (void)gpu_error_set(&loss, GPULUA_DEVICE_LOST, "the first");
    calls_left = 1;
    fails_on = true;
    gpu_news_add(device, &loss);
    gpu_news_add(device, NULL);
    (void)gpu_error_set(&loss, GPULUA_DEVICE_LOST, "the second");
    gpu_news_add(device, &loss);
    bool is_left_out = !gpu_device_has_news(device, seen);
    gpu_news_add(device, NULL);
    calls_left = 0;
    fails_on = false;
    bool good = is_left_out;
    for (int i = 0; i < 2; i++) {
        struct gpu_news **reader = i == 0 ? &seen : &other;
        good = good && gpu_device_has_news(device, *reader) &&
               gpu_device_next_news(device, reader, &told) &&
               strcmp(told.message, "the second; it had been lost 1 more time: there was no memory "
                                    "to tell of that") == 0;
        good = good && gpu_device_has_news(device, *reader) &&
               !gpu_device_next_news(device, reader, &told) &&
               !gpu_device_has_news(device, *reader);
    }
    gpu_news_add(device, &loss);
    good = good && gpu_device_has_news(device, seen) &&
           gpu_device_next_news(device, &seen, &told) && strcmp(told.message, "the second") == 0 &&
           !gpu_device_has_news(device, seen);
    if (!good) {
        printf("# left out %d, told '%s'\n", is_left_out, told.message);
    }
    gpu_error_finish(&loss);
    gpu_error_finish(&told);
    gpu_device_leave_news(device, &seen);
    gpu_device_leave_news(device, &other);
    close_device(device);
    tap_check(&tap, good, "news without memory are told behind it, the newest and how many");
}

static void note_reply(void *user, const struct wire_reply *reply) {
    char *heard = user;
    snprintf(heard + strlen(heard), 100, "%d %s %.10s %zu %u\n", reply->kind,
             gpulua_status_name((gpulua_status)reply->status), gpu_wire_reply_text(reply),
             strlen(gpu_wire_reply_text(reply)), reply->body_bytes);
}

/* What is in the ring is heard of: an operation must not end before its failure is known. */
static void test_replies(void) {
    static struct {
        struct wire_reply reply;
        char text[4064];
    } message = {.reply = {.length_bytes = sizeof message, .text_bytes = 4000, .body_bytes = 16}};
    struct link_core core = {.link.page = gpu_wire_page_create(NULL, NULL)};
    struct wire_ring in;
    char heard[400] = "", expected[400];
    bool corrupt = false;
    memset(message.text, 'x', sizeof message.text);
    gpu_wire_core_init(&core, &(struct wire_link_info){.on_reply = note_reply, .user = heard});
    gpu_wire_ring_reply(&in, core.link.page);
    message.reply.kind = WIRE_REPLY_FAILURE;
    message.reply.status = GPULUA_KERNEL_FAILED;
    bool good = gpu_wire_ring_push(&in, &message, sizeof message);
    message.reply.kind = WIRE_REPLY_RESULT;
    message.reply.status = GPULUA_OK;
    good = good && gpu_wire_ring_push(&in, &message, sizeof message);
    calls_left = 1;
    fails_on = true;
    uint32_t count = gpu_wire_core_drain(&core, &corrupt);
    calls_left = 0;
    fails_on = false;
    snprintf(expected, sizeof expected,
             "%d KernelFailed xxxxxxxxxx 991 0\n%d OutOfMemory no host me 42 0\n",
             WIRE_REPLY_FAILURE, WIRE_REPLY_RESULT);
    good = good && count == 2 && !corrupt && strcmp(heard, expected) == 0;
    if (!good) {
        printf("# %u replies: %s", count, heard);
    }
    gpu_wire_page_destroy(core.link.page);
    tap_check(&tap, good, "replies that there is no memory for are heard, cut");
}

int main(void) {
    alarm(800);
    test_replies();
    test_work(GPULUA_ISOLATE_NONE, false, false, "none: work with one allocation failing");
    test_work(GPULUA_ISOLATE_NONE, true, false,
              "none: work with every allocation failing from one on");
    test_work(GPULUA_ISOLATE_PROCESS, false, false, "process: work with one allocation failing");
    test_work(GPULUA_ISOLATE_PROCESS, true, false,
              "process: work with every allocation failing from one on");
    test_work(GPULUA_ISOLATE_NONE, false, true, "none: first work with one allocation failing");
    test_work(GPULUA_ISOLATE_PROCESS, false, true,
              "process: first work with one allocation failing");
    test_work(GPULUA_ISOLATE_THREAD, false, false, "thread: work with one allocation failing");
    test_work(GPULUA_ISOLATE_THREAD, true, false,
              "thread: work with every allocation failing from one on");
    test_open(GPULUA_ISOLATE_THREAD, "thread: opening with one allocation failing");
    test_open(GPULUA_ISOLATE_NONE, "none: opening with one allocation failing");
    test_open(GPULUA_ISOLATE_PROCESS, "process: opening with one allocation failing");
    test_loss(false, "a loss with one allocation failing is heard of, as is the return");
    test_loss(true, "a loss with every allocation failing from one on is, too");
    test_late_news();
    test_launches();
    test_return();
    return tap_finish(&tap);
}
#endif
