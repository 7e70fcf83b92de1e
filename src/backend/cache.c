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
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/cache.h"
#include "backend/file.h"
#include "backend/text.h"

#define CACHE_MAGIC "gpulua-cache-1\n" /* 16 bytes with its NUL */

/* ---- the folder ---- */

/* mkdir -p; what is made is ours alone. False: errno says why. */
static bool folder_make(const char *path) {
    char part[4096];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof part) {
        errno = length == 0 ? ENOENT : ENAMETOOLONG;
        return false;
    }
    memcpy(part, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (part[i] == '/' || part[i] == '\0') {
            char kept = part[i];
            part[i] = '\0';
            if (mkdir(part, 0700) != 0) {
                int why = errno == EEXIST ? ENOTDIR : errno;
                struct stat facts;
                /* A read-only or foreign parent is fine as long as it is there. */
                if (stat(part, &facts) != 0 || !S_ISDIR(facts.st_mode)) {
                    errno = why;
                    return false;
                }
            }
            part[i] = kept;
        }
    }
    return true;
}

/* -1: not there, or, with EPERM, not ours, or others can write to it. */
static int folder_open_checked(const char *path, int more_flags) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | more_flags);
    if (fd < 0) {
        return -1;
    }
    struct stat facts;
    if (fstat(fd, &facts) != 0 || facts.st_uid != geteuid() ||
        (facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        close(fd);
        errno = EPERM;
        return -1;
    }
    return fd;
}

/* False: errno says why, as that of folder_open_checked. */
static bool folder_usable(const char *path, int more_flags) {
    if (!folder_make(path)) {
        return false;
    }
    int fd = folder_open_checked(path, more_flags);
    if (fd < 0) {
        return false;
    }
    bool writable = faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) == 0;
    int why = errno;
    close(fd);
    errno = why;
    return writable;
}

static bool folder_named(char *folder, size_t folder_bytes, const char *first, const char *second) {
    int length = snprintf(folder, folder_bytes, "%s%s", first, second);
    return length > 0 && (size_t)length < folder_bytes;
}

/* The folder that somebody has named; NULL: nobody has. */
static const char *named(const char *cache_path) {
    if (cache_path == NULL || cache_path[0] == '\0') {
        cache_path = getenv("GPULUA_CACHE");
    }
    return cache_path != NULL && cache_path[0] != '\0' ? cache_path : NULL;
}

/* A folder that somebody named is taken or refused, never replaced by another behind his back; the
 * defaults are tried in turn. */
bool gpu_cache_folder(const char *cache_path, char *folder, size_t folder_bytes) {
    cache_path = named(cache_path);
    if (cache_path != NULL) {
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

void gpu_cache_folder_why(const char *cache_path, char *text, size_t text_bytes) {
    cache_path = named(cache_path);
    if (cache_path == NULL) {
        snprintf(text, text_bytes, "there is no folder for them: set GPULUA_CACHE to one");
    } else if (!folder_usable(cache_path, 0)) {
        snprintf(text, text_bytes, "'%.150s': %s", cache_path,
                 errno == EPERM ? "it is not the user's own, or others can write to it"
                                : strerror(errno));
    }
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

enum entry_state { ENTRY_GOOD, ENTRY_DAMAGED, ENTRY_UNREADABLE };

static enum entry_state entry_read(int fd, const char *name, void **bytes, size_t *byte_count) {
    struct stat facts;
    struct entry_header header;
    if (fstat(fd, &facts) != 0) {
        return ENTRY_UNREADABLE;
    }
    if (!S_ISREG(facts.st_mode) || facts.st_size < (off_t)sizeof header ||
        (uint64_t)facts.st_size > CACHE_BYTES_MAX ||
        !gpu_backend_read_all(fd, &header, sizeof header) ||
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
    if (gpu_backend_read_all(fd, read_bytes, count)) {
        gpu_cache_hash(hash, name, read_bytes, count);
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

static int temporary_open(int folder, char name[CACHE_NAME_BYTES]) {
    for (int attempt = 0; attempt < 16; attempt++) {
        if (!gpu_cache_temporary_name(name, CACHE_TEMPORARY_PREFIX)) {
            return -1;
        }
        int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != EEXIST) {
            return fd;
        }
    }
    return -1;
}

bool gpu_cache_has_room(const char *folder_path) {
    char temporary[CACHE_NAME_BYTES];
    int folder = folder_open_checked(folder_path, 0);
    int fd = folder < 0 ? -1 : temporary_open(folder, temporary);
    int why = errno;
    if (fd >= 0) {
        why = posix_fallocate(fd, 0, CACHE_ROOM_BYTES);
        close(fd);
        (void)unlinkat(folder, temporary, 0);
    }
    if (folder >= 0) {
        close(folder);
    }
    errno = why;
    return fd >= 0 && why == 0;
}

/* False: errno says why. */
static bool entry_write(int folder, const char *name, const struct entry_header *header,
                        const void *bytes) {
    char temporary[CACHE_NAME_BYTES];
    int fd = temporary_open(folder, temporary);
    if (fd < 0) {
        return false;
    }
    bool ok = gpu_backend_write_all(fd, header, sizeof *header) &&
              gpu_backend_write_all(fd, bytes, header->bytes);
    int why = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        why = errno;
    }
    if (ok && renameat(folder, temporary, folder, name) != 0) {
        ok = false;
        why = errno;
    }
    if (!ok) {
        (void)unlinkat(folder, temporary, 0);
        errno = why;
    }
    return ok;
}

void gpu_cache_put(const char *cache_path, const struct gpu_cache_key *key, const char *suffix,
                   const void *bytes, size_t byte_count, struct wire_compiled *outcome) {
    char name[CACHE_NAME_BYTES], folder_path[4096];
    struct entry_header header = {.magic = CACHE_MAGIC, .bytes = byte_count};
    struct wire_compiled ignored;
    outcome = outcome != NULL ? outcome : &ignored;
    outcome->not_kept[0] = '\0';
    if (byte_count > CACHE_BYTES_KEPT - sizeof header || !entry_name(name, key, suffix)) {
        return;
    }
    int folder = gpu_cache_folder(cache_path, folder_path, sizeof folder_path)
                     ? folder_open_checked(folder_path, 0)
                     : -1;
    if (folder < 0) {
        gpu_cache_folder_why(cache_path, outcome->not_kept, sizeof outcome->not_kept);
        return;
    }
    gpu_cache_trim(folder, sizeof header + byte_count);
    gpu_cache_hash(header.hash, name, bytes, byte_count);
    if (!entry_write(folder, name, &header, bytes)) {
        snprintf(outcome->not_kept, sizeof outcome->not_kept, "'%.150s': %s", folder_path,
                 strerror(errno));
    }
    close(folder);
}

void gpu_cache_describe(const char *cache_path, struct text *text) {
    char folder[4096] = "";
    uint64_t bytes = 0;
    if (gpu_cache_folder(cache_path, folder, sizeof folder)) {
        int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0) {
            bytes = gpu_cache_bytes(fd);
            close(fd);
        }
    } else {
        folder[0] = '\0';
    }
    gpu_text_format(text, "cache\t%s\t%" PRIu64 "\t%" PRIu64 "\n", folder, bytes, CACHE_BYTES_MAX);
}
