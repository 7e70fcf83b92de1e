/* Filling, copying and freeing of errors. */
#include "runtime/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where to cut a text so that at most `bytes` of it stay and no UTF-8 sequence is split. */
static size_t cut_length(const char *text, size_t bytes) {
    size_t length = bytes;
    while (length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80) {
        length--;
    }
    return length;
}

static const char ellipsis[] = "...";

bool gpu_label_copy(char *to, size_t room, const char *label) {
    size_t length = label ? strlen(label) : 0;
    bool is_cut = length >= room;
    if (is_cut) {
        length = cut_length(label, room - sizeof ellipsis);
        memcpy(to + length, ellipsis, sizeof ellipsis);
    } else {
        to[length] = '\0';
    }
    if (length > 0) {
        memcpy(to, label, length);
    }
    return is_cut;
}

gpulua_status gpu_error_set(struct gpu_error *error, gpulua_status code, const char *format, ...) {
    if (error == NULL) {
        return code;
    }
    /* Formatted aside: the arguments may point into the error that is being replaced. */
    char message[sizeof error->message];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (length < 0) {
        message[0] = '\0';
    } else if ((size_t)length >= sizeof message) {
        size_t kept = cut_length(message, sizeof message - sizeof ellipsis);
        memcpy(message + kept, ellipsis, sizeof ellipsis);
    }
    memset(error, 0, sizeof *error);
    error->code = code;
    memcpy(error->message, message, strlen(message) + 1);
    return code;
}

void gpu_error_copy(struct gpu_error *to, const struct gpu_error *from) {
    if (to == from) {
        return;
    }
    *to = *from;
    to->log = NULL;
    to->suspects = NULL;
    to->suspect_count = 0;
    to->places = NULL;
    to->place_count = 0;
    if (from->log != NULL) {
        to->log = strdup(from->log);
    }
    gpu_error_copy_suspects(to, from);
    gpu_error_copy_places(to, from);
}

void gpu_error_copy_places(struct gpu_error *to, const struct gpu_error *from) {
    if (from->place_count > 0) {
        to->places = calloc(from->place_count, sizeof *to->places);
        if (to->places != NULL) {
            memcpy(to->places, from->places, from->place_count * sizeof *to->places);
            to->place_count = from->place_count;
        }
    }
}

void gpu_error_copy_suspects(struct gpu_error *to, const struct gpu_error *from) {
    if (from->suspect_count > 0 && !to->suspects) {
        to->suspects = calloc(from->suspect_count, sizeof *to->suspects);
        if (to->suspects != NULL) {
            memcpy(to->suspects, from->suspects, from->suspect_count * sizeof *to->suspects);
            to->suspect_count = from->suspect_count;
        }
    }
}

void gpu_error_finish(struct gpu_error *error) {
    free(error->log);
    free(error->suspects);
    free(error->places);
    error->log = NULL;
    error->suspects = NULL;
    error->suspect_count = 0;
    error->places = NULL;
    error->place_count = 0;
}

const char *gpu_error_hint(gpulua_status code) {
    switch (code) {
    case GPULUA_OK:
        return "";
#define X(number, name, text, meaning, hint)                                                       \
    case GPULUA_##name:                                                                            \
        return hint;
        GPULUA_STATUS_TABLE(X)
#undef X
    }
    return "";
}
