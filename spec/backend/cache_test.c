/* backend/cache.c: entries come back whole or not at all, whatever others do to the folder. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend/backend.h"
#include "tap.h"

static struct tap tap;
static char root[256]; /* a fresh folder of this run */

static void keep(char *to, size_t to_bytes, const char *from) {
    size_t length = strlen(from);
    if (length >= to_bytes) {
        printf("# the folder's path is too long for this test: %s\n", from);
        exit(1);
    }
    memcpy(to, from, length + 1);
}

static const char *in_root(const char *name) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static struct gpu_cache_key key_of(const char *text) {
    struct gpu_cache_key key;
    const void *parts[] = {text};
    size_t bytes[] = {strlen(text)};
    gpu_cache_key_init(&key, parts, bytes, 1);
    return key;
}

static char *entry_path(const char *folder, const char *text, const char *suffix) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s.%s", folder, key_of(text).hex, suffix);
    return path;
}

static bool has(const char *folder, const char *text, const char *wanted) {
    struct gpu_cache_key key = key_of(text);
    void *bytes = NULL;
    size_t count = 0;
    if (!gpu_cache_get(folder, &key, "bin", &bytes, &count)) {
        return false;
    }
    bool same = wanted == NULL || (count == strlen(wanted) && memcmp(bytes, wanted, count) == 0);
    free(bytes);
    return same;
}

/* "": it has been kept; else why not. */
static const char *put(const char *folder, const char *text, const char *value) {
    static struct wire_compiled outcome;
    struct gpu_cache_key key = key_of(text);
    gpu_cache_put(folder, &key, "bin", value, strlen(value), &outcome);
    return outcome.not_kept;
}

static int files_in(const char *folder) {
    int count = 0;
    DIR *stream = opendir(folder);
    for (struct dirent *e = stream ? readdir(stream) : NULL; e != NULL; e = readdir(stream)) {
        count += e->d_name[0] == '.' && (e->d_name[1] == '.' || e->d_name[1] == '\0') ? 0 : 1;
    }
    if (stream != NULL) {
        closedir(stream);
    }
    return count;
}

/* The digest itself shows through the key: with the prefix of the build taken as given, known
 * lengths around the block size must all differ, and equal input must agree. */
static void keys(void) {
    struct gpu_cache_key a = key_of("a"), again = key_of("a"), b = key_of("b");
    tap_check(&tap, strcmp(a.hex, again.hex) == 0, "equal parts, equal keys");
    tap_check(&tap, strcmp(a.hex, b.hex) != 0, "other parts, other keys");
    tap_check(&tap, strspn(a.hex, "0123456789abcdef") == 64 && a.hex[64] == '\0', "64 hex digits");
    const void *one[] = {"ab", "c"}, *two[] = {"a", "bc"};
    size_t one_bytes[] = {2, 1}, two_bytes[] = {1, 2};
    gpu_cache_key_init(&a, one, one_bytes, 2);
    gpu_cache_key_init(&b, two, two_bytes, 2);
    tap_check(&tap, strcmp(a.hex, b.hex) != 0, "the border between parts counts");
    char text[300];
    char seen[200][65];
    bool differ = true;
    for (size_t length = 0; length < 200; length++) {
        memset(text, 'x', length);
        text[length] = '\0';
        memcpy(seen[length], key_of(text).hex, 65);
        for (size_t i = 0; i < length; i++) {
            differ = differ && strcmp(seen[i], seen[length]) != 0;
        }
    }
    tap_check(&tap, differ, "every length around the block size has a key of its own");
}

/* Against an independent implementation: a file's stored hash is SHA-256 over
 * (8-byte length, name, 8-byte length, bytes). */
static void hash_is_sha256(void) {
    const char *folder = in_root("sha");
    char kept[512];
    keep(kept, sizeof kept, folder);
    size_t lengths[] = {0, 1, 37, 38, 39, 45, 46, 47, 101, 102, 103, 5000};
    if (system("command -v sha256sum >/dev/null && command -v xxd >/dev/null") != 0) {
        tap_skip(&tap, "hash against sha256sum", "no sha256sum or xxd");
        return;
    }
    bool good = true;
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        char *value = malloc(lengths[l] + 1);
        memset(value, 'v', lengths[l]);
        value[lengths[l]] = '\0';
        char name[32];
        snprintf(name, sizeof name, "sha-%zu", lengths[l]);
        put(kept, name, value);
        char command[8192];
        const char *path = entry_path(kept, name, "bin");
        /* 64 digits, the dot, "bin": the name has 68 bytes = 0x44. */
        snprintf(
            command, sizeof command,
            "cd '%s' && [ \"$( (printf '\\104\\0\\0\\0\\0\\0\\0\\0'; printf '%%s' \"$(basename "
            "'%s')\"; tail -c +17 '%s' | head -c 8; tail -c +57 '%s') | sha256sum | cut -c1-64"
            ")\" = \"$(tail -c +25 '%s' | head -c 32 | xxd -p | tr -d '\\n')\" ]",
            kept, path, path, path, path);
        good = system(command) == 0 && good;
        free(value);
    }
    tap_check(&tap, good, "the stored hash is what sha256sum says");
}

static void entries(void) {
    char folder[512];
    keep(folder, sizeof folder, in_root("a/b/entries"));
    tap_check(&tap, !has(folder, "k", NULL), "nothing there at first");
    put(folder, "k", "value");
    tap_check(&tap, has(folder, "k", "value"), "what was put comes back, folder made on the way");
    put(folder, "k", "another value");
    tap_check(&tap, has(folder, "k", "another value"), "a later put replaces it");
    tap_check(&tap, !has(folder, "other", NULL), "another key does not find it");
    put(folder, "empty", "");
    tap_check(&tap, has(folder, "empty", ""), "an empty entry");
    struct gpu_cache_key key = key_of("k");
    void *bytes = NULL;
    size_t count = 0;
    tap_check(&tap, !gpu_cache_get(folder, &key, "so", &bytes, &count), "suffixes are apart");
    gpu_cache_put(folder, &key, "../x", "v", 1, NULL);
    tap_check(&tap, !gpu_cache_get(folder, &key, "../x", &bytes, &count),
              "a suffix cannot leave the folder");
    gpu_cache_put(folder, &key, ".so", "dotted", 6, NULL);
    bool found = gpu_cache_get(folder, &key, "so", &bytes, &count);
    tap_check(&tap, found && count == 6, "a leading dot makes no difference");
    free(found ? bytes : NULL);
    struct stat facts;
    tap_check(&tap, stat(folder, &facts) == 0 && (facts.st_mode & 0777) == 0700,
              "the folder is ours alone");
    tap_check(&tap, files_in(folder) == 3, "no temporary files are left");
}

static void damage(void) {
    char folder[512], path[1024];
    keep(folder, sizeof folder, in_root("damage"));
    put(folder, "k", "0123456789");
    keep(path, sizeof path, entry_path(folder, "k", "bin"));
    struct stat facts;
    bool all = stat(path, &facts) == 0;
    off_t length = facts.st_size;
    for (off_t at = 0; at < length; at++) {
        put(folder, "k", "0123456789");
        int fd = open(path, O_RDWR);
        char byte = 0;
        all = all && pread(fd, &byte, 1, at) == 1;
        byte = (char)(byte ^ 0x10);
        all = all && pwrite(fd, &byte, 1, at) == 1;
        close(fd);
        all = all && !has(folder, "k", NULL) && access(path, F_OK) != 0;
    }
    tap_check(&tap, all, "any byte changed: ignored and removed");
    all = true;
    for (off_t at = 0; at < length; at++) {
        put(folder, "k", "0123456789");
        all = all && truncate(path, at) == 0 && !has(folder, "k", NULL) && access(path, F_OK) != 0;
    }
    tap_check(&tap, all, "cut anywhere: ignored and removed");
    put(folder, "k", "0123456789");
    FILE *file = fopen(path, "ab");
    fputc('x', file);
    fclose(file);
    tap_check(&tap, !has(folder, "k", NULL), "longer than it says: ignored");
    put(folder, "k", "0123456789");
    char other[1024];
    keep(other, sizeof other, entry_path(folder, "other", "bin"));
    tap_check(&tap, rename(path, other) == 0 && !has(folder, "other", NULL),
              "under another key's name: ignored");
    put(folder, "k", "0123456789");
    tap_check(&tap,
              rename(path, in_root("elsewhere")) == 0 && symlink(in_root("elsewhere"), path) == 0 &&
                  !has(folder, "k", NULL),
              "a link: ignored");
    put(folder, "k", "good again");
    tap_check(&tap, has(folder, "k", "good again"), "and usable afterwards");
}

static void eviction(void) {
    char folder[512], path[1024];
    keep(folder, sizeof folder, in_root("eviction"));
    put(folder, "first", "1");
    /* Sparse files with an entry's name stand for large entries: 40 of 10 MiB, older with number */
    for (int i = 0; i < 40; i++) {
        char name[32];
        snprintf(name, sizeof name, "large-%d", i);
        keep(path, sizeof path, entry_path(folder, name, "bin"));
        int fd = open(path, O_WRONLY | O_CREAT, 0600);
        struct timespec times[2] = {{.tv_sec = 1000000 - i}, {.tv_sec = 1000000 - i}};
        if (fd < 0 || ftruncate(fd, 10 << 20) != 0 || futimens(fd, times) != 0) {
            tap_check(&tap, false, "sparse files can be made");
        }
        close(fd);
    }
    FILE *stranger = fopen(in_root("eviction/README"), "w");
    fclose(stranger);
    keep(path, sizeof path, in_root("eviction/.new-0123456789abcdef"));
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    struct timespec old[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
    futimens(fd, old);
    close(fd);
    fd = open(in_root("eviction/.new-fedcba9876543210"), O_WRONLY | O_CREAT, 0600);
    close(fd);
    char *big = malloc((20 << 20) + 1);
    memset(big, 'b', 20 << 20);
    big[20 << 20] = '\0';
    put(folder, "big", big);
    uint64_t bytes = 0;
    bool newest = true;
    int left = 0;
    for (int i = 0; i < 40; i++) {
        char name[32];
        struct stat facts;
        snprintf(name, sizeof name, "large-%d", i);
        bool there = stat(entry_path(folder, name, "bin"), &facts) == 0;
        left += there ? 1 : 0;
        newest = newest && there == (i < left);
        bytes += there ? (uint64_t)facts.st_size : 0;
    }
    tap_check(&tap, left > 15 && left < 25 && bytes + (20u << 20) <= 256u << 20,
              "cut to size, not to nothing");
    tap_check(&tap, newest, "the oldest went");
    tap_check(&tap, has(folder, "first", "1") && has(folder, "big", big), "the newest stayed");
    tap_check(&tap, access(in_root("eviction/README"), F_OK) == 0, "other files are left alone");
    tap_check(&tap, access(path, F_OK) != 0, "an abandoned temporary file is removed");
    tap_check(&tap, access(in_root("eviction/.new-fedcba9876543210"), F_OK) == 0,
              "a fresh one is not");
    /* Use keeps an entry alive: "first" was read just now, "idle" was not. */
    put(folder, "idle", "i");
    struct timespec ages[2] = {{.tv_sec = 2000000}, {.tv_sec = 2000000}};
    utimensat(AT_FDCWD, entry_path(folder, "idle", "bin"), ages, 0);
    utimensat(AT_FDCWD, entry_path(folder, "first", "bin"), ages, 0);
    utimensat(AT_FDCWD, entry_path(folder, "big", "bin"), ages, 0);
    (void)has(folder, "first", "1");
    for (int i = 0; i < 24; i++) {
        char name[32];
        snprintf(name, sizeof name, "huge-%d", i);
        keep(path, sizeof path, entry_path(folder, name, "bin"));
        fd = open(path, O_WRONLY | O_CREAT, 0600);
        struct timespec later[2] = {{.tv_sec = 3000000}, {.tv_sec = 3000000}};
        if (ftruncate(fd, 10 << 20) == 0) {
            futimens(fd, later);
        }
        close(fd);
    }
    put(folder, "big", big);
    tap_check(&tap, !has(folder, "idle", NULL) && has(folder, "first", "1"),
              "reading makes an entry young");
    free(big);
}

static void sparse_make(const char *path, off_t bytes) {
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, bytes) != 0) {
        tap_check(&tap, false, "a sparse file can be made");
    }
    close(fd);
}

static void make_old(const char *path, time_t seconds) {
    struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    utimensat(AT_FDCWD, path, times, 0);
}

/* A folder of the cache with a file of `bytes` in a folder of its own. */
static void folder_fill(const char *folder, off_t bytes, time_t seconds) {
    char path[1024];
    mkdir(folder, 0700);
    snprintf(path, sizeof path, "%s/header.h", folder);
    sparse_make(path, 10);
    snprintf(path, sizeof path, "%s/header.h.gch", folder);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/header.h.gch/large", folder);
    sparse_make(path, bytes);
    make_old(folder, seconds);
}

static void folders(void) {
    char folder[512], held[512], young[512], stranger[512], abandoned[512], inner[600];
    keep(folder, sizeof folder, in_root("folders/shim-00000000000000aa"));
    keep(held, sizeof held, in_root("folders/shim-00000000000000bb"));
    keep(young, sizeof young, in_root("folders/shim-00000000000000cc"));
    keep(stranger, sizeof stranger, in_root("folders/shim-mine"));
    keep(abandoned, sizeof abandoned, in_root("folders/.shim-abcdef"));
    put(in_root("folders"), "first", "1");
    folder_fill(folder, 100 << 20, 2000000);
    folder_fill(held, 100 << 20, 1000000);
    folder_fill(young, 100 << 20, time(NULL));
    folder_fill(stranger, 100 << 20, 1000000);
    folder_fill(abandoned, 1 << 20, 1000000);
    int hold = gpu_cache_folder_hold(held);
    char left[600], making[600];
    snprintf(left, sizeof left, "%s/.new-left", young);
    sparse_make(left, 9 << 20);
    make_old(left, 1000000);
    snprintf(making, sizeof making, "%s/.new-making", young);
    sparse_make(making, 9 << 20);
    make_old(held, 1000000);
    put(in_root("folders"), "second", "2");
    tap_check(&tap, access(left, F_OK) != 0 && access(making, F_OK) == 0,
              "what a compiler that was ended has left in one goes, not what is being made");
    tap_check(&tap, hold >= 0 && access(folder, F_OK) != 0,
              "a folder counts with all that is in it, and the oldest goes");
    snprintf(inner, sizeof inner, "%s/header.h.gch/large", held);
    tap_check(&tap, access(inner, F_OK) == 0, "but not one that is held");
    snprintf(inner, sizeof inner, "%s/header.h.gch/large", young);
    tap_check(&tap, access(inner, F_OK) == 0, "nor a young one");
    tap_check(&tap, has(in_root("folders"), "first", "1") && access(stranger, F_OK) == 0,
              "entries and folders of others stay");
    tap_check(&tap, access(abandoned, F_OK) != 0 && files_in(in_root("folders")) == 5,
              "nothing is left behind");
    close(hold);
    folder_fill(folder, 100 << 20, 2000000);
    pid_t child = fork();
    if (child == 0) {
        hold = gpu_cache_folder_hold(folder);
        make_old(folder, 500000);
        pause();
    }
    struct stat facts = {0};
    while (facts.st_mtim.tv_sec != 500000 && child > 0) {
        usleep(1000);
        (void)stat(folder, &facts);
    }
    put(in_root("folders"), "third", "3");
    tap_check(&tap, access(folder, F_OK) == 0 && access(held, F_OK) != 0,
              "held by another process, it stays, and the next oldest goes");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    folder_fill(held, 100 << 20, 2000000);
    put(in_root("folders"), "fourth", "4");
    tap_check(&tap, access(folder, F_OK) != 0, "until that process has ended");
    tap_check(&tap, gpu_cache_folder_hold(folder) < 0, "what has gone cannot be held");
}

/* One process evicts what the others make and use. Whether one of these saw a folder that was not
 * whole; none may, if they hold it. Without that they go on until one of them has, or for a
 * minute: how soon the two meet is the machine's. */
static bool folders_concurrent(const char *cache, bool holds) {
    enum { CHILDREN = 4, ROUNDS = 300, MOST_SECONDS = 60 };
    time_t end = time(NULL) + MOST_SECONDS;
    char folder[600], making[1024], inner[700];
    put(cache, "first", "1");
    snprintf(folder, sizeof folder, "%s/shim-00000000000000aa", cache);
    snprintf(inner, sizeof inner, "%s/header.h.gch/large", folder);
    pid_t children[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            bool whole = true;
            snprintf(making, sizeof making, "%s/.shim-of-%d", cache, i);
            for (int round = 0; whole && (holds ? round < ROUNDS : time(NULL) < end); round++) {
                int hold = holds ? gpu_cache_folder_hold(folder) : open(folder, O_RDONLY);
                if (hold < 0) {
                    folder_fill(making, 250 << 20, time(NULL));
                    if (rename(making, folder) != 0) {
                        gpu_cache_folder_drop(making);
                    }
                    continue;
                }
                for (int look = 0; look < 20; look++) {
                    whole = whole && access(inner, F_OK) == 0;
                }
                make_old(folder, 1000000);
                close(hold);
            }
            _exit(whole ? 0 : 1);
        }
    }
    int running = CHILDREN;
    bool broken = false;
    while (running > 0 && !broken) {
        int status;
        put(cache, "big", "0123456789");
        pid_t ended = waitpid(-1, &status, WNOHANG);
        for (int i = 0; i < CHILDREN && ended > 0; i++) {
            children[i] = children[i] == ended ? 0 : children[i];
        }
        running -= ended > 0 ? 1 : 0;
        broken = ended > 0 && status != 0;
        keep(making, sizeof making, entry_path(cache, "filler", "bin"));
        sparse_make(making, 60 << 20);
        make_old(making, 2000000);
    }
    for (int i = 0; i < CHILDREN; i++) {
        if (children[i] > 0) {
            kill(children[i], SIGKILL);
            waitpid(children[i], NULL, 0);
        }
    }
    return broken;
}

static void refused_folders(void) {
    char folder[512], path[4096];
    keep(folder, sizeof folder, in_root("open"));
    mkdir(folder, 0700);
    chmod(folder, 0777);
    const char *why = put(folder, "k", "v");
    tap_check(&tap, files_in(folder) == 0 && !gpu_cache_folder(folder, path, sizeof path),
              "a folder that others can write to is refused");
    tap_check(&tap, strstr(why, "/open': it is not the user's own, or others can write to it"),
              "and it is said why nothing is kept");
    chmod(folder, 0700);
    tap_check(&tap, put(folder, "k", "v")[0] == '\0', "what is kept has no reason not to be");
    chmod(folder, 0770);
    tap_check(&tap, !has(folder, "k", NULL), "also for reading, also for the group");
    FILE *file = fopen(in_root("file"), "w");
    fclose(file);
    keep(folder, sizeof folder, in_root("file/below"));
    why = put(folder, "k", "v");
    tap_check(&tap, !has(folder, "k", NULL) && !gpu_cache_folder(folder, path, sizeof path),
              "a folder that cannot be made: nothing happens");
    tap_check(&tap, strstr(why, "/file/below': Not a directory"), "and it is said why");
    if (geteuid() == 0) {
        keep(folder, sizeof folder, in_root("foreign"));
        mkdir(folder, 0700);
        bool foreign = chown(folder, 12345, 12345) == 0;
        tap_check(&tap, foreign && !gpu_cache_folder(folder, path, sizeof path),
                  "another user's folder is refused");
    } else {
        keep(folder, sizeof folder, in_root("locked"));
        mkdir(folder, 0500);
        tap_check(&tap, !gpu_cache_folder(folder, path, sizeof path),
                  "a folder without write permission is refused");
    }
    keep(folder, sizeof folder, in_root("long"));
    tap_check(&tap, !gpu_cache_folder(folder, path, 4), "a path that does not fit is refused");
}

static void defaults(void) {
    char path[4096], wanted[1024];
    char home[512];
    keep(home, sizeof home, in_root("home"));
    mkdir(home, 0755);
    setenv("HOME", home, 1);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("GPULUA_CACHE");
    snprintf(wanted, sizeof wanted, "%s/.cache/gpulua", home);
    tap_check(&tap, gpu_cache_folder(NULL, path, sizeof path) && strcmp(path, wanted) == 0,
              "the home folder");
    setenv("XDG_CACHE_HOME", in_root("xdg"), 1);
    keep(wanted, sizeof wanted, in_root("xdg/gpulua"));
    tap_check(&tap, gpu_cache_folder(NULL, path, sizeof path) && strcmp(path, wanted) == 0,
              "XDG_CACHE_HOME before it");
    setenv("GPULUA_CACHE", in_root("ours"), 1);
    keep(wanted, sizeof wanted, in_root("ours"));
    tap_check(&tap, gpu_cache_folder(NULL, path, sizeof path) && strcmp(path, wanted) == 0,
              "GPULUA_CACHE before that");
    keep(wanted, sizeof wanted, in_root("asked"));
    tap_check(&tap, gpu_cache_folder(wanted, path, sizeof path) && strcmp(path, wanted) == 0,
              "a path that was asked for before all");
    setenv("GPULUA_CACHE", in_root("file/none"), 1);
    tap_check(&tap, !gpu_cache_folder(NULL, path, sizeof path),
              "a named folder is not replaced by another");
    unsetenv("GPULUA_CACHE");
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", in_root("file"), 1);
    snprintf(wanted, sizeof wanted, "/tmp/gpulua-cache-%u", (unsigned)geteuid());
    tap_check(&tap, gpu_cache_folder(NULL, path, sizeof path) && strcmp(path, wanted) == 0,
              "a folder under /tmp at last");
    rmdir(wanted);
}

enum { WRITERS = 4, ROUNDS = 400, KEYS = 5, VALUE_BYTES = 20000 };

/* Every value is one letter, VALUE_BYTES times or more: a mixture would show. */
static int writer(const char *folder, int number) {
    char *value = malloc(VALUE_BYTES + 512);
    for (int round = 0; round < ROUNDS; round++) {
        char name[32];
        snprintf(name, sizeof name, "shared-%d", (round + number) % KEYS);
        struct gpu_cache_key key = key_of(name);
        size_t length = (size_t)(VALUE_BYTES + (round * 7 + number) % 500);
        memset(value, 'a' + (round + number) % 26, length);
        gpu_cache_put(folder, &key, "bin", value, length, NULL);
        void *bytes = NULL;
        size_t count = 0;
        if (!gpu_cache_get(folder, &key, "bin", &bytes, &count)) {
            return 1; /* somebody's value must be there */
        }
        for (size_t i = 1; i < count; i++) {
            if (((char *)bytes)[i] != ((char *)bytes)[0]) {
                return 2;
            }
        }
        free(bytes);
    }
    free(value);
    return 0;
}

static void concurrent(void) {
    char folder[512];
    keep(folder, sizeof folder, in_root("concurrent"));
    pid_t children[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            _exit(writer(folder, i));
        }
    }
    int worst = 0;
    for (int i = 0; i < WRITERS; i++) {
        int status = -1;
        waitpid(children[i], &status, 0);
        worst = status != 0 ? status : worst;
    }
    tap_check(&tap, worst == 0, "processes writing the same entries at once");
    tap_check(&tap, files_in(folder) == KEYS, "leave one file for each");
}

int main(void) {
    char folder[512];
    const char *base = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/gpulua-cache-test-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(root) == NULL) {
        perror(root);
        return 1;
    }
    keys();
    hash_is_sha256();
    entries();
    damage();
    eviction();
    folders();
    keep(folder, sizeof folder, in_root("held"));
    tap_check(&tap, !folders_concurrent(folder, true),
              "a folder that is held is whole, while others evict");
    keep(folder, sizeof folder, in_root("used"));
    tap_check(&tap, folders_concurrent(folder, false), "one that is not held is not");
    refused_folders();
    concurrent();
    defaults();
    char command[400];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    if (system(command) != 0) {
        printf("# %s is left behind\n", root);
    }
    return tap_finish(&tap);
}
