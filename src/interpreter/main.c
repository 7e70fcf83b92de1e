/* The interpreter: Lua's own, whose chunks run as tasks. Uses gpulua.h and the Lua API, of what is
 * internal only its memory and how text is made safe to show. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "gpulua.h"
#include "host/heap.h"
#include "interpreter/options.h"
#include "interpreter/program.h"
#include "interpreter/seeds.h"
#include "ranges/ranges.h"

struct program program = {.name = "gpulua"};

/* ---- messages ---- */

void program_put(FILE *stream, const char *text, size_t byte_count) {
    enum { PIECE_BYTES = 255 };
    char shown[3 * PIECE_BYTES + 1];
    const char *end = text + byte_count;
    if (!isatty(stream == stdout ? STDOUT_FILENO : STDERR_FILENO)) {
        fwrite(text, 1, byte_count, stream);
        return;
    }
    while (text < end) {
        const char *from = text;
        while (text < end && *text != '\n' && *text != '\t' && text - from < PIECE_BYTES) {
            text++;
        }
        for (int i = 0; text - from == PIECE_BYTES - i && i < 3 && (*text & 0xc0) == 0x80; i++) {
            text--; /* not within a character */
        }
        size_t length = gpu_range_text(shown, sizeof shown, from, (size_t)(text - from));
        fwrite(shown, 1, length, stream);
        for (; text < end && (*text == '\n' || *text == '\t'); text++) {
            fputc(*text, stream);
        }
    }
}

static void end_line(void) {
    if (program.line_is_open) {
        program.line_is_open = false;
        fputc('\n', stderr);
    }
}

static void say_behind(const char *name, const char *message, const char *behind) {
    end_line();
    if (name) {
        program_put(stderr, name, strlen(name));
        fputs(": ", stderr);
    }
    program_put(stderr, message, strlen(message));
    fprintf(stderr, "%s\n", behind);
    fflush(stderr);
}

void program_say(const char *name, const char *message) {
    say_behind(name, message, "");
}

static void on_error(void *user, const gpulua_error *error) {
    (void)user;
    program.has_reported = true;
    program_say(program.name, error->message);
    if (error->traceback[0]) {
        program_say(NULL, error->traceback);
    }
}

static void on_log(void *user, const char *line) {
    (void)user;
    bool is_waiting = program.is_closing && !program.end_signal;
    say_behind(program.name, line, is_waiting ? " (Ctrl-C ends the program)" : "");
    if (is_waiting) {
        alarm(0); /* that is what it waits for */
    }
}

/* ---- what the command line asks for ---- */

static bool run_chunks(lua_State *L, char **argv, int count) {
    for (int i = 1; i < count; i++) {
        char kind = argv[i][0] == '-' ? argv[i][1] : '\0';
        if (kind == '-' && options_wants_value(argv[i])) {
            i++; /* the value of a long option */
        } else if (kind == 'e' || kind == 'l') {
            const char *text = argv[i][2] ? argv[i] + 2 : argv[++i];
            bool ok = kind == 'e' ? chunk_do_string(L, text, "=(command line)")
                                  : chunk_do_library(L, text);
            if (!ok) {
                return false;
            }
        } else if (kind == 'W') {
            lua_warning(L, "@on", 0);
        }
    }
    return true;
}

/* The script's arguments are what the table arg has when its turn comes, as with lua. */
static int push_arguments(lua_State *L) {
    if (lua_getglobal(L, "arg") != LUA_TTABLE) {
        return luaL_error(L, "'arg' is not a table");
    }
    lua_Integer count = luaL_len(L, -1);
    luaL_argcheck(L, count < INT_MAX - 3, 1, "too many arguments to script");
    count = count > 0 ? count : 0;
    luaL_checkstack(L, (int)count + 3, "too many arguments to script");
    for (lua_Integer i = 1; i <= count; i++) {
        lua_rawgeti(L, 1, i);
    }
    lua_remove(L, 1);
    return (int)count;
}

static bool run_script(lua_State *L, const char *const *argv, const struct options *options) {
    const char *path = argv[options->script];
    if (strcmp(path, "-") == 0 && strcmp(argv[options->script - 1], "--") != 0) {
        path = NULL;
    }
    int base = lua_gettop(L) + 1;
    int status = luaL_loadfile(L, path);
    if (status == LUA_OK) {
        lua_pushcfunction(L, push_arguments);
        status = lua_pcall(L, 0, LUA_MULTRET, 0);
        if (status != LUA_OK) {
            lua_remove(L, base);
        }
    }
    return chunk_do(L, status, status == LUA_OK ? lua_gettop(L) - base : 0);
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
    return text[0] == '@' ? chunk_do_file(L, text + 1) : chunk_do_string(L, text, name);
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
    return chunk_run(L, name ? 1 : 0) == 1;
}

/* The text on top, and a line's end. False: it could not be written, which has been told. */
static bool print_text(lua_State *L) {
    size_t byte_count;
    const char *shown = lua_tolstring(L, -1, &byte_count);
    program_put(stdout, shown, byte_count);
    putchar('\n');
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return true;
    }
    char text[160];
    snprintf(text, sizeof text, "what there is to show cannot be written: %s", strerror(errno));
    program_say(program.name, text);
    return false;
}

/* Runs what gives the text to show, whose arguments are on top. False: there is nothing to show,
 * and why has been told. */
static bool show(lua_State *L, const char *chunk, int arg_count) {
    int base = lua_gettop(L) - arg_count, count = -1;
    if (luaL_loadstring(L, chunk) == LUA_OK) {
        lua_insert(L, base + 1);
        count = chunk_run(L, arg_count);
    }
    bool ok = count == 1;
    if (ok) {
        ok = print_text(L);
    } else {
        program_say(program.name, luaL_tolstring(L, -1, NULL));
    }
    lua_settop(L, base);
    return ok;
}

static bool show_kernels(lua_State *L, const char *path, bool shows_code) {
    lua_pushstring(L, path);
    lua_pushboolean(L, shows_code);
    return show(L, "return require('gpulua.kernel_facts').try(...)", 2);
}

static bool show_info(lua_State *L, const char *format) {
    lua_pushstring(L, format);
    return show(L, "return require('gpulua.info')[...]()", 1);
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

#define LONG_CLOSE_SECONDS 4

/* Of work in flight a line says what it is; of what a lost device has left behind nobody knows. */
static void on_long_close(int number) {
    static const char text[] = ": the devices are not closed yet; a kernel of one that is lost or "
                               "closed may still run (Ctrl-C ends the program)\n";
    (void)number;
    int saved = errno;
    ssize_t put = write(STDERR_FILENO, program.name, strlen(program.name));
    put = put < 0 ? put : write(STDERR_FILENO, text, sizeof text - 1);
    errno = saved;
}

/* What closes the devices follows. A kernel that never ends holds it up where it runs in this
 * process: then Ctrl-C ends the program. */
static void begin_close(void) {
    program.is_closing = true;
    signal(SIGINT, SIG_DFL);
    if (!ending_close()) {
        signal(SIGALRM, on_long_close);
        alarm(LONG_CLOSE_SECONDS);
    }
}

/* Lua's own or that of gpulua's modules, whatever the script has made of it. */
static void restore_require(lua_State *L) {
    lua_pushglobaltable(L);
    lua_pushliteral(L, "require");
    lua_getfield(L, LUA_REGISTRYINDEX, "gpulua.require");
    lua_rawset(L, -3);
    lua_pop(L, 1);
}

/* Stack: arguments of the chunk, which are popped. False: an error, which has been told. */
static bool run_at_end(lua_State *L, const char *chunk, int arg_count) {
    bool ok = lua_checkstack(L, 8);
    if (ok) {
        restore_require(L);
    }
    if (!ok || luaL_loadstring(L, chunk) != LUA_OK) {
        lua_pop(L, arg_count + ok);
        return false;
    }
    lua_insert(L, -arg_count - 1);
    if (lua_pcall(L, arg_count, 0, 0) == LUA_OK) {
        return true;
    }
    const char *message = luaL_tolstring(L, -1, NULL);
    program_say(program.name, message);
    lua_pop(L, 2);
    return false;
}

/* With --flight: of devices that are still open, if none was lost. False: it could not be written.
 */
static bool write_flight(lua_State *L) {
    return !program.keeps_flight || run_at_end(L, "require('gpulua.flight').finish()", 0);
}

/* With --trace and --summary: once, of what the script has done. False: it could not be written. */
static bool write_trace(lua_State *L) {
    bool is_wanted =
        lua_checkstack(L, 8) && (program.trace || program.timeline || program.summarizes);
    if (!is_wanted) {
        return true;
    }
    lua_pushstring(L, program.trace);
    lua_pushstring(L, program.timeline);
    lua_pushboolean(L, program.summarizes);
    lua_pushboolean(L, program.was_interrupted || program.end_signal);
    program.trace = program.timeline = NULL;
    program.summarizes = false;
    return run_at_end(L, "require('gpulua.trace').finish(...)", 4);
}

/* In check mode, when nothing of the script is left but what it has put somewhere. Runs of --seeds
 * are compared, and say nothing. */
static bool reports_leaks(void) {
    return program.checks && !getenv("GPULUA_CHECK_LOG");
}

static int report_leaks(lua_State *L) {
    bool is_closing = program.is_closing; /* then a line is about what holds that up */
    program.is_closing = false;
    lua_settop(L, 0);
    (void)run_at_end(L, "require('gpulua.memory_map').report_leaks()", 0);
    program.is_closing = is_closing;
    return 0;
}

/* Upvalues: core.shutdown, core.end_hook. Closes what Lua's own leaves open in coroutines, then
 * exits as it. */
static int exit_program(lua_State *L) {
    int status = lua_isboolean(L, 1) ? (lua_toboolean(L, 1) ? EXIT_SUCCESS : EXIT_FAILURE)
                                     : (int)luaL_optinteger(L, 1, EXIT_SUCCESS);
    bool closes = lua_toboolean(L, 2);
    end_line();
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_State *main = gpulua_state(program.g);
    lua_pushvalue(L, lua_upvalueindex(2));
    lua_call(L, 0, 0);
    ending_begin();
    bool is_written = write_flight(L);
    is_written = write_trace(L) && is_written;
    if (!is_written && status == EXIT_SUCCESS) {
        status = EXIT_FAILURE;
    }
    begin_close();
    if (L != main) {
        /* From here on this coroutine's stack is empty: we only go forward, to exit. */
        lua_xmove(L, main, 1);
        lua_resetthread(L);
    }
    bool has_report = status == EXIT_SUCCESS && reports_leaks();
    if (has_report) {
        lua_pushcfunction(main, report_leaks);
    }
    if (lua_pcall(main, has_report, 0, 0) != LUA_OK) {
        lua_pop(main, 1);
    }
    if (program.is_left) { /* it has no status of its own */
        ending_finish();
    }
    if (program.has_reported && status == EXIT_SUCCESS) {
        status = EXIT_FAILURE;
    }
    if (closes) {
        lua_close(main);
    }
    exit(status);
}

/* Upvalue: exit_program. What interrupts the script has come to it. */
static int on_interrupted(lua_State *L) {
    lua_Debug ar = {.currentline = -1};
    if (!ending_is_overdue()) {
        return 0;
    }
    program.is_left = 1;
    luaL_checkstack(L, LUA_MINSTACK, NULL);
    for (int level = 1; ar.currentline <= 0 && lua_getstack(L, level, &ar); level++) {
        lua_getinfo(L, "Sl", &ar);
    }
    if (ar.currentline > 0) {
        lua_pushfstring(L, "%s:%d: ", ar.short_src, ar.currentline);
    } else {
        lua_pushliteral(L, "");
    }
    program_say(program.name,
                lua_pushfstring(L, "%sended by signal %d (%s)", lua_tostring(L, -1),
                                (int)program.end_signal, strsignal(program.end_signal)));
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_call(L, 0, 0);
    return 0;
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
    output_take_over(L);
    lua_getglobal(L, "require");
    lua_setfield(L, LUA_REGISTRYINDEX, "gpulua.require");
    lua_pushlightuserdata(L, &program.line_is_open);
    lua_setfield(L, LUA_REGISTRYINDEX, "gpulua.line_is_open");
    luaopen_gpulua_core(L);
    lua_getfield(L, -1, "spawn");
    lua_setfield(L, LUA_REGISTRYINDEX, "gpulua.spawn");
    lua_getfield(L, -1, "spawn_typed");
    lua_setfield(L, LUA_REGISTRYINDEX, "gpulua.spawn_typed");
    lua_getfield(L, -1, "adopt_coroutines");
    lua_call(L, 0, 0);
    lua_getfield(L, -1, "hold_calls");
    lua_call(L, 0, 0);
    lua_getfield(L, -1, "shutdown");
    lua_getfield(L, -2, "end_hook");
    lua_pushcclosure(L, exit_program, 2);
    lua_pushvalue(L, -1);
    lua_pushcclosure(L, on_interrupted, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, "gpulua.interrupted");
    if (lua_getglobal(L, LUA_OSLIBNAME) == LUA_TTABLE) {
        lua_pushvalue(L, -2);
        lua_setfield(L, -2, "exit");
    }
    lua_pop(L, 3);
}

static void config_from(struct options *options, gpulua_config *config) {
    gpulua_config_init(config);
    config->device = options->device;
    config->isolation = options->isolation;
    config->check = options->is_hashed ? 2 : options->is_checked;
    config->check_seed = options->check_seed;
    config->flight_path = options->flight;
    config->trace = options->trace || options->timeline || options->summarizes;
    config->on_error = on_error;
    config->on_log = on_log;
}

static int run_seeds(lua_State *L, int argc, char **argv, const struct options *options) {
    bool ok = true;
    if ((options->script == argc && !options->has_chunks) || options->is_interactive ||
        (options->script < argc && strcmp(argv[options->script], "-") == 0)) {
        program_say(program.name, "--seeds: a script expected, which can be run again and again");
        return 0;
    }
    if (options->trace || options->timeline || options->summarizes) {
        program_say(program.name, "--seeds: not with --trace, --timeline or --summary: in check "
                                  "mode, where the runs are, nothing has a time");
        return 0;
    }
    if (options->is_hashed) {
        program_say(program.name, "--seeds: not with --check=hashes, which decides nothing about "
                                  "the order of work");
        return 0;
    }
    int code = seeds_run(L, argc, argv, options->seeds,
                         options->is_checked ? options->check_seed : 1, &ok);
    if (!ok) {
        return lua_error(L);
    }
    lua_pushboolean(L, code == EXIT_SUCCESS);
    return 1;
}

/* Leaves whether nothing was found. */
static int run_replay(lua_State *L, const struct options *options, int argc) {
    bool is_well = false;
    if (options->script < argc || options->has_chunks || options->is_interactive) {
        program_say(program.name, "--replay: nothing to run beside it expected");
        return 0;
    }
    if (luaL_loadstring(L, "return require('gpulua.flight').show(...)") == LUA_OK) {
        lua_pushstring(L, options->replay);
        lua_pushinteger(L, options->is_checked ? (lua_Integer)options->check_seed : 1);
        int count = chunk_run(L, 2);
        is_well = count == 1 && lua_toboolean(L, -1);
        if (count < 0) {
            program_say(program.name, lua_tostring(L, -1));
        }
    }
    chunk_run_tasks(L, 0);
    lua_pushboolean(L, is_well);
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
    if (!options_read(argc, argv, &options)) {
        return 0;
    }
    if (options.shows_help) {
        options_show(stdout);
        lua_pushboolean(L, 1);
        return 1;
    }
    if (options.ignores_environment) {
        lua_pushboolean(L, 1);
        lua_setfield(L, LUA_REGISTRYINDEX, "LUA_NOENV");
    }
    luaL_openlibs(L);
    if (options.replay) {
        unsetenv("GPULUA_FLIGHT"); /* what is replayed is not written over */
    }
    config_from(&options, &config);
    program.g = gpulua_attach(L, &config);
    if (!program.g) {
        return luaL_error(L, "%s", gpulua_last_error(NULL)->message);
    }
    take_over(L);
    set_arg(L, argc, argv, options.script);
    lua_gc(L, LUA_GCGEN, 0, 0);
    program.keeps_flight = options.flight || getenv("GPULUA_FLIGHT");
    program.checks = options.is_checked;
    if (options.seeds) {
        return run_seeds(L, argc, argv, &options);
    }
    program.trace = options.trace;
    program.timeline = options.timeline;
    program.summarizes = options.summarizes;
    bool is_ended = program.keeps_flight || program.trace || program.timeline || program.summarizes;
    if (is_ended) {
        ending_take_signals();
    }
    if (options.shows_version) {
        show_version(L, &options);
    }
    if (options.shows_info && !show_info(L, options.shows_info)) {
        return 0;
    }
    if (options.kernel && !show_kernels(L, options.kernel, options.shows_code)) {
        return 0;
    }
    if (options.replay) {
        return run_replay(L, &options, argc);
    }
    if (!options.ignores_environment && !run_init(L)) {
        return 0;
    }
    if (!run_chunks(L, argv, options.script)) {
        return 0;
    }
    bool has_script = options.script < argc;
    if (has_script && !run_script(L, (const char *const *)argv, &options)) {
        return 0;
    }
    if (options.is_interactive) {
        ending_leave_signals(); /* at a prompt they end the program, and put its terminal right */
        interactive_run(L);
    } else if (!has_script && !options.has_chunks && !options.shows_version &&
               !options.shows_info && !options.kernel) {
        if (isatty(STDIN_FILENO)) {
            ending_leave_signals();
            show_version(L, &(struct options){.is_interactive = true});
            interactive_run(L);
        } else if (!chunk_do_file(L, NULL)) {
            /* Like Lua's interpreter: the message was enough. */
        }
    }
    chunk_run_tasks(L, 0);
    lua_pushboolean(L, 1);
    return 1;
}

/* A kernel of the CPU device runs in this process unless it was told otherwise, and so do its
 * mistakes. The program ends by the signal all the same. */
static void on_fault(int number) {
    static const char access[] =
        ": an invalid memory access, or the like. If a kernel did it: --check says which, with "
        "which argument, and where it was launched; with --isolate process the script goes on\n";
    static const char trap[] = ": an illegal instruction, as __trap() is one. If a kernel did it: "
                               "with --isolate process the script goes on, and hears which\n";
    const char *text = number == SIGILL ? trap : access;
    int saved = errno;
    ssize_t put = write(STDERR_FILENO, program.name, strlen(program.name));
    put = put < 0 ? put : write(STDERR_FILENO, text, strlen(text));
    errno = saved;
    signal(number, SIG_DFL);
    raise(number); /* it comes when this handler returns */
}

/* On a stack of its own: the thread's may be what there is no memory for. */
static void explain_faults(void) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    static char stack[16384];
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct sigaction before, after = {.sa_handler = on_fault, .sa_flags = SA_ONSTACK};
        if (sigaction(faults[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL) {
            sigaction(faults[i], &after, NULL);
        }
    }
}

#define STACK_BYTES ((size_t)1 << 20) /* calls of C that Lua allows within each other take less */

/* Not within main, whose own calls would lie behind it. */
__attribute__((noinline)) static char lengthen_stack(void) {
    volatile char stack[STACK_BYTES];
    stack[0] = 0;
    return stack[0];
}

/* The system makes the main thread's stack longer when it is used, and ends who has no addresses
 * left for that (ulimit -v), where everything else is an error. So it is made long now. */
static void reserve_stack(void) {
    struct rlimit limit;
    void *probe = MAP_FAILED;
    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur / 2 >= STACK_BYTES) {
        probe = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (probe != MAP_FAILED) {
        munmap(probe, STACK_BYTES);
        (void)lengthen_stack();
    }
}

/* What is opened must not become a standard stream that was closed: messages would go into files,
 * and pipes to the device's process, which has those streams, too. Opened the wrong way round, so
 * that using them fails as before. */
static void keep_standard_streams(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0) {
            (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        }
    }
}

int main(int argc, char **argv) {
    keep_standard_streams();
    reserve_stack();
    struct heap *heap;
    lua_State *L = gpu_heap_state(0, &heap);
    if (argc > 0 && argv[0] && argv[0][0]) {
        program.name = argv[0];
    }
    if (!L) {
        program_say(program.name, "cannot create state: not enough memory");
        return EXIT_FAILURE;
    }
    lua_pushcfunction(L, run);
    explain_faults();
    lua_pushinteger(L, argc);
    lua_pushlightuserdata(L, argv);
    int status = lua_pcall(L, 2, 1, 0);
    bool ok = lua_toboolean(L, -1);
    if (status != LUA_OK) {
        const char *message = lua_tostring(L, -1);
        program_say(program.name, message ? message : "(error object is not a string)");
        ok = false;
    }
    end_line();
    if (program.g) {
        ending_begin();
        ok = write_flight(L) && ok;
        ok = write_trace(L) && ok;
    }
    if (program.g && ok && reports_leaks()) {
        report_leaks(L);
    }
    begin_close();
    if ((!ok && program.was_interrupted) || program.end_signal) {
        gpulua_interrupt(program.g); /* so that it does not wait for what may end by itself */
    }
    gpulua_close(program.g);
    lua_close(L);
    gpu_heap_destroy(heap);
    ending_finish();
    return ok && !program.has_reported ? EXIT_SUCCESS : EXIT_FAILURE;
}
