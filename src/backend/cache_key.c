/* Keys and hashes of the cache: SHA-256 (FIPS 180-4), written out here: a library for 70 lines
 * would be a dependency that a fresh machine may lack. */
#include <stdint.h>
#include <string.h>

#include "backend/cache.h"

#define CACHE_STRING(x) #x
#define CACHE_NUMBER(x) CACHE_STRING(x)
#define CACHE_BUILD                                                                                \
    "gpulua " CACHE_NUMBER(GPULUA_VERSION_MAJOR) "." CACHE_NUMBER(                                 \
        GPULUA_VERSION_MINOR) "." CACHE_NUMBER(GPULUA_VERSION_PATCH) CACHE_SOURCES
/* A checksum of the sources, between releases. */
#ifdef GPULUA_BACKENDS
#define CACHE_SOURCES " " CACHE_NUMBER(GPULUA_BACKENDS)
#else
#define CACHE_SOURCES ""
#endif

struct sha256 {
    uint32_t state[8];
    uint8_t block[64];
    uint64_t bytes;
};

static uint32_t rotate_right(uint32_t x, unsigned by) {
    return x >> by | x << (32u - by);
}

static void sha256_block(uint32_t state[8], const uint8_t block[64]) {
    static const uint32_t constants[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t w[64];
    for (size_t i = 0; i < 16; i++) {
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | (uint32_t)block[4 * i + 3];
    }
    for (size_t i = 16; i < 64; i++) {
        uint32_t s0 = rotate_right(w[i - 15], 7) ^ rotate_right(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = rotate_right(w[i - 2], 17) ^ rotate_right(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t v[8];
    memcpy(v, state, sizeof v);
    for (size_t i = 0; i < 64; i++) {
        uint32_t s1 = rotate_right(v[4], 6) ^ rotate_right(v[4], 11) ^ rotate_right(v[4], 25);
        uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t t1 = v[7] + s1 + choice + constants[i] + w[i];
        uint32_t s0 = rotate_right(v[0], 2) ^ rotate_right(v[0], 13) ^ rotate_right(v[0], 22);
        uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t1;
        v[0] = t1 + s0 + majority;
    }
    for (size_t i = 0; i < 8; i++) {
        state[i] += v[i];
    }
}

static void sha256_init(struct sha256 *hash) {
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(hash->state, initial, sizeof initial);
    hash->bytes = 0;
}

static void sha256_add(struct sha256 *hash, const void *bytes, size_t byte_count) {
    const uint8_t *from = bytes;
    size_t filled = (size_t)(hash->bytes % 64);
    hash->bytes += byte_count;
    if (filled > 0) {
        size_t take = byte_count < 64 - filled ? byte_count : 64 - filled;
        if (take > 0) {
            memcpy(hash->block + filled, from, take);
        }
        if (filled + take < 64) {
            return;
        }
        sha256_block(hash->state, hash->block);
        from += take;
        byte_count -= take;
    }
    for (; byte_count >= 64; from += 64, byte_count -= 64) {
        sha256_block(hash->state, from);
    }
    if (byte_count > 0) {
        memcpy(hash->block, from, byte_count);
    }
}

static void sha256_finish(struct sha256 *hash, uint8_t digest[32]) {
    static const uint8_t padding[64] = {0x80};
    uint64_t bits = hash->bytes * 8;
    size_t filled = (size_t)(hash->bytes % 64);
    sha256_add(hash, padding, filled < 56 ? 56 - filled : 120 - filled);
    uint8_t length[8];
    for (unsigned i = 0; i < 8; i++) {
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    }
    sha256_add(hash, length, sizeof length);
    for (unsigned i = 0; i < 32; i++) {
        digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
    }
}

/* The length in front keeps ("ab", "c") and ("a", "bc") apart. */
static void sha256_add_part(struct sha256 *hash, const void *bytes, size_t byte_count) {
    uint64_t length = byte_count;
    sha256_add(hash, &length, sizeof length);
    sha256_add(hash, bytes, byte_count);
}

void gpu_cache_key_init(struct gpu_cache_key *key, const void *const *parts,
                        const size_t *part_bytes, size_t count) {
    struct sha256 hash;
    sha256_init(&hash);
    sha256_add_part(&hash, CACHE_BUILD, sizeof CACHE_BUILD);
    for (size_t i = 0; i < count; i++) {
        sha256_add_part(&hash, parts[i], part_bytes[i]);
    }
    uint8_t digest[32];
    sha256_finish(&hash, digest);
    for (size_t i = 0; i < sizeof digest; i++) {
        static const char digits[] = "0123456789abcdef";
        key->hex[2 * i] = digits[digest[i] >> 4];
        key->hex[2 * i + 1] = digits[digest[i] & 15];
    }
    key->hex[64] = '\0';
}

void gpu_cache_hash(uint8_t digest[32], const char *name, const void *bytes, size_t byte_count) {
    struct sha256 hash;
    sha256_init(&hash);
    sha256_add_part(&hash, name, strlen(name));
    sha256_add_part(&hash, bytes, byte_count);
    sha256_finish(&hash, digest);
}
