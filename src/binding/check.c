#include "binding/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "binding/deed.h"
#include "binding/device.h"
#include "binding/graph.h"
#include "binding/order.h"

/* A task, or what runs outside of tasks. */
struct strand {
    uint32_t number; /* in clocks; of one that is gone it is used again */
    uint64_t time;
    struct clock *known;       /* retained */
    struct clock *of_children; /* retained: what those that have ended knew */
    uint32_t child_count, op_count, read_count;
    struct deed *touches[2]; /* retained: its newest read and write of its own; see touch */
    uint64_t touched_at;
    char name[48]; /* the same in every run, whichever task runs first */
};

struct number { /* of a strand that is gone */
    uint32_t number;
    uint64_t time;
};

struct check {
    uint64_t random;
    bool is_blind; /* memory was short: what is known is not all, and races are not looked for */
    struct strand outside;
    struct clock *all;   /* retained: the newest of every strand */
    uint64_t told_count; /* how often there was something new, or somebody heard of it */
    uint32_t strand_count;
    struct number *free_numbers; /* owned */
    uint32_t free_count, free_capacity;
    struct order *order;   /* owned */
    uint32_t device_count; /* checked ones that are open */
};

/* ---- strands ---- */

static void learn(struct check *check, struct clock **clock, const struct clock *other,
                  uint32_t strand, uint64_t time) {
    check->told_count++;
    check->is_blind = !gpu_lua_clock_learn(clock, other, strand, time) || check->is_blind;
}

/* A number whose former strand the new one's maker knows to be over, else a new one. */
static void number_take(struct check *check, struct strand *strand, const struct strand *maker) {
    for (uint32_t i = check->free_count; i > 0; i--) {
        struct number *free_one = &check->free_numbers[i - 1];
        if (gpu_lua_clock_time(maker ? maker->known : NULL, free_one->number) >= free_one->time) {
            strand->number = free_one->number;
            strand->time = free_one->time;
            *free_one = check->free_numbers[--check->free_count];
            return;
        }
    }
    strand->number = check->strand_count++;
}

/* Without memory it is not used again. */
static void number_give(struct check *check, const struct strand *strand) {
    if (check->free_count == check->free_capacity) {
        uint32_t capacity = check->free_capacity ? check->free_capacity * 2 : 64;
        struct number *grown = realloc(check->free_numbers, capacity * sizeof *grown);
        if (!grown) {
            return;
        }
        check->free_numbers = grown;
        check->free_capacity = capacity;
    }
    check->free_numbers[check->free_count++] = (struct number){strand->number, strand->time};
}

static void forget_touches(struct strand *strand) {
    for (int i = 0; i < 2; i++) {
        gpu_lua_deed_release(strand->touches[i]);
        strand->touches[i] = NULL;
    }
}

static void strand_finish(struct strand *strand) {
    forget_touches(strand);
    gpu_lua_clock_release(strand->known);
    gpu_lua_clock_release(strand->of_children);
    strand->known = strand->of_children = NULL;
}

/* `maker` NULL: nobody is known to have. Names are counted by who it belongs to. */
static struct strand *strand_make(struct check *check, const struct strand *maker,
                                  struct strand *over) {
    struct strand *strand = calloc(1, sizeof *strand);
    if (!strand) {
        check->is_blind = true;
        return NULL;
    }
    char name[sizeof strand->name + 16];
    snprintf(name, sizeof name, "%s%s%u", over->name, over->name[0] ? "." : "",
             ++over->child_count);
    if (strlen(name) < sizeof strand->name) {
        memcpy(strand->name, name, strlen(name) + 1);
    } else { /* a long way down: still the same in every run */
        snprintf(strand->name, sizeof strand->name, "~%016llx",
                 (unsigned long long)gpu_lua_hash(name, strlen(name)));
    }
    number_take(check, strand, maker);
    if (maker) {
        learn(check, &strand->known, maker->known, maker->number, maker->time);
    }
    return strand;
}

/* A task that was there before anything was checked gets its strand when it is first needed. */
static struct strand *strand_of(struct check *check, struct task *task) {
    if (!task) {
        return &check->outside;
    }
    if (!task->strand) {
        task->strand = strand_make(check, NULL, &check->outside);
    }
    return task->strand ? task->strand : &check->outside;
}

static struct strand *current(struct gpulua *g) {
    return strand_of(g->check, g->running);
}

void gpu_lua_check_spawn(struct gpulua *g, struct task *task) {
    if (g->check) {
        struct strand *maker = current(g);
        task->strand = strand_make(g->check, maker, task->parent ? maker : &g->check->outside);
    }
}

void gpu_lua_check_end(struct gpulua *g, struct task *task) {
    struct strand *strand = g->check ? task->strand : NULL;
    if (!strand) {
        return;
    }
    learn(g->check, &strand->known, strand->of_children, strand->number, strand->time);
    if (task->parent && task->parent->strand) {
        learn(g->check, &task->parent->strand->of_children, strand->known, strand->number,
              strand->time);
    }
}

void gpu_lua_check_gone(struct gpulua *g, struct task *task) {
    struct strand *strand = task->strand;
    task->strand = NULL;
    if (strand) {
        if (g->check) {
            number_give(g->check, strand);
        }
        strand_finish(strand);
        free(strand);
    }
}

static bool knows(const struct strand *strand, const struct deed *deed) {
    return deed->strand == strand->number ||
           gpu_lua_clock_time(strand->known, deed->strand) >= deed->time;
}

/* Who knows of it knows what it knew. */
static void know(struct check *check, struct strand *strand, const struct deed *deed) {
    if (knows(strand, deed)) {
        return;
    }
    learn(check, &strand->known, deed->known, deed->strand, deed->time);
}

void gpu_lua_check_know_op(struct gpulua *g, const struct gpu_op *op) {
    const struct deed *deed = g->check ? gpu_op_shadow(op) : NULL;
    if (deed) {
        know(g->check, current(g), deed);
    }
}

void gpu_lua_check_know_task(struct gpulua *g, const struct task *task) {
    if (g->check && task->strand) {
        learn(g->check, &current(g)->known, task->strand->known, task->strand->number,
              task->strand->time);
    }
}

struct knower {
    struct check *check;
    struct strand *strand;
};

static void know_each(void *user, struct deed *deed) {
    const struct knower *knower = user;
    know(knower->check, knower->strand, deed);
}

void gpu_lua_check_know_buffer(struct gpulua *g, const struct gpu_ref *ref) {
    if (g->check && ref->block) {
        struct knower knower = {g->check, current(g)};
        uint64_t base;
        void *const *trail = gpu_block_shadow(ref->block, &base);
        gpu_lua_trail_each(*trail, base + ref->byte_offset,
                           base + ref->byte_offset + ref->byte_count, know_each, &knower);
    }
}

void gpu_lua_check_know_all(struct gpulua *g) {
    if (g->check) {
        struct strand *strand = current(g);
        learn(g->check, &strand->known, g->check->all, strand->number, strand->time);
    }
}

int gpu_lua_check_meet(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    if (!g->check) {
        return 0;
    }
    gpu_lua_check_know_all(g);
    const struct strand *strand = current(g);
    if (strand != &g->check->outside) {
        learn(g->check, &g->check->outside.known, strand->known, strand->number, strand->time);
    }
    for (struct task *task = g->live; task; task = task->live_next) {
        if (task->strand && task->strand != strand) {
            learn(g->check, &task->strand->known, strand->known, strand->number, strand->time);
        }
    }
    return 0;
}

void gpu_lua_check_tell(struct gpulua *g, struct task *task) {
    if (g->check && task->strand && task != g->running) {
        const struct strand *strand = current(g);
        learn(g->check, &task->strand->known, strand->known, strand->number, strand->time);
    }
}

/* ---- tasks ---- */

static bool check_create(struct gpulua *g, uint64_t seed) {
    struct check *check = calloc(1, sizeof *check);
    struct order *order = check ? gpu_lua_order_create() : NULL;
    if (!order) {
        free(check);
        return false;
    }
    check->random = seed;
    check->strand_count = 1; /* `outside` is 0 */
    check->order = order;
    g->check = check;
    return true;
}

static bool picks(const struct gpulua *g) {
    return g->check && (g->check->device_count > 0 || g->config.check);
}

/* Of those in captures only the first one may. */
static bool may_be_next(const struct task *task, bool *has_captured) {
    bool is_captured = task->scope.capture != 0, had_captured = *has_captured;
    *has_captured |= is_captured;
    return !is_captured || !had_captured;
}

uint32_t gpu_lua_check_pick(struct gpulua *g) {
    if (!g->check && g->config.check && !g->check_text) {
        (void)check_create(g, g->config.check_seed);
    }
    if (!picks(g) || g->ready_count < 2) {
        return 0;
    }
    uint32_t count = 0, at = 0;
    bool has_captured = false;
    for (const struct task *task = g->ready_head; task; task = task->ready_next) {
        count += may_be_next(task, &has_captured);
    }
    if (count < 2) { /* all are in captures */
        return 0;
    }
    /* splitmix64, as in the backend: see there. */
    uint64_t z = g->check->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    uint32_t chosen = (uint32_t)((z ^ (z >> 31)) % count);
    has_captured = false;
    for (const struct task *task = g->ready_head; task; task = task->ready_next, at++) {
        if (may_be_next(task, &has_captured) && chosen-- == 0) {
            break;
        }
    }
    return at;
}

int gpu_lua_check_picks_tasks(lua_State *L) {
    lua_pushboolean(L, picks(GPU_LUA(L)));
    return 1;
}

int gpu_lua_check_task_seed(lua_State *L) {
    const struct gpulua *g = GPU_LUA(L);
    uint64_t seed = (uint64_t)luaL_checkinteger(L, 1);
    if (!g->check) {
        lua_pushnil(L);
        return 1;
    }
    lua_pushinteger(L, (lua_Integer)g->check->random);
    g->check->random = seed;
    return 1;
}

/* ---- submissions ---- */

struct look {
    const struct strand *strand;
    const struct deed_use *use;
    bool is_script;
    struct deed *earlier; /* borrowed; NULL: no race */
    bool earlier_writes;
    uint64_t byte_begin, byte_end;
};

static bool look_at(void *user, struct deed *earlier, bool earlier_writes, uint64_t byte_begin,
                    uint64_t byte_end) {
    struct look *look = user;
    /* What scripts themselves do to host memory, variables of theirs may order. */
    if (knows(look->strand, earlier) || (look->is_script && earlier->is_script)) {
        return true;
    }
    look->earlier = earlier;
    look->earlier_writes = earlier_writes;
    look->byte_begin = byte_begin;
    look->byte_end = byte_end;
    return false;
}

/* "buffer 'x' (allocation 7)", "variable 'x' of its module". */
static void put_name(const struct deed_use *use, char *text, size_t text_bytes) {
    if (use->is_variable) {
        snprintf(text, text_bytes, "variable '%s' of its module", use->label);
    } else {
        snprintf(text, text_bytes, "buffer %s%s%s(allocation %llu)", use->label[0] ? "'" : "",
                 use->label, use->label[0] ? "' " : "", (unsigned long long)use->block_number);
    }
}

/* What is captured is no operation, nor is what a script does itself. */
static void put_op(const struct deed *deed, struct gpu_op_info *op) {
    op->is_known = deed->seq > 0;
    snprintf(op->label, sizeof op->label, "%s", deed->label);
    snprintf(op->source, sizeof op->source, "%s", deed->source);
    op->line = deed->line;
    op->stream = deed->stream;
    op->seq = deed->seq;
}

static void fail_race(const struct deed *later, const struct look *look, struct gpu_error *error) {
    const struct deed *earlier = look->earlier;
    const struct deed_use *use = look->use;
    char name[sizeof use->label + 48];
    put_name(use, name, sizeof name);
    gpu_error_set(error, GPULUA_RACE_FOUND,
                  "'%s' (%s:%d) %s %s, bytes %llu to %llu, that '%s' (%s:%d) of another task %s, "
                  "and only time decides which of them comes first: no await, join or spawn is "
                  "between them",
                  later->label, later->source, later->line,
                  (use->access & WIRE_USE_WRITE) ? "writes" : "reads", name,
                  (unsigned long long)(look->byte_begin - use->base),
                  (unsigned long long)(look->byte_end - use->base) - 1, earlier->label,
                  earlier->source, earlier->line, look->earlier_writes ? "writes" : "reads");
    put_op(later, &error->op);
    put_op(earlier, &error->other);
}

static struct deed *deed_of(const struct gpu_submission *submission, struct gpu_error *error) {
    struct deed *deed = gpu_lua_deed_create(submission);
    if (!deed) {
        gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory to check '%s'",
                      submission->label);
    }
    return deed;
}

/* Looks for races with what was there before, and notes it as what was. */
static gpulua_status note(struct check *check, struct strand *strand, struct deed *deed,
                          const struct gpu_submission *submission, struct gpu_error *error) {
    struct look look = {.strand = strand, .is_script = deed->is_script};
    for (uint32_t i = 0; i < deed->use_count && !look.earlier && !check->is_blind; i++) {
        look.use = &deed->uses[i];
        if (!look.use->is_private) {
            gpu_lua_trail_look(*submission->uses[i].shadow, look.use, look_at, &look);
        }
    }
    if (look.earlier) {
        fail_race(deed, &look, error);
        return error->code;
    }
    if (!deed->time) {
        deed->strand = strand->number;
        deed->time = ++strand->time;
        deed->known = gpu_lua_clock_retain(strand->known);
        learn(check, &check->all, NULL, strand->number, strand->time);
    }
    for (uint32_t i = 0; i < deed->use_count; i++) {
        if (!deed->uses[i].is_private) {
            check->is_blind = !gpu_lua_trail_note((struct trail **)submission->uses[i].shadow,
                                                  &deed->uses[i], deed) ||
                              check->is_blind;
        }
    }
    return GPULUA_OK;
}

/* The same for work: NULL, `error`, or what was noted, retained. */
static struct deed *note_work(struct check *check, struct strand *strand,
                              const struct gpu_submission *submission, struct gpu_error *error) {
    struct deed *deed = deed_of(submission, error);
    if (deed && note(check, strand, deed, submission, error)) {
        gpu_lua_deed_release(deed);
        return NULL;
    }
    return deed;
}

static gpulua_status on_submit(void *user, const struct gpu_submission *submission,
                               struct gpu_error *error) {
    struct gpulua *g = user;
    struct check *check = g->check;
    struct strand *strand = current(g);
    struct deed *deed = note_work(check, strand, submission, error);
    if (!deed) {
        return error->code;
    }
    snprintf(deed->name, sizeof deed->name, "%s#%u", strand->name[0] ? strand->name : "0",
             ++strand->op_count);
    *submission->shadow = deed;
    gpu_lua_order_submitted(check->order, deed);
    return GPULUA_OK;
}

static gpulua_status on_capture(void *user, const struct gpu_submission *submission,
                                struct gpu_error *error) {
    struct gpulua *g = user;
    struct deed *deed = note_work(g->check, current(g), submission, error);
    gpu_lua_deed_release(deed);
    return deed ? GPULUA_OK : error->code;
}

/* ---- variables of modules ---- */

struct late_look {
    struct look look;
    const struct deed *deed;
};

static bool look_late(void *user, struct deed *other, bool other_writes, uint64_t byte_begin,
                      uint64_t byte_end) {
    struct late_look *late = user;
    if (gpu_lua_deed_knew(late->deed, other) || gpu_lua_deed_knew(other, late->deed)) {
        return true;
    }
    late->look.earlier = other;
    late->look.earlier_writes = other_writes;
    late->look.byte_begin = byte_begin;
    late->look.byte_end = byte_end;
    return false;
}

/* What kernels do to variables nothing says before they have done it. So it is noted late, and may
 * come behind what is to be behind it. */
static gpulua_status on_touched(void *user, void *shadow, const struct gpu_seen_use *seen,
                                struct gpu_error *error) {
    struct check *check = ((struct gpulua *)user)->check;
    struct deed *deed = shadow;
    struct deed_use use;
    if (!check || check->is_blind) {
        return GPULUA_OK;
    }
    gpu_lua_deed_use(&use, seen);
    struct late_look late = {.look = {.use = &use}, .deed = deed};
    gpu_lua_trail_look(*seen->shadow, &use, look_late, &late);
    if (late.look.earlier) {
        fail_race(deed, &late.look, error);
        return error->code;
    }
    check->is_blind = !gpu_lua_trail_note((struct trail **)seen->shadow, &use, deed);
    return GPULUA_OK;
}

static void on_op_gone(void *user, void *shadow) {
    (void)user;
    gpu_lua_deed_release(shadow);
}

static void on_block_gone(void *user, void *shadow) {
    (void)user;
    gpu_lua_trail_destroy(shadow);
}

/* ---- host buffers ---- */

static bool is_same_line(const struct deed *deed, const struct gpu_submission *access) {
    return deed->line == access->line && strcmp(deed->label, access->label) == 0 &&
           strncmp(deed->source, access->source, sizeof deed->source - 1) == 0;
}

/* One deed is for many in a row from the same line, a loop over elements, while nobody can have
 * heard of it: who knows of one knows of what there was at that time. */
static gpulua_status touch(struct check *check, struct strand *strand,
                           const struct gpu_submission *access, struct gpu_error *error) {
    if (strand->touched_at != check->told_count) {
        forget_touches(strand);
    }
    struct deed **kept = &strand->touches[access->uses[0].access == WIRE_USE_WRITE];
    if (*kept && is_same_line(*kept, access)) {
        gpu_lua_deed_use(&(*kept)->uses[0], &access->uses[0]);
        return note(check, strand, *kept, access, error);
    }
    struct deed *deed = deed_of(access, error);
    if (!deed) {
        return error->code;
    }
    deed->is_script = true;
    gpulua_status status = note(check, strand, deed, access, error);
    if (status) {
        gpu_lua_deed_release(deed);
        return status;
    }
    gpu_lua_deed_release(*kept);
    *kept = deed;
    strand->touched_at = check->told_count; /* nobody has heard of it in that */
    return GPULUA_OK;
}

void gpu_lua_check_touch(struct gpulua *g, lua_State *L, const struct gpu_ref *ref,
                         uint64_t byte_offset, uint64_t byte_count, bool is_write,
                         const char *what) {
    lua_Debug ar;
    if (!g->check || !gpu_device_is_checked(gpu_block_device(ref->block)) || byte_count == 0) {
        return;
    }
    gpu_lua_check_eager(L, g, gpu_block_device(ref->block),
                        "reading or writing a host buffer from the script");
    bool has_place = gpu_lua_where(L, &ar);
    uint64_t base; /* 0: host memory is no module's */
    const struct gpu_seen_use use = {.shadow = gpu_block_shadow(ref->block, &base),
                                     .label = gpu_block_label(ref->block),
                                     .block_number = gpu_block_number(ref->block),
                                     .byte_begin = ref->byte_offset + byte_offset,
                                     .byte_end = ref->byte_offset + byte_offset + byte_count,
                                     .access = is_write ? WIRE_USE_WRITE : WIRE_USE_READ};
    const struct gpu_submission access = {.label = what,
                                          .source = has_place ? ar.short_src : "?",
                                          .line = has_place ? ar.currentline : 0,
                                          .uses = &use,
                                          .use_count = 1};
    struct gpu_error error;
    if (touch(g->check, current(g), &access, &error)) {
        gpu_lua_throw(L, &error);
    }
}

/* ---- what was done ---- */

static void on_ran(void *user, struct gpu_device *device, void *shadow, void *const *ready,
                   uint32_t ready_count) {
    struct gpulua *g = user;
    if (shadow && g->check) {
        gpu_lua_order_ran(g->check->order, device, shadow, ready, ready_count);
    }
}

void gpu_lua_check_closed(struct gpulua *g, const struct gpu_device *device) {
    if (g->check && gpu_device_is_checked(device)) {
        g->check->device_count--;
        gpu_lua_order_forget(g->check->order, device);
    }
}

void gpu_lua_check_read(struct gpulua *g, lua_State *L, const struct gpu_ref *ref,
                        const void *bytes, size_t byte_count) {
    lua_Debug ar;
    if (!g->check || !gpu_lua_order_is_logged(g->check->order)) {
        return;
    }
    struct strand *strand = current(g);
    bool is_known = gpu_lua_where(L, &ar);
    const struct seen_read read = {
        .strand = strand->name[0] ? strand->name : "0",
        .number = ++strand->read_count,
        .source = is_known ? ar.short_src : "?",
        .line = is_known ? ar.currentline : 0,
        .block_number = gpu_block_number(ref->block),
        .label = gpu_block_label(ref->block),
    };
    gpu_lua_order_read(g->check->order, &read, bytes, byte_count);
}

/* dev:order() -> what a checked device has done, oldest first (of all devices of the state, the
 * first 4,096): a list of {name = which operation of which task, the same in every run; label =,
 * site = "pipeline.lua:12", stream = number, seq = on it, waits = a list of {stream, seq}, uses = a
 * list of {allocation, first byte, byte behind the last, 1 read or 2 write or 3 both, label}, ready
 * = names of what could have been done then, by slot of their streams}. nil: it is not checked. */
int gpu_lua_check_order(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, NULL);
    if (!g->check || !gpu_device_is_checked(device)) {
        luaL_pushfail(L);
        return 1;
    }
    gpu_device_poll(device);
    gpu_lua_order_push(L, g->check->order, device);
    return 1;
}

/* ---- beginning and end ---- */

const struct gpu_observer *gpu_lua_check_start(struct gpulua *g, uint64_t seed) {
    if (!g->check && !check_create(g, seed)) {
        return NULL;
    }
    if (g->check->device_count == 0 && !g->config.check) {
        g->check->random = seed;
    }
    g->observer = (struct gpu_observer){.user = g,
                                        .submit = on_submit,
                                        .capture = on_capture,
                                        .ran = on_ran,
                                        .touched = on_touched,
                                        .op_gone = on_op_gone,
                                        .block_gone = on_block_gone};
    return &g->observer;
}

void gpu_lua_check_opened(struct gpulua *g) {
    g->check->device_count++;
}

void gpu_lua_check_finish(struct gpulua *g) {
    struct check *check = g->check;
    if (!check) {
        return;
    }
    g->check = NULL;
    gpu_lua_order_destroy(check->order);
    free(check->free_numbers);
    strand_finish(&check->outside);
    gpu_lua_clock_release(check->all);
    free(check);
}
