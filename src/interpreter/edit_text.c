#include "interpreter/edit_text.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <wctype.h>

/* ---- bytes and characters ---- */

size_t edit_decode_one(const char *bytes, size_t byte_count, wchar_t *c) {
    mbstate_t state;
    memset(&state, 0, sizeof state);
    size_t length = mbrtowc(c, bytes, byte_count, &state);
    if (length == (size_t)-2) {
        return 0;
    }
    if (length == (size_t)-1) {
        *c = EDIT_BYTE + (unsigned char)bytes[0];
        return 1;
    }
    return length > 0 ? length : 1; /* (a zero) */
}

wchar_t *edit_decode(const char *bytes, size_t byte_count) {
    wchar_t *text = calloc(byte_count + 1, sizeof *text);
    size_t count = 0;
    for (size_t i = 0; text && i < byte_count;) {
        size_t length = edit_decode_one(bytes + i, byte_count - i, &text[count]);
        if (length == 0) {
            text[count] = EDIT_BYTE + (unsigned char)bytes[i]; /* cut at the end */
            length = 1;
        }
        i += length;
        count++;
    }
    return text;
}

char *edit_encode(const wchar_t *text, size_t count, size_t *byte_count) {
    char *bytes = malloc(count * MB_LEN_MAX + 1);
    size_t length = 0;
    mbstate_t state;
    memset(&state, 0, sizeof state);
    for (size_t i = 0; bytes && i < count; i++) {
        size_t added = 1;
        if (text[i] >= EDIT_BYTE && text[i] <= EDIT_BYTE + UCHAR_MAX) {
            bytes[length] = (char)(text[i] - EDIT_BYTE);
        } else if ((added = wcrtomb(bytes + length, text[i], &state)) == (size_t)-1) {
            memset(&state, 0, sizeof state);
            bytes[length] = '?';
            added = 1;
        }
        length += added;
    }
    if (bytes) {
        bytes[length] = '\0';
    }
    *byte_count = length;
    return bytes;
}

/* ---- prompts ---- */

/* How many characters the escape sequence at the front has. */
static size_t escape_length(const wchar_t *text) {
    size_t i = 1;
    if (text[1] == L'[') {
        for (i = 2; text[i] && (text[i] < L'@' || text[i] > L'~'); i++) {}
    } else if (text[1] == L']') { /* up to a bell, or ESC \ */
        for (i = 2; text[i] && text[i] != L'\a' && text[i] != L'\\'; i++) {}
    }
    return text[i] ? i + 1 : i;
}

wchar_t *edit_decode_prompt(const char *bytes) {
    wchar_t *text = edit_decode(bytes, strlen(bytes));
    size_t length = text ? wcslen(text) : 0, to = 0, escapes = 0;
    wchar_t *prompt = text ? calloc(3 * length + 4, sizeof *prompt) : NULL;
    wchar_t *held = text ? calloc(length + 1, sizeof *held) : NULL; /* escape sequences */
    for (size_t i = 0; prompt && held && i < length;) {
        if (text[i] == L'\033') {
            size_t count = escape_length(text + i);
            wmemcpy(held + escapes, text + i, count);
            escapes += count;
            i += count;
            continue;
        }
        wchar_t c = text[i] == L'\t' ? L' ' : text[i];
        i++;
        if (wcwidth(c) <= 0) {
            continue;
        }
        /* libedit sends a sequence together with the character behind it. */
        if (escapes > 0) {
            prompt[to++] = EDIT_MARK;
            wmemcpy(prompt + to, held, escapes);
            to += escapes;
            prompt[to++] = EDIT_MARK;
            escapes = 0;
        }
        prompt[to++] = c;
    }
    if (escapes > 0 && to > 0) { /* none is behind the last: in front of the last character */
        wchar_t last = prompt[--to];
        bool is_marked = to > 0 && prompt[to - 1] == EDIT_MARK;
        to -= is_marked;
        if (!is_marked) {
            prompt[to++] = EDIT_MARK;
        }
        wmemcpy(prompt + to, held, escapes);
        to += escapes;
        prompt[to++] = EDIT_MARK;
        prompt[to++] = last;
    }
    if (prompt) {
        prompt[to] = 0;
    }
    free(text);
    free(held);
    return prompt;
}

/* ---- places ---- */

static void put(struct edit_place *place, int width) {
    if (place->column + width > place->columns) {
        place->row++; /* a wide one is never split */
        place->column = 0;
    }
    place->column += width;
    if (place->column >= place->columns) {
        place->row++;
        place->column = 0;
    }
}

static void advance_one(struct edit_place *place, wchar_t c) {
    if (c == L'\n') {
        place->row++;
        place->column = 0;
    } else if (c == L'\t') {
        do {
            put(place, 1);
        } while (place->column % 8 != 0);
    } else {
        int count = iswprint((wint_t)c)               ? 0
                    : c < 0x80 && iswcntrl((wint_t)c) ? 2
                    : c > 0xffff                      ? 8
                                                      : 7;
        for (int i = 0; i < count; i++) {
            put(place, 1); /* ^X, \U+1234, \U+12345 */
        }
        if (count == 0) {
            put(place, wcwidth(c));
        }
    }
}

void edit_advance(struct edit_place *place, const wchar_t *text, const wchar_t *end) {
    for (; text < end; text++) {
        advance_one(place, *text);
    }
}

void edit_advance_prompt(struct edit_place *place, const wchar_t *prompt) {
    bool is_marked = false;
    for (; *prompt; prompt++) {
        if (*prompt == EDIT_MARK) {
            is_marked = !is_marked;
        } else if (!is_marked) {
            put(place, wcwidth(*prompt));
        }
    }
}
