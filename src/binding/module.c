/* Modules: compiled CUDA C, or PTX and cubins as they are. */
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "binding/buffer.h"
#include "binding/core.h"
#include "binding/device.h"
#include "binding/graph.h"
#include "binding/kernel.h"
#include "binding/stream.h"

static struct gpu_module *check_module(lua_State *L, struct gpulua *g, int index) {
    struct module_handle *handle = gpu_lua_check(L, g, index, GPU_LUA_KIND_MODULE);
    if (!handle->module) {
        gpu_lua_fail(L, GPULUA_CLOSED, "attempt to use a closed module");
    }
    return handle->module;
}

/* ---- options of the compiler: one line each ---- */

static void check_line(lua_State *L, const char *what) {
    size_t length;
    const char *text = lua_tolstring(L, -1, &length);
    if (strlen(text) != length || strpbrk(text, "\n\r")) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "%s of compile: a line break or zero byte in it",
                     what);
    }
}

/* One flag at the top: a value that a blank parts from its flag, or a second flag behind a blank,
 * would mean another thing to each compiler. */
static void check_flag(lua_State *L) {
    const char *flag = lua_tostring(L, -1);
    size_t length = strlen(flag);
    const char *next = strstr(flag, " -");
    if ((flag[0] != '-' && flag[0] != '@') || (length == 2 && strchr("DUI", flag[1]))) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "flags of compile: '%s' is no flag: a flag and its value are one string "
                     "(\"-IFOLDER\", \"-DNAME=1\", \"--pre-include=FILE\")",
                     flag);
    }
    bool is_folder = strncmp(flag, "-I", 2) == 0;
    if (next && !is_folder && next < flag + strcspn(flag, "=\"'")) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "flags of compile: '%s' is more than one: flags are a list of strings", flag);
    }
}

/* The list of strings in field `field` of the options at 3, as lines "word text", into the list of
 * lines at 4. `check` looks at the string at the top; NULL: any will do. */
static void add_list(lua_State *L, const char *field, const char *word,
                     void (*check)(lua_State *L)) {
    int type = lua_getfield(L, 3, field);
    if (type == LUA_TSTRING) { /* one of them, without a table around it */
        lua_createtable(L, 1, 0);
        lua_insert(L, -2);
        lua_rawseti(L, -2, 1);
        type = LUA_TTABLE;
    }
    if (type != LUA_TNIL && type != LUA_TTABLE) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "%s of compile: a list of strings expected, got %s", field,
                     luaL_typename(L, -1));
    }
    lua_Integer count = type == LUA_TTABLE ? (lua_Integer)lua_rawlen(L, -1) : 0;
    for (lua_Integer i = 1; i <= count; i++) {
        if (lua_rawgeti(L, -1, i) != LUA_TSTRING) {
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                         "%s of compile: entry %lld is a %s, not a string", field, (long long)i,
                         luaL_typename(L, -1));
        }
        check_line(L, field);
        if (check) {
            check(L);
        }
        lua_pushfstring(L, "%s %s\n", word, lua_tostring(L, -1));
        lua_rawseti(L, 4, (lua_Integer)lua_rawlen(L, 4) + 1);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
}

static int compare_lines(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Definitions in a fixed order, because compiled code is found again by its options. */
static void sort_lines(lua_State *L, lua_Integer first) {
    lua_Integer count = (lua_Integer)lua_rawlen(L, 4) - first + 1;
    if (count < 2) {
        return;
    }
    lua_createtable(L, (int)count, 0); /* holds them while they move */
    const char **lines = lua_newuserdatauv(L, (size_t)count * sizeof *lines, 0);
    for (lua_Integer i = 0; i < count; i++) {
        lua_rawgeti(L, 4, first + i);
        lines[i] = lua_tostring(L, -1);
        lua_rawseti(L, -3, i + 1);
    }
    qsort(lines, (size_t)count, sizeof *lines, compare_lines);
    for (lua_Integer i = 0; i < count; i++) {
        lua_pushstring(L, lines[i]);
        lua_rawseti(L, 4, first + i);
    }
    lua_pop(L, 2);
}

/* "NAME" or "NAME(x, y)". */
static void check_macro(lua_State *L) {
    const char *text = lua_tostring(L, -1);
    size_t length = 0;
    while (isalnum((unsigned char)text[length]) || text[length] == '_' || text[length] == '$' ||
           (unsigned char)text[length] >= 0x80) { /* compilers have the last word */
        length++;
    }
    if (length == 0 || (text[0] >= '0' && text[0] <= '9') ||
        (text[length] != '\0' &&
         (text[length] != '(' || strchr(text, ')') != text + strlen(text) - 1))) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "defines of compile: '%s' is no name of a macro, NAME or NAME(x)", text);
    }
}

static void add_defines(lua_State *L) {
    int type = lua_getfield(L, 3, "defines");
    lua_Integer first = (lua_Integer)lua_rawlen(L, 4) + 1;
    if (type != LUA_TNIL && type != LUA_TTABLE) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "defines of compile: a table {NAME = value} expected, got %s",
                     luaL_typename(L, -1));
    }
    if (type == LUA_TTABLE) {
        int table = lua_gettop(L);
        lua_pushnil(L);
        while (lua_next(L, table)) {
            int kind = lua_type(L, -1);
            if (lua_type(L, -2) != LUA_TSTRING ||
                (kind != LUA_TSTRING && kind != LUA_TNUMBER && kind != LUA_TBOOLEAN)) {
                gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                             "defines of compile: names with a string, number or boolean expected");
            }
            lua_pushvalue(L, -2);
            check_line(L, "defines");
            check_macro(L);
            lua_pop(L, 1);
            if (kind == LUA_TBOOLEAN) {
                lua_pushliteral(L, "1");
                bool is_true = lua_toboolean(L, -2);
                lua_replace(L, -2);
                if (!is_true) {
                    lua_pop(L, 1);
                    continue; /* not defined */
                }
            } else {
                lua_tostring(L, -1);
            }
            check_line(L, "defines");
            size_t bytes;
            const char *value = lua_tolstring(L, -1, &bytes);
            if (bytes > 0 && value[bytes - 1] == '\\') {
                gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                             "defines of compile: the value of '%s' ends with a backslash",
                             lua_tostring(L, -2));
            }
            lua_pushfstring(L, "define %s %s\n", lua_tostring(L, -2), value);
            lua_rawseti(L, 4, (lua_Integer)lua_rawlen(L, 4) + 1);
            lua_pop(L, 1);
        }
        sort_lines(L, first);
    }
    lua_pop(L, 1);
}

/* The executor may have another working directory, so the name is made whole. */
static void add_keep(lua_State *L) {
    char folder[PATH_MAX];
    const char *prefix = gpu_lua_field_string(L, 3, "keep", "compile");
    if (!prefix) {
        return;
    }
    lua_getfield(L, 3, "keep");
    size_t prefix_bytes = lua_rawlen(L, -1);
    lua_pop(L, 1);
    bool is_whole = prefix[0] == '/';
    if (prefix_bytes != strlen(prefix) || prefix_bytes == 0 || prefix[prefix_bytes - 1] == '/' ||
        (!is_whole && !getcwd(folder, sizeof folder))) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "keep of compile: the name of files, without its end, expected, got '%s'",
                     prefix);
    }
    lua_pushfstring(L, "%s%s%s", is_whole ? "" : folder, is_whole ? "" : "/", prefix);
    check_line(L, "keep");
    lua_pushfstring(L, "keep %s\n", lua_tostring(L, -1));
    lua_rawseti(L, 4, (lua_Integer)lua_rawlen(L, 4) + 1);
    lua_pop(L, 1);
}

/* Stack: device, source, options. Leaves the text of the options at 4. */
static const char *get_lines(lua_State *L) {
    luaL_Buffer text;
    lua_newtable(L);
    if (lua_istable(L, 3)) {
        add_list(L, "names", "name", NULL);
        add_defines(L);
        add_list(L, "include", "include", NULL);
        add_list(L, "flags", "flag", check_flag);
        add_keep(L);
    }
    lua_Integer count = (lua_Integer)lua_rawlen(L, 4);
    luaL_buffinit(L, &text);
    for (lua_Integer i = 1; i <= count; i++) {
        lua_rawgeti(L, 4, i);
        luaL_addvalue(&text);
    }
    luaL_pushresult(&text);
    lua_replace(L, 4);
    return lua_tostring(L, 4);
}

/* ---- making ---- */

/* Stack: device, source, options, lines, module, op. */
static int module_ready(lua_State *L, int status, lua_KContext context) {
    struct gpulua *g = gpu_lua_find(L);
    if (status == LUA_YIELD && gpu_lua_resumed(L, context) == WAKE_FOREIGN) {
        return gpu_lua_foreign_results(L, context);
    }
    (void)g;
    struct gpu_op *op = gpu_lua_op_at(L, 6);
    if (gpu_op_status(op) != GPULUA_OK) {
        gpu_lua_error_push(L, gpu_op_error(op));
        gpu_op_observe(op);
        return lua_error(L);
    }
    lua_settop(L, 5);
    return 1;
}

int gpu_lua_module_create(lua_State *L, struct gpulua *g, struct gpu_device *device,
                          struct gpu_module_info *info) {
    struct gpu_error error;
    struct module_handle *handle = gpu_lua_new(L, g, GPU_LUA_KIND_MODULE, sizeof *handle, 1);
    lua_newtable(L);
    lua_setiuservalue(L, -2, 1); /* kernels by name */
    struct gpu_op **op = gpu_lua_op_new(L, g);
    handle->is_source = info->kind == GPU_MODULE_SOURCE;
    gpu_lua_site(L, g, device, &info->site);
    if (gpu_module_create(device, info, &handle->module, op, &error)) {
        handle->module = NULL;
        *op = NULL;
        gpu_lua_throw(L, &error);
    }
    gpu_lua_wait_op(L, g, *op, module_ready);
    return module_ready(L, LUA_OK, 0);
}

static void check_text(lua_State *L, const char *what, const char *expected) {
    if (lua_type(L, 2) != LUA_TSTRING) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "argument 1 of %s: %s expected, got %s", what,
                     expected, luaL_typename(L, 2));
    }
}

static const char *check_name(lua_State *L, const char *what, const char *expected) {
    check_text(L, what, expected);
    return gpu_lua_text(L, 2, "argument 1", what);
}

/* "script.lua:12" where the source has no name of its own; stays alive at the stack's top. */
static const char *default_name(lua_State *L) {
    lua_Debug ar;
    return gpu_lua_where(L, &ar) ? lua_pushfstring(L, "%s:%d", ar.short_src, ar.currentline)
                                 : lua_pushliteral(L, "source");
}

/* A kernel of the CPU device is code that its process runs, and its source includes files. */
static void refuse_in_sandbox(lua_State *L, const struct gpulua *g, bool compiles) {
    if (g->config.sandbox && !(compiles && g->config.allow_compile)) {
        gpu_lua_fail_hint(L, GPULUA_UNSUPPORTED,
                          "let the host launch it, in an object of its own on the same device, and "
                          "share the buffers",
                          "a sandbox compiles and loads no kernels, and gpu.map, gpu.reduce and "
                          "dev:rng are kernels");
    }
}

/* Options of compile at 3 that reach beyond the source. */
static void refuse_files(lua_State *L) {
    static const char *const refused[] = {"include", "flags", "keep"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused && lua_istable(L, 3); i++) {
        if (lua_getfield(L, 3, refused[i]) != LUA_TNIL) {
            gpu_lua_fail(L, GPULUA_UNSUPPORTED, "%s of compile: not for scripts in a sandbox",
                         refused[i]);
        }
        lua_pop(L, 1);
    }
}

/* dev:compile(source[, {name=, names=, defines=, include=, flags=, keep=}]). Waits; yields in a
 * task. */
int gpu_lua_device_compile(lua_State *L) {
    static const char *const options[] = {"name",  "names", "defines", "include",
                                          "flags", "keep",  NULL};
    struct gpulua *g = GPU_LUA(L);
    refuse_in_sandbox(L, g, true);
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, NULL);
    gpu_lua_check_eager(L, g, device, "compile");
    lua_settop(L, 3);
    check_text(L, "compile", "CUDA C source");
    gpu_lua_check_options(L, 3, options, "compile");
    if (g->config.sandbox) {
        refuse_files(L);
    }
    const char *lines = get_lines(L);
    size_t length;
    const char *text = lua_tolstring(L, 2, &length);
    if (strlen(text) != length) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 1 of compile: a zero byte in the source");
    }
    if (!strpbrk(text, " \t\r\n(")) {
        const char *end = strrchr(text, '.');
        if (end && (strcmp(end, ".cu") == 0 || strcmp(end, ".cuh") == 0)) {
            gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                         "argument 1 of compile: the source itself expected, got the name '%s': "
                         "read the file first",
                         text);
        }
    }
    if (text[strspn(text, " \t\r\n")] == '\0') {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 1 of compile: there is no kernel and no global in the source");
    }
    const char *name = gpu_lua_field_string(L, 3, "name", "compile");
    if (!name) {
        name = default_name(L);
        lua_replace(L, 3); /* keeps it alive */
    }
    struct gpu_module_info info = {
        .name = name,
        .text = text,
        .text_bytes = length,
        .kind = GPU_MODULE_SOURCE,
        .options = lines,
    };
    return gpu_lua_module_create(L, g, device, &info);
}

/* Pushes what a file has. */
static const char *read_file(lua_State *L, const char *path, size_t *length) {
    luaL_Buffer text;
    FILE *file = fopen(path, "rb");
    if (!file) {
        return NULL;
    }
    /* luaL_Stream would be Lua's; a plain file must not be left open by an error: so its size comes
     * first and the buffer is made before it is read. */
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    fclose(file);
    if (size < 0 || (uint64_t)size > GPU_SOURCE_BYTES_MAX) { /* a folder has an endless size */
        return NULL;
    }
    char *bytes = luaL_buffinitsize(L, &text, (size_t)size);
    file = fopen(path, "rb");
    size_t got = file ? fread(bytes, 1, (size_t)size, file) : 0;
    if (file) {
        fclose(file);
    }
    luaL_pushresultsize(&text, got);
    return lua_tolstring(L, -1, length);
}

/* PTX starts with text that names its version, a cubin with the magic number of ELF. Paths may have
 * the word, too, but nothing of a list behind it. */
static bool is_image(const char *text, size_t length) {
    static const char word[] = ".version";
    const char *at = strstr(text, word);
    while (at && (at[sizeof word - 1] == 0 || !strchr(" \t\r\n", at[sizeof word - 1]))) {
        at = strstr(at + 1, word);
    }
    return at || (length >= 4 && memcmp(text, "\177ELF", 4) == 0);
}

/* dev:load(code[, {name =}]) -> module. code: PTX or a cubin, as bytes or as the name of a file.
 * Waits; yields in a task. Io, InvalidData, InvalidArgument; Unsupported: the CPU device. */
int gpu_lua_device_load(lua_State *L) {
    static const char *const options[] = {"name", NULL};
    struct gpulua *g = GPU_LUA(L);
    refuse_in_sandbox(L, g, false);
    struct gpu_device *device = gpu_lua_check_device(L, g, 1, NULL);
    gpu_lua_check_eager(L, g, device, "load");
    lua_settop(L, 3);
    check_text(L, "load", "PTX, a cubin, or the name of a file with one");
    gpu_lua_check_options(L, 3, options, "load");
    size_t length;
    const char *text = lua_tolstring(L, 2, &length);
    const char *name = gpu_lua_field_string(L, 3, "name", "load");
    lua_pushliteral(L, "");
    if (!is_image(text, length)) {
        if (strlen(text) != length || !(text = read_file(L, lua_tostring(L, 2), &length))) {
            gpu_lua_fail(L, GPULUA_IO,
                         "argument 1 of load: neither PTX nor a cubin nor a file that can be read: "
                         "%.200s",
                         lua_tostring(L, 2));
        }
        if (!is_image(text, length)) {
            gpu_lua_fail(L, GPULUA_INVALID_DATA, "%.200s holds neither PTX nor a cubin",
                         lua_tostring(L, 2));
        }
        name = name ? name : lua_tostring(L, 2);
        lua_replace(L, 4);
    }
    lua_pushstring(L, name ? name : default_name(L));
    name = lua_tostring(L, -1);
    lua_replace(L, 3);
    lua_settop(L, 4);
    struct gpu_module_info info = {
        .name = name,
        .text = text,
        .text_bytes = length,
        .kind = GPU_MODULE_IMAGE,
        .options = "",
    };
    return gpu_lua_module_create(L, g, device, &info);
}

/* ---- what is in it ---- */

/* Pushes the kernel; from the table of those that were asked for before, if it can. */
static int push_kernel(lua_State *L, struct gpulua *g, const char *name, const char *signature) {
    struct gpu_error error;
    struct gpu_kernel *kernel = NULL;
    lua_getiuservalue(L, 1, 1);
    if (!signature && lua_getfield(L, -1, name) != LUA_TNIL) {
        struct kernel_handle *known = lua_touserdata(L, -1);
        if (known->kernel) { /* not closed since */
            return 1;
        }
    }
    struct kernel_handle *handle = gpu_lua_kernel_new(L, g);
    if (gpu_module_kernel(check_module(L, g, 1), name, signature, &kernel, &error)) {
        gpu_lua_throw(L, &error);
    }
    gpu_lua_kernel_set(handle, kernel);
    if (!signature) {
        lua_getiuservalue(L, 1, 1);
        lua_pushvalue(L, -2);
        lua_setfield(L, -2, name);
        lua_pop(L, 1);
    }
    return 1;
}

/* module:kernel(name[, signature]) */
static int module_kernel(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    (void)check_module(L, g, 1);
    const char *name = check_name(L, "kernel", "the name of a kernel");
    if (!lua_isnoneornil(L, 3) && lua_type(L, 3) != LUA_TSTRING) {
        gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT,
                     "argument 2 of kernel: a signature (\"n: i32, x: in f32*\") expected, got %s",
                     luaL_typename(L, 3));
    }
    lua_settop(L, 3);
    return push_kernel(L, g, name, gpu_lua_text(L, 3, "argument 2", "kernel"));
}

/* module:kernels() -> names, in the order of the source */
static int module_kernels(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    uint32_t count = gpu_module_kernel_count(check_module(L, g, 1));
    lua_createtable(L, (int)count, 0);
    for (uint32_t i = 0; i < count; i++) {
        lua_pushstring(L, gpu_module_kernel_name(check_module(L, g, 1), i));
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return 1;
}

/* module:global(name) -> the variable as a buffer */
static int module_global(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    (void)check_module(L, g, 1);
    const char *name = check_name(L, "global", "the name of a variable");
    struct gpu_error error;
    bool is_constant;
    struct buffer *buffer = gpu_lua_new(L, g, GPU_LUA_KIND_BUFFER, sizeof *buffer, 1);
    struct gpu_module *module = check_module(L, g, 1);
    if (gpu_module_global(module, name, &buffer->ref.block, &buffer->ref.type, &is_constant,
                          &error)) {
        buffer->ref.block = NULL;
        gpu_lua_throw(L, &error);
    }
    buffer->ref.byte_count = gpu_block_bytes(buffer->ref.block);
    if (buffer->ref.type >= GPU_TYPE_COUNT ||
        buffer->ref.byte_count % gpu_type_bytes(buffer->ref.type) != 0) {
        buffer->ref.type = GPU_TYPE_U8; /* of a type that is none of ours */
    }
    buffer->elem_bytes = gpu_type_bytes(buffer->ref.type);
    buffer->elem_count = buffer->ref.byte_count / buffer->elem_bytes;
    buffer->dim_count = 1;
    buffer->shape[0] = buffer->elem_count;
    return 1;
}

/* Upvalues: the object, the methods. Methods win over kernels of their name. */
static int module_index(lua_State *L) {
    struct gpulua *g = GPU_LUA(L);
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(2)) != LUA_TNIL) {
        return 1;
    }
    (void)check_module(L, g, 1);
    if (lua_type(L, 2) != LUA_TSTRING) {
        lua_pushnil(L);
        return 1;
    }
    lua_settop(L, 2);
    return push_kernel(L, g, gpu_lua_text(L, 2, "name", "kernel"), NULL);
}

static void module_end(struct module_handle *handle) {
    struct gpu_module *module = handle->module;
    handle->module = NULL;
    if (module) {
        gpu_module_release(module);
    }
}

/* module:close(): ends the handle; its kernels stay. */
static int module_close(lua_State *L) {
    module_end(gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_MODULE));
    return 0;
}

static int module_gc(lua_State *L) {
    module_end(lua_touserdata(L, 1));
    return 0;
}

static int module_tostring(lua_State *L) {
    struct module_handle *handle = gpu_lua_check(L, GPU_LUA(L), 1, GPU_LUA_KIND_MODULE);
    if (!handle->module) {
        lua_pushliteral(L, "gpulua.module (closed)");
        return 1;
    }
    lua_pushfstring(L, "gpulua.module %s on %s", gpu_module_name(handle->module),
                    gpu_device_name(gpu_module_device(handle->module)));
    return 1;
}

void gpu_lua_module_open(lua_State *L, struct gpulua *g) {
    static const luaL_Reg methods[] = {{"kernel", module_kernel},
                                       {"kernels", module_kernels},
                                       {"global", module_global},
                                       {"close", module_close},
                                       {NULL, NULL}};
    static const luaL_Reg metamethods[] = {{"__gc", module_gc},
                                           {"__close", module_close},
                                           {"__tostring", module_tostring},
                                           {"__index", module_index},
                                           {NULL, NULL}};
    gpu_lua_kind_new(L, g, GPU_LUA_KIND_MODULE, methods, metamethods);
}
