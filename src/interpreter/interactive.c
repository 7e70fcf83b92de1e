/* Lines from a terminal or anywhere else, as Lua's interpreter takes them. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>

#include "interpreter/edit.h"
#include "interpreter/program.h"
#include "interpreter/terminal.h"

/* ---- lines ---- */

/* From anything but a terminal, as Lua's interpreter reads them. */
static enum edit_result read_stream(lua_State *L) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length = getline(&line, &capacity, stdin);
    if (length < 0) {
        free(line);
        return EDIT_ENDED;
    }
    lua_pushlstring(L, line, (size_t)length - (line[length - 1] == '\n'));
    free(line);
    return EDIT_LINE;
}

/* Tasks run until there is something to read. False: Ctrl-C. */
static bool wait_for_input(void) {
    for (;;) {
        int timeout_ms = gpulua_timeout_ms(program.g);
        struct timespec limit = {.tv_sec = timeout_ms / 1000,
                                 .tv_nsec = (long)(timeout_ms % 1000) * 1000000};
        struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                                {.fd = gpulua_pollfd(program.g), .events = POLLIN}};
        int ready = ppoll(fds, 2, timeout_ms < 0 ? NULL : &limit, terminal_waiting());
        if (terminal_events.interrupted) {
            return false;
        }
        if (terminal_events.stopped) {
            terminal_stop();
        } else if (ready > 0 && fds[0].revents) {
            return true;
        } else if (ready >= 0) {
            terminal_tasks_begin();
            gpulua_step(program.g, 0);
            fflush(stdout);
            terminal_tasks_end();
        }
    }
}

/* From a terminal, which has put a line together. One byte after the other: what comes behind it
 * may be for io.read. Who sees the prompt may press Ctrl-C, and so it comes when that is taken. */
static enum edit_result read_terminal(lua_State *L, const char *prompt) {
    enum edit_result result = EDIT_ENDED;
    char *line = NULL;
    size_t length = 0;
    FILE *text = open_memstream(&line, &length);
    terminal_enter();
    fputs(prompt, stdout);
    fflush(stdout);
    while (text) {
        char c;
        if (!wait_for_input()) {
            result = EDIT_DROPPED;
            break;
        }
        ssize_t got = read(STDIN_FILENO, &c, 1);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        result = EDIT_LINE;
        if (c == '\n') {
            break;
        }
        fputc(c, text);
    }
    terminal_leave();
    if (text && fclose(text) == 0 && result == EDIT_LINE) {
        lua_pushlstring(L, line, length);
    }
    free(line);
    if (result == EDIT_DROPPED) {
        fputc('\n', stdout);
    }
    return result;
}

static enum edit_result read_plain(lua_State *L, const char *prompt) {
    if (isatty(STDIN_FILENO)) {
        return read_terminal(L, prompt);
    }
    fputs(prompt, stdout);
    fflush(stdout);
    return read_stream(L);
}

/* Pushes the line if there is one. */
static enum edit_result read_line(lua_State *L, bool is_first) {
    lua_getglobal(L, is_first ? "_PROMPT" : "_PROMPT2");
    const char *prompt = lua_isnil(L, -1) ? NULL : luaL_tolstring(L, -1, NULL);
    prompt = prompt ? prompt : is_first ? "> " : ">> ";
    return edit_open(L) ? edit_read(L, prompt) : read_plain(L, prompt);
}

/* ---- chunks ---- */

static bool is_incomplete(lua_State *L, int status) {
    static const char mark[] = "<eof>";
    size_t length;
    if (status != LUA_ERRSYNTAX) {
        return false;
    }
    const char *message = lua_tolstring(L, -1, &length);
    return message && length >= sizeof mark - 1 &&
           strcmp(message + length - (sizeof mark - 1), mark) == 0;
}

/* In front of an expression. On a terminal a value of ours is first, so that a call is no tail
 * call: those have no line, which errors and the map of memory tell. */
static const char plain_return[] = "return ", typed_return[] = "return nil, ";

/* Stack: the text that was typed. "=x" means "return x". Pushes a chunk or a message. `before`: as
 * above, or NULL where the text is to be statements. */
static int load(lua_State *L, const char *before) {
    size_t length;
    const char *text = lua_tolstring(L, 1, &length);
    bool has_mark = length > 0 && text[0] == '=';
    if (before) {
        lua_pushfstring(L, "%s%s", before, text + has_mark);
    } else if (has_mark) {
        lua_pushstring(L, plain_return);
        lua_pushlstring(L, text + 1, length - 1);
        lua_concat(L, 2);
    } else {
        lua_pushvalue(L, 1);
    }
    const char *source = lua_tolstring(L, -1, &length);
    int status = luaL_loadbuffer(L, source, before ? strlen(source) : length, "=stdin");
    lua_remove(L, -2);
    return status;
}

enum { INPUT_OVER = -1, INPUT_DROPPED = -2 };

/* Leaves what was typed and a chunk or a message; the status of loading it, or one of the above.
 * extra: how many values of ours are in front of the chunk's. */
static int read_chunk(lua_State *L, bool is_typed, int *extra) {
    lua_settop(L, 0);
    enum edit_result result = read_line(L, true);
    if (result != EDIT_LINE) {
        return result == EDIT_ENDED ? INPUT_OVER : INPUT_DROPPED;
    }
    lua_replace(L, 1);
    lua_settop(L, 1);
    /* An expression first: its values are shown. */
    int status = load(L, is_typed ? typed_return : plain_return);
    *extra = is_typed && status == LUA_OK ? 1 : 0;
    while (status != LUA_OK) {
        lua_settop(L, 1);
        status = load(L, NULL);
        if (!is_incomplete(L, status)) {
            break;
        }
        result = read_line(L, false);
        if (result == EDIT_DROPPED) {
            return INPUT_DROPPED;
        }
        if (result == EDIT_ENDED) {
            lua_settop(L, 2);
            break;
        }
        lua_replace(L, 2); /* the further line */
        lua_settop(L, 2);
        lua_pushliteral(L, "\n");
        lua_insert(L, 2);
        lua_concat(L, 3);
    }
    return status;
}

/* ---- results ---- */

/* On a terminal more is shown than print would. That may wait for the device, and so it is a task.
 */
static bool show_on_terminal(lua_State *L, int count) {
    if (luaL_loadstring(L, "return require('gpulua.show').show(...)") != LUA_OK) {
        return false;
    }
    lua_insert(L, -(count + 1));
    if (chunk_run_typed(L, count) < 0) {
        return false;
    }
    size_t length;
    const char *text = lua_tolstring(L, -1, &length);
    program_put(stdout, text, length);
    fputc('\n', stdout);
    fflush(stdout);
    return true;
}

static void show_results(lua_State *L, int count, bool is_typed) {
    if (count == 0) {
        return;
    }
    luaL_checkstack(L, LUA_MINSTACK, "too many results to print");
    if (is_typed && isatty(STDOUT_FILENO)) {
        if (!show_on_terminal(L, count)) {
            program_say(NULL, lua_tostring(L, -1));
        }
        return;
    }
    lua_getglobal(L, "print");
    lua_insert(L, -(count + 1));
    if (lua_pcall(L, count, 0, 0) != LUA_OK) {
        program_say(program.name,
                    lua_pushfstring(L, "error calling 'print' (%s)", lua_tostring(L, -1)));
    }
}

static void remember(lua_State *L) {
    if (edit_open(L) && lua_type(L, 1) == LUA_TSTRING) {
        size_t length;
        const char *text = lua_tolstring(L, 1, &length);
        edit_remember(text, length);
    }
}

/* What goes on behind the last line is waited for, and that is said. */
static void say_what_goes_on(void) {
    char text[80];
    int count = gpulua_tasks(program.g);
    if (count > 0) {
        snprintf(text, sizeof text, "waiting for %d task%s (Ctrl-C ends %s)", count,
                 count == 1 ? "" : "s", count == 1 ? "it" : "them");
        program_say(program.name, text);
    }
}

void interactive_run(lua_State *L) {
    int status, extra;
    const char *name = program.name;
    bool is_typed = isatty(STDIN_FILENO);
    program.name = NULL;
    while ((status = read_chunk(L, is_typed, &extra)) != INPUT_OVER) {
        if (status == INPUT_DROPPED) {
            continue;
        }
        remember(L);
        int count = status != LUA_OK ? -1 : is_typed ? chunk_run_typed(L, 0) : chunk_run(L, 0);
        if (count >= 0) {
            if (extra) {
                lua_remove(L, -count);
            }
            show_results(L, count - extra, is_typed);
        } else {
            if (is_typed && status == LUA_OK && program.was_interrupted) {
                fputc('\n', stderr); /* behind the terminal's ^C */
            }
            program_say(NULL,
                        lua_isstring(L, -1) ? lua_tostring(L, -1) : "(error message not a string)");
        }
    }
    lua_settop(L, 0);
    putchar('\n');
    fflush(stdout);
    program.name = name;
    if (is_typed) {
        say_what_goes_on();
    }
}
