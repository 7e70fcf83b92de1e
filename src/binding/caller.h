/* Who calls: at which line of the script, with which arguments, and whether what we return is used;
 * and what a function's upvalues are.
 *
 * lua.h says the line, at a cost that grows with the length of the script's function, an argument
 * or an upvalue at that of a call or two for each, and nothing of the results. All are in what Lua
 * keeps of a call, which lua_Debug points to, and of a function. We read it where a few calls, made
 * when the module is opened, show that it is laid out as in the Lua 5.4 that we know; elsewhere
 * lua.h is all, and results are always made. */
#ifndef GPU_BINDING_CALLER_H
#define GPU_BINDING_CALLER_H

#include <lua.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/error.h"

#define CALLER_PLACES 64u /* a power of two */

/* Of Lua 5.4 (lobject.h, lstate.h), as far as it is read here. */
struct lua_value {
    union {
        void *object;
        lua_Integer integer;
        lua_Number number;
    };
    uint8_t type; /* enum lua_value_type */
};
enum lua_value_type {
    LUA_VALUE_NIL = 0,
    LUA_VALUE_FALSE = 1,
    LUA_VALUE_INTEGER = 3,
    LUA_VALUE_TRUE = 17,
    LUA_VALUE_NUMBER = 19,
    LUA_VALUE_FUNCTION = 70, /* written in Lua */
    LUA_VALUE_USERDATA = 71
};
struct lua_userdata {
    void *next;
    uint8_t type, marks;
    uint16_t user_value_count;
    size_t byte_count;
    void *metatable;
    uint64_t memory[]; /* here where there are no user values */
};
/* Of a function, not of one value: where it is while the function that it is a variable of runs,
 * and since then. */
struct lua_upvalue {
    void *next;
    uint8_t type, marks;
    const struct lua_value *value;
};
struct lua_function { /* written in Lua */
    void *next;
    uint8_t type, marks, upvalue_count;
    void *gray, *prototype;
    const struct lua_upvalue *upvalues[];
};
struct lua_table {
    void *next;
    uint8_t type, marks, metamethods, node_count_log2;
    uint32_t array_count;
    const struct lua_value *array; /* from 1 */
};
struct lua_call {
    struct lua_value *function; /* its arguments lie behind it, until the stack grows */
    void *top;
    struct lua_call *previous, *next;
    const uint32_t *instruction; /* of a Lua function: behind the call that it is in */
    void *more[2];
    int32_t of_call;
    int16_t result_count; /* that whoever called wants; -1: all there are */
    uint16_t status;
};

struct gpulua;
struct gpu_device;

/* A place in a script that has called before. It holds as long as its function is there, which the
 * table of functions knows. */
struct caller_place {
    const void *at;                  /* the instruction behind the call */
    const struct gpu_device *device; /* compared, never followed */
    struct gpu_site site;            /* line 0: none of the script's */
};

struct caller {
    bool is_known; /* how Lua lays out its calls, values, functions and tables */
    /* The places' functions: what a weak table of the registry has from 1 on, and never has room
     * for more. */
    const struct lua_value *functions;
    struct caller_place places[CALLER_PLACES];
};

void gpu_lua_caller_open(lua_State *L, struct gpulua *g);
/* A device was opened: it may have the address of one that is gone. */
void gpu_lua_caller_forget(struct gpulua *g);

/* The call of the function of ours that runs; NULL: nothing is known of it. */
static inline const struct lua_call *gpu_lua_call(lua_State *L, const struct caller *caller) {
    lua_Debug ar;
    return caller->is_known && lua_getstack(L, 0, &ar) ? (const void *)ar.i_ci : NULL;
}
/* False: it was called as a statement, so what it returns is dropped. */
static inline bool gpu_lua_is_result_wanted(const struct lua_call *call) {
    return !call || call->result_count != 0;
}
/* What lies at that index of its stack, where something has to lie; NULL: not known. */
static inline const struct lua_value *gpu_lua_argument(const struct lua_call *call, int at) {
    return call ? call->function + at : NULL;
}
static inline bool gpu_lua_is_kept_as(const struct lua_value *value, enum lua_value_type type) {
    return value && value->type == type;
}
/* The memory of a userdata of so many bytes or more, without user values; NULL: something else. */
static inline void *gpu_lua_memory_of(const struct lua_value *value, size_t byte_count) {
    struct lua_userdata *userdata =
        gpu_lua_is_kept_as(value, LUA_VALUE_USERDATA) ? value->object : NULL;
    return userdata && userdata->user_value_count == 0 && userdata->byte_count >= byte_count
               ? userdata->memory
               : NULL;
}

/* The function there, if it is written in Lua; else, or where nothing is known of it, NULL. */
static inline const struct lua_function *gpu_lua_function(lua_State *L, const struct caller *caller,
                                                          int index) {
    return caller->is_known && lua_type(L, index) == LUA_TFUNCTION && !lua_iscfunction(L, index)
               ? lua_topointer(L, index)
               : NULL;
}

/* gpu_lua_site for that call. */
void gpu_lua_site_of(lua_State *L, struct gpulua *g, const struct lua_call *call,
                     struct gpu_device *device, struct gpu_site *site);

#endif
