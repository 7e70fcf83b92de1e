/* What the device has of a graph: sent to the executor when it is made, and once more when it is
 * launched after it had to go. It takes memory of the device, which counts towards the budget. When
 * that, or the device's memory, is used up, graphs go one by one, each when its launches are over:
 * so its memory is there for who has asked, and no more go than are needed. What they are is known
 * here, so that they can come back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/graph/state.h"
#include "runtime/memory/stack.h"

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

static uint64_t kind_of_memory(const struct gpu_block *block) {
    const struct gpu_block *where = block->home ? block->home : block;
    const struct gpu_memory *memory = where->memory; /* a variable has none */
    while (memory && memory->upstream) {
        memory = memory->upstream;
    }
    /* What has come back in a later life may not be what its resource gives. */
    bool is_restored = where->keeping != GPU_KEEP_NOTHING && where->device->epoch > 1 && memory &&
                       memory->ops != where->device->memory->ops;
    return where->is_foreign || is_restored ? where->number
           : memory                         ? (uint64_t)(uintptr_t)memory->ops
                                            : 0;
}

void gpu_graph_copy_kinds(const struct graph_body *body, const struct graph_node *node,
                          uint64_t kinds[2]) {
    uint8_t opcode = node->record->opcode;
    bool is_copy = opcode == WIRE_OP_COPY || opcode == WIRE_OP_UPLOAD || opcode == WIRE_OP_DOWNLOAD;
    for (uint32_t i = 0; i < 2; i++) {
        const struct gpu_block *block =
            is_copy && i < node->ref_count ? body->refs[node->ref_first + i].ref.block : NULL;
        kinds[i] = block ? kind_of_memory(block) : 0;
    }
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
            struct graph_node *own = &sender->graph->body.nodes[i];
            own->number = sender->count;
            gpu_graph_copy_kinds(body, own, own->made_kinds);
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

uint32_t gpu_graph_node_joins(const struct graph_node *node) {
    uint32_t joins = 0;
    for (uint32_t count = node->edge_count; count > EDGES_PER_RECORD;) {
        count = (count + EDGES_PER_RECORD - 1) / EDGES_PER_RECORD;
        joins += count;
    }
    return joins;
}

static uint32_t count_joins(const struct graph_body *body) {
    uint32_t joins = 0;
    for (uint32_t i = 0; i < body->node_count; i++) {
        const struct graph_control *control = body->nodes[i].control;
        joins += gpu_graph_node_joins(&body->nodes[i]);
        for (uint32_t k = 0; control && k < control->body_count; k++) {
            joins += count_joins(&control->bodies[k]);
        }
    }
    return joins;
}

static void on_made(struct gpu_op *op, void *user, const struct wire_reply *reply) {
    struct gpu_graph *graph = user;
    (void)op;
    graph->made.is_there = reply && reply->status == GPULUA_OK;
}

static gpulua_status send_all(struct gpu_graph *graph, const struct graph_totals *totals,
                              struct gpu_error *error) {
    struct gpu_device *device = graph->device;
    uint32_t sent = 0;
    struct wire_record record = {
        .length_bytes = sizeof record, .opcode = WIRE_OP_GRAPH_BEGIN, .object = graph->made.id};
    record.u.graph.node_count = totals->node_count + totals->body_count + count_joins(&graph->body);
    record.u.graph.control_count = totals->control_count;
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

/* ---- the memory that it takes ---- */

/* From the device's budget. */
static gpulua_status reserve(struct gpu_graph *graph, uint64_t byte_count,
                             struct gpu_error *error) {
    char label[80];
    snprintf(label, sizeof label, "the nodes of graph%s%s%s", graph->label[0] ? " '" : "",
             graph->label, graph->label[0] ? "'" : "");
    struct gpu_memory_request request = {.byte_count = byte_count, .label = label};
    gpulua_status status = gpu_device_reserve(graph->device, &request, error);
    if (status == GPULUA_OK) {
        graph->made.device_bytes = byte_count;
        graph->device->stats.graph_bytes += byte_count;
    }
    return status;
}

static void unreserve(struct gpu_graph *graph) {
    gpu_account_release(&graph->device->account, graph->made.device_bytes);
    graph->device->stats.graph_bytes -= graph->made.device_bytes;
    graph->made.device_bytes = 0;
}

bool gpu_graph_lacks_room(struct gpu_device *device, uint64_t byte_count) {
    if (!gpu_device_lacks_room(device, byte_count)) {
        return false;
    }
    (void)gpu_device_reap(device);
    return gpu_device_lacks_room(device, byte_count);
}

gpulua_status gpu_graph_send(struct gpu_graph *graph, struct gpu_error *error) {
    struct gpu_device *device = graph->device;
    struct graph_totals totals = {0};
    gpulua_status status = gpu_device_check_open(device, error); /* a poll may have found out */
    if (status) {
        return status;
    }
    gpu_graph_count(&graph->body, &totals);
    /* What the driver needs may be more than what is reckoned, and others' graphs have it. */
    for (;;) {
        status =
            reserve(graph, (uint64_t)totals.node_count * device->facts.graph_node_bytes, error);
        if (status) {
            return status;
        }
        graph->made.used_at = ++device->graph_clock;
        graph->made.last = (struct gpu_point){.seq = 0};
        graph->made.sender = gpu_seat_of(device);
        graph->made.is_being_sent = true;
        status = send_all(graph, &totals, error);
        graph->made.is_being_sent = false;
        if (!graph->made.is_there) {
            gpu_graph_unsend(graph);
        }
        if (!gpu_graphs_evict_for(&status, device, -1, error)) {
            return status;
        }
    }
}

/* NULL: what a graph was in last is over. */
static struct gpu_op *pending(const struct gpu_device *device, struct gpu_point last) {
    bool may_run = last.seq > device->done[last.slot] && device->link &&
                   last.seq > gpu_wire_page_done(device->link->page, last.slot);
    return may_run ? gpu_op_find_pending(device, last) : NULL;
}

/* The executor has it until then; of too many the oldest is forgotten. */
static void note_leaving(struct gpu_device *device, struct gpu_point last) {
    struct gpu_point *leaving = device->graphs_leaving;
    if (device->leaving_count == GPU_GRAPHS_LEAVING_MAX) {
        memmove(leaving, leaving + 1, --device->leaving_count * sizeof *leaving);
    }
    leaving[device->leaving_count++] = last;
}

void gpu_graph_unsend(struct gpu_graph *graph) {
    struct gpu_device *device = graph->device;
    if (device->link && device->state == GPU_DEVICE_OPEN && graph->made.has_id) {
        struct wire_record record = {.length_bytes = sizeof record,
                                     .opcode = WIRE_OP_GRAPH_DESTROY,
                                     .object = graph->made.id};
        struct gpu_error ignored = {0};
        (void)gpu_device_publish(device, &record, &ignored);
        gpu_error_finish(&ignored);
        if (graph->made.is_there && pending(device, graph->made.last)) {
            note_leaving(device, graph->made.last);
        }
    }
    graph->made.is_there = graph->made.is_uploaded = false;
    unreserve(graph);
}

/* ---- making room ---- */

/* NULL: the device has none whose launches are over. One that is being sent is about to be
 * launched. */
static struct gpu_graph *find_oldest(const struct gpu_device *device) {
    struct gpu_graph *oldest = NULL;
    for (struct gpu_graph *graph = device->graphs; graph; graph = graph->next) {
        bool is_older = !oldest || graph->made.used_at < oldest->made.used_at;
        bool may_go = graph->made.is_there && !graph->made.is_being_sent &&
                      !pending(device, graph->made.last);
        oldest = may_go && is_older ? graph : oldest;
    }
    return oldest;
}

/* Whose memory is, or gets, free: one that has been closed, or changed as a whole, and has left; or
 * one that can go. */
struct room {
    bool with_leaving; /* what they had is in the budget no more */
    bool has_left;
    struct gpu_graph *oldest;
};

static bool find_room(struct gpu_device *device, struct room *room) {
    struct gpu_point *leaving = device->graphs_leaving;
    for (uint32_t i = 0; room->with_leaving && !room->has_left && i < device->leaving_count; i++) {
        if (!pending(device, leaving[i])) {
            leaving[i] = leaving[--device->leaving_count];
            room->has_left = true;
        }
    }
    room->oldest = room->has_left ? NULL : find_oldest(device);
    return room->has_left || room->oldest;
}

static bool want(const struct gpu_device *device, struct gpu_point last) {
    struct gpu_op *op = pending(device, last);
    if (op) {
        gpu_op_want(op);
    }
    return op;
}

/* What nobody waits for may be over without anybody knowing. False: nothing runs, and nothing that
 * another thread sends will. */
static bool want_launches(struct gpu_device *device, const struct room *room) {
    bool runs = false;
    for (struct gpu_graph *graph = device->graphs; graph; graph = graph->next) {
        runs |= graph->made.is_there && want(device, graph->made.last);
        runs |= graph->made.is_being_sent && graph->made.sender != gpu_seat_of(device);
    }
    for (uint32_t i = 0; room->with_leaving && i < device->leaving_count; i++) {
        runs |= want(device, device->graphs_leaving[i]);
    }
    return runs && !device->is_polling;
}

/* Until a launch is over, or for so long (negative: that is all). */
static gpulua_status wait_for_room(struct gpu_device *device, int64_t patience_ns,
                                   struct room *room, struct gpu_error *error) {
    int64_t begun_ns = gpu_blocked_begin(device), start_ns = gpu_clock_ns(), left_ns = -1;
    gpulua_status status = GPULUA_OK;
    while (!find_room(device, room) && want_launches(device, room)) {
        (void)gpu_device_poll(device);
        left_ns = patience_ns < 0 ? -1 : start_ns + patience_ns - gpu_clock_ns();
        if (find_room(device, room) || (patience_ns >= 0 && left_ns <= 0) ||
            (status = gpu_memory_check_wait(device, "waiting for memory", error))) {
            break;
        }
        gpu_device_nap(device, left_ns);
        (void)gpu_device_poll(device);
    }
    gpu_blocked_end(device, "memory of graphs", begun_ns);
    return status ? status : gpu_device_check_open(device, error); /* lost, nothing runs, too */
}

static bool make_room(struct gpu_device *device, int64_t patience_ns, bool with_leaving,
                      struct gpu_error *error, gpulua_status *status) {
    struct room room = {.with_leaving = with_leaving};
    *status =
        find_room(device, &room) ? GPULUA_OK : wait_for_room(device, patience_ns, &room, error);
    if (*status) {
        return false;
    }
    if (room.oldest) {
        gpu_graph_unsend(room.oldest);
        device->stats.graph_evictions++;
    }
    return room.oldest || room.has_left;
}

bool gpu_graphs_evict(struct gpu_device *device, int64_t patience_ns, struct gpu_error *error,
                      gpulua_status *status) {
    return make_room(device, patience_ns, false, error, status);
}

bool gpu_graphs_evict_for(gpulua_status *status, struct gpu_device *device, int64_t patience_ns,
                          struct gpu_error *error) {
    struct gpu_error waited = {0};
    gpulua_status wait_status = GPULUA_OK;
    bool has_room = *status == GPULUA_OUT_OF_MEMORY &&
                    make_room(device, patience_ns, true, &waited, &wait_status);
    if (has_room || wait_status) {
        gpu_error_finish(error);
    }
    if (wait_status) {
        *status = wait_status;
        *error = waited;
    }
    return has_room;
}
