/* The range allocator against a naive model: one byte for each unit of each region. */
#include "runtime/range.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/tap.h"

#define UNIT GPU_RANGE_ALIGN_BYTES
#define REGIONS 4u
#define REGION_UNITS 3000u
#define LIVE_MAX 600u

static uint64_t random_next(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

struct model {
    uint8_t used[REGIONS + 1][REGION_UNITS];
    uint32_t region_units[REGIONS + 1];
    uint64_t units_used;
};

/* Is there a run of free units that long? */
static bool model_fits(const struct model *model, uint64_t units) {
    for (uint32_t region = 1; region <= REGIONS; region++) {
        uint64_t run = 0;
        for (uint32_t i = 0; i < model->region_units[region]; i++) {
            run = model->used[region][i] ? 0 : run + 1;
            if (run == units) {
                return true;
            }
        }
    }
    return false;
}

static bool model_mark(struct model *model, const struct gpu_range *range, uint64_t asked,
                       uint8_t to) {
    uint64_t first = range->byte_offset / UNIT;
    uint64_t units = range->byte_count / UNIT;
    if (range->region < 1 || range->region > REGIONS || range->byte_offset % UNIT != 0 ||
        range->byte_count % UNIT != 0 || (to && units != (asked + UNIT - 1) / UNIT) ||
        first + units > model->region_units[range->region]) {
        return false;
    }
    for (uint64_t i = first; i < first + units; i++) {
        if (model->used[range->region][i] == to) {
            return false; /* an overlap, or freed before */
        }
        model->used[range->region][i] = to;
    }
    model->units_used += to ? units : 0 - units;
    return true;
}

static uint64_t random_bytes(uint64_t *seed) {
    switch (random_next(seed) % 4) {
    case 0:
        return 1 + random_next(seed) % UNIT;
    case 1:
        return 1 + random_next(seed) % (40 * UNIT);
    case 2:
        return UNIT * (1 + random_next(seed) % 200);
    default:
        return 1 + random_next(seed) % (REGION_UNITS * (uint64_t)UNIT);
    }
}

struct fuzz {
    unsigned steps, wrong_place, wrong_answer, wrong_count, refused, leftover;
};

static void fuzz_one(uint64_t seed, struct fuzz *fuzz) {
    struct gpu_range_allocator *allocator = gpu_range_allocator_create();
    struct model *model = calloc(1, sizeof *model);
    struct gpu_range live[LIVE_MAX];
    uint32_t live_count = 0;
    uint64_t total = 0;
    for (uint32_t region = 1; region <= REGIONS; region++) {
        model->region_units[region] = REGION_UNITS - (uint32_t)(random_next(&seed) % 1000);
        /* What is over a multiple of the unit is left unused. */
        uint64_t odd = random_next(&seed) % UNIT;
        gpu_range_region_add(allocator, region, model->region_units[region] * (uint64_t)UNIT + odd);
        total += model->region_units[region] * (uint64_t)UNIT;
    }
    for (int step = 0; step < 3000; step++, fuzz->steps++) {
        /* Phases that grow and phases that shrink, so that both full and empty are reached. */
        bool wants_alloc = random_next(&seed) % 10 < ((step / 300) % 2 == 0 ? 7u : 3u);
        if (live_count == 0 || (wants_alloc && live_count < LIVE_MAX)) {
            uint64_t bytes = random_bytes(&seed);
            struct gpu_range *range = &live[live_count];
            bool fits = model_fits(model, (bytes + UNIT - 1) / UNIT);
            bool got = gpu_range_alloc(allocator, bytes, range);
            fuzz->wrong_answer += fits != got;
            fuzz->refused += !got;
            if (got) {
                fuzz->wrong_place += !model_mark(model, range, bytes, 1);
                live_count++;
            }
        } else {
            uint32_t victim = (uint32_t)(random_next(&seed) % live_count);
            fuzz->wrong_place += !model_mark(model, &live[victim], 0, 0);
            gpu_range_free(allocator, &live[victim]);
            live[victim] = live[--live_count];
        }
        fuzz->wrong_count += gpu_range_bytes_used(allocator) != model->units_used * UNIT;
        fuzz->wrong_count += gpu_range_bytes_total(allocator) != total;
    }
    while (live_count > 0) {
        gpu_range_free(allocator, &live[--live_count]);
    }
    /* All free: each region must have become one range again. */
    fuzz->leftover += gpu_range_bytes_used(allocator) != 0;
    for (uint32_t i = 0; i < REGIONS; i++) {
        uint64_t bytes = 0;
        uint32_t region = gpu_range_region_take_free(allocator, &bytes);
        fuzz->leftover += region == 0 || region > REGIONS ||
                          bytes != model->region_units[region] * (uint64_t)UNIT;
    }
    fuzz->leftover += gpu_range_bytes_total(allocator) != 0;
    free(model);
    gpu_range_allocator_destroy(allocator);
}

static void test_fuzz(struct tap *tap) {
    struct fuzz fuzz = {0};
    for (uint64_t seed = 1; seed <= 12; seed++) {
        fuzz_one(seed * UINT64_C(0x9E3779B97F4A7C15), &fuzz);
    }
    tap_check(tap, fuzz.steps == 36000 && fuzz.wrong_place == 0,
              "fuzz: no overlap, aligned, rounded up, inside its region");
    tap_check(tap, fuzz.wrong_answer == 0 && fuzz.refused > 100,
              "fuzz: refuses exactly when no free run is long enough");
    tap_check(tap, fuzz.wrong_count == 0, "fuzz: used and total bytes are exact");
    tap_check(tap, fuzz.leftover == 0, "fuzz: all freed coalesces back to whole regions");
}

static void test_exact_fit(struct tap *tap) {
    /* Sizes that are not the smallest of their class: rounding the request up to the next class
     * would miss the only range that fits. */
    bool is_found = true;
    for (uint64_t units = 1; units < 5000; units++) {
        struct gpu_range_allocator *allocator = gpu_range_allocator_create();
        struct gpu_range range;
        gpu_range_region_add(allocator, 7, units * UNIT);
        is_found = is_found && !gpu_range_alloc(allocator, units * UNIT + 1, &range) &&
                   gpu_range_alloc(allocator, units * UNIT, &range) && range.region == 7 &&
                   range.byte_offset == 0 && range.byte_count == units * UNIT;
        gpu_range_allocator_destroy(allocator);
    }
    tap_check(tap, is_found, "a request for the whole of any region is met, one byte more is not");
}

static void test_exhaustion(struct tap *tap) {
    struct gpu_range_allocator *allocator = gpu_range_allocator_create();
    struct gpu_range ranges[1000];
    gpu_range_region_add(allocator, 1, 1000 * UNIT);
    uint32_t count = 0;
    while (count < 1000 && gpu_range_alloc(allocator, 1, &ranges[count])) {
        count++;
    }
    struct gpu_range range;
    tap_check(tap, count == 1000 && !gpu_range_alloc(allocator, 1, &range),
              "1000 units hold 1000 ranges and not one more");
    for (uint32_t i = 0; i < 1000; i += 2) {
        gpu_range_free(allocator, &ranges[i]);
    }
    tap_check(tap, !gpu_range_alloc(allocator, UNIT + 1, &range),
              "half free in single units: two together are refused");
    tap_check(tap, gpu_range_alloc(allocator, UNIT, &range), "and one is found");
    tap_check(tap,
              !gpu_range_alloc(allocator, UINT64_MAX, &range) &&
                  !gpu_range_alloc(allocator, UINT64_MAX - UNIT, &range),
              "sizes near 2^64 are refused");
    gpu_range_allocator_destroy(allocator);
    gpu_range_allocator_destroy(NULL);
    allocator = gpu_range_allocator_create();
    tap_check(tap, !gpu_range_alloc(allocator, 1, &range), "no region: nothing fits");
    gpu_range_allocator_destroy(allocator);
}

static void test_regions(struct tap *tap) {
    struct gpu_range_allocator *allocator = gpu_range_allocator_create();
    gpu_range_region_add(allocator, 3, 100 * UNIT);
    gpu_range_region_add(allocator, 4, 50 * UNIT);
    gpu_range_region_add(allocator, 5, 200 * UNIT);
    struct gpu_range range;
    uint64_t bytes = 0;
    tap_check(tap, gpu_range_region_take_free(allocator, &bytes) == 4 && bytes == 50 * UNIT,
              "take_free gives the smallest");
    gpu_range_alloc(allocator, 200 * UNIT, &range);
    tap_check(tap,
              range.region == 5 && gpu_range_region_take_free(allocator, &bytes) == 3 &&
                  bytes == 100 * UNIT,
              "take_free leaves regions in use alone");
    tap_check(tap, gpu_range_region_take_free(allocator, &bytes) == 0, "none wholly free: 0");
    gpu_range_free(allocator, &range);
    tap_check(tap, gpu_range_region_take_free(allocator, &bytes) == 5 && bytes == 200 * UNIT,
              "freed: it is wholly free again");
    tap_check(tap, gpu_range_bytes_total(allocator) == 0, "nothing is left");
    gpu_range_allocator_destroy(allocator);

    /* Regions that hold 16 TiB: bookkeeping only, no memory behind them. */
    allocator = gpu_range_allocator_create();
    uint64_t huge = UINT64_C(1) << 44;
    gpu_range_region_add(allocator, 1, huge);
    bool is_right =
        gpu_range_alloc(allocator, huge - UNIT, &range) && range.byte_count == huge - UNIT;
    struct gpu_range last;
    is_right =
        is_right && gpu_range_alloc(allocator, UNIT, &last) && last.byte_offset == huge - UNIT;
    tap_check(tap, is_right, "a region of 16 TiB is usable to its last unit");
    gpu_range_allocator_destroy(allocator);
}

/* What an allocation and its end take among count / 2 free ranges. */
static double taken_ns(int count) {
    enum { rounds = 200000 };
    struct gpu_range_allocator *allocator = gpu_range_allocator_create();
    struct gpu_range *ranges = malloc((size_t)count * sizeof *ranges);
    gpu_range_region_add(allocator, 1, (uint64_t)count * 64 * UNIT);
    uint64_t seed = 99;
    for (int i = 0; i < count; i++) {
        gpu_range_alloc(allocator, UNIT * (1 + random_next(&seed) % 64), &ranges[i]);
    }
    for (int i = 0; i < count; i += 2) {
        gpu_range_free(allocator, &ranges[i]);
    }
    struct timespec start;
    struct timespec end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
    for (int i = 0; i < rounds; i++) {
        struct gpu_range range;
        gpu_range_alloc(allocator, UNIT * (1 + random_next(&seed) % 64), &range);
        gpu_range_free(allocator, &range);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    double ns =
        ((double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec)) /
        rounds;
    free(ranges);
    gpu_range_allocator_destroy(allocator);
    return ns;
}

/* Not a bench: a bound that a linear search over many free ranges would miss by far. */
static void test_time(struct tap *tap) {
    double few_ns = 1e12, many_ns = 1e12;
    for (int tries = 0; tries < 5 && (tries == 0 || many_ns >= 25 * few_ns); tries++) {
        few_ns = fmin(few_ns, taken_ns(1000));
        many_ns = fmin(many_ns, taken_ns(100000));
    }
    printf("# alloc and free among 500 free ranges: %.0f ns, among 50,000: %.0f\n", few_ns,
           many_ns);
    tap_check(tap, many_ns < 25 * few_ns, "time does not grow with the number of free ranges");
}

int main(void) {
    struct tap tap = {0};
    test_exact_fit(&tap);
    test_exhaustion(&tap);
    test_regions(&tap);
    test_fuzz(&tap);
    test_time(&tap);
    return tap_finish(&tap);
}
