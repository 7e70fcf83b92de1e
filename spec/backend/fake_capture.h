/* Part of fake_cuda.c: what a capture forbids, and to which thread; and how it spreads over streams
 * by events. As cuThreadExchangeStreamCaptureMode and the errors of stream capture are documented.
 */

enum { GLOBAL, THREAD_LOCAL, RELAXED };
enum { ISOLATION = 905, CAPTURED_EVENT = 907 };

/* Events whose newest record is part of a capture. */
static struct mark {
    const void *event, *stream;
    const struct capture *capture; /* NULL: free */
} marks[64];

API int fake_exchanges; /* of thread modes */

API result cuThreadExchangeStreamCaptureMode(int *mode) {
    int before = thread_mode;
    if (*mode < GLOBAL || *mode > RELAXED) {
        return INVALID;
    }
    __atomic_fetch_add(&fake_exchanges, 1, __ATOMIC_RELAXED);
    thread_mode = *mode;
    return *mode = before, OK;
}

/* Is a potentially unsafe call forbidden to this thread? Then it breaks what forbids it. */
static bool is_forbidden(void) {
    bool is = false;
    for (size_t i = 0; i < sizeof captures / sizeof captures[0]; i++) {
        bool is_ours = captures[i].thread == &thread_mode;
        if (captures[i].stream != NULL && thread_mode != RELAXED && captures[i].mode != RELAXED &&
            (is_ours || (thread_mode == GLOBAL && captures[i].mode == GLOBAL))) {
            captures[i].is_invalid = is = true;
            fake_capture_refused++;
        }
    }
    return is;
}
#define BEGIN_UNSAFE                                                                               \
    do {                                                                                           \
        BEGIN_CURRENT;                                                                             \
        if (is_forbidden()) {                                                                      \
            return CAPTURE_UNSUPPORTED;                                                            \
        }                                                                                          \
    } while (0)

static struct mark *mark_of(const void *event) {
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        if (marks[i].capture != NULL && marks[i].event == event) {
            return &marks[i];
        }
    }
    return NULL;
}
/* Captures end by capture_over, which does not know of events. */
static void marks_look(void) {
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        if (marks[i].capture != NULL && marks[i].capture->stream == NULL) {
            marks[i].capture = NULL;
        }
    }
}

static result event_record(const void *event, const void *stream) {
    struct capture *capture = capture_of(stream);
    marks_look();
    struct mark *mark = mark_of(event);
    if (capture != NULL && capture->is_invalid) {
        return CAPTURE_INVALIDATED;
    }
    for (size_t i = 0; mark == NULL; i++) {
        mark = marks[i].capture == NULL ? &marks[i] : NULL;
    }
    *mark = (struct mark){.event = event, .stream = stream, .capture = capture};
    return OK;
}

static result event_query(const void *event) {
    marks_look();
    struct mark *mark = mark_of(event);
    if (mark != NULL) {
        (void)capture_invalidate(mark->capture->stream);
        return CAPTURED_EVENT;
    }
    return is_forbidden() ? CAPTURE_UNSUPPORTED : OK;
}

static result stream_wait(void *stream, const void *event) {
    struct capture *capture = capture_of(stream);
    marks_look();
    const struct mark *mark = mark_of(event);
    if (capture != NULL && mark == NULL) {
        (void)capture_invalidate(capture->stream);
        return ISOLATION;
    }
    if (mark == NULL) {
        return OK;
    }
    if (mark->capture->is_invalid) {
        return CAPTURE_INVALIDATED;
    }
    struct capture *from = capture_of(mark->stream);
    if (capture == NULL) { /* it becomes part of the capture */
        size_t i = 0;
        while (from->forks[i] != NULL) {
            i++;
        }
        from->forks[i] = stream;
        return OK;
    }
    for (size_t i = 0; i < FORKS_MAX && mark->stream != capture->stream; i++) {
        from->is_joined[i] |= from->forks[i] == mark->stream;
    }
    return capture == from ? OK : INVALID;
}

API result cuStreamIsCapturing(void *stream, int *status) {
    BEGIN_CURRENT;
    const struct capture *capture = capture_of(stream);
    *status = capture == NULL ? 0 : capture->is_invalid ? 2 : 1;
    return OK;
}
