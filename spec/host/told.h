/* What a host is told of a sandbox. */
#ifndef SPEC_HOST_TOLD_H
#define SPEC_HOST_TOLD_H

#include <stdio.h>
#include <string.h>

#include "gpulua.h"

struct told {
    int error_count;
    gpulua_status code;
    char message[2048], lines[4096];
};

static inline void note_error(void *user, const gpulua_error *error) {
    struct told *told = user;
    told->error_count++;
    told->code = error->code;
    snprintf(told->message, sizeof told->message, "%s", error->message);
}

static inline void note_line(void *user, const char *line) {
    struct told *told = user;
    size_t used = strlen(told->lines);
    snprintf(told->lines + used, sizeof told->lines - used, "%.1000s\n", line);
}

#endif
