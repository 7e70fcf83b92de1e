/* Words of cuRAND's generators, for both backends (see rng.h). */
#include "backend/rng.h"

#include <dlfcn.h>
#include <string.h>

enum { SUCCESS = 0, ALLOCATION_FAILED = 102 }; /* of curandStatus */

gpulua_status gpu_rng_init(struct rng_library *rng, void *library, bool is_host,
                           struct backend_error *error) {
    struct {
        const char *name;
        void *to;
    } const wanted[] = {
#define X(name, arguments) {"curand" #name, &rng->name},
        RNG_TABLE(X)
#undef X
    };
    memset(rng, 0, sizeof *rng);
    rng->is_host = is_host;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *symbol = dlsym(library, wanted[i].name);
        if (symbol == NULL) {
            return gpu_backend_fail(error, GPULUA_LIBRARY_UNAVAILABLE, 0,
                                    "the library that is taken for cuRAND has no %s",
                                    wanted[i].name);
        }
        memcpy(wanted[i].to, &symbol, sizeof symbol);
    }
    return GPULUA_OK;
}

static void sequence_end(struct rng_library *rng, struct rng_sequence *sequence) {
    if (sequence->generator != NULL) {
        (void)rng->DestroyGenerator(sequence->generator);
    }
    sequence->generator = NULL;
}

void gpu_rng_finish(struct rng_library *rng) {
    for (size_t i = 0; i < RNG_SEQUENCES_MAX; i++) {
        sequence_end(rng, &rng->sequences[i]);
    }
}

static gpulua_status result(int code, const char *call, struct backend_error *error) {
    if (code == SUCCESS) {
        return GPULUA_OK;
    }
    gpulua_status status = code == ALLOCATION_FAILED ? GPULUA_OUT_OF_MEMORY : GPULUA_LIBRARY_ERROR;
    return gpu_backend_fail(error, status, code, "curand%.*s: curandStatus %d",
                            (int)strcspn(call, "("), call, code);
}
#define RAND(rng, error, call) result((rng)->call, #call, (error))

/* The generator for the call's words, or room for it: what was used longest ago ends. */
static struct rng_sequence *sequence_for(struct rng_library *rng,
                                         const struct rng_words_call *call) {
    struct rng_sequence *oldest = rng->sequences;
    for (size_t i = 0; i < RNG_SEQUENCES_MAX; i++) {
        struct rng_sequence *at = &rng->sequences[i];
        if (at->generator != NULL && at->of.order == call->order && at->of.seed == call->seed &&
            at->of.generator == call->generator && at->of.ordering == call->ordering &&
            at->of.dimensions == call->dimensions) {
            return at;
        }
        if (at->generator == NULL || (oldest->generator != NULL && at->used < oldest->used)) {
            oldest = at;
        }
    }
    sequence_end(rng, oldest);
    return oldest;
}

static gpulua_status sequence_begin(struct rng_library *rng, struct rng_sequence *sequence,
                                    const struct rng_words_call *call,
                                    struct backend_error *error) {
    gpulua_status status =
        rng->is_host ? RAND(rng, error, CreateGeneratorHost(&sequence->generator, call->generator))
                     : RAND(rng, error, CreateGenerator(&sequence->generator, call->generator));
    if (status != GPULUA_OK) {
        sequence->generator = NULL;
        return status;
    }
    sequence->of = *call;
    sequence->of.place = 0;
    status = RAND(rng, error, SetGeneratorOrdering(sequence->generator, call->ordering));
    if (status == GPULUA_OK && call->dimensions > 0) {
        status = RAND(
            rng, error,
            SetQuasiRandomGeneratorDimensions(sequence->generator, (unsigned)call->dimensions));
    } else if (status == GPULUA_OK) {
        status = RAND(rng, error, SetPseudoRandomGeneratorSeed(sequence->generator, call->seed));
    }
    return status;
}

gpulua_status gpu_rng_words(struct rng_library *rng, void *stream,
                            const struct rng_words_call *call, struct backend_error *error) {
    bool is_wide = call->generator == 203 || call->generator == 204; /* Sobol's of 64 bits */
    gpulua_status status = GPULUA_OK;
    if (call->count == 0) {
        return GPULUA_OK;
    }
    struct rng_sequence *sequence = sequence_for(rng, call);
    if (sequence->generator == NULL) {
        status = sequence_begin(rng, sequence, call, error);
    }
    if (status == GPULUA_OK && !rng->is_host) {
        status = RAND(rng, error, SetStream(sequence->generator, stream));
    }
    if (status == GPULUA_OK && sequence->of.place != call->place) {
        status = RAND(rng, error, SetGeneratorOffset(sequence->generator, call->place));
    }
    if (status == GPULUA_OK) {
        status = is_wide ? RAND(rng, error,
                                GenerateLongLong(sequence->generator, call->out, call->count))
                         : RAND(rng, error, Generate(sequence->generator, call->out, call->count));
    }
    if (status != GPULUA_OK) {
        sequence_end(rng, sequence);
        return status;
    }
    uint64_t per_point = call->dimensions > 0 ? (uint64_t)call->dimensions : 1;
    sequence->of.place = call->place + call->count / per_point;
    sequence->used = ++rng->clock;
    return GPULUA_OK;
}
