/* Which lane of a graph does which node, and what it waits for there.
 *
 * A node goes behind a node that it depends on, if that is the last of its lane; else behind
 * anything that is over anyway when it may start; else it begins a lane; else, when there are as
 * many as there may be, it goes where the fewest nodes have to be over before.
 *
 * Each node has a clock: for each lane, how many nodes of it are over when this one is. What the
 * clocks of a lane's last node and of the other dependencies tell need not be waited for. */
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/graph.h"

#define NO_TICKET SIZE_MAX

struct place {
    uint32_t lane, position; /* the lane's first node has 1 */
    uint32_t level;          /* nodes of the longest way to its end */
    uint32_t clock_count;    /* lanes that there were */
    size_t clock;            /* its first, in the plan's list */
    size_t ticket;
};

struct wait {
    uint32_t node, of;
};

struct plan {
    struct backend_graph *graph;
    struct place *places; /* owned: of the nodes, and of the end */
    uint32_t *clocks;     /* owned */
    size_t clock_count, clock_capacity;
    struct wait *waits; /* owned; by node */
    size_t wait_count, wait_capacity;
    size_t ticket_count;
    uint32_t lane_count, lane_limit;
    uint32_t last[CPU_GRAPH_LANES_MAX]; /* nodes */
};

/* What a node needs of each lane: the last of its nodes there that it depends on. */
struct need {
    uint32_t positions[CPU_GRAPH_LANES_MAX]; /* 0: nothing */
    uint32_t nodes[CPU_GRAPH_LANES_MAX];
    uint32_t over[CPU_GRAPH_LANES_MAX]; /* the clock of when that is over */
    uint32_t level;
};

static uint32_t clock_of(const struct plan *plan, uint32_t node, uint32_t lane) {
    const struct place *place = &plan->places[node];
    return lane < place->clock_count ? plan->clocks[place->clock + lane] : 0;
}

static uint32_t length_of(const struct plan *plan, uint32_t lane) {
    return plan->places[plan->last[lane]].position;
}

static void need_find(const struct plan *plan, const uint32_t *deps, uint32_t dep_count,
                      struct need *need) {
    memset(need, 0, sizeof *need);
    for (uint32_t i = 0; i < dep_count; i++) {
        const struct place *place = &plan->places[deps[i]];
        if (place->position > need->positions[place->lane]) {
            need->positions[place->lane] = place->position;
            need->nodes[place->lane] = deps[i];
        }
        need->level = place->level > need->level ? place->level : need->level;
    }
    for (uint32_t i = 0; i < plan->lane_count; i++) {
        for (uint32_t k = 0; need->positions[i] != 0 && k < plan->lane_count; k++) {
            uint32_t known = clock_of(plan, need->nodes[i], k);
            need->over[k] = known > need->over[k] ? known : need->over[k];
        }
    }
}

static uint32_t choose(const struct plan *plan, const struct need *need) {
    uint32_t best = UINT32_MAX, covered = UINT32_MAX, early = 0;
    for (uint32_t i = 0; i < plan->lane_count; i++) {
        uint32_t length = length_of(plan, i);
        if (need->positions[i] == length &&
            (best == UINT32_MAX || need->nodes[i] > need->nodes[best])) {
            best = i;
        }
        if (covered == UINT32_MAX && need->over[i] == length) {
            covered = i;
        }
        if (plan->places[plan->last[i]].level < plan->places[plan->last[early]].level) {
            early = i;
        }
    }
    if (best != UINT32_MAX) {
        return best;
    }
    if (covered != UINT32_MAX) {
        return covered;
    }
    return plan->lane_count < plan->lane_limit ? plan->lane_count : early;
}

/* Does the end of what is needed of another lane tell that this is over, too? */
static bool is_implied(const struct plan *plan, const struct need *need, uint32_t lane) {
    for (uint32_t i = 0; i < plan->lane_count; i++) {
        if (i != lane && need->positions[i] != 0 &&
            clock_of(plan, need->nodes[i], lane) >= need->positions[lane]) {
            return true;
        }
    }
    return false;
}

static bool waits_add(struct plan *plan, uint32_t node, const struct need *need, uint32_t lane) {
    for (uint32_t i = 0; i < plan->lane_count; i++) {
        if (i == lane || need->positions[i] == 0 || is_implied(plan, need, i) ||
            (lane < plan->lane_count &&
             clock_of(plan, plan->last[lane], i) >= need->positions[i])) {
            continue;
        }
        if (!gpu_cpu_graph_room(&plan->waits, plan->wait_count + 1, &plan->wait_capacity,
                                sizeof *plan->waits)) {
            return false;
        }
        plan->waits[plan->wait_count++] = (struct wait){node, need->nodes[i]};
        struct place *of = &plan->places[need->nodes[i]];
        of->ticket = of->ticket == NO_TICKET ? plan->ticket_count++ : of->ticket;
    }
    return true;
}

/* `lane`: of the end, else UINT32_MAX. False: no memory. */
static bool place_node(struct plan *plan, uint32_t node, const uint32_t *deps, uint32_t dep_count,
                       uint32_t lane) {
    struct need need;
    need_find(plan, deps, dep_count, &need);
    lane = lane == UINT32_MAX ? choose(plan, &need) : lane;
    if (!waits_add(plan, node, &need, lane)) {
        return false;
    }
    bool is_new = lane == plan->lane_count;
    uint32_t lanes = plan->lane_count + (is_new ? 1 : 0);
    if (!gpu_cpu_graph_room(&plan->clocks, plan->clock_count + lanes, &plan->clock_capacity,
                            sizeof *plan->clocks)) {
        return false;
    }
    struct place *place = &plan->places[node];
    const struct place *before = is_new ? NULL : &plan->places[plan->last[lane]];
    place->lane = lane;
    place->position = before != NULL ? before->position + 1 : 1;
    place->level = before != NULL && before->level > need.level ? before->level : need.level;
    place->level++;
    place->clock = plan->clock_count;
    place->clock_count = lanes;
    place->ticket = NO_TICKET;
    for (uint32_t i = 0; i < lanes; i++) {
        uint32_t known = before != NULL ? clock_of(plan, plan->last[lane], i) : 0;
        plan->clocks[place->clock + i] = need.over[i] > known ? need.over[i] : known;
    }
    plan->clocks[place->clock + lane] = place->position;
    plan->clock_count += lanes;
    plan->lane_count = lanes;
    plan->last[lane] = node;
    return true;
}

static void lane_append(struct cpu_lane *lane, struct cpu_item *item) {
    item->next = NULL;
    if (lane->last != NULL) {
        lane->last->next = item;
    } else {
        lane->first = item;
    }
    lane->last = item;
}

static void mark_append(struct plan *plan, uint32_t lane, enum cpu_item_kind kind, size_t ticket,
                        struct cpu_item *mark) {
    *mark = (struct cpu_item){.kind = kind, .graph = plan->graph};
    mark->u.ticket = &plan->graph->tickets[ticket];
    lane_append(&plan->graph->lanes[lane], mark);
}

/* All items, in the order of the nodes. False: no memory. */
static bool lanes_link(struct plan *plan) {
    struct backend_graph *graph = plan->graph;
    size_t mark_count = plan->wait_count + plan->ticket_count, wait = 0;
    if (mark_count > 0) {
        graph->marks = malloc(mark_count * sizeof *graph->marks);
        graph->tickets = malloc(plan->ticket_count * sizeof *graph->tickets);
        if (graph->marks == NULL || graph->tickets == NULL) {
            return false;
        }
    }
    for (; graph->ticket_count < plan->ticket_count; graph->ticket_count++) {
        atomic_init(&graph->tickets[graph->ticket_count].ref_count, 1);
        atomic_init(&graph->tickets[graph->ticket_count].parked, NULL);
        atomic_init(&graph->tickets[graph->ticket_count].sleeps, 0);
        graph->tickets[graph->ticket_count].is_timed = false;
    }
    struct cpu_item *mark = graph->marks;
    for (uint32_t i = 0; i <= graph->node_count; i++) {
        const struct place *place = &plan->places[i];
        for (; wait < plan->wait_count && plan->waits[wait].node == i; wait++) {
            size_t ticket = plan->places[plan->waits[wait].of].ticket;
            mark_append(plan, place->lane, CPU_ITEM_WAIT, ticket, mark++);
        }
        if (i < graph->node_count && graph->nodes[i].item != NULL) {
            lane_append(&graph->lanes[place->lane], graph->nodes[i].item);
        }
        if (place->ticket != NO_TICKET) {
            mark_append(plan, place->lane, CPU_ITEM_EVENT, place->ticket, mark++);
        }
    }
    graph->lane_count = plan->lane_count;
    return true;
}

bool gpu_cpu_graph_plan(struct backend_graph *graph) {
    uint32_t limit = CPU_GRAPH_LANES_PER_WORKER * graph->device->worker_count;
    struct plan plan = {.graph = graph,
                        .lane_limit = limit < CPU_GRAPH_LANES_MAX ? limit : CPU_GRAPH_LANES_MAX};
    plan.places = malloc((graph->node_count + (size_t)1) * sizeof *plan.places);
    bool good = plan.places != NULL;
    for (uint32_t i = 0; good && i < graph->node_count; i++) {
        const struct cpu_node *node = &graph->nodes[i];
        const uint32_t *deps = node->dep_count > 0 ? &graph->deps[node->first_dep] : NULL;
        good = place_node(&plan, i, deps, node->dep_count, UINT32_MAX);
    }
    /* The end: a node behind all lanes, on the launching stream. */
    uint32_t ends[CPU_GRAPH_LANES_MAX];
    memcpy(ends, plan.last, sizeof ends);
    good =
        good && place_node(&plan, graph->node_count, ends, plan.lane_count, 0) && lanes_link(&plan);
    free(plan.places);
    free(plan.clocks);
    free(plan.waits);
    return good;
}
