/* The memory that graphs take on a device, against a model of one: memory of a size that slabs and
 * graphs share, streams whose work is over at once, or when the test says so, and changes of nodes
 * that fail on demand. When memory is short a graph gives its own back as soon as its own launches
 * are over, whatever else runs, and no more go than are needed. A change that failed for want of
 * memory is tried again. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "backend/tap.h"
#include "executor/executor.h"
#include "runtime/graph/state.h"
#include "runtime/resource.h"
#include "runtime/work.h"

static struct tap tap;

/* ---- the device ---- */

#define MIB (UINT64_C(1) << 20)
#define GRAPH_BYTES (16 * MIB)

struct backend_device {
    uint64_t used_bytes;
};
struct backend_slab {
    uint64_t bytes;
};
struct backend_stream {
    uint32_t slot;
    uint64_t put;
    _Atomic uint64_t done; /* if it is held */
    _Atomic bool is_held;
    struct backend_graph *graph; /* whose recording stream it is */
};
struct backend_event {
    struct backend_stream *stream;
    uint64_t number;
};
struct backend_graph {
    struct backend_stream recorder;
    bool is_built;
    uint32_t value, new_value; /* of the fill in it */
    struct backend_stream *last_stream;
    uint64_t last_number;
};

static struct backend_device model;
static struct backend_stream *streams[WIRE_STREAMS_MAX];
static uint64_t limit_bytes;
static int patch_failures; /* that are still to come */
static int graphs_ended, ended_early;
static _Atomic bool holds_ends, is_ending; /* of graphs that are put together */
static uint32_t launched_value;            /* of the newest launch */

static bool is_done(const struct backend_stream *stream, uint64_t number) {
    return stream == NULL || !stream->is_held || stream->done >= number;
}

static void hold(const struct gpu_stream *stream) {
    struct backend_stream *at = streams[stream->slot];
    at->done = at->put;
    at->is_held = true;
}

static void let_go(const struct gpu_stream *stream) {
    streams[stream->slot]->is_held = false;
}

static gpulua_status take(uint64_t bytes, struct backend_error *error) {
    if (model.used_bytes + bytes > limit_bytes) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "the device is full");
    }
    model.used_bytes += bytes;
    return GPULUA_OK;
}

static gpulua_status device_open(const struct backend_open_info *info,
                                 struct backend_device **device, struct backend_error *error) {
    (void)info;
    (void)error;
    *device = &model;
    return GPULUA_OK;
}
static void device_close(struct backend_device *device) {
    (void)device;
}
static void device_facts(struct backend_device *device, struct wire_device_facts *facts) {
    (void)device;
    facts->graph_node_bytes = 1024;
}
static gpulua_status memory_info(struct backend_device *device, struct wire_memory_facts *facts,
                                 struct backend_error *error) {
    (void)device;
    (void)error;
    facts->bytes_free = facts->bytes_total = 1024 * MIB;
    return GPULUA_OK;
}
static gpulua_status device_status(struct backend_device *device, struct backend_error *error) {
    (void)device;
    (void)error;
    return GPULUA_OK;
}
static gpulua_status slab_create(struct backend_device *device, uint64_t bytes,
                                 struct backend_slab **slab, uint64_t *address,
                                 struct backend_error *error) {
    (void)device;
    gpulua_status status = take(bytes, error);
    if (status == GPULUA_OK) {
        *slab = malloc(sizeof **slab);
        (*slab)->bytes = bytes;
        *address = 512; /* nobody looks */
    }
    return status;
}
static void slab_destroy(struct backend_device *device, struct backend_slab *slab) {
    device->used_bytes -= slab->bytes;
    free(slab);
}
static gpulua_status stream_create(struct backend_device *device, uint32_t slot, int priority,
                                   struct backend_stream **stream, struct backend_error *error) {
    (void)device;
    (void)priority;
    (void)error;
    *stream = streams[slot] = calloc(1, sizeof **stream);
    (*stream)->slot = slot;
    return GPULUA_OK;
}
static void stream_destroy(struct backend_device *device, struct backend_stream *stream) {
    (void)device;
    streams[stream->slot] = NULL;
    free(stream);
}
static gpulua_status stream_word(struct backend_stream *stream, _Atomic uint64_t *word,
                                 uint64_t value, struct backend_error *error) {
    (void)stream;
    (void)word;
    (void)value;
    return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0, "no words");
}
static gpulua_status event_create(struct backend_device *device, struct backend_event **event,
                                  struct backend_error *error) {
    (void)device;
    (void)error;
    *event = calloc(1, sizeof **event);
    return GPULUA_OK;
}
static void event_destroy(struct backend_device *device, struct backend_event *event) {
    (void)device;
    free(event);
}
static gpulua_status event_record(struct backend_event *event, struct backend_stream *stream,
                                  struct backend_error *error) {
    (void)error;
    *event = (struct backend_event){.stream = stream, .number = ++stream->put};
    return GPULUA_OK;
}
static gpulua_status stream_wait(struct backend_stream *stream, struct backend_event *event,
                                 struct backend_error *error) {
    (void)stream; /* no test waits for a stream that is held by way of another one */
    (void)event;
    (void)error;
    return GPULUA_OK;
}
static enum backend_query event_query(struct backend_event *event, struct backend_error *error) {
    (void)error;
    return is_done(event->stream, event->number) ? BACKEND_DONE : BACKEND_PENDING;
}
static gpulua_status fill(struct backend_stream *stream, uint64_t seq, uint64_t dst,
                          const void *element, uint32_t elem_bytes, uint64_t elem_count,
                          struct backend_error *error) {
    (void)seq;
    (void)dst;
    (void)elem_bytes;
    (void)elem_count;
    (void)error;
    stream->put++;
    if (stream->graph != NULL) {
        memcpy(&stream->graph->new_value, element, sizeof stream->graph->new_value);
    }
    return GPULUA_OK;
}
static gpulua_status graph_begin(struct backend_device *device, struct backend_graph **graph,
                                 struct backend_stream **stream, struct backend_error *error) {
    (void)device;
    (void)error;
    *graph = calloc(1, sizeof **graph);
    (*graph)->recorder.graph = *graph;
    *stream = &(*graph)->recorder;
    return GPULUA_OK;
}
static gpulua_status graph_node(struct backend_graph *graph, const uint32_t *deps,
                                uint32_t dep_count, struct backend_error *error) {
    (void)graph;
    (void)deps;
    (void)dep_count;
    (void)error;
    return GPULUA_OK;
}
static gpulua_status graph_end(struct backend_graph *graph, struct backend_error *error) {
    const struct timespec nap = {.tv_nsec = 1000000};
    is_ending = true;
    while (holds_ends) {
        nanosleep(&nap, NULL);
    }
    gpulua_status status = take(GRAPH_BYTES, error);
    graph->is_built = status == GPULUA_OK;
    graph->value = graph->new_value;
    return status;
}
static gpulua_status graph_launch(struct backend_stream *stream, uint64_t seq,
                                  struct backend_graph *graph, struct backend_error *error) {
    (void)seq;
    (void)error;
    graph->last_stream = stream;
    graph->last_number = ++stream->put;
    launched_value = graph->value;
    return GPULUA_OK;
}
static gpulua_status graph_patch(struct backend_graph *graph, uint32_t node, bool is_launch,
                                 struct backend_error *error) {
    (void)graph;
    (void)node;
    (void)is_launch;
    (void)error;
    return GPULUA_OK;
}
static gpulua_status graph_patched(struct backend_graph *graph, gpulua_status status,
                                   struct backend_error *error) {
    if (status == GPULUA_OK && patch_failures > 0) {
        patch_failures--;
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no memory for a change");
    }
    graph->value = graph->new_value;
    return status;
}
static void graph_destroy(struct backend_device *device, struct backend_graph *graph) {
    ended_early += !is_done(graph->last_stream, graph->last_number);
    graphs_ended += graph->is_built;
    device->used_bytes -= graph->is_built ? GRAPH_BYTES : 0;
    free(graph);
}
static const struct backend_ops model_ops = {.version = GPU_BACKEND_VERSION,
                                             .name = "cpu",
                                             .device_open = device_open,
                                             .device_close = device_close,
                                             .device_facts = device_facts,
                                             .memory_info = memory_info,
                                             .device_status = device_status,
                                             .slab_create = slab_create,
                                             .slab_destroy = slab_destroy,
                                             .stream_create = stream_create,
                                             .stream_destroy = stream_destroy,
                                             .stream_word = stream_word,
                                             .stream_wait = stream_wait,
                                             .event_create = event_create,
                                             .event_destroy = event_destroy,
                                             .event_record = event_record,
                                             .event_query = event_query,
                                             .fill = fill,
                                             .graph_begin = graph_begin,
                                             .graph_node = graph_node,
                                             .graph_end = graph_end,
                                             .graph_launch = graph_launch,
                                             .graph_patch = graph_patch,
                                             .graph_patched = graph_patched,
                                             .graph_destroy = graph_destroy};

/* Instead of backend/registry.c's. */
const struct backend_ops *const gpu_backend_table[] = {&model_ops, NULL};
const struct backend_ops *gpu_backend_find(const char *name) {
    return strcmp(name, model_ops.name) == 0 ? &model_ops : NULL;
}

/* ---- the runtime ---- */

enum { GRAPHS = 4, BYTES = 64 };

static struct gpu_error error;
static struct gpu_device *device;
static struct gpu_stream *of_graphs, *other;
static struct gpu_block *block;
static struct gpu_graph *graphs[GRAPHS];
static struct gpu_memory *direct; /* each allocation is one of the device's */
static atomic_int interrupt;

static void need(gpulua_status status, const char *what) {
    if (status) {
        printf("# %s: %s\n", what, error.message);
        tap_check(&tap, false, what);
        exit(tap_finish(&tap));
    }
}

static gpulua_status put_fill(const struct gpu_submit *submit, uint32_t value) {
    const struct gpu_ref ref = {block, 0, BYTES, GPU_TYPE_U32};
    return gpu_work_fill(submit, &ref, &value, NULL, &error);
}

static gpulua_status make_graph(uint32_t value, struct gpu_graph **graph) {
    const struct gpu_submit submit = {.stream = of_graphs};
    struct gpu_submit captured = submit;
    need(gpu_capture_create(&submit, NULL, &captured.capture, &error), "a capture");
    need(put_fill(&captured, value), "a node");
    gpulua_status status = gpu_capture_finish(captured.capture, graph, &error);
    gpu_capture_release(captured.capture);
    return status;
}

static gpulua_status change_graph(struct gpu_graph *graph, uint32_t value) {
    const struct gpu_submit submit = {.stream = of_graphs};
    struct gpu_submit captured = submit;
    struct gpu_graph_change change;
    need(gpu_capture_again(graph, &submit, &captured.capture, &error), "a capture");
    need(put_fill(&captured, value), "a node");
    gpulua_status status = gpu_graph_update(graph, captured.capture, false, &change, &error);
    gpu_capture_release(captured.capture);
    return status;
}

static gpulua_status launch_on(struct gpu_stream *stream, int graph) {
    const struct gpu_submit submit = {.stream = stream};
    return gpu_graph_launch(graphs[graph], &submit, NULL, &error);
}

/* Work whose end does not come before the test says so. */
static void keep_busy(struct gpu_stream *stream) {
    const struct gpu_submit submit = {.stream = stream};
    hold(stream);
    need(gpu_work_mark(&submit, NULL, NULL, &error), "a mark");
}

static gpulua_status allocate(struct gpu_memory *memory, uint64_t bytes, struct gpu_block **made) {
    struct gpu_block_info info = {.byte_count = bytes, .memory = memory};
    *made = NULL;
    return gpu_block_create(device, &info, made, &error);
}

/* Memory for a slab and `room` graphs; all graphs that fit, each launched and over. */
static void rig_open(int room) {
    struct gpu_device_info info = {
        .name = "cpu", .isolation = GPULUA_ISOLATE_NONE, .interrupt = &interrupt};
    struct gpu_memory_info of_direct = {.kind = GPU_MEMORY_DIRECT};
    limit_bytes = 64 * MIB + (uint64_t)room * GRAPH_BYTES;
    graphs_ended = ended_early = 0;
    need(gpu_device_open(&info, &device, &error), "the device opens");
    need(gpu_stream_create(device, &(struct gpu_stream_info){0}, &of_graphs, &error), "a stream");
    need(gpu_stream_create(device, &(struct gpu_stream_info){0}, &other, &error), "a stream");
    need(gpu_memory_create(device, &of_direct, &direct, &error), "a memory");
    need(allocate(NULL, BYTES, &block), "a block");
    for (int i = 0; i < GRAPHS; i++) {
        need(make_graph((uint32_t)i + 1, &graphs[i]), "a graph");
        need(launch_on(of_graphs, i), "a launch");
    }
    need(gpu_device_wait_idle(device, -1, &error), "all is over");
}

static void rig_close(void) {
    need(gpu_device_wait_idle(device, -1, &error), "all is over");
    for (int i = 0; i < GRAPHS; i++) {
        gpu_graph_release(graphs[i]);
        graphs[i] = NULL;
    }
    gpu_block_release(block);
    gpu_memory_release(direct);
    gpu_stream_release(of_graphs);
    gpu_stream_release(other);
    gpu_device_close(device, -1);
    gpu_device_release(device);
    tap_check(&tap, ended_early == 0, "no graph has gone before its launches were over");
    tap_check(&tap, model.used_bytes == 0, "and nothing is left on the device");
}

static bool is_there(int graph) {
    return graphs[graph]->made.is_there;
}

/* While another stream is at work. */
static void test_one_goes(void) {
    struct gpu_block *large;
    rig_open(GRAPHS);
    keep_busy(other);
    tap_check(&tap, allocate(direct, GRAPH_BYTES, &large) == GPULUA_OK,
              "memory that a graph has is found while another stream works");
    tap_check(&tap, device->stats.graph_evictions == 1 && graphs_ended == 1 && !is_there(0),
              "one graph goes for it, which was launched longest ago");
    struct gpu_graph *more = NULL;
    tap_check(&tap, make_graph(9, &more) == GPULUA_OK && device->stats.graph_evictions == 2,
              "and one for another graph");
    gpu_block_close(large);
    tap_check(&tap,
              launch_on(of_graphs, 0) == GPULUA_OK && launched_value == 1 &&
                  device->stats.graph_evictions == 2,
              "which comes back when there is room");
    gpu_graph_release(more);
    let_go(other);
    rig_close();
}

/* Two for twice as much, and all of them only if that is not enough either. */
static void test_no_more(void) {
    struct gpu_block *large;
    rig_open(GRAPHS);
    keep_busy(other);
    tap_check(&tap,
              allocate(direct, 2 * GRAPH_BYTES, &large) == GPULUA_OK &&
                  device->stats.graph_evictions == 2,
              "as many go as are needed");
    gpu_block_release(large);
    tap_check(&tap, allocate(direct, 512 * MIB, &large) == GPULUA_OUT_OF_MEMORY,
              "what does not fit is OutOfMemory");
    gpu_error_finish(&error);
    let_go(other);
    rig_close();
}

/* What runs is not waited for where something else can go. */
static void test_running_stays(void) {
    struct gpu_block *large;
    rig_open(GRAPHS);
    hold(other);
    need(launch_on(other, 0), "a launch");
    for (int i = 1; i < GRAPHS; i++) {
        need(launch_on(of_graphs, i), "a launch");
    }
    tap_check(&tap,
              allocate(direct, GRAPH_BYTES, &large) == GPULUA_OK && is_there(0) && !is_there(1),
              "a graph whose launch runs stays where others can go");
    gpu_block_release(large);
    let_go(other);
    rig_close();
}

static void *let_go_soon(void *stream) {
    const struct timespec pause = {.tv_nsec = 30000000};
    nanosleep(&pause, NULL);
    let_go(stream);
    return NULL;
}

static void *interrupt_soon(void *unused) {
    const struct timespec pause = {.tv_nsec = 30000000};
    nanosleep(&pause, NULL);
    interrupt = 1;
    return unused;
}

/* Where all run one is waited for, and then goes. */
static void test_waits(void) {
    pthread_t thread;
    struct gpu_block *large;
    struct gpu_graph *more = NULL;
    rig_open(GRAPHS);
    hold(of_graphs);
    for (int i = 0; i < GRAPHS; i++) {
        need(launch_on(of_graphs, i), "a launch");
    }
    pthread_create(&thread, NULL, interrupt_soon, NULL);
    gpulua_status status = allocate(direct, GRAPH_BYTES, &large);
    pthread_join(thread, NULL);
    tap_check(&tap, status == GPULUA_INTERRUPTED && device->stats.graph_evictions == 0,
              "the wait for a graph's launch can be interrupted, and none has gone");
    gpu_error_finish(&error);
    status = make_graph(9, &more);
    tap_check(&tap, status == GPULUA_INTERRUPTED && device->stats.graph_evictions == 0,
              "so can that of another graph");
    gpu_error_finish(&error);
    interrupt = 0;
    keep_busy(other);
    pthread_create(&thread, NULL, let_go_soon, of_graphs);
    status = allocate(direct, GRAPH_BYTES, &large);
    pthread_join(thread, NULL);
    tap_check(&tap, status == GPULUA_OK && device->stats.graph_evictions == 1,
              "where all graphs run one is waited for, and goes alone");
    gpu_block_release(large);
    let_go(other);
    rig_close();
}

/* By those who wait for memory themselves, no longer than they were told to. */
static void test_policy(void) {
    struct gpu_memory *waits = NULL;
    struct gpu_memory_info info = {
        .kind = GPU_MEMORY_POLICY, .policy = GPU_OOM_WAIT, .timeout_ns = 1000000};
    struct gpu_block *large;
    rig_open(GRAPHS);
    info.upstream = direct;
    need(gpu_memory_create(device, &info, &waits, &error), "a memory that waits");
    hold(of_graphs);
    for (int i = 0; i < GRAPHS; i++) {
        need(launch_on(of_graphs, i), "a launch");
    }
    tap_check(&tap,
              allocate(waits, GRAPH_BYTES, &large) == GPULUA_OUT_OF_MEMORY &&
                  device->stats.graph_evictions == 0,
              "who has waited for memory waits for no launch, and no graph goes in vain");
    gpu_error_finish(&error);
    let_go(of_graphs);
    tap_check(&tap,
              allocate(waits, GRAPH_BYTES, &large) == GPULUA_OK &&
                  device->stats.graph_evictions == 1,
              "one whose launch is over goes for it, too");
    gpu_block_release(large);
    gpu_memory_release(waits);
    rig_close();
}

/* The budget counts what has gone, which is over. */
static void test_budget(void) {
    struct gpu_block *large;
    rig_open(GRAPHS);
    keep_busy(other);
    uint64_t room = device->account.limit_bytes - device->account.used_bytes;
    limit_bytes = 2048 * MIB;
    tap_check(&tap,
              allocate(direct, room + 512, &large) == GPULUA_OK &&
                  device->stats.graph_evictions == 1 && graphs_ended == 1,
              "for the budget one goes at once, too");
    gpu_block_release(large);
    let_go(other);
    rig_close();
}

/* Graphs that cannot make room stay; with what is freed but in use they can, and no more go than
 * that needs. */
static void test_budget_in_vain(void) {
    struct gpu_block *large, *freed, *more;
    pthread_t thread;
    rig_open(GRAPHS);
    limit_bytes = 2048 * MIB;
    const struct gpu_submit on_other = {.stream = other};
    need(allocate(NULL, 4096, &freed), "a block");
    uint64_t room = device->account.limit_bytes - device->account.used_bytes;
    need(allocate(direct, room / 512 * 512, &large), "all that is left");
    hold(of_graphs);
    for (int i = 0; i < GRAPHS; i++) {
        need(launch_on(of_graphs, i), "a launch");
    }
    tap_check(&tap,
              allocate(direct, 65536, &more) == GPULUA_OUT_OF_BUDGET &&
                  device->stats.graph_evictions == 0,
              "where graphs cannot make room in a budget none is waited for, and none goes");
    gpu_error_finish(&error);
    let_go(of_graphs);
    need(gpu_device_wait_idle(device, -1, &error), "all is over");
    const struct gpu_ref all = {freed, 0, 4096, GPU_TYPE_U32};
    uint32_t zero = 0;
    hold(other);
    need(gpu_work_fill(&on_other, &all, &zero, NULL, &error), "a fill");
    gpu_block_close(freed);
    pthread_create(&thread, NULL, let_go_soon, other);
    gpulua_status status = allocate(direct, 6144, &more);
    pthread_join(thread, NULL);
    tap_check(&tap, status == GPULUA_OK && device->stats.graph_evictions == 2,
              "with what is freed but in use, as many go as are needed besides");
    gpu_block_release(more);
    gpu_block_release(large);
    rig_close();
}

/* Closed while its launch runs: whoever needs the memory next finds it, as soon as that is over. */
static void test_closed(void) {
    struct gpu_block *large;
    rig_open(GRAPHS);
    hold(of_graphs);
    need(launch_on(of_graphs, 0), "a launch");
    keep_busy(other);
    gpu_graph_release(graphs[0]);
    graphs[0] = NULL;
    (void)gpu_device_poll(device);
    tap_check(&tap, graphs_ended == 0, "a graph that is closed goes when its launch is over");
    let_go(of_graphs);
    tap_check(&tap,
              allocate(direct, GRAPH_BYTES, &large) == GPULUA_OK &&
                  device->stats.graph_evictions == 0 && graphs_ended == 1,
              "then its memory is there, whatever other streams do");
    gpu_block_release(large);
    let_go(other);
    need(make_graph(1, &graphs[0]), "a graph");
    rig_close();
}

/* Closed while it runs, as all others do: who needs memory waits for that. */
static void test_leaving(void) {
    pthread_t thread;
    struct gpu_block *large;
    rig_open(GRAPHS);
    hold(of_graphs);
    hold(other);
    need(launch_on(other, 0), "a launch");
    for (int i = 1; i < GRAPHS; i++) {
        need(launch_on(of_graphs, i), "a launch");
    }
    gpu_graph_release(graphs[0]);
    graphs[0] = NULL;
    (void)gpu_device_poll(device);
    pthread_create(&thread, NULL, let_go_soon, other);
    gpulua_status status = allocate(direct, GRAPH_BYTES, &large);
    pthread_join(thread, NULL);
    tap_check(&tap, status == GPULUA_OK && device->stats.graph_evictions == 0 && graphs_ended == 1,
              "one that was closed while it ran is waited for, too, and no other goes");
    gpu_block_release(large);
    let_go(of_graphs);
    need(make_graph(1, &graphs[0]), "a graph");
    rig_close();
}

static void *end_soon(void *unused) {
    const struct timespec pause = {.tv_nsec = 30000000};
    nanosleep(&pause, NULL);
    holds_ends = false;
    return unused;
}

static void sit(struct gpu_seat **seat) {
    struct gpu_error failed = {0};
    if (gpu_seat_take(device, &interrupt, seat, &failed)) {
        exit(1);
    }
    gpu_seat_sit(*seat);
}

static void *make_elsewhere(void *graph) {
    struct gpu_error failed = {0};
    struct gpu_seat *seat;
    sit(&seat);
    struct gpu_submit submit = {.stream = of_graphs};
    const struct gpu_ref ref = {block, 0, BYTES, GPU_TYPE_U32};
    uint32_t value = 1;
    gpulua_status status = gpu_capture_create(&submit, NULL, &submit.capture, &failed);
    status = status ? status : gpu_work_fill(&submit, &ref, &value, NULL, &failed);
    status = status ? status : gpu_capture_finish(submit.capture, graph, &failed);
    gpu_capture_release(submit.capture);
    gpu_seat_leave(seat);
    return NULL;
}

/* Another thread's, on its way to the device: what it takes of the budget can be had when it has
 * arrived. */
static void test_sent_elsewhere(void) {
    struct gpu_device_info info = {
        .name = "cpu", .isolation = GPULUA_ISOLATE_THREAD, .interrupt = &interrupt};
    struct gpu_memory_info of_direct = {.kind = GPU_MEMORY_DIRECT};
    const struct timespec nap = {.tv_nsec = 1000000};
    struct gpu_block *small;
    struct gpu_seat *seat;
    pthread_t maker, ender;
    limit_bytes = 2048 * MIB;
    need(gpu_device_open(&info, &device, &error), "the device opens");
    need(gpu_device_share(device, &error), "it is shared");
    sit(&seat);
    need(gpu_stream_create(device, &(struct gpu_stream_info){0}, &of_graphs, &error), "a stream");
    need(gpu_memory_create(device, &of_direct, &direct, &error), "a memory");
    need(allocate(NULL, BYTES, &block), "a block");
    device->account.limit_bytes = device->account.used_bytes + 1024; /* one graph */
    holds_ends = true;
    is_ending = false;
    pthread_create(&maker, NULL, make_elsewhere, &graphs[0]);
    while (!is_ending) {
        nanosleep(&nap, NULL);
    }
    pthread_create(&ender, NULL, end_soon, NULL);
    gpulua_status status = allocate(direct, 512, &small);
    pthread_join(ender, NULL);
    pthread_join(maker, NULL);
    tap_check(&tap, status == GPULUA_OK && graphs[0] && !is_there(0),
              "a graph that another thread sends is waited for, and goes when it is there");
    gpu_block_release(small);
    need(launch_on(of_graphs, 0), "a launch");
    need(gpu_device_wait_idle(device, -1, &error), "all is over");
    tap_check(&tap, is_there(0), "and comes back when it is launched");
    gpu_graph_release(graphs[0]);
    graphs[0] = NULL;
    gpu_block_release(block);
    gpu_memory_release(direct);
    gpu_stream_release(of_graphs);
    gpu_seat_leave(seat);
    gpu_device_close(device, -1);
    gpu_device_release(device);
}

static bool launch_is(gpulua_status wanted) {
    const struct gpu_submit submit = {.stream = of_graphs};
    struct gpu_op *op = NULL;
    need(gpu_graph_launch(graphs[0], &submit, &op, &error), "a launch");
    need(gpu_op_wait(op, -1, &error), "its end");
    gpulua_status status = gpu_op_status(op);
    gpu_op_release(op);
    return status == wanted;
}

static void test_changes(void) {
    rig_open(GRAPHS);
    patch_failures = 1;
    tap_check(&tap,
              change_graph(graphs[0], 70) == GPULUA_OK && launch_is(GPULUA_OK) &&
                  launched_value == 70,
              "a change that failed for want of memory is tried again by the launch behind it");
    patch_failures = 2;
    tap_check(&tap,
              change_graph(graphs[0], 71) == GPULUA_OK && launch_is(GPULUA_OUT_OF_MEMORY) &&
                  launched_value == 70,
              "which fails if there is none yet");
    tap_check(&tap, launch_is(GPULUA_OK) && launched_value == 71,
              "and the next one does what it should");
    patch_failures = 1;
    tap_check(&tap,
              change_graph(graphs[0], 72) == GPULUA_OK &&
                  change_graph(graphs[0], 73) == GPULUA_OK && launch_is(GPULUA_OK) &&
                  launched_value == 73,
              "a later change stays when an older one had failed");
    patch_failures = 2;
    need(change_graph(graphs[0], 74), "a change");
    need(change_graph(graphs[0], 75), "a change");
    tap_check(&tap, launch_is(GPULUA_OK) && launched_value == 75,
              "of two that failed the newer one is tried again");
    rig_close();
}

int main(void) {
    test_one_goes();
    test_no_more();
    test_running_stays();
    test_waits();
    test_policy();
    test_budget();
    test_budget_in_vain();
    test_closed();
    test_leaving();
    test_sent_elsewhere();
    test_changes();
    return tap_finish(&tap);
}
