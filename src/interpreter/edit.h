/* Lines that are edited on a terminal, with a history and completion, while tasks go on. */
#ifndef GPU_INTERPRETER_EDIT_H
#define GPU_INTERPRETER_EDIT_H

#include <stdbool.h>
#include <stddef.h>

#include <lua.h>

enum edit_result {
    EDIT_LINE,
    EDIT_DROPPED, /* Ctrl-C */
    EDIT_ENDED
};

/* False: standard input or output is no terminal, one that cannot move its cursor, or libedit is
 * missing. Asked again it says the same. */
bool edit_open(lua_State *L);
/* Shows the prompt and waits for a line; pushes it, without its newline, if it is EDIT_LINE. Tasks
 * run meanwhile; what they print is put in front of the prompt. */
enum edit_result edit_read(lua_State *L, const char *prompt);
/* The history has this from now on, unless it is blank or what was remembered last. */
void edit_remember(const char *text, size_t byte_count);

#endif
