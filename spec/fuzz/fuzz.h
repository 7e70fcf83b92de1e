/* What the fuzz targets have in common. Each is a file with one FUZZ_TARGET: a program of its own
 * with libFuzzer (`make fuzz`), and a function of corpus_test.c, which runs it over its corpus. */
#ifndef SPEC_FUZZ_FUZZ_H
#define SPEC_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>

#include "gpulua.h"

#ifdef FUZZ_CORPUS
#define FUZZ_TARGET(name) static int fuzz_##name(const uint8_t *bytes, size_t byte_count)
#else
#define FUZZ_TARGET(name)                                                                          \
    int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count);                           \
    int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
#endif

/* A finding: libFuzzer keeps the input, make test has a failure. */
#define FUZZ_CHECK(good)                                                                           \
    do {                                                                                           \
        if (!(good)) {                                                                             \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #good);              \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* An input is taken apart from its front; behind its end everything is 0. */
struct fuzz_input {
    const uint8_t *bytes;
    size_t byte_count;
};

static inline void fuzz_take(struct fuzz_input *input, void *to, size_t byte_count) {
    size_t there = byte_count < input->byte_count ? byte_count : input->byte_count;
    memset(to, 0, byte_count);
    if (there != 0) {
        memcpy(to, input->bytes, there);
        input->bytes += there;
        input->byte_count -= there;
    }
}

static inline uint8_t fuzz_byte(struct fuzz_input *input) {
    uint8_t byte;
    fuzz_take(input, &byte, 1);
    return byte;
}

/* One object for all inputs of a target: its device is the CPU's, on this thread. */
static inline gpulua *fuzz_object(void) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.device = "cpu";
    config.isolation = GPULUA_ISOLATE_NONE;
    config.device_budget_bytes = 64u << 20;
    config.memory_limit_bytes = 512u << 20;
    gpulua *g = gpulua_new(&config);
    FUZZ_CHECK(g != NULL);
    return g;
}

/* The function that a Lua file returns, called with the strings up to NULL, gives another one:
 * that is on the state's stack then, to be called with each input. */
static inline lua_State *fuzz_script(const char *path, const char *const *arguments) {
    lua_State *L = gpulua_state(fuzz_object());
    int count = 0;
    bool is_well = luaL_loadfile(L, path) == LUA_OK;
    for (; is_well && arguments[count]; count++) {
        lua_pushstring(L, arguments[count]);
    }
    if (!is_well || lua_pcall(L, count, 1, 0) != LUA_OK) {
        fprintf(stderr, "%s\n", luaL_tolstring(L, -1, NULL));
        abort();
    }
    return L;
}

/* Calls it with a string. What it raises is a finding. */
static inline void fuzz_call(lua_State *L, const void *bytes, size_t byte_count) {
    lua_pushvalue(L, -1);
    lua_pushlstring(L, bytes, byte_count);
    if (lua_pcall(L, 1, 0, 0) != LUA_OK) {
        fprintf(stderr, "%s\n", luaL_tolstring(L, -1, NULL));
        abort();
    }
}

/* A reader of files, as a script calls it: the function of that name in the Lua module. */
static inline lua_State *fuzz_reader(const char *module, const char *function, int *fd,
                                     char path[32]) {
    *fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_CHECK(*fd >= 0);
    snprintf(path, 32, "/proc/self/fd/%d", *fd);
    return fuzz_script("spec/fuzz/reader.lua", (const char *const[]){module, function, NULL});
}

static inline void fuzz_read(lua_State *L, int fd, const char *path, const uint8_t *bytes,
                             size_t byte_count) {
    FUZZ_CHECK(ftruncate(fd, 0) == 0);
    FUZZ_CHECK(pwrite(fd, bytes, byte_count, 0) == (ssize_t)byte_count);
    fuzz_call(L, path, strlen(path));
}

#define FUZZ_READER(name, module, function)                                                        \
    FUZZ_TARGET(name) {                                                                            \
        static lua_State *L;                                                                       \
        static char path[32];                                                                      \
        static int fd;                                                                             \
        if (!L) {                                                                                  \
            L = fuzz_reader(module, function, &fd, path);                                          \
        }                                                                                          \
        fuzz_read(L, fd, path, bytes, byte_count);                                                 \
        return 0;                                                                                  \
    }

#endif
