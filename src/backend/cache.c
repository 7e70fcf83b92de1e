/* Compiled code on disk, by content (see backend.h).
 *
 * One file for each entry: `<64 hex digits>.<suffix>` = header | bytes. The header holds the length
 * and a hash over name and bytes, so a truncated, damaged or renamed file is found out when it is
 * read, and removed. A writer fills a temporary file of its own and renames it into place: readers
 * see a whole entry or none, and of two writers the later one wins. No locks, no fsync: what a
 * crash leaves behind fails the hash.
 *
 * Everything happens relative to a descriptor of the folder that has been checked to be ours and
 * writable by nobody else, because what is read from here is run as code.
 *
 * SHA-256 (FIPS 180-4) is written out here: a library for 70 lines would be a dependency that a
 * fresh machine may lack. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backend/backend.h"

#define CACHE_BYTES_MAX (UINT64_C(256) << 20)
#define CACHE_BYTES_KEPT                                                                           \
    (CACHE_BYTES_MAX / 8 * 7)      /* down to here, so that not every put evicts                   \
                                    */
#define CACHE_TEMPORARY_AGE_S 3600 /* a temporary file this old has no writer */
#define CACHE_TEMPORARY_PREFIX ".new-"
#define CACHE_MAGIC "gpulua-cache-1\n" /* 16 bytes with its NUL */
#define CACHE_NAME_BYTES 128
#define CACHE_STRING(x) #x
#define CACHE_NUMBER(x) CACHE_STRING(x)
#define CACHE_BUILD                                                                                \
    "gpulua " CACHE_NUMBER(GPULUA_VERSION_MAJOR) "." CACHE_NUMBER(                                 \
        GPULUA_VERSION_MINOR) "." CACHE_NUMBER(GPULUA_VERSION_PATCH)

/* ---- SHA-256 ---- */

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

/* ---- the folder ---- */

/* mkdir -p; what is made is ours alone. */
static bool folder_make(const char *path) {
    char part[4096];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof part) {
        return false;
    }
    memcpy(part, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (part[i] == '/' || part[i] == '\0') {
            char kept = part[i];
            part[i] = '\0';
            if (mkdir(part, 0700) != 0 && errno != EEXIST) {
                struct stat facts;
                /* A read-only or foreign parent is fine as long as it is there. */
                if (stat(part, &facts) != 0 || !S_ISDIR(facts.st_mode)) {
                    return false;
                }
            }
            part[i] = kept;
        }
    }
    return true;
}

/* -1: not there, not ours, or others can write to it. */
static int folder_open_checked(const char *path, int more_flags) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | more_flags);
    if (fd < 0) {
        return -1;
    }
    struct stat facts;
    if (fstat(fd, &facts) != 0 || facts.st_uid != geteuid() ||
        (facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool folder_usable(const char *path, int more_flags) {
    if (!folder_make(path)) {
        return false;
    }
    int fd = folder_open_checked(path, more_flags);
    if (fd < 0) {
        return false;
    }
    bool writable = faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) == 0;
    close(fd);
    return writable;
}

static bool folder_named(char *folder, size_t folder_bytes, const char *first, const char *second) {
    int length = snprintf(folder, folder_bytes, "%s%s", first, second);
    return length > 0 && (size_t)length < folder_bytes;
}

/* A folder that somebody named is taken or refused, never replaced by another behind his back; the
 * defaults are tried in turn. */
bool gpu_cache_folder(const char *cache_path, char *folder, size_t folder_bytes) {
    if (cache_path == NULL || cache_path[0] == '\0') {
        cache_path = getenv("GPULUA_CACHE");
    }
    if (cache_path != NULL && cache_path[0] != '\0') {
        return folder_named(folder, folder_bytes, cache_path, "") && folder_usable(folder, 0);
    }
    const char *base = getenv("XDG_CACHE_HOME");
    /* The XDG specification says to ignore relative paths. */
    if (base != NULL && base[0] == '/' && folder_named(folder, folder_bytes, base, "/gpulua") &&
        folder_usable(folder, 0)) {
        return true;
    }
    base = getenv("HOME");
    if (base != NULL && base[0] == '/' &&
        folder_named(folder, folder_bytes, base, "/.cache/gpulua") && folder_usable(folder, 0)) {
        return true;
    }
    int length =
        snprintf(folder, folder_bytes, "/tmp/gpulua-cache-%ju", (uintmax_t)(geteuid() + 0u));
    /* In /tmp somebody else may have planted a link. */
    return length > 0 && (size_t)length < folder_bytes && folder_usable(folder, O_NOFOLLOW);
}

static int folder_open(const char *cache_path) {
    char folder[4096];
    if (!gpu_cache_folder(cache_path, folder, sizeof folder)) {
        return -1;
    }
    return folder_open_checked(folder, 0);
}

/* ---- entries ---- */

struct entry_header {
    char magic[16];
    uint64_t bytes;
    uint8_t hash[32];
};
static_assert(sizeof(struct entry_header) == 56, "layout of the file");
static_assert(sizeof CACHE_MAGIC == 16, "layout of the file");

static bool entry_name(char name[CACHE_NAME_BYTES], const struct gpu_cache_key *key,
                       const char *suffix) {
    if (suffix[0] == '.') {
        suffix++;
    }
    if (strlen(key->hex) != 64 || suffix[0] == '\0' || strchr(suffix, '/') != NULL) {
        return false;
    }
    int length = snprintf(name, CACHE_NAME_BYTES, "%s.%s", key->hex, suffix);
    return length > 0 && length < CACHE_NAME_BYTES;
}

static void entry_hash(uint8_t digest[32], const char *name, const void *bytes, size_t byte_count) {
    struct sha256 hash;
    sha256_init(&hash);
    sha256_add_part(&hash, name, strlen(name));
    sha256_add_part(&hash, bytes, byte_count);
    sha256_finish(&hash, digest);
}

static bool read_all(int fd, void *to, size_t byte_count) {
    char *at = to;
    while (byte_count > 0) {
        ssize_t got = read(fd, at, byte_count);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        at += got;
        byte_count -= (size_t)got;
    }
    return true;
}

static bool write_all(int fd, const void *from, size_t byte_count) {
    const char *at = from;
    while (byte_count > 0) {
        ssize_t put = write(fd, at, byte_count);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return false;
        }
        at += put;
        byte_count -= (size_t)put;
    }
    return true;
}

enum entry_state { ENTRY_GOOD, ENTRY_DAMAGED, ENTRY_UNREADABLE };

static enum entry_state entry_read(int fd, const char *name, void **bytes, size_t *byte_count) {
    struct stat facts;
    struct entry_header header;
    if (fstat(fd, &facts) != 0) {
        return ENTRY_UNREADABLE;
    }
    if (!S_ISREG(facts.st_mode) || facts.st_size < (off_t)sizeof header ||
        (uint64_t)facts.st_size > CACHE_BYTES_MAX || !read_all(fd, &header, sizeof header) ||
        memcmp(header.magic, CACHE_MAGIC, sizeof header.magic) != 0 ||
        header.bytes != (uint64_t)facts.st_size - sizeof header) {
        return ENTRY_DAMAGED;
    }
    size_t count = (size_t)header.bytes;
    char *read_bytes = malloc(count + 1);
    if (read_bytes == NULL) {
        return ENTRY_UNREADABLE;
    }
    uint8_t hash[32];
    if (read_all(fd, read_bytes, count)) {
        entry_hash(hash, name, read_bytes, count);
        if (memcmp(hash, header.hash, sizeof hash) == 0) {
            read_bytes[count] = '\0'; /* text can be used as it is */
            *bytes = read_bytes;
            *byte_count = count;
            return ENTRY_GOOD;
        }
    }
    free(read_bytes);
    return ENTRY_DAMAGED;
}

bool gpu_cache_get(const char *cache_path, const struct gpu_cache_key *key, const char *suffix,
                   void **bytes, size_t *byte_count) {
    char name[CACHE_NAME_BYTES];
    if (!entry_name(name, key, suffix)) {
        return false;
    }
    int folder = folder_open(cache_path);
    if (folder < 0) {
        return false;
    }
    enum entry_state state = ENTRY_UNREADABLE;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
        state = entry_read(fd, name, bytes, byte_count);
        if (state == ENTRY_GOOD) {
            /* Explicitly: file systems are mounted so that reading does not move the times. */
            (void)futimens(fd, NULL);
        }
        close(fd);
    } else if (errno == ELOOP) {
        state = ENTRY_DAMAGED; /* a link is none of ours */
    }
    if (state == ENTRY_DAMAGED) {
        (void)unlinkat(folder, name, 0);
    }
    close(folder);
    return state == ENTRY_GOOD;
}

/* ---- eviction ---- */

struct aged {
    struct timespec used;
    uint64_t bytes;
    char name[CACHE_NAME_BYTES];
};

static int aged_compare(const void *a, const void *b) {
    const struct aged *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec) {
        return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    }
    if (x->used.tv_nsec != y->used.tv_nsec) {
        return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

/* Only what has the shape of an entry is counted and evicted: the folder may hold other things. */
static bool name_is_entry(const char *name) {
    return strspn(name, "0123456789abcdef") == 64 && name[64] == '.' &&
           strlen(name) < CACHE_NAME_BYTES;
}

static void folder_list(int folder, struct aged **list, size_t *count, uint64_t *bytes) {
    *list = NULL;
    *count = 0;
    *bytes = 0;
    size_t capacity = 0;
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = again < 0 ? NULL : fdopendir(again);
    if (stream == NULL) {
        if (again >= 0) {
            close(again);
        }
        return;
    }
    time_t now = time(NULL);
    for (struct dirent *found = readdir(stream); found != NULL; found = readdir(stream)) {
        struct stat facts;
        bool temporary =
            strncmp(found->d_name, CACHE_TEMPORARY_PREFIX, sizeof CACHE_TEMPORARY_PREFIX - 1) == 0;
        if ((!temporary && !name_is_entry(found->d_name)) ||
            fstatat(folder, found->d_name, &facts, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(facts.st_mode)) {
            continue;
        }
        if (temporary) {
            if (facts.st_mtim.tv_sec + CACHE_TEMPORARY_AGE_S < now) {
                (void)unlinkat(folder, found->d_name, 0);
            }
            continue;
        }
        if (*count == capacity) {
            size_t more = capacity ? capacity * 2 : 256;
            struct aged *grown = realloc(*list, more * sizeof **list);
            if (grown == NULL) {
                break; /* what is listed so far is evicted; the next put sees the rest */
            }
            *list = grown;
            capacity = more;
        }
        struct aged *entry = &(*list)[(*count)++];
        entry->used = facts.st_mtim;
        entry->bytes = (uint64_t)facts.st_size;
        memcpy(entry->name, found->d_name, strlen(found->d_name) + 1);
        *bytes += entry->bytes;
    }
    closedir(stream);
}

/* Makes room for `wanted` bytes. Several processes may do this at once: an entry that another one
 * has removed is simply gone. */
static void folder_trim(int folder, uint64_t wanted) {
    struct aged *list;
    size_t count;
    uint64_t bytes;
    folder_list(folder, &list, &count, &bytes);
    if (bytes + wanted > CACHE_BYTES_MAX) {
        qsort(list, count, sizeof *list, aged_compare);
        for (size_t i = 0; i < count && bytes > 0 && bytes + wanted > CACHE_BYTES_KEPT; i++) {
            (void)unlinkat(folder, list[i].name, 0);
            bytes -= list[i].bytes;
        }
    }
    free(list);
}

static int temporary_open(int folder, char name[CACHE_NAME_BYTES]) {
    for (int attempt = 0; attempt < 16; attempt++) {
        uint64_t random;
        if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) {
            return -1;
        }
        snprintf(name, CACHE_NAME_BYTES, CACHE_TEMPORARY_PREFIX "%016" PRIx64, random);
        int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != EEXIST) {
            return fd;
        }
    }
    return -1;
}

void gpu_cache_put(const char *cache_path, const struct gpu_cache_key *key, const char *suffix,
                   const void *bytes, size_t byte_count) {
    char name[CACHE_NAME_BYTES], temporary[CACHE_NAME_BYTES];
    struct entry_header header = {.magic = CACHE_MAGIC, .bytes = byte_count};
    if (byte_count > CACHE_BYTES_KEPT - sizeof header || !entry_name(name, key, suffix)) {
        return;
    }
    int folder = folder_open(cache_path);
    if (folder < 0) {
        return;
    }
    folder_trim(folder, sizeof header + byte_count);
    entry_hash(header.hash, name, bytes, byte_count);
    int fd = temporary_open(folder, temporary);
    if (fd >= 0) {
        bool whole = write_all(fd, &header, sizeof header) && write_all(fd, bytes, byte_count);
        if (close(fd) != 0 || !whole || renameat(folder, temporary, folder, name) != 0) {
            (void)unlinkat(folder, temporary, 0);
        }
    }
    close(folder);
}
