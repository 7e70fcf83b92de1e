/* A growing string. */
#include "backend/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(struct text *text, size_t more) {
    if (text->failed || more >= SIZE_MAX / 2 - text->length) {
        text->failed = true;
        return false;
    }
    size_t wanted = text->length + more + 1;
    if (wanted > text->capacity) {
        size_t capacity = text->capacity * 2 > wanted ? text->capacity * 2 : wanted + 256;
        char *grown = realloc(text->bytes, capacity);
        if (grown == NULL) {
            text->failed = true;
            return false;
        }
        text->bytes = grown;
        text->capacity = capacity;
    }
    return true;
}

void gpu_text_add(struct text *text, const char *bytes, size_t length) {
    if (reserve(text, length)) {
        if (length > 0) {
            memcpy(text->bytes + text->length, bytes, length);
        }
        text->length += length;
        text->bytes[text->length] = '\0';
    }
}

void gpu_text_format(struct text *text, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0) {
        text->failed = true;
    } else if (reserve(text, (size_t)length)) {
        vsnprintf(text->bytes + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
}

const char *gpu_text_get(const struct text *text) {
    return text->bytes != NULL ? text->bytes : "";
}

char *gpu_text_take(struct text *text) {
    if (!text->failed && text->bytes == NULL) {
        gpu_text_add(text, "", 0);
    }
    char *bytes = text->bytes;
    if (text->failed) {
        free(bytes);
        bytes = NULL;
    }
    *text = (struct text){0};
    return bytes;
}

void gpu_text_finish(struct text *text) {
    free(text->bytes);
    *text = (struct text){0};
}
