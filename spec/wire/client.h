/* The least of a script side that can drive a link: what the tests of wire/, executor/ and the CPU
 * device share. Slab 1 holds int elements; streams 0 to 7 are there; module 1 holds the kernels
 * below. */
#ifndef SPEC_WIRE_CLIENT_H
#define SPEC_WIRE_CLIENT_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/tap.h"
#include "wire/link.h"
#include "wire/sync.h"

#if defined(__has_feature)
#define CLIENT_HAS_FEATURE(x) __has_feature(x)
#else
#define CLIENT_HAS_FEATURE(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || CLIENT_HAS_FEATURE(thread_sanitizer)
#define CLIENT_IS_TSAN true
#else
#define CLIENT_IS_TSAN false
#endif
#if defined(__SANITIZE_ADDRESS__) || CLIENT_HAS_FEATURE(address_sanitizer)
#define CLIENT_IS_SANITIZED true
#else
#define CLIENT_IS_SANITIZED CLIENT_IS_TSAN
#endif

#define CLIENT_STREAMS 8u
#define CLIENT_SLAB_BYTES (UINT64_C(8) << 20)
#define CLIENT_TIMEOUT_MS 60000
#define CLIENT_LOST_NS UINT64_C(3000000000)
#define CLIENT_REQUESTS 64u
#define CLIENT_FAILURES 64u

enum {
    KERNEL_WAIT_FLAG = 1,
    KERNEL_ADD,
    KERNEL_FAILS,
    KERNEL_CRASH,
    KERNEL_SPIN,
    KERNEL_NAP,
    KERNEL_COUNT
};
static const char *const client_kernels[KERNEL_COUNT] = {NULL,    "wait_flag", "add", "fails",
                                                         "crash", "spin",      "nap"};

/* What devices are opened with. */
static const char *client_options = "backend cpu\nordinal 0\n";

static const char client_source[] =
    "__device__ int counter[4];\n"
    "extern \"C\" __global__ void wait_flag(volatile int *flag) { while (*flag == 0) { } }\n"
    "extern \"C\" __global__ void add(int *p, int n, int v) {\n"
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n) p[i] += v;\n"
    "}\n"
    "extern \"C\" __global__ void fails(int block) { assert((int)blockIdx.x != block); }\n"
    "extern \"C\" __global__ void crash() { *(volatile int *)8 = 1; }\n"
    "extern \"C\" __global__ void spin(long long ns) {\n"
    "    long long end = clock64() + ns;\n"
    "    while (clock64() < end) { }\n"
    "}\n"
    "extern \"C\" __device__ int usleep(unsigned);\n" /* takes no processor time */
    "extern \"C\" __global__ void nap(int us) { usleep(us); }\n";

struct client {
    struct wire_link *link;
    uint64_t seq[WIRE_STREAMS_MAX]; /* last published */
    uint64_t request;               /* last number */
    uint32_t arena_next;            /* bump allocator in the first MiB */
    /* What replies said. */
    uint32_t result_count;
    struct {
        uint64_t request;
        uint16_t status;
        char text[256];
        uint32_t text_bytes;
        uint8_t body[1024];
        char text_end[32];
    } results[CLIENT_REQUESTS]; /* of the newest requests, by number */
    uint32_t failure_count;
    struct {
        uint32_t stream;
        uint64_t seq;
        uint16_t status;
        char text[256];
    } failures[CLIENT_FAILURES];
    bool has_streams;
    uint32_t lost_count;
    char lost_text[256];
};

static inline void client_on_reply(void *user, const struct wire_reply *reply) {
    struct client *client = user;
    if (reply->kind == WIRE_REPLY_RESULT) {
        uint32_t i = (uint32_t)(reply->seq % CLIENT_REQUESTS);
        client->result_count++;
        client->results[i].request = reply->seq;
        client->results[i].status = reply->status;
        client->results[i].text_bytes = reply->text_bytes;
        snprintf(client->results[i].text, sizeof client->results[i].text, "%.255s",
                 gpu_wire_reply_text(reply));
        const char *text = gpu_wire_reply_text(reply);
        size_t tail = strlen(text) < 31 ? strlen(text) : 31;
        snprintf(client->results[i].text_end, sizeof client->results[i].text_end, "%s",
                 text + strlen(text) - tail);
        if (reply->body_bytes != 0) {
            memcpy(client->results[i].body, gpu_wire_reply_body(reply),
                   reply->body_bytes < 1024 ? reply->body_bytes : 1024);
        }
    } else if (reply->kind == WIRE_REPLY_FAILURE) {
        if (client->failure_count < CLIENT_FAILURES) {
            uint32_t i = client->failure_count;
            client->failures[i].stream = reply->stream;
            client->failures[i].seq = reply->seq;
            client->failures[i].status = reply->status;
            snprintf(client->failures[i].text, sizeof client->failures[i].text, "%.255s",
                     gpu_wire_reply_text(reply));
        }
        client->failure_count++;
    } else if (reply->kind == WIRE_REPLY_LOST) {
        client->lost_count++;
        snprintf(client->lost_text, sizeof client->lost_text, "%.255s", gpu_wire_reply_text(reply));
    }
}

static inline const char *client_executor(void) {
    const char *path = getenv("GPULUA_EXECUTOR");
    return path != NULL ? path : "build/gpulua-exec";
}

/* ---- records ---- */

/* However long the ring is full. */
static inline gpulua_status client_publish(struct client *client, const void *record) {
    gpulua_status status;
    do {
        status = client->link->ops->publish(client->link, record);
    } while (status == GPULUA_TIMEOUT);
    return status;
}

/* A record in scratch, to be published with its payload and waits. */
struct client_record {
    struct wire_record record;
    uint8_t rest[4096];
};

static inline void client_payload(struct client_record *out, const void *bytes, uint32_t length) {
    memcpy(gpu_wire_record_payload(&out->record), bytes, length);
    out->record.length_bytes =
        (uint32_t)(sizeof out->record + out->record.wait_count * sizeof(struct wire_wait) + length +
                   15u) &
        ~15u;
}

static inline struct client_record client_record(enum wire_opcode opcode, uint32_t object) {
    struct client_record out;
    memset(&out, 0, sizeof out);
    out.record.length_bytes = sizeof out.record;
    out.record.opcode = (uint8_t)opcode;
    out.record.object = object;
    return out;
}

/* Before the payload. */
static inline void client_wait_on(struct client_record *out, uint32_t stream, uint64_t seq,
                                  uint32_t flags) {
    gpu_wire_record_waits(&out->record)[out->record.wait_count++] =
        (struct wire_wait){.stream = stream, .flags = flags, .seq = seq};
    out->record.length_bytes += (uint32_t)sizeof(struct wire_wait);
}

static inline uint64_t client_submit(struct client *client, struct client_record *out,
                                     uint32_t stream) {
    out->record.stream = stream;
    out->record.seq = ++client->seq[stream];
    client_publish(client, out);
    return out->record.seq;
}

/* ---- waiting ---- */

/* One sleep of at most that long, as a runtime does it. */
static inline void client_sleep(struct client *client, int timeout_ms) {
    struct wire_link *link = client->link;
    if (!link->ops->arm(link)) {
        struct pollfd entry = {.fd = link->poll_fd, .events = POLLIN};
        poll(&entry, 1, timeout_ms);
    }
    link->ops->disarm(link);
}

static inline bool client_is_over(const struct client *client, uint32_t stream, uint64_t seq) {
    return gpu_wire_page_done(client->link->page, stream) >= seq;
}

/* The sanitizer in the executor's process cannot see that one thread there caused another to go on
 * by way of us. A wait on what is over makes the executor read the word, and is no wait. */
static inline void client_synchronise(struct client *client, uint32_t stream, uint64_t seq) {
    struct client_record out = client_record(WIRE_OP_MARK, 0);
    client_wait_on(&out, stream, seq, WIRE_WAIT_ORDER);
    client_submit(client, &out, CLIENT_STREAMS);
}

/* False: not over in time, or lost. */
static inline bool client_wait_ms(struct client *client, uint32_t stream, uint64_t seq,
                                  int timeout_ms) {
    uint64_t end_ns = gpu_wire_now_ns() + (uint64_t)timeout_ms * 1000000u;
    gpu_wire_link_want(client->link, stream, seq);
    bool is_over;
    for (;;) {
        client->link->ops->poll(client->link);
        is_over = client_is_over(client, stream, seq);
        gpu_wire_link_drain(client->link);
        if (is_over || client->lost_count != 0 || gpu_wire_now_ns() >= end_ns) {
            break;
        }
        client_sleep(client, 1000);
    }
    gpu_wire_link_want(client->link, stream, 0);
    if (CLIENT_IS_TSAN && is_over && client->has_streams) {
        client_synchronise(client, stream, seq);
    }
    return is_over;
}

static inline bool client_wait(struct client *client, uint32_t stream, uint64_t seq) {
    return client_wait_ms(client, stream, seq, CLIENT_TIMEOUT_MS);
}

/* Publishes a request and waits for its reply: its status, -1 without one. */
static inline int client_request(struct client *client, struct client_record *out) {
    uint64_t end_ns = gpu_wire_now_ns() + UINT64_C(1000000) * CLIENT_TIMEOUT_MS;
    uint64_t request = ++client->request;
    uint32_t i = (uint32_t)(request % CLIENT_REQUESTS);
    out->record.seq = request;
    if (client_publish(client, out) != GPULUA_OK) {
        return -1;
    }
    while (client->results[i].request != request) {
        client->link->ops->poll(client->link);
        if (gpu_wire_link_drain(client->link) == 0) {
            if (gpu_wire_now_ns() >= end_ns) {
                return -1;
            }
            client_sleep(client, 1000);
            /* A lost device still answers, if its executor lives. */
            if (client->lost_count != 0 && end_ns > gpu_wire_now_ns() + CLIENT_LOST_NS) {
                end_ns = gpu_wire_now_ns() + CLIENT_LOST_NS;
            }
        }
    }
    return client->results[i].status;
}

static inline const char *client_text(const struct client *client) {
    return client->results[client->request % CLIENT_REQUESTS].text;
}

static inline const void *client_body(const struct client *client) {
    return client->results[client->request % CLIENT_REQUESTS].body;
}

/* ---- work ---- */

static inline uint64_t client_fill(struct client *client, uint32_t stream, uint64_t index,
                                   uint64_t count, int value) {
    struct client_record out = client_record(WIRE_OP_FILL, 0);
    out.record.u.fill.dst = gpu_wire_address(1, index * 4);
    out.record.u.fill.elem_count = count;
    out.record.u.fill.elem_bytes = 4;
    out.record.u.fill.pattern[0] = (uint32_t)value;
    return client_submit(client, &out, stream);
}

static inline void client_set_launch(struct client_record *out, uint32_t kernel, uint32_t grid,
                                     uint32_t block) {
    out->record.opcode = WIRE_OP_LAUNCH;
    out->record.object = kernel;
    out->record.u.launch.grid[0] = grid;
    out->record.u.launch.grid[1] = 1;
    out->record.u.launch.grid[2] = 1;
    out->record.u.launch.block[0] = (uint16_t)block;
    out->record.u.launch.block[1] = 1;
    out->record.u.launch.block[2] = 1;
}

/* Runs until the int at `index` is not 0. */
static inline uint64_t client_wait_flag(struct client *client, uint32_t stream, uint64_t index) {
    struct client_record out = client_record(WIRE_OP_LAUNCH, 0);
    struct {
        uint64_t flag;
        uint16_t reloc;
    } payload;
    memset(&payload, 0, sizeof payload);
    payload.flag = gpu_wire_address(1, index * 4);
    client_set_launch(&out, KERNEL_WAIT_FLAG, 1, 1);
    out.record.u.launch.args_bytes = 8;
    out.record.u.launch.reloc_count = 1;
    client_payload(&out, &payload, 10);
    return client_submit(client, &out, stream);
}

static inline void client_set_add(struct client_record *out, uint64_t index, int count, int value) {
    struct {
        uint64_t p;
        int32_t n, v;
        uint16_t reloc;
    } payload;
    memset(&payload, 0, sizeof payload);
    payload.p = gpu_wire_address(1, index * 4);
    payload.n = count;
    payload.v = value;
    client_set_launch(out, KERNEL_ADD, ((uint32_t)count + 255u) / 256u, 256);
    out->record.u.launch.args_bytes = 16;
    out->record.u.launch.reloc_count = 1;
    client_payload(out, &payload, 18);
}

static inline uint64_t client_add(struct client *client, uint32_t stream, uint64_t index, int count,
                                  int value) {
    struct client_record out = client_record(WIRE_OP_LAUNCH, 0);
    client_set_add(&out, index, count, value);
    return client_submit(client, &out, stream);
}

static inline uint64_t client_spin(struct client *client, uint32_t stream, int64_t ns) {
    struct client_record out = client_record(WIRE_OP_LAUNCH, 0);
    client_set_launch(&out, KERNEL_SPIN, 1, 1);
    out.record.u.launch.args_bytes = 8;
    client_payload(&out, &ns, 8);
    return client_submit(client, &out, stream);
}

static inline uint64_t client_mark(struct client *client, uint32_t stream, uint32_t other,
                                   uint64_t seq) {
    struct client_record out = client_record(WIRE_OP_MARK, 0);
    client_wait_on(&out, other, seq, WIRE_WAIT_ORDER);
    return client_submit(client, &out, stream);
}

/* Ints out of the slab, behind everything on the stream. NULL: it did not come. */
static inline const int *client_read(struct client *client, uint32_t stream, uint64_t index,
                                     uint64_t count) {
    struct client_record out = client_record(WIRE_OP_DOWNLOAD, 0);
    uint64_t offset = UINT64_C(1) << 21;
    memset(client->link->arena + offset, 0xee, count * 4);
    out.record.u.copy.dst = offset;
    out.record.u.copy.src = gpu_wire_address(1, index * 4);
    out.record.u.copy.bytes = count * 4;
    uint64_t seq = client_submit(client, &out, stream);
    if (!client_wait(client, stream, seq)) {
        return NULL;
    }
    return (const int *)(const void *)(client->link->arena + offset);
}

static inline bool client_read_is(struct client *client, uint32_t stream, uint64_t index,
                                  int value) {
    const int *got = client_read(client, stream, index, 1);
    if (got == NULL || *got != value) {
        printf("# element %llu: wanted %d, got %d\n", (unsigned long long)index, value,
               got != NULL ? *got : -1);
    }
    return got != NULL && *got == value;
}

/* ---- opening and closing ---- */

static inline struct client *client_create(enum wire_transport transport,
                                           struct wire_error *error) {
    struct client *client = calloc(1, sizeof *client);
    struct wire_link_info info = {.transport = transport,
                                  .program.path = client_executor(),
                                  .on_reply = client_on_reply,
                                  .user = client};
    client->link = gpu_wire_link_open(&info, error);
    if (client->link == NULL) {
        free(client);
        return NULL;
    }
    return client;
}

static inline int client_open_device(struct client *client) {
    struct client_record out = client_record(WIRE_OP_OPEN, 0);
    client_payload(&out, client_options, (uint32_t)strlen(client_options) + 1);
    int status = client_request(client, &out);
    if (status != GPULUA_OK) {
        return status;
    }
    for (uint32_t slot = 0; slot <= CLIENT_STREAMS; slot++) {
        out = client_record(WIRE_OP_STREAM_CREATE, 0);
        out.record.stream = slot;
        out.record.u.stream.number = slot + 1;
        client_publish(client, &out);
    }
    client->has_streams = true;
    out = client_record(WIRE_OP_SLAB_CREATE, 1);
    out.record.u.slab.bytes = CLIENT_SLAB_BYTES;
    return client_request(client, &out);
}

static inline int client_compile(struct client *client, uint32_t module, const char *text) {
    struct client_record out = client_record(WIRE_OP_MODULE_COMPILE, module);
    static const char options[] = "source client.cu\n";
    uint64_t offset = UINT64_C(1) << 22;
    memcpy(client->link->arena + offset, text, strlen(text));
    out.record.u.module.arena_offset = offset;
    out.record.u.module.bytes = strlen(text);
    client_payload(&out, options, sizeof options);
    int status = client_request(client, &out);
    memset(client->link->arena + offset, 0, strlen(text));
    return status;
}

static inline int client_load_kernels(struct client *client) {
    int status = client_compile(client, 1, client_source);
    for (uint32_t i = 1; i < KERNEL_COUNT && status == GPULUA_OK; i++) {
        struct client_record out = client_record(WIRE_OP_KERNEL_GET, i);
        out.record.u.kernel.module = 1;
        client_payload(&out, client_kernels[i], (uint32_t)strlen(client_kernels[i]) + 1);
        status = client_request(client, &out);
    }
    return status;
}

static inline void client_destroy(struct client *client) {
    if (client != NULL) {
        gpu_wire_link_close(client->link);
        free(client);
    }
}

/* With the kernels loaded; NULL and a line where that fails. */
static inline struct client *client_open(enum wire_transport transport) {
    struct wire_error error = {.status = GPULUA_OK};
    struct client *client = client_create(transport, &error);
    if (client == NULL) {
        printf("# cannot open: %s\n", error.message);
        return NULL;
    }
    int status = client_open_device(client);
    if (status == GPULUA_OK) {
        status = client_load_kernels(client);
    }
    if (status != GPULUA_OK) {
        printf("# cannot set up: %d: %s %s\n", status, client_text(client), client->lost_text);
        client_destroy(client);
        return NULL;
    }
    return client;
}

/* In good order; false if CLOSE was not answered. */
static inline bool client_close(struct client *client) {
    struct client_record out = client_record(WIRE_OP_CLOSE, 0);
    int status = client_request(client, &out);
    client_destroy(client);
    return status == GPULUA_OK;
}

#endif
