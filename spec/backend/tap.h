/* Checks of the C programs in this folder: one line each, a summary last. */
#ifndef SPEC_BACKEND_TAP_H
#define SPEC_BACKEND_TAP_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#define TAP_IS_SINGLE_THREADED (__libc_single_threaded != 0)
#else
#define TAP_IS_SINGLE_THREADED false /* not known */
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TAP_IS_SANITIZED 1
#else
#define TAP_IS_SANITIZED 0
#endif

struct tap {
    int passed, failed, skipped;
};

static inline bool tap_check(struct tap *tap, bool good, const char *what) {
    int number = tap->passed + tap->failed + tap->skipped + 1;
    printf("%s %d - %s\n", good ? "ok" : "not ok", number, what);
    tap->passed += good ? 1 : 0;
    tap->failed += good ? 0 : 1;
    fflush(stdout);
    return good;
}

static inline bool tap_equal(struct tap *tap, const char *got, const char *wanted,
                             const char *what) {
    bool good = tap_check(tap, got != NULL && strcmp(got, wanted) == 0, what);
    if (!good) {
        printf("# wanted: %s\n# got:    %s\n", wanted, got != NULL ? got : "(null)");
    }
    return good;
}

static inline void tap_skip(struct tap *tap, const char *what, const char *why) {
    printf("ok %d - %s # SKIP %s\n", tap->passed + tap->failed + tap->skipped + 1, what, why);
    tap->skipped++;
}

/* The program's exit status. */
static inline int tap_finish(const struct tap *tap) {
    if (TAP_IS_SINGLE_THREADED) { /* and always was: tools/check.sh */
        printf("# has started no thread\n");
    }
    printf("%d passed, %d failed, %d skipped\n", tap->passed, tap->failed, tap->skipped);
    return tap->failed == 0 ? 0 : 1;
}

#endif
