/* Conditional nodes: what bodies have recorded as one node of the graph that they are in. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/graph/state.h"

static_assert((int)GPU_CONTROL_IF == WIRE_CONTROL_IF &&
                  (int)GPU_CONTROL_WHILE == WIRE_CONTROL_WHILE &&
                  (int)GPU_CONTROL_SWITCH == WIRE_CONTROL_SWITCH,
              "as on the wire");
static_assert(GPU_CONTROL_BODIES_MAX == WIRE_CONTROL_BODIES_MAX &&
                  GPU_CONTROL_DEPTH_MAX == WIRE_CONTROL_DEPTH_MAX,
              "as on the wire");

static const char *const names[] = {"if_", "while_", "switch"};

/* ---- bodies ---- */

struct graph_control *gpu_graph_control_retain(struct graph_control *control) {
    control->refs++;
    return control;
}

void gpu_graph_control_release(struct graph_control *control) {
    if (!control || --control->refs > 0) {
        return;
    }
    for (uint32_t i = 0; i < control->body_count; i++) {
        gpu_graph_body_finish(&control->bodies[i]);
    }
    free(control);
}

void gpu_graph_count(const struct graph_body *body, struct graph_totals *totals) {
    totals->node_count += body->node_count;
    totals->edge_count += body->edge_count;
    for (uint32_t i = 0; i < body->node_count; i++) {
        const struct graph_control *control = body->nodes[i].control;
        totals->control_count += control != NULL;
        for (uint32_t k = 0; control && k < control->body_count; k++) {
            totals->body_count++;
            gpu_graph_count(&control->bodies[k], totals);
        }
    }
}

static uint32_t height_of(const struct graph_body *body) {
    uint32_t height = 0;
    for (uint32_t i = 0; i < body->node_count; i++) {
        const struct graph_control *control = body->nodes[i].control;
        height = control && control->height > height ? control->height : height;
    }
    return height;
}

/* ---- checks ---- */

gpulua_status gpu_control_check(const struct gpu_ref *value, struct gpu_device *device,
                                const char *what, struct gpu_error *error) {
    gpulua_status status = gpu_ref_check(value, device, what, error);
    if (status) {
        return status;
    }
    enum gpu_class kind = gpu_type_class(value->type);
    bool is_integer = kind == GPU_CLASS_SIGNED || kind == GPU_CLASS_UNSIGNED;
    if (!is_integer || value->byte_count != gpu_type_bytes(value->type)) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "%s: one element of an integer type expected, got %llu of %s", what,
                             (unsigned long long)(value->byte_count / gpu_type_bytes(value->type)),
                             gpu_type_name(value->type));
    }
    if (value->block->is_host) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "%s: memory of the device expected, got a host buffer", what);
    }
    return GPULUA_OK;
}

/* Of a module's variable it is not known where in it a kernel of that module writes, or whether. */
static bool is_written(const struct graph_body *body, const struct gpu_ref *value) {
    if (value->block->module) {
        struct gpu_block *all = value->block->module->hazards;
        const struct gpu_ref any = {.block = all, .byte_count = UINT64_MAX};
        if (gpu_graph_find_track(body, all) != GPU_NODE_NONE && is_written(body, &any)) {
            return true;
        }
    }
    uint32_t index = gpu_graph_find_track(body, value->block);
    const struct graph_track *track = index != GPU_NODE_NONE ? &body->tracks[index] : NULL;
    for (uint32_t i = 0; track && i < track->use_count; i++) {
        const struct gpu_use *use = &track->uses[i];
        if ((use->access & GPU_WRITE) && use->byte_begin < value->byte_offset + value->byte_count &&
            value->byte_offset < use->byte_end) {
            return true;
        }
    }
    return false;
}

static gpulua_status check_bodies(const struct gpu_control *control, struct gpu_error *error) {
    const char *name = names[control->kind];
    for (uint32_t i = 0; i < control->body_count; i++) {
        gpulua_status status = gpu_capture_check(control->bodies[i], name, error);
        if (status) {
            return status;
        }
        if (gpu_capture_body(control->bodies[i])->node_count == 0) {
            return gpu_error_set(error, GPULUA_EMPTY_CAPTURE, "%s: function %u launched nothing",
                                 name, i + 1);
        }
    }
    if (control->kind == GPU_CONTROL_WHILE &&
        !is_written(gpu_capture_body(control->bodies[0]), control->value)) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "while_: nothing in the loop writes its condition, so it would never "
                             "end");
    }
    return GPULUA_OK;
}

gpulua_status gpu_control_check_depth(const struct gpu_capture *capture,
                                      const struct graph_control *control,
                                      struct gpu_error *error) {
    uint32_t depth = gpu_capture_depth(capture) + control->height;
    return depth <= GPU_CONTROL_DEPTH_MAX
               ? GPULUA_OK
               : gpu_error_set(error, GPULUA_CAPACITY,
                               "a graph with %u bodies within each other, inside of %u: %u is the "
                               "most",
                               control->height, gpu_capture_depth(capture), GPU_CONTROL_DEPTH_MAX);
}

/* ---- the node ---- */

/* Those of all bodies. What a body writes may be written or not, so whoever uses it next depends on
 * what was there before, too: as if the node read it. */
static gpulua_status collect_uses(const struct gpu_control *control, struct gpu_envelope *envelope,
                                  struct gpu_use **owned, struct gpu_error *error) {
    uint32_t count = envelope->use_count;
    for (uint32_t i = 0; i < control->body_count; i++) {
        const struct graph_body *body = gpu_capture_body(control->bodies[i]);
        for (uint32_t k = 0; k < body->track_count; k++) {
            count += body->tracks[k].use_count;
        }
    }
    struct gpu_use *uses = malloc(count * sizeof *uses);
    if (!uses) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a conditional node");
    }
    memcpy(uses, envelope->uses, envelope->use_count * sizeof *uses);
    count = envelope->use_count;
    for (uint32_t i = 0; i < control->body_count; i++) {
        const struct graph_body *body = gpu_capture_body(control->bodies[i]);
        for (uint32_t k = 0; k < body->track_count; k++) {
            for (uint32_t u = 0; u < body->tracks[k].use_count; u++) {
                uses[count] = body->tracks[k].uses[u];
                uses[count].access &= (uint8_t)~GPU_USE_SETTLED;
                if (uses[count].access == GPU_WRITE) {
                    uses[count].access = GPU_READ_WRITE | GPU_USE_MAYBE;
                }
                count++;
            }
        }
    }
    envelope->uses = *owned = uses;
    envelope->use_count = count;
    return GPULUA_OK;
}

uint32_t gpu_control_unnamed(const struct graph_body *body, const struct graph_control *control,
                             struct gpu_use *uses) {
    uint32_t count = 0;
    for (uint32_t i = 0; control && i < control->body_count; i++) {
        for (uint32_t k = 0; k < control->bodies[i].track_count; k++) {
            struct gpu_block *block = control->bodies[i].tracks[k].block;
            if (block->is_temporary || gpu_graph_find_track(body, block) != GPU_NODE_NONE) {
                continue;
            }
            if (uses) {
                uses[count] = (struct gpu_use){
                    .block = block, .byte_end = block->byte_count, .access = GPU_READ};
            }
            count++;
        }
    }
    return count;
}

static struct graph_control *make(const struct gpu_control *control) {
    struct graph_control *made =
        calloc(1, sizeof *made + control->body_count * sizeof made->bodies[0]);
    if (!made) {
        return NULL;
    }
    made->refs = 1;
    made->kind = control->kind;
    made->body_count = control->body_count;
    for (uint32_t i = 0; i < control->body_count; i++) {
        uint32_t height = height_of(gpu_capture_body(control->bodies[i])) + 1;
        made->height = height > made->height ? height : made->height;
    }
    return made;
}

static gpulua_status add(const struct gpu_submit *submit, const struct gpu_control *control,
                         struct gpu_envelope *envelope, struct gpu_op **op,
                         struct gpu_error *error) {
    struct wire_record *record;
    struct gpu_use *owned = NULL;
    struct graph_control *made = NULL;
    gpulua_status status = gpu_envelope_record(envelope, WIRE_OP_CONTROL, &record, error);
    if (status == GPULUA_OK) {
        record->u.control.address = control->value->block->address + control->value->byte_offset;
        record->u.control.kind = (uint32_t)control->kind;
        record->u.control.elem_bytes = gpu_type_bytes(control->value->type);
        record->u.control.body_count = control->body_count;
        /* The bodies' own are known already, and what was staging memory is to be no block of its.
         */
        status = gpu_capture_note(submit->capture, envelope->uses, envelope->use_count, error);
    }
    if (status == GPULUA_OK) {
        status = collect_uses(control, envelope, &owned, error);
    }
    if (status == GPULUA_OK) {
        status = gpu_capture_observe(submit->capture, envelope, error);
    }
    if (status == GPULUA_OK && !(made = make(control))) {
        status =
            gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a conditional node");
    }
    if (status == GPULUA_OK) {
        status = gpu_capture_put(submit->capture, envelope, record, 0, made, error);
    }
    for (uint32_t i = 0; status == GPULUA_OK && i < control->body_count; i++) {
        status = gpu_capture_take(control->bodies[i], &made->bodies[i], error);
        gpu_capture_cancel(control->bodies[i]);
    }
    if (status == GPULUA_OK && op) {
        status = gpu_capture_op(submit->capture, envelope->label, &envelope->site, op, error);
    }
    gpu_graph_control_release(made);
    free(owned);
    return status;
}

gpulua_status gpu_control_add(const struct gpu_submit *submit, const struct gpu_control *control,
                              struct gpu_op **op, struct gpu_error *error) {
    struct gpu_device *device = submit->stream->device;
    GPU_ENTER(device);
    struct gpu_envelope envelope;
    char what[32];
    snprintf(what, sizeof what, "condition of %s", names[control->kind]);
    gpulua_status status = gpu_envelope_begin(&envelope, submit, names[control->kind], error);
    if (status == GPULUA_OK) {
        status = gpu_control_check(control->value, device, what, error);
    }
    if (status == GPULUA_OK && control->value->block->is_temporary) { /* its address is kept */
        status = gpu_temporary_settle(control->value->block, submit->capture, what, error);
    }
    if (status == GPULUA_OK) {
        status = gpu_work_use(&envelope, control->value, GPU_READ, what, error);
    }
    if (status == GPULUA_OK) {
        status = check_bodies(control, error);
    }
    return status ? status : add(submit, control, &envelope, op, error);
}
