/* The library "rng" on the CPU device: cuRAND's host generators, which need neither GPU nor driver.
 * cuRAND and no other library because its words are to be those of GPUs. */
#include <pthread.h>

#include "backend/cpu/library.h"
#include "backend/rng.h"

static struct rng_library rng;
static bool is_open;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of drawing: workers are many */

static gpulua_status open_rng(struct backend_error *error) {
    static const char *const names[] = {"libcurand.so.10", "/usr/local/cuda/lib64/libcurand.so.10",
                                        "/opt/cuda/lib64/libcurand.so.10", NULL};
    void *library = NULL;
    if (is_open) {
        return GPULUA_OK;
    }
    gpulua_status status = gpu_cpu_library_load(
        "GPULUA_LIBCURAND", names, "cuRAND (libcurand, part of the CUDA toolkit)", &library, error);
    if (status == GPULUA_OK) {
        status = gpu_rng_init(&rng, library, true, error);
    }
    is_open = status == GPULUA_OK;
    return status;
}

static gpulua_status words(void *made, const void *args, struct backend_error *error) {
    (void)made;
    pthread_mutex_lock(&lock);
    gpulua_status status = gpu_rng_words(&rng, NULL, args, error);
    pthread_mutex_unlock(&lock);
    return status;
}

static const struct cpu_library_call calls[] = {{"words", words, sizeof(struct rng_words_call)}};

const struct cpu_library gpu_cpu_rng = {
    .name = "rng",
    .open = open_rng,
    .calls = calls,
    .call_count = 1,
    .description = RNG_DESCRIPTION,
};
