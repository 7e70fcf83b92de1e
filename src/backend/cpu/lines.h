/* Which line of the source an instruction is of, in modules for check mode.
 *
 * Their code has tables of DWARF 4 beside it, as `-gdwarf-4 -g1` makes them: .debug_line says for
 * each address a file and a line, .debug_info which calls were inlined there and from which lines.
 * They are in the file that the code was loaded from, which nobody looks at until something is
 * found. Lines of the shim's and of the table behind the source are no lines of the user's. */
#ifndef GPU_CPU_LINES_H
#define GPU_CPU_LINES_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cpu/module.h"

#define CPU_LINE_FILE_BYTES 256u

struct cpu_line {
    char file[CPU_LINE_FILE_BYTES]; /* as messages of the compiler have it; cut at its begin */
    uint32_t line;                  /* 0: not known */
};

/* Of the instruction before the one at `address`, as after a call: `inner` is its own line or,
 * where that is none of the user's, the nearest from which it was inlined; `outer` is the farthest.
 * False: the address is none of the module's code, or there are no tables. */
bool gpu_cpu_lines_find(const struct cpu_module *module, uintptr_t address, struct cpu_line *inner,
                        struct cpu_line *outer);

#endif
