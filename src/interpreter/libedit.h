/* libedit, loaded at run time when the prompt is first shown on a terminal: programs that show none
 * need neither the library nor its header. libedit and not readline: its licence is BSD's, and it
 * lets its caller do the waiting for keys. The names and numbers are those of histedit.h, which
 * have been the same since 2009 (3.0); the wide functions, so that no byte that is typed is lost.
 */
#ifndef GPU_INTERPRETER_LIBEDIT_H
#define GPU_INTERPRETER_LIBEDIT_H

#include <stdio.h>
#include <wchar.h>

typedef struct editline EditLine;
typedef struct historyW HistoryW;

typedef struct {
    const wchar_t *buffer, *cursor, *lastchar;
} LineInfoW;

typedef struct {
    int num;
    const wchar_t *str;
} HistEventW;

enum {
    EL_EDITOR = 2,
    EL_BIND = 4,
    EL_ADDFN = 9,
    EL_HIST = 10,
    EL_GETCFN = 13,
    EL_PREP_TERM = 16,
    EL_GETTC = 17,
    EL_REFRESH = 20,
    EL_PROMPT_ESC = 21
};
enum { CC_NORM = 0, CC_REFRESH = 4, CC_ERROR = 6 };
enum { H_SETSIZE = 1, H_ENTER = 10, H_SETUNIQUE = 20 };

/* clang-format off */
#define LIBEDIT_TABLE(X)                                                                           \
    X(EditLine *, el_init, (const char *program, FILE *in, FILE *out, FILE *err))                  \
    X(const wchar_t *, el_wgets, (EditLine *el, int *count))                                       \
    X(int, el_wset, (EditLine *el, int what, ...))                                                 \
    X(int, el_wget, (EditLine *el, int what, ...))                                                 \
    X(const LineInfoW *, el_wline, (EditLine *el))                                                 \
    X(int, el_winsertstr, (EditLine *el, const wchar_t *text))                                     \
    X(void, el_resize, (EditLine *el))                                                             \
    X(int, el_source, (EditLine *el, const char *path))                                            \
    X(HistoryW *, history_winit, (void))                                                           \
    X(int, history_w, (HistoryW *history, HistEventW *event, int what, ...))
/* clang-format on */

struct libedit {
    void *library;
#define X(type, name, arguments) type(*name) arguments;
    LIBEDIT_TABLE(X)
#undef X
};

/* NULL where it is missing; $GPULUA_LIBEDIT names another file. */
const struct libedit *libedit_load(void);

#endif
