/* executor/objects.c: what of the arena is pinned, where a spare was told of some of it before its
 * turn, and where the device has no room for some. */
#include <string.h>

#include "backend/tap.h"
#include "executor/executor.h"

#define CHUNK 4096u

static struct tap tap;
static uint8_t arena[8 * CHUNK];
static uint8_t pinned[8]; /* how often each chunk is */
static unsigned failures; /* of the next pins */

static gpulua_status pin(struct backend_device *device, void *base, uint64_t bytes,
                         struct backend_error *error) {
    (void)device;
    uint64_t begin = (uint64_t)((uint8_t *)base - arena);
    if (failures > 0) {
        failures--;
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "none left");
    }
    for (uint64_t at = begin; at < begin + bytes; at += CHUNK) {
        pinned[at / CHUNK]++;
    }
    return GPULUA_OK;
}

static const struct backend_ops ops = {.host_register = pin};

static void ask(struct wire_executor *executor, uint32_t first, uint32_t count) {
    struct wire_record record = {.opcode = WIRE_OP_ARENA_REGISTER};
    record.u.arena.byte_offset = (uint64_t)first * CHUNK;
    record.u.arena.bytes = (uint64_t)count * CHUNK;
    gpu_executor_arena_register(executor, &record);
}

/* Each of the first `count` chunks is pinned once, and nothing else. */
static bool is_pinned(uint32_t count) {
    bool is_right = true;
    for (uint32_t i = 0; i < 8; i++) {
        is_right = is_right && pinned[i] == (i < count ? 1 : 0);
    }
    return is_right;
}

static struct wire_executor begin(void) {
    struct wire_executor executor = {.ops = &ops, .device = (struct backend_device *)(void *)arena};
    executor.info.arena = arena;
    executor.info.arena_bytes = sizeof arena;
    executor.pinned.row_bytes = sizeof(struct executor_pin);
    memset(pinned, 0, sizeof pinned);
    return executor;
}

int main(void) {
    struct wire_executor executor = begin();
    ask(&executor, 0, 2);
    ask(&executor, 2, 1);
    tap_check(&tap, is_pinned(3), "each chunk is pinned when it is there");
    ask(&executor, 0, 3);
    tap_check(&tap, is_pinned(3) && executor.pin_count == 2,
              "and not again when a spare has taken over");
    ask(&executor, 0, 5);
    tap_check(&tap, is_pinned(5), "but what came since is");
    ask(&executor, 5, 4);
    tap_check(&tap, is_pinned(5), "the arena ends where it ends");
    gpu_executor_table_free(&executor.pinned);

    executor = begin();
    failures = 1;
    ask(&executor, 0, 2);
    tap_check(&tap, is_pinned(0) && executor.pin_count == 0, "where there is no room, none is");
    ask(&executor, 2, 2);
    tap_check(&tap, is_pinned(4), "it is asked for again with the next");
    ask(&executor, 0, 6);
    tap_check(&tap, is_pinned(6), "and no part of it twice");
    gpu_executor_table_free(&executor.pinned);
    return tap_finish(&tap);
}
