/* Graphs of backend/cuda: against fake_cuda.c that the driver's graph is the one asked for, that
 * each call may fail, and that nothing leaks; and, where GPULUA_DEVICE names a GPU, the same graphs
 * once more on it. There what they compute tells. */
#include <stdatomic.h>

#include "tap.h"

static struct tap tap;

#ifdef GPULUA_CUDA

#include <time.h>

#include "fake_driver.h"

/* *out = 2 * *a + 3 * *b; the fake knows it by its name. */
static const char weigh_ptx[] = ".version 6.0\n"
                                ".target sm_50\n"
                                ".address_size 64\n"
                                ".visible .entry weigh(.param .u64 out, .param .u64 a,\n"
                                "  .param .u64 b)\n"
                                "{\n"
                                "  .reg .b32 %x, %y;\n"
                                "  .reg .b64 %out, %a, %b;\n"
                                "  ld.param.u64 %out, [out];\n"
                                "  ld.param.u64 %a, [a];\n"
                                "  ld.param.u64 %b, [b];\n"
                                "  cvta.to.global.u64 %out, %out;\n"
                                "  cvta.to.global.u64 %a, %a;\n"
                                "  cvta.to.global.u64 %b, %b;\n"
                                "  ld.global.u32 %x, [%a];\n"
                                "  ld.global.u32 %y, [%b];\n"
                                "  mul.lo.u32 %x, %x, 2;\n"
                                "  mad.lo.u32 %x, %y, 3, %x;\n"
                                "  st.global.u32 [%out], %x;\n"
                                "  ret;\n"
                                "}\n";

#define CELLS 4096u
#define DEPS(...) (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4
#define NO_DEPS NULL, 0

static bool is_fake;
static struct backend_device *device;
static struct backend_stream *stream, *other;
static struct backend_event *event;
static struct backend_module *module;
static struct backend_kernel *kernel;
static uint64_t base; /* CELLS cells of 4 bytes */
static uint64_t seq;
static uint32_t *page; /* CELLS of the host's, registered */
static struct backend_error error;

static bool check(bool good, const char *what) {
    char text[200];
    snprintf(text, sizeof text, "%s%s", is_fake ? "" : "on the GPU: ", what);
    if (!tap_check(&tap, good, text) && error.message[0] != '\0') {
        printf("# %s\n", error.message);
    }
    gpu_backend_error_init(&error);
    return good;
}

static uint64_t cell(uint32_t number) {
    return base + 4 * (uint64_t)number;
}

static bool set(struct backend_stream *on, uint32_t number, uint32_t value) {
    return ops->fill(on, ++seq, cell(number), &value, 4, 1, &error) == GPULUA_OK;
}

static gpulua_status weigh_with(struct backend_stream *on, uint32_t out, uint32_t a, uint32_t b,
                                uint32_t threads) {
    const uint64_t args[] = {cell(out), cell(a), cell(b)};
    const struct backend_launch launch = {.kernel = kernel,
                                          .stream = on,
                                          .seq = ++seq,
                                          .grid = {1, 1, 1},
                                          .block = {threads, 1, 1},
                                          .args = args,
                                          .args_bytes = sizeof args};
    return ops->launch(&launch, &error);
}

static bool weigh(struct backend_stream *on, uint32_t out, uint32_t a, uint32_t b) {
    return weigh_with(on, out, a, b, 1) == GPULUA_OK;
}

static bool wait_for(struct backend_stream *on) {
    const struct timespec pause = {.tv_nsec = 100000};
    enum backend_query answer = BACKEND_PENDING;
    if (ops->event_record(event, on, &error) != GPULUA_OK) {
        return false;
    }
    for (int i = 0; i < 100000 && answer == BACKEND_PENDING; i++) {
        answer = ops->event_query(event, &error);
        if (answer == BACKEND_PENDING) {
            nanosleep(&pause, NULL);
        }
    }
    return answer == BACKEND_DONE;
}

static bool get(uint32_t *values, uint32_t first, uint32_t count) {
    return ops->download(stream, ++seq, values, cell(first), 4 * (uint64_t)count, &error) ==
               GPULUA_OK &&
           wait_for(stream);
}

static bool is(uint32_t number, uint32_t value) {
    uint32_t found = 0;
    bool good = get(&found, number, 1);
    if (good && found != value) {
        printf("# cell %u: %u, wanted %u\n", number, found, value);
    }
    return good && found == value;
}

static bool rig_open(void) {
    struct wire_kernel_facts facts;
    struct backend_slab *slab;
    bool prints;
    const char *name = getenv("GPULUA_DEVICE");
    struct backend_open_info info = {.cache_path = folder};
    if (!is_fake && name != NULL && strncmp(name, "cuda:", 5) == 0) {
        info.ordinal = atoi(name + 5);
    }
    gpu_backend_error_init(&error);
    page = aligned_alloc(4096, 4 * CELLS);
    return page != NULL && ops->device_open(&info, &device, &error) == GPULUA_OK &&
           ops->stream_create(device, 0, 0, &stream, &error) == GPULUA_OK &&
           ops->stream_create(device, 1, 0, &other, &error) == GPULUA_OK &&
           ops->event_create(device, &event, &error) == GPULUA_OK &&
           ops->module_load(device, weigh_ptx, sizeof weigh_ptx, false, &module, &error) ==
               GPULUA_OK &&
           ops->kernel_get(module, "weigh", &kernel, &prints, &facts, &error) == GPULUA_OK &&
           ops->slab_create(device, 4 * CELLS, &slab, &base, &error) == GPULUA_OK &&
           ops->host_register(device, page, 4 * CELLS, &error) == GPULUA_OK &&
           ops->fill(stream, ++seq, base, "\0", 1, 4 * CELLS, &error) == GPULUA_OK &&
           wait_for(stream);
}

static void rig_close(void) {
    ops->device_close(device);
    free(page);
}

/* The driver's graph, as the fake saw it. */
static bool text_is(const char *wanted) {
    static char text[65536];
    if (!is_fake) {
        return true;
    }
    void (*tell)(char *, size_t);
    void *symbol = dlsym(fake, "fake_graph_text");
    memcpy(&tell, &symbol, sizeof tell);
    tell(text, sizeof text);
    if (strcmp(text, wanted) != 0) {
        printf("# wanted: %s\n# got:    %s\n", wanted, text);
    }
    return strcmp(text, wanted) == 0;
}

static bool begin(struct backend_graph **graph, struct backend_stream **on) {
    return ops->graph_begin(device, graph, on, &error) == GPULUA_OK;
}
static bool node(struct backend_graph *graph, const uint32_t *deps, size_t count) {
    return ops->graph_node(graph, deps, (uint32_t)count, &error) == GPULUA_OK;
}
static bool end(struct backend_graph *graph) {
    return ops->graph_end(graph, &error) == GPULUA_OK;
}
static bool launch(struct backend_stream *on, struct backend_graph *graph) {
    return ops->graph_launch(on, ++seq, graph, &error) == GPULUA_OK;
}

/* ---- shapes ---- */

/* Cell 3 = 2 * (2 + 3) * cell 0 + 3 * (2 * cell 0 + 3 * cell 9), cell 0 being set to 5. */
static bool diamond_make(struct backend_graph **graph) {
    struct backend_stream *on;
    return begin(graph, &on) && node(*graph, NO_DEPS) && set(on, 0, 5) && node(*graph, DEPS(0)) &&
           weigh(on, 1, 0, 0) && node(*graph, DEPS(0)) && weigh(on, 2, 0, 9) &&
           node(*graph, DEPS(2, 1)) && weigh(on, 3, 1, 2) && end(*graph);
}

static void diamond(void) {
    struct backend_graph *graph = NULL;
    uint32_t found[4];
    bool good = set(stream, 9, 1) && diamond_make(&graph);
    check(good && text_is("set weigh(0) weigh(0) weigh(2,1)"), "a diamond");
    static const uint32_t before[4] = {0};
    check(get(found, 0, 4) && memcmp(found, before, sizeof before) == 0,
          "nothing is done while it is made");
    good = launch(stream, graph) && get(found, 0, 4);
    static const uint32_t after[4] = {5, 25, 13, 89};
    check(good && memcmp(found, after, sizeof after) == 0, "it computes what it should");
    good = set(stream, 9, 2) && launch(stream, graph) && is(3, 98) && set(stream, 9, 3) &&
           launch(stream, graph) && is(3, 107);
    check(good, "behind what is on the stream, again and again");
    ops->graph_destroy(device, graph);
}

/* Launched on two streams in turn: each of the launches follows the one before. */
static void chain(void) {
    struct backend_graph *graph = NULL;
    struct backend_stream *on;
    uint32_t wanted = 7;
    char text[8192] = "";
    size_t used = 0;
    bool good = set(stream, 0, 7);
    for (uint32_t i = 0; i < 200; i++) {
        good = good && set(stream, 1 + i, i * i);
    }
    good = good && wait_for(stream) && begin(&graph, &on);
    for (uint32_t i = 0; i < 200 && good; i++) {
        good = (i == 0 ? node(graph, NO_DEPS) : node(graph, DEPS(i - 1))) && weigh(on, 0, 0, 1 + i);
        used += (size_t)snprintf(text + used, sizeof text - used, i == 0 ? "weigh" : " weigh(%u)",
                                 i - 1);
    }
    check(good && end(graph) && text_is(text), "a chain");
    for (uint32_t round = 0; round < 20; round++) {
        good = good && launch(round % 2 == 0 ? stream : other, graph);
        for (uint32_t i = 0; i < 200; i++) {
            wanted = 2 * wanted + 3 * i * i;
        }
    }
    check(good && wait_for(other) && is(0, wanted),
          "one graph on two streams, one after the other");
    ops->graph_destroy(device, graph);
}

static void fan_in(void) {
    struct backend_graph *graph = NULL;
    struct backend_stream *on;
    static uint32_t all[1000], found[3000];
    bool good = begin(&graph, &on);
    for (uint32_t i = 0; i < 1000; i++) {
        all[i] = i;
        good = good && node(graph, NO_DEPS) && set(on, i, 3 * i + 1);
    }
    /* Nodes behind all of them: one by itself, two through a node without work. */
    good = good && node(graph, all, 1000) &&
           ops->copy(on, ++seq, cell(1000), cell(0), 4000, &error) == GPULUA_OK &&
           node(graph, all, 1000) && node(graph, DEPS(1001)) &&
           ops->copy(on, ++seq, cell(2000), cell(0), 4000, &error) == GPULUA_OK &&
           node(graph, DEPS(1001)) && weigh(on, 3000, 0, 999) && end(graph);
    if (is_fake && good) {
        size_t (*deps)(size_t, size_t, size_t *), (*nodes)(void), dep = 0;
        void *symbols[] = {dlsym(fake, "fake_graph_deps"), dlsym(fake, "fake_graph_nodes")};
        memcpy(&deps, &symbols[0], sizeof deps);
        memcpy(&nodes, &symbols[1], sizeof nodes);
        good = nodes() == 1004 && deps(1000, 999, &dep) == 1000 && dep == 999 &&
               deps(1001, 0, &dep) == 1000 && deps(1002, 0, &dep) == 1 && dep == 1001 &&
               deps(1003, 0, &dep) == 1 && dep == 1001;
    }
    good = check(good, "1,000 nodes, and some behind all of them") && launch(stream, graph) &&
           get(found, 0, 3000);
    for (uint32_t i = 0; i < 3000 && good; i++) {
        good = found[i] == 3 * (i % 1000) + 1;
    }
    check(good && is(3000, 2 * 1 + 3 * 2998), "they are done behind them");
    ops->graph_destroy(device, graph);
}

static void empty(void) {
    struct backend_graph *graph = NULL;
    struct backend_stream *on;
    bool good = begin(&graph, &on) && node(graph, NO_DEPS) && /* 0: nothing */
                node(graph, DEPS(0)) && set(on, 0, 4) &&      /* 1 */
                node(graph, DEPS(1)) &&                       /* 2: 1 */
                node(graph, DEPS(2)) &&                       /* 3: 1, a fill of nothing */
                ops->fill(on, ++seq, cell(7), "abcd", 4, 0, &error) == GPULUA_OK &&
                node(graph, DEPS(3, 1, 2)) && weigh(on, 1, 0, 0) && /* 4 */
                node(graph, DEPS(1, 0, 4, 3)) &&                    /* 5: both */
                ops->copy(on, ++seq, cell(7), cell(8), 0, &error) == GPULUA_OK &&
                node(graph, DEPS(5)) &&                             /* 6: 5 */
                node(graph, DEPS(6, 4, 5)) && weigh(on, 2, 0, 1) && /* 7 */
                node(graph, NO_DEPS) && set(on, 3, 6) &&            /* 8 */
                end(graph);
    check(good && text_is("set weigh(0) empty(0,1) weigh(2,1) set"),
          "nodes without work stand for what they follow");
    check(launch(stream, graph) && is(1, 20) && is(2, 68) && is(3, 6),
          "and order what follows them");
    ops->graph_destroy(device, graph);
    check(begin(&graph, &on) && end(graph) && text_is("") && launch(stream, graph) &&
              wait_for(stream),
          "a graph of nothing");
    ops->graph_destroy(device, graph);
    check(begin(&graph, &on) && node(graph, NO_DEPS) && node(graph, DEPS(0)) && end(graph) &&
              text_is("") && launch(stream, graph) && wait_for(stream),
          "one of nodes without work");
    ops->graph_destroy(device, graph);
}

static void fills_and_copies(void) {
    static const char pattern[] = "ABCDEFGHIJKLMNOP";
    struct backend_graph *graph = NULL;
    struct backend_stream *on;
    static unsigned char wanted[640], found[640];
    static uint32_t pageable[4] = {1, 2, 3, 4}, back[4];
    bool good = begin(&graph, &on);
    uint32_t number = 0;
    for (uint32_t bytes = 1; bytes <= 16; bytes *= 2, number++) {
        good = good && node(graph, NO_DEPS) &&
               ops->fill(on, ++seq, base + 128 * number, pattern, bytes, 128 / bytes, &error) ==
                   GPULUA_OK;
        for (uint32_t i = 0; i < 128; i++) {
            wanted[128 * number + i] = (unsigned char)pattern[i % bytes];
        }
    }
    good = good && node(graph, DEPS(0, 1, 2, 3, 4)) &&
           ops->download(on, ++seq, page, base, 640, &error) == GPULUA_OK && node(graph, NO_DEPS) &&
           ops->upload(on, ++seq, cell(500), page + 500, 64, &error) == GPULUA_OK && end(graph);
    check(good && text_is("set set set gpulua_fill gpulua_fill copy(0,1,2,3,4) copy"),
          "fills of each size, copies in and out");
    page[500] = 11;
    good = launch(stream, graph) && wait_for(stream) && memcmp(page, wanted, 640) == 0 &&
           get((uint32_t *)(void *)found, 0, 160) && memcmp(found, wanted, 640) == 0 && is(500, 11);
    page[500] = 12;
    check(good && launch(stream, graph) && is(500, 12),
          "they are done, and what is copied is read by each launch");
    ops->graph_destroy(device, graph);

    /* Memory that the driver has not registered: it may refuse it, but nothing in between. */
    good = begin(&graph, &on) && node(graph, NO_DEPS) &&
           ops->upload(on, ++seq, cell(600), pageable, sizeof pageable, &error) == GPULUA_OK &&
           node(graph, DEPS(0)) &&
           ops->download(on, ++seq, back, cell(600), sizeof back, &error) == GPULUA_OK &&
           end(graph);
    printf("# pageable memory in a graph: %s\n", good ? "taken" : error.message);
    pageable[0] = 5; /* read by the launch */
    good = !good ||
           (launch(stream, graph) && wait_for(stream) && memcmp(back, pageable, sizeof back) == 0);
    ops->graph_destroy(device, graph);
    check(good && set(stream, 0, 1) && is(0, 1), "pageable memory");
}

/* ---- beside the capture ---- */

/* Everything that a node can be, changed while launches before may still be at work. */
static void patches(void) {
    struct backend_graph *graph = NULL;
    struct backend_stream *on;
    static uint32_t found[10];
    const uint64_t wide[] = {UINT64_C(0x1111111122222222), UINT64_C(0x3333333344444444)};
    page[0] = 21;
    page[1] = 31;
    bool good =
        set(stream, 8, 2) && begin(&graph, &on) && node(graph, NO_DEPS) && set(on, 0, 1000) &&
        node(graph, DEPS(0)) && weigh(on, 1, 0, 8) && node(graph, DEPS(1)) &&
        ops->copy(on, ++seq, cell(2), cell(1), 4, &error) == GPULUA_OK && node(graph, NO_DEPS) &&
        ops->upload(on, ++seq, cell(3), page, 4, &error) == GPULUA_OK && node(graph, NO_DEPS) &&
        ops->fill(on, ++seq, cell(4), &wide[0], 8, 1, &error) == GPULUA_OK && end(graph);
    check(good && launch(stream, graph) && is(2, 2006) && is(3, 21) && is(4, 0x22222222),
          "a graph to change");
    good = ops->graph_patch(graph, 0, false, &error) == GPULUA_OK && set(on, 0, 2000) &&
           ops->graph_patched(graph, GPULUA_OK, &error) == GPULUA_OK &&
           ops->graph_patch(graph, 1, true, &error) == GPULUA_OK && weigh(on, 1, 8, 0) &&
           ops->graph_patched(graph, GPULUA_OK, &error) == GPULUA_OK &&
           ops->graph_patch(graph, 2, false, &error) == GPULUA_OK &&
           ops->copy(on, ++seq, cell(7), cell(1), 4, &error) == GPULUA_OK &&
           ops->graph_patched(graph, GPULUA_OK, &error) == GPULUA_OK &&
           ops->graph_patch(graph, 3, false, &error) == GPULUA_OK &&
           ops->upload(on, ++seq, cell(3), page + 1, 4, &error) == GPULUA_OK &&
           ops->graph_patched(graph, GPULUA_OK, &error) == GPULUA_OK &&
           ops->graph_patch(graph, 4, false, &error) == GPULUA_OK &&
           ops->fill(on, ++seq, cell(4), &wide[1], 8, 1, &error) == GPULUA_OK &&
           ops->graph_patched(graph, GPULUA_OK, &error) == GPULUA_OK;
    check(good && is(2, 2006) && is(3, 21), "nothing is done while it is changed");
    good = launch(stream, graph) && get(found, 0, 8);
    check(good && found[0] == 2000 && found[1] == 6004 && found[2] == 2006 && found[3] == 31 &&
              found[4] == 0x44444444 && found[5] == 0x33333333 && found[7] == 6004,
          "each node does what it was changed to do");

    /* Launches that are under way keep what they had. */
    good = set(stream, 0, 0);
    for (uint32_t i = 1; i <= 100 && good; i++) {
        good = ops->graph_patch(graph, 1, true, &error) == GPULUA_OK && weigh(on, 100 + i, 8, 0) &&
               ops->graph_patched(graph, GPULUA_OK, &error) == GPULUA_OK &&
               ops->graph_patch(graph, 0, false, &error) == GPULUA_OK && set(on, 0, i + 4096) &&
               ops->graph_patched(graph, GPULUA_OK, &error) == GPULUA_OK && launch(stream, graph);
    }
    for (uint32_t i = 1; i <= 100 && good; i++) {
        good = is(100 + i, 4 + 3 * (i + 4096));
    }
    check(good, "launches in flight keep what they had");

    /* What the driver refuses is said, and the graph is what it was. */
    good = ops->graph_patch(graph, 0, false, &error) == GPULUA_OK &&
           ops->fill(on, ++seq, cell(0), &wide[0], 8, 1, &error) == GPULUA_OK &&
           ops->graph_patched(graph, GPULUA_OK, &error) == GPULUA_DRIVER;
    check(good && strstr(error.message, "another kind") != NULL, "another kind of node is refused");
    check(launch(stream, graph) && is(0, 100 + 4096), "and the graph is what it was");
    ops->graph_destroy(device, graph);
}

/* A launch, a fill by the driver and one by our kernel, and a copy, changed. */
static bool patch_all(struct backend_graph *graph, struct backend_stream *on) {
    const uint64_t wide = UINT64_C(0x1111111122222222);
    bool good = true;
    for (uint32_t i = 0; i < 4 && good; i++) {
        good = ops->graph_patch(graph, i, i == 0, &error) == GPULUA_OK;
        if (good) {
            gpulua_status status = i == 0   ? weigh_with(on, 1, 0, 0, 1)
                                   : i == 1 ? ops->fill(on, ++seq, cell(2), "abcd", 4, 1, &error)
                                   : i == 2 ? ops->fill(on, ++seq, cell(4), &wide, 8, 1, &error)
                                            : ops->copy(on, ++seq, cell(6), cell(1), 4, &error);
            good = ops->graph_patched(graph, status, &error) == GPULUA_OK;
        }
    }
    return good;
}

static void patch_faults(void) {
    static const struct {
        const char *name;
        int times;
    } calls[] = {{"cuStreamCreateWithPriority", 3},
                 {"cuStreamBeginCapture_v2", 3},
                 {"cuMemsetD32Async", 1},
                 {"cuLaunchKernel", 1},
                 {"cuMemcpyDtoDAsync_v2", 1},
                 {"cuStreamEndCapture", 3},
                 {"cuGraphGetNodes", 3},
                 {"cuGraphNodeGetType", 6},
                 {"cuGraphKernelNodeGetParams_v2", 1},
                 {"cuGraphMemsetNodeGetParams", 1},
                 {"cuGraphMemcpyNodeGetParams", 1},
                 {"cuGraphExecKernelNodeSetParams_v2", 2},
                 {"cuGraphExecMemsetNodeSetParams", 1},
                 {"cuGraphExecMemcpyNodeSetParams", 1}};
    static const int codes[] = {999, 2, 801, 900};
    struct backend_graph *graph = NULL;
    struct backend_stream *on;
    const uint64_t wide = 1;
    bool good = begin(&graph, &on) && node(graph, NO_DEPS) && weigh(on, 1, 0, 0) &&
                node(graph, NO_DEPS) && set(on, 2, 5) && node(graph, NO_DEPS) &&
                ops->fill(on, ++seq, cell(4), &wide, 8, 1, &error) == GPULUA_OK &&
                node(graph, DEPS(0)) &&
                ops->copy(on, ++seq, cell(7), cell(1), 4, &error) == GPULUA_OK && end(graph) &&
                patch_all(graph, on);
    long live = FAKE(long, live);
    for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
        for (int skip = 0; skip < calls[c].times; skip++) {
            int code = codes[(c + (size_t)skip) % 4];
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(calls[c].name, "_"), calls[c].name);
            fail_next(calls[c].name, code, skip);
            bool failed = !patch_all(graph, on);
            bool once = FAKE(int, fail_code) == 0 && failed && error.driver_code == code &&
                        strstr(error.message, name) != NULL && FAKE(long, live) == live &&
                        patch_all(graph, on) && FAKE(long, live) == live;
            if (!once) {
                printf("# %s after %d: %s, %ld live, not %ld\n", calls[c].name, skip, error.message,
                       FAKE(long, live), live);
            }
            good = good && once;
        }
    }
    check(good && launch(stream, graph) && wait_for(stream),
          "each call that changes a node may fail, and leaves nothing behind");
    ops->graph_destroy(device, graph);
}

static void plain_launches(void) {
    struct backend_graph *graph = NULL;
    struct backend_stream *on;
    bool good = set(stream, 0, 1) && set(stream, 1, 1);
    for (uint32_t i = 0; i < 40; i++) { /* prepared by then */
        good = good && weigh(stream, 2 + i, 0, 1);
    }
    good = good && begin(&graph, &on);
    int updates = is_fake ? FAKE(int, graph_updates) : 0;
    int launches = is_fake ? FAKE(int, graph_launches) : 0;
    for (uint32_t i = 0; i < 40; i++) {
        good = good && node(graph, NO_DEPS) && weigh(on, 100 + i, 2 + i, 0);
    }
    good = good && (!is_fake ||
                    (FAKE(int, graph_updates) == updates && FAKE(int, graph_launches) == launches));
    check(good, "no prepared launch while it is made");
    /* What goes on elsewhere meanwhile. */
    good = weigh(stream, 2, 0, 1) && weigh(other, 3, 0, 1) &&
           ops->device_status(device, &error) == GPULUA_OK && wait_for(stream) && wait_for(other);
    ops->flush_output(device);
    struct backend_slab *slab = NULL;
    uint64_t address;
    good = good && ops->slab_create(device, 1 << 20, &slab, &address, &error) == GPULUA_OK;
    ops->slab_destroy(device, slab);
    good = good && node(graph, DEPS(0)) && weigh(on, 200, 100, 0) && end(graph) &&
           (!is_fake || (FAKE(int, capture_refused) == 0 && FAKE(int, capture_mode) == 2));
    check(good && launch(stream, graph) && is(139, 13) && is(200, 2 * 13 + 3),
          "other streams, memory and output go on meanwhile");
    ops->graph_destroy(device, graph);
}

static void uploads(void) {
    struct backend_graph *graph = NULL;
    bool good = set(stream, 9, 1) && wait_for(stream) && diamond_make(&graph);
    good = good && ops->graph_upload(other, graph, &error) == GPULUA_OK &&
           ops->graph_upload(other, graph, &error) == GPULUA_OK;
    check(good && (!is_fake || FAKE(int, graph_uploads) == 1), "uploaded once");
    if (is_fake) {
        FAKE(void *, waited_on) = NULL;
    }
    good = launch(stream, graph);
    void *waited_on = is_fake ? FAKE(void *, waited_on) : NULL;
    good = good && ops->event_record(event, stream, &error) == GPULUA_OK &&
           (!is_fake || waited_on == FAKE(void *, recorded_on));
    check(good && is(3, 89), "a launch on another stream waits for the upload");
    if (is_fake) {
        FAKE(void *, waited_on) = NULL;
    }
    good = launch(other, graph) && launch(stream, graph) && is(3, 89) &&
           ops->graph_upload(stream, graph, &error) == GPULUA_OK;
    check(good && (!is_fake || (FAKE(void *, waited_on) == NULL && FAKE(int, graph_uploads) == 1)),
          "once");
    ops->graph_destroy(device, graph);
}

/* ---- states ---- */

/* A graph with a launch that the driver refuses: when it is asked for, as the fake does, or at the
 * latest when the graph is to be made. */
static bool refused_make(struct backend_graph **graph) {
    struct backend_stream *on;
    bool good =
        begin(graph, &on) && node(*graph, NO_DEPS) && set(on, 0, 77) && node(*graph, DEPS(0));
    gpulua_status status = weigh_with(on, 1, 0, 0, 2048);
    if (!is_fake && status == GPULUA_OK) {
        status = ops->graph_end(*graph, &error);
    }
    return good && (status == GPULUA_DRIVER || (!is_fake && status == GPULUA_CAPTURE_INVALIDATED));
}

static void refused(void) {
    struct backend_graph *graph = NULL;
    bool good = refused_make(&graph);
    if (is_fake) { /* a real driver may go on with the capture */
        good = good && ops->graph_node(graph, DEPS(0), &error) == GPULUA_CAPTURE_INVALIDATED &&
               strstr(error.message, "capture") != NULL && error.driver_code == 901 &&
               ops->graph_node(graph, DEPS(0), &error) == GPULUA_INVALID_ARGUMENT &&
               ops->graph_end(graph, &error) == GPULUA_INVALID_ARGUMENT &&
               ops->graph_launch(stream, ++seq, graph, &error) == GPULUA_INVALID_ARGUMENT;
    }
    ops->graph_destroy(device, graph);
    good = good && refused_make(&graph);
    if (is_fake) {
        good = good && ops->graph_end(graph, &error) == GPULUA_CAPTURE_INVALIDATED;
    }
    ops->graph_destroy(device, graph);
    check(good && diamond_make(&graph) && launch(stream, graph) && is(0, 5),
          "one that could not be made: the device goes on");
    ops->graph_destroy(device, graph);
}

static void states(void) {
    struct backend_graph *graph = NULL, *kept[5] = {0};
    struct backend_stream *on;
    long live = is_fake ? FAKE(long, live) : 0;
    int capture_refused;
    ops->graph_destroy(device, NULL);
    bool good = begin(&graph, &on);
    check(good && ops->graph_launch(stream, ++seq, graph, &error) == GPULUA_INVALID_ARGUMENT &&
              ops->graph_upload(stream, graph, &error) == GPULUA_INVALID_ARGUMENT,
          "one that is not made cannot be launched");
    ops->graph_destroy(device, graph);
    good = begin(&graph, &on) && node(graph, NO_DEPS) && set(on, 0, 1) && node(graph, DEPS(0));
    ops->graph_destroy(device, graph);
    check(good && diamond_make(&graph) &&
              ops->graph_node(graph, NULL, 0, &error) == GPULUA_INVALID_ARGUMENT &&
              ops->graph_end(graph, &error) == GPULUA_INVALID_ARGUMENT && launch(stream, graph) &&
              wait_for(stream),
          "one that is made takes no more");
    ops->graph_destroy(device, graph);
    good = diamond_make(&graph) && ops->graph_upload(stream, graph, &error) == GPULUA_OK &&
           wait_for(stream);
    ops->graph_destroy(device, graph);
    check(good && (!is_fake || FAKE(long, live) == live), "destroyed in each state");
    refused();
    capture_refused = is_fake ? FAKE(int, capture_refused) : 0;
    check(!is_fake || FAKE(long, live) == live, "nothing left of them");
    if (is_fake) { /* no capture is under way any more: all output can be had */
        FAKE(int, context_waits) = 0;
        ops->flush_output(device);
        check(FAKE(int, context_waits) == 1 && FAKE(int, capture_refused) == capture_refused,
              "the context can be waited for again");
    }

    /* Left to device_close. */
    good = begin(&kept[0], &on) && begin(&kept[1], &on) && node(kept[1], NO_DEPS) &&
           set(on, 0, 1) && refused_make(&kept[2]) && diamond_make(&kept[3]) &&
           ops->graph_upload(stream, kept[3], &error) == GPULUA_OK && diamond_make(&kept[4]) &&
           launch(stream, kept[4]);
    gpu_backend_error_init(&error);
    rig_close();
    check(good && (!is_fake || FAKE(long, live) == 0), "what is left goes with the device");
    check(rig_open(), "which can be opened again");
}

/* ---- with the fake only ---- */

static bool scenario(struct backend_graph **graph) {
    struct backend_stream *on;
    return begin(graph, &on) && node(*graph, NO_DEPS) && set(on, 0, 5) && node(*graph, DEPS(0)) &&
           weigh(on, 1, 0, 0) && node(*graph, DEPS(0, 1)) && node(*graph, DEPS(2)) &&
           ops->copy(on, ++seq, cell(2), cell(1), 4, &error) == GPULUA_OK &&
           node(*graph, DEPS(2)) &&
           ops->fill(on, ++seq, cell(4), "ABCDEFGH", 8, 3, &error) == GPULUA_OK && end(*graph) &&
           ops->graph_upload(other, *graph, &error) == GPULUA_OK && launch(stream, *graph);
}

static void faults(void) {
    static const struct {
        const char *name;
        int times;
    } calls[] = {{"cuStreamCreateWithPriority", 1},
                 {"cuStreamBeginCapture_v2", 1},
                 {"cuStreamGetCaptureInfo_v3", 6},
                 {"cuStreamUpdateCaptureDependencies_v2", 5},
                 {"cuMemsetD32Async", 1},
                 {"cuLaunchKernel", 2},
                 {"cuMemcpyDtoDAsync_v2", 1},
                 {"cuGraphAddEmptyNode", 1},
                 {"cuStreamEndCapture", 1},
                 {"cuGraphInstantiateWithFlags", 1},
                 {"cuEventCreate", 1},
                 {"cuGraphUpload", 1},
                 {"cuEventRecord", 1},
                 {"cuStreamWaitEvent", 1},
                 {"cuGraphLaunch", 1}};
    static const int codes[] = {999, 2, 801, 900};
    struct backend_graph *graph = NULL;
    bool good = scenario(&graph), once = true;
    ops->graph_destroy(device, graph);
    long live = FAKE(long, live);
    for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
        for (int skip = 0; skip < calls[c].times; skip++) {
            int code = codes[(c + (size_t)skip) % 4];
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(calls[c].name, "_"), calls[c].name);
            graph = NULL;
            fail_next(calls[c].name, code, skip);
            bool failed = !scenario(&graph);
            once = FAKE(int, fail_code) == 0 && failed && error.driver_code == code &&
                   error.status == (code == 2     ? GPULUA_OUT_OF_MEMORY
                                    : code == 801 ? GPULUA_UNSUPPORTED
                                    : code == 900 ? GPULUA_CAPTURE_ACTIVE
                                                  : GPULUA_DRIVER) &&
                   strstr(error.message, name) != NULL;
            ops->graph_destroy(device, graph);
            once =
                once && FAKE(long, live) == live && ops->device_status(device, &error) == GPULUA_OK;
            if (!once) {
                printf("# %s after %d: %s, %ld live, not %ld\n", calls[c].name, skip, error.message,
                       FAKE(long, live), live);
            }
            good = good && once;
        }
    }
    FAKE(int, fail_code) = 0;
    gpu_backend_error_init(&error);
    graph = NULL;
    check(good && scenario(&graph) && is(2, 25), "each call failing: named, nothing left");
    ops->graph_destroy(device, graph);

    /* The kernel of fills is loaded before the capture; where it cannot be, only its fills fail. */
    rig_close();
    good = rig_open();
    fail_next("cuModuleLoadDataEx", 221, 0);
    graph = NULL;
    good = good && diamond_make(&graph) && FAKE(int, fail_code) == 0;
    ops->graph_destroy(device, graph);
    check(good, "graphs without the kernel of fills");
}

static void losing(void) {
    static const char *const calls[] = {"cuStreamBeginCapture_v2", "cuStreamGetCaptureInfo_v3",
                                        "cuStreamEndCapture",      "cuGraphAddEmptyNode",
                                        "cuLaunchKernel",          "cuGraphInstantiateWithFlags",
                                        "cuGraphUpload",           "cuEventRecord",
                                        "cuStreamWaitEvent",       "cuGraphLaunch",
                                        "cuModuleLoadDataEx",      "cuGraphExecDestroy"};
    bool good = true, quiet = true;
    for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
        struct backend_graph *graph = NULL, *whole = NULL, *half = NULL;
        struct backend_stream *on;
        bool is_first = strcmp(calls[c], "cuModuleLoadDataEx") == 0;
        rig_close();
        FAKE(long, live) = 0;
        good = good && rig_open() &&
               (is_first || (diamond_make(&whole) && begin(&half, &on) && node(half, NO_DEPS)));
        FAKE(int, calls_after_loss) = 0;
        fail_next(calls[c], 700, 0);
        if (scenario(&graph)) {
            ops->graph_destroy(device, graph); /* the fault is found there */
            graph = NULL;
        }
        struct backend_error later = {0};
        good = good && ops->device_status(device, &later) == GPULUA_DEVICE_LOST &&
               later.driver_code == 700;
        if (!is_first) {
            good = good && ops->graph_node(half, NO_DEPS, &later) == GPULUA_DEVICE_LOST &&
                   ops->graph_end(half, &later) == GPULUA_DEVICE_LOST &&
                   ops->graph_launch(stream, 1, whole, &later) == GPULUA_DEVICE_LOST &&
                   ops->graph_upload(stream, whole, &later) == GPULUA_DEVICE_LOST &&
                   ops->graph_begin(device, &graph, &on, &later) == GPULUA_DEVICE_LOST;
            ops->graph_destroy(device, whole);
        }
        ops->graph_destroy(device, graph);
        ops->flush_output(device);
        if (FAKE(int, calls_after_loss) != 0) {
            printf("# %s: %d calls after it\n", calls[c], FAKE(int, calls_after_loss));
            quiet = false;
        }
        rig_close(); /* with the one that is half made */
        quiet = quiet && FAKE(int, calls_after_loss) == 0;
        FAKE(int, sticky) = 0;
        FAKE(int, fail_code) = 0;
        good = good && rig_open();
    }
    gpu_backend_error_init(&error);
    check(good, "a fault in each call: lost, for every slot");
    check(quiet, "and the driver is left alone");
    rig_close();
    FAKE(long, live) = 0;

    FAKE(int, version) = 12020;
    struct backend_graph *graph = NULL;
    struct backend_stream *on = NULL;
    good = rig_open() && ops->graph_begin(device, &graph, &on, &error) == GPULUA_UNSUPPORTED &&
           strstr(error.message, "12.3") != NULL && strstr(error.message, "12.2") != NULL &&
           graph == NULL;
    FAKE(int, version) = 13000;
    check(good, "an older driver has no graphs, and is told which has");
    rig_close();
    check(FAKE(long, live) == 0 && rig_open(), "nothing left");
}

#define RANDOM_NODES 40u

/* Of graphs drawn at random: before which work is each piece of work done, as asked for and as the
 * driver's graph says? */
static void random_graphs(void) {
    size_t (*deps)(size_t, size_t, size_t *), (*nodes)(void);
    bool (*is_empty)(size_t);
    void *symbols[] = {dlsym(fake, "fake_graph_deps"), dlsym(fake, "fake_graph_nodes"),
                       dlsym(fake, "fake_graph_is_empty")};
    memcpy(&deps, &symbols[0], sizeof deps);
    memcpy(&nodes, &symbols[1], sizeof nodes);
    memcpy(&is_empty, &symbols[2], sizeof is_empty);
    uint32_t state = 12345;
    bool good = true;
    for (int round = 0; round < 300 && good; round++) {
        struct backend_graph *graph = NULL;
        struct backend_stream *on;
        uint64_t wanted[RANDOM_NODES] = {0}, before[RANDOM_NODES] = {0}; /* sets of works */
        uint32_t work_count = 0;
        good = begin(&graph, &on);
        for (uint32_t n = 0; n < RANDOM_NODES && good; n++) {
            uint32_t chosen[RANDOM_NODES], count = 0;
            for (uint32_t d = 0; d < n; d++) {
                state = state * 1664525u + 1013904223u;
                if ((state >> 16) % 8 == 0) {
                    chosen[count++] = d;
                    before[n] |= before[d];
                }
            }
            good = node(graph, chosen, count);
            state = state * 1664525u + 1013904223u;
            if ((state >> 16) % 3 > 0) { /* of the others half are empty, half fill nothing */
                wanted[work_count] = before[n];
                before[n] |= 1ull << work_count++;
                good = good && weigh(on, n, n, n);
            } else if ((state >> 20) % 2 == 0) {
                good = good && ops->fill(on, ++seq, base, "abcd", 4, 0, &error) == GPULUA_OK;
            }
        }
        good = good && end(graph);
        uint64_t found[2 * RANDOM_NODES] = {0};
        uint32_t work = 0;
        for (size_t n = 0; n < nodes() && good; n++) {
            size_t dep = 0, count = deps(n, 0, &dep);
            for (size_t d = 0; d < count; d++) {
                (void)deps(n, d, &dep);
                found[n] |= found[dep];
            }
            if (!is_empty(n)) {
                good = found[n] == wanted[work];
                found[n] |= 1ull << work++;
            }
        }
        good = good && work == work_count;
        ops->graph_destroy(device, graph);
    }
    check(good, "graphs at random: the same order");
}

/* ---- on a GPU only, and last: it is lost in it ---- */

static void fault_inside(void) {
    struct backend_graph *graph = NULL;
    struct backend_stream *on;
    const uint64_t args[] = {64, cell(0), cell(0)};
    const struct backend_launch bad = {.kernel = kernel,
                                       .grid = {1, 1, 1},
                                       .block = {1, 1, 1},
                                       .args = args,
                                       .args_bytes = sizeof args};
    struct backend_launch captured = bad;
    bool good = begin(&graph, &on) && node(graph, NO_DEPS);
    captured.stream = on;
    good = good && ops->launch(&captured, &error) == GPULUA_OK && end(graph) &&
           launch(stream, graph) && !wait_for(stream);
    check(good && ops->device_status(device, &error) == GPULUA_DEVICE_LOST &&
              error.driver_code == 700,
          "a fault inside of a graph ends the device");
    struct backend_graph *more = NULL;
    check(ops->graph_launch(stream, ++seq, graph, &error) == GPULUA_DEVICE_LOST &&
              ops->graph_begin(device, &more, &on, &error) == GPULUA_DEVICE_LOST,
          "and every slot says so");
    ops->graph_destroy(device, graph);
}

static void all(void) {
    if (!check(rig_open(), "a device")) {
        return;
    }
    diamond();
    chain();
    fan_in();
    empty();
    fills_and_copies();
    patches();
    plain_launches();
    uploads();
    states();
    if (is_fake) {
        faults();
        patch_faults();
        random_graphs();
        losing();
    } else {
        fault_inside();
    }
    rig_close();
}

int main(void) {
    const char *name = getenv("GPULUA_DEVICE"), *asked = getenv("GPULUA_LIBCUDA");
    char *library = asked != NULL ? strdup(asked) : NULL; /* build() puts the fake there */
    if (build()) {
        is_fake = true;
        all();
        tap_check(&tap, FAKE(long, live) == 0, "nothing left of all this");
    } else {
        tap_skip(&tap, "graphs against the fake driver", "no compiler for it");
    }
    if (library != NULL) {
        setenv("GPULUA_LIBCUDA", library, 1);
    } else {
        unsetenv("GPULUA_LIBCUDA");
    }
    free(library);
    if (name != NULL && strncmp(name, "cuda", 4) == 0) {
        is_fake = false;
        all();
    }
    remove_folder();
    return tap_finish(&tap);
}

#else

int main(void) {
    tap_skip(&tap, "everything", "this build has no cuda backend");
    return tap_finish(&tap);
}

#endif
