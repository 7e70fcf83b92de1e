/* Tracing (trace.h): noting what tasks do, and giving the logs to lua/gpulua/trace.lua. */
#include "binding/trace.h"

#include <stdlib.h>
#include <string.h>

#include "binding/data.h"
#include "binding/device.h"
#include "ranges/ranges.h"
#include "runtime/trace.h"

/* Of gpu.range: a userdata, which the script's handle keeps until it ends the range. */
#define OPEN_RANGE "gpulua.open range"
struct open_range {
    struct tracing *tracing;         /* NULL: it has ended */
    struct gpu_traced_span span;     /* its end is not known */
    struct open_range *next, **link; /* of all that are open */
};

/* What the state sees of a device's log: all of it; of a shared device's, what came while it had a
 * seat there. */
struct traced_log {
    struct gpu_trace *trace; /* retained */
    uint32_t seat;           /* its own, as rows have it; 0: nobody else has the device */
    bool is_over;            /* it has left */
    struct extent {
        uint64_t ops, dropped;
    } before, end; /* rows in front of those that it sees; once it has left, and including them */
};

struct tracing {
    struct gpu_trace *spans; /* retained */
    struct traced_log *logs; /* owned */
    uint32_t log_count;
    int64_t run_begun_ns;      /* since then */
    int64_t first_run_ns;      /* of the run in which tracing began; 0: that has ended */
    int64_t begun_ns;          /* tracing; before everything in the logs */
    int64_t outside_begun_ns;  /* since then a chunk that is no task has run; 0: it waits, or there
                                  is none */
    struct open_range *ranges; /* the newest first */
    uint32_t range_count;
};

/* What tasks had done when somebody asked: rows that are over are in the log for good, and what was
 * not is here. A userdata. */
struct spans {
    uint64_t over_count;
    uint32_t open_count;
    struct gpu_traced_span open[];
};
#define SPANS_NAME "gpulua.traced_spans"

static bool start(struct gpulua *g) {
    if (g->tracing) {
        return true;
    }
    struct tracing *made = calloc(1, sizeof *made);
    struct gpu_trace *spans = made ? gpu_trace_create("host", GPU_TRACE_OPS_MAX) : NULL;
    if (!spans) {
        free(made);
        return false;
    }
    made->spans = spans;
    made->begun_ns = made->run_begun_ns = gpu_lua_now_ns();
    made->first_run_ns = made->begun_ns;
    made->outside_begun_ns = g->running || g->turn_depth > 0 ? 0 : made->begun_ns;
    g->tracing = made;
    return true;
}

bool gpu_lua_trace_is_wanted(void) {
    return gpu_ranges_wanted(gpu_lua_setting(NULL, "GPULUA_TRACE"));
}

static struct extent extent_of(const struct gpu_trace *trace) {
    return (struct extent){.ops = gpu_trace_count(trace), .dropped = gpu_trace_dropped(trace)};
}

/* A sandbox hears of nothing that others do. */
static bool wants_log(struct gpulua *g, const struct device_handle *handle) {
    bool is_traced = gpu_device_trace(handle->device) != NULL;
    bool is_wanted = !handle->shared || (g->config.trace && !g->config.sandbox);
    if (handle->shared && is_wanted && !is_traced && g->config.on_log) {
        g->config.on_log(g->config.user, "the shared device is not traced: that is for its host to "
                                         "say (trace_ops_max, GPULUA_TRACE)");
    }
    return is_traced && is_wanted;
}

bool gpu_lua_trace_device(struct gpulua *g, const struct device_handle *handle) {
    if (!wants_log(g, handle)) {
        return true;
    }
    if (!start(g)) {
        return false;
    }
    struct tracing *tracing = g->tracing;
    struct traced_log *grown = realloc(tracing->logs, (tracing->log_count + 1) * sizeof *grown);
    if (!grown) {
        return false;
    }
    tracing->logs = grown;
    struct traced_log *log = &grown[tracing->log_count++];
    *log = (struct traced_log){.trace = gpu_trace_retain(gpu_device_trace(handle->device))};
    if (handle->shared) {
        log->seat = gpu_seat_number(g->seat) + 1;
        log->before = extent_of(log->trace);
    }
    return true;
}

/* The newest: a shared device may be left and taken again. */
static struct traced_log *find_log(const struct tracing *tracing, const struct gpu_trace *trace) {
    uint32_t i = trace ? tracing->log_count : 0;
    while (i > 0 && tracing->logs[i - 1].trace != trace) {
        i--;
    }
    return i > 0 ? &tracing->logs[i - 1] : NULL;
}

void gpu_lua_trace_leave(struct gpulua *g, struct gpu_device *device) {
    struct traced_log *log = g->tracing ? find_log(g->tracing, gpu_device_trace(device)) : NULL;
    if (!log || log->is_over) {
        return;
    }
    struct gpu_error error = {0};
    if (gpu_device_wait_idle(device, 0, &error)) {
        gpu_error_finish(&error);
    } else { /* later nobody asks for it here */
        gpu_device_trace_flush(device);
    }
    log->end = extent_of(log->trace);
    log->is_over = true;
}

void gpu_lua_trace_finish(struct gpulua *g) {
    struct tracing *tracing = g->tracing;
    if (!tracing) {
        return;
    }
    g->tracing = NULL;
    for (struct open_range *range = tracing->ranges; range; range = range->next) {
        range->tracing = NULL;
    }
    for (uint32_t i = 0; i < tracing->log_count; i++) {
        gpu_trace_release(tracing->logs[i].trace);
    }
    gpu_trace_release(tracing->spans);
    free(tracing->logs);
    free(tracing);
}

/* The number of a row there; 0: it is none that the state sees. */
static uint64_t number_in(const struct traced_log *log, uint64_t row) {
    return row > log->before.ops ? row - log->before.ops : 0;
}

/* ---- noting ---- */

/* The line of the script that `L` is at. */
static void find_site(lua_State *L, struct gpu_trace *spans, struct gpu_traced_span *span) {
    lua_Debug ar;
    if (gpu_lua_where(L, &ar)) {
        span->source = gpu_trace_keep_text(spans, ar.short_src);
        span->line = ar.currentline;
    }
}

/* What runs outside of tasks waits. */
static void outside_ends(struct tracing *tracing, int64_t at_ns) {
    const struct gpu_traced_span span = {
        .kind = GPU_SPAN_RUN, .begun_ns = tracing->outside_begun_ns, .ended_ns = at_ns};
    if (span.begun_ns && span.begun_ns < at_ns && gpu_trace_has_span_room(tracing->spans)) {
        gpu_trace_add_span(tracing->spans, &span);
    }
    tracing->outside_begun_ns = 0;
}

static void wait_begins(struct gpulua *g, const struct gpu_op *op, const char *what,
                        struct gpu_lua_began *began) {
    struct tracing *tracing = g->tracing;
    began->at_ns = gpu_lua_now_ns();
    if (!g->running) {
        outside_ends(tracing, began->at_ns);
    }
    began->op = 0;
    began->label = 0;
    if (!op) {
        began->label = gpu_trace_keep_text(tracing->spans, what);
        return;
    }
    struct gpu_op_info info;
    gpu_op_info(op, &info);
    began->label = gpu_trace_keep_text(tracing->spans, info.label);
    const struct traced_log *log = find_log(tracing, gpu_device_trace(gpu_op_device(op)));
    if (log) {
        began->device = (uint32_t)(log - tracing->logs) + 1;
        began->op = number_in(log, gpu_trace_find(log->trace, gpu_op_number(op)));
    }
}

void gpu_lua_trace_wait_begins(struct gpulua *g, const struct gpu_op *op, const char *what,
                               struct gpu_lua_began *began) {
    began->at_ns = 0;
    if (__builtin_expect(g->tracing != NULL, 0)) {
        wait_begins(g, op, what, began);
    }
}

void gpu_lua_trace_wait_ends(lua_State *L, struct gpulua *g, struct gpu_lua_began *began) {
    if (__builtin_expect(began->at_ns == 0 || !g->tracing, 1)) {
        return;
    }
    struct gpu_traced_span span = {.kind = GPU_SPAN_WAIT,
                                   .task = g->running ? g->running->number : 0,
                                   .begun_ns = began->at_ns,
                                   .ended_ns = gpu_lua_now_ns(),
                                   .op = began->op,
                                   .device = began->op ? began->device : 0,
                                   .label = began->label};
    began->at_ns = 0;
    if (!g->running) {
        outside_ends(g->tracing, span.begun_ns); /* where that was not told before */
        g->tracing->outside_begun_ns = span.ended_ns;
    }
    if (!gpu_trace_has_span_room(g->tracing->spans)) {
        return;
    }
    /* What was parked for is over when the task goes on, so that waits and runs share no time. */
    if (g->running && span.begun_ns < g->tracing->run_begun_ns) {
        span.ended_ns = g->tracing->run_begun_ns;
    }
    find_site(L, g->tracing->spans, &span);
    gpu_trace_add_span(g->tracing->spans, &span);
}

void gpu_lua_trace_blocked(const struct gpu_tasks *tasks, const char *what, int64_t begun_ns) {
    struct gpulua *g = (void *)((char *)(uintptr_t)tasks - offsetof(struct gpulua, tasks));
    if (g->tracing) {
        struct gpu_lua_began began = {.at_ns = begun_ns,
                                      .label = gpu_trace_keep_text(g->tracing->spans, what)};
        gpu_lua_trace_wait_ends(gpu_lua_innermost(g), g, &began);
    }
}

void gpu_lua_trace_run_begins(struct gpulua *g, struct gpu_lua_began *began) {
    began->at_ns = 0;
    if (__builtin_expect(g->tracing != NULL, 0)) {
        began->at_ns = gpu_lua_now_ns();
        g->tracing->run_begun_ns = began->at_ns;
        g->tracing->outside_begun_ns =
            0; /* the host's loop calls, and what it does else is its own */
    }
}

void gpu_lua_trace_run_ends(struct gpulua *g, const struct task *task,
                            struct gpu_lua_began *began) {
    struct tracing *tracing = g->tracing;
    if (__builtin_expect(!tracing, 1)) {
        return;
    }
    int64_t begun_ns = began->at_ns;
    if (!begun_ns) { /* tracing began in it */
        begun_ns = tracing->first_run_ns;
        tracing->first_run_ns = 0;
    }
    if (!begun_ns || !gpu_trace_has_span_room(tracing->spans)) {
        return;
    }
    const struct gpu_traced_span span = {
        .kind = GPU_SPAN_RUN,
        .task = task->number,
        .begun_ns = begun_ns,
        .ended_ns = task->waits.at_ns ? task->waits.at_ns : gpu_lua_now_ns(),
        .source = gpu_trace_keep_text(tracing->spans, task->source),
        .line = task->line,
    };
    gpu_trace_add_span(tracing->spans, &span);
}

/* ---- giving ---- */

/* Into the table on top: what was counted, and the most that memory of each label took. */
static void push_counts(lua_State *L, const struct gpu_trace *trace) {
    struct gpu_trace_counts counts = gpu_trace_counts(trace);
    const struct {
        const char *name;
        uint64_t value;
    } fields[] = {
        {"waits_issued", counts.waits_issued},     {"waits_elided", counts.waits_elided},
        {"bytes_live_max", counts.bytes_live_max}, {"compilations", counts.compilations},
        {"compile_ns", counts.compile_ns},         {"cache_hits", counts.cache_hits},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        lua_pushinteger(L, (lua_Integer)fields[i].value);
        lua_setfield(L, -2, fields[i].name);
    }
    lua_newtable(L);
    for (uint32_t text = 0; text < gpu_trace_text_count(trace); text++) {
        uint64_t bytes = gpu_trace_peak_bytes(trace, text);
        if (bytes > 0) {
            lua_pushinteger(L, (lua_Integer)bytes);
            lua_setfield(L, -2, gpu_trace_text(trace, text));
        }
    }
    lua_setfield(L, -2, "peaks");
}

static struct extent end_of(const struct traced_log *log) {
    return log->is_over ? log->end : extent_of(log->trace);
}

/* Pushes it. What tasks are at, the one that runs and those that wait, and ranges, is in it as if
 * it had just ended. */
static const struct spans *push_spans(lua_State *L, struct gpulua *g) {
    struct tracing *tracing = g->tracing;
    uint32_t capacity = g->task_count + 2 + tracing->range_count;
    struct spans *spans = lua_newuserdatauv(L, sizeof *spans + capacity * sizeof spans->open[0], 0);
    luaL_newmetatable(L, SPANS_NAME);
    lua_setmetatable(L, -2);
    spans->over_count = gpu_trace_span_count(tracing->spans);
    spans->open_count = 0;
    int64_t now_ns = gpu_lua_now_ns();
    if (!g->running && tracing->outside_begun_ns) {
        spans->open[spans->open_count++] = (struct gpu_traced_span){
            .kind = GPU_SPAN_RUN, .begun_ns = tracing->outside_begun_ns, .ended_ns = now_ns};
    }
    const struct task *task = g->live;
    for (; task && spans->open_count < capacity; task = task->live_next) {
        bool runs = task == g->running, waits = task->waits.at_ns != 0;
        if (!runs && !waits) {
            continue;
        }
        struct gpu_traced_span *span = &spans->open[spans->open_count++];
        *span = (struct gpu_traced_span){
            .kind = waits ? GPU_SPAN_WAIT : GPU_SPAN_RUN,
            .task = task->number,
            .begun_ns = waits ? task->waits.at_ns : tracing->run_begun_ns,
            .ended_ns = now_ns,
            .op = waits ? task->waits.op : 0,
            .device = waits && task->waits.op ? task->waits.device : 0,
            .label = waits ? task->waits.label : 0,
        };
        if (waits) {
            find_site(task->co, tracing->spans, span);
        } else {
            span->source = gpu_trace_keep_text(tracing->spans, task->source);
            span->line = task->line;
        }
    }
    const struct open_range *range = tracing->ranges;
    for (; range && spans->open_count < capacity; range = range->next) {
        struct gpu_traced_span *span = &spans->open[spans->open_count++];
        *span = range->span;
        span->ended_ns = now_ns;
    }
    return spans;
}

/* core.trace_info() -> { spans = count, with those of tasks that have not ended as they are now;
 * dropped = count; begun = ns, before all that is in the logs; { name =, ops =, dropped =, seat =
 * the state's own, of a shared device, waits_issued =, waits_elided =, bytes_live_max =,
 * compilations =, compile_ns =, cache_hits =, peaks = { [label or line] = bytes } }, ... }, the
 * devices in the order of their opening; and for trace_span those spans, whatever comes behind.
 * nil: nothing is traced. Blocks until the devices have told what they know */
int gpu_lua_trace_info(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    const struct tracing *tracing = g->tracing;
    if (!tracing) {
        luaL_pushfail(L);
        return 1;
    }
    for (struct device_handle *handle = g->devices; handle; handle = handle->next) {
        gpu_device_trace_flush(handle->device);
    }
    const struct spans *spans = push_spans(L, g);
    lua_createtable(L, (int)tracing->log_count, 2); /* of all the others */
    lua_pushinteger(L, (lua_Integer)(spans->over_count + spans->open_count));
    lua_setfield(L, -2, "spans");
    lua_pushinteger(L, tracing->begun_ns);
    lua_setfield(L, -2, "begun");
    lua_pushinteger(L, (lua_Integer)gpu_trace_dropped(tracing->spans));
    lua_setfield(L, -2, "dropped");
    for (uint32_t i = 0; i < tracing->log_count; i++) {
        const struct traced_log log = tracing->logs[i]; /* a finaliser may open a device */
        struct extent end = end_of(&log);
        lua_createtable(L, 0, 8);
        lua_pushstring(L, gpu_trace_device_name(log.trace));
        lua_setfield(L, -2, "name");
        lua_pushinteger(L, (lua_Integer)(end.ops - log.before.ops));
        lua_setfield(L, -2, "ops");
        lua_pushinteger(L, (lua_Integer)(end.dropped - log.before.dropped));
        lua_setfield(L, -2, "dropped");
        if (log.seat != 0) {
            lua_pushinteger(L, log.seat);
            lua_setfield(L, -2, "seat");
        }
        push_counts(L, log.trace);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    lua_insert(L, -2);
    return 2;
}

/* Arguments 1 and 2: a device's log, and an operation in it; both are copied, for where Lua makes
 * room a finaliser may open a device. Others' tasks are no tasks here, and their calls may have
 * begun before tracing did. */
static struct traced_log check_op(lua_State *L, struct gpu_traced_op *op) {
    const struct tracing *tracing = GPU_LUA(L)->tracing;
    int is_log, is_row;
    lua_Integer device = lua_tointegerx(L, 1, &is_log), number = lua_tointegerx(L, 2, &is_row);
    int32_t count = tracing ? (int32_t)tracing->log_count : 0;
    if (count == 0) {
        gpu_lua_fail_hint(L, GPULUA_STREAM_MISUSE,
                          "gpu.device{ trace = true }, GPULUA_TRACE=1 or gpulua --trace FILE.json",
                          "nothing is traced: no device was opened with trace = true");
    }
    if (!is_log || device < 1 || device > count) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "trace: the number of a log expected, 1 to %d, got %s", (int)count,
                     luaL_tolstring(L, 1, NULL));
    }
    const struct traced_log *log = &tracing->logs[device - 1];
    uint64_t ops = end_of(log).ops - log->before.ops;
    if (!is_row || number < 1 || (uint64_t)number > ops) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "trace: the number of an operation of log %d expected, 1 to %llu, got %s",
                     (int)device, (unsigned long long)ops, luaL_tolstring(L, 2, NULL));
    }
    gpu_trace_op(log->trace, log->before.ops + (uint64_t)number, op);
    if (op->seat != log->seat) {
        op->task = 0;
        op->asked_ns = op->asked_ns > tracing->begun_ns ? op->asked_ns : tracing->begun_ns;
    }
    return *log;
}

/* nil for 0 */
static void push_text(lua_State *L, const struct gpu_trace *trace, uint32_t number) {
    if (number) {
        lua_pushstring(L, gpu_trace_text(trace, number));
    } else {
        luaL_pushfail(L);
    }
}

/* core.trace_op(log, number) -> kind, label, kernel or nil, source or nil, line, task, stream, seq,
 * asked, given, begun, ended, over (ns; 0: not known), bytes, bytes held, "pending" | "succeeded" |
 * "failed", whether it uses memory of the host, which the script may want to read or to write when
 * it is over, the seat at a shared device whose it is, nil: it is the state's own, the stream's
 * label or nil, whether other kernels have the kernel's name, too, then of launches grid and block,
 * three each */
int gpu_lua_trace_op(lua_State *L) {
    static const char *const outcomes[] = {[GPU_TRACE_PENDING] = "pending",
                                           [GPU_TRACE_SUCCEEDED] = "succeeded",
                                           [GPU_TRACE_FAILED] = "failed"};
    struct gpu_traced_op op;
    const struct traced_log log = check_op(L, &op);
    const struct gpu_trace *trace = log.trace;
    lua_settop(L, 0);
    luaL_checkstack(L, 28, NULL);
    lua_pushstring(L, gpu_trace_kind_name(op.kind));
    lua_pushstring(L, gpu_trace_text(trace, op.label));
    bool is_shared;
    push_text(L, trace, gpu_trace_kernel(trace, op.kernel, &is_shared));
    push_text(L, trace, op.source);
    if (op.graph != 0 && op.outcome == GPU_TRACE_PENDING) { /* so far: what its nodes say */
        op.begun_ns = op.ended_ns = 0;
    }
    const int64_t numbers[] = {op.line,           (int64_t)op.task,      (int64_t)op.stream,
                               (int64_t)op.seq,   op.asked_ns,           op.given_ns,
                               op.begun_ns,       op.ended_ns,           op.over_ns,
                               (int64_t)op.bytes, (int64_t)op.held_bytes};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        lua_pushinteger(L, numbers[i]);
    }
    lua_pushstring(L, outcomes[op.outcome]);
    bool is_host = op.kind == GPU_TRACE_DOWNLOAD;
    for (uint32_t i = 0; i < op.use_count && !is_host; i++) {
        is_host = gpu_trace_use(trace, &op, i)->is_host;
    }
    lua_pushboolean(L, is_host);
    if (op.seat == log.seat) {
        luaL_pushfail(L);
    } else {
        lua_pushinteger(L, op.seat);
    }
    push_text(L, trace, op.stream_label);
    lua_pushboolean(L, is_shared);
    for (int i = 0; i < 3 && op.grid[0] != 0; i++) {
        lua_pushinteger(L, op.grid[i]);
    }
    for (int i = 0; i < 3 && op.grid[0] != 0; i++) {
        lua_pushinteger(L, op.block[i]);
    }
    return lua_gettop(L);
}

/* core.trace_waits(log, number) -> the numbers of the operations that it waited for; 0: of one that
 * is not in the log */
int gpu_lua_trace_waits(lua_State *L) {
    struct gpu_traced_op op;
    const struct traced_log log = check_op(L, &op);
    lua_settop(L, 0);
    luaL_checkstack(L, (int)op.wait_count, NULL);
    for (uint32_t i = 0; i < op.wait_count; i++) {
        lua_pushinteger(L, (lua_Integer)number_in(&log, gpu_trace_wait(log.trace, &op, i)->op));
    }
    return (int)op.wait_count;
}

struct told_node {
    int64_t begun_ns;
    uint64_t row;
};
static int compare_nodes(const void *a, const void *b) {
    const struct told_node *first = a, *second = b;
    return first->begun_ns != second->begun_ns ? (first->begun_ns > second->begun_ns) * 2 - 1
                                               : (first->row > second->row) * 2 - 1;
}

static void push_node(lua_State *L, const struct gpu_trace *trace,
                      const struct gpu_traced_node *node) {
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"node", (int64_t)node->node + 1},
                   {"begun", node->begun_ns},
                   {"ended", node->ended_ns},
                   {"bytes", (int64_t)node->bytes}};
    lua_createtable(L, 0, 10);
    lua_pushstring(L, gpu_trace_kind_name(node->kind));
    lua_setfield(L, -2, "kind");
    lua_pushstring(L, gpu_trace_text(trace, node->label));
    lua_setfield(L, -2, "label");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        lua_pushinteger(L, numbers[i].value);
        lua_setfield(L, -2, numbers[i].name);
    }
    bool is_shared;
    push_text(L, trace, gpu_trace_kernel(trace, node->kernel, &is_shared));
    lua_setfield(L, -2, "kernel");
    push_text(L, trace, node->source);
    lua_setfield(L, -2, "source");
    lua_pushinteger(L, node->line);
    lua_setfield(L, -2, "line");
    lua_pushboolean(L, is_shared);
    lua_setfield(L, -2, "is_shared");
    if (node->is_in_body) {
        lua_pushboolean(L, true);
        lua_setfield(L, -2, "in_body");
    }
}

/* core.trace_nodes(log, number) -> a list of the pieces of work of the graph that it launched, in
 * the order of their beginnings: { node =, counted from 1, kind =, label =, kernel = or nil,
 * is_shared =, source = or nil, line = (as of core.trace_op), begun =, ended = (ns), bytes = that
 * it moved, in_body = true: of what is in a body of that node, else nil }, empty for what is no
 * graph, and where nobody has told; and, with conditional nodes where not all nodes were told of,
 * or kept, for how long none of these ran (ns), which is what bodies took, else 0 */
int gpu_lua_trace_nodes(lua_State *L) {
    struct gpu_traced_op op;
    const struct gpu_trace *trace = check_op(L, &op).trace;
    uint32_t count = 0;
    for (uint64_t row = op.node_last; row != 0; row = gpu_trace_node(trace, row)->before) {
        count++;
    }
    struct told_node *nodes = lua_newuserdatauv(L, (count + (size_t)1) * sizeof *nodes, 0);
    count = 0;
    for (uint64_t row = op.node_last; row != 0; row = gpu_trace_node(trace, row)->before) {
        nodes[count++] =
            (struct told_node){.begun_ns = gpu_trace_node(trace, row)->begun_ns, .row = row};
    }
    qsort(nodes, count, sizeof *nodes, compare_nodes);
    lua_createtable(L, (int)count, 0);
    int64_t rest_ns = op.ended_ns - op.begun_ns, until_ns = op.begun_ns;
    bool has_rest = op.lacks_nodes && gpu_trace_has_bodies(trace, &op);
    for (uint32_t i = 0; i < count; i++) {
        const struct gpu_traced_node *node = gpu_trace_node(trace, nodes[i].row);
        int64_t from_ns = node->begun_ns > until_ns ? node->begun_ns : until_ns;
        rest_ns -= node->ended_ns > from_ns ? node->ended_ns - from_ns : 0;
        until_ns = node->ended_ns > until_ns ? node->ended_ns : until_ns;
        push_node(L, trace, node);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    lua_pushinteger(L, has_rest && count > 0 && rest_ns > 0 ? rest_ns : 0);
    return 2;
}

/* core.trace_uses(log, number) -> a list with, for each use: the block's number, its label or "",
 * begin and end in bytes, whether it is read, whether it is written; of a module's variables begin
 * and end are 0
 */
int gpu_lua_trace_uses(lua_State *L) {
    struct gpu_traced_op op;
    const struct gpu_trace *trace = check_op(L, &op).trace;
    lua_createtable(L, (int)op.use_count * 6, 0); /* a graph may have more than a stack takes */
    for (uint32_t i = 0; i < op.use_count; i++) {
        const struct gpu_traced_use *use = gpu_trace_use(trace, &op, i);
        lua_pushinteger(L, (lua_Integer)use->block_number);
        lua_pushstring(L, gpu_trace_text(trace, use->label));
        lua_pushinteger(L, use->is_module ? 0 : (lua_Integer)use->byte_begin);
        lua_pushinteger(L, use->is_module ? 0 : (lua_Integer)use->byte_end);
        lua_pushboolean(L, use->access & GPU_READ);
        lua_pushboolean(L, use->access & GPU_WRITE);
        for (int k = 6; k > 0; k--) {
            lua_rawseti(L, -k - 1, (lua_Integer)i * 6 + k);
        }
    }
    return 1;
}

/* What a pointer argument points to: of which buffer, from which of its bytes on. */
static void push_pointer(lua_State *L, const struct gpu_trace *trace,
                         const struct gpu_traced_op *op, uint64_t address) {
    for (uint32_t i = 0; i < op->use_count; i++) {
        const struct gpu_traced_use *use = gpu_trace_use(trace, op, i);
        uint64_t offset = address - use->address;
        if (use->is_module || offset >= use->byte_end - use->byte_begin) {
            continue;
        }
        offset += use->byte_begin;
        if (use->label) {
            lua_pushstring(L, gpu_trace_text(trace, use->label));
        } else {
            lua_pushfstring(L, "buffer %I", (LUAI_UACINT)use->block_number);
        }
        if (offset > 0) {
            lua_pushfstring(L, " + %I B", (LUAI_UACINT)offset);
            lua_concat(L, 2);
        }
        return;
    }
    if (address == 0) {
        lua_pushnil(L);
    } else {
        lua_pushliteral(L, "?");
    }
}

/* core.trace_arguments(log, number) -> for each parameter of the kernel that it launched: its name
 * or "", its type ("f32", "in f32*"), whether it is a pointer, and the value: of pointers the
 * buffer's name, or nil; "?" where it cannot be shown. Nothing where they are not known. */
int gpu_lua_trace_arguments(lua_State *L) {
    struct gpu_traced_op op;
    const struct gpu_trace *trace = check_op(L, &op).trace;
    lua_settop(L, 0);
    const struct gpu_param *param;
    for (uint32_t i = 0; (param = gpu_trace_param(trace, &op, i)); i++) {
        const uint8_t *bytes = gpu_trace_arg(trace, &op, param);
        bool is_pointer = param->kind == GPU_PARAM_POINTER;
        luaL_checkstack(L, 8, NULL);
        lua_pushstring(L, param->name);
        lua_pushstring(L, param->text);
        lua_pushboolean(L, is_pointer);
        if (is_pointer) {
            uint64_t address;
            memcpy(&address, bytes, sizeof address);
            push_pointer(L, trace, &op, address);
        } else if (param->kind == GPU_PARAM_SCALAR && param->type < GPU_TYPE_COUNT &&
                   param->byte_count == gpu_type_bytes(param->type)) {
            gpu_lua_push_element(L, param->type, bytes);
        } else {
            lua_pushliteral(L, "?");
        }
    }
    return lua_gettop(L);
}

/* core.trace_span(spans, number) -> "run" | "wait" | "range", label, source or nil, line, task,
 * begun, ended (ns), the log and number of the operation that was waited for, or 0 */
int gpu_lua_trace_span(lua_State *L) {
    static const char *const kinds[] = {
        [GPU_SPAN_RUN] = "run", [GPU_SPAN_WAIT] = "wait", [GPU_SPAN_RANGE] = "range"};
    const struct tracing *tracing = GPU_LUA(L)->tracing;
    const struct spans *spans = luaL_checkudata(L, 1, SPANS_NAME);
    lua_Integer number = luaL_checkinteger(L, 2);
    luaL_argcheck(
        L, tracing && number >= 1 && (uint64_t)number <= spans->over_count + spans->open_count, 2,
        "no such row");
    const struct gpu_traced_span *span =
        (uint64_t)number <= spans->over_count
            ? gpu_trace_span(tracing->spans, (uint64_t)number)
            : &spans->open[(uint64_t)number - spans->over_count - 1];
    lua_pushstring(L, kinds[span->kind]);
    lua_pushstring(L, gpu_trace_text(tracing->spans, span->label));
    if (span->source) {
        lua_pushstring(L, gpu_trace_text(tracing->spans, span->source));
    } else {
        luaL_pushfail(L);
    }
    lua_pushinteger(L, span->line);
    lua_pushinteger(L, (lua_Integer)span->task);
    lua_pushinteger(L, span->begun_ns);
    lua_pushinteger(L, span->ended_ns);
    lua_pushinteger(L, span->device);
    lua_pushinteger(L, (lua_Integer)span->op);
    return 9;
}

static void end_range(struct open_range *range) {
    struct tracing *tracing = range->tracing;
    if (!tracing) {
        return;
    }
    range->tracing = NULL;
    *range->link = range->next;
    if (range->next) {
        range->next->link = range->link;
    }
    tracing->range_count--;
    if (gpu_trace_has_span_room(tracing->spans)) {
        range->span.ended_ns = gpu_lua_now_ns();
        gpu_trace_add_span(tracing->spans, &range->span);
    }
}

static int range_gc(lua_State *L) {
    end_range(lua_touserdata(L, 1));
    return 0;
}

/* core.trace_range(name) -> a range that begins now, or nil if nothing is traced. */
int gpu_lua_trace_range(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct tracing *tracing = g->tracing;
    size_t byte_count;
    const char *name = luaL_checklstring(L, 1, &byte_count);
    char text[GPU_RANGE_TEXT_BYTES];
    if (!tracing) {
        luaL_pushfail(L);
        return 1;
    }
    (void)gpu_range_text(text, sizeof text, name, byte_count);
    struct open_range *range = lua_newuserdatauv(L, sizeof *range, 0);
    range->tracing = NULL;
    if (luaL_newmetatable(L, OPEN_RANGE)) {
        lua_pushcfunction(L, range_gc);
        lua_setfield(L, -2, "__gc");
    }
    lua_setmetatable(L, -2);
    range->span = (struct gpu_traced_span){.kind = GPU_SPAN_RANGE,
                                           .task = g->running ? g->running->number : 0,
                                           .begun_ns = gpu_lua_now_ns(),
                                           .label = gpu_trace_keep_text(tracing->spans, text)};
    find_site(L, tracing->spans, &range->span);
    range->tracing = tracing;
    range->next = tracing->ranges;
    range->link = &tracing->ranges;
    if (range->next) {
        range->next->link = &range->next;
    }
    tracing->ranges = range;
    tracing->range_count++;
    return 1;
}

/* core.trace_range_end(range): once; again it does nothing */
int gpu_lua_trace_range_end(lua_State *L) {
    end_range(luaL_checkudata(L, 1, OPEN_RANGE));
    return 0;
}

/* core.trace_settle(device, seconds): blocks until nothing is in flight on it, for so long at most,
 * which the end of the program does not wait once more. */
int gpu_lua_trace_settle(lua_State *L) {
    struct device_handle *handle;
    struct gpu_device *device = gpu_lua_check_device(L, GPU_LUA(L), 1, &handle);
    struct gpu_error error = {0};
    int64_t timeout_ns = (int64_t)(luaL_checknumber(L, 2) * 1e9);
    if (gpu_device_wait_idle(device, timeout_ns, &error)) {
        handle->waited_ms += error.code == GPULUA_TIMEOUT ? timeout_ns / 1000000 : 0;
        gpu_error_finish(&error);
    }
    return 0;
}
