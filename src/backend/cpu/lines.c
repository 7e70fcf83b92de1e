/* Lines of instructions (see lines.h). All that is read may be cut off or wrong anywhere: a cursor
 * that has come to its end gives zeros, and then nothing is known. */
#include "backend/cpu/lines.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "backend/cpu/compile.h"
#include "backend/cpu/messages.h"

#define DWARF_VERSION 4u
#define INLINED_MAX 64u /* calls in each other */

/* ---- reading ---- */

struct cursor {
    const unsigned char *at, *end;
    bool has_failed;
};

static const unsigned char *take(struct cursor *cursor, uint64_t bytes) {
    if (bytes > (uint64_t)(cursor->end - cursor->at)) {
        cursor->has_failed = true;
        cursor->at = cursor->end;
        return NULL;
    }
    const unsigned char *taken = cursor->at;
    cursor->at += bytes;
    return taken;
}

/* Of 1, 2, 4 or 8 bytes. */
static uint64_t take_number(struct cursor *cursor, uint32_t bytes) {
    const unsigned char *taken = take(cursor, bytes);
    uint64_t value = 0;
    if (taken != NULL) {
        memcpy(&value, taken, bytes); /* the machine's own order, the low bytes first */
    }
    return value;
}

static uint64_t take_leb(struct cursor *cursor, bool is_signed) {
    uint64_t value = 0, byte;
    uint32_t shift = 0;
    do {
        byte = take_number(cursor, 1);
        value |= shift < 64 ? (byte & 127) << shift : 0;
        shift += 7;
    } while ((byte & 128) != 0);
    if (is_signed && (byte & 64) != 0 && shift < 64) {
        value |= UINT64_MAX << shift;
    }
    return value;
}

static uint64_t take_unsigned(struct cursor *cursor) {
    return take_leb(cursor, false);
}

/* "" at the end. */
static const char *take_string(struct cursor *cursor) {
    const unsigned char *end = memchr(cursor->at, '\0', (size_t)(cursor->end - cursor->at));
    if (end == NULL) {
        cursor->has_failed = true;
        cursor->at = cursor->end;
        return "";
    }
    return (const char *)take(cursor, (uint64_t)(end - cursor->at) + 1);
}

static struct cursor cursor_at(struct cursor section, uint64_t offset) {
    (void)take(&section, offset);
    return section;
}

/* A unit of a section, the length in front of it taken. */
static struct cursor take_unit(struct cursor *section) {
    uint64_t bytes =
        take_number(section, 4); /* from 0xfffffff0 on: of 64 bits, which is not made */
    struct cursor unit = *section;
    if (take(section, bytes) != NULL) {
        unit.end = section->at;
    } else {
        unit.at = unit.end;
    }
    return unit;
}

/* ---- sections ---- */

struct tables {
    const unsigned char *bytes;
    size_t byte_count;
    struct cursor info, abbrev, line, ranges;
};

static void section_find(struct tables *tables, const char *name, struct cursor found) {
    struct {
        const char *name;
        struct cursor *cursor;
    } const wanted[] = {{".debug_info", &tables->info},
                        {".debug_abbrev", &tables->abbrev},
                        {".debug_line", &tables->line},
                        {".debug_ranges", &tables->ranges}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (strcmp(name, wanted[i].name) == 0) {
            *wanted[i].cursor = found;
        }
    }
}

static void sections_find(struct tables *tables) {
    struct cursor file = {tables->bytes, tables->bytes + tables->byte_count, false};
    struct cursor none = {file.end, file.end, false};
    tables->info = tables->abbrev = tables->line = tables->ranges = none;
    ElfW(Ehdr) head;
    if (tables->byte_count < sizeof head) {
        return;
    }
    memcpy(&head, tables->bytes, sizeof head);
    struct cursor list = cursor_at(file, head.e_shoff);
    ElfW(Shdr) names, section;
    const unsigned char *at = take(&list, (uint64_t)head.e_shnum * sizeof section);
    if (at == NULL || head.e_shentsize != sizeof section || head.e_shstrndx >= head.e_shnum) {
        return;
    }
    memcpy(&names, at + head.e_shstrndx * sizeof names, sizeof names);
    for (uint32_t i = 0; i < head.e_shnum; i++) {
        memcpy(&section, at + i * sizeof section, sizeof section);
        struct cursor name = cursor_at(file, names.sh_offset);
        name = cursor_at(name, section.sh_name);
        struct cursor found = cursor_at(file, section.sh_offset);
        if (section.sh_type == SHT_PROGBITS && section.sh_size <= (size_t)(found.end - found.at)) {
            found.end = found.at + section.sh_size;
            section_find(tables, take_string(&name), found);
        }
    }
}

/* ---- lines ---- */

enum { LINE_COPY = 1, LINE_ADVANCE, LINE_LINE, LINE_FILE, LINE_CONST_ADVANCE = 8, LINE_FIXED };
enum { LINE_END_SEQUENCE = 1, LINE_SET_ADDRESS };

struct line_unit {
    struct cursor folders, files, program;
    uint32_t instruction_bytes, line_range, opcode_base;
    int32_t line_base;
    const unsigned char *operand_counts;
};

static bool line_unit_open(struct cursor section, uint64_t offset, struct line_unit *unit) {
    section = cursor_at(section, offset);
    struct cursor head = take_unit(&section);
    if (take_number(&head, 2) != DWARF_VERSION) {
        return false;
    }
    uint64_t head_bytes = take_number(&head, 4);
    unit->program = cursor_at(head, head_bytes);
    unit->instruction_bytes = (uint32_t)take_number(&head, 1);
    (void)take(&head, 2); /* operations of an instruction, is_stmt */
    unit->line_base = (int8_t)take_number(&head, 1);
    unit->line_range = (uint32_t)take_number(&head, 1);
    unit->opcode_base = (uint32_t)take_number(&head, 1);
    unit->operand_counts = take(&head, unit->opcode_base - 1u);
    unit->folders = head;
    while (take_string(&head)[0] != '\0') {}
    unit->files = head;
    return !head.has_failed && unit->line_range != 0 && unit->opcode_base > LINE_FIXED;
}

struct row {
    uint64_t address, file;
    uint32_t line;
};

/* Ends a row where the next begins. True: the address is in it. */
static bool row_ends(struct row *last, bool *has_last, const struct row *next, uint64_t address) {
    if (*has_last && last->address <= address && address < next->address) {
        return true;
    }
    *last = *next;
    *has_last = true;
    return false;
}

static bool line_find(const struct line_unit *unit, uint64_t address, struct row *found) {
    struct cursor program = unit->program;
    struct row row = {.file = 1, .line = 1};
    bool has_last = false;
    while (program.at < program.end) {
        uint32_t opcode = (uint32_t)take_number(&program, 1);
        if (opcode >= unit->opcode_base) {
            uint32_t step = opcode - unit->opcode_base;
            row.address += (uint64_t)(step / unit->line_range) * unit->instruction_bytes;
            row.line += (uint32_t)(unit->line_base + (int32_t)(step % unit->line_range));
            if (row_ends(found, &has_last, &row, address)) {
                return true;
            }
        } else if (opcode == 0) {
            uint64_t bytes = take_unsigned(&program);
            struct cursor operands = program;
            (void)take(&program, bytes);
            uint32_t extended = bytes > 0 ? (uint32_t)take_number(&operands, 1) : 0;
            if (extended == LINE_END_SEQUENCE) {
                if (row_ends(found, &has_last, &row, address)) {
                    return true;
                }
                row = (struct row){.file = 1, .line = 1};
                has_last = false;
            } else if (extended == LINE_SET_ADDRESS) {
                row.address = take_number(&operands, sizeof(uintptr_t));
            }
        } else if (opcode == LINE_COPY) {
            if (row_ends(found, &has_last, &row, address)) {
                return true;
            }
        } else if (opcode == LINE_ADVANCE) {
            row.address += take_unsigned(&program) * unit->instruction_bytes;
        } else if (opcode == LINE_LINE) {
            row.line += (uint32_t)take_leb(&program, true);
        } else if (opcode == LINE_FILE) {
            row.file = take_unsigned(&program);
        } else if (opcode == LINE_CONST_ADVANCE) {
            row.address +=
                (uint64_t)((255u - unit->opcode_base) / unit->line_range) * unit->instruction_bytes;
        } else if (opcode == LINE_FIXED) {
            row.address += take_number(&program, 2);
        } else {
            for (uint32_t i = unit->operand_counts[opcode - 1]; i > 0; i--) {
                (void)take_unsigned(&program);
            }
        }
    }
    return false;
}

/* Is it a file of the user's? Not the shim's, the table's, or one of the compiler's ("<stdin>"). */
static bool is_users(const char *name) {
    char digest[17], folder[64];
    gpu_cpu_shim_digest(digest);
    snprintf(folder, sizeof folder, "/" GPU_CACHE_FOLDER_PREFIX "%s/", digest);
    return name[0] != '\0' && name[0] != '<' && strcmp(name, CPU_TABLE_FILE) != 0 &&
           strstr(name, folder) == NULL;
}

/* The line of a file by its number; false: it is none of the user's. */
static bool line_name(const struct line_unit *unit, uint64_t file, uint32_t line,
                      struct cpu_line *found) {
    struct cursor files = unit->files, folders = unit->folders;
    const char *name = "", *folder = "";
    uint64_t folder_number = 0;
    for (uint64_t i = 0; i < file && !files.has_failed; i++) {
        name = take_string(&files);
        if (name[0] == '\0') {
            return false;
        }
        folder_number = take_unsigned(&files);
        (void)take_unsigned(&files);
        (void)take_unsigned(&files);
    }
    for (uint64_t i = 0; name[0] != '/' && i < folder_number && !folders.has_failed; i++) {
        folder = take_string(&folders);
    }
    char path[CPU_PATH_BYTES];
    snprintf(path, sizeof path, "%s%s%s", folder, folder[0] != '\0' ? "/" : "", name);
    if (line == 0 || files.has_failed || !is_users(path)) {
        return false;
    }
    size_t length = strlen(path), room = sizeof found->file - 1;
    bool is_cut = length > room;
    memcpy(found->file, is_cut ? path + length - room : path, (is_cut ? room : length) + 1);
    memcpy(found->file, "...", is_cut ? 3 : 0);
    found->line = line;
    return true;
}

/* ---- what was inlined ---- */

enum {
    TAG_INLINED = 0x1d,
    AT_STMT_LIST = 0x10,
    AT_LOW = 0x11,
    AT_HIGH = 0x12,
    AT_RANGES = 0x55,
    AT_CALL_FILE = 0x58,
    AT_CALL_LINE = 0x59,
    FORM_ADDRESS = 0x01,
    FORM_INDIRECT = 0x16
};

struct entry {
    uint64_t tag;
    uint64_t low, high, ranges, call_file, call_line, lines;
    bool has_low, high_is_address, has_ranges, has_lines;
};

/* Takes an attribute of any form; its value where that is a number. */
static uint64_t take_form(struct cursor *info, uint64_t form) {
    while (form == FORM_INDIRECT && !info->has_failed) {
        form = take_unsigned(info);
    }
    switch (form) {
    case FORM_ADDRESS:
        return take_number(info, sizeof(uintptr_t));
    case 0x0b: /* data1, flag, ref1 */
    case 0x0c:
    case 0x11:
        return take_number(info, 1);
    case 0x05: /* data2, ref2 */
    case 0x12:
        return take_number(info, 2);
    case 0x06: /* data4, strp, ref_addr, ref4, sec_offset */
    case 0x0e:
    case 0x10:
    case 0x13:
    case 0x17:
        return take_number(info, 4);
    case 0x07: /* data8, ref8, ref_sig8 */
    case 0x14:
    case 0x20:
        return take_number(info, 8);
    case 0x0d: /* sdata */
        return take_leb(info, true);
    case 0x0f: /* udata, ref_udata */
    case 0x15:
        return take_unsigned(info);
    case 0x08: /* string */
        (void)take_string(info);
        return 0;
    case 0x0a: /* block1, block2, block4, block, exprloc */
        (void)take(info, take_number(info, 1));
        return 0;
    case 0x03:
        (void)take(info, take_number(info, 2));
        return 0;
    case 0x04:
        (void)take(info, take_number(info, 4));
        return 0;
    case 0x09:
    case 0x18:
        (void)take(info, take_unsigned(info));
        return 0;
    case 0x19: /* flag_present */
        return 1;
    default:
        info->has_failed = true;
        info->at = info->end;
        return 0;
    }
}

static void take_entry(struct cursor *info, struct cursor abbrev, struct entry *entry) {
    memset(entry, 0, sizeof *entry);
    entry->tag = take_unsigned(&abbrev);
    (void)take_number(&abbrev, 1); /* has children, which follow */
    for (;;) {
        uint64_t name = take_unsigned(&abbrev), form = take_unsigned(&abbrev);
        if ((name | form) == 0 || info->has_failed) {
            return;
        }
        uint64_t value = take_form(info, form);
        switch (name) {
        case AT_LOW:
            entry->low = value;
            entry->has_low = true;
            break;
        case AT_HIGH:
            entry->high = value;
            entry->high_is_address = form == FORM_ADDRESS;
            break;
        case AT_RANGES:
            entry->ranges = value;
            entry->has_ranges = true;
            break;
        case AT_CALL_FILE:
            entry->call_file = value;
            break;
        case AT_CALL_LINE:
            entry->call_line = value;
            break;
        case AT_STMT_LIST:
            entry->lines = value;
            entry->has_lines = true;
            break;
        default:
            break;
        }
    }
}

static bool is_inside(const struct tables *tables, const struct entry *entry, uint64_t base,
                      uint64_t address) {
    if (!entry->has_ranges) {
        uint64_t high = entry->high_is_address ? entry->high : entry->low + entry->high;
        return entry->has_low && entry->low <= address && address < high;
    }
    struct cursor ranges = cursor_at(tables->ranges, entry->ranges);
    for (;;) {
        uint64_t low = take_number(&ranges, sizeof(uintptr_t));
        uint64_t high = take_number(&ranges, sizeof(uintptr_t));
        if ((low | high) == 0) {
            return false;
        }
        if (low == UINTPTR_MAX) {
            base = high;
        } else if (base + low <= address && address < base + high) {
            return true;
        }
    }
}

/* Where each kind of entry is described, by its number; they are counted from 1. */
struct kinds {
    struct cursor *list; /* owned */
    uint64_t count, capacity;
};

static bool kinds_find(struct cursor abbrev, struct kinds *kinds) {
    for (;;) {
        uint64_t number = take_unsigned(&abbrev);
        if (number == 0 || abbrev.has_failed) {
            return number == 0 && !abbrev.has_failed;
        }
        if (number != kinds->count + 1) {
            return false; /* as nobody numbers them */
        }
        if (kinds->count == kinds->capacity) {
            uint64_t capacity = kinds->capacity * 2 + 64;
            struct cursor *grown = realloc(kinds->list, capacity * sizeof *grown);
            if (grown == NULL) {
                return false;
            }
            kinds->list = grown;
            kinds->capacity = capacity;
        }
        kinds->list[kinds->count++] = abbrev;
        (void)take_unsigned(&abbrev);
        (void)take_number(&abbrev, 1);
        while ((take_unsigned(&abbrev) | take_unsigned(&abbrev)) != 0) {}
    }
}

static bool take_known(struct cursor *unit, const struct kinds *kinds, struct entry *entry) {
    uint64_t number = 0;
    while (number == 0 && unit->at < unit->end) { /* 0 ends a list of children */
        number = take_unsigned(unit);
    }
    if (number == 0 || number > kinds->count) {
        return false;
    }
    take_entry(unit, kinds->list[number - 1], entry);
    return !unit->has_failed;
}

struct search {
    uint64_t address;
    struct cpu_line *inner, *outer;
};

/* Callers stand in front of what was inlined in them. */
static void lines_of(const struct tables *tables, struct cursor unit, const struct kinds *kinds,
                     const struct line_unit *lines, uint64_t base, const struct row *row,
                     const struct search *search) {
    struct row calls[INLINED_MAX];
    uint32_t count = 0;
    struct entry entry;
    while (take_known(&unit, kinds, &entry)) {
        if (entry.tag == TAG_INLINED && is_inside(tables, &entry, base, search->address)) {
            calls[count < INLINED_MAX ? count : INLINED_MAX - 1] =
                (struct row){search->address, entry.call_file, (uint32_t)entry.call_line};
            count = count < INLINED_MAX ? count + 1 : count;
        }
    }
    bool is_found = line_name(lines, row->file, row->line, search->inner);
    for (uint32_t i = count; i > 0 && !is_found; i--) {
        is_found = line_name(lines, calls[i - 1].file, calls[i - 1].line, search->inner);
    }
    *search->outer = *search->inner;
    bool is_outer = false;
    for (uint32_t i = 0; i < count && !is_outer; i++) {
        is_outer = line_name(lines, calls[i].file, calls[i].line, search->outer);
    }
}

/* True: the address is one of the unit's. */
static bool unit_look(const struct tables *tables, struct cursor unit,
                      const struct search *search) {
    if (take_number(&unit, 2) != DWARF_VERSION) {
        return false; /* of what a system's linker adds */
    }
    struct cursor abbrev = cursor_at(tables->abbrev, take_number(&unit, 4));
    struct kinds kinds = {0};
    struct entry root;
    struct line_unit lines;
    struct row row = {0};
    bool is_known = take_number(&unit, 1) == sizeof(uintptr_t) && kinds_find(abbrev, &kinds) &&
                    take_known(&unit, &kinds, &root) && root.has_lines &&
                    line_unit_open(tables->line, root.lines, &lines) &&
                    line_find(&lines, search->address, &row);
    if (is_known) {
        lines_of(tables, unit, &kinds, &lines, root.low, &row, search);
    }
    free(kinds.list);
    return is_known;
}

bool gpu_cpu_lines_find(const struct cpu_module *module, uintptr_t address, struct cpu_line *inner,
                        struct cpu_line *outer) {
    struct tables tables = {0};
    struct stat facts;
    struct link_map *map;
    bool is_found = false;
    inner->line = outer->line = 0;
    if (dlinfo(module->handle, RTLD_DI_LINKMAP, &map) != 0 || fstat(module->file, &facts) != 0) {
        return false;
    }
    tables.byte_count = (size_t)facts.st_size;
    void *bytes = mmap(NULL, tables.byte_count, PROT_READ, MAP_PRIVATE, module->file, 0);
    if (bytes == MAP_FAILED) {
        return false;
    }
    tables.bytes = bytes;
    sections_find(&tables);
    const struct search search = {address - 1 - map->l_addr, inner, outer};
    for (struct cursor info = tables.info; !is_found && info.at < info.end;) {
        is_found = unit_look(&tables, take_unit(&info), &search);
    }
    munmap(bytes, tables.byte_count);
    return is_found;
}
