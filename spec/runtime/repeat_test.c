/* Launches of one graph behind each other: random work on two devices, of which one has its waits
 * found anew each time. Whatever is done, each operation waits for the same on both. */
#include <stdlib.h>

#include "backend/tap.h"
#include "runtime/graph/state.h"
#include "runtime/work.h"

enum { STREAMS = 3, BLOCKS = 6, GRAPHS = 4, BYTES = 256, STEPS = 120 };
enum { SEEDS = TAP_IS_SANITIZED ? 20 : 60 };

enum way {
    AS_IT_IS,
    ANEW,   /* nothing is taken for a repetition */
    UNPAID, /* a twin: what is owed to the history is lost */
    UNSEEN, /* a twin: who looks does not enter the device */
};

struct side {
    enum way way;
    struct gpu_device *device;
    struct gpu_module *module;
    struct gpu_kernel *gate;
    struct gpu_stream *streams[STREAMS];
    struct gpu_block *blocks[BLOCKS];
    struct gpu_graph *graphs[GRAPHS];
    uint64_t random;
    int graph, stream; /* that was launched last */
    uint64_t repeats, owed;
    uint64_t seen; /* of all that each operation waits for, and that is noted of it */
};

static struct tap tap;
static struct gpu_error error;
static _Atomic int is_open; /* the gates */

static void need(gpulua_status status, const char *what) {
    if (status) {
        printf("# %s: %s\n", what, error.message);
        tap_check(&tap, false, what);
        exit(tap_finish(&tap));
    }
}

static uint32_t pick(struct side *side, uint32_t count) {
    side->random = side->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(side->random >> 33) % count;
}

static void see(struct side *side, uint64_t value) {
    side->seen = (side->seen ^ value) * UINT64_C(1099511628211);
}

/* ---- the work ---- */

static void make_gate(struct side *side) {
    static const char text[] = "extern \"C\" __global__ void gate(unsigned long long at) {\n"
                               "  while (*(volatile int *)at == 0) { } }\n";
    struct gpu_module_info source = {
        .kind = GPU_MODULE_SOURCE, .name = "gate", .text = text, .text_bytes = sizeof text - 1};
    struct gpu_op *op = NULL;
    need(gpu_module_create(side->device, &source, &side->module, &op, &error), "a module");
    need(gpu_op_wait(op, -1, &error), "a module's end");
    need(gpu_op_status(op), "a module");
    gpu_op_release(op);
    need(gpu_module_kernel(side->module, "gate", NULL, &side->gate, &error), "a kernel");
}

/* Nothing behind it is over before the gates are opened. */
static void close_gate(struct side *side, int stream) {
    struct gpu_arg arg = {.scalar.u = (uint64_t)(uintptr_t)&is_open};
    struct gpu_launch launch = {.submit = {.stream = side->streams[stream]},
                                .kernel = side->gate,
                                .grid = {1, 1, 1},
                                .block = {1, 1, 1},
                                .args = &arg,
                                .arg_count = 1};
    need(gpu_work_launch(&launch, NULL, &error), "a gate");
}

static struct gpu_block *new_block(const struct side *side) {
    struct gpu_block_info info = {.byte_count = BYTES};
    struct gpu_block *block = NULL;
    need(gpu_block_create(side->device, &info, &block, &error), "a block");
    return block;
}

static void put_block(struct side *side, uint32_t at) {
    const int32_t zero = 0;
    const struct gpu_submit submit = {.stream = side->streams[0]};
    struct gpu_ref ref = {side->blocks[at] = new_block(side), 0, BYTES, GPU_TYPE_I32};
    need(gpu_work_fill(&submit, &ref, &zero, NULL, &error), "a fill");
}

/* All of a block, or a part of it. */
static struct gpu_ref a_ref(struct side *side, uint32_t byte_count) {
    struct gpu_block *block;
    do {
        block = side->blocks[pick(side, BLOCKS)];
    } while (block->is_freed);
    uint32_t place = byte_count < BYTES ? pick(side, BYTES / byte_count) : 0;
    return (struct gpu_ref){block, (uint64_t)place * byte_count, byte_count, GPU_TYPE_I32};
}

static gpulua_status some_work(struct side *side, const struct gpu_submit *submit) {
    static const uint32_t sizes[] = {BYTES, BYTES, BYTES / 2, BYTES / 8};
    uint32_t byte_count = sizes[pick(side, 4)];
    const int32_t value = (int32_t)pick(side, 1000);
    struct gpu_ref to = a_ref(side, byte_count), from = a_ref(side, byte_count);
    if (pick(side, 2) == 0 || to.block == from.block) {
        return gpu_work_fill(submit, &to, &value, NULL, &error);
    }
    return gpu_work_copy(submit, &to, &from, NULL, &error);
}

static struct gpu_graph *new_graph(struct side *side) {
    const struct gpu_submit submit = {.stream = side->streams[0]};
    struct gpu_submit captured = submit;
    struct gpu_graph *graph = NULL;
    need(gpu_capture_create(&submit, NULL, &captured.capture, &error), "a capture");
    for (uint32_t left = 1 + pick(side, 4); left > 0; left--) {
        need(some_work(side, &captured), "a node");
    }
    need(gpu_capture_finish(captured.capture, &graph, &error), "a graph");
    gpu_capture_release(captured.capture);
    return graph;
}

static void launch(struct side *side) {
    if (pick(side, 8) == 0) {
        side->graph = (int)pick(side, GRAPHS);
        side->stream = (int)pick(side, STREAMS);
    }
    const struct gpu_submit submit = {.stream = side->streams[side->stream]};
    struct gpu_graph *graph = side->graphs[side->graph];
    side->repeats += gpu_repeat_is(submit.stream, graph->uses.list);
    see(side, gpu_graph_launch(graph, &submit, NULL, &error));
    side->owed += side->device->repeat.owed_count > 0;
}

/* One that has gone takes its graphs' launches with it, until they are made anew. At most one has.
 */
static void end_block(struct side *side) {
    uint32_t at = pick(side, BLOCKS), freed = 0;
    while (freed < BLOCKS && !side->blocks[freed]->is_freed) {
        freed++;
    }
    gpu_block_free(side->blocks[at]);
    if (freed < BLOCKS && freed != at) {
        gpu_block_release(side->blocks[freed]);
        put_block(side, freed);
    }
}

static void replace_graph(struct side *side) {
    uint32_t at = pick(side, GRAPHS);
    gpu_graph_release(side->graphs[at]);
    side->graphs[at] = new_graph(side);
}

static void ask(struct side *side) {
    struct gpu_ref ref = a_ref(side, BYTES / 4);
    bool for_write = pick(side, 2) == 0;
    see(side, gpu_ref_is_idle(&ref, for_write));
    struct gpu_op *op = gpu_ref_pending(&ref, for_write);
    see(side, op ? op->seq : 0);
    gpu_op_release(op);
}

static void enter(const struct side *side) {
    GPU_ENTER(side->device);
}

static void work_behind(struct side *side) {
    const struct gpu_submit submit = {.stream = side->streams[pick(side, STREAMS)]};
    enter(side);
    struct gpu_op *other = side->streams[pick(side, STREAMS)]->tail;
    need(gpu_work_mark(&submit, other, NULL, &error), "a mark");
}

/* The newest entries of the flight ring, and how many there have been. */
static void see_flight(struct side *side) {
    const struct gpu_flight *flight = &side->device->flight;
    see(side, flight->op_count);
    for (uint64_t i = 1; i <= 8 && i <= flight->op_count; i++) {
        const struct gpu_flight_op *op = &flight->ops[(flight->op_count - i) % GPU_FLIGHT_OPS_MAX];
        see(side, op->number);
        see(side, op->point.slot);
        see(side, op->point.seq);
        see(side, op->opcode);
        see(side, op->use_count);
        see(side, op->block_last);
        see(side, op->stream_number);
        if (op->opcode == WIRE_OP_GRAPH_LAUNCH) {
            see(side, op->graph.number);
            see(side, op->graph.version);
        }
    }
}

/* What the newest operation of each stream waits for, and what the stream is behind. */
static void see_waits(struct side *side) {
    if (side->way != UNSEEN) {
        enter(side);
    }
    see(side, side->device->op_number_next);
    see(side, side->device->stats.replays);
    see(side, side->device->stats.ops_in_flight + side->device->stats.ops_completed +
                  side->device->stats.ops_failed);
    for (int i = 0; i < GRAPHS; i++) {
        see(side, side->graphs[i]->replays);
        see(side, side->graphs[i]->made.used_at);
    }
    see_flight(side);
    for (int s = 0; s < STREAMS; s++) {
        const struct gpu_stream *stream = side->streams[s];
        const struct gpu_op *op = stream->tail;
        see(side, op ? op->seq : 0);
        uint64_t sum = 0; /* in whatever order */
        for (uint32_t i = 0; op && i < op->dep_count; i++) {
            sum += (op->deps[i].slot + 1) * UINT64_C(1000003) + op->deps[i].seq * UINT64_C(7919);
        }
        see(side, sum);
        for (int k = 0; k < STREAMS; k++) {
            see(side, stream->waited[side->streams[k]->slot]);
        }
    }
}

static void step(struct side *side) {
    if (side->way == ANEW) {
        gpu_repeat_forget(side->device);
    } else if (side->way == UNPAID) {
        enter(side);
        side->device->repeat.is_owed = false;
    }
    const struct gpu_submit submit = {.stream = side->streams[pick(side, STREAMS)]};
    switch (pick(side, 30)) {
    case 0:
    case 1:
    case 2:
        see(side, some_work(side, &submit));
        break;
    case 3:
        ask(side);
        break;
    case 4:
        work_behind(side);
        break;
    case 5:
        end_block(side);
        break;
    case 6:
    case 7:
        replace_graph(side);
        break;
    default:
        launch(side);
    }
    if (pick(side, 4) == 0) { /* until then what is owed grows */
        see_waits(side);
    }
}

/* ---- the sides ---- */

static void open_side(struct side *side, enum way way) {
    struct gpu_device_info info = {.name = "cpu", .isolation = GPULUA_ISOLATE_NONE};
    *side = (struct side){.way = way};
    need(gpu_device_open(&info, &side->device, &error), "the CPU device opens");
    make_gate(side);
    for (int i = 0; i < STREAMS; i++) {
        need(gpu_stream_create(side->device, &(struct gpu_stream_info){0}, &side->streams[i],
                               &error),
             "a stream");
    }
}

static void begin(struct side *side, uint64_t seed) {
    side->random = seed;
    side->seen = 0;
    side->graph = side->stream = 0;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        put_block(side, i);
    }
    for (int i = 0; i < GRAPHS; i++) {
        side->graphs[i] = new_graph(side);
    }
    need(gpu_device_wait_idle(side->device, -1, &error), "all is over");
    for (int i = 0; i < STREAMS; i++) {
        close_gate(side, i);
    }
}

/* And what all of it left in memory. */
static void end(struct side *side) {
    need(gpu_device_wait_idle(side->device, -1, &error), "all is over");
    struct gpu_staging staging;
    need(gpu_staging_acquire(side->device, BYTES, &staging, &error), "staging memory");
    for (int i = 0; i < BLOCKS; i++) {
        if (side->blocks[i]->is_freed) {
            gpu_block_release(side->blocks[i]);
            continue;
        }
        const struct gpu_submit submit = {.stream = side->streams[0]};
        const struct gpu_ref ref = {side->blocks[i], 0, BYTES, GPU_TYPE_I32};
        struct gpu_op *op = NULL;
        need(gpu_work_download(&submit, &ref, 0, &staging, BYTES, &op, &error), "a download");
        need(gpu_op_wait(op, -1, &error), "a download's end");
        const int32_t *values = (const int32_t *)staging.bytes;
        for (int k = 0; k < BYTES / 4; k++) {
            see(side, (uint64_t)values[k]);
        }
        gpu_op_release(op);
        gpu_block_release(side->blocks[i]);
    }
    gpu_staging_release(side->device, &staging);
    for (int i = 0; i < GRAPHS; i++) {
        gpu_graph_release(side->graphs[i]);
    }
}

static void close_side(struct side *side) {
    for (int i = 0; i < STREAMS; i++) {
        gpu_stream_release(side->streams[i]);
    }
    gpu_kernel_release(side->gate);
    gpu_module_release(side->module);
    gpu_device_close(side->device, 1000);
    gpu_device_release(side->device);
}

/* How many seeds are the same where waits are found anew, step by step. */
static int compare(enum way way, uint64_t *repeats, uint64_t *owed) {
    int same = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct side a, b;
        open_side(&a, way);
        open_side(&b, ANEW);
        is_open = 0;
        begin(&a, seed);
        begin(&b, seed);
        int at = 0;
        for (; at < STEPS && a.seen == b.seen; at++) {
            step(&a);
            step(&b);
        }
        bool is_same = a.seen == b.seen;
        is_open = 1;
        end(&a);
        end(&b);
        is_same = is_same && a.seen == b.seen;
        same += is_same;
        *repeats += a.repeats;
        *owed += a.owed;
        if (!is_same && way == AS_IT_IS) {
            printf("# seed %d, step %d of %d\n", (int)seed, at, STEPS);
        }
        close_side(&a);
        close_side(&b);
    }
    return same;
}

/* Whoever looks at a history sees the newest launch. */
static void check_looks(struct gpu_graph *graph, const struct gpu_submit *submit,
                        const struct gpu_ref *ref) {
    const struct gpu_repeat *repeat = &submit->stream->device->repeat;
    for (int look = 0; look < 3; look++) {
        need(gpu_graph_launch(graph, submit, NULL, &error), "a launch");
        bool is_owed = repeat->is_owed || repeat->owed_count > 0;
        if (look == 0) {
            (void)gpu_ref_is_idle(ref, true);
        } else if (look == 1) {
            gpu_op_release(gpu_ref_pending(ref, true));
        } else {
            (void)gpu_ref_failure(ref, NULL);
        }
        tap_check(&tap,
                  is_owed && !repeat->is_owed &&
                      gpu_history_has_write(&ref->block->history, repeat->point),
                  "who looks at a history has it paid");
    }
    const struct gpu_use use = {ref->block, 0, 4, GPU_READ};
    struct gpu_waits waits;
    tap_check(&tap,
              gpu_repeat_is(submit->stream, repeat->uses) &&
                  gpu_hazards_find(submit->stream, &use, 1, &waits) &&
                  !gpu_repeat_is(submit->stream, repeat->uses),
              "who makes room in one has the next launch's waits found anew");
}

/* Launches that are over before the next one is asked for: what they wait for is known all the
 * same. */
static void check_awaited(struct side *side) {
    struct gpu_block *block = side->blocks[0] = new_block(side), *other = new_block(side);
    const struct gpu_submit submit = {.stream = side->streams[0]};
    const struct gpu_ref left = {block, 0, BYTES / 2, GPU_TYPE_I32};
    const struct gpu_ref right = {block, BYTES / 2, BYTES / 2, GPU_TYPE_I32};
    const struct gpu_ref apart = {other, 0, BYTES / 2, GPU_TYPE_I32};
    for (int reads = 0; reads < 2; reads++) {
        struct gpu_submit captured = submit;
        struct gpu_graph *graph = NULL;
        need(gpu_capture_create(&submit, NULL, &captured.capture, &error), "a capture");
        need(gpu_work_copy(&captured, &right, reads ? &left : &apart, NULL, &error), "a node");
        need(gpu_work_copy(&captured, &left, &apart, NULL, &error), "a node");
        need(gpu_capture_finish(captured.capture, &graph, &error), "a graph");
        gpu_capture_release(captured.capture);
        for (int i = 0; i < 3; i++) {
            need(gpu_graph_launch(graph, &submit, NULL, &error), "a launch");
            need(gpu_device_wait_idle(side->device, -1, &error), "all is over");
        }
        const struct gpu_repeat *repeat = &side->device->repeat;
        tap_check(&tap, repeat->is_known && repeat->is_owed && repeat->wait_count == reads,
                  reads ? "one that reads what the one before wrote depends on it"
                        : "one that does not depends on nothing");
        if (reads) {
            check_looks(graph, &submit, &left);
        }
        gpu_graph_release(graph);
    }
    gpu_block_release(block);
    gpu_block_release(other);
}

/* ---- launches of which all but the number is owed ---- */

static const struct wire_link_ops *link_ops;
static uint64_t failing; /* of whose failure is heard while the next launch is published */

static gpulua_status publish_and_hear(struct wire_link *link, const struct wire_record *record) {
    if (record->seq == failing + 1) {
        const struct wire_reply reply = {.length_bytes = sizeof reply,
                                         .kind = WIRE_REPLY_FAILURE,
                                         .status = GPULUA_KERNEL_FAILED,
                                         .stream = record->stream,
                                         .seq = failing};
        gpu_device_on_reply(link->user, &reply);
    }
    return link_ops->publish(link, record);
}

static bool refuses; /* the next record: there is no room */
static int published;

static gpulua_status publish_or_refuse(struct wire_link *link, const struct wire_record *record) {
    bool is_refused = refuses;
    refuses = false;
    published += !is_refused;
    return is_refused ? GPULUA_TIMEOUT : link_ops->publish(link, record);
}

static struct gpu_graph *fill_graph(struct side *side) {
    const struct gpu_submit submit = {.stream = side->streams[0]};
    const struct gpu_ref ref = {side->blocks[0], 0, BYTES, GPU_TYPE_I32};
    const int32_t one = 1;
    struct gpu_submit captured = submit;
    struct gpu_graph *graph = NULL;
    need(gpu_capture_create(&submit, NULL, &captured.capture, &error), "a capture");
    need(gpu_work_fill(&captured, &ref, &one, NULL, &error), "a node");
    need(gpu_capture_finish(captured.capture, &graph, &error), "a graph");
    gpu_capture_release(captured.capture);
    return graph;
}

static void launch_times(struct gpu_graph *graph, const struct gpu_submit *submit, int count) {
    for (int i = 0; i < count; i++) {
        need(gpu_graph_launch(graph, submit, NULL, &error), "a launch");
    }
}

static void check_heard(struct side *side, struct gpu_graph *graph) {
    struct gpu_device *device = side->device;
    const struct gpu_submit submit = {.stream = side->streams[0]};
    struct wire_link_ops hearing = *(link_ops = device->link->ops);
    hearing.publish = publish_and_hear;
    launch_times(graph, &submit, 6);
    const struct gpu_repeat *repeat = &device->repeat;
    tap_check(&tap, repeat->owed_count > 1, "launches are owed");
    failing = repeat->point.seq;
    device->link->ops = &hearing;
    launch_times(graph, &submit, 1);
    device->link->ops = link_ops;
    uint64_t last = repeat->point.seq;
    enter(side);
    const struct gpu_op *op =
        gpu_op_find_pending(device, (struct gpu_point){repeat->point.slot, failing});
    tap_check(&tap, op && op->failure && op->failure->error.code == GPULUA_KERNEL_FAILED,
              "the failure of one that is heard of while the next one is published is its own");
    tap_check(&tap,
              last == failing + 1 && device->slot_seq[repeat->point.slot] == last &&
                  submit.stream->tail->seq == last,
              "and that next one is noted, too");
}

/* The ring is full for a while: what is owed is noted, and the launch goes the long way. */
static void check_refused(struct side *side, struct gpu_graph *graph) {
    struct gpu_device *device = side->device;
    const struct gpu_submit submit = {.stream = side->streams[0]};
    struct wire_link_ops refusing = *(link_ops = device->link->ops);
    refusing.publish = publish_or_refuse;
    launch_times(graph, &submit, 6);
    const struct gpu_repeat *repeat = &device->repeat;
    bool is_owed = repeat->owed_count > 1;
    uint64_t last = repeat->point.seq, replays = device->stats.replays + repeat->owed_count;
    device->link->ops = &refusing;
    refuses = true;
    launch_times(graph, &submit, 1);
    device->link->ops = link_ops;
    enter(side);
    tap_check(&tap,
              is_owed && published == 1 && device->slot_seq[repeat->point.slot] == last + 1 &&
                  submit.stream->tail->seq == last + 1 && device->stats.replays == replays + 1,
              "one that finds no room is given again, once");
}

static void check_polls(struct side *side, struct gpu_graph *graph) {
    const struct gpu_submit submit = {.stream = side->streams[0]};
    const struct gpu_device *device = side->device;
    uint32_t unlooked = 0, owed = 0;
    for (int i = 0; i < 1000; i++) {
        launch_times(graph, &submit, 1);
        uint32_t now = device->submits_since_poll + device->repeat.owed_count;
        unlooked = now > unlooked ? now : unlooked;
        owed += device->repeat.owed_count > 0;
    }
    tap_check(&tap, owed > 500 && unlooked < 2 * GPU_POLL_EVERY_SUBMITS,
              "what has ended is looked for between launches, too");
}

/* Another device's stream may have the same number. */
static void check_foreign_stream(struct gpu_graph *graph, const struct side *side,
                                 const struct side *other) {
    const struct gpu_submit submit = {.stream = side->streams[0]};
    const struct gpu_submit foreign = {.stream = other->streams[0]};
    launch_times(graph, &submit, 6);
    tap_check(&tap,
              gpu_stream_number(submit.stream) == gpu_stream_number(foreign.stream) &&
                  side->device->repeat.owed_count > 0 &&
                  gpu_graph_launch(graph, &foreign, NULL, &error) == GPULUA_INVALID_ARGUMENT,
              "a launch on another device's stream is refused, whatever was launched before");
}

struct polled {
    struct gpu_waiter waiter;
    struct gpu_graph *graph;
    const struct gpu_submit *submit;
    uint32_t owed; /* within the poll */
};

static void launch_in_poll(struct gpu_waiter *waiter, struct gpu_op *op) {
    struct polled *polled = (struct polled *)waiter; /* its first member */
    launch_times(polled->graph, polled->submit, 6);
    polled->owed = op->device->repeat.owed_count;
}

/* A poll goes on behind what it calls, and looks at what has been noted. */
static void check_within_poll(struct side *side, struct gpu_graph *graph) {
    const struct gpu_submit submit = {.stream = side->streams[0]};
    const struct gpu_submit beside = {.stream = side->streams[1]};
    struct polled polled = {
        .waiter.fire = launch_in_poll, .graph = graph, .submit = &submit, .owed = 1};
    struct gpu_op *mark = NULL;
    need(gpu_work_mark(&beside, NULL, &mark, &error), "a mark");
    gpu_op_watch(mark, &polled.waiter);
    need(gpu_op_wait(mark, -1, &error), "its end");
    gpu_op_release(mark);
    launch_times(graph, &submit, 6);
    tap_check(&tap, polled.owed == 0 && side->device->repeat.owed_count > 0,
              "within a poll no launch is owed");
}

static void check_owed(struct side *side) {
    struct side other;
    open_side(&other, AS_IT_IS);
    put_block(side, 0);
    struct gpu_graph *graph = fill_graph(side);
    is_open = 0;
    close_gate(side, 0);
    check_foreign_stream(graph, side, &other);
    check_polls(side, graph);
    check_within_poll(side, graph);
    check_refused(side, graph);
    check_heard(side, graph);
    is_open = 1;
    need(gpu_device_wait_idle(side->device, -1, &error), "all is over");
    gpu_graph_release(graph);
    gpu_block_release(side->blocks[0]);
    close_side(&other);
}

int main(void) {
    uint64_t repeats = 0, owed = 0, of_twins = 0;
    tap_check(&tap, compare(AS_IT_IS, &repeats, &owed) == SEEDS,
              "repeated launches wait for what they would wait for if it were found anew");
    printf("# %d and %d of %d\n", (int)repeats, (int)owed, SEEDS * STEPS);
    tap_check(&tap, repeats > SEEDS * STEPS / 8, "and many are repeated");
    tap_check(&tap, owed > SEEDS * STEPS / 16, "and of many all but the number is owed");
    tap_check(&tap, compare(UNPAID, &of_twins, &of_twins) < SEEDS / 4,
              "twin: a history that lacks what is owed has others wait for too little");
    tap_check(&tap, compare(UNSEEN, &of_twins, &of_twins) < SEEDS / 4,
              "twin: who does not enter the device does not see launches that are owed");
    struct side side;
    open_side(&side, AS_IT_IS);
    check_awaited(&side);
    check_owed(&side);
    close_side(&side);
    return tap_finish(&tap);
}
