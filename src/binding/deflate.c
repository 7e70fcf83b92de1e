/* Raw deflate streams as zip archives have them, through zlib. Knows nothing of devices and files:
 * zip.lua does the rest.
 *
 * zlib and not libzip: libzip's writer pulls from its sources when the archive is closed, where no
 * task could yield to wait for the device. */
#include "binding/deflate.h"

#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "binding/zlib.h"

#define PIECE_BYTES (64u << 10)
#define TAKE_BYTES_MAX (64 << 20)
#define MEMORY_LEVEL 8 /* zlib's own default */

/* A stream of either way, held by a userdata so that a Lua error cannot leak it. What is to be
 * inflated next lies in a string, its user value. */
struct deflate_stream {
    z_stream z;
    const struct zlib *zlib;
    bool is_open, inflates, has_ended;
};

static const char inflater_name[] = "gpulua.inflater";
static const char deflater_name[] = "gpulua.deflater";

static int stream_end(struct deflate_stream *stream) {
    if (stream->is_open) {
        stream->is_open = false;
        (void)(stream->inflates ? stream->zlib->inflateEnd(&stream->z)
                                : stream->zlib->deflateEnd(&stream->z));
    }
    return 0;
}

static int inflater_close(lua_State *L) {
    return stream_end(luaL_checkudata(L, 1, inflater_name));
}

static int deflater_close(lua_State *L) {
    return stream_end(luaL_checkudata(L, 1, deflater_name));
}

static struct deflate_stream *check_open(lua_State *L, const char *name) {
    struct deflate_stream *stream = luaL_checkudata(L, 1, name);
    luaL_argcheck(L, stream->is_open, 1, "closed");
    return stream;
}

static int fail(lua_State *L, const char *message) {
    lua_pushnil(L);
    lua_pushstring(L, message);
    return 2;
}

/* Pushes a closed one. */
static struct deflate_stream *stream_new(lua_State *L, const char *name, bool inflates) {
    struct deflate_stream *stream = lua_newuserdatauv(L, sizeof *stream, 1);
    memset(stream, 0, sizeof *stream);
    stream->zlib = gpu_lua_zlib(L);
    stream->inflates = inflates;
    luaL_setmetatable(L, name);
    return stream;
}

/* ---- in ---- */

/* inflater() */
static int inflater_new(lua_State *L) {
    struct deflate_stream *stream = stream_new(L, inflater_name, true);
    if (stream->zlib->inflateInit2_(&stream->z, -MAX_WBITS, ZLIB_VERSION_WANTED,
                                    (int)sizeof stream->z) != Z_OK) {
        return luaL_error(L, "not enough memory");
    }
    stream->is_open = true;
    return 1;
}

/* inflater:give(bytes) */
static int inflater_give(lua_State *L) {
    struct deflate_stream *stream = check_open(L, inflater_name);
    size_t byte_count;
    const char *bytes = luaL_checklstring(L, 2, &byte_count);
    luaL_argcheck(L, byte_count <= INT_MAX && stream->z.avail_in == 0, 2, "too much at once");
    lua_settop(L, 2);
    lua_setiuservalue(L, 1, 1);
    stream->z.next_in = (const unsigned char *)bytes;
    stream->z.avail_in = (unsigned)byte_count;
    return 0;
}

/* inflater:take(byte_count) */
static int inflater_take(lua_State *L) {
    struct deflate_stream *stream = check_open(L, inflater_name);
    lua_Integer byte_count = luaL_checkinteger(L, 2);
    luaL_argcheck(L, byte_count >= 1 && byte_count <= TAKE_BYTES_MAX, 2, "out of range");
    luaL_Buffer text;
    stream->z.next_out = (unsigned char *)luaL_buffinitsize(L, &text, (size_t)byte_count);
    stream->z.avail_out = (unsigned)byte_count;
    int status = stream->has_ended ? Z_STREAM_END : stream->zlib->inflate(&stream->z, Z_NO_FLUSH);
    size_t taken = (size_t)byte_count - stream->z.avail_out;
    switch (status) {
    case Z_STREAM_END:
        stream->has_ended = true;
        break;
    case Z_OK:
    case Z_BUF_ERROR: /* nothing given, or nothing that gives a byte */
        break;
    case Z_MEM_ERROR:
        return luaL_error(L, "not enough memory");
    default:
        return fail(L, stream->z.msg ? stream->z.msg : "it is not deflated data");
    }
    luaL_pushresultsize(&text, taken);
    lua_pushboolean(L, stream->has_ended);
    lua_pushinteger(L, (lua_Integer)stream->z.avail_in);
    return 3;
}

/* ---- out ---- */

/* deflater() */
static int deflater_new(lua_State *L) {
    struct deflate_stream *stream = stream_new(L, deflater_name, false);
    if (stream->zlib->deflateInit2_(&stream->z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS,
                                    MEMORY_LEVEL, Z_DEFAULT_STRATEGY, ZLIB_VERSION_WANTED,
                                    (int)sizeof stream->z) != Z_OK) {
        return luaL_error(L, "not enough memory");
    }
    stream->is_open = true;
    return 1;
}

/* deflater:press(bytes, is_last) */
static int deflater_press(lua_State *L) {
    struct deflate_stream *stream = check_open(L, deflater_name);
    size_t byte_count;
    const char *bytes = luaL_checklstring(L, 2, &byte_count);
    int flush = lua_toboolean(L, 3) ? Z_FINISH : Z_NO_FLUSH;
    luaL_argcheck(L, byte_count <= INT_MAX, 2, "too much at once");
    luaL_argcheck(L, !stream->has_ended, 1, "its end was written");
    stream->z.next_in = (const unsigned char *)bytes;
    stream->z.avail_in = (unsigned)byte_count;
    luaL_Buffer text;
    luaL_buffinit(L, &text);
    do {
        stream->z.next_out = (unsigned char *)luaL_prepbuffsize(&text, PIECE_BYTES);
        stream->z.avail_out = PIECE_BYTES;
        /* Neither memory nor data can be wrong from here on: it fails only if misused. */
        if (stream->zlib->deflate(&stream->z, flush) == Z_STREAM_ERROR) {
            return fail(L, "zlib refuses to go on");
        }
        luaL_addsize(&text, PIECE_BYTES - stream->z.avail_out);
    } while (stream->z.avail_out == 0);
    stream->z.next_in = NULL;
    stream->has_ended = flush == Z_FINISH;
    luaL_pushresult(&text);
    return 1;
}

/* ---- checksums ---- */

/* crc32(bytes, crc) -> crc */
static int checksum(lua_State *L) {
    size_t byte_count;
    const char *bytes = luaL_checklstring(L, 1, &byte_count);
    unsigned long crc = (unsigned long)luaL_checkinteger(L, 2);
    lua_pushinteger(
        L, (lua_Integer)gpu_lua_zlib(L)->crc32_z(crc, (const unsigned char *)bytes, byte_count));
    return 1;
}

static void new_type(lua_State *L, const char *name, const luaL_Reg *methods, lua_CFunction close) {
    luaL_newmetatable(L, name);
    lua_newtable(L);
    luaL_setfuncs(L, methods, 0);
    lua_pushcfunction(L, close);
    lua_setfield(L, -2, "close");
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, close);
    lua_setfield(L, -2, "__close");
    lua_pushcfunction(L, close);
    lua_setfield(L, -2, "__gc");
    lua_pop(L, 1);
}

int luaopen_gpulua_deflate_core(lua_State *L) {
    static const luaL_Reg functions[] = {
        {"crc32", checksum}, {"deflater", deflater_new}, {"inflater", inflater_new}, {NULL, NULL}};
    static const luaL_Reg inflater_methods[] = {
        {"give", inflater_give}, {"take", inflater_take}, {NULL, NULL}};
    static const luaL_Reg deflater_methods[] = {{"press", deflater_press}, {NULL, NULL}};

    new_type(L, inflater_name, inflater_methods, inflater_close);
    new_type(L, deflater_name, deflater_methods, deflater_close);
    luaL_newlib(L, functions); /* table */
    return 1;
}
