/* runtime/watchdog.c over fake_cuda.c: deadlines of work whose end nobody knows before it is asked
 * for, while the executor is in a call of the driver's and does not hear. */
#include <unistd.h>

#include "backend/tap.h"

static struct tap tap;

#ifdef GPULUA_CUDA

#include "backend/fake_driver.h"
#include "runtime/state.h"
#include "runtime/watchdog.h"
#include "runtime/work.h"

enum { BUSY_US = 60000 };

static struct gpu_device *device;
static struct gpu_error error;

static void check(bool good, const char *what) {
    tap_check(&tap, good, what);
}

static struct gpu_op *fill(struct gpu_stream *stream, struct gpu_block *block, int32_t value) {
    const struct gpu_submit submit = {.stream = stream};
    const struct gpu_ref ref = {block, 0, 64, GPU_TYPE_I32};
    struct gpu_op *op = NULL;
    return gpu_work_fill(&submit, &ref, &value, &op, &error) == GPULUA_OK ? op : NULL;
}

static struct gpu_block *make(uint64_t bytes) {
    struct gpu_block_info info = {.byte_count = bytes};
    struct gpu_block *block = NULL;
    return gpu_block_create(device, &info, &block, &error) == GPULUA_OK ? block : NULL;
}

/* The first one ends, the second one does not, and the only word is behind that. False: one is
 * behind both. */
static bool begin(struct gpu_stream *stream, struct gpu_block *block, struct gpu_op *both[2]) {
    FAKE(volatile int, pending) = 1;
    FAKE(int, halts) = 2;
    int words = FAKE(volatile int, words);
    both[0] = fill(stream, block, 1);
    both[1] = fill(stream, block, 2);
    usleep(20000);
    FAKE(int, halts) = 0;
    FAKE(volatile int, pending) = 0;
    return FAKE(volatile int, words) == words + 1;
}

static void test_busy(void) {
    struct gpu_device_info info = {
        .name = "cuda", .isolation = GPULUA_ISOLATE_THREAD, .restarts_max = -1};
    struct gpu_stream *stream = NULL;
    struct gpu_op *both[2] = {NULL, NULL};
    if (gpu_device_open(&info, &device, &error)) {
        printf("# %s\n", error.message);
        check(false, "a device");
        return;
    }
    struct gpu_block *block = make(4096);
    if (gpu_stream_create(device, &(struct gpu_stream_info){0}, &stream, &error) || block == NULL) {
        check(false, "a stream and memory");
        return;
    }
    bool is_alone = begin(stream, block, both);
    for (int i = 0; i < 50 && !is_alone; i++) { /* this thread had no core in between */
        FAKE(volatile int, pending) = 0;
        gpu_op_release(both[0]);
        gpu_op_release(both[1]);
        gpu_stream_release(stream);
        (void)gpu_stream_create(device, &(struct gpu_stream_info){0}, &stream, &error);
        is_alone = begin(stream, block, both);
    }
    check(is_alone && both[0] != NULL && both[1] != NULL && !gpu_op_is_over(both[0]),
          "of work whose word is behind more of it the end is not known");
    bool is_set = gpu_op_set_deadline(both[0], (double)BUSY_US / 3e6, &error) == GPULUA_OK;
    FAKE(volatile int, memory_us) = BUSY_US;
    struct gpu_block *large = make(UINT64_C(1) << 30);
    int64_t begun_ns = gpu_clock_ns();
    while (large != NULL && gpu_clock_ns() - begun_ns < 2 * BUSY_US * INT64_C(1000)) {
        gpu_device_nap(device, 1000000);
        (void)gpu_device_poll(device);
    }
    FAKE(volatile int, memory_us) = 0;
    if (device->state != GPU_DEVICE_OPEN) {
        printf("# %s\n", device->lost.message);
    }
    check(is_set && large != NULL && device->state == GPU_DEVICE_OPEN,
          "where the executor is busy and does not hear that it is asked, that is no loss");
    check(both[0]->state == GPU_OP_SUCCEEDED && both[1]->state == GPU_OP_PENDING,
          "and what was over is known to be, what is not is not");
    is_set = gpu_op_set_deadline(both[1], 0.01, &error) == GPULUA_OK;
    begun_ns = gpu_clock_ns();
    (void)gpu_op_wait(both[1], 5000000000, &error);
    check(is_set && device->state == GPU_DEVICE_LOST && gpu_clock_ns() - begun_ns < 150000000,
          "what has not is lost as soon as the executor has been asked");
    gpu_op_release(both[0]);
    gpu_op_release(both[1]);
    gpu_block_release(large);
    gpu_block_release(block);
    gpu_stream_release(stream);
}

int main(void) {
    if (!build()) {
        tap_skip(&tap, "a driver without a GPU", "no C compiler");
        return tap_finish(&tap);
    }
    test_busy();
    remove_folder();
    int result = tap_finish(&tap);
    (void)fflush(stdout);
    _exit(result); /* what never ends is not waited for */
}

#else

int main(void) {
    tap_skip(&tap, "a driver without a GPU", "no cuda.h");
    return tap_finish(&tap);
}

#endif
