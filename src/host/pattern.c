/* string.find, match, gmatch and gsub as Lua 5.4 has them, but they can be stopped: a pattern can
 * take longer than anybody waits, and Lua's own functions ask nobody meanwhile. What they answer is
 * the reference manual's (section 6.4.1), and the spec compares them with Lua's.
 *
 * A pattern is matched by backtracking, item by item. Recursion is for what may have to come back;
 * its depth is bounded, and every so many steps it is asked whether an interrupt or a limit wants
 * to stop it. */
#include "host/pattern.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <lauxlib.h>

#include "binding/loop.h"

#define CAPTURES_MAX 32 /* LUA_MAXCAPTURES */
#define DEPTH_MAX 200
#define STEPS_BETWEEN_LOOKS 4096u

#define OPEN (-1)     /* a capture that has begun */
#define POSITION (-2) /* one that is a place, "()" */

struct matcher {
    lua_State *L;
    struct gpulua *g;
    const unsigned char *begin, *end; /* of the subject */
    const unsigned char *pattern_end;
    uint32_t steps;
    int depth;
    int count;
    struct {
        const unsigned char *begin;
        ptrdiff_t bytes; /* or OPEN, POSITION */
    } captures[CAPTURES_MAX];
};

static void look(struct matcher *m) {
    m->steps = 0;
    gpu_lua_check_interrupt(m->L, m->g);
}

static inline void step(struct matcher *m) {
    if (++m->steps >= STEPS_BETWEEN_LOOKS) {
        look(m);
    }
}

/* ---- single characters ---- */

/* Behind the item that begins at p: a character, an escape or a set. */
static const unsigned char *item_end(struct matcher *m, const unsigned char *p) {
    unsigned char first = *p++;
    if (first == '%') {
        if (p == m->pattern_end) {
            luaL_error(m->L, "malformed pattern (ends with '%%')");
        }
        return p + 1;
    }
    if (first != '[') {
        return p;
    }
    if (p < m->pattern_end && *p == '^') {
        p++;
    }
    bool is_first = true; /* a bracket there is one of the set */
    for (;; is_first = false) {
        if (p == m->pattern_end) {
            luaL_error(m->L, "malformed pattern (missing ']')");
        }
        unsigned char c = *p++;
        if (c == ']' && !is_first) {
            return p;
        }
        if (c == '%') {
            if (p == m->pattern_end) {
                luaL_error(m->L, "malformed pattern (missing ']')");
            }
            p++;
        }
    }
}

static bool in_class(int c, int class) {
    bool is_in;
    switch (tolower(class)) {
    case 'a':
        is_in = isalpha(c);
        break;
    case 'c':
        is_in = iscntrl(c);
        break;
    case 'd':
        is_in = isdigit(c);
        break;
    case 'g':
        is_in = isgraph(c);
        break;
    case 'l':
        is_in = islower(c);
        break;
    case 'p':
        is_in = ispunct(c);
        break;
    case 's':
        is_in = isspace(c);
        break;
    case 'u':
        is_in = isupper(c);
        break;
    case 'w':
        is_in = isalnum(c);
        break;
    case 'x':
        is_in = isxdigit(c);
        break;
    case 'z': /* of older Luas, and taken still */
        is_in = c == 0;
        break;
    default:
        return class == c;
    }
    return isupper(class) ? !is_in : is_in;
}

/* The set from its '[' to behind its ']'. */
static bool in_set(int c, const unsigned char *p, const unsigned char *end) {
    const unsigned char *last = end - 1;
    bool is_negated = *++p == '^';
    p += is_negated;
    while (p < last) {
        if (*p == '%') {
            if (in_class(c, p[1])) {
                return !is_negated;
            }
            p += 2;
        } else if (last - p > 2 && p[1] == '-') {
            if (p[0] <= c && c <= p[2]) {
                return !is_negated;
            }
            p += 3;
        } else if (*p++ == c) {
            return !is_negated;
        }
    }
    return is_negated;
}

static bool is_single(struct matcher *m, const unsigned char *s, const unsigned char *p,
                      const unsigned char *after) {
    if (s >= m->end) {
        return false;
    }
    step(m);
    switch (*p) {
    case '.':
        return true;
    case '%':
        return in_class(*s, p[1]);
    case '[':
        return in_set(*s, p, after);
    default:
        return *p == *s;
    }
}

/* ---- items that are more than a character ---- */

static const unsigned char *match(struct matcher *m, const unsigned char *s,
                                  const unsigned char *p);

static const unsigned char *match_balanced(struct matcher *m, const unsigned char *s,
                                           const unsigned char *p) {
    if (m->pattern_end - p < 2) {
        luaL_error(m->L, "malformed pattern (missing arguments to '%%b')");
    }
    if (s >= m->end || *s != p[0]) {
        return NULL;
    }
    uint64_t open_count = 1;
    for (s++; s < m->end; s++) {
        step(m);
        if (*s == p[1]) {
            if (--open_count == 0) {
                return s + 1;
            }
        } else if (*s == p[0]) {
            open_count++;
        }
    }
    return NULL;
}

static const unsigned char *match_most(struct matcher *m, const unsigned char *s,
                                       const unsigned char *p, const unsigned char *after) {
    ptrdiff_t count = 0;
    while (is_single(m, s + count, p, after)) {
        count++;
    }
    for (; count >= 0; count--) {
        const unsigned char *end = match(m, s + count, after + 1);
        if (end) {
            return end;
        }
    }
    return NULL;
}

static const unsigned char *match_fewest(struct matcher *m, const unsigned char *s,
                                         const unsigned char *p, const unsigned char *after) {
    for (;;) {
        const unsigned char *end = match(m, s, after + 1);
        if (end) {
            return end;
        }
        if (!is_single(m, s, p, after)) {
            return NULL;
        }
        s++;
    }
}

static const unsigned char *capture_begin(struct matcher *m, const unsigned char *s,
                                          const unsigned char *p, ptrdiff_t what) {
    if (m->count >= CAPTURES_MAX) {
        luaL_error(m->L, "too many captures");
    }
    m->captures[m->count].begin = s;
    m->captures[m->count].bytes = what;
    m->count++;
    const unsigned char *end = match(m, s, p);
    if (!end) {
        m->count--;
    }
    return end;
}

static const unsigned char *capture_end(struct matcher *m, const unsigned char *s,
                                        const unsigned char *p) {
    int i = m->count - 1;
    while (i >= 0 && m->captures[i].bytes != OPEN) {
        i--;
    }
    if (i < 0) {
        luaL_error(m->L, "invalid pattern capture");
    }
    m->captures[i].bytes = s - m->captures[i].begin;
    const unsigned char *end = match(m, s, p);
    if (!end) {
        m->captures[i].bytes = OPEN;
    }
    return end;
}

static const unsigned char *match_back_reference(struct matcher *m, const unsigned char *s,
                                                 int digit) {
    int i = digit - '1';
    if (i < 0 || i >= m->count || m->captures[i].bytes == OPEN) {
        luaL_error(m->L, "invalid capture index %%%d", i + 1);
    }
    ptrdiff_t bytes = m->captures[i].bytes;
    if (bytes == POSITION) { /* as in Lua: never the same as anything */
        return NULL;
    }
    m->steps += (uint32_t)(bytes / 64);
    step(m);
    bool is_same = m->end - s >= bytes && memcmp(m->captures[i].begin, s, (size_t)bytes) == 0;
    return is_same ? s + bytes : NULL;
}

static bool is_frontier(struct matcher *m, const unsigned char *s, const unsigned char *set,
                        const unsigned char *after) {
    int before = s == m->begin ? 0 : s[-1], here = s < m->end ? *s : 0;
    return !in_set(before, set, after) && in_set(here, set, after);
}

/* ---- the whole ---- */

/* Where the match of p on ends that begins at s; NULL: there is none. */
static const unsigned char *match_here(struct matcher *m, const unsigned char *s,
                                       const unsigned char *p) {
    while (p < m->pattern_end) {
        step(m);
        if (*p == '(') {
            bool is_position = p + 1 < m->pattern_end && p[1] == ')';
            return is_position ? capture_begin(m, s, p + 2, POSITION)
                               : capture_begin(m, s, p + 1, OPEN);
        }
        if (*p == ')') {
            return capture_end(m, s, p + 1);
        }
        if (*p == '$' && p + 1 == m->pattern_end) {
            return s == m->end ? s : NULL;
        }
        int escaped = *p == '%' && p + 1 < m->pattern_end ? p[1] : 0;
        if (escaped == 'b') {
            s = match_balanced(m, s, p + 2);
            if (!s) {
                return NULL;
            }
            p += 4;
            continue;
        }
        if (escaped == 'f') {
            p += 2;
            if (p >= m->pattern_end || *p != '[') {
                luaL_error(m->L, "missing '[' after '%%f' in pattern");
            }
            const unsigned char *after = item_end(m, p);
            if (!is_frontier(m, s, p, after)) {
                return NULL;
            }
            p = after;
            continue;
        }
        if (isdigit(escaped)) {
            s = match_back_reference(m, s, escaped);
            if (!s) {
                return NULL;
            }
            p += 2;
            continue;
        }
        const unsigned char *after = item_end(m, p);
        int how_often = after < m->pattern_end ? *after : 0;
        switch (how_often) {
        case '*':
            return match_most(m, s, p, after);
        case '+':
            return is_single(m, s, p, after) ? match_most(m, s + 1, p, after) : NULL;
        case '-':
            return match_fewest(m, s, p, after);
        case '?': {
            const unsigned char *end =
                is_single(m, s, p, after) ? match(m, s + 1, after + 1) : NULL;
            if (end) {
                return end;
            }
            p = after + 1;
            continue;
        }
        default:
            if (!is_single(m, s, p, after)) {
                return NULL;
            }
            s++;
            p = after;
        }
    }
    return s;
}

static const unsigned char *match(struct matcher *m, const unsigned char *s,
                                  const unsigned char *p) {
    if (++m->depth > DEPTH_MAX) {
        luaL_error(m->L, "pattern too complex");
    }
    const unsigned char *end = match_here(m, s, p);
    m->depth--;
    return end;
}

static const unsigned char *match_anew(struct matcher *m, const unsigned char *s,
                                       const unsigned char *p) {
    m->count = 0;
    m->depth = 0;
    step(m);
    return match(m, s, p);
}

static void matcher_init(struct matcher *m, lua_State *L, const char *subject, size_t subject_bytes,
                         const char *pattern_end) {
    m->L = L;
    m->g = lua_touserdata(L, lua_upvalueindex(1));
    m->begin = (const unsigned char *)subject;
    m->end = m->begin + subject_bytes;
    m->pattern_end = (const unsigned char *)pattern_end;
    m->steps = 0;
}

/* ---- answers ---- */

/* Capture i, or with none of them at all the whole match for i = 0. */
static void push_capture(struct matcher *m, int i, const unsigned char *s,
                         const unsigned char *end) {
    if (i >= m->count) {
        if (i != 0) {
            luaL_error(m->L, "invalid capture index %%%d", i + 1);
        }
        lua_pushlstring(m->L, (const char *)s, (size_t)(end - s));
        return;
    }
    ptrdiff_t bytes = m->captures[i].bytes;
    if (bytes == OPEN) {
        luaL_error(m->L, "unfinished capture");
    } else if (bytes == POSITION) {
        lua_pushinteger(m->L, (m->captures[i].begin - m->begin) + 1);
    } else {
        lua_pushlstring(m->L, (const char *)m->captures[i].begin, (size_t)bytes);
    }
}

/* `s` NULL: captures alone. */
static int push_captures(struct matcher *m, const unsigned char *s, const unsigned char *end) {
    int count = m->count == 0 && s ? 1 : m->count;
    luaL_checkstack(m->L, count, "too many captures");
    for (int i = 0; i < count; i++) {
        push_capture(m, i, s, end);
    }
    return count;
}

/* Where a search begins, counted from 0. */
static size_t start_of(lua_State *L, int index, size_t bytes) {
    lua_Integer init = luaL_optinteger(L, index, 1);
    if (init > 0) {
        return (size_t)init - 1;
    }
    return init == 0 || init < -(lua_Integer)bytes ? 0 : bytes - (size_t)-init;
}

static bool is_plain(const char *pattern, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if (strchr("^$*+?.([%-", pattern[i]) && pattern[i] != '\0') {
            return false;
        }
    }
    return true;
}

/* The first place of `what` in bytes of a subject, looking around on the way. */
static const unsigned char *find_plain(struct matcher *m, const unsigned char *s, const char *what,
                                       size_t bytes) {
    if (bytes == 0) {
        return s;
    }
    while ((size_t)(m->end - s) >= bytes) {
        const unsigned char *last = m->end - bytes + 1;
        const unsigned char *limit = last - s > 65536 ? s + 65536 : last;
        const unsigned char *at = memchr(s, (unsigned char)what[0], (size_t)(limit - s));
        m->steps += (uint32_t)(((at ? at : limit) - s) / 64 + (ptrdiff_t)(bytes / 64));
        step(m);
        if (!at) {
            s = limit;
        } else if (memcmp(at, what, bytes) == 0) {
            return at;
        } else {
            s = at + 1;
        }
    }
    return NULL;
}

static int find_or_match(lua_State *L, bool is_find) {
    size_t subject_bytes, pattern_bytes;
    const char *subject = luaL_checklstring(L, 1, &subject_bytes);
    const char *pattern = luaL_checklstring(L, 2, &pattern_bytes);
    size_t start = start_of(L, 3, subject_bytes);
    if (start > subject_bytes) {
        luaL_pushfail(L);
        return 1;
    }
    struct matcher m;
    matcher_init(&m, L, subject, subject_bytes, pattern + pattern_bytes);
    const unsigned char *s = m.begin + start;
    if (is_find && (lua_toboolean(L, 4) || is_plain(pattern, pattern_bytes))) {
        const unsigned char *at = find_plain(&m, s, pattern, pattern_bytes);
        if (at) {
            lua_pushinteger(L, (at - m.begin) + 1);
            lua_pushinteger(L, (at - m.begin) + (lua_Integer)pattern_bytes);
            return 2;
        }
        luaL_pushfail(L);
        return 1;
    }
    bool is_anchored = pattern_bytes > 0 && pattern[0] == '^';
    const unsigned char *p = (const unsigned char *)pattern + is_anchored;
    do {
        const unsigned char *end = match_anew(&m, s, p);
        if (end && is_find) {
            lua_pushinteger(L, (s - m.begin) + 1);
            lua_pushinteger(L, end - m.begin);
            return 2 + push_captures(&m, NULL, NULL);
        }
        if (end) {
            return push_captures(&m, s, end);
        }
    } while (s++ < m.end && !is_anchored);
    luaL_pushfail(L);
    return 1;
}

static int string_find(lua_State *L) {
    return find_or_match(L, true);
}

static int string_match(lua_State *L) {
    return find_or_match(L, false);
}

/* ---- gmatch ---- */

/* Upvalues: the object, subject, pattern, where to go on, where the last match ended or -1. */
static int gmatch_next(lua_State *L) {
    size_t subject_bytes, pattern_bytes;
    const char *subject = lua_tolstring(L, lua_upvalueindex(2), &subject_bytes);
    const char *pattern = lua_tolstring(L, lua_upvalueindex(3), &pattern_bytes);
    struct matcher m;
    matcher_init(&m, L, subject, subject_bytes, pattern + pattern_bytes);
    lua_Integer last = lua_tointeger(L, lua_upvalueindex(5));
    const unsigned char *last_end = last >= 0 ? m.begin + last : NULL;
    const unsigned char *s = m.begin + lua_tointeger(L, lua_upvalueindex(4));
    for (; s <= m.end; s++) {
        const unsigned char *end = match_anew(&m, s, (const unsigned char *)pattern);
        if (end && end != last_end) {
            lua_pushinteger(L, end - m.begin);
            lua_copy(L, -1, lua_upvalueindex(4));
            lua_replace(L, lua_upvalueindex(5));
            return push_captures(&m, s, end);
        }
    }
    return 0;
}

static int string_gmatch(lua_State *L) {
    size_t bytes;
    luaL_checklstring(L, 1, &bytes);
    luaL_checkstring(L, 2);
    size_t start = start_of(L, 3, bytes);
    lua_settop(L, 2);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_pushinteger(L, (lua_Integer)(start > bytes ? bytes + 1 : start));
    lua_pushinteger(L, -1);
    lua_pushcclosure(L, gmatch_next, 5);
    return 1;
}

/* ---- gsub ---- */

/* The text that takes the place, with %0 to %9 and %% in it. */
static void add_text(struct matcher *m, luaL_Buffer *out, const unsigned char *s,
                     const unsigned char *end) {
    lua_State *L = m->L;
    size_t bytes;
    const char *text = lua_tolstring(L, 3, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] != '%') {
            luaL_addchar(out, text[i]);
            continue;
        }
        char c = ++i < bytes ? text[i] : '\0';
        if (c == '%') {
            luaL_addchar(out, '%');
        } else if (c == '0') {
            luaL_addlstring(out, (const char *)s, (size_t)(end - s));
        } else if (isdigit((unsigned char)c)) {
            push_capture(m, c - '1', s, end);
            luaL_tolstring(L, -1, NULL);
            lua_remove(L, -2);
            luaL_addvalue(out);
        } else {
            luaL_error(L, "invalid use of '%%' in replacement string");
        }
    }
}

/* False: the match stays as it is. */
static bool add_replacement(struct matcher *m, luaL_Buffer *out, const unsigned char *s,
                            const unsigned char *end, int type) {
    lua_State *L = m->L;
    if (type != LUA_TSTRING) {
        look(m); /* a function of C's has no instructions to be stopped at */
    }
    if (type == LUA_TFUNCTION) {
        lua_pushvalue(L, 3);
        int count = push_captures(m, s, end);
        lua_call(L, count, 1);
    } else if (type == LUA_TTABLE) {
        push_capture(m, 0, s, end);
        lua_gettable(L, 3);
    } else {
        add_text(m, out, s, end);
        return true;
    }
    if (!lua_toboolean(L, -1)) {
        lua_pop(L, 1);
        luaL_addlstring(out, (const char *)s, (size_t)(end - s));
        return false;
    }
    if (!lua_isstring(L, -1)) {
        luaL_error(L, "invalid replacement value (a %s)", luaL_typename(L, -1));
    }
    luaL_addvalue(out);
    return true;
}

static int string_gsub(lua_State *L) {
    size_t subject_bytes, pattern_bytes;
    const char *subject = luaL_checklstring(L, 1, &subject_bytes);
    const char *pattern = luaL_checklstring(L, 2, &pattern_bytes);
    int type = lua_type(L, 3);
    luaL_argexpected(L,
                     type == LUA_TNUMBER || type == LUA_TSTRING || type == LUA_TFUNCTION ||
                         type == LUA_TTABLE,
                     3, "string/function/table");
    lua_Integer count_max = luaL_optinteger(L, 4, (lua_Integer)subject_bytes + 1), count = 0;
    lua_settop(L, 3);
    if (type == LUA_TNUMBER) {
        luaL_tolstring(L, 3, NULL);
        lua_replace(L, 3);
    }
    struct matcher m;
    matcher_init(&m, L, subject, subject_bytes, pattern + pattern_bytes);
    bool is_anchored = pattern_bytes > 0 && pattern[0] == '^';
    const unsigned char *p = (const unsigned char *)pattern + is_anchored;
    const unsigned char *s = m.begin, *last_end = NULL;
    bool has_changed = false;
    luaL_Buffer out;
    luaL_buffinit(L, &out);
    while (count < count_max) {
        const unsigned char *end = match_anew(&m, s, p);
        if (end && end != last_end) {
            count++;
            has_changed |= add_replacement(&m, &out, s, end, type);
            s = last_end = end;
        } else if (s < m.end) {
            luaL_addchar(&out, (char)*s);
            s++;
        } else {
            break;
        }
        if (is_anchored) {
            break;
        }
    }
    if (has_changed) {
        luaL_addlstring(&out, (const char *)s, (size_t)(m.end - s));
        luaL_pushresult(&out);
    } else {
        luaL_pushresult(&out);
        lua_pushvalue(L, 1);
    }
    lua_pushinteger(L, count);
    return 2;
}

void gpu_pattern_functions_set(lua_State *L) {
    static const luaL_Reg functions[] = {{"find", string_find},
                                         {"match", string_match},
                                         {"gmatch", string_gmatch},
                                         {"gsub", string_gsub},
                                         {NULL, NULL}};
    gpu_lua_set_functions(L, functions);
}
