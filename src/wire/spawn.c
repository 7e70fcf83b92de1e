/* Starting and ending gpulua-exec.
 *
 * posix_spawn, never fork: the host may be large and have threads. The child is watched through a
 * pidfd, so that hosts that ignore SIGCHLD, or reap every child they see, do no harm: its number is
 * used for nothing but messages. */
#include "wire/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wire/descriptor.h"
#include "wire/memory.h"
#include "wire/sync.h"

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

#define KILL_MS_MAX 10000    /* a driver may hold a killed process for a while */
#define REAP_ROUNDS_MAX 1000 /* of a millisecond */
#define FD_ABOVE 16          /* copies to pass lie above the numbers that they are passed at */

extern char **environ;

static const struct {
    int number;
    const char *text;
} signal_table[] = {
    {SIGSEGV, "SIGSEGV, an invalid memory access"},
    {SIGBUS, "SIGBUS, an invalid memory access"},
    {SIGFPE, "SIGFPE, an arithmetic fault"},
    {SIGILL, "SIGILL, an invalid instruction"},
    {SIGABRT, "SIGABRT, an abort"},
    {SIGKILL, "SIGKILL"},
    {SIGTERM, "SIGTERM"},
    {SIGINT, "SIGINT"},
    {SIGHUP, "SIGHUP"},
    {SIGQUIT, "SIGQUIT"},
    {SIGTRAP, "SIGTRAP"},
    {SIGSYS, "SIGSYS, a forbidden system call"},
    {SIGXCPU, "SIGXCPU, its processor time is used up"},
};

static int pidfd_open_of(int pid) {
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

static int pidfd_kill(int pidfd) {
    return (int)syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
}

/* 1 readable (dead), 0 not within the time. */
static int wait_dead(int pidfd, int timeout_ms) {
    uint64_t end_ns = gpu_wire_now_ns() + (uint64_t)timeout_ms * 1000000u;
    for (;;) {
        struct pollfd entry = {.fd = pidfd, .events = POLLIN};
        int rc = poll(&entry, 1, timeout_ms);
        if (rc >= 0 || errno != EINTR) {
            return rc > 0;
        }
        uint64_t now_ns = gpu_wire_now_ns();
        timeout_ms = now_ns < end_ns ? (int)((end_ns - now_ns) / 1000000u) : 0;
    }
}

bool gpu_wire_spawn_is_dead(const struct spawn_child *child) {
    return wait_dead(child->pidfd, 0) != 0;
}

void gpu_wire_spawn_reap(const struct spawn_child *child, char *text, uint32_t text_bytes) {
    siginfo_t info;
    int rc;
    /* Dead, but not to be reaped yet: somebody traces it and is told first. */
    for (int round = 0; round < REAP_ROUNDS_MAX; round++) {
        memset(&info, 0, sizeof info);
        rc = waitid((idtype_t)P_PIDFD, (id_t)child->pidfd, &info, WEXITED | WNOHANG);
        if ((rc == 0 && info.si_pid != 0) || (rc != 0 && errno != EINTR)) {
            break;
        }
        gpu_wire_nap_ns(1000000);
    }
    if (text == NULL) {
        return;
    }
    if (rc != 0 || info.si_pid == 0) {
        snprintf(text, text_bytes,
                 "process %d ended; how is not known, because this process ignores or reaps its "
                 "children",
                 child->pid);
        return;
    }
    if (info.si_code == CLD_EXITED) {
        snprintf(text, text_bytes, "process %d exited with code %d", child->pid, info.si_status);
        return;
    }
    const char *name = NULL;
    for (size_t i = 0; i < sizeof signal_table / sizeof signal_table[0]; i++) {
        if (signal_table[i].number == info.si_status) {
            name = signal_table[i].text;
        }
    }
    snprintf(text, text_bytes, "process %d was killed by signal %d%s%s%s", child->pid,
             info.si_status, name != NULL ? " (" : "", name != NULL ? name : "",
             name != NULL ? ")" : "");
}

void gpu_wire_spawn_end(struct spawn_child *child, int grace_ms) {
    /* One that ends by itself is not disturbed: closing the socket would cut its end short. */
    bool is_dead = child->pidfd >= 0 && grace_ms > 0 && wait_dead(child->pidfd, grace_ms);
    if (child->control_fd >= 0) {
        close(child->control_fd);
        child->control_fd = -1;
    }
    if (child->pidfd >= 0) {
        if (!is_dead) {
            pidfd_kill(child->pidfd); /* a stopped process dies of it, too */
            wait_dead(child->pidfd, KILL_MS_MAX);
        }
        gpu_wire_spawn_reap(child, NULL, 0);
        close(child->pidfd);
        child->pidfd = -1;
    }
}

/* ---- the environment of a confined one: what others have there may be secret ---- */

#define CACHE_VARIABLE "GPULUA_CACHE="

static bool is_passed(const char *variable, bool has_cache_path) {
    static const char *const names[] = {
        CACHE_VARIABLE,     "XDG_CACHE_HOME=", "HOME=",         "PATH=",          "GPULUA_CXX=",
        "LD_LIBRARY_PATH=", "ASAN_OPTIONS=",   "LSAN_OPTIONS=", "UBSAN_OPTIONS=", "TSAN_OPTIONS="};
    if (has_cache_path && strncmp(variable, CACHE_VARIABLE, strlen(CACHE_VARIABLE)) == 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strncmp(variable, names[i], strlen(names[i])) == 0) {
            return true;
        }
    }
    return false;
}

/* The host's variables and, where that is known, the folder for compiled code in `cache`, which is
 * malloc'ed. NULL: no memory. */
static char **environment_make(const struct wire_program *program, char **cache) {
    size_t count = 0, kept = 0;
    while (environ != NULL && environ[count] != NULL) {
        count++;
    }
    char **list = calloc(count + 2, sizeof *list);
    *cache = NULL;
    if (list != NULL && program->cache_path != NULL &&
        asprintf(cache, "%s%s", CACHE_VARIABLE, program->cache_path) < 0) {
        *cache = NULL;
        free(list);
        list = NULL;
    }
    if (list != NULL && *cache != NULL) {
        list[kept++] = *cache;
    }
    for (size_t i = 0; list != NULL && i < count; i++) {
        if (is_passed(environ[i], *cache != NULL)) {
            list[kept++] = environ[i];
        }
    }
    return list;
}

/* The descriptors at their numbers, stdin from nowhere; stdout and stderr are inherited, because
 * kernels print there. Every signal as at the start of a process, whatever the host has set. */
static int start(const struct wire_program *program, const int fds[SPAWN_FD_COUNT], int *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int rc = posix_spawn_file_actions_init(&actions);
    if (rc != 0) {
        return rc;
    }
    rc = posix_spawnattr_init(&attributes);
    if (rc != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return rc;
    }
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    sigdelset(&all, SIGKILL);
    sigdelset(&all, SIGSTOP);
    rc = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    for (int i = 0; rc == 0 && i < SPAWN_FD_COUNT; i++) {
        rc = posix_spawn_file_actions_adddup2(&actions, fds[i], SPAWN_FD_FIRST + i);
    }
    if (rc == 0) {
        rc = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                                       POSIX_SPAWN_SETSIGDEF);
    }
    if (rc == 0) {
        rc = posix_spawnattr_setpgroup(&attributes, 0);
    }
    if (rc == 0) {
        rc = posix_spawnattr_setsigmask(&attributes, &none);
    }
    if (rc == 0) {
        rc = posix_spawnattr_setsigdefault(&attributes, &all);
    }
    if (rc == 0) {
        char *const argv[] = {(char *)(uintptr_t)program->path, (char[]){SPAWN_ARGUMENT}, NULL};
        char *cache = NULL;
        char **own = program->is_confined ? environment_make(program, &cache) : NULL;
        pid_t child = 0;
        rc = program->is_confined && own == NULL
                 ? ENOMEM
                 : posix_spawn(&child, program->path, &actions, &attributes, argv,
                               own != NULL ? own : environ);
        free(own);
        free(cache);
        *pid = (int)child;
    }
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return rc;
}

/* dup2 onto the fixed numbers must not overwrite a descriptor that is still to be passed, so copies
 * far above are what is passed. */
static int start_with_copies(const struct wire_program *program, const int fds[SPAWN_FD_COUNT],
                             int *pid) {
    int copies[SPAWN_FD_COUNT] = {-1, -1, -1, -1};
    int rc = 0;
    for (int i = 0; i < SPAWN_FD_COUNT && rc == 0; i++) {
        copies[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, FD_ABOVE);
        rc = copies[i] >= 0    ? 0
             : errno == EINVAL ? EMFILE /* no number may be so high */
                               : errno;
    }
    if (rc == 0) {
        rc = start(program, copies, pid);
    }
    for (int i = 0; i < SPAWN_FD_COUNT; i++) {
        if (copies[i] >= 0) {
            close(copies[i]);
        }
    }
    return rc;
}

/* Between two looks at an interrupt that comes from another thread. */
enum { LOOK_MS = 50 };

bool gpu_wire_spawn_has_begun(const struct spawn_child *child, int patience_ms) {
    struct pollfd entries[2] = {{.fd = child->control_fd, .events = POLLIN},
                                {.fd = child->pidfd, .events = POLLIN}};
    return poll(entries, 2, patience_ms) > 0;
}

gpulua_status gpu_wire_spawn_await(const char *path, const struct spawn_child *child,
                                   int patience_ms, const _Atomic int *interrupt,
                                   struct wire_error *error) {
    struct spawn_answer answer;
    memset(&answer, 0, sizeof answer);
    uint64_t end_ns = gpu_wire_now_ns() + (uint64_t)patience_ms * 1000000u;
    for (;;) {
        uint64_t now_ns = gpu_wire_now_ns();
        if (now_ns >= end_ns) {
            return gpu_wire_fail(error, GPULUA_IO, 0,
                                 "'%s' was started and did not answer within %.3g s: is it "
                                 "gpulua's executor?",
                                 path, patience_ms / 1000.0);
        }
        struct pollfd entries[2] = {{.fd = child->control_fd, .events = POLLIN},
                                    {.fd = child->pidfd, .events = POLLIN}};
        bool is_interrupted =
            interrupt != NULL && atomic_load_explicit(interrupt, memory_order_relaxed) != 0;
        uint64_t left_ms = (end_ns - now_ns) / 1000000u + 1u;
        int rc = poll(entries, 2, is_interrupted ? 0 : left_ms < LOOK_MS ? (int)left_ms : LOOK_MS);
        if (rc < 0 && errno != EINTR) {
            return gpu_wire_fail(error, GPULUA_IO, errno, "poll: %s", strerror(errno));
        }
        if (rc > 0 && entries[0].revents != 0) {
            ssize_t got = recv(child->control_fd, &answer, sizeof answer, MSG_DONTWAIT);
            if (got == (ssize_t)sizeof answer) {
                break;
            }
            if (got > 0) {
                return gpu_wire_fail(error, GPULUA_IO, 0,
                                     "'%s' is not an executor of this build of gpulua", path);
            }
        }
        if (rc > 0 && entries[1].revents != 0) {
            char how[160];
            gpu_wire_spawn_reap(child, how, sizeof how);
            return gpu_wire_fail(
                error, GPULUA_IO, 0,
                "'%s' ended before it took any work (%s): is it gpulua's executor?", path, how);
        }
        if (is_interrupted) { /* one that is there is taken all the same */
            return gpu_wire_fail(error, GPULUA_INTERRUPTED, 0,
                                 "interrupted while waiting for the start of '%s'", path);
        }
        if (rc > 0) {
            gpu_wire_nap_ns(1000000); /* its end of the socket is closed and it lives on */
        }
    }
    answer.text[sizeof answer.text - 1] = '\0';
    if (answer.magic != WIRE_PAGE_MAGIC) {
        return gpu_wire_fail(error, GPULUA_IO, 0,
                             "'%s' is of another build of gpulua: its protocol is %#x, ours %#x",
                             path, answer.magic, WIRE_PAGE_MAGIC);
    }
    if (answer.status != GPULUA_OK) {
        return gpu_wire_fail(error, (gpulua_status)answer.status, 0, "'%s': %s", path, answer.text);
    }
    return GPULUA_OK;
}

gpulua_status gpu_wire_spawn(const struct wire_program *program, int page_fd, int arena_fd,
                             int event_fd, uint64_t arena_bytes, struct spawn_child *child,
                             struct wire_error *error) {
    const char *path = program->path;
    int sockets[2] = {-1, -1};
    *child = (struct spawn_child){.pid = 0, .pidfd = -1, .control_fd = -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
        return gpu_wire_fail(error, GPULUA_IO, errno, "socketpair: %s", strerror(errno));
    }
    child->control_fd = gpu_wire_descriptor(sockets[0]);
    const int fds[SPAWN_FD_COUNT] = {page_fd, arena_fd, event_fd, sockets[1]};
    int rc = start_with_copies(program, fds, &child->pid);
    close(sockets[1]);
    if (rc != 0) {
        gpu_wire_fail(error, GPULUA_IO, rc, "cannot start the executor '%s': %s", path,
                      strerror(rc));
        goto fail;
    }
    child->pidfd = gpu_wire_descriptor(pidfd_open_of(child->pid));
    if (child->pidfd < 0 && errno == ESRCH) {
        gpu_wire_fail(error, GPULUA_IO, ESRCH, "'%s' ended as soon as it was started", path);
        goto fail;
    }
    if (child->pidfd < 0) {
        bool is_missing = errno == ENOSYS;
        gpu_wire_fail(error, is_missing ? GPULUA_UNSUPPORTED : GPULUA_IO, errno, "pidfd_open: %s%s",
                      strerror(errno),
                      is_missing ? " (isolation in a process needs Linux 5.4 or newer)" : "");
        if (waitpid(child->pid, NULL, WNOHANG) == 0) { /* still ours, so the number is its own */
            kill(child->pid, SIGKILL);
            waitpid(child->pid, NULL, 0);
        }
        goto fail;
    }
    const struct spawn_hello hello = {
        .magic = WIRE_PAGE_MAGIC, .is_confined = program->is_confined, .arena_bytes = arena_bytes};
    if (send(child->control_fd, &hello, sizeof hello, MSG_NOSIGNAL) < 0 && errno != EPIPE) {
        gpu_wire_fail(error, GPULUA_IO, errno, "send: %s", strerror(errno));
        goto fail;
    }
    return GPULUA_OK;

fail:
    gpu_wire_spawn_end(child, 0);
    return error->status;
}
