/* CUPTI (tracer.h).
 *
 * CUPTI calls back at the beginning of each call that may lead to work on the device, and gives the
 * number of the call; with that number it tells, later and on some thread, of each kernel, copy and
 * fill that has come of it. So there is a table of the newest calls, with whose work each was for.
 *
 * Of a graph's work CUPTI also tells an id of the node. Its lower half counts the nodes of a graph
 * in the order in which they were made. In the executable graph, which its upper half is of there,
 * it counts those of the graph itself, then those of the first conditional node's first body, then
 * what is in bodies of that, and so on (seen with 13.0, not documented). Work of bodies is told of
 * without a call, before the other or after it: it is of the last launch of that executable graph
 * which began before, because they come one after another.
 *
 * Source: CUPTI 13.0, "Activity API", "Callback API". */
#include "backend/cuda/tracer.h"

#include "backend/text.h"

#ifdef GPULUA_CUPTI
#include <cupti.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BUFFER_BYTES ((size_t)256 << 10)
#define DEVICES_MAX 64u
#define GENERATIONS 64u
#define CALLS_KEPT (1u << 17) /* a power of two */
#define LAUNCHES_MAX (1u << 18)
#define LAUNCH_KEPT_NS INT64_C(1000000000) /* when a later one was told of */
#define LATER_MAX (1u << 18)

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

struct cuda_node_map {
    uint32_t ref_count; /* locked */
    bool is_broken;     /* no memory, or CUPTI cannot tell: of no use */
    bool is_over;       /* locked: its graph is gone */
    uint32_t graph;     /* locked: the executable one, as CUPTI counts them; 0: not known yet */
    uint64_t told_last; /* locked: the last launch of which something was told; 0: none */
    struct map_part {
        struct map_entry {
            uint32_t end;    /* behind the last of the driver's nodes that are this one's */
            uint32_t number; /* ours, from 1; 0: none */
        } * entries;         /* owned */
        uint32_t entry_count;
        uint32_t number; /* of the node whose body it is; 0: it is the graph */
    } * parts;           /* owned */
    uint32_t part_count, part_max;
    struct map_entry *entries; /* owned: of all parts */
    uint32_t entry_count;
};

/* Of a graph with bodies. */
struct launch {
    uint64_t number; /* from 1 */
    uint64_t operation;
    struct cuda_node_map *map; /* retained */
    int64_t called_ns;         /* INT64_MAX: it was given up */
    int64_t begin_ns;          /* INT64_MAX: nothing of it has been told */
    uint32_t graph;            /* its map's, where it is to be sorted by that */
    int64_t followed_ns;       /* a flush had told of a later one of its graph; 0: none has */
};

/* Work of a body, until it is known whose. */
struct later {
    uint64_t node_id;
    int64_t begin_ns, end_ns;
};

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
    struct launch *launches;           /* owned, in the order of their numbers */
    uint32_t launch_count, launch_capacity;
    uint64_t launch_last; /* number */
    struct later *later;  /* owned */
    uint32_t later_count, later_capacity;
} tracer = {.opening = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER};

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

static uint32_t place_of(uint64_t operation) {
    return operation >> 57 & (DEVICES_MAX - 1);
}

/* Locked. */
static void tell_sink(uint64_t operation, uint32_t node, int64_t begin_ns, int64_t end_ns) {
    uint32_t place = place_of(operation), generation = operation >> 51 & 63u;
    struct backend_device *device = tracer.devices[place];
    if (device != NULL && tracer.generations[place] == generation) {
        device->sink.timed(device->sink.user, operation >> 41 & 1023u,
                           operation & ((UINT64_C(1) << 41) - 1), node, begin_ns, end_ns);
    }
}

/* Locked. */
static void tell(uint64_t operation, uint32_t node, int64_t begin_ns, int64_t end_ns) {
    if (end_ns >= begin_ns && begin_ns > 0) {
        tell_sink(operation, node, begin_ns, end_ns);
    }
}

/* Locked. So much that was done is not told. */
static void tell_missing(uint64_t operation, uint32_t count) {
    tell_sink(operation, WIRE_NODES_MISSING | count, 0, 0);
}

/* ---- nodes ---- */

/* Locked. */
static void map_release(struct cuda_node_map *map) {
    if (map == NULL || --map->ref_count != 0) {
        return;
    }
    for (uint32_t i = 0; i < map->part_count; i++) {
        free(map->parts[i].entries);
    }
    free(map->parts);
    free(map->entries);
    free(map);
}

/* From 1; 0: none. The first whose end is behind it. */
static uint32_t node_of(const struct cuda_node_map *map, uint64_t id) {
    uint32_t index = (uint32_t)id, low = 0, high = map->entry_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (map->entries[middle].end > index) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low < map->entry_count ? map->entries[low].number : 0;
}

static uint64_t CUPTIAPI host_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* ---- bodies ---- */

/* Locked. What bodies of the oldest ones have done and nobody has told of yet never will be. */
static void forget_oldest(uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        tell_missing(tracer.launches[i].operation, 0);
        map_release(tracer.launches[i].map);
    }
    tracer.launch_count -= count;
    memmove(tracer.launches, tracer.launches + count,
            tracer.launch_count * sizeof *tracer.launches);
}

/* Locked. Returns its number; 0: no memory. */
static uint64_t note_launch(uint64_t operation, struct cuda_node_map *map) {
    if (tracer.launch_count == LAUNCHES_MAX) {
        forget_oldest(LAUNCHES_MAX / 4);
    }
    if (tracer.launch_count == tracer.launch_capacity) {
        uint32_t capacity = tracer.launch_capacity != 0 ? tracer.launch_capacity * 2 : 64;
        struct launch *grown = realloc(tracer.launches, capacity * sizeof *grown);
        if (grown == NULL) {
            return 0;
        }
        tracer.launches = grown;
        tracer.launch_capacity = capacity;
    }
    tracer.launches[tracer.launch_count++] = (struct launch){.number = ++tracer.launch_last,
                                                             .operation = operation,
                                                             .map = map,
                                                             .called_ns = (int64_t)host_ns(),
                                                             .begin_ns = INT64_MAX};
    map->ref_count++;
    return tracer.launch_last;
}

/* Locked. NULL: none, or it is known no more. */
static struct launch *launch_at(uint64_t number) {
    uint32_t low = 0, high = number != 0 ? tracer.launch_count : 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (tracer.launches[middle].number < number) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return number != 0 && low < tracer.launch_count && tracer.launches[low].number == number
               ? &tracer.launches[low]
               : NULL;
}

/* Locked. After a flush: those go that have no more to tell of. A buffer with other work that is
 * not over may hold back what bodies have done, but not for long. */
static void drop_launches(int64_t now_ns) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < tracer.launch_count; i++) {
        struct launch *launch = &tracer.launches[i];
        bool is_told = launch->begin_ns != INT64_MAX;
        bool is_followed = launch->map->told_last > launch->number || launch->map->is_over;
        if (is_told && is_followed && launch->followed_ns == 0) {
            launch->followed_ns = now_ns;
        }
        bool is_old = launch->followed_ns != 0 && now_ns - launch->followed_ns > LAUNCH_KEPT_NS;
        if (is_old || (!is_told && launch->called_ns == INT64_MAX)) {
            map_release(launch->map);
        } else {
            tracer.launches[kept++] = *launch;
        }
    }
    tracer.launch_count = kept;
}

/* Locked. If nothing of it has been told, nothing will be: no work waits for that any more. */
static void give_up(struct launch *launch) {
    if (launch != NULL) {
        launch->called_ns = INT64_MAX;
    }
}

static int compare_launches(const void *a, const void *b) {
    const struct launch *first = a, *second = b;
    return first->graph != second->graph
               ? (first->graph > second->graph) * 2 - 1
               : (first->begin_ns > second->begin_ns) * 2 - (first->begin_ns != second->begin_ns);
}

static int compare_later(const void *a, const void *b) {
    const struct later *first = a, *second = b;
    uint32_t graph = (uint32_t)(first->node_id >> 32), other = (uint32_t)(second->node_id >> 32);
    return graph != other
               ? (graph > other) * 2 - 1
               : (first->begin_ns > second->begin_ns) * 2 - (first->begin_ns != second->begin_ns);
}

/* Locked. Those of which something has been told, or may be, sorted by their graphs, with the
 * latter behind the former; owned, NULL: none, or no memory. */
static struct launch *launches_sorted(uint32_t *count) {
    struct launch *launches =
        tracer.launch_count > 0 ? malloc(tracer.launch_count * sizeof *launches) : NULL;
    *count = 0;
    for (uint32_t i = 0; i < tracer.launch_count && launches != NULL; i++) {
        const struct launch *launch = &tracer.launches[i];
        if (launch->begin_ns != INT64_MAX || launch->called_ns != INT64_MAX) {
            launches[*count] = *launch;
            launches[(*count)++].graph = launch->map->graph;
        }
    }
    if (launches != NULL) {
        qsort(launches, *count, sizeof *launches, compare_launches);
    }
    return launches;
}

/* Of one executable graph: launches told of are from `first` to `told`, others up to `end`. */
struct launches_of {
    uint32_t first, told, end;
    int64_t untold_ns; /* when the first of those was called that nothing has been told of */
};

static int64_t least_called(const struct launch *launches, uint32_t from, uint32_t to) {
    int64_t least_ns = INT64_MAX;
    for (uint32_t i = from; i < to; i++) {
        least_ns = launches[i].called_ns < least_ns ? launches[i].called_ns : least_ns;
    }
    return least_ns;
}

/* From there on. One of which nothing has been told, nor of another of its graph, may be of any
 * graph that is not known; they come first. */
static struct launches_of find_launches(const struct launch *launches, uint32_t count,
                                        uint32_t from, uint32_t graph) {
    uint32_t unknown = 0;
    while (from < count && launches[from].graph < graph) {
        from++;
    }
    struct launches_of of = {.first = from, .told = from};
    while (of.told < count && launches[of.told].graph == graph &&
           launches[of.told].begin_ns != INT64_MAX) {
        of.told++;
    }
    of.end = of.told;
    while (of.end < count && launches[of.end].graph == graph) {
        of.end++;
    }
    while (unknown < count && launches[unknown].graph == 0) {
        unknown++;
    }
    of.untold_ns = of.end > of.first ? least_called(launches, of.told, of.end)
                                     : least_called(launches, 0, unknown);
    return of;
}

static void tell_body(const struct launch *launch, const struct later *later) {
    uint32_t node = node_of(launch->map, later->node_id);
    tell(launch->operation, node != 0 ? node : WIRE_NODES_MISSING, later->begin_ns, later->end_ns);
}

/* Locked. Tells of what bodies did, but for what may be of a launch of which nothing has been told
 * yet; `all`: that is gone. What is of no launch that is known was none of ours. */
static void settle_bodies(bool all) {
    uint32_t count = 0, kept = 0;
    if (tracer.later_count == 0) {
        return;
    }
    struct launch *launches = launches_sorted(&count);
    if (launches == NULL && tracer.launch_count > 0 && !all) {
        return;
    }
    qsort(tracer.later, tracer.later_count, sizeof *tracer.later, compare_later);
    struct launches_of of = {0};
    uint32_t graph = 0, next = 0; /* the first launch that is behind it */
    uint32_t gone = 0;
    for (uint32_t i = 0; i < tracer.later_count; i++) {
        const struct later *later = &tracer.later[i];
        if (i == 0 || graph != (uint32_t)(later->node_id >> 32)) {
            graph = (uint32_t)(later->node_id >> 32);
            of = find_launches(launches, count, next, graph);
            next = of.first;
        }
        while (next < of.told && launches[next].begin_ns <= later->begin_ns) {
            next++;
        }
        if (later->begin_ns >= of.untold_ns && !all) {
            tracer.later[kept++] = *later;
        } else if (later->begin_ns < of.untold_ns && next > of.first) {
            tell_body(&launches[next - 1], later);
        } else if (later->begin_ns >= of.untold_ns) {
            gone++;
        }
        bool is_last =
            i + 1 == tracer.later_count || (uint32_t)(tracer.later[i + 1].node_id >> 32) != graph;
        if (is_last && gone > 0 && of.end > of.first) { /* it lacks them, or one before it */
            tell_missing(launches[of.end - 1].operation, gone);
        }
        gone = is_last ? 0 : gone;
    }
    free(launches);
    tracer.later_count = kept;
}

/* Locked. */
static void put_off(uint64_t node_id, int64_t begin_ns, int64_t end_ns) {
    if (tracer.later_count == LATER_MAX) {
        settle_bodies(false);
    }
    if (tracer.later_count == LATER_MAX) {
        settle_bodies(true);
    }
    if (tracer.later_count == tracer.later_capacity) {
        uint32_t capacity = tracer.later_capacity != 0 ? tracer.later_capacity * 2 : 1024;
        struct later *grown = realloc(tracer.later, capacity * sizeof *grown);
        if (grown == NULL) {
            return; /* it is not known */
        }
        tracer.later = grown;
        tracer.later_capacity = capacity;
    }
    tracer.later[tracer.later_count++] =
        (struct later){.node_id = node_id, .begin_ns = begin_ns, .end_ns = end_ns};
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
    map_release(call->map);
    give_up(launch_at(call->launch)); /* what it is told by is overwritten */
    *call =
        (struct call){.number = data->correlationId, .operation = operation_now, .map = map_now};
    if (map_now != NULL) {
        map_now->ref_count++;
        if (map_now->part_count > 1) {
            call->launch = launch_now = note_launch(operation_now, map_now);
        }
        map_now = NULL;
    }
    pthread_mutex_unlock(&tracer.lock);
}

/* Locked. */
static void take(uint32_t number, uint64_t node_id, uint64_t begin_ns, uint64_t end_ns) {
    const struct call *call = &tracer.calls[number & (CALLS_KEPT - 1)];
    if (number == 0 && node_id != 0) {
        put_off(node_id, (int64_t)begin_ns, (int64_t)end_ns);
    } else if (call->number == number && call->operation != 0) {
        struct launch *launch = launch_at(call->launch);
        if (launch != NULL && (int64_t)begin_ns < launch->begin_ns) {
            struct cuda_node_map *map = launch->map;
            launch->begin_ns = (int64_t)begin_ns;
            map->graph = (uint32_t)(node_id >> 32);
            map->told_last = launch->number > map->told_last ? launch->number : map->told_last;
        }
        uint32_t node = call->map != NULL ? node_of(call->map, node_id) : 0;
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
        map_release(tracer.calls[i].map);
        tracer.calls[i] = (struct call){0};
    }
    for (uint32_t i = 0; i < tracer.launch_count; i++) {
        map_release(tracer.launches[i].map);
    }
    free(tracer.launches);
    tracer.launches = NULL;
    tracer.launch_count = tracer.launch_capacity = 0;
    free(tracer.later);
    tracer.later = NULL;
    tracer.later_count = tracer.later_capacity = 0;
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
    for (uint32_t i = 0; i < tracer.launch_count; i++) {
        if (place_of(tracer.launches[i].operation) == device->tracer_place - 1) {
            give_up(&tracer.launches[i]);
        }
    }
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

struct cuda_node_map *gpu_cuda_trace_map(struct backend_device *device) {
    struct cuda_node_map *map = device->tracer_place != 0 ? calloc(1, sizeof *map) : NULL;
    if (map != NULL) {
        map->ref_count = 1;
        (void)gpu_cuda_trace_map_begin(map, 0);
    }
    return map;
}

uint32_t gpu_cuda_trace_map_begin(struct cuda_node_map *map, uint32_t number) {
    if (map == NULL || map->is_broken) {
        return 0;
    }
    if (map->part_count == map->part_max) {
        uint32_t room = map->part_max != 0 ? map->part_max * 2 : 1;
        struct map_part *grown = realloc(map->parts, room * sizeof *grown);
        map->is_broken = grown == NULL;
        if (map->is_broken) {
            return 0;
        }
        map->parts = grown;
        map->part_max = room;
    }
    map->parts[map->part_count] = (struct map_part){.number = number};
    return map->part_count++;
}

void gpu_cuda_trace_map_end(struct backend_device *device, struct cuda_node_map *map, uint32_t part,
                            CUgraph handle, const struct graph_node *nodes, uint32_t count) {
    const struct cuda_driver *cu = &device->cu;
    if (map == NULL || map->is_broken) {
        return;
    }
    size_t all = 0;
    struct map_entry *entries = malloc((count + (size_t)1) * sizeof *entries);
    map->is_broken = entries == NULL || cu->cuGraphGetNodes == NULL ||
                     cu->cuGraphGetNodes(handle, NULL, &all) != CUDA_SUCCESS;
    uint32_t end = 0;
    for (uint32_t i = 0; i < count && !map->is_broken; i++) {
        uint64_t id = 0;
        map->is_broken = nodes[i].handle != NULL &&
                         tracer.cuptiGetGraphNodeId(nodes[i].handle, &id) != CUPTI_SUCCESS;
        if (nodes[i].handle != NULL && (uint32_t)id >= end) {
            end = (uint32_t)id + 1;
        }
        entries[i] = (struct map_entry){.end = end, .number = nodes[i].number};
    }
    if (map->is_broken) {
        free(entries);
        return;
    }
    /* Behind all of a loop's body is what decides whether it goes on. */
    entries[count] = (struct map_entry){.end = end > (uint32_t)all ? end : (uint32_t)all,
                                        .number = map->parts[part].number};
    map->parts[part].entries = entries;
    map->parts[part].entry_count = count + 1;
}

void gpu_cuda_trace_map_seal(struct cuda_node_map *map) {
    uint32_t count = 0, before = 0;
    if (map == NULL || map->is_broken) {
        return;
    }
    for (uint32_t i = 0; i < map->part_count; i++) {
        count += map->parts[i].entry_count;
    }
    map->entries = malloc(count * sizeof *map->entries);
    for (uint32_t i = 0; i < map->part_count && map->entries != NULL; i++) {
        struct map_part *part = &map->parts[i];
        for (uint32_t k = 0; k < part->entry_count; k++) {
            map->entries[map->entry_count++] = (struct map_entry){
                .end = before + part->entries[k].end, .number = part->entries[k].number};
        }
        before = part->entry_count > 0 ? map->entries[map->entry_count - 1].end : before;
        free(part->entries);
        *part = (struct map_part){0};
    }
}

void gpu_cuda_trace_unmap(struct cuda_node_map *map) {
    if (map == NULL) {
        return;
    }
    pthread_mutex_lock(&tracer.lock);
    map->is_over = true;
    map_release(map);
    pthread_mutex_unlock(&tracer.lock);
}

void gpu_cuda_trace_graph(struct cuda_node_map *map) {
    map_now = map;
}

void gpu_cuda_trace_graph_failed(void) {
    map_now = NULL;
    pthread_mutex_lock(&tracer.lock);
    give_up(launch_at(launch_now));
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
    settle_bodies(false);
    drop_launches((int64_t)host_ns());
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
struct cuda_node_map *gpu_cuda_trace_map(struct backend_device *device) {
    (void)device;
    return NULL;
}
uint32_t gpu_cuda_trace_map_begin(struct cuda_node_map *map, uint32_t number) {
    (void)map;
    (void)number;
    return 0;
}
void gpu_cuda_trace_map_end(struct backend_device *device, struct cuda_node_map *map, uint32_t part,
                            CUgraph handle, const struct graph_node *nodes, uint32_t count) {
    (void)device;
    (void)map;
    (void)part;
    (void)handle;
    (void)nodes;
    (void)count;
}
void gpu_cuda_trace_map_seal(struct cuda_node_map *map) {
    (void)map;
}
void gpu_cuda_trace_unmap(struct cuda_node_map *map) {
    (void)map;
}
void gpu_cuda_trace_graph(struct cuda_node_map *map) {
    (void)map;
}
void gpu_cuda_trace_graph_failed(void) {}

#endif
