/* Temporaries: what a capture makes for its own nodes. While it is captured, a temporary has no
 * memory: nothing is done before the graph is launched. When the capture ends, one that the script
 * still holds becomes an ordinary block; the others share memory where the graph's order allows it
 * (plan.c), and nobody but the graph's nodes can use them from then on.
 *
 * In the update of a graph each is stood in for by a twin, which becomes the graph's, if it has to
 * be made anew.
 *
 * What conditional nodes use gets memory of its own at once, since its address is kept. It stays a
 * temporary in all but that ("lone"): a launch needs nothing of what is there, and it lives on with
 * its graph when the device is lost. By any other use it becomes an ordinary block, where a graphed
 * function returns it, and if what one launch leaves there is read by the next. */
#include "runtime/graph/state.h"
#include "runtime/resource.h"

bool gpu_graph_note_made(struct graph_body *body, struct gpu_block *block, uint64_t maker,
                         enum graph_made_for made_for) {
    if (!gpu_graph_grow((void **)&body->made, &body->made_capacity, body->made_count,
                        sizeof(struct gpu_block *)) ||
        !gpu_graph_grow((void **)&body->made_for, &body->made_for_capacity, body->made_count,
                        sizeof *body->made_for)) {
        return false;
    }
    if (block->is_temporary) {
        block->maker = maker;
        block->made_number = body->made_count;
        body->has_temporaries = true;
    }
    body->made_for[body->made_count] = (uint8_t)made_for;
    body->made[body->made_count++] = gpu_block_retain(block);
    return true;
}

bool gpu_graph_has_made(const struct graph_body *body, const struct gpu_block *block) {
    bool is_made = block->made_number < body->made_count && body->made[block->made_number] == block;
    for (uint32_t i = 0; i < body->made_count && !is_made; i++) { /* by another graph first */
        is_made = body->made[i] == block;
    }
    return is_made;
}

bool gpu_temporary_is_lone_of(const struct gpu_block *block, const struct gpu_capture *capture) {
    return block->is_lone && !block->is_freed && capture && gpu_capture_has_made(capture, block);
}

void gpu_temporary_expose(struct gpu_block *block) {
    gpu_repeat_forget(block->device);
    block->is_lone = false;
    block->is_trackable = gpu_memory_is_trackable(block->memory);
}

void gpu_graph_give_out(struct gpu_block *block) {
    GPU_ENTER(block->device);
    /* One that a loss has spared or taken is none to hand out. */
    if (block->is_lone && block->device->state == GPU_DEVICE_OPEN &&
        block->epoch == block->device->epoch) {
        gpu_temporary_expose(block);
    }
}

bool gpu_temporary_is_held(const struct graph_body *body, const struct gpu_block *block) {
    uint32_t own = 1 + (gpu_graph_find_track(body, block) != GPU_NODE_NONE);
    return block->refs > own && !block->is_freed;
}

struct gpu_block *gpu_temporary_twin(const struct gpu_block *block) {
    const struct gpu_block_info info = gpu_block_info_of(block);
    struct gpu_error ignored = {0};
    struct gpu_block *twin;
    if (gpu_block_create_temporary(block->device, &info, &twin, &ignored)) {
        gpu_error_finish(&ignored);
        return NULL;
    }
    twin->number = block->number; /* it is the same one to whoever looks */
    twin->twin = block;
    twin->type = block->type;
    twin->home = gpu_block_retain(block->home);
    twin->address = block->address;
    return twin;
}

void gpu_temporaries_leave(struct graph_body *body) {
    for (uint32_t i = 0; i < body->made_count; i++) {
        struct gpu_block *block = body->made[i];
        if (block->is_temporary) {
            gpu_block_release(block->home);
            block->home = NULL;
            block->twin = NULL;
        }
    }
}

static bool is_own(const struct gpu_block *block, const struct gpu_capture *capture) {
    return capture && gpu_capture_number(capture) == block->maker;
}

gpulua_status gpu_temporary_settle(struct gpu_block *block, const struct gpu_capture *capture,
                                   const char *what, struct gpu_error *error) {
    if (is_own(block, capture) || !block->home) {
        gpulua_status status = gpu_block_settle(block, error);
        if (status == GPULUA_OK && is_own(block, capture)) {
            block->is_lone = true;
            block->is_trackable = false;
        }
        return status;
    }
    char name[GPU_BLOCK_NAME_BYTES];
    return gpu_error_set(error, GPULUA_USE_AFTER_FREE,
                         "%s: the buffer (%s) was made for the nodes of a graph, and its memory is "
                         "theirs since: make it outside of what is captured",
                         what, gpu_block_name(block, name));
}

/* In bodies of conditional nodes addresses stay what they were when they were captured. */
gpulua_status gpu_temporary_use(struct gpu_block *block, const struct gpu_capture *capture,
                                const char *what, struct gpu_error *error) {
    if (block->is_lone) {
        if (!gpu_temporary_is_lone_of(block, capture)) {
            gpu_temporary_expose(block);
        }
        return GPULUA_OK;
    }
    return is_own(block, capture) && gpu_capture_depth(capture) == 0
               ? GPULUA_OK
               : gpu_temporary_settle(block, capture, what, error);
}
