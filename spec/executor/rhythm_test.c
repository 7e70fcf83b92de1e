/* executor/rhythm.c: when the next round of records is expected, in scripts that pause alike, that
 * drift, and that do not. */
#include "executor/rhythm.h"

#include "backend/tap.h"

#define MS UINT64_C(1000000)

static struct tap tap;

/* A round of three records, 10 us apart, after this pause behind the last. Was it expected then? */
static bool round_after(struct executor_rhythm *rhythm, uint64_t pause_ns) {
    uint64_t now_ns = rhythm->round_ns + pause_ns;
    uint64_t end_ns;
    uint64_t begin_ns = gpu_executor_rhythm_expect(rhythm, &end_ns);
    for (int i = 0; i < 3; i++) {
        gpu_executor_rhythm_note(rhythm, now_ns + (uint64_t)i * 10000u);
    }
    return begin_ns <= now_ns && now_ns < end_ns;
}

static void test_regular(void) {
    static const uint64_t pauses_ns[] = {MS / 4, MS, 10 * MS, 16 * MS + 667000, 200 * MS};
    for (size_t p = 0; p < sizeof pauses_ns / sizeof pauses_ns[0]; p++) {
        struct executor_rhythm rhythm = {.round_ns = 12345};
        int expected = 0;
        for (int i = 0; i < 3; i++) {
            expected += round_after(&rhythm, pauses_ns[p]);
        }
        tap_check(&tap, expected == 0, "three pauses are no rhythm yet");
        for (int i = 0; i < 20; i++) {
            expected += round_after(&rhythm, pauses_ns[p]);
        }
        tap_check(&tap, expected == 20, "each like those is expected");
        uint64_t end_ns;
        uint64_t begin_ns = gpu_executor_rhythm_expect(&rhythm, &end_ns);
        tap_check(&tap, end_ns - begin_ns <= pauses_ns[p] / 4 && end_ns - begin_ns <= MS / 4,
                  "for a short time");
    }
}

static void test_jitter(void) {
    struct executor_rhythm rhythm = {.round_ns = 1};
    int expected = 0;
    for (uint64_t i = 0; i < 100; i++) { /* 10 ms, and up to 0.4 late */
        expected += round_after(&rhythm, 10 * MS + i * 7 % 5 * (MS / 10));
    }
    tap_check(&tap, expected >= 90, "also where they are a bit off");
    expected = 0;
    for (uint64_t i = 0; i < 100; i++) { /* from 10 to 20 ms, slowly */
        expected += round_after(&rhythm, 10 * MS + i * (MS / 10));
    }
    tap_check(&tap, expected >= 80, "and where they change slowly");
}

static void test_none(void) {
    static const uint64_t pauses_ns[] = {3 * MS, 11 * MS, 5 * MS, 19 * MS, 2 * MS, 8 * MS};
    struct executor_rhythm rhythm = {.round_ns = 1};
    int expected = 0;
    for (int i = 0; i < 60; i++) {
        expected += round_after(&rhythm, pauses_ns[i % 6]);
    }
    tap_check(&tap, expected == 0, "pauses that differ are never expected");
    rhythm = (struct executor_rhythm){.round_ns = 1};
    for (int i = 0; i < 20; i++) {
        expected += round_after(&rhythm, 1000 * MS);
    }
    tap_check(&tap, expected == 0, "nor long ones");
    rhythm = (struct executor_rhythm){.round_ns = 1};
    for (uint64_t now_ns = 1; now_ns < 100 * MS; now_ns += 5000) { /* one round without an end */
        gpu_executor_rhythm_note(&rhythm, now_ns);
    }
    uint64_t end_ns;
    tap_check(&tap, gpu_executor_rhythm_expect(&rhythm, &end_ns) == 0 && end_ns == 0,
              "nor anything of a script that does not pause");
    for (int i = 0; i < 10; i++) {
        round_after(&rhythm, 10 * MS);
    }
    tap_check(&tap, gpu_executor_rhythm_expect(&rhythm, &end_ns) != 0, "a rhythm");
    round_after(&rhythm, 40 * MS);
    tap_check(&tap, gpu_executor_rhythm_expect(&rhythm, &end_ns) == 0, "ends with one pause");
}

int main(void) {
    test_regular();
    test_jitter();
    test_none();
    return tap_finish(&tap);
}
