/* What both backends know of plans of the library "fft" (see fft.h). */
#include "backend/fft.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBERS (sizeof(struct fft_plan) / sizeof(int64_t))

static bool is_well(const struct fft_plan *plan) {
    bool is_well = plan->rank >= 1 && plan->rank <= FFT_RANK_MAX && plan->batch >= 1;
    for (int64_t i = 0; is_well && i < plan->rank; i++) {
        is_well = plan->sizes[i] >= 1 && plan->x.strides[i] >= 1 && plan->f.strides[i] >= 1;
    }
    return is_well && plan->x.distance >= 1 && plan->f.distance >= 1;
}

gpulua_status gpu_fft_parse(const char *options, struct fft_plan *plan,
                            struct backend_error *error) {
    int64_t numbers[NUMBERS] = {0};
    const char *at = options;
    size_t count = 0;
    for (; count < NUMBERS; count++) {
        char *end;
        errno = 0;
        numbers[count] = strtoll(at, &end, 10);
        if (end == at || errno != 0) {
            break;
        }
        at = end;
    }
    memcpy(plan, numbers, sizeof *plan);
    return count == NUMBERS && *at == '\0' && is_well(plan)
               ? GPULUA_OK
               : gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                  "'%.200s' are no options of an fft", options);
}

const struct fft_side *gpu_fft_side(const struct fft_plan *plan, bool is_x) {
    return is_x ? &plan->x : &plan->f;
}

uint32_t gpu_fft_elem_bytes(const struct fft_plan *plan, bool is_x) {
    return (plan->is_f64 ? 8u : 4u) * (is_x && plan->is_real ? 1u : 2u);
}

int64_t gpu_fft_size(const struct fft_plan *plan, bool is_x, int64_t dimension) {
    int64_t size = plan->sizes[dimension];
    return plan->is_real && !is_x && dimension == plan->rank - 1 ? size / 2 + 1 : size;
}

uint64_t gpu_fft_span_bytes(const struct fft_plan *plan, bool is_x) {
    const struct fft_side *side = gpu_fft_side(plan, is_x);
    int64_t span = 1 + (plan->batch - 1) * side->distance;
    for (int64_t i = 0; i < plan->rank; i++) {
        span += (gpu_fft_size(plan, is_x, i) - 1) * side->strides[i];
    }
    return (uint64_t)span * gpu_fft_elem_bytes(plan, is_x);
}

/* Puts a dimension in front of those there are, or makes the first of them longer. */
static void put(struct fft_loops *loops, int *first, uint64_t size, uint64_t stride) {
    if (size == 1) {
        return;
    }
    if (*first < FFT_LOOPS && stride == loops->sizes[*first] * loops->strides[*first]) {
        loops->sizes[*first] *= size;
        return;
    }
    loops->sizes[--*first] = size;
    loops->strides[*first] = stride;
}

void gpu_fft_loops(const struct fft_plan *plan, bool is_x, struct fft_loops *loops) {
    const struct fft_side *side = gpu_fft_side(plan, is_x);
    uint64_t parts = is_x && plan->is_real ? 1 : 2;
    int first = FFT_LOOPS;
    for (int i = 0; i < FFT_LOOPS; i++) {
        loops->sizes[i] = 1;
        loops->strides[i] = 1;
    }
    put(loops, &first, parts, 1);
    for (int64_t i = plan->rank - 1; i >= 0; i--) {
        put(loops, &first, (uint64_t)gpu_fft_size(plan, is_x, i),
            (uint64_t)side->strides[i] * parts);
    }
    put(loops, &first, (uint64_t)plan->batch, (uint64_t)side->distance * parts);
}

char *gpu_fft_describe(const struct fft_plan *plan,
                       const uint64_t work_bytes[FFT_DIRECTION_COUNT]) {
    /* The work area and its size have no names: no graph is to bind them. */
    static const char rest[] = "out: out void*, out void*, u64, scale: f64\n";
    char text[768] = "";
    int used = 0;
    if (plan->has_forward) {
        used += snprintf(text, sizeof text,
                         "value forward_bytes %" PRIu64 "\nkernel fft_forward in: in void*, %s",
                         work_bytes[FFT_FORWARD], rest);
    }
    if (plan->has_inverse) {
        used += snprintf(text + used, sizeof text - (size_t)used,
                         "value inverse_bytes %" PRIu64 "\nkernel fft_inverse in: %s void*, %s",
                         work_bytes[FFT_INVERSE],
                         plan->is_real && plan->may_overwrite ? "inout" : "in", rest);
    }
    if (plan->has_inverse && plan->is_real && plan->may_be_in_place) {
        snprintf(text + used, sizeof text - (size_t)used,
                 "kernel fft_inverse_in_place in: inout void*, %s", rest);
    }
    return strdup(text);
}
