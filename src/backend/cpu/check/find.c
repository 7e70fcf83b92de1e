/* Findings of check mode: which one it is, and how it is said (see run.h). */
#include <assert.h>
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
/* Of an access that is so many elements off, and so far beside a range then, an index of 32 bits is
 * taken to be wrong. */
#define OVERFLOW_ELEMENTS (INT64_C(1) << 32)
#define OVERFLOW_NEAR_BYTES 4096u
#define WHAT_BYTES 400u
/* So far from no address an access is taken to be through a null pointer: of a structure's member;
 * of an element, where an argument is one. */
#define NULL_BYTES ((intptr_t)1 << 20)
#define NULL_ARGUMENT_BYTES ((intptr_t)1 << 32)

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

static void index_of(uint64_t number, const uint32_t *sizes, uint32_t *index) {
    index[0] = (uint32_t)(number % sizes[0]);
    index[1] = (uint32_t)(number / sizes[0] % sizes[1]);
    index[2] = (uint32_t)(number / sizes[0] / sizes[1]);
}

/* Without a line, for now. */
static struct wire_place place_of(const struct check_run *run, uint64_t block, uint32_t thread) {
    struct wire_place place = {.line = 0};
    index_of(block, run->launch->grid, place.block);
    index_of(thread, run->launch->block, place.thread);
    return place;
}

static struct wire_place place_now(struct cpu_context *context) {
    const struct check_run *run = gpu_check_run_of(context);
    return place_of(run, run->blocks[run->block_count - 1].number, context->current->linear);
}

static void place_text(const struct wire_place *place, char *text, size_t text_bytes) {
    const uint32_t *b = place->block, *t = place->thread;
    snprintf(text, text_bytes, "block (%u,%u,%u), thread (%u,%u,%u)", b[0], b[1], b[2], t[0], t[1],
             t[2]);
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

static_assert(CPU_LINE_FILE_BYTES == WIRE_PLACE_NAME_BYTES, "names have room in both");

static void line_text(const char *file, uint32_t line, char *text, size_t text_bytes) {
    char number[16];
    size_t length = strlen(file);
    size_t room = text_bytes - 1 - (size_t)snprintf(number, sizeof number, ":%" PRIu32, line);
    bool is_cut = length > room;
    snprintf(text, text_bytes, "%s%s%s", is_cut ? "..." : "",
             is_cut ? file + length - (room - 3) : file, number);
}

/* "LEAD at FILE:LINE, called at FILE:LINE", the second of the kernel if the first is not; "" where
 * nothing is known. */
static void lines_text(const struct wire_place *place, const char *lead, char *text,
                       size_t text_bytes) {
    char first[LINE_BYTES], second[LINE_BYTES];
    text[0] = '\0';
    if (place->line != 0) {
        line_text(place->source, place->line, first, sizeof first);
        line_text(place->caller, place->caller_line, second, sizeof second);
        bool has_caller = place->caller_line != 0;
        snprintf(text, text_bytes, "%s at %s%s%s", lead, first, has_caller ? ", called at " : "",
                 has_caller ? second : "");
    }
}

static void lines_note(struct wire_place *place, const struct cpu_line *inner,
                       const struct cpu_line *outer) {
    if (inner->line != 0) {
        snprintf(place->source, sizeof place->source, "%s", inner->file);
        place->line = inner->line;
    }
    if (outer->line != 0 && (outer->line != inner->line || strcmp(outer->file, inner->file) != 0)) {
        snprintf(place->caller, sizeof place->caller, "%s", outer->file);
        place->caller_line = outer->line;
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
GPU_CPU_ON_FIBRE static void site_look(struct cpu_context *context, uint32_t site,
                                       struct wire_place *place) {
    const struct check_run *run = gpu_check_run_of(context);
    struct look at = {.is_found = false};
    if (site != 0) {
        (void)lines_look(context, &at, run->code + (uintptr_t)(intptr_t)(int32_t)site);
        lines_note(place, &at.inner, &at.outer);
    }
}

/* Of what is about to be done, or waited for: the kernel's frames say by which calls. What called
 * the kernel has none, so the last pointer may lead anywhere: up the stack it is looked at.
 * `below`: an address in that stack. */
GPU_CPU_ON_FIBRE static void frames_look(struct cpu_context *context, const void *site,
                                         void *const *first, uintptr_t below,
                                         struct wire_place *place) {
    const struct check_run *run = gpu_check_run_of(context);
    struct cpu_line inner = {.line = 0}, outer = {.line = 0};
    struct look at;
    uintptr_t frame = (uintptr_t)first, address = (uintptr_t)site;
    uintptr_t end = (uintptr_t)gpu_cpu_fibre_stack_end(run->region, (const void *)below);
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
    lines_note(place, &inner, &outer);
}

/* Of the thread that runs. `site`: of an access that is over. */
GPU_CPU_ON_FIBRE static void here_look(struct cpu_context *context, uint32_t site,
                                       struct wire_place *place) {
    if (context->site != NULL) {
        frames_look(context, context->site, context->frame, (uintptr_t)place, place);
    } else {
        site_look(context, site, place);
    }
}

/* The launch is over; `lines` are those of places[0], as text. Does not return. */
GPU_CPU_ON_FIBRE static void fail(struct cpu_context *context, const struct wire_place *places,
                                  uint32_t place_count, gpulua_status status, const char *what,
                                  const char *lines) {
    struct check_run *run = gpu_check_run_of(context);
    char place[96], text[sizeof run->launch->failure];
    place_text(&places[0], place, sizeof place);
    /* The place matters more than long names. */
    const char *kernel = run->launch->kernel->table->name;
    size_t used = sizeof "kernel '' , " + strnlen(kernel, 64) + strlen(lines) + strlen(place);
    size_t room = sizeof text > used ? sizeof text - used : 0;
    snprintf(text, sizeof text, "kernel '%.64s' %.*s%s, %s", kernel, (int)room, what, lines, place);
    const struct backend_failure failure = {status, text, places, place_count};
    gpu_cpu_launch_fail(context, &failure);
}

/* The access is wrong. `other`: what it is in a race with, or NULL. */
__attribute__((format(printf, 5, 6))) GPU_CPU_ON_FIBRE static void
finding_beside(struct cpu_context *context, const struct check_access *access,
               const struct wire_place *other, gpulua_status status, const char *format, ...) {
    char what[WHAT_BYTES], lines[LINES_BYTES];
    struct wire_place places[WIRE_PLACES_MAX] = {place_now(context)};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    here_look(context, access->site, &places[0]);
    lines_text(&places[0], ",", lines, sizeof lines);
    if (other != NULL) {
        places[1] = *other;
    }
    fail(context, places, other != NULL ? 2 : 1, status, what, lines);
}
#define finding(context, access, ...) finding_beside(context, access, NULL, __VA_ARGS__)

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

/* Where a use would be if an index of 32 bits had another sign, or had not overflowed: the distance
 * in elements; 0: nowhere near any. */
static int64_t overflow_find(const struct check_run *run, const struct check_access *access,
                             struct nearest *nearest) {
    static const int64_t elements[] = {OVERFLOW_ELEMENTS, -OVERFLOW_ELEMENTS};
    for (size_t i = 0; i < sizeof elements / sizeof *elements; i++) {
        uint64_t moved = (uint64_t)elements[i] * access->bytes;
        *nearest = nearest_find(run, access->address - moved, access->bytes);
        if (nearest->use != NULL && nearest->bytes <= OVERFLOW_NEAR_BYTES) {
            return elements[i];
        }
    }
    return 0;
}

static void nearest_text(const struct check_run *run, const struct check_access *access, char *text,
                         size_t text_bytes) {
    struct nearest nearest = nearest_find(run, access->address, access->bytes);
    if (nearest.use == NULL) {
        snprintf(text, text_bytes, "the launch declares no buffer");
        return;
    }
    char param[NAME_BYTES], name[NAME_BYTES] = "", size[40];
    struct nearest meant;
    int64_t overflow = nearest.bytes > 0 ? overflow_find(run, access, &meant) : 0;
    nearest = overflow != 0 ? meant : nearest;
    const struct check_block *block = gpu_check_block_of(run->check, nearest.use->address);
    use_name(run, nearest.use->from, param, sizeof param);
    if (block != NULL && block->label[0] != '\0') {
        snprintf(name, sizeof name, ", buffer '%s'", block->label);
    }
    if (overflow != 0) {
        snprintf(text, text_bytes,
                 "as element %" PRId64 " of %s%s would be: has an index of 32 bits %s?",
                 (int64_t)(access->address - nearest.use->address) / (int64_t)access->bytes, param,
                 name, overflow > 0 ? "gone below 0 without a sign" : "overflowed");
        return;
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

/* ---- null pointers ---- */

/* Of types without a name of ours the spelling tells: "... [with T = pair*]". */
static bool is_pointer(const struct cpu_type_facts *facts) {
    size_t length = facts->spelling != NULL ? strlen(facts->spelling) : 0;
    return facts->kind == CPU_PARAM_IN || facts->kind == CPU_PARAM_INOUT ||
           (length >= 2 && strcmp(facts->spelling + length - 2, "*]") == 0);
}

/* The arguments that are null pointers, and what they are, as text; false: there is none. */
static bool null_arguments(const struct check_run *run, char *text, size_t text_bytes) {
    const struct cpu_kernel_table *kernel = run->launch->kernel->table;
    size_t offset = 0, used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < kernel->param_count; i++) {
        const struct cpu_type_facts *facts = &kernel->params[i];
        uintptr_t value = 1;
        offset = (offset + facts->alignment - 1) / facts->alignment * facts->alignment;
        if (is_pointer(facts)) {
            memcpy(&value, (const char *)run->launch->args + offset, sizeof value);
        }
        offset += facts->bytes;
        if (value == 0 && used < text_bytes) {
            char name[NAME_BYTES];
            const struct backend_use of = {.param = (uint16_t)i};
            use_name(run, &of, name, sizeof name);
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", used > 0 ? ", " : "",
                                     name);
        }
    }
    return used > 0;
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
    char name[NAME_BYTES], near[2 * NAME_BYTES + 224], size[40], nulls[NAME_BYTES];
    bool has_null = null_arguments(run, nulls, sizeof nulls);
    intptr_t from_null = (intptr_t)access->address;
    intptr_t null_bytes = has_null ? NULL_ARGUMENT_BYTES : NULL_BYTES;
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
    } else if (gpu_cpu_region_is_shared(run->region, access->address)) {
        char asked[40] = "none";
        if (run->launch->shared_bytes > 0) {
            bytes_text(run->launch->shared_bytes, asked, sizeof asked);
        }
        finding(context, access, GPULUA_OUT_OF_BOUNDS,
                "%s %s at byte %" PRIdPTR
                " of dynamic shared memory, of which the launch asked for %s (`shared`)",
                verb, size, (intptr_t)(access->address - (uintptr_t)context->dynamic_shared),
                asked);
    } else if (from_null < null_bytes && from_null >= -null_bytes) {
        finding(context, access, GPULUA_OUT_OF_BOUNDS,
                "%s %s through a null pointer (address %" PRIdPTR "): %s%s", verb, size, from_null,
                has_null ? nulls
                         : "no argument is nil, so the kernel made it, or a structure has it",
                has_null ? " is nil" : "");
    } else if (block == NULL && is_beside_shared(&run->module, access->address)) {
        finding(context, access, GPULUA_OUT_OF_BOUNDS,
                "%s %s at byte %" PRIdPTR
                " of its module's static shared memory, which has %" PRIuPTR,
                verb, size, (intptr_t)(access->address - run->module.shared_low),
                run->module.shared_high - run->module.shared_low);
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

GPU_CPU_ON_FIBRE void gpu_check_find_misplaced(struct cpu_context *context, uintptr_t address,
                                               unsigned alignment, const char *type,
                                               enum cpu_use use) {
    struct check_run *run = gpu_check_run_of(context);
    const struct check_access access = {.address = address, .bytes = 1};
    const struct check_block *block = gpu_check_block_of(run->check, address);
    char name[NAME_BYTES];
    block_name(run, block, use_of(run, &access), name, sizeof name);
    finding(context, &access, GPULUA_INVALID_ARGUMENT,
            "%s %s at byte %" PRIu64 " as %.64s, which is no multiple of %u",
            use == CPU_USE_LOAD    ? "read"
            : use == CPU_USE_STORE ? "wrote"
                                   : "used",
            name, block != NULL ? address - block->address : (uint64_t)address, type, alignment);
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
                ", which its block has not written yet: is a barrier missing, or is it never set?",
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
    struct wire_place other =
        place_of(run, block_at(run, stamp), gpu_check_tag_thread(before->tag));
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
    site_look(context, before->site, &other);
    place_text(&other, place, sizeof place);
    lines_text(&other, "", lines, sizeof lines);
    finding_beside(
        context, access, &other, GPULUA_RACE_FOUND,
        "%s %s at byte %" PRIu64 ", in a race with %s, which %s it%s: %s", verb_of(access->flags),
        name, at, place, before->is_write ? "wrote" : "read", lines,
        is_same_block ? "no barrier is between" : "nothing orders the blocks of a launch");
}

/* ---- barriers and warp operations ---- */

/* Of a thread that waits. */
GPU_CPU_ON_FIBRE static struct wire_place lane_look(struct cpu_context *context, uint32_t thread) {
    const struct check_run *run = gpu_check_run_of(context);
    const void *site = run->region->threads[thread].site;
    struct wire_place place = place_of(run, run->blocks[run->block_count - 1].number, thread);
    site_look(context, site != NULL ? (uint32_t)((uintptr_t)site - run->code) : 0, &place);
    return place;
}

GPU_CPU_ON_FIBRE void gpu_check_find_stuck(struct cpu_context *context, uint32_t waiting,
                                           uint32_t mask, uint32_t missing) {
    struct wire_place places[WIRE_PLACES_MAX] = {lane_look(context, waiting),
                                                 lane_look(context, missing)};
    char what[WHAT_BYTES], there[LINES_BYTES], lines[LINES_BYTES], place[96];
    lines_text(&places[0], ",", lines, sizeof lines);
    lines_text(&places[1], "", there, sizeof there);
    place_text(&places[1], place, sizeof place);
    snprintf(what, sizeof what,
             "is stuck in a warp operation for the lanes of mask 0x%08" PRIx32
             ": %s, which is one of them, waits elsewhere%.200s",
             mask, place, there);
    fail(context, places, 2, GPULUA_KERNEL_FAILED, what, lines);
}

GPU_CPU_ON_FIBRE void gpu_check_find_mask(struct cpu_context *context, uint32_t mask) {
    const struct check_access none = {.site = 0};
    finding(context, &none, GPULUA_INVALID_ARGUMENT,
            "is in a warp operation for the lanes of mask 0x%08" PRIx32
            ", of which it is none: its lane is %" PRIu32,
            mask, context->current->linear % CHECK_WARP_THREADS);
}

GPU_CPU_ON_FIBRE static void waiting_look(struct cpu_context *context,
                                          const struct check_barrier *at,
                                          struct wire_place *place) {
    if (at->site != NULL) {
        frames_look(context, at->site, at->frame, (uintptr_t)at->frame - 1, place);
    }
}

/* The compiler says where a barrier is; libdw, where it is there, also by which calls. */
static void barrier_note(struct wire_place *place, const struct check_barrier *barrier) {
    if (place->line == 0) {
        snprintf(place->source, sizeof place->source, "%s", barrier->file);
        place->line = barrier->line;
    }
}

GPU_CPU_ON_FIBRE void gpu_check_find_barrier(struct cpu_context *context,
                                             const struct check_barrier *here) {
    const struct check_run *run = gpu_check_run_of(context);
    const struct check_barrier *first = &run->barrier;
    struct wire_place places[WIRE_PLACES_MAX] = {
        place_now(context), place_of(run, run->blocks[run->block_count - 1].number, first->thread)};
    char what[WHAT_BYTES], there[LINES_BYTES], lines[LINES_BYTES], place[96];
    waiting_look(context, here, &places[0]);
    waiting_look(context, first, &places[1]);
    barrier_note(&places[0], here);
    barrier_note(&places[1], first);
    lines_text(&places[0], ",", lines, sizeof lines);
    lines_text(&places[1], "", there, sizeof there);
    place_text(&places[1], place, sizeof place);
    snprintf(what, sizeof what, "has a divergent barrier: %s waits at another one%s", place, there);
    fail(context, places, 2, GPULUA_RACE_FOUND, what, lines);
}
