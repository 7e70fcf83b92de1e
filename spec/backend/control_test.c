/* Conditional nodes of graphs: the same programs on the CPU device, on backend/cuda against
 * fake_cuda.c, and, where GPULUA_DEVICE names a GPU, on it; against the fake also that the driver's
 * graph is the one asked for, that each call may fail, and that nothing leaks.
 *
 * Programs need no kernels: a condition is the first cell of a list, and what goes on to the next
 * one copies the rest of the list over it. */
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "backend/backend.h"
#include "tap.h"

static struct tap tap;
static const struct backend_ops *device_ops;
static const char *where;
static bool is_fake;

#include "fake.h"
#ifdef GPULUA_CUDA
#include "fake_driver.h"
#else
#define FAKE(type, name) (*(type *)NULL) /* never looked at */
#endif

#define CELLS 4096u
#define DEPS(...) (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4
#define NO_DEPS NULL, 0

static struct backend_device *device;
static struct backend_stream *stream, *on;
static struct backend_event *event;
static struct backend_graph *graph;
static uint64_t base; /* CELLS cells of 4 bytes */
static uint64_t seq;
static struct backend_error error;

static bool check(bool good, const char *what) {
    char text[200];
    snprintf(text, sizeof text, "%s: %s", where, what);
    if (!tap_check(&tap, good, text) && error.message[0] != '\0') {
        printf("# %s\n", error.message);
    }
    gpu_backend_error_init(&error);
    return good;
}

static void failed(void *user, uint32_t slot, uint64_t number, uint32_t node,
                   const struct backend_failure *failure) {
    (void)user;
    printf("# work (%u, %llu), node %u, failed: %d %s\n", slot, (unsigned long long)number, node,
           (int)failure->status, failure->text);
}
static void noted(void *user, const char *line) {
    (void)user;
    (void)line;
}
static void moved(void *user) {
    (void)user;
}

static uint64_t cell(uint32_t number) {
    return base + 4 * (uint64_t)number;
}
static bool set(struct backend_stream *to, uint32_t number, uint32_t value) {
    return device_ops->fill(to, ++seq, cell(number), &value, 4, 1, &error) == GPULUA_OK;
}
static bool copy(struct backend_stream *to, uint32_t dst, uint32_t src, uint32_t count) {
    return device_ops->copy(to, ++seq, cell(dst), cell(src), 4 * (uint64_t)count, &error) ==
           GPULUA_OK;
}

static bool wait_for(struct backend_stream *of) {
    const struct timespec pause = {.tv_nsec = 100000};
    enum backend_query answer = BACKEND_PENDING;
    if (device_ops->event_record(event, of, &error) != GPULUA_OK) {
        return false;
    }
    for (int i = 0; i < 100000 && answer == BACKEND_PENDING; i++) {
        answer = device_ops->event_query(event, &error);
        if (answer == BACKEND_PENDING) {
            nanosleep(&pause, NULL);
        }
    }
    return answer == BACKEND_DONE;
}

static bool is(uint32_t number, uint32_t value) {
    uint32_t found = 0;
    bool good = device_ops->download(stream, ++seq, &found, cell(number), 4, &error) == GPULUA_OK &&
                wait_for(stream);
    if (good && found != value) {
        printf("# cell %u: %u, wanted %u\n", number, found, value);
    }
    return good && found == value;
}

static bool rig_open(void) {
    struct backend_slab *slab;
    const char *name = getenv("GPULUA_DEVICE");
    struct backend_open_info info = {.cache_path = folder,
                                     .sink = {.failed = failed, .log = noted, .moved = moved}};
    if (!is_fake && device_ops != &gpu_backend_cpu && name != NULL &&
        strncmp(name, "cuda:", 5) == 0) {
        info.ordinal = atoi(name + 5);
    }
    gpu_backend_error_init(&error);
    return device_ops->device_open(&info, &device, &error) == GPULUA_OK &&
           device_ops->stream_create(device, 0, 0, &stream, &error) == GPULUA_OK &&
           device_ops->event_create(device, &event, &error) == GPULUA_OK &&
           device_ops->slab_create(device, 4 * CELLS, &slab, &base, &error) == GPULUA_OK &&
           device_ops->fill(stream, ++seq, base, "\0", 1, 4 * CELLS, &error) == GPULUA_OK &&
           wait_for(stream);
}

static void rig_close(void) {
    device_ops->event_destroy(device, event);
    device_ops->device_close(device);
}

/* The driver's graph, as the fake saw it. */
static bool text_is(const char *wanted) {
    static char text[65536];
    if (!is_fake) {
        return true;
    }
    void (*tell)(char *, size_t) = NULL;
#ifdef GPULUA_CUDA
    void *symbol = dlsym(fake, "fake_graph_text");
    memcpy(&tell, &symbol, sizeof tell);
#endif
    tell(text, sizeof text);
    if (strcmp(text, wanted) != 0) {
        printf("# wanted: %s\n# got:    %s\n", wanted, text);
    }
    return strcmp(text, wanted) == 0;
}

static bool begin(void) {
    graph = NULL;
    return (device_ops->graph_control_prepare == NULL ||
            device_ops->graph_control_prepare(device, &error) == GPULUA_OK) &&
           device_ops->graph_begin(device, &graph, &on, &error) == GPULUA_OK;
}
static bool node(const uint32_t *deps, size_t count) {
    return device_ops->graph_node(graph, deps, (uint32_t)count, &error) == GPULUA_OK;
}
static bool control(enum wire_control_kind kind, uint64_t address, uint32_t elem_bytes,
                    uint32_t body_count) {
    const struct backend_control made = {
        .kind = kind, .address = address, .elem_bytes = elem_bytes, .body_count = body_count};
    return device_ops->graph_control(graph, &made, &error) == GPULUA_OK;
}
static bool body_end(void) {
    return device_ops->graph_body_end(graph, &error) == GPULUA_OK;
}
static bool end(void) {
    return device_ops->graph_end(graph, &error) == GPULUA_OK;
}
static bool launch(void) {
    return device_ops->graph_launch(stream, ++seq, graph, &error) == GPULUA_OK;
}
static void destroy(void) {
    if (graph != NULL && device != NULL) {
        device_ops->graph_destroy(device, graph);
    }
    graph = NULL;
}

/* A list of `count` times 1 and then 0, at a cell; two nodes shift it, through a cell range far
 * off, the first of them behind nothing. */
#define LIST_CELLS 32u
static bool list_set(uint32_t at, uint32_t count) {
    bool good = true;
    for (uint32_t i = 0; i < LIST_CELLS; i++) {
        good = good && set(stream, at + i, i < count ? 1 : 0);
    }
    return good;
}
static bool list_shift(uint32_t at, uint32_t first_node) {
    return copy(on, at + 1000, at + 1, LIST_CELLS - 1) && node(DEPS(first_node)) &&
           copy(on, at, at + 1000, LIST_CELLS - 1);
}

/* ---- programs ---- */

static void branches(void) {
    bool good = begin() && node(NO_DEPS) && set(on, 1, 5) && node(NO_DEPS) &&
                control(WIRE_CONTROL_IF, cell(0), 4, 1) && node(NO_DEPS) && set(on, 2, 6) &&
                body_end() && node(DEPS(1, 0)) && copy(on, 3, 1, 2) && end();
    check(good && text_is("set gpulua_choose if(1){set} copy(2,0)"), "if_ without else");
    good = launch() && is(2, 0) && is(4, 0) && set(stream, 0, 1u << 31) && launch() && is(2, 6);
    check(good && is(3, 5) && is(4, 6), "is done unless the value is 0");
    destroy();

    good = begin() && node(NO_DEPS) && set(on, 10, 7) && node(DEPS(0)) &&
           control(WIRE_CONTROL_IF, cell(10), 4, 2) && node(NO_DEPS) && set(on, 11, 1) &&
           node(NO_DEPS) && set(on, 10, 0) && body_end() && node(NO_DEPS) && set(on, 11, 2) &&
           body_end() && node(DEPS(1)) && control(WIRE_CONTROL_IF, cell(10), 4, 2) &&
           node(NO_DEPS) && set(on, 12, 1) && body_end() && node(NO_DEPS) && set(on, 12, 2) &&
           body_end() && end();
    check(good && text_is("set gpulua_choose(0) if(1){set set}{set} gpulua_choose(2) "
                          "if(3){set}{set}"),
          "if_ with else");
    check(launch() && is(11, 1) && is(12, 2), "one of them is done, with the value as it was");
    destroy();
}

static void switches(const char *text) {
    static const uint32_t values[] = {0, 1, 2, 3, 4, 257, 0xffffffff};
    static const uint32_t wanted[] = {0, 10, 20, 30, 0, 0, 0};
    bool good = begin() && node(NO_DEPS) && control(WIRE_CONTROL_SWITCH, cell(20), 4, 3);
    for (uint32_t i = 1; i <= 3; i++) { /* which change the value, too */
        good = good && node(NO_DEPS) && set(on, 21, 10 * i) && node(NO_DEPS) &&
               set(on, 20, i % 3 + 1) && body_end();
    }
    good = good && node(DEPS(0)) && copy(on, 22, 21, 1) && end();
    check(good && text_is(text), "switch");
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        good = good && set(stream, 20, values[i]) && set(stream, 21, 0) && launch() &&
               is(22, wanted[i]);
    }
    check(good, "the one of that number, from 1");
    destroy();
}

static void widths(void) {
    bool good = true;
    for (uint32_t bytes = 1; bytes <= 8 && good; bytes *= 2) {
        uint64_t value = bytes == 8 ? UINT64_C(1) << 40 : UINT64_C(1) << (8 * bytes - 1);
        uint64_t noise = ~UINT64_C(0);
        uint64_t at = cell(40); /* between others that are not 0 */
        good = begin() && node(NO_DEPS) && control(WIRE_CONTROL_IF, at + bytes, bytes, 2) &&
               node(NO_DEPS) && set(on, 50, 1) && body_end() && node(NO_DEPS) && set(on, 50, 2) &&
               body_end() && end() &&
               device_ops->fill(stream, ++seq, at, &noise, 8, 4, &error) == GPULUA_OK &&
               device_ops->fill(stream, ++seq, at + bytes, "\0\0\0\0\0\0\0\0", bytes, 1, &error) ==
                   GPULUA_OK &&
               launch() && is(50, 2) &&
               device_ops->fill(stream, ++seq, at + bytes, &value, bytes, 1, &error) == GPULUA_OK &&
               launch() && is(50, 1);
        destroy();
    }
    check(good, "values of 1, 2, 4 and 8 bytes");
}

/* Passes over one list inside of passes over another: cell 300 ends as what is at cell 301 plus as
 * many as there were inner passes. */
static bool loops_make(void) {
    return begin() && node(NO_DEPS) && set(on, 399, 3) && node(NO_DEPS) &&
           control(WIRE_CONTROL_WHILE, cell(100), 4, 1) && /* 1 */
           node(NO_DEPS) && list_shift(100, 0) &&          /* its 0, 1 */
           node(NO_DEPS) && copy(on, 200, 600, LIST_CELLS) && node(DEPS(2)) &&
           control(WIRE_CONTROL_WHILE, cell(200), 4, 1) && /* 3 */
           node(NO_DEPS) && list_shift(200, 0) && node(NO_DEPS) && list_shift(300, 2) &&
           body_end() && node(NO_DEPS) && /* 4: nothing */
           body_end() && node(DEPS(1, 0)) && copy(on, 700, 300, 1) && end();
}

static void loops(void) {
    bool good = loops_make();
    check(good && text_is("set gpulua_choose while(1){copy copy(0) copy gpulua_choose(2) "
                          "while(3){copy copy(0) copy copy(2) gpulua_choose(1,3)} "
                          "gpulua_choose(1,4)} copy(2,0)"),
          "a loop in a loop");
    for (uint32_t outer = 0; outer < 4; outer++) {
        for (uint32_t inner = 0; inner < 4; inner++) {
            good = good && list_set(100, outer) && list_set(600, inner);
            for (uint32_t i = 0; i < LIST_CELLS; i++) {
                good = good && set(stream, 300 + i, i);
            }
            good = good && launch() && is(700, outer * inner);
        }
    }
    check(good, "as many passes as the values say");
    destroy();
}

/* The node behind the one that writes the condition puts nothing on the device. */
static void loop_of_nothing(void) {
    bool good = begin() && node(NO_DEPS) && control(WIRE_CONTROL_WHILE, cell(100), 4, 1) &&
                node(NO_DEPS) && list_shift(100, 0) && node(DEPS(1)) && body_end() && end();
    check(good && text_is("gpulua_choose while(0){copy copy(0) gpulua_choose(1)}"),
          "a loop looks at its condition behind what a node without work follows");
    destroy();
}

static bool branch(uint32_t number) {
    return control(WIRE_CONTROL_IF, cell(0), 4, 1) && node(NO_DEPS) && set(on, number, 1) &&
           body_end();
}

/* In a body the driver's never come back beside each other. */
static void beside(void) {
    bool good = begin() && node(NO_DEPS) && branch(1) && node(NO_DEPS) && branch(2) &&
                node(NO_DEPS) && control(WIRE_CONTROL_WHILE, cell(100), 4, 1) && /* 2 */
                node(NO_DEPS) && list_shift(100, 0) && node(NO_DEPS) && branch(3) &&
                node(NO_DEPS) && set(on, 4, 1) && node(DEPS(2, 3)) && branch(5) && node(NO_DEPS) &&
                branch(6) && body_end() && node(NO_DEPS) && branch(7) && end();
    check(good && text_is("gpulua_choose if(0){set} gpulua_choose if(2){set} gpulua_choose "
                          "while(4){copy copy(0) gpulua_choose if(2){set} set "
                          "gpulua_choose(3,4) if(5){set} gpulua_choose(6) if(7){set} "
                          "gpulua_choose(1,8)} gpulua_choose if(6){set}"),
          "in a body each follows the one before it, and in the graph none");
    good = good && set(stream, 0, 1) && list_set(100, 3) && launch();
    for (uint32_t i = 1; i <= 7; i++) {
        good = good && is(i, 1);
    }
    check(good, "all of them are done");
    destroy();
}

/* Chains beside each other in a loop, of which one goes across: many lanes, many passes. */
static void wide(void) {
    enum { CHAINS = 12, PASSES = 20 };
    bool good = begin() && node(NO_DEPS) && control(WIRE_CONTROL_WHILE, cell(100), 4, 1) &&
                node(NO_DEPS) && list_shift(100, 0);
    for (uint32_t i = 0; i < CHAINS; i++) {
        uint32_t at = 2000 + 100 * i; /* a hundred cells that go round by one each time */
        good = good && node(NO_DEPS) && copy(on, 3500, at, i == 0 ? 1 : 0) && node(NO_DEPS) &&
               copy(on, 1200 + 50 * i, at, 48) && node(DEPS(3 + 3 * i)) &&
               copy(on, at + 1, 1200 + 50 * i, 48);
    }
    good = good && body_end() && end();
    for (uint32_t round = 0; round < 30 && good; round++) {
        good = list_set(100, PASSES);
        for (uint32_t i = 0; i < CHAINS; i++) {
            good = good && set(stream, 2000 + 100 * i, round + i);
        }
        good = good && launch();
    }
    for (uint32_t i = 0; i < CHAINS && good; i++) {
        good = is(2000 + 100 * i + PASSES, 29 + i) && is(2000 + 100 * i + 1, 29 + i) &&
               is(2000 + 100 * i + PASSES + 1, 28 + i);
    }
    check(good, "chains beside each other, pass after pass");
    destroy();
}

static void states(void) {
    long live = is_fake ? FAKE(long, live) : 0;
    bool good = begin() && node(NO_DEPS) && control(WIRE_CONTROL_WHILE, cell(0), 4, 1) &&
                node(NO_DEPS) && set(on, 0, 0) && node(NO_DEPS) &&
                control(WIRE_CONTROL_IF, cell(0), 4, 2) && node(NO_DEPS) && set(on, 1, 1);
    destroy();
    check(good && (!is_fake || FAKE(long, live) == live), "destroyed with bodies that have no end");
    good = begin() && node(NO_DEPS) && control(WIRE_CONTROL_IF, cell(0), 4, 2) && node(NO_DEPS) &&
           set(on, 1, 1) && body_end();
    graph = NULL;
    good = good && loops_make();
    graph = NULL;
    rig_close();
    check(good && (!is_fake || FAKE(long, live) == 0), "what is left goes with the device");
    check(rig_open(), "which can be opened again");
}

/* ---- with the fake only ---- */

#ifdef GPULUA_CUDA

static void versions(void) {
    long live = FAKE(long, live);
    rig_close();
    FAKE(int, version) = 12040;
    where = "the fake driver 12.4";
    check(rig_open(), "a device");
    switches("gpulua_choose gpulua_choose(0) gpulua_choose(1) if(2){set set} if(3){set set} "
             "if(4){set set} copy(5)");
    loops();
    loop_of_nothing();
    bool good = begin() && node(NO_DEPS) && control(WIRE_CONTROL_IF, cell(10), 4, 2) &&
                node(NO_DEPS) && set(on, 11, 1) && node(NO_DEPS) && set(on, 10, 0) && body_end() &&
                node(NO_DEPS) && set(on, 11, 2) && body_end() && end();
    check(good && text_is("gpulua_choose gpulua_choose(0) if(1){set set} if(2){set}"),
          "if_ with else: a node for each body");
    check(set(stream, 10, 1) && launch() && is(11, 1) && launch() && is(11, 2),
          "one of them is done, with the value as it was");
    destroy();
    rig_close();
    FAKE(int, version) = 12030;
    good = rig_open() && device_ops->graph_control_prepare(device, &error) == GPULUA_UNSUPPORTED &&
           strstr(error.message, "12.4 (driver 550)") != NULL &&
           strstr(error.message, "12.3") != NULL &&
           device_ops->graph_begin(device, &graph, &on, &error) == GPULUA_OK;
    destroy();
    where = "the fake driver";
    check(good, "12.3 has graphs, and is told which has conditional nodes");
    rig_close();
    FAKE(int, version) = 13000;
    check(rig_open() && FAKE(long, live) <= live, "nothing left of them");
}

static bool scenario(void) {
    return begin() && node(NO_DEPS) && control(WIRE_CONTROL_IF, cell(30), 4, 2) && node(NO_DEPS) &&
           set(on, 31, 1) && body_end() && node(NO_DEPS) &&
           control(WIRE_CONTROL_WHILE, cell(30), 4, 1) && node(NO_DEPS) && set(on, 30, 0) &&
           body_end() && body_end() && node(DEPS(0)) && copy(on, 32, 31, 1) && end() && launch();
}

static void faults(void) {
    static const struct {
        const char *name;
        int times;
    } calls[] = {{"cuGraphConditionalHandleCreate", 2},       {"cuGraphAddNode_v2", 2},
                 {"cuStreamBeginCaptureToGraph", 3},          {"cuStreamEndCapture", 4},
                 {"cuStreamCreateWithPriority", 4},           {"cuLaunchKernel", 3},
                 {"cuStreamUpdateCaptureDependencies_v2", 8}, {"cuStreamGetCaptureInfo_v3", 12},
                 {"cuGraphInstantiateWithFlags", 1}};
    static const int codes[] = {999, 2, 801, 900};
    bool good = scenario();
    destroy();
    long live = FAKE(long, live);
    for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
        for (int skip = 0; skip < calls[c].times; skip++) {
            int code = codes[(c + (size_t)skip) % 4];
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(calls[c].name, "_"), calls[c].name);
            fail_next(calls[c].name, code, skip);
            bool has_failed = !scenario();
            bool once = has_failed && FAKE(int, fail_code) == 0 && error.driver_code == code &&
                        strstr(error.message, name) != NULL;
            destroy();
            once = once && FAKE(long, live) == live &&
                   device_ops->device_status(device, &error) == GPULUA_OK;
            if (!once) {
                printf("# %s after %d: %s, %ld live, not %ld\n", calls[c].name, skip, error.message,
                       FAKE(long, live), live);
            }
            good = good && once;
        }
    }
    FAKE(int, fail_code) = 0;
    gpu_backend_error_init(&error);
    check(good && set(stream, 30, 1) && scenario() && is(32, 1),
          "each call failing: named, nothing left");
    destroy();
    rig_close();
    good = rig_open();
    fail_next("cuModuleLoadDataEx", 221, 0);
    good = good && device_ops->graph_control_prepare(device, &error) != GPULUA_OK &&
           error.driver_code == 221 && scenario();
    destroy();
    check(good, "where the kernel cannot be loaded that is said, and tried again");
}

static void losing(void) {
    static const char *const calls[] = {
        "cuGraphConditionalHandleCreate", "cuGraphAddNode_v2",  "cuStreamBeginCaptureToGraph",
        "cuStreamCreateWithPriority",     "cuStreamEndCapture", "cuLaunchKernel",
        "cuStreamGetCaptureInfo_v3",      "cuModuleLoadDataEx"};
    bool good = true, quiet = true;
    for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
        for (int skip = 0; skip < 4; skip++) {
            struct backend_error later = {0};
            FAKE(long, live) = 0;
            FAKE(int, calls_after_loss) = 0;
            fail_next(calls[c], 700, skip);
            bool is_hit = !scenario();
            bool is_lost = device_ops->device_status(device, &later) == GPULUA_DEVICE_LOST;
            if (is_hit != is_lost) {
                printf("# %s after %d: %s\n", calls[c], skip, error.message);
            }
            good = good && is_hit == is_lost;
            destroy();
            rig_close();
            quiet = quiet && FAKE(int, calls_after_loss) == 0;
            FAKE(int, sticky) = 0;
            FAKE(int, fail_code) = 0;
            if (!rig_open()) {
                check(false, "a device after one that was lost");
                return;
            }
        }
    }
    rig_close();
    FAKE(long, live) = 0; /* but for what lost devices leave */
    check(good && rig_open(), "a fault in each call: lost");
    check(quiet, "and the driver is left alone");
}

#endif

static void all(const struct backend_ops *ops_of, const char *name) {
    device_ops = ops_of;
    where = name;
    if (!check(rig_open(), "a device")) {
        return;
    }
    branches();
    switches("gpulua_choose switch(0){set set}{set set}{set set} copy(1)");
    widths();
    loops();
    loop_of_nothing();
    beside();
    wide();
    states();
#ifdef GPULUA_CUDA
    if (is_fake) {
        versions();
        faults();
        losing();
    }
#endif
    rig_close();
}

int main(void) {
    if (!tap_check(&tap, make_folder(), "a folder of its own")) {
        return tap_finish(&tap);
    }
    all(&gpu_backend_cpu, "the CPU device");
#ifdef GPULUA_CUDA
    const char *name = getenv("GPULUA_DEVICE"), *asked = getenv("GPULUA_LIBCUDA");
    char *library = asked != NULL ? strdup(asked) : NULL; /* build() puts the fake there */
    if (build()) {
        is_fake = true;
        all(&gpu_backend_cuda, "the fake driver");
        tap_check(&tap, FAKE(long, live) == 0, "nothing left of all this");
    } else {
        tap_skip(&tap, "conditional nodes against the fake driver", "no compiler for it");
    }
    if (library != NULL) {
        setenv("GPULUA_LIBCUDA", library, 1);
    } else {
        unsetenv("GPULUA_LIBCUDA");
    }
    free(library);
    if (name != NULL && strncmp(name, "cuda", 4) == 0) {
        is_fake = false;
        all(&gpu_backend_cuda, "the GPU");
    }
#endif
    remove_folder();
    return tap_finish(&tap);
}
