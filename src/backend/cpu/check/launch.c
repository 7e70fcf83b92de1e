/* One launch in check mode (see check.h). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/check/run.h"
#include "backend/cpu/run.h"

/* ---- a launch on its way through a queue ---- */

struct packed_uses {
    uint64_t free_count; /* blocks that were freed before it was launched */
    uint32_t count, reserved;
    struct backend_use uses[];
};

static uint32_t uses_offset(const struct cpu_kernel *kernel) {
    return (kernel->args_bytes + 15u) & ~15u;
}

void *gpu_check_launch_pack(struct check *check, const struct backend_launch *launch,
                            uint32_t *args_bytes) {
    uint32_t offset = uses_offset((const struct cpu_kernel *)launch->kernel);
    size_t uses_bytes = launch->use_count * sizeof *launch->uses;
    *args_bytes = offset + (uint32_t)(sizeof(struct packed_uses) + uses_bytes);
    uint8_t *bytes = calloc(1, *args_bytes);
    if (bytes != NULL) {
        struct packed_uses *packed = (struct packed_uses *)(void *)(bytes + offset);
        memcpy(bytes, launch->args, launch->args_bytes < offset ? launch->args_bytes : offset);
        packed->count = launch->use_count;
        packed->free_count = check->free_count;
        if (uses_bytes != 0) {
            memcpy(packed->uses, launch->uses, uses_bytes);
        }
    }
    return bytes;
}

void gpu_check_launch_now(struct cpu_launch *launch, uint64_t free_count) {
    uint8_t *args = (uint8_t *)(uintptr_t)launch->args; /* the item's own */
    ((struct packed_uses *)(void *)(args + uses_offset(launch->kernel)))->free_count = free_count;
}

/* ---- a launch while it runs ---- */

static bool overlap(const struct check_use *a, const struct check_use *b) {
    return a->address < b->address + b->bytes && b->address < a->address + a->bytes;
}

static void use_init(struct check *check, struct check_use *use, const struct backend_use *from) {
    *use = (struct check_use){
        .address = from->address,
        .bytes = from->bytes,
        .access = from->access,
        .from = from,
        .space = gpu_check_slab_of(check, from->address),
    };
    struct check_space *space = use->space;
    use->is_written = space == NULL || gpu_check_space_find(space, use->address - space->base,
                                                            use->bytes, false) == use->bytes;
}

struct check_run *gpu_check_run_begin(struct check *check, struct cpu_launch *launch,
                                      struct cpu_region *region, uint32_t stream, uint64_t seq) {
    const struct packed_uses *packed =
        (const void *)((const uint8_t *)launch->args + uses_offset(launch->kernel));
    struct check_run *run = calloc(1, sizeof *run + packed->count * sizeof *run->uses);
    if (run == NULL) {
        return NULL;
    }
    run->check = check;
    run->launch = launch;
    run->region = region;
    run->order = &check->order;
    run->code = (uintptr_t)launch->kernel->table;
    run->use_count = packed->count;
    run->free_count = packed->free_count;
    run->random = check->seed * UINT64_C(0x9E3779B97F4A7C15) +
                  stream * UINT64_C(0xD1B54A32D192ED03) + seq * UINT64_C(0x8CB92BA72F3D8DD7);
    for (uint32_t i = 0; i < run->use_count; i++) {
        use_init(check, &run->uses[i], &packed->uses[i]);
    }
    for (uint32_t i = 0; i < run->use_count; i++) {
        for (uint32_t k = 0; k < run->use_count; k++) {
            run->uses[i].can_race |= (run->uses[k].access & WIRE_USE_WRITE) != 0 &&
                                     overlap(&run->uses[i], &run->uses[k]);
        }
    }
    gpu_check_order_launch(run->order, &check->stamp_next);
    return run;
}

static bool warn_once(struct check *check, const struct check_run *run,
                      const struct check_use *use) {
    const struct cpu_kernel_table *kernel = run->launch->kernel->table;
    for (size_t i = 0; i < check->warned_count; i++) {
        if (check->warned[i].kernel == kernel && check->warned[i].part == use->from->part &&
            check->warned[i].access == use->access) {
            return false;
        }
    }
    if (!gpu_check_grow(&check->warned, check->warned_count, &check->warned_capacity,
                        sizeof *check->warned)) {
        return false;
    }
    check->warned[check->warned_count++] =
        (struct check_warned){kernel, use->from->part, use->access};
    return true;
}

/* The first use that fits an access is noted as its own, so an overlapping one speaks for this. */
static bool is_idle(const struct check_run *run, const struct check_use *use) {
    bool is_done = use->access == (WIRE_USE_READ | WIRE_USE_WRITE);
    for (uint32_t i = 0; i < run->use_count; i++) {
        const struct check_use *other = &run->uses[i];
        is_done = is_done || ((other->done & use->access) != 0 && overlap(use, other));
    }
    return !is_done;
}

/* A kernel that reports failures, and has: a check of its own did not hold, or what it was to read
 * had failed. Its word says so, the second of its gpulua_ctx, with the third as number. */
static bool has_reported(const struct check_run *run) {
    const struct cpu_launch *launch = run->launch;
    const struct cpu_kernel_table *kernel = launch->kernel->table;
    const struct cpu_type_facts *last =
        kernel->param_count > 0 ? &kernel->params[kernel->param_count - 1] : NULL;
    if (last == NULL || last->spelling == NULL || strstr(last->spelling, "gpulua_ctx") == NULL) {
        return false;
    }
    uint64_t context[3];
    memcpy(context, (const char *)launch->args + launch->kernel->args_bytes - last->bytes,
           sizeof context);
    return *(const uint64_t *)(uintptr_t)context[1] == context[2];
}

/* What was declared and not done: said, once for each part of a kernel's
 * parameters. */
static void warn_unused(struct check_run *run) {
    if (has_reported(run)) {
        return;
    }
    for (uint32_t i = 0; i < run->use_count; i++) {
        const struct check_use *use = &run->uses[i];
        if (is_idle(run, use) && warn_once(run->check, run, use)) {
            char name[160], line[320];
            gpu_check_use_name(run, use, name, sizeof name);
            snprintf(line, sizeof line, "check: kernel '%.64s': %s is declared %s but was never %s",
                     run->launch->kernel->table->name, name,
                     use->access == WIRE_USE_WRITE ? "out" : "in",
                     use->access == WIRE_USE_WRITE ? "written" : "read");
            run->check->sink->log(run->check->sink->user, line);
        }
    }
}

void gpu_check_run_end(struct check_run *run) {
    free(run->blocks);
    free(run);
}

uint64_t gpu_check_random(struct check_run *run) {
    uint64_t z = run->random += UINT64_C(0x9E3779B97F4A7C15); /* splitmix64 */
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

bool gpu_check_block(struct check_run *run, uint64_t block, uint32_t thread_count) {
    if (run->block_count == run->block_capacity) {
        size_t capacity = run->block_capacity;
        if (!gpu_check_grow(&run->blocks, run->block_count, &capacity, sizeof *run->blocks)) {
            return false;
        }
        run->block_capacity = capacity;
    }
    gpu_check_order_block(run->order, run->region->threads, thread_count);
    run->blocks[run->block_count++] = (struct check_run_block){block, run->order->block_first};
    return true;
}

/* Barriers are told apart by their places in the source: code has copies of a loop's. */
GPU_CPU_ON_FIBRE void gpu_check_barrier_reached(struct cpu_context *context, bool is_first) {
    struct check_run *run = gpu_check_run_of(context);
    const struct check_barrier *first = &run->barrier;
    const struct check_barrier here = {
        .file = context->barrier_file,
        .line = context->barrier_line,
        .column = context->barrier_column,
        .site = context->site,
        .frame = context->frame,
        .thread = context->current->linear,
    };
    if (is_first) {
        run->barrier = here;
    } else if (here.line != first->line || here.column != first->column ||
               strcmp(here.file, first->file) != 0) {
        gpu_check_find_barrier(context, &here); /* does not return */
    }
}

/* ---- all of a launch ---- */

/* Numbers of blocks in an order of the seed's: steps of a length that meets all of them. */
static uint64_t step_of(struct check_run *run, uint64_t count) {
    for (;;) {
        uint64_t step = count > 2 ? 1 + gpu_check_random(run) % (count - 1) : 1, a = step,
                 b = count;
        while (b != 0) {
            uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1) {
            return step;
        }
    }
}

/* What a library accesses is not seen: it is taken to write all that is declared so. Rows may have
 * gaps between them, so only what was never written at all is known not to be there to be read. */
static void library_run(struct check *check, struct cpu_launch *launch) {
    const struct packed_uses *packed =
        (const void *)((const uint8_t *)launch->args + uses_offset(launch->kernel));
    for (uint32_t i = 0; i < packed->count; i++) {
        const struct backend_use *use = &packed->uses[i];
        const struct check_space *space = gpu_check_slab_of(check, use->address);
        uint64_t offset = space != NULL ? use->address - space->base : 0;
        if (space != NULL && use->bytes > 0 && (use->access & WIRE_USE_READ) != 0 &&
            gpu_check_space_find(space, offset, use->bytes, true) == use->bytes) {
            const struct check_block *block = gpu_check_block_of(check, use->address);
            char text[320];
            snprintf(text, sizeof text,
                     "'%.64s' read parameter %" PRIu32 "%s%.64s%s, never written anywhere",
                     launch->kernel->table->name, use->param + 1,
                     block != NULL && block->label[0] != '\0' ? " (" : "",
                     block != NULL ? block->label : "",
                     block != NULL && block->label[0] != '\0' ? ")" : "");
            const struct backend_failure failure = {.status = GPULUA_INVALID_DATA, .text = text};
            gpu_cpu_launch_note(launch, &failure);
            return;
        }
    }
    gpu_cpu_library_call(launch);
    for (uint32_t i = 0; i < packed->count && !gpu_cpu_launch_has_failed(launch); i++) {
        if ((packed->uses[i].access & WIRE_USE_WRITE) != 0) {
            gpu_check_filled(check, packed->uses[i].address, packed->uses[i].bytes);
        }
    }
}

void gpu_check_launch_run(struct check *check, struct cpu_launch *launch, uint32_t stream,
                          uint64_t seq) {
    if (launch->kernel->call != NULL) {
        library_run(check, launch);
        return;
    }
    struct cpu_region *region = gpu_cpu_launch_enter(launch);
    struct check_run *run = region != NULL && !check->has_failed
                                ? gpu_check_run_begin(check, launch, region, stream, seq)
                                : NULL;
    if (run == NULL) {
        gpu_cpu_launch_no_memory(launch);
        return;
    }
    region->context.check = run;
    uint64_t count = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    uint64_t step = step_of(run, count), block = gpu_check_random(run) % count;
    for (uint64_t i = 0; i < count && !gpu_cpu_launch_has_failed(launch); i++) {
        gpu_cpu_block_run_checked(region, launch, run, block);
        block += step;
        block -= block >= count ? count : 0;
    }
    gpu_cpu_launch_leave(region, launch);
    if (!gpu_cpu_launch_has_failed(launch)) {
        warn_unused(run);
        gpu_check_tell_touched(run, stream, seq);
    }
    region->context.check = NULL;
    gpu_check_run_end(run);
}
