/* Running a compiler (see process.h).
 *
 * Input and output go through files in memory instead of pipes: nothing can block, nothing raises
 * SIGPIPE, and whatever was written is there in whole when the program has ended. */
#include "backend/cpu/process.h"
#include "backend/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static bool is_program(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISREG(facts.st_mode) && access(path, X_OK) == 0;
}

bool gpu_cpu_process_find(const char *name, char *path, size_t path_bytes) {
    if (strchr(name, '/') != NULL) {
        int length = snprintf(path, path_bytes, "%s", name);
        return length > 0 && (size_t)length < path_bytes && is_program(path);
    }
    const char *folders = getenv("PATH");
    if (folders == NULL) {
        folders = "/usr/local/bin:/usr/bin:/bin";
    }
    while (name[0] != '\0') {
        size_t length = strcspn(folders, ":");
        int written =
            snprintf(path, path_bytes, "%.*s/%s", (int)length, length == 0 ? "." : folders, name);
        if (length == 0) {
            written = snprintf(path, path_bytes, "./%s", name);
        }
        if (written > 0 && (size_t)written < path_bytes && is_program(path)) {
            return true;
        }
        if (folders[length] == '\0') {
            break;
        }
        folders += length + 1;
    }
    return false;
}

/* A file in memory, its descriptor above the standard three even where the host has closed those.
 */
static int memory_file(const char *name) {
    int file = memfd_create(name, MFD_CLOEXEC);
    if (file < 0 || file > 2) {
        return file;
    }
    int higher = fcntl(file, F_DUPFD_CLOEXEC, 3);
    close(file);
    return higher;
}

static char *read_whole(int file, size_t *byte_count) {
    struct stat facts;
    if (fstat(file, &facts) != 0) {
        return NULL;
    }
    size_t room = (size_t)facts.st_size, used = 0;
    char *bytes = malloc(room + 1);
    while (bytes != NULL && used < room) {
        ssize_t got = pread(file, bytes + used, room - used, (off_t)used);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        used += (size_t)got;
    }
    if (bytes != NULL) {
        bytes[used] = '\0';
        *byte_count = used;
    }
    return bytes;
}

/* The host's environment, but in English and without what adds folders to the compiler's search. */
static char **environment_make(void) {
    static const char *const dropped[] = {"LC_ALL=",
                                          "LANGUAGE=",
                                          "CPATH=",
                                          "CPLUS_INCLUDE_PATH=",
                                          "C_INCLUDE_PATH=",
                                          "DEPENDENCIES_OUTPUT=",
                                          NULL};
    static char english[] = "LC_ALL=C";
    size_t count = 0, kept = 0;
    while (environ != NULL && environ[count] != NULL) {
        count++;
    }
    char **list = malloc((count + 2) * sizeof *list);
    if (list == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        bool is_dropped = false;
        for (size_t k = 0; dropped[k] != NULL; k++) {
            is_dropped = is_dropped || strncmp(environ[i], dropped[k], strlen(dropped[k])) == 0;
        }
        if (!is_dropped) {
            list[kept++] = environ[i];
        }
    }
    list[kept++] = english;
    list[kept] = NULL;
    return list;
}

/* A compiler starts programs itself and waits for them: it must not inherit that the host ignores
 * SIGCHLD, nor blocked signals. */
static int attributes_make(posix_spawnattr_t *attributes) {
    sigset_t none, standard;
    sigemptyset(&none);
    sigemptyset(&standard);
    sigaddset(&standard, SIGCHLD);
    sigaddset(&standard, SIGPIPE);
    sigaddset(&standard, SIGHUP);
    sigaddset(&standard, SIGTERM);
    int failed = posix_spawnattr_init(attributes);
    if (failed == 0) {
        posix_spawnattr_setsigdefault(attributes, &standard);
        posix_spawnattr_setsigmask(attributes, &none);
        posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    }
    return failed;
}

static int spawn(char *const *argv, int input, int output, int log, pid_t *child) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int failed = posix_spawn_file_actions_init(&actions);
    if (failed != 0) {
        return failed;
    }
    failed = attributes_make(&attributes);
    if (failed != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return failed;
    }
    char **environment = environment_make();
    failed = environment == NULL ? ENOMEM : 0;
    failed = failed ? failed : posix_spawn_file_actions_adddup2(&actions, input, 0);
    failed = failed ? failed : posix_spawn_file_actions_adddup2(&actions, output, 1);
    failed = failed ? failed : posix_spawn_file_actions_adddup2(&actions, log, 2);
#if defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 34)
    failed = failed ? failed : posix_spawn_file_actions_addclosefrom_np(&actions, 3);
#endif
#endif
    failed =
        failed ? failed : posix_spawn(child, argv[0], &actions, &attributes, argv, environment);
    free(environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return failed;
}

static int exit_code_wait(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            return -1; /* ECHILD: it has ended, but somebody else learned how */
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool gpu_cpu_process_run(char *const *argv, const void *input, size_t input_bytes,
                         struct cpu_process *process) {
    memset(process, 0, sizeof *process);
    int in = memory_file("gpulua-input"), out = memory_file("gpulua-output");
    int log = memory_file("gpulua-log");
    pid_t child;
    int failed = in < 0 || out < 0 || log < 0 ? errno : 0;
    if (failed == 0 &&
        (!gpu_backend_write_all(in, input, input_bytes) || lseek(in, 0, SEEK_SET) != 0)) {
        failed = errno;
    }
    failed = failed ? failed : spawn(argv, in, out, log, &child);
    if (failed == 0) {
        size_t log_bytes;
        process->exit_code = exit_code_wait(child);
        process->output = read_whole(out, &process->output_bytes);
        process->log = read_whole(log, &log_bytes);
        if (process->output == NULL || process->log == NULL) {
            gpu_cpu_process_free(process);
            failed = ENOMEM;
        }
    }
    const int files[] = {in, out, log};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (files[i] >= 0) {
            close(files[i]);
        }
    }
    errno = failed;
    return failed == 0;
}

void gpu_cpu_process_free(struct cpu_process *process) {
    free(process->output);
    free(process->log);
    process->output = NULL;
    process->log = NULL;
}
