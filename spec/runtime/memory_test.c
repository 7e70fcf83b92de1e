/* Memory resources without Lua, as hosts compose them: stacks, groups, hooks, listeners, logs,
 * guards, and who outlives whom. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/exchange.h"
#include "runtime/memory.h"
#include "runtime/resource.h"
#include "runtime/state.h"
#include "runtime/work.h"

#define KIB UINT64_C(1024)

static int passed, failed;
static struct gpu_error error;
static const char *transport;

static void check(bool condition, const char *name) {
    printf("%s - %s: %s\n", condition ? "ok" : "not ok", transport, name);
    *(condition ? &passed : &failed) += 1;
    gpu_error_finish(&error);
}

static atomic_int interrupt;

static struct gpu_device *open_device(gpulua_isolation isolation, uint64_t budget_bytes) {
    struct gpu_device_info info = {.name = "cpu",
                                   .isolation = isolation,
                                   .budget_bytes = budget_bytes,
                                   .interrupt = &interrupt};
    struct gpu_device *device = NULL;
    if (gpu_device_open(&info, &device, &error)) {
        printf("# %s\n", error.message);
        exit(1);
    }
    return device;
}

static struct gpu_memory *make(struct gpu_device *device, struct gpu_memory_info info) {
    struct gpu_memory *memory = NULL;
    return gpu_memory_create(device, &info, &memory, &error) ? NULL : memory;
}

static struct gpu_block *block_of(struct gpu_memory *memory, uint64_t bytes, bool is_reserved) {
    struct gpu_block_info info = {
        .byte_count = bytes, .memory = memory, .is_reserved = is_reserved, .label = "block"};
    struct gpu_block *block = NULL;
    return gpu_block_create(gpu_memory_device(memory), &info, &block, &error) ? NULL : block;
}

static uint64_t remaining(struct gpu_memory *memory) {
    uint64_t limit;
    return gpu_memory_remaining_bytes(memory, &limit);
}

/* ---- stacks ---- */

static void test_stack(struct gpu_device *device) {
    struct gpu_memory *budget =
        make(device, (struct gpu_memory_info){.kind = GPU_MEMORY_BUDGET, .limit_bytes = 64 * KIB});
    struct gpu_memory *counted =
        make(device, (struct gpu_memory_info){.kind = GPU_MEMORY_STATISTICS, .upstream = budget});
    struct gpu_memory *direct = make(device, (struct gpu_memory_info){.kind = GPU_MEMORY_DIRECT});
    struct gpu_memory *on_direct =
        make(device, (struct gpu_memory_info){
                         .kind = GPU_MEMORY_BUDGET, .limit_bytes = KIB, .upstream = direct});
    check(counted && on_direct && gpu_memory_upstream(counted) == budget &&
              gpu_memory_find(counted, GPU_MEMORY_BUDGET) == budget &&
              !gpu_memory_find(counted, GPU_MEMORY_GUARD),
          "resources stand on each other");
    check(gpu_memory_is_trackable(counted) && !gpu_memory_is_trackable(on_direct),
          "what stands on direct memory cannot be tracked either");
    check(!make(device, (struct gpu_memory_info){.kind = GPU_MEMORY_BUDGET}) &&
              error.code == GPULUA_INVALID_ARGUMENT,
          "a budget of 0 bytes is refused");
    struct gpu_block *block = block_of(counted, 1000, false);
    struct gpu_block *raw = block_of(on_direct, 1000, false);
    check(block && raw && gpu_block_is_trackable(block) && !gpu_block_is_trackable(raw) &&
              gpu_block_memory(block) == counted,
          "blocks say whether their uses can be ordered");
    check(gpu_memory_outstanding_bytes(budget) == 1024 && remaining(counted) == 63 * KIB,
          "each level counts");
    check(!block_of(counted, 65 * KIB, false) && error.code == GPULUA_OUT_OF_BUDGET &&
              error.requested_bytes == 65 * KIB && error.current_bytes == KIB &&
              error.remaining_bytes == 63 * KIB && error.limit_bytes == 64 * KIB,
          "a budget names its figures");
    struct gpu_memory_stats stats;
    gpu_memory_stats(counted, &stats);
    check(stats.allocs == 1 && stats.failures == 1 && stats.bytes_live == 1024, "statistics");
    gpu_memory_release(counted);
    gpu_memory_release(budget);
    gpu_memory_release(on_direct);
    gpu_memory_release(direct);
    gpu_block_close(block); /* it held them all */
    gpu_block_close(raw);
}

/* ---- groups ---- */

static void test_group(struct gpu_device *device) {
    struct gpu_memory *budget =
        make(device, (struct gpu_memory_info){.kind = GPU_MEMORY_BUDGET, .limit_bytes = 8 * KIB});
    struct gpu_memory *guard = make(
        device,
        (struct gpu_memory_info){.kind = GPU_MEMORY_GUARD, .upstream = budget, .canary_bytes = 1});
    struct gpu_block_info caller = {0};
    uint64_t before = gpu_memory_remaining_bytes(guard, &(uint64_t){0});
    const uint64_t too_many[] = {4 * KIB, 3 * KIB}; /* and four canaries of 512 */
    check(gpu_memory_reserve(guard, too_many, 2, &caller, &error) == GPULUA_OUT_OF_BUDGET &&
              error.requested_bytes == 9 * KIB && remaining(guard) == before,
          "a group that does not fit reserves nothing, and is refused with its sum");
    const uint64_t huge[] = {UINT64_MAX - 5, 10};
    check(gpu_memory_reserve(guard, huge, 2, &caller, &error) == GPULUA_OUT_OF_BUDGET &&
              remaining(guard) == before,
          "sums that overflow do not fit");
    const uint64_t fitting[] = {4 * KIB, 2 * KIB};
    check(gpu_memory_reserve(guard, fitting, 2, &caller, &error) == GPULUA_OK &&
              remaining(guard) == 0,
          "a group that fits reserves all of it");
    struct gpu_block *first = block_of(guard, 4 * KIB, true);
    check(first && remaining(guard) == 0 && !block_of(budget, 1, false),
          "what is reserved is nobody else's");
    gpu_memory_unreserve(guard, 2 * KIB);
    check(remaining(guard) == 3 * KIB, "what is not drawn is given back");
    gpu_block_close(first);
    check(gpu_memory_check(guard, true, &error) == GPULUA_OK && remaining(guard) == before,
          "and so is what was");
    gpu_memory_release(guard);
    gpu_memory_release(budget);
}

/* ---- pressure ---- */

static enum gpu_pressure levels[16];
static uint32_t level_count;

static void on_pressure(void *user, enum gpu_pressure level) {
    (void)user;
    levels[level_count++ % 16] = level;
}

static void test_pressure(struct gpu_device *device) {
    struct gpu_memory *budget =
        make(device, (struct gpu_memory_info){.kind = GPU_MEMORY_BUDGET, .limit_bytes = 10 * KIB});
    level_count = 0;
    bool is_right = gpu_memory_listen(budget, on_pressure, levels);
    struct gpu_block *a = block_of(budget, 5 * KIB, false), *b = block_of(budget, 5 * KIB, false);
    gpu_block_close(a);
    gpu_block_close(b);
    is_right = is_right && level_count == 4 && levels[0] == GPU_PRESSURE_LOW &&
               levels[1] == GPU_PRESSURE_CRITICAL && levels[2] == GPU_PRESSURE_LOW &&
               levels[3] == GPU_PRESSURE_NONE;
    check(is_right, "listeners hear of each change, up and down");
    (void)gpu_memory_listen(budget, NULL, levels);
    gpu_block_close(block_of(budget, 10 * KIB, false));
    check(level_count == 4 && gpu_memory_pressure(budget) == GPU_PRESSURE_NONE,
          "until they do not want to any more");
    gpu_memory_release(budget);
}

/* ---- policies ---- */

struct cache {
    struct gpu_block *block;
    uint32_t calls;
};

static bool drop(void *user, void *caller, uint64_t byte_count) {
    struct cache *cache = user;
    (void)caller;
    (void)byte_count;
    cache->calls++;
    gpu_block_close(cache->block);
    bool has_freed = cache->block != NULL;
    cache->block = NULL;
    return has_freed;
}

static void test_policy(gpulua_isolation isolation) {
    struct gpu_device *device = open_device(isolation, UINT64_C(1) << 50);
    uint64_t most = gpu_device_facts(device)->memory_bytes / 10 * 6;
    struct gpu_memory *plain = make(device, (struct gpu_memory_info){.kind = GPU_MEMORY_SLAB});
    struct gpu_memory *policy =
        make(device, (struct gpu_memory_info){.kind = GPU_MEMORY_POLICY, .policy = GPU_OOM_FREE});
    struct cache cache = {.block = block_of(plain, most, false)}, empty = {0};
    struct gpu_stats before, after;
    check(gpu_memory_hook_add(plain, 0, drop, &cache, &error) == GPULUA_INVALID_ARGUMENT,
          "no hooks without a policy that asks them");
    (void)gpu_memory_hook_add(policy, 1, drop, &empty, &error);
    (void)gpu_memory_hook_add(policy, 0, drop, &cache, &error);
    gpu_device_stats(device, &before);
    struct gpu_block *block = block_of(policy, most, false);
    gpu_device_stats(device, &after);
    check(block && empty.calls == 1 && cache.calls == 1 &&
              after.recoveries == before.recoveries + 1,
          "hooks free what the device has not, and that counts as a recovery");
    check(!block_of(policy, most, false) && error.code == GPULUA_OUT_OF_MEMORY &&
              empty.calls == 2 && cache.calls == 2,
          "without anything to free it fails");
    gpu_device_stats(device, &before);
    check(before.recoveries == after.recoveries && before.oom_retries > after.oom_retries,
          "which is no recovery");
    gpu_memory_hooks_remove(policy, &empty);
    for (uint32_t i = 1; i < GPU_HOOKS_MAX; i++) {
        (void)gpu_memory_hook_add(policy, 0, drop, &empty, &error);
    }
    check(gpu_memory_hook_add(policy, 0, drop, &empty, &error) == GPULUA_CAPACITY &&
              error.capacity_max == GPU_HOOKS_MAX,
          "hooks are limited");
    gpu_block_close(block);
    gpu_memory_release(policy);
    gpu_memory_release(plain);
    gpu_device_close(device, 1000);
    gpu_device_release(device);
}

/* ---- logs, guards, ends ---- */

static void test_log(struct gpu_device *device) {
    struct gpu_memory *log =
        make(device, (struct gpu_memory_info){.kind = GPU_MEMORY_LOGGING, .text_bytes = 256});
    char line[GPU_LOG_LINE_BYTES_MAX];
    uint64_t events, drops, lines = 0;
    bool is_right = log != NULL;
    for (uint32_t i = 0; i < 1000; i++) {
        gpu_block_close(block_of(log, 1, false));
        if (i % 7 == 0) {
            while (gpu_memory_log_take(log, line)) {
                is_right = is_right && strtoull(line, NULL, 10) > lines && strlen(line) > 20;
                lines++;
            }
        }
    }
    while (gpu_memory_log_take(log, line)) {
        lines++;
    }
    gpu_memory_log_drop(log);
    gpu_memory_log_counts(log, &events, &drops);
    check(is_right && events == 2000 && lines + drops == 2001,
          "a log keeps whole lines in a bounded text and counts the others");
    gpu_memory_release(log);
}

static void test_guard(struct gpu_device *device) {
    struct gpu_memory *guard = make(device, (struct gpu_memory_info){.kind = GPU_MEMORY_GUARD,
                                                                     .canary_bytes = 512,
                                                                     .quarantine_bytes = 4 * KIB});
    struct gpu_memory *outer = make(
        device,
        (struct gpu_memory_info){.kind = GPU_MEMORY_GUARD, .canary_bytes = 512, .upstream = guard});
    struct gpu_block *block = block_of(outer, 1000, false);
    struct gpu_stream *stream;
    (void)gpu_device_task_stream(device, 0, &stream, &error);
    /* A raw write past the end: what no check of a ref lets through. */
    struct gpu_block *alias = gpu_block_create_external(device, block->address + 900, 104, NULL);
    struct gpu_ref past = {.block = alias, .byte_count = 104, .type = GPU_TYPE_U32};
    struct gpu_submit submit = {.stream = stream};
    uint32_t value = 7;
    check(block && gpu_work_fill(&submit, &past, &value, NULL, &error) == GPULUA_OK &&
              gpu_memory_check(outer, true, &error) == GPULUA_OUT_OF_BOUNDS &&
              strstr(error.message, "'block'") && strstr(error.message, "byte 1000,"),
          "a guard names block and byte, also on another guard");
    gpu_block_close(alias);
    check(gpu_memory_check(outer, true, &error) == GPULUA_OK, "once");
    gpu_block_close(block);
    check(gpu_memory_check(outer, true, &error) == GPULUA_OK &&
              gpu_memory_outstanding_bytes(outer) == 0,
          "and gives back what it guarded");
    struct gpu_block *freed[65]; /* one more than a poll gives back; the last one is guarded */
    for (int i = 0; i < 65; i++) {
        freed[i] = block_of(i < 64 ? device->memory : guard, KIB, false);
        struct gpu_ref ref = {.block = freed[i], .byte_count = KIB, .type = GPU_TYPE_U32};
        (void)gpu_work_fill(&submit, &ref, &value, NULL, &error);
    }
    block = block_of(guard, KIB, false);
    alias = gpu_block_create_external(device, block->address + KIB, 4, NULL);
    past = (struct gpu_ref){.block = alias, .byte_count = 4, .type = GPU_TYPE_U32};
    (void)gpu_work_fill(&submit, &past, &value, NULL, &error);
    gpu_block_close(alias);
    (void)gpu_device_wait_idle(device, -1, &error);
    (void)gpu_device_reap(device);
    for (int i = 0; i < 65; i++) {
        gpu_block_close(freed[i]);
    }
    check(gpu_memory_check(outer, true, &error) == GPULUA_OUT_OF_BOUNDS,
          "a guard goes on to the next where what it looks at is freed meanwhile");
    gpu_block_close(block);
    (void)gpu_memory_reap(guard, true);
    gpu_memory_release(outer);
    gpu_memory_release(guard);
}

/* So much is out of use only when the work on it is over. */
static bool is_held(const struct gpu_device *device, uint64_t byte_count) {
    return device->stats.bytes_pending == byte_count && device->account.used_bytes == byte_count;
}

/* Its executor does nothing until SIGCONT. */
static void test_interrupted_guard(void) {
    struct gpu_device *device = open_device(GPULUA_ISOLATE_PROCESS, 1024 * KIB);
    struct gpu_memory *guard = make(device, (struct gpu_memory_info){.kind = GPU_MEMORY_GUARD,
                                                                     .canary_bytes = 512,
                                                                     .quarantine_bytes = 64 * KIB});
    gpu_block_close(block_of(guard, KIB, false));
    (void)gpu_memory_reap(guard, true);
    check(is_held(device, 0), "what a guard has looked at is free");
    kill(gpu_device_pid(device), SIGSTOP);
    atomic_store(&interrupt, 1);
    struct gpu_block *block = block_of(guard, KIB, false);
    check(!block && error.code == GPULUA_INTERRUPTED && is_held(device, 2 * KIB),
          "memory whose canaries may yet be written is held when its allocation is given up");
    atomic_store(&interrupt, 0);
    kill(gpu_device_pid(device), SIGCONT);
    (void)gpu_device_wait_idle(device, -1, &error);
    (void)gpu_device_reap(device);
    check(is_held(device, 0) && gpu_memory_outstanding_bytes(guard) == 0,
          "and comes free when they are");
    block = block_of(guard, KIB, false);
    uint64_t address = block->address;
    kill(gpu_device_pid(device), SIGSTOP);
    atomic_store(&interrupt, 1);
    gpu_block_close(block);
    (void)gpu_memory_reap(guard, true);
    struct gpu_block *next = block_of(device->memory, 2 * KIB, false);
    check(next && next->address != address - 512 && device->stats.bytes_pending == 2 * KIB,
          "nor is memory anybody's that a guard who had no time to wait may yet look at");
    gpu_block_close(next);
    atomic_store(&interrupt, 0);
    gpu_memory_release(guard);
    kill(gpu_device_pid(device), SIGCONT);
    (void)gpu_device_wait_idle(device, -1, &error);
    (void)gpu_device_reap(device);
    check(is_held(device, 0), "all of it comes back, also without the guard");
    gpu_device_close(device, 1000);
    gpu_device_release(device);
}

static const struct wire_link_ops *plain_ops;
static struct gpu_block *wanted;

/* As another thread would that has the device, too. */
static gpulua_status free_and_publish(struct wire_link *link, const struct wire_record *record) {
    if (record->opcode == WIRE_OP_SLAB_FIND) {
        gpu_block_free(wanted);
    }
    return plain_ops->publish(link, record);
}

static void test_export(gpulua_isolation isolation) {
    struct gpu_device *device = open_device(isolation, 1024 * KIB);
    struct gpu_memory *counted =
        make(device, (struct gpu_memory_info){.kind = GPU_MEMORY_STATISTICS});
    struct wire_link_ops ops = *device->link->ops;
    plain_ops = device->link->ops;
    ops.publish = free_and_publish;
    wanted = block_of(counted, KIB, false);
    struct gpu_ref ref = {.block = wanted, .byte_count = KIB, .type = GPU_TYPE_U32};
    struct gpu_export *lent = NULL;
    struct gpu_memory_stats before, after;
    uint64_t address;
    device->link->ops = &ops;
    gpulua_status status = gpu_export_create(&ref, 0, &lent, &address, &error);
    device->link->ops = plain_ops;
    gpu_memory_stats(counted, &before);
    check(status == GPULUA_OK && wanted->is_freed && before.frees == 0,
          "memory stays where it is freed while it is exported");
    if (lent) {
        gpu_export_return(lent);
    }
    gpu_exports_collect(device);
    gpu_memory_stats(counted, &after);
    check(after.frees == 1 && gpu_memory_outstanding_count(counted) == 0,
          "and is given back once, with the export");
    gpu_block_release(wanted);
    gpu_memory_release(counted);
    gpu_device_close(device, 1000);
    gpu_device_release(device);
}

static void test_end(gpulua_isolation isolation) {
    struct gpu_device *device = open_device(isolation, 64 * KIB);
    struct gpu_memory *guard =
        make(device, (struct gpu_memory_info){
                         .kind = GPU_MEMORY_GUARD, .canary_bytes = 512, .quarantine_bytes = KIB});
    struct gpu_memory *budget =
        make(device, (struct gpu_memory_info){
                         .kind = GPU_MEMORY_BUDGET, .limit_bytes = 8 * KIB, .upstream = guard});
    struct gpu_block *block = block_of(budget, KIB, false);
    gpu_block_close(block_of(budget, KIB, false));
    gpu_device_close(device, 1000);
    check(!block_of(budget, KIB, false) && error.code == GPULUA_CLOSED,
          "memory of a closed device gives nothing");
    check(gpu_memory_reserve(budget, &(uint64_t){1}, 1, &(struct gpu_block_info){0}, &error) ==
              GPULUA_CLOSED,
          "and reserves nothing");
    gpu_device_release(device);
    gpu_memory_release(budget);
    gpu_memory_release(guard);
    gpu_block_release(block);
    struct gpu_device *other = open_device(isolation, 64 * KIB);
    struct gpu_memory *own =
        make(other, (struct gpu_memory_info){.kind = GPU_MEMORY_BUDGET, .limit_bytes = 8 * KIB});
    block = block_of(own, KIB, false);
    check(block != NULL, "another device is well");
    gpu_block_close(block);
    gpu_memory_release(own);
    gpu_device_close(other, 1000);
    gpu_device_release(other);
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
        struct gpu_device *device = open_device(transports[i].isolation, 1024 * KIB);
        test_stack(device);
        test_group(device);
        test_pressure(device);
        test_log(device);
        test_guard(device);
        struct gpu_stats stats;
        (void)gpu_device_wait_idle(device, -1, &error);
        (void)gpu_device_poll(device);
        (void)gpu_device_trim(device);
        gpu_device_stats(device, &stats);
        check(stats.bytes_live == 0 && stats.bytes_pending == 0 && stats.blocks_live == 0 &&
                  stats.bytes_reserved == 0,
              "nothing is left");
        gpu_device_close(device, 1000);
        gpu_device_release(device);
        test_policy(transports[i].isolation);
        test_end(transports[i].isolation);
        if (transports[i].isolation != GPULUA_ISOLATE_PROCESS) { /* there it is in this one */
            test_export(transports[i].isolation);
        }
    }
    transport = "process";
    test_interrupted_guard();
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
