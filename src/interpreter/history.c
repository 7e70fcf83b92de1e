#include "interpreter/history.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char path[PATH_MAX]; /* "": there is none */

/* ---- where it is ---- */

/* Makes the folders of the path that are missing. */
static void make_folders(char *of) {
    for (char *slash = strchr(of + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(of, 0700); /* it is there, or opening the file fails */
        *slash = '/';
    }
}

static void find(void) {
    const char *asked = getenv("GPULUA_HISTORY");
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int length = 0;
    if (asked) {
        length = snprintf(path, sizeof path, "%s", asked);
    } else if (state && state[0] == '/') {
        length = snprintf(path, sizeof path, "%s/gpulua/history", state);
    } else if (home && home[0] == '/') {
        length = snprintf(path, sizeof path, "%s/.local/state/gpulua/history", home);
    } else {
        path[0] = '\0';
    }
    if (length >= (int)sizeof path) {
        path[0] = '\0';
    } else if (!asked && path[0]) {
        make_folders(path);
    }
}

/* ---- the file, locked ---- */

static bool lock(int fd) {
    struct timespec nap = {.tv_nsec = 5000000};
    for (int i = 0; i < 20; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            return true;
        }
        if (errno != EWOULDBLOCK && errno != EINTR) {
            return false;
        }
        nanosleep(&nap, NULL);
    }
    return false;
}

/* -1: it cannot be used. Closing it ends the lock. */
static int open_locked(struct stat *found) {
    /* Another process may put a new file in its place before the lock is ours. */
    for (int i = 0; path[0] && i < 10; i++) {
        struct stat now;
        int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
        if (fd < 0) {
            return -1;
        }
        if (fstat(fd, found) != 0 || !S_ISREG(found->st_mode) || !lock(fd)) {
            close(fd);
            return -1;
        }
        if (fstat(fd, found) == 0 && stat(path, &now) == 0 && now.st_ino == found->st_ino &&
            now.st_dev == found->st_dev) {
            return fd;
        }
        close(fd);
    }
    return -1;
}

static bool write_all(int fd, const char *bytes, size_t byte_count) {
    while (byte_count > 0) {
        ssize_t written = write(fd, bytes, byte_count);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return false;
        }
        bytes += written;
        byte_count -= (size_t)written;
    }
    return true;
}

/* A new file in the place of the old one, which stays if anything fails. */
static void replace(const char *bytes, size_t byte_count, mode_t mode) {
    char real[PATH_MAX], made[PATH_MAX + 8];
    if (!realpath(path, real)) {
        return; /* (a link stays one) */
    }
    snprintf(made, sizeof made, "%s.XXXXXX", real);
    int fd = mkostemp(made, O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    bool ok = fchmod(fd, mode & 0777) == 0 && write_all(fd, bytes, byte_count);
    ok = close(fd) == 0 && ok;
    if (!ok || rename(made, real) != 0) {
        unlink(made);
    }
}

/* ---- entries ---- */

/* In place, as it only gets shorter. Returns the length. */
static size_t unescape(char *text, size_t byte_count) {
    size_t to = 0;
    for (size_t i = 0; i < byte_count; i++) {
        char c = text[i];
        if (c == '\\' && i + 1 < byte_count) {
            i++;
            c = text[i] == 'n' ? '\n' : text[i];
        }
        text[to++] = c;
    }
    return to;
}

/* The newest entries within the limits: where the first of them begins. */
static size_t newest_begin(const char *bytes, size_t byte_count) {
    size_t begin = byte_count;
    for (int i = 0; i < HISTORY_ENTRIES_MAX && begin > 0; i++) {
        size_t at = begin - 1; /* the newline of the entry in front */
        while (at > 0 && bytes[at - 1] != '\n') {
            at--;
        }
        if (byte_count - at > HISTORY_BYTES_MAX) {
            break;
        }
        begin = at;
    }
    return begin;
}

static bool is_long(const char *bytes, size_t byte_count) {
    size_t entries = 0;
    for (size_t i = 0; i < byte_count; i++) {
        entries += bytes[i] == '\n';
    }
    return byte_count > 2 * HISTORY_BYTES_MAX || entries > 2 * HISTORY_ENTRIES_MAX;
}

/* The end of a file that somebody has made large. NULL: nothing there, or no memory. */
static char *read_end(int fd, off_t file_bytes, size_t *byte_count) {
    off_t from = file_bytes > 8 * HISTORY_BYTES_MAX ? file_bytes - 8 * HISTORY_BYTES_MAX : 0;
    size_t wanted = (size_t)(file_bytes - from);
    char *bytes = malloc(wanted + 2);
    size_t got = 0;
    while (bytes && got < wanted) {
        ssize_t count = pread(fd, bytes + got, wanted - got, from + (off_t)got);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            break;
        }
        got += (size_t)count;
    }
    if (bytes && got > 0 && bytes[got - 1] != '\n') {
        bytes[got++] = '\n'; /* a process has died while it wrote */
    }
    *byte_count = got;
    return bytes;
}

void history_open(void (*each)(const char *text, size_t byte_count)) {
    struct stat found;
    size_t byte_count = 0;
    find();
    int fd = open_locked(&found);
    char *bytes = fd >= 0 ? read_end(fd, found.st_size, &byte_count) : NULL;
    size_t begin = bytes ? newest_begin(bytes, byte_count) : 0;
    if (bytes && (is_long(bytes, byte_count) || found.st_size > 2 * HISTORY_BYTES_MAX)) {
        replace(bytes + begin, byte_count - begin, found.st_mode);
    }
    if (fd >= 0) {
        close(fd);
    }
    while (begin < byte_count) {
        char *end = memchr(bytes + begin, '\n', byte_count - begin);
        size_t length = (size_t)(end - (bytes + begin));
        if (length > 0) {
            each(bytes + begin, unescape(bytes + begin, length));
        }
        begin += length + 1;
    }
    free(bytes);
}

void history_add(const char *text, size_t byte_count) {
    struct stat found;
    char last = '\n';
    if (byte_count > HISTORY_ENTRY_BYTES_MAX || !path[0]) {
        return;
    }
    int fd = open_locked(&found);
    char *line = fd >= 0 ? malloc(2 * byte_count + 2) : NULL;
    if (line) {
        size_t length = 0;
        if (found.st_size > 0 && pread(fd, &last, 1, found.st_size - 1) == 1 && last != '\n') {
            line[length++] = '\n';
        }
        for (size_t i = 0; i < byte_count; i++) {
            if (text[i] == '\n' || text[i] == '\\') {
                line[length++] = '\\';
            }
            line[length++] = text[i] == '\n' ? 'n' : text[i];
        }
        line[length++] = '\n';
        (void)write_all(fd, line, length);
        free(line);
    }
    if (fd >= 0) {
        close(fd);
    }
}
