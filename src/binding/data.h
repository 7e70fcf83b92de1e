/* Between Lua values and elements in memory. */
#ifndef GPU_BINDING_DATA_H
#define GPU_BINDING_DATA_H

#include "binding/binding.h"

/* The value at `index` as one element. NULL, or why not ("is missing", "is out of range"). */
const char *gpu_lua_to_element(lua_State *L, int index, enum gpu_type type, void *element);
/* Pushes the element. */
void gpu_lua_push_element(lua_State *L, enum gpu_type type, const void *element);
/* Raises InvalidArgument: `what` ("argument 1 of fill") cannot be the value at `index`. */
_Noreturn void gpu_lua_bad_value(lua_State *L, int index, enum gpu_type type, const char *reason,
                                 const char *what);
#define GPU_LUA_FLAT_HINT                                                                          \
    "data is flat, row by row, with the shape beside it: "                                         \
    "dev:upload(\"f32\", { 2, 2 }, { 1, 2, 3, 4 })"
/* Raises InvalidData that names element `number`; the value is at `index`. */
_Noreturn void gpu_lua_bad_element(lua_State *L, int index, uint64_t number, enum gpu_type type,
                                   const char *reason);

/* Number of elements of the table at `index`; raises InvalidData if it has holes. */
uint64_t gpu_lua_table_count(lua_State *L, int index);
/* Elements first .. first + count - 1 (from 1) of the table at `index` (absolute). */
void gpu_lua_from_table(lua_State *L, int index, uint64_t first, uint64_t count, enum gpu_type type,
                        uint8_t *bytes);
/* The same from f(i), where i counts from `first`. */
void gpu_lua_from_function(lua_State *L, int index, uint64_t first, uint64_t count,
                           enum gpu_type type, uint8_t *bytes);
/* Sets elements first .. first + count - 1 of the table at `index` (absolute). */
void gpu_lua_to_table(lua_State *L, int index, uint64_t first, uint64_t count, enum gpu_type type,
                      const uint8_t *bytes);

#endif
