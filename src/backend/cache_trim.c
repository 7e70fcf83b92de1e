/* Eviction from the cache: oldest out, until it keeps its bound (see backend.h).
 *
 * An entry is a file, or a folder with files that a compiler reads (the shim of the CPU device,
 * with what was precompiled of it). A file may go at any moment: who has it open keeps it. A folder
 * must not go while a compiler is at it, so users hold a shared lock on it (flock), and it is taken
 * away only under an exclusive one: moved aside by renaming, so that it is there whole or not at
 * all, then deleted. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backend/cache.h"

#define CACHE_TEMPORARY_AGE_S 3600 /* what is temporary and this old has no writer */
#define FOLDER_DEPTH_MAX 4
#define ASIDE_PREFIX "." GPU_CACHE_FOLDER_PREFIX

bool gpu_cache_temporary_name(char name[CACHE_NAME_BYTES], const char *prefix) {
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) {
        return false;
    }
    snprintf(name, CACHE_NAME_BYTES, "%s%016" PRIx64, prefix, random);
    return true;
}

static bool starts_with(const char *name, const char *prefix) {
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* ---- folders ---- */

static DIR *stream_open(int parent, const char *name) {
    int folder = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *stream = folder < 0 ? NULL : fdopendir(folder);
    if (stream == NULL && folder >= 0) {
        close(folder);
    }
    return stream;
}

static const struct dirent *stream_next(DIR *stream) {
    const struct dirent *found = readdir(stream);
    while (found != NULL && (strcmp(found->d_name, ".") == 0 || strcmp(found->d_name, "..") == 0)) {
        found = readdir(stream);
    }
    return found;
}

static uint64_t folder_bytes(int parent, const char *name, unsigned depth) {
    uint64_t bytes = 0;
    DIR *stream = depth < FOLDER_DEPTH_MAX ? stream_open(parent, name) : NULL;
    for (const struct dirent *found = stream != NULL ? stream_next(stream) : NULL; found != NULL;
         found = stream_next(stream)) {
        struct stat facts;
        if (fstatat(dirfd(stream), found->d_name, &facts, AT_SYMLINK_NOFOLLOW) == 0) {
            bytes += S_ISDIR(facts.st_mode) ? folder_bytes(dirfd(stream), found->d_name, depth + 1)
                                            : (uint64_t)facts.st_size;
        }
    }
    if (stream != NULL) {
        closedir(stream);
    }
    return bytes;
}

static void folder_remove(int parent, const char *name, unsigned depth) {
    DIR *stream = depth < FOLDER_DEPTH_MAX ? stream_open(parent, name) : NULL;
    for (const struct dirent *found = stream != NULL ? stream_next(stream) : NULL; found != NULL;
         found = stream_next(stream)) {
        if (unlinkat(dirfd(stream), found->d_name, 0) != 0 && (errno == EISDIR || errno == EPERM)) {
            folder_remove(dirfd(stream), found->d_name, depth + 1);
        }
    }
    if (stream != NULL) {
        closedir(stream);
    }
    (void)unlinkat(parent, name, AT_REMOVEDIR);
}

static bool folder_aside(int parent, const char *name) {
    char aside[CACHE_NAME_BYTES];
    if (!gpu_cache_temporary_name(aside, ASIDE_PREFIX) ||
        renameat(parent, name, parent, aside) != 0) {
        return false;
    }
    folder_remove(parent, aside, 0);
    return true;
}

/* False: somebody holds it, or it has gone. */
static bool folder_evict(int parent, const char *name) {
    int folder = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) {
        return false;
    }
    bool gone = flock(folder, LOCK_EX | LOCK_NB) == 0 && folder_aside(parent, name);
    close(folder);
    return gone;
}

void gpu_cache_folder_drop(const char *path) {
    const char *name = strrchr(path, '/');
    char parent_path[4096];
    if (name == NULL || (size_t)(name - path) >= sizeof parent_path) {
        return;
    }
    snprintf(parent_path, sizeof parent_path, "%.*s", (int)(name - path), path);
    int parent = open(parent_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent >= 0) {
        (void)folder_aside(parent, name + 1);
        close(parent);
    }
}

int gpu_cache_folder_hold(const char *path) {
    struct stat held, there;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) {
        return -1;
    }
    /* File systems without locks: then nobody evicts it either. */
    while (flock(folder, LOCK_SH) != 0 && errno == EINTR) {}
    /* It may have been moved aside before the lock was ours. */
    if (fstat(folder, &held) != 0 || stat(path, &there) != 0 || held.st_ino != there.st_ino ||
        held.st_dev != there.st_dev) {
        close(folder);
        return -1;
    }
    (void)futimens(folder, NULL);
    return folder;
}

/* ---- entries ---- */

struct aged {
    struct timespec used;
    uint64_t bytes;
    bool is_folder;
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
static bool name_is_entry(const char *name, bool is_folder) {
    size_t prefix = strlen(GPU_CACHE_FOLDER_PREFIX);
    if (strlen(name) >= CACHE_NAME_BYTES) {
        return false;
    }
    return is_folder ? starts_with(name, GPU_CACHE_FOLDER_PREFIX) &&
                           strspn(name + prefix, "0123456789abcdef") == strlen(name + prefix)
                     : strspn(name, "0123456789abcdef") == 64 && name[64] == '.';
}

struct list {
    struct aged *entries; /* owned */
    size_t count, capacity;
    uint64_t bytes;
};

/* False: no memory; what is listed so far is evicted, and the next put sees the rest. */
static bool list_add(struct list *list, int folder, const char *name, const struct stat *facts) {
    if (list->count == list->capacity) {
        size_t more = list->capacity ? list->capacity * 2 : 256;
        struct aged *grown = realloc(list->entries, more * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        list->entries = grown;
        list->capacity = more;
    }
    struct aged *entry = &list->entries[list->count++];
    entry->used = facts->st_mtim;
    entry->is_folder = S_ISDIR(facts->st_mode);
    entry->bytes = entry->is_folder ? folder_bytes(folder, name, 0) : (uint64_t)facts->st_size;
    memcpy(entry->name, name, strlen(name) + 1);
    list->bytes += entry->bytes;
    return true;
}

/* What writers into the folder have abandoned. */
static void folder_sweep(int parent, const char *name, time_t now) {
    DIR *stream = stream_open(parent, name);
    for (const struct dirent *found = stream != NULL ? stream_next(stream) : NULL; found != NULL;
         found = stream_next(stream)) {
        struct stat facts;
        if (starts_with(found->d_name, CACHE_TEMPORARY_PREFIX) &&
            fstatat(dirfd(stream), found->d_name, &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(facts.st_mode) && facts.st_mtim.tv_sec + CACHE_TEMPORARY_AGE_S < now) {
            (void)unlinkat(dirfd(stream), found->d_name, 0);
        }
    }
    if (stream != NULL) {
        closedir(stream);
    }
}

/* Lists entries; removes what writers have abandoned. */
static void folder_list(int folder, struct list *list) {
    DIR *stream = stream_open(folder, ".");
    time_t now = time(NULL);
    for (const struct dirent *found = stream != NULL ? stream_next(stream) : NULL; found != NULL;
         found = stream_next(stream)) {
        const char *name = found->d_name;
        struct stat facts;
        if (fstatat(folder, name, &facts, AT_SYMLINK_NOFOLLOW) != 0 ||
            (!S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode))) {
            continue;
        }
        bool is_folder = S_ISDIR(facts.st_mode);
        bool is_abandoned = facts.st_mtim.tv_sec + CACHE_TEMPORARY_AGE_S < now;
        if (is_folder && starts_with(name, ASIDE_PREFIX) && is_abandoned) {
            folder_remove(folder, name, 0);
        } else if (!is_folder && starts_with(name, CACHE_TEMPORARY_PREFIX) && is_abandoned) {
            (void)unlinkat(folder, name, 0);
        } else if (name_is_entry(name, is_folder)) {
            if (is_folder) {
                folder_sweep(folder, name, now);
            }
            if (!list_add(list, folder, name, &facts)) {
                break;
            }
        }
    }
    if (stream != NULL) {
        closedir(stream);
    }
}

/* Several processes may do this at once: an entry that another one has removed is simply gone. */
void gpu_cache_trim(int folder, uint64_t wanted) {
    struct list list = {0};
    folder_list(folder, &list);
    if (list.bytes + wanted > CACHE_BYTES_MAX) {
        qsort(list.entries, list.count, sizeof *list.entries, aged_compare);
        for (size_t i = 0; i < list.count && list.bytes + wanted > CACHE_BYTES_KEPT; i++) {
            const struct aged *entry = &list.entries[i];
            if (entry->is_folder && !folder_evict(folder, entry->name)) {
                continue;
            }
            if (!entry->is_folder) {
                (void)unlinkat(folder, entry->name, 0);
            }
            list.bytes -= entry->bytes;
        }
    }
    free(list.entries);
}

uint64_t gpu_cache_bytes(int folder) {
    struct list list = {0};
    folder_list(folder, &list);
    free(list.entries);
    return list.bytes;
}
