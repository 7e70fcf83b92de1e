/* Part of fake_cuda.c: contexts, the primary ones and those of cuCtxCreate, and which is current on
 * a thread. Streams and events are numbers that say which context they are of. */

enum { CONTEXTS_MAX = 16, PRIMARY_MAX = 4 };
enum { DESTROYED = 709 };

API int fake_switches; /* by cuCtxSetCurrent */
API int fake_refused;  /* calls, because another context is current */

static struct context {
    int device;
    bool is_there;
    int count; /* primary: retained */
} contexts[CONTEXTS_MAX];
static uintptr_t serial;
static __thread struct context *current;

/* Of a lost device nobody retains anything. */
static void contexts_forget(void) {
    for (size_t i = 0; i < PRIMARY_MAX; i++) {
        contexts[i].count = 0;
    }
}
static bool contexts_are_retained(void) {
    int count = 0;
    for (size_t i = 0; i < PRIMARY_MAX; i++) {
        count += contexts[i].count;
    }
    return count > 0;
}

static bool is_context(const struct context *context) {
    return context >= contexts && context < contexts + CONTEXTS_MAX && context->is_there;
}
static result check_current(void) {
    result answered = is_context(current)                                        ? OK
                      : current >= contexts && current < contexts + CONTEXTS_MAX ? DESTROYED
                                                                                 : NO_CONTEXT;
    fake_refused += answered != OK;
    return answered;
}

static void *handle_make(void) {
    return (void *)(++serial << 4 | (uintptr_t)(current - contexts));
}
/* The default streams are those of the context that is current. */
static result check_handle(const void *handle) {
    bool is_ours =
        (uintptr_t)handle < 16 || current == &contexts[(uintptr_t)handle & (CONTEXTS_MAX - 1)];
    fake_refused += !is_ours;
    return is_ours ? OK : NO_CONTEXT;
}

static void graphs_forget(void);

API result cuDevicePrimaryCtxRetain(struct context **context, int device) {
    BEGIN;
    if (device < 0 || device >= PRIMARY_MAX) {
        return INVALID;
    }
    if (!contexts_are_retained()) {
        graphs_forget();
    }
    *context = &contexts[device];
    contexts[device].count++;
    contexts[device].device = device;
    contexts[device].is_there = true;
    fake_live++;
    return OK;
}
API result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) {
    BEGIN;
    *flags = 0;
    *is_active = device >= 0 && device < PRIMARY_MAX && contexts[device].count > 0;
    return device >= 0 ? OK : INVALID;
}
API result cuDevicePrimaryCtxRelease_v2(int device) {
    BEGIN;
    contexts[device].is_there = --contexts[device].count > 0;
    fake_live--;
    return device >= 0 ? OK : INVALID;
}
API result cuCtxCreate_v2(struct context **context, unsigned flags, int device) {
    BEGIN;
    size_t i = PRIMARY_MAX;
    while (contexts[i].is_there) {
        i++;
    }
    contexts[i].device = device;
    contexts[i].is_there = true;
    current = *context = &contexts[i];
    return flags == 0 ? OK : INVALID;
}
/* Current on other threads, it stays so, and is refused there. */
API result cuCtxDestroy_v2(struct context *context) {
    BEGIN;
    context->is_there = false;
    current = current == context ? NULL : current;
    return OK;
}
API result cuCtxGetCurrent(struct context **context) {
    return *context = current, OK;
}
API result cuCtxSetCurrent(struct context *context) {
    if (context == NULL || context != current) {
        fake_switches++;
    }
    if (fake_sticky != 0 && (context == NULL || context >= contexts + PRIMARY_MAX)) {
        return current = context, OK; /* one that is well */
    }
    BEGIN;
    if (context >= contexts && context < contexts + CONTEXTS_MAX && !context->is_there) {
        return NO_CONTEXT;
    }
    return current = context, OK;
}
API result cuCtxGetDevice(int *device) {
    BEGIN_CURRENT;
    return *device = current->device, OK;
}
API result cuStreamGetCtx(const void *stream, struct context **context) {
    BEGIN;
    *context = (uintptr_t)stream < 16 ? current : &contexts[(uintptr_t)stream & (CONTEXTS_MAX - 1)];
    return stream != NULL ? OK : INVALID;
}
