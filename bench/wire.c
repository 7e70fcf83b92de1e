/* What the wire costs: a record into the ring, an operation that does nothing there and back, and
 * submitting work, over both transports on the CPU device. Prints a table; no pass or fail.
 *
 *     build/bench/wire      GPULUA_EXECUTOR names the executor if it is not build/gpulua-exec */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wire/link.h"
#include "wire/ring.h"
#include "wire/sync.h"

#define ROUNDS 20000u
#define SPIN_NS 50000u

struct state {
    struct wire_link *link;
    uint64_t seq;
    uint32_t result_count;
    bool is_lost;
};

static void on_reply(void *user, const struct wire_reply *reply) {
    struct state *state = user;
    state->result_count += reply->kind == WIRE_REPLY_RESULT && reply->status == GPULUA_OK;
    state->is_lost |= reply->kind == WIRE_REPLY_LOST;
}

static int compare(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void print_row(const char *what, uint64_t *samples_ns, uint32_t count) {
    qsort(samples_ns, count, sizeof samples_ns[0], compare);
    printf("%-52s %8llu %8llu\n", what, (unsigned long long)samples_ns[count / 2],
           (unsigned long long)samples_ns[count - 1 - count / 100]);
}

/* Batches into an empty ring, so that it is the push that is measured and no waiting. */
static void bench_push(void) {
    static _Alignas(64) uint8_t bytes[1u << 20];
    _Alignas(64) static _Atomic uint64_t head;
    _Alignas(64) static _Atomic uint64_t tail;
    static uint64_t samples_ns[1000];
    struct wire_ring ring = {
        .bytes = bytes, .capacity_bytes = sizeof bytes, .head = &head, .tail = &tail};
    struct wire_record record = {.length_bytes = sizeof record};
    const uint32_t batch = 10000;
    for (uint32_t i = 0; i < 1000; i++) {
        atomic_store(&tail, ring.position);
        uint64_t start_ns = gpu_wire_now_ns();
        for (uint32_t k = 0; k < batch; k++) {
            record.seq = k;
            gpu_wire_ring_push(&ring, &record, sizeof record);
        }
        samples_ns[i] = (gpu_wire_now_ns() - start_ns) * 1000 / batch;
    }
    qsort(samples_ns, 1000, sizeof samples_ns[0], compare);
    printf("%-52s %8.1f %8.1f\n", "push of a 64-byte record", (double)samples_ns[500] / 1000,
           (double)samples_ns[990] / 1000);
}

static void publish(struct state *state, enum wire_opcode opcode) {
    struct wire_record record = {.length_bytes = sizeof record, .opcode = (uint8_t)opcode};
    record.seq = ++state->seq;
    state->link->ops->publish(state->link, &record);
}

static void wait_for(struct state *state, uint64_t spin_ns) {
    uint64_t end_ns = gpu_wire_now_ns() + spin_ns;
    gpu_wire_link_want(state->link, 0, state->seq);
    while (gpu_wire_page_done(state->link->page, 0) < state->seq && !state->is_lost) {
        state->link->ops->poll(state->link);
        if (gpu_wire_now_ns() >= end_ns) {
            if (!state->link->ops->arm(state->link)) {
                struct pollfd entry = {.fd = state->link->poll_fd, .events = POLLIN};
                poll(&entry, 1, 1000);
            }
            state->link->ops->disarm(state->link);
            gpu_wire_link_drain(state->link);
        }
    }
}

static void request(struct state *state, struct wire_record *record) {
    uint32_t before = state->result_count;
    record->seq = 1;
    state->link->ops->publish(state->link, record);
    while (state->result_count == before && !state->is_lost) {
        gpu_wire_link_drain(state->link);
    }
}

static bool open_device(struct state *state, enum wire_transport transport) {
    const char *path = getenv("GPULUA_EXECUTOR");
    struct wire_error error = {.status = GPULUA_OK};
    struct wire_link_info info = {.transport = transport,
                                  .program.path = path != NULL ? path : "build/gpulua-exec",
                                  .on_reply = on_reply,
                                  .user = state};
    memset(state, 0, sizeof *state);
    state->link = gpu_wire_link_open(&info, &error);
    if (state->link == NULL) {
        fprintf(stderr, "%s\n", error.message);
        return false;
    }
    struct {
        struct wire_record record;
        char options[32];
    } open = {.record = {.length_bytes = sizeof open, .opcode = WIRE_OP_OPEN},
              .options = "backend cpu\n"};
    request(state, &open.record);
    struct wire_record stream = {.length_bytes = sizeof stream, .opcode = WIRE_OP_STREAM_CREATE};
    state->link->ops->publish(state->link, &stream);
    return !state->is_lost;
}

static void bench_transport(enum wire_transport transport, const char *name) {
    static uint64_t samples_ns[ROUNDS];
    struct state state;
    char line[80];
    if (!open_device(&state, transport)) {
        return;
    }
    static const struct {
        const char *text;
        uint64_t spin_ns, idle_us;
        uint32_t rounds;
    } kinds[] = {{"round trip, spinning", UINT64_C(1000000000), 0, ROUNDS},
                 {"round trip, asleep on the descriptor", 0, 0, ROUNDS / 4},
                 {"round trip after 10 ms of idling", SPIN_NS, 10000, 100}};
    for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
        for (uint32_t i = 0; i < kinds[kind].rounds; i++) {
            if (kinds[kind].idle_us != 0) {
                usleep((useconds_t)kinds[kind].idle_us);
            }
            uint64_t start_ns = gpu_wire_now_ns();
            publish(&state, WIRE_OP_MARK);
            wait_for(&state, kinds[kind].spin_ns);
            samples_ns[i] = gpu_wire_now_ns() - start_ns;
        }
        snprintf(line, sizeof line, "%s: %s", name, kinds[kind].text);
        print_row(line, samples_ns, kinds[kind].rounds);
    }
    /* The script's own share, the queues behind it never full. */
    for (uint32_t i = 0; i < 1000; i++) {
        uint64_t start_ns = gpu_wire_now_ns();
        for (uint32_t k = 0; k < 100; k++) {
            publish(&state, WIRE_OP_MARK);
        }
        samples_ns[i] = (gpu_wire_now_ns() - start_ns) / 100;
        wait_for(&state, SPIN_NS);
    }
    snprintf(line, sizeof line, "%s: publishing one of 100", name);
    print_row(line, samples_ns, 1000);
    uint64_t start_ns = gpu_wire_now_ns();
    for (uint32_t k = 0; k < 200000; k++) {
        publish(&state, WIRE_OP_MARK);
    }
    wait_for(&state, SPIN_NS);
    printf("%-10s %-41s %8llu\n", name, "sustained, for each of 200,000",
           (unsigned long long)((gpu_wire_now_ns() - start_ns) / 200000));
    struct wire_record record = {.length_bytes = sizeof record, .opcode = WIRE_OP_CLOSE};
    request(&state, &record);
    gpu_wire_link_close(state.link);
}

int main(void) {
    printf("%-52s %8s %8s\n", "ns", "median", "99%");
    bench_push();
    bench_transport(WIRE_TRANSPORT_INLINE, "inline");
    bench_transport(WIRE_TRANSPORT_PROCESS, "process");
    return 0;
}
