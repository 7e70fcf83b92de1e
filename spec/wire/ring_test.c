/* wire/ring.c: what goes in comes out, whole and in order, between threads and between processes;
 * nonsense is noticed. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/tap.h"
#include "wire/memory.h"
#include "wire/ring.h"
#include "wire/transport.h"

#define CAPACITY 4096u
#define MESSAGES 200000u

static struct tap tap;

struct shared {
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) uint8_t bytes[CAPACITY];
};

static struct wire_ring ring_of(struct shared *shared) {
    return (struct wire_ring){.bytes = shared->bytes,
                              .capacity_bytes = CAPACITY,
                              .head = &shared->head,
                              .tail = &shared->tail};
}

static uint32_t next_random(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Length and content follow from the seed, so that the consumer knows what must come. */
static uint32_t make_message(uint32_t *state, uint32_t *message) {
    uint32_t length_bytes = 16u * (1u + next_random(state) % (CAPACITY / 32u));
    message[0] = length_bytes;
    for (uint32_t i = 1; i < length_bytes / 4u; i++) {
        message[i] = *state * 2654435761u + i;
    }
    return length_bytes;
}

static void produce(struct shared *shared, uint32_t seed) {
    struct wire_ring ring = ring_of(shared);
    uint32_t message[CAPACITY / 4u];
    for (uint32_t i = 0; i < MESSAGES; i++) {
        uint32_t length_bytes = make_message(&seed, message);
        while (!gpu_wire_ring_push(&ring, message, length_bytes)) {
            sched_yield();
        }
    }
}

/* The number of messages that came as they should. */
static uint32_t consume(struct shared *shared, uint32_t seed) {
    struct wire_ring ring = ring_of(shared);
    uint32_t wanted[CAPACITY / 4u];
    for (uint32_t i = 0; i < MESSAGES; i++) {
        uint32_t length_bytes = 0;
        bool corrupt = false;
        const void *got;
        while ((got = gpu_wire_ring_peek(&ring, &length_bytes, &corrupt)) == NULL && !corrupt) {
            sched_yield();
        }
        if (got == NULL || make_message(&seed, wanted) != length_bytes ||
            memcmp(got, wanted, length_bytes) != 0) {
            return i;
        }
        gpu_wire_ring_pop(&ring, length_bytes);
    }
    return gpu_wire_ring_empty(&ring) ? MESSAGES : 0;
}

static void *producer_main(void *user) {
    produce(user, 12345);
    return NULL;
}

static void two_threads(void) {
    struct shared *shared = aligned_alloc(64, sizeof *shared);
    memset(shared, 0, sizeof *shared);
    pthread_t thread;
    pthread_create(&thread, NULL, producer_main, shared);
    tap_check(&tap, consume(shared, 12345) == MESSAGES,
              "200,000 messages of every length between two threads");
    pthread_join(thread, NULL);
    free(shared);
}

static void two_processes(void) {
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child == 0) {
        produce(shared, 777);
        _exit(0);
    }
    tap_check(&tap, consume(shared, 777) == MESSAGES,
              "200,000 messages of every length between two processes");
    waitpid(child, NULL, 0);
    munmap(shared, sizeof *shared);
}

static void limits(void) {
    static struct shared shared;
    struct wire_ring in = ring_of(&shared);
    struct wire_ring out = ring_of(&shared);
    uint32_t message[CAPACITY / 8u] = {CAPACITY / 2u};
    uint32_t length_bytes = 0;
    bool corrupt = false;
    tap_check(&tap, gpu_wire_ring_empty(&out), "empty at first");
    tap_check(&tap, gpu_wire_ring_peek(&out, &length_bytes, &corrupt) == NULL && !corrupt,
              "nothing to take at first");
    tap_check(&tap,
              gpu_wire_ring_push(&in, message, CAPACITY / 2u) &&
                  gpu_wire_ring_push(&in, message, CAPACITY / 2u),
              "two messages of half the capacity fill it to the last byte");
    message[0] = 16;
    tap_check(&tap, !gpu_wire_ring_push(&in, message, 16), "then not even 16 bytes find room");
    tap_check(&tap,
              gpu_wire_ring_peek(&out, &length_bytes, &corrupt) != NULL &&
                  length_bytes == CAPACITY / 2u,
              "the first of them comes out");
    gpu_wire_ring_pop(&out, length_bytes);
    tap_check(&tap, gpu_wire_ring_push(&in, message, 16), "and makes room again");
}

/* A ring with one message at `offset`, published up to `head`, its length overwritten. */
static bool is_corrupt(uint64_t offset, uint32_t length, uint64_t head_bytes) {
    static struct shared shared;
    memset(&shared, 0, sizeof shared);
    struct wire_ring out = ring_of(&shared);
    out.position = offset;
    out.seen = offset;
    atomic_store(&shared.head, offset + head_bytes);
    memcpy(shared.bytes + offset % CAPACITY, &length, sizeof length);
    uint32_t length_bytes = 0;
    bool corrupt = false;
    const void *got = gpu_wire_ring_peek(&out, &length_bytes, &corrupt);
    return got == NULL && corrupt;
}

static void nonsense(void) {
    tap_check(&tap, is_corrupt(0, 17, 64), "a length that is no multiple of 16");
    tap_check(&tap, is_corrupt(0, 8, 64), "a length below 16");
    tap_check(&tap, is_corrupt(0, 128, 64), "a length beyond what is published");
    tap_check(&tap, is_corrupt(0, CAPACITY / 2u + 16u, CAPACITY), "a length beyond the limit");
    tap_check(&tap, is_corrupt(CAPACITY - 32, 64, 64), "a message that runs over the end");
    tap_check(&tap, is_corrupt(0, 0, 64), "a wrap marker at the start");
    tap_check(&tap, is_corrupt(CAPACITY - 32, 0, 32), "a wrap marker with nothing behind it");
    tap_check(&tap, is_corrupt(64, 64, CAPACITY + 64), "more published than fits");
    tap_check(&tap, is_corrupt(64, 64, UINT64_C(0) - 64), "a head that went back");
    tap_check(&tap, !is_corrupt(CAPACITY - 64, 64, 64), "a message that ends at the end is none");
    static struct shared shared;
    struct wire_ring in = ring_of(&shared);
    uint32_t message[4] = {16};
    atomic_store(&shared.tail, 4096000);
    in.seen = in.position - CAPACITY;
    tap_check(&tap, !gpu_wire_ring_push(&in, message, 16), "a tail beyond the head reads as full");
}

/* ---- replies ---- */

static void note_length(void *user, const struct wire_reply *reply) {
    *(size_t *)user = strlen(gpu_wire_reply_text(reply));
}

/* Whoever hears of a reply takes its text for one that ends. */
static void endless_text(void) {
    static struct shared shared;
    struct {
        struct wire_reply reply;
        char text[32];
    } message = {.reply = {.length_bytes = sizeof message, .text_bytes = 20}};
    size_t length = 0;
    struct link_core core = {.link.on_reply = note_length, .link.user = &length};
    bool corrupt = false;
    memset(message.text, 'x', sizeof message.text);
    memset(shared.bytes, 'x', sizeof shared.bytes);
    core.replies = ring_of(&shared);
    struct wire_ring in = ring_of(&shared);
    tap_check(&tap,
              gpu_wire_ring_push(&in, &message, sizeof message) &&
                  gpu_wire_core_drain(&core, &corrupt) == 1 && !corrupt && length == 20,
              "a text without an end ends where its length says");
    message.reply.text_bytes = 32;
    tap_check(&tap,
              gpu_wire_ring_push(&in, &message, sizeof message) &&
                  gpu_wire_core_drain(&core, &corrupt) == 0 && corrupt,
              "one that has no room for its end makes no sense");
}

int main(void) {
    limits();
    nonsense();
    endless_text();
    two_threads();
    two_processes();
    return tap_finish(&tap);
}
