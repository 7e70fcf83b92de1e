/* CUPTI (tracer.h).
 *
 * CUPTI calls back at the beginning of each call that may lead to work on the device, and gives the
 * number of the call; with that number it tells, later and on some thread, of each kernel, copy and
 * fill that has come of it. So there is a table of the newest calls, with whose work each was for.
 *
 * Of a graph's work CUPTI also tells an id of the node (tracer_nodes.h); what bodies of conditional
 * nodes do it tells without a call (tracer_bodies.h).
 *
 * Source: CUPTI 13.0, "Activity API", "Callback API". */
#include "backend/cuda/tracer.h"

#include "backend/cuda/tracer_nodes.h"
#include "backend/text.h"

#ifdef GPULUA_CUPTI
#include <cupti.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cuda/tracer_bodies.h"

#define BUFFER_BYTES ((size_t)256 << 10)
#define DEVICES_MAX 64u
#define GENERATIONS 64u
#define CALLS_KEPT (1u << 17) /* a power of two */

/* clang-format off */
#define CUPTI_TABLE(X)                       \
    X(cuptiGetVersion)                       \
    X(cuptiGetResultString)                  \
    X(cuptiActivityRegisterCallbacks)        \
    X(cuptiActivityRegisterTimestampCallback)\
    X(cuptiActivityEnable)                   \
    X(cuptiActivityDisable)                  \
    X(cuptiActivityFlushAll)                 \
    X(cuptiActivityGetNextRecord)            \
    X(cuptiSubscribe)                        \
    X(cuptiUnsubscribe)                      \
    X(cuptiEnableCallback)                   \
    X(cuptiEnableDomain)                     \
    X(cuptiGetCallbackName)                  \
    X(cuptiGetGraphNodeId)
/* clang-format on */

struct call {
    uint32_t number;
    uint64_t operation;        /* 0: of none of ours */
    struct cuda_node_map *map; /* retained; NULL: it launched no graph that has one */
    uint64_t launch;           /* its number among those of graphs with bodies; 0: none */
};

static void tell(uint64_t operation, uint32_t node, int64_t begin_ns, int64_t end_ns);

static struct {
    pthread_mutex_t opening; /* who opens and closes devices; taken before `lock` */
    pthread_mutex_t lock;
    void *library;
#define X(name) __typeof__(name) *name;
    CUPTI_TABLE(X)
#undef X
    struct backend_device *devices[DEVICES_MAX];
    uint8_t generations[DEVICES_MAX]; /* of the places, so that nobody gets what is another's */
    uint32_t device_count;
    size_t enabled_count;              /* of `kinds`: another tool's are not ours to end */
    CUpti_SubscriberHandle subscriber; /* NULL: not subscribed */
    struct call *calls;                /* owned, CALLS_KEPT of them, by number */
    struct cuda_bodies bodies;
} tracer = {.opening = PTHREAD_MUTEX_INITIALIZER,
            .lock = PTHREAD_MUTEX_INITIALIZER,
            .bodies = {.tell = tell}};

static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                           CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};
#define KIND_COUNT (sizeof kinds / sizeof kinds[0])

/* What this thread is at; 0: nothing of ours. */
static _Thread_local uint64_t operation_now;
static _Thread_local struct cuda_node_map *map_now; /* of the graph that is launched */
static _Thread_local uint64_t launch_now;

/* ---- an operation as one number ---- */

static uint64_t pack(uint32_t place, uint32_t generation, uint32_t slot, uint64_t seq) {
    return UINT64_C(1) << 63 | (uint64_t)place << 57 | (uint64_t)generation << 51 |
           (uint64_t)slot << 41 | (seq & ((UINT64_C(1) << 41) - 1));
}
_Static_assert(WIRE_STREAMS_MAX <= 1u << 10 && DEVICES_MAX <= 1u << 6 && GENERATIONS <= 1u << 6,
               "they fit");

static uint64_t place_bits(uint32_t place) {
    return (uint64_t)place << 57;
}

/* Locked. */
static void tell(uint64_t operation, uint32_t node, int64_t begin_ns, int64_t end_ns) {
    uint32_t place = operation >> 57 & (DEVICES_MAX - 1), generation = operation >> 51 & 63u;
    struct backend_device *device = tracer.devices[place];
    bool has_times = end_ns >= begin_ns && begin_ns > 0;
    if (device != NULL && tracer.generations[place] == generation &&
        (has_times || node & WIRE_NODES_MISSING)) {
        device->sink.timed(device->sink.user, operation >> 41 & 1023u,
                           operation & ((UINT64_C(1) << 41) - 1), node, begin_ns, end_ns);
    }
}

static uint64_t CUPTIAPI host_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* ---- what CUPTI calls ---- */

static void CUPTIAPI on_request(uint8_t **buffer, size_t *byte_count, size_t *record_max) {
    *buffer = aligned_alloc(64, BUFFER_BYTES);
    *byte_count = *buffer != NULL ? BUFFER_BYTES : 0;
    *record_max = 0;
}

static void CUPTIAPI on_call(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                             const void *info) {
    (void)user;
    (void)domain;
    (void)id;
    const CUpti_CallbackData *data = info;
    if (operation_now == 0 || data->callbackSite != CUPTI_API_ENTER) {
        return;
    }
    pthread_mutex_lock(&tracer.lock);
    struct call *call = &tracer.calls[data->correlationId & (CALLS_KEPT - 1)];
    gpu_cuda_node_map_release(call->map);
    gpu_cuda_bodies_forget(&tracer.bodies, call->launch); /* what it is told by is overwritten */
    *call =
        (struct call){.number = data->correlationId, .operation = operation_now, .map = map_now};
    if (map_now != NULL) {
        gpu_cuda_node_map_retain(map_now);
        if (map_now->part_count > 1) {
            call->launch = launch_now =
                gpu_cuda_bodies_launch(&tracer.bodies, operation_now, map_now, (int64_t)host_ns());
        }
        map_now = NULL;
    }
    pthread_mutex_unlock(&tracer.lock);
}

/* Locked. */
static void take(uint32_t number, uint64_t node_id, uint64_t begin_ns, uint64_t end_ns) {
    const struct call *call = &tracer.calls[number & (CALLS_KEPT - 1)];
    if (number == 0 && node_id != 0) {
        gpu_cuda_bodies_work(&tracer.bodies, node_id, (int64_t)begin_ns, (int64_t)end_ns);
    } else if (call->number == number && call->operation != 0) {
        gpu_cuda_bodies_begun(&tracer.bodies, call->launch, (uint32_t)(node_id >> 32),
                              (int64_t)begin_ns);
        uint32_t node = call->map != NULL ? gpu_cuda_node_map_find(call->map, node_id) : 0;
        node = node == 0 && call->launch != 0 ? WIRE_NODES_MISSING : node;
        tell(call->operation, node, (int64_t)begin_ns, (int64_t)end_ns);
    }
}

/* Locked. What the later versions of these structs have more is behind what is read here. */
static void take_record(const CUpti_Activity *record) {
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const CUpti_ActivityKernel10 *kernel = (const CUpti_ActivityKernel10 *)(const void *)record;
        take(kernel->correlationId, kernel->graphNodeId, kernel->start, kernel->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const CUpti_ActivityMemcpy6 *copy = (const CUpti_ActivityMemcpy6 *)(const void *)record;
        take(copy->correlationId, copy->graphNodeId, copy->start, copy->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const CUpti_ActivityMemset4 *fill = (const CUpti_ActivityMemset4 *)(const void *)record;
        take(fill->correlationId, fill->graphNodeId, fill->start, fill->end);
        break;
    }
    default:
        break;
    }
}

static void CUPTIAPI on_completed(CUcontext context, uint32_t stream, uint8_t *buffer,
                                  size_t byte_count, size_t valid_bytes) {
    (void)context;
    (void)stream;
    (void)byte_count;
    CUpti_Activity *record = NULL;
    pthread_mutex_lock(&tracer.lock);
    while (tracer.cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
        take_record(record);
    }
    pthread_mutex_unlock(&tracer.lock);
    free(buffer);
}

/* ---- opening ---- */

static gpulua_status check(CUptiResult result, const char *what, struct backend_error *error) {
    if (result == CUPTI_SUCCESS) {
        return GPULUA_OK;
    }
    const char *text = "an unknown error";
    (void)tracer.cuptiGetResultString(result, &text);
    bool is_taken = result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED ||
                    result == CUPTI_ERROR_NOT_COMPATIBLE;
    return gpu_backend_fail(error, is_taken ? GPULUA_UNSUPPORTED : GPULUA_LIBRARY_ERROR,
                            (int32_t)result, "CUPTI: %s: %s", what, text);
}

static gpulua_status load(struct backend_error *error) {
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", NULL};
    void *library = NULL;
    gpulua_status status =
        gpu_cuda_toolkit_load("CUDA's profiling library (libcupti, part of the CUDA toolkit)",
                              "GPULUA_LIBCUPTI", names, &library, error);
    if (status != GPULUA_OK) {
        return status;
    }
#define X(name)                                                                                    \
    {                                                                                              \
        void *symbol = dlsym(library, #name);                                                      \
        memcpy(&tracer.name, &symbol, sizeof symbol);                                              \
        if (symbol == NULL) {                                                                      \
            return gpu_backend_fail(error, GPULUA_LIBRARY_UNAVAILABLE, 0,                          \
                                    "libcupti has no " #name ": it is too old, or not CUPTI");     \
        }                                                                                          \
    }
    CUPTI_TABLE(X)
#undef X
    uint32_t version = 0;
    if (tracer.cuptiGetVersion(&version) != CUPTI_SUCCESS ||
        version / 10000 != CUPTI_API_VERSION / 10000) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                                "CUPTI %u was found, and gpulua was built for %d", version,
                                (int)CUPTI_API_VERSION);
    }
    tracer.library = library;
    return GPULUA_OK;
}

/* Opening. Loaded, and wanted. */
static gpulua_status ready(struct backend_error *error) {
    const char *setting = getenv("GPULUA_CUPTI");
    if (setting != NULL && strcmp(setting, "0") == 0) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0, "GPULUA_CUPTI=0");
    }
    return tracer.library != NULL ? GPULUA_OK : load(error);
}

/* Calls of the driver that put work on a stream, and all of the runtime, which libraries use. */
static gpulua_status watch_calls(struct backend_error *error) {
    static const char *const prefixes[] = {"cuLaunch", "cuGraphLaunch", "cuMemcpy", "cuMemset"};
    gpulua_status status =
        check(tracer.cuptiEnableDomain(1, tracer.subscriber, CUPTI_CB_DOMAIN_RUNTIME_API),
              "the runtime's calls", error);
    for (CUpti_CallbackId id = 1; id < CUPTI_DRIVER_TRACE_CBID_SIZE && status == GPULUA_OK; id++) {
        const char *name = NULL;
        bool is_work = false;
        if (tracer.cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, id, &name) == CUPTI_SUCCESS &&
            name != NULL) {
            for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
                is_work |= strncmp(name, prefixes[i], strlen(prefixes[i])) == 0;
            }
        }
        if (is_work) {
            status = check(
                tracer.cuptiEnableCallback(1, tracer.subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id),
                "the driver's calls", error);
        }
    }
    return status;
}

/* Opening. */
static gpulua_status start(struct backend_error *error) {
    gpulua_status status = ready(error);
    if (status == GPULUA_OK && tracer.calls == NULL) {
        tracer.calls = calloc(CALLS_KEPT, sizeof *tracer.calls);
        status = tracer.calls != NULL
                     ? GPULUA_OK
                     : gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    if (status == GPULUA_OK) {
        status =
            check(tracer.cuptiSubscribe(&tracer.subscriber, on_call, NULL), "subscribing", error);
        tracer.subscriber = status == GPULUA_OK ? tracer.subscriber : NULL;
    }
    if (status == GPULUA_OK) {
        status = watch_calls(error);
    }
    if (status == GPULUA_OK) {
        status = check(tracer.cuptiActivityRegisterTimestampCallback(host_ns), "its clock", error);
    }
    if (status == GPULUA_OK) {
        status = check(tracer.cuptiActivityRegisterCallbacks(on_request, on_completed),
                       "its buffers", error);
    }
    for (size_t i = 0; i < KIND_COUNT && status == GPULUA_OK; i++) {
        status = check(tracer.cuptiActivityEnable(kinds[i]), "tracing", error);
        tracer.enabled_count += status == GPULUA_OK;
    }
    return status;
}

static void stop(void) {
    while (tracer.enabled_count > 0) {
        (void)tracer.cuptiActivityDisable(kinds[--tracer.enabled_count]);
    }
    if (tracer.subscriber != NULL) {
        (void)tracer.cuptiUnsubscribe(tracer.subscriber);
        tracer.subscriber = NULL;
    }
    pthread_mutex_lock(&tracer.lock);
    for (uint32_t i = 0; tracer.calls != NULL && i < CALLS_KEPT; i++) {
        gpu_cuda_node_map_release(tracer.calls[i].map);
        tracer.calls[i] = (struct call){0};
    }
    gpu_cuda_bodies_finish(&tracer.bodies);
    pthread_mutex_unlock(&tracer.lock);
}

/* Opening. In a place that no other device has. */
static gpulua_status take_place(struct backend_device *device, struct backend_error *error) {
    uint32_t place = 0;
    pthread_mutex_lock(&tracer.lock);
    while (place < DEVICES_MAX && tracer.devices[place] != NULL) {
        place++;
    }
    if (place < DEVICES_MAX) {
        tracer.devices[place] = device;
        tracer.generations[place] = (uint8_t)((tracer.generations[place] + 1u) % GENERATIONS);
        tracer.device_count++;
        device->tracer_place = place + 1;
    }
    pthread_mutex_unlock(&tracer.lock);
    return place < DEVICES_MAX ? GPULUA_OK
                               : gpu_backend_fail(error, GPULUA_CAPACITY, 0,
                                                  "CUPTI: %u traced devices are open", DEVICES_MAX);
}

/* CUPTI is called without the lock, which what it calls back takes. */
gpulua_status gpu_cuda_tracer_open(struct backend_device *device, struct backend_error *error) {
    pthread_mutex_lock(&tracer.opening);
    gpulua_status status = tracer.device_count == 0 ? start(error) : GPULUA_OK;
    if (status == GPULUA_OK) {
        status = take_place(device, error);
    } else if (tracer.library != NULL) {
        stop();
    }
    pthread_mutex_unlock(&tracer.opening);
    return status;
}

void gpu_cuda_tracer_close(struct backend_device *device) {
    if (device->tracer_place == 0) {
        return;
    }
    if (device->lost == CUDA_SUCCESS) {
        gpu_cuda_trace_flush(device);
    }
    pthread_mutex_lock(&tracer.opening);
    pthread_mutex_lock(&tracer.lock);
    tracer.devices[device->tracer_place - 1] = NULL;
    gpu_cuda_bodies_give_up_all(&tracer.bodies, place_bits(DEVICES_MAX - 1),
                                place_bits(device->tracer_place - 1));
    bool is_last = --tracer.device_count == 0;
    pthread_mutex_unlock(&tracer.lock);
    device->tracer_place = 0;
    if (is_last) {
        stop();
    }
    pthread_mutex_unlock(&tracer.opening);
}

/* ---- slots ---- */

bool gpu_cuda_tells_times(struct backend_device *device) {
    return device->tracer_place != 0;
}

void gpu_cuda_trace_begin(struct backend_device *device, uint32_t slot, uint64_t seq) {
    uint32_t place = device->tracer_place - 1;
    operation_now = pack(place, tracer.generations[place], slot, seq);
}

void gpu_cuda_trace_end(struct backend_device *device) {
    (void)device;
    operation_now = launch_now = 0;
    map_now = NULL;
}

bool gpu_cuda_tracer_node_id(CUgraphNode node, uint64_t *id) {
    return tracer.cuptiGetGraphNodeId(node, id) == CUPTI_SUCCESS;
}

void gpu_cuda_trace_graph(struct cuda_node_map *map) {
    map_now = map;
}

void gpu_cuda_trace_graph_failed(void) {
    map_now = NULL;
    pthread_mutex_lock(&tracer.lock);
    gpu_cuda_bodies_give_up(&tracer.bodies, launch_now);
    pthread_mutex_unlock(&tracer.lock);
}

void gpu_cuda_trace_flush(struct backend_device *device) {
    const struct cuda_driver *cu = &device->cu;
    if (gpu_cuda_enter(device, NULL) != GPULUA_OK) {
        return;
    }
    /* The driver looks at what is over, of which CUPTI then hears. */
    for (struct link *at = device->streams.next; at != &device->streams; at = at->next) {
        const struct backend_stream *stream = (const struct backend_stream *)(const void *)at;
        if (!stream->is_given) { /* the host may be capturing it */
            (void)cu->cuStreamQuery(stream->handle);
        }
    }
    (void)tracer.cuptiActivityFlushAll(0);
    pthread_mutex_lock(&tracer.lock);
    gpu_cuda_bodies_settle(&tracer.bodies, (int64_t)host_ns());
    pthread_mutex_unlock(&tracer.lock);
}

void gpu_cuda_tracer_describe(struct text *text) {
    struct backend_error error;
    gpu_backend_error_init(&error);
    pthread_mutex_lock(&tracer.opening);
    gpulua_status status = ready(&error);
    uint32_t version = 0;
    Dl_info info = {0};
    void *symbol = NULL;
    if (status == GPULUA_OK) {
        (void)tracer.cuptiGetVersion(&version);
        memcpy(&symbol, &tracer.cuptiGetVersion, sizeof symbol);
        (void)dladdr(symbol, &info);
    }
    pthread_mutex_unlock(&tracer.opening);
    if (status == GPULUA_OK) {
        gpu_text_format(text, "found\tCUPTI\t%s (%u.%u)\n", info.dli_fname ? info.dli_fname : "",
                        version / 10000, version / 100 % 100);
    } else {
        gpu_text_format(text, "missing\tCUPTI\t%s; traces use events instead\n", error.message);
    }
    free(error.log);
}

#else

gpulua_status gpu_cuda_tracer_open(struct backend_device *device, struct backend_error *error) {
    (void)device;
    return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                            "this gpulua was built without CUPTI's headers (cupti.h)");
}
void gpu_cuda_tracer_close(struct backend_device *device) {
    (void)device;
}
void gpu_cuda_tracer_describe(struct text *text) {
    gpu_text_format(text, "missing\tCUPTI\tthis gpulua was built without cupti.h; traces use "
                          "events instead\n");
}
bool gpu_cuda_tells_times(struct backend_device *device) {
    (void)device;
    return false;
}
void gpu_cuda_trace_begin(struct backend_device *device, uint32_t slot, uint64_t seq) {
    (void)device;
    (void)slot;
    (void)seq;
}
void gpu_cuda_trace_end(struct backend_device *device) {
    (void)device;
}
void gpu_cuda_trace_flush(struct backend_device *device) {
    (void)device;
}
bool gpu_cuda_tracer_node_id(CUgraphNode node, uint64_t *id) {
    (void)node;
    (void)id;
    return false;
}
void gpu_cuda_trace_graph(struct cuda_node_map *map) {
    (void)map;
}
void gpu_cuda_trace_graph_failed(void) {}

#endif
