/* Elements as files have them: byte order, the order of dimensions, samples of sound. All of it on
 * strings of bytes, little-endian. Knows nothing of devices and files. */
#include "binding/samples.h"

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#define DIMS_MAX 8
#define ELEM_BYTES_MAX 16

/* ---- arrays ---- */

/* swap(bytes, elem_bytes) */
static int swap(lua_State *L) {
    size_t byte_count;
    const char *from = luaL_checklstring(L, 1, &byte_count);
    lua_Integer elem_bytes = luaL_checkinteger(L, 2);
    luaL_argcheck(L, elem_bytes == 2 || elem_bytes == 4 || elem_bytes == 8, 2, "not 2, 4 or 8");
    size_t width = (size_t)elem_bytes;
    luaL_argcheck(L, byte_count % width == 0, 1, "not whole elements");
    luaL_Buffer text;
    char *to = luaL_buffinitsize(L, &text, byte_count);
    for (size_t i = 0; i < byte_count; i += width) {
        for (size_t k = 0; k < width; k++) {
            to[i + k] = from[i + width - 1 - k];
        }
    }
    luaL_pushresultsize(&text, byte_count);
    return 1;
}

struct order {
    int dims;
    uint64_t shape[DIMS_MAX], stride[DIMS_MAX]; /* elements; of Fortran order: the first is 1 */
    uint64_t elem_count;
};

/* The table of dimensions at `index`, whose product fits `elem_max`. */
static void check_shape(lua_State *L, int index, uint64_t elem_max, struct order *order) {
    luaL_checktype(L, index, LUA_TTABLE);
    lua_Unsigned dims = lua_rawlen(L, index);
    luaL_argcheck(L, dims >= 1 && dims <= DIMS_MAX, index, "1 to 8 dimensions expected");
    order->dims = (int)dims;
    order->elem_count = 1;
    for (int d = 0; d < order->dims; d++) {
        lua_rawgeti(L, index, d + 1);
        lua_Integer dimension = lua_tointeger(L, -1);
        lua_pop(L, 1);
        luaL_argcheck(L, dimension >= 1 && (uint64_t)dimension <= elem_max / order->elem_count,
                      index, "not the bytes of this shape");
        order->shape[d] = (uint64_t)dimension;
        order->stride[d] = order->elem_count;
        order->elem_count *= (uint64_t)dimension;
    }
}

/* c_order(bytes, elem_bytes, shape, first, count) */
static int c_order(lua_State *L) {
    size_t byte_count;
    const char *from = luaL_checklstring(L, 1, &byte_count);
    lua_Integer elem_bytes = luaL_checkinteger(L, 2);
    luaL_argcheck(L, elem_bytes >= 1 && elem_bytes <= ELEM_BYTES_MAX, 2, "out of range");
    size_t width = (size_t)elem_bytes;
    struct order order;
    check_shape(L, 3, byte_count / width, &order);
    luaL_argcheck(L, order.elem_count * width == byte_count, 3, "not the bytes of this shape");
    lua_Integer first = luaL_checkinteger(L, 4);
    luaL_argcheck(L, first >= 0 && (uint64_t)first < order.elem_count, 4, "out of range");
    lua_Integer count = luaL_checkinteger(L, 5);
    luaL_argcheck(L, count >= 1 && (uint64_t)count <= order.elem_count - (uint64_t)first, 5,
                  "out of range");

    uint64_t at[DIMS_MAX], rest = (uint64_t)first, source = 0;
    for (int d = order.dims - 1; d >= 0; d--) {
        at[d] = rest % order.shape[d];
        rest /= order.shape[d];
        source += at[d] * order.stride[d];
    }
    luaL_Buffer text;
    char *to = luaL_buffinitsize(L, &text, (size_t)count * width);
    for (lua_Integer i = 0; i < count; i++, to += width) {
        memcpy(to, from + source * width, width);
        /* The last dimension counts first. */
        for (int d = order.dims - 1; d >= 0; d--) {
            source += order.stride[d];
            if (++at[d] < order.shape[d]) {
                break;
            }
            source -= at[d] * order.stride[d];
            at[d] = 0;
        }
    }
    luaL_pushresultsize(&text, (size_t)count * width);
    return 1;
}

/* ---- samples ---- */

/* What did not fit. */
struct misfits {
    uint64_t count, first, first_nan; /* from 1; 0: none */
};

static void misfit(struct misfits *misfits, size_t i) {
    misfits->first = misfits->count == 0 ? i + 1 : misfits->first;
    misfits->count++;
}

static int32_t read_i24(const uint8_t *bytes) {
    uint32_t bits = (uint32_t)bytes[0] << 8 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 24;
    return (int32_t)bits >> 8;
}

static void write_i24(uint8_t *bytes, int32_t value) {
    bytes[0] = (uint8_t)value;
    bytes[1] = (uint8_t)((uint32_t)value >> 8);
    bytes[2] = (uint8_t)((uint32_t)value >> 16);
}

static void put_float(uint8_t *to, size_t i, float value) {
    memcpy(to + i * sizeof value, &value, sizeof value);
}

static void u8_to_f32(const uint8_t *from, uint8_t *to, size_t count, struct misfits *misfits) {
    (void)misfits;
    for (size_t i = 0; i < count; i++) {
        put_float(to, i, (float)(from[i] - 128) / 128.0f);
    }
}

static void i16_to_f32(const uint8_t *from, uint8_t *to, size_t count, struct misfits *misfits) {
    (void)misfits;
    for (size_t i = 0; i < count; i++) {
        int16_t value;
        memcpy(&value, from + i * sizeof value, sizeof value);
        put_float(to, i, (float)value / 32768.0f);
    }
}

static void i24_to_f32(const uint8_t *from, uint8_t *to, size_t count, struct misfits *misfits) {
    (void)misfits;
    for (size_t i = 0; i < count; i++) {
        put_float(to, i, (float)read_i24(from + i * 3) / 8388608.0f);
    }
}

static void i32_to_f32(const uint8_t *from, uint8_t *to, size_t count, struct misfits *misfits) {
    (void)misfits;
    for (size_t i = 0; i < count; i++) {
        int32_t value;
        memcpy(&value, from + i * sizeof value, sizeof value);
        put_float(to, i, (float)value / 2147483648.0f);
    }
}

static void f64_to_f32(const uint8_t *from, uint8_t *to, size_t count, struct misfits *misfits) {
    for (size_t i = 0; i < count; i++) {
        double value;
        memcpy(&value, from + i * sizeof value, sizeof value);
        float narrow = (float)value;
        if (isinf(narrow) && !isinf(value)) {
            misfit(misfits, i);
        }
        put_float(to, i, narrow);
    }
}

/* One sample to a whole number of `bits` bits. The default rounding of the machine is to nearest,
 * even where two are. */
static int32_t quantise(const uint8_t *from, size_t i, int bits, struct misfits *misfits) {
    float value;
    memcpy(&value, from + i * sizeof value, sizeof value);
    double scale = (double)(INT64_C(1) << (bits - 1));
    double largest = scale - 1;
    if (isnan(value)) {
        misfits->first_nan = misfits->first_nan == 0 ? i + 1 : misfits->first_nan;
        misfit(misfits, i);
        return 0;
    }
    if (value > 1.0f || value < -1.0f) {
        misfit(misfits, i);
    }
    double rounded = nearbyint((double)value * scale);
    return (int32_t)(rounded > largest ? largest : rounded < -scale ? -scale : rounded);
}

static void f32_to_i16(const uint8_t *from, uint8_t *to, size_t count, struct misfits *misfits) {
    for (size_t i = 0; i < count; i++) {
        int16_t value = (int16_t)quantise(from, i, 16, misfits);
        memcpy(to + i * sizeof value, &value, sizeof value);
    }
}

static void f32_to_i24(const uint8_t *from, uint8_t *to, size_t count, struct misfits *misfits) {
    for (size_t i = 0; i < count; i++) {
        write_i24(to + i * 3, quantise(from, i, 24, misfits));
    }
}

static void f32_to_i32(const uint8_t *from, uint8_t *to, size_t count, struct misfits *misfits) {
    for (size_t i = 0; i < count; i++) {
        int32_t value = quantise(from, i, 32, misfits);
        memcpy(to + i * sizeof value, &value, sizeof value);
    }
}

static void i24_to_i32(const uint8_t *from, uint8_t *to, size_t count, struct misfits *misfits) {
    (void)misfits;
    for (size_t i = 0; i < count; i++) {
        int32_t value = read_i24(from + i * 3);
        memcpy(to + i * sizeof value, &value, sizeof value);
    }
}

static void i32_to_i24(const uint8_t *from, uint8_t *to, size_t count, struct misfits *misfits) {
    const int32_t largest = (1 << 23) - 1;
    for (size_t i = 0; i < count; i++) {
        int32_t value;
        memcpy(&value, from + i * sizeof value, sizeof value);
        if (value > largest || value < -largest - 1) {
            misfit(misfits, i);
            value = value < 0 ? -largest - 1 : largest;
        }
        write_i24(to + i * 3, value);
    }
}

static const struct conversion {
    const char *from, *to;
    size_t from_bytes, to_bytes;
    void (*convert)(const uint8_t *from, uint8_t *to, size_t count, struct misfits *misfits);
} conversions[] = {
    {"u8", "f32", 1, 4, u8_to_f32},   {"i16", "f32", 2, 4, i16_to_f32},
    {"i24", "f32", 3, 4, i24_to_f32}, {"i32", "f32", 4, 4, i32_to_f32},
    {"f64", "f32", 8, 4, f64_to_f32}, {"f32", "i16", 4, 2, f32_to_i16},
    {"f32", "i24", 4, 3, f32_to_i24}, {"f32", "i32", 4, 4, f32_to_i32},
    {"i24", "i32", 3, 4, i24_to_i32}, {"i32", "i24", 4, 3, i32_to_i24},
};

static const struct conversion *find_conversion(const char *from, const char *to) {
    for (size_t i = 0; i < sizeof conversions / sizeof conversions[0]; i++) {
        if (strcmp(conversions[i].from, from) == 0 && strcmp(conversions[i].to, to) == 0) {
            return &conversions[i];
        }
    }
    return NULL;
}

/* convert(bytes, from, to) */
static int convert(lua_State *L) {
    size_t byte_count;
    const char *from = luaL_checklstring(L, 1, &byte_count);
    const struct conversion *conversion =
        find_conversion(luaL_checkstring(L, 2), luaL_checkstring(L, 3));
    luaL_argcheck(L, conversion, 3, "no such conversion");
    luaL_argcheck(L, byte_count % conversion->from_bytes == 0, 1, "not whole samples");
    size_t count = byte_count / conversion->from_bytes;
    luaL_argcheck(L, count <= INT_MAX, 1, "too much at once");
    struct misfits misfits = {0};
    luaL_Buffer text;
    char *to = luaL_buffinitsize(L, &text, count * conversion->to_bytes);
    conversion->convert((const uint8_t *)from, (uint8_t *)to, count, &misfits);
    luaL_pushresultsize(&text, count * conversion->to_bytes);
    lua_pushinteger(L, (lua_Integer)misfits.count);
    lua_pushinteger(L, (lua_Integer)misfits.first);
    lua_pushinteger(L, (lua_Integer)misfits.first_nan);
    return 4;
}

int luaopen_gpulua_samples_core(lua_State *L) {
    static const luaL_Reg functions[] = {
        {"c_order", c_order}, {"convert", convert}, {"swap", swap}, {NULL, NULL}};

    luaL_newlib(L, functions); /* table */
    return 1;
}
