/* What a launch costs the host after a pause, with the CUDA driver alone, and what of that comes
 * before: the launch, an event behind it, a word that the device writes, and the wait for it.
 * Microseconds, medians; launches as our backend makes them, an executable graph of one kernel
 * whose parameters are set anew.
 *
 *     build/bench/cold */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"

#if __has_include(<cuda.h>)
#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <unistd.h>

#define ROUNDS 61
#define PAUSE_US 10000
#define BEFORE_NS 30000 /* between what comes before and the launch */

#define DRIVER_PREPARES
#define DRIVER(X)                                                                                  \
    X(cuMemHostAlloc, CUresult, (void **, size_t, unsigned))                                       \
    X(cuMemHostGetDevicePointer_v2, CUresult, (CUdeviceptr *, void *, unsigned))                   \
    X(cuStreamWriteValue64_v2, CUresult, (CUstream, CUdeviceptr, cuuint64_t, unsigned))            \
    X(cuEventQuery, CUresult, (CUevent))                                                           \
    X(cuCtxGetCurrent, CUresult, (CUcontext *))

#include "driver.h"

/* A stream, and the word behind the launches there. */
static struct lane {
    struct driver_lane launches;
    volatile uint64_t *word;
    CUdeviceptr word_address;
    uint64_t count;
} own, other;

static CUfunction nothing;
static CUdeviceptr memory;
static uint32_t number;
static void *args[] = {&memory, &number};

static void open_lane(struct lane *lane) {
    driver_lane_open(&lane->launches, nothing, args);
    CK(p_cuMemHostAlloc((void **)(uintptr_t)&lane->word, 64, CU_MEMHOSTALLOC_DEVICEMAP));
    CK(p_cuMemHostGetDevicePointer_v2(&lane->word_address, (void *)(uintptr_t)lane->word, 0));
    *lane->word = 0;
}

static void write_word(struct lane *lane) {
    CK(p_cuStreamWriteValue64_v2(lane->launches.stream, lane->word_address, ++lane->count, 0));
}

static void launch(struct lane *lane) {
    driver_launch(&lane->launches, nothing, args, true);
    write_word(lane);
}

/* ---- what comes before ---- */

static void by_nobody(void) {}
static void by_word(void) {
    write_word(&other);
}
static void by_launch(void) {
    launch(&other);
}

static CUcontext context;
static atomic_int asked, stops;
static void *helper_run(void *unused) {
    CK(p_cuCtxSetCurrent(context));
    while (!atomic_load(&stops)) {
        if (atomic_load(&asked)) {
            launch(&other);
            atomic_store(&asked, 0);
        }
    }
    return unused;
}
static void by_helper(void) {
    atomic_store(&asked, 1);
    while (atomic_load(&asked)) {}
}

static void measure(const char *name, unsigned pause_us, void (*before)(void)) {
    double given[ROUNDS], all[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        usleep(pause_us);
        before();
        for (double end = now_ns() + (before == by_nobody ? 0 : BEFORE_NS); now_ns() < end;) {}
        double start = now_ns();
        launch(&own);
        given[round] = (now_ns() - start) / 1e3;
        while (*own.word != own.count) {}
        all[round] = (now_ns() - start) / 1e3;
    }
    printf("%-48s given after %5.1f us, over after %5.1f\n", name, median(given, ROUNDS),
           median(all, ROUNDS));
}

/* Which of the driver's calls a launch after 10 ms asleep goes through: prepared or plain, and
 * behind it an event, a word, both or nothing; the wait looks at the word, else at the event, else
 * it is the driver's. Each in turn within a round, so that all have the same machine. */
static const struct way {
    bool is_prepared, has_event, has_word;
    const char *name;
} ways[] = {
    {false, false, false, "plain"},          {false, true, false, "plain, an event"},
    {false, false, true, "plain, a word"},   {false, true, true, "plain, an event and a word"},
    {true, false, false, "prepared"},        {true, true, false, "prepared, an event"},
    {true, false, true, "prepared, a word"}, {true, true, true, "prepared, an event and a word"},
};
#define WAYS (sizeof ways / sizeof *ways)

static void measure_ways(void) {
    static double given[WAYS][ROUNDS], all[WAYS][ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < WAYS; i++) {
            const struct way *way = &ways[i];
            usleep(PAUSE_US);
            double start = now_ns();
            driver_launch_alone(&own.launches, nothing, args, way->is_prepared);
            if (way->has_event) {
                CK(p_cuEventRecord(own.launches.event, own.launches.stream));
            }
            if (way->has_word) {
                write_word(&own);
            }
            given[i][round] = (now_ns() - start) / 1e3;
            if (way->has_word) {
                while (*own.word != own.count) {}
            } else if (way->has_event) {
                while (p_cuEventQuery(own.launches.event) != CUDA_SUCCESS) {}
            } else {
                CK(p_cuStreamSynchronize(own.launches.stream));
            }
            all[i][round] = (now_ns() - start) / 1e3;
        }
    }
    for (size_t i = 0; i < WAYS; i++) {
        printf("10 ms asleep, %-34s given after %5.1f us, over after %5.1f\n", ways[i].name,
               median(given[i], ROUNDS), median(all[i], ROUNDS));
    }
}

int main(void) {
    if (!driver_open()) {
        return 0;
    }
    CUmodule module;
    pthread_t helper;
    CK(p_cuModuleLoadData(&module, nothing_ptx));
    CK(p_cuModuleGetFunction(&nothing, module, "nothing"));
    CK(p_cuMemAlloc_v2(&memory, 64));
    CK(p_cuCtxGetCurrent(&context));
    open_lane(&own);
    open_lane(&other);
    prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
    for (int round = 0; round < 2; round++) {
        measure("no pause", 0, by_nobody);
        measure("10 ms asleep", PAUSE_US, by_nobody);
        measure("and a word on another stream before", PAUSE_US, by_word);
        measure("and a launch like it on another stream before", PAUSE_US, by_launch);
        pthread_create(&helper, NULL, helper_run, NULL);
        measure("and such a launch by another thread before", PAUSE_US, by_helper);
        atomic_store(&stops, 1);
        pthread_join(helper, NULL);
        atomic_store(&stops, 0);
        measure_ways();
    }
    return 0;
}

#else

int main(void) {
    puts("# built without cuda.h");
    return 0;
}

#endif
