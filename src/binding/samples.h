/* Elements as files have them, in strings, for lua/gpulua/npy.lua and wav.lua. */
#ifndef GPU_BINDING_SAMPLES_H
#define GPU_BINDING_SAMPLES_H

typedef struct lua_State lua_State;

/* Leaves one table:
 * swap(bytes, elem_bytes) -> the bytes of each element (2, 4 or 8) the other way round;
 * c_order(bytes, elem_bytes, shape, first, count) -> of the array in `bytes`, which is in Fortran
 * order, the elements first .. first + count - 1 (from 0) in C order;
 * convert(bytes, from, to) -> bytes, how many samples do not fit, the numbers of the first of them
 * and of the first that is no number (from 1; 0: none). The types: "u8" "i16" "i24" "i32" "f64" to
 * "f32", where full scale is 1; "f32" to "i16" "i24" "i32", rounded to nearest, even where two are,
 * and the largest number for 1; "i24" to "i32" and back. What does not fit is clipped, NaN becomes
 * 0. No call waits. */
int luaopen_gpulua_samples_core(lua_State *L);

#endif
