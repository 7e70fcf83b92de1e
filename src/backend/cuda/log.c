/* The driver's log of errors, since 12.9: what it says of the call that has failed.
 *
 * A line is "[time][thread][source][severity] message". Some drivers name the call behind the
 * severity, "[cuMemAlloc]"; others end what they say of a call by a line "Returning 1 (NAME) from
 * cuMemAlloc". What is neither was logged since the log was read last, which is with each failure.
 */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/say.h"

#define LOG_BYTES 25600u /* what the driver keeps */
/* It is given more than it is told of: a call on another thread may be logged while it writes. */
#define LOG_SPARE_BYTES 25600u

struct line {
    long thread;
    bool is_error;
    const char *entry, *message; /* entry NULL: none is named */
    size_t entry_bytes, message_bytes;
};

/* "[TEXT]"; what is behind it, NULL: there is none. */
static const char *bracket(const char *at, const char *end, const char **text, size_t *bytes) {
    const char *close = at < end && *at == '[' ? memchr(at, ']', (size_t)(end - at)) : NULL;
    if (close == NULL) {
        return NULL;
    }
    *text = at + 1;
    *bytes = (size_t)(close - at - 1);
    return close + 1;
}

static bool parse(const char *at, const char *end, struct line *line) {
    const char *text = NULL, *next;
    size_t bytes = 0;
    *line = (struct line){.thread = -1};
    for (int field = 0; field < 4; field++) { /* time, thread, source, severity */
        at = bracket(at, end, &text, &bytes);
        if (at == NULL) {
            return false;
        }
        if (field == 1) {
            line->thread = strtol(text, NULL, 10);
        }
    }
    line->is_error = bytes > 0 && text[0] == 'E';
    next = bracket(at, end, &text, &bytes);
    if (next != NULL && bytes > 2 && memcmp(text, "cu", 2) == 0) {
        line->entry = text;
        line->entry_bytes = bytes;
        at = next;
    }
    while (at < end && *at == ' ') {
        at++;
    }
    line->message = at;
    line->message_bytes = (size_t)(end - at);
    return true;
}

/* Is `name` ("cuMemAlloc_v2") what `call` ("cuMemAlloc(&address, bytes)") calls? */
static bool is_call(const char *name, size_t name_bytes, const char *call) {
    size_t bytes = strcspn(call, "(");
    return bytes > 0 && name_bytes >= bytes && memcmp(name, call, bytes) == 0 &&
           (name_bytes == bytes || name[bytes] == '_');
}

static void append(char *text, size_t text_bytes, const char *more, size_t more_bytes) {
    size_t used = strlen(text);
    int wanted = snprintf(text + used, text_bytes - used, "%s%.*s", used > 0 ? "; " : "",
                          (int)more_bytes, more);
    if (wanted > 0 && (size_t)wanted >= text_bytes - used && text_bytes > 4) {
        memcpy(text + text_bytes - 4, "...", 4);
    }
    for (char *at = text + used; *at != '\0'; at++) {
        *at = iscntrl((unsigned char)*at) ? ' ' : *at;
    }
}

static const char *last_word(const struct line *line, size_t *bytes) {
    const char *end = line->message + line->message_bytes, *at = end;
    while (at > line->message && at[-1] != ' ') {
        at--;
    }
    *bytes = (size_t)(end - at);
    return at;
}

void gpu_cuda_log_pick(const char *log, long thread, const char *call, char *text,
                       size_t text_bytes) {
    static const char returning[] = "Returning ";
    char group[CUDA_LOG_TEXT_BYTES] = ""; /* of a call that is not named yet */
    text[0] = '\0';
    for (const char *at = log; *at != '\0';) {
        size_t bytes = strcspn(at, "\n"), name_bytes;
        struct line line;
        bool is_ours = parse(at, at + bytes, &line) && line.thread == thread && line.is_error;
        at += bytes + (at[bytes] == '\n');
        if (!is_ours) {
            continue;
        }
        if (line.message_bytes >= sizeof returning &&
            memcmp(line.message, returning, sizeof returning - 1) == 0) { /* that much is known */
            const char *name = last_word(&line, &name_bytes);
            if (is_call(name, name_bytes, call) && group[0] != '\0') {
                snprintf(text, text_bytes, "%s", group);
            }
            group[0] = '\0';
        } else if (line.entry == NULL) {
            append(group, sizeof group, line.message, line.message_bytes);
        } else if (is_call(line.entry, line.entry_bytes, call)) {
            append(text, text_bytes, line.message, line.message_bytes);
        }
    }
    if (text[0] == '\0') {
        snprintf(text, text_bytes, "%s", group);
    }
}

void gpu_cuda_log_begin(struct backend_device *device) {
    device->has_log = device->cu.cuLogsCurrent != NULL && device->cu.cuLogsDumpToMemory != NULL &&
                      device->cu.cuLogsCurrent(&device->log_at, 0) == CUDA_SUCCESS;
}

void gpu_cuda_log_skip(struct backend_device *device) {
    if (device->has_log) {
        (void)device->cu.cuLogsCurrent(&device->log_at, 0);
    }
}

void gpu_cuda_log_read(struct backend_device *device, const char *call, char *text,
                       size_t text_bytes) {
    size_t bytes = LOG_BYTES;
    text[0] = '\0';
    char *log = device->has_log ? malloc(LOG_BYTES + LOG_SPARE_BYTES) : NULL;
    if (log != NULL &&
        device->cu.cuLogsDumpToMemory(&device->log_at, log, &bytes, 0) == CUDA_SUCCESS &&
        bytes > 0) {
        log[bytes < LOG_BYTES ? bytes : LOG_BYTES - 1] = '\0';
        gpu_cuda_log_pick(log, (long)gettid(), call, text, text_bytes);
    }
    free(log);
}
