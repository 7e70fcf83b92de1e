/* Between Lua values and elements in memory. */
#include "binding/data.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "binding/loop.h"

#define LARGE_TABLE 4096 /* from here on, holes behind the end are looked for cheaply */

/* ---- one element ---- */

static const char not_number[] = "is not a number";
static const char missing[] = "is missing";
static const char out_of_range[] = "is out of range";
static const char not_integral[] = "is not a whole number";

/* Bounds of the integer types of at most 32 bits. */
static const char *to_small_integer(lua_State *L, int index, int64_t min, int64_t max,
                                    int64_t *value) {
    int is_integer;
    *value = lua_tointegerx(L, index, &is_integer);
    if (!is_integer) {
        double number = lua_tonumber(L, index);
        return number == floor(number) || isinf(number) ? out_of_range : not_integral;
    }
    return *value < min || *value > max ? out_of_range : NULL;
}

static const char *to_wide_integer(lua_State *L, int index, enum gpu_type type, uint64_t *value) {
    int is_integer;
    *value = (uint64_t)lua_tointegerx(L, index, &is_integer);
    if (is_integer) {
        /* u64 wraps in Lua's integers, both ways; a negative float does not mean that. */
        return type == GPU_TYPE_U64 && !lua_isinteger(L, index) && (int64_t)*value < 0
                   ? out_of_range
                   : NULL;
    }
    double number = lua_tonumber(L, index);
    if (number != floor(number)) {
        return not_integral;
    }
    if (type == GPU_TYPE_U64 && number >= 0 && number < 18446744073709551616.0) {
        *value = (uint64_t)number;
        return NULL;
    }
    return out_of_range;
}

/* A double has fewer bits than the integer: what is cut off leaves its mark in the last bit that is
 * kept, so that rounding the double once more is rounding the integer. */
static double marked(lua_Integer value) {
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    int cut = 64 - DBL_MANT_DIG - __builtin_clzll(magnitude);
    if (cut <= 0) {
        return (double)value;
    }
    uint64_t kept = magnitude >> cut << cut;
    kept |= kept != magnitude ? (uint64_t)1 << cut : 0;
    return value < 0 ? -(double)kept : (double)kept;
}

/* What to_float takes for it. */
static inline double of_integer(lua_Integer value, enum gpu_type type) {
    return type == GPU_TYPE_F64 || value == 0 ? (double)value : marked(value);
}

static inline double number_at(lua_State *L, int index, enum gpu_type type) {
    return lua_isinteger(L, index) ? of_integer(lua_tointeger(L, index), type)
                                   : lua_tonumber(L, index);
}

static inline const char *to_float(double number, enum gpu_type type, void *element) {
    if (type == GPU_TYPE_F64) {
        memcpy(element, &number, sizeof number);
        return NULL;
    }
    if (type == GPU_TYPE_F32) {
        float value = (float)number;
        memcpy(element, &value, sizeof value);
        return isinf(value) && isfinite(number) ? out_of_range : NULL;
    }
    uint16_t bits = type == GPU_TYPE_F16 ? gpu_type_f16_from(number) : gpu_type_bf16_from(number);
    uint16_t infinity = type == GPU_TYPE_F16 ? 0x7c00 : 0x7f80;
    memcpy(element, &bits, sizeof bits);
    return (bits & 0x7fff) == infinity && isfinite(number) ? out_of_range : NULL;
}

/* {real, imaginary}, or a number. */
static const char *to_complex(lua_State *L, int index, enum gpu_type type, void *element) {
    enum gpu_type part = type == GPU_TYPE_C64 ? GPU_TYPE_F32 : GPU_TYPE_F64;
    double parts[2] = {0, 0};
    if (lua_type(L, index) == LUA_TNUMBER) {
        parts[0] = number_at(L, index, part);
    } else if (lua_istable(L, index)) {
        index = lua_absindex(L, index);
        if (luaL_len(L, index) != 2) {
            return "is not a pair of numbers";
        }
        for (int i = 0; i < 2; i++) {
            int kind = lua_geti(L, index, i + 1);
            parts[i] = kind == LUA_TNUMBER ? number_at(L, -1, part) : 0;
            lua_pop(L, 1);
            if (kind != LUA_TNUMBER) {
                return "is not a pair of numbers";
            }
        }
    } else {
        return lua_isnoneornil(L, index) ? missing : "is not a pair of numbers";
    }
    uint8_t *bytes = element;
    const char *reason = to_float(parts[0], part, bytes);
    return reason ? reason : to_float(parts[1], part, bytes + gpu_type_bytes(part));
}

const char *gpu_lua_to_element(lua_State *L, int index, enum gpu_type type, void *element) {
    static const struct {
        int64_t min, max;
    } bounds[] = {[GPU_TYPE_I8] = {INT8_MIN, INT8_MAX},    [GPU_TYPE_U8] = {0, UINT8_MAX},
                  [GPU_TYPE_I16] = {INT16_MIN, INT16_MAX}, [GPU_TYPE_U16] = {0, UINT16_MAX},
                  [GPU_TYPE_I32] = {INT32_MIN, INT32_MAX}, [GPU_TYPE_U32] = {0, UINT32_MAX}};
    enum gpu_class class = gpu_type_class(type);
    if (class == GPU_CLASS_COMPLEX) {
        return to_complex(L, index, type, element);
    }
    if (lua_type(L, index) != LUA_TNUMBER) {
        return lua_isnoneornil(L, index) ? missing : not_number;
    }
    if (class == GPU_CLASS_FLOAT) {
        return to_float(number_at(L, index, type), type, element);
    }
    const char *reason;
    if (type == GPU_TYPE_I64 || type == GPU_TYPE_U64) {
        uint64_t wide;
        reason = to_wide_integer(L, index, type, &wide);
        memcpy(element, &wide, sizeof wide);
        return reason;
    }
    int64_t value;
    reason = to_small_integer(L, index, bounds[type].min, bounds[type].max, &value);
    memcpy(element, &value, gpu_type_bytes(type)); /* little-endian, as devices are */
    return reason;
}

void gpu_lua_push_element(lua_State *L, enum gpu_type type, const void *element) {
#define INTEGER(c_type)                                                                            \
    {                                                                                              \
        c_type value;                                                                              \
        memcpy(&value, element, sizeof value);                                                     \
        lua_pushinteger(L, (lua_Integer)value);                                                    \
        return;                                                                                    \
    }
    uint16_t half;
    switch (type) {
    case GPU_TYPE_I8:
        INTEGER(int8_t)
    case GPU_TYPE_U8:
        INTEGER(uint8_t)
    case GPU_TYPE_I16:
        INTEGER(int16_t)
    case GPU_TYPE_U16:
        INTEGER(uint16_t)
    case GPU_TYPE_I32:
        INTEGER(int32_t)
    case GPU_TYPE_U32:
        INTEGER(uint32_t)
    case GPU_TYPE_I64:
        INTEGER(int64_t)
    case GPU_TYPE_U64:
        INTEGER(uint64_t)
    case GPU_TYPE_F16:
        memcpy(&half, element, sizeof half);
        lua_pushnumber(L, gpu_type_f16_to(half));
        return;
    case GPU_TYPE_BF16:
        memcpy(&half, element, sizeof half);
        lua_pushnumber(L, gpu_type_bf16_to(half));
        return;
    case GPU_TYPE_F32: {
        float value;
        memcpy(&value, element, sizeof value);
        lua_pushnumber(L, (lua_Number)value);
        return;
    }
    case GPU_TYPE_F64: {
        double value;
        memcpy(&value, element, sizeof value);
        lua_pushnumber(L, value);
        return;
    }
    default:
        break;
    }
#undef INTEGER
    enum gpu_type part = type == GPU_TYPE_C64 ? GPU_TYPE_F32 : GPU_TYPE_F64;
    lua_createtable(L, 2, 0);
    for (int i = 0; i < 2; i++) {
        gpu_lua_push_element(L, part, (const uint8_t *)element + (size_t)i * gpu_type_bytes(part));
        lua_rawseti(L, -2, i + 1);
    }
}

_Noreturn void gpu_lua_bad_value(lua_State *L, int index, enum gpu_type type, const char *reason,
                                 const char *what) {
    const char *value = lua_isnil(L, index)                 ? "it"
                        : lua_type(L, index) == LUA_TNUMBER ? lua_tostring(L, index)
                                                            : gpu_lua_describe(L, index);
    gpu_lua_fail(L, GPULUA_INVALID_ARGUMENT, "%s: %s %s (%s expected)", what, value, reason,
                 gpu_type_name(type));
}

_Noreturn void gpu_lua_bad_element(lua_State *L, int index, uint64_t number, enum gpu_type type,
                                   const char *reason) {
    int kind = lua_type(L, index);
    const char *value = "";
    if (kind == LUA_TNUMBER) {
        lua_pushvalue(L, index);
        value = lua_tostring(L, -1);
    } else if (reason != missing) {
        value = luaL_typename(L, index);
    }
    bool is_nested = kind == LUA_TTABLE && reason == not_number;
    gpu_lua_fail_hint(
        L, GPULUA_INVALID_DATA, is_nested ? GPU_LUA_FLAT_HINT : gpu_error_hint(GPULUA_INVALID_DATA),
        "element %llu%s%s%s %s (%s expected)", (unsigned long long)number, value[0] ? " (" : "",
        value, value[0] ? ")" : "", reason, gpu_type_name(type));
}

/* ---- tables ---- */

/* Is there an integer key beyond `count`? */
static bool has_more(lua_State *L, int index, lua_Integer count) {
    lua_pushnil(L);
    while (lua_next(L, index)) {
        lua_pop(L, 1);
        if (lua_isinteger(L, -1) && lua_tointeger(L, -1) > count) {
            lua_pop(L, 1);
            return true;
        }
    }
    return false;
}

uint64_t gpu_lua_table_count(lua_State *L, int index) {
    lua_Integer count = luaL_len(L, index);
    bool may_have_more = true;
    if (luaL_getmetafield(L, index, "__len") != LUA_TNIL) {
        lua_pop(L, 1);
        return count > 0 ? (uint64_t)count : 0;
    }
    if (count > LARGE_TABLE) {
        /* An array: nothing but what is out of place follows its last element. */
        lua_pushinteger(L, count);
        may_have_more = lua_next(L, index);
        lua_pop(L, may_have_more ? 2 : 0);
    }
    if (may_have_more && has_more(L, index, count)) {
        gpu_lua_fail(L, GPULUA_INVALID_DATA, "element %lld is missing: the table has holes",
                     (long long)count + 1);
    }
    return (uint64_t)count;
}

static int get_element(lua_State *L, int index, bool is_raw, uint64_t i) {
    return is_raw ? lua_rawgeti(L, index, (lua_Integer)i) : lua_geti(L, index, (lua_Integer)i);
}

/* A function of C's has no instructions to be stopped at. */
static void look(lua_State *L, uint64_t i) {
    if (i % 1024 == 1023) {
        gpu_lua_check_interrupt(L, gpu_lua_find(L));
    }
}

#define BATCH 32

/* Pushes some elements and looks at them where Lua keeps them: a third of what it takes to ask for
 * each. `first`: of so many as are pushed. */
static inline void from_batch(lua_State *L, const struct lua_value *values, uint64_t first,
                              uint32_t count, enum gpu_type type, uint8_t *bytes) {
    for (uint32_t i = 0; i < count; i++, bytes += gpu_type_bytes(type)) {
        const struct lua_value *value = &values[i];
        const char *reason = not_number;
        if (value->type == LUA_VALUE_NUMBER) {
            reason = to_float(value->number, type, bytes);
        } else if (value->type == LUA_VALUE_INTEGER) {
            reason = to_float(of_integer(value->integer, type), type, bytes);
        }
        if (reason) {
            int at = (int)i - (int)count;
            gpu_lua_bad_element(L, at, first + i, type, lua_isnil(L, at) ? missing : reason);
        }
    }
}

/* True: done. */
static bool from_raw_floats(lua_State *L, int index, uint64_t first, uint64_t count,
                            enum gpu_type type, uint8_t *bytes) {
    const struct lua_call *call = gpu_lua_call(L, &gpu_lua_find(L)->caller);
    if (!call) {
        return false;
    }
    int top = lua_gettop(L);
    index = lua_absindex(L, index);
    luaL_checkstack(L, BATCH, NULL);
    for (uint64_t done = 0; done < count; done += BATCH) {
        uint32_t part = count - done < BATCH ? (uint32_t)(count - done) : BATCH;
        for (uint32_t i = 0; i < part; i++) {
            lua_rawgeti(L, index, (lua_Integer)(first + done + i));
        }
        const struct lua_value *values = gpu_lua_argument(call, top + 1);
        if (type == GPU_TYPE_F32) { /* a loop of its own, without a look at the type */
            from_batch(L, values, first + done, part, GPU_TYPE_F32, bytes + done * sizeof(float));
        } else {
            from_batch(L, values, first + done, part, GPU_TYPE_F64, bytes + done * sizeof(double));
        }
        lua_settop(L, top);
        look(L, done + BATCH - 1);
    }
    return true;
}

void gpu_lua_from_table(lua_State *L, int index, uint64_t first, uint64_t count, enum gpu_type type,
                        uint8_t *bytes) {
    bool is_raw = !lua_getmetatable(L, index);
    lua_pop(L, is_raw ? 0 : 1);
    uint32_t elem_bytes = gpu_type_bytes(type);
    if (is_raw && (type == GPU_TYPE_F32 || type == GPU_TYPE_F64) &&
        from_raw_floats(L, index, first, count, type, bytes)) {
        return;
    }
    for (uint64_t i = 0; i < count; i++, bytes += elem_bytes) {
        get_element(L, index, is_raw, first + i);
        look(L, i);
        const char *reason = gpu_lua_to_element(L, -1, type, bytes);
        if (reason) {
            gpu_lua_bad_element(L, -1, first + i, type, reason);
        }
        lua_pop(L, 1);
    }
}

void gpu_lua_from_function(lua_State *L, int index, uint64_t first, uint64_t count,
                           enum gpu_type type, uint8_t *bytes) {
    uint32_t elem_bytes = gpu_type_bytes(type);
    for (uint64_t i = 0; i < count; i++, bytes += elem_bytes) {
        lua_pushvalue(L, index);
        lua_pushinteger(L, (lua_Integer)(first + i));
        lua_call(L, 1, 1);
        look(L, i);
        const char *reason = gpu_lua_to_element(L, -1, type, bytes);
        if (reason) {
            gpu_lua_bad_element(L, -1, first + i, type, reason);
        }
        lua_pop(L, 1);
    }
}

void gpu_lua_to_table(lua_State *L, int index, uint64_t first, uint64_t count, enum gpu_type type,
                      const uint8_t *bytes) {
    uint32_t elem_bytes = gpu_type_bytes(type);
    if (type == GPU_TYPE_F32) {
        for (uint64_t i = 0; i < count; i++) {
            float value;
            memcpy(&value, bytes + i * sizeof value, sizeof value);
            lua_pushnumber(L, (lua_Number)value);
            lua_rawseti(L, index, (lua_Integer)(first + i));
        }
        return;
    }
    for (uint64_t i = 0; i < count; i++, bytes += elem_bytes) {
        gpu_lua_push_element(L, type, bytes);
        lua_rawseti(L, index, (lua_Integer)(first + i));
    }
}
