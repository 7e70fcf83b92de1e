/* One device, several threads: hazards between them, preflight to commit as one step, whose waits
 * and failures are whose, leaving, and the loss of the device. The scripts' side is in
 * spec/host/shared_test.c. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/tap.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/op.h"
#include "runtime/recorder.h"
#include "runtime/share.h"
#include "runtime/state.h"
#include "runtime/work.h"

#define THREADS 8
#define ROUNDS 128
#define BLOCK_BYTES (1u << 18)
#define SHARED_BLOCKS 3

static struct tap tap;
static const char *transport;

static void check(bool condition, const char *name) {
    char text[160];
    snprintf(text, sizeof text, "%s: %s", transport, name);
    tap_check(&tap, condition, text);
}

static struct gpu_device *open_device(gpulua_isolation isolation, bool is_unfenced) {
    struct gpu_device_info info = {
        .name = "cpu", .isolation = isolation, .is_unfenced = is_unfenced, .restarts_max = -1};
    struct gpu_device *device = NULL;
    struct gpu_error error;
    if (gpu_device_open(&info, &device, &error) || gpu_device_share(device, &error)) {
        printf("# %s\n", error.message);
        exit(1);
    }
    return device;
}

static struct gpu_block *make(struct gpu_device *device, uint64_t bytes) {
    struct gpu_block_info info = {.byte_count = bytes};
    struct gpu_block *block = NULL;
    struct gpu_error error;
    return gpu_block_create(device, &info, &block, &error) ? NULL : block;
}

static struct gpu_ref ref_of(struct gpu_block *block) {
    return (struct gpu_ref){block, 0, gpu_block_bytes(block), GPU_TYPE_U32};
}

static int fired;

static void note_fire(struct gpu_waiter *waiter, struct gpu_op *op) {
    (void)waiter;
    (void)op;
    fired++;
}

static void note_nothing(struct gpu_waiter *waiter, struct gpu_op *op) {
    (void)waiter;
    (void)op;
}

/* ---- threads ---- */

struct worker {
    struct gpu_device *device;
    struct gpu_block **shared;
    uint32_t number;
    _Atomic int interrupt;
    struct gpu_seat *seat;
    struct gpu_stream *stream;
    uint32_t torn, failed;
    pthread_barrier_t *barrier;
    int *inside, *overlaps;
    gpulua_status status;
    pthread_t thread;
};

static bool begin(struct worker *worker) {
    struct gpu_error error;
    struct gpu_stream_info info = {0};
    if (gpu_seat_take(worker->device, &worker->interrupt, &worker->seat, &error)) {
        return false;
    }
    gpu_seat_sit(worker->seat);
    return gpu_stream_create(worker->device, &info, &worker->stream, &error) == GPULUA_OK;
}

static void end(struct worker *worker) {
    struct gpu_error error;
    if (gpu_device_wait_idle(worker->device, -1, &error)) {
        worker->failed++;
    }
    gpu_stream_release(worker->stream);
    gpu_seat_leave(worker->seat);
}

static void run_all(struct worker *workers, uint32_t count, struct worker common,
                    void *(*run)(void *)) {
    for (uint32_t i = 0; i < count; i++) {
        workers[i] = common;
        workers[i].number = i;
        if (pthread_create(&workers[i].thread, NULL, run, &workers[i]) != 0) {
            exit(1);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        pthread_join(workers[i].thread, NULL);
    }
}

/* ---- hazards between threads ---- */

/* Fills a block that all have, copies one of those to its own, and looks at what came: a copy sees
 * one fill whole, whoever filled last. */
static void *fill_and_copy(void *user) {
    struct worker *worker = user;
    struct gpu_error error;
    if (!begin(worker)) {
        worker->failed++;
        return NULL;
    }
    struct gpu_block *own = make(worker->device, BLOCK_BYTES);
    for (uint32_t round = 0; own && round < ROUNDS; round++) {
        struct gpu_submit submit = {.stream = worker->stream};
        struct gpu_ref dst = ref_of(worker->shared[(round + worker->number) % SHARED_BLOCKS]);
        struct gpu_ref src = ref_of(worker->shared[(round * 7 + worker->number) % SHARED_BLOCKS]);
        struct gpu_ref mine = ref_of(own);
        struct gpu_staging staging;
        struct gpu_op *op = NULL;
        uint32_t value = worker->number << 16 | round;
        if (gpu_work_fill(&submit, &dst, &value, NULL, &error) ||
            gpu_work_copy(&submit, &mine, &src, NULL, &error) ||
            gpu_staging_acquire(worker->device, BLOCK_BYTES, &staging, &error)) {
            worker->failed++;
            break;
        }
        if (gpu_work_download(&submit, &mine, 0, &staging, BLOCK_BYTES, &op, &error) ||
            gpu_op_wait(op, -1, &error) || gpu_op_status(op)) {
            worker->failed++;
        }
        const uint32_t *words = (const uint32_t *)(const void *)staging.bytes;
        for (uint32_t i = 1; i < BLOCK_BYTES / 4; i++) {
            if (words[i] != words[0]) {
                worker->torn++;
                break;
            }
        }
        gpu_op_release(op);
        gpu_staging_release(worker->device, &staging);
    }
    gpu_block_release(own);
    end(worker);
    return NULL;
}

/* What the threads found. */
static struct worker run_hazards(gpulua_isolation isolation, bool is_unfenced) {
    struct gpu_device *device = open_device(isolation, is_unfenced);
    struct gpu_block *shared[SHARED_BLOCKS];
    struct worker workers[THREADS], main_worker = {.device = device}, sum = {0};
    struct gpu_stats stats;
    if (!begin(&main_worker)) {
        exit(1);
    }
    for (int i = 0; i < SHARED_BLOCKS; i++) {
        struct gpu_submit submit = {.stream = main_worker.stream};
        struct gpu_error error;
        uint32_t zero = 0;
        shared[i] = make(device, BLOCK_BYTES);
        struct gpu_ref ref = ref_of(shared[i]);
        if (gpu_work_fill(&submit, &ref, &zero, NULL, &error)) {
            exit(1);
        }
    }
    run_all(workers, THREADS, (struct worker){.device = device, .shared = shared}, fill_and_copy);
    for (int i = 0; i < THREADS; i++) {
        sum.torn += workers[i].torn;
        sum.failed += workers[i].failed;
    }
    for (int i = 0; i < SHARED_BLOCKS; i++) {
        gpu_block_release(shared[i]);
    }
    end(&main_worker);
    gpu_device_stats(device, &stats);
    sum.failed += stats.ops_in_flight != 0 || stats.ops_failed != 0;
    gpu_device_close(device, 1000);
    gpu_device_release(device);
    return sum;
}

static void test_hazards(gpulua_isolation isolation) {
    struct worker found = run_hazards(isolation, false);
    check(found.failed == 0 && found.torn == 0,
          "8 threads of 128 rounds see one another's work whole");
    uint32_t torn = 0;
#if !defined(__SANITIZE_THREAD__) /* which would report what the twin does */
    for (int i = 0; i < 5 && torn == 0; i++) {
        torn = run_hazards(isolation, true).torn;
    }
    check(torn > 0, "twin: without fences they see parts of it");
#else
    (void)torn;
#endif
}

/* ---- recorders ---- */

static struct gpu_recorder *record(struct worker *worker, struct gpu_block *block) {
    struct gpu_submit submit = {.stream = worker->stream};
    struct gpu_error error;
    struct gpu_recorder *recorder = NULL;
    struct gpu_ref ref = ref_of(block);
    if (gpu_recorder_create(&submit, GPU_RECORDER_STRICT, &recorder, &error)) {
        return NULL;
    }
    gpu_recorder_use(recorder, &ref, GPU_READ_WRITE, "x");
    return recorder;
}

static void *preflight_and_commit(void *user) {
    struct worker *worker = user;
    struct gpu_error error;
    if (!begin(worker)) {
        worker->failed++;
        return NULL;
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct gpu_recorder *recorder = record(worker, worker->shared[0]);
        if (!recorder || gpu_recorder_preflight(recorder, &error)) {
            worker->failed++;
        }
        /* Plain memory: whoever is between the two is alone, and ThreadSanitizer sees why. */
        *worker->overlaps += ++*worker->inside != 1;
        --*worker->inside;
        if (gpu_recorder_commit(recorder, NULL, &error)) {
            worker->failed++;
        }
        gpu_recorder_release(recorder);
    }
    end(worker);
    return NULL;
}

/* Holds a block of its own while the other holds its; then wants the other's. */
static void *hold_two(void *user) {
    struct worker *worker = user;
    struct gpu_error error = {0};
    if (!begin(worker)) {
        exit(1);
    }
    struct gpu_recorder *own = record(worker, worker->shared[worker->number]);
    worker->failed += gpu_recorder_preflight(own, &error) != GPULUA_OK;
    pthread_barrier_wait(worker->barrier); /* both are between preflight and commit */
    struct gpu_recorder *other = record(worker, worker->shared[1 - worker->number]);
    worker->status = gpu_recorder_preflight(other, &error);
    pthread_barrier_wait(worker->barrier);
    gpu_recorder_release(other);
    worker->failed += gpu_recorder_commit(own, NULL, &error) != GPULUA_OK;
    gpu_recorder_release(own);
    end(worker);
    return NULL;
}

/* The first one holds the block until the other, which waits for it, is interrupted. */
static void *wait_for_holder(void *user) {
    struct worker *worker = user;
    struct gpu_error error = {0};
    if (!begin(worker)) {
        exit(1);
    }
    uint32_t value = 7;
    struct gpu_submit submit = {.stream = worker->stream};
    struct gpu_ref ref = ref_of(worker->shared[0]);
    pthread_barrier_wait(worker->barrier);
    atomic_store(&worker->interrupt, worker->number == 1);
    worker->status = gpu_work_fill(&submit, &ref, &value, NULL, &error);
    end(worker);
    return NULL;
}

static void test_recorders(gpulua_isolation isolation) {
    struct gpu_device *device = open_device(isolation, false);
    struct worker workers[THREADS], main_worker = {.device = device};
    int inside = 0, overlaps = 0;
    uint32_t failed = 0;
    pthread_barrier_t barrier;
    if (!begin(&main_worker)) {
        exit(1);
    }
    struct gpu_block *shared[2] = {make(device, 4096), make(device, 4096)};
    struct worker common = {
        .device = device, .shared = shared, .inside = &inside, .overlaps = &overlaps};
    run_all(workers, THREADS, common, preflight_and_commit);
    for (int i = 0; i < THREADS; i++) {
        failed += workers[i].failed;
    }
    check(failed == 0 && overlaps == 0, "from preflight to commit of a block, a thread is alone");

    pthread_barrier_init(&barrier, NULL, 2);
    common.barrier = &barrier;
    run_all(workers, 2, common, hold_two);
    check(workers[0].failed + workers[1].failed == 0,
          "of different blocks, two are there at the same time");
    check(workers[0].status == GPULUA_STREAM_MISUSE && workers[1].status == GPULUA_STREAM_MISUSE,
          "who holds a block is refused another's, instead of waiting for ever");
    pthread_barrier_destroy(&barrier);

    struct gpu_error error;
    struct gpu_recorder *held = record(&main_worker, shared[0]);
    check(gpu_recorder_preflight(held, &error) == GPULUA_OK, "a holder");
    pthread_barrier_init(&barrier, NULL, 3);
    for (uint32_t i = 0; i < 2; i++) {
        workers[i] = common;
        workers[i].number = i;
        if (pthread_create(&workers[i].thread, NULL, wait_for_holder, &workers[i]) != 0) {
            exit(1);
        }
    }
    pthread_barrier_wait(&barrier);
    pthread_join(workers[1].thread, NULL);
    check(workers[1].status == GPULUA_INTERRUPTED, "an interrupt ends the wait for a holder");
    usleep(20000);
    check(gpu_recorder_commit(held, NULL, &error) == GPULUA_OK, "and the holder goes on");
    gpu_recorder_release(held);
    pthread_join(workers[0].thread, NULL);
    check(workers[0].status == GPULUA_OK, "whoever waited is next");
    pthread_barrier_destroy(&barrier);
    gpu_block_release(shared[0]);
    gpu_block_release(shared[1]);
    end(&main_worker);
    gpu_device_close(device, 1000);
    gpu_device_release(device);
}

/* ---- leaving, and the end ---- */

static void *wait_for_end(void *user) {
    struct worker *worker = user;
    struct gpu_error error = {0};
    if (!begin(worker)) {
        exit(1);
    }
    pthread_barrier_wait(worker->barrier);
    uint32_t value = 1;
    struct gpu_submit submit = {.stream = worker->stream};
    struct gpu_ref ref = ref_of(worker->shared[0]);
    while (worker->status == GPULUA_OK) {
        struct gpu_op *op = NULL;
        worker->status = gpu_work_fill(&submit, &ref, &value, &op, &error);
        if (worker->status == GPULUA_OK) {
            worker->status = gpu_op_wait(op, -1, &error);
        }
        if (worker->status == GPULUA_OK) {
            worker->status = gpu_op_status(op);
            gpu_op_observe(op);
        }
        gpu_op_release(op);
    }
    gpu_stream_release(worker->stream);
    gpu_seat_leave(worker->seat);
    return NULL;
}

static void test_loss(void) {
    struct gpu_device *device = open_device(GPULUA_ISOLATE_PROCESS, false);
    struct worker workers[4], main_worker = {.device = device};
    pthread_barrier_t barrier;
    uint32_t lost = 0;
    if (!begin(&main_worker)) {
        exit(1);
    }
    struct gpu_block *shared[1] = {make(device, BLOCK_BYTES)};
    pthread_barrier_init(&barrier, NULL, 5);
    for (uint32_t i = 0; i < 4; i++) {
        workers[i] = (struct worker){.device = device, .shared = shared, .barrier = &barrier};
        if (pthread_create(&workers[i].thread, NULL, wait_for_end, &workers[i]) != 0) {
            exit(1);
        }
    }
    pthread_barrier_wait(&barrier);
    usleep(30000);
    kill(gpu_device_pid(device), SIGKILL);
    for (uint32_t i = 0; i < 4; i++) {
        pthread_join(workers[i].thread, NULL);
        lost += workers[i].status == GPULUA_DEVICE_LOST;
    }
    check(lost == 4, "every thread hears of the loss of the device");
    pthread_barrier_destroy(&barrier);
    gpu_block_release(shared[0]);
    gpu_stream_release(main_worker.stream);
    gpu_seat_leave(main_worker.seat);
    gpu_device_close(device, 0);
    gpu_device_release(device);
}

/* Whoever notices that the executor is gone need not be who waits for it. */
static void test_loss_is_told(void) {
    struct gpu_device *device = open_device(GPULUA_ISOLATE_PROCESS, false);
    struct worker sleeper = {.device = device}, other = {.device = device};
    struct gpu_waiter waiter = {.fire = note_fire};
    struct gpu_error error = {0};
    uint32_t value = 1;
    if (!begin(&sleeper) || !begin(&other)) {
        exit(1);
    }
    struct gpu_block *block = make(device, BLOCK_BYTES);
    struct gpu_ref ref = ref_of(block);
    struct gpu_submit submit = {.stream = sleeper.stream};
    struct gpu_op *op = NULL;
    fired = 0;
    kill(gpu_device_pid(device), SIGSTOP);
    gpu_seat_sit(sleeper.seat);
    if (gpu_work_fill(&submit, &ref, &value, &op, &error)) {
        exit(1);
    }
    gpu_op_watch(op, &waiter);
    check(!gpu_device_arm(device, INT64_MAX), "the sleeper has something to wait for");
    struct pollfd events[] = {{.fd = gpu_device_poll_fd(device), .events = POLLIN},
                              {.fd = gpu_seat_event_fd(sleeper.seat), .events = POLLIN}};
    gpu_seat_sit(other.seat);
    kill(gpu_device_pid(device), SIGKILL);
    usleep(20000);
    submit.stream = other.stream;
    while (gpu_work_fill(&submit, &ref, &value, NULL, &error) == GPULUA_OK) {}
    check(error.code == GPULUA_DEVICE_LOST && poll(events, 2, 1000) > 0,
          "a loss that another thread notices wakes who sleeps");
    gpu_error_finish(&error);
    gpu_seat_sit(sleeper.seat);
    gpu_device_disarm(device);
    (void)gpu_device_poll(device);
    check(fired == 1 && gpu_op_status(op) == GPULUA_DEVICE_LOST, "and is told there");
    gpu_op_release(op);
    gpu_block_release(block);
    gpu_stream_release(sleeper.stream);
    gpu_seat_leave(sleeper.seat);
    gpu_stream_release(other.stream);
    gpu_seat_leave(other.seat);
    gpu_device_close(device, 0);
    gpu_device_release(device);
}

/* ---- what forks and looks in passing find ---- */

static const struct wire_link_ops *ops_before;
static struct wire_link_ops watched;
static int arm_count;

static bool count_arm(struct wire_link *link) {
    arm_count++;
    return ops_before->arm(link);
}

static void watch_ops(struct gpu_device *device) {
    ops_before = device->link->ops;
    watched = *ops_before;
    device->link->ops = &watched;
}

/* What looks whether a request is answered polls the executor, which then looks out for nobody. */
static void test_looking(void) {
    struct gpu_device *device = open_device(GPULUA_ISOLATE_NONE, false);
    struct worker sleeper = {.device = device}, other = {.device = device};
    if (!begin(&sleeper) || !begin(&other)) {
        exit(1);
    }
    watch_ops(device);
    watched.arm = count_arm;
    gpu_seat_sit(other.seat);
    struct gpu_op *op =
        gpu_request_expect(device, ++device->request_number_next, "never", NULL, NULL);
    gpu_seat_sit(sleeper.seat);
    bool is_asleep = !gpu_device_arm(device, INT64_MAX);
    gpu_seat_sit(other.seat);
    arm_count = 0;
    check(is_asleep && op && !gpu_op_is_over(op) && arm_count == 1,
          "whoever sleeps is looked out for behind a look at a request");
    gpu_seat_sit(sleeper.seat);
    gpu_device_disarm(device);
    op->is_replied = true;
    end(&sleeper);
    gpu_seat_sit(other.seat);
    end(&other);
    gpu_device_close(device, 1000);
    gpu_device_release(device);
}

#define PATIENCE_S 120 /* of a child that hangs, on slow machines, too */

static bool ends_well(pid_t pid) {
    int status = -1;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* A child reads nothing of what wakes its parent. */
static void test_fork_of_sleeper(gpulua_isolation isolation) {
    struct gpu_device *device = open_device(isolation, false);
    struct worker sleeper = {.device = device};
    if (!begin(&sleeper)) {
        exit(1);
    }
    bool is_asleep = !gpu_device_arm(device, INT64_MAX);
    gpu_share_lost(device); /* which wakes all */
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(PATIENCE_S);
        gpu_device_disarm(device);
        _exit(0);
    }
    struct pollfd event = {.fd = gpu_seat_event_fd(sleeper.seat), .events = POLLIN};
    check(is_asleep && ends_well(pid) && poll(&event, 1, 0) == 1,
          "a child by fork takes no wake away");
    gpu_device_disarm(device);
    end(&sleeper);
    gpu_device_close(device, 1000);
    gpu_device_release(device);
}

/* A poll of another thread's, which begins before a fork and goes on while it waits. */
static _Atomic bool is_polling, may_end;
static bool ends_at_fork;              /* or not before the fork is over */
static struct gpu_block *half_changed; /* as it would be in the middle of a change of lists */

static void poll_long(struct wire_link *link) {
    watched.poll = ops_before->poll;
    ops_before->poll(link);
    struct gpu_block *previous = half_changed->previous;
    if (!ends_at_fork) {
        half_changed->previous = (void *)(uintptr_t)8;
    }
    is_polling = true;
    while (!may_end) {
        usleep(1000);
    }
    half_changed->previous = previous;
    usleep(50000); /* in which a fork that does not wait is over */
}

static void before_fork(void) {
    may_end = ends_at_fork;
}

static void *poll_once(void *user) {
    struct worker *worker = user;
    if (!begin(worker)) {
        exit(1);
    }
    watched.poll = poll_long;
    (void)gpu_device_poll(worker->device);
    end(worker);
    return NULL;
}

/* Of the device it is over there, whatever the thread was at that is not. */
static void test_fork_in_poll(gpulua_isolation isolation, bool at_fork, const char *name) {
    static bool has_handler;
    struct gpu_device *device = open_device(isolation, false);
    struct worker main_worker = {.device = device}, other = {.device = device};
    struct gpu_error error = {0};
    if (!begin(&main_worker)) {
        exit(1);
    }
    struct gpu_op *op =
        gpu_request_expect(device, ++device->request_number_next, "never", NULL, NULL);
    const struct gpu_block_info info = {.byte_count = 4096};
    struct gpu_block *other_block = NULL;
    half_changed = make(device, 4096);
    other_block = make(device, 4096);
    const struct gpu_submit submit = {.stream = main_worker.stream};
    const struct gpu_ref ref = ref_of(half_changed);
    struct gpu_op *filled = NULL;
    uint32_t value = 1;
    if (gpu_work_fill(&submit, &ref, &value, &filled, &error)) {
        exit(1);
    }
    if (!has_handler) { /* called before those of the device, which has been opened before */
        pthread_atfork(before_fork, NULL, NULL);
        has_handler = true;
    }
    watch_ops(device);
    is_polling = may_end = false;
    ends_at_fork = at_fork;
    pthread_create(&other.thread, NULL, poll_once, &other);
    while (!is_polling) {
        usleep(1000);
    }
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(PATIENCE_S);
        bool has_failed = gpu_op_wait(op, -1, &error) == GPULUA_OK && op->state == GPU_OP_FAILED;
        gpu_op_release(filled);
        gpu_block_close(half_changed);
        has_failed &= gpu_block_create(device, &info, &other_block, &error) == GPULUA_CLOSED;
        gpu_block_release(other_block);
        end(&main_worker);
        gpu_device_close(device, 1000);
        gpu_device_release(device);
        /* By no way that a sanitizer hears of: to it the parent's thread is one that nobody joins.
         */
        syscall(SYS_exit_group, has_failed ? 0 : 1);
    }
    may_end = true;
    bool is_well = ends_well(pid);
    pthread_join(other.thread, NULL);
    check(is_well && op->state == GPU_OP_PENDING, name);
    op->is_replied = true;
    gpu_op_release(filled);
    gpu_block_release(half_changed);
    gpu_block_release(other_block);
    end(&main_worker);
    gpu_device_close(device, 1000);
    gpu_device_release(device);
}

/* ---- watching ---- */

/* Gives up watching when the other thread's poll ends what is watched. */
static void *watch_and_give_up(void *user) {
    struct worker *worker = user;
    struct gpu_error error = {0};
    if (!begin(worker)) {
        exit(1);
    }
    struct gpu_submit submit = {.stream = worker->stream};
    struct gpu_ref ref = ref_of(worker->shared[worker->number]);
    for (uint32_t round = 0; round < 2 * ROUNDS; round++) {
        struct gpu_waiter waiter = {.fire = note_nothing};
        struct gpu_op *op = NULL;
        worker->failed += gpu_work_fill(&submit, &ref, &round, &op, &error) != GPULUA_OK;
        gpu_op_watch(op, &waiter);
        (void)gpu_op_spin(op, 1000 * (round % 32));
        gpu_op_unwatch(&waiter);
        worker->failed += waiter.link != NULL;
        (void)gpu_device_poll(worker->device); /* ends what the other one watches */
        gpu_op_release(op);
    }
    end(worker);
    return NULL;
}

/* What is over wakes its own seat, although another one has looked since. */
static void test_waking(gpulua_isolation isolation) {
    struct gpu_device *device = open_device(isolation, false);
    struct worker first = {.device = device}, second = {.device = device};
    struct gpu_waiter waiter = {.fire = note_fire};
    struct gpu_error error = {0};
    uint32_t value = 5;
    if (!begin(&first) || !begin(&second)) {
        exit(1);
    }
    gpu_seat_sit(first.seat);
    struct gpu_block *block = make(device, 16 * BLOCK_BYTES);
    struct gpu_ref ref = ref_of(block);
    struct gpu_submit submit = {.stream = first.stream};
    struct gpu_op *op = NULL;
    for (int i = 0; i < 4; i++) {
        gpu_op_release(op);
        if (gpu_work_fill(&submit, &ref, &value, &op, &error)) {
            exit(1);
        }
    }
    fired = 0;
    gpu_op_watch(op, &waiter);
    (void)gpu_device_arm(device, INT64_MAX);
    struct pollfd events[] = {{.fd = gpu_device_poll_fd(device), .events = POLLIN},
                              {.fd = gpu_seat_event_fd(first.seat), .events = POLLIN}};
    while (!gpu_op_is_over(op)) {}
    gpu_seat_sit(second.seat);
    (void)gpu_device_arm(device, INT64_MAX);
    check(poll(events, 2, 1000) > 0, "another's look takes no wake away");
    gpu_device_disarm(device);
    gpu_seat_sit(first.seat);
    gpu_device_disarm(device);
    (void)gpu_device_poll(device);
    check(fired == 1, "and the op ends where it is watched");
    gpu_op_release(op);
    gpu_block_release(block);
    end(&first);
    gpu_seat_sit(second.seat);
    end(&second);
    gpu_device_close(device, 1000);
    gpu_device_release(device);
}

/* A seat that leaves watches an operation of another, and holds a recorder that another waits for.
 */
static void test_left_behind(gpulua_isolation isolation) {
    struct gpu_device *device = open_device(isolation, false);
    struct worker workers[2], first = {.device = device}, second = {.device = device};
    struct gpu_waiter waiter = {.fire = note_fire};
    struct gpu_error error = {0};
    struct gpu_stats stats;
    uint32_t value = 5;
    if (!begin(&first) || !begin(&second)) {
        exit(1);
    }
    struct gpu_block *blocks[2] = {make(device, 4096), make(device, 4096)};
    struct gpu_block *large = make(device, 16 * BLOCK_BYTES);
    run_all(workers, 2, (struct worker){.device = device, .shared = blocks}, watch_and_give_up);
    check(workers[0].failed + workers[1].failed == 0, "who gives up watching is left alone");

    struct gpu_ref ref = ref_of(large);
    struct gpu_submit submit = {.stream = second.stream};
    struct gpu_op *op = NULL;
    gpu_seat_sit(second.seat);
    for (int i = 0; i < 6; i++) {
        gpu_op_release(op);
        if (gpu_work_fill(&submit, &ref, &value, &op, &error)) {
            exit(1);
        }
    }
    fired = 0;
    gpu_seat_sit(first.seat);
    gpu_op_watch(op, &waiter);
    struct gpu_recorder *held = record(&first, blocks[1]);
    check(gpu_recorder_preflight(held, &error) == GPULUA_OK, "a holder");
    gpu_stream_release(first.stream);
    gpu_seat_leave(first.seat);
    check(fired == 1, "what a seat watches fires when it leaves");
    gpu_seat_sit(second.seat);
    ref = ref_of(blocks[1]);
    atomic_store(&second.interrupt, 1); /* instead of waiting for ever */
    check(gpu_work_fill(&submit, &ref, &value, NULL, &error) == GPULUA_OK,
          "and nobody waits for its recorders");
    atomic_store(&second.interrupt, 0);
    check(gpu_op_wait(op, -1, &error) == GPULUA_OK && fired == 1, "the other's work goes on");
    gpu_recorder_release(held);
    gpu_device_stats(device, &stats);
    check(stats.recorders_abandoned == 1, "which were committed");
    gpu_op_release(op);
    gpu_block_release(large);
    gpu_block_release(blocks[0]);
    gpu_block_release(blocks[1]);
    end(&second);
    gpu_device_close(device, 1000);
    gpu_device_release(device);
}

static void test_leaving(gpulua_isolation isolation) {
    struct gpu_device *device = open_device(isolation, false);
    struct worker first = {.device = device}, second = {.device = device};
    struct gpu_error error = {0};
    uint32_t value = 3;
    if (!begin(&first) || !begin(&second)) {
        exit(1);
    }
    check(gpu_seat_number(first.seat) == 0 && gpu_seat_number(second.seat) == 1,
          "seats are counted");
    struct gpu_block *block = make(device, BLOCK_BYTES);
    struct gpu_ref ref = ref_of(block);
    struct gpu_submit submit = {.stream = first.stream};
    gpu_seat_sit(first.seat);
    check(gpu_work_fill(&submit, &ref, &value, NULL, &error) == GPULUA_OK, "the first works");
    gpu_seat_leave(first.seat);
    check(gpu_work_fill(&submit, &ref, &value, NULL, &error) == GPULUA_CLOSED,
          "for who has left, the device is closed");
    gpu_seat_sit(second.seat);
    check(gpu_work_fill(&submit, &ref, &value, NULL, &error) == GPULUA_OK, "for others it is not");
    gpu_stream_release(first.stream);
    gpu_block_release(block);
    end(&second);
    check(gpu_device_state(device) == GPU_DEVICE_OPEN, "the last one leaves it open");
    gpu_device_close(device, 1000);
    gpu_device_release(device);

    struct gpu_device_info info = {.name = "cpu", .isolation = isolation, .is_checked = true};
    if (gpu_device_open(&info, &device, &error)) {
        exit(1);
    }
    check(gpu_device_share(device, &error) == GPULUA_UNSUPPORTED, "a checked device is not shared");
    gpu_device_close(device, 0);
    gpu_device_release(device);
}

/* ---- what changes while a call waits ---- */

/* More than one record can depend on. */
#define READS 256

struct meanwhile {
    struct worker worker;
    struct gpu_block *block; /* of those that are read */
    bool frees;              /* it; else a recorder holds it for a while */
    _Atomic bool is_done;
};

/* While the other thread waits for the device, which is stopped. */
static void *interfere(void *user) {
    struct meanwhile *meanwhile = user;
    struct worker *worker = &meanwhile->worker;
    struct gpu_error error = {0};
    struct gpu_recorder *held = NULL;
    if (!begin(worker)) {
        exit(1);
    }
    usleep(200000);
    if (meanwhile->frees) {
        gpu_block_free(meanwhile->block);
    } else {
        held = record(worker, meanwhile->block);
        worker->failed += gpu_recorder_preflight(held, &error) != GPULUA_OK;
    }
    kill(gpu_device_pid(worker->device), SIGCONT);
    usleep(held ? 200000 : 0);
    meanwhile->is_done = true;
    worker->failed += held && gpu_recorder_commit(held, NULL, &error) != GPULUA_OK;
    gpu_recorder_release(held);
    end(worker);
    return NULL;
}

/* A recorder that reads more than one record can depend on waits in its preflight. */
static void test_meanwhile(bool frees) {
    struct gpu_device *device = open_device(GPULUA_ISOLATE_PROCESS, false);
    struct worker writer = {.device = device};
    struct gpu_error error = {0};
    struct gpu_stream_info info = {0};
    struct gpu_stream *stream = NULL;
    struct gpu_block *blocks[READS];
    struct gpu_recorder *recorder = NULL;
    if (!begin(&writer) || gpu_stream_create(device, &info, &stream, &error)) {
        exit(1);
    }
    for (int i = 0; i < READS; i++) {
        blocks[i] = make(device, 4096);
    }
    kill(gpu_device_pid(device), SIGSTOP);
    const struct gpu_submit write = {.stream = writer.stream}, read = {.stream = stream};
    gpulua_status status = gpu_recorder_create(&read, GPU_RECORDER_STRICT, &recorder, &error);
    for (int i = 0; i < READS; i++) {
        struct gpu_ref ref = ref_of(blocks[i]);
        uint32_t value = 1;
        status = status ? status : gpu_work_fill(&write, &ref, &value, NULL, &error);
        gpu_recorder_use(recorder, &ref, GPU_READ, "x");
    }
    struct meanwhile meanwhile = {
        .worker = {.device = device}, .block = blocks[READS - 1], .frees = frees};
    pthread_create(&meanwhile.worker.thread, NULL, interfere, &meanwhile);
    status = status ? status : gpu_recorder_preflight(recorder, &error);
    bool was_done = meanwhile.is_done;
    if (frees) {
        check(status == GPULUA_USE_AFTER_FREE, "what is freed while a preflight waits is noticed");
    } else {
        check(status == GPULUA_OK && was_done, "what is frozen while a preflight waits is so");
        status = gpu_recorder_commit(recorder, NULL, &error);
        check(status == GPULUA_OK, "and it is committed behind the other one");
    }
    gpu_recorder_release(recorder);
    pthread_join(meanwhile.worker.thread, NULL);
    check(meanwhile.worker.failed == 0, "and the other thread finds all well");
    for (int i = 0; i < READS; i++) {
        gpu_block_release(blocks[i]);
    }
    gpu_stream_release(stream);
    end(&writer);
    gpu_device_close(device, 1000);
    gpu_device_release(device);
}

/* What a recorder reads that is dropped then is written by more than one record can depend on. */
static void test_much_abandoned(bool leaves) {
    struct gpu_device *device = open_device(GPULUA_ISOLATE_PROCESS, false);
    struct worker main_worker = {.device = device}, worker = {.device = device};
    struct gpu_error error = {0};
    struct gpu_stats stats;
    struct gpu_block *blocks[READS];
    struct gpu_recorder *recorder = NULL;
    struct gpu_op *op = NULL;
    uint32_t value = 1;
    if (!begin(&main_worker) || !begin(&worker)) {
        exit(1);
    }
    struct gpu_submit submit = {.stream = worker.stream};
    gpulua_status status = gpu_recorder_create(&submit, GPU_RECORDER_STRICT, &recorder, &error);
    for (int i = 0; i < READS; i++) {
        blocks[i] = make(device, 4096);
        struct gpu_ref ref = ref_of(blocks[i]);
        gpu_recorder_use(recorder, &ref, GPU_READ, "x");
    }
    status = status ? status : gpu_recorder_preflight(recorder, &error);
    kill(gpu_device_pid(device), SIGSTOP);
    for (int i = 0; i < READS; i++) {
        struct gpu_ref ref = ref_of(blocks[i]);
        status = status ? status : gpu_work_fill(&submit, &ref, &value, NULL, &error);
    }
    alarm(PATIENCE_S);
    gpu_recorder_release(recorder);
    if (leaves) {
        gpu_stream_release(worker.stream);
        gpu_seat_leave(worker.seat);
        gpu_seat_sit(main_worker.seat);
    } else {
        (void)gpu_device_poll(device);
    }
    alarm(0);
    gpu_device_stats(device, &stats);
    check(status == GPULUA_OK && stats.recorders_abandoned == 1,
          leaves ? "whose seat leaves, a recorder is ended before what it used is over"
                 : "so is one that is dropped, in a poll");
    struct gpu_ref last = ref_of(blocks[READS - 1]);
    submit.stream = main_worker.stream;
    status = gpu_work_fill(&submit, &last, &value, &op, &error);
    check(status == GPULUA_OK && !gpu_op_is_over(op), "and who writes it waits, on the device");
    kill(gpu_device_pid(device), SIGCONT);
    gpu_op_release(op);
    for (int i = 0; i < READS; i++) {
        gpu_block_release(blocks[i]);
    }
    if (!leaves) {
        end(&worker);
        gpu_seat_sit(main_worker.seat);
    }
    end(&main_worker);
    check(main_worker.failed + worker.failed == 0, "and all of it goes well");
    gpu_device_close(device, 1000);
    gpu_device_release(device);
}

int main(void) {
    static const struct {
        gpulua_isolation isolation;
        const char *name;
    } transports[] = {{GPULUA_ISOLATE_NONE, "none"},
                      {GPULUA_ISOLATE_PROCESS, "process"},
                      {GPULUA_ISOLATE_THREAD, "thread"}};
    for (int i = 0; i < 3; i++) {
        transport = transports[i].name;
        test_hazards(transports[i].isolation);
        test_recorders(transports[i].isolation);
        test_leaving(transports[i].isolation);
        test_waking(transports[i].isolation);
        test_left_behind(transports[i].isolation);
    }
    test_loss();
    test_loss_is_told();
    transport = "none";
    test_looking();
    test_fork_of_sleeper(GPULUA_ISOLATE_NONE);
    transport = "process";
    test_meanwhile(true);
    test_meanwhile(false);
    test_much_abandoned(false);
    test_much_abandoned(true);
    test_fork_of_sleeper(GPULUA_ISOLATE_PROCESS);
    test_fork_in_poll(GPULUA_ISOLATE_PROCESS, true,
                      "a fork waits for another thread's poll, and in the child all is over");
    test_fork_in_poll(GPULUA_ISOLATE_PROCESS, false,
                      "nor does that of one that goes on for long keep the child from its end");
    return tap_finish(&tap);
}
