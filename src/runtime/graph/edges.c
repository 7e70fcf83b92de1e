/* The edges of a graph: between two nodes of which one uses what the other has written, or writes
 * what the other has used; and of these only those that do not follow from others.
 *
 * Each block is a row of ranges with the newest node that wrote it and the nodes that have read it
 * since. Unlike the history that eager work leaves on a block (history.c), nothing of it is ever
 * over, and nothing is rounded. */
#include <stdlib.h>
#include <string.h>

#include "runtime/graph/state.h"

/* ---- ranges ---- */

static bool copy_readers(struct graph_range *to, const struct graph_range *from) {
    to->readers = NULL;
    to->reader_capacity = 0;
    if (from->reader_count == 0) {
        return true;
    }
    to->readers = malloc(from->reader_count * sizeof *to->readers);
    if (!to->readers) {
        to->reader_count = 0;
        return false;
    }
    memcpy(to->readers, from->readers, from->reader_count * sizeof *to->readers);
    to->reader_capacity = from->reader_count;
    return true;
}

static bool insert(struct graph_track *track, uint32_t at, const struct graph_range *range) {
    if (!gpu_graph_grow((void **)&track->ranges, &track->range_capacity, track->range_count,
                        sizeof *track->ranges)) {
        return false;
    }
    memmove(&track->ranges[at + 1], &track->ranges[at],
            (track->range_count - at) * sizeof track->ranges[0]);
    track->ranges[at] = *range;
    track->range_count++;
    return true;
}

/* The first range that ends behind the byte. */
static uint32_t find(const struct graph_track *track, uint64_t byte) {
    uint32_t low = 0, high = track->range_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (track->ranges[middle].byte_end > byte) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* No range goes across the byte. */
static bool cut(struct graph_track *track, uint64_t byte) {
    uint32_t at = find(track, byte);
    if (at == track->range_count || track->ranges[at].byte_begin >= byte) {
        return true;
    }
    struct graph_range left = track->ranges[at];
    if (!copy_readers(&left, &track->ranges[at])) {
        return false;
    }
    left.byte_end = byte;
    if (!insert(track, at, &left)) {
        free(left.readers);
        return false;
    }
    track->ranges[at + 1].byte_begin = byte;
    return true;
}

/* Cut at its ends, and without gaps between them. Mostly it is a range already. */
static bool prepare(struct graph_track *track, const struct gpu_use *use) {
    uint32_t known = find(track, use->byte_begin);
    if (known < track->range_count && track->ranges[known].byte_begin == use->byte_begin &&
        track->ranges[known].byte_end == use->byte_end) {
        return true;
    }
    if (!cut(track, use->byte_begin) || !cut(track, use->byte_end)) {
        return false;
    }
    uint64_t byte = use->byte_begin;
    for (uint32_t at = find(track, byte); byte < use->byte_end; at++) {
        uint64_t next = at < track->range_count && track->ranges[at].byte_begin < use->byte_end
                            ? track->ranges[at].byte_begin
                            : use->byte_end;
        if (next > byte) {
            struct graph_range gap = {
                .byte_begin = byte, .byte_end = next, .writer = GPU_NODE_NONE};
            if (!insert(track, at, &gap)) {
                return false;
            }
        }
        byte = track->ranges[at].byte_end;
    }
    return true;
}

bool gpu_graph_is_written(const struct graph_track *track, const struct gpu_use *use) {
    uint64_t byte = use->byte_begin;
    for (uint32_t at = find(track, byte); byte < use->byte_end; at++) {
        if (at == track->range_count || track->ranges[at].byte_begin > byte ||
            track->ranges[at].writer == GPU_NODE_NONE) {
            return false;
        }
        byte = track->ranges[at].byte_end;
    }
    return true;
}

static void range_finish(struct graph_range *range) {
    free(range->readers);
}

static bool note_read(struct graph_range *range, uint32_t node) {
    if (range->reader_count > 0 && range->readers[range->reader_count - 1] == node) {
        return true;
    }
    if (!gpu_graph_grow((void **)&range->readers, &range->reader_capacity, range->reader_count,
                        sizeof *range->readers)) {
        return false;
    }
    range->readers[range->reader_count++] = node;
    return true;
}

/* What it covers becomes one range. */
static void note_write(struct graph_track *track, const struct gpu_use *use, uint32_t node) {
    uint32_t first = find(track, use->byte_begin), end = first;
    uint64_t byte_end = use->byte_end; /* another use of the same node may have joined more */
    while (end < track->range_count && track->ranges[end].byte_begin < use->byte_end) {
        track->ranges[end].reader_count = 0;
        if (end != first) {
            range_finish(&track->ranges[end]);
        }
        byte_end = track->ranges[end].byte_end > byte_end ? track->ranges[end].byte_end : byte_end;
        end++;
    }
    track->ranges[first].writer = node;
    track->ranges[first].byte_end = byte_end;
    memmove(&track->ranges[first + 1], &track->ranges[end],
            (track->range_count - end) * sizeof track->ranges[0]);
    track->range_count -= end - first - 1;
}

static bool note(struct graph_track *track, const struct gpu_use *use, uint32_t node) {
    if (use->access & GPU_WRITE) {
        note_write(track, use, node);
        return true;
    }
    for (uint32_t at = find(track, use->byte_begin);
         at < track->range_count && track->ranges[at].byte_begin < use->byte_end; at++) {
        if (track->ranges[at].writer != node && !note_read(&track->ranges[at], node)) {
            return false;
        }
    }
    return true;
}

void gpu_graph_track_finish(struct graph_track *track) {
    for (uint32_t i = 0; i < track->range_count; i++) {
        range_finish(&track->ranges[i]);
    }
    free(track->ranges);
    free(track->uses);
    track->ranges = NULL;
    track->uses = NULL;
    track->range_count = track->use_count = 0;
}

/* ---- finding ---- */

static bool found(struct graph_body *body, uint32_t from, uint32_t via, uint32_t track,
                  uint8_t reason, bool reads) {
    if (!gpu_graph_grow((void **)&body->found, &body->found_capacity, body->found_count,
                        sizeof *body->found)) {
        return false;
    }
    body->found[body->found_count++] = (struct graph_edge){
        .from = from, .track = track, .via = via, .reasons = reason, .reads = reads};
    return true;
}

static bool find_edges(struct graph_body *body, uint32_t index, const struct gpu_use *use,
                       uint32_t node) {
    const struct graph_track *track = &body->tracks[index];
    for (uint32_t at = find(track, use->byte_begin);
         at < track->range_count && track->ranges[at].byte_begin < use->byte_end; at++) {
        const struct graph_range *range = &track->ranges[at];
        uint8_t reasons = (uint8_t)((use->access & GPU_READ ? GPU_EDGE_RAW : 0) |
                                    (use->access & GPU_WRITE ? GPU_EDGE_WAW : 0));
        uint32_t reader =
            range->reader_count > 0 ? range->readers[range->reader_count - 1] : GPU_NODE_NONE;
        bool reads = (use->access & GPU_READ) && use->block->byte_count > 0;
        if (range->writer != GPU_NODE_NONE && range->writer != node &&
            !found(body, range->writer, reader, index, reasons, reads)) {
            return false;
        }
        for (uint32_t i = 0; (use->access & GPU_WRITE) && i < range->reader_count; i++) {
            if (range->readers[i] != node &&
                !found(body, range->readers[i], GPU_NODE_NONE, index, GPU_EDGE_WAR, false)) {
                return false;
            }
        }
    }
    return true;
}

static int compare_edges(const void *a, const void *b) {
    uint32_t from_a = ((const struct graph_edge *)a)->from;
    uint32_t from_b = ((const struct graph_edge *)b)->from;
    return from_a < from_b ? 1 : from_a > from_b ? -1 : 0; /* the newest first */
}

/* One for each node, with all reasons. */
static void join_found(struct graph_body *body) {
    if (body->found_count > 1) {
        qsort(body->found, body->found_count, sizeof *body->found, compare_edges);
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < body->found_count; i++) {
        if (kept > 0 && body->found[kept - 1].from == body->found[i].from) {
            body->found[kept - 1].reasons |= body->found[i].reasons;
            body->found[kept - 1].reads |= body->found[i].reads;
            if (body->found[kept - 1].via == GPU_NODE_NONE) {
                body->found[kept - 1].via = body->found[i].via;
            }
        } else {
            body->found[kept++] = body->found[i];
        }
    }
    body->found_count = kept;
}

/* ---- reducing ---- */

static bool make_marks(struct graph_body *body) {
    if (body->node_count <= body->mark_capacity) {
        return true;
    }
    uint32_t capacity = body->node_capacity;
    uint32_t *marks = realloc(body->marks, capacity * sizeof *marks);
    if (!marks) {
        return false;
    }
    body->marks = marks;
    uint32_t *stack = realloc(body->stack, capacity * sizeof *stack);
    if (!stack) {
        return false;
    }
    body->stack = stack;
    memset(marks + body->mark_capacity, 0, (capacity - body->mark_capacity) * sizeof *marks);
    body->mark_capacity = capacity;
    return true;
}

/* Marks what goes before the node, down to `oldest`. */
static void mark_before(struct graph_body *body, uint32_t node, uint32_t oldest) {
    uint32_t depth = 0;
    body->stack[depth++] = node;
    while (depth > 0) {
        const struct graph_node *at = &body->nodes[body->stack[--depth]];
        for (uint32_t i = 0; i < at->edge_count; i++) {
            uint32_t from = body->edges[at->edge_first + i].from;
            if (from >= oldest && body->marks[from] != body->mark) {
                body->marks[from] = body->mark;
                body->stack[depth++] = from;
            }
        }
    }
}

/* Leaves out those from `first` on that go before a node which is marked, as far as that is known
 * without looking: most nodes read what others beside them have read. */
static void leave_out(struct graph_body *body, uint32_t first) {
    uint32_t kept = first;
    for (uint32_t i = first; i < body->found_count; i++) {
        uint32_t via = body->found[i].via;
        if (via == GPU_NODE_NONE || body->marks[via] != body->mark) {
            body->found[kept++] = body->found[i];
        }
    }
    body->found_count = kept;
}

/* Of those found, from the newest on: one that goes before another that is kept follows from it. */
static bool keep_edges(struct graph_body *body, uint32_t node) {
    if (!make_marks(body)) {
        return false;
    }
    body->mark++;
    body->nodes[node].edge_first = body->edge_count;
    for (uint32_t i = 0; i < body->found_count; i++) {
        uint32_t from = body->found[i].from;
        if (body->marks[from] == body->mark) {
            continue;
        }
        if (!gpu_graph_grow((void **)&body->edges, &body->edge_capacity, body->edge_count,
                            sizeof *body->edges)) {
            return false;
        }
        body->edges[body->edge_count++] = body->found[i];
        body->nodes[node].edge_count++;
        body->marks[from] = body->mark;
        leave_out(body, i + 1);
        if (i + 1 < body->found_count) {
            mark_before(body, from, body->found[body->found_count - 1].from);
        }
    }
    return true;
}

/* ---- */

bool gpu_graph_connect(struct graph_body *body, uint32_t node) {
    const struct gpu_use *uses = body->uses + body->nodes[node].use_first;
    const uint32_t *tracks = body->use_tracks + body->nodes[node].use_first;
    uint32_t use_count = body->nodes[node].use_count;
    body->found_count = 0;
    for (uint32_t i = 0; i < use_count; i++) {
        uint32_t index = tracks[i];
        if (!prepare(&body->tracks[index], &uses[i]) || !find_edges(body, index, &uses[i], node)) {
            return false;
        }
    }
    join_found(body);
    if (!gpu_graph_note_reports(body, node) || !keep_edges(body, node)) {
        return false;
    }
    for (uint32_t i = 0; i < use_count; i++) {
        if (!note(&body->tracks[tracks[i]], &uses[i], node)) {
            return false;
        }
    }
    return true;
}
