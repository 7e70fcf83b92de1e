/* What a launch has done to variables of its module: nothing declares that, so it is told when it
 * is over, by what the cells say. */
#include "backend/cpu/check/run.h"
#include "backend/cpu/module.h"

struct telling {
    const struct backend_sink *sink;
    uint32_t stream;
    uint64_t seq;
    struct backend_touched touched;
    struct wire_touch touches[WIRE_TOUCHES_MAX];
};

static void tell(struct telling *telling) {
    if (telling->touched.count > 0) {
        telling->sink->touched(telling->sink->user, telling->stream, telling->seq,
                               &telling->touched);
        telling->touched.count = 0;
    }
}

static void add(struct telling *telling, uint64_t begin, uint64_t end, uint32_t access) {
    struct wire_touch *last =
        telling->touched.count > 0 ? &telling->touches[telling->touched.count - 1] : NULL;
    if (last != NULL && last->end == begin && last->access == access) {
        last->end = end;
        return;
    }
    if (telling->touched.count == WIRE_TOUCHES_MAX) {
        tell(telling);
    }
    telling->touches[telling->touched.count++] =
        (struct wire_touch){.begin = begin, .end = end, .access = access};
}

/* Of the newest accesses of the launch, which began with stamp `first`. */
static uint32_t access_of(const struct check_cell *cell, uint64_t first) {
    bool is_written = gpu_check_tag_stamp(cell->write) >= first;
    bool is_read = gpu_check_tag_stamp(cell->read) >= first;
    bool is_plain = (is_written && gpu_check_tag_kind(cell->write) != CHECK_KIND_ATOMIC) ||
                    (is_read && gpu_check_tag_kind(cell->read) != CHECK_KIND_ATOMIC);
    uint32_t access = (is_written ? WIRE_USE_WRITE : 0u) | (is_read ? WIRE_USE_READ : 0u);
    return access != 0 && !is_plain ? access | WIRE_USE_ATOMIC : access;
}

/* The cells of a range of addresses. */
static void look(struct telling *telling, const struct check_space *space, uintptr_t low,
                 uintptr_t high, uint64_t first) {
    for (uintptr_t at = low; at < high;) {
        uint64_t offset = at - space->base;
        bool is_fine = space->is_fine[offset / CHECK_PAGE_BYTES] != 0;
        const struct check_cell *cell =
            is_fine ? &space->fine[offset] : &space->coarse[offset / CHECK_CELL_BYTES];
        uint64_t bytes = is_fine ? 1 : CHECK_CELL_BYTES - offset % CHECK_CELL_BYTES;
        uintptr_t end = high - at < bytes ? high : at + bytes;
        uint32_t access = access_of(cell, first);
        if (access != 0) {
            add(telling, at - telling->touched.address, end - telling->touched.address, access);
        }
        at = end;
    }
}

void gpu_check_tell_touched(struct check_run *run, uint32_t stream, uint64_t seq) {
    const struct check_module *used = &run->module;
    const struct cpu_module *module = run->launch->kernel->module;
    if (used->used_high == 0 || module == NULL) {
        return;
    }
    const struct check_space *space =
        gpu_check_space_of(run->check, used->written_low, used->written_high - used->written_low);
    struct telling telling = {.sink = run->check->sink, .stream = stream, .seq = seq};
    telling.touched.module = (const struct backend_module *)module;
    telling.touched.touches = telling.touches;
    for (uint32_t i = 0; space != NULL && i < module->table->global_count; i++) {
        const struct cpu_global_table *global = &module->table->globals[i];
        uintptr_t begin = (uintptr_t)global->address, end = begin + global->bytes;
        uintptr_t low = begin > used->used_low ? begin : used->used_low;
        uintptr_t high = end < used->used_high ? end : used->used_high;
        telling.touched.name = global->name;
        telling.touched.address = begin;
        if (begin >= used->written_low && end <= used->written_high) {
            look(&telling, space, low, high, run->order->launch_first);
        }
        tell(&telling);
    }
}
