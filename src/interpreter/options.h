/* The command line of the interpreter: Lua's options, and ours. */
#ifndef GPU_INTERPRETER_OPTIONS_H
#define GPU_INTERPRETER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "gpulua.h"

struct options {
    int script; /* index in argv; argc: none */
    bool is_interactive, shows_version, ignores_environment, warns, has_chunks;
    bool shows_help;
    const char *shows_info; /* "text", "json" or NULL */
    const char *device;
    gpulua_isolation isolation;
    bool is_checked, is_hashed;
    uint64_t check_seed;
    const char *seeds;    /* a number, "all", or NULL */
    const char *flight;   /* the file that the newest operations go into; NULL: none */
    const char *trace;    /* the file that a trace goes into; NULL: none */
    const char *timeline; /* the same for a page; NULL: none */
    bool summarizes;      /* tables of where the time went are shown at the end */
    const char *kernel;   /* the file whose kernels are shown; NULL: none */
    bool shows_code;      /* and what they were compiled to */
    const char *replay;   /* the file whose operations are done again; NULL: none */
};

/* Is the next argument the value of this one? */
bool options_wants_value(const char *option);

/* False: something was wrong and has been said. */
bool options_read(int argc, char **argv, struct options *options);
/* All options and what they do. The manual page and the completions of shells are made of this
 * text (tools/options.lua). */
void options_show(FILE *file);

#endif
