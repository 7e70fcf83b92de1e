/* Files that tools/embed.lua puts into the library at build time. */
#ifndef GPULUA_EMBEDDED_H
#define GPULUA_EMBEDDED_H

#include <stddef.h>

struct gpu_embedded_file {
    const char *name;           /* without a folder; NULL in the row behind the last */
    const unsigned char *bytes; /* a NUL that is not counted behind them */
    size_t byte_count;
};

#endif
