/* A request is its head and the texts; an answer its head, the image, the description and the log.
 * Each is done by a process of its own, so that one compilation costs the next one nothing: neither
 * time of the processor, which is limited, nor memory, nor what goes wrong. */
#include "executor/broker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend/file.h"
#include "executor/confine.h"
#include "wire/memory.h"
#include "wire/spawn.h"

#define TEXT_BYTES_MAX (UINT64_C(64) << 20)
#define FOLDER_BYTES 4096
#define ANSWER_BYTES_MAX (UINT64_C(256) << 20)

enum { TEXT_NAME, TEXT_SOURCE, TEXT_OPTIONS, TEXT_COUNT };
enum { PART_IMAGE, PART_DESCRIPTION, PART_LOG, PART_COUNT };

struct request {
    char backend[16];
    uint64_t bytes[TEXT_COUNT]; /* with the zero byte */
};

struct answer {
    int32_t status;
    int32_t driver_code;
    struct wire_compiled outcome;
    uint32_t has_log;
    uint64_t bytes[PART_COUNT];
    char message[sizeof((struct backend_error *)0)->message];
};

/* ---- the broker's side ---- */

#define APART_MS_MAX 3000

/* Waits for its end, which comes. */
static bool has_ended_well(pid_t child) {
    int how = 0;
    const struct timespec nap = {.tv_nsec = 1000000};
    for (int round = 0; round < APART_MS_MAX; round++) {
        pid_t ended = waitpid(child, &how, WNOHANG);
        if (ended != 0 && !(ended < 0 && errno == EINTR)) {
            return ended == child && how == 0;
        }
        nanosleep(&nap, NULL);
    }
    kill(child, SIGKILL);
    waitpid(child, &how, 0);
    return false;
}

/* For backend_source. */
static bool work_apart(void (*work)(void *user), void *user) {
    struct wire_error ignored;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (gpu_confine(CONFINE_KERNELS, NULL, &ignored) != GPULUA_OK) {
            _exit(1);
        }
        work(user);
        _exit(0);
    }
    return child > 0 && has_ended_well(child);
}

/* A script can only have asked for names and definitions; who asks for more is no script. */
static bool asks_for_files(const char *options) {
    for (const char *line = options; line != NULL; line = strchr(line, '\n')) {
        line += line != options;
        if (strncmp(line, "include ", 8) == 0 || strncmp(line, "flag ", 5) == 0) {
            return true;
        }
    }
    return false;
}

static void compile(const struct request *request, char *const texts[TEXT_COUNT],
                    struct answer *answer, void *parts[PART_COUNT]) {
    struct backend_error error = {.status = GPULUA_OK};
    size_t image_bytes = 0;
    char *description = NULL;
    const struct backend_ops *ops = gpu_backend_find(request->backend);
    const struct backend_source source = {.name = texts[TEXT_NAME],
                                          .text = texts[TEXT_SOURCE],
                                          .options = texts[TEXT_OPTIONS],
                                          .apart = work_apart,
                                          .outcome = &answer->outcome};
    if (ops == NULL || ops->source_compile == NULL || asks_for_files(source.options)) {
        gpu_backend_fail(&error, GPULUA_UNSUPPORTED, 0,
                         "a confined device compiles no such source");
    } else {
        error.status =
            ops->source_compile(&source, &parts[PART_IMAGE], &image_bytes, &description, &error);
    }
    answer->status = (int32_t)error.status;
    answer->driver_code = error.driver_code;
    memcpy(answer->message, error.message, sizeof answer->message);
    if (error.status == GPULUA_OK) {
        answer->bytes[PART_IMAGE] = image_bytes;
        answer->bytes[PART_DESCRIPTION] = strlen(description) + 1;
    }
    answer->has_log = error.log != NULL;
    answer->bytes[PART_LOG] = error.log != NULL ? strlen(error.log) + 1 : 0;
    parts[PART_DESCRIPTION] = description;
    parts[PART_LOG] = error.log;
}

/* In a process for this request alone. */
_Noreturn static void serve(const struct request *request, char *const texts[TEXT_COUNT],
                            int file) {
    struct answer answer = {.status = GPULUA_OK};
    void *parts[PART_COUNT] = {NULL};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    compile(request, texts, &answer, parts);
    bool ok = gpu_backend_write_all(file, &answer, sizeof answer);
    for (int i = 0; i < PART_COUNT && ok; i++) {
        ok = gpu_backend_write_all(file, parts[i], answer.bytes[i]);
    }
    _exit(ok ? 0 : 1);
}

static bool send_file(int socket, int file) {
    struct stat facts;
    char bytes[65536];
    bool ok = fstat(file, &facts) == 0 && lseek(file, 0, SEEK_SET) == 0;
    for (uint64_t left = ok ? (uint64_t)facts.st_size : 0; ok && left > 0;) {
        size_t count = left < sizeof bytes ? (size_t)left : sizeof bytes;
        ok =
            gpu_backend_read_all(file, bytes, count) && gpu_backend_write_all(socket, bytes, count);
        left -= count;
    }
    return ok;
}

static bool send_failure(int socket) {
    struct answer answer = {.status = GPULUA_COMPILE_FAILED};
    strcpy(answer.message, "the compiler's process has ended: what it may take of memory and time "
                           "is limited");
    return gpu_backend_write_all(socket, &answer, sizeof answer);
}

/* Waits for its end, or for the executor's. Compilers start programs of their own, which know of
 * neither: what is left in its group is ended with it. */
static int end_of(pid_t child, int ending, int socket) {
    struct pollfd entries[] = {{.fd = ending}, {.fd = socket, .events = POLLRDHUP}};
    while (poll(entries, 2, -1) < 0 && errno == EINTR) {}
    int how = -1;
    kill(-child, SIGKILL);
    while (waitpid(child, &how, 0) < 0 && errno == EINTR) {}
    return how;
}

/* In a group of its own. Its end of `ending` is closed when it ends. */
static pid_t start_serving(const struct request *request, char *const texts[TEXT_COUNT], int file,
                           int socket, int *ending) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return -1;
    }
    pid_t child = fork();
    if (child == 0) {
        setpgid(0, 0);
        close(socket);
        close(ends[0]);
        if (!gpu_confine_group()) {
            _exit(1);
        }
        serve(request, texts, file);
    }
    if (child > 0) {
        setpgid(child, child); /* whoever comes first */
    }
    close(ends[1]);
    *ending = ends[0];
    return child;
}

/* False: the executor is gone, or what it says makes no sense. */
static bool serve_next(int socket) {
    struct request request;
    char *texts[TEXT_COUNT] = {NULL};
    bool ok = gpu_backend_read_all(socket, &request, sizeof request);
    request.backend[sizeof request.backend - 1] = '\0';
    for (int i = 0; ok && i < TEXT_COUNT; i++) {
        uint64_t bytes = request.bytes[i];
        ok = bytes > 0 && bytes <= TEXT_BYTES_MAX && (texts[i] = malloc(bytes)) != NULL &&
             gpu_backend_read_all(socket, texts[i], bytes) && texts[i][bytes - 1] == '\0';
    }
    int file = ok ? memfd_create("gpulua-answer", MFD_CLOEXEC) : -1;
    int ending = -1;
    pid_t child = file >= 0 ? start_serving(&request, texts, file, socket, &ending) : -1;
    int how = child > 0 ? end_of(child, ending, socket) : -1;
    ok = ok && (how == 0 ? send_file(socket, file) : send_failure(socket));
    if (file >= 0) {
        close(file);
    }
    if (ending >= 0) {
        close(ending);
    }
    for (int i = 0; i < TEXT_COUNT; i++) {
        free(texts[i]);
    }
    return ok;
}

/* Inside of the folder for compiled code: what compilers write here, if somebody has taken one
 * over, no other device takes for its own. */
static bool choose_folder(char folder[FOLDER_BYTES]) {
    char shared[FOLDER_BYTES];
    return gpu_cache_folder(NULL, shared, sizeof shared) &&
           snprintf(folder, FOLDER_BYTES, "%s/confined", shared) < FOLDER_BYTES &&
           setenv("GPULUA_CACHE", folder, 1) == 0 && gpu_cache_folder(NULL, folder, FOLDER_BYTES);
}

_Noreturn static void broker_main(int socket, int ready) {
    char folder[FOLDER_BYTES];
    struct wire_error error = {.status = GPULUA_OK};
    prctl(PR_SET_NAME, "gpulua-compiler");
    for (int i = 0; i < SPAWN_FD_COUNT; i++) {
        close(SPAWN_FD_FIRST + i);
    }
    if (!choose_folder(folder)) {
        gpu_wire_fail(&error, GPULUA_IO, 0,
                      "there is no folder for compiled code: set GPULUA_CACHE to one");
    } else if (setenv("TMPDIR", folder, 1) == 0) { /* compilers write there, too */
        gpu_confine(CONFINE_COMPILER, folder, &error);
    }
    if (!gpu_backend_write_all(ready, &error, sizeof error) || error.status != GPULUA_OK) {
        _exit(1);
    }
    close(ready);
    while (serve_next(socket)) {}
    _exit(0);
}

/* ---- the executor's side ---- */

static bool receive(int broker, struct answer *answer, void *parts[PART_COUNT]) {
    bool ok = gpu_backend_read_all(broker, answer, sizeof *answer);
    for (int i = 0; ok && i < PART_COUNT; i++) {
        uint64_t bytes = answer->bytes[i];
        ok = bytes <= ANSWER_BYTES_MAX && (parts[i] = malloc(bytes + 1)) != NULL &&
             gpu_backend_read_all(broker, parts[i], bytes);
        if (ok) {
            ((char *)parts[i])[bytes] = '\0';
        }
    }
    return ok;
}

static gpulua_status ask(const struct executor_broker *broker, const char *backend,
                         const struct backend_source *source, void **image, size_t *image_bytes,
                         char **description, struct backend_error *error) {
    const char *const texts[TEXT_COUNT] = {source->name, source->text, source->options};
    struct request request = {.bytes = {0}};
    struct answer answer;
    void *parts[PART_COUNT] = {NULL};
    strncpy(request.backend, backend, sizeof request.backend - 1);
    for (int i = 0; i < TEXT_COUNT; i++) {
        request.bytes[i] = strlen(texts[i]) + 1;
    }
    bool ok = gpu_backend_write_all(broker->fd, &request, sizeof request);
    for (int i = 0; ok && i < TEXT_COUNT; i++) {
        ok = gpu_backend_write_all(broker->fd, texts[i], request.bytes[i]);
    }
    if (!ok || !receive(broker->fd, &answer, parts)) {
        gpu_backend_fail(error, GPULUA_IO, 0, "the compiler's process of this device is gone");
    } else if (answer.status != GPULUA_OK) {
        answer.message[sizeof answer.message - 1] = '\0';
        gpu_backend_fail(error, (gpulua_status)answer.status, answer.driver_code, "%s",
                         answer.message);
        if (answer.has_log) {
            error->log = parts[PART_LOG];
            parts[PART_LOG] = NULL;
        }
    } else {
        *image = parts[PART_IMAGE];
        *image_bytes = answer.bytes[PART_IMAGE];
        *description = parts[PART_DESCRIPTION];
        parts[PART_IMAGE] = parts[PART_DESCRIPTION] = NULL;
        if (source->outcome != NULL) {
            answer.outcome.not_kept[sizeof answer.outcome.not_kept - 1] = '\0';
            *source->outcome = answer.outcome;
        }
        error->status = GPULUA_OK;
    }
    for (int i = 0; i < PART_COUNT; i++) {
        free(parts[i]);
    }
    return error->status;
}

bool gpu_broker_start(struct executor_broker *broker, struct wire_error *error) {
    int sockets[2], ready[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
        gpu_wire_fail(error, GPULUA_IO, errno, "socketpair: %s", strerror(errno));
        return false;
    }
    pid_t child = pipe2(ready, O_CLOEXEC) == 0 ? fork() : -1;
    if (child < 0) {
        gpu_wire_fail(error, GPULUA_IO, errno, "the compiler's process: %s", strerror(errno));
        close(sockets[0]);
        close(sockets[1]);
        return false;
    }
    if (child == 0) {
        close(sockets[0]);
        close(ready[0]);
        broker_main(sockets[1], ready[1]);
    }
    close(sockets[1]);
    close(ready[1]);
    struct wire_error said;
    if (!gpu_backend_read_all(ready[0], &said, sizeof said)) {
        gpu_wire_fail(error, GPULUA_IO, 0, "the compiler's process ended at once");
    } else if (said.status != GPULUA_OK) {
        *error = said;
    }
    close(ready[0]);
    if (error->status != GPULUA_OK) {
        close(sockets[0]);
        return false;
    }
    *broker = (struct executor_broker){.fd = sockets[0], .compile = ask};
    return true;
}
