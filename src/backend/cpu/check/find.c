/* Findings of check mode: which one it is, and how it is said (see run.h). */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/check/run.h"
#include "backend/cpu/lines.h"
#include "backend/cpu/run.h"

#define NAME_BYTES 128u
#define LINE_BYTES 112u /* "FILE:LINE", of which a long name loses its begin */
#define LINES_BYTES (2u * LINE_BYTES + 32u)
#define FRAMES_MAX 256u

/* ---- names ---- */

static const char *verb_of(uint32_t flags) {
    bool reads = (flags & CPU_ACCESS_READ) != 0, writes = (flags & CPU_ACCESS_WRITE) != 0;
    return reads && writes ? "read and wrote" : writes ? "wrote" : "read";
}

static const char *bytes_text(uint64_t bytes, char *text, size_t text_bytes) {
    snprintf(text, text_bytes, "%" PRIu64 " byte%s", bytes, bytes == 1 ? "" : "s");
    return text;
}

/* As the launch names it; else as the kernel's parameter, which the table lists with commas. */
static void use_name(const struct check_run *run, const struct backend_use *use, char *text,
                     size_t text_bytes) {
    bool is_place = use->name[0] >= '0' && use->name[0] <= '9'; /* of a structure without a name */
    bool is_named = use->name[0] != '\0' && !is_place;
    const char *name = is_named ? use->name : run->launch->kernel->table->param_names;
    const char *part = is_place ? use->name + strcspn(use->name, ".") : "";
    uint32_t param = is_named ? 0 : use->param;
    for (uint32_t i = 0; i < param && name != NULL; i++) {
        name = strchr(name, ',');
        name = name != NULL ? name + 1 : NULL;
    }
    int length = name != NULL ? (int)strcspn(name, ",") : 0;
    if (length > 0) {
        snprintf(text, text_bytes, "argument %u ('%.*s%s')", use->param + 1u,
                 length < 48 ? length : 48, name, part);
    } else {
        snprintf(text, text_bytes, "argument %u%s", use->param + 1u, part);
    }
}

/* "buffer 'src'", or of one without a label the argument that it is, or its number. */
static void block_name(const struct check_run *run, const struct check_block *block,
                       const struct check_use *use, char *text, size_t text_bytes) {
    if (block != NULL && block->label[0] != '\0') {
        snprintf(text, text_bytes, "buffer '%s'", block->label);
    } else if (use != NULL) {
        use_name(run, use->from, text, text_bytes);
    } else if (block != NULL) {
        snprintf(text, text_bytes, "buffer %" PRIu64 " (%" PRIu64 " bytes)", block->number,
                 block->bytes);
    } else {
        snprintf(text, text_bytes, "memory");
    }
}

void gpu_check_use_name(const struct check_run *run, const struct check_use *use, char *text,
                        size_t text_bytes) {
    block_name(run, gpu_check_block_of(run->check, use->address), use, text, text_bytes);
}

static const char *declared_of(const struct check_use *use) {
    return use->access == WIRE_USE_READ ? "in" : use->access == WIRE_USE_WRITE ? "out" : "inout";
}

static void place_text(const struct check_run *run, uint64_t block, uint32_t thread, char *text,
                       size_t text_bytes) {
    const uint32_t *g = run->launch->grid, *b = run->launch->block;
    snprintf(text, text_bytes, "block (%" PRIu64 ",%" PRIu64 ",%" PRIu64 "), thread (%u,%u,%u)",
             block % g[0], block / g[0] % g[1], block / g[0] / g[1], thread % b[0],
             thread / b[0] % b[1], thread / b[0] / b[1]);
}

static uint64_t block_at(const struct check_run *run, uint64_t stamp) {
    uint64_t low = 0, high = run->block_count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (run->blocks[middle].stamp <= stamp) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low > 0 ? run->blocks[low - 1].number : 0;
}

/* ---- lines ---- */

static void line_text(const struct cpu_line *line, char *text, size_t text_bytes) {
    char number[16];
    size_t length = strlen(line->file);
    size_t room = text_bytes - 1 - (size_t)snprintf(number, sizeof number, ":%" PRIu32, line->line);
    bool is_cut = length > room;
    snprintf(text, text_bytes, "%s%s%s", is_cut ? "..." : "",
             is_cut ? line->file + length - (room - 3) : line->file, number);
}

/* "LEAD at FILE:LINE, called at FILE:LINE", the second of the kernel if the first is not; "" where
 * nothing is known. */
static void lines_text(const struct cpu_line *inner, const struct cpu_line *outer, const char *lead,
                       char *text, size_t text_bytes) {
    char first[LINE_BYTES], second[LINE_BYTES];
    text[0] = '\0';
    if (inner->line != 0) {
        line_text(inner, first, sizeof first);
        line_text(outer, second, sizeof second);
        bool is_same = inner->line == outer->line && strcmp(inner->file, outer->file) == 0;
        snprintf(text, text_bytes, "%s at %s%s%s", lead, first, is_same ? "" : ", called at ",
                 is_same ? "" : second);
    }
}

struct look {
    struct cpu_module *module;
    uintptr_t address;
    struct cpu_line inner, outer;
    bool is_found;
};

static void look(void *data) {
    struct look *at = data;
    at->is_found = gpu_cpu_lines_find(at->module, at->address, &at->inner, &at->outer);
}

GPU_CPU_ON_FIBRE static bool lines_look(struct cpu_context *context, struct look *at,
                                        uintptr_t address) {
    const struct check_run *run = gpu_check_run_of(context);
    at->module = run->launch->kernel->module;
    at->address = address;
    gpu_cpu_fibre_call(run->region, look, at);
    return at->is_found;
}

/* Of an access that is over: where it is in the code is all that is left. */
GPU_CPU_ON_FIBRE static void site_text(struct cpu_context *context, uint32_t site, const char *lead,
                                       char *text, size_t text_bytes) {
    const struct check_run *run = gpu_check_run_of(context);
    struct look at = {.is_found = false};
    if (site != 0) {
        (void)lines_look(context, &at, run->code + (uintptr_t)(intptr_t)(int32_t)site);
    }
    lines_text(&at.inner, &at.outer, lead, text, text_bytes);
}

/* Of the access that is about to be made: the kernel's frames say by which calls. What called the
 * kernel has none, so the last pointer may lead anywhere: up the stack it is looked at. */
GPU_CPU_ON_FIBRE static void frames_text(struct cpu_context *context, const char *lead, char *text,
                                         size_t text_bytes) {
    const struct check_run *run = gpu_check_run_of(context);
    struct cpu_line inner = {.line = 0}, outer = {.line = 0};
    struct look at;
    uintptr_t frame = (uintptr_t)context->frame, below = (uintptr_t)text;
    uintptr_t end = (uintptr_t)gpu_cpu_fibre_stack_end(run->region, text);
    uintptr_t address = (uintptr_t)context->site;
    for (uint32_t i = 0; i < FRAMES_MAX; i++) {
        if (!lines_look(context, &at, address)) {
            break;
        }
        inner = inner.line == 0 ? at.inner : inner;
        outer = at.outer.line != 0 ? at.outer : outer;
        if (frame <= below || frame > end - 2 * sizeof(void *) || frame % sizeof(void *) != 0) {
            break;
        }
        void *const *next = (void *const *)frame;
        below = frame;
        frame = (uintptr_t)next[0];
        address = (uintptr_t)next[1];
    }
    lines_text(&inner, &outer, lead, text, text_bytes);
}

/* `access`: the one that is wrong; NULL: it is none. */
__attribute__((format(printf, 4, 5))) GPU_CPU_ON_FIBRE static void
finding(struct cpu_context *context, const struct check_access *access, gpulua_status status,
        const char *format, ...) {
    struct check_run *run = gpu_check_run_of(context);
    char what[400], lines[LINES_BYTES] = "", place[96], text[sizeof run->launch->failure];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    place_text(run, run->blocks[run->block_count - 1].number, context->current->linear, place,
               sizeof place);
    if (access != NULL && context->site != NULL) {
        frames_text(context, ",", lines, sizeof lines);
    } else if (access != NULL) {
        site_text(context, access->site, ",", lines, sizeof lines);
    }
    /* The place matters more than long names. */
    const char *kernel = run->launch->kernel->table->name;
    size_t used = sizeof "kernel '' , " + strnlen(kernel, 64) + strlen(lines) + strlen(place);
    size_t room = sizeof text > used ? sizeof text - used : 0;
    snprintf(text, sizeof text, "kernel '%.64s' %.*s%s, %s", kernel, (int)room, what, lines, place);
    gpu_cpu_launch_fail(context, status, text);
}

/* ---- what is not declared ---- */

struct nearest {
    const struct check_use *use; /* NULL: the launch declares nothing */
    uint64_t bytes;              /* to it */
    bool is_behind;              /* the access lies behind it */
};

static struct nearest nearest_find(const struct check_run *run, uintptr_t address, uint64_t bytes) {
    struct nearest nearest = {NULL, UINT64_MAX, false};
    for (uint32_t i = 0; i < run->use_count; i++) {
        const struct check_use *use = &run->uses[i];
        uint64_t end = use->address + use->bytes;
        bool is_behind = address + bytes > end;
        uint64_t gap = is_behind
                           ? (address > end ? address - end : 0)
                           : (use->address > address + bytes ? use->address - address - bytes : 0);
        if (gap < nearest.bytes || nearest.use == NULL) {
            nearest = (struct nearest){use, gap, is_behind};
        }
    }
    return nearest;
}

static void nearest_text(const struct check_run *run, const struct check_access *access, char *text,
                         size_t text_bytes) {
    struct nearest nearest = nearest_find(run, access->address, access->bytes);
    if (nearest.use == NULL) {
        snprintf(text, text_bytes, "the launch declares no buffer");
        return;
    }
    char param[NAME_BYTES], name[NAME_BYTES] = "", size[40];
    const struct check_block *block = gpu_check_block_of(run->check, nearest.use->address);
    use_name(run, nearest.use->from, param, sizeof param);
    if (block != NULL && block->label[0] != '\0') {
        snprintf(name, sizeof name, ", buffer '%s'", block->label);
    }
    if (nearest.bytes == 0) {
        snprintf(text, text_bytes, "across the %s of the nearest range declared, %s%s",
                 nearest.is_behind ? "end" : "begin", param, name);
        bool is_next = access->address == nearest.use->address + nearest.use->bytes ||
                       access->address + access->bytes == nearest.use->address;
        if (is_next) {
            snprintf(text, text_bytes, "just %s the nearest range declared, %s%s",
                     nearest.is_behind ? "behind" : "before", param, name);
        }
        return;
    }
    snprintf(text, text_bytes, "%s %s the nearest range declared, %s%s",
             bytes_text(nearest.bytes, size, sizeof size), nearest.is_behind ? "behind" : "before",
             param, name);
}

/* A use that has the bytes: one that allows what is done with them, if there is any. */
static const struct check_use *use_of(const struct check_run *run,
                                      const struct check_access *access) {
    const struct check_use *found = NULL;
    uint32_t wanted = gpu_check_access_wanted(access->flags);
    for (uint32_t i = 0; i < run->use_count; i++) {
        const struct check_use *use = &run->uses[i];
        uint64_t offset = access->address - use->address;
        if (offset < use->bytes && access->bytes <= use->bytes - offset) {
            if ((wanted & ~use->access) == 0) {
                return use;
            }
            found = found != NULL ? found : use;
        }
    }
    return found;
}

/* Beside the module's __shared__ variables, no farther off than they are large. */
static bool is_beside_shared(const struct check_module *module, uintptr_t address) {
    uintptr_t bytes = module->shared_high - module->shared_low;
    return bytes > 0 && address - (module->shared_low - bytes) < 3 * bytes;
}

GPU_CPU_ON_FIBRE void gpu_check_find_undeclared(struct cpu_context *context,
                                                const struct check_access *access) {
    struct check_run *run = gpu_check_run_of(context);
    const struct check_use *use = use_of(run, access);
    const struct check_block *block = gpu_check_block_of(run->check, access->address);
    const char *verb = verb_of(access->flags);
    char name[NAME_BYTES], near[2 * NAME_BYTES + 128], size[40];
    block_name(run, block, use, name, sizeof name);
    bytes_text(access->bytes, size, sizeof size);
    if (use != NULL) {
        uint64_t start = block != NULL ? block->address : use->address;
        finding(context, access, GPULUA_UNDECLARED_ACCESS, "%s %s, declared %s, at byte %" PRIu64,
                verb, name, declared_of(use), access->address - start);
    } else if (block != NULL && block->freed != 0 && block->freed <= run->free_count) {
        finding(context, access, GPULUA_USE_AFTER_FREE,
                "%s %s, allocation %" PRIu64 ", which was freed, at byte %" PRIu64 "%s%s%s", verb,
                name, block->number, access->address - block->address,
                block->where[0] != '\0' ? " (freed at " : "", block->where,
                block->where[0] != '\0' ? ")" : "");
    } else if (access->address - (uintptr_t)context->dynamic_shared < CPU_SHARED_BYTES_MAX) {
        finding(context, access, GPULUA_OUT_OF_BOUNDS,
                "%s %s at byte %" PRIuPTR " of its dynamic shared memory, which has %" PRIu32, verb,
                size, access->address - (uintptr_t)context->dynamic_shared,
                run->launch->shared_bytes);
    } else if (block == NULL && is_beside_shared(&run->module, access->address)) {
        finding(context, access, GPULUA_OUT_OF_BOUNDS,
                "%s %s at byte %" PRIdPTR
                " of its module's static shared memory, which has %" PRIuPTR,
                verb, size, (intptr_t)(access->address - run->module.shared_low),
                run->module.shared_high - run->module.shared_low);
    } else if (access->address < CHECK_PAGE_BYTES) {
        finding(context, access, GPULUA_OUT_OF_BOUNDS,
                "%s %s through a null pointer (address %" PRIuPTR
                "): an argument was nil, or the kernel made it",
                verb, size, access->address);
    } else {
        nearest_text(run, access, near, sizeof near);
        if (block != NULL) {
            finding(context, access, GPULUA_OUT_OF_BOUNDS,
                    "%s %s, which is not declared there, at byte %" PRIu64 ", %s", verb, name,
                    access->address - block->address, near);
        } else {
            finding(context, access, GPULUA_OUT_OF_BOUNDS, "%s %s outside of every buffer, %s",
                    verb, size, near);
        }
    }
}

GPU_CPU_ON_FIBRE void gpu_check_find_misaligned(struct cpu_context *context,
                                                const struct check_access *access) {
    struct check_run *run = gpu_check_run_of(context);
    const struct check_block *block = gpu_check_block_of(run->check, access->address);
    char name[NAME_BYTES];
    block_name(run, block, use_of(run, access), name, sizeof name);
    finding(context, access, GPULUA_INVALID_ARGUMENT,
            "%s %" PRIu64 " bytes at once of %s at byte %" PRIu64 ", which is no multiple of %u",
            verb_of(access->flags), access->bytes, name,
            block != NULL ? access->address - block->address : (uint64_t)access->address,
            access->bytes < 8 ? (unsigned)access->bytes : 8u);
}

GPU_CPU_ON_FIBRE void gpu_check_find_unwritten(struct cpu_context *context,
                                               const struct check_access *access,
                                               const struct check_use *use, uint64_t offset) {
    struct check_run *run = gpu_check_run_of(context);
    uintptr_t address = access->address + offset;
    const struct check_block *block = gpu_check_block_of(run->check, address);
    char name[NAME_BYTES];
    block_name(run, block, use, name, sizeof name);
    if (use == NULL) {
        uintptr_t start = (uintptr_t)context->dynamic_shared;
        bool is_dynamic = address - start < CPU_SHARED_BYTES_MAX;
        finding(context, access, GPULUA_INVALID_DATA,
                "read %s shared memory at byte %" PRIuPTR
                ", which its block has not written yet: is a barrier missing?",
                is_dynamic ? "dynamic" : "static",
                address - (is_dynamic ? start : run->module.shared_low));
        return;
    }
    uint64_t at = address - (block != NULL ? block->address : use->address);
    if (use->access == WIRE_USE_WRITE) {
        finding(context, access, GPULUA_INVALID_DATA,
                "read %s, declared out, before it wrote there, at byte %" PRIu64, name, at);
    } else {
        finding(context, access, GPULUA_INVALID_DATA,
                "read %s, never written there, at byte %" PRIu64, name, at);
    }
}

/* ---- races ---- */

GPU_CPU_ON_FIBRE void gpu_check_find_race(struct cpu_context *context,
                                          const struct check_access *access,
                                          const struct check_before *before) {
    struct check_run *run = gpu_check_run_of(context);
    uintptr_t address = before->address;
    const struct check_block *block = gpu_check_block_of(run->check, address);
    uint64_t stamp = gpu_check_tag_stamp(before->tag);
    bool is_same_block = stamp >= run->order->block_first;
    char name[NAME_BYTES], place[96], lines[LINES_BYTES];
    uint64_t at;
    if (block != NULL) {
        block_name(run, block, use_of(run, access), name, sizeof name);
        at = address - block->address;
    } else {
        uintptr_t start = (uintptr_t)context->dynamic_shared;
        bool is_dynamic = address - start < CPU_SHARED_BYTES_MAX;
        bool is_static = address >= run->module.shared_low && address < run->module.shared_high;
        snprintf(name, sizeof name, "%s",
                 is_dynamic  ? "dynamic shared memory"
                 : is_static ? "static shared memory"
                             : "a variable of its module");
        at = address - (is_dynamic  ? start
                        : is_static ? run->module.shared_low
                                    : run->module.written_low);
    }
    place_text(run, block_at(run, stamp), gpu_check_tag_thread(before->tag), place, sizeof place);
    site_text(context, before->site, "", lines, sizeof lines);
    finding(context, access, GPULUA_RACE_FOUND,
            "%s %s at byte %" PRIu64 ", in a race with %s, which %s it%s: %s",
            verb_of(access->flags), name, at, place, before->is_write ? "wrote" : "read", lines,
            is_same_block ? "no barrier is between" : "nothing orders the blocks of a launch");
}

GPU_CPU_ON_FIBRE void gpu_check_find_barrier(struct cpu_context *context, uint32_t site) {
    struct check_run *run = gpu_check_run_of(context);
    finding(context, NULL, GPULUA_RACE_FOUND,
            "has a divergent barrier: threads of its block wait at that of line %" PRIu32
            ", others at that of line %" PRIu32,
            run->barrier_site, site);
}
