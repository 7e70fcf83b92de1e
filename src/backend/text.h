/* A growing string. */
#ifndef GPU_TEXT_H
#define GPU_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* {0} is an empty one. After a failed allocation everything more is dropped and `failed` stays. */
struct text {
    char *bytes; /* owned; NUL-terminated, or NULL while empty */
    size_t length, capacity;
    bool failed;
};

void gpu_text_add(struct text *text, const char *bytes, size_t length);
void gpu_text_format(struct text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The string, "" while empty. Borrowed. */
const char *gpu_text_get(const struct text *text);
/* Hands the string over (malloc'ed); NULL when an allocation failed. The text is empty again. */
char *gpu_text_take(struct text *text);
void gpu_text_finish(struct text *text);

#endif
