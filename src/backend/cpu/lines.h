/* Which line of the source an instruction is of, in modules for check mode.
 *
 * Their code has tables of DWARF beside it, as `-g1` makes them: for each address a file and a
 * line, and which calls were inlined there and from which lines. They are in the file that the code
 * was loaded from, which nobody looks at until something is found. elfutils' libdw reads them,
 * which is loaded at run time; without it no line is known. Lines of the shim's and of the table
 * behind the source are no lines of the user's. */
#ifndef GPU_CPU_LINES_H
#define GPU_CPU_LINES_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cpu/module.h"

#define CPU_LINE_FILE_BYTES 256u

struct cpu_line {
    /* As messages of the compiler have it, but without the folder that the compiler ran in; cut at
     * its begin. */
    char file[CPU_LINE_FILE_BYTES];
    uint32_t line; /* 0: not known */
};

/* Loads libdw, or $GPULUA_LIBDW: when a checked device opens, as what is found is looked up in the
 * middle of a kernel. Any thread; again it does nothing. */
void gpu_cpu_lines_open(void);

/* Of the instruction before the one at `address`, as after a call: `inner` is its own line or,
 * where that is none of the user's, the nearest from which it was inlined; `outer` is the farthest.
 * Reads the tables once. False: the address is none of the module's code, or there are no tables,
 * or there is no libdw. Not on the stack of a kernel's thread: libdw takes 150 KiB and more. */
bool gpu_cpu_lines_find(struct cpu_module *module, uintptr_t address, struct cpu_line *inner,
                        struct cpu_line *outer);
/* Gives back what was read of the module, of which there may be nothing. */
void gpu_cpu_lines_close(struct cpu_module *module);

#endif
