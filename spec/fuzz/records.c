/* Command records as the executor of another process finds them in its ring: whatever is there, the
 * device answers, fails or is lost. Nothing outside of the ring, the arena, the slabs and the
 * executor's own tables is touched, and what it answers makes sense.
 *
 * What a script may do to itself is left out: to compile and run code, to take as much memory and
 * time as there is, to have its process killed (WIRE_FLAG_DIE). Where the script's side has to wait
 * for work before a record (wire/record.h), that is waited for. */
#include "backend/backend.h"
#include "fuzz/ring.h"
#include "wire/sync.h"
#include "wire/transport.h"

#define ARENA_BYTES (64u << 10)
#define SLAB_BYTES (64u << 10)
#define SLAB_BYTES_MAX (1u << 20)
#define OBJECTS_MAX 64u /* tables grow to the largest number */
#define STREAMS 4u

static bool costs_too_much(const struct wire_record *record) {
    switch (record->opcode) {
    case WIRE_OP_MODULE_COMPILE:
    case WIRE_OP_MODULE_LOAD:
    case WIRE_OP_MODULE_LIBRARY:
        return true;
    case WIRE_OP_SLAB_CREATE:
    case WIRE_OP_POOL_ALLOC:
        if (record->u.slab.bytes > SLAB_BYTES_MAX && record->u.slab.bytes < UINT64_C(1) << 48) {
            return true;
        }
        break;
    case WIRE_OP_CONTROL:
        if (record->u.control.kind == WIRE_CONTROL_WHILE) {
            return true; /* for ever */
        }
        break;
    default:
        break;
    }
    uint32_t object =
        (record->flags & WIRE_FLAG_NODE) != 0 ? (uint32_t)(record->seq >> 32) : record->object;
    return (record->flags & WIRE_FLAG_DIE) != 0 || (object > OBJECTS_MAX && object < 1u << 21);
}

static void on_reply(void *user, const struct wire_reply *reply) {
    uint32_t *count = user;
    const uint8_t *body = gpu_wire_reply_body(reply);
    *count += (uint32_t)strlen(gpu_wire_reply_text(reply));
    for (uint32_t i = 0; i < reply->body_bytes; i++) {
        *count += body[i];
    }
    FUZZ_CHECK(strcmp(gpulua_status_name((gpulua_status)reply->status), "Unknown") != 0);
}

static void drain(struct link_core *core) {
    bool corrupt = false;
    gpu_wire_core_drain(core, &corrupt);
    FUZZ_CHECK(!corrupt);
}

static void tell(struct wire_executor *executor, struct wire_record *record, const char *text) {
    struct {
        struct wire_record record;
        char text[64];
    } whole = {.record = *record};
    snprintf(whole.text, sizeof whole.text, "%s", text);
    whole.record.length_bytes = sizeof whole;
    gpu_executor_take(executor, &whole.record);
}

/* A device with streams and a slab; in check mode, too. */
static void prepare(struct wire_executor *executor, uint8_t mode) {
    static const char *const options[] = {"backend cpu\n", "backend cpu\ncheck 1\n",
                                          "backend cpu\ntraced\n",
                                          "backend cpu\ncompletion block\n"};
    struct wire_record record = {.opcode = WIRE_OP_OPEN, .seq = 1};
    tell(executor, &record, options[mode % 4]);
    for (uint32_t slot = 0; slot < STREAMS; slot++) {
        record = (struct wire_record){.opcode = WIRE_OP_STREAM_CREATE, .stream = slot};
        tell(executor, &record, "");
    }
    record = (struct wire_record){.opcode = WIRE_OP_SLAB_CREATE, .object = 1, .seq = 2};
    record.u.slab.bytes = SLAB_BYTES;
    tell(executor, &record, "");
}

static bool is_work(const struct wire_record *record) {
    static const uint8_t is_work_table[WIRE_OPCODE_COUNT] = {
#define X(name, is_work) is_work,
        WIRE_OPCODE_TABLE(X)
#undef X
    };
    return record->opcode < WIRE_OPCODE_COUNT && is_work_table[record->opcode] != 0 &&
           (record->flags & WIRE_FLAG_NODE) == 0 && record->stream < WIRE_STREAMS_MAX;
}

static bool ends_something(const struct wire_record *record) {
    return record->opcode == WIRE_OP_STREAM_CREATE || record->opcode == WIRE_OP_STREAM_DESTROY ||
           record->opcode == WIRE_OP_SLAB_DESTROY;
}

/* All that was published is over, or the device is lost. */
static void settle(struct wire_executor *executor, struct wire_page *page,
                   const uint64_t newest[WIRE_STREAMS_MAX], struct link_core *core) {
    for (uint32_t slot = 0; slot < WIRE_STREAMS_MAX; slot++) {
        struct wire_record ask = {.length_bytes = sizeof ask, .opcode = WIRE_OP_ASK};
        ask.stream = slot;
        ask.seq = newest[slot];
        if (gpu_wire_page_done(page, slot) >= newest[slot]) {
            continue;
        }
        gpu_executor_take(executor, &ask);
        while (gpu_wire_page_done(page, slot) < newest[slot] &&
               atomic_load(&page->state) != WIRE_STATE_LOST) {
            atomic_store(&page->wanted[slot], newest[slot]);
            atomic_fetch_add(&page->wishes, 1);
            gpu_executor_poll(executor);
            gpu_executor_arm(executor);
            drain(core);
            gpu_wire_nap_ns(20000);
        }
    }
}

/* As the executor's loop does it (executor/loop.c). */
static void take_all(struct wire_executor *executor, struct wire_ring *commands,
                     struct link_core *core) {
    struct wire_page *page = core->link.page;
    uint64_t newest[WIRE_STREAMS_MAX] = {0};
    bool corrupt = false;
    while (!gpu_executor_is_closed(executor) && atomic_load(&page->state) != WIRE_STATE_LOST) {
        uint32_t length_bytes = 0;
        const struct wire_record *record = gpu_wire_ring_peek(commands, &length_bytes, &corrupt);
        if (record == NULL || length_bytes < sizeof *record) {
            break;
        }
        if (!costs_too_much(record)) {
            if (ends_something(record)) {
                settle(executor, page, newest, core);
            } else if (is_work(record)) {
                newest[record->stream] = record->seq;
            }
            gpu_executor_take(executor, record);
        }
        gpu_wire_ring_pop(commands, length_bytes);
        gpu_executor_poll(executor);
        drain(core);
    }
}

FUZZ_TARGET(records) {
    struct fuzz_input input = {bytes, byte_count};
    struct fuzz_ring commands;
    struct wire_error error;
    uint32_t heard = 0;
    uint8_t mode = fuzz_byte(&input);
    struct wire_link_info link = {.on_reply = on_reply, .user = &heard};
    struct link_core core = {.link.page = gpu_wire_page_create(NULL, &error), .event_fd = -1};
    uint8_t *arena = aligned_alloc(4096, ARENA_BYTES);
    FUZZ_CHECK(core.link.page != NULL && arena != NULL);
    memset(arena, 0, ARENA_BYTES);
    gpu_wire_core_init(&core, &link);
    atomic_store(&core.link.page->is_in_charge, 1);
    const struct wire_executor_info info = {.page = core.link.page,
                                            .arena = arena,
                                            .arena_bytes = ARENA_BYTES,
                                            .event_fd = -1,
                                            .place = WIRE_EXECUTOR_APART};
    struct wire_executor *executor = gpu_executor_create(&info, &error);
    FUZZ_CHECK(executor != NULL);
    fuzz_ring_fill(&commands, &input);
    prepare(executor, mode);
    drain(&core);
    take_all(executor, &commands.ring, &core);
    gpu_executor_destroy(executor);
    drain(&core);
    fuzz_ring_free(&commands);
    gpu_wire_page_destroy(core.link.page);
    free(arena);
    return 0;
}
