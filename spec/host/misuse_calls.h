/* An object with one of everything, and a call of each function of gpulua.h on it. A call takes the
 * right handles and values, or, while `chaos` is on, any that there are. */
#ifndef SPEC_HOST_MISUSE_CALLS_H
#define SPEC_HOST_MISUSE_CALLS_H

#include "host/dlpack.h"
#include "host/exchange.h"

#define ELEMENTS 4
#define SLOTS 6

/* Values of the state, at these places of its stack; behind them some that came of calls. */
enum {
    AT_DEVICE = 1,
    AT_BUFFER,
    AT_HOST,
    AT_MEMORY,
    AT_CAPTURE,
    AT_GRAPH,
    AT_STREAM,
    VALUES = AT_STREAM,
    PLACES = VALUES + SLOTS
};
static const char *const value_names[VALUES] = {"dev", "x", "h", "mem", "cap", "graph", "stream"};

struct tensor {
    struct DLManagedTensorVersioned versioned;
    struct DLManagedTensor plain;
    int64_t shape[1];
    float data[ELEMENTS];
    int deleted;
};

struct seat {
    gpulua *g; /* NULL: none */
    lua_State *L;
    bool is_attached;
    gpulua_device *device;
    gpulua_buffer *buffers[SLOTS];
    gpulua_recorder *recorders[SLOTS];
    struct DLManagedTensorVersioned *out;
    struct DLManagedTensor *plain_out;
    struct tensor in[2]; /* lent at most once each */
    bool is_lent[2];
};

/* ---- chaos ---- */

static struct {
    uint64_t state; /* 0: off */
    struct seat *seats;
    int seat_count;
} chaos;

static inline uint64_t random_below(uint64_t bound) {
    chaos.state ^= chaos.state >> 12;
    chaos.state ^= chaos.state << 25;
    chaos.state ^= chaos.state >> 27;
    return (chaos.state * 0x2545F4914F6CDD1Dull >> 11) % bound;
}

static inline bool happens(int once_in) {
    return chaos.state && random_below((uint64_t)once_in) == 0;
}

static inline struct seat *any_seat(struct seat *seat) {
    return happens(8) ? &chaos.seats[random_below((uint64_t)chaos.seat_count)] : seat;
}

/* A place of the stack: the right one, or any, or none. */
static inline int place(struct seat *seat, int right) {
    int top = lua_gettop(seat->L);
    if (!happens(3) || top == 0) {
        return right;
    }
    return (int)random_below((uint64_t)(2 * top + 1)) - top;
}

static inline int slot(int right) {
    return chaos.state ? (int)random_below(SLOTS) : right;
}

/* NULL only where chaos has put nothing yet. */
static inline gpulua_buffer *buffer_of(struct seat *seat, int right) {
    gpulua_buffer *found = any_seat(seat)->buffers[slot(right)];
    return found ? found : seat->buffers[0];
}

static inline gpulua_recorder *recorder_of(struct seat *seat, int right) {
    gpulua_recorder *found = any_seat(seat)->recorders[slot(right)];
    return found ? found : seat->recorders[0];
}

/* Never more than there is, unless it is more than any struct has. */
static inline size_t sized(size_t right) {
    return !happens(16) ? right : happens(4) ? SIZE_MAX : random_below(right);
}

static inline int64_t number(int64_t right) {
    static const int64_t odd[] = {0, -1, 1, 7, 65, 4096, 100000, INT32_MIN, INT64_MAX, INT64_MIN};
    return happens(4) ? odd[random_below(sizeof odd / sizeof odd[0])] : right;
}

static inline const char *word(const char *right) {
    static const char *const odd[] = {"", "f33", "f32", "i64", "twice", "wait", "\xff\x01", NULL};
    return happens(4) ? odd[random_below(sizeof odd / sizeof odd[0])] : right;
}

/* ---- what calls give ---- */

static inline gpulua_status keep_buffer(struct seat *seat, gpulua_buffer *made,
                                        gpulua_status status) {
    if (made) {
        int i = slot(2);
        gpulua_buffer_release(seat->buffers[i]);
        seat->buffers[i] = made;
    }
    return (made != NULL) == (status == GPULUA_OK) ? status : (gpulua_status)-1;
}

/* ---- the calls: each answers the status, -1 if what it gave does not fit that ---- */

static gpulua_status load_file(struct seat *s) {
    return gpulua_load_file(s->g, chaos.state && happens(2) ? "/nowhere.lua" : "/dev/null");
}
static gpulua_status load_function(struct seat *s) {
    static const char script[] = "if x then pcall(x.fill, x, 3) end";
    lua_State *L = gpulua_state(s->g); /* also where a coroutine of it calls */
    if (happens(4)) {
        lua_pushinteger(L, 1);
    } else if (luaL_loadstring(L, script) != LUA_OK) {
        lua_pop(L, 1);
        return GPULUA_OUT_OF_MEMORY;
    }
    return gpulua_load_function(s->g, 0);
}
static void ended(void *user, lua_State *L, int result_count, const gpulua_error *error) {
    (void)user;
    (void)L;
    (void)result_count;
    (void)error;
}
static gpulua_status call(struct seat *s) {
    lua_State *L = gpulua_state(s->g);
    if (luaL_loadstring(L, "return x") != LUA_OK) {
        lua_pop(L, 1);
        return GPULUA_OUT_OF_MEMORY;
    }
    return gpulua_call(s->g, 0, ended, NULL);
}
static gpulua_status step(struct seat *s) {
    int left = gpulua_step(s->g, chaos.state ? (int)random_below(3) : 0);
    return left < 0 ? (gpulua_status)-left : GPULUA_OK;
}
static gpulua_status to_buffer(struct seat *s) {
    gpulua_buffer *made = (gpulua_buffer *)s;
    gpulua_status status = gpulua_to_buffer(s->L, place(s, AT_BUFFER), &made);
    return keep_buffer(s, made, status);
}
static gpulua_status buffer_new(struct seat *s) {
    gpulua_buffer *made = (gpulua_buffer *)s;
    gpulua_buffer_info info;
    gpulua_buffer_info_init(&info);
    info.struct_bytes = sized(sizeof info);
    info.type = word("f32");
    info.dim_count = happens(8) ? (int)number(1) : 1;
    info.shape[0] = number(ELEMENTS);
    info.is_host = happens(2);
    info.label = word("new");
    gpulua_status status = gpulua_buffer_new(s->L, place(s, AT_DEVICE), &info, &made);
    return keep_buffer(s, made, status);
}
static gpulua_status push_buffer(struct seat *s) {
    return gpulua_push_buffer(s->L, buffer_of(s, 0));
}
static gpulua_status buffer_map(struct seat *s) {
    void *bytes = s;
    gpulua_access access = (gpulua_access)number(GPULUA_READ_WRITE);
    gpulua_status status = gpulua_buffer_map(s->g, buffer_of(s, 1), access, &bytes);
    return (bytes != NULL) == (status == GPULUA_OK) ? status : (gpulua_status)-1;
}
static gpulua_status push_memory(struct seat *s) {
    gpulua_memory_info info;
    gpulua_memory_info_init(&info);
    info.struct_bytes = sized(sizeof info);
    info.from = word(NULL);
    info.from_index = happens(4) ? place(s, AT_MEMORY) : 0;
    info.budget_bytes = (uint64_t)number(1 << 20);
    info.is_guarded = happens(2);
    info.canary_bytes = (uint64_t)number(0);
    return gpulua_push_memory(s->L, place(s, AT_DEVICE), &info);
}
static gpulua_status memory_describe(struct seat *s) {
    gpulua_memory_state state;
    return gpulua_memory_describe(s->L, place(s, AT_MEMORY), &state);
}
static gpulua_status recorder_new(struct seat *s) {
    gpulua_recorder *made = (gpulua_recorder *)s;
    gpulua_recorder_info info;
    gpulua_recorder_info_init(&info);
    info.struct_bytes = sized(sizeof info);
    info.device_index = place(s, AT_DEVICE);
    info.stream_index = happens(2) ? place(s, AT_STREAM) : 0;
    info.is_permissive = happens(2);
    gpulua_status status = gpulua_recorder_new(s->L, &info, &made);
    if (made) {
        int i = slot(2);
        gpulua_recorder_release(s->recorders[i]);
        s->recorders[i] = made;
    }
    return (made != NULL) == (status == GPULUA_OK) ? status : (gpulua_status)-1;
}
static gpulua_status recorder_uses(struct seat *s) {
    gpulua_recorder_read(recorder_of(s, 0), buffer_of(s, 0), word("x"));
    gpulua_recorder_write(recorder_of(s, 0), buffer_of(s, 0), word("x"));
    gpulua_recorder_read_write(recorder_of(s, 0), happens(4) ? NULL : buffer_of(s, 0), word("x"));
    return GPULUA_OK;
}
static gpulua_status recorder_preflight(struct seat *s) {
    return gpulua_recorder_preflight(s->g, recorder_of(s, 0));
}
static gpulua_status recorder_wait(struct seat *s) {
    return gpulua_recorder_wait(s->g, recorder_of(s, 0));
}
static gpulua_status recorder_stream(struct seat *s) {
    uintptr_t stream = 1;
    gpulua_status status = gpulua_recorder_stream(s->g, recorder_of(s, 0), &stream);
    return (stream != 0) == (status == GPULUA_OK) ? status : (gpulua_status)-1;
}
static gpulua_status recorder_commit(struct seat *s) {
    return gpulua_recorder_commit(s->g, recorder_of(s, 0));
}
static gpulua_status recorder_over(struct seat *s) {
    gpulua_recorder_cancel(recorder_of(s, 1));
    return gpulua_recorder_commit(s->g, recorder_of(s, 1));
}
static gpulua_status push_capture(struct seat *s) {
    gpulua_capture_info info;
    gpulua_capture_info_init(&info);
    info.struct_bytes = sized(sizeof info);
    info.device_index = place(s, AT_DEVICE);
    info.pool_index = happens(4) ? place(s, AT_GRAPH) : 0;
    gpulua_status status = gpulua_push_capture(s->L, &info);
    if (status == GPULUA_OK && !happens(2)) {
        (void)gpulua_capture_cancel(s->L, -1);
    }
    return status;
}
static gpulua_status capture_describe(struct seat *s) {
    gpulua_capture_state state;
    return gpulua_capture_describe(s->L, place(s, AT_CAPTURE), &state);
}
static gpulua_status capture_finish(struct seat *s) {
    return gpulua_capture_finish(s->L, place(s, AT_CAPTURE));
}
static gpulua_status capture_cancel(struct seat *s) {
    return gpulua_capture_cancel(s->L, place(s, AT_CAPTURE));
}
static gpulua_status launch(struct seat *s, gpulua_status (*function)(lua_State *, int,
                                                                      const gpulua_launch_info *)) {
    gpulua_launch_info info;
    gpulua_launch_info_init(&info);
    info.struct_bytes = sized(sizeof info);
    info.stream_index = happens(2) ? place(s, AT_STREAM) : 0;
    info.label = word("launch");
    return function(s->L, place(s, AT_GRAPH), happens(4) ? NULL : &info);
}
static gpulua_status graph_upload(struct seat *s) {
    return launch(s, gpulua_graph_upload);
}
static gpulua_status graph_launch(struct seat *s) {
    return launch(s, gpulua_graph_launch);
}
static gpulua_status set_hooks(struct seat *s) {
    gpulua_hooks hooks;
    gpulua_hooks_init(&hooks);
    hooks.struct_bytes = sized(sizeof hooks);
    return gpulua_set_hooks(s->L, place(s, AT_DEVICE), happens(4) ? NULL : &hooks);
}
static gpulua_status inject_slow(struct seat *s) {
    return gpulua_inject_slow(s->L, place(s, AT_DEVICE), NULL, (double)number(0));
}
static gpulua_status device_inject(struct seat *s) {
    gpulua_injection what = (gpulua_injection)number(GPULUA_INJECT_OOM);
    return gpulua_device_inject(s->device, what, 0);
}
static gpulua_status device_set_hooks(struct seat *s) {
    gpulua_hooks hooks;
    gpulua_hooks_init(&hooks);
    hooks.struct_bytes = sized(sizeof hooks);
    return gpulua_device_set_hooks(s->device, &hooks);
}
static gpulua_status stream_capture_begin(struct seat *s) {
    gpulua_stream_capture *made = (gpulua_stream_capture *)s;
    gpulua_stream_capture_info info;
    gpulua_stream_capture_info_init(&info);
    info.struct_bytes = sized(sizeof info);
    info.device_index = place(s, AT_DEVICE);
    info.stream = 2;
    info.mode = (gpulua_capture_mode)number(0);
    gpulua_status status = gpulua_stream_capture_begin(s->L, &info, &made);
    return (made != NULL) == (status == GPULUA_OK) ? status : (gpulua_status)-1;
}

static gpulua_exchange exchange_of(struct seat *s) {
    gpulua_exchange exchange;
    gpulua_exchange_init(&exchange);
    exchange.struct_bytes = sized(sizeof exchange);
    exchange.order = (gpulua_order)number(GPULUA_ORDER_DEFAULT);
    exchange.stream = (uintptr_t)number(0);
    exchange.stream_index = happens(2) ? place(s, AT_STREAM) : 0;
    exchange.may_copy = !happens(2); /* for devices in processes of their own */
    return exchange;
}
static gpulua_status dlpack_export(struct seat *s) {
    struct DLManagedTensorVersioned *out = (void *)s;
    gpulua_exchange exchange = exchange_of(s);
    gpulua_status status = gpulua_dlpack_export(s->L, buffer_of(s, 1), &exchange, &out);
    if (out) {
        if (s->out) {
            s->out->deleter(s->out);
        }
        s->out = out;
    }
    return (out != NULL) == (status == GPULUA_OK) ? status : (gpulua_status)-1;
}
static gpulua_status dlpack_export_unversioned(struct seat *s) {
    struct DLManagedTensor *out = (void *)s;
    gpulua_exchange exchange = exchange_of(s);
    gpulua_status status = gpulua_dlpack_export_unversioned(s->L, buffer_of(s, 1), &exchange, &out);
    if (out) {
        if (s->plain_out) {
            s->plain_out->deleter(s->plain_out);
        }
        s->plain_out = out;
    }
    return (out != NULL) == (status == GPULUA_OK) ? status : (gpulua_status)-1;
}

static void delete_versioned(struct DLManagedTensorVersioned *self) {
    ((struct tensor *)self->context)->deleted++;
}
static void delete_plain(struct DLManagedTensor *self) {
    ((struct tensor *)self->context)->deleted++;
}
/* A tensor that nobody has; NULL: both are lent. */
static struct tensor *tensor_of(struct seat *s, int which) {
    struct tensor *tensor = &s->in[which];
    if (s->is_lent[which] && tensor->deleted == 0) {
        return NULL;
    }
    s->is_lent[which] = false;
    tensor->deleted = 0;
    tensor->shape[0] = number(ELEMENTS);
    tensor->plain.tensor = (struct dlpack_tensor){.data = happens(8) ? NULL : tensor->data,
                                                  .device = {.kind = DLPACK_CPU},
                                                  .dim_count = happens(8) ? (int32_t)number(1) : 1,
                                                  .type = {DLPACK_FLOAT, 32, 1},
                                                  .shape = tensor->shape};
    if (tensor->shape[0] > ELEMENTS) {
        tensor->shape[0] = ELEMENTS; /* nobody can know how much memory there is */
    }
    if (tensor->plain.tensor.dim_count > 1) {
        tensor->plain.tensor.dim_count = GPULUA_DIMS_MAX + 1;
    }
    tensor->plain.context = tensor;
    tensor->plain.deleter = delete_plain;
    tensor->versioned.version.major = happens(8) ? 2 : 1;
    tensor->versioned.tensor = tensor->plain.tensor;
    tensor->versioned.context = tensor;
    tensor->versioned.deleter = delete_versioned;
    return tensor;
}
static gpulua_status dlpack_import(struct seat *s) {
    struct tensor *tensor = tensor_of(s, 0);
    gpulua_buffer *made = (gpulua_buffer *)s;
    gpulua_exchange exchange = exchange_of(s);
    if (!tensor) {
        return GPULUA_OK;
    }
    gpulua_status status =
        gpulua_dlpack_import(s->L, place(s, AT_DEVICE), &tensor->versioned, &exchange, &made);
    s->is_lent[0] = status == GPULUA_OK;
    return keep_buffer(s, made, status);
}
static gpulua_status dlpack_import_unversioned(struct seat *s) {
    struct tensor *tensor = tensor_of(s, 1);
    gpulua_buffer *made = (gpulua_buffer *)s;
    gpulua_exchange exchange = exchange_of(s);
    if (!tensor) {
        return GPULUA_OK;
    }
    gpulua_status status = gpulua_dlpack_import_unversioned(s->L, place(s, AT_DEVICE),
                                                            &tensor->plain, &exchange, &made);
    s->is_lent[1] = status == GPULUA_OK;
    return keep_buffer(s, made, status);
}
/* Those that cannot fail. */
static gpulua_status answers(struct seat *s) {
    gpulua_buffer_info info;
    gpulua_buffer *buffer = buffer_of(s, 0);
    gpulua_buffer_describe(buffer, &info);
    bool good = info.struct_bytes == sizeof info && info.elem_count > 0;
    good = good && gpulua_buffer_retain(buffer) == buffer;
    gpulua_buffer_release(buffer);
    good = good && gpulua_state(s->g) != NULL && gpulua_tasks(s->g) >= 0;
    good = good && gpulua_pollfd(s->g) >= -1 && gpulua_timeout_ms(s->g) >= -1;
    gpulua_wake(s->g);
    gpulua_stream_capture_release(NULL);
    good = good && gpulua_version()[0] != '\0';
    return good && gpulua_device_epoch(s->device) >= 1 ? GPULUA_OK : (gpulua_status)-1;
}

struct call {
    const char *name;
    gpulua_status (*function)(struct seat *seat);
    int pushes; /* values, when it succeeds */
};
#define CALL(name, pushes)                                                                         \
    { #name, name, pushes }
static const struct call calls[] = {
    CALL(load_file, 0),
    CALL(load_function, 0),
    CALL(call, 0),
    CALL(step, 0),
    CALL(to_buffer, 0),
    CALL(buffer_new, 0),
    CALL(push_buffer, 1),
    CALL(buffer_map, 0),
    CALL(push_memory, 1),
    CALL(memory_describe, 0),
    CALL(recorder_new, 0),
    CALL(recorder_uses, 0),
    CALL(recorder_preflight, 0),
    CALL(recorder_wait, 0),
    CALL(recorder_stream, 0),
    CALL(recorder_commit, 0),
    CALL(recorder_over, 0),
    CALL(push_capture, 1),
    CALL(capture_describe, 0),
    CALL(capture_finish, 1),
    CALL(capture_cancel, 0),
    CALL(graph_upload, 0),
    CALL(graph_launch, 0),
    CALL(set_hooks, 0),
    CALL(inject_slow, 0),
    CALL(device_inject, 0),
    CALL(device_set_hooks, 0),
    CALL(stream_capture_begin, 0),
    CALL(dlpack_export, 0),
    CALL(dlpack_export_unversioned, 0),
    CALL(dlpack_import, 0),
    CALL(dlpack_import_unversioned, 0),
    CALL(answers, 0),
};
#define CALL_COUNT (sizeof calls / sizeof calls[0])

/* ---- seats ---- */

static inline bool run_text(struct seat *seat, const char *text) {
    int top = lua_gettop(seat->L);
    bool good = luaL_dostring(seat->L, text) == LUA_OK;
    if (!good) {
        printf("# %s\n", luaL_tolstring(seat->L, -1, NULL));
    }
    lua_settop(seat->L, top);
    return good;
}

/* The values of the globals on the stack, as they are now. */
static inline void seat_values(struct seat *seat) {
    lua_settop(seat->L, 0);
    for (int i = 0; i < VALUES; i++) {
        lua_getglobal(seat->L, value_names[i]);
    }
}

static const char one_of_everything[] =
    "gpu = require 'gpulua' dev = gpu.device() stream = dev:stream {}\n"
    "x = dev:buffer('f32', 4):fill(1) h = dev:host('f32', 4)\n"
    "mem = dev:memory { statistics = true }\n"
    "cap = dev:capture() x:fill(2) graph = cap:finish()\n";

static inline bool seat_fill(struct seat *seat) {
    bool good = run_text(seat, one_of_everything);
    seat_values(seat);
    good = good && gpulua_to_buffer(seat->L, AT_BUFFER, &seat->buffers[0]) == GPULUA_OK &&
           gpulua_to_buffer(seat->L, AT_HOST, &seat->buffers[1]) == GPULUA_OK &&
           gpulua_recorder_new(seat->L, NULL, &seat->recorders[0]) == GPULUA_OK &&
           gpulua_recorder_new(seat->L, NULL, &seat->recorders[1]) == GPULUA_OK;
    lua_settop(seat->L, 0);
    return good;
}

/* With a state of ours, or one of the host's. */
static inline bool seat_open(struct seat *seat, gpulua_isolation isolation, bool is_attached) {
    gpulua_config config;
    gpulua_device_config device_config;
    memset(seat, 0, sizeof *seat);
    gpulua_config_init(&config);
    config.device = "cpu";
    config.isolation = isolation;
    gpulua_device_config_init(&device_config);
    device_config.device = "cpu";
    device_config.isolation = GPULUA_ISOLATE_NONE;
    seat->device = gpulua_device_open(&device_config);
    seat->is_attached = is_attached;
    if (is_attached) {
        seat->L = luaL_newstate();
        luaL_openlibs(seat->L);
        seat->g = gpulua_attach(seat->L, &config);
    } else {
        seat->g = gpulua_new(&config);
        seat->L = seat->g ? gpulua_state(seat->g) : NULL;
    }
    return seat->g && seat->device && seat_fill(seat);
}

/* Handles may go before or behind the object. */
static inline void seat_drop_handles(struct seat *seat) {
    for (int i = 0; i < SLOTS; i++) {
        gpulua_buffer_release(seat->buffers[i]);
        gpulua_recorder_release(seat->recorders[i]);
        seat->buffers[i] = NULL;
        seat->recorders[i] = NULL;
    }
    if (seat->out) {
        seat->out->deleter(seat->out);
    }
    if (seat->plain_out) {
        seat->plain_out->deleter(seat->plain_out);
    }
    seat->out = NULL;
    seat->plain_out = NULL;
}

/* False: a tensor was not given back, or twice. */
static inline bool seat_close(struct seat *seat, bool handles_first) {
    bool good = true;
    if (handles_first) {
        seat_drop_handles(seat);
    }
    gpulua_close(seat->g);
    seat_drop_handles(seat);
    if (seat->is_attached) {
        lua_close(seat->L);
    }
    gpulua_device_close(seat->device);
    for (int i = 0; i < 2; i++) {
        good = good && seat->in[i].deleted == (seat->is_lent[i] ? 1 : 0);
    }
    return good;
}

#endif
