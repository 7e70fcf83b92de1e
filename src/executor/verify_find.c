/* A difference that a launch has made where it declares none: where it is, and its text, in the
 * words of the CPU device's check mode (backend/cpu/check/find.c). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "executor/verify.h"

#define NAME_BYTES 160u

struct finding {
    const struct executor_verify *verify;
    const char *kernel; /* its name */
    const struct backend_launch *launch;
    const struct verify_block *block; /* whose byte it is, or next to it */
    struct verify_range range;        /* the first byte that changed is in here */
    bool is_exact;                    /* it is the first of the range */
};

/* ---- where ---- */

/* From the hash before and the bytes now: if one word alone has changed, the range is cut to those
 * of its bytes that have. False: more have, or it cannot be told. */
static bool narrow(struct verify_range *range, const uint8_t *now, uint64_t before) {
    uint64_t chunk = range->begin & ~(uint64_t)(VERIFY_CHUNK_BYTES - 1);
    uint32_t words[VERIFY_CHUNK_WORDS] = {0};
    uint64_t sum = 0;
    for (uint64_t i = range->begin; i < range->end; i++) {
        words[(i - chunk) / 4] |= (uint32_t)now[i - range->begin] << (8 * (i & 3));
    }
    for (uint32_t place = 0; place < VERIFY_CHUNK_WORDS; place++) {
        sum += gpu_verify_mix(place, words[place]);
    }
    for (uint32_t place = 0; place < VERIFY_CHUNK_WORDS; place++) {
        uint64_t was = gpu_verify_unmix(before - (sum - gpu_verify_mix(place, words[place])));
        uint32_t differs = (uint32_t)was ^ words[place];
        if (was >> 32 == place && differs != 0) {
            uint64_t word = chunk + 4 * (uint64_t)place;
            range->begin = word + (uint32_t)__builtin_ctz(differs) / 8;
            range->end = word + 4 - (uint32_t)__builtin_clz(differs) / 8;
            return true;
        }
    }
    return false;
}

/* Sets the finding's block and range. */
static gpulua_status locate(struct wire_executor *executor, struct finding *finding,
                            uint64_t changed, struct backend_error *error) {
    const struct executor_verify *verify = executor->verify;
    const struct verify_spans *looks = &verify->looks;
    struct verify_range *range = &finding->range;
    uint32_t at = 0;
    while (at + 1 < looks->count && looks->list[at + 1].chunk <= changed) {
        at++;
    }
    const struct verify_span *span = &looks->list[at];
    uint64_t index = changed - span->chunk;
    uint64_t chunk =
        (span->begin & ~(uint64_t)(VERIFY_CHUNK_BYTES - 1)) + index * VERIFY_CHUNK_BYTES;
    uint8_t now[VERIFY_CHUNK_BYTES];
    uint64_t before;
    finding->block = &verify->blocks[looks->blocks[at]];
    range->begin = chunk > span->begin ? chunk : span->begin;
    range->end = chunk + VERIFY_CHUNK_BYTES < span->end ? chunk + VERIFY_CHUNK_BYTES : span->end;
    gpulua_status status = gpu_verify_read(executor, finding->launch, now, range->begin,
                                           range->end - range->begin, error);
    if (status == GPULUA_OK) {
        status = gpu_verify_read(executor, finding->launch, &before,
                                 span->table + index * sizeof before, sizeof before, error);
    }
    if (status == GPULUA_OK) {
        finding->is_exact = narrow(range, now, before) || range->end - range->begin == 1;
    }
    return status;
}

/* ---- names ---- */

static void use_name(const struct backend_use *use, char *text, size_t text_bytes) {
    if (use->name[0] >= '0' && use->name[0] <= '9') { /* a place in a structure without a name */
        snprintf(text, text_bytes, "argument %s", use->name);
    } else if (use->name[0] != '\0') {
        snprintf(text, text_bytes, "argument %u ('%s')", use->param + 1u, use->name);
    } else {
        snprintf(text, text_bytes, "argument %u", use->param + 1u);
    }
}

static void block_name(const struct verify_block *block, char *text, size_t text_bytes) {
    if (block->label[0] != '\0') {
        snprintf(text, text_bytes, "buffer '%s'", block->label);
    } else {
        snprintf(text, text_bytes, "buffer %" PRIu64 " (%" PRIu64 " bytes)", block->number,
                 block->bytes);
    }
}

/* Counted from the block's first byte: negative in front of it. */
static void place_text(const struct finding *finding, char *text, size_t text_bytes) {
    int64_t first = (int64_t)(finding->range.begin - finding->block->address);
    int64_t last = (int64_t)(finding->range.end - finding->block->address) - 1;
    if (finding->is_exact) {
        snprintf(text, text_bytes, "at byte %" PRId64, first);
    } else {
        snprintf(text, text_bytes, "at one of the bytes %" PRId64 " to %" PRId64, first, last);
    }
}

static const char *declared_of(const struct backend_use *use) {
    return use->access == WIRE_USE_READ ? "in" : use->access == WIRE_USE_WRITE ? "out" : "inout";
}

/* ---- which ---- */

static const struct backend_use *use_at(const struct finding *finding) {
    for (uint32_t i = 0; i < finding->launch->use_count; i++) {
        const struct backend_use *use = &finding->launch->uses[i];
        if (finding->range.begin - use->address < use->bytes) {
            return use;
        }
    }
    return NULL;
}

/* ", 36 bytes behind the nearest range declared, argument 1 ('x'), buffer 'ten'". */
static void nearest_text(const struct finding *finding, char *text, size_t text_bytes) {
    const struct backend_use *nearest = NULL;
    uint64_t distance = UINT64_MAX;
    bool is_behind = false;
    for (uint32_t i = 0; i < finding->launch->use_count; i++) {
        const struct backend_use *use = &finding->launch->uses[i];
        uint64_t end = use->address + use->bytes;
        bool behind = finding->range.begin >= end;
        uint64_t gap = behind                              ? finding->range.begin - end
                       : use->address > finding->range.end ? use->address - finding->range.end
                                                           : 0;
        if (use->bytes > 0 && gap < distance) {
            nearest = use;
            distance = gap;
            is_behind = behind;
        }
    }
    if (nearest == NULL) {
        snprintf(text, text_bytes, "the launch declares no buffer");
        return;
    }
    char param[NAME_BYTES], name[NAME_BYTES] = "", far[48] = "just";
    for (uint32_t i = 0; i < finding->verify->block_count; i++) {
        const struct verify_block *block = &finding->verify->blocks[i];
        if (nearest->address - block->address < block->bytes && block->label[0] != '\0') {
            snprintf(name, sizeof name, ", buffer '%s'", block->label);
        }
    }
    use_name(nearest, param, sizeof param);
    if (distance > 0) {
        snprintf(far, sizeof far, "%" PRIu64 " byte%s", distance, distance == 1 ? "" : "s");
    }
    snprintf(text, text_bytes, "%s %s the nearest range declared, %s%s", far,
             is_behind ? "behind" : "before", param, name);
}

static gpulua_status say(const struct finding *finding, struct backend_error *error) {
    const struct verify_block *block = finding->block;
    const struct backend_use *use = use_at(finding);
    char name[NAME_BYTES], place[80], near[2 * NAME_BYTES + 128], param[NAME_BYTES];
    block_name(block, name, sizeof name);
    place_text(finding, place, sizeof place);
    nearest_text(finding, near, sizeof near);
    if (use != NULL) {
        use_name(use, param, sizeof param);
        return gpu_backend_fail(
            error, GPULUA_UNDECLARED_ACCESS, 0,
            "kernel '%.64s' wrote %s, declared %s, %s, allocation %" PRIu64 "%s%s", finding->kernel,
            block->label[0] != '\0' ? name : param, declared_of(use), place, block->number,
            block->label[0] != '\0' ? ", " : "", block->label[0] != '\0' ? param : "");
    }
    if (finding->range.begin - block->address >= block->bytes) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_BOUNDS, 0,
                                "kernel '%.64s' wrote outside of every buffer, %s counted from %s, "
                                "allocation %" PRIu64 " of %" PRIu64 " bytes, %s",
                                finding->kernel, place, name, block->number, block->bytes, near);
    }
    if (block->is_freed) {
        return gpu_backend_fail(error, GPULUA_USE_AFTER_FREE, 0,
                                "kernel '%.64s' wrote %s, allocation %" PRIu64
                                ", which was freed, %s",
                                finding->kernel, name, block->number, place);
    }
    return gpu_backend_fail(error, GPULUA_OUT_OF_BOUNDS, 0,
                            "kernel '%.64s' wrote %s, which is not declared there, %s, allocation "
                            "%" PRIu64 ", %s",
                            finding->kernel, name, place, block->number, near);
}

gpulua_status gpu_verify_find(struct wire_executor *executor, const struct wire_record *record,
                              const struct backend_launch *launch, uint64_t changed,
                              struct backend_error *error) {
    struct executor_verify *verify = executor->verify;
    char *const *kernel = gpu_executor_row(&verify->kernels, record->object);
    struct finding finding = {
        .verify = verify,
        .kernel = kernel != NULL && *kernel != NULL ? *kernel : "?",
        .launch = launch,
    };
    gpulua_status status = locate(executor, &finding, changed, error);
    return status == GPULUA_OK ? say(&finding, error) : status;
}
