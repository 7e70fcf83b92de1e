/* Submitting what a graph recorded once more, with something else in the place of some of it: all
 * that is checked of work is checked anew, and the edges are found anew. */
#include <stdlib.h>
#include <string.h>

#include "runtime/graph/state.h"
#include "runtime/work.h"

struct again {
    const struct graph_body *body;
    struct gpu_block **fresh; /* owned: what stands for what the body made, by number */
    struct gpu_submit submit;
    bool is_launch;
    gpu_graph_change_fn *change; /* or NULL */
    void *user;
};

/* Scalars have no block, and neither have NULL pointers. */
static struct graph_ref ref_of(const struct again *again, uint32_t node, uint32_t index,
                               union gpu_scalar *scalar) {
    struct graph_ref ref = again->body->refs[again->body->nodes[node].ref_first + index];
    if (ref.ref.block && ref.ref.block->is_temporary) {
        ref.ref.block = again->fresh[ref.ref.block->made_number];
    }
    if (again->change) {
        again->change(again->user, node, index, &ref, scalar);
    }
    return ref;
}

static bool is_shared(const struct gpu_ref *a, const struct gpu_ref *b) {
    return a->block && a->block == b->block && a->byte_offset < b->byte_offset + b->byte_count &&
           b->byte_offset < a->byte_offset + a->byte_count;
}

/* What a library is given, it can use as it did before: whoever called it first has looked. */
static gpulua_status check_library(const struct again *again, const struct graph_node *node,
                                   const struct graph_ref *refs, struct gpu_error *error) {
    const struct gpu_signature *signature = gpu_kernel_signature(node->kernel);
    const struct graph_ref *before = again->body->refs + node->ref_first;
    for (uint32_t i = 0; i < signature->param_count; i++) {
        const struct gpu_param *param = &signature->params[i];
        if (before[i].ref.block && !refs[i].ref.block) {
            return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                                 "'%s': a library's call has no NULL in the place of '%s'",
                                 node->label, param->name);
        }
        for (uint32_t k = 0; k < i; k++) {
            uint32_t access = param->access | signature->params[k].access;
            if ((access & GPU_WRITE) != 0 && is_shared(&refs[i].ref, &refs[k].ref) &&
                !is_shared(&before[i].ref, &before[k].ref)) {
                return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                                     "'%s': '%s' and '%s' share memory, as they did not before",
                                     node->label, signature->params[k].name, param->name);
            }
        }
    }
    return GPULUA_OK;
}

static gpulua_status launch(const struct again *again, uint32_t number, struct gpu_error *error) {
    const struct graph_node *node = &again->body->nodes[number];
    const struct wire_record *record = node->record;
    const struct gpu_signature *signature = gpu_kernel_signature(node->kernel);
    const uint8_t *payload = gpu_wire_record_payload(record);
    struct graph_ref refs[GPU_PARAMS_MAX];
    struct gpu_arg args[GPU_PARAMS_MAX];
    struct gpu_launch again_launch = {.submit = again->submit,
                                      .kernel = node->kernel,
                                      .shared_bytes = record->u.launch.shared_bytes,
                                      .args = args,
                                      .arg_count = signature->param_count};
    for (unsigned axis = 0; axis < 3; axis++) {
        again_launch.grid[axis] = record->u.launch.grid[axis];
        again_launch.block[axis] = record->u.launch.block[axis];
    }
    for (uint32_t i = 0; i < signature->param_count; i++) {
        const struct gpu_param *param = &signature->params[i];
        args[i] = (struct gpu_arg){0};
        if (param->kind == GPU_PARAM_SCALAR) {
            memcpy(args[i].scalar.bytes, payload + param->byte_offset, param->byte_count);
        }
        refs[i] = ref_of(again, number, i, &args[i].scalar);
        args[i].ref = refs[i].ref.block ? &refs[i].ref : NULL;
    }
    if (record->u.launch.is_library && again->change) {
        gpulua_status status = check_library(again, node, refs, error);
        if (status) {
            return status;
        }
    }
    gpu_capture_name_refs(again->submit.capture, refs);
    return gpu_work_launch(&again_launch, NULL, error);
}

static gpulua_status fill(const struct again *again, uint32_t number, struct gpu_error *error) {
    union gpu_scalar pattern;
    memcpy(pattern.bytes, again->body->nodes[number].record->u.fill.pattern, sizeof pattern.bytes);
    struct graph_ref dst = ref_of(again, number, 0, &pattern);
    gpu_capture_name_refs(again->submit.capture, &dst);
    return gpu_work_fill(&again->submit, &dst.ref, pattern.bytes, NULL, error);
}

static gpulua_status copy(const struct again *again, uint32_t number, struct gpu_error *error) {
    struct graph_ref refs[] = {ref_of(again, number, 0, NULL), ref_of(again, number, 1, NULL)};
    gpu_capture_name_refs(again->submit.capture, refs);
    return gpu_work_copy(&again->submit, &refs[0].ref, &refs[1].ref, NULL, error);
}

/* With the same bodies: nothing in them can be changed. */
static gpulua_status control(const struct again *again, uint32_t number, struct gpu_error *error) {
    const struct graph_node *node = &again->body->nodes[number];
    struct gpu_envelope envelope = {.label = node->label,
                                    .site = node->site,
                                    .uses = again->body->uses + node->use_first,
                                    .use_count = node->use_count};
    struct gpu_capture *capture = again->submit.capture;
    struct gpu_use *owned = NULL;
    gpulua_status status = gpu_control_check_depth(capture, node->control, error);
    if (status == GPULUA_OK) {
        status = gpu_capture_note(capture, envelope.uses, envelope.use_count, error);
    }
    uint32_t unnamed = gpu_control_unnamed(again->body, node->control, NULL);
    if (status == GPULUA_OK && unnamed > 0) {
        owned = malloc((envelope.use_count + unnamed) * sizeof *owned);
        if (!owned) {
            return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a graph");
        }
        memcpy(owned, envelope.uses, envelope.use_count * sizeof *owned);
        envelope.use_count +=
            gpu_control_unnamed(again->body, node->control, owned + envelope.use_count);
        envelope.uses = owned;
    }
    if (status == GPULUA_OK) {
        status = gpu_capture_put(capture, &envelope, node->record, 0, node->control, error);
    }
    free(owned);
    return status;
}

/* Temporaries of the capture's own, in the place of the body's; the capture keeps them. */
static gpulua_status make_fresh(struct again *again, struct gpu_error *error) {
    const struct graph_body *body = again->body;
    struct gpu_capture *capture = again->submit.capture;
    if (body->made_count == 0) {
        return GPULUA_OK;
    }
    again->fresh = calloc(body->made_count, sizeof(struct gpu_block *));
    gpulua_status status =
        again->fresh ? GPULUA_OK
                     : gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for buffers");
    for (uint32_t i = 0; i < body->made_count && status == GPULUA_OK; i++) {
        enum graph_made_for made_for = body->made_for[i];
        if (again->is_launch) {
            made_for = body->made[i]->is_temporary ? GRAPH_MADE_FOR_LAUNCH : GRAPH_MADE_FOR_OTHER;
        }
        status = gpu_capture_make_again(capture, body->made[i], made_for, &again->fresh[i], error);
    }
    return status;
}

static uint32_t count_in(struct gpu_capture *capture) {
    const struct graph_follow *follow = gpu_capture_follow(capture);
    return follow->is_on ? follow->count : gpu_capture_body(capture)->node_count;
}

/* What the capture refuses of a node it refuses before there is any: it goes on without. */
static gpulua_status check_nodes(const struct graph_body *body, struct gpu_capture *capture,
                                 struct gpu_error *error) {
    gpulua_status status = gpu_capture_note(capture, body->uses, body->use_count, error);
    for (uint32_t i = 0; i < body->node_count && status == GPULUA_OK; i++) {
        const struct graph_node *node = &body->nodes[i];
        if (node->control) {
            status = gpu_control_check_depth(capture, node->control, error);
        } else if (node->kernel) {
            status = gpu_work_check_reports(node->kernel, capture, error);
        }
    }
    return status;
}

gpulua_status gpu_graph_submit_again(const struct graph_body *body, struct gpu_capture *capture,
                                     const struct gpu_submit *submit, bool is_launch,
                                     gpu_graph_change_fn *change, void *user,
                                     struct gpu_error *error) {
    struct again again = {
        .body = body, .submit = *submit, .is_launch = is_launch, .change = change, .user = user};
    again.submit.capture = capture;
    uint32_t count = count_in(capture);
    gpulua_status status = check_nodes(body, capture, error);
    if (status == GPULUA_OK) {
        status = make_fresh(&again, error);
    }
    for (uint32_t i = 0; i < body->node_count && status == GPULUA_OK; i++) {
        const struct graph_node *node = &body->nodes[i];
        again.submit.label = node->label;
        again.submit.site = node->site;
        if (node->control) {
            status = control(&again, i, error);
        } else if (node->kernel) {
            status = launch(&again, i, error);
        } else if (node->record->opcode == WIRE_OP_FILL) {
            status = fill(&again, i, error);
        } else {
            status = copy(&again, i, error);
        }
    }
    if (status && count_in(capture) > count) {
        gpu_capture_break(capture, error);
    }
    gpu_capture_name_refs(capture, NULL); /* what was named is gone */
    free((void *)again.fresh);
    return status;
}
