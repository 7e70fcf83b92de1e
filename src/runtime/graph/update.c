/* Making a graph be what another capture has recorded. Where that has the same nodes with the same
 * edges, only what has changed in some of them is sent, for launches that come later; else the
 * device gets a new graph in the old one's place. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/graph/state.h"

/* ---- comparing ---- */

static void describe_work(const char *label, const struct gpu_site *site, char *text, size_t room) {
    int length = snprintf(text, room, "'%s'", label);
    if (site->source && length > 0 && (size_t)length < room) {
        snprintf(text + length, room - (size_t)length, " (%s:%d)", site->source, site->line);
    }
}

static void describe(const struct graph_node *node, char *text, size_t room) {
    describe_work(node->label, &node->site, text, room);
}

void gpu_graph_change_text(const struct gpu_graph_change *change, char *text, size_t room) {
    char what[160];
    describe_work(change->label, &change->site, what, sizeof what);
    snprintf(text, room, "node %u, %s", change->node, what);
}

/* Nothing at all and something are different commands to the device. */
static bool is_empty(const struct wire_record *record) {
    return record->opcode == WIRE_OP_FILL ? record->u.fill.elem_count == 0
                                          : record->u.copy.bytes == 0;
}

static uint32_t period_of(const struct wire_record *record) {
    return gpu_wire_fill_period(record->u.fill.pattern, record->u.fill.elem_bytes);
}

/* Neither has waits. */
static bool is_same_call(const struct wire_record *a, const struct wire_record *b) {
    return memcmp(&a->u, &b->u, sizeof a->u) == 0 &&
           memcmp(a + 1, b + 1, a->u.launch.args_bytes) == 0;
}

const char *gpu_graph_is_other(const struct wire_record *a, const struct wire_record *b) {
    if (a->opcode != b->opcode) { /* all of these are copies to who wrote the script */
        return b->opcode == WIRE_OP_UPLOAD     ? "is another kind of work, a copy from the host"
               : b->opcode == WIRE_OP_DOWNLOAD ? "is another kind of work, a copy to the host"
               : b->opcode == WIRE_OP_COPY     ? "is another kind of work, a copy within the device"
                                               : "is another kind of work";
    }
    if (a->opcode == WIRE_OP_CONTROL) {
        return "is another conditional node";
    }
    if (a->opcode == WIRE_OP_LAUNCH) {
        return a->object != b->object ? "is another kernel"
               : a->u.launch.is_library && !is_same_call(a, b)
                   ? "is a library call with other arguments"
                   : NULL;
    }
    if (is_empty(a) != is_empty(b)) {
        return "has no bytes in one of both";
    }
    if (a->opcode == WIRE_OP_FILL && period_of(a) != period_of(b)) {
        return "fills with a value that repeats otherwise";
    }
    return NULL;
}

static bool is_same_node(const struct wire_record *a, const struct wire_record *b) {
    return a->length_bytes == b->length_bytes && memcmp(a, b, a->length_bytes) == 0;
}

/* A write of the same bytes of memory, of whatever values. */
static bool is_restaged(const struct graph_body *a, const struct graph_body *b, uint32_t node) {
    const struct graph_node *in_a = &a->nodes[node], *in_b = &b->nodes[node];
    return in_a->record->opcode == WIRE_OP_UPLOAD && in_b->record->opcode == WIRE_OP_UPLOAD &&
           a->refs[in_a->ref_first + 1].is_staged && b->refs[in_b->ref_first + 1].is_staged &&
           in_a->record->u.copy.dst == in_b->record->u.copy.dst &&
           in_a->record->u.copy.bytes == in_b->record->u.copy.bytes;
}

static const uint8_t *staged_bytes(const struct graph_body *body, uint32_t node) {
    const struct graph_node *in = &body->nodes[node];
    const struct gpu_block *block = body->refs[in->ref_first + 1].ref.block;
    return (const uint8_t *)gpu_block_host_bytes(block) + (in->record->u.copy.src - block->address);
}

static bool does_same(const struct graph_body *a, const struct graph_body *b, uint32_t node) {
    const struct wire_record *record = a->nodes[node].record;
    return is_same_node(record, b->nodes[node].record) ||
           (is_restaged(a, b, node) &&
            memcmp(staged_bytes(a, node), staged_bytes(b, node), record->u.copy.bytes) == 0);
}

static bool same_edges(const struct graph_body *a, const struct graph_body *b, uint32_t node);
static bool is_same_control(const struct graph_node *a, const struct graph_node *b);

static bool is_same_body(const struct graph_body *a, const struct graph_body *b) {
    bool is_same = a->node_count == b->node_count;
    for (uint32_t i = 0; i < a->node_count && is_same; i++) {
        is_same = same_edges(a, b, i) &&
                  (a->nodes[i].control ? is_same_control(&a->nodes[i], &b->nodes[i])
                                       : does_same(a, b, i));
    }
    return is_same;
}

/* Nothing in the bodies of a conditional node can be changed: they are the same, or other ones. */
static bool is_same_control(const struct graph_node *a, const struct graph_node *b) {
    bool is_same = a->control && b->control && is_same_node(a->record, b->record) &&
                   a->control->body_count == b->control->body_count;
    for (uint32_t i = 0; is_same && a->control != b->control && i < a->control->body_count; i++) {
        is_same = is_same_body(&a->control->bodies[i], &b->control->bodies[i]);
    }
    return is_same;
}

/* The first edge of `node` in `a` that it has not in `b`; GPU_NODE_NONE: none. */
static uint32_t edge_missing(const struct graph_body *a, const struct graph_body *b,
                             uint32_t node) {
    const struct graph_node *in_a = &a->nodes[node], *in_b = &b->nodes[node];
    for (uint32_t i = 0; i < in_a->edge_count; i++) {
        uint32_t from = a->edges[in_a->edge_first + i].from;
        bool is_there = false;
        for (uint32_t k = 0; k < in_b->edge_count && !is_there; k++) {
            is_there = b->edges[in_b->edge_first + k].from == from;
        }
        if (!is_there) {
            return from;
        }
    }
    return GPU_NODE_NONE;
}

static bool same_edges(const struct graph_body *a, const struct graph_body *b, uint32_t node) {
    const struct graph_node *in_a = &a->nodes[node], *in_b = &b->nodes[node];
    if (in_a->edge_count != in_b->edge_count) {
        return false;
    }
    for (uint32_t i = 0; i < in_a->edge_count; i++) { /* they are sorted */
        if (a->edges[in_a->edge_first + i].from != b->edges[in_b->edge_first + i].from) {
            return false;
        }
    }
    return true;
}

/* Says how the node differs, if a patch would not do. */
static bool find_difference(const struct graph_body *old, const struct graph_body *new,
                            uint32_t node, char *text, size_t room) {
    char was[160], is[160], other[160];
    const struct graph_node *a = &old->nodes[node], *b = &new->nodes[node];
    const char *why = is_same_control(a, b) ? NULL : gpu_graph_is_other(a->record, b->record);
    if (!why && same_edges(old, new, node)) {
        return false;
    }
    describe(&old->nodes[node], was, sizeof was);
    describe(&new->nodes[node], is, sizeof is);
    if (why) {
        snprintf(text, room, "node %u, was %s, now %s, %s", node + 1, was, is, why);
        return true;
    }
    uint32_t gone = edge_missing(old, new, node), come = edge_missing(new, old, node);
    uint32_t from = come != GPU_NODE_NONE ? come : gone;
    describe(&new->nodes[from], other, sizeof other);
    snprintf(text, room, "node %u, %s, %s node %u, %s", node + 1, is,
             come != GPU_NODE_NONE ? "has now to wait for" : "needs no longer wait for", from + 1,
             other);
    return true;
}

/* The first difference that is more than what a patch does, in words. */
static bool is_same_topology(const struct graph_body *old, const struct graph_body *new, char *text,
                             size_t room) {
    uint32_t both = old->node_count < new->node_count ? old->node_count : new->node_count;
    for (uint32_t i = 0; i < both; i++) {
        if (find_difference(old, new, i, text, room)) {
            return false;
        }
    }
    if (old->node_count == new->node_count) {
        return true;
    }
    char which[160];
    bool is_more = new->node_count > old->node_count;
    describe(&(is_more ? new : old)->nodes[both], which, sizeof which);
    snprintf(text, room, "%u nodes, were %u: node %u, %s, is %s", new->node_count, old->node_count,
             both + 1, which, is_more ? "new" : "gone");
    return false;
}

/* ---- patching ---- */

/* Of the node's command, which is `record`. */
static struct wire_record *make_patch(const struct gpu_graph *graph, uint32_t number,
                                      struct wire_record *record) {
    record->flags = WIRE_FLAG_NODE;
    record->seq = gpu_wire_node_seq(graph->made.id, graph->body.nodes[number].number);
    record->length_bytes = (record->length_bytes + 15u) & ~15u;
    return record;
}

struct wire_record *gpu_graph_patch_record(const struct gpu_graph *graph, uint32_t number) {
    const struct wire_record *record = graph->body.nodes[number].record;
    struct wire_record *built = (struct wire_record *)(void *)graph->device->scratch;
    memcpy(built, record, record->length_bytes);
    return make_patch(graph, number, built);
}

static bool is_patchable(const struct gpu_graph *graph, const struct graph_node *node) {
    uint64_t kinds[2];
    gpu_graph_copy_kinds(&graph->body, node, kinds);
    return kinds[0] == node->made_kinds[0] && kinds[1] == node->made_kinds[1];
}

void gpu_graph_patch(struct gpu_graph *graph, uint32_t number, struct wire_record *spare,
                     struct gpu_graph_change *change) {
    struct gpu_error error;
    const struct graph_node *node = &graph->body.nodes[number];
    if (change->patched++ == 0) {
        change->node = number + 1;
        change->label = node->label;
        change->site = node->site;
    }
    if (!graph->made.is_there) {
        return; /* it comes back as what it is then */
    }
    if (!is_patchable(graph, node)) {
        gpu_graph_unsend(graph); /* so does this */
        return;
    }
    if (gpu_device_publish(graph->device,
                           spare ? make_patch(graph, number, spare)
                                 : gpu_graph_patch_record(graph, number),
                           &error)) {
        /* The device is lost, and the graph with it: whoever launches it hears of that, and the
         * next life is sent all of it. Half of a change would be worse. */
        gpu_error_finish(&error);
        gpu_graph_unsend(graph);
    }
}

/* The capture has done what the graph does, but for arguments. */
static void patch_followed(struct gpu_graph *graph, struct gpu_capture *capture,
                           struct gpu_graph_change *change) {
    const struct graph_follow *follow = gpu_capture_follow(capture);
    const struct graph_ref *refs = gpu_capture_refs(capture);
    for (uint32_t i = 0; i < follow->patch_count; i++) {
        const struct graph_patch *to = &follow->patches[i];
        struct graph_node *node = &graph->body.nodes[to->node];
        for (uint32_t k = 0; to->ref_first != GPU_NODE_NONE && k < node->ref_count; k++) {
            struct graph_ref *ref = &graph->body.refs[node->ref_first + k];
            *ref = refs[to->ref_first + k];
            const struct gpu_block *block = ref->ref.block;
            if (block && block->twin) { /* which ends with the capture */
                ref->ref.block = graph->body.made[block->made_number];
            }
        }
        node->label = to->label;
        node->site = to->site;
        if (to->record) {
            memcpy(node->record, to->record, to->record->length_bytes);
            gpu_graph_patch(graph, to->node, to->record, change);
        }
    }
    graph->version++;
}

static void exchange_controls(struct graph_body *a, struct graph_body *b) {
    for (uint32_t i = 0; i < a->node_count; i++) {
        struct graph_control *control = a->nodes[i].control;
        a->nodes[i].control = b->nodes[i].control;
        b->nodes[i].control = control;
    }
}

/* Conditional nodes are the same: those stay that the device has, with what they write. */
static gpulua_status patch_all(struct gpu_graph *graph, struct graph_body *body,
                               struct gpu_graph_change *change, struct gpu_error *error) {
    struct graph_uses uses;
    exchange_controls(&graph->body, body);
    if (!gpu_graph_collect_uses(body, graph->pool, &uses)) {
        exchange_controls(&graph->body, body);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a graph");
    }
    gpu_repeat_forget(graph->device);
    struct graph_body old = graph->body;
    graph->body = *body;
    *body = (struct graph_body){0};
    free(graph->uses.list);
    graph->uses = uses;
    for (uint32_t i = 0; i < old.node_count; i++) {
        struct graph_node *node = &graph->body.nodes[i];
        node->number = old.nodes[i].number;
        memcpy(node->made_kinds, old.nodes[i].made_kinds, sizeof node->made_kinds);
        if (!is_same_node(old.nodes[i].record, node->record)) {
            change->restaged += is_restaged(&old, &graph->body, i);
            gpu_graph_patch(graph, i, NULL, change);
        }
    }
    gpu_graph_body_finish(&old);
    graph->version++;
    return GPULUA_OK;
}

/* ---- */

/* What the graph is for its device changes places; counters and label stay. */
static void exchange(struct gpu_graph *a, struct gpu_graph *b) {
    struct graph_made made = a->made;
    a->made = b->made;
    b->made = made;
    struct graph_body body = a->body;
    a->body = b->body;
    b->body = body;
    struct graph_uses uses = a->uses;
    a->uses = b->uses;
    b->uses = uses;
}

static gpulua_status rebuild(struct gpu_graph *graph, struct graph_body *body,
                             struct gpu_error *error) {
    struct gpu_graph *other;
    gpulua_status status = gpu_graph_create(graph->pool, body, graph->label, &other, error);
    if (status == GPULUA_OK) {
        exchange(graph, other);
        graph->uploads = 0;
        graph->version++;
        gpu_graph_release(other);
    }
    return status;
}

static gpulua_status check_capture(const struct gpu_graph *graph, struct gpu_capture *capture,
                                   struct gpu_error *error) {
    const struct graph_follow *follow = gpu_capture_follow(capture);
    gpulua_status status = gpu_capture_check(capture, "graph", error);
    if (status) {
        return status;
    }
    if (gpu_capture_pool(capture) != graph->pool) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "the capture for an update has another pool than the graph");
    }
    if (gpu_capture_count(capture) == 0) {
        return gpu_error_set(error, GPULUA_EMPTY_CAPTURE,
                             "the capture for an update of graph%s%s recorded nothing",
                             graph->label[0] ? " " : "", graph->label);
    }
    if (follow->is_on && follow->version != follow->graph->version) {
        return gpu_error_set(error, GPULUA_CAPTURE_INVALIDATED,
                             "the graph%s%s was changed while it was being updated",
                             graph->label[0] ? " " : "", graph->label);
    }
    return GPULUA_OK;
}

/* Does a twin stand for each temporary, still? One that became an ordinary buffer meanwhile is to
 * be what the nodes use. */
static bool has_twins(const struct graph_body *body, const struct graph_body *known) {
    bool is_well = true;
    for (uint32_t i = 0; i < body->made_count && i < known->made_count && is_well; i++) {
        is_well = body->made[i]->is_temporary || !known->made[i]->is_temporary;
    }
    return is_well;
}

gpulua_status gpu_graph_update(struct gpu_graph *graph, struct gpu_capture *capture,
                               bool may_rebuild, struct gpu_graph_change *change,
                               struct gpu_error *error) {
    GPU_ENTER(graph->device);
    struct graph_body body = {0};
    *change = (struct gpu_graph_change){0};
    gpulua_status status = check_capture(graph, capture, error);
    const struct graph_follow *follow = gpu_capture_follow(capture);
    bool is_followed = follow->is_on && follow->graph == graph &&
                       follow->count == graph->body.node_count &&
                       has_twins(gpu_capture_body(capture), &graph->body);
    if (status == GPULUA_OK && !is_followed) {
        status = gpu_capture_take(capture, &body, error);
    }
    if (status == GPULUA_OK && is_followed) {
        patch_followed(graph, capture, change);
    } else if (status == GPULUA_OK &&
               is_same_topology(&graph->body, &body, change->why, sizeof change->why)) {
        status = gpu_graph_plan(&body, &graph->body, capture, error);
        status = status ? status : patch_all(graph, &body, change, error);
    } else if (status == GPULUA_OK && may_rebuild) {
        change->is_rebuilt = true;
        status = gpu_graph_plan(&body, NULL, capture, error);
        status = status ? status : rebuild(graph, &body, error);
        graph->device->stats.fallbacks += status == GPULUA_OK;
    } else if (status == GPULUA_OK) {
        status = gpu_error_set(error, GPULUA_TOPOLOGY_CHANGED, "the graph%s%s has changed: %s",
                               graph->label[0] ? " " : "", graph->label, change->why);
    }
    if (status) {
        gpu_temporaries_leave(&body);
    }
    if (!is_followed) {
        gpu_graph_body_finish(&body);
    }
    gpu_capture_end(capture, status == GPULUA_OK);
    if (status == GPULUA_OK && !is_followed) {
        gpu_device_run_deferred(graph->device); /* what it was made of before uses the pool, too */
        gpu_pool_shed(graph->pool, &graph->body);
    }
    return status;
}
