/* Hashing on the device (see verify.h): two kernels, compiled as any other by the backend, and what
 * they work on. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "executor/verify.h"
#include "wire/sync.h"

#define THREADS 128u
#define HEADER_BYTES 64u /* of the scratch: the first word is what gpulua_look has found */
#define SPINS 2000u      /* looks at an event before napping between them */
#define NAP_NS_MIN 20000u
#define NAP_NS_MAX 1000000u

/* The mixing is David Stafford's variant 13 of MurmurHash3's finaliser, as in splitmix64: each step
 * can be undone. A thread hashes a chunk; neighbours read neighbouring sectors. */
const char gpu_executor_verify_source[] =
    "typedef unsigned long long u64;\n"
    "static __device__ u64 mix(u64 x) {\n"
    "  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;\n"
    "  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;\n"
    "  return x ^ (x >> 31);\n"
    "}\n"
    "static __device__ u64 whole(u64 chunk) {\n"
    "  const uint4 *at = (const uint4 *)chunk;\n"
    "  u64 sum = 0;\n"
    "  for (u64 i = 0; i < 4; i++) {\n"
    "    uint4 v = at[i];\n"
    "    u64 place = i << 34;\n"
    "    sum += mix(place | v.x) + mix(place | 1ull << 32 | v.y) +\n"
    "           mix(place | 2ull << 32 | v.z) + mix(place | 3ull << 32 | v.w);\n"
    "  }\n"
    "  return sum;\n"
    "}\n"
    "static __device__ u64 part(u64 chunk, u64 begin, u64 end) {\n"
    "  u64 sum = 0;\n"
    "  for (u64 k = 0; k < 16; k++) {\n"
    "    u64 word = 0;\n"
    "    for (u64 b = 0; b < 4; b++) {\n"
    "      u64 at = chunk + 4 * k + b;\n"
    "      if (at >= begin && at < end) word |= (u64)*(const unsigned char *)at << (8 * b);\n"
    "    }\n"
    "    sum += mix(k << 32 | word);\n"
    "  }\n"
    "  return sum;\n"
    "}\n"
    /* spans: begin, end, table, number of the first chunk */
    "static __device__ u64 hash(const u64 *spans, unsigned count, u64 number, u64 **entry) {\n"
    "  unsigned low = 0, high = count;\n"
    "  while (high - low > 1) {\n"
    "    unsigned middle = (low + high) / 2;\n"
    "    if (spans[4 * middle + 3] <= number) low = middle; else high = middle;\n"
    "  }\n"
    "  u64 begin = spans[4 * low], end = spans[4 * low + 1], index = number - spans[4 * low + 3];\n"
    "  u64 chunk = (begin & ~63ull) + 64 * index;\n"
    "  *entry = (u64 *)spans[4 * low + 2] + index;\n"
    "  return chunk >= begin && chunk + 64 <= end ? whole(chunk) : part(chunk, begin, end);\n"
    "}\n"
    "extern \"C\" __global__ void gpulua_take(const u64 *spans, u64 chunks, unsigned count,\n"
    "                                       u64 *found) {\n"
    "  u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (number >= chunks) return;\n"
    "  u64 *entry, sum = hash(spans, count, number, &entry);\n"
    "  *entry = sum;\n"
    "}\n"
    "extern \"C\" __global__ void gpulua_look(const u64 *spans, u64 chunks, unsigned count,\n"
    "                                       u64 *found) {\n"
    "  u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (number >= chunks) return;\n"
    "  u64 *entry, sum = hash(spans, count, number, &entry);\n"
    "  if (*entry != sum) atomicMin(found, number);\n"
    "}\n";

#define FACTOR_1 UINT64_C(0xbf58476d1ce4e5b9)
#define FACTOR_2 UINT64_C(0x94d049bb133111eb)
/* Their inverses modulo 2^64. */
#define BACK_1 UINT64_C(0x96de1b173f119089)
#define BACK_2 UINT64_C(0x319642b2d24d8ec3)

uint64_t gpu_verify_mix(uint32_t place, uint32_t word) {
    uint64_t x = (uint64_t)place << 32 | word;
    x = (x ^ (x >> 30)) * FACTOR_1;
    x = (x ^ (x >> 27)) * FACTOR_2;
    return x ^ (x >> 31);
}

uint64_t gpu_verify_unmix(uint64_t number) {
    uint64_t x = number;
    x = (x ^ (x >> 31) ^ (x >> 62)) * BACK_2;
    x = (x ^ (x >> 27) ^ (x >> 54)) * BACK_1;
    return x ^ (x >> 30) ^ (x >> 60);
}

/* ---- making ---- */

static gpulua_status compile(struct wire_executor *executor, struct executor_verify *verify,
                             struct backend_error *error) {
    const struct backend_ops *ops = executor->ops;
    const struct backend_source source = {
        .name = "gpulua_hashes.cu", .text = gpu_executor_verify_source, .options = ""};
    struct wire_kernel_facts facts;
    void *image = NULL;
    size_t image_bytes = 0;
    char *description = NULL;
    bool prints;
    gpulua_status status =
        ops->module_compile(executor->device, &source, &image, &image_bytes, &description, error);
    if (status == GPULUA_OK) {
        status =
            ops->module_load(executor->device, image, image_bytes, true, &verify->module, error);
    }
    free(image);
    free(description);
    if (status == GPULUA_OK) {
        status =
            ops->kernel_get(verify->module, "gpulua_take", &verify->take, &prints, &facts, error);
    }
    if (status == GPULUA_OK) {
        status =
            ops->kernel_get(verify->module, "gpulua_look", &verify->look, &prints, &facts, error);
    }
    return status;
}

gpulua_status gpu_executor_verify_create(struct wire_executor *executor,
                                         struct backend_error *error) {
    struct executor_verify *verify = calloc(1, sizeof *verify);
    struct backend_error failed = {0};
    if (verify == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory for check mode");
    }
    verify->kernels.row_bytes = sizeof(char *);
    executor->verify = verify;
    gpulua_status status = compile(executor, verify, &failed);
    if (status == GPULUA_OK) {
        status = executor->ops->event_create(executor->device, &verify->event, &failed);
    }
    if (status != GPULUA_OK) {
        gpu_backend_fail(error, status, failed.driver_code,
                         "check mode on this device needs a kernel of its own: %.900s",
                         failed.message);
        gpu_executor_verify_destroy(executor);
    }
    free(failed.log);
    return status;
}

void gpu_executor_verify_destroy(struct wire_executor *executor) {
    const struct backend_ops *ops = executor->ops;
    struct executor_verify *verify = executor->verify;
    if (verify == NULL) {
        return;
    }
    while (verify->slab_count > 0) {
        gpu_executor_verify_slab_gone(executor, verify->slabs[verify->slab_count - 1].address);
    }
    if (verify->scratch != NULL) {
        ops->slab_destroy(executor->device, verify->scratch);
    }
    if (verify->event != NULL) {
        ops->event_destroy(executor->device, verify->event);
    }
    if (verify->module != NULL) {
        ops->module_unload(executor->device, verify->module);
    }
    for (uint32_t i = 0; i < verify->kernels.count; i++) {
        free(*(char **)gpu_executor_row(&verify->kernels, i));
    }
    gpu_executor_table_free(&verify->kernels);
    free(verify->slabs);
    free(verify->blocks);
    free(verify->staging);
    free(verify->writes);
    free(verify->takes.list);
    free(verify->takes.blocks);
    free(verify->looks.list);
    free(verify->looks.blocks);
    free(verify);
    executor->verify = NULL;
}

/* ---- memory ---- */

static gpulua_status no_room(struct backend_error *error, uint64_t bytes) {
    char why[600];
    int32_t code = error->driver_code;
    strncpy(why, error->message, sizeof why - 1);
    why[sizeof why - 1] = '\0';
    return gpu_backend_fail(error, error->status, code,
                            "check mode has no room for its hashes, %llu bytes of device memory: "
                            "%s",
                            (unsigned long long)bytes, why);
}

gpulua_status gpu_verify_tables_make(struct wire_executor *executor, struct backend_error *error) {
    struct executor_verify *verify = executor->verify;
    for (uint32_t i = 0; i < verify->slab_count; i++) {
        struct verify_slab *slab = &verify->slabs[i];
        uint64_t bytes = (slab->bytes / VERIFY_CHUNK_BYTES + 1) * sizeof(uint64_t);
        if (slab->table == NULL &&
            executor->ops->slab_create(executor->device, bytes, &slab->table, &slab->table_address,
                                       error) != GPULUA_OK) {
            slab->table = NULL;
            return no_room(error, bytes);
        }
    }
    return GPULUA_OK;
}

/* Header, spans, and behind them the hashes of edges, which only the device sees. */
static gpulua_status scratch_make(struct wire_executor *executor, uint64_t staging_bytes,
                                  uint64_t bytes, struct backend_error *error) {
    struct executor_verify *verify = executor->verify;
    if (staging_bytes > verify->staging_bytes) {
        uint8_t *grown = realloc(verify->staging, staging_bytes * 2);
        if (grown == NULL) {
            return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0,
                                    "no host memory for check mode");
        }
        verify->staging = grown;
        verify->staging_bytes = staging_bytes * 2;
    }
    if (bytes <= verify->scratch_bytes) {
        return GPULUA_OK;
    }
    if (verify->scratch != NULL) {
        executor->ops->slab_destroy(executor->device, verify->scratch);
        verify->scratch = NULL;
        verify->scratch_bytes = 0;
    }
    if (executor->ops->slab_create(executor->device, bytes * 2, &verify->scratch,
                                   &verify->scratch_address, error) != GPULUA_OK) {
        verify->scratch = NULL;
        return no_room(error, bytes * 2);
    }
    verify->scratch_bytes = bytes * 2;
    return GPULUA_OK;
}

/* ---- running ---- */

/* Behind all that is under way on other streams, so that nothing but the launch can be the cause of
 * a difference. */
static gpulua_status wait_for_others(struct wire_executor *executor,
                                     const struct backend_launch *launch,
                                     struct backend_error *error) {
    for (uint32_t slot = 0; slot < executor->stream_limit; slot++) {
        const struct executor_stream *stream = executor->streams[slot];
        if (stream == NULL || stream->stream == NULL || stream->stream == launch->stream ||
            gpu_wire_page_done(executor->page, slot) >= stream->last_seq) {
            continue;
        }
        struct executor_event *event;
        gpulua_status status =
            gpu_executor_event_awaited(executor, slot, stream->last_seq, &event, error);
        if (event != NULL) {
            status = executor->ops->stream_wait(launch->stream, event->event, error);
        }
        if (status != GPULUA_OK) {
            return status;
        }
    }
    return GPULUA_OK;
}

/* Until all of the launch's stream is over. */
static gpulua_status wait(struct wire_executor *executor, const struct backend_launch *launch,
                          struct backend_error *error) {
    struct backend_event *event = executor->verify->event;
    uint64_t nap_ns = NAP_NS_MIN;
    gpulua_status status = executor->ops->event_record(event, launch->stream, error);
    for (uint32_t round = 0; status == GPULUA_OK; round++) {
        enum backend_query query = executor->ops->event_query(event, error);
        if (query == BACKEND_DONE) {
            return GPULUA_OK;
        }
        if (query == BACKEND_FAILED ||
            atomic_load_explicit(&executor->is_lost, memory_order_relaxed)) {
            return error->status != GPULUA_OK
                       ? error->status
                       : gpu_backend_fail(error, GPULUA_DEVICE_LOST, 0, "the device is lost");
        }
        if (round < SPINS) {
            sched_yield();
        } else {
            gpu_wire_nap_ns(nap_ns);
            nap_ns = nap_ns * 2 < NAP_NS_MAX ? nap_ns * 2 : NAP_NS_MAX;
        }
    }
    return status;
}

gpulua_status gpu_verify_read(struct wire_executor *executor, const struct backend_launch *launch,
                              void *to, uint64_t address, uint64_t bytes,
                              struct backend_error *error) {
    gpulua_status status =
        executor->ops->download(launch->stream, launch->seq, to, address, bytes, error);
    return status == GPULUA_OK ? wait(executor, launch, error) : status;
}

/* Puts a kernel over the spans, which lie `offset` bytes into the scratch. */
static gpulua_status hash(struct wire_executor *executor, const struct backend_launch *launch,
                          struct backend_kernel *kernel, const struct verify_spans *spans,
                          uint64_t offset, struct backend_error *error) {
    struct executor_verify *verify = executor->verify;
    const struct {
        uint64_t spans, chunks;
        uint32_t count, reserved;
        uint64_t found;
    } args = {.spans = verify->scratch_address + offset,
              .chunks = spans->chunk_count,
              .count = spans->count,
              .found = verify->scratch_address};
    const struct backend_launch made = {
        .kernel = kernel,
        .stream = launch->stream,
        .seq = launch->seq,
        .grid = {(uint32_t)((spans->chunk_count + THREADS - 1) / THREADS), 1, 1},
        .block = {THREADS, 1, 1},
        .args = &args,
        .args_bytes = sizeof args,
    };
    return spans->count > 0 ? executor->ops->launch(&made, error) : GPULUA_OK;
}

static void edges_place(struct verify_spans *spans, uint64_t address) {
    for (uint32_t i = 0; i < spans->count; i++) {
        if ((spans->list[i].table & VERIFY_EDGE) != 0) {
            spans->list[i].table = (spans->list[i].table & ~VERIFY_EDGE) + address;
        }
    }
}

gpulua_status gpu_verify_run(struct wire_executor *executor, const struct backend_launch *launch,
                             uint64_t *changed, struct backend_error *error) {
    struct executor_verify *verify = executor->verify;
    uint64_t takes_bytes = verify->takes.count * sizeof(struct verify_span);
    uint64_t looks_bytes = verify->looks.count * sizeof(struct verify_span);
    uint64_t staging_bytes = HEADER_BYTES + takes_bytes + looks_bytes;
    uint64_t looks_offset = HEADER_BYTES + takes_bytes;
    gpulua_status status = scratch_make(
        executor, staging_bytes, staging_bytes + verify->edge_count * sizeof(uint64_t), error);
    if (status == GPULUA_OK) {
        status = wait_for_others(executor, launch, error);
    }
    if (status != GPULUA_OK) {
        return status;
    }
    edges_place(&verify->takes, verify->scratch_address + staging_bytes);
    edges_place(&verify->looks, verify->scratch_address + staging_bytes);
    memset(verify->staging, 0xff, HEADER_BYTES);
    if (looks_bytes > 0) { /* else there are no takes either */
        memcpy(verify->staging + HEADER_BYTES, verify->takes.list, takes_bytes);
        memcpy(verify->staging + looks_offset, verify->looks.list, looks_bytes);
    }
    status = executor->ops->upload(launch->stream, launch->seq, verify->scratch_address,
                                   verify->staging, staging_bytes, error);
    if (status == GPULUA_OK) {
        status = hash(executor, launch, verify->take, &verify->takes, HEADER_BYTES, error);
    }
    if (status == GPULUA_OK) {
        status = executor->ops->launch(launch, error);
    }
    if (status == GPULUA_OK) {
        status = hash(executor, launch, verify->look, &verify->looks, looks_offset, error);
    }
    if (status == GPULUA_OK) {
        status = executor->ops->download(launch->stream, launch->seq, verify->staging,
                                         verify->scratch_address, sizeof *changed, error);
    }
    /* Also behind a failure: what has been put on the stream reads and writes the staging. */
    struct backend_error unseen = {0};
    gpulua_status waited = wait(executor, launch, status == GPULUA_OK ? error : &unseen);
    free(unseen.log);
    memcpy(changed, verify->staging, sizeof *changed);
    return status == GPULUA_OK ? waited : status;
}
