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

/* ---- bodies of conditional nodes ---- */

#define LIST_MAX 400000u

/* What has been told, in order. */
struct list {
    uint32_t count;
    struct piece {
        uint64_t seq;
        uint32_t node;
        int64_t begin_ns;
    } pieces[LIST_MAX];
};
static void list_timed(void *user, uint32_t stream, uint64_t seq, uint32_t node, int64_t begin_ns,
                       int64_t end_ns) {
    struct list *list = user;
    (void)stream;
    (void)end_ns;
    if (list->count < LIST_MAX) {
        list->pieces[list->count++] = (struct piece){seq, node, begin_ns};
    }
}
static uint32_t told_of(const struct list *list, uint64_t seq, uint32_t node) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        count += list->pieces[i].seq == seq && list->pieces[i].node == node;
    }
    return count;
}

static void next_graph(void) {
    void (*function)(void);
    *(void **)&function = dlsym(fake_cupti, "fake_next_graph");
    function();
}

/* A fill, a loop with two fills, a fill. Ours: 1; 2 with 3 and 4; 5. The driver's: 0, 1 (the
 * loop's), 2, one more; behind them the body's 4 and 5, and what decides, 6. */
enum { FIRST = 0, LOOP = 1, BODY = 4, DECIDES = 6 };
static struct backend_graph *make_loop(struct backend_device *device, uint64_t address) {
    struct backend_error error = {0};
    struct backend_graph *graph = NULL;
    struct backend_stream *on = NULL;
    struct backend_control control = {
        .kind = WIRE_CONTROL_WHILE, .body_count = 1, .address = address, .elem_bytes = 4};
    static const uint8_t zero[4]; /* the fake does what it says, and the loop ends at once */
    uint32_t deps[] = {0, 1};
    bool good = ops->graph_begin(device, &graph, &on, &error) == GPULUA_OK &&
                ops->graph_control_prepare(device, &error) == GPULUA_OK &&
                ops->graph_node(graph, NULL, 0, &error) == GPULUA_OK &&
                ops->fill(on, 1, address, zero, 4, 1, &error) == GPULUA_OK &&
                ops->graph_node(graph, &deps[0], 1, &error) == GPULUA_OK &&
                ops->graph_control(graph, &control, &error) == GPULUA_OK &&
                ops->graph_node(graph, NULL, 0, &error) == GPULUA_OK &&
                ops->fill(on, 2, address, zero, 4, 1, &error) == GPULUA_OK &&
                ops->graph_node(graph, &deps[0], 1, &error) == GPULUA_OK &&
                ops->fill(on, 3, address, zero, 4, 1, &error) == GPULUA_OK;
    next_graph();
    good = good && ops->graph_body_end(graph, &error) == GPULUA_OK &&
           ops->graph_node(graph, &deps[1], 1, &error) == GPULUA_OK &&
           ops->fill(on, 4, address, zero, 4, 1, &error) == GPULUA_OK;
    next_graph();
    if (!good || ops->graph_end(graph, &error) != GPULUA_OK) {
        printf("# %s\n", error.message);
    }
    return graph;
}

/* Returns the call's number. */
static uint32_t launch_loop(struct backend_device *device, struct backend_stream *stream,
                            struct backend_graph *graph, uint64_t seq) {
    struct backend_error error = {0};
    ops->trace_begin(device, 4, seq);
    (void)ops->graph_launch(stream, seq, graph, &error);
    uint32_t number = call(GRAPH_LAUNCH);
    ops->trace_end(device);
    return number;
}
static void node_work(uint32_t number, uint32_t graph, uint32_t node, int64_t begin_ns) {
    CUPTI(uint32_t, node) = node;
    CUPTI(uint32_t, graph) = graph;
    work(MEMSET, number, (uint64_t)begin_ns, (uint64_t)begin_ns + 1);
}

/* One device with two graphs that have a loop each. */
struct loops {
    struct list told;
    struct backend_device *device;
    struct backend_stream *stream;
    struct backend_slab *slab;
    struct backend_graph *graphs[2];
};
static bool loops_open(struct loops *loops) {
    struct backend_error error = {0};
    uint64_t address = 0;
    struct backend_open_info info = {.cache_path = folder,
                                     .is_timed = true,
                                     .sink = {.user = &loops->told, .timed = list_timed}};
    loops->told.count = 0;
    bool good = ops->device_open(&info, &loops->device, &error) == GPULUA_OK &&
                ops->stream_create(loops->device, 0, 0, &loops->stream, &error) == GPULUA_OK &&
                ops->slab_create(loops->device, 4096, &loops->slab, &address, &error) == GPULUA_OK;
    for (int i = 0; i < 2 && good; i++) {
        loops->graphs[i] = make_loop(loops->device, address);
        good = loops->graphs[i] != NULL;
    }
    return tap_check(&tap, good, "graphs with loops are made");
}
static void loops_close(struct loops *loops) {
    ops->device_close(loops->device);
    tap_check(&tap, is_left_alone(), "closing leaves nothing");
}

static void bodies(struct loops *loops) {
    struct list *told = &loops->told;
    CUPTI(uint32_t, node_step) = 1;
    if (!loops_open(loops)) {
        return;
    }
    uint32_t first = launch_loop(loops->device, loops->stream, loops->graphs[0], 1);
    uint32_t second = launch_loop(loops->device, loops->stream, loops->graphs[0], 2);
    int64_t base = clock_ns();
    for (int i = 0; i < 3; i++) { /* three turns, then one */
        node_work(0, 6, BODY, base + 10 + i);
        node_work(0, 6, BODY + 1, base + 10 + i);
        node_work(0, 6, DECIDES, base + 10 + i);
    }
    node_work(0, 6, BODY + 1, base + 105);
    node_work(0, 8, BODY, base + 20); /* another's graph */
    ops->trace_flush(loops->device);
    tap_check(&tap, told->count == 0, "what bodies did waits for the launch's own work");
    node_work(first, 6, FIRST, base + 1);
    node_work(first, 6, LOOP, base + 2);
    ops->trace_flush(loops->device);
    tap_check(&tap, told_of(told, 1, 1) == 1 && told_of(told, 1, 3) == 0,
              "also where a later launch may have begun before it");
    node_work(second, 6, LOOP, base + 101);
    ops->trace_flush(loops->device);
    tap_check(&tap,
              told_of(told, 1, 3) == 3 && told_of(told, 1, 4) == 3 && told_of(told, 1, 2) == 4 &&
                  told_of(told, 2, 4) == 1 && told_of(told, 2, 3) == 0 &&
                  told_of(told, 2, 2) == 1 && told->count == 13,
              "each goes to the launch that began before it, under its node; another's to none");
    loops_close(loops);
}

static void bodies_of_several(struct loops *a, struct loops *b) {
    if (!loops_open(a) || !loops_open(b)) {
        return;
    }
    uint32_t known = launch_loop(a->device, a->stream, a->graphs[0], 1);
    uint32_t other = launch_loop(b->device, b->stream, b->graphs[0], 1);
    int64_t base = clock_ns();
    node_work(known, 6, LOOP, base);
    node_work(other, 7, LOOP, base);
    ops->trace_flush(a->device);
    (void)launch_loop(b->device, b->stream, b->graphs[0], 2); /* it has not begun */
    base = clock_ns();
    uint32_t next = launch_loop(a->device, a->stream, a->graphs[0], 2);
    node_work(next, 6, LOOP, base + 5);
    node_work(0, 6, BODY, base + 6);
    ops->trace_flush(a->device);
    tap_check(&tap, told_of(&a->told, 2, 3) == 1, "a launch of another graph holds up nothing");
    (void)launch_loop(b->device, b->stream, b->graphs[1], 3); /* nor has this, for ever */
    ops->device_close(b->device);
    node_work(0, 6, BODY + 1, base + 7);
    ops->trace_flush(a->device);
    tap_check(&tap, told_of(&a->told, 2, 4) == 1, "nor does one of a device that is closed");
    loops_close(a);
}

static void many_bodies(struct loops *loops) {
    enum { LAUNCHES = 6000, PART = 1500 };
    static uint32_t numbers[LAUNCHES];
    if (!loops_open(loops)) {
        return;
    }
    int64_t base = clock_ns();
    for (uint64_t i = 0; i < LAUNCHES; i++) {
        numbers[i] = launch_loop(loops->device, loops->stream, loops->graphs[i % 2], i + 1);
    }
    base = clock_ns();
    for (uint32_t from = 0; from < LAUNCHES; from += PART) { /* all bodies before all else */
        for (uint32_t i = from; i < from + PART; i++) {
            node_work(0, 6 + i % 2, BODY, base + 10 * i + 5);
            node_work(0, 6 + i % 2, BODY + 1, base + 10 * i + 6);
        }
        ops->trace_flush(loops->device);
    }
    tap_check(&tap, loops->told.count == 0, "nothing is told of what nobody can know yet");
    for (uint32_t i = 0; i < LAUNCHES; i++) {
        node_work(numbers[i], 6 + i % 2, LOOP, base + 10 * i + 1);
        if (i % PART == PART - 1) {
            ops->trace_flush(loops->device);
        }
    }
    ops->trace_flush(loops->device);
    static const uint32_t node_at[10] = {[1] = 2, [5] = 3, [6] = 4};
    uint32_t right = 0;
    for (uint32_t i = 0; i < loops->told.count; i++) {
        const struct piece *piece = &loops->told.pieces[i];
        int64_t at = piece->begin_ns - base;
        right += (uint64_t)(at / 10) + 1 == piece->seq && piece->node == node_at[at % 10];
    }
    tap_check(&tap, right == 3 * LAUNCHES && loops->told.count == right,
              "thousands of launches, each with its own");
    loops_close(loops);
}

/* Nobody keeps what may never be known: it is counted. */
static void too_many_bodies(struct loops *loops) {
    const uint32_t all = 300000;
    if (!loops_open(loops)) {
        return;
    }
    int64_t base = clock_ns();
    uint32_t first = launch_loop(loops->device, loops->stream, loops->graphs[0], 1);
    node_work(first, 6, LOOP, base + 1);
    ops->trace_flush(loops->device);
    uint32_t second = launch_loop(loops->device, loops->stream, loops->graphs[0], 2);
    base = clock_ns();
    for (uint32_t i = 0; i < all; i++) {
        node_work(0, 6, BODY, base + 100 + i);
        if (i % 3000 == 2999) {
            ops->trace_flush(loops->device);
        }
    }
    node_work(second, 6, LOOP, base + 1);
    ops->trace_flush(loops->device);
    uint32_t missing = 0;
    for (uint32_t i = 0; i < loops->told.count; i++) {
        const struct piece *piece = &loops->told.pieces[i];
        missing += piece->node & WIRE_NODES_MISSING && piece->seq == 2
                       ? piece->node & ~WIRE_NODES_MISSING
                       : 0;
    }
    uint32_t told = told_of(&loops->told, 2, 3);
    tap_check(&tap, missing > 0 && told > 0 && missing + told == all,
              "of what there is no room for it is told how much it is");
    tap_check(&tap, told_of(&loops->told, 1, 3) == 0, "and it is given to nobody else");
    loops_close(loops);
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
    struct loops *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
    bodies(a);
    bodies_of_several(a, b);
    many_bodies(a);
    too_many_bodies(a);
    free(a);
    free(b);
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
