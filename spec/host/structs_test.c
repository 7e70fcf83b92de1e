/* Structs of all sizes: those of hosts that were built with an older gpulua.h are smaller, those of
 * newer ones larger. Each ends where its memory does, or has marks behind it. */
#include "host/structs.h"

#include "host/dlpack.h"
#include "host/exchange.h"

#define MARK 0xA5
#define SPACE 512
#define LARGEST 4096 /* more is no size */

/* ---- who takes them ---- */

static struct {
    gpulua *g;
    lua_State *L; /* at 1 the device, at 2 a graph */
    gpulua_device *device;
    gpulua_buffer *x;
} seat;

static const char *said; /* what the last call said of its failure; NULL: it says nothing */

static gpulua_status told(gpulua_status status) {
    said = gpulua_last_error(seat.g)->message;
    lua_settop(seat.L, 2);
    return status;
}

static gpulua_status told_of(const void *made) {
    said = gpulua_last_error(NULL)->message;
    return made ? GPULUA_OK : gpulua_last_error(NULL)->code;
}

static gpulua_status new (const void *given) {
    gpulua *made = gpulua_new(given);
    gpulua_status status = told_of(made);
    gpulua_close(made);
    return status;
}
static gpulua_status attach(const void *given) {
    lua_State *L = luaL_newstate();
    gpulua *made = gpulua_attach(L, given);
    gpulua_status status = told_of(made);
    gpulua_close(made);
    lua_close(L);
    return status;
}
static gpulua_status device_open(const void *given) {
    gpulua_device *made = gpulua_device_open(given);
    gpulua_status status = told_of(made);
    gpulua_device_close(made);
    return status;
}
static gpulua_status buffer_new(const void *given) {
    gpulua_buffer *made;
    gpulua_status status = told(gpulua_buffer_new(seat.L, 1, given, &made));
    gpulua_buffer_release(made);
    return status;
}
static gpulua_status push_memory(const void *given) {
    return told(gpulua_push_memory(seat.L, 1, given));
}
static gpulua_status recorder_new(const void *given) {
    gpulua_recorder *made;
    gpulua_status status = told(gpulua_recorder_new(seat.L, given, &made));
    gpulua_recorder_release(made);
    return status;
}
static gpulua_status push_capture(const void *given) {
    gpulua_status status = gpulua_push_capture(seat.L, given);
    return told(status ? status : gpulua_capture_cancel(seat.L, -1));
}
static gpulua_status graph_launch(const void *given) {
    return told(gpulua_graph_launch(seat.L, 2, given));
}
static gpulua_status graph_upload(const void *given) {
    return told(gpulua_graph_upload(seat.L, 2, given));
}
static gpulua_status set_hooks(const void *given) {
    gpulua_status status = gpulua_set_hooks(seat.L, 1, given);
    return told(status ? status : gpulua_set_hooks(seat.L, 1, NULL));
}
static gpulua_status device_set_hooks(const void *given) {
    said = NULL;
    return gpulua_device_set_hooks(seat.device, given);
}
static gpulua_status stream_capture_begin(const void *given) {
    gpulua_stream_capture *made;
    return told(gpulua_stream_capture_begin(seat.L, given, &made));
}
static gpulua_status dlpack_export(const void *given) {
    struct DLManagedTensorVersioned *out;
    gpulua_status status = gpulua_dlpack_export(seat.L, seat.x, given, &out);
    if (out) {
        out->deleter(out);
    }
    return told(status);
}
static gpulua_status dlpack_export_unversioned(const void *given) {
    struct DLManagedTensor *out;
    gpulua_status status = gpulua_dlpack_export_unversioned(seat.L, seat.x, given, &out);
    if (out) {
        out->deleter(out);
    }
    return told(status);
}
static gpulua_status dlpack_import(const void *given) {
    struct DLManagedTensorVersioned *out;
    gpulua_buffer *made;
    gpulua_dlpack_export(seat.L, seat.x, NULL, &out);
    gpulua_status status = gpulua_dlpack_import(seat.L, 1, out, given, &made);
    if (status) {
        out->deleter(out);
    }
    gpulua_buffer_release(made);
    return told(status);
}
static gpulua_status dlpack_import_unversioned(const void *given) {
    struct DLManagedTensor *out;
    gpulua_buffer *made;
    gpulua_dlpack_export_unversioned(seat.L, seat.x, NULL, &out);
    gpulua_status status = gpulua_dlpack_import_unversioned(seat.L, 1, out, given, &made);
    if (status) {
        out->deleter(out);
    }
    gpulua_buffer_release(made);
    return told(status);
}

/* What such a call needs. */
static void fill_nothing(void *given) {
    (void)given;
}
static void fill_device_config(void *given) {
    gpulua_device_config *config = given;
    config->device = "cpu";
    config->isolation = GPULUA_ISOLATE_NONE;
}
static void fill_buffer_info(void *given) {
    gpulua_buffer_info *info = given;
    info->type = "f32";
    info->dim_count = 1;
    info->shape[0] = 4;
}
static void fill_stream_capture_info(void *given) {
    gpulua_stream_capture_info *info = given;
    info->stream = 2;
}

/* ---- every struct: its name, and its size in release 0.1.0, where pointers have 8 bytes ---- */

#define INIT(name, last)                                                                           \
    static void init_##name(void *into, size_t struct_bytes) {                                     \
        gpulua_##name##_init_sized(into, struct_bytes);                                            \
    }
GPU_HOST_STRUCTS(INIT)

static const struct {
    const char *name;
    size_t bytes, first_bytes;
    void (*init)(void *into, size_t struct_bytes);
    void (*fill)(void *given);
    gpulua_status wanted;
    gpulua_status (*calls[4])(const void *given);
} taken[] = {
#define TAKEN(name, first_bytes) #name, sizeof(gpulua_##name), first_bytes, init_##name
    {TAKEN(config, 144), fill_nothing, GPULUA_OK, {new, attach}},
    {TAKEN(device_config, 144), fill_device_config, GPULUA_OK, {device_open}},
    {TAKEN(buffer_info, 144), fill_buffer_info, GPULUA_OK, {buffer_new}},
    {TAKEN(memory_info, 96), fill_nothing, GPULUA_OK, {push_memory}},
    {TAKEN(recorder_info, 32), fill_nothing, GPULUA_OK, {recorder_new}},
    {TAKEN(capture_info, 24), fill_nothing, GPULUA_OK, {push_capture}},
    {TAKEN(launch_info, 24), fill_nothing, GPULUA_OK, {graph_launch, graph_upload}},
    {TAKEN(hooks, 48), fill_nothing, GPULUA_OK, {set_hooks, device_set_hooks}},
    /* The CPU device has none; but first it looks at the struct. */
    {TAKEN(stream_capture_info, 24),
     fill_stream_capture_info,
     GPULUA_UNSUPPORTED,
     {stream_capture_begin}},
    {TAKEN(exchange, 48),
     fill_nothing,
     GPULUA_OK,
     {dlpack_export, dlpack_export_unversioned, dlpack_import, dlpack_import_unversioned}},
};
#define TAKEN_COUNT (sizeof taken / sizeof taken[0])

static void answer_buffer_info(void *into, size_t struct_bytes) {
    gpulua_buffer_describe_sized(seat.x, into, struct_bytes);
}
static void answer_memory_state(void *into, size_t struct_bytes) {
    lua_getglobal(seat.L, "mem");
    CHECK(gpulua_memory_describe_sized(seat.L, -1, into, struct_bytes) == GPULUA_OK);
    lua_settop(seat.L, 2);
}
static void answer_capture_state(void *into, size_t struct_bytes) {
    lua_getglobal(seat.L, "cap");
    CHECK(gpulua_capture_describe_sized(seat.L, -1, into, struct_bytes) == GPULUA_OK);
    lua_settop(seat.L, 2);
}

static const struct {
    const char *name;
    size_t bytes, first_bytes;
    void (*answer)(void *into, size_t struct_bytes);
} answered[] = {
#define ANSWERED(name, first_bytes) #name, sizeof(gpulua_##name), first_bytes, answer_##name
    {ANSWERED(buffer_info, 144)},
    {ANSWERED(memory_state, 120)},
    {ANSWERED(capture_state, 24)},
};

/* ---- tests ---- */

static bool is_all(const unsigned char *bytes, size_t count, unsigned char value) {
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != value) {
            return false;
        }
    }
    return true;
}

static bool judge(const char *name, const char *what, size_t bytes, bool good) {
    char text[160];
    snprintf(text, sizeof text, "gpulua_%s of %zu bytes: %s", name, bytes, what);
    return tap_check(&tap, good, text);
}

/* A host of any release sets up as much as it has. */
static void test_init(size_t i) {
    for (size_t bytes = 0; bytes < taken[i].bytes + 64; bytes += 4) {
        unsigned char space[SPACE];
        size_t told = 0;
        memset(space, MARK, sizeof space);
        taken[i].init(space, bytes);
        bool good = is_all(space + bytes, sizeof space - bytes, MARK);
        if (bytes >= sizeof told) {
            memcpy(&told, space, sizeof told);
            good = good && told == bytes && is_all(space + sizeof told, bytes - sizeof told, 0);
        }
        judge(taken[i].name, "init sets up these and no others", bytes, good);
    }
}

/* Memory of that size, set up as if it had `bytes`. */
static unsigned char *set_up(size_t i, size_t size, size_t bytes) {
    unsigned char *made = malloc(size);
    taken[i].init(made, size);
    taken[i].fill(made);
    memcpy(made, &bytes, sizeof bytes);
    return made;
}

static void judge_calls(size_t i, unsigned char *given, const char *what, gpulua_status wanted,
                        const char *text) {
    size_t bytes;
    memcpy(&bytes, given, sizeof bytes);
    for (size_t j = 0; j < 4 && taken[i].calls[j]; j++) {
        gpulua_status status = taken[i].calls[j](given);
        bool good = status == wanted;
        if (text && said) {
            good = good && strstr(said, text) && strstr(said, taken[i].name);
        }
        if (!judge(taken[i].name, what, bytes, good)) {
            printf("# call %zu: %s: %s\n", j, gpulua_status_name(status), said ? said : "");
        }
    }
    free(given);
}

static void test_taken(size_t i) {
    size_t bytes = taken[i].bytes, first_bytes = taken[i].first_bytes;
    gpulua_status wanted = taken[i].wanted;
    if (sizeof(void *) == 8) {
        const size_t none[] = {0, 1, first_bytes - 1, LARGEST + 1, SIZE_MAX};
        for (size_t j = 0; j < sizeof none / sizeof none[0]; j++) {
            judge_calls(i, set_up(i, first_bytes, none[j]), "no release's", GPULUA_INVALID_ARGUMENT,
                        "_init");
        }
        for (size_t size = first_bytes; size <= bytes; size += 8) {
            judge_calls(i, set_up(i, size, size), "as in an older release", wanted, NULL);
        }
    }
    const size_t larger[] = {bytes, bytes + 1, bytes + 64, LARGEST};
    for (size_t j = 0; j < sizeof larger / sizeof larger[0]; j++) {
        size_t size = larger[j];
        judge_calls(i, set_up(i, size, size), "with nothing in later members", wanted, NULL);
        for (size_t at = bytes; at<size; at += size - bytes - 1> 0 ? size - bytes - 1 : 1) {
            unsigned char *given = set_up(i, size, size);
            given[at] = 1;
            judge_calls(i, given, "with something in them", GPULUA_INVALID_ARGUMENT,
                        "later gpulua.h");
        }
    }
}

static void test_answered(size_t i) {
    unsigned char full[SPACE];
    answered[i].answer(full, answered[i].bytes);
    judge(answered[i].name, "since 0.1.0", answered[i].first_bytes,
          sizeof(void *) != 8 || answered[i].first_bytes <= answered[i].bytes);
    for (size_t bytes = 0; bytes < answered[i].bytes + 64; bytes += 4) {
        unsigned char space[SPACE];
        size_t told = 0, filled = bytes < answered[i].bytes ? bytes : answered[i].bytes;
        memset(space, MARK, sizeof space);
        answered[i].answer(space, bytes);
        bool good = is_all(space + bytes, sizeof space - bytes, MARK);
        if (bytes >= sizeof told) {
            memcpy(&told, space, sizeof told);
            good = good && told == filled;
            good =
                good && memcmp(space + sizeof told, full + sizeof told, filled - sizeof told) == 0;
            good = good && is_all(space + filled, bytes - filled, 0);
        }
        judge(answered[i].name, "answers these and no others", bytes, good);
    }
}

/* What a struct lacks that has grown since is at its default. */
static void test_growth(void) {
    struct {
        size_t struct_bytes;
        uint64_t first, second, third, fourth;
    } given, here;
    const struct gpu_host_struct kind = {"growth", sizeof here, 2 * sizeof(uint64_t)};
    struct gpu_error error;
    for (size_t count = 1; count <= 4; count++) {
        size_t bytes = (count + 1) * sizeof(uint64_t);
        memset(&given, MARK, sizeof given);
        memset(&here, MARK, sizeof here);
        given.struct_bytes = bytes;
        bool good = gpu_host_take(&kind, &given, &here, &error) == GPULUA_OK;
        good = good && here.struct_bytes == sizeof here && here.first == given.first;
        good = good && here.second == (count >= 2 ? given.second : 0);
        good = good && here.third == (count >= 3 ? given.third : 0);
        judge(kind.name, "members that are not there are 0", bytes,
              good && here.fourth == (count >= 4 ? given.fourth : 0));
    }
    memset(&here, MARK, sizeof here);
    CHECK(gpu_host_take(&kind, NULL, &here, &error) == GPULUA_OK);
    CHECK(here.struct_bytes == sizeof here && here.first == 0 && here.fourth == 0);
}

/* ---- those that are the library's ---- */

static bool error_is_whole, hook_info_is_whole;

static void note_error(void *user, const gpulua_error *error) {
    (void)user;
    error_is_whole = error->struct_bytes == sizeof *error;
}

static void note_hook(void *user, const gpulua_hook_info *info) {
    (void)user;
    hook_info_is_whole = info->struct_bytes == sizeof *info;
}

static void test_handed(void) {
#define HANDED(name, first_bytes) (sizeof(void *) != 8 || sizeof(gpulua_##name) >= (first_bytes))
    CHECK(HANDED(error, 56) && HANDED(place, 56) && HANDED(hook_info, 80));
    CHECK(gpulua_last_error(NULL)->struct_bytes == sizeof(gpulua_error));
    CHECK(gpulua_last_error(seat.g)->struct_bytes == sizeof(gpulua_error));
    gpulua_hooks hooks;
    gpulua_hooks_init(&hooks);
    hooks.before_enqueue = note_hook;
    CHECK(gpulua_set_hooks(seat.L, 1, &hooks) == GPULUA_OK);
    CHECK(run(seat.g, "x:fill(1):await() ok = true") && hook_info_is_whole);
    run(seat.g, "error 'on purpose'");
    CHECK(error_is_whole);
}

static bool seat_open(void) {
    gpulua_config config;
    gpulua_device_config device_config;
    gpulua_config_init(&config);
    gpulua_device_config_init(&device_config);
    fill_device_config(&device_config);
    config.device = "cpu";
    config.isolation = GPULUA_ISOLATE_NONE;
    config.on_error = note_error;
    seat.device = gpulua_device_open(&device_config);
    seat.g = gpulua_new(&config);
    if (!seat.g || !seat.device) {
        return false;
    }
    seat.L = gpulua_state(seat.g);
    bool good = run(seat.g, "gpu = require 'gpulua' dev = gpu.device() x = dev:buffer('f32', 4)\n"
                            "mem = dev:memory { statistics = true } mem:buffer('f32', 4)\n"
                            "cap = dev:capture() x:fill(2) graph = cap:finish() ok = true");
    lua_settop(seat.L, 0);
    lua_getglobal(seat.L, "dev");
    lua_getglobal(seat.L, "graph");
    lua_getglobal(seat.L, "x");
    good = good && gpulua_to_buffer(seat.L, 3, &seat.x) == GPULUA_OK;
    lua_settop(seat.L, 2);
    return good;
}

int main(void) {
    if (CHECK(seat_open())) {
        for (size_t i = 0; i < TAKEN_COUNT; i++) {
            test_init(i);
            test_taken(i);
        }
        for (size_t i = 0; i < sizeof answered / sizeof answered[0]; i++) {
            test_answered(i);
        }
        test_growth();
        test_handed();
        gpulua_buffer_release(seat.x);
    }
    gpulua_close(seat.g);
    gpulua_device_close(seat.device);
    return tap_finish(&tap);
}
