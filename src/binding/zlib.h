/* zlib, loaded at run time when first needed: every system has it, but not its header. The names
 * and numbers are zlib's (zlib.h, 1.2.9 and newer), whose layout has been the same since 1995. */
#ifndef GPU_BINDING_ZLIB_H
#define GPU_BINDING_ZLIB_H

#include <stddef.h>
#include <stdint.h>

#include <lua.h>

typedef struct {
    const unsigned char *next_in;
    unsigned avail_in;
    unsigned long total_in;
    unsigned char *next_out;
    unsigned avail_out;
    unsigned long total_out;
    const char *msg;
    void *state;
    void *(*zalloc)(void *opaque, unsigned items, unsigned size);
    void (*zfree)(void *opaque, void *address);
    void *opaque;
    int data_type;
    unsigned long adler, reserved;
} z_stream;

enum {
    Z_OK = 0,
    Z_STREAM_END = 1,
    Z_STREAM_ERROR = -2,
    Z_MEM_ERROR = -4,
    Z_BUF_ERROR = -5,
    Z_NO_FLUSH = 0,
    Z_FINISH = 4,
    Z_DEFLATED = 8,
    Z_DEFAULT_COMPRESSION = -1,
    Z_DEFAULT_STRATEGY = 0,
    MAX_WBITS = 15
};

/* clang-format off */
#define ZLIB_TABLE(X)                                                                              \
    X(int, inflateInit2_, (z_stream *stream, int bits, const char *version, int stream_bytes))     \
    X(int, inflate, (z_stream *stream, int flush))                                                 \
    X(int, inflateEnd, (z_stream *stream))                                                         \
    X(int, deflateInit2_, (z_stream *stream, int level, int method, int bits, int memory,          \
                           int strategy, const char *version, int stream_bytes))                   \
    X(int, deflate, (z_stream *stream, int flush))                                                 \
    X(int, deflateEnd, (z_stream *stream))                                                         \
    X(unsigned long, crc32_z, (unsigned long crc, const unsigned char *bytes, size_t byte_count))
/* clang-format on */

struct zlib {
    void *library;
#define X(type, name, arguments) type(*name) arguments;
    ZLIB_TABLE(X)
#undef X
};

#define ZLIB_VERSION_WANTED "1" /* all that zlib compares is the first character */

/* Raises LibraryUnavailable where it is missing; $GPULUA_LIBZ names another file. */
const struct zlib *gpu_lua_zlib(lua_State *L);

#endif
