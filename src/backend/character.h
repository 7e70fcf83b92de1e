/* What characters are to a compiler of C. */
#ifndef GPU_BACKEND_CHARACTER_H
#define GPU_BACKEND_CHARACTER_H

#include <stdbool.h>

static inline bool is_word_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' ||
           (unsigned char)c >= 0x80;
}

static inline bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static inline bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f' || c == '\n';
}

#endif
