/* Pictures (PNG, JPEG) that come from anywhere: image.load, as a script calls it. Checksums keep
 * damage from what lies behind them, so most inputs get those that are right. */
#include "fuzz/fuzz.h"

#define SIGNATURE_BYTES 8u
#define CHUNK_BYTES 12u /* length, type and checksum around a chunk's data */

static uint32_t crc_of(const uint8_t *bytes, size_t byte_count) {
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < byte_count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1u)));
        }
    }
    return ~crc;
}

static uint32_t length_at(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void mend_checksums(uint8_t *bytes, size_t byte_count) {
    size_t at = SIGNATURE_BYTES;
    while (byte_count >= at + CHUNK_BYTES &&
           length_at(bytes + at) <= byte_count - at - CHUNK_BYTES) {
        size_t end = at + 8u + length_at(bytes + at);
        uint32_t crc = crc_of(bytes + at + 4, end - at - 4);
        for (int i = 0; i < 4; i++) {
            bytes[end + (size_t)i] = (uint8_t)(crc >> (24 - 8 * i));
        }
        at = end + 4u;
    }
}

FUZZ_TARGET(image) {
    static lua_State *L;
    static char path[32];
    static int fd;
    if (!L) {
        L = fuzz_reader("gpulua.image", "load", &fd, path);
    }
    uint8_t *copy = malloc(byte_count + 1u);
    memcpy(copy, bytes, byte_count);
    if (byte_count > 0 && bytes[0] == 0x89 && byte_count % 4u != 0) {
        mend_checksums(copy, byte_count);
    }
    fuzz_read(L, fd, path, copy, byte_count);
    free(copy);
    return 0;
}
