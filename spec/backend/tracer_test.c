/* Times of a traced device on CUDA, against fake_cuda.c and fake_cupti.c: by CUPTI, whose work it
 * was in whatever order that comes; by events where there is none. How exact they are is tested
 * where there is a GPU. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/backend.h"
#include "tap.h"

static struct tap tap;

#ifdef GPULUA_CUPTI

#include "fake_driver.h"

enum { KERNEL = 10, MEMCPY = 1, MEMSET = 2 };

static void *fake_cupti;
#define CUPTI(type, name) (*(type *)dlsym(fake_cupti, "fake_" #name))

enum { INIT = 1, LAUNCH, GRAPH_LAUNCH }; /* calls of the driver */
static uint32_t call(uint32_t id) {
    uint32_t (*function)(uint32_t);
    *(void **)&function = dlsym(fake_cupti, "fake_call");
    return function(id);
}
static void work(uint32_t kind, uint32_t number, uint64_t begin, uint64_t end) {
    void (*function)(uint32_t, uint32_t, uint64_t, uint64_t);
    *(void **)&function = dlsym(fake_cupti, "fake_work");
    function(kind, number, begin, end);
}
static void fail_cupti(const char *name, int code) {
    snprintf((char *)dlsym(fake_cupti, "fake_fail_name"), 64, "%s", name);
    CUPTI(int, fail_code) = code;
}

static bool is_left_alone(void) {
    return CUPTI(int, enabled) == 0 && CUPTI(int, subscribed) == 0 && FAKE(long, live) == 0;
}

/* What a device has told. */
struct told {
    int count;
    uint32_t stream;
    uint64_t seq;
    uint32_t nodes;                    /* digits, the last one's last */
    int64_t begin_ns, end_ns, took_ns; /* of all of them */
};
static void timed(void *user, uint32_t stream, uint64_t seq, uint32_t node, int64_t begin_ns,
                  int64_t end_ns) {
    struct told *told = user;
    told->nodes = told->nodes * 10 + node;
    told->count++;
    told->stream = stream;
    told->seq = seq;
    told->begin_ns = begin_ns;
    told->end_ns = end_ns;
    told->took_ns += end_ns - begin_ns;
}

static struct backend_device *open_timed(struct told *told) {
    struct backend_error error = {0};
    struct backend_device *device = NULL;
    struct backend_open_info info = {
        .cache_path = folder, .is_timed = true, .sink = {.user = told, .timed = timed}};
    if (ops->device_open(&info, &device, &error) != GPULUA_OK) {
        printf("# %s\n", error.message);
    }
    return device;
}

static int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void by_cupti(void) {
    struct told told = {0};
    struct backend_device *device = open_timed(&told);
    tap_check(&tap, ops->tells_times(device) && CUPTI(int, enabled) == 3, "CUPTI tells");
    typedef uint64_t clock_function(void);
    clock_function *clock = CUPTI(clock_function *, clock);
    int64_t before = clock_ns(), at = (int64_t)clock(), after = clock_ns();
    tap_check(&tap, before <= at && at <= after, "by the host's monotonic clock");
    static const uint32_t kinds[] = {KERNEL, MEMCPY, MEMSET};
    bool good = true;
    for (uint64_t i = 0; i < 3; i++) {
        ops->trace_begin(device, 511, (UINT64_C(1) << 40) + i);
        work(kinds[i], call(LAUNCH), 1000 + i, 1500 + 2 * i);
        ops->trace_end(device);
        told = (struct told){0};
        ops->trace_flush(device);
        good = good && told.count == 1 && told.stream == 511 &&
               told.seq == (UINT64_C(1) << 40) + i && told.begin_ns == (int64_t)(1000 + i) &&
               told.end_ns == (int64_t)(1500 + 2 * i);
    }
    tap_check(&tap, good, "of kernels, copies and fills");
    told = (struct told){0};
    ops->trace_begin(device, 3, 7);
    uint32_t graph = call(GRAPH_LAUNCH), second = call(LAUNCH);
    ops->trace_end(device);
    work(KERNEL, graph, 100, 110);
    work(KERNEL, second, 300, 320);
    work(KERNEL, graph, 200, 230);
    ops->trace_flush(device);
    tap_check(&tap, told.count == 3 && told.seq == 7 && told.took_ns == 60,
              "several pieces of one operation, of one call or of several");
    told = (struct told){0};
    for (int i = 0; i < 3000; i++) { /* more than a buffer */
        ops->trace_begin(device, 1, (uint64_t)i + 1);
        work(KERNEL, call(LAUNCH), 10, 20);
        ops->trace_end(device);
    }
    ops->trace_flush(device);
    tap_check(&tap, told.count == 3000 && told.seq == 3000, "thousands at once");
    told = (struct told){0};
    work(KERNEL, call(LAUNCH), 5, 6); /* the host's own */
    ops->trace_begin(device, 2, 9);
    uint32_t late = call(LAUNCH);
    work(KERNEL, call(INIT), 7, 8); /* not asked after: it cannot be */
    ops->trace_end(device);
    ops->trace_flush(device);
    work(KERNEL, late, 0, 0); /* without a time: CUPTI had no memory */
    work(KERNEL, late, 50, 60);
    ops->trace_flush(device);
    tap_check(&tap, told.count == 1 && told.seq == 9 && told.end_ns == 60,
              "nothing of what is the host's own, nor what has no time");
    ops->device_close(device);
    tap_check(&tap, is_left_alone(), "closing leaves nothing");
}

/* What the driver has made for a fill in each of three nodes, with one without work among them. */
static struct backend_graph *make_graph(struct backend_device *device, uint64_t address) {
    struct backend_error error = {0};
    struct backend_graph *graph = NULL;
    struct backend_stream *on = NULL;
    bool good = ops->graph_begin(device, &graph, &on, &error) == GPULUA_OK;
    for (uint32_t i = 0; i < 4 && good; i++) {
        uint32_t dep = i - 1;
        good = ops->graph_node(graph, &dep, i > 0, &error) == GPULUA_OK &&
               (i == 2 || ops->fill(on, i, address, "abcd", 4, 1, &error) == GPULUA_OK);
    }
    if (!good || ops->graph_end(graph, &error) != GPULUA_OK) {
        printf("# %s\n", error.message);
    }
    return graph;
}

static void launch_graph(struct backend_device *device, struct backend_stream *stream,
                         struct backend_graph *graph, uint64_t seq) {
    struct backend_error error = {0};
    ops->trace_begin(device, 4, seq);
    tap_check(&tap, ops->graph_launch(stream, seq, graph, &error) == GPULUA_OK, "it is launched");
    uint32_t number = call(GRAPH_LAUNCH), after = call(LAUNCH);
    ops->trace_end(device);
    for (uint32_t i = 0; i < 7; i++) {
        CUPTI(uint32_t, node) = i;
        work(i == 3 ? KERNEL : MEMSET, number, 100 + i, 110 + i);
    }
    work(MEMSET, after, 200, 210);
}

static void graphs(void) {
    struct told told = {0};
    struct backend_error error = {0};
    struct backend_device *device = open_timed(&told);
    struct backend_stream *stream = NULL;
    struct backend_slab *slab = NULL;
    uint64_t address = 0;
    CUPTI(uint32_t, node_step) = 2;
    bool good = ops->stream_create(device, 0, 0, &stream, &error) == GPULUA_OK &&
                ops->slab_create(device, 4096, &slab, &address, &error) == GPULUA_OK;
    struct backend_graph *graph = good ? make_graph(device, address) : NULL;
    if (graph == NULL) {
        tap_check(&tap, false, error.message);
        return;
    }
    launch_graph(device, stream, graph, 1);
    ops->trace_flush(device);
    tap_check(&tap, told.nodes == 11224400 && told.count == 8 && told.seq == 1,
              "of each node what the driver made for it; what nobody knows is of none");
    told = (struct told){0};
    launch_graph(device, stream, graph, 2);
    ops->graph_destroy(device, graph);
    ops->trace_flush(device);
    tap_check(&tap, told.nodes == 11224400, "also of a graph that is gone");
    fail_cupti("cuptiGetGraphNodeId", 12);
    graph = make_graph(device, address);
    told = (struct told){0};
    launch_graph(device, stream, graph, 3);
    ops->trace_flush(device);
    tap_check(&tap, told.nodes == 0 && told.count == 8, "the launch alone where ids are refused");
    launch_graph(device, stream, graph, 4); /* nobody asks */
    ops->graph_destroy(device, graph);
    ops->device_close(device);
    tap_check(&tap, is_left_alone(), "closing leaves nothing");
    CUPTI(uint32_t, node) = 0;
}

static void several_devices(void) {
    struct told a = {0}, b = {0}, c = {0};
    struct backend_device *first = open_timed(&a), *second = open_timed(&b);
    ops->trace_begin(first, 1, 1);
    uint32_t of_first = call(LAUNCH);
    ops->trace_end(first);
    ops->trace_begin(second, 1, 2);
    uint32_t of_second = call(LAUNCH);
    ops->trace_end(second);
    work(KERNEL, of_second, 10, 20);
    work(KERNEL, of_first, 30, 40);
    ops->trace_flush(second);
    tap_check(&tap, a.count == 1 && a.seq == 1 && b.count == 1 && b.seq == 2, "to each its own");
    ops->device_close(first);
    tap_check(&tap, CUPTI(int, enabled) == 3, "the other one goes on");
    struct backend_device *third = open_timed(&c); /* in the place of the first */
    work(KERNEL, of_first, 50, 60);
    ops->trace_flush(third);
    tap_check(&tap, a.count == 1 && b.count == 1 && c.count == 0,
              "what comes late goes to nobody else");
    ops->device_close(second);
    ops->device_close(third);
    tap_check(&tap, is_left_alone(), "closing leaves nothing");
}

/* Without CUPTI: the driver's events. */
static bool by_events(void) {
    struct told told = {0};
    struct backend_error error = {0};
    struct backend_stream *stream = NULL;
    struct backend_event *begin = NULL, *end = NULL;
    int64_t begin_ns = 0, end_ns = 0, before = clock_ns();
    struct backend_device *device = open_timed(&told);
    bool good = device != NULL && !ops->tells_times(device) &&
                ops->stream_create(device, 0, 0, &stream, &error) == GPULUA_OK &&
                ops->event_create(device, &begin, &error) == GPULUA_OK &&
                ops->event_create(device, &end, &error) == GPULUA_OK &&
                ops->event_record(begin, stream, &error) == GPULUA_OK &&
                ops->event_record(end, stream, &error) == GPULUA_OK &&
                ops->event_times(begin, end, &begin_ns, &end_ns, &error) == GPULUA_OK &&
                FAKE(int, event_flags) == 0;
    /* Times of the fake's events are milliseconds apart; where they lie is what the host saw. */
    good = good && end_ns - begin_ns == 1000000 && begin_ns > before - 20000000 &&
           end_ns < clock_ns() + 20000000;
    if (good) {
        fail_next("cuEventElapsedTime", 999, 0);
        good = ops->event_times(begin, end, &begin_ns, &end_ns, &error) == GPULUA_DRIVER &&
               strstr(error.message, "cuEventElapsedTime") != NULL;
    }
    if (device != NULL) {
        ops->device_close(device);
    }
    return good && FAKE(long, live) == 0;
}

static void without(void) {
    tap_check(&tap, (setenv("GPULUA_CUPTI", "0", 1), by_events()),
              "events where CUPTI is not wanted");
    unsetenv("GPULUA_CUPTI");
    static const char *const calls[] = {"cuptiActivityRegisterTimestampCallback",
                                        "cuptiActivityRegisterCallbacks",
                                        "cuptiActivityEnable",
                                        "cuptiSubscribe",
                                        "cuptiEnableDomain",
                                        "cuptiEnableCallback"};
    bool good = true;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        fail_cupti(calls[i], 12);
        good = good && by_events() && is_left_alone();
    }
    tap_check(&tap, good, "events where CUPTI refuses, as with another tool");
    struct told told = {0};
    struct backend_device *device = open_timed(&told);
    tap_check(&tap, ops->tells_times(device), "and CUPTI again when it does not");
    ops->device_close(device);
}

int main(void) {
    char library[256];
    if (!build() || (fake_cupti = build_fake("fake_cupti", library)) == NULL) {
        tap_skip(&tap, "everything", "no compiler for the fake libraries");
        return tap_finish(&tap);
    }
    setenv("GPULUA_LIBCUPTI", "/nowhere/libcupti.so", 1);
    tap_check(&tap, by_events(), "events where there is no CUPTI");
    setenv("GPULUA_LIBCUPTI", library, 1);
    CUPTI(unsigned, version) = 990000;
    tap_check(&tap, by_events(), "events where it is another version's");
    CUPTI(unsigned, version) = 130001;
    by_cupti();
    graphs();
    several_devices();
    without();
    remove_folder();
    return tap_finish(&tap);
}

#else

int main(void) {
    tap_skip(&tap, "everything", "this build has no cuda backend, or no cupti.h");
    return tap_finish(&tap);
}

#endif
