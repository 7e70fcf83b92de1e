/* Errors for the host: what gpulua_last_error answers and on_error is told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "binding/loop.h"

void gpu_lua_kept_error_clear(struct kept_error *kept) {
    free(kept->message);
    free(kept->source);
    free(kept->traceback);
    free(kept->hint);
    for (int i = 0; i < 2; i++) {
        free(kept->places[i].source);
        free(kept->places[i].caller);
    }
    memset(kept, 0, sizeof *kept);
}

gpulua_status gpu_lua_keep_error(struct gpulua *g, gpulua_status code, const char *message) {
    struct kept_error *kept = &g->last_error;
    gpu_lua_kept_error_clear(kept);
    kept->message = strdup(message);
    kept->view = (gpulua_error){
        .struct_bytes = sizeof kept->view,
        .code = code,
        .message = kept->message ? kept->message : "not enough memory",
        .hint = gpu_error_hint(code),
        .source = "",
        .traceback = "",
    };
    return code;
}

struct telling {
    struct gpulua *g;
    struct kept_error kept; /* not yet the last: a __tostring may tell of other errors meanwhile */
    bool is_text;           /* the traceback belongs to the message */
    bool is_call; /* the host's own: the message alone, not with all there is to say of it */
};

static char *copy_string(lua_State *L, int index) {
    const char *text = lua_tostring(L, index);
    return text ? strdup(text) : NULL;
}

/* An error of ours says all that there is, its traceback last: that has a place of its own. */
static void cut_traceback(struct kept_error *kept, const char *traceback) {
    size_t bytes = strlen(kept->message), last = strlen(traceback);
    if (bytes > last && kept->message[bytes - last - 1] == '\n' &&
        strcmp(kept->message + bytes - last, traceback) == 0) {
        kept->message[bytes - last - 1] = '\0';
        kept->traceback = strdup(traceback);
    }
}

/* "source" and "line" of the table on top. */
static char *copy_line(lua_State *L, int *line) {
    char *source = NULL;
    if (lua_getfield(L, -1, "line") == LUA_TNUMBER) {
        *line = (int)lua_tointeger(L, -1);
    }
    if (lua_getfield(L, -2, "source") == LUA_TSTRING) {
        source = copy_string(L, -1);
    }
    lua_pop(L, 2);
    return source;
}

static void copy_index(lua_State *L, const char *field, uint32_t *index) {
    if (lua_getfield(L, -1, field) == LUA_TTABLE) {
        for (int i = 0; i < 3; i++) {
            lua_rawgeti(L, -1, i + 1);
            index[i] = (uint32_t)lua_tointeger(L, -1);
            lua_pop(L, 1);
        }
    }
    lua_pop(L, 1);
}

/* What error.c has made of it, if nobody has changed that. */
static void copy_places(lua_State *L, struct kept_error *kept) {
    bool is_list = lua_getfield(L, 2, "places") == LUA_TTABLE;
    for (int i = 0; is_list && i < 2 && lua_rawgeti(L, 3, i + 1) == LUA_TTABLE; i++) {
        struct kept_place *place = &kept->places[i];
        place->view.struct_bytes = sizeof place->view;
        place->source = copy_line(L, &place->view.line);
        if (lua_getfield(L, -1, "caller") == LUA_TTABLE) {
            place->caller = copy_line(L, &place->view.caller_line);
        }
        lua_pop(L, 1);
        copy_index(L, "block", place->view.block);
        copy_index(L, "thread", place->view.thread);
        lua_pop(L, 1);
    }
}

static const gpulua_place *view_place(struct kept_place *place) {
    place->view.source = place->source ? place->source : "";
    place->view.caller = place->caller ? place->caller : "";
    return place->view.struct_bytes > 0 ? &place->view : NULL;
}

/* Stack: light userdata of a struct telling, the error. As Lua's interpreter words it. */
static int tell_protected(lua_State *L) {
    struct telling *telling = lua_touserdata(L, 1);
    struct kept_error *kept = &telling->kept;
    kept->view.code = gpu_lua_error_code(L, telling->g, 2);
    if (kept->view.code) {
        if (lua_getfield(L, 2, "hint") == LUA_TSTRING) {
            kept->hint = copy_string(L, -1);
        }
        if (lua_getfield(L, 2, "source") == LUA_TSTRING) {
            kept->source = copy_string(L, -1);
        }
        if (lua_getfield(L, 2, "line") == LUA_TNUMBER) {
            kept->view.line = (int)lua_tointeger(L, -1);
        }
        lua_settop(L, 2);
        copy_places(L, kept);
        lua_settop(L, 2);
    }
    if (kept->view.code && telling->is_call && lua_getfield(L, 2, "message") == LUA_TSTRING) {
        kept->message = copy_string(L, -1);
        return 0;
    }
    if (lua_type(L, 2) == LUA_TSTRING || lua_type(L, 2) == LUA_TNUMBER) {
        lua_pushvalue(L, 2);
        telling->is_text = true;
    } else if (luaL_callmeta(L, 2, "__tostring") && lua_type(L, -1) == LUA_TSTRING) {
        telling->is_text = false;
    } else {
        lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, 2));
        telling->is_text = true;
    }
    kept->message = copy_string(L, -1);
    if (kept->view.code && kept->message && lua_getfield(L, 2, "traceback") == LUA_TSTRING) {
        cut_traceback(kept, lua_tostring(L, -1));
    }
    return 0;
}

/* Lua's own errors have their place in front of the message, "script.lua:7: ", as others may that
 * only look so: it is one that the traceback has. */
static void keep_place(struct kept_error *kept, const char *traceback) {
    const char *text = kept->message;
    const char *colon = text ? strchr(text, ':') : NULL;
    for (; colon && colon - text < LUA_IDSIZE; colon = strchr(colon + 1, ':')) {
        size_t digits = strspn(colon + 1, "0123456789");
        char place[LUA_IDSIZE + 24];
        if (digits == 0 || digits > 9 || colon[1 + digits] != ':') {
            continue;
        }
        snprintf(place, sizeof place, "\t%.*s: in ", (int)(colon + 1 + digits - text), text);
        if (strstr(traceback, place)) {
            kept->source = strndup(text, (size_t)(colon - text));
            kept->view.line = (int)strtol(colon + 1, NULL, 10);
            return;
        }
    }
}

/* Pops the error. */
static void keep(struct gpulua *g, lua_State *L, const char *traceback, bool is_call) {
    struct telling telling = {.g = g, .is_call = is_call};
    struct kept_error *kept = &telling.kept;
    if (lua_checkstack(L, 8)) {
        lua_pushcfunction(L, tell_protected);
        lua_pushlightuserdata(L, &telling);
        lua_pushvalue(L, -3);
        lua_State *outer = gpu_lua_set_innermost(g, L); /* a __tostring of the script's may loop */
        int status = lua_pcall(L, 2, 0, 0);
        gpu_lua_set_innermost(g, outer);
        if (status != LUA_OK) {
            lua_pop(L, 1);
        }
        if (status == LUA_ERRRUN) {
            kept->message = strdup("(error object whose __tostring failed)");
        }
    }
    lua_pop(L, 1);
    if (telling.is_text && traceback) {
        keep_place(kept, traceback);
        kept->traceback = strdup(traceback);
    }
    if (kept->view.code == GPULUA_OK) {
        kept->view.code = GPULUA_INVALID_DATA;
    }
    kept->view.struct_bytes = sizeof kept->view;
    kept->view.message = kept->message ? kept->message : "not enough memory";
    kept->view.hint = kept->hint ? kept->hint : "";
    kept->view.source = kept->source ? kept->source : "";
    kept->view.traceback = kept->traceback ? kept->traceback : "";
    gpu_lua_kept_error_clear(&g->last_error);
    g->last_error = *kept;
    g->last_error.view.place = view_place(&g->last_error.places[0]);
    g->last_error.view.other_place = view_place(&g->last_error.places[1]);
}

gpulua_status gpu_lua_keep_raised(struct gpulua *g, lua_State *L) {
    keep(g, L, NULL, true);
    return g->last_error.view.code;
}

gpulua_status gpu_lua_keep_failure(struct gpulua *g, struct gpu_error *error) {
    gpulua_status status = gpu_lua_keep_error(g, error->code, error->message);
    gpu_error_finish(error);
    return status;
}

const gpulua_error *gpu_lua_keep_told(struct gpulua *g, lua_State *L, const char *traceback) {
    keep(g, L, traceback, false);
    return &g->last_error.view;
}

static const char told_key; /* registry: texts of what was told, once somebody asks for them */

/* Stack: the list, light userdata of the text. */
static int append_told(lua_State *L) {
    lua_pushstring(L, lua_touserdata(L, 2));
    lua_rawseti(L, 1, (lua_Integer)lua_rawlen(L, 1) + 1);
    return 0;
}

static void note_told(lua_State *L, const char *text) {
    if (!lua_checkstack(L, 3)) {
        return;
    }
    lua_pushcfunction(L, append_told);
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &told_key) != LUA_TTABLE) {
        lua_pop(L, 2);
        return;
    }
    lua_pushlightuserdata(L, (void *)text);
    int runs = lua_gc(L, LUA_GCISRUNNING);
    lua_gc(L, LUA_GCSTOP); /* a finaliser may tell of another error, and the text would go */
    if (lua_pcall(L, 2, 0, 0) != LUA_OK) {
        lua_pop(L, 1); /* no memory: it is told all the same */
    }
    if (runs) {
        lua_gc(L, LUA_GCRESTART);
    }
}

/* core.told() -> a list to which each error is appended that is told of from now on, in words. */
int gpu_lua_told(lua_State *L) {
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &told_key) != LUA_TTABLE) {
        lua_newtable(L);
        lua_pushvalue(L, -1);
        lua_rawsetp(L, LUA_REGISTRYINDEX, &told_key);
    }
    return 1;
}

void gpu_lua_tell(struct gpulua *g, lua_State *L, const char *traceback) {
    const gpulua_error *error = gpu_lua_keep_told(g, L, traceback);
    note_told(L, error->message);
    if (g->config.on_error) {
        g->config.on_error(g->config.user, error);
    } else {
        lua_warning(L, "gpulua: nobody saw this error: ", 1);
        lua_warning(L, error->message, 0);
    }
}
