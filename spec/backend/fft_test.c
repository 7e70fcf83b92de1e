/* The library "fft" on CUDA against fake_cuda.c and fake_cufft.c: what it asks of cuFFT for which
 * layout, what it copies and scales, what it makes of failures, and that nothing leaks. What cuFFT
 * computes is tested where there is a GPU. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/fft.h"
#include "tap.h"

static struct tap tap;

#ifdef GPULUA_CUDA

#include "fake_driver.h"

static void *fake_cufft;
#define CUFFT(type, name) (*(type *)dlsym(fake_cufft, "fake_" #name))

static struct backend_device *device;
static struct backend_stream *stream;

static void fail_cufft(const char *call, int code) {
    snprintf((char *)dlsym(fake_cufft, "fake_fail_name"), 64, "%s", call);
    CUFFT(int, fail_code) = code;
}

static gpulua_status open_plan(const struct fft_plan *plan, struct backend_module **module,
                               char **description, struct backend_error *error) {
    char options[512] = "";
    const int64_t *numbers = (const int64_t *)(const void *)plan;
    for (size_t i = 0; i < sizeof *plan / sizeof *numbers; i++) {
        size_t used = strlen(options);
        snprintf(options + used, sizeof options - used, "%s%" PRId64, i > 0 ? " " : "", numbers[i]);
    }
    *error = (struct backend_error){0};
    *description = NULL;
    return ops->library_open(device, "fft", options, module, description, error);
}

/* Bytes of work that a description tells of. */
static uint64_t work_of(const char *description, const char *name) {
    const char *at = strstr(description, name);
    return at != NULL ? strtoull(at + strlen(name), NULL, 10) : UINT64_MAX;
}

static gpulua_status run(struct backend_module *module, const char *call, const void *in, void *out,
                         void *work, uint64_t work_bytes, double scale,
                         struct backend_error *error) {
    struct backend_kernel *kernel;
    struct wire_kernel_facts facts;
    bool prints;
    *error = (struct backend_error){0};
    struct fft_call args = {in, out, work, work_bytes, scale};
    gpulua_status status = ops->kernel_get(module, call, &kernel, &prints, &facts, error);
    struct backend_launch launch = {.kernel = kernel,
                                    .stream = stream,
                                    .grid = {1, 1, 1},
                                    .block = {1, 1, 1},
                                    .args = &args,
                                    .args_bytes = sizeof args};
    return status == GPULUA_OK ? ops->launch(&launch, error) : status;
}

static uint32_t random_state = 1;
static int64_t between(int64_t low, int64_t high) {
    random_state = random_state * 1664525u + 1013904223u;
    return low + (int64_t)((random_state >> 8) % (uint32_t)(high - low + 1));
}

static struct fft_plan random_plan(void) {
    struct fft_plan plan = {.is_real = between(0, 1),
                            .is_f64 = between(0, 1),
                            .has_forward = 1,
                            .has_inverse = 1,
                            .may_overwrite = between(0, 1),
                            .rank = between(1, 3),
                            .batch = between(1, 3)};
    for (int64_t i = 0; i < FFT_RANK_MAX; i++) {
        plan.sizes[i] = i < plan.rank ? between(1, 6) : 1;
        plan.x.strides[i] = plan.f.strides[i] = 1;
    }
    for (int s = 0; s < 2; s++) {
        struct fft_side *side = s == 0 ? &plan.x : &plan.f;
        int64_t covered = between(1, 3);
        for (int64_t i = plan.rank - 1; i >= 0; i--) {
            side->strides[i] = covered;
            covered *= gpu_fft_size(&plan, s == 0, i) + between(0, 2);
        }
        side->distance = covered + between(0, 2);
    }
    return plan;
}

/* Where element number i of x is, counted in elements, and (of a real plan, the second half of a
 * row being the first one back) where it comes from in f. */
static void places(const struct fft_plan *plan, int64_t i, int64_t *in_x, int64_t *in_f,
                   bool *is_half) {
    int64_t last = plan->rank - 1, n = plan->sizes[last];
    *in_x = *in_f = 0;
    *is_half = false;
    for (int64_t d = last; d >= 0; d--) {
        int64_t index = i % plan->sizes[d], back = index;
        if (d == last && plan->is_real && index > n / 2) {
            *is_half = true;
            back = n - index;
        }
        *in_x += index * plan->x.strides[d];
        *in_f += back * plan->f.strides[d];
        i /= plan->sizes[d];
    }
    *in_x += i * plan->x.distance;
    *in_f += i * plan->f.distance;
}

/* Both ways; true: each number went where it is to go, gaps and what is read stay. */
static bool goes_well(const struct fft_plan *plan) {
    struct backend_module *module = NULL;
    struct backend_error error;
    char *description;
    uint64_t x_bytes = gpu_fft_span_bytes(plan, true), f_bytes = gpu_fft_span_bytes(plan, false);
    uint32_t x_elem = gpu_fft_elem_bytes(plan, true), f_elem = gpu_fft_elem_bytes(plan, false);
    if (open_plan(plan, &module, &description, &error) != GPULUA_OK) {
        printf("# %s\n", error.message);
        return false;
    }
    uint64_t forward_bytes = work_of(description, "forward_bytes ");
    uint64_t inverse_bytes = work_of(description, "inverse_bytes ");
    bool copies = plan->is_real && !plan->may_overwrite;
    bool good =
        forward_bytes == 100 && inverse_bytes == 100 + (copies ? (f_bytes + 255) / 256 * 256 : 0);
    char *x = aligned_alloc(256, 1 << 16), *f = aligned_alloc(256, 1 << 16);
    char *work = aligned_alloc(256, 1 << 17), *kept = malloc(1 << 16);
    memset(f, 0x55, 1 << 16);
    for (int i = 0; i < 1 << 16; i++) {
        x[i] = (char)between(0, 127);
    }
    memcpy(kept, x, 1 << 16);
    good = good && run(module, "fft_forward", x, f, work, forward_bytes, 1, &error) == GPULUA_OK &&
           memcmp(kept, x, 1 << 16) == 0;
    int64_t count = plan->batch * plan->sizes[0] * plan->sizes[1] * plan->sizes[2], in_x, in_f;
    bool is_half;
    for (int64_t i = 0; good && i < count; i++) {
        places(plan, i, &in_x, &in_f, &is_half);
        good = is_half || memcmp(x + in_x * x_elem, f + in_f * f_elem, x_elem) == 0;
    }
    memcpy(kept, f, 1 << 16);
    memset(x, 0x55, 1 << 16);
    good = good && run(module, "fft_inverse", f, x, work, inverse_bytes, 1, &error) == GPULUA_OK &&
           (copies || !plan->is_real ? memcmp(kept, f, 1 << 16) == 0
                                     : memcmp(kept, f, f_bytes) != 0) &&
           (plan->is_real || CUFFT(int, sign) == 1);
    for (int64_t i = 0; good && i < count; i++) {
        places(plan, i, &in_x, &in_f, &is_half);
        good = memcmp(x + in_x * x_elem, kept + in_f * f_elem, x_elem) == 0;
        memset(x + in_x * x_elem, 0x55, x_elem);
    }
    for (int64_t i = 0; good && i < 1 << 16; i++) {
        good = x[i] == 0x55; /* what is left is between the elements */
    }
    if (!good) {
        printf("# %s\n# %s, %" PRIu64 " and %" PRIu64 " bytes\n", error.message, description,
               x_bytes, f_bytes);
    }
    free(x);
    free(f);
    free(work);
    free(kept);
    free(description);
    ops->module_unload(device, module);
    return good;
}

static void layouts(void) {
    bool good = true;
    for (int i = 0; i < 500; i++) {
        struct fft_plan plan = random_plan();
        good = good && goes_well(&plan);
    }
    tap_check(&tap, good, "500 plans: each number where the layout has it, what is read kept");
    tap_check(&tap, CUFFT(long, live) == 0, "and no plan left");
}

static const struct fft_plan small = {.has_forward = 1,
                                      .has_inverse = 1,
                                      .may_be_in_place = 1,
                                      .rank = 1,
                                      .batch = 2,
                                      .sizes = {8, 1, 1},
                                      .x = {{1, 1, 1}, 8},
                                      .f = {{1, 1, 1}, 8}};

static void plans(void) {
    struct backend_module *module = NULL;
    struct backend_error error;
    char *description;
    char numbers[512] __attribute__((aligned(256))), work[512] __attribute__((aligned(256)));
    memset(numbers, 1, sizeof numbers);
    struct fft_plan plan = small;
    tap_check(&tap,
              open_plan(&plan, &module, &description, &error) == GPULUA_OK &&
                  CUFFT(long, live) == 1 && strstr(description, "in_place") == NULL,
              "complex numbers packed alike: one of cuFFT's plans for both ways");
    tap_check(&tap,
              run(module, "fft_forward", numbers, numbers, work, 100, 1, &error) == GPULUA_OK &&
                  CUFFT(int, sign) == -1 && CUFFT(void *, stream) != NULL,
              "on the stream, in place");
    tap_check(&tap,
              run(module, "fft_forward", numbers + 4, numbers + 256, work, 100, 1, &error) ==
                      GPULUA_UNSUPPORTED &&
                  strstr(error.message, "multiple of 8 bytes") != NULL,
              "what is not aligned is refused");
    tap_check(&tap,
              run(module, "fft_forward", numbers, numbers, NULL, 100, 1, &error) ==
                      GPULUA_INVALID_ARGUMENT &&
                  run(module, "fft_forward", numbers, numbers, work, 99, 1, &error) ==
                      GPULUA_INVALID_ARGUMENT,
              "so is a call without its work area");
    tap_check(&tap,
              run(module, "fft_forward", numbers, numbers, work, 100, 0.5, &error) == GPULUA_OK &&
                  strcmp((char *)dlsym(fake, "fake_last_launch"), "gpulua_scale_f32") == 0 &&
                  memcmp((char *)dlsym(fake, "fake_args") + 8, &(uint64_t){32}, 8) == 0 &&
                  memcmp((char *)dlsym(fake, "fake_args") + 16 + 4 * 8, &(uint64_t){32}, 8) == 0,
              "scaling is one launch over all that is packed");
    static const char *const calls[] = {"cufftSetStream", "cufftSetWorkArea", "cufftExecC2C"};
    bool good = true;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        fail_cufft(calls[i], 6);
        good = good &&
               run(module, "fft_inverse", numbers, numbers, work, 100, 1, &error) ==
                   GPULUA_LIBRARY_ERROR &&
               strstr(error.message, calls[i]) != NULL &&
               strstr(error.message, "CUFFT_EXEC_FAILED (6)") != NULL;
    }
    tap_check(&tap, good, "failing calls are named, with cuFFT's name of the result");
    free(description);
    ops->module_unload(device, module);
    plan.is_real = 1;
    plan.x.distance = 10;
    plan.f.distance = 5;
    CUFFT(size_t, work_bytes) = 0;
    tap_check(&tap,
              open_plan(&plan, &module, &description, &error) == GPULUA_OK &&
                  CUFFT(long, live) == 2 &&
                  strstr(description, "fft_inverse_in_place in: inout") != NULL &&
                  run(module, "fft_inverse_in_place", numbers, numbers, work, 256, 1, &error) ==
                      GPULUA_OK &&
                  run(module, "fft_forward", numbers, numbers, NULL, 0, 1, &error) == GPULUA_OK,
              "real numbers in place, no work area where cuFFT wants none");
    free(description);
    ops->module_unload(device, module);
    CUFFT(size_t, work_bytes) = 100;
}

/* ---- calls that are made again and again ---- */

enum { PREPARED_AFTER = 16, PLACES = 64, STALE = 256, NUMBERS = 128 };

/* `count` transforms of ever other numbers from `in` to `out`; true: each has arrived. Counts those
 * that were launched as graphs, and those that cuFFT was asked for. */
static int by_graph, by_call;
static bool again(struct backend_module *module, char *in, char *out, int count) {
    static char work[100] __attribute__((aligned(256)));
    struct backend_error error;
    bool good = true;
    FAKE(int, graph_launches) = CUFFT(int, calls) = 0;
    for (int i = 0; i < count; i++) {
        memset(in, (int)between(0, 127), NUMBERS);
        in[between(0, NUMBERS - 1)]++;
        memset(out, 0x55, NUMBERS);
        bool one = run(module, "fft_forward", in, out, work, 100, 1, &error) == GPULUA_OK &&
                   memcmp(in, out, NUMBERS) == 0;
        if (!one && good) {
            printf("# %d: %s\n", i, error.message);
        }
        good = good && one;
    }
    by_graph = FAKE(int, graph_launches);
    by_call = CUFFT(int, calls);
    return good;
}

static void repeated(void) {
    static char numbers[(2 + PLACES) * 256] __attribute__((aligned(256)));
    char *in = numbers, *out = numbers + 256;
    struct backend_module *module = NULL, *other = NULL;
    struct backend_error error;
    char *description;
    (void)open_plan(&small, &other, &description, &error);
    free(description);
    (void)open_plan(&small, &module, &description, &error);
    free(description);
    long before = FAKE(long, live);
    *(void **)dlsym(fake_cufft, "fake_copy") = dlsym(fake, "cuMemcpyDtoDAsync_v2");
    tap_check(&tap, again(module, in, out, 40) && by_graph == 40 - PREPARED_AFTER && by_call == 17,
              "a call with the same arguments is launched as a graph from the 17th on");
    tap_check(&tap, FAKE(long, live) == before + 1, "which is all that is kept of it");
    tap_check(&tap, again(module, in, out + 256, 10) && by_graph == 0 && by_call == 10,
              "with another pointer it is another call");
    tap_check(&tap, again(module, in, out, 10) && by_graph == 10,
              "and the first one is still there");
    tap_check(&tap, again(other, in, out, 16) && by_graph == 0,
              "so is one of another plan with the same arguments");

    static const char *const calls[] = {"cuStreamBeginCapture_v2",     "cuMemcpyDtoDAsync_v2",
                                        "cuStreamEndCapture",          "cuGraphGetNodes",
                                        "cuGraphInstantiateWithFlags", "cuStreamCreateWithPriority",
                                        "cuGraphNodeGetType"};
    bool good = true;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        char *target = out + 512 + 256 * i;
        long live = FAKE(long, live);
        good = again(module, in, target, PREPARED_AFTER) && by_graph == 0 && good;
        fail_next(calls[i], 1, 0);
        good = again(module, in, target, 4) && by_graph == 0 && FAKE(int, fail_code) == 0 && good;
        good = good && FAKE(long, live) == live;
        if (!good) {
            printf("# %s\n", calls[i]);
            break;
        }
    }
    tap_check(&tap, good,
              "where one cannot be made, the call goes on as it is, and nothing is left");
    before = FAKE(long, live);
    fail_next("cuGraphLaunch", 1, 0);
    tap_check(&tap, again(module, in, out, 2) && by_call == 1 && by_graph == 1,
              "one that is refused is called");

    /* More calls in turn than there are places: those that have one keep it. */
    good = true;
    for (int i = 0; i < STALE + 1; i++) {
        good = again(module, out, in, 1) && good; /* all others go stale */
    }
    int graphs = 0;
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < PLACES + 8; i++) {
            char *at = numbers + 256 * (2 + i % PLACES);
            good = again(i < PLACES ? module : other, in + NUMBERS, at, 1) && good;
            graphs += by_graph;
        }
    }
    tap_check(&tap,
              good && graphs >= (20 - PREPARED_AFTER) * (PLACES - 1) &&
                  graphs <= (20 - PREPARED_AFTER) * PLACES,
              "as many as there are places, and no more");

    /* What the library does at once, not on the stream, is nothing that can be launched. */
    *(void **)dlsym(fake_cufft, "fake_copy") = NULL;
    good = true;
    for (int i = 0; i < STALE + 1; i++) {
        good = again(module, out, out, 1) && good;
    }
    tap_check(&tap, again(module, in, out, 40) && by_graph == 0 && by_call == 41 && good,
              "an empty one is not launched");
    *(void **)dlsym(fake_cufft, "fake_copy") = dlsym(fake, "cuMemcpyDtoDAsync_v2");

    good = again(other, in, out, 20) && by_graph == 4;
    before = FAKE(long, live);
    ops->module_unload(device, module);
    tap_check(&tap, good && FAKE(long, live) < before && again(other, in, out, 4) && by_graph == 4,
              "they go with their module, and only with theirs");
    ops->module_unload(device, other);

    /* In a graph that is captured it is the call that is wanted. */
    (void)open_plan(&small, &module, &description, &error);
    free(description);
    good = again(module, in, out, 20) && by_graph == 4;
    struct backend_graph *graph = NULL;
    struct backend_stream *captured = NULL, *usual = stream;
    good = good && ops->graph_begin(device, &graph, &captured, &error) == GPULUA_OK &&
           ops->graph_node(graph, NULL, 0, &error) == GPULUA_OK;
    stream = captured;
    memset(out, 0x55, NUMBERS);
    FAKE(int, graph_launches) = 0;
    good = good &&
           run(module, "fft_forward", in, out, numbers + 512, 100, 1, &error) == GPULUA_OK &&
           ops->graph_end(graph, &error) == GPULUA_OK && FAKE(int, graph_launches) == 0;
    stream = usual;
    char text[1000];
    void (*tell)(char *, size_t);
    void *symbol = dlsym(fake, "fake_graph_text");
    memcpy(&tell, &symbol, sizeof tell);
    tell(text, sizeof text);
    tap_check(&tap, good && strcmp(text, "copy") == 0, "in a capture it is called");
    ops->graph_destroy(device, graph);

    fail_next("cuGraphLaunch", 700, 0);
    tap_check(&tap, !again(module, in, out, 1) && by_call == 0, "a fault found there");
    tap_check(&tap,
              run(module, "fft_forward", in, out, numbers + 512, 100, 1, &error) ==
                  GPULUA_DEVICE_LOST,
              "ends the device");
    *(void **)dlsym(fake_cufft, "fake_copy") = NULL;
    CUFFT(long, live) = 0; /* it goes with the process, as all of the device's */
}

static void repeated_or_not(void) {
    struct backend_error error = {0};
    device = open_device();
    ops->stream_create(device, 0, 0, &stream, &error);
    repeated();
    FAKE(int, sticky) = 0;
    ops->device_close(device);
    FAKE(long, live) = 0;

    setenv("GPULUA_PREPARED", "0", 1);
    device = open_device();
    unsetenv("GPULUA_PREPARED");
    ops->stream_create(device, 0, 0, &stream, &error);
    struct backend_module *module = NULL;
    char *description, in[NUMBERS] __attribute__((aligned(256))),
        out[NUMBERS] __attribute__((aligned(256)));
    (void)open_plan(&small, &module, &description, &error);
    free(description);
    *(void **)dlsym(fake_cufft, "fake_copy") = dlsym(fake, "cuMemcpyDtoDAsync_v2");
    tap_check(&tap, again(module, in, out, 40) && by_graph == 0, "GPULUA_PREPARED=0: none");
    *(void **)dlsym(fake_cufft, "fake_copy") = NULL;
    ops->device_close(device);
    tap_check(&tap, CUFFT(long, live) == 0 && FAKE(long, live) == 0, "and nothing left");
}

static void failures(void) {
    static const struct {
        const char *call;
        int code;
        gpulua_status status;
        const char *words;
    } cases[] = {
        {"cufftCreate", 1, GPULUA_LIBRARY_ERROR, "cufftCreate: CUFFT_INVALID_PLAN (1)"},
        {"cufftSetAutoAllocation", 5, GPULUA_LIBRARY_ERROR, "CUFFT_INTERNAL_ERROR (5)"},
        {"cufftMakePlanMany64", 2, GPULUA_OUT_OF_MEMORY, "CUFFT_ALLOC_FAILED (2)"},
        {"cufftMakePlanMany64", 8, GPULUA_UNSUPPORTED, "cufftMakePlanMany64: CUFFT_INVALID_SIZE"},
        {"cufftMakePlanMany64", 99, GPULUA_LIBRARY_ERROR, "an unknown result (99)"}};
    struct backend_module *module = NULL;
    struct backend_error error;
    char *description;
    bool good = true;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fail_cufft(cases[i].call, cases[i].code);
        bool one = open_plan(&small, &module, &description, &error) == cases[i].status &&
                   strstr(error.message, cases[i].words) != NULL && description == NULL &&
                   CUFFT(long, live) == 0;
        if (!one) {
            printf("# %s: %s\n", cases[i].call, error.message);
        }
        good = good && one;
    }
    tap_check(&tap, good, "plans that cannot be made: named, nothing left");
    static const char *const wrong[] = {"",
                                        "1",
                                        "0 0 1 1 0 0 0 4 1 8 8 8 1 1 1 8 1 1 1 8",
                                        "0 0 1 1 0 0 0 1 1 8 1 1 1 1 1 8 1 1 1 8 9",
                                        "0 0 1 1 0 0 0 1 0 8 1 1 1 1 1 8 1 1 1 8",
                                        "a b c"};
    good = true;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        error = (struct backend_error){0};
        good = good && ops->library_open(device, "fft", wrong[i], &module, &description, &error) ==
                           GPULUA_INVALID_ARGUMENT;
    }
    tap_check(&tap, good && CUFFT(long, live) == 0, "options that are none");
}

/* On a device that has not used the library yet. */
static void opening(void) {
    struct backend_module *module = NULL;
    struct backend_error error;
    char *description;
    static const char *const calls[] = {"cuModuleLoadDataEx", "cuModuleGetFunction", "cuFuncLoad"};
    bool good = true;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        for (int skip = 0; skip < (i == 0 ? 1 : 2); skip++) {
            long before = FAKE(long, live);
            fail_next(calls[i], 999, skip);
            good = good && open_plan(&small, &module, &description, &error) == GPULUA_DRIVER &&
                   strstr(error.message, calls[i]) != NULL && FAKE(long, live) == before;
        }
    }
    tap_check(&tap, good, "each call that loads the kernel that scales failing: nothing left");
}

/* cuFFT puts tables on the default stream, which no stream of ours waits for. */
static void default_stream(void) {
    struct backend_module *module = NULL;
    struct backend_error error;
    char *description;
    FAKE(int, default_waits) = 0;
    tap_check(&tap,
              open_plan(&small, &module, &description, &error) == GPULUA_OK &&
                  FAKE(int, default_waits) == 1,
              "what a plan has put on the default stream is over before it is used");
    free(description);
    ops->module_unload(device, module);
    fail_next("cuStreamSynchronize", 2, 0);
    tap_check(&tap,
              open_plan(&small, &module, &description, &error) == GPULUA_OUT_OF_MEMORY &&
                  description == NULL && CUFFT(long, live) == 0,
              "where that fails there is no plan, and nothing is left of it");
}

int main(void) {
    char library[256];
    struct backend_error error = {0};
    if (!build() || (fake_cufft = build_fake("fake_cufft", library)) == NULL) {
        tap_skip(&tap, "everything", "no compiler for the fake libraries");
        return tap_finish(&tap);
    }
    device = open_device();
    ops->stream_create(device, 0, 0, &stream, &error);
    struct backend_module *module = NULL;
    char *description = NULL;
    setenv("GPULUA_LIBCUFFT", "/nowhere/libcufft.so", 1);
    tap_check(&tap,
              open_plan(&small, &module, &description, &error) == GPULUA_LIBRARY_UNAVAILABLE &&
                  strstr(error.message, "/nowhere/libcufft.so") != NULL,
              "a library that is not there");
    setenv("GPULUA_LIBCUFFT", library, 1);
    opening();
    default_stream();
    layouts();
    plans();
    failures();
    /* A plan is still there when the device closes. */
    (void)open_plan(&small, &module, &description, &error);
    free(description);
    ops->device_close(device);
    tap_check(&tap, CUFFT(long, live) == 0 && FAKE(long, live) == 0, "closing leaves nothing");
    repeated_or_not();
    remove_folder();
    return tap_finish(&tap);
}

#else

int main(void) {
    tap_skip(&tap, "everything", "this build has no cuda backend");
    return tap_finish(&tap);
}

#endif
