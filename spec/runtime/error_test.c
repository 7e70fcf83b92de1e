/* Errors: cutting, copying, freeing, names and hints. */
#include "runtime/error.h"

#include <stdlib.h>
#include <string.h>

#include "backend/tap.h"

static void test_set(struct tap *tap) {
    struct gpu_error error;
    memset(&error, 0xAA, sizeof error);
    gpulua_status status = gpu_error_set(&error, GPULUA_TIMEOUT, "%s %d", "waited", 7);
    tap_check(tap, status == GPULUA_TIMEOUT && error.code == GPULUA_TIMEOUT,
              "set returns the code");
    tap_equal(tap, error.message, "waited 7", "set formats the message");
    tap_check(tap,
              error.driver_code == 0 && error.log == NULL && error.suspects == NULL &&
                  error.suspect_count == 0 && !error.op.is_known && !error.root.is_known &&
                  error.requested_bytes == 0 && error.limit_bytes == 0,
              "set zeroes the rest");
    gpu_error_set(&error, GPULUA_IO, "again: %s", error.message);
    tap_equal(tap, error.message, "again: waited 7", "set may quote the message it replaces");
}

static void test_cut(struct tap *tap) {
    struct gpu_error error;
    static char text[4096];
    memset(text, 'a', sizeof text - 1);
    text[sizeof error.message - 1] = '\0';
    gpu_error_set(&error, GPULUA_IO, "%s", text);
    tap_equal(tap, error.message, text, "the longest message that fits is kept whole");
    text[sizeof error.message - 1] = 'a';
    gpu_error_set(&error, GPULUA_IO, "%s", text);
    size_t length = strlen(error.message);
    tap_check(tap,
              length == sizeof error.message - 1 && strcmp(error.message + length - 4, "a...") == 0,
              "a longer message ends in ...");
    /* A two-byte character across every possible place of the cut. */
    bool is_whole = true;
    for (size_t shift = 0; shift < 2; shift++) {
        for (size_t i = 0; i + 1 < sizeof text - 2; i += 2) {
            memcpy(text + shift + i, "\xC3\xA9", 2);
        }
        gpu_error_set(&error, GPULUA_IO, "%s", text);
        length = strlen(error.message);
        is_whole = is_whole && strcmp(error.message + length - 3, "...") == 0 &&
                   (unsigned char)error.message[length - 4] == 0xA9;
    }
    tap_check(tap, is_whole, "a cut splits no UTF-8 character");
}

static void test_copy(struct tap *tap) {
    struct gpu_error from;
    struct gpu_error to;
    memset(&to, 0xAA, sizeof to);
    gpu_error_set(&from, GPULUA_DEVICE_LOST, "gone");
    from.log = strdup("a log");
    from.suspects = calloc(2, sizeof *from.suspects);
    from.suspect_count = 2;
    from.suspects[1].seq = 42;
    from.root.seq = 3;
    gpu_error_copy(&to, &from);
    tap_check(tap,
              to.log != from.log && to.suspects != from.suspects && to.suspect_count == 2 &&
                  to.suspects[1].seq == 42 && strcmp(to.log, "a log") == 0 && to.root.seq == 3 &&
                  to.code == GPULUA_DEVICE_LOST && strcmp(to.message, "gone") == 0,
              "a copy is deep");
    gpu_error_finish(&from);
    tap_check(tap, strcmp(to.log, "a log") == 0 && to.suspects[1].seq == 42,
              "a copy outlives what it was made from");
    gpu_error_copy(&to, &to);
    tap_check(tap, to.log != NULL && to.suspect_count == 2, "a copy onto itself changes nothing");
    gpu_error_finish(&to);
    gpu_error_finish(&to);
    tap_check(tap, to.log == NULL && to.suspects == NULL && to.suspect_count == 0,
              "finish twice is fine");
    struct gpu_error zeroed = {0};
    gpu_error_finish(&zeroed);
    tap_check(tap, zeroed.log == NULL, "finish of a zeroed error is fine");
}

static void test_names(struct tap *tap) {
    static const char *const names[] = {
#define X(number, name, code, meaning, hint) [number] = code,
        GPULUA_STATUS_TABLE(X)
#undef X
    };
    bool is_named = true;
    bool has_hints = true;
    bool is_unique = true;
    int count = (int)(sizeof names / sizeof names[0]);
    for (int i = 1; i < count; i++) {
        is_named = is_named && names[i] != NULL &&
                   strcmp(gpulua_status_name((gpulua_status)i), names[i]) == 0;
        has_hints = has_hints && strlen(gpu_error_hint((gpulua_status)i)) > 0;
        for (int j = 1; j < i; j++) {
            is_unique = is_unique && strcmp(names[i], names[j]) != 0;
        }
    }
    tap_check(tap, count == 34 && is_named, "every number from 1 to 33 has its name");
    tap_check(tap, is_unique, "names are unique");
    tap_check(tap, has_hints, "every status has a hint");
    tap_equal(tap, gpulua_status_name(GPULUA_OK), "OK", "0 is OK");
    tap_equal(tap, gpu_error_hint(GPULUA_OK), "", "OK has no hint");
    tap_equal(tap, gpulua_status_name((gpulua_status)count), "Unknown", "past the table: Unknown");
    tap_equal(tap, gpulua_status_name((gpulua_status)-1), "Unknown", "negative: Unknown");
    tap_equal(tap, gpu_error_hint((gpulua_status)count), "", "past the table: no hint");
}

int main(void) {
    struct tap tap = {0};
    test_set(&tap);
    test_cut(&tap);
    test_copy(&tap);
    test_names(&tap);
    return tap_finish(&tap);
}
