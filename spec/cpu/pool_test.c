/* backend/cpu/pool.c and share.c: every block runs once whoever helps, nobody is called for what is
 * short, and idle workers sleep. */
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "backend/cpu/device.h"
#include "backend/tap.h"

#define STREAMS 4u
#define BLOCKS_MAX 3000u

static struct tap tap;
static const char text[] =
    "__global__ void count(int *seen, int rounds) {\n"
    "  for (int i = 0; i < rounds; i++) { volatile int spent = i; (void)spent; }\n"
    "  if (threadIdx.x == 0) atomicAdd(&seen[blockIdx.x], 1);\n"
    "}\n"
    "__global__ void fail(int *seen, int rounds) {\n"
    "  atomicAdd(&seen[0], 1);\n"
    "  assert(blockIdx.x != 7);\n"
    "}\n";

static sem_t moved;
static _Atomic uint32_t failures;

static void on_moved(void *user) {
    (void)user;
    sem_post(&moved);
}

static void on_failed(void *user, uint32_t stream, uint64_t seq, uint32_t node,
                      const struct backend_failure *failure) {
    (void)user, (void)stream, (void)seq, (void)node, (void)failure;
    atomic_fetch_add(&failures, 1);
}

struct lane {
    struct backend_stream *stream;
    _Atomic uint64_t word;
    uint64_t seq;
    int *seen;
    int wanted[BLOCKS_MAX];
};

static struct backend_device *device;
static struct backend_kernel *count_kernel, *fail_kernel;
static struct lane lanes[STREAMS];

static double now_s(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool launch(struct lane *lane, struct backend_kernel *kernel, uint32_t blocks,
                   uint32_t threads, int rounds) {
    struct {
        int *seen;
        int rounds;
    } args = {lane->seen, rounds};
    struct backend_error error;
    const struct backend_launch launched = {.kernel = kernel,
                                            .stream = lane->stream,
                                            .seq = ++lane->seq,
                                            .grid = {blocks, 1, 1},
                                            .block = {threads, 1, 1},
                                            .args = &args,
                                            .args_bytes = sizeof args};
    for (uint32_t i = 0; kernel == count_kernel && i < blocks; i++) {
        lane->wanted[i]++;
    }
    return gpu_backend_cpu.launch(&launched, &error) == GPULUA_OK &&
           gpu_backend_cpu.stream_word(lane->stream, &lane->word, lane->seq, &error) == GPULUA_OK;
}

static void await(struct lane *lane) {
    while (atomic_load_explicit(&lane->word, memory_order_acquire) < lane->seq) {
        sem_wait(&moved);
    }
}

static bool all_once(void) {
    bool good = true;
    for (uint32_t s = 0; s < STREAMS; s++) {
        await(&lanes[s]);
        for (uint32_t i = 0; i < BLOCKS_MAX; i++) {
            good = good && lanes[s].seen[i] == lanes[s].wanted[i];
        }
    }
    return good;
}

static void blocks_run_once(void) {
    uint64_t state = 88172645463325252u;
    bool good = true;
    for (uint32_t round = 0; round < 3000; round++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        uint32_t blocks = 1 + (uint32_t)(state >> 20) % (state & 1 ? 9 : BLOCKS_MAX);
        good = good && launch(&lanes[state >> 8 & 3], count_kernel, blocks, state & 2 ? 1 : 64,
                              (int)(state >> 40 & 15));
        if ((state >> 50 & 63) == 0) {
            usleep(200); /* workers fall asleep now and then */
        }
    }
    tap_check(&tap, good && all_once(), "each block of each launch runs once, on several streams");
}

/* A long launch with helpers, who leave it to serve short launches and come back. */
static void helpers_come_back(void) {
    bool good = launch(&lanes[0], count_kernel, 2000, 64, 4000);
    for (uint32_t i = 0; i < 200; i++) {
        good = good && launch(&lanes[1 + i % 3], count_kernel, 1 + i % 2, 1, 1);
        await(&lanes[1 + i % 3]);
    }
    tap_check(&tap, good && all_once(), "short launches beside a long one");
}

static void failing(void) {
    int before = lanes[0].seen[0];
    uint32_t count = atomic_load(&failures);
    bool good = launch(&lanes[0], fail_kernel, 1u << 20, 64, 0);
    await(&lanes[0]);
    int ran = lanes[0].seen[0] - before;
    lanes[0].wanted[0] += ran;
    tap_check(&tap, good && atomic_load(&failures) == count + 1 && ran < 64 << 20,
              "one failure of a launch with helpers, and the rest is left out");
    tap_check(&tap, launch(&lanes[0], count_kernel, 100, 64, 1) && all_once(), "the next one runs");
}

static void all_asleep(void) {
    for (int i = 0; i < 1000 && atomic_load(&device->sleeper_count) < device->worker_count; i++) {
        usleep(1000);
    }
}

/* Calls for a launch when all are asleep, the fewest of some tries: the system may hold up a worker
 * in the middle of a short launch, which then is none. */
static uint32_t calls_for(uint32_t blocks, int rounds) {
    uint32_t fewest = UINT32_MAX;
    for (int i = 0; i < 10; i++) {
        all_asleep();
        uint32_t before = atomic_load(&device->wake_count);
        launch(&lanes[0], count_kernel, blocks, 8, rounds);
        await(&lanes[0]);
        uint32_t calls = atomic_load(&device->wake_count) - before;
        fewest = calls < fewest ? calls : fewest;
    }
    return fewest;
}

static void calls(void) {
    tap_check(&tap, calls_for(1, 1) == 1, "for a launch of one block one worker is woken");
#if defined(__SANITIZE_THREAD__)
    tap_skip(&tap, "for a short launch of several blocks, too", "none is short in this build");
#else
    uint32_t fewest = UINT32_MAX;
    /* Beside other work none may be short. */
    for (int tries = 0; tries < 20 && fewest > 1; tries++) {
        for (int i = 0; i < 50; i++) { /* until it is known that they are short */
            launch(&lanes[0], count_kernel, 4, 8, 1);
            await(&lanes[0]);
        }
        fewest = calls_for(4, 1);
    }
    tap_check(&tap, fewest == 1, "for a short launch of several blocks, too");
#endif
    tap_check(&tap, calls_for(BLOCKS_MAX, 2000) == 2, "for a long one, all others at once");
}

static void idling(void) {
    double least = 1;
    for (int tries = 0; tries < 5 && least >= 0.02;
         tries++) { /* a sanitizer may have its own to do */
        launch(&lanes[0], count_kernel, BLOCKS_MAX, 64, 100);
        await(&lanes[0]);
        double start = now_s(CLOCK_PROCESS_CPUTIME_ID);
        usleep(200000);
        double spent = now_s(CLOCK_PROCESS_CPUTIME_ID) - start;
        least = spent < least ? spent : least;
    }
    /* 50 us for each worker, and generously more. */
    tap_check(&tap, least < 0.02, "idle workers sleep");
}

int main(void) {
    sem_init(&moved, 0, 0);
    struct backend_open_info info = {.sink = {.failed = on_failed, .moved = on_moved}};
    struct backend_error error = {.log = NULL};
    struct backend_source source = {.name = "pool.cu", .text = text, .options = ""};
    struct backend_module *module = NULL;
    struct wire_kernel_facts facts;
    void *image = NULL;
    size_t image_bytes;
    char *description = NULL;
    bool prints;
    const struct backend_ops *cpu = &gpu_backend_cpu;
    bool good =
        cpu->device_open(&info, &device, &error) == GPULUA_OK &&
        cpu->module_compile(device, &source, &image, &image_bytes, &description, &error) ==
            GPULUA_OK &&
        cpu->module_load(device, image, image_bytes, true, &module, &error) == GPULUA_OK &&
        cpu->kernel_get(module, "count", &count_kernel, &prints, &facts, &error) == GPULUA_OK &&
        cpu->kernel_get(module, "fail", &fail_kernel, &prints, &facts, &error) == GPULUA_OK;
    for (uint32_t i = 0; i < STREAMS && good; i++) {
        lanes[i].seen = calloc(BLOCKS_MAX, sizeof *lanes[i].seen);
        good = cpu->stream_create(device, i, 0, &lanes[i].stream, &error) == GPULUA_OK;
    }
    if (!tap_check(&tap, good, "a device with two kernels")) {
        printf("# %s\n%s\n", error.message, error.log != NULL ? error.log : "");
        return tap_finish(&tap);
    }
    blocks_run_once();
    helpers_come_back();
    failing();
    calls();
    idling();
    for (uint32_t i = 0; i < STREAMS; i++) {
        cpu->stream_destroy(device, lanes[i].stream);
        free(lanes[i].seen);
    }
    cpu->module_unload(device, module);
    cpu->device_close(device);
    free(image);
    free(description);
    return tap_finish(&tap);
}
