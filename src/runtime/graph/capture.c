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
    uint64_t number;           /* of the outermost one; given out once */
    uint64_t epoch;            /* of the device, when it began */
    uint32_t depth;            /* bodies that it is in, with itself; 0: it is no body */
    struct gpu_failure *never; /* retained: what ops of captured work have failed with; or NULL */
    struct gpu_op *op;         /* retained: that of the newest work; NULL: none yet */
    struct graph_body body;
    const struct graph_ref *like; /* see gpu_capture_name_refs */
    struct graph_follow follow;   /* of the graph that this is an update of */
    struct gpu_capture *root;     /* retained: a body's outermost capture; or NULL */
    struct seen {
        struct gpu_index index; /* of the shadows, by the block's number */
        void **shadows;         /* owned: the observer's, of the blocks that are used */
        uint32_t count, capacity;
    } seen;       /* in check mode */
    char *broken; /* owned: why, once it is; NULL: there was no memory for that */
};

/* NULL: no memory. */
static struct gpu_failure *never_of(struct gpu_capture *capture) {
    struct gpu_failure *failure = capture->never ? NULL : gpu_failure_create();
    if (failure) {
        failure->refs = 1;
        failure->is_observed = true;
        gpu_error_set(&failure->error, GPULUA_CAPTURE_ACTIVE,
                      "this work was captured, not done: await what the graph's launch returns");
        capture->never = failure;
    }
    return capture->never;
}

static gpulua_status use_pool(struct gpu_device *device, struct gpu_pool *given,
                              struct gpu_pool **pool, struct gpu_error *error) {
    if (given && gpu_pool_device(given) != device) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT, "the pool is of %s%s, not of %s",
                             gpu_device_kin(gpu_pool_device(given), device),
                             gpu_device_title(gpu_pool_device(given)), gpu_device_title(device));
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

/* `used` is its from here on. */
static gpulua_status make(struct gpu_device *device, const char *named, struct gpu_pool *used,
                          struct gpu_capture **capture, struct gpu_error *error) {
    struct gpu_capture *made = calloc(1, sizeof *made);
    const char *label = named ? gpu_device_intern(device, named) : "";
    if (!made || !label) {
        gpu_pool_unuse(used);
        free(made);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a capture");
    }
    made->refs = 1;
    made->device = gpu_device_keep(device);
    made->pool = used;
    made->label = label;
    made->number = ++device->capture_number_next;
    made->epoch = device->epoch;
    *capture = made;
    return GPULUA_OK;
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
    return status ? status : make(device, submit->label, used, capture, error);
}

gpulua_status gpu_control_begin(struct gpu_capture *capture, const char *label,
                                struct gpu_capture **body, struct gpu_error *error) {
    GPU_ENTER(capture->device);
    gpulua_status status = gpu_capture_check(capture, label, error);
    if (status == GPULUA_OK && capture->depth == GPU_CONTROL_DEPTH_MAX) {
        status = gpu_error_set(error, GPULUA_CAPACITY, "'%s' is in %u bodies already, the most",
                               label, GPU_CONTROL_DEPTH_MAX);
    }
    if (status) {
        return status;
    }
    gpu_pool_use(capture->pool);
    status = make(capture->device, label, capture->pool, body, error);
    if (status == GPULUA_OK) {
        (*body)->depth = capture->depth + 1;
        (*body)->number = capture->number;
        (*body)->root = gpu_capture_retain(capture->root ? capture->root : capture);
    }
    return status;
}

struct gpu_capture *gpu_capture_retain(struct gpu_capture *capture) {
    GPU_ENTER(capture->device);
    capture->refs++;
    return capture;
}

/* If nothing comes of it, the pool keeps nothing for it. */
static void forget_seen(struct gpu_capture *capture) {
    struct seen *seen = &capture->seen;
    const struct gpu_observer *observer = capture->device->observer;
    for (uint32_t i = 0; i < seen->count; i++) {
        if (seen->shadows[i] && observer) {
            observer->block_gone(observer->user, seen->shadows[i]);
        }
    }
    gpu_index_finish(&seen->index);
    free(seen->shadows);
    *seen = (struct seen){0};
}

static void end(struct gpu_capture *capture, bool is_good) {
    if (capture->state == CAPTURE_ENDED) {
        return;
    }
    forget_seen(capture);
    capture->state = CAPTURE_ENDED;
    if (!is_good) {
        gpu_temporaries_leave(&capture->body);
    }
    gpu_graph_body_finish(&capture->body);
    if (capture->pool && capture->depth == 0 && !is_good) {
        gpu_pool_forget(capture->pool, capture->number);
    }
    gpu_pool_unuse(capture->pool);
    capture->pool = NULL;
    gpu_follow_finish(&capture->follow);
}

void gpu_capture_release(struct gpu_capture *capture) {
    if (!capture) {
        return;
    }
    GPU_ENTER_WHOLE(capture->device);
    if (--capture->refs > 0) {
        return;
    }
    struct gpu_device *device = capture->device;
    end(capture, false);
    gpu_capture_release(capture->root);
    gpu_op_release(capture->op);
    gpu_failure_release(capture->never);
    free(capture->broken);
    free(capture);
    gpu_device_drop(device);
}

void gpu_capture_cancel(struct gpu_capture *capture) {
    gpu_capture_end(capture, false);
}

void gpu_capture_end(struct gpu_capture *capture, bool is_good) {
    GPU_ENTER_WHOLE(capture->device);
    end(capture, is_good);
}

struct gpu_device *gpu_capture_device(const struct gpu_capture *capture) {
    return capture->device;
}

const char *gpu_capture_label(const struct gpu_capture *capture) {
    return capture->label;
}

bool gpu_capture_is_active(const struct gpu_capture *capture) {
    GPU_ENTER(capture->device);
    return capture->state == CAPTURE_ACTIVE;
}

uint32_t gpu_capture_count(const struct gpu_capture *capture) {
    GPU_ENTER(capture->device);
    struct graph_totals totals = {0};
    gpu_graph_count(&capture->body, &totals);
    return capture->follow.is_on ? capture->follow.count : totals.node_count;
}

uint64_t gpu_capture_number(const struct gpu_capture *capture) {
    return capture->number;
}

uint32_t gpu_capture_depth(const struct gpu_capture *capture) {
    return capture->depth;
}

const struct graph_body *gpu_capture_body(const struct gpu_capture *capture) {
    return &capture->body;
}

/* ---- recording ---- */

gpulua_status gpu_capture_check(const struct gpu_capture *capture, const char *label,
                                struct gpu_error *error) {
    if (__builtin_expect(capture->epoch != capture->device->epoch, 0)) {
        return gpu_error_set(error, GPULUA_CAPTURE_INVALIDATED,
                             "'%s' cannot be captured: device %s was lost in the middle of the "
                             "capture, and has come up again",
                             label, capture->device->title);
    }
    if (capture->root && capture->root->state != CAPTURE_ACTIVE) { /* nothing comes of a body */
        capture = capture->root;
    }
    switch (capture->state) {
    case CAPTURE_ACTIVE:
        return GPULUA_OK;
    case CAPTURE_BROKEN:
        return gpu_error_set(error, GPULUA_CAPTURE_INVALIDATED,
                             "'%s' cannot be captured: the capture is broken since: %s", label,
                             capture->broken ? capture->broken : "no host memory");
    default:
        return gpu_error_set(error, GPULUA_CAPTURE_INVALIDATED,
                             "'%s' cannot be captured: the capture has ended", label);
    }
}

gpulua_status gpu_capture_op(struct gpu_capture *capture, const char *label,
                             const struct gpu_site *site, struct gpu_op **op,
                             struct gpu_error *error) {
    const struct gpu_op *last = capture->op;
    if (last && last->label == label && last->site.source == site->source &&
        last->site.line == site->line) { /* one is as good as the other */
        *op = gpu_op_retain(capture->op);
        return GPULUA_OK;
    }
    struct gpu_failure *never = never_of(capture);
    struct gpu_op *made = never ? gpu_op_create(capture->device, NULL, label, *site) : NULL;
    if (!made) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for the operation '%s'",
                             label);
    }
    made->state = GPU_OP_FAILED;
    made->failure = gpu_failure_retain(never);
    gpu_op_release(capture->op);
    capture->op = gpu_op_retain(made);
    *op = made;
    return GPULUA_OK;
}

static gpulua_status break_by(struct gpu_capture *capture, const struct gpu_error *error) {
    capture->broken = strdup(error->message);
    capture->state = CAPTURE_BROKEN;
    return error->code;
}

void gpu_capture_break(struct gpu_capture *capture, const struct gpu_error *error) {
    if (capture->state == CAPTURE_ACTIVE) {
        (void)break_by(capture, error);
    }
}

static gpulua_status break_off(struct gpu_capture *capture, const char *label,
                               struct gpu_error *error) {
    gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory to capture '%s'", label);
    return break_by(capture, error);
}

static gpulua_status note_made(struct gpu_capture *capture, struct gpu_block *block,
                               enum graph_made_for made_for, struct gpu_error *error) {
    struct graph_body *body = &(capture->root ? capture->root : capture)->body;
    if (!gpu_graph_note_made(body, block, capture->number, made_for)) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a buffer");
    }
    return GPULUA_OK;
}

gpulua_status gpu_capture_keep(struct gpu_capture *capture, struct gpu_block *block,
                               struct gpu_error *error) {
    GPU_ENTER(capture->device);
    const struct gpu_capture *root = capture->root ? capture->root : capture;
    if (capture->state != CAPTURE_ACTIVE || root->state != CAPTURE_ACTIVE) {
        return GPULUA_OK; /* nothing comes of it anyhow */
    }
    if (!block) {
        return gpu_pool_check_open(capture->pool, "a new buffer", error);
    }
    gpulua_status status = block->is_temporary
                               ? GPULUA_OK
                               : gpu_pool_add(capture->pool, block, capture->number, error);
    return status ? status : note_made(capture, block, GRAPH_MADE_FOR_SCRIPT, error);
}

static struct gpu_block *made_before(struct gpu_capture *capture, enum graph_made_for made_for,
                                     uint64_t byte_count, const char *label, bool is_host) {
    const struct gpu_capture *root = capture->root ? capture->root : capture;
    uint32_t at = root->body.made_count;
    const struct gpu_graph *graph = root->follow.graph;
    const struct graph_body *before = graph && root->state == CAPTURE_ACTIVE ? &graph->body : NULL;
    struct gpu_block *block = before && at < before->made_count ? before->made[at] : NULL;
    struct gpu_error ignored = {0};
    if (!block || before->made_for[at] != made_for || block->byte_count != byte_count ||
        block->is_host != is_host || block->is_freed ||
        (block->epoch != capture->device->epoch && !block->is_lone) ||
        !gpu_label_is(block->label, block->is_label_cut, label ? label : "")) {
        return NULL;
    }
    if (block->is_lone) { /* for who makes it, it is new */
        block->epoch = capture->device->epoch;
    }
    block = block->is_temporary ? gpu_temporary_twin(block) : gpu_block_retain(block);
    if (block && note_made(capture, block, made_for, &ignored)) {
        gpu_error_finish(&ignored);
        gpu_block_release(block);
        return NULL;
    }
    return block;
}

struct gpu_block *gpu_capture_made_before(struct gpu_capture *capture, uint64_t byte_count,
                                          const char *label, bool is_host) {
    GPU_ENTER(capture->device);
    return made_before(capture, GRAPH_MADE_FOR_SCRIPT, byte_count, label, is_host);
}

gpulua_status gpu_capture_make_again(struct gpu_capture *capture, struct gpu_block *known,
                                     enum graph_made_for made_for, struct gpu_block **block,
                                     struct gpu_error *error) {
    if (!known->is_temporary) {
        *block = known;
        return note_made(capture, known, made_for, error);
    }
    const struct gpu_block_info info = gpu_block_info_of(known);
    gpulua_status status = GPULUA_OK;
    *block = made_before(capture, made_for, info.byte_count, info.label, false);
    if (!*block) {
        status = gpu_block_create_temporary(capture->device, &info, block, error);
        if (status == GPULUA_OK) {
            (*block)->type = known->type;
            status = note_made(capture, *block, made_for, error);
            gpu_block_release(*block);
        }
        return status;
    }
    gpu_block_release(*block); /* the capture keeps it */
    return status;
}

bool gpu_capture_has_made(const struct gpu_capture *capture, const struct gpu_block *block) {
    return gpu_graph_has_made(&(capture->root ? capture->root : capture)->body, block);
}

bool gpu_capture_wants_collect(struct gpu_capture *capture) {
    GPU_ENTER(capture->device);
    const struct graph_follow *follow = &capture->follow;
    bool is_patch = follow->is_on && follow->count == follow->graph->body.node_count;
    if (is_patch) {
        return false;
    }
    uint64_t bytes = gpu_capture_count(capture) * capture->device->facts.graph_node_bytes;
    for (uint32_t i = 0; i < capture->body.made_count; i++) {
        const struct gpu_block *block = capture->body.made[i];
        if (block->is_temporary && gpu_temporary_is_held(&capture->body, block)) {
            return true;
        }
        bytes += block->is_temporary ? gpu_block_granted_bytes(block->byte_count) : 0;
    }
    return gpu_graph_lacks_room(capture->device, bytes);
}

gpulua_status gpu_capture_again(struct gpu_graph *graph, const struct gpu_submit *submit,
                                struct gpu_capture **capture, struct gpu_error *error) {
    GPU_ENTER(graph->device);
    struct gpu_submit named = *submit;
    named.label = graph->label[0] ? graph->label : NULL;
    gpulua_status status = gpu_capture_create(&named, graph->pool, capture, error);
    if (status == GPULUA_OK) {
        gpu_follow_begin(&(*capture)->follow, graph);
    }
    return status;
}

bool gpu_capture_keep_launch(struct gpu_capture *capture, const struct gpu_launch *launch) {
    const struct gpu_signature *signature = gpu_kernel_signature(launch->kernel);
    if (!gpu_graph_keep_kernel(&capture->body, launch->kernel)) {
        return false;
    }
    for (uint32_t i = 0; i < signature->param_count; i++) {
        bool is_pointer = signature->params[i].kind == GPU_PARAM_POINTER;
        if (!gpu_graph_keep_ref(&capture->body, is_pointer ? launch->args[i].ref : NULL)) {
            return false;
        }
    }
    return true;
}

bool gpu_capture_keep_transfer(struct gpu_capture *capture, const struct gpu_ref *dst,
                               const struct gpu_ref *src) {
    return gpu_graph_keep_kernel(&capture->body, NULL) && gpu_graph_keep_ref(&capture->body, dst) &&
           (!src || gpu_graph_keep_ref(&capture->body, src));
}

void gpu_capture_name_refs(struct gpu_capture *capture, const struct graph_ref *like) {
    capture->like = like;
}

struct graph_follow *gpu_capture_follow(struct gpu_capture *capture) {
    return &capture->follow;
}

const struct graph_ref *gpu_capture_refs(const struct gpu_capture *capture) {
    return capture->body.refs;
}

gpulua_status gpu_capture_take(struct gpu_capture *capture, struct graph_body *body,
                               struct gpu_error *error) {
    if (capture->follow.is_on && !gpu_follow_leave(&capture->follow, &capture->body)) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a graph");
    }
    *body = capture->body;
    capture->body = (struct graph_body){0};
    return GPULUA_OK;
}

struct gpu_pool *gpu_capture_pool(const struct gpu_capture *capture) {
    return capture->pool;
}

static void name_refs(struct graph_body *body, const struct graph_ref *like) {
    for (uint32_t i = body->refs_taken; i < body->ref_count; i++) {
        struct gpu_ref ref = body->refs[i].ref;
        body->refs[i] = like[i - body->refs_taken];
        body->refs[i].ref = ref;
    }
}

/* From here on it is an ordinary capture. The graph may have been changed meanwhile: then nobody
 * knows any more what was followed. */
static gpulua_status leave(struct gpu_capture *capture, const char *label,
                           struct gpu_error *error) {
    struct graph_follow *follow = &capture->follow;
    if (follow->graph->version == follow->version) {
        return gpu_follow_leave(follow, &capture->body) ? GPULUA_OK
                                                        : break_off(capture, label, error);
    }
    gpu_error_set(error, GPULUA_CAPTURE_INVALIDATED,
                  "'%s' cannot be captured: the graph that is to be updated was changed meanwhile",
                  label);
    return break_by(capture, error);
}

gpulua_status gpu_capture_note(struct gpu_capture *capture, const struct gpu_use *uses,
                               uint32_t use_count, struct gpu_error *error) {
    gpulua_status status = GPULUA_OK;
    for (uint32_t i = 0; i < use_count && status == GPULUA_OK; i++) {
        struct gpu_block *block = uses[i].block;
        bool is_kept = !block->is_staging && !block->is_temporary;
        status = is_kept ? gpu_pool_add(capture->pool, block, capture->number, error) : GPULUA_OK;
    }
    return status;
}

/* The place of the block's shadow; GPU_NODE_NONE: no memory. */
static uint32_t see_block(struct seen *seen, const struct gpu_block *block) {
    uint32_t *place = gpu_index_make(&seen->index, (const void *)(uintptr_t)block->number);
    if (place && *place == GPU_NODE_NONE &&
        gpu_graph_grow((void **)&seen->shadows, &seen->capacity, seen->count,
                       sizeof *seen->shadows)) {
        *place = seen->count++;
        seen->shadows[*place] = NULL;
    }
    return place ? *place : GPU_NODE_NONE;
}

gpulua_status gpu_capture_observe(struct gpu_capture *capture, const struct gpu_envelope *envelope,
                                  struct gpu_error *error) {
    const struct gpu_observer *observer = capture->device->observer;
    if (!observer) {
        return GPULUA_OK;
    }
    struct gpu_seen_use room[GPU_USES_MAX], *uses = room;
    if (envelope->use_count > GPU_USES_MAX) {
        uses = malloc(envelope->use_count * sizeof *uses);
    }
    bool is_well = uses != NULL;
    for (uint32_t i = 0; i < envelope->use_count && is_well; i++) {
        is_well = see_block(&capture->seen, envelope->uses[i].block) != GPU_NODE_NONE;
    }
    for (uint32_t i = 0; i < envelope->use_count && is_well; i++) {
        uint32_t place = see_block(&capture->seen, envelope->uses[i].block);
        uses[i] = gpu_envelope_see(&envelope->uses[i], &capture->seen.shadows[place]);
    }
    const struct gpu_submission submission = {
        .device = capture->device,
        .label = envelope->label,
        .source = envelope->site.source,
        .line = envelope->site.line,
        .stream = envelope->stream->number,
        .uses = uses,
        .use_count = envelope->use_count,
    };
    gpulua_status status =
        is_well ? observer->capture(observer->user, &submission, error)
                : gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for the uses of '%s'",
                                envelope->label);
    if (uses != room) {
        free(uses);
    }
    return status;
}

/* As part of an update: if the graph does it already but for arguments, that is all there is to
 * do. */
static gpulua_status add(struct gpu_capture *capture, const struct gpu_envelope *envelope,
                         const struct wire_record *record, uint32_t payload_bytes,
                         struct gpu_error *error) {
    if (capture->like) {
        name_refs(&capture->body, capture->like);
    }
    const struct graph_follow *follow = &capture->follow;
    if (follow->is_on && follow->graph->version == follow->version &&
        gpu_follow_add(&capture->follow, &capture->body, envelope, record, payload_bytes)) {
        return GPULUA_OK;
    }
    gpulua_status status = gpu_capture_note(capture, envelope->uses, envelope->use_count, error);
    return status ? status : gpu_capture_put(capture, envelope, record, payload_bytes, NULL, error);
}

gpulua_status gpu_capture_add(struct gpu_capture *capture, const struct gpu_envelope *envelope,
                              const struct wire_record *record, uint32_t payload_bytes,
                              struct gpu_op **op, struct gpu_error *error) {
    gpulua_status status = gpu_capture_observe(capture, envelope, error);
    if (status) {
        return status;
    }
    status = op ? gpu_capture_op(capture, envelope->label, &envelope->site, op, error) : GPULUA_OK;
    if (status) {
        return status;
    }
    status = add(capture, envelope, record, payload_bytes, error);
    if (status && op) {
        gpu_op_release(*op);
        *op = NULL;
    }
    return status;
}

gpulua_status gpu_capture_put(struct gpu_capture *capture, const struct gpu_envelope *envelope,
                              const struct wire_record *record, uint32_t payload_bytes,
                              struct graph_control *control, struct gpu_error *error) {
    struct graph_body *body = &capture->body;
    if (control) { /* whose bodies have what it is submitted with */
        (void)gpu_graph_keep_kernel(body, NULL);
    }
    gpulua_status status =
        capture->follow.is_on ? leave(capture, envelope->label, error) : GPULUA_OK;
    if (status) {
        return status;
    }
    for (uint32_t i = 0; i < envelope->use_count; i++) {
        gpu_block_keep_staging(envelope->uses[i].block);
    }
    if (!gpu_graph_add(body, record, payload_bytes, envelope->label, &envelope->site,
                       envelope->uses, envelope->use_count)) {
        return break_off(capture, envelope->label, error);
    }
    if (control) {
        body->nodes[body->node_count - 1].control = gpu_graph_control_retain(control);
    }
    return GPULUA_OK;
}

gpulua_status gpu_capture_finish(struct gpu_capture *capture, struct gpu_graph **graph,
                                 struct gpu_error *error) {
    GPU_ENTER(capture->device);
    gpulua_status status = gpu_capture_check(capture, "graph", error);
    if (status == GPULUA_OK && gpu_capture_count(capture) == 0) {
        status = gpu_error_set(error, GPULUA_EMPTY_CAPTURE, "the capture%s%s%s recorded nothing",
                               capture->label[0] ? " '" : "", capture->label,
                               capture->label[0] ? "'" : "");
    }
    struct graph_body body = {0};
    if (status == GPULUA_OK) {
        status = gpu_capture_take(capture, &body, error);
    }
    if (status == GPULUA_OK) {
        status = gpu_graph_plan(&body, NULL, capture, error);
    }
    if (status == GPULUA_OK) {
        status = gpu_graph_create(capture->pool, &body, capture->label, graph, error);
    }
    if (status) {
        gpu_temporaries_leave(&body);
    }
    gpu_graph_body_finish(&body);
    end(capture, status == GPULUA_OK);
    return status;
}
