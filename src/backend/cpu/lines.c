/* Lines of instructions (see lines.h). */
#include "backend/cpu/lines.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/compile.h"
#include "backend/cpu/messages.h"
#include "backend/dynamic.h"

/* ---- libdw ----
 *
 * Names, numbers and the two structures that callers have are those of elfutils/libdw.h and
 * dwarf.h; all of it has been there since 0.171 (2018). */

typedef struct Dwarf Dwarf;
typedef struct Dwarf_CU Dwarf_CU;
typedef struct Dwarf_Files_s Dwarf_Files;
typedef struct Dwarf_Line_s Dwarf_Line;

typedef struct {
    unsigned code, form;
    unsigned char *valp;
    Dwarf_CU *cu;
} Dwarf_Attribute;

typedef struct {
    void *addr;
    Dwarf_CU *cu;
    void *abbrev;
    long padding;
} Dwarf_Die;

enum { DWARF_C_READ = 0 };
enum { DW_TAG_inlined_subroutine = 0x1d };
enum { DW_AT_comp_dir = 0x1b, DW_AT_call_file = 0x58, DW_AT_call_line = 0x59 };

/* clang-format off */
#define LIBDW_TABLE(X)                                                                             \
    X(Dwarf *, dwarf_begin, (int file, int command))                                               \
    X(int, dwarf_end, (Dwarf *dwarf))                                                              \
    X(int, dwarf_get_units, (Dwarf *dwarf, Dwarf_CU *unit, Dwarf_CU **next, uint16_t *version,     \
                             uint8_t *type, Dwarf_Die *die, Dwarf_Die *sub))                       \
    X(int, dwarf_haspc, (Dwarf_Die *die, uint64_t address))                                        \
    X(Dwarf_Line *, dwarf_getsrc_die, (Dwarf_Die *unit, uint64_t address))                         \
    X(int, dwarf_lineno, (Dwarf_Line *line, int *number))                                          \
    X(const char *, dwarf_linesrc, (Dwarf_Line *line, uint64_t *time, uint64_t *bytes))            \
    X(int, dwarf_getsrcfiles, (Dwarf_Die *unit, Dwarf_Files **files, size_t *count))               \
    X(const char *, dwarf_filesrc, (Dwarf_Files *files, size_t index, uint64_t *time,              \
                                    uint64_t *bytes))                                              \
    X(int, dwarf_child, (Dwarf_Die *die, Dwarf_Die *child))                                        \
    X(int, dwarf_siblingof, (Dwarf_Die *die, Dwarf_Die *sibling))                                  \
    X(int, dwarf_tag, (Dwarf_Die *die))                                                            \
    X(Dwarf_Attribute *, dwarf_attr, (Dwarf_Die *die, unsigned name, Dwarf_Attribute *attribute))  \
    X(int, dwarf_formudata, (Dwarf_Attribute *attribute, uint64_t *value))                         \
    X(const char *, dwarf_formstring, (Dwarf_Attribute *attribute))
/* clang-format on */

static struct {
    bool is_there;
#define X(type, name, arguments) type(*name) arguments;
    LIBDW_TABLE(X)
#undef X
} libdw;

static void libdw_load(void) {
    static const char *const names[] = {"libdw.so.1", NULL};
    const char *asked[] = {getenv("GPULUA_LIBDW"), NULL};
    bool is_asked = asked[0] != NULL && asked[0][0] != '\0';
    struct backend_error unused;
    void *library, *symbol;
    if (gpu_backend_library_open("libdw", is_asked ? asked : names, NULL, &library, &unused) !=
        GPULUA_OK) {
        return;
    }
#define X(type, name, arguments)                                                                   \
    symbol = dlsym(library, #name);                                                                \
    if (symbol == NULL) {                                                                          \
        return;                                                                                    \
    }                                                                                              \
    memcpy(&libdw.name, &symbol, sizeof symbol);
    LIBDW_TABLE(X)
#undef X
    libdw.is_there = true;
}

static char shim_folder[64]; /* "/NAME/" */

static void lines_open(void) {
    char digest[17];
    gpu_cpu_shim_digest(digest);
    snprintf(shim_folder, sizeof shim_folder, "/" GPU_CACHE_FOLDER_PREFIX "%s/", digest);
    libdw_load();
}

void gpu_cpu_lines_open(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, lines_open);
}

/* ---- names ---- */

/* Is it a file of the user's? Not the shim's, the table's, or one of the compiler's ("<stdin>"). */
static bool is_users(const char *name) {
    return name[0] != '\0' && name[0] != '<' && strcmp(name, CPU_TABLE_FILE) != 0 &&
           strstr(name, shim_folder) == NULL;
}

/* libdw puts the folder that the compiler ran in before names that have none. */
static const char *name_in(const char *folder, const char *path) {
    size_t length = folder != NULL ? strlen(folder) : 0;
    bool is_inside = length > 0 && strncmp(path, folder, length) == 0 && path[length] == '/' &&
                     strchr(path + length + 1, '/') == NULL;
    return is_inside ? path + length + 1 : path;
}

/* False: it is none of the user's. */
static bool line_name(const char *folder, const char *path, uint64_t line, struct cpu_line *found) {
    const char *name = path != NULL ? name_in(folder, path) : "";
    if (line == 0 || line > UINT32_MAX || !is_users(name)) {
        return false;
    }
    size_t length = strlen(name), room = sizeof found->file - 1;
    bool is_cut = length > room;
    memcpy(found->file, is_cut ? name + length - room : name, (is_cut ? room : length) + 1);
    memcpy(found->file, "...", is_cut ? 3 : 0);
    found->line = (uint32_t)line;
    return true;
}

/* ---- lines ---- */

static uint64_t number_of(Dwarf_Die *die, unsigned name) {
    Dwarf_Attribute attribute;
    uint64_t value = 0;
    return libdw.dwarf_formudata(libdw.dwarf_attr(die, name, &attribute), &value) == 0 ? value : 0;
}

/* Goes on to the entry inside of this one that has the address. False: there is none. */
static bool die_enter(Dwarf_Die *die, uint64_t address) {
    int rc = libdw.dwarf_child(die, die);
    while (rc == 0 && libdw.dwarf_haspc(die, address) != 1) {
        rc = libdw.dwarf_siblingof(die, die);
    }
    return rc == 0;
}

/* Lines from which what is inlined there was called: the nearest and the farthest. */
static void calls_look(Dwarf_Die *unit, const char *folder, uint64_t address,
                       struct cpu_line *nearest, struct cpu_line *farthest) {
    Dwarf_Files *files;
    if (libdw.dwarf_getsrcfiles(unit, &files, NULL) != 0) {
        return;
    }
    for (Dwarf_Die die = *unit; die_enter(&die, address);) {
        uint64_t file = number_of(&die, DW_AT_call_file), line = number_of(&die, DW_AT_call_line);
        if (libdw.dwarf_tag(&die) == DW_TAG_inlined_subroutine &&
            line_name(folder, libdw.dwarf_filesrc(files, file, NULL, NULL), line, nearest) &&
            farthest->line == 0) {
            *farthest = *nearest;
        }
    }
}

static bool unit_look(Dwarf_Die *unit, uint64_t address, struct cpu_line *inner,
                      struct cpu_line *outer) {
    Dwarf_Attribute attribute;
    Dwarf_Line *row = libdw.dwarf_getsrc_die(unit, address);
    const char *folder = libdw.dwarf_formstring(libdw.dwarf_attr(unit, DW_AT_comp_dir, &attribute));
    int line = 0;
    if (row == NULL || libdw.dwarf_lineno(row, &line) != 0) {
        return false;
    }
    calls_look(unit, folder, address, inner, outer);
    (void)line_name(folder, libdw.dwarf_linesrc(row, NULL, NULL), (uint64_t)line, inner);
    *outer = outer->line != 0 ? *outer : *inner;
    return true;
}

bool gpu_cpu_lines_find(struct cpu_module *module, uintptr_t address, struct cpu_line *inner,
                        struct cpu_line *outer) {
    struct link_map *map;
    inner->line = outer->line = 0;
    if (module->lines == NULL && libdw.is_there) {
        module->lines = libdw.dwarf_begin(module->file, DWARF_C_READ);
    }
    if (module->lines == NULL || dlinfo(module->handle, RTLD_DI_LINKMAP, &map) != 0) {
        return false;
    }
    uint64_t at = address - 1 - map->l_addr;
    bool is_found = false;
    Dwarf_CU *unit = NULL;
    Dwarf_Die die;
    while (!is_found &&
           libdw.dwarf_get_units(module->lines, unit, &unit, NULL, NULL, &die, NULL) == 0) {
        is_found = libdw.dwarf_haspc(&die, at) == 1 && unit_look(&die, at, inner, outer);
    }
    return is_found;
}

void gpu_cpu_lines_close(struct cpu_module *module) {
    if (module->lines != NULL) {
        libdw.dwarf_end(module->lines);
        module->lines = NULL;
    }
}
