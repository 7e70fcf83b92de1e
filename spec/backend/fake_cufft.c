/* A cuFFT without a GPU, for fft_test.c: plans over host memory. It transforms nothing, but puts
 * each number where its transform would go: number j of what goes in becomes number j of what comes
 * out, of a real row the first n / 2 + 1 forward, and back each of these once more in the other
 * half. It writes over all of its work area, and over what the inverse of a real plan reads. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
enum { OK = 0, INVALID_PLAN = 1, INVALID_VALUE = 4, NO_WORKSPACE = 13 };
enum { R2C = 0x2a, C2R = 0x2c, C2C = 0x29, D2Z = 0x6a, Z2D = 0x6c, Z2Z = 0x69 };

/* What the test sets and reads. */
API char fake_fail_name[64]; /* the call that fails ... */
API int fake_fail_code;      /* ... with this code */
API long fake_live;
API size_t fake_work_bytes = 100; /* of plans that are made */
API void *fake_stream;            /* of the last transform */
API int fake_sign;
/* Instead of transforming at once, the next transforms copy what goes in on their stream. */
API int (*fake_copy)(uint64_t out, uint64_t in, size_t bytes, void *stream);
API int fake_calls; /* transforms, also those that are copies */

struct side {
    long long embed[3], stride, distance;
};
static struct plan {
    int is_live, is_made, allocates, rank, type;
    long long sizes[3], batch;
    struct side in, out;
    size_t work_bytes;
    void *stream, *work;
} plans[64];

static int answer(const char *name) {
    if (fake_fail_code != 0 && strcmp(name, fake_fail_name) == 0) {
        int code = fake_fail_code;
        fake_fail_code = 0;
        return code;
    }
    return OK;
}
#define BEGIN(handle)                                                                              \
    int result = answer(__func__);                                                                 \
    if (result != OK) {                                                                            \
        return result;                                                                             \
    }                                                                                              \
    if ((handle) < 0 || (handle) >= 64 || !plans[handle].is_live) {                                \
        return INVALID_PLAN;                                                                       \
    }                                                                                              \
    struct plan *plan = &plans[handle]

API int cufftCreate(int *handle) {
    int result = answer(__func__);
    for (int i = 0; result == OK && i < 64; i++) {
        if (!plans[i].is_live) {
            plans[i] = (struct plan){.is_live = 1, .allocates = 1};
            *handle = i;
            fake_live++;
            return OK;
        }
    }
    return result;
}
API int cufftDestroy(int handle) {
    BEGIN(handle);
    plan->is_live = 0;
    fake_live--;
    return OK;
}
API int cufftSetAutoAllocation(int handle, int allocates) {
    BEGIN(handle);
    plan->allocates = allocates;
    return OK;
}
API int cufftMakePlanMany64(int handle, int rank, long long *sizes, long long *in_embed,
                            long long in_stride, long long in_distance, long long *out_embed,
                            long long out_stride, long long out_distance, int type, long long batch,
                            size_t *work_bytes) {
    BEGIN(handle);
    if (rank < 1 || rank > 3 || plan->allocates) {
        return INVALID_VALUE;
    }
    plan->is_made = 1;
    plan->rank = rank;
    plan->type = type;
    plan->batch = batch;
    plan->in = (struct side){.stride = in_stride, .distance = in_distance};
    plan->out = (struct side){.stride = out_stride, .distance = out_distance};
    memcpy(plan->sizes, sizes, (size_t)rank * sizeof *sizes);
    memcpy(plan->in.embed, in_embed, (size_t)rank * sizeof *sizes);
    memcpy(plan->out.embed, out_embed, (size_t)rank * sizeof *sizes);
    plan->work_bytes = *work_bytes = fake_work_bytes;
    return OK;
}
API int cufftSetStream(int handle, void *stream) {
    BEGIN(handle);
    plan->stream = stream;
    return OK;
}
API int cufftSetWorkArea(int handle, void *work) {
    BEGIN(handle);
    plan->work = work;
    return OK;
}

/* As cuFFT's manual has it, of an element by its index in each dimension. */
static long long place(const struct side *side, int rank, const long long *index, long long batch) {
    long long at = index[0];
    for (int i = 1; i < rank; i++) {
        at = at * side->embed[i] + index[i];
    }
    return batch * side->distance + at * side->stride;
}

static int transform(struct plan *plan, int type, int sign, void *in, void *out) {
    size_t real = plan->type & 0x40 ? 8 : 4;
    size_t from = type == R2C || type == D2Z ? real : 2 * real;
    size_t to = type == C2R || type == Z2D ? real : 2 * real;
    int last = plan->rank - 1;
    long long count = plan->batch, n = plan->sizes[last];
    fake_calls++;
    if (fake_copy != NULL) {
        fake_stream = plan->stream;
        return fake_copy((uint64_t)(uintptr_t)out, (uint64_t)(uintptr_t)in,
                         (size_t)(plan->batch * n) * from, plan->stream)
                   ? 6
                   : OK;
    }
    if (!plan->is_made || plan->type != type) {
        return INVALID_PLAN;
    }
    if (plan->work_bytes > 0 && plan->work == NULL) {
        return NO_WORKSPACE;
    }
    for (int i = 0; i < plan->rank; i++) {
        count *= plan->sizes[i];
    }
    char *read = malloc((size_t)count * 16); /* first all of it, for in place */
    memset(read, 0, (size_t)count * 16);
    for (int pass = 0; pass < 2; pass++) {
        for (long long i = 0; i < count; i++) {
            long long index[3] = {0}, left = i;
            for (int d = last; d >= 0; d--) {
                index[d] = left % plan->sizes[d];
                left /= plan->sizes[d];
            }
            if (pass == 0) {
                if (to < from && index[last] > n / 2) {
                    index[last] = n - index[last];
                }
                memcpy(read + i * 16,
                       (char *)in + (size_t)place(&plan->in, plan->rank, index, left) * from, from);
            } else if (from == to || to < from || index[last] <= n / 2) {
                memcpy((char *)out + (size_t)place(&plan->out, plan->rank, index, left) * to,
                       read + i * 16, to);
            }
        }
        if (pass == 0 && to < from) {
            for (long long i = 0; i < count / n; i++) {
                long long index[3] = {0}, left = i;
                for (int d = last - 1; d >= 0; d--) {
                    index[d] = left % plan->sizes[d];
                    left /= plan->sizes[d];
                }
                for (index[last] = 0; index[last] <= n / 2; index[last]++) {
                    memset((char *)in + (size_t)place(&plan->in, plan->rank, index, left) * from,
                           0xee, from);
                }
            }
        }
    }
    free(read);
    if (plan->work_bytes > 0) {
        memset(plan->work, 0xdd, plan->work_bytes);
    }
    plan->work = NULL;
    fake_stream = plan->stream;
    fake_sign = sign;
    return OK;
}

#define EXECUTE(name, type)                                                                        \
    API int cufftExec##name(int handle, void *in, void *out) {                                     \
        BEGIN(handle);                                                                             \
        return transform(plan, type, 0, in, out);                                                  \
    }
#define EXECUTE_SIGNED(name, type)                                                                 \
    API int cufftExec##name(int handle, void *in, void *out, int sign) {                           \
        BEGIN(handle);                                                                             \
        return transform(plan, type, sign, in, out);                                               \
    }
EXECUTE_SIGNED(C2C, C2C)
EXECUTE_SIGNED(Z2Z, Z2Z)
EXECUTE(R2C, R2C)
EXECUTE(D2Z, D2Z)
EXECUTE(C2R, C2R)
EXECUTE(Z2D, Z2D)
