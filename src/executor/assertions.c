/* Assertions of kernels, from what the driver prints (see assertions.h). */
#include "executor/assertions.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As on the CPU device: the place matters more than a long expression. */
#define CONDITION_BYTES 160
#define FILE_BYTES 120
#define FUNCTION_BYTES 100

void gpu_executor_assertions_init(struct executor_assertions *assertions) {
    memset(assertions, 0, sizeof *assertions);
    pthread_mutex_init(&assertions->lock, NULL);
}

/* A part of a line: %.*s%s of printf, the last with "..." where it was cut. */
struct part {
    const char *at;
    size_t bytes;
};
#define SHOWN(part, limit)                                                                         \
    (int)((part).bytes <= (limit) ? (part).bytes : (limit)), (part).at,                            \
        (part).bytes <= (limit) ? "" : "..."

/* "FILE:LINE" before ": FUNCTION", which may be missing. Sources that lie in a script have a colon
 * and a line of their own in FILE. */
static bool split_place(struct part head, struct part *file, unsigned long *line,
                        struct part *function) {
    for (size_t i = 0; i < head.bytes; i++) {
        size_t end = i + 1;
        while (end < head.bytes && isdigit((unsigned char)head.at[end])) {
            end++;
        }
        bool is_last = end == head.bytes;
        if (head.at[i] == ':' && end > i + 1 &&
            (is_last || (end + 1 < head.bytes && memcmp(head.at + end, ": ", 2) == 0))) {
            *file = (struct part){head.at, i};
            *line = strtoul(head.at + i + 1, NULL, 10);
            end += is_last ? 0 : 2;
            *function = (struct part){head.at + end, head.bytes - end};
            return true;
        }
    }
    return false;
}

/* FILE:LINE: FUNCTION: block: [X,Y,Z], thread: [X,Y,Z] Assertion `CONDITION` failed. */
static bool reword(const char *text, char *out, size_t out_bytes) {
    unsigned block[3], thread[3];
    int used = 0;
    const char *at = strstr(text, " block: [");
    if (at == NULL ||
        sscanf(at, " block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%n", &block[0], &block[1],
               &block[2], &thread[0], &thread[1], &thread[2], &used) < 6 ||
        used == 0) {
        return false;
    }
    struct part head = {text, (size_t)(at - text)}, file, function;
    struct part condition = {at + used, strlen(at + used)};
    static const char tail[] = " failed.";
    const size_t tail_bytes = sizeof tail - 1;
    if (condition.bytes > tail_bytes &&
        memcmp(condition.at + condition.bytes - tail_bytes, tail, tail_bytes) == 0) {
        condition.bytes -= tail_bytes + 1; /* and the quote */
    }
    unsigned long line;
    head.bytes -= head.bytes > 0 && text[head.bytes - 1] == ':';
    if (!split_place(head, &file, &line, &function)) {
        return false;
    }
    snprintf(out, out_bytes,
             "assertion `%.*s%s' failed at %.*s%s:%lu, block (%u,%u,%u), thread (%u,%u,%u)%s%.*s%s",
             SHOWN(condition, CONDITION_BYTES), SHOWN(file, FILE_BYTES), line, block[0], block[1],
             block[2], thread[0], thread[1], thread[2], function.bytes > 0 ? ", in " : "",
             SHOWN(function, FUNCTION_BYTES));
    return true;
}

/* Locked. One whole line. */
static void take_line(struct executor_assertions *assertions) {
    if (assertions->line_bytes > 0 && assertions->line[assertions->line_bytes - 1] == '\r') {
        assertions->line_bytes--;
    }
    assertions->line[assertions->line_bytes] = '\0';
    assertions->line_bytes = 0;
    if (strstr(assertions->line, " thread: [") == NULL ||
        strstr(assertions->line, "Assertion `") == NULL) {
        return;
    }
    assertions->count++;
    if (assertions->count == 1 &&
        !reword(assertions->line, assertions->first, sizeof assertions->first)) {
        snprintf(assertions->first, sizeof assertions->first, "%.400s",
                 assertions->line); /* as it came */
    }
}

void gpu_executor_assertions_hear(struct executor_assertions *assertions, const char *bytes,
                                  size_t count) {
    pthread_mutex_lock(&assertions->lock);
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] == '\n') {
            take_line(assertions);
        } else if (bytes[i] != '\0' && assertions->line_bytes < sizeof assertions->line - 1) {
            assertions->line[assertions->line_bytes++] = bytes[i];
        }
    }
    pthread_mutex_unlock(&assertions->lock);
}

bool gpu_executor_assertions_say(struct executor_assertions *assertions, char *text,
                                 size_t text_bytes) {
    pthread_mutex_lock(&assertions->lock);
    bool has_failed = assertions->count > 0;
    if (assertions->count > 1) {
        snprintf(text, text_bytes, "%s, and %llu more", assertions->first,
                 (unsigned long long)(assertions->count - 1));
    } else if (has_failed) {
        snprintf(text, text_bytes, "%s", assertions->first);
    }
    pthread_mutex_unlock(&assertions->lock);
    return has_failed;
}
