/* Graphs: launched as one operation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/flight.h"
#include "runtime/graph/state.h"
#include "runtime/hooks.h"
#include "runtime/report.h"

/* ---- making ---- */

/* Temporaries but for that they have memory of their own. */
static bool is_own_lone(const struct graph_body *body, const struct gpu_block *block) {
    return block->is_lone && gpu_graph_has_made(body, block);
}

/* Is what was there before a launch read by it? */
static bool carries(const struct graph_track *track) {
    bool reads = false;
    for (uint32_t i = 0; i < track->use_count && !reads; i++) {
        reads = gpu_use_reads(track->uses[i].access);
    }
    return reads;
}

/* What may be written or not, of lone blocks: comes first. */
static uint32_t collect_lone(const struct graph_body *body, struct gpu_use *made) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < body->track_count; i++) {
        const struct graph_track *track = &body->tracks[i];
        bool is_lone = is_own_lone(body, track->block);
        if (is_lone && carries(track)) {
            gpu_temporary_expose(track->block);
            is_lone = false;
        }
        for (uint32_t k = 0; is_lone && k < track->use_count; k++) {
            if (track->uses[k].access & GPU_USE_MAYBE) {
                made[count] = track->uses[k];
                made[count++].access = GPU_WRITE;
            }
        }
    }
    return count;
}

bool gpu_graph_collect_uses(const struct graph_body *body, struct gpu_pool *pool,
                            struct graph_uses *uses) {
    uint32_t count = 1 + body->made_count;
    for (uint32_t i = 0; i < body->track_count; i++) {
        count += body->tracks[i].use_count;
    }
    for (uint32_t i = 0; i < body->node_count; i++) {
        count += gpu_control_unnamed(body, body->nodes[i].control, NULL);
    }
    struct gpu_use *made = malloc(count * sizeof *made);
    if (!made) {
        return false;
    }
    uint32_t lone_count = collect_lone(body, made);
    count = lone_count;
    for (uint32_t i = 0; i < body->track_count; i++) {
        const struct graph_track *track = &body->tracks[i];
        bool is_lone = is_own_lone(body, track->block);
        for (uint32_t k = 0; !track->block->is_temporary && k < track->use_count; k++) {
            if (!is_lone || !(track->uses[k].access & GPU_USE_MAYBE)) {
                made[count] = track->uses[k];
                made[count++].access &= GPU_READ_WRITE;
            }
        }
    }
    for (uint32_t i = 0; i < body->node_count; i++) {
        count += gpu_control_unnamed(body, body->nodes[i].control, made + count);
    }
    const struct gpu_block *home = NULL; /* as a rule they all have the same */
    for (uint32_t i = 0; i < body->made_count; i++) {
        const struct gpu_block *block = body->made[i];
        if (block->is_temporary && block->home != home) {
            home = block->home;
            made[count++] = (struct gpu_use){
                .block = block->home, .byte_end = home->byte_count, .access = GPU_WRITE};
        }
    }
    made[count++] = (struct gpu_use){
        .block = gpu_pool_order(pool), .byte_begin = 0, .byte_end = 1, .access = GPU_WRITE};
    *uses = (struct graph_uses){.list = made, .count = count, .lone_count = lone_count};
    return true;
}

static void destroy(struct gpu_graph *graph) {
    struct gpu_device *device = graph->device;
    if (graph->made.has_id) {
        gpu_id_give(&device->graph_ids, graph->made.id);
    }
    gpu_repeat_forget(device);
    *graph->link = graph->next;
    if (graph->next) {
        graph->next->link = graph->link;
    }
    gpu_graph_body_finish(&graph->body);
    gpu_pool_unuse(graph->pool);
    free(graph->uses.list);
    free(graph);
    gpu_device_drop(device);
}

gpulua_status gpu_graph_create(struct gpu_pool *pool, struct graph_body *body, const char *label,
                               struct gpu_graph **graph, struct gpu_error *error) {
    struct gpu_device *device = gpu_pool_device(pool);
    struct gpu_graph *made = calloc(1, sizeof *made);
    if (!made) {
        gpu_graph_body_finish(body);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a graph");
    }
    made->refs = 1;
    made->device = gpu_device_keep(device);
    made->number = ++device->graph_number_next;
    made->label = label;
    made->body = *body;
    *body = (struct graph_body){0};
    made->pool = pool;
    gpu_pool_use(pool);
    made->next = device->graphs;
    made->link = &device->graphs;
    if (made->next) {
        made->next->link = &made->next;
    }
    device->graphs = made;
    gpulua_status status = gpu_device_check(device, error);
    if (status == GPULUA_OK) {
        made->made.has_id = gpu_id_take(&device->graph_ids, &made->made.id);
    }
    if (status == GPULUA_OK &&
        (!made->made.has_id || !gpu_graph_collect_uses(&made->body, pool, &made->uses))) {
        status = gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a graph");
    }
    if (status == GPULUA_OK) {
        status = gpu_graph_send(made, error);
    }
    if (status) {
        gpu_graph_release(made);
        return status;
    }
    made->is_counted = true;
    device->stats.graphs_live++;
    device->stats.captures++;
    *graph = made;
    return GPULUA_OK;
}

/* ---- the end ---- */

struct gpu_graph *gpu_graph_retain(struct gpu_graph *graph) {
    GPU_ENTER(graph->device);
    graph->refs++;
    return graph;
}

/* The executor keeps it until its launches are over, and the uses of its blocks keep those. */
static void run_release(struct gpu_device *device, struct gpu_deferred *deferred) {
    struct gpu_graph *graph =
        (struct gpu_graph *)(void *)((char *)deferred - offsetof(struct gpu_graph, release));
    graph->is_deferred = false;
    if (graph->refs > 0) {
        return;
    }
    gpu_graph_unsend(graph);
    device->stats.graphs_live -= graph->is_counted;
    destroy(graph);
}

void gpu_graph_release(struct gpu_graph *graph) {
    if (!graph) {
        return;
    }
    GPU_ENTER_WHOLE(graph->device);
    if (--graph->refs > 0 || graph->is_deferred) {
        return;
    }
    graph->is_deferred = true;
    gpu_device_defer(graph->device, &graph->release, run_release);
}

/* ---- launching ---- */

static inline bool are_blocks_as_checked(const struct gpu_graph *graph) {
    return graph->checked_ends == graph->device->block_ends &&
           graph->checked_version == graph->version;
}

/* The one that was freed, if there is one, is the culprit. */
static gpulua_status check_blocks(struct gpu_graph *graph, const char *use,
                                  struct gpu_error *error) {
    const struct graph_body *body = &graph->body;
    if (are_blocks_as_checked(graph)) {
        return GPULUA_OK;
    }
    for (uint32_t i = 0; i < body->track_count; i++) {
        struct gpu_block *block = body->tracks[i].block;
        bool is_there = !block->is_freed &&
                        (block->epoch == graph->device->epoch || is_own_lone(&graph->body, block));
        if (block->byte_count > 0 && !is_there) {
            struct gpu_ref ref = {.block = block, .byte_count = block->byte_count};
            char what[160];
            snprintf(what, sizeof what, "%s of graph%s%s%s", use, graph->label[0] ? " '" : "",
                     graph->label, graph->label[0] ? "'" : "");
            return gpu_ref_check(&ref, graph->device, what, error);
        }
    }
    graph->checked_ends = graph->device->block_ends;
    graph->checked_version = graph->version;
    return GPULUA_OK;
}

/* Into another capture: its nodes, one by one. */
static gpulua_status capture_again(struct gpu_graph *graph, const struct gpu_submit *submit,
                                   struct gpu_op **op, struct gpu_error *error) {
    const char *own = graph->label[0] ? graph->label : "graph";
    const char *label = submit->label ? gpu_device_intern(graph->device, submit->label) : own;
    gpulua_status status = gpu_device_check(graph->device, error);
    if (status == GPULUA_OK && !label) {
        status = gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a label");
    }
    if (status == GPULUA_OK) {
        status = gpu_capture_check(submit->capture, label, error);
    }
    if (status == GPULUA_OK) {
        status = check_blocks(graph, "launch", error);
    }
    if (status == GPULUA_OK) {
        status =
            gpu_graph_submit_again(&graph->body, submit->capture, submit, true, NULL, NULL, error);
    }
    return status || !op ? status
                         : gpu_capture_op(submit->capture, label, &submit->site, op, error);
}

/* Between what the launch waits for and the launch itself, whose record stays what it is. */
static gpulua_status send_reports(struct gpu_graph *graph, const struct gpu_report *first,
                                  const struct gpu_envelope *envelope, struct wire_record *record,
                                  struct gpu_error *error) {
    _Alignas(16) uint8_t launch[sizeof *record + WIRE_WAITS_MAX * sizeof(struct wire_wait)];
    size_t byte_count = sizeof *record + record->wait_count * sizeof(struct wire_wait);
    memcpy(launch, record, byte_count);
    gpulua_status status = gpu_graph_send_reports(graph, first, &envelope->waits, error);
    memcpy(record, launch, byte_count);
    return status;
}

/* Of what is lone no more the launch also needs what it may leave as it was. */
static void note_exposed(struct graph_uses *uses) {
    for (uint32_t i = 0; i < uses->lone_count;) {
        struct gpu_use use = uses->list[i];
        if (use.block->is_lone) {
            i++;
            continue;
        }
        use.access = GPU_READ_WRITE;
        uses->noted = 0;
        uses->list[i] = uses->list[--uses->lone_count];
        uses->list[uses->lone_count] = use;
    }
}

/* Behind a launch that nobody has a handle on no event is needed where the next one on its stream
 * is of the same graph, as it was then: that uses all that this one used, so whoever waits for this
 * one because of it waits for the next. Not where somebody looks at each launch by itself, as who
 * limits what is in flight does: one more waits for the oldest, and for no more than that. */
static uint8_t flags_of(const struct gpu_graph *graph, const struct gpu_stream *stream,
                        bool is_held) {
    const struct gpu_device *device = graph->device;
    const struct gpu_op *before = stream->tail;
    const struct gpu_flight_op *noted =
        before && before->refs == 1 ? gpu_flight_entry(&device->flight, before) : NULL;
    bool covers = noted && noted->opcode == WIRE_OP_GRAPH_LAUNCH &&
                  noted->graph.number == graph->number && noted->graph.version == graph->version;
    bool is_looked_at = is_held || device->is_exact || device->report_count > 0 ||
                        device->observer || device->trace || device->hooks ||
                        device->watchdog.term_ns > 0 || stream->native != 0 || stream->is_foreign ||
                        device->stats.limit_ops_in_flight < GPU_OPS_IN_FLIGHT_MAX;
    return (uint8_t)((covers ? WIRE_FLAG_COVERS : 0) | (is_looked_at ? 0 : WIRE_FLAG_UNHELD));
}

/* `report`: the first of what its nodes have; NULL: it is no launch, or none of them reports. */
static gpulua_status submit_graph(struct gpu_graph *graph, const struct gpu_submit *submit,
                                  enum wire_opcode opcode, struct gpu_report *report,
                                  struct gpu_op **op, struct gpu_error *error) {
    struct gpu_envelope envelope;
    struct gpu_submit named = *submit;
    named.capture = NULL;
    if (!named.label && graph->label[0]) {
        named.label = graph->label;
    }
    gpulua_status status = gpu_envelope_begin(
        &envelope, &named, opcode == WIRE_OP_GRAPH_UPLOAD ? "upload" : "graph", error);
    bool is_launch = opcode == WIRE_OP_GRAPH_LAUNCH;
    if (status == GPULUA_OK) {
        status = check_blocks(graph, is_launch ? "launch" : "upload", error);
    }
    if (status == GPULUA_OK && !graph->made.is_there) {
        status = gpu_graph_send(graph, error);
    }
    if (status) {
        return status;
    }
    graph->made.used_at = ++graph->device->graph_clock;
    note_exposed(&graph->uses);
    envelope.uses = graph->uses.list;
    envelope.use_count = graph->uses.count;
    envelope.graph = graph;
    envelope.is_repeat = is_launch && !report && gpu_repeat_is(submit->stream, graph->uses.list);
    if (!is_launch) { /* uses nothing but the graph */
        envelope.uses += graph->uses.count - 1;
        envelope.use_count = 1;
    }
    struct wire_record *record;
    status = gpu_envelope_record(&envelope, opcode, &record, error);
    if (status) {
        return status;
    }
    if (report) {
        status = send_reports(graph, report, &envelope, record, error);
        if (status) {
            return status;
        }
        envelope.report = report;
    }
    record->object = graph->made.id;
    if (is_launch) {
        record->flags |= flags_of(graph, submit->stream, op != NULL);
    }
    return gpu_envelope_submit(&envelope, record, 0, op, error);
}

/* Does nothing but the number of the launch have to be told of? */
static bool is_bare(const struct gpu_graph *graph, const struct gpu_submit *submit) {
    return graph->made.is_there && are_blocks_as_checked(graph) &&
           gpu_repeat_may_owe(graph, submit) &&
           flags_of(graph, submit->stream, false) == WIRE_FLAGS_REPLAY;
}

static inline gpulua_status check_stream(const struct gpu_graph *graph,
                                         const struct gpu_submit *submit, struct gpu_error *error) {
    const struct gpu_device *device = submit->stream->device;
    if (device == graph->device) {
        return GPULUA_OK;
    }
    return gpu_error_set(error, GPULUA_INVALID_ARGUMENT, "the graph is of %s%s, the stream of %s",
                         gpu_device_kin(graph->device, device), gpu_device_title(graph->device),
                         gpu_device_title(device));
}

/* Under the label that its errors show. */
static void begin_hooks(const struct gpu_graph *graph, const struct gpu_submit *submit,
                        struct gpu_hooked *hooked) {
    hooked->hooks = NULL;
    if (gpu_hooks_are_set(submit)) {
        struct gpu_submit named = *submit;
        named.label = named.label || !graph->label[0] ? named.label : graph->label;
        gpu_hooks_fire_begin(&named, "graph", NULL, NULL, 0, hooked);
    }
}

static gpulua_status launch(struct gpu_graph *graph, const struct gpu_submit *submit,
                            struct gpu_op **op, struct gpu_error *error) {
    struct gpu_hooked hooked;
    struct gpu_report *report = NULL;
    begin_hooks(graph, submit, &hooked);
    gpulua_status status = gpu_graph_take_reports(graph, &report, error);
    if (status == GPULUA_OK) {
        do {
            status = submit_graph(graph, submit, WIRE_OP_GRAPH_LAUNCH, report, op, error);
        } while (status && gpu_share_wait(graph->device, &status, error));
    }
    gpu_reports_release(report);
    (void)gpu_hooks_end(submit, &hooked, status, error);
    if (status == GPULUA_OK) {
        graph->replays++;
        graph->made.is_uploaded = true;
        graph->device->stats.replays++;
    }
    return status;
}

gpulua_status gpu_graph_launch(struct gpu_graph *graph, const struct gpu_submit *submit,
                               struct gpu_op **op, struct gpu_error *error) {
    if (!op && gpu_repeat_again(graph, submit)) {
        return GPULUA_OK;
    }
    GPU_ENTER(graph->device);
    gpulua_status status = check_stream(graph, submit, error);
    if (status) {
        return status;
    }
    if (submit->capture) {
        return capture_again(graph, submit, op, error);
    }
    if (!op && is_bare(graph, submit)) {
        gpu_repeat_begin(graph, submit);
        if (gpu_repeat_again(graph, submit)) {
            return GPULUA_OK;
        }
        gpu_repeat_end(graph->device);
    }
    return launch(graph, submit, op, error);
}

/* The node that so many others, and joins, are in front of, bodies behind the one that has them. */
static const struct graph_node *node_behind(const struct graph_body *body, uint32_t *in_front) {
    const struct graph_node *found = NULL;
    for (uint32_t i = 0; i < body->node_count && !found; i++) {
        const struct graph_node *node = &body->nodes[i];
        uint32_t joins = gpu_graph_node_joins(node);
        if (*in_front <= joins) {
            return *in_front == joins ? node : NULL;
        }
        *in_front -= joins + 1;
        for (uint32_t k = 0; node->control && k < node->control->body_count && !found; k++) {
            found = node_behind(&node->control->bodies[k], in_front);
        }
    }
    return found;
}

const struct gpu_graph *gpu_graph_launched(const struct gpu_device *device,
                                           const struct gpu_flight_op *op) {
    const struct gpu_graph *graph = op->opcode == WIRE_OP_GRAPH_LAUNCH ? device->graphs : NULL;
    while (graph && graph->number != op->graph.number) {
        graph = graph->next;
    }
    return graph && graph->version == op->graph.version ? graph : NULL;
}

bool gpu_graph_node_site(const struct gpu_op *launch, uint32_t node, struct gpu_site *site) {
    const struct gpu_device *device = launch->device;
    const struct gpu_flight_op *noted = gpu_flight_entry(&device->flight, launch);
    const struct gpu_graph *graph = node > 0 && noted ? gpu_graph_launched(device, noted) : NULL;
    uint32_t in_front = node - 1;
    const struct graph_node *found = graph ? node_behind(&graph->body, &in_front) : NULL;
    if (found) {
        *site = found->site;
    }
    return found && found->site.source;
}

gpulua_status gpu_graph_check(struct gpu_graph *graph, struct gpu_error *error) {
    GPU_ENTER(graph->device);
    return check_blocks(graph, "launch", error);
}

gpulua_status gpu_graph_upload(struct gpu_graph *graph, const struct gpu_submit *submit,
                               struct gpu_error *error) {
    GPU_ENTER(graph->device);
    gpulua_status status = check_stream(graph, submit, error);
    if (status || graph->made.is_uploaded) {
        return status; /* it is there */
    }
    do {
        status = submit_graph(graph, submit, WIRE_OP_GRAPH_UPLOAD, NULL, NULL, error);
    } while (status && gpu_share_wait(graph->device, &status, error));
    graph->uploads += status == GPULUA_OK;
    graph->made.is_uploaded = status == GPULUA_OK;
    return status;
}

/* ---- a second one ---- */

gpulua_status gpu_graph_fork(struct gpu_graph *graph, const struct gpu_submit *submit,
                             struct gpu_graph **fork, struct gpu_error *error) {
    GPU_ENTER(graph->device);
    struct graph_totals totals = {0};
    struct gpu_capture *capture = NULL;
    struct gpu_submit named = *submit;
    gpu_graph_count(&graph->body, &totals);
    if (totals.control_count > 0) {
        return gpu_error_set(error, GPULUA_UNSUPPORTED,
                             "a graph with conditional nodes cannot be forked: capture it twice");
    }
    named.label = graph->label[0] ? graph->label : NULL;
    gpulua_status status = gpu_capture_create(&named, NULL, &capture, error);
    if (status == GPULUA_OK) {
        status = gpu_graph_submit_again(&graph->body, capture, submit, false, NULL, NULL, error);
    }
    if (status == GPULUA_OK) {
        status = gpu_capture_finish(capture, fork, error);
    }
    gpu_capture_release(capture);
    return status;
}

/* ---- facts ---- */

const struct graph_body *gpu_graph_body(const struct gpu_graph *graph) {
    return &graph->body;
}

struct gpu_device *gpu_graph_device(const struct gpu_graph *graph) {
    return graph->device;
}
struct gpu_pool *gpu_graph_pool(const struct gpu_graph *graph) {
    return graph->pool;
}

void gpu_graph_info(const struct gpu_graph *graph, struct gpu_graph_info *info) {
    GPU_ENTER(graph->device);
    struct graph_totals totals = {0};
    gpu_graph_count(&graph->body, &totals);
    *info = (struct gpu_graph_info){.node_count = totals.node_count,
                                    .edge_count = totals.edge_count,
                                    .replays = graph->replays,
                                    .uploads = graph->uploads,
                                    .device_bytes = graph->made.device_bytes,
                                    .label = graph->label};
}
