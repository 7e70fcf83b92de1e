/* Text as libedit has it: wide characters; and where it is on the screen. */
#ifndef GPU_INTERPRETER_EDIT_TEXT_H
#define GPU_INTERPRETER_EDIT_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <wchar.h>

/* A byte that is no character of the locale's is this and the byte, so that none is lost. These are
 * halves of surrogates, which are no characters; libedit shows them as \U+DCxx. */
#define EDIT_BYTE 0xDC00

/* In the prompt, around what moves no cursor. */
#define EDIT_MARK L'\1'

/* One character from the front of the bytes: how many it has; 0: it goes on behind them. */
size_t edit_decode_one(const char *bytes, size_t byte_count, wchar_t *c);
/* Allocated, with a 0 at its end; NULL: no memory. */
wchar_t *edit_decode(const char *bytes, size_t byte_count);
/* The same back, with the number of bytes. */
char *edit_encode(const wchar_t *text, size_t count, size_t *byte_count);
/* A prompt of one line: with marks around escape sequences, without other control characters. */
wchar_t *edit_decode_prompt(const char *bytes);

struct edit_place {
    int row, column, columns;
};
/* Where the cursor is behind the text, as libedit lays it out. */
void edit_advance(struct edit_place *place, const wchar_t *text, const wchar_t *end);
/* The same behind a prompt with its marks. */
void edit_advance_prompt(struct edit_place *place, const wchar_t *prompt);

#endif
