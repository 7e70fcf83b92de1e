/* gpulua-exec: a device in a process of its own. Started by gpulua with four descriptors (see
 * wire/spawn.h); lives until the control socket closes. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "executor/assertions.h"
#include "executor/broker.h"
#include "executor/confine.h"
#include "executor/executor.h"
#include "wire/memory.h"
#include "wire/spawn.h"

#define EXIT_BY_HAND 2 /* not started by gpulua */
#define EXIT_FAILED 3  /* could not take up the link, or the link broke */

static struct executor_assertions assertions;

static int say_by_hand(void) {
    fputs("gpulua-exec: this program is started by gpulua; see gpulua --help\n", stderr);
    return EXIT_BY_HAND;
}

/* Nothing of the host's may live on in us, such as the write end of a pipe that somebody reads to
 * its end. */
static void close_others(void) {
    unsigned first = SPAWN_FD_FIRST + SPAWN_FD_COUNT;
#ifdef SYS_close_range
    if (syscall(SYS_close_range, first, ~0u, 0) == 0) {
        return;
    }
#endif
    long limit = sysconf(_SC_OPEN_MAX);
    for (int fd = (int)first; fd < (limit > 0 && limit < 65536 ? (int)limit : 65536); fd++) {
        close(fd);
    }
}

/* Descriptors of ours are not for the compilers that we start; 1 and 2 are open, so that nothing
 * else gets these numbers. */
static void set_up_descriptors(void) {
    for (int i = 0; i < SPAWN_FD_COUNT; i++) {
        fcntl(SPAWN_FD_FIRST + i, F_SETFD, FD_CLOEXEC);
    }
    for (int fd = 1; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            int null = open("/dev/null", O_WRONLY);
            if (null >= 0 && null != fd) {
                dup2(null, fd);
                close(null);
            }
        }
    }
}

#if defined(__GLIBC__)
/* The bytes go where they would have gone, at once. What cannot be written is lost, as ever. */
static ssize_t pass_on(void *unused, const char *bytes, size_t count) {
    (void)unused;
    for (size_t done = 0; done < count;) {
        ssize_t put = write(STDERR_FILENO, bytes + done, count - done);
        if (put == 0 || (put < 0 && errno != EINTR)) {
            break;
        }
        done += put > 0 ? (size_t)put : 0;
    }
    gpu_executor_assertions_hear(&assertions, bytes, count);
    return (ssize_t)count;
}
#endif

/* The driver prints through the C library what assertions of kernels have failed, and tells it
 * nowhere else: so what is printed to stderr is heard on its way. The descriptor stays what it is:
 * there is no pipe that could be full, or be lost with us. */
static void listen_to_stderr(void) {
    gpu_executor_assertions_init(&assertions);
#if defined(__GLIBC__) /* whose stderr is a variable */
    FILE *heard = fopencookie(NULL, "w", (cookie_io_functions_t){.write = pass_on});
    if (heard != NULL) {
        setvbuf(heard, NULL, _IONBF, 0);
        stderr = heard;
    }
#endif
}

/* What kernels print may have no reader any more, or go to a terminal whose foreground is not ours:
 * neither is a reason to die or to stop. */
static void set_up_signals(void) {
    struct sigaction ignore;
    memset(&ignore, 0, sizeof ignore);
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGTTOU, &ignore, NULL);
    sigaction(SIGINT, &ignore, NULL);
    sigaction(SIGHUP, &ignore, NULL);
}

/* The parent closed the control socket, or died. Whatever the executor's thread is doing, perhaps
 * for ever, this is the end. */
static void *watch_parent(void *unused) {
    (void)unused;
    for (;;) {
        char byte;
        ssize_t got = recv(SPAWN_FD_CONTROL, &byte, sizeof byte, 0);
        if (got == 0 || (got < 0 && errno != EINTR)) {
            _exit(0);
        }
    }
}

static void answer(gpulua_status status, const char *text) {
    struct spawn_answer answer;
    memset(&answer, 0, sizeof answer);
    answer.magic = WIRE_PAGE_MAGIC;
    answer.status = (int32_t)status;
    snprintf(answer.text, sizeof answer.text, "%s", text);
    ssize_t rc;
    do {
        rc = send(SPAWN_FD_CONTROL, &answer, sizeof answer, MSG_NOSIGNAL);
    } while (rc < 0 && errno == EINTR);
}

/* What kernels of anybody's print is for nobody. */
static void silence(void) {
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null < 0 || dup2(null, STDOUT_FILENO) < 0 || dup2(null, STDERR_FILENO) < 0) {
        _exit(EXIT_FAILED);
    }
    close(null);
}

static struct wire_executor *take_up(const struct spawn_hello *hello) {
    struct wire_error error = {.status = GPULUA_OK};
    if (hello->magic != WIRE_PAGE_MAGIC) {
        answer(GPULUA_IO, "its protocol is of another build of gpulua");
        return NULL;
    }
    static struct executor_broker broker;
    if (hello->is_confined) {
        silence();
        gpu_broker_start(&broker, &error); /* while it can be, and without page and arena */
    }
    if (error.status != GPULUA_OK) {
        answer(error.status, error.message);
        return NULL;
    }
    struct wire_executor_info info = {
        .broker = hello->is_confined ? &broker : NULL,
        .page = gpu_wire_page_map(SPAWN_FD_PAGE, &error),
        .arena_bytes = hello->arena_bytes,
        .event_fd = SPAWN_FD_EVENT,
        .place = WIRE_EXECUTOR_APART,
        .assertions = &assertions,
    };
    if (info.page != NULL) {
        info.arena = gpu_wire_arena_map(SPAWN_FD_ARENA, hello->arena_bytes, &error);
    }
    close(SPAWN_FD_PAGE); /* the mappings hold them */
    close(SPAWN_FD_ARENA);
    if (info.arena != NULL && hello->is_confined) {
        gpu_confine(CONFINE_KERNELS, NULL, &error);
    }
    struct wire_executor *executor =
        info.arena != NULL && error.status == GPULUA_OK ? gpu_executor_create(&info, &error) : NULL;
    pthread_t watcher;
    if (executor != NULL && pthread_create(&watcher, NULL, watch_parent, NULL) != 0) {
        gpu_wire_fail(&error, GPULUA_CAPACITY, 0, "cannot start a thread");
        gpu_executor_destroy(executor);
        executor = NULL;
    } else if (executor != NULL) {
        pthread_detach(watcher);
    }
    answer(error.status, error.message);
    return executor;
}

int main(int argc, char **argv) {
    int type = 0;
    socklen_t type_bytes = sizeof type;
    if (argc != 2 || strcmp(argv[1], SPAWN_ARGUMENT) != 0 ||
        getsockopt(SPAWN_FD_CONTROL, SOL_SOCKET, SO_TYPE, &type, &type_bytes) != 0 ||
        type != SOCK_SEQPACKET) {
        return say_by_hand();
    }
    close_others();
    set_up_descriptors();
    set_up_signals();
    listen_to_stderr();
    struct spawn_hello hello;
    ssize_t got;
    do {
        got = recv(SPAWN_FD_CONTROL, &hello, sizeof hello, 0);
    } while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof hello) {
        return EXIT_FAILED; /* the parent is gone already */
    }
    struct wire_executor *executor = take_up(&hello);
    if (executor == NULL) {
        return EXIT_FAILED;
    }
    if (!gpu_executor_run(executor)) {
        _exit(EXIT_FAILED); /* whatever still runs goes, too */
    }
    gpu_executor_destroy(executor);
    return 0;
}
