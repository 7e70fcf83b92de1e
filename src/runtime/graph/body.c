/* The nodes of a graph, and the blocks that they use. */
#include <stdlib.h>
#include <string.h>

#include "runtime/graph/state.h"

static bool grow_from(void **items, uint32_t *capacity, uint32_t count, size_t item_bytes,
                      uint32_t first) {
    if (count < *capacity) {
        return true;
    }
    uint32_t grown = *capacity < first ? first : *capacity * 2;
    void *moved = realloc(*items, grown * item_bytes);
    if (!moved) {
        return false;
    }
    *items = moved;
    *capacity = grown;
    return true;
}

bool gpu_graph_grow_full(void **items, uint32_t *capacity, uint32_t count, size_t item_bytes) {
    return grow_from(items, capacity, count, item_bytes, 8);
}

/* What grows with the nodes, of which there are some as a rule. */
static bool grow(void **items, uint32_t *capacity, uint32_t count, size_t item_bytes) {
    return grow_from(items, capacity, count, item_bytes, 32);
}

/* ---- blocks ---- */

uint32_t gpu_graph_find_track(const struct graph_body *body, const struct gpu_block *block) {
    return gpu_index_find(&body->index, block);
}

/* The index of the block's track, which is made if there is none; GPU_NODE_NONE: no memory. */
static uint32_t track_of(struct graph_body *body, struct gpu_block *block) {
    uint32_t *number = gpu_index_make(&body->index, block);
    if (!number) {
        return GPU_NODE_NONE;
    }
    if (*number == GPU_NODE_NONE && gpu_graph_grow((void **)&body->tracks, &body->track_capacity,
                                                   body->track_count, sizeof *body->tracks)) {
        *number = body->track_count++;
        body->tracks[*number] = (struct graph_track){.block = gpu_block_retain(block)};
    }
    return *number;
}

/* ---- all uses as those of one operation ---- */

/* It reads what may have been written in front of it or not: what was there before counts. */
static void note_read(struct graph_track *track, const struct gpu_use *use) {
    for (uint32_t i = 0; i < track->use_count; i++) {
        struct gpu_use *known = &track->uses[i];
        if (!(known->access & GPU_USE_SETTLED) && use->byte_begin < known->byte_end &&
            known->byte_begin < use->byte_end) {
            known->access &= (uint8_t)~GPU_USE_MAYBE;
        }
    }
}

/* Whatever was done there in front of it, it writes all of this. */
static void note_write(struct graph_track *track, const struct gpu_use *use) {
    for (uint32_t i = 0; track->has_maybe && i < track->use_count; i++) {
        struct gpu_use *known = &track->uses[i];
        if ((known->access & GPU_USE_MAYBE) && use->byte_begin <= known->byte_begin &&
            known->byte_end <= use->byte_end) {
            known->access |= GPU_USE_SETTLED;
        }
    }
}

/* What is used after the graph itself has written all of it: nothing new is read from outside, and
 * the writes stand there already. Before the ranges know of the node itself. */
static bool join_use(struct graph_track *track, const struct gpu_use *use) {
    if (gpu_use_reads(use->access)) {
        note_read(track, use);
    }
    track->has_maybe |= (use->access & GPU_USE_MAYBE) != 0;
    if (gpu_graph_is_written(track, use)) {
        return true;
    }
    for (uint32_t i = 0; i < track->use_count; i++) {
        struct gpu_use *known = &track->uses[i];
        if (use->byte_begin == known->byte_begin && use->byte_end == known->byte_end) {
            bool reads = gpu_use_reads(known->access) || gpu_use_reads(use->access);
            known->access |= use->access;
            known->access &= (uint8_t)(reads ? ~GPU_USE_MAYBE : ~0u);
            return true;
        }
    }
    if (!gpu_graph_grow((void **)&track->uses, &track->use_capacity, track->use_count,
                        sizeof *track->uses)) {
        return false;
    }
    track->uses[track->use_count++] = *use;
    return true;
}

/* ---- nodes ---- */

static bool add_use(struct graph_body *body, const struct gpu_use *use) {
    uint32_t track = track_of(body, use->block);
    if (track == GPU_NODE_NONE || !join_use(&body->tracks[track], use) ||
        !grow((void **)&body->uses, &body->use_capacity, body->use_count, sizeof *body->uses) ||
        !grow((void **)&body->use_tracks, &body->use_track_capacity, body->use_count,
              sizeof *body->use_tracks)) {
        return false;
    }
    body->use_tracks[body->use_count] = track;
    body->uses[body->use_count++] = *use;
    return true;
}

/* The first one, which is all that a small graph needs; each other is twice as large as the one
 * before, up to that. */
#define CHUNK_FIRST_BYTES 960u
#define CHUNK_BYTES_MAX 8192u

/* 16-byte aligned; NULL: no memory. */
static void *take_bytes(struct graph_body *body, size_t byte_count) {
    struct graph_chunk *chunk = body->chunks;
    size_t rounded = (byte_count + 15u) & ~(size_t)15u;
    if (!chunk || chunk->capacity - chunk->used < rounded) {
        size_t capacity = chunk ? 2 * chunk->capacity : CHUNK_FIRST_BYTES;
        capacity = capacity < CHUNK_BYTES_MAX ? capacity : CHUNK_BYTES_MAX;
        capacity = rounded > capacity ? rounded : capacity;
        chunk = malloc(sizeof *chunk + capacity);
        if (!chunk) {
            return NULL;
        }
        *chunk = (struct graph_chunk){.next = body->chunks, .capacity = capacity};
        body->chunks = chunk;
    }
    void *taken = chunk->bytes + chunk->used;
    chunk->used += rounded;
    return taken;
}

struct wire_record *gpu_graph_copy_record(struct graph_body *body, const struct wire_record *record,
                                          uint32_t payload_bytes) {
    struct wire_record *copy = take_bytes(body, sizeof *record + payload_bytes);
    if (copy) {
        *copy = *record;
        memcpy(copy + 1, gpu_wire_record_payload(record), payload_bytes);
        copy->wait_count = 0;
        copy->flags = 0;
        copy->length_bytes = (uint32_t)sizeof *record + payload_bytes; /* rounded when it is sent */
    }
    return copy;
}

bool gpu_graph_add(struct graph_body *body, const struct wire_record *record,
                   uint32_t payload_bytes, const char *label, const struct gpu_site *site,
                   const struct gpu_use *uses, uint32_t use_count) {
    struct wire_record *copy = gpu_graph_copy_record(body, record, payload_bytes);
    if (!copy ||
        !grow((void **)&body->nodes, &body->node_capacity, body->node_count, sizeof *body->nodes)) {
        return false;
    }
    body->nodes[body->node_count] =
        (struct graph_node){.record = copy,
                            .kernel = body->next_kernel,
                            .label = label,
                            .site = *site,
                            .use_first = body->use_count,
                            .ref_first = body->refs_taken,
                            .ref_count = body->ref_count - body->refs_taken};
    body->refs_taken = body->ref_count;
    body->next_kernel = NULL;
    uint32_t node = body->node_count++;
    for (uint32_t i = 0; i < use_count; i++) {
        if (!add_use(body, &uses[i])) {
            return false;
        }
    }
    for (uint32_t i = 0; i < use_count; i++) { /* behind all that it reads */
        if (uses[i].access == GPU_WRITE) {
            note_write(&body->tracks[body->use_tracks[body->nodes[node].use_first + i]], &uses[i]);
        }
    }
    body->nodes[node].use_count = use_count;
    return gpu_graph_connect(body, node);
}

static bool retain_kernel(struct graph_body *body, struct gpu_kernel *kernel) {
    for (uint32_t i = body->kernel_count; i > 0 && body->kernel_count - i < 8; i--) {
        if (body->kernels[i - 1] == kernel) {
            return true; /* most are launched again soon */
        }
    }
    if (!gpu_graph_grow((void **)&body->kernels, &body->kernel_capacity, body->kernel_count,
                        sizeof(struct gpu_kernel *))) {
        return false;
    }
    body->kernels[body->kernel_count++] = gpu_kernel_retain(kernel);
    return true;
}

bool gpu_graph_keep_kernel(struct graph_body *body, struct gpu_kernel *kernel) {
    body->ref_count = body->refs_taken; /* of one that was refused */
    body->next_kernel = kernel;
    return !kernel || retain_kernel(body, kernel);
}

bool gpu_graph_keep_ref(struct graph_body *body, const struct gpu_ref *ref) {
    if (!gpu_graph_grow((void **)&body->refs, &body->ref_capacity, body->ref_count,
                        sizeof *body->refs)) {
        return false;
    }
    if (!ref) {
        body->refs[body->ref_count++] = (struct graph_ref){.name = ""};
        return true;
    }
    /* The name has to outlive the block. */
    bool has_name = ref->block->label[0] && !ref->block->is_staging;
    const char *name = has_name ? gpu_device_intern(ref->block->device, ref->block->label) : "";
    if (!name) {
        return false;
    }
    body->refs[body->ref_count++] = (struct graph_ref){.ref = *ref,
                                                       .name = name,
                                                       .is_name_cut = ref->block->is_label_cut,
                                                       .origin = ref->block->number,
                                                       .byte_count = ref->block->byte_count,
                                                       .type = ref->block->type,
                                                       .is_staged = ref->block->is_staging};
    return true;
}

void gpu_graph_body_finish(struct graph_body *body) {
    for (uint32_t i = 0; i < body->node_count; i++) {
        gpu_graph_control_release(body->nodes[i].control);
    }
    for (struct graph_chunk *chunk = body->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    for (uint32_t i = 0; i < body->track_count; i++) {
        gpu_graph_track_finish(&body->tracks[i]);
        gpu_block_release(body->tracks[i].block);
    }
    for (uint32_t i = 0; i < body->kernel_count; i++) {
        gpu_kernel_release(body->kernels[i]);
    }
    free(body->nodes);
    free(body->edges);
    free(body->uses);
    free(body->use_tracks);
    free(body->refs);
    free(body->tracks);
    gpu_index_finish(&body->index);
    free((void *)body->kernels);
    for (uint32_t i = 0; i < body->made_count; i++) {
        gpu_block_release(body->made[i]);
    }
    free((void *)body->made);
    free(body->made_for);
    free(body->reporters);
    free(body->needs);
    free(body->found);
    free(body->marks);
    free(body->stack);
    *body = (struct graph_body){0};
}
