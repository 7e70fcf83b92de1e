#include "interpreter/seeds.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lauxlib.h>

extern char **environ;

static int fail(lua_State *L, const char *what, int code) {
    return luaL_error(L, "%s: %s", what, strerror(code));
}

/* The environment with the assignments at `index` (a list of "NAME=value") in it, malloc'ed as one
 * array; the strings are borrowed. */
static const char **environment(lua_State *L, int index) {
    size_t given = (size_t)lua_rawlen(L, index), count = 0;
    while (environ[count]) {
        count++;
    }
    const char **made = malloc((count + given + 1) * sizeof *made);
    if (!made) {
        return NULL;
    }
    size_t used = 0;
    for (size_t i = 1; i <= given; i++) {
        lua_rawgeti(L, index, (lua_Integer)i);
        made[used++] = lua_tostring(L, -1); /* the table keeps it */
        lua_pop(L, 1);
    }
    for (size_t i = 0; i < count; i++) {
        const char *equals = strchr(environ[i], '=');
        size_t length = equals ? (size_t)(equals - environ[i]) + 1 : strlen(environ[i]);
        bool is_given = false;
        for (size_t k = 0; k < given && !is_given; k++) {
            is_given = strncmp(made[k], environ[i], length) == 0;
        }
        if (!is_given) {
            made[used++] = environ[i];
        }
    }
    made[used] = NULL;
    return made;
}

/* spawn({argument, ...}, {"NAME=value", ...}, file for its output, file for its errors) -> exit
 * code, or the number of the signal that ended it and "signal". Waits for it. */
static int spawn(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_checktype(L, 2, LUA_TTABLE);
    const char *out = luaL_checkstring(L, 3), *err = luaL_checkstring(L, 4);
    size_t count = (size_t)lua_rawlen(L, 1);
    char **argv = lua_newuserdatauv(L, (count + 1) * sizeof *argv, 0);
    for (size_t i = 0; i < count; i++) {
        lua_rawgeti(L, 1, (lua_Integer)i + 1);
        argv[i] = (char *)(uintptr_t)lua_tostring(L, -1);
        lua_pop(L, 1);
    }
    argv[count] = NULL;
    const char **env = environment(L, 2);
    if (!env) {
        return luaL_error(L, "not enough memory");
    }
    posix_spawn_file_actions_t actions;
    pid_t pid = 0;
    int status = 0;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out, O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err, O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
    int code = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, (char *const *)env);
    posix_spawn_file_actions_destroy(&actions);
    free(env);
    if (code != 0) {
        return fail(L, "cannot start a run", code);
    }
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) {
            return fail(L, "cannot wait for a run", errno);
        }
    }
    if (WIFSIGNALED(status)) {
        lua_pushinteger(L, WTERMSIG(status));
        lua_pushliteral(L, "signal");
        return 2;
    }
    lua_pushinteger(L, WEXITSTATUS(status));
    return 1;
}

/* folder() -> a new one of our own */
static int make_folder(lua_State *L) {
    const char *base = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/gpulua-seeds-XXXXXX", base && base[0] ? base : "/tmp");
    if (!mkdtemp(path)) {
        return fail(L, path, errno);
    }
    lua_pushstring(L, path);
    return 1;
}

/* What a run gets: all but --seeds and --check. */
static void push_arguments(lua_State *L, int argc, char **argv) {
    lua_createtable(L, argc, 0);
    bool is_option = true;
    for (int i = 0, count = 0; i < argc; i++) {
        is_option = is_option && (i == 0 || (argv[i][0] == '-' && strcmp(argv[i], "--") != 0));
        if (i > 0 && is_option) {
            if (strcmp(argv[i], "--seeds") == 0) {
                i++;
                continue;
            }
            if (strncmp(argv[i], "--seeds=", 8) == 0 || strcmp(argv[i], "--check") == 0 ||
                strncmp(argv[i], "--check=", 8) == 0) {
                continue;
            }
        }
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, ++count);
        bool takes_value = is_option && i > 0 && argv[i + 1] &&
                           (strcmp(argv[i], "--device") == 0 || strcmp(argv[i], "--isolate") == 0 ||
                            strcmp(argv[i], "-e") == 0 || strcmp(argv[i], "-l") == 0);
        if (takes_value) {
            lua_pushstring(L, argv[++i]);
            lua_rawseti(L, -2, ++count);
        }
    }
}

int seeds_run(lua_State *L, int argc, char **argv, const char *count, uint64_t first, bool *ok) {
    static const luaL_Reg functions[] = {{"spawn", spawn}, {"folder", make_folder}, {NULL, NULL}};
    int top = lua_gettop(L);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "gpulua.seeds");
    *ok = lua_pcall(L, 1, 1, 0) == LUA_OK;
    if (!*ok) {
        return EXIT_FAILURE;
    }
    lua_getfield(L, -1, "main");
    lua_createtable(L, 0, 5);
    luaL_setfuncs(L, functions, 0);
    push_arguments(L, argc, argv);
    lua_setfield(L, -2, "arguments");
    lua_pushstring(L, count);
    lua_setfield(L, -2, "count");
    lua_pushinteger(L, (lua_Integer)first);
    lua_setfield(L, -2, "first");
    *ok = lua_pcall(L, 1, 1, 0) == LUA_OK;
    if (!*ok) {
        return EXIT_FAILURE;
    }
    int code = (int)lua_tointeger(L, -1);
    lua_settop(L, top);
    return code;
}
