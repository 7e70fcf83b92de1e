/* backend/cuda/context.c over fake_cuda.c: what is current on a thread behind the calls, and
 * devices that live in a context, and work on a stream, of the host's. */
#include <pthread.h>
#include <stdint.h>

#include "backend/backend.h"
#include "tap.h"

static struct tap tap;

#ifdef GPULUA_CUDA

#include "fake_host.h"

static gpulua_status open_in(const struct backend_open_info *info, struct backend_device **device,
                             struct backend_error *error) {
    int before = ops->calls_begin(false);
    *error = (struct backend_error){0};
    gpulua_status status = ops->device_open(info, device, error);
    ops->calls_end(before);
    return status;
}

static void close_device(struct backend_device *device) {
    int before = ops->calls_begin(false);
    ops->device_close(device);
    ops->calls_end(before);
}

/* What a launch does, and something that asks first. */
static bool work(struct backend_device *device, struct backend_stream *stream) {
    struct backend_error error = {0};
    struct backend_event *event = NULL;
    int before = ops->calls_begin(false);
    bool works = ops->event_create(device, &event, &error) == GPULUA_OK &&
                 ops->event_record(event, stream, &error) == GPULUA_OK &&
                 ops->event_query(event, &error) == BACKEND_DONE;
    ops->event_destroy(device, event);
    ops->calls_end(before);
    before = ops->calls_begin(false);
    works = works && ops->event_create(device, &event, &error) == GPULUA_OK;
    ops->calls_end(before);
    before = ops->calls_begin(false); /* on the hot way alone */
    works = works && ops->event_record(event, stream, &error) == GPULUA_OK;
    ops->calls_end(before);
    before = ops->calls_begin(false);
    ops->event_destroy(device, event);
    ops->calls_end(before);
    if (!works) {
        printf("# %s\n", error.message);
    }
    return works;
}

static struct backend_stream *make_stream(struct backend_device *device) {
    struct backend_error error = {0};
    struct backend_stream *stream = NULL;
    int before = ops->calls_begin(false);
    ops->stream_create(device, 0, 0, &stream, &error);
    ops->calls_end(before);
    return stream;
}

static void test_behind_calls(void) {
    struct backend_error error;
    struct backend_device *device = NULL, *second = NULL;
    void *primary = NULL, *own = make_context(0), *other = make_context(1);
    void *const before[] = {NULL, own, other};
    for (size_t i = 0; i < 3; i++) {
        cu.cuCtxSetCurrent(before[i]);
        bool good =
            open_in(&(struct backend_open_info){.ordinal = 0}, &device, &error) == GPULUA_OK &&
            current() == before[i];
        struct backend_stream *stream = make_stream(device);
        int refused = FAKE(int, refused);
        good = work(device, stream) && current() == before[i] && good;
        good = work(device, stream) && current() == before[i] && good;
        good = FAKE(int, refused) == refused && good;
        close_device(device);
        good = current() == before[i] && good;
        static const char *const names[] = {"nothing", "a context of the host's",
                                            "one of another device"};
        char what[120];
        snprintf(what, sizeof what, "%s was current, and is behind each call; none is refused",
                 names[i]);
        tap_check(&tap, good, what);
    }
    /* Ours itself, where the host keeps it. */
    cu.cuDevicePrimaryCtxRetain(&primary, 0);
    cu.cuCtxSetCurrent(primary);
    int switches = FAKE(int, switches);
    open_in(&(struct backend_open_info){.ordinal = 0}, &device, &error);
    struct backend_stream *stream = make_stream(device);
    bool good = work(device, stream);
    close_device(device);
    tap_check(&tap, good && FAKE(int, switches) == switches && current() == primary,
              "ours was current: nothing is changed, the host keeps it");
    open_in(&(struct backend_open_info){.ordinal = 0}, &device, &error);
    cu.cuDevicePrimaryCtxRelease_v2(0);
    close_device(device);
    tap_check(&tap, current() == NULL, "it goes with the device: none is current");
    /* Several together. */
    cu.cuCtxSetCurrent(own);
    open_in(&(struct backend_open_info){.ordinal = 0}, &device, &error);
    open_in(&(struct backend_open_info){.ordinal = 1}, &second, &error);
    stream = make_stream(device);
    struct backend_stream *stream_2 = make_stream(second);
    switches = FAKE(int, switches);
    ops->calls_hold(true);
    good = work(device, stream) && work(device, stream);
    good = good && FAKE(int, switches) == switches + 1;
    ops->calls_hold(true);
    good = good && work(second, stream_2) && work(device, stream);
    ops->calls_hold(false);
    good = good && current() != own;
    ops->calls_hold(false);
    tap_check(&tap, good && current() == own && FAKE(int, switches) == switches + 4,
              "calls that are held put back once, behind the last");
    ops->calls_hold(true);
    (void)work(device, stream);
    cu.cuCtxSetCurrent(other);
    ops->calls_hold(false);
    tap_check(&tap, current() == other, "what the host makes current meanwhile stays");
    ops->calls_hold(true);
    (void)work(device, stream);
    cu.cuCtxSetCurrent(own);
    (void)work(second, stream_2);
    ops->calls_hold(false);
    tap_check(&tap, current() == own, "also with work behind that");
    ops->calls_hold(true);
    (void)work(device, stream);
    cu.cuCtxDestroy_v2(own);
    ops->calls_hold(false);
    tap_check(&tap, current() == NULL, "one that the host has destroyed meanwhile is not put back");
    cu.cuCtxSetCurrent(other);
    ops->calls_hold(true);
    (void)work(device, stream);
    close_device(device);
    tap_check(&tap, current() == other, "nor is one that goes left current, whoever holds");
    (void)work(second, stream_2);
    ops->calls_hold(false);
    tap_check(&tap, current() == other, "and the other device works on");
    close_device(second);
    cu.cuCtxSetCurrent(NULL);
    cu.cuCtxDestroy_v2(other);
    tap_check(&tap, FAKE(long, live) == 0, "closing leaves nothing");
}

static void test_foreign(void) {
    static _Alignas(4096) _Atomic uint64_t page[8];
    struct backend_error error;
    struct backend_device *device = NULL, *second = NULL;
    struct wire_device_facts facts;
    void *context = make_context(1), *other = make_context(0);
    struct backend_open_info info = {.ordinal = -1, .context = context};
    cu.cuCtxSetCurrent(other);
    bool good = open_in(&info, &device, &error) == GPULUA_OK && current() == other;
    ops->device_facts(device, &facts);
    tap_check(&tap, good && facts.ordinal == 1 && strcmp(facts.name, "Fake GPU 1") == 0,
              "a context of the host's says which device it is of");
    info.ordinal = 1;
    tap_check(&tap, open_in(&info, &second, &error) == GPULUA_OK, "the same context, twice");
    struct backend_stream *stream = make_stream(device), *stream_2 = make_stream(second);
    good = work(device, stream) && work(second, stream_2) && current() == other;
    int runs = FAKE(volatile int, runs), waits = FAKE(int, context_waits);
    ops->host_register(device, page, sizeof page, &error);
    tap_check(&tap, !ops->warm(device, &page[1]) && FAKE(volatile int, runs) == runs,
              "it counts as used by others, and is not warmed up");
    ops->host_unregister(device, page);
    ops->flush_output(device);
    close_device(second);
    good = good && work(device, stream);
    cu.cuCtxSetCurrent(context);
    int switches = FAKE(int, switches);
    good = good && work(device, stream);
    close_device(device);
    tap_check(&tap,
              good && current() == context && FAKE(int, switches) == switches &&
                  FAKE(long, live) == 0 && FAKE(int, context_waits) == waits,
              "it works there, waits for nothing of the host's, and leaves the context as it was");
    info.ordinal = 0;
    tap_check(&tap,
              open_in(&info, &device, &error) == GPULUA_INVALID_ARGUMENT && device == NULL &&
                  strstr(error.message, "one of cuda:1, not of cuda:0") != NULL &&
                  current() == context,
              "a context of another device than the one that was named");
    info.ordinal = -1;
    static const char *const calls[] = {"cuCtxSetCurrent", "cuCtxGetDevice", "cuDeviceGet",
                                        "cuStreamGetCtx", "cuDeviceGetAttribute"};
    good = true;
    info.stream = (void *)2;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        cu.cuCtxSetCurrent(other);
        fail_next(calls[i], 999, 0);
        good = open_in(&info, &device, &error) == GPULUA_DRIVER && device == NULL &&
               strstr(error.message, calls[i]) != NULL && FAKE(long, live) == 0 &&
               current() == other && good;
    }
    tap_check(&tap, good, "each call of opening failing: named, nothing left or changed");
    info.stream = NULL;
    open_in(&info, &device, &error);
    stream = make_stream(device);
    cu.cuCtxDestroy_v2(context);
    struct backend_event *event = NULL;
    int before = ops->calls_begin(false);
    good = ops->event_create(device, &event, &error) == GPULUA_DEVICE_LOST;
    ops->calls_end(before);
    tap_check(&tap, good && current() == other && ops->device_status(device, &error) != GPULUA_OK,
              "destroyed meanwhile: the device is lost");
    close_device(device);
    tap_check(&tap, current() == other, "and closes");
    tap_check(&tap,
              open_in(&info, &device, &error) == GPULUA_DEVICE_LOST && device == NULL &&
                  current() == other,
              "one that is gone opens nothing");
    cu.cuCtxDestroy_v2(other);
    FAKE(long, live) = 0; /* what was in the context went with it */
}

static void *destroy_elsewhere(void *context) {
    cu.cuCtxDestroy_v2(context);
    return NULL;
}

/* Then the driver says that it is current, and refuses all that is done in it. */
static void test_destroyed_elsewhere(void) {
    struct backend_error error;
    struct backend_device *device = NULL;
    struct backend_event *event = NULL;
    void *context = make_context(0);
    pthread_t thread;
    struct backend_open_info info = {.ordinal = -1, .context = context};
    cu.cuCtxSetCurrent(context);
    open_in(&info, &device, &error);
    pthread_create(&thread, NULL, destroy_elsewhere, context);
    pthread_join(thread, NULL);
    tap_check(&tap, ops->event_create(device, &event, &error) == GPULUA_DEVICE_LOST,
              "destroyed by another thread: the device is lost");
    close_device(device);
    cu.cuCtxSetCurrent(NULL);
    FAKE(long, live) = 0;
}

static void test_stream(void) {
    static _Atomic uint64_t word;
    struct backend_error error;
    struct backend_device *device = NULL;
    struct backend_stream *stream = NULL;
    void *context = make_context(0), *other = make_context(0), *own = NULL, *graph = NULL;
    int capturing = 0;
    cu.cuCtxSetCurrent(context);
    cu.cuStreamCreateWithPriority(&own, 1, 0);
    struct backend_open_info info = {.ordinal = -1, .context = context, .stream = own};
    open_in(&info, &device, &error);
    bool good = ops->stream_foreign(device, 0, &stream, &error) == GPULUA_OK;
    tap_check(&tap,
              good && ops->stream_native(stream) == (uintptr_t)own && work(device, stream) &&
                  FAKE(void *, recorded_on) == own,
              "a stream of ours stands for the host's");
    cu.cuCtxSetCurrent(NULL);
    int before = ops->calls_begin(false);
    gpulua_status status = ops->stream_word(stream, &word, 1, &error); /* in no registered page */
    ops->calls_end(before);
    tap_check(&tap, status == GPULUA_UNSUPPORTED && current() == NULL,
              "which is known not to be captured, whatever is current");
    cu.cuCtxSetCurrent(context);
    cu.cuStreamBeginCapture_v2(own, 1);
    tap_check(&tap, ops->stream_word(stream, &word, 1, &error) == GPULUA_CAPTURE_ACTIVE,
              "which takes nothing while the host captures it");
    close_device(device);
    tap_check(&tap,
              cu.cuStreamIsCapturing(own, &capturing) == 0 && capturing == 1 &&
                  cu.cuStreamEndCapture(own, &graph) == 0 && cu.cuGraphDestroy(graph) == 0,
              "closing ends neither the stream nor the host's capture of it");
    info.context = other;
    tap_check(&tap,
              open_in(&info, &device, &error) == GPULUA_INVALID_ARGUMENT &&
                  strstr(error.message, "another context") != NULL && current() == context,
              "a stream of another context");
    info = (struct backend_open_info){.ordinal = 0};
    open_in(&info, &device, &error);
    tap_check(&tap, ops->stream_foreign(device, 0, &stream, &error) == GPULUA_INVALID_ARGUMENT,
              "where the host has given none there is none");
    close_device(device);
    cu.cuStreamDestroy_v2(own);
    tap_check(&tap, FAKE(long, live) == 0, "closing leaves nothing");
    cu.cuCtxDestroy_v2(other);
    cu.cuCtxDestroy_v2(context);
}

/* The last: the driver answers nothing any more. */
static void test_lost(void) {
    struct backend_error error;
    struct backend_device *device = NULL;
    struct backend_event *event = NULL;
    void *own = make_context(0);
    cu.cuCtxSetCurrent(own);
    open_in(&(struct backend_open_info){.ordinal = 0}, &device, &error);
    int before = ops->calls_begin(false);
    fail_next("cuEventCreate", 700, 0);
    bool good = ops->event_create(device, &event, &error) == GPULUA_DEVICE_LOST && current() != own;
    ops->calls_end(before);
    tap_check(&tap, good && current() == own, "a device is lost: what was current is so again");
    close_device(device);
    tap_check(&tap, current() == own && FAKE(int, calls_after_loss) == 0,
              "and behind its close, with no call of it in between");
}

int main(void) {
    if (!build_host()) {
        tap_skip(&tap, "a driver without a GPU", "no C compiler");
        return tap_finish(&tap);
    }
    test_behind_calls();
    test_foreign();
    test_destroyed_elsewhere();
    test_stream();
    test_lost();
    remove_folder();
    return tap_finish(&tap);
}

#else

int main(void) {
    tap_skip(&tap, "contexts of a driver without a GPU", "this build has no CUDA backend");
    return tap_finish(&tap);
}

#endif
