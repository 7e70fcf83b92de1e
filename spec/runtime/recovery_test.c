/* A new life of a device beside what is left of the former one: a process that takes long to end,
 * holds its memory meanwhile, and may yet do a part of what was lost with it. Its end is in the
 * hands of the test, which also writes what the former process would write. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/module.h"
#include "runtime/state.h"
#include "runtime/work.h"

#define BYTES 65536u
#define PATIENCE_NS INT64_C(20000000000)
#define SHORT_NS INT64_C(300000000)

static int passed, failed;
static struct gpu_error error;

static void check(bool condition, const char *name) {
    printf("%s - %s\n", condition ? "ok" : "not ok", name);
    *(condition ? &passed : &failed) += 1;
}

/* ---- a former process that takes long to end ---- */

static const struct wire_link_ops *ops_before;
static struct wire_link_ops lingering;
static _Atomic bool is_lingering;

static bool is_settled(struct wire_link *link) {
    return ops_before->is_settled(link) && !is_lingering;
}

static gpulua_status restart(struct wire_link *link, const uint64_t done[WIRE_STREAMS_MAX],
                             struct wire_restart *came, struct wire_error *why) {
    gpulua_status status = ops_before->restart(link, done, came, why);
    is_lingering = true;
    return status;
}

static struct gpu_device *open_device(void) {
    struct gpu_device_info info = {
        .name = "cpu", .isolation = GPULUA_ISOLATE_PROCESS, .restarts_max = 100};
    struct gpu_device *device = NULL;
    is_lingering = false;
    if (gpu_device_open(&info, &device, &error)) {
        printf("# %s\n", error.message);
        return NULL;
    }
    ops_before = device->link->ops;
    lingering = *ops_before;
    lingering.is_settled = is_settled;
    lingering.restart = restart;
    device->link->ops = &lingering;
    return device;
}

static void close_device(struct gpu_device *device) {
    is_lingering = false;
    while (gpu_device_take_unobserved(device, false, &error)) {
        gpu_error_finish(&error);
    }
    gpu_device_close(device, 1000);
    gpu_device_release(device);
}

/* The process is there, and works no more. */
static void stop(struct gpu_device *device) {
    kill(gpu_device_pid(device), SIGSTOP);
}

static void wait_a_little(struct gpu_device *device) {
    gpu_device_nap(device, 1000000); /* nobody is told of what the test says */
    (void)gpu_device_poll(device);
}

/* Is it up again within so long? */
static bool comes_back(struct gpu_device *device, int64_t patience_ns) {
    int64_t end_ns = gpu_clock_ns() + patience_ns;
    while (gpu_device_state(device) != GPU_DEVICE_OPEN && gpu_clock_ns() < end_ns) {
        wait_a_little(device);
    }
    return gpu_device_state(device) == GPU_DEVICE_OPEN;
}

static void lose(struct gpu_device *device) {
    kill(gpu_device_pid(device), SIGKILL);
    while (gpu_device_state(device) == GPU_DEVICE_OPEN) {
        wait_a_little(device);
    }
}

/* ---- work ---- */

static struct gpu_block *make(struct gpu_device *device, uint64_t bytes, bool is_host) {
    struct gpu_block_info info = {.byte_count = bytes, .is_host = is_host};
    struct gpu_block *block = NULL;
    return gpu_block_create(device, &info, &block, &error) ? NULL : block;
}

static struct gpu_submit on_task_stream(struct gpu_device *device) {
    struct gpu_submit submit = {.stream = NULL};
    (void)gpu_device_task_stream(device, 0, &submit.stream, &error);
    return submit;
}

/* ---- transfers that were under way ---- */

/* As much of it as there is, so that this is among it if anybody may have it: whose index, or
 * STAGINGS. */
enum { STAGINGS = 64 };
static int take_stagings(struct gpu_device *device, struct gpu_staging all[STAGINGS],
                         uint64_t arena_offset) {
    int found = STAGINGS;
    for (int i = 0; i < STAGINGS; i++) {
        if (gpu_staging_acquire(device, BYTES, &all[i], &error)) {
            printf("# %s\n", error.message);
            gpu_error_finish(&error);
        } else if (all[i].arena_offset < arena_offset + BYTES &&
                   arena_offset < all[i].arena_offset + BYTES) {
            found = i;
        }
    }
    return found;
}

static void give_stagings(struct gpu_device *device, struct gpu_staging all[STAGINGS]) {
    for (int i = 0; i < STAGINGS; i++) {
        gpu_staging_release(device, &all[i]);
    }
}

static bool has_range(struct gpu_device *device, uint64_t arena_offset) {
    struct gpu_staging all[STAGINGS] = {{.bytes = NULL}};
    bool is_found = take_stagings(device, all, arena_offset) < STAGINGS;
    give_stagings(device, all);
    return is_found;
}

/* To the device and back, while somebody else writes into the arena. */
static bool goes_there_and_back(struct gpu_device *device, uint64_t late_offset) {
    struct gpu_staging all[STAGINGS] = {{.bytes = NULL}};
    struct gpu_block *block = make(device, BYTES, false);
    struct gpu_ref ref = {block, 0, BYTES, GPU_TYPE_U8};
    struct gpu_submit submit = on_task_stream(device);
    struct gpu_op *op = NULL;
    int first = take_stagings(device, all, late_offset) % STAGINGS;
    struct gpu_staging *to = &all[first], *from = &all[(first + 1) % STAGINGS];
    memset(to->bytes, 0x11, BYTES);
    memset(device->link->arena + late_offset, 0xee, BYTES);
    bool is_right = gpu_work_upload(&submit, &ref, 0, to, BYTES, NULL, &error) == GPULUA_OK &&
                    gpu_work_download(&submit, &ref, 0, from, BYTES, &op, &error) == GPULUA_OK &&
                    gpu_op_wait(op, -1, &error) == GPULUA_OK && gpu_op_status(op) == GPULUA_OK;
    for (uint32_t i = 0; is_right && i < BYTES; i++) {
        is_right = ((const uint8_t *)from->bytes)[i] == 0x11;
    }
    gpu_op_release(op);
    give_stagings(device, all);
    gpu_block_release(block);
    return is_right;
}

/* A read was under way; what the device would have written there is written when the next life
 * transfers. `is_released`: the script had let go of it before. */
static bool survives_late_read(bool is_protected, bool is_released) {
    struct gpu_device *device = open_device();
    struct gpu_block *block = make(device, BYTES, false);
    struct gpu_ref ref = {block, 0, BYTES, GPU_TYPE_U8};
    struct gpu_submit submit = on_task_stream(device);
    struct gpu_staging staging;
    struct gpu_op *op = NULL;
    stop(device);
    bool is_right = gpu_staging_acquire(device, BYTES, &staging, &error) == GPULUA_OK &&
                    gpu_work_download(&submit, &ref, 0, &staging, BYTES, &op, &error) == GPULUA_OK;
    uint64_t offset = staging.arena_offset;
    if (is_released) {
        gpu_staging_release(device, &staging);
        gpu_device_run_deferred(device);
    }
    lose(device);
    if (!is_released) {
        ((struct gpu_block *)staging.owner)->has_late_writer &= is_protected;
        gpu_staging_release(device, &staging);
    }
    is_right = is_right && comes_back(device, PATIENCE_NS);
    bool is_whole = is_right && goes_there_and_back(device, offset);
    if (is_protected) {
        check(is_right, is_released ? "a read that was let go of does not hold up the next life"
                                    : "a read that was under way does not hold up the next life");
        check(is_whole, "which may yet be written, without harm");
        check(!has_range(device, offset), "because nobody has that memory");
        is_lingering = false;
        check(has_range(device, offset), "until the former process has ended");
    }
    gpu_op_observe(op);
    gpu_op_release(op);
    gpu_block_release(block);
    close_device(device);
    return is_whole;
}

/* ---- what somebody would notice ---- */

static void test_host_memory(void) {
    struct gpu_device *device = open_device();
    struct gpu_block *block = make(device, BYTES, false), *host = make(device, BYTES, true);
    struct gpu_ref ref = {block, 0, BYTES, GPU_TYPE_U8}, to = {host, 0, BYTES, GPU_TYPE_U8};
    struct gpu_submit submit = on_task_stream(device);
    struct gpu_op *op = NULL;
    stop(device);
    bool is_right = gpu_work_copy(&submit, &to, &ref, &op, &error) == GPULUA_OK;
    lose(device);
    check(is_right && !comes_back(device, SHORT_NS),
          "host memory of the script's that may yet be written is waited for");
    is_lingering = false;
    check(comes_back(device, PATIENCE_NS), "and no longer than that");
    gpu_op_observe(op);
    gpu_op_release(op);
    /* Read by what was lost, it is what it was. */
    struct gpu_ref again = {make(device, BYTES, false), 0, BYTES, GPU_TYPE_U8};
    struct gpu_ref from = {make(device, BYTES, true), 0, BYTES, GPU_TYPE_U8};
    stop(device);
    is_right = gpu_work_copy(&submit, &again, &from, &op, &error) == GPULUA_OK;
    lose(device);
    check(is_right && comes_back(device, PATIENCE_NS), "not where it was to be read");
    gpu_op_observe(op);
    gpu_op_release(op);
    gpu_block_release(again.block);
    gpu_block_release(from.block);
    gpu_block_release(block);
    gpu_block_release(host);
    close_device(device);
}

/* What a kernel says of its failure it writes into host memory, too. */
static void test_reports(void) {
    static const char text[] = "#include <gpulua_kernel.h>\n"
                               "extern \"C\" __global__ void k(int *x, gpulua_ctx ctx) {\n"
                               "  gpulua_check(ctx, x[0] == 0, \"no\"); }\n";
    struct gpu_device *device = open_device();
    struct gpu_module_info source = {
        .kind = GPU_MODULE_SOURCE, .name = "reports", .text = text, .text_bytes = sizeof text - 1};
    struct gpu_module *module = NULL;
    struct gpu_kernel *kernel = NULL;
    struct gpu_op *op = NULL;
    struct gpu_block *block = make(device, BYTES, false);
    bool is_made = gpu_module_create(device, &source, &module, &op, &error) == GPULUA_OK &&
                   gpu_op_wait(op, -1, &error) == GPULUA_OK && gpu_op_status(op) == GPULUA_OK &&
                   gpu_module_kernel(module, "k", NULL, &kernel, &error) == GPULUA_OK;
    gpu_op_release(op);
    op = NULL;
    struct gpu_ref ref = {block, 0, BYTES, GPU_TYPE_I32};
    struct gpu_arg arg = {.ref = &ref};
    struct gpu_launch launch = {.submit = on_task_stream(device),
                                .kernel = kernel,
                                .grid = {1, 1, 1},
                                .block = {1, 1, 1},
                                .args = &arg,
                                .arg_count = 1};
    stop(device);
    bool is_launched = is_made && gpu_work_launch(&launch, &op, &error) == GPULUA_OK;
    lose(device);
    check(is_launched && !comes_back(device, SHORT_NS), "reports of kernels are waited for");
    is_lingering = false;
    check(comes_back(device, PATIENCE_NS), "and then it is up again");
    if (op) {
        gpu_op_observe(op);
    }
    gpu_op_release(op);
    gpu_kernel_release(kernel);
    gpu_module_release(module);
    gpu_block_release(block);
    close_device(device);
}

/* ---- memory ---- */

static void *end_soon(void *user) {
    (void)user;
    usleep(200000);
    is_lingering = false;
    return NULL;
}

static bool has_ended(int pidfd) {
    struct pollfd entry = {.fd = pidfd, .events = POLLIN};
    return poll(&entry, 1, 0) == 1;
}

static void test_twice(void) {
    struct gpu_device *device = open_device();
    lose(device);
    check(comes_back(device, PATIENCE_NS), "with nothing under way it is up at once");
    int second = (int)syscall(SYS_pidfd_open, gpu_device_pid(device), 0);
    gpu_device_lose(device, 0, "by the test"); /* it lives, as one whose kernel hangs */
    int64_t begun_ns = gpu_clock_ns(), longest_ns = 0;
    bool is_told = true;
    while (gpu_device_state(device) != GPU_DEVICE_OPEN && gpu_clock_ns() - begun_ns < SHORT_NS) {
        int64_t before_ns = gpu_clock_ns();
        (void)gpu_device_poll(device);
        int64_t took_ns = gpu_clock_ns() - before_ns;
        longest_ns = took_ns > longest_ns ? took_ns : longest_ns;
        is_told &= gpu_device_alarm_ns(device) < gpu_clock_ns() + SHORT_NS;
        usleep(1000);
    }
    check(gpu_device_state(device) == GPU_DEVICE_LOST && longest_ns < PATIENCE_NS / 10,
          "lost once more, it lets the former process end first, and holds up nobody");
    check(is_told, "who waits in a loop of its own is told when to look");
    int64_t end_ns = gpu_clock_ns() + PATIENCE_NS;
    while (!has_ended(second) && gpu_clock_ns() < end_ns) {
        wait_a_little(device);
    }
    check(has_ended(second), "and the one that was lost does nothing meanwhile");
    close(second);
    is_lingering = false;
    check(comes_back(device, PATIENCE_NS), "and is up again then");
    close_device(device);
}

/* No fakes: a process that takes a while to end, because it has much memory. */
static void test_waking(void) {
    struct gpu_device *device = open_device();
    uint64_t much_bytes = UINT64_C(1) << 28;
    struct gpu_block *block = make(device, much_bytes, false), *host = make(device, BYTES, true);
    struct gpu_ref all = {block, 0, much_bytes, GPU_TYPE_U8}, part = {block, 0, BYTES, GPU_TYPE_U8};
    struct gpu_ref to = {host, 0, BYTES, GPU_TYPE_U8};
    struct gpu_submit submit = on_task_stream(device);
    struct gpu_op *op = NULL;
    uint8_t one = 1;
    device->link->ops = ops_before;
    bool is_filled = gpu_work_fill(&submit, &all, &one, &op, &error) == GPULUA_OK &&
                     gpu_op_wait(op, -1, &error) == GPULUA_OK;
    gpu_op_release(op);
    int former = (int)syscall(SYS_pidfd_open, gpu_device_pid(device), 0);
    stop(device);
    is_filled = is_filled && gpu_work_copy(&submit, &to, &part, NULL, &error) == GPULUA_OK;
    gpu_device_lose(device, 0, "by the test");
    bool waits_alone = false;
    while (is_filled && !has_ended(former) && !waits_alone) {
        wait_a_little(device);
        waits_alone = device->state == GPU_DEVICE_RETURNING && device->recovery.is_restoring &&
                      device->recovery.pending_count == 0;
    }
    /* It ends while the script is up to something else. */
    struct pollfd its_end = {.fd = former, .events = POLLIN};
    waits_alone = waits_alone && !has_ended(former) && poll(&its_end, 1, 20000) == 1;
    if (!waits_alone) {
        printf("# it had ended too soon: nothing is said\n");
    }
    bool is_there = gpu_device_arm(device, INT64_MAX);
    struct pollfd event = {.fd = gpu_device_poll_fd(device), .events = POLLIN};
    check(is_filled && (!waits_alone || is_there || poll(&event, 1, 2000) == 1),
          "who goes to sleep when the former process has ended is woken");
    gpu_device_disarm(device);
    check(comes_back(device, PATIENCE_NS), "and then it is up");
    close(former);
    gpu_block_release(block);
    gpu_block_release(host);
    close_device(device);
}

/* Loaded beside the former process it could not be. */
static void test_module(void) {
    static const char text[] = "extern \"C\" __global__ void k(int *x) { x[0] = 1; }\n";
    struct gpu_device *device = open_device();
    struct gpu_module_info source = {
        .kind = GPU_MODULE_SOURCE, .name = "module", .text = text, .text_bytes = sizeof text - 1};
    struct gpu_module *module = NULL;
    struct gpu_op *op = NULL;
    bool is_made = gpu_module_create(device, &source, &module, &op, &error) == GPULUA_OK &&
                   gpu_op_wait(op, -1, &error) == GPULUA_OK;
    gpu_op_release(op);
    char *bytes = is_made ? gpu_block_host_bytes(module->image) : NULL;
    if (bytes) { /* as if it found no memory */
        bytes[0] = '?';
    }
    lose(device);
    int64_t end_ns = gpu_clock_ns() + PATIENCE_NS;
    while (is_made && !module->is_missing && gpu_clock_ns() < end_ns) {
        wait_a_little(device);
    }
    check(is_made && !comes_back(device, SHORT_NS) && module->is_missing,
          "a module that could not be loaded is not given up beside the former process");
    if (bytes) {
        bytes[0] = text[0];
    }
    is_lingering = false;
    check(is_made && comes_back(device, PATIENCE_NS) && !module->is_missing,
          "and is loaded behind it");
    gpu_module_release(module);
    close_device(device);
}

static int64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void *kill_soon(void *user) {
    usleep(100000);
    kill(*(pid_t *)user, SIGKILL);
    return NULL;
}

/* The new one dies while memory is waited for. */
static void test_memory_lost(void) {
    struct gpu_device *device = open_device();
    lose(device);
    (void)comes_back(device, PATIENCE_NS);
    device->stats.budget_bytes = device->account.limit_bytes = UINT64_MAX / 2;
    pthread_t thread;
    pid_t pid = gpu_device_pid(device);
    int64_t begun_ns = gpu_clock_ns(), begun_cpu_ns = cpu_ns();
    (void)pthread_create(&thread, NULL, kill_soon, &pid);
    bool is_refused = !make(device, device->recovery.free_bytes * 2, false);
    int64_t took_ns = gpu_clock_ns() - begun_ns;
    printf("# %lld ms, %lld of the processor: %s\n", (long long)(took_ns / 1000000),
           (long long)((cpu_ns() - begun_cpu_ns) / 1000000), error.message);
    check(
        is_refused && error.code == GPULUA_DEVICE_LOST && took_ns < INT64_C(5000000000) &&
            cpu_ns() - begun_cpu_ns < took_ns / 2,
        "who waits for memory of a device that is lost again hears of that, and sleeps until then");
    gpu_error_finish(&error);
    pthread_join(thread, NULL);
    close_device(device);
}

static void test_memory(void) {
    struct gpu_device *device = open_device();
    lose(device);
    check(comes_back(device, PATIENCE_NS), "a former process has little of the memory");
    /* More than there is: what the former process has may be what is missing. */
    pthread_t thread;
    uint64_t huge = device->recovery.free_bytes * 2;
    device->stats.budget_bytes = device->account.limit_bytes = UINT64_MAX / 2;
    int64_t begun_ns = gpu_clock_ns();
    (void)pthread_create(&thread, NULL, end_soon, NULL);
    bool is_refused = !make(device, huge, false) && error.code == GPULUA_OUT_OF_MEMORY;
    int64_t took_ns = gpu_clock_ns() - begun_ns;
    pthread_join(thread, NULL);
    printf("# %lld ms, %s\n", (long long)(took_ns / 1000000), error.message);
    gpu_error_finish(&error);
    check(is_refused && took_ns >= 150000000, "where memory is short its end is waited for");
    begun_ns = gpu_clock_ns();
    check(!make(device, huge, false) && gpu_clock_ns() - begun_ns < PATIENCE_NS / 4,
          "once, and then it is short");
    gpu_error_finish(&error);
    uint64_t most_bytes = device->recovery.free_bytes;
    device->stats.bytes_reserved += most_bytes; /* as if it had that */
    lose(device);
    device->stats.bytes_reserved -= most_bytes;
    check(!comes_back(device, SHORT_NS), "who had most of the memory is waited for");
    is_lingering = false;
    check(comes_back(device, PATIENCE_NS), "then there is enough");
    close_device(device);
}

static void *end_late(void *user) {
    (void)user;
    usleep(2000000);
    is_lingering = false;
    return NULL;
}

static int64_t soon(const struct gpu_tasks *tasks, bool is_told) {
    static int64_t end_ns;
    (void)tasks;
    (void)is_told;
    end_ns = end_ns ? end_ns : gpu_clock_ns() + 50000000;
    return end_ns;
}

/* For memory that does not come. */
static void test_memory_late(void) {
    struct gpu_device *device = open_device();
    lose(device);
    (void)comes_back(device, PATIENCE_NS);
    device->stats.budget_bytes = device->account.limit_bytes = UINT64_MAX / 2;
    uint64_t huge = device->recovery.free_bytes * 2;
    pthread_t thread;
    (void)pthread_create(&thread, NULL, end_late, NULL);
    const struct gpu_tasks tasks = {.until_ns = soon};
    int64_t begun_ns = gpu_clock_ns();
    gpu_device_set_tasks(device, &tasks);
    bool is_refused = !make(device, huge, false) && error.code == GPULUA_TIMEOUT;
    gpu_device_set_tasks(device, NULL);
    int64_t took_ns = gpu_clock_ns() - begun_ns;
    printf("# %lld ms, %s\n", (long long)(took_ns / 1000000), error.message);
    gpu_error_finish(&error);
    check(is_refused && took_ns >= 50000000 && is_lingering,
          "who waits for the memory of a former process has no more time than its task");
    device->recovery.late_ns = gpu_clock_ns() - INT64_C(4800000000); /* as if it had been long */
    is_refused = !make(device, huge, false) && error.code == GPULUA_OUT_OF_MEMORY;
    gpu_error_finish(&error);
    check(is_refused && is_lingering, "and waits for one that does not end only so long");
    pthread_join(thread, NULL);
    close_device(device);
}

static char told[256];
static int told_count;
static void hear(void *user, const char *line) {
    (void)user;
    snprintf(told, sizeof told, "%s", line);
    told_count++;
}

static void test_late(void) {
    struct gpu_device *device = open_device();
    char number[40];
    device->on_log = hear;
    told_count = 0;
    lose(device);
    check(comes_back(device, PATIENCE_NS) && told_count == 0, "a former process is not waited for");
    snprintf(number, sizeof number, "process %d", device->recovery.former_pid);
    lose(device);
    check(!comes_back(device, SHORT_NS), "the one before that is");
    bool is_early = gpu_device_alarm_ns(device) <= device->recovery.late_ns && told_count == 0;
    device->recovery.late_ns = gpu_clock_ns(); /* as if it had been long */
    for (int i = 0; i < 3; i++) {
        wait_a_little(device);
    }
    check(is_early && told_count == 1 && strstr(told, number) && strstr(told, "has not ended"),
          "and where it takes long, that is told, once");
    bool is_named = gpu_device_check_open(device, &error) == GPULUA_DEVICE_LOST &&
                    strstr(error.message, number) != NULL;
    gpu_error_finish(&error);
    check(is_named, "and said by what waits for it");
    is_lingering = false;
    check(comes_back(device, PATIENCE_NS), "when it has ended, the device is up");
    close_device(device);
}

/* An interrupt that stays, as while a script ends because of it. */
static void test_interrupted(void) {
    static _Atomic int interrupt;
    struct gpu_device_info info = {.name = "cpu",
                                   .isolation = GPULUA_ISOLATE_PROCESS,
                                   .interrupt = &interrupt,
                                   .restarts_max = 2};
    struct gpu_device *device = NULL;
    if (gpu_device_open(&info, &device, &error)) {
        check(false, "a device to be interrupted opens");
        return;
    }
    interrupt = 1;
    lose(device);
    int64_t end_ns = gpu_clock_ns() + PATIENCE_NS;
    while (gpu_device_is_returning(device) && device->recovery.failed_count < 4 &&
           gpu_clock_ns() < end_ns) {
        wait_a_little(device);
    }
    bool is_on_its_way = gpu_device_is_returning(device) && device->recovery.failed_count == 4;
    interrupt = 0;
    check(is_on_its_way && comes_back(device, PATIENCE_NS) && device->recovery.begun_count == 1,
          "restarts that an interrupt ends are none of those that are counted");
    close_device(device);
}

int main(void) {
    (void)survives_late_read(true, false);
    (void)survives_late_read(true, true);
    check(!survives_late_read(false, false),
          "without protection a read that was under way is written into the next transfer");
    test_host_memory();
    test_reports();
    test_twice();
    test_waking();
    test_module();
    test_memory_lost();
    test_memory();
    test_memory_late();
    test_late();
    test_interrupted();
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
