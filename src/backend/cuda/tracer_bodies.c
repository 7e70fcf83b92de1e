/* Bodies (tracer_bodies.h).
 *
 * The executable graph is in the id of each node. Launches of one come one after another, so work
 * of a body is of that which began last before it. What may be of a launch of which nothing has
 * been told yet waits for that. */
#include "backend/cuda/tracer_bodies.h"

#include <stdlib.h>
#include <string.h>

struct body_launch {
    uint64_t number; /* from 1 */
    uint64_t operation;
    struct cuda_node_map *map; /* retained */
    int64_t called_ns;         /* INT64_MAX: it was given up */
    int64_t begin_ns;          /* INT64_MAX: nothing of it has been told */
    uint32_t graph;            /* its map's, where it is to be sorted by that */
    int64_t followed_ns;       /* by then a later one of its graph had been told of; 0: none has */
};

struct body_work {
    uint64_t node_id;
    int64_t begin_ns, end_ns;
};

static void tell_missing(const struct cuda_bodies *bodies, uint64_t operation, uint32_t count) {
    bodies->tell(operation, WIRE_NODES_MISSING | count, 0, 0);
}

/* ---- launches ---- */

/* What bodies of the oldest ones have done and nobody has told of yet never will be. */
static void forget_oldest(struct cuda_bodies *bodies, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        tell_missing(bodies, bodies->launches[i].operation, 0);
        gpu_cuda_node_map_release(bodies->launches[i].map);
    }
    bodies->launch_count -= count;
    memmove(bodies->launches, bodies->launches + count,
            bodies->launch_count * sizeof *bodies->launches);
}

static bool has_room(struct cuda_bodies *bodies) {
    if (bodies->launch_count < bodies->launch_capacity) {
        return true;
    }
    uint32_t capacity = bodies->launch_capacity != 0 ? bodies->launch_capacity * 2 : 64;
    if (capacity > CUDA_BODIES_LAUNCHES_MAX) {
        return false;
    }
    struct body_launch *launches = realloc(bodies->launches, capacity * sizeof *launches);
    if (launches == NULL) {
        return false;
    }
    bodies->launches = launches;
    struct body_launch *sorted = realloc(bodies->sorted, capacity * sizeof *sorted);
    if (sorted == NULL) {
        return false;
    }
    bodies->sorted = sorted;
    bodies->launch_capacity = capacity;
    return true;
}

uint64_t gpu_cuda_bodies_launch(struct cuda_bodies *bodies, uint64_t operation,
                                struct cuda_node_map *map, int64_t now_ns) {
    if (!has_room(bodies)) {
        if (bodies->launch_count == 0) {
            tell_missing(bodies, operation, 0);
            return 0;
        }
        forget_oldest(bodies, bodies->launch_count / 4);
    }
    bodies->launches[bodies->launch_count++] = (struct body_launch){.number = ++bodies->launch_last,
                                                                    .operation = operation,
                                                                    .map = map,
                                                                    .called_ns = now_ns,
                                                                    .begin_ns = INT64_MAX};
    gpu_cuda_node_map_retain(map);
    return bodies->launch_last;
}

/* NULL: none, or it is known no more. */
static struct body_launch *launch_at(const struct cuda_bodies *bodies, uint64_t number) {
    uint32_t low = 0, high = number != 0 ? bodies->launch_count : 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (bodies->launches[middle].number < number) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return number != 0 && low < bodies->launch_count && bodies->launches[low].number == number
               ? &bodies->launches[low]
               : NULL;
}

void gpu_cuda_bodies_begun(struct cuda_bodies *bodies, uint64_t launch, uint32_t graph,
                           int64_t begin_ns) {
    struct body_launch *at = launch_at(bodies, launch);
    if (at != NULL && begin_ns < at->begin_ns) {
        at->begin_ns = begin_ns;
        at->map->graph = graph;
        at->map->told_last = launch > at->map->told_last ? launch : at->map->told_last;
    }
}

void gpu_cuda_bodies_give_up(struct cuda_bodies *bodies, uint64_t launch) {
    struct body_launch *at = launch_at(bodies, launch);
    if (at != NULL) {
        at->called_ns = INT64_MAX;
    }
}

void gpu_cuda_bodies_forget(struct cuda_bodies *bodies, uint64_t launch) {
    const struct body_launch *at = launch_at(bodies, launch);
    if (at != NULL && at->begin_ns == INT64_MAX) {
        forget_oldest(bodies, (uint32_t)(at - bodies->launches) + 1);
    }
}

void gpu_cuda_bodies_give_up_all(struct cuda_bodies *bodies, uint64_t mask, uint64_t bits) {
    for (uint32_t i = 0; i < bodies->launch_count; i++) {
        if ((bodies->launches[i].operation & mask) == bits) {
            bodies->launches[i].called_ns = INT64_MAX;
        }
    }
}

/* Those go that have no more to tell of. A buffer with other work that is not over may hold back
 * what bodies have done, but not for long. */
static void drop_launches(struct cuda_bodies *bodies, int64_t now_ns) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < bodies->launch_count; i++) {
        struct body_launch *launch = &bodies->launches[i];
        bool is_told = launch->begin_ns != INT64_MAX;
        bool is_followed = launch->map->told_last > launch->number ||
                           atomic_load_explicit(&launch->map->is_over, memory_order_relaxed);
        if (is_told && is_followed && launch->followed_ns == 0) {
            launch->followed_ns = now_ns;
        }
        bool is_old =
            launch->followed_ns != 0 && now_ns - launch->followed_ns > CUDA_BODIES_KEPT_NS;
        if (is_old || (!is_told && launch->called_ns == INT64_MAX)) {
            gpu_cuda_node_map_release(launch->map);
        } else {
            bodies->launches[kept++] = *launch;
        }
    }
    bodies->launch_count = kept;
}

/* ---- whose work it was ---- */

static int compare_launches(const void *a, const void *b) {
    const struct body_launch *first = a, *second = b;
    return first->graph != second->graph
               ? (first->graph > second->graph) * 2 - 1
               : (first->begin_ns > second->begin_ns) * 2 - (first->begin_ns != second->begin_ns);
}

static int compare_works(const void *a, const void *b) {
    const struct body_work *first = a, *second = b;
    uint32_t graph = (uint32_t)(first->node_id >> 32), other = (uint32_t)(second->node_id >> 32);
    return graph != other
               ? (graph > other) * 2 - 1
               : (first->begin_ns > second->begin_ns) * 2 - (first->begin_ns != second->begin_ns);
}

/* Those of which something has been told, or may be, by their graphs, with the latter behind the
 * former. Returns how many. */
static uint32_t sort_launches(struct cuda_bodies *bodies) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < bodies->launch_count; i++) {
        const struct body_launch *launch = &bodies->launches[i];
        if (launch->begin_ns != INT64_MAX || launch->called_ns != INT64_MAX) {
            bodies->sorted[count] = *launch;
            bodies->sorted[count++].graph = launch->map->graph;
        }
    }
    if (count > 0) {
        qsort(bodies->sorted, count, sizeof *bodies->sorted, compare_launches);
    }
    return count;
}

/* Whose work of one executable graph may be, as places in `sorted`: launches told of are from
 * `first` to `told`, others up to `end`. */
struct launches_of {
    uint32_t first, told, end;
    int64_t untold_ns; /* when the first of those was called that nothing has been told of */
};

/* From `*from` on, which is moved. One of which nothing has been told, nor of another of its graph,
 * may be of any graph of which none is known; they come first, with graph 0. */
static struct launches_of find_launches(const struct body_launch *sorted, uint32_t count,
                                        uint32_t *from, uint32_t graph) {
    while (*from < count && sorted[*from].graph < graph) {
        ++*from;
    }
    struct launches_of of = {.first = *from, .told = *from, .untold_ns = INT64_MAX};
    while (of.told < count && sorted[of.told].graph == graph &&
           sorted[of.told].begin_ns != INT64_MAX) {
        of.told++;
    }
    of.end = of.told;
    while (of.end < count && sorted[of.end].graph == graph) {
        of.end++;
    }
    if (of.end == of.first) {
        of.first = of.told = of.end = 0;
        while (of.end < count && sorted[of.end].graph == 0) {
            of.end++;
        }
    }
    for (uint32_t i = of.told; i < of.end; i++) {
        of.untold_ns = sorted[i].called_ns < of.untold_ns ? sorted[i].called_ns : of.untold_ns;
    }
    return of;
}

static void tell_work(const struct cuda_bodies *bodies, const struct body_launch *launch,
                      const struct body_work *work) {
    uint32_t node = gpu_cuda_node_map_find(launch->map, work->node_id);
    bodies->tell(launch->operation, node != 0 ? node : WIRE_NODES_MISSING, work->begin_ns,
                 work->end_ns);
}

/* Tells of what bodies did, but for what may be of a launch of which nothing has been told yet;
 * `all`: that is gone. What is of no launch that is known was none of ours. */
static void settle(struct cuda_bodies *bodies, bool all) {
    if (bodies->work_count == 0) {
        return;
    }
    uint32_t count = sort_launches(bodies), kept = 0;
    qsort(bodies->works, bodies->work_count, sizeof *bodies->works, compare_works);
    struct launches_of of = {0};
    uint32_t graph = 0, from = 0, next = 0; /* next: the first launch that is behind it */
    uint32_t gone = 0;
    for (uint32_t i = 0; i < bodies->work_count; i++) {
        const struct body_work *work = &bodies->works[i];
        if (i == 0 || graph != (uint32_t)(work->node_id >> 32)) {
            graph = (uint32_t)(work->node_id >> 32);
            of = find_launches(bodies->sorted, count, &from, graph);
            next = of.first;
        }
        while (next < of.told && bodies->sorted[next].begin_ns <= work->begin_ns) {
            next++;
        }
        if (work->begin_ns >= of.untold_ns && !all) {
            bodies->works[kept++] = *work;
        } else if (work->begin_ns >= of.untold_ns) {
            gone++;
        } else if (next > of.first) {
            tell_work(bodies, &bodies->sorted[next - 1], work);
        }
        bool is_last =
            i + 1 == bodies->work_count || (uint32_t)(bodies->works[i + 1].node_id >> 32) != graph;
        if (is_last && gone > 0) { /* the last one lacks them, or one before it */
            tell_missing(bodies, bodies->sorted[of.end - 1].operation, gone);
            gone = 0;
        }
    }
    bodies->work_count = kept;
}

/* There is no room for it: who knows whose it was. */
static void lose_work(const struct cuda_bodies *bodies, uint32_t graph) {
    for (uint32_t i = bodies->launch_count, count = 1; i-- > 0;) {
        const struct body_launch *launch = &bodies->launches[i];
        if (launch->map->graph == 0 || launch->map->graph == graph) {
            tell_missing(bodies, launch->operation, count);
            count = 0;
        }
    }
}

static bool has_work_room(struct cuda_bodies *bodies) {
    if (bodies->work_count < bodies->work_capacity) {
        return true;
    }
    uint32_t capacity = bodies->work_capacity != 0 ? bodies->work_capacity * 2 : 1024;
    struct body_work *grown =
        capacity <= CUDA_BODIES_WORKS_MAX ? realloc(bodies->works, capacity * sizeof *grown) : NULL;
    if (grown != NULL) {
        bodies->works = grown;
        bodies->work_capacity = capacity;
    }
    return grown != NULL;
}

void gpu_cuda_bodies_work(struct cuda_bodies *bodies, uint64_t node_id, int64_t begin_ns,
                          int64_t end_ns) {
    for (int round = 0; !has_work_room(bodies) && round < 2; round++) {
        settle(bodies, round == 1);
    }
    if (bodies->work_count == bodies->work_capacity) {
        lose_work(bodies, (uint32_t)(node_id >> 32));
        return;
    }
    bodies->works[bodies->work_count++] =
        (struct body_work){.node_id = node_id, .begin_ns = begin_ns, .end_ns = end_ns};
}

void gpu_cuda_bodies_settle(struct cuda_bodies *bodies, int64_t now_ns) {
    settle(bodies, false);
    drop_launches(bodies, now_ns);
}

void gpu_cuda_bodies_finish(struct cuda_bodies *bodies) {
    for (uint32_t i = 0; i < bodies->launch_count; i++) {
        gpu_cuda_node_map_release(bodies->launches[i].map);
    }
    free(bodies->launches);
    free(bodies->sorted);
    free(bodies->works);
    *bodies = (struct cuda_bodies){.tell = bodies->tell};
}
