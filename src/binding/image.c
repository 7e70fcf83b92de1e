/* PNG and JPEG to pixels and pixels to PNG, through stb. Knows nothing of devices: image.lua does
 * the rest.
 *
 * stb verifies no checksum and fills up what a short file lacks, so both formats are checked here
 * first: a damaged file must be an error, never a picture of something else. */
#include "binding/image.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "binding/zlib.h"

#define STBI_ONLY_JPEG
#define STBI_ONLY_PNG
#define STBI_NO_HDR
#define STBI_NO_LINEAR
#define STBI_NO_STDIO
/* Zeros, because stb decodes with tables that a file need not have defined; and a damaged file must
 * not end the process. */
#define STBI_MALLOC(byte_count) calloc(1, byte_count)
#define STBI_REALLOC(bytes, byte_count) realloc(bytes, byte_count)
#define STBI_FREE(bytes) free(bytes)
#define STBI_ASSERT(condition) ((void)0)
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#define STBI_WRITE_NO_STDIO
#define STB_IMAGE_WRITE_STATIC
#define STB_IMAGE_WRITE_IMPLEMENTATION
/* Functions that stb declares static and the settings above leave out. GCC says so at the end of
 * the file, so there is no pop. */
#pragma GCC diagnostic ignored "-Wunused-function"
#if __has_include(<stb/stb_image.h>)
#include <stb/stb_image.h>
#include <stb/stb_image_write.h>
#else
#include <stb_image.h>
#include <stb_image_write.h>
#endif

#define PNG_SIGNATURE_BYTES 8u
#define PNG_CHUNK_BYTES 12u /* length, type and checksum around a chunk's data */
#define CHANNELS_MAX 4
#define SIDE_MAX (1 << 24) /* stb's own bound on width and height */

/* What stb allocates, held by a userdata so that a Lua error cannot leak it. */
struct image_memory {
    unsigned char *bytes; /* owned; NULL: nothing */
};

static const char memory_name[] = "gpulua.image.memory";

static int memory_close(lua_State *L) {
    struct image_memory *memory = luaL_checkudata(L, 1, memory_name);
    free(memory->bytes);
    memory->bytes = NULL;
    return 0;
}

/* Pushes the userdata. */
static struct image_memory *memory_push(lua_State *L) {
    struct image_memory *memory = lua_newuserdatauv(L, sizeof(*memory), 0);
    memory->bytes = NULL;
    luaL_setmetatable(L, memory_name);
    return memory;
}

static uint32_t read_u32(const unsigned char *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* NULL when every chunk up to IEND is whole and its checksum is right. */
static const char *png_damage(const struct zlib *zlib, const unsigned char *bytes,
                              size_t byte_count) {
    size_t at = PNG_SIGNATURE_BYTES;

    while (byte_count - at >= PNG_CHUNK_BYTES) {
        uint32_t data_bytes = read_u32(bytes + at);

        if (data_bytes > byte_count - at - PNG_CHUNK_BYTES) {
            return "the file ends within a chunk";
        }
        if (zlib->crc32_z(0, bytes + at + 4, (size_t)data_bytes + 4) !=
            read_u32(bytes + at + 8 + data_bytes)) {
            return "a checksum is wrong";
        }
        if (memcmp(bytes + at + 4, "IEND", 4) == 0) {
            return NULL;
        }
        at += PNG_CHUNK_BYTES + data_bytes;
    }
    return "the file ends before its end mark";
}

/* Can `byte_count` bytes hold the pixels that the frame header at `bytes` claims? Each block of 8
 * by 8 takes a bit at least, and one of the components has them all. */
static bool jpeg_holds(const unsigned char *bytes, size_t byte_count) {
    size_t height = (size_t)bytes[5] << 8 | bytes[6];
    size_t width = (size_t)bytes[7] << 8 | bytes[8];

    return (height + 7) / 8 * ((width + 7) / 8) <= byte_count * 8;
}

/* Has each Huffman table of the segment at `bytes` at most 256 codes, and are they there? stb
 * writes past its own tables for those that have more. */
static bool jpeg_tables_fit(const unsigned char *bytes, size_t byte_count) {
    size_t at = 0;

    while (byte_count - at >= 17) {
        size_t code_count = 0;

        for (size_t i = 1; i <= 16; i++) {
            code_count += bytes[at + i];
        }
        if (code_count > 256 || code_count > byte_count - at - 17) {
            return false;
        }
        at += 17 + code_count;
    }
    return at == byte_count;
}

/* NULL when the segments lead to an end-of-image marker. JPEG has no checksum to verify. */
static const char *jpeg_damage(const unsigned char *bytes, size_t byte_count) {
    size_t at = 2;
    bool in_scan = false;

    while (byte_count - at >= 2) {
        unsigned char marker = bytes[at + 1];

        if (bytes[at] != 0xff) {
            if (!in_scan) {
                return "a segment does not begin with a marker";
            }
            at += 1;
        } else if (marker == 0xff) {
            at += 1; /* fill byte before a marker */
        } else if (marker == 0xd9) {
            return NULL;
        } else if (marker == 0x00 || (marker >= 0xd0 && marker <= 0xd7)) {
            at += 2; /* within a scan: a stuffed byte or a restart marker */
        } else {
            size_t segment_bytes;

            if (byte_count - at < 4) {
                break;
            }
            segment_bytes = (size_t)bytes[at + 2] << 8 | bytes[at + 3];
            if (segment_bytes < 2 || segment_bytes > byte_count - at - 2) {
                return "the file ends within a segment";
            }
            if (marker >= 0xc0 && marker <= 0xc2 && segment_bytes >= 7 &&
                !jpeg_holds(bytes + at, byte_count)) {
                return "it is shorter than its pixels can be";
            }
            if (marker == 0xc4 && !jpeg_tables_fit(bytes + at + 4, segment_bytes - 2)) {
                return "its Huffman tables are damaged";
            }
            in_scan = marker == 0xda;
            at += 2 + segment_bytes;
        }
    }
    return "the file ends before its end mark";
}

static int fail(lua_State *L, const char *message) {
    lua_pushnil(L);
    lua_pushstring(L, message);
    return 2;
}

/* decode(bytes) -> pixels, width, height, channels (8 bits each), or nil, message. */
static int image_decode(lua_State *L) {
    static const unsigned char png_signature[PNG_SIGNATURE_BYTES] = {0x89, 'P',  'N',  'G',
                                                                     '\r', '\n', 0x1a, '\n'};
    size_t byte_count;
    const char *text = luaL_checklstring(L, 1, &byte_count);
    const unsigned char *bytes = (const unsigned char *)text;
    struct image_memory *memory;
    const char *damage;
    int width, height, channels;

    if (byte_count > INT_MAX) {
        return fail(L, "the file is larger than 2 GiB");
    }
    if (byte_count >= PNG_SIGNATURE_BYTES &&
        memcmp(bytes, png_signature, PNG_SIGNATURE_BYTES) == 0) {
        damage = png_damage(gpu_lua_zlib(L), bytes, byte_count);
    } else if (byte_count >= 3 && bytes[0] == 0xff && bytes[1] == 0xd8 && bytes[2] == 0xff) {
        damage = jpeg_damage(bytes, byte_count);
    } else {
        damage = "neither a PNG nor a JPEG file";
    }
    if (damage) {
        return fail(L, damage);
    }

    memory = memory_push(L);
    memory->bytes = stbi_load_from_memory(bytes, (int)byte_count, &width, &height, &channels, 0);
    if (!memory->bytes) {
        return fail(L, stbi_failure_reason());
    }
    lua_pushlstring(L, (const char *)memory->bytes,
                    (size_t)width * (size_t)height * (size_t)channels);
    free(memory->bytes);
    memory->bytes = NULL;
    lua_pushinteger(L, width);
    lua_pushinteger(L, height);
    lua_pushinteger(L, channels);
    return 4;
}

/* encode_png(pixels, width, height, channels) -> bytes, or nil, message. */
static int image_encode_png(lua_State *L) {
    size_t byte_count;
    const char *pixels = luaL_checklstring(L, 1, &byte_count);
    lua_Integer width = luaL_checkinteger(L, 2);
    lua_Integer height = luaL_checkinteger(L, 3);
    lua_Integer channels = luaL_checkinteger(L, 4);
    struct image_memory *memory;
    int png_bytes;

    luaL_argcheck(L, width >= 1 && width <= SIDE_MAX, 2, "out of range");
    luaL_argcheck(L, height >= 1 && height <= SIDE_MAX, 3, "out of range");
    luaL_argcheck(L, channels >= 1 && channels <= CHANNELS_MAX, 4, "out of range");
    luaL_argcheck(L, byte_count == (size_t)width * (size_t)height * (size_t)channels, 1,
                  "not width * height * channels bytes");
    /* stb counts in int, and deflate may grow what it cannot press. */
    if (byte_count > INT_MAX / 2) {
        return fail(L, "the picture is larger than 1 GiB");
    }
    memory = memory_push(L);
    memory->bytes = stbi_write_png_to_mem((const unsigned char *)pixels, (int)(width * channels),
                                          (int)width, (int)height, (int)channels, &png_bytes);
    if (!memory->bytes) {
        return fail(L, "out of memory");
    }
    lua_pushlstring(L, (const char *)memory->bytes, (size_t)png_bytes);
    free(memory->bytes);
    memory->bytes = NULL;
    return 1;
}

int luaopen_gpulua_image_core(lua_State *L) {
    static const luaL_Reg functions[] = {
        {"decode", image_decode},
        {"encode_png", image_encode_png},
        {NULL, NULL},
    };

    luaL_newmetatable(L, memory_name);
    lua_pushcfunction(L, memory_close);
    lua_setfield(L, -2, "__gc");
    lua_pop(L, 1);
    luaL_newlib(L, functions); /* table */
    return 1;
}
