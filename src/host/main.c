/* The interpreter: Lua's own, whose chunks run as tasks. Uses gpulua.h and the Lua API, nothing
 * internal. */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "gpulua.h"
#include "host/seeds.h"

static struct {
    const char *name;  /* of the program, in front of messages */
    gpulua *g;         /* for the signal handler */
    bool has_reported; /* an error that no task got */
    bool is_closing;
    volatile sig_atomic_t was_interrupted;
} program = {.name = "gpulua"};

struct options {
    int script; /* index in argv; argc: none */
    bool is_interactive, shows_version, ignores_environment, warns, has_chunks;
    const char *shows_info; /* "text", "json" or NULL */
    const char *device;
    gpulua_isolation isolation;
    bool is_checked, is_hashed;
    uint64_t check_seed;
    const char *seeds; /* a number, "all", or NULL */
};

/* ---- messages ---- */

static void say(const char *name, const char *message) {
    if (name) {
        fprintf(stderr, "%s: ", name);
    }
    fprintf(stderr, "%s\n", message);
    fflush(stderr);
}

static void on_error(void *user, const gpulua_error *error) {
    (void)user;
    program.has_reported = true;
    fprintf(stderr, "%s: %s\n%s%s", program.name, error->message, error->traceback,
            error->traceback[0] ? "\n" : "");
    fflush(stderr);
}

static void on_log(void *user, const char *line) {
    (void)user;
    fprintf(stderr, "%s: %s%s\n", program.name, line,
            program.is_closing ? " (Ctrl-C ends the program)" : "");
    fflush(stderr);
}

static void usage(const char *bad) {
    fprintf(stderr, "%s: ", program.name);
    if (bad[1] == 'e' || bad[1] == 'l') {
        fprintf(stderr, "'%s' needs argument\n", bad);
    } else {
        fprintf(stderr, "unrecognized option '%s'\n", bad);
    }
    fprintf(
        stderr,
        "usage: %s [options] [script [args]]\n"
        "Available options are:\n"
        "  -e stat   execute string 'stat'\n"
        "  -i        enter interactive mode after executing 'script'\n"
        "  -l mod    require library 'mod' into global 'mod'\n"
        "  -l g=mod  require library 'mod' into global 'g'\n"
        "  -v        show version information\n"
        "  -E        ignore environment variables\n"
        "  -W        turn warnings on\n"
        "  --        stop handling options\n"
        "  -         stop handling options and execute stdin\n"
        "  --device cpu|cuda|cuda:N  the device of scripts that do not say\n"
        "  --isolate process|none    whether a device lives in a process of its own\n"
        "  --check[=SEED]  CPU devices do their work in an order of that seed, and look for races\n"
        "  --check=hashes  looks for writes that are not declared; on GPUs --check does that\n"
        "  --seeds N|all   runs the script with N seeds, or in all orders, and compares\n"
        "  --info    show devices, libraries, limits, the cache (--info=json: as JSON)\n",
        program.name);
    fflush(stderr);
}

/* ---- options ---- */

/* Options of later versions get a message of their own. */
static bool is_of_later(const char *option) {
    static const char *const names[] = {"--trace", "--timeline", "--summary", "--flight"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t length = strlen(names[i]);
        if (strncmp(option, names[i], length) == 0 &&
            (option[length] == '\0' || option[length] == '=')) {
            return true;
        }
    }
    return false;
}

/* "--name VALUE" and "--name=VALUE"; NULL if argv[*i] is another option. *is_missing: no value. */
static const char *long_value(char **argv, int *i, const char *name, bool *is_missing) {
    size_t length = strlen(name);
    if (strncmp(argv[*i], name, length) != 0) {
        return NULL;
    }
    if (argv[*i][length] == '=') {
        return argv[*i] + length + 1;
    }
    if (argv[*i][length] != '\0') {
        return NULL;
    }
    if (!argv[*i + 1]) {
        *is_missing = true;
        return "";
    }
    return argv[++*i];
}

static bool set_isolation(struct options *options, const char *value) {
    if (strcmp(value, "process") == 0) {
        options->isolation = GPULUA_ISOLATE_PROCESS;
    } else if (strcmp(value, "none") == 0) {
        options->isolation = GPULUA_ISOLATE_NONE;
    } else {
        fprintf(stderr, "%s: --isolate: 'process' or 'none' expected, got '%s'\n", program.name,
                value);
        return false;
    }
    return true;
}

static bool set_check(struct options *options, const char *value) {
    char *end = NULL;
    errno = 0;
    options->is_checked = true;
    options->is_hashed = value && strcmp(value, "hashes") == 0;
    options->check_seed = value && !options->is_hashed ? strtoull(value, &end, 10) : 1;
    if (value && !options->is_hashed &&
        (value[0] < '0' || value[0] > '9' || *end != '\0' || errno != 0 ||
         options->check_seed > INT64_MAX)) {
        fprintf(
            stderr,
            "%s: --check: \"hashes\", or a seed, a whole number from 0 on, expected, got '%s'\n",
            program.name, value);
        return false;
    }
    return true;
}

static bool take_long(char **argv, int *i, struct options *options) {
    bool is_missing = false;
    const char *option = argv[*i];
    const char *value;
    if (strcmp(option, "--info") == 0) {
        options->shows_info = "text";
        return true;
    }
    if (strcmp(option, "--info=json") == 0) {
        options->shows_info = "json";
        return true;
    }
    if (strcmp(option, "--check") == 0 || strncmp(option, "--check=", 8) == 0) {
        return set_check(options, option[7] == '=' ? option + 8 : NULL);
    }
    if ((value = long_value(argv, i, "--seeds", &is_missing))) {
        options->seeds = value;
    } else if ((value = long_value(argv, i, "--device", &is_missing))) {
        options->device = value;
    } else if ((value = long_value(argv, i, "--isolate", &is_missing))) {
        if (!is_missing && !set_isolation(options, value)) {
            return false;
        }
    } else if (is_of_later(option)) {
        fprintf(stderr, "%s: '%s' is not in this version (%s)\n", program.name, option,
                gpulua_version());
        return false;
    } else {
        usage(option);
        return false;
    }
    if (is_missing) {
        fprintf(stderr, "%s: '%s' needs argument\n", program.name, option);
        return false;
    }
    return true;
}

/* False: something was wrong and has been said. */
static bool read_options(int argc, char **argv, struct options *options) {
    int i;
    for (i = 1; i < argc && argv[i][0] == '-'; i++) {
        const char *option = argv[i];
        if (option[1] == '\0') {
            break; /* "-": the script is standard input */
        }
        if (strcmp(option, "--") == 0) {
            i++;
            break;
        }
        if (option[1] == '-') {
            if (!take_long(argv, &i, options)) {
                return false;
            }
            continue;
        }
        bool is_long = option[2] != '\0';
        switch (option[1]) {
        case 'e':
        case 'l':
            options->has_chunks |= option[1] == 'e';
            if (!is_long && (!argv[i + 1] || argv[i + 1][0] == '-')) {
                usage(option);
                return false;
            }
            i += !is_long;
            continue;
        case 'i':
            options->is_interactive = true;
            options->shows_version = true;
            break;
        case 'v':
            options->shows_version = true;
            break;
        case 'E':
            options->ignores_environment = true;
            break;
        case 'W':
            options->warns = true;
            break;
        default:
            usage(option);
            return false;
        }
        if (is_long) {
            usage(option);
            return false;
        }
    }
    options->script = i < argc ? i : argc;
    return true;
}

/* ---- running a chunk as a task ---- */

static void on_interrupt(int number) {
    signal(number, SIG_DFL); /* a second one ends the program */
    program.was_interrupted = 1;
    gpulua_interrupt(program.g);
}

/* The message that Lua's interpreter would print for the error on top; replaces it. */
static void to_message(lua_State *L, int task) {
    bool has_traceback = true;
    if (!lua_isstring(L, -1)) {
        if (luaL_callmeta(L, -1, "__tostring") && lua_type(L, -1) == LUA_TSTRING) {
            has_traceback = false;
            lua_remove(L, -2);
        } else {
            lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, -1));
            lua_remove(L, -2);
        }
    }
    lua_getfield(L, task, "traceback");
    lua_pushvalue(L, task);
    lua_call(L, 1, 1);
    if (has_traceback && lua_isstring(L, -1)) {
        lua_pushliteral(L, "\n");
        lua_insert(L, -2);
        lua_concat(L, 3);
    } else {
        lua_pop(L, 1);
    }
}

static bool task_is_over(lua_State *L, int task) {
    lua_getfield(L, task, "done");
    lua_pushvalue(L, task);
    lua_call(L, 1, 1);
    bool is_over = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return is_over;
}

/* Runs tasks until `task` (an index; 0: all of them) is over. */
static void run_tasks(lua_State *L, int task) {
    void (*outer)(int) = signal(SIGINT, on_interrupt);
    while (task ? !task_is_over(L, task) : gpulua_tasks(program.g) > 0) {
        if (gpulua_step(program.g, -1) < 0) {
            break;
        }
    }
    signal(SIGINT, outer == SIG_ERR ? SIG_DFL : outer);
}

/* Stack: chunk, `arg_count` arguments. Replaces them with true and the results, or with false and a
 * message. Returns how many there are behind the boolean; -1: failed. */
static int run_chunk(lua_State *L, int arg_count) {
    int base = lua_gettop(L) - arg_count;
    program.was_interrupted = 0;
    lua_getfield(L, LUA_REGISTRYINDEX, "gpulua.spawn");
    lua_insert(L, base);
    lua_call(L, arg_count + 1, 1);
    run_tasks(L, base);
    lua_getfield(L, base, "join");
    lua_pushvalue(L, base);
    lua_call(L, 1, LUA_MULTRET);
    bool ok = lua_toboolean(L, base + 1);
    if (!ok) {
        lua_settop(L, base + 2);
        to_message(L, base);
    }
    lua_remove(L, base);
    return ok ? lua_gettop(L) - base : -1;
}

/* Status of loading on top of a chunk or a message: runs it without results. */
static bool do_chunk(lua_State *L, int status, int arg_count) {
    int base = lua_gettop(L) - (status == LUA_OK ? arg_count : 0);
    bool ok = false;
    if (status == LUA_OK) {
        ok = run_chunk(L, arg_count) >= 0;
    }
    if (!ok) {
        say(program.name,
            lua_isstring(L, -1) ? lua_tostring(L, -1) : "(error message not a string)");
    }
    lua_settop(L, base - 1);
    return ok;
}

static bool do_string(lua_State *L, const char *text, const char *name) {
    return do_chunk(L, luaL_loadbuffer(L, text, strlen(text), name), 0);
}

static bool do_file(lua_State *L, const char *path) {
    return do_chunk(L, luaL_loadfile(L, path), 0);
}

/* A task of its own, so that modules may wait in their main chunks where require allows it. */
static bool do_library(lua_State *L, const char *text) {
    const char *equals = strchr(text, '=');
    const char *name = equals ? equals + 1 : text;
    lua_getglobal(L, "require");
    lua_pushstring(L, name);
    int count = run_chunk(L, 1);
    if (count < 0) {
        say(program.name, lua_tostring(L, -1));
        lua_pop(L, 2);
        return false;
    }
    lua_settop(L, lua_gettop(L) - count + 1); /* true, the module */
    if (equals) {
        lua_pushlstring(L, text, (size_t)(equals - text));
    } else {
        lua_pushstring(L, text);
    }
    lua_insert(L, -2);
    lua_pushglobaltable(L);
    lua_insert(L, -3);
    lua_settable(L, -3);
    lua_pop(L, 2);
    return true;
}

static bool run_chunks(lua_State *L, char **argv, int count) {
    for (int i = 1; i < count; i++) {
        char kind = argv[i][0] == '-' ? argv[i][1] : '\0';
        if (kind == '-' && strchr(argv[i], '=') == NULL && strncmp(argv[i], "--info", 6) != 0 &&
            strcmp(argv[i], "--check") != 0 && argv[i][2]) {
            i++; /* the value of a long option */
        } else if (kind == 'e' || kind == 'l') {
            const char *text = argv[i][2] ? argv[i] + 2 : argv[++i];
            bool ok = kind == 'e' ? do_string(L, text, "=(command line)") : do_library(L, text);
            if (!ok) {
                return false;
            }
        } else if (kind == 'W') {
            lua_warning(L, "@on", 0);
        }
    }
    return true;
}

static bool run_script(lua_State *L, int argc, char **argv, const struct options *options) {
    const char *path = argv[options->script];
    if (strcmp(path, "-") == 0 && strcmp(argv[options->script - 1], "--") != 0) {
        path = NULL;
    }
    int arg_count = argc - options->script - 1;
    int status = luaL_loadfile(L, path);
    if (status == LUA_OK) {
        luaL_checkstack(L, arg_count + 4, "too many arguments to script");
        for (int i = 1; i <= arg_count; i++) {
            lua_pushstring(L, argv[options->script + i]);
        }
    }
    return do_chunk(L, status, arg_count);
}

static bool run_init(lua_State *L) {
    const char *name = "=LUA_INIT_5_4";
    const char *text = getenv(name + 1);
    if (!text) {
        name = "=LUA_INIT";
        text = getenv(name + 1);
    }
    if (!text) {
        return true;
    }
    return text[0] == '@' ? do_file(L, text + 1) : do_string(L, text, name);
}

/* ---- interactive ---- */

static bool read_line(lua_State *L, bool is_first) {
    char *line = NULL;
    size_t capacity = 0;
    lua_getglobal(L, is_first ? "_PROMPT" : "_PROMPT2");
    const char *prompt = lua_isnil(L, -1) ? NULL : luaL_tolstring(L, -1, NULL);
    fputs(prompt ? prompt : is_first ? "> " : ">> ", stdout);
    fflush(stdout);
    ssize_t length = getline(&line, &capacity, stdin);
    if (length < 0) {
        free(line);
        return false;
    }
    if (length > 0 && line[length - 1] == '\n') {
        length--;
    }
    if (is_first && length > 0 && line[0] == '=') {
        lua_pushliteral(L, "return ");
        lua_pushlstring(L, line + 1, (size_t)length - 1);
        lua_concat(L, 2);
    } else {
        lua_pushlstring(L, line, (size_t)length);
    }
    free(line);
    return true;
}

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

/* Leaves a chunk or a message. -1: the input is over. */
static int read_chunk(lua_State *L) {
    lua_settop(L, 0);
    if (!read_line(L, true)) {
        return -1;
    }
    lua_replace(L, 1);
    lua_settop(L, 1);
    /* An expression first: its values are shown. */
    const char *expression = lua_pushfstring(L, "return %s", lua_tostring(L, 1));
    if (luaL_loadbuffer(L, expression, strlen(expression), "=stdin") == LUA_OK) {
        lua_replace(L, 1);
        lua_settop(L, 1);
        return LUA_OK;
    }
    lua_settop(L, 1);
    for (;;) {
        size_t length;
        const char *text = lua_tolstring(L, 1, &length);
        int status = luaL_loadbuffer(L, text, length, "=stdin");
        if (!is_incomplete(L, status) || !read_line(L, false)) {
            lua_replace(L, 1);
            lua_settop(L, 1);
            return status;
        }
        lua_replace(L, 2); /* the further line */
        lua_settop(L, 2);
        lua_pushliteral(L, "\n");
        lua_insert(L, 2);
        lua_concat(L, 3);
    }
}

static void show_results(lua_State *L, int count) {
    if (count == 0) {
        return;
    }
    luaL_checkstack(L, LUA_MINSTACK, "too many results to print");
    lua_getglobal(L, "print");
    lua_insert(L, -(count + 1));
    if (lua_pcall(L, count, 0, 0) != LUA_OK) {
        say(program.name, lua_pushfstring(L, "error calling 'print' (%s)", lua_tostring(L, -1)));
    }
}

static void interact(lua_State *L) {
    int status;
    const char *name = program.name;
    program.name = NULL;
    while ((status = read_chunk(L)) != -1) {
        int count = status == LUA_OK ? run_chunk(L, 0) : -1;
        if (count >= 0) {
            show_results(L, count);
        } else {
            say(NULL, lua_isstring(L, -1) ? lua_tostring(L, -1) : "(error message not a string)");
        }
    }
    lua_settop(L, 0);
    putchar('\n');
    fflush(stdout);
    program.name = name;
}

/* ---- version and info ---- */

/* Stack unchanged. Calls gpu.device(name) in a task, since opening one may take a while. */
static bool open_device(lua_State *L, const char *name) {
    if (luaL_loadstring(L, "return require('gpulua').device(...)") != LUA_OK) {
        return false;
    }
    if (name) {
        lua_pushstring(L, name);
    }
    return run_chunk(L, name ? 1 : 0) == 1;
}

/* gpulua.info's text() or json(). */
static void show_info(lua_State *L, const char *format) {
    int top = lua_gettop(L);
    if (luaL_loadstring(L, "return require('gpulua.info')[...]()") == LUA_OK) {
        lua_pushstring(L, format);
        if (run_chunk(L, 1) == 1) {
            printf("%s\n", lua_tostring(L, -1));
        }
    }
    lua_settop(L, top);
}

static void show_version(lua_State *L, const struct options *options) {
    puts(LUA_COPYRIGHT);
    if (options->is_interactive) {
        printf("gpulua %s\n", gpulua_version());
        return;
    }
    int top = lua_gettop(L);
    bool ok = open_device(L, NULL);
    if (ok) {
        lua_getfield(L, -1, "name");
    }
    printf("gpulua %s, device %s\n", gpulua_version(), ok ? lua_tostring(L, -1) : "none");
    fflush(stdout);
    lua_settop(L, top);
}

/* ---- os.exit ---- */

/* What closes the devices follows. A kernel that never ends holds it up where it runs in this
 * process: then Ctrl-C ends the program. */
static void begin_close(void) {
    program.is_closing = true;
    signal(SIGINT, SIG_DFL);
}

/* Upvalues: core.shutdown. Closes what Lua's own leaves open in coroutines, then exits as it. */
static int exit_program(lua_State *L) {
    int status = lua_isboolean(L, 1) ? (lua_toboolean(L, 1) ? EXIT_SUCCESS : EXIT_FAILURE)
                                     : (int)luaL_optinteger(L, 1, EXIT_SUCCESS);
    bool closes = lua_toboolean(L, 2);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_State *main = gpulua_state(program.g);
    begin_close();
    if (L != main) {
        /* From here on this coroutine's stack is empty: we only go forward, to exit. */
        lua_xmove(L, main, 1);
        lua_resetthread(L);
    }
    if (lua_pcall(main, 0, 0, 0) != LUA_OK) {
        lua_pop(main, 1);
    }
    if (program.has_reported && status == EXIT_SUCCESS) {
        status = EXIT_FAILURE;
    }
    if (closes) {
        lua_close(main);
    }
    exit(status);
}

/* ---- start ---- */

static void set_arg(lua_State *L, int argc, char **argv, int script) {
    if (script == argc) {
        script = 0; /* no script: the interpreter's name is the 0th */
    }
    lua_createtable(L, argc - script - 1 > 0 ? argc - script - 1 : 0, script + 1);
    for (int i = 0; i < argc; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i - script);
    }
    lua_setglobal(L, "arg");
}

/* Stack: nothing. Spawn is what runs chunks; the rest makes the state the interpreter's. */
static void take_over(lua_State *L) {
    luaopen_gpulua_core(L);
    lua_getfield(L, -1, "spawn");
    lua_setfield(L, LUA_REGISTRYINDEX, "gpulua.spawn");
    lua_getfield(L, -1, "adopt_coroutines");
    lua_call(L, 0, 0);
    if (lua_getglobal(L, LUA_OSLIBNAME) == LUA_TTABLE) {
        lua_getfield(L, -2, "shutdown");
        lua_pushcclosure(L, exit_program, 1);
        lua_setfield(L, -2, "exit");
    }
    lua_pop(L, 2);
}

static void config_from(struct options *options, gpulua_config *config) {
    gpulua_config_init(config);
    config->device = options->device;
    config->isolation = options->isolation;
    config->check = options->is_hashed ? 2 : options->is_checked;
    config->check_seed = options->check_seed;
    config->on_error = on_error;
    config->on_log = on_log;
}

static int run_seeds(lua_State *L, int argc, char **argv, const struct options *options) {
    bool ok = true;
    if ((options->script == argc && !options->has_chunks) || options->is_interactive ||
        (options->script < argc && strcmp(argv[options->script], "-") == 0)) {
        say(program.name, "--seeds: a script expected, which can be run again and again");
        return 0;
    }
    if (options->is_hashed) {
        say(program.name, "--seeds: not with --check=hashes, which decides nothing about the order "
                          "of work");
        return 0;
    }
    int code = host_seeds_run(L, argc, argv, options->seeds,
                              options->is_checked ? options->check_seed : 1, &ok);
    if (!ok) {
        return lua_error(L);
    }
    lua_pushboolean(L, code == EXIT_SUCCESS);
    return 1;
}

/* Stack: argc, argv. Returns whether all went well. */
static int run(lua_State *L) {
    int argc = (int)lua_tointeger(L, 1);
    char **argv = lua_touserdata(L, 2);
    struct options options = {0};
    gpulua_config config;
    luaL_checkversion(L);
    lua_settop(L, 0);
    if (!read_options(argc, argv, &options)) {
        return 0;
    }
    if (options.ignores_environment) {
        lua_pushboolean(L, 1);
        lua_setfield(L, LUA_REGISTRYINDEX, "LUA_NOENV");
    }
    luaL_openlibs(L);
    config_from(&options, &config);
    program.g = gpulua_attach(L, &config);
    if (!program.g) {
        return luaL_error(L, "%s", gpulua_last_error(NULL)->message);
    }
    take_over(L);
    set_arg(L, argc, argv, options.script);
    lua_gc(L, LUA_GCGEN, 0, 0);
    if (options.seeds) {
        return run_seeds(L, argc, argv, &options);
    }
    if (options.shows_version) {
        show_version(L, &options);
    }
    if (options.shows_info) {
        show_info(L, options.shows_info);
    }
    if (!options.ignores_environment && !run_init(L)) {
        return 0;
    }
    if (!run_chunks(L, argv, options.script)) {
        return 0;
    }
    bool has_script = options.script < argc;
    if (has_script && !run_script(L, argc, argv, &options)) {
        return 0;
    }
    if (options.is_interactive) {
        interact(L);
    } else if (!has_script && !options.has_chunks && !options.shows_version &&
               !options.shows_info) {
        if (isatty(STDIN_FILENO)) {
            show_version(L, &(struct options){.is_interactive = true});
            interact(L);
        } else if (!do_file(L, NULL)) {
            /* Like Lua's interpreter: the message was enough. */
        }
    }
    run_tasks(L, 0);
    lua_pushboolean(L, 1);
    return 1;
}

int main(int argc, char **argv) {
    lua_State *L = luaL_newstate();
    if (argc > 0 && argv[0] && argv[0][0]) {
        program.name = argv[0];
    }
    if (!L) {
        say(program.name, "cannot create state: not enough memory");
        return EXIT_FAILURE;
    }
    lua_pushcfunction(L, run);
    lua_pushinteger(L, argc);
    lua_pushlightuserdata(L, argv);
    int status = lua_pcall(L, 2, 1, 0);
    bool ok = lua_toboolean(L, -1);
    if (status != LUA_OK) {
        const char *message = lua_tostring(L, -1);
        say(program.name, message ? message : "(error object is not a string)");
        ok = false;
    }
    begin_close();
    if (!ok && program.was_interrupted) {
        gpulua_interrupt(program.g); /* so that it does not wait for what may end by itself */
    }
    gpulua_close(program.g);
    lua_close(L);
    return ok && !program.has_reported ? EXIT_SUCCESS : EXIT_FAILURE;
}
