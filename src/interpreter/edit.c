/* Waiting for keys is ours: libedit asks for the next one (get_char), and tasks run until there is
 * one. What they print goes through streams of ours, so that the prompt is taken away in front of
 * the first byte, and drawn again when the tasks wait. All of this has one thread; what others
 * print goes where the cursor is. */
#include "interpreter/edit.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lualib.h>

#include "interpreter/edit_text.h"
#include "interpreter/history.h"
#include "interpreter/libedit.h"
#include "interpreter/program.h"
#include "interpreter/terminal.h"

/* While tasks print without a pause the prompt is drawn that often. */
#define REDRAW_MS 40
/* A character's bytes that have come so far. */
#define BYTES_MAX 16

static struct {
    const struct libedit *lib;
    EditLine *el;
    HistoryW *history;
    lua_State *L;
    pthread_t thread;
    locale_t locale; /* the user's, for libedit alone: scripts keep the one that they have */
    wchar_t *prompt; /* owned */
    enum edit_result result;
    atomic_bool is_drawn;    /* prompt and line are on the screen, the cursor in them */
    atomic_bool is_at_start; /* the cursor is in the first column, as far as we have put it */
    char bytes[BYTES_MAX];
    size_t byte_count;
    bool may_be_end; /* the next byte is a line's first, and was typed ahead */
    char *newest;    /* owned: what was remembered last */
    size_t newest_bytes;
} edit;

static void say(const char *bytes, size_t byte_count) {
    while (byte_count > 0) {
        ssize_t written = write(STDOUT_FILENO, bytes, byte_count);
        if (written < 0 && errno != EINTR && errno != EAGAIN) {
            return;
        }
        bytes += written > 0 ? written : 0;
        byte_count -= written > 0 ? (size_t)written : 0;
    }
}

/* ---- the screen ---- */

static int number_of(const char *capability, int fallback) {
    int value = 0;
    bool ok = edit.lib->el_wget(edit.el, EL_GETTC, capability, &value) == 0;
    return ok && value > 0 ? value : fallback;
}

static bool knows_escapes(void) {
    char *clear = NULL;
    return edit.lib->el_wget(edit.el, EL_GETTC, "cd", &clear) == 0 && clear &&
           strncmp(clear, "\033[", 2) == 0;
}

/* The rows of prompt and line: how many are above the cursor, and how many below. */
static void count_rows(int *above, int *below) {
    const LineInfoW *line = edit.lib->el_wline(edit.el);
    struct edit_place at = {.columns = number_of("co", 80)};
    int row_max = number_of("li", 24) - 1;
    edit_advance_prompt(&at, edit.prompt);
    edit_advance(&at, line->buffer, line->cursor);
    *above = at.row < row_max ? at.row : row_max;
    edit_advance(&at, line->cursor, line->lastchar);
    *below = (at.row < row_max ? at.row : row_max) - *above;
}

/* Takes prompt and line away: the cursor is where they began, so many rows above. */
static void hide_rows(int above) {
    char text[32];
    int length;
    if (!knows_escapes()) {
        length = snprintf(text, sizeof text, "\n");
    } else if (above > 0) {
        length = snprintf(text, sizeof text, "\r\033[%dA\033[J", above);
    } else {
        length = snprintf(text, sizeof text, "\r\033[J");
    }
    say(text, (size_t)length);
    edit.is_drawn = false;
    edit.is_at_start = true;
}

static void hide(void) {
    int above, below;
    locale_t before = uselocale(edit.locale);
    count_rows(&above, &below);
    hide_rows(above);
    uselocale(before);
}

static void show(void) {
    if (!edit.is_at_start) {
        say("\n", 1);
    }
    edit.lib->el_wset(edit.el, EL_REFRESH);
    edit.is_at_start = true;
    edit.is_drawn = true;
}

/* ---- what others print ---- */

static ssize_t pass_on(void *cookie, const char *bytes, size_t byte_count) {
    if (edit.is_drawn && pthread_equal(pthread_self(), edit.thread)) {
        hide();
    }
    ssize_t written = write(*(const int *)cookie, bytes, byte_count);
    if (written > 0) {
        edit.is_at_start = bytes[written - 1] == '\n';
    }
    return written > 0 ? written : 0; /* (0 is an error for the stream) */
}

#if defined(__GLIBC__) /* whose streams are variables */
/* Files of io have the stream that was there when they were made. */
static void replace_file(lua_State *L, const char *name, const FILE *before, FILE *now) {
    lua_getglobal(L, LUA_IOLIBNAME);
    if (lua_istable(L, -1)) {
        lua_pushstring(L, name);
        lua_rawget(L, -2);
        luaL_Stream *file = luaL_testudata(L, -1, LUA_FILEHANDLE);
        if (file && file->f == before) {
            file->f = now;
        }
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
}

static void listen_to(lua_State *L, FILE **stream, const char *name, const int *fd, int buffering) {
    FILE *before = *stream;
    FILE *now = fopencookie((void *)(uintptr_t)fd, "w", (cookie_io_functions_t){.write = pass_on});
    if (now && isatty(*fd)) {
        setvbuf(now, NULL, buffering, BUFSIZ);
        fflush(before);
        *stream = now;
        replace_file(L, name, before, now);
    } else if (now) {
        fclose(now);
    }
}
#endif

/* ---- keys ---- */

static bool take_event(volatile sig_atomic_t *event) {
    bool is_there = *event;
    *event = 0;
    return is_there;
}

/* Puts the cursor behind the line, which stays on the screen. */
static void drop_line(void) {
    char text[32];
    int above, below, length;
    count_rows(&above, &below);
    length = below > 0 ? snprintf(text, sizeof text, "\033[%dB^C\n", below)
                       : snprintf(text, sizeof text, "^C\n");
    say(text, (size_t)length);
    edit.is_drawn = false;
    edit.is_at_start = true;
    edit.byte_count = 0;
    edit.result = EDIT_DROPPED;
}

static void stop(void) {
    hide();
    edit.lib->el_wset(edit.el, EL_PREP_TERM, 0);
    terminal_stop();
    terminal_events.continued = 1;
}

/* Some terminals break their lines anew and others do not. Whichever it is, what is above stays. */
static void resize(void) {
    int before, after, below;
    count_rows(&before, &below);
    edit.lib->el_resize(edit.el);
    count_rows(&after, &below);
    hide_rows(before < after ? before : after);
    show();
}

/* False: no key is wanted any more. */
static bool work_off_events(void) {
    if (take_event(&terminal_events.interrupted)) {
        drop_line();
        return false;
    }
    if (take_event(&terminal_events.stopped)) {
        stop();
    }
    if (take_event(&terminal_events.continued)) {
        edit.lib->el_wset(edit.el, EL_PREP_TERM, 1);
        edit.is_at_start = !edit.is_drawn; /* if it was stopped by others */
        show();
    }
    if (take_event(&terminal_events.resized)) {
        resize();
    }
    return true;
}

static bool key_is_there(void) {
    struct pollfd key = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&key, 1, 0) > 0;
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void run_tasks(void) {
    int64_t began_ms = now_ms();
    locale_t before = uselocale(LC_GLOBAL_LOCALE);
    terminal_tasks_begin();
    bool goes_on;
    do {
        goes_on = gpulua_step(program.g, 0) > 0 && !edit.is_drawn &&
                  now_ms() - began_ms < REDRAW_MS && !terminal_events.interrupted &&
                  gpulua_timeout_ms(program.g) == 0 && !key_is_there();
    } while (goes_on);
    fflush(stdout);
    terminal_tasks_end();
    uselocale(before);
    if (!edit.is_drawn) {
        show();
    }
}

/* False: no key is wanted any more. */
static bool wait_for_key(void) {
    while (work_off_events()) {
        int timeout_ms = gpulua_timeout_ms(program.g);
        struct timespec limit = {.tv_sec = timeout_ms / 1000,
                                 .tv_nsec = (long)(timeout_ms % 1000) * 1000000};
        struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                                {.fd = gpulua_pollfd(program.g), .events = POLLIN}};
        if (ppoll(fds, 2, timeout_ms < 0 ? NULL : &limit, terminal_waiting()) < 0) {
            continue; /* a signal */
        }
        if (fds[0].revents) {
            return true;
        }
        run_tasks();
    }
    return false;
}

/* libedit asks for a character. 1: there is one; 0: the input is over; -1: no line is wanted. */
static int get_char(EditLine *el, wchar_t *c) {
    (void)el;
    edit.is_drawn = true;
    for (;;) {
        size_t length = edit.byte_count > 0 ? edit_decode_one(edit.bytes, edit.byte_count, c) : 0;
        if (length == 0 && edit.byte_count == BYTES_MAX) {
            *c = EDIT_BYTE + (unsigned char)edit.bytes[0];
            length = 1;
        }
        if (length > 0) {
            edit.byte_count -= length;
            memmove(edit.bytes, edit.bytes + length, edit.byte_count);
            return 1;
        }
        if (!wait_for_key()) {
            return -1;
        }
        /* One byte: what is typed ahead may be for io.read. */
        ssize_t got = read(STDIN_FILENO, edit.bytes + edit.byte_count, 1);
        bool may_be_end = edit.may_be_end;
        edit.may_be_end = false;
        if (got > 0 && may_be_end && edit.bytes[0] == '\0') {
            return 0; /* Linux keeps a Ctrl-D so that came in the mode that others read in */
        } else if (got > 0) {
            edit.byte_count++;
        } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
            return 0;
        }
    }
}

static wchar_t *prompt_of(EditLine *el) {
    (void)el;
    return edit.prompt;
}

/* ---- completion ---- */

/* Stack: what is in front of the cursor. Leaves what completes it, and lines that show what might,
 * or nil; see complete.lua. */
static int complete_in_lua(lua_State *L) {
    lua_getglobal(L, "require");
    lua_pushliteral(L, "gpulua.complete");
    lua_call(L, 1, 1);
    lua_insert(L, 1);
    lua_pushinteger(L, number_of("co", 80));
    lua_call(L, 2, 2);
    return 2;
}

static void insert(const char *bytes, size_t byte_count) {
    wchar_t *text = edit_decode(bytes, byte_count);
    if (text && text[0]) {
        edit.lib->el_winsertstr(edit.el, text);
    }
    free(text);
}

/* TAB. In front of anything else it is what indents. */
static unsigned char complete(EditLine *el, int key) {
    (void)key;
    lua_State *L = edit.L;
    int top = lua_gettop(L);
    unsigned char answer = CC_ERROR;
    size_t byte_count;
    const LineInfoW *line = edit.lib->el_wline(el);
    size_t count = (size_t)(line->cursor - line->buffer);
    if (wcsspn(line->buffer, L" \t\n") >= count) {
        return edit.lib->el_winsertstr(el, L"\t") == 0 ? CC_REFRESH : CC_ERROR;
    }
    char *before = edit_encode(line->buffer, count, &byte_count);
    if (!before || !lua_checkstack(L, 8)) {
        free(before);
        return CC_ERROR;
    }
    locale_t own = uselocale(LC_GLOBAL_LOCALE);
    lua_pushcfunction(L, complete_in_lua);
    lua_pushlstring(L, before, byte_count);
    free(before);
    bool ok = lua_pcall(L, 1, 2, 0) == LUA_OK;
    uselocale(own);
    if (ok && lua_isstring(L, -1)) {
        const char *list = lua_tolstring(L, -1, &byte_count);
        hide();
        say(list, byte_count);
        show();
        answer = CC_NORM;
    }
    if (ok && lua_isstring(L, -2) && lua_rawlen(L, -2) > 0) {
        const char *added = lua_tolstring(L, -2, &byte_count);
        insert(added, byte_count);
        answer = CC_REFRESH;
    }
    if (!edit.is_drawn) {
        show(); /* a finaliser has printed */
    }
    lua_settop(L, top);
    return answer;
}

/* ---- opening ---- */

static const wchar_t *const keys[][2] = {
    {L"^I", L"gpulua-complete"},     {L"^R", L"em-inc-search-prev"},
    {L"^W", L"ed-delete-prev-word"}, {L"\\e[3~", L"ed-delete-next-char"},
    {L"\\e[H", L"ed-move-to-beg"},   {L"\\e[F", L"ed-move-to-end"},
    {L"\\e[1~", L"ed-move-to-beg"},  {L"\\e[4~", L"ed-move-to-end"},
    {L"\\e[1;5D", L"ed-prev-word"},  {L"\\e[1;5C", L"em-next-word"},
};

static void into_history(const char *text, size_t byte_count) {
    HistEventW event;
    wchar_t *entry = edit_decode(text, byte_count);
    if (entry) {
        edit.lib->history_w(edit.history, &event, H_ENTER, entry);
        free(entry);
    }
}

/* The user's, if it says how text is written, else UTF-8. */
static locale_t open_locale(void) {
    locale_t locale = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    const char *codes = locale ? nl_langinfo_l(CODESET, locale) : "ANSI_X3.4-1968";
    if (strcmp(codes, "ANSI_X3.4-1968") != 0) {
        return locale;
    }
    locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (!utf8) {
        return locale;
    }
    if (locale) {
        freelocale(locale);
    }
    return utf8;
}

static bool set_up(lua_State *L) {
    static const int out = STDOUT_FILENO, err = STDERR_FILENO;
    const struct libedit *lib = edit.lib;
    HistEventW event;
    edit.el = lib->el_init("gpulua", stdin, stdout, stderr);
    edit.history = edit.el ? lib->history_winit() : NULL;
    if (!edit.history) {
        return false;
    }
    lib->history_w(edit.history, &event, H_SETSIZE, HISTORY_ENTRIES_MAX);
    lib->history_w(edit.history, &event, H_SETUNIQUE, 1);
    lib->el_wset(edit.el, EL_EDITOR, L"emacs");
    lib->el_wset(edit.el, EL_HIST, lib->history_w, edit.history);
    lib->el_wset(edit.el, EL_PROMPT_ESC, prompt_of, (int)EDIT_MARK);
    lib->el_wset(edit.el, EL_GETCFN, get_char);
    lib->el_wset(edit.el, EL_ADDFN, keys[0][1], L"Completes a name of Lua", complete);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        lib->el_wset(edit.el, EL_BIND, keys[i][0], keys[i][1], NULL);
    }
    lib->el_source(edit.el, NULL); /* the user's .editrc has the last word */
    history_open(into_history);
#if defined(__GLIBC__)
    listen_to(L, &stdout, "stdout", &out, _IOLBF);
    listen_to(L, &stderr, "stderr", &err, _IONBF);
#else
    (void)out, (void)err, (void)L, (void)pass_on;
#endif
    return true;
}

bool edit_open(lua_State *L) {
    static bool is_tried;
    const char *kind = getenv("TERM");
    if (is_tried) {
        return edit.history != NULL;
    }
    is_tried = true;
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || !kind || !kind[0] ||
        strcmp(kind, "dumb") == 0) {
        return false;
    }
    edit.lib = libedit_load();
    edit.locale = edit.lib ? open_locale() : (locale_t)0;
    if (!edit.locale) {
        return false;
    }
    edit.thread = pthread_self();
    edit.is_at_start = true;
    locale_t before = uselocale(edit.locale);
    bool ok = set_up(L);
    uselocale(before);
    return ok;
}

/* ---- lines ---- */

/* libedit has prompts of one line: what is above is shown here. */
static bool set_prompt(const char *prompt) {
    const char *last = strrchr(prompt, '\n');
    fflush(stdout);
    if (!edit.is_at_start) {
        say("\n", 1);
        edit.is_at_start = true;
    }
    if (last) {
        say(prompt, (size_t)(last + 1 - prompt));
    }
    free(edit.prompt);
    edit.prompt = edit_decode_prompt(last ? last + 1 : prompt);
    return edit.prompt != NULL;
}

enum edit_result edit_read(lua_State *L, const char *prompt) {
    int count = 0;
    size_t byte_count = 0;
    char *bytes = NULL;
    locale_t before = uselocale(edit.locale);
    edit.L = L;
    edit.result = EDIT_ENDED;
    terminal_enter();
    if (set_prompt(prompt)) {
        /* Before the prompt is seen: what is typed then is for us (libedit would show it first). */
        edit.lib->el_wset(edit.el, EL_PREP_TERM, 1);
        edit.may_be_end = key_is_there();
        const wchar_t *line = edit.lib->el_wgets(edit.el, &count);
        edit.is_drawn = false;
        if (line && edit.result == EDIT_ENDED) {
            count -= count > 0 && line[count - 1] == L'\n';
            bytes = edit_encode(line, (size_t)count, &byte_count);
        }
    }
    terminal_leave();
    uselocale(before);
    if (bytes) {
        lua_pushlstring(L, bytes, byte_count); /* (without memory for it Lua ends us) */
        free(bytes);
        edit.result = EDIT_LINE;
    }
    return edit.result;
}

void edit_remember(const char *text, size_t byte_count) {
    if (strspn(text, " \t\n") >= byte_count || (edit.newest && edit.newest_bytes == byte_count &&
                                                memcmp(edit.newest, text, byte_count) == 0)) {
        return;
    }
    char *kept = malloc(byte_count);
    if (kept) {
        memcpy(kept, text, byte_count);
        free(edit.newest);
        edit.newest = kept;
        edit.newest_bytes = byte_count;
    }
    locale_t before = uselocale(edit.locale);
    into_history(text, byte_count);
    uselocale(before);
    history_add(text, byte_count);
}
