#include "runtime/op_ref.h"

#include <stdlib.h>

#include "runtime/state.h"

/* ---- where operations come from ---- */

struct gpu_origin {
    struct gpu_device *device;
    const char *label; /* interned or static */
    struct gpu_site site;
    uint64_t stream_number;
    uint32_t slot; /* of the stream */
};

#define ORIGINS_AT_FIRST 64u
#define ORIGINS_MAX 65536u /* further ones are kept as they are: a script makes up labels */

static bool is_origin(const struct gpu_origin *origin, const struct gpu_op *op) {
    return origin->label == op->label && origin->site.source == op->site.source &&
           origin->site.line == op->site.line && origin->stream_number == op->stream_number;
}

static uint64_t hash_of(const char *label, struct gpu_site site, uint64_t stream_number) {
    uint64_t hash = (uintptr_t)label ^ ((uint64_t)(uintptr_t)site.source << 20);
    hash = (hash ^ ((uint64_t)(uint32_t)site.line << 8) ^ stream_number) *
           UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

/* Where it is, or would be. */
static struct gpu_origin **place_of(const struct gpu_origins *origins, const struct gpu_op *op) {
    uint32_t mask = origins->capacity - 1;
    uint32_t at = (uint32_t)hash_of(op->label, op->site, op->stream_number) & mask;
    while (origins->table[at] && !is_origin(origins->table[at], op)) {
        at = (at + 1) & mask;
    }
    return &origins->table[at];
}

static bool grow(struct gpu_origins *origins) {
    uint32_t capacity = origins->capacity ? 2 * origins->capacity : ORIGINS_AT_FIRST;
    struct gpu_origin **table =
        capacity > 2 * ORIGINS_MAX ? NULL : calloc(capacity, sizeof(struct gpu_origin *));
    if (!table) {
        return false;
    }
    for (uint32_t i = 0; i < origins->capacity; i++) {
        struct gpu_origin *origin = origins->table[i];
        if (origin) {
            uint64_t at = hash_of(origin->label, origin->site, origin->stream_number);
            while (table[at & (capacity - 1)]) {
                at++;
            }
            table[at & (capacity - 1)] = origin;
        }
    }
    free(origins->table);
    origins->table = table;
    origins->capacity = capacity;
    return true;
}

/* NULL: there are too many, or no host memory for another one. */
static const struct gpu_origin *find(struct gpu_device *device, const struct gpu_op *op) {
    struct gpu_origins *origins = &device->origins;
    if (origins->count * 2 >= origins->capacity && !grow(origins)) {
        return NULL;
    }
    struct gpu_origin **at = place_of(origins, op);
    if (!*at) {
        struct gpu_origin *made = malloc(sizeof *made);
        if (!made) {
            return NULL;
        }
        *made = (struct gpu_origin){.device = device,
                                    .label = op->label,
                                    .site = op->site,
                                    .stream_number = op->stream_number,
                                    .slot = op->slot};
        origins->count++;
        *at = made;
    }
    return *at;
}

void gpu_origins_finish(struct gpu_origins *origins) {
    for (uint32_t i = 0; i < origins->capacity; i++) {
        free(origins->table[i]);
    }
    free(origins->table);
    *origins = (struct gpu_origins){0};
}

/* ---- references ---- */

void gpu_op_ref_loosen(struct gpu_op_ref *ref) {
    struct gpu_op *op = ref->op;
    /* On a shared device another thread may end it while this one looks. */
    if (!op->device->share && op->state == GPU_OP_PENDING && !op->ref) {
        op->ref = ref;
    }
}

static void tighten(const struct gpu_op_ref *ref) {
    if (ref->op && ref->op->ref == ref) {
        ref->op->ref = NULL;
    }
}

bool gpu_op_leave_ref(struct gpu_op *op) {
    struct gpu_op_ref *ref = op->ref;
    struct gpu_device *device = op->device;
    op->ref = NULL;
    bool is_plain = op->state == GPU_OP_SUCCEEDED && !op->shadow && !device->trace;
    const struct gpu_origin *origin = is_plain ? find(device, op) : NULL;
    if (origin) {
        ref->op = NULL;
        ref->origin = origin;
        ref->seq = op->seq;
        gpu_device_keep(device);
    }
    return origin != NULL;
}

struct gpu_op *gpu_op_ref_get(struct gpu_op_ref *ref, bool *is_short) {
    *is_short = false;
    tighten(ref);
    if (!ref->op && ref->origin) {
        const struct gpu_origin *origin = ref->origin;
        GPU_ENTER(origin->device);
        struct gpu_op *op = gpu_op_create(origin->device, NULL, origin->label, origin->site);
        *is_short = !op;
        if (op) {
            op->state = GPU_OP_SUCCEEDED;
            op->stream_number = origin->stream_number;
            op->slot = origin->slot;
            op->seq = ref->seq;
            ref->op = op;
            ref->origin = NULL;
            gpu_device_drop(origin->device);
        }
    }
    return ref->op;
}

void gpu_op_ref_drop(struct gpu_op_ref *ref) {
    tighten(ref);
    struct gpu_op *op = ref->op;
    struct gpu_device *device = ref->origin ? ref->origin->device : NULL;
    ref->op = NULL;
    ref->origin = NULL;
    gpu_op_release(op);
    if (device) {
        gpu_device_drop(device);
    }
}
