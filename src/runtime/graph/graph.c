/* Graphs: sent to the executor once, launched as one operation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/graph/state.h"

/* A node with more edges than one record takes gets them through joins: nodes of the wire alone. */
#define EDGES_PER_RECORD 200u

/* ---- making ---- */

/* What is left of the nodes that are waited for, when each join takes EDGES_PER_RECORD of them. */
struct sender {
    struct gpu_device *device;
    struct gpu_graph *graph;
    const struct graph_body *body; /* of the graph, or of a conditional node in it */
    uint32_t *numbers;             /* owned: of the body's nodes on the wire */
    uint32_t *waits;               /* owned: room for those of one node */
    uint32_t count;                /* nodes of the body sent */
    uint32_t *total;               /* records sent, of all bodies */
};

static gpulua_status send_node(struct sender *sender, const struct graph_node *node,
                               const uint32_t *waits, uint32_t wait_count,
                               struct gpu_error *error) {
    struct wire_record *built = (struct wire_record *)(void *)sender->device->scratch;
    uint32_t payload_bytes = 0;
    if (node) {
        memcpy(built, node->record, sizeof *built);
        payload_bytes = node->record->length_bytes - (uint32_t)sizeof *built;
    } else {
        memset(built, 0, sizeof *built);
        built->opcode = WIRE_OP_MARK;
    }
    built->flags = WIRE_FLAG_NODE;
    built->seq = gpu_wire_node_seq(sender->graph->made.id, (*sender->total)++);
    sender->count++;
    built->wait_count = (uint8_t)wait_count;
    for (uint32_t i = 0; i < wait_count; i++) {
        gpu_wire_record_waits(built)[i] = (struct wire_wait){.seq = waits[i]};
    }
    if (node) {
        memcpy(gpu_wire_record_payload(built), node->record + 1, payload_bytes);
    }
    uint32_t length =
        (uint32_t)sizeof *built + wait_count * (uint32_t)sizeof(struct wire_wait) + payload_bytes;
    built->length_bytes = (length + 15u) & ~15u;
    return gpu_device_publish(sender->device, built, error);
}

static gpulua_status send_body(struct gpu_graph *graph, const struct graph_body *body,
                               uint32_t *total, struct gpu_error *error);

static gpulua_status send_control(const struct sender *sender, const struct graph_control *control,
                                  struct gpu_error *error) {
    struct wire_record end = {
        .length_bytes = sizeof end, .opcode = WIRE_OP_BODY_END, .flags = WIRE_FLAG_NODE};
    gpulua_status status = GPULUA_OK;
    for (uint32_t i = 0; i < control->body_count && status == GPULUA_OK; i++) {
        status = send_body(sender->graph, &control->bodies[i], sender->total, error);
        if (status == GPULUA_OK) {
            end.seq = gpu_wire_node_seq(sender->graph->made.id, (*sender->total)++);
            status = gpu_device_publish(sender->device, &end, error);
        }
    }
    return status;
}

static gpulua_status send_nodes(struct sender *sender, struct gpu_error *error) {
    const struct graph_body *body = sender->body;
    for (uint32_t i = 0; i < body->node_count; i++) {
        const struct graph_node *node = &body->nodes[i];
        uint32_t count = node->edge_count;
        for (uint32_t k = 0; k < count; k++) {
            sender->waits[k] = sender->numbers[body->edges[node->edge_first + k].from];
        }
        while (count > EDGES_PER_RECORD) {
            uint32_t joins = 0;
            for (uint32_t k = 0; k < count; k += EDGES_PER_RECORD) {
                uint32_t part = count - k < EDGES_PER_RECORD ? count - k : EDGES_PER_RECORD;
                uint32_t number = sender->count;
                gpulua_status status = send_node(sender, NULL, sender->waits + k, part, error);
                if (status) {
                    return status;
                }
                sender->waits[joins++] = number;
            }
            count = joins;
        }
        sender->numbers[i] = sender->count;
        if (body == &sender->graph->body) { /* bodies of nodes are shared, and never changed */
            sender->graph->body.nodes[i].number = sender->count;
        }
        gpulua_status status = send_node(sender, node, sender->waits, count, error);
        if (status == GPULUA_OK && node->control) {
            status = send_control(sender, node->control, error);
        }
        if (status) {
            return status;
        }
    }
    return GPULUA_OK;
}

static gpulua_status send_body(struct gpu_graph *graph, const struct graph_body *body,
                               uint32_t *total, struct gpu_error *error) {
    uint32_t widest = 0;
    for (uint32_t i = 0; i < body->node_count; i++) {
        widest = body->nodes[i].edge_count > widest ? body->nodes[i].edge_count : widest;
    }
    struct sender sender = {.device = graph->device,
                            .graph = graph,
                            .body = body,
                            .numbers = malloc(body->node_count * sizeof *sender.numbers),
                            .waits = malloc((widest + 1) * sizeof *sender.waits),
                            .total = total};
    gpulua_status status =
        sender.numbers && sender.waits
            ? send_nodes(&sender, error)
            : gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a graph");
    free(sender.numbers);
    free(sender.waits);
    return status;
}

/* Joins that its nodes need at most. */
static uint32_t count_joins(const struct graph_body *body) {
    uint32_t joins = 0;
    for (uint32_t i = 0; i < body->node_count; i++) {
        const struct graph_control *control = body->nodes[i].control;
        joins += body->nodes[i].edge_count / EDGES_PER_RECORD * 2;
        for (uint32_t k = 0; control && k < control->body_count; k++) {
            joins += count_joins(&control->bodies[k]);
        }
    }
    return joins;
}

static void on_made(struct gpu_op *op, void *user, const struct wire_reply *reply) {
    struct gpu_graph *graph = user;
    (void)op;
    if (reply && reply->status == GPULUA_OK) {
        struct wire_graph_facts facts;
        memcpy(&facts, gpu_wire_reply_body(reply), sizeof facts);
        graph->made.device_bytes = facts.device_bytes;
        graph->made.is_there = true;
    }
}

static gpulua_status send(struct gpu_graph *graph, struct gpu_error *error) {
    struct gpu_device *device = graph->device;
    struct graph_totals totals = {0};
    uint32_t sent = 0;
    gpu_graph_count(&graph->body, &totals);
    struct wire_record record = {
        .length_bytes = sizeof record, .opcode = WIRE_OP_GRAPH_BEGIN, .object = graph->made.id};
    record.u.graph.node_count = totals.node_count + totals.body_count + count_joins(&graph->body);
    record.u.graph.control_count = totals.control_count;
    gpulua_status status = gpu_device_publish(device, &record, error);
    if (status == GPULUA_OK) {
        status = send_body(graph, &graph->body, &sent, error);
    }
    if (status == GPULUA_OK) {
        record = (struct wire_record){
            .length_bytes = sizeof record, .opcode = WIRE_OP_GRAPH_END, .object = graph->made.id};
        status = gpu_request_wait(device, &record, "graph", on_made, graph, error);
    }
    return status;
}

bool gpu_graph_collect_uses(const struct graph_body *body, struct gpu_pool *pool,
                            struct gpu_use **uses, uint32_t *use_count) {
    uint32_t count = 1 + body->made_count;
    for (uint32_t i = 0; i < body->track_count; i++) {
        count += body->tracks[i].use_count;
    }
    struct gpu_use *made = malloc(count * sizeof *made);
    if (!made) {
        return false;
    }
    count = 0;
    for (uint32_t i = 0; i < body->track_count; i++) {
        const struct graph_track *track = &body->tracks[i];
        if (track->block->is_temporary) {
            continue;
        }
        memcpy(made + count, track->uses, track->use_count * sizeof *track->uses);
        count += track->use_count;
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
    *uses = made;
    *use_count = count;
    return true;
}

static void destroy(struct gpu_graph *graph) {
    struct gpu_device *device = graph->device;
    if (graph->made.has_id) {
        gpu_id_give(&device->graph_ids, graph->made.id);
    }
    gpu_graph_body_finish(&graph->body);
    gpu_pool_unuse(graph->pool);
    free(graph->uses);
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
    made->label = label;
    made->body = *body;
    *body = (struct graph_body){0};
    made->pool = pool;
    gpu_pool_use(pool);
    gpulua_status status = gpu_device_check(device, error);
    if (status == GPULUA_OK) {
        made->made.has_id = gpu_id_take(&device->graph_ids, &made->made.id);
    }
    if (status == GPULUA_OK &&
        (!made->made.has_id ||
         !gpu_graph_collect_uses(&made->body, pool, &made->uses, &made->use_count))) {
        status = gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a graph");
    }
    if (status == GPULUA_OK) {
        status = send(made, error);
    }
    if (status) {
        gpu_graph_release(made);
        return status;
    }
    device->stats.graphs_live++;
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
    if (device->link && device->state == GPU_DEVICE_OPEN && graph->made.has_id) {
        struct wire_record record = {.length_bytes = sizeof record,
                                     .opcode = WIRE_OP_GRAPH_DESTROY,
                                     .object = graph->made.id};
        struct gpu_error ignored = {0};
        (void)gpu_device_publish(device, &record, &ignored);
        gpu_error_finish(&ignored);
    }
    device->stats.graphs_live -= graph->made.is_there;
    destroy(graph);
}

void gpu_graph_release(struct gpu_graph *graph) {
    if (!graph) {
        return;
    }
    GPU_ENTER(graph->device);
    if (--graph->refs > 0 || graph->is_deferred) {
        return;
    }
    graph->is_deferred = true;
    gpu_device_defer(graph->device, &graph->release, run_release);
}

/* ---- launching ---- */

/* The one that was freed, if there is one, is the culprit. */
static gpulua_status check_blocks(const struct gpu_graph *graph, struct gpu_error *error) {
    const struct graph_body *body = &graph->body;
    for (uint32_t i = 0; i < body->track_count; i++) {
        struct gpu_block *block = body->tracks[i].block;
        if (block->byte_count > 0 && (block->is_freed || block->epoch != graph->device->epoch)) {
            struct gpu_ref ref = {.block = block, .byte_count = block->byte_count};
            char what[160];
            snprintf(what, sizeof what, "launch of graph%s%s%s", graph->label[0] ? " '" : "",
                     graph->label, graph->label[0] ? "'" : "");
            return gpu_ref_check(&ref, graph->device, what, error);
        }
    }
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
        status = check_blocks(graph, error);
    }
    if (status == GPULUA_OK) {
        status = gpu_graph_submit_again(&graph->body, submit->capture, submit, NULL, NULL, error);
    }
    return status || !op ? status
                         : gpu_capture_op(submit->capture, label, &submit->site, op, error);
}

static gpulua_status submit_graph(struct gpu_graph *graph, const struct gpu_submit *submit,
                                  enum wire_opcode opcode, struct gpu_op **op,
                                  struct gpu_error *error) {
    struct gpu_envelope envelope;
    struct gpu_submit named = *submit;
    named.capture = NULL;
    if (!named.label && graph->label[0]) {
        named.label = graph->label;
    }
    gpulua_status status = gpu_envelope_begin(
        &envelope, &named, opcode == WIRE_OP_GRAPH_UPLOAD ? "upload" : "graph", error);
    if (status == GPULUA_OK) {
        status = check_blocks(graph, error);
    }
    if (status) {
        return status;
    }
    envelope.uses = graph->uses;
    envelope.use_count = graph->use_count;
    if (opcode == WIRE_OP_GRAPH_UPLOAD) { /* uses nothing but the graph */
        envelope.uses += graph->use_count - 1;
        envelope.use_count = 1;
    }
    struct wire_record *record;
    status = gpu_envelope_record(&envelope, opcode, &record, error);
    if (status) {
        return status;
    }
    record->object = graph->made.id;
    return gpu_envelope_submit(&envelope, record, 0, op, error);
}

static gpulua_status check_stream(const struct gpu_graph *graph, const struct gpu_submit *submit,
                                  struct gpu_error *error) {
    const struct gpu_device *device = submit->stream->device;
    if (device == graph->device) {
        return GPULUA_OK;
    }
    return gpu_error_set(error, GPULUA_INVALID_ARGUMENT, "the graph is of %s%s, the stream of %s",
                         gpu_device_kin(graph->device, device), gpu_device_name(graph->device),
                         gpu_device_name(device));
}

gpulua_status gpu_graph_launch(struct gpu_graph *graph, const struct gpu_submit *submit,
                               struct gpu_op **op, struct gpu_error *error) {
    GPU_ENTER(graph->device);
    gpulua_status status = check_stream(graph, submit, error);
    if (status) {
        return status;
    }
    if (submit->capture) {
        return capture_again(graph, submit, op, error);
    }
    do {
        status = submit_graph(graph, submit, WIRE_OP_GRAPH_LAUNCH, op, error);
    } while (status && gpu_share_wait(graph->device, &status, error));
    if (status == GPULUA_OK) {
        graph->replays++;
        graph->made.is_uploaded = true;
        graph->device->stats.replays++;
    }
    return status;
}

gpulua_status gpu_graph_upload(struct gpu_graph *graph, const struct gpu_submit *submit,
                               struct gpu_error *error) {
    GPU_ENTER(graph->device);
    gpulua_status status = check_stream(graph, submit, error);
    if (status || graph->made.is_uploaded) {
        return status; /* it is there */
    }
    do {
        status = submit_graph(graph, submit, WIRE_OP_GRAPH_UPLOAD, NULL, error);
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
        status = gpu_graph_submit_again(&graph->body, capture, submit, NULL, NULL, error);
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
