/* The script side against a real executor on the CPU device, without Lua: transfers, hazards,
 * budgets, lost devices. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/module.h"
#include "runtime/op_ref.h"
#include "runtime/recorder.h"
#include "runtime/state.h"
#include "runtime/work.h"

static int passed, failed, skipped;

static void check(bool condition, const char *transport, const char *name) {
    printf("%s - %s: %s\n", condition ? "ok" : "not ok", transport, name);
    *(condition ? &passed : &failed) += 1;
}

static struct gpu_error error;

static struct gpu_device *open_device(gpulua_isolation isolation, uint64_t budget_bytes,
                                      bool is_unfenced) {
    struct gpu_device_info info = {.name = "cpu",
                                   .isolation = isolation,
                                   .budget_bytes = budget_bytes,
                                   .is_unfenced = is_unfenced,
                                   .restarts_max = -1};
    struct gpu_device *device = NULL;
    if (gpu_device_open(&info, &device, &error)) {
        printf("# %s\n", error.message);
        return NULL;
    }
    return device;
}

static struct gpu_block *make(struct gpu_device *device, uint64_t bytes) {
    struct gpu_block_info info = {.byte_count = bytes};
    struct gpu_block *block = NULL;
    return gpu_block_create(device, &info, &block, &error) ? NULL : block;
}

static struct gpu_ref ref_of(struct gpu_block *block) {
    return (struct gpu_ref){block, 0, gpu_block_bytes(block), GPU_TYPE_U32};
}

static bool reads_as(struct gpu_device *device, struct gpu_block *block, uint32_t value) {
    struct gpu_stream *stream;
    struct gpu_staging staging;
    struct gpu_op *op = NULL;
    uint64_t bytes = gpu_block_bytes(block);
    struct gpu_ref ref = ref_of(block);
    if (gpu_device_task_stream(device, 7, &stream, &error) ||
        gpu_staging_acquire(device, bytes, &staging, &error)) {
        return false;
    }
    struct gpu_submit submit = {.stream = stream};
    bool is_right =
        gpu_work_download(&submit, &ref, 0, &staging, bytes, &op, &error) == GPULUA_OK &&
        gpu_op_wait(op, -1, &error) == GPULUA_OK && gpu_op_status(op) == GPULUA_OK;
    for (uint64_t i = 0; is_right && i < bytes / 4; i++) {
        is_right = ((const uint32_t *)(const void *)staging.bytes)[i] == value;
    }
    gpu_op_release(op);
    gpu_staging_release(device, &staging);
    return is_right;
}

/* Fills and copies of several megabytes hop over eight streams: only waits make the end value
 * right. */
static bool run_hazards(struct gpu_device *device, unsigned seed) {
    enum { COUNT = 4, ROUNDS = 200 };
    struct gpu_block *blocks[COUNT];
    uint32_t expected[COUNT] = {0};
    bool is_right = true;
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = make(device, (2u << 20) + 4096u * (unsigned)i);
        is_right &= blocks[i] != NULL;
    }
    srand(seed);
    for (uint32_t round = 0; is_right && round < ROUNDS; round++) {
        struct gpu_stream *stream;
        is_right &=
            gpu_device_task_stream(device, (uint32_t)rand() % 8, &stream, &error) == GPULUA_OK;
        struct gpu_submit submit = {.stream = stream};
        int to = rand() % COUNT, from = rand() % COUNT;
        struct gpu_ref dst = ref_of(blocks[to]), src = ref_of(blocks[from]);
        if (round < COUNT || to == from || rand() % 3 == 0) {
            to = round < COUNT ? (int)round : to;
            dst = ref_of(blocks[to]);
            expected[to] = round + 1000;
            is_right &= gpu_work_fill(&submit, &dst, &expected[to], NULL, &error) == GPULUA_OK;
        } else {
            dst.byte_count = src.byte_count =
                dst.byte_count < src.byte_count ? dst.byte_count : src.byte_count;
            if (dst.byte_count < gpu_block_bytes(blocks[to])) { /* keep one value a block */
                struct gpu_ref all = ref_of(blocks[to]);
                is_right &=
                    gpu_work_fill(&submit, &all, &expected[from], NULL, &error) == GPULUA_OK;
            }
            expected[to] = expected[from];
            is_right &= gpu_work_copy(&submit, &dst, &src, NULL, &error) == GPULUA_OK;
        }
    }
    for (int i = 0; i < COUNT; i++) {
        is_right &= reads_as(device, blocks[i], expected[i]);
        gpu_block_release(blocks[i]);
    }
    return is_right;
}

static void test_hazards(const char *transport, gpulua_isolation isolation,
                         struct gpu_device *device) {
    struct gpu_stats stats;
    bool is_right = run_hazards(device, 7);
    gpu_device_stats(device, &stats);
    check(is_right, transport, "random copies and fills on eight streams are as in order");
    check(stats.waits_issued > 0, transport, "waits were issued between the streams");
#if defined(__SANITIZE_THREAD__)
    (void)isolation;
    skipped++; /* the twin races on purpose, which is what this sanitizer reports */
    printf("ok - %s: and without waits they are not # SKIP races on purpose\n", transport);
#else
    /* The twin: without the waits the same programs go wrong, or the test above would prove
     * nothing. */
    struct gpu_device *unfenced = open_device(isolation, 0, true);
    bool is_corrupt = false;
    for (unsigned seed = 1; unfenced && !is_corrupt && seed <= 50; seed++) {
        is_corrupt = !run_hazards(unfenced, seed);
    }
    check(is_corrupt, transport, "and without waits they are not");
    gpu_device_close(unfenced, 5000);
    gpu_device_release(unfenced);
#endif
}

static void test_budget(const char *transport, gpulua_isolation isolation) {
    struct gpu_device *device = open_device(isolation, 1u << 20, false);
    struct gpu_block *first = make(device, 768u << 10);
    check(first != NULL, transport, "a block within the budget");
    check(make(device, 512u << 10) == NULL && error.code == GPULUA_OUT_OF_BUDGET &&
              error.requested_bytes == 512u << 10 && error.current_bytes == 768u << 10 &&
              error.remaining_bytes == 256u << 10 && error.limit_bytes == 1u << 20,
          transport, "a block beyond it is refused with the numbers");
    gpu_error_finish(&error);
    struct gpu_stream *stream;
    struct gpu_ref ref = ref_of(first);
    uint32_t value = 5;
    bool is_right = gpu_device_task_stream(device, 0, &stream, &error) == GPULUA_OK;
    gpu_stream_retain(stream); /* ours beyond the device's close */
    struct gpu_submit submit = {.stream = stream};
    for (int i = 0; i < 100 && is_right;
         i++) { /* freed with work in flight, its memory wanted at once */
        is_right = gpu_work_fill(&submit, &ref, &value, NULL, &error) == GPULUA_OK;
        gpu_block_release(ref.block);
        ref.block = make(device, 768u << 10);
        is_right &= ref.block != NULL;
    }
    check(is_right, transport, "memory in flight comes back to the budget when it is over");
    gpu_block_free(ref.block);
    check(gpu_work_fill(&submit, &ref, &value, NULL, &error) == GPULUA_USE_AFTER_FREE, transport,
          "use after free is refused");
    gpu_error_finish(&error);
    gpu_device_close(device, 1000);
    check(gpu_work_fill(&submit, &ref, &value, NULL, &error) == GPULUA_CLOSED, transport,
          "a closed device is named before a freed block");
    gpu_error_finish(&error);
    gpu_block_release(ref.block);
    gpu_stream_release(stream);
    gpu_device_release(device);
}

static void test_lost(void) {
    struct gpu_device *device = open_device(GPULUA_ISOLATE_PROCESS, 0, false);
    struct gpu_block *block = make(device, 64u << 20);
    struct gpu_ref ref = ref_of(block);
    struct gpu_stream *stream;
    uint32_t value = 1;
    (void)gpu_device_task_stream(device, 0, &stream, &error);
    struct gpu_submit submit = {.stream = stream};
    struct gpu_op *ops[40];
    for (int i = 0; i < 40; i++) {
        (void)gpu_work_fill(&submit, &ref, &value, &ops[i], &error);
    }
    kill(gpu_device_pid(device), SIGKILL);
    int lost = 0, over = 0;
    for (int i = 0; i < 40; i++) {
        over += gpu_op_wait(ops[i], INT64_C(5000000000), &error) == GPULUA_OK;
        lost += gpu_op_status(ops[i]) == GPULUA_DEVICE_LOST;
        gpu_op_observe(ops[i]);
        gpu_op_release(ops[i]);
    }
    check(over == 40 && lost > 0, "process",
          "every op of a killed child ends, the late ones as lost");
    check(gpu_work_fill(&submit, &ref, &value, NULL, &error) == GPULUA_DEVICE_LOST, "process",
          "later work raises DeviceLost");
    gpu_error_finish(&error);
    check(!gpu_device_take_unobserved(device, false, &error), "process",
          "observed losses are not reported again");
    gpu_block_release(block);
    gpu_device_close(device, 100);
    gpu_device_release(device);
}

/* A process that says nothing any more, while nothing runs and on its way to the next life. */
static void test_silent(void) {
    struct gpu_device_info info = {
        .name = "cpu", .isolation = GPULUA_ISOLATE_PROCESS, .watchdog_s = 0.05};
    struct gpu_device *device = NULL;
    check(gpu_device_open(&info, &device, &error) == GPULUA_OK &&
              device->watchdog.patience_ns >= INT64_C(10000000000),
          "process", "who is asked has some time, whatever the watchdog's");
    if (!device) {
        return;
    }
    device->watchdog.patience_ns = 400000000;
    struct gpu_block_info wanted = {.byte_count = 64u << 20};
    struct gpu_block *block = NULL;
    kill(gpu_device_pid(device), SIGSTOP);
    check(gpu_block_create(device, &wanted, &block, &error) == GPULUA_DEVICE_LOST &&
              strstr(error.message, "it had not answered 'slab' after 0.4 s"),
          "process", "who does not answer is lost, with what it was asked");
    gpu_error_finish(&error);
    struct gpu_op *returning = gpu_device_return(device);
    while (gpu_device_state(device) == GPU_DEVICE_LOST) {
        gpu_device_nap(device, 1000000);
        (void)gpu_device_poll(device);
    }
    int second = gpu_device_pid(device);
    kill(second, SIGSTOP);
    bool is_on_its_way = gpu_device_state(device) == GPU_DEVICE_RETURNING;
    check(is_on_its_way && gpu_device_alarm_ns(device) < INT64_MAX, "process",
          "whoever waits in a loop of its own is told when to look");
    check(returning && gpu_op_wait(returning, INT64_C(20000000000), &error) == GPULUA_OK &&
              gpu_op_status(returning) == GPULUA_OK && gpu_device_pid(device) != second,
          "process", "a life that says nothing is not waited for: there is a next one");
    gpu_op_release(returning);
    check(gpu_block_create(device, &wanted, &block, &error) == GPULUA_OK, "process",
          "and that one works");
    /* Code takes its time, but not for ever. */
    static const char text[] = "extern \"C\" __global__ void k(int *x) { x[0] = 1; }";
    struct gpu_module_info source = {
        .kind = GPU_MODULE_SOURCE, .name = "silent", .text = text, .text_bytes = sizeof text - 1};
    struct gpu_module *module = NULL;
    struct gpu_op *op = NULL;
    kill(gpu_device_pid(device), SIGSTOP);
    device->watchdog.patience_ns = 20000000;
    bool is_told = gpu_module_create(device, &source, &module, &op, &error) == GPULUA_OK;
    int64_t begun_ns = gpu_clock_ns();
    while (gpu_clock_ns() - begun_ns < 200000000) {
        gpu_device_nap(device, 1000000);
        (void)gpu_device_poll(device);
    }
    if (is_told) { /* as if something else had waited for the code, which is made */
        op->takes_long = false;
        (void)gpu_device_poll(device);
        check(gpu_device_state(device) == GPU_DEVICE_OPEN, "process",
              "what waited behind code has all its time");
        op->takes_long = true;
    }
    begun_ns = gpu_clock_ns();
    is_told = is_told && gpu_op_wait(op, INT64_C(20000000000), &error) == GPULUA_OK &&
              gpu_op_status(op) == GPULUA_DEVICE_LOST &&
              strstr(gpu_op_error(op)->message, "it had not answered 'compile' after 0.6 s");
    check(is_told && gpu_clock_ns() - begun_ns >= 600000000, "process",
          "who makes code has thirty times as long, and no longer");
    if (op) {
        gpu_op_observe(op);
    }
    gpu_op_release(op);
    gpu_module_release(module);
    gpu_block_release(block);
    gpu_device_close(device, 1000);
    gpu_device_release(device);
}

/* ---- loose references ---- */

static bool fill(struct gpu_stream *stream, struct gpu_block *block, const char *label,
                 struct gpu_op **op) {
    const uint32_t value = 7;
    struct gpu_ref ref = ref_of(block);
    struct gpu_submit submit = {.stream = stream, .label = label, .site = {"pipeline.lua", 7}};
    return gpu_work_fill(&submit, &ref, &value, op, &error) == GPULUA_OK;
}

/* How many operations there ever are at once, of 20,000 of which 50 are in flight and all are
 * referred to. */
static uint32_t count_ops(struct gpu_device *device, struct gpu_stream *stream,
                          struct gpu_block *block, bool is_loose) {
    enum { COUNT = 20000, AT_ONCE = 50 };
    static struct gpu_op_ref refs[COUNT];
    static struct gpu_op *seen[COUNT];
    uint32_t seen_count = 0;
    memset(refs, 0, sizeof refs);
    for (int i = 0; i < COUNT; i++) {
        if (!fill(stream, block, "fill", &refs[i].op)) {
            return UINT32_MAX;
        }
        uint32_t at = 0;
        while (at < seen_count && at < 200 && seen[at] != refs[i].op) {
            at++;
        }
        if (at == seen_count || at == 200) {
            seen[seen_count++] = refs[i].op;
        }
        if (is_loose) {
            gpu_op_ref_loosen(&refs[i]);
        }
        if (i % AT_ONCE == AT_ONCE - 1) {
            (void)gpu_device_wait_idle(device, -1, &error);
        }
    }
    for (int i = 0; i < COUNT; i++) {
        gpu_op_ref_drop(&refs[i]);
    }
    return seen_count;
}

static void test_loose(const char *transport, struct gpu_device *device) {
    struct gpu_stream *stream;
    struct gpu_block *block = make(device, 4096);
    if (!block || gpu_device_task_stream(device, 3, &stream, &error)) {
        check(false, transport, "a stream for loose references");
        return;
    }
    struct gpu_op_ref ref = {0}, other = {0};
    struct gpu_op_info info;
    bool is_short;
    const char *label = gpu_device_intern(device, "one of them");
    check(gpu_op_ref_is_empty(&ref) && !gpu_op_ref_get(&ref, &is_short) && !is_short, transport,
          "a reference to nothing is empty");
    gpu_op_ref_drop(&ref);

    check(fill(stream, block, label, &ref.op), transport, "work for a loose reference");
    gpu_op_info(ref.op, &info);
    uint64_t seq = info.seq, number = info.stream;
    gpu_op_ref_loosen(&ref);
    (void)gpu_device_wait_idle(device, -1, &error);
    check(!ref.op && !gpu_op_ref_is_empty(&ref), transport, "what is over is not kept by it");
    check(fill(stream, block, "other", &other.op) && gpu_op_ref_get(&ref, &is_short) &&
              ref.op != other.op && !is_short,
          transport, "and is put together again for who asks");
    gpu_op_info(ref.op, &info);
    check(info.seq == seq && info.stream == number && strcmp(info.label, label) == 0 &&
              info.line == 7 && strcmp(info.source, "pipeline.lua") == 0 &&
              gpu_op_is_over(ref.op) && gpu_op_status(ref.op) == GPULUA_OK &&
              gpu_op_device(ref.op) == device,
          transport, "with all that was known of it");
    gpu_op_ref_loosen(&ref); /* it is over */
    check(ref.op && gpu_op_ref_get(&ref, &is_short) == ref.op, transport, "it stays then");
    gpu_op_ref_drop(&ref);

    gpu_op_ref_loosen(&other);
    struct gpu_op *kept = gpu_op_retain(other.op);
    (void)gpu_device_wait_idle(device, -1, &error);
    check(other.op == kept, transport, "what somebody else has is kept");
    gpu_op_ref_drop(&other);
    check(gpu_op_status(kept) == GPULUA_OK, transport, "and is that one's then");
    gpu_op_release(kept);

    check(fill(stream, block, label, &ref.op), transport, "work that is asked about");
    gpu_op_ref_loosen(&ref);
    kept = gpu_op_ref_get(&ref, &is_short);
    (void)gpu_device_wait_idle(device, -1, &error);
    check(ref.op == kept && gpu_op_status(kept) == GPULUA_OK, transport, "is kept from then on");
    gpu_op_ref_drop(&ref);

    check(fill(stream, block, label, &ref.op), transport, "work that is let go of");
    gpu_op_ref_loosen(&ref);
    gpu_op_ref_drop(&ref);
    memset(&ref, 0x5a, sizeof ref); /* nothing may be written here any more */
    (void)gpu_device_wait_idle(device, -1, &error);
    check(ref.seq == UINT64_C(0x5a5a5a5a5a5a5a5a), transport, "leaves its reference alone");

    uint32_t loose = count_ops(device, stream, block, true);
    uint32_t kept_count = count_ops(device, stream, block, false);
    check(loose <= 64 && kept_count >= 10000, transport,
          "loose references need no more operations than are in flight, others one each");
    gpu_block_release(block);
}

/* What its executor takes with it has an error, which a loose reference keeps. */
static void test_loose_lost(void) {
    struct gpu_device_info info = {.name = "cpu", .isolation = GPULUA_ISOLATE_PROCESS};
    struct gpu_device *device = NULL;
    struct gpu_stream *stream = NULL;
    struct gpu_op_ref refs[100] = {0};
    bool is_right = gpu_device_open(&info, &device, &error) == GPULUA_OK &&
                    gpu_device_task_stream(device, 3, &stream, &error) == GPULUA_OK;
    struct gpu_block *block = is_right ? make(device, 64u << 20) : NULL;
    is_right &= block != NULL;
    for (int i = 0; is_right && i < 100; i++) {
        is_right = fill(stream, block, "lost", &refs[i].op);
        gpu_op_ref_loosen(&refs[i]);
    }
    check(is_right, "process", "work that is lost under loose references");
    if (is_right) {
        (void)kill(gpu_device_pid(device), SIGKILL);
        (void)gpu_device_wait_idle(device, 5000000000, &error);
        gpu_error_finish(&error);
        uint32_t failed_count = 0;
        bool is_short;
        for (int i = 0; i < 100; i++) {
            struct gpu_op *op = gpu_op_ref_get(&refs[i], &is_short);
            failed_count += gpu_op_status(op) == GPULUA_DEVICE_LOST &&
                            strstr(gpu_op_error(op)->message, "lost") != NULL;
            gpu_op_ref_drop(&refs[i]);
        }
        printf("# %u of 100 lost\n", failed_count);
        check(failed_count > 0, "process", "and says so when it is asked");
    }
    gpu_block_release(block);
    gpu_device_close(device, 1000);
    gpu_device_release(device);
}

/* A kernel that fails before it writes there. */
static bool launch_failing(const struct gpu_submit *submit, const struct gpu_ref *ref) {
    static const char text[] = "#include <assert.h>\n"
                               "extern \"C\" __global__ void k(unsigned *x) {\n"
                               "  assert(x == nullptr); x[0] = 9; }\n";
    struct gpu_module_info source = {
        .kind = GPU_MODULE_SOURCE, .name = "failing", .text = text, .text_bytes = sizeof text - 1};
    struct gpu_module *module = NULL;
    struct gpu_kernel *kernel = NULL;
    struct gpu_op *op = NULL;
    bool is_well =
        gpu_module_create(submit->stream->device, &source, &module, &op, &error) == GPULUA_OK &&
        gpu_op_wait(op, -1, &error) == GPULUA_OK && gpu_op_status(op) == GPULUA_OK &&
        gpu_module_kernel(module, "k", NULL, &kernel, &error) == GPULUA_OK;
    struct gpu_arg arg = {.ref = ref};
    struct gpu_launch launch = {.submit = *submit,
                                .kernel = kernel,
                                .grid = {1, 1, 1},
                                .block = {1, 1, 1},
                                .args = &arg,
                                .arg_count = 1};
    is_well = is_well && gpu_work_launch(&launch, NULL, &error) == GPULUA_OK;
    gpu_op_release(op);
    gpu_kernel_release(kernel);
    gpu_module_release(module);
    return is_well;
}

/* A failure that is heard where nobody polls, as while there is no room for a record: what the
 * device has skipped because of it has not failed on the script's side yet. */
static void test_heard(const char *transport, struct gpu_device *device) {
    struct gpu_block_info host_info = {.byte_count = 4096, .is_host = true};
    struct gpu_block *first = make(device, 4096), *second = make(device, 4096), *host = NULL;
    struct gpu_op *skipped_op = NULL, *op = NULL;
    struct gpu_submit submit;
    const uint32_t before = 7, after = 8;
    bool is_well = first && second &&
                   gpu_block_create(device, &host_info, &host, &error) == GPULUA_OK &&
                   gpu_device_task_stream(device, 0, &submit.stream, &error) == GPULUA_OK;
    check(is_well, transport, "memory of both kinds");
    if (!is_well) {
        return;
    }
    submit = (struct gpu_submit){.stream = submit.stream};
    struct gpu_ref from = ref_of(first), to = ref_of(second), out = ref_of(host);
    is_well = gpu_work_fill(&submit, &to, &after, NULL, &error) == GPULUA_OK &&
              gpu_device_wait_idle(device, -1, &error) == GPULUA_OK;
    *(uint32_t *)gpu_block_host_bytes(host) = before;
    is_well = is_well && launch_failing(&submit, &from) &&
              gpu_work_copy(&submit, &to, &from, &skipped_op, &error) == GPULUA_OK;
    int64_t end_ns = gpu_clock_ns() + INT64_C(20000000000);
    while (is_well && !gpu_op_is_over(skipped_op) && gpu_clock_ns() < end_ns) {
        gpu_op_want(skipped_op);
        device->link->ops->poll(device->link); /* which hears nothing */
    }
    (void)gpu_wire_link_drain(device->link);
    is_well = is_well && gpu_work_copy(&submit, &out, &to, &op, &error) == GPULUA_OK &&
              gpu_op_wait(op, -1, &error) == GPULUA_OK &&
              gpu_op_status(op) == GPULUA_DEPENDENCY_FAILED;
    check(is_well && *(const uint32_t *)gpu_block_host_bytes(host) == before, transport,
          "what depends on what was skipped does not run where a failure was heard in passing");
    while (gpu_device_take_unobserved(device, false, &error)) {
        gpu_error_finish(&error);
    }
    gpu_op_release(skipped_op);
    gpu_op_release(op);
    gpu_block_release(first);
    gpu_block_release(second);
    gpu_block_release(host);
}

/* ---- a device that is lost at a certain record ---- */

static const struct wire_link_ops *ops_before;
static struct wire_link_ops losing;
static enum wire_opcode losing_opcode;
static bool is_refused; /* that record; else the device is lost as soon as it has been taken */

static gpulua_status lose_at(struct wire_link *link, const struct wire_record *record) {
    if (record->opcode != losing_opcode) {
        return ops_before->publish(link, record);
    }
    if (is_refused) {
        return GPULUA_DEVICE_LOST;
    }
    gpulua_status status = ops_before->publish(link, record);
    gpu_device_lose(link->user, 0, "by a test");
    return status;
}

static struct gpu_device *open_losing(enum wire_opcode opcode, bool refuses) {
    struct gpu_device *device = open_device(GPULUA_ISOLATE_NONE, 0, false);
    if (device) {
        ops_before = device->link->ops;
        losing = *ops_before;
        losing.publish = lose_at;
        losing_opcode = opcode;
        is_refused = refuses;
        device->link->ops = &losing;
    }
    return device;
}

static void close_lost(struct gpu_device *device) {
    while (gpu_device_take_unobserved(device, false, &error)) {
        gpu_error_finish(&error);
    }
    gpu_device_close(device, 0);
    gpu_device_release(device);
}

static void count_answer(struct gpu_op *op, void *user, const struct wire_reply *reply) {
    (void)op;
    (void)reply;
    ++*(int *)user;
}

/* Whoever asked has gone on, and with it what the answer was for. */
static void test_refused(void) {
    struct gpu_device *device = open_losing(WIRE_OP_MEMORY_INFO, true);
    struct wire_record record = {.length_bytes = sizeof record, .opcode = WIRE_OP_MEMORY_INFO};
    int answers = 0;
    bool is_lost = device && gpu_request_wait(device, &record, "memory", count_answer, &answers,
                                              &error) == GPULUA_DEVICE_LOST;
    gpu_error_finish(&error);
    if (device) {
        (void)gpu_device_poll(device);
        is_lost &= device->stats.ops_in_flight == 0;
        close_lost(device);
    }
    check(is_lost && answers == 0, "none", "who asked what the device did not take hears no more");
}

static void test_lost_before_request(void) {
    struct gpu_device *device = open_losing(WIRE_OP_ARENA_REGISTER, false);
    static const char text[] = "extern \"C\" __global__ void k(int *x) { x[0] = 1; }\n";
    struct gpu_module_info info = {
        .kind = GPU_MODULE_SOURCE, .name = "lost", .text = text, .text_bytes = sizeof text - 1};
    struct gpu_module *module = NULL;
    struct gpu_op *op = NULL;
    struct gpu_stats stats = {.modules_live = 1};
    bool is_lost =
        device && gpu_module_create(device, &info, &module, &op, &error) == GPULUA_DEVICE_LOST;
    gpu_error_finish(&error);
    if (device) {
        (void)gpu_device_poll(device);
        gpu_device_stats(device, &stats);
        is_lost &= device->module_number_next == 1; /* it was on its way */
        close_lost(device);
    }
    check(is_lost && stats.modules_live == 0, "none",
          "a module whose device is lost before it is asked for is not kept");
}

static const struct wire_link_ops *link_ops;

static gpulua_status publish_nothing(struct wire_link *link, const struct wire_record *record) {
    (void)link;
    (void)record;
    return GPULUA_TIMEOUT; /* the ring is full */
}

/* What a dropped recorder says that others have to wait for is said, however little room and time
 * there is. */
static void test_abandoned_in_haste(void) {
    struct gpu_device *device = open_device(GPULUA_ISOLATE_PROCESS, 0, false);
    struct gpu_stream *stream = NULL;
    struct gpu_recorder *recorder = NULL;
    _Atomic int interrupt = 1;
    if (!device || gpu_device_task_stream(device, 7, &stream, &error)) {
        check(false, "process", "a device opens");
        return;
    }
    struct gpu_block *block = make(device, 4096);
    struct gpu_ref ref = ref_of(block);
    struct gpu_submit submit = {.stream = stream};
    uint32_t value = 3;
    gpulua_status status = gpu_recorder_create(&submit, GPU_RECORDER_STRICT, &recorder, &error);
    gpu_recorder_use(recorder, &ref, GPU_WRITE, "x");
    status = status ? status : gpu_recorder_preflight(recorder, &error);
    struct wire_link_ops full = *(link_ops = device->link->ops);
    full.publish = publish_nothing;
    device->link->ops = &full;
    device->interrupt = &interrupt;
    uint64_t before = device->slot_seq[stream->slot];
    gpu_recorder_release(recorder);
    gpu_device_run_deferred(device);
    struct gpu_point write = block->history.first.write;
    check(status == GPULUA_OK && device->slot_seq[stream->slot] == before + 1 &&
              write.slot == stream->slot && write.seq == before + 1,
          "process", "a dropped recorder's uses are noted though the ring is full, in haste");
    device->link->ops = link_ops;
    interrupt = 0;
    status = gpu_work_fill(&submit, &ref, &value, NULL, &error);
    check(status == GPULUA_OK && reads_as(device, block, 3), "process",
          "and told as soon as there is room");
    gpu_block_release(block);
    gpu_device_close(device, 5000);
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
        struct gpu_device *device = open_device(transports[i].isolation, 0, false);
        check(device != NULL, transports[i].name, "a device opens");
        if (!device) {
            continue;
        }
        test_hazards(transports[i].name, transports[i].isolation, device);
        test_loose(transports[i].name, device);
        test_heard(transports[i].name, device);
        gpu_device_close(device, 5000);
        check(gpu_device_state(device) == GPU_DEVICE_CLOSED, transports[i].name, "and closes");
        gpu_device_release(device);
        test_budget(transports[i].name, transports[i].isolation);
    }
    test_lost();
    test_silent();
    test_loose_lost();
    test_refused();
    test_lost_before_request();
    test_abandoned_in_haste();
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}
