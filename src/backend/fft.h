/* The library "fft" as backends offer it: a module is one plan, made from its options.
 *
 * A plan goes between two sides: forward from side x to side f (the frequencies), inverse back. Of
 * a real plan x is real, and of the last dimension of f there are n / 2 + 1. Neither direction
 * divides by anything. What lies where is counted in elements of the side, row by row; each stride
 * is a multiple of the next, and covers it. lua/gpulua/fft.lua sees to that. */
#ifndef GPU_BACKEND_FFT_H
#define GPU_BACKEND_FFT_H

#include "backend/backend.h"

#define FFT_RANK_MAX 3

struct fft_side {
    int64_t strides[FFT_RANK_MAX]; /* from one index to the next */
    int64_t distance;              /* from one transform to the next */
};

/* What options say: these numbers in this order, in decimal, with blanks between them. */
struct fft_plan {
    int64_t is_real, is_f64;
    int64_t has_forward, has_inverse;
    int64_t may_be_in_place; /* both sides may be the same memory */
    int64_t may_overwrite;   /* the inverse of a real plan may destroy what it reads */
    int64_t is_measured;     /* take time to find the fastest way, where the library can */
    int64_t rank, batch;
    int64_t sizes[FFT_RANK_MAX];
    struct fft_side x, f;
};

/* X(call, direction) */
#define FFT_CALLS(X)                                                                               \
    X(fft_forward, FFT_FORWARD)                                                                    \
    X(fft_inverse, FFT_INVERSE)                                                                    \
    X(fft_inverse_in_place, FFT_INVERSE) /* of a real plan: all of what is read may be written */
struct fft_call {
    const void *in;
    void *out;
    void *work; /* the plan's bytes for the direction, aligned to 256 */
    uint64_t work_bytes;
    double scale; /* of what comes out */
};

enum fft_direction { FFT_FORWARD, FFT_INVERSE, FFT_DIRECTION_COUNT };

/* INVALID_ARGUMENT: not the options of a plan. */
gpulua_status gpu_fft_parse(const char *options, struct fft_plan *plan,
                            struct backend_error *error);
/* The side that a direction reads or writes, and bytes of one of its elements. */
const struct fft_side *gpu_fft_side(const struct fft_plan *plan, bool is_x);
uint32_t gpu_fft_elem_bytes(const struct fft_plan *plan, bool is_x);
/* How many there are in a dimension. */
int64_t gpu_fft_size(const struct fft_plan *plan, bool is_x, int64_t dimension);
/* Bytes from the first element of the side to behind the last one. */
uint64_t gpu_fft_span_bytes(const struct fft_plan *plan, bool is_x);

/* The elements of a side as numbers: a row of rows of rows, with as few dimensions as say it. The
 * last ones of the arrays count, what is before them is 1 long. */
#define FFT_LOOPS 5
struct fft_loops {
    uint64_t sizes[FFT_LOOPS], strides[FFT_LOOPS];
};
void gpu_fft_loops(const struct fft_plan *plan, bool is_x, struct fft_loops *loops);

/* What library_open says, with the bytes of work that each direction wants. malloc'ed. */
char *gpu_fft_describe(const struct fft_plan *plan, const uint64_t work_bytes[FFT_DIRECTION_COUNT]);

#endif
