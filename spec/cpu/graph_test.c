/* backend/cpu/graph.c, lanes.c and check/graph.c: nodes run behind their dependencies and once for
 * each launch, beside each other where they may, and a failure names the launch. */
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "backend/cpu/device.h"
#include "backend/tap.h"

#define STREAMS 2u
#define NODES_MAX 20000u
#define DEPS_MAX 80000u
#define CHECKED_NODES 1100u /* check mode looks at all that a launch declares */
#define CHECKED_DEPS 2200u

static struct tap tap;
static const struct backend_ops *const cpu = &gpu_backend_cpu;
/* All of `done` are alike before a launch, and one more behind it: what is one ahead has been done
 * in this one. A closed gate is waited for, up to a bound, before anything is looked at. */
static const char text[] =
    "__global__ void visit(int *done, const int *deps, int first, int count, int self,\n"
    "                      int *wrong, volatile int *gate) {\n"
    "  for (long i = 0; i < 4000000000 && *gate == 0; i++) { }\n"
    "  int now = done[self] + 1;\n"
    "  for (int i = first; i < first + count; i++)\n"
    "    if (done[deps[i]] != now) atomicAdd(wrong, 1);\n"
    "  done[self] = now;\n"
    "}\n"
    "__global__ void meet(int *met, int *good) {\n"
    "  atomicAdd(met, 1);\n"
    "  for (long i = 0; i < 2000000000 && *(volatile int *)met < 2; i++) { }\n"
    "  if (*(volatile int *)met >= 2) atomicAdd(good, 1);\n"
    "}\n"
    "__global__ void blocks(int *counts) { atomicAdd(&counts[blockIdx.x], 1); }\n"
    "__global__ void fail(const int *fails, int *met, int party) {\n"
    "  atomicAdd(met, 1);\n"
    "  for (long i = 0; i < 2000000000 && *(volatile int *)met % party != 0; i++) { }\n"
    "  assert(*fails == 0);\n"
    "}\n";

struct memory {
    int wrong, open, gate, met, good, fails;
    int done[NODES_MAX];
    int deps[DEPS_MAX];
    int counts[4096];
    uint8_t bytes[4][1 << 20];
};

struct lane {
    struct backend_stream *stream;
    _Atomic uint64_t word;
    uint64_t seq;
};

static sem_t moved;
static struct backend_device *device;
static struct backend_module *module;
static struct backend_slab *slab;
static struct backend_kernel *visit_kernel, *meet_kernel, *blocks_kernel, *fail_kernel;
static struct lane lanes[STREAMS];
static struct memory *memory; /* the device's, which is the host's */
static uint8_t host[2][1 << 20];
static bool is_checked;
static void *image;
static size_t image_bytes;

static _Atomic uint32_t failures, runs;
static uint32_t failed_stream, failed_node;
static uint64_t failed_seq, failed_word;
static gpulua_status failed_status;

static void on_moved(void *user) {
    (void)user;
    sem_post(&moved);
}

static void on_failed(void *user, uint32_t stream, uint64_t seq, uint32_t node,
                      const struct backend_failure *failure) {
    (void)user;
    failed_status = failure->status;
    failed_node = node;
    failed_stream = stream;
    failed_seq = seq;
    failed_word = stream < STREAMS ? atomic_load(&lanes[stream].word) : UINT64_MAX;
    atomic_fetch_add(&failures, 1);
}

static void on_log(void *user, const char *line) {
    (void)user, (void)line;
}

static void on_ran(void *user, uint32_t stream, uint64_t seq, const struct wire_point *ready,
                   uint32_t ready_count) {
    (void)user, (void)stream, (void)seq, (void)ready, (void)ready_count;
    atomic_fetch_add(&runs, 1);
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* What the host looks at while kernels run. */
static int look(const int *at) {
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static bool becomes(const int *at, int value) {
    for (int i = 0; i < 20000 && look(at) != value; i++) {
        usleep(500);
    }
    return look(at) == value;
}

static void gate_set(int value) {
    __atomic_store_n(&memory->gate, value, __ATOMIC_RELEASE);
}

/* ---- the device ---- */

static bool device_open(uint64_t seed) {
    struct backend_open_info info = {
        .sink = {.failed = on_failed, .log = on_log, .moved = on_moved, .ran = on_ran},
        .is_checked = is_checked,
        .seed = seed};
    struct backend_error error = {.log = NULL};
    struct backend_source source = {.name = "graph.cu", .text = text, .options = ""};
    struct wire_kernel_facts facts;
    struct backend_kernel **kernels[] = {&visit_kernel, &meet_kernel, &blocks_kernel, &fail_kernel};
    static const char *const names[] = {"visit", "meet", "blocks", "fail"};
    uint64_t address;
    char *description = NULL;
    bool prints, good = cpu->device_open(&info, &device, &error) == GPULUA_OK;
    if (good && image == NULL) {
        good = cpu->module_compile(device, &source, &image, &image_bytes, &description, &error) ==
               GPULUA_OK;
        free(description);
    }
    good = good &&
           cpu->module_load(device, image, image_bytes, true, &module, &error) == GPULUA_OK &&
           cpu->slab_create(device, sizeof(struct memory), &slab, &address, &error) == GPULUA_OK;
    for (uint32_t i = 0; i < 4 && good; i++) {
        good = cpu->kernel_get(module, names[i], kernels[i], &prints, &facts, &error) == GPULUA_OK;
    }
    for (uint32_t i = 0; i < STREAMS && good; i++) {
        lanes[i].seq = 0;
        atomic_store(&lanes[i].word, 0);
        good = cpu->stream_create(device, i, 0, &lanes[i].stream, &error) == GPULUA_OK;
    }
    if (!good) {
        printf("# %s\n%s\n", error.message, error.log != NULL ? error.log : "");
        return false;
    }
    memory = (struct memory *)(uintptr_t)address;
    if (is_checked) {
        cpu->block_written(device, address, sizeof(struct memory));
    }
    gate_set(1);
    return true;
}

static void device_close(void) {
    for (uint32_t i = 0; i < STREAMS; i++) {
        cpu->stream_destroy(device, lanes[i].stream);
    }
    cpu->module_unload(device, module);
    cpu->device_close(device);
}

static void await(struct lane *lane) {
    if (is_checked) {
        cpu->ask(device, lane->stream, lane->seq);
    }
    while (atomic_load_explicit(&lane->word, memory_order_acquire) < lane->seq) {
        sem_wait(&moved);
    }
}

/* ---- graphs ---- */

struct made {
    struct backend_graph *graph;
    struct backend_stream *stream;
    uint32_t nodes, deps;
};

static bool begin(struct made *made) {
    struct backend_error error = {.log = NULL};
    *made = (struct made){.nodes = 0};
    memset(memory->done, 0, sizeof memory->done);
    memory->wrong = 0;
    return cpu->graph_begin(device, &made->graph, &made->stream, &error) == GPULUA_OK;
}

static bool node(struct made *made, const uint32_t *deps, uint32_t dep_count) {
    struct backend_error error = {.log = NULL};
    made->nodes++;
    return cpu->graph_node(made->graph, deps, dep_count, &error) == GPULUA_OK;
}

static bool kernel_put(struct made *made, struct backend_kernel *kernel, uint32_t blocks,
                       const void *args, uint32_t args_bytes) {
    struct backend_error error = {.log = NULL};
    const uint32_t both = WIRE_USE_READ | WIRE_USE_WRITE;
    const struct backend_use uses[2] = {
        {(uint64_t)(uintptr_t)memory,
         (uint64_t)((char *)&memory->done[CHECKED_NODES] - (char *)memory), both, 0, 0, ""},
        {(uint64_t)(uintptr_t)memory->deps, CHECKED_DEPS * sizeof memory->deps[0], both, 1, 1, ""}};
    struct backend_launch launch = {.kernel = kernel,
                                    .stream = made->stream,
                                    .grid = {blocks, 1, 1},
                                    .block = {1, 1, 1},
                                    .args = args,
                                    .args_bytes = args_bytes,
                                    .uses = uses,
                                    .use_count = 2};
    return cpu->launch(&launch, &error) == GPULUA_OK;
}

/* A node that looks whether `wanted` have been done, which the graph may know or not. */
static bool visit(struct made *made, const uint32_t *deps, uint32_t dep_count,
                  const uint32_t *wanted, uint32_t wanted_count, int *gate) {
    struct {
        int *done, *deps;
        int first, count, self;
        int *wrong, *gate;
    } args = {memory->done,   memory->deps, (int)made->deps, (int)wanted_count, (int)made->nodes,
              &memory->wrong, gate};
    for (uint32_t i = 0; i < wanted_count; i++) {
        memory->deps[made->deps++] = (int)wanted[i];
    }
    return node(made, deps, dep_count) &&
           kernel_put(made, visit_kernel, 1, &args, (uint32_t)sizeof args);
}

static bool visit_plain(struct made *made, const uint32_t *deps, uint32_t dep_count) {
    return visit(made, deps, dep_count, deps, dep_count, &memory->open);
}

static bool end(struct made *made) {
    struct backend_error error = {.log = NULL};
    memory->open = 1;
    return cpu->graph_end(made->graph, &error) == GPULUA_OK;
}

static bool launch(struct made *made, struct lane *lane) {
    struct backend_error error = {.log = NULL};
    return cpu->graph_launch(lane->stream, ++lane->seq, made->graph, &error) == GPULUA_OK &&
           cpu->stream_word(lane->stream, &lane->word, lane->seq, &error) == GPULUA_OK;
}

static bool run(struct made *made) {
    bool good = launch(made, &lanes[0]);
    await(&lanes[0]);
    return good;
}

static void destroy(struct made *made) {
    cpu->graph_destroy(device, made->graph);
}

static bool all_done(const struct made *made, int times) {
    bool good = memory->wrong == 0;
    for (uint32_t i = 0; i < made->nodes; i++) {
        good = good && memory->done[i] == times;
    }
    return good;
}

/* ---- the order ---- */

/* Node 3 looks for both sides; `has_edge`: whether the graph knows of the slow one. */
static bool diamond(struct made *made, bool has_edge) {
    static const uint32_t top[] = {0}, sides[] = {2, 1};
    return begin(made) && visit_plain(made, NULL, 0) &&
           visit(made, top, 1, top, 1, &memory->gate) && visit_plain(made, top, 1) &&
           visit(made, sides, has_edge ? 2 : 1, sides, 2, &memory->open) && end(made);
}

static void edges(void) {
    struct made made;
    bool good = diamond(&made, true);
    gate_set(0);
    good = good && launch(&made, &lanes[0]) && becomes(&memory->done[2], 1);
    usleep(20000);
    good = good && look(&memory->done[3]) == 0;
    gate_set(1);
    await(&lanes[0]);
    tap_check(&tap, good && all_done(&made, 1), "a join waits for the slower side");
    destroy(&made);
    good = diamond(&made, false);
    gate_set(0);
    good = good && launch(&made, &lanes[0]) && becomes(&memory->done[3], 1);
    good = good && look(&memory->wrong) == 1 && look(&memory->done[1]) == 0;
    gate_set(1);
    await(&lanes[0]);
    tap_check(&tap, good, "without that edge it does not");
    destroy(&made);
}

static uint64_t random_state = 88172645463325252u;
static uint32_t below(uint32_t limit) {
    random_state ^= random_state << 13, random_state ^= random_state >> 7,
        random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 20) % limit;
}

/* Each node depends on up to `most` of the `back` before it; some do nothing. */
static bool random_graph(struct made *made, uint32_t nodes, uint32_t most, uint32_t back) {
    bool good = begin(made);
    for (uint32_t i = 0; i < nodes && good; i++) {
        uint32_t deps[8], count = 0, reach = i < back ? i : back;
        for (uint32_t k = reach > 0 ? below(most + 1) : 0; k > 0; k--) {
            uint32_t dep = i - 1 - below(reach);
            bool is_new = true;
            for (uint32_t j = 0; j < count; j++) {
                is_new = is_new && deps[j] != dep;
            }
            deps[count] = dep;
            count += is_new ? 1 : 0;
        }
        good = visit_plain(made, deps, count);
    }
    return good && end(made);
}

static void random_graphs(uint32_t rounds) {
    bool good = true;
    uint32_t seen = atomic_load(&runs), launches = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        struct made made;
        good = good && random_graph(&made, 1 + below(300), 1 + below(5), 1 + below(60));
        for (int i = 0; i < 10; i++, launches++) {
            good = good && launch(&made, &lanes[below(STREAMS)]);
        }
        for (uint32_t i = 0; i < STREAMS; i++) {
            await(&lanes[i]);
        }
        good = good && all_done(&made, 10);
        destroy(&made);
    }
    tap_check(&tap, good,
              "random graphs: each node once a launch, behind its dependencies, on two streams");
    if (is_checked) {
        tap_check(&tap, atomic_load(&runs) - seen == launches, "a launch is one operation");
    }
}

static void large(void) {
    struct made made;
    double start = now_s();
    bool good = random_graph(&made, NODES_MAX, 3, 500);
    double built = now_s();
    for (int i = 0; i < 3; i++) {
        good = good && launch(&made, &lanes[0]);
    }
    await(&lanes[0]);
    printf("# 20,000 nodes: %.1f ms to make, %.1f ms a launch\n", (built - start) * 1e3,
           (now_s() - built) * 1e3 / 3);
    tap_check(&tap, good && all_done(&made, 3), "20,000 nodes");
    destroy(&made);
}

static void fans(void) {
    struct made made;
    uint32_t deps[1000];
    bool good = begin(&made);
    for (uint32_t i = 0; i < 1000; i++) {
        deps[i] = i;
        good = good && visit_plain(&made, NULL, 0);
    }
    good = good && visit_plain(&made, deps, 1000) && end(&made) && run(&made) && run(&made);
    tap_check(&tap, good && all_done(&made, 2), "a fan-in of 1,000");
    destroy(&made);
    good = begin(&made) && visit_plain(&made, NULL, 0);
    for (uint32_t i = 0; i < 1000; i++) {
        good = good && visit_plain(&made, deps, 1);
    }
    good = good && end(&made) && run(&made) && run(&made);
    tap_check(&tap, good && all_done(&made, 2), "a fan-out of 1,000");
    destroy(&made);
}

static void many_launches(void) {
    static const uint32_t chain[] = {0, 1};
    struct made made;
    bool good = begin(&made) && visit_plain(&made, NULL, 0) && visit_plain(&made, chain, 1) &&
                visit_plain(&made, chain + 1, 1) && visit_plain(&made, chain, 2) && end(&made);
    for (int i = 0; i < 1000; i++) {
        good = good && launch(&made, &lanes[0]);
    }
    await(&lanes[0]);
    tap_check(&tap, good && all_done(&made, 1000), "1,000 launches in a row");
    destroy(&made);
}

/* Nodes 0 and 1 do nothing, 2 and 3 have something on either side of them. */
static void empty(void) {
    static const uint32_t two[] = {0, 1}, join[] = {2}, last[] = {3, 4};
    struct made made;
    bool good = begin(&made) && end(&made) && run(&made) && run(&made);
    tap_check(&tap, good, "a graph without nodes");
    destroy(&made);
    good = begin(&made) && visit(&made, NULL, 0, NULL, 0, &memory->gate) &&
           visit_plain(&made, NULL, 0) && node(&made, two, 2) &&
           visit(&made, join, 1, two, 2, &memory->open) &&
           visit(&made, join, 1, two, 2, &memory->open) && node(&made, last, 2) && end(&made);
    gate_set(is_checked);
    good = good && launch(&made, &lanes[0]);
    usleep(5000);
    gate_set(1);
    await(&lanes[0]);
    tap_check(&tap,
              good && memory->wrong == 0 && memory->done[3] == 1 && memory->done[4] == 1 &&
                  memory->done[2] == 0,
              "nodes without work carry dependencies");
    destroy(&made);
}

/* ---- side by side ---- */

static void beside(void) {
    struct {
        int *met, *good;
    } args = {&memory->met, &memory->good};
    struct made made;
    bool good = begin(&made);
    for (uint32_t i = 0; i < 2; i++) {
        good = good && node(&made, NULL, 0) &&
               kernel_put(&made, meet_kernel, 1, &args, (uint32_t)sizeof args);
    }
    memory->met = memory->good = 0;
    good = good && end(&made) && run(&made);
    tap_check(&tap, good && memory->good == 2, "independent nodes run at the same time");
    destroy(&made);
}

static void serial(void) {
    struct made made;
    bool good = begin(&made) && visit(&made, NULL, 0, NULL, 0, &memory->gate) &&
                visit_plain(&made, NULL, 0) && end(&made);
    gate_set(0);
    good = good && launch(&made, &lanes[0]) && launch(&made, &lanes[1]) &&
           becomes(&memory->done[1], 1);
    usleep(20000);
    good = good && look(&memory->done[1]) == 1 && look(&memory->done[0]) == 0;
    gate_set(1);
    await(&lanes[0]);
    await(&lanes[1]);
    tap_check(&tap, good && all_done(&made, 2), "launches of one graph from two streams: in turn");
    destroy(&made);
}

/* Large items are shared by the workers, also in a graph. */
static void shared(void) {
    const uint32_t blocks = (uint32_t)(sizeof memory->counts / sizeof memory->counts[0]);
    static const uint32_t first[] = {0};
    int *counts = memory->counts;
    struct made made;
    memset(memory->counts, 0, sizeof memory->counts);
    bool good = begin(&made);
    for (uint32_t i = 0; i < 4; i++) {
        good = good && node(&made, first, i > 0 ? 1 : 0) &&
               kernel_put(&made, blocks_kernel, blocks, &counts, (uint32_t)sizeof counts);
    }
    good = good && end(&made);
    for (uint32_t i = 0; i < 50; i++) {
        good = good && launch(&made, &lanes[i % STREAMS]);
    }
    await(&lanes[0]);
    await(&lanes[1]);
    for (uint32_t i = 0; i < blocks; i++) {
        good = good && memory->counts[i] == 200;
    }
    tap_check(&tap, good, "each block of each node runs once");
    destroy(&made);
}

/* ---- other work ---- */

static void transfers(void) {
    static const uint32_t chain[] = {0, 1, 2};
    const uint64_t bytes = sizeof host[0];
    const uint32_t pattern = 0x01020304u;
    uint64_t at[4];
    struct backend_error error = {.log = NULL};
    struct made made;
    for (uint32_t i = 0; i < 4; i++) {
        at[i] = (uint64_t)(uintptr_t)memory->bytes[i];
    }
    bool good = begin(&made) && node(&made, NULL, 0) &&
                cpu->upload(made.stream, 0, at[0], host[0], bytes, &error) == GPULUA_OK &&
                node(&made, NULL, 0) &&
                cpu->fill(made.stream, 0, at[1], &pattern, 4, bytes / 4, &error) == GPULUA_OK &&
                node(&made, chain, 2) &&
                cpu->copy(made.stream, 0, at[1], at[0], bytes / 2, &error) == GPULUA_OK &&
                node(&made, chain + 2, 1) &&
                cpu->download(made.stream, 0, host[1], at[1], bytes, &error) == GPULUA_OK &&
                end(&made);
    for (int round = 1; round <= 3; round++) {
        memset(host[0], 16 * round, bytes);
        memset(host[1], 0, bytes);
        good = good && run(&made);
        for (uint64_t i = 0; i < bytes; i++) {
            good = good && host[1][i] == (i < bytes / 2 ? 16 * round : 4 - (int)(i % 4));
        }
    }
    tap_check(&tap, good, "uploads, fills, copies and downloads, with what is there at the launch");
    destroy(&made);
}

/* ---- failures ---- */

static void failing(void) {
    static const uint32_t both[] = {1, 2}, first[] = {0};
    struct {
        const int *fails;
        int *met, party; /* both have begun when the first fails */
    } args = {&memory->fails, &memory->met, is_checked ? 1 : 2};
    uint32_t before = atomic_load(&failures);
    struct made made;
    bool good = begin(&made) && visit_plain(&made, NULL, 0);
    for (uint32_t i = 0; i < 2; i++) {
        good = good && node(&made, first, 1) &&
               kernel_put(&made, fail_kernel, 1, &args, (uint32_t)sizeof args);
    }
    good = good && visit(&made, both, 2, NULL, 0, &memory->open) && end(&made);
    memory->fails = memory->met = 0;
    good = good && run(&made) && atomic_load(&failures) == before;
    memory->fails = 1;
    good = good && launch(&made, &lanes[1]);
    await(&lanes[1]);
    tap_check(&tap,
              good && atomic_load(&failures) == before + 1 && failed_stream == 1 &&
                  failed_seq == lanes[1].seq && failed_word < lanes[1].seq,
              "nodes that fail: told once, as the launch, before its word");
    tap_check(&tap, failed_node == 2 || failed_node == 3, "which of them is told, from 1");
    tap_check(&tap, memory->done[0] == 2 && memory->done[3] == 1,
              "what depends on them is not run");
    memory->fails = 0;
    good = run(&made) && atomic_load(&failures) == before + 1 && memory->done[3] == 2;
    tap_check(&tap, good, "the next launch is whole");
    memory->fails = 1;
    good = run(&made) && atomic_load(&failures) == before + 2 && failed_stream == 0 &&
           failed_seq == lanes[0].seq;
    tap_check(&tap, good, "and fails again");
    destroy(&made);
}

/* ---- ends ---- */

static void unfinished(void) {
    static const uint32_t first[] = {0};
    struct made made;
    bool good = begin(&made);
    destroy(&made);
    good = good && begin(&made) && visit_plain(&made, NULL, 0) && node(&made, first, 1);
    destroy(&made);
    good = good && diamond(&made, true);
    destroy(&made);
    tap_check(&tap, good, "graphs that are not finished, or never launched, can be destroyed");
    for (uint32_t i = 0; i < 300 && good; i++) {
        good = diamond(&made, true) && launch(&made, &lanes[i % STREAMS]);
        await(&lanes[i % STREAMS]);
        destroy(&made); /* at once: workers may just be leaving its lanes */
    }
    tap_check(&tap, good, "so can those whose launch has just ended");
    good = diamond(&made, true) && launch(&made, &lanes[0]) && begin(&made) && node(&made, NULL, 0);
    device_close();
    tap_check(&tap, good, "closing the device ends those that are left");
}

/* ---- costs ---- */

static void costs(void) {
    struct made made;
    struct backend_error error = {.log = NULL};
    double best[2] = {1e9, 1e9};
    bool good = begin(&made);
    const uint32_t pattern = 0;
    const uint64_t to = (uint64_t)(uintptr_t)memory->bytes[0];
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t dep = i - 1;
        good = good && node(&made, &dep, i > 0 ? 1 : 0) &&
               cpu->fill(made.stream, 0, to, &pattern, 4, 4, &error) == GPULUA_OK;
    }
    good = good && end(&made);
    for (int round = 0; round < 20; round++) {
        double start = now_s();
        good = good && run(&made);
        double middle = now_s();
        for (uint32_t i = 0; i < 1000; i++) {
            good = good && cpu->fill(lanes[0].stream, lanes[0].seq + 1, to, &pattern, 4, 4,
                                     &error) == GPULUA_OK;
        }
        good = good && cpu->stream_word(lanes[0].stream, &lanes[0].word, ++lanes[0].seq, &error) ==
                           GPULUA_OK;
        await(&lanes[0]);
        double spent[2] = {middle - start, now_s() - middle};
        for (int i = 0; i < 2; i++) {
            best[i] = spent[i] < best[i] ? spent[i] : best[i];
        }
    }
    printf("# a chain of 1,000 short fills: %.1f us as a graph, %.1f us on a stream\n",
           best[0] * 1e6, best[1] * 1e6);
    tap_check(&tap, good && best[0] < 2 * best[1], "a chain costs about what it does on a stream");
    destroy(&made);
}

/* ---- check mode ---- */

/* Bit i: launch i of the diamond without an edge saw the slow side done. */
static uint32_t seen_of(uint64_t seed, bool has_edge, bool *good) {
    uint32_t seen = 0;
    struct made made;
    if (!device_open(seed)) {
        *good = false;
        return 0;
    }
    *good = *good && diamond(&made, has_edge);
    for (uint32_t i = 0; i < 16; i++) {
        int before = memory->wrong;
        *good = *good && run(&made);
        seen |= memory->wrong == before ? UINT32_C(1) << i : 0;
    }
    *good = *good && memory->done[3] == 16;
    destroy(&made);
    device_close();
    return seen;
}

static void checked_seeds(void) {
    bool good = true, is_same = true, is_ordered = true;
    uint32_t differing = 0;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        uint32_t seen = seen_of(seed, false, &good);
        is_same = is_same && seen_of(seed, false, &good) == seen;
        is_ordered = is_ordered && seen_of(seed, true, &good) == 0xffff;
        differing += seen != 0 && seen != 0xffff ? 1 : 0;
    }
    tap_check(&tap, good && is_same, "check mode: one seed, one order");
    tap_check(&tap, good && differing == 8, "without an edge both orders come");
    tap_check(&tap, good && is_ordered, "with it only one");
}

/* A kernel that uses what its launch does not declare. */
static void checked_freed(void) {
    uint8_t *bytes = memory->bytes[0];
    struct made made;
    cpu->block_create(device, 1, (uint64_t)(uintptr_t)bytes, 512, "bytes", false);
    bool good = begin(&made) && node(&made, NULL, 0) &&
                kernel_put(&made, blocks_kernel, 8, &bytes, (uint32_t)sizeof bytes) && end(&made) &&
                launch(&made, &lanes[0]);
    cpu->block_free(device, 1, "graph.lua:1");
    await(&lanes[0]);
    tap_check(&tap, good && failed_seq == lanes[0].seq && failed_status == GPULUA_OUT_OF_BOUNDS,
              "check mode: what is freed behind a launch does not concern it");
    tap_check(&tap, run(&made) && failed_status == GPULUA_USE_AFTER_FREE,
              "but the graph's next one, whenever it was put together");
    destroy(&made);
}

int main(void) {
    sem_init(&moved, 0, 0);
    if (!tap_check(&tap, device_open(0), "a device")) {
        return tap_finish(&tap);
    }
    edges();
    random_graphs(60);
    large();
    fans();
    many_launches();
    empty();
    beside();
    serial();
    shared();
    transfers();
    failing();
    costs();
    unfinished();
    free(image);
    image = NULL;
    is_checked = true;
    if (!tap_check(&tap, device_open(7), "a device in check mode")) {
        return tap_finish(&tap);
    }
    random_graphs(10);
    fans();
    empty();
    transfers();
    failing();
    checked_freed();
    unfinished();
    checked_seeds();
    free(image);
    return tap_finish(&tap);
}
