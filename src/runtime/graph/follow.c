/* A capture for the update of a graph, as long as it records what the graph does already: work by
 * work it is compared, and only what is another command now is kept. Nothing is found anew, because
 * edges follow from uses, and those are the same. With the first work that uses something else it
 * becomes an ordinary capture, which begins with what there was so far. */
#include <stdlib.h>
#include <string.h>

#include "runtime/graph/state.h"

void gpu_follow_begin(struct graph_follow *follow, struct gpu_graph *graph) {
    *follow = (struct graph_follow){
        .graph = gpu_graph_retain(graph), .version = graph->version, .is_on = true};
}

void gpu_follow_finish(struct graph_follow *follow) {
    free(follow->patches);
    gpu_graph_release(follow->graph);
    *follow = (struct graph_follow){0};
}

static bool is_use(const struct gpu_use *a, const struct gpu_use *b) {
    return gpu_temporary_is(b->block, a->block) && a->byte_begin == b->byte_begin &&
           a->byte_end == b->byte_end && a->access == b->access;
}

static bool same_uses(const struct graph_body *body, const struct graph_node *node,
                      const struct gpu_envelope *envelope) {
    bool is_same = node->use_count == envelope->use_count;
    for (uint32_t i = 0; i < node->use_count && is_same; i++) {
        is_same = is_use(&body->uses[node->use_first + i], &envelope->uses[i]);
    }
    return is_same;
}

static bool same_ref(const struct graph_ref *a, const struct graph_ref *b) {
    return gpu_temporary_is(b->ref.block, a->ref.block) &&
           a->ref.byte_offset == b->ref.byte_offset && a->ref.byte_count == b->ref.byte_count &&
           a->ref.type == b->ref.type && a->origin == b->origin && a->name == b->name &&
           a->byte_count == b->byte_count && a->byte_begin == b->byte_begin;
}

static bool same_refs(const struct graph_body *body, const struct graph_node *node,
                      const struct graph_ref *refs) {
    bool is_same = true;
    for (uint32_t i = 0; i < node->ref_count && is_same; i++) {
        is_same = same_ref(&body->refs[node->ref_first + i], &refs[i]);
    }
    return is_same;
}

/* Is it the same command, byte by byte? It is as long, and the record has no waits. */
static bool same_command(const struct graph_node *node, const struct wire_record *record,
                         uint32_t payload_bytes) {
    const struct wire_record *known = node->record;
    return memcmp(&known->u, &record->u, sizeof record->u) == 0 &&
           memcmp(known + 1, record + 1, payload_bytes) == 0;
}

/* What is another one than the node's is kept. False: no memory. */
static bool add_patch(struct graph_follow *follow, struct graph_body *next,
                      const struct graph_patch *given, const struct wire_record *record,
                      uint32_t payload_bytes) {
    struct graph_patch patch = *given;
    if (!gpu_graph_grow((void **)&follow->patches, &follow->patch_capacity, follow->patch_count,
                        sizeof *follow->patches)) {
        return false;
    }
    if (record) {
        patch.record = gpu_graph_copy_record(next, record, payload_bytes);
        if (!patch.record) {
            return false;
        }
    }
    if (patch.ref_first != GPU_NODE_NONE) {
        next->refs_taken = next->ref_count;
    }
    follow->patches[follow->patch_count++] = patch;
    return true;
}

bool gpu_follow_add(struct graph_follow *follow, struct graph_body *next,
                    const struct gpu_envelope *envelope, const struct wire_record *record,
                    uint32_t payload_bytes) {
    const struct graph_body *body = &follow->graph->body;
    uint32_t ref_count = next->ref_count - next->refs_taken;
    if (!follow->is_on || follow->count == body->node_count) {
        return false;
    }
    const struct graph_node *node = &body->nodes[follow->count];
    const struct graph_ref *refs = next->refs + next->refs_taken;
    if (node->ref_count != ref_count || node->kernel != next->next_kernel ||
        node->record->length_bytes != sizeof *record + payload_bytes ||
        !same_uses(body, node, envelope) || gpu_graph_is_other(node->record, record)) {
        return false;
    }
    bool is_same_place = node->label == envelope->label && node->site.line == envelope->site.line &&
                         node->site.source == envelope->site.source;
    bool is_same_command = same_command(node, record, payload_bytes);
    bool are_same_refs = same_refs(body, node, refs);
    if (!is_same_place || !is_same_command || !are_same_refs) {
        const struct graph_patch patch = {.node = follow->count,
                                          .label = envelope->label,
                                          .site = envelope->site,
                                          .ref_first =
                                              are_same_refs ? GPU_NODE_NONE : next->refs_taken};
        if (!add_patch(follow, next, &patch, is_same_command ? NULL : record, payload_bytes)) {
            return false;
        }
    }
    next->ref_count = next->refs_taken;
    next->next_kernel = NULL;
    follow->count++;
    return true;
}

/* What stands in the capture for a temporary of the graph. */
static struct gpu_block *twin_of(const struct graph_body *next, struct gpu_block *block) {
    return block && block->is_temporary ? next->made[block->made_number] : block;
}

/* The uses of the graph's node, of which only launches, fills and copies may use temporaries. */
static const struct gpu_use *uses_of(const struct graph_body *body, const struct graph_node *node,
                                     const struct graph_body *next, struct gpu_use *room) {
    const struct gpu_use *uses = body->uses + node->use_first;
    if (node->control) {
        return uses;
    }
    for (uint32_t i = 0; i < node->use_count; i++) {
        room[i] = uses[i];
        room[i].block = twin_of(next, room[i].block);
    }
    return room;
}

/* One of the nodes so far, with its patch if it has one. */
static bool add_node(struct graph_body *to, const struct graph_follow *follow,
                     const struct graph_body *patched, uint32_t number,
                     const struct graph_patch *patch) {
    const struct graph_body *body = &follow->graph->body;
    const struct graph_node *node = &body->nodes[number];
    const struct wire_record *record = patch && patch->record ? patch->record : node->record;
    bool has_refs = patch && patch->ref_first != GPU_NODE_NONE;
    bool is_well = gpu_graph_keep_kernel(to, node->kernel);
    for (uint32_t i = 0; i < node->ref_count && is_well; i++) {
        struct graph_ref ref =
            has_refs ? patched->refs[patch->ref_first + i] : body->refs[node->ref_first + i];
        ref.ref.block = has_refs ? ref.ref.block : twin_of(patched, ref.ref.block);
        is_well = gpu_graph_keep_ref(to, ref.ref.block ? &ref.ref : NULL);
        if (is_well) {
            to->refs[to->ref_count - 1] = ref;
        }
    }
    struct gpu_use room[GPU_USES_MAX];
    is_well = is_well &&
              gpu_graph_add(to, record, record->length_bytes - (uint32_t)sizeof *record,
                            patch ? patch->label : node->label, patch ? &patch->site : &node->site,
                            uses_of(body, node, patched, room), node->use_count);
    if (is_well && node->control) {
        to->nodes[to->node_count - 1].control = gpu_graph_control_retain(node->control);
    }
    return is_well;
}

bool gpu_follow_leave(struct graph_follow *follow, struct graph_body *next) {
    struct graph_body built = {0};
    bool is_well = true;
    follow->is_on = false;
    for (uint32_t i = 0, patch = 0; i < follow->count && is_well; i++) {
        bool has_patch = patch < follow->patch_count && follow->patches[patch].node == i;
        is_well = add_node(&built, follow, next, i, has_patch ? &follow->patches[patch] : NULL);
        patch += has_patch;
    }
    /* And what is known of the work that is to come. */
    is_well = is_well && gpu_graph_keep_kernel(&built, next->next_kernel);
    for (uint32_t i = next->refs_taken; i < next->ref_count && is_well; i++) {
        is_well = gpu_graph_keep_ref(&built, next->refs[i].ref.block ? &next->refs[i].ref : NULL);
        if (is_well) {
            built.refs[built.ref_count - 1] = next->refs[i];
        }
    }
    built.made = next->made;
    built.made_count = next->made_count;
    built.made_capacity = next->made_capacity;
    built.made_for = next->made_for;
    built.made_for_capacity = next->made_for_capacity;
    built.has_temporaries = next->has_temporaries;
    next->made = NULL;
    next->made_for = NULL;
    next->made_count = 0;
    gpu_graph_body_finish(next);
    *next = built;
    return is_well;
}
