/* Where a graph's temporaries lie. Two may lie at the same place if the graph's edges put all uses
 * of one before all uses of the other; no edge is added for it. The largest are placed first, each
 * in the smallest gap that those leave which it may not share memory with. */
#include <stdlib.h>
#include <string.h>

#include "runtime/graph/state.h"

struct tenant {
    struct gpu_block *block;
    uint64_t byte_begin, byte_end;
    uint32_t use_first, use_count; /* in plan.users */
};

struct tenant_size {
    uint64_t byte_count;
    uint32_t number;
};

struct plan {
    const struct graph_body *body;
    struct tenant *tenants; /* owned, as all of these */
    uint32_t count;
    uint32_t *numbers; /* of what the body made: its tenant, or GPU_NODE_NONE */
    uint32_t *users;   /* nodes, by tenant, ascending */
    /* Bits, a row for each: is that other over before it begins, or begins it when it is over? */
    uint64_t *is_apart;
    uint32_t row_words;
    struct tenant_size *sizes; /* the largest first */
    uint32_t *placed;          /* tenants, by where they begin */
    uint32_t placed_count;
    uint64_t *is_placed; /* bits */
};

/* ---- who uses what ---- */

static uint32_t tenant_of(const struct plan *plan, const struct gpu_block *block) {
    return block->is_temporary ? plan->numbers[block->made_number] : GPU_NODE_NONE;
}

/* Counts the uses of each, and notes them where there is room. */
static void note_users(struct plan *plan) {
    const struct graph_body *body = plan->body;
    for (uint32_t i = 0; i < body->node_count; i++) {
        const struct graph_node *node = &body->nodes[i];
        for (uint32_t k = 0; k < node->use_count; k++) {
            uint32_t number = tenant_of(plan, body->uses[node->use_first + k].block);
            if (number == GPU_NODE_NONE) {
                continue;
            }
            struct tenant *tenant = &plan->tenants[number];
            if (plan->users) {
                plan->users[tenant->use_first + tenant->use_count] = i;
            }
            tenant->use_count++;
        }
    }
}

static bool find_users(struct plan *plan) {
    uint32_t total = 0;
    note_users(plan);
    for (uint32_t i = 0; i < plan->count; i++) {
        plan->tenants[i].use_first = total;
        total += plan->tenants[i].use_count;
        plan->tenants[i].use_count = 0;
    }
    plan->users = malloc((total + 1) * sizeof *plan->users);
    if (plan->users) {
        note_users(plan);
    }
    return plan->users != NULL;
}

/* ---- the order ---- */

#define COLUMNS 64u /* nodes that are looked at in one pass over the graph */

static bool is_apart(const struct plan *plan, uint32_t number, uint32_t other) {
    return plan->is_apart[(size_t)number * plan->row_words + other / 64] >> other % 64 & 1;
}

/* Which of COLUMNS nodes from `from` on go before each node. */
static void reach(const struct graph_body *body, uint32_t from, uint64_t *before) {
    for (uint32_t i = from; i < body->node_count; i++) {
        const struct graph_node *node = &body->nodes[i];
        before[i] = 0;
        for (uint32_t k = 0; k < node->edge_count; k++) {
            uint32_t other = body->edges[node->edge_first + k].from;
            if (other >= from) {
                before[i] |= before[other];
                before[i] |= other - from < COLUMNS ? UINT64_C(1) << (other - from) : 0;
            }
        }
    }
}

/* Of the nodes in the columns: those that use the tenant. */
static uint64_t users_in(const struct plan *plan, const struct tenant *tenant, uint32_t from) {
    uint64_t users = 0;
    for (uint32_t k = 0; k < tenant->use_count; k++) {
        uint32_t node = plan->users[tenant->use_first + k];
        users |= node >= from && node - from < COLUMNS ? UINT64_C(1) << (node - from) : 0;
    }
    return users;
}

/* Who has users among the columns. */
struct found {
    uint32_t *numbers; /* owned, as all of these */
    uint64_t *users;   /* of each: which */
    uint32_t count;
    uint64_t *row; /* the numbers as bits */
    uint32_t word_first, word_end;
};

static void find_in_columns(const struct plan *plan, uint32_t from, struct found *found) {
    memset(found->row, 0, plan->row_words * sizeof *found->row);
    found->count = 0;
    found->word_first = plan->row_words;
    found->word_end = 0;
    for (uint32_t i = 0; i < plan->count; i++) {
        uint64_t users = users_in(plan, &plan->tenants[i], from);
        if (users) {
            found->users[found->count] = users;
            found->numbers[found->count++] = i;
            found->row[i / 64] |= UINT64_C(1) << i % 64;
            found->word_first = i / 64 < found->word_first ? i / 64 : found->word_first;
            found->word_end = i / 64 + 1;
        }
    }
}

/* Who has a user among the columns that does not go before all users of another is not over before
 * that one begins. Mostly all do, or none does. */
static void sift(struct plan *plan, uint32_t from, const uint64_t *before,
                 const struct found *found) {
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct tenant *tenant = &plan->tenants[i];
        uint64_t *row = &plan->is_apart[(size_t)i * plan->row_words];
        uint64_t known = ~UINT64_C(0);
        for (uint32_t k = 0; k < tenant->use_count; k++) {
            uint32_t node = plan->users[tenant->use_first + k];
            known &= node >= from ? before[node] : 0;
        }
        for (uint32_t w = found->word_first; known == 0 && w < found->word_end; w++) {
            row[w] &= ~found->row[w];
        }
        for (uint32_t k = 0; known != 0 && ~known != 0 && k < found->count; k++) {
            if (found->users[k] & ~known) {
                row[found->numbers[k] / 64] &= ~(UINT64_C(1) << found->numbers[k] % 64);
            }
        }
    }
}

/* Rows become columns (Hacker's Delight, 2nd edition, 7-3). */
static void transpose(uint64_t block[64]) {
    uint64_t mask = UINT64_C(0xffffffff);
    for (uint32_t half = 32; half > 0; half /= 2, mask ^= mask << half) {
        for (uint32_t i = 0; i < 64; i = (i + half + 1) & ~half) {
            uint64_t moved = (block[i] >> half ^ block[i + half]) & mask;
            block[i] ^= moved << half;
            block[i + half] ^= moved;
        }
    }
}

/* 64 rows, as far as there are so many, of one word each. */
static void get_block(const struct plan *plan, uint32_t rows, uint32_t word, uint64_t block[64]) {
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t row = rows * 64 + i;
        block[i] = row < plan->count ? plan->is_apart[(size_t)row * plan->row_words + word] : 0;
    }
}

static void add_block(struct plan *plan, uint32_t rows, uint32_t word, const uint64_t block[64]) {
    for (uint32_t i = 0; i < 64 && rows * 64 + i < plan->count; i++) {
        plan->is_apart[((size_t)rows * 64 + i) * plan->row_words + word] |= block[i];
    }
}

/* Who is over before each one begins is known; now also who begins when it is over. */
static void add_the_other_way(struct plan *plan) {
    uint64_t above[64], below[64];
    for (uint32_t i = 0; i < plan->row_words; i++) {
        for (uint32_t k = i; k < plan->row_words; k++) {
            get_block(plan, i, k, above);
            get_block(plan, k, i, below);
            transpose(above);
            transpose(below);
            add_block(plan, k, i, above);
            add_block(plan, i, k, below);
        }
    }
}

static bool find_order(struct plan *plan) {
    uint32_t node_count = plan->body->node_count;
    plan->row_words = (plan->count + 63) / 64;
    size_t bytes = (size_t)plan->count * plan->row_words * sizeof *plan->is_apart;
    plan->is_apart = malloc(bytes);
    uint64_t *before = malloc((node_count + 1) * sizeof *before);
    struct found found = {.numbers = malloc((plan->count + 1) * sizeof *found.numbers),
                          .users = malloc((plan->count + 1) * sizeof *found.users),
                          .row = malloc((plan->row_words + 1) * sizeof *found.row)};
    bool is_well = plan->is_apart && before && found.numbers && found.users && found.row;
    if (is_well) {
        memset(plan->is_apart, 0xff, bytes);
    }
    for (uint32_t from = 0; is_well && from < node_count; from += COLUMNS) {
        reach(plan->body, from, before);
        find_in_columns(plan, from, &found);
        sift(plan, from, before, &found);
    }
    if (is_well) {
        add_the_other_way(plan);
    }
    free(before);
    free(found.numbers);
    free(found.users);
    free(found.row);
    return is_well;
}

/* ---- places ---- */

#define NEIGHBOURS_FEW 64u

static int compare_sizes(const void *a, const void *b) {
    const struct tenant_size *of_a = a, *of_b = b;
    if (of_a->byte_count != of_b->byte_count) {
        return of_a->byte_count > of_b->byte_count ? -1 : 1;
    }
    return of_a->number < of_b->number ? -1 : 1;
}

/* Into a list by where they begin. */
static void insert(const struct plan *plan, uint32_t *list, uint32_t count, uint32_t number) {
    uint64_t begin = plan->tenants[number].byte_begin;
    uint32_t at = count;
    for (; at > 0 && plan->tenants[list[at - 1]].byte_begin > begin; at--) {
        list[at] = list[at - 1];
    }
    list[at] = number;
}

/* Those in place that it may not share memory with, by where they begin; there may be more in the
 * list that is given back, if they are many. */
static const uint32_t *neighbours(const struct plan *plan, uint32_t number, uint32_t *few,
                                  uint32_t *count) {
    const uint64_t *row = &plan->is_apart[(size_t)number * plan->row_words];
    uint32_t found = 0;
    for (uint32_t w = 0; w < plan->row_words; w++) {
        for (uint64_t left = plan->is_placed[w] & ~row[w]; left; left &= left - 1) {
            if (found == NEIGHBOURS_FEW) {
                *count = plan->placed_count;
                return plan->placed;
            }
            insert(plan, few, found++, w * 64 + (uint32_t)__builtin_ctzll(left));
        }
    }
    *count = found;
    return few;
}

/* Puts it into the smallest gap between those that it may not share memory with. */
static void place(struct plan *plan, uint32_t number) {
    struct tenant *tenant = &plan->tenants[number];
    uint64_t bytes = tenant->byte_end - tenant->byte_begin;
    uint64_t end = 0, best = 0, best_bytes = UINT64_MAX;
    uint32_t few[NEIGHBOURS_FEW], count;
    const uint32_t *near = neighbours(plan, number, few, &count);
    for (uint32_t i = 0; i < count; i++) {
        const struct tenant *other = &plan->tenants[near[i]];
        if (is_apart(plan, number, near[i])) {
            continue;
        }
        if (other->byte_begin >= end + bytes && other->byte_begin - end < best_bytes) {
            best = end;
            best_bytes = other->byte_begin - end;
        }
        end = other->byte_end > end ? other->byte_end : end;
    }
    tenant->byte_begin = best_bytes == UINT64_MAX ? end : best;
    tenant->byte_end = tenant->byte_begin + bytes;
    insert(plan, plan->placed, plan->placed_count++, number);
    plan->is_placed[number / 64] |= UINT64_C(1) << number % 64;
}

/* Returns how much they need together. */
static uint64_t place_all(struct plan *plan) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct tenant *tenant = &plan->tenants[i];
        plan->sizes[i] = (struct tenant_size){.byte_count = tenant->byte_end, .number = i};
    }
    qsort(plan->sizes, plan->count, sizeof *plan->sizes, compare_sizes);
    for (uint32_t i = 0; i < plan->count; i++) {
        place(plan, plan->sizes[i].number);
        uint64_t end = plan->tenants[plan->sizes[i].number].byte_end;
        total = end > total ? end : total;
    }
    return total;
}

/* ---- the blocks ---- */

static void move_in(struct gpu_block *block, struct gpu_block *home, uint64_t byte_offset) {
    gpu_block_retain(home);
    gpu_block_release(block->home);
    block->home = home;
    block->twin = NULL;
    block->address = home->address + byte_offset;
}

static gpulua_status make_home(struct gpu_capture *capture, uint64_t byte_count, const char *label,
                               struct gpu_block **home, struct gpu_error *error) {
    const struct gpu_block_info info = {
        .byte_count = byte_count, .label = label, .is_scratch = true};
    struct gpu_pool *pool = gpu_capture_pool(capture);
    gpulua_status status = gpu_pool_check_open(pool, "memory for temporaries", error);
    return status ? status : gpu_block_create(gpu_pool_device(pool), &info, home, error);
}

/* Check mode: each by itself, so that an access past its end hits no other, and what was never
 * written is seen to be read. The pool, which has no use for it, does not keep it. */
static gpulua_status move_apart(const struct plan *plan, struct gpu_capture *capture,
                                struct gpu_error *error) {
    gpulua_status status = GPULUA_OK;
    for (uint32_t i = 0; i < plan->count && status == GPULUA_OK; i++) {
        struct gpu_block *home, *block = plan->tenants[i].block;
        const char *label = block->label[0] ? block->label : "temporary";
        status = make_home(capture, block->byte_count, label, &home, error);
        if (status == GPULUA_OK) {
            move_in(block, home, 0);
            gpu_block_release(home);
        }
    }
    return status;
}

static gpulua_status make_arena(struct gpu_capture *capture, uint64_t byte_count,
                                struct gpu_block **arena, struct gpu_error *error) {
    gpulua_status status = make_home(capture, byte_count, "temporaries", arena, error);
    if (status == GPULUA_OK) {
        (*arena)->is_arena = true;
        status =
            gpu_pool_add(gpu_capture_pool(capture), *arena, gpu_capture_number(capture), error);
        gpu_block_release(*arena); /* the pool keeps it */
    }
    return status;
}

static gpulua_status move_together(struct plan *plan, struct gpu_capture *capture,
                                   struct gpu_error *error) {
    uint64_t total = place_all(plan);
    struct gpu_block *arena = gpu_pool_arena(gpu_capture_pool(capture), total);
    gpulua_status status = GPULUA_OK;
    if (!arena) {
        status = make_arena(capture, total ? total : 1, &arena, error);
    }
    for (uint32_t i = 0; i < plan->count && status == GPULUA_OK; i++) {
        move_in(plan->tenants[i].block, arena, plan->tenants[i].byte_begin);
    }
    return status;
}

/* ---- the whole ---- */

static bool make_plan(struct plan *plan) {
    const struct graph_body *body = plan->body;
    plan->numbers = malloc(body->made_count * sizeof *plan->numbers);
    plan->tenants = calloc(body->made_count, sizeof *plan->tenants);
    plan->sizes = malloc(body->made_count * sizeof *plan->sizes);
    plan->placed = malloc(body->made_count * sizeof *plan->placed);
    plan->is_placed = calloc(body->made_count / 64 + 1, sizeof *plan->is_placed);
    if (!plan->numbers || !plan->tenants || !plan->sizes || !plan->placed || !plan->is_placed) {
        return false;
    }
    for (uint32_t i = 0; i < body->made_count; i++) {
        plan->numbers[i] = body->made[i]->is_temporary ? plan->count : GPU_NODE_NONE;
        if (body->made[i]->is_temporary) {
            plan->tenants[plan->count++].block = body->made[i];
        }
    }
    if (plan->count == 0) {
        return true;
    }
    if (!find_users(plan) || !find_order(plan)) {
        return false;
    }
    for (uint32_t i = 0; i < plan->count; i++) {
        struct tenant *tenant = &plan->tenants[i];
        uint64_t bytes = gpu_block_granted_bytes(tenant->block->byte_count);
        tenant->byte_end = tenant->use_count > 0 ? bytes : 0;
    }
    return true;
}

static void finish_plan(struct plan *plan) {
    free(plan->numbers);
    free(plan->tenants);
    free(plan->sizes);
    free(plan->placed);
    free(plan->is_placed);
    free(plan->users);
    free(plan->is_apart);
}

static gpulua_status move_all(const struct graph_body *body, struct gpu_capture *capture,
                              struct gpu_error *error) {
    struct plan plan = {.body = body};
    gpulua_status status =
        make_plan(&plan) ? GPULUA_OK
                         : gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a graph");
    if (status == GPULUA_OK && plan.count > 0) {
        status = gpu_capture_device(capture)->is_checked ? move_apart(&plan, capture, error)
                                                         : move_together(&plan, capture, error);
    }
    finish_plan(&plan);
    return status;
}

/* ---- addresses ---- */

static uint64_t address_of(const struct graph_ref *ref) {
    return ref->ref.block ? ref->ref.block->address + ref->ref.byte_offset : 0;
}

/* The arguments, and in check mode what the launch declares behind them. */
static void address_launch(const struct graph_node *node, const struct graph_ref *refs) {
    const struct gpu_signature *signature = gpu_kernel_signature(node->kernel);
    struct wire_record *record = node->record;
    uint8_t *args = (uint8_t *)(record + 1);
    uint8_t *use = args + gpu_wire_launch_uses_offset(record->u.launch.args_bytes,
                                                      record->u.launch.reloc_count);
    uint32_t use_count = 0;
    for (uint32_t i = 0; i < signature->param_count; i++) {
        const struct gpu_param *param = &signature->params[i];
        if (param->kind != GPU_PARAM_POINTER || !refs[i].ref.block) {
            continue;
        }
        uint64_t address = address_of(&refs[i]);
        memcpy(args + param->byte_offset, &address, sizeof address);
        if (use_count++ < record->u.launch.use_count) {
            memcpy(use + offsetof(struct wire_use, address), &address, sizeof address);
            use += sizeof(struct wire_use);
        }
    }
}

static void address_all(struct graph_body *body) {
    for (uint32_t i = 0; i < body->node_count; i++) {
        const struct graph_node *node = &body->nodes[i];
        const struct graph_ref *refs = body->refs + node->ref_first;
        if (node->kernel) {
            address_launch(node, refs);
        } else if (node->ref_count == 1) {
            node->record->u.fill.dst = address_of(&refs[0]);
        } else if (node->ref_count == 2) {
            node->record->u.copy.dst = address_of(&refs[0]);
            node->record->u.copy.src = address_of(&refs[1]);
        }
    }
}

/* ---- staying ---- */

static bool has_use(const struct graph_body *body, uint32_t node, const struct gpu_block *block) {
    const struct graph_node *known = &body->nodes[node];
    bool is_there = false;
    for (uint32_t i = 0; i < known->use_count && !is_there; i++) {
        is_there = body->uses[known->use_first + i].block == block;
    }
    return is_there;
}

/* Each lies where the graph's does whose twin it is, and no node uses one that it did not use
 * there: then what may share memory may do so still. In check mode nothing shares any. */
static bool can_stay(const struct graph_body *body, const struct graph_body *known) {
    for (uint32_t i = 0; i < body->made_count; i++) {
        const struct gpu_block *block = body->made[i];
        if (!block->is_temporary) {
            continue;
        }
        const struct gpu_block *other = i < known->made_count ? known->made[i] : NULL;
        if (!other || block->twin != other || !block->home || block->home != other->home ||
            block->address != other->address) {
            return false;
        }
    }
    for (uint32_t i = 0; i < body->node_count; i++) {
        const struct graph_node *node = &body->nodes[i];
        for (uint32_t k = 0; k < node->use_count; k++) {
            const struct gpu_block *block = body->uses[node->use_first + k].block;
            if (block->is_temporary && !block->device->is_checked &&
                !has_use(known, i, block->twin)) {
                return false;
            }
        }
    }
    return true;
}

gpulua_status gpu_graph_plan(struct graph_body *body, const struct graph_body *known,
                             struct gpu_capture *capture, struct gpu_error *error) {
    gpulua_status status = GPULUA_OK;
    if (!body->has_temporaries) {
        return GPULUA_OK;
    }
    bool is_staying = known && can_stay(body, known);
    for (uint32_t i = 0; i < body->made_count && status == GPULUA_OK; i++) {
        struct gpu_block *block = body->made[i];
        if (block->is_temporary && is_staying) {
            block->twin = NULL; /* it is the graph's own from here on */
        } else if (block->is_temporary && gpu_temporary_is_held(body, block)) {
            status = gpu_block_settle(block, error);
        }
        if (status == GPULUA_OK && !block->is_temporary) {
            status =
                gpu_pool_add(gpu_capture_pool(capture), block, gpu_capture_number(capture), error);
        }
    }
    if (status == GPULUA_OK && !is_staying) {
        status = move_all(body, capture, error);
    }
    if (status == GPULUA_OK) {
        address_all(body); /* also of those that got memory of their own while it was captured */
    }
    return status;
}
