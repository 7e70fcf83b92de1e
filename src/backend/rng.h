/* The library "rng" as backends offer it: words of cuRAND's generators, by one call, "words". What
 * is made of them is the business of lua/gpulua/distributions.lua.
 *
 * A call says from which place of which sequence it wants words. cuRAND's generators have a place
 * of their own, so each sequence keeps one for a while, which is set up anew when a call wants
 * other words than those that come next. Both backends call the same library, by numbers of their
 * own: cuRAND also works where there is no GPU, and none of its headers. */
#ifndef GPU_BACKEND_RNG_H
#define GPU_BACKEND_RNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"

struct rng_words_call {
    void *out;      /* `count` words: of 32 bits, or of 64 (sobol64) */
    uint8_t *order; /* orders the draws of one sequence, and tells it from others */
    uint64_t count; /* of Sobol's generators a multiple of `dimensions` */
    uint64_t seed, place;
    int32_t generator, ordering; /* curandRngType, curandOrdering */
    int32_t dimensions;          /* 0: none */
};

#define RNG_SIGNATURE                                                                              \
    "out: out void*, order: inout u8*, count: u64, seed: u64, place: u64, generator: i32, "        \
    "ordering: i32, dimensions: i32"
/* What library_open says. */
#define RNG_DESCRIPTION "kernel words " RNG_SIGNATURE "\n"

/* X(name behind curand, arguments): curandStatus and the like are ints, generators pointers. */
#define RNG_TABLE(X)                                                                               \
    X(CreateGenerator, (void **generator, int kind))                                               \
    X(CreateGeneratorHost, (void **generator, int kind))                                           \
    X(DestroyGenerator, (void *generator))                                                         \
    X(SetStream, (void *generator, void *stream))                                                  \
    X(SetPseudoRandomGeneratorSeed, (void *generator, unsigned long long seed))                    \
    X(SetGeneratorOffset, (void *generator, unsigned long long place))                             \
    X(SetGeneratorOrdering, (void *generator, int ordering))                                       \
    X(SetQuasiRandomGeneratorDimensions, (void *generator, unsigned dimensions))                   \
    X(Generate, (void *generator, unsigned *out, size_t count))                                    \
    X(GenerateLongLong, (void *generator, unsigned long long *out, size_t count))

#define RNG_SEQUENCES_MAX 32u

struct rng_sequence {
    struct rng_words_call
        of;          /* its out and count mean nothing; place: of the words that come next */
    void *generator; /* owned; NULL: free */
    uint64_t used;   /* clock of its last use */
};

struct rng_library {
    bool is_host; /* words for host memory */
    uint64_t clock;
    struct rng_sequence sequences[RNG_SEQUENCES_MAX];
#define X(name, arguments) int(*name) arguments;
    RNG_TABLE(X)
#undef X
};

/* Finds the entry points in what dlopen gave. LIBRARY_UNAVAILABLE. */
gpulua_status gpu_rng_init(struct rng_library *rng, void *library, bool is_host,
                           struct backend_error *error);
/* Destroys the generators; where it is CUDA's, its context is current. */
void gpu_rng_finish(struct rng_library *rng);
/* Draws, on the stream if it is CUDA's. One thread at a time. */
gpulua_status gpu_rng_words(struct rng_library *rng, void *stream,
                            const struct rng_words_call *call, struct backend_error *error);

#endif
