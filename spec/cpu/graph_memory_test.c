/* backend/cpu/graph.c, lanes.c and control.c with every allocation failing, one after the other:
 * the call says so, nothing hangs and nothing is left. */
#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "backend/cpu/device.h"
#include "backend/tap.h"

static struct tap tap;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void) {
    tap_skip(&tap, "allocations that fail", "a sanitizer has an allocator of its own");
    return tap_finish(&tap);
}
#else

/* ---- an allocator that fails at the n-th call of this thread, and counts ---- */

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *block, size_t bytes);
extern void __libc_free(void *block);

static __thread long calls_left; /* 0: none fails */
static __thread bool has_failed;
static _Atomic long live_count;

static bool fails(void) {
    if (calls_left == 0 || --calls_left > 0) {
        return false;
    }
    has_failed = true;
    errno = ENOMEM;
    return true;
}

static void *counted(void *block) {
    atomic_fetch_add(&live_count, block != NULL ? 1 : 0);
    return block;
}

void *malloc(size_t bytes) {
    return fails() ? NULL : counted(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t bytes) {
    return fails() ? NULL : counted(__libc_calloc(count, bytes));
}

void *realloc(void *block, size_t bytes) {
    if (fails()) {
        return NULL;
    }
    void *made = __libc_realloc(block, bytes);
    return block == NULL ? counted(made) : made;
}

void free(void *block) {
    atomic_fetch_sub(&live_count, block != NULL ? 1 : 0);
    __libc_free(block);
}

/* ---- a graph with several lanes, launched from two streams ---- */

#define NODES 60u

static const struct backend_ops *const cpu = &gpu_backend_cpu;
static struct backend_device *device;
static uint32_t values[NODES + 1], beside[NODES];
static sem_t moved;

static void on_moved(void *user) {
    (void)user;
    sem_post(&moved);
}

/* Behind them, unless the first value is 0, a node copies it to the last place; others are beside
 * it. */
static bool branch(struct backend_graph *graph, struct backend_stream *stream,
                   struct backend_error *error) {
    const uint32_t last = NODES - 1;
    const struct backend_control control = {.kind = WIRE_CONTROL_IF,
                                            .address = (uint64_t)(uintptr_t)&values[0],
                                            .elem_bytes = 4,
                                            .body_count = 2};
    bool good = cpu->graph_node(graph, &last, 1, error) == GPULUA_OK &&
                cpu->graph_control(graph, &control, error) == GPULUA_OK;
    for (uint32_t i = 0; good && i < 2 * 20; i++) { /* twenty for each body */
        uint64_t to = (uint64_t)(uintptr_t)(i == 0 ? &values[NODES] : &beside[i]);
        good = cpu->graph_node(graph, NULL, 0, error) == GPULUA_OK &&
               cpu->copy(stream, 0, to, (uint64_t)(uintptr_t)&values[0], 4, error) == GPULUA_OK &&
               (i % 20 < 19 || cpu->graph_body_end(graph, error) == GPULUA_OK);
    }
    return good;
}

/* Each node copies what one before it has written, three of four side by side. */
static bool build(struct backend_graph *graph, struct backend_stream *stream,
                  struct backend_error *error) {
    const uint32_t one = 1;
    for (uint32_t i = 0; i < NODES; i++) {
        uint32_t deps[2] = {i % 4 == 0 ? i - 1 : i - i % 4, i - 2};
        uint32_t dep_count = i == 0 ? 0 : i % 4 == 0 ? 2 : 1;
        uint64_t to = (uint64_t)(uintptr_t)&values[i];
        if (cpu->graph_node(graph, deps, dep_count, error) != GPULUA_OK ||
            (i == 0 ? cpu->fill(stream, 0, to, &one, 4, 1, error)
                    : cpu->copy(stream, 0, to, (uint64_t)(uintptr_t)&values[deps[0]], 4, error)) !=
                GPULUA_OK) {
            return false;
        }
    }
    return branch(graph, stream, error) && cpu->graph_end(graph, error) == GPULUA_OK;
}

/* False: it is wrong. */
static bool try_all(struct backend_stream *const streams[2]) {
    struct backend_error error = {.status = GPULUA_OK, .log = NULL};
    struct backend_graph *graph = NULL;
    struct backend_stream *stream;
    _Atomic uint64_t words[2] = {0, 0};
    memset(values, 0, sizeof values);
    bool good = cpu->graph_begin(device, &graph, &stream, &error) == GPULUA_OK &&
                build(graph, stream, &error);
    uint32_t launches = 0;
    for (uint64_t i = 0; good && i < 6; i++) {
        good = cpu->graph_launch(streams[i % 2], i + 1, graph, &error) == GPULUA_OK;
        launches += good ? 1 : 0;
    }
    good = good ? !has_failed : has_failed && error.status == GPULUA_OUT_OF_MEMORY;
    calls_left = 0;
    for (int i = 0; i < 2; i++) {
        good = cpu->stream_word(streams[i], &words[i], 1, &error) == GPULUA_OK && good;
        while (atomic_load(&words[i]) == 0) {
            sem_wait(&moved);
        }
    }
    for (uint32_t i = 0; i <= NODES; i++) {
        good = good && values[i] == (launches > 0 ? 1 : 0);
    }
    if (graph != NULL) {
        cpu->graph_destroy(device, graph);
    }
    return good;
}

int main(void) {
    sem_init(&moved, 0, 0);
    struct backend_open_info info = {.sink = {.moved = on_moved}};
    struct backend_error error = {.log = NULL};
    bool good = cpu->device_open(&info, &device, &error) == GPULUA_OK, is_whole = true;
    long calls = 0, before = atomic_load(&live_count);
    do {
        struct backend_stream *streams[2];
        good = good && cpu->stream_create(device, 0, 0, &streams[0], &error) == GPULUA_OK &&
               cpu->stream_create(device, 1, 0, &streams[1], &error) == GPULUA_OK;
        has_failed = false;
        calls_left = ++calls;
        good = good && try_all(streams);
        for (int i = 0; i < 2; i++) {
            cpu->stream_destroy(device, streams[i]);
        }
        is_whole = is_whole && atomic_load(&live_count) == before;
    } while (good && has_failed);
    printf("# %ld allocations\n", calls - 1);
    tap_check(&tap, good && calls > NODES, "each allocation that fails is said, and nothing hangs");
    tap_check(&tap, is_whole, "nothing is left of what could not be made");
    cpu->device_close(device);
    return tap_finish(&tap);
}
#endif
