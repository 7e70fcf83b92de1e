/* Whose work it was that bodies of conditional nodes did (src/backend/cuda/tracer_bodies.h),
 * without a driver: whatever order it comes in, when there is no room, and when there is no memory,
 * nothing is given to another launch, and who lacks something is told so. */
#include <errno.h>
#include <stdlib.h>

#include "tap.h"

static struct tap tap;

#ifdef GPULUA_CUDA

#include "backend/cuda/tracer_bodies.h"

/* ---- an allocator that fails on demand ---- */

static bool can_fail, fails_now;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern void *__libc_realloc(void *block, size_t bytes);

void *realloc(void *block, size_t bytes) {
    can_fail = true;
    if (fails_now) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_realloc(block, bytes);
}
#endif

/* ---- a graph: node 1; 2, a loop with 3 in its body; another one's differ in their ids alone ----
 */

enum { LOOP = 1, BODY = 2, OWN_NUMBER = 2, BODY_NUMBER = 3, GRAPHS = 4 };

static struct cuda_node_map *new_map(void) {
    static const struct map_entry entries[] = {{1, 1}, {2, OWN_NUMBER}, {3, BODY_NUMBER}};
    struct cuda_node_map *map = calloc(1, sizeof *map);
    atomic_init(&map->ref_count, 1);
    map->part_count = 0;
    map->entry_count = 3;
    map->entries = malloc(sizeof entries);
    memcpy(map->entries, entries, sizeof entries);
    return map;
}

static uint64_t id_of(uint32_t graph, uint32_t node) {
    return (uint64_t)(graph + 6) << 32 | node;
}

/* ---- what is told ---- */

#define OPERATIONS_MAX 600000u

/* By operation, which is from 1. */
static struct told {
    uint32_t own, missing;
    bool lacks, is_wrong;
} told[OPERATIONS_MAX];
/* Whose it is, by when it began: works of all launches begin at different times. */
static uint32_t owners[OPERATIONS_MAX * 4];

static void tell(uint64_t operation, uint32_t node, int64_t begin_ns, int64_t end_ns) {
    struct told *of = &told[operation];
    if (node & WIRE_NODES_MISSING) {
        of->lacks = true;
        of->missing += node & ~WIRE_NODES_MISSING;
    } else {
        of->own++;
        of->is_wrong |= owners[begin_ns] != operation || node != BODY_NUMBER || end_ns <= begin_ns;
    }
}

static struct cuda_bodies fresh(void) {
    memset(told, 0, sizeof told);
    memset(owners, 0, sizeof owners);
    return (struct cuda_bodies){.tell = tell};
}

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* ---- in any order ---- */

enum { LAUNCHES = 400, TURNS_MAX = 5 };

/* What CUPTI will tell of. */
struct record {
    int64_t begin_ns;
    uint32_t launch, graph; /* launch 0: work of a body */
};

/* Launches of several graphs, each called before the one before it is over; what they did comes in
 * any order, some launches later. Returns how many lack something; UINT32_MAX: wrong. */
static uint32_t run(uint32_t seed, uint32_t failures) {
    static struct record pending[LAUNCHES * (TURNS_MAX + 1)];
    static uint64_t numbers[LAUNCHES + 1];
    static uint32_t turns[LAUNCHES + 1];
    struct cuda_bodies bodies = fresh();
    struct cuda_node_map *maps[GRAPHS];
    uint32_t state = seed, count = 0, lacking = 0;
    int64_t now = 10, free_at[GRAPHS] = {0};
    bool good = true;
    for (int i = 0; i < GRAPHS; i++) {
        maps[i] = new_map();
    }
    for (uint32_t operation = 1; operation <= LAUNCHES; operation++) {
        uint32_t graph = next_random(&state) % GRAPHS;
        fails_now = next_random(&state) % 1000 < failures;
        numbers[operation] = gpu_cuda_bodies_launch(&bodies, operation, maps[graph], now++);
        turns[operation] = next_random(&state) % (TURNS_MAX + 1);
        int64_t at = now > free_at[graph] ? now : free_at[graph];
        pending[count++] = (struct record){at++, operation, graph};
        for (uint32_t i = 0; i < turns[operation]; i++) {
            while (owners[at] != 0) {
                at++;
            }
            owners[at] = operation;
            pending[count++] = (struct record){at++, 0, graph};
        }
        free_at[graph] = at;
        now += next_random(&state) % 3;
        bool is_last = operation == LAUNCHES;
        while (count > 0 && (is_last || count > 60 || next_random(&state) % 2 == 0)) {
            uint32_t which = next_random(&state) % count;
            struct record record = pending[which];
            pending[which] = pending[--count];
            fails_now = next_random(&state) % 1000 < failures;
            if (record.launch != 0) {
                gpu_cuda_bodies_begun(&bodies, numbers[record.launch], record.graph + 6,
                                      record.begin_ns);
            } else {
                gpu_cuda_bodies_work(&bodies, id_of(record.graph, BODY), record.begin_ns,
                                     record.begin_ns + 1);
            }
        }
        if (is_last || next_random(&state) % 4 == 0) {
            gpu_cuda_bodies_settle(&bodies, now);
        }
    }
    fails_now = false;
    for (uint32_t operation = 1; operation <= LAUNCHES; operation++) {
        lacking += told[operation].lacks;
        good = good && !told[operation].is_wrong &&
               (told[operation].own == turns[operation] ||
                (told[operation].lacks && told[operation].own < turns[operation]));
    }
    good = good && bodies.work_count == 0;
    gpu_cuda_bodies_finish(&bodies);
    for (int i = 0; i < GRAPHS; i++) {
        good = good && maps[i]->ref_count == 1;
        gpu_cuda_node_map_drop(maps[i]);
    }
    return good ? lacking : UINT32_MAX;
}

static void in_any_order(void) {
    bool good = true;
    for (uint32_t seed = 1; seed <= 300 && good; seed++) {
        good = run(seed, 0) == 0;
        printf(good ? "" : "# seed %u\n", seed);
    }
    tap_check(&tap, good, "each work goes to its launch, in whatever order they are told of");
    if (!can_fail) {
        tap_skip(&tap, "no memory", "a sanitizer has an allocator of its own");
        return;
    }
    uint32_t lacking = 0;
    for (uint32_t seed = 1; seed <= 300 && good; seed++) {
        uint32_t some = run(seed, seed % 3 == 0 ? 1000 : 500);
        good = some != UINT32_MAX;
        lacking += good ? some : 0;
        printf(good ? "" : "# seed %u\n", seed);
    }
    tap_check(&tap, good && lacking > 0,
              "without memory nothing goes to another, and who lacks something is told");
}

/* ---- when it is not known any more ---- */

static void with_time(void) {
    struct cuda_bodies bodies = fresh();
    struct cuda_node_map *map = new_map();
    uint64_t first = gpu_cuda_bodies_launch(&bodies, 1, map, 10);
    uint64_t second = gpu_cuda_bodies_launch(&bodies, 2, map, 11);
    owners[21] = owners[22] = owners[23] = 1;
    gpu_cuda_bodies_begun(&bodies, first, 6, 20);
    gpu_cuda_bodies_begun(&bodies, second, 6, 30);
    gpu_cuda_bodies_settle(&bodies, 100);
    gpu_cuda_bodies_work(&bodies, id_of(0, BODY), 21, 22);
    gpu_cuda_bodies_settle(&bodies, 100 + CUDA_BODIES_KEPT_NS);
    tap_check(&tap, told[1].own == 1 && bodies.launch_count == 2,
              "a launch is known for a second when a later one was told of");
    gpu_cuda_bodies_settle(&bodies, 101 + CUDA_BODIES_KEPT_NS);
    gpu_cuda_bodies_work(&bodies, id_of(0, BODY), 22, 23);
    gpu_cuda_bodies_settle(&bodies, 102 + CUDA_BODIES_KEPT_NS);
    tap_check(&tap, told[1].own == 1 && told[2].own == 0 && bodies.launch_count == 1,
              "what comes later is given to nobody else");
    gpu_cuda_node_map_retain(map);
    gpu_cuda_node_map_drop(map); /* as its graph goes */
    gpu_cuda_bodies_settle(&bodies, INT64_C(10) * CUDA_BODIES_KEPT_NS);
    gpu_cuda_bodies_settle(&bodies, INT64_C(20) * CUDA_BODIES_KEPT_NS);
    tap_check(&tap, bodies.launch_count == 0 && map->ref_count == 1,
              "the last one goes with its graph");
    gpu_cuda_bodies_finish(&bodies);
    gpu_cuda_node_map_release(map);
}

static void refused(void) {
    struct cuda_bodies bodies = fresh();
    struct cuda_node_map *map = new_map();
    uint64_t first = gpu_cuda_bodies_launch(&bodies, 1, map, 10);
    uint64_t second = gpu_cuda_bodies_launch(&bodies, 2, map, 11);
    owners[21] = owners[22] = 1;
    gpu_cuda_bodies_begun(&bodies, first, 6, 20);
    gpu_cuda_bodies_work(&bodies, id_of(0, BODY), 21, 22);
    gpu_cuda_bodies_settle(&bodies, 30);
    bool waits = told[1].own == 0;
    gpu_cuda_bodies_give_up(&bodies, second);
    gpu_cuda_bodies_settle(&bodies, 30);
    tap_check(&tap, waits && told[1].own == 1 && bodies.launch_count == 1 && !told[2].lacks,
              "what waits for a launch is told when that was refused");
    uint64_t third = gpu_cuda_bodies_launch(&bodies, 3, map, 40);
    uint64_t fourth = gpu_cuda_bodies_launch(&bodies, 4, map, 41);
    owners[52] = 3;
    owners[62] = 4;
    gpu_cuda_bodies_work(&bodies, id_of(0, BODY), 52, 53); /* of the third */
    gpu_cuda_bodies_forget(&bodies, third);
    gpu_cuda_bodies_begun(&bodies, fourth, 6, 61);
    gpu_cuda_bodies_work(&bodies, id_of(0, BODY), 62, 63);
    gpu_cuda_bodies_settle(&bodies, 70);
    tap_check(&tap, told[1].own == 1 && told[3].lacks && told[3].own == 0 && told[4].own == 1,
              "what a launch did of which nothing is known goes to none before it");
    gpu_cuda_bodies_forget(&bodies, fourth);
    tap_check(&tap, !told[4].lacks && bodies.launch_count == 1, "one that was told of is kept");
    gpu_cuda_bodies_finish(&bodies);
    gpu_cuda_node_map_drop(map);
}

static void closed(void) {
    struct cuda_bodies bodies = fresh();
    struct cuda_node_map *map = new_map(), *other = new_map();
    const uint64_t bit = UINT64_C(1) << 18;
    uint64_t known = gpu_cuda_bodies_launch(&bodies, 1, map, 10);
    (void)gpu_cuda_bodies_launch(&bodies, bit | 2, other, 11); /* of a device that is closed */
    owners[31] = 1;
    gpu_cuda_bodies_work(&bodies, id_of(0, BODY), 31, 32);
    gpu_cuda_bodies_give_up_all(&bodies, bit, bit);
    gpu_cuda_bodies_begun(&bodies, known, 6, 30);
    gpu_cuda_bodies_settle(&bodies, 40);
    tap_check(&tap, told[1].own == 1 && bodies.launch_count == 1 && other->ref_count == 1,
              "nothing waits for launches of a device that is closed");
    gpu_cuda_bodies_finish(&bodies);
    gpu_cuda_node_map_drop(map);
    gpu_cuda_node_map_drop(other);
}

/* ---- too many ---- */

static void too_many_launches(void) {
    enum { MORE = 1000 };
    const uint32_t all = CUDA_BODIES_LAUNCHES_MAX + MORE;
    struct cuda_bodies bodies = fresh();
    struct cuda_node_map *map = new_map();
    uint64_t last = 0;
    for (uint32_t operation = 1; operation <= all; operation++) {
        last = gpu_cuda_bodies_launch(&bodies, operation, map, operation);
    }
    uint32_t lacking = 0;
    bool good = true;
    for (uint32_t operation = 1; operation <= all; operation++) {
        lacking += told[operation].lacks;
        good = good && told[operation].lacks == (operation <= CUDA_BODIES_LAUNCHES_MAX / 4);
    }
    tap_check(&tap, good && lacking == CUDA_BODIES_LAUNCHES_MAX / 4,
              "of more launches than are kept the oldest are told to lack what bodies did");
    owners[all + 10] = all;
    gpu_cuda_bodies_work(&bodies, id_of(0, BODY), all + 10, all + 11);
    for (uint32_t i = CUDA_BODIES_LAUNCHES_MAX / 4 + 1; i < all; i++) {
        gpu_cuda_bodies_begun(&bodies, i, 6, i + 1);
    }
    gpu_cuda_bodies_begun(&bodies, last, 6, all + 5);
    gpu_cuda_bodies_settle(&bodies, all + 20);
    tap_check(&tap, told[all].own == 1 && !told[all].is_wrong, "and the others get what is theirs");
    gpu_cuda_bodies_finish(&bodies);
    tap_check(&tap, map->ref_count == 1, "nothing of them is left");
    gpu_cuda_node_map_drop(map);
}

/* Nothing is known of the graph whose they are. */
static void too_many_works(void) {
    const uint32_t all = CUDA_BODIES_WORKS_MAX + 1000;
    struct cuda_bodies bodies = fresh();
    struct cuda_node_map *map = new_map();
    uint64_t launch = gpu_cuda_bodies_launch(&bodies, 1, map, 10);
    for (uint32_t i = 0; i < all; i++) {
        owners[20 + i] = 1;
        gpu_cuda_bodies_work(&bodies, id_of(0, BODY), 20 + i, 21 + i);
    }
    gpu_cuda_bodies_begun(&bodies, launch, 6, 15);
    gpu_cuda_bodies_settle(&bodies, 20 + all);
    tap_check(
        &tap, told[1].lacks && told[1].own + told[1].missing == all && told[1].own > 0,
        "of more work than is kept it is told how much there was, before its launch is known");
    gpu_cuda_bodies_finish(&bodies);
    gpu_cuda_node_map_drop(map);
}

int main(void) {
    in_any_order();
    with_time();
    refused();
    closed();
    too_many_launches();
    too_many_works();
    return tap_finish(&tap);
}

#else

int main(void) {
    tap_skip(&tap, "everything", "this build has no cuda backend");
    return tap_finish(&tap);
}

#endif
