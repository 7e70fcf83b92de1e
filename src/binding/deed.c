/* Operations and the trails that they leave on blocks (see deed.h). */
#include "binding/deed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Since the newest write. */
struct reader {
    struct deed *deed; /* retained */
    bool is_atomic;    /* it writes as well, by atomic operations, which have no order */
};

struct range {
    uint64_t byte_begin, byte_end;
    struct deed *write;   /* retained; NULL: none */
    struct reader *reads; /* owned */
    uint32_t read_count, read_capacity;
};

struct trail {
    struct range *ranges; /* owned; by byte_begin, apart from each other */
    uint32_t count, capacity;
};

/* ---- deeds ---- */

struct deed *gpu_lua_deed_create(const struct gpu_submission *submission) {
    struct deed *deed = calloc(1, sizeof *deed + submission->use_count * sizeof deed->uses[0]);
    if (!deed) {
        return NULL;
    }
    deed->refs = 1;
    deed->wait_count = submission->wait_count;
    deed->waits = deed->wait_count ? malloc(deed->wait_count * sizeof *deed->waits) : NULL;
    if (deed->wait_count && !deed->waits) {
        free(deed);
        return NULL;
    }
    if (deed->wait_count) {
        memcpy(deed->waits, submission->waits, deed->wait_count * sizeof *deed->waits);
    }
    (void)gpu_label_copy(deed->label, sizeof deed->label, submission->label);
    snprintf(deed->source, sizeof deed->source, "%s", submission->source ? submission->source : "");
    deed->line = submission->line;
    deed->stream = submission->stream;
    deed->seq = submission->seq;
    deed->use_count = submission->use_count;
    for (uint32_t i = 0; i < deed->use_count; i++) {
        gpu_lua_deed_use(&deed->uses[i], &submission->uses[i]);
    }
    return deed;
}

void gpu_lua_deed_use(struct deed_use *use, const struct gpu_seen_use *seen) {
    use->block_number = seen->block_number;
    use->byte_begin = seen->byte_begin;
    use->byte_end = seen->byte_end;
    use->base = seen->base;
    use->access = seen->access;
    use->is_private = seen->is_private;
    use->is_variable = seen->is_variable;
    use->is_atomic = seen->is_atomic;
    (void)gpu_label_copy(use->label, sizeof use->label, seen->label);
}

struct deed *gpu_lua_deed_retain(struct deed *deed) {
    deed->refs++;
    return deed;
}

void gpu_lua_deed_release(struct deed *deed) {
    if (deed && --deed->refs == 0) {
        gpu_lua_clock_release(deed->known);
        free(deed->waits);
        free(deed);
    }
}

bool gpu_lua_deed_knew(const struct deed *later, const struct deed *earlier) {
    return later->strand == earlier->strand
               ? later->time >= earlier->time
               : gpu_lua_clock_time(later->known, earlier->strand) >= earlier->time;
}

/* ---- trails ---- */

static void forget_reads(struct range *range) {
    for (uint32_t i = 0; i < range->read_count; i++) {
        gpu_lua_deed_release(range->reads[i].deed);
    }
    range->read_count = 0;
}

static void range_finish(struct range *range) {
    forget_reads(range);
    free(range->reads);
    gpu_lua_deed_release(range->write);
}

void gpu_lua_trail_destroy(struct trail *trail) {
    for (uint32_t i = 0; i < trail->count; i++) {
        range_finish(&trail->ranges[i]);
    }
    free(trail->ranges);
    free(trail);
}

/* The first range that ends behind byte_offset. */
static uint32_t find(const struct trail *trail, uint64_t byte_offset) {
    uint32_t low = 0, high = trail->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (trail->ranges[middle].byte_end > byte_offset) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

void gpu_lua_trail_look(const struct trail *trail, const struct deed_use *use,
                        bool (*visit)(void *user, struct deed *earlier, bool earlier_writes,
                                      uint64_t byte_begin, uint64_t byte_end),
                        void *user) {
    for (uint32_t i = trail ? find(trail, use->byte_begin) : 0;
         trail && i < trail->count && trail->ranges[i].byte_begin < use->byte_end; i++) {
        const struct range *range = &trail->ranges[i];
        uint64_t begin = range->byte_begin > use->byte_begin ? range->byte_begin : use->byte_begin;
        uint64_t end = range->byte_end < use->byte_end ? range->byte_end : use->byte_end;
        if (range->write && !visit(user, range->write, true, begin, end)) {
            return;
        }
        for (uint32_t k = 0; k < range->read_count; k++) {
            const struct reader *reader = &range->reads[k];
            bool is_conflict = use->is_atomic
                                   ? !reader->is_atomic
                                   : (use->access & WIRE_USE_WRITE) != 0 || reader->is_atomic;
            if (is_conflict && !visit(user, reader->deed, reader->is_atomic, begin, end)) {
                return;
            }
        }
    }
}

void gpu_lua_trail_each(const struct trail *trail, uint64_t byte_begin, uint64_t byte_end,
                        void (*visit)(void *user, struct deed *deed), void *user) {
    for (uint32_t i = trail ? find(trail, byte_begin) : 0;
         trail && i < trail->count && trail->ranges[i].byte_begin < byte_end; i++) {
        const struct range *range = &trail->ranges[i];
        if (range->write) {
            visit(user, range->write);
        }
        for (uint32_t k = 0; k < range->read_count; k++) {
            visit(user, range->reads[k].deed);
        }
    }
}

static bool insert(struct trail *trail, uint32_t at, const struct range *range) {
    if (trail->count == trail->capacity) {
        uint32_t capacity = trail->capacity ? trail->capacity * 2 : 4;
        struct range *grown = realloc(trail->ranges, capacity * sizeof *grown);
        if (!grown) {
            return false;
        }
        trail->ranges = grown;
        trail->capacity = capacity;
    }
    memmove(&trail->ranges[at + 1], &trail->ranges[at],
            (trail->count - at) * sizeof trail->ranges[0]);
    trail->ranges[at] = *range;
    trail->count++;
    return true;
}

/* A boundary at byte_offset where a range goes across it. */
static bool cut(struct trail *trail, uint64_t byte_offset) {
    uint32_t at = find(trail, byte_offset);
    if (at == trail->count || trail->ranges[at].byte_begin >= byte_offset) {
        return true;
    }
    struct range left = trail->ranges[at];
    left.byte_end = byte_offset;
    left.read_capacity = left.read_count;
    left.reads = left.read_count ? malloc(left.read_count * sizeof *left.reads) : NULL;
    if ((left.read_count && !left.reads) || !insert(trail, at, &left)) {
        free(left.reads);
        return false;
    }
    if (left.write) {
        gpu_lua_deed_retain(left.write);
    }
    for (uint32_t k = 0; k < left.read_count; k++) {
        left.reads[k] = trail->ranges[at + 1].reads[k];
        gpu_lua_deed_retain(left.reads[k].deed);
    }
    trail->ranges[at + 1].byte_begin = byte_offset;
    return true;
}

static bool note_read(struct range *range, struct deed *deed, bool is_atomic) {
    for (uint32_t k = 0; k < range->read_count; k++) {
        struct reader *reader = &range->reads[k];
        if (reader->deed->strand == deed->strand && reader->is_atomic == is_atomic) {
            gpu_lua_deed_release(reader->deed);
            reader->deed = gpu_lua_deed_retain(deed);
            return true;
        }
    }
    if (range->read_count == range->read_capacity) {
        uint32_t capacity = range->read_capacity ? range->read_capacity * 2 : 2;
        struct reader *grown = realloc(range->reads, capacity * sizeof *grown);
        if (!grown) {
            return false;
        }
        range->reads = grown;
        range->read_capacity = capacity;
    }
    range->reads[range->read_count++] = (struct reader){gpu_lua_deed_retain(deed), is_atomic};
    return true;
}

/* Ranges without gaps from byte_begin to byte_end. */
static bool fill_gaps(struct trail *trail, uint64_t byte_begin, uint64_t byte_end) {
    for (uint32_t i = find(trail, byte_begin); byte_begin < byte_end; i++) {
        bool has_next = i < trail->count && trail->ranges[i].byte_begin < byte_end;
        uint64_t next = has_next ? trail->ranges[i].byte_begin : byte_end;
        if (next > byte_begin) {
            struct range gap = {.byte_begin = byte_begin, .byte_end = next};
            if (!insert(trail, i, &gap)) {
                return false;
            }
        }
        byte_begin = trail->ranges[i].byte_end;
    }
    return true;
}

static bool is_same(const struct range *a, const struct range *b) {
    bool is_alike =
        a->byte_end == b->byte_begin && a->write == b->write && a->read_count == b->read_count;
    for (uint32_t k = 0; is_alike && k < a->read_count; k++) {
        is_alike =
            a->reads[k].deed == b->reads[k].deed && a->reads[k].is_atomic == b->reads[k].is_atomic;
    }
    return is_alike;
}

/* Those from `first` to behind `last`, and their neighbours, are one where they are the same. */
static void join(struct trail *trail, uint32_t first, uint32_t last) {
    uint32_t kept = first > 0 ? first - 1 : 0;
    uint32_t end = last < trail->count ? last + 1 : trail->count, at = kept + 1;
    for (; at < end; at++) {
        struct range *range = &trail->ranges[at];
        if (is_same(&trail->ranges[kept], range)) {
            trail->ranges[kept].byte_end = range->byte_end;
            range_finish(range);
        } else {
            trail->ranges[++kept] = *range;
        }
    }
    if (kept + 1 < at) {
        memmove(&trail->ranges[kept + 1], &trail->ranges[at],
                (trail->count - at) * sizeof trail->ranges[0]);
        trail->count -= at - kept - 1;
    }
}

static bool is_last(const struct deed_use *use) {
    return (use->access & WIRE_USE_WRITE) && !use->is_atomic;
}

/* Reads that have followed it stay. */
static void note_write(struct range *range, struct deed *deed) {
    uint32_t kept = 0;
    for (uint32_t k = 0; k < range->read_count; k++) {
        if (gpu_lua_deed_knew(range->reads[k].deed, deed) && range->reads[k].deed != deed) {
            range->reads[kept++] = range->reads[k];
        } else {
            gpu_lua_deed_release(range->reads[k].deed);
        }
    }
    range->read_count = kept;
    gpu_lua_deed_release(range->write);
    range->write = gpu_lua_deed_retain(deed);
}

static bool has_newer(const struct range *range, const struct deed *deed, bool is_atomic) {
    bool is_newer = range->write && range->write != deed && gpu_lua_deed_knew(range->write, deed);
    for (uint32_t k = 0; k < range->read_count && !is_newer; k++) {
        const struct reader *reader = &range->reads[k];
        is_newer = reader->deed->strand == deed->strand && reader->is_atomic == is_atomic &&
                   reader->deed->time > deed->time;
    }
    return is_newer;
}

bool gpu_lua_trail_note(struct trail **made, const struct deed_use *use, struct deed *deed) {
    struct trail *trail = *made ? *made : calloc(1, sizeof *trail);
    if (!trail) {
        return false;
    }
    *made = trail;
    if (!cut(trail, use->byte_begin) || !cut(trail, use->byte_end) ||
        !fill_gaps(trail, use->byte_begin, use->byte_end)) {
        return false;
    }
    uint32_t first = find(trail, use->byte_begin), end = first;
    for (; end < trail->count && trail->ranges[end].byte_begin < use->byte_end; end++) {
        struct range *range = &trail->ranges[end];
        if (is_last(use)) {
            if (!range->write || !gpu_lua_deed_knew(range->write, deed)) {
                note_write(range, deed);
            }
        } else if (!has_newer(range, deed, use->is_atomic) &&
                   !note_read(range, deed, use->is_atomic)) {
            return false;
        }
    }
    join(trail, first, end);
    return true;
}
