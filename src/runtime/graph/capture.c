/* Captures: work becomes nodes, in the order in which it is submitted, by whichever task. */
#include <stdlib.h>
#include <string.h>

#include "runtime/graph/state.h"

enum capture_state { CAPTURE_ACTIVE, CAPTURE_BROKEN, CAPTURE_ENDED };

struct gpu_capture {
    uint32_t refs;
    enum capture_state state;
    struct gpu_device *device; /* retained */
    struct gpu_pool *pool;     /* used, until it has ended */
    const char *label;         /* interned, or "" */
    struct gpu_error broken;   /* why, once it is */
    struct gpu_failure *never; /* retained: what ops of captured work have failed with */
    struct graph_body body;
};

static struct gpu_failure *make_never(void) {
    struct gpu_failure *failure = gpu_failure_create();
    if (failure) {
        failure->refs = 1;
        failure->is_observed = true;
        gpu_error_set(&failure->error, GPULUA_CAPTURE_ACTIVE,
                      "this work was captured, not done: await what the graph's launch returns");
    }
    return failure;
}

static gpulua_status use_pool(struct gpu_device *device, struct gpu_pool *given,
                              struct gpu_pool **pool, struct gpu_error *error) {
    if (given && gpu_pool_device(given) != device) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT, "the pool is of %s%s, not of %s",
                             gpu_device_kin(gpu_pool_device(given), device),
                             gpu_device_name(gpu_pool_device(given)), gpu_device_name(device));
    }
    struct gpu_pool *own = NULL;
    gpulua_status status = given ? GPULUA_OK : gpu_pool_create(device, &own, error);
    if (status == GPULUA_OK) {
        *pool = given ? given : own;
        gpu_pool_use(*pool);
        gpu_pool_release(own);
    }
    return status;
}

gpulua_status gpu_capture_create(const struct gpu_submit *submit, struct gpu_pool *pool,
                                 struct gpu_capture **capture, struct gpu_error *error) {
    struct gpu_device *device = submit->stream->device;
    GPU_ENTER(device);
    gpulua_status status = gpu_device_check(device, error);
    struct gpu_pool *used = NULL;
    if (status == GPULUA_OK) {
        status = use_pool(device, pool, &used, error);
    }
    if (status) {
        return status;
    }
    struct gpu_capture *made = calloc(1, sizeof *made);
    const char *label = submit->label ? gpu_device_intern(device, submit->label) : "";
    if (made) {
        made->never = make_never();
    }
    if (!made || !made->never || !label) {
        gpu_failure_release(made ? made->never : NULL);
        gpu_pool_unuse(used);
        free(made);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a capture");
    }
    made->refs = 1;
    made->device = gpu_device_keep(device);
    made->pool = used;
    made->label = label;
    *capture = made;
    return GPULUA_OK;
}

struct gpu_capture *gpu_capture_retain(struct gpu_capture *capture) {
    GPU_ENTER(capture->device);
    capture->refs++;
    return capture;
}

static void end(struct gpu_capture *capture) {
    capture->state = CAPTURE_ENDED;
    gpu_graph_body_finish(&capture->body);
    gpu_pool_unuse(capture->pool);
    capture->pool = NULL;
}

void gpu_capture_release(struct gpu_capture *capture) {
    if (!capture) {
        return;
    }
    GPU_ENTER(capture->device);
    if (--capture->refs > 0) {
        return;
    }
    struct gpu_device *device = capture->device;
    end(capture);
    gpu_failure_release(capture->never);
    gpu_error_finish(&capture->broken);
    free(capture);
    gpu_device_drop(device);
}

void gpu_capture_cancel(struct gpu_capture *capture) {
    GPU_ENTER(capture->device);
    end(capture);
}

struct gpu_device *gpu_capture_device(const struct gpu_capture *capture) {
    return capture->device;
}

bool gpu_capture_is_active(const struct gpu_capture *capture) {
    GPU_ENTER(capture->device);
    return capture->state == CAPTURE_ACTIVE;
}

uint32_t gpu_capture_count(const struct gpu_capture *capture) {
    GPU_ENTER(capture->device);
    return capture->body.node_count;
}

/* ---- recording ---- */

gpulua_status gpu_capture_check(const struct gpu_capture *capture, const char *label,
                                struct gpu_error *error) {
    switch (capture->state) {
    case CAPTURE_ACTIVE:
        return GPULUA_OK;
    case CAPTURE_BROKEN:
        return gpu_error_set(error, GPULUA_CAPTURE_INVALIDATED,
                             "'%s' cannot be captured: the capture is broken since: %s", label,
                             capture->broken.message);
    default:
        return gpu_error_set(error, GPULUA_CAPTURE_INVALIDATED,
                             "'%s' cannot be captured: the capture has ended", label);
    }
}

gpulua_status gpu_capture_op(struct gpu_capture *capture, const char *label,
                             const struct gpu_site *site, struct gpu_op **op,
                             struct gpu_error *error) {
    struct gpu_op *made = gpu_op_create(capture->device, NULL, label, *site);
    if (!made) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for the operation '%s'",
                             label);
    }
    made->state = GPU_OP_FAILED;
    made->failure = gpu_failure_retain(capture->never);
    *op = made;
    return GPULUA_OK;
}

static gpulua_status break_off(struct gpu_capture *capture, const char *label,
                               struct gpu_error *error) {
    gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory to capture '%s'", label);
    gpu_error_copy(&capture->broken, error);
    capture->state = CAPTURE_BROKEN;
    return error->code;
}

gpulua_status gpu_capture_keep(struct gpu_capture *capture, struct gpu_block *block,
                               struct gpu_error *error) {
    GPU_ENTER(capture->device);
    if (capture->state != CAPTURE_ACTIVE) {
        return GPULUA_OK; /* nothing comes of it anyhow */
    }
    return block ? gpu_pool_add(capture->pool, block, error)
                 : gpu_pool_check_open(capture->pool, "a new buffer", error);
}

bool gpu_capture_keep_kernel(struct gpu_capture *capture, struct gpu_kernel *kernel) {
    return gpu_graph_keep_kernel(&capture->body, kernel);
}

gpulua_status gpu_capture_add(struct gpu_capture *capture, const struct gpu_envelope *envelope,
                              const struct wire_record *record, uint32_t payload_bytes,
                              struct gpu_op **op, struct gpu_error *error) {
    gpulua_status status = GPULUA_OK;
    for (uint32_t i = 0; i < envelope->use_count && status == GPULUA_OK; i++) {
        struct gpu_block *block = envelope->uses[i].block;
        status = block->is_staging ? GPULUA_OK : gpu_pool_add(capture->pool, block, error);
    }
    if (status == GPULUA_OK && op) {
        status = gpu_capture_op(capture, envelope->label, &envelope->site, op, error);
    }
    if (status) {
        return status;
    }
    for (uint32_t i = 0; i < envelope->use_count; i++) {
        gpu_block_keep_staging(envelope->uses[i].block);
    }
    if (!gpu_graph_add(&capture->body, record, payload_bytes, envelope->label, &envelope->site,
                       envelope->uses, envelope->use_count)) {
        if (op) {
            gpu_op_release(*op);
            *op = NULL;
        }
        return break_off(capture, envelope->label, error);
    }
    return GPULUA_OK;
}

gpulua_status gpu_capture_finish(struct gpu_capture *capture, struct gpu_graph **graph,
                                 struct gpu_error *error) {
    GPU_ENTER(capture->device);
    gpulua_status status = gpu_capture_check(capture, "graph", error);
    if (status == GPULUA_OK && capture->body.node_count == 0) {
        status = gpu_error_set(error, GPULUA_EMPTY_CAPTURE, "the capture%s%s%s recorded nothing",
                               capture->label[0] ? " '" : "", capture->label,
                               capture->label[0] ? "'" : "");
    }
    struct graph_body body = capture->body;
    capture->body = (struct graph_body){0};
    if (status) {
        gpu_graph_body_finish(&body);
    } else {
        status = gpu_graph_create(capture->pool, &body, capture->label, graph, error);
    }
    end(capture);
    return status;
}
