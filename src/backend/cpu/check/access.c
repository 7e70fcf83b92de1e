/* What is done at each access of a kernel (see check.h). Everything here runs on the stack of the
 * kernel's thread; an access that is not right does not return, and is not made. */
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/check/run.h"

/* Structs that are copied have padding that nobody writes. */
#define PADDING_BYTES_MAX 7u
#define PADDING_BYTES_MAX_WORD 3u

/* ---- races ---- */

static inline bool both_atomic(uint64_t a, uint64_t b) {
    uint32_t ka = gpu_check_tag_kind(a), kb = gpu_check_tag_kind(b);
    if (ka == CHECK_KIND_PLAIN || kb == CHECK_KIND_PLAIN) {
        return false;
    }
    /* Volatile accesses are not torn, but a warp's lanes are not in step because of two of them. */
    return ka == CHECK_KIND_ATOMIC || kb == CHECK_KIND_ATOMIC ||
           gpu_check_tag_stamp(a) != gpu_check_tag_stamp(b) ||
           gpu_check_tag_thread(a) / CHECK_WARP_THREADS !=
               gpu_check_tag_thread(b) / CHECK_WARP_THREADS;
}

/* Does the access of `tag` race with one that was made before? */
static inline bool is_race(const struct check_order *order, uint64_t before, uint64_t tag) {
    return !both_atomic(before, tag) &&
           !gpu_check_is_ordered(order, before, gpu_check_tag_thread(tag));
}

void gpu_check_settle(struct cpu_context *context) {
    struct check_doubt *doubt = &gpu_check_run_of(context)->doubt;
    if (doubt->is_set) {
        doubt->is_set = false;
        context->site = NULL; /* that access is over */
        gpu_check_find_race(context, &doubt->access, &doubt->before);
    }
}

static void doubt_note(struct cpu_context *context, const struct check_access *access,
                       const struct check_before *before) {
    struct check_doubt *doubt = &gpu_check_run_of(context)->doubt;
    if (!doubt->is_set || doubt->access.address != access->address) {
        gpu_check_settle(context);
        *doubt = (struct check_doubt){true, *access, *before};
    }
}

/* True: the access is in doubt, and is not noted. */
static inline bool race_with_write(struct cpu_context *context, const struct check_access *access,
                                   const struct check_cell *cell, uintptr_t address, uint64_t tag) {
    const struct check_order *order = gpu_check_run_of(context)->order;
    uint64_t before = cell->write;
    if (gpu_check_tag_stamp(before) < access->first || (before ^ tag) >> CHECK_THREAD_SHIFT == 0) {
        return false; /* of an earlier launch, or this thread's own */
    }
    if (is_race(order, before, tag)) {
        const struct check_before found = {address, before, cell->write_site, true};
        if (gpu_check_tag_kind(before) == CHECK_KIND_ATOMIC && access->bytes <= 8 &&
            (access->flags & (CPU_ACCESS_WRITE | CPU_ACCESS_RANGE)) == 0) {
            doubt_note(context, access, &found);
            return true;
        }
        gpu_check_find_race(context, access, &found);
    }
    return false;
}

/* Reads of this interval by another thread than `thread`. */
static bool is_read_by_other(const struct check_order *order, const struct check_cell *cell,
                             uint64_t tag, uint64_t *by, uint32_t *site) {
    uint32_t thread = gpu_check_tag_thread(tag), reader = gpu_check_tag_thread(cell->read);
    uint64_t rest = cell->read & ~(UINT64_C(1023) << CHECK_THREAD_SHIFT);
    if (cell->lanes == 0) { /* two warps: one of them is not this thread's */
        uint64_t second = rest | (uint64_t)cell->second << CHECK_THREAD_SHIFT;
        *by = cell->read;
        *site = cell->read_site;
        if (reader != thread && is_race(order, cell->read, tag)) {
            return true;
        }
        *by = second;
        *site = cell->second_site;
        return cell->second != thread && is_race(order, second, tag);
    }
    *site = cell->read_site;
    for (uint32_t lanes = cell->lanes; lanes != 0; lanes &= lanes - 1) {
        uint32_t other =
            reader / CHECK_WARP_THREADS * CHECK_WARP_THREADS + (uint32_t)__builtin_ctz(lanes);
        *by = rest | (uint64_t)other << CHECK_THREAD_SHIFT;
        if (other != thread && is_race(order, *by, tag)) {
            return true;
        }
    }
    return false;
}

static inline void race_with_read(struct cpu_context *context, const struct check_access *access,
                                  const struct check_cell *cell, uintptr_t address, uint64_t tag) {
    const struct check_order *order = gpu_check_run_of(context)->order;
    uint64_t stamp = gpu_check_tag_stamp(cell->read), by = cell->read;
    uint32_t site = cell->read_site;
    if (stamp < access->first) {
        return;
    }
    bool is_found = false;
    if (stamp == order->stamp) {
        bool is_own = gpu_check_tag_thread(by) == gpu_check_tag_thread(tag) &&
                      cell->lanes == 1u << gpu_check_tag_thread(tag) % CHECK_WARP_THREADS;
        is_found = !is_own && is_read_by_other(order, cell, tag, &by, &site);
    } else if (stamp < order->block_first) {
        is_found = is_race(order, by, tag);
    }
    if (!is_found && gpu_check_tag_stamp(cell->other) >= access->first &&
        gpu_check_tag_stamp(cell->other) < order->block_first) {
        by = cell->other;
        site = cell->other_site;
        is_found = is_race(order, by, tag);
    }
    if (is_found) {
        const struct check_before found = {address, by, site, false};
        gpu_check_find_race(context, access, &found);
    }
}

static inline void note_read(const struct check_order *order, struct check_cell *cell, uint64_t tag,
                             uint32_t site) {
    uint64_t before = cell->read;
    uint32_t thread = gpu_check_tag_thread(tag), reader = gpu_check_tag_thread(before);
    uint32_t lane_bit = 1u << thread % CHECK_WARP_THREADS;
    uint64_t stamp = gpu_check_tag_stamp(before);
    if (stamp != order->stamp) {
        if (stamp >= order->launch_first && stamp < order->block_first) {
            cell->other = before;
            cell->other_site = cell->read_site;
        }
        cell->read = tag;
        cell->read_site = site;
        cell->lanes = lane_bit;
        return;
    }
    if (cell->lanes == 0) {
        return;
    }
    if (thread / CHECK_WARP_THREADS != reader / CHECK_WARP_THREADS) {
        cell->lanes = 0;
        cell->second = thread;
        cell->second_site = site;
    } else if ((cell->lanes & ~lane_bit) == 0) {
        bool was_plain = gpu_check_tag_kind(before) == CHECK_KIND_PLAIN;
        bool is_plain = gpu_check_tag_kind(tag) == CHECK_KIND_PLAIN;
        cell->read = tag;
        cell->read_site = was_plain && !is_plain ? cell->read_site : site;
    } else {
        /* Readers that this one comes behind are covered by it. */
        uint32_t lanes = lane_bit;
        uint64_t rest = before & ~(UINT64_C(1023) << CHECK_THREAD_SHIFT);
        for (uint32_t left = cell->lanes & ~lane_bit; left != 0; left &= left - 1) {
            uint32_t lane = (uint32_t)__builtin_ctz(left);
            uint32_t other = reader / CHECK_WARP_THREADS * CHECK_WARP_THREADS + lane;
            lanes |=
                gpu_check_is_ordered(order, rest | (uint64_t)other << CHECK_THREAD_SHIFT, thread)
                    ? 0u
                    : 1u << lane;
        }
        cell->lanes = lanes;
        cell->read_site = cell->read_site == site || lanes == lane_bit ? site : 0;
        cell->read = gpu_check_tag_time(before) > gpu_check_tag_time(tag) && lanes != lane_bit
                         ? (tag & ~((uint64_t)CHECK_TIME_MAX << CHECK_KIND_BITS)) |
                               ((uint64_t)gpu_check_tag_time(before) << CHECK_KIND_BITS)
                         : tag;
    }
    if (gpu_check_tag_kind(before) == CHECK_KIND_PLAIN) {
        cell->read &= ~UINT64_C(3); /* one of them is plain */
    }
}

static inline void cell_access(struct cpu_context *context, const struct check_access *access,
                               struct check_cell *cell, uintptr_t address, uint64_t tag) {
    if (race_with_write(context, access, cell, address, tag)) {
        return;
    }
    if ((access->flags & CPU_ACCESS_WRITE) != 0) {
        race_with_read(context, access, cell, address, tag);
        /* A thread's own atomic operation does not hide what it wrote plainly before; what it
         * writes plainly later does. */
        bool is_hiding = gpu_check_tag_kind(tag) != CHECK_KIND_PLAIN &&
                         (cell->write ^ tag) >> CHECK_THREAD_SHIFT == 0 &&
                         gpu_check_tag_kind(cell->write) == CHECK_KIND_PLAIN;
        cell->write = is_hiding ? cell->write : tag;
        cell->write_site = is_hiding ? cell->write_site : access->site;
        if ((access->flags & CPU_ACCESS_ATOMIC) != 0 &&
            (cell->read ^ tag) >> CHECK_THREAD_SHIFT == 0 &&
            cell->lanes == 1u << gpu_check_tag_thread(tag) % CHECK_WARP_THREADS) {
            cell->read = tag; /* of a loop around atomicCAS: in doubt no more */
            cell->read_site = access->site;
        }
    } else if (cell->read != tag ||
               cell->lanes != 1u << gpu_check_tag_thread(tag) % CHECK_WARP_THREADS) {
        note_read(gpu_check_run_of(context)->order, cell, tag, access->site);
    }
}

static inline uint64_t tag_now(struct cpu_context *context, uint32_t flags) {
    uint64_t kind = flags & CPU_ACCESS_ATOMIC     ? CHECK_KIND_ATOMIC
                    : flags & CPU_ACCESS_VOLATILE ? CHECK_KIND_VOLATILE
                                                  : CHECK_KIND_PLAIN;
    return gpu_check_run_of(context)->order->stamp << CHECK_STAMP_SHIFT |
           context->current->check_bits | kind;
}

/* The part of an access that lies in one page. */
static void cells_access(struct cpu_context *context, const struct check_access *access,
                         struct check_space *space, uint64_t offset, uint64_t bytes) {
    uint64_t page = offset / CHECK_PAGE_BYTES, tag = tag_now(context, access->flags);
    if (!space->is_fine[page]) {
        if ((offset | bytes) % CHECK_CELL_BYTES == 0) {
            for (uint64_t at = offset; at < offset + bytes; at += CHECK_CELL_BYTES) {
                cell_access(context, access, &space->coarse[at / CHECK_CELL_BYTES],
                            space->base + at, tag);
            }
            return;
        }
        gpu_check_space_refine(space, page);
    }
    for (uint64_t at = offset; at < offset + bytes; at++) {
        cell_access(context, access, &space->fine[at], space->base + at, tag);
    }
}

static inline void space_access(struct cpu_context *context, const struct check_access *access,
                                struct check_space *space) {
    uint64_t offset = access->address - space->base, end = offset + access->bytes;
    while (offset < end) {
        uint64_t page_end = (offset / CHECK_PAGE_BYTES + 1) * CHECK_PAGE_BYTES;
        uint64_t until = end < page_end ? end : page_end;
        cells_access(context, access, space, offset, until - offset);
        offset = until;
    }
}

/* ---- what was never written ---- */

/* Of a struct that is copied, what looks like padding may be missing. */
static bool is_padding(const struct check_space *space, const struct check_access *access,
                       uint64_t offset, uint64_t first) {
    uint64_t most = access->flags & CPU_ACCESS_RANGE || access->bytes > 8 ? PADDING_BYTES_MAX
                    : access->bytes == 8                                  ? PADDING_BYTES_MAX_WORD
                                                                          : 0;
    while (first > 0 && first < access->bytes) {
        uint64_t run = gpu_check_space_find(space, offset + first, access->bytes - first, true);
        if (run > most) {
            return false;
        }
        first += run;
        first += gpu_check_space_find(space, offset + first, access->bytes - first, false);
    }
    return first == access->bytes;
}

static void check_written(struct cpu_context *context, const struct check_access *access,
                          const struct check_use *use) {
    uint64_t offset = access->address - use->space->base;
    uint64_t first = gpu_check_space_find(use->space, offset, access->bytes, false);
    if (first != access->bytes && !is_padding(use->space, access, offset, first)) {
        gpu_check_find_unwritten(context, access, use, first);
    }
}

static uint64_t write_tag_of(const struct check_space *space, uint64_t offset) {
    return space->is_fine[offset / CHECK_PAGE_BYTES]
               ? space->fine[offset].write
               : space->coarse[offset / CHECK_CELL_BYTES].write;
}

/* Declared out: what the launch has not written itself is not there. Shared memory: what the block
 * has not. */
static void check_written_since(struct cpu_context *context, const struct check_access *access,
                                const struct check_space *space, const struct check_use *use,
                                uint64_t stamp) {
    uint64_t offset = access->address - space->base, missing = 0;
    for (uint64_t i = 0; i < access->bytes; i++) {
        if (gpu_check_tag_stamp(write_tag_of(space, offset + i)) >= stamp) {
            missing = 0;
        } else if (missing++ == i || (access->bytes < 8 && !(access->flags & CPU_ACCESS_RANGE)) ||
                   missing > (access->bytes == 8 ? PADDING_BYTES_MAX_WORD : PADDING_BYTES_MAX)) {
            gpu_check_find_unwritten(context, access, use, i + 1 - missing);
        }
    }
}

/* ---- where an access goes ---- */

static void use_access(struct cpu_context *context, const struct check_access *access,
                       struct check_use *use) {
    use->done |= gpu_check_access_wanted(access->flags);
    if ((access->flags & CPU_ACCESS_READ) != 0) {
        if (use->access == WIRE_USE_WRITE) {
            check_written_since(context, access, use->space, use,
                                gpu_check_run_of(context)->order->launch_first);
        } else if (!use->is_written) {
            check_written(context, access, use);
        }
    }
    if (use->can_race) {
        space_access(context, access, use->space);
    }
    if ((access->flags & CPU_ACCESS_WRITE) != 0 && !use->is_written) {
        gpu_check_space_mark(use->space, access->address - use->space->base, access->bytes, true);
    }
}

static void shared_access(struct cpu_context *context, const struct check_access *made,
                          struct check_space *space) {
    struct check_access shared = *made, *access = &shared;
    shared.first = gpu_check_run_of(context)->order->block_first; /* each block has its own */
    if ((access->flags & CPU_ACCESS_READ) != 0) {
        check_written_since(context, access, space, NULL, shared.first);
    }
    space_access(context, access, space);
}

struct module_look {
    uintptr_t inside; /* an address in what is looked for */
    struct check_module *module;
};

static int module_look(struct dl_phdr_info *info, size_t info_bytes, void *user) {
    const struct module_look *look = user;
    struct check_module *module = look->module;
    uintptr_t low = UINTPTR_MAX, high = 0, written_low = UINTPTR_MAX, written_high = 0;
    uint64_t shared_bytes = 0;
    (void)info_bytes;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t from = info->dlpi_addr + part->p_vaddr, to = from + part->p_memsz;
        if (part->p_type == PT_TLS) {
            shared_bytes = part->p_memsz;
        }
        if (part->p_type == PT_LOAD) {
            low = from < low ? from : low;
            high = to > high ? to : high;
            if ((part->p_flags & PF_W) != 0) {
                written_low = from < written_low ? from : written_low;
                written_high = to > written_high ? to : written_high;
            }
        }
    }
    if (look->inside < low || look->inside >= high) {
        return 0;
    }
    module->is_known = true;
    module->low = low;
    module->high = high;
    module->written_low = written_low;
    module->written_high = written_high;
    if (shared_bytes > 0 && info->dlpi_tls_data != NULL) {
        module->shared_low = (uintptr_t)info->dlpi_tls_data;
        module->shared_high = module->shared_low + shared_bytes;
    }
    return 1;
}

static bool is_within(const struct check_access *access, uintptr_t low, uintptr_t high) {
    return access->address >= low && access->address < high &&
           access->bytes <= high - access->address;
}

static bool is_on_heap(const struct check *check, const struct check_access *access) {
    for (size_t i = 0; i < check->heap_count; i++) {
        const struct check_heap *piece = &check->heap[i];
        if (is_within(access, piece->address, piece->address + piece->bytes)) {
            return true;
        }
    }
    return false;
}

/* Memory of the module; false: it is none. */
static bool module_access(struct cpu_context *context, const struct check_access *access) {
    struct check_run *run = gpu_check_run_of(context);
    struct check_module *module = &run->module;
    /* Its shared memory is there once an access was made to it. */
    if (!module->is_known || module->shared_low == 0) {
        struct module_look look = {(uintptr_t)run->launch->kernel->table, module};
        dl_iterate_phdr(module_look, &look);
    }
    bool is_shared = is_within(access, module->shared_low, module->shared_high);
    if (!is_shared && !is_within(access, module->low, module->high)) {
        return false;
    }
    if (!is_shared && !is_within(access, module->written_low, module->written_high)) {
        return (access->flags & CPU_ACCESS_WRITE) == 0; /* constant data */
    }
    uintptr_t low = is_shared ? module->shared_low : module->written_low;
    uintptr_t high = is_shared ? module->shared_high : module->written_high;
    struct check_space *space = gpu_check_space_of(run->check, low, high - low);
    if (space == NULL) {
        run->check->has_failed = true;
        return true;
    }
    if (is_shared) {
        shared_access(context, access, space);
        return true;
    }
    space_access(context, access, space);
    uintptr_t end = access->address + access->bytes;
    if (module->used_high == 0 || access->address < module->used_low) {
        module->used_low = access->address;
    }
    module->used_high = end > module->used_high ? end : module->used_high;
    return true;
}

/* An argument that is a variable: of the launch's own module, or of another, whose memory is
 * then known as the module's own launches know it. */
static void variable_access(struct cpu_context *context, const struct check_access *access,
                            struct check_use *use) {
    struct check_run *run = gpu_check_run_of(context);
    if (module_access(context, access)) {
        use->done |= gpu_check_access_wanted(access->flags);
        return;
    }
    struct check_module other = {.is_known = false};
    struct module_look look = {use->address, &other};
    dl_iterate_phdr(module_look, &look);
    if (!is_within(access, other.written_low, other.written_high)) {
        if (!is_within(access, other.low, other.high) || (access->flags & CPU_ACCESS_WRITE) != 0) {
            gpu_check_find_undeclared(context, access); /* does not return */
        }
        use->done |= gpu_check_access_wanted(access->flags); /* constant data */
        return;
    }
    use->space =
        gpu_check_space_of(run->check, other.written_low, other.written_high - other.written_low);
    if (use->space == NULL) {
        run->check->has_failed = true;
        return;
    }
    use_access(context, access, use);
}

static void other_access(struct cpu_context *context, const struct check_access *access) {
    if (!module_access(context, access) && !is_on_heap(gpu_check_run_of(context)->check, access)) {
        gpu_check_find_undeclared(context, access);
    }
}

void gpu_check_access(struct cpu_context *context, const void *pointer, unsigned long bytes,
                      unsigned flags) {
    struct check_run *run = gpu_check_run_of(context);
    const struct check_access access = {(uintptr_t)pointer, bytes, flags,
                                        (uint32_t)((uintptr_t)context->site - run->code),
                                        run->order->launch_first};
    bool is_dynamic = gpu_cpu_region_is_shared(run->region, access.address);
    if ((access.address ^ (uintptr_t)context) < CPU_REGION_BYTES && !is_dynamic) {
        return; /* a stack, or what the runtime keeps for the thread */
    }
    if (bytes == 0) {
        return;
    }
    uint64_t alignment = bytes < 8 ? bytes : 8;
    if ((flags & (CPU_ACCESS_RANGE | CPU_ACCESS_UNALIGNED)) == 0 &&
        (access.address & (alignment - 1)) != 0) {
        gpu_check_find_misaligned(context, &access);
    }
    if ((flags & (CPU_ACCESS_ATOMIC | CPU_ACCESS_VOLATILE)) != 0) {
        gpu_check_order_atomic(run->order, context->current->linear,
                               (flags & CPU_ACCESS_WRITE) != 0);
        run->doubt.is_set = run->doubt.is_set && run->doubt.access.address != access.address;
    }
    if (is_dynamic) {
        uintptr_t start = (uintptr_t)context->dynamic_shared;
        if (!is_within(&access, start, start + run->launch->shared_bytes)) {
            gpu_check_find_undeclared(context, &access);
        }
        struct check_space *space = gpu_check_space_of(run->check, start, CPU_SHARED_BYTES_MAX);
        if (space != NULL) {
            shared_access(context, &access, space);
        }
        return;
    }
    uint32_t wanted = gpu_check_access_wanted(flags);
    for (uint32_t i = 0; i < run->use_count; i++) {
        struct check_use *use = &run->uses[i];
        uint64_t offset = access.address - use->address;
        if (offset < use->bytes && bytes <= use->bytes - offset && (wanted & ~use->access) == 0) {
            if (use->space != NULL) {
                use_access(context, &access, use);
            } else {
                variable_access(context, &access, use);
            }
            return;
        }
        /* What is declared out may be read once it is written. */
        if (offset < use->bytes && bytes <= use->bytes - offset && use->access == WIRE_USE_WRITE &&
            use->space != NULL) {
            bool is_elsewhere = false;
            for (uint32_t k = i + 1; k < run->use_count; k++) {
                const struct check_use *later = &run->uses[k];
                is_elsewhere = is_elsewhere ||
                               ((later->access & WIRE_USE_READ) != 0 &&
                                is_within(&access, later->address, later->address + later->bytes));
            }
            if (!is_elsewhere) {
                use_access(context, &access, use);
                return;
            }
        }
    }
    other_access(context, &access);
}

void gpu_check_misplaced(struct cpu_context *context, const void *pointer, unsigned alignment,
                         const char *type, enum cpu_use use) {
    struct check_run *run = gpu_check_run_of(context);
    uintptr_t address = (uintptr_t)pointer;
    bool is_own = (address ^ (uintptr_t)context) < CPU_REGION_BYTES &&
                  !gpu_cpu_region_is_shared(run->region, address);
    if (!is_own) {
        gpu_check_find_misplaced(context, address, alignment, type, use);
    }
}

void gpu_check_fence(struct cpu_context *context, unsigned is_wide) {
    struct check_run *run = gpu_check_run_of(context);
    gpu_check_order_fence(run->order, run->region->threads,
                          run->launch->block[0] * run->launch->block[1] * run->launch->block[2],
                          context->current->linear, is_wide != 0);
}

/* ---- the heap ---- */

static void heap_free(struct check *check, void *address) {
    for (size_t i = 0; i < check->heap_count; i++) {
        if (check->heap[i].address == (uintptr_t)address) {
            check->heap[i] = check->heap[--check->heap_count];
            free(address);
            return;
        }
    }
}

void *gpu_check_heap(struct cpu_context *context, void *address, unsigned long bytes) {
    struct check *check = gpu_check_run_of(context)->check;
    if (address != NULL) {
        heap_free(check, address);
        return NULL;
    }
    if (!gpu_check_grow(&check->heap, check->heap_count, &check->heap_capacity,
                        sizeof *check->heap)) {
        return NULL;
    }
    void *made = malloc(bytes != 0 ? bytes : 1);
    if (made != NULL) {
        check->heap[check->heap_count++] = (struct check_heap){(uintptr_t)made, bytes};
    }
    return made;
}
