/* What is shown to people: where they look, and texts that do them no harm. */
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include "binding/core.h"
#include "binding/loop.h"
#include "ranges/ranges.h"

#define COLUMNS_IF_UNKNOWN 80

/* core.terminal() -> how many columns the terminal has that is standard error; nil: it is none */
int gpu_lua_terminal(lua_State *L) {
    struct winsize size = {0};
    if (GPU_LUA(L)->config.sandbox || !isatty(STDERR_FILENO)) {
        return 0;
    }
    bool is_known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    lua_pushinteger(L, is_known ? size.ws_col : COLUMNS_IF_UNKNOWN);
    return 1;
}

/* core.line_is_open(is_open): whether a line on standard error is there that has not ended. The
 * program may have said where it keeps that, as a bool, so that its messages stand on lines of
 * their own. */
int gpu_lua_line_is_open(lua_State *L) {
    bool is_open = lua_toboolean(L, 1);
    if (lua_getfield(L, LUA_REGISTRYINDEX, "gpulua.line_is_open") == LUA_TLIGHTUSERDATA) {
        *(bool *)lua_touserdata(L, -1) = is_open;
    }
    return 0;
}

/* core.seconds() -> on a clock that only goes forward */
int gpu_lua_seconds(lua_State *L) {
    lua_pushnumber(L, (lua_Number)gpu_lua_now_ns() / 1e9);
    return 1;
}

/* core.fitting(text, columns) -> the beginning of a text of UTF-8 that a terminal draws in so many
 * columns */
int gpu_lua_fitting(lua_State *L) {
    size_t byte_count, at = 0;
    const char *text = luaL_checklstring(L, 1, &byte_count);
    lua_Integer columns = luaL_checkinteger(L, 2);
    locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0); /* whichever the host's is */
    locale_t before = utf8 ? uselocale(utf8) : (locale_t)0;
    mbstate_t state = {0};
    while (at < byte_count) {
        wchar_t character;
        size_t bytes = utf8 ? mbrtowc(&character, text + at, byte_count - at, &state) : 0;
        bool is_known = bytes > 0 && bytes <= byte_count - at;
        int width = is_known ? wcwidth(character) : 1;
        columns -= width > 0 ? width : 0;
        if (columns < 0) {
            break;
        }
        at += is_known ? bytes : 1;
    }
    if (utf8) {
        uselocale(before);
        freelocale(utf8);
    }
    lua_pushlstring(L, text, at);
    return 1;
}

/* core.shown(text[, bytes]) -> the text as any terminal or tool may show it, cut to at most so many
 * bytes (255); see gpu_range_text */
int gpu_lua_shown(lua_State *L) {
    size_t byte_count;
    const char *text = luaL_checklstring(L, 1, &byte_count);
    lua_Integer limit = luaL_optinteger(L, 2, (lua_Integer)GPU_RANGE_TEXT_BYTES - 1);
    size_t bytes = 3 * byte_count; /* of each at most a character that stands for it */
    if (limit < (lua_Integer)bytes) {
        bytes = limit > 0 ? (size_t)limit : 0;
    }
    luaL_Buffer buffer;
    char *shown = luaL_buffinitsize(L, &buffer, bytes + 1);
    luaL_pushresultsize(&buffer, gpu_range_text(shown, bytes + 1, text, byte_count));
    return 1;
}
