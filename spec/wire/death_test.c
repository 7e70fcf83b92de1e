/* Executors that die, hang or cannot start, hosts that do odd things with their children: never a
 * hang, never a zombie, nothing leaked. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "wire/client.h"
#include "wire/memory.h"
#include "wire/ring.h"
#include "wire/spawn.h"

#define RESTARTS (CLIENT_IS_SANITIZED ? 100 : 1000)
#define RESTARTS_IN_HOSTS (RESTARTS / 10)

static struct tap tap;

static void check(bool good, const char *what) {
    tap_check(&tap, good, what);
}

static bool has_process(int pid) {
    return kill(pid, 0) == 0 || errno != ESRCH;
}

/* Waits until a process is gone, as seen by somebody who is not its parent. */
static bool ends_within_ms(int pid, int timeout_ms) {
    for (int i = 0; i < timeout_ms && has_process(pid); i++) {
        usleep(1000);
    }
    return !has_process(pid);
}

static int count_entries(const char *path) {
    int count = 0;
    DIR *folder = opendir(path);
    while (folder != NULL && readdir(folder) != NULL) {
        count++;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return count;
}

/* One that was joined may be in the list for a moment: the fewest of some looks, down to `wanted`.
 */
static int count_threads(int wanted) {
    int fewest = count_entries("/proc/self/task");
    for (int i = 0; i < (wanted > 0 ? 5000 : 30) && fewest > wanted; i++) {
        usleep(1000);
        int count = count_entries("/proc/self/task");
        fewest = count < fewest ? count : fewest;
    }
    return fewest;
}

static int count_lines(const char *path) {
    int count = 0;
    int c;
    FILE *file = fopen(path, "r");
    while (file != NULL && (c = fgetc(file)) != EOF) {
        count += c == '\n';
    }
    if (file != NULL) {
        fclose(file);
    }
    return count;
}

static bool has_children(void) {
    return waitpid(-1, NULL, WNOHANG) >= 0 || errno != ECHILD;
}

/* ---- starting ---- */

static void refuses(const char *path, const char *word, const char *what) {
    struct wire_error error = {.status = GPULUA_OK};
    struct wire_link_info info = {
        .transport = WIRE_TRANSPORT_PROCESS, .program.path = path, .on_reply = client_on_reply};
    struct wire_link *link = gpu_wire_link_open(&info, &error);
    bool good = link == NULL && error.status == GPULUA_IO && strstr(error.message, word) != NULL;
    if (!good) {
        printf("# %d: %s\n", error.status, error.message);
    }
    gpu_wire_link_close(link);
    check(good && !has_children(), what);
}

static void unusable_executors(void) {
    refuses("/nowhere/gpulua-exec", "/nowhere/gpulua-exec", "a path that is not there is named");
    refuses("/etc/passwd", "/etc/passwd", "a file that is no program is named");
    refuses("/bin/true", "exited with code 0", "a program that ends at once");
    refuses("/bin/false", "exited with code 1", "a program that fails at once");
    refuses("", "gpulua-exec", "no path at all");
    gpu_wire_link_close(NULL);
    check(true, "closing nothing is fine");
}

static void started_by_hand(void) {
    int ends[2];
    char text[200] = "";
    if (pipe(ends) != 0) {
        check(false, "pipe");
        return;
    }
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        execl(client_executor(), "gpulua-exec", (char *)NULL);
        _exit(99);
    }
    close(ends[1]);
    ssize_t got = read(ends[0], text, sizeof text - 1);
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 2 && got > 0 &&
              strstr(text, "started by gpulua") != NULL && strchr(text, '\n') == text + got - 1,
          "started by hand it says who starts it, in one line, and exits with 2");
}

/* What the child has open: nothing of ours but what it was given. */
static void inherits_nothing(void) {
    int ours = open("/dev/null", O_RDONLY); /* without close-on-exec, as hosts do */
    int high = fcntl(ours, F_DUPFD, 200);
    struct client *client = client_open(WIRE_TRANSPORT_PROCESS);
    char path[64];
    bool good = client != NULL;
    if (client != NULL) {
        int pid = gpu_wire_link_pid(client->link);
        struct stat file;
        snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, high);
        good = good && lstat(path, &file) != 0;
        for (int fd = SPAWN_FD_FIRST + SPAWN_FD_COUNT; fd < 20; fd++) {
            char target[256] = "";
            snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
            ssize_t length = readlink(path, target, sizeof target - 1);
            good = good && (length < 0 || strcmp(target, "/dev/null") != 0);
        }
        snprintf(path, sizeof path, "/proc/%d/fd/0", pid);
        char target[256] = "";
        good = good && readlink(path, target, sizeof target - 1) > 0 &&
               strcmp(target, "/dev/null") == 0;
        check(good, "the child has none of the host's descriptors, and no standard input");
        check(getpgid(pid) == pid, "and a process group of its own");
    }
    client_destroy(client);
    close(ours);
    close(high);
}

/* Low numbers free: what is passed must not overwrite what is still to be passed. */
static void crowded_descriptors(void) {
    int saved[8];
    for (int i = 0; i < 8; i++) {
        saved[i] = fcntl(i, F_DUPFD_CLOEXEC, 100);
    }
    for (int i = 3; i < 8; i++) {
        close(i);
    }
    struct client *client = client_open(WIRE_TRANSPORT_PROCESS);
    bool good = client != NULL;
    if (client != NULL) {
        good = client_wait(client, 0, client_fill(client, 0, 0, 1, 1));
        good = client_close(client) && good;
    }
    check(good, "works when its descriptors get the numbers that are passed");
    for (int i = 0; i < 8; i++) {
        if (saved[i] >= 0) {
            if (i >= 3) {
                dup2(saved[i], i);
            }
            close(saved[i]);
        }
    }
}

/* ---- dying ---- */

static bool is_lost_once(struct client *client) {
    uint64_t end_ns = gpu_wire_now_ns() + UINT64_C(20000000000);
    while (client->lost_count == 0 && gpu_wire_now_ns() < end_ns) {
        client_sleep(client, 100);
        gpu_wire_link_drain(client->link);
    }
    for (int i = 0; i < 5; i++) {
        client->link->ops->poll(client->link);
        gpu_wire_link_drain(client->link);
        client->link->ops->arm(client->link);
        client->link->ops->disarm(client->link);
    }
    return client->lost_count == 1;
}

static void crash(void) {
    struct client *client = client_open(WIRE_TRANSPORT_PROCESS);
    if (client == NULL) {
        check(false, "opens");
        return;
    }
    uint64_t good_seq = client_fill(client, 0, 0, 16, 3);
    client_wait(client, 0, good_seq);
    struct client_record out = client_record(WIRE_OP_LAUNCH, 0);
    client_set_launch(&out, KERNEL_CRASH, 1, 1);
    uint64_t seq = client_submit(client, &out, 1);
    bool is_over = client_wait_ms(client, 1, seq, 20000);
    check(!is_over && is_lost_once(client), "a kernel that crashes loses the device, once");
    /* A sanitizer in the child may turn the signal into an exit code. */
    check(strstr(client->lost_text, "SIGSEGV") != NULL ||
              (CLIENT_IS_SANITIZED && strstr(client->lost_text, "exited") != NULL),
          "the reply says how the child died");
    check(client->link->ops->publish(client->link, &out.record) == GPULUA_DEVICE_LOST,
          "publishing says that the device is lost");
    check(atomic_load(&client->link->page->state) == WIRE_STATE_LOST, "the page says so, too");
    struct pollfd entry = {.fd = client->link->poll_fd, .events = POLLIN};
    bool found = client->link->ops->arm(client->link);
    check(!found && poll(&entry, 1, 10) == 0, "once told, the dead child wakes nobody");
    client->link->ops->disarm(client->link);
    client_destroy(client);
    check(!has_children(), "no zombie is left");
    client = client_open(WIRE_TRANSPORT_PROCESS);
    check(client != NULL && client_close(client), "a newly opened device works");
}

/* Killed at many points of a program: whatever is under way, the script hears of it. */
static void killed_anywhere(void) {
    int bad_count = 0;
    for (int round = 0; round < 25; round++) {
        struct client *client = client_open(WIRE_TRANSPORT_PROCESS);
        if (client == NULL) {
            bad_count++;
            continue;
        }
        int kill_at = round * round * 3;
        for (int i = 0; i < 2000 && client->lost_count == 0; i++) {
            if (i == kill_at) {
                kill(gpu_wire_link_pid(client->link), SIGKILL);
            }
            if (i % 50 == 7) {
                struct client_record out = client_record(WIRE_OP_MEMORY_INFO, 0);
                out.record.seq = ++client->request;
                client_publish(client, &out);
            }
            uint64_t seq = client_add(client, (uint32_t)i % 4, (uint64_t)i % 4 * 100, 100, 1);
            if (i % 100 == 99) {
                client_wait_ms(client, (uint32_t)i % 4, seq, 20000);
            }
        }
        bad_count += !is_lost_once(client);
        bad_count += strstr(client->lost_text, "SIGKILL") == NULL;
        client_destroy(client);
    }
    check(bad_count == 0, "killed at 25 points: lost once each time, and said how");
    check(!has_children(), "and no zombie is left");
}

/* One whose child takes nothing. */
static struct client *open_stopped(int *pid) {
    struct client *client = client_open(WIRE_TRANSPORT_PROCESS);
    if (client == NULL) {
        check(false, "opens");
        return NULL;
    }
    *pid = gpu_wire_link_pid(client->link);
    kill(*pid, SIGSTOP);
    return client;
}

/* The ring is full and nobody empties it: publishing must come back when the child dies. */
static void killed_while_full(void) {
    int pid = 0;
    struct client *client = open_stopped(&pid);
    if (client == NULL) {
        return;
    }
    pid_t killer = fork();
    if (killer == 0) {
        usleep(300000);
        kill(pid, SIGKILL);
        _exit(0);
    }
    gpulua_status status = GPULUA_OK;
    uint64_t count = 0;
    struct client_record out = client_record(WIRE_OP_NOP, 0);
    while (status == GPULUA_OK && count < 10000000) {
        status = client_publish(client, &out);
        count++;
    }
    waitpid(killer, NULL, 0);
    check(status == GPULUA_DEVICE_LOST && count < 100000,
          "a full ring of a dead child is an error");
    check(is_lost_once(client), "which is also told");
    client_destroy(client);
}

/* A full ring that nobody empties is no reason to wait for ever: the caller hears of it, nothing is
 * published, and it goes on where it stopped. */
static void stopped_while_full(void) {
    int pid = 0;
    struct client *client = open_stopped(&pid);
    if (client == NULL) {
        return;
    }
    struct client_record out = client_record(WIRE_OP_NOP, 0);
    gpulua_status status = GPULUA_OK;
    uint64_t count = 0, start_ns = 0;
    while (status == GPULUA_OK && count < 10000000) {
        start_ns = gpu_wire_now_ns();
        status = client->link->ops->publish(client->link, &out.record);
        count += status == GPULUA_OK;
    }
    uint64_t took_ns = gpu_wire_now_ns() - start_ns;
    check(status == GPULUA_TIMEOUT && count < 100000 && took_ns < UINT64_C(10000000000),
          "a full ring of a child that does nothing is no reason to wait for ever");
    check(client->link->ops->publish(client->link, &out.record) == GPULUA_TIMEOUT,
          "nor is it the next time");
    kill(pid, SIGCONT);
    check(client_publish(client, &out) == GPULUA_OK &&
              client_wait(client, 0, client_fill(client, 0, 0, 16, 3)),
          "and goes on where it stopped");
    client_destroy(client);
}

/* An executor that answers faster than it is heard: each answer is followed by another one. */
static struct wire_ring flood;
static uint64_t flood_count;

static void flooded(void *user, const struct wire_reply *reply) {
    (void)user;
    flood_count++;
    if (flood_count < 10000000) {
        gpu_wire_ring_push(&flood, reply, reply->length_bytes);
    }
}

static void floods(void) {
    struct client *client = client_open(WIRE_TRANSPORT_PROCESS);
    if (client == NULL) {
        check(false, "opens");
        return;
    }
    client_wait(client, 0, client_fill(client, 0, 0, 16, 3));
    kill(gpu_wire_link_pid(client->link), SIGSTOP); /* this side of it answers */
    gpu_wire_ring_reply(&flood, client->link->page);
    flood.position = atomic_load(&client->link->page->reply_head);
    flood.seen = atomic_load(&client->link->page->reply_tail);
    client->link->on_reply = flooded;
    struct wire_reply reply = {.length_bytes = sizeof reply, .kind = WIRE_REPLY_RESULT, .seq = 1};
    gpu_wire_ring_push(&flood, &reply, sizeof reply);
    gpu_wire_link_drain(client->link);
    check(flood_count > 1 && flood_count <= flood.capacity_bytes / sizeof reply,
          "one that answers without end is not listened to without end");
    uint64_t before = flood_count;
    gpu_wire_link_drain(client->link);
    check(flood_count > before, "but goes on to be heard");
    client_destroy(client);
}

static void overwritten_counters(void) {
    struct client *client = client_open(WIRE_TRANSPORT_PROCESS);
    if (client == NULL) {
        check(false, "opens");
        return;
    }
    /* As a kernel gone astray could: here from our side of the mapping. */
    atomic_store(&client->link->page->reply_head, 7);
    gpu_wire_link_drain(client->link);
    check(is_lost_once(client) && strstr(client->lost_text, "wrote over") != NULL,
          "a reply ring that makes no sense ends the child");
    client_destroy(client);
    client = client_open(WIRE_TRANSPORT_PROCESS);
    if (client == NULL) {
        check(false, "opens");
        return;
    }
    atomic_store(&client->link->page->command_head, 3);
    struct client_record out = client_record(WIRE_OP_NOP, 0);
    gpu_wire_flag_wake(&client->link->page->executor_sleeps);
    check(is_lost_once(client), "so does a command ring that makes no sense");
    check(client_publish(client, &out) == GPULUA_DEVICE_LOST || client->lost_count == 1,
          "and publishing does not hang");
    client_destroy(client);
    check(!has_children(), "no zombie is left by either");
}

/* ---- closing ---- */

static bool closes_quickly(struct client *client) {
    int pid = gpu_wire_link_pid(client->link);
    uint64_t start_ns = gpu_wire_now_ns();
    client_destroy(client);
    return gpu_wire_now_ns() - start_ns < UINT64_C(5000000000) && !has_process(pid);
}

static void stopped_or_hung(void) {
    struct client *client = client_open(WIRE_TRANSPORT_PROCESS);
    if (client != NULL) {
        kill(gpu_wire_link_pid(client->link), SIGSTOP);
    }
    check(client != NULL && closes_quickly(client), "a stopped child does not outlive its link");
    client = client_open(WIRE_TRANSPORT_PROCESS);
    if (client != NULL) {
        client_fill(client, 0, 0, 1, 0);
        uint64_t seq = client_wait_flag(client, 0, 0);
        check(!client_wait_ms(client, 0, seq, 50), "a kernel that never ends");
    }
    check(client != NULL && closes_quickly(client), "does not keep its child alive");
    client = client_open(WIRE_TRANSPORT_PROCESS);
    if (client != NULL) {
        kill(gpu_wire_link_pid(client->link), SIGKILL);
        usleep(20000);
    }
    check(client != NULL && closes_quickly(client), "a child that is dead already");
    check(!has_children(), "no zombie is left by any of them");
}

static void leaks_nothing(enum wire_transport transport, const char *name) {
    int files = 0;
    int threads = 0;
    int mappings = 0;
    bool good = true;
    for (int i = 0; i < 104 && good; i++) {
        struct client *client = client_open(transport);
        good = client != NULL;
        if (client != NULL) {
            uint64_t seq = client_fill(client, 0, 0, 1000, i);
            if (i % 2) {
                good = client_wait(client, 0, seq);
            }
            if (i % 5 == 4) {
                client_destroy(client); /* without a CLOSE */
            } else {
                good = client_close(client) && good;
            }
        }
        if (i == 3) {
            files = count_entries("/proc/self/fd");
            threads = count_threads(0);
            mappings = count_lines("/proc/self/maps");
        }
    }
    int more = count_lines("/proc/self/maps") - mappings;
    char line[160];
    snprintf(line, sizeof line, "%s: opened and closed 100 times: the same descriptors and threads",
             name);
    check(good && files == count_entries("/proc/self/fd") && threads == count_threads(threads),
          line);
    snprintf(line, sizeof line, "%s: and the same mappings", name);
    if (CLIENT_IS_SANITIZED) {
        tap_skip(&tap, line, "a sanitizer maps memory of its own");
    } else {
        check(more <= 8, line); /* malloc's arenas of threads come and go */
        if (more > 8) {
            printf("# %d more\n", more);
        }
    }
    check(!has_children(), "no child is left");
}

/* ---- another one ---- */

/* The child is dead, or must die: another one takes over. */
static bool restart(struct client *client) {
    struct wire_error error = {.status = GPULUA_OK};
    struct wire_restart came;
    uint64_t end_ns = gpu_wire_now_ns() + UINT64_C(20000000000);
    client->lost_count = 0;
    if (gpu_wire_link_restart(client->link, client->seq, &came, &error) != GPULUA_OK) {
        printf("# restart: %s\n", error.message);
        return false;
    }
    while (!gpu_wire_link_is_settled(client->link)) {
        if (gpu_wire_now_ns() >= end_ns) {
            return false;
        }
        client_sleep(client, 100); /* its end makes poll_fd readable */
    }
    return came.has_begun && client_open_device(client) == GPULUA_OK;
}

static bool works(struct client *client) {
    uint64_t seq = client_fill(client, 0, 0, 16, 3);
    return client_wait(client, 0, seq) && client_read_is(client, 0, 0, 3);
}

static void restarted(void) {
    struct client *client = client_open(WIRE_TRANSPORT_PROCESS);
    if (client == NULL) {
        check(false, "opens");
        return;
    }
    bool good = works(client);
    memcpy(client->link->arena + 4096, "kept", 5);
    int fd = client->link->poll_fd, pid = gpu_wire_link_pid(client->link);
    kill(pid, SIGKILL);
    good = is_lost_once(client) && good;
    check(good && restart(client) && works(client), "another child takes over from a dead one");
    check(fd == client->link->poll_fd && gpu_wire_link_pid(client->link) != pid &&
              !has_process(pid),
          "under the same descriptor, in another process");
    check(memcmp(client->link->arena + 4096, "kept", 5) == 0, "with what was in the arena");
    check(gpu_wire_page_done(client->link->page, 1) == client->seq[1] && client->lost_count == 0,
          "words begin where they had ended");
    good = client_load_kernels(client) == GPULUA_OK &&
           client_wait(client, 1, client_fill(client, 1, 0, 1, 0)) &&
           !client_wait_ms(client, 1, client_wait_flag(client, 1, 0), 20);
    pid = gpu_wire_link_pid(client->link);
    check(good && restart(client) && works(client) && !has_process(pid),
          "and from one whose kernel runs for ever");
    /* A path that leads nowhere fails, and the next one does not. */
    int limit = 0;
    struct rlimit files, none;
    getrlimit(RLIMIT_NOFILE, &files);
    none = files;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
    struct wire_error error = {.status = GPULUA_OK};
    struct wire_restart came;
    limit = gpu_wire_link_restart(client->link, client->seq, &came, &error);
    setrlimit(RLIMIT_NOFILE, &files);
    struct client_record out = client_record(WIRE_OP_MARK, 0);
    check(limit == GPULUA_IO && error.message[0] != '\0' && !came.has_begun &&
              client->link->ops->publish(client->link, &out.record) == GPULUA_DEVICE_LOST,
          "one that cannot be started leaves the link dead");
    check(restart(client) && works(client), "until one can");
    check(client_close(client), "and it closes in good order");
    check(!has_children(), "no child is left");
    client = client_open(WIRE_TRANSPORT_THREAD);
    error.status = GPULUA_OK;
    check(client != NULL &&
              gpu_wire_link_restart(client->link, client->seq, &came, &error) ==
                  GPULUA_UNSUPPORTED &&
              gpu_wire_link_is_settled(client->link),
          "what is in this process is not replaced");
    client_destroy(client);
}

/* `count` times, of dead children and of living ones; in whatever host. */
static bool restarts_leave_nothing(int count) {
    struct client *client = client_open(WIRE_TRANSPORT_PROCESS);
    int files = 0, threads = 0;
    bool good = client != NULL;
    for (int i = 0; i < count && good; i++) {
        if (i % 2) {
            kill(gpu_wire_link_pid(client->link), SIGKILL);
        }
        if (i % 4 == 1) {
            good = is_lost_once(client);
        }
        good = restart(client) && (i % 10 || works(client)) && good;
        if (i == 3) {
            files = count_entries("/proc/self/fd");
            threads = count_threads(0);
        }
    }
    good = good && files == count_entries("/proc/self/fd") && threads == count_threads(threads);
    return client != NULL && client_close(client) && good;
}

/* ---- hosts ---- */

static void ignoring_host(void) {
    signal(SIGCHLD, SIG_IGN);
    struct client *client = client_open(WIRE_TRANSPORT_PROCESS);
    bool good = client != NULL;
    if (client != NULL) {
        good = client_wait(client, 0, client_fill(client, 0, 0, 1, 1));
        kill(gpu_wire_link_pid(client->link), SIGKILL);
        good = good && is_lost_once(client) && strstr(client->lost_text, "ended") != NULL;
        client_destroy(client);
    }
    check(good, "a host that ignores SIGCHLD");
    client = client_open(WIRE_TRANSPORT_PROCESS);
    check(client != NULL && client_close(client), "and closes in good order");
    check(restarts_leave_nothing(RESTARTS_IN_HOSTS), "children that follow each other there");
    signal(SIGCHLD, SIG_DFL);
}

static void reap_all(int number) {
    (void)number;
    int saved = errno;
    while (waitpid(-1, NULL, WNOHANG) > 0) {}
    errno = saved;
}

static void reaping_host(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = reap_all;
    sigaction(SIGCHLD, &action, NULL); /* no SA_RESTART: our calls are interrupted, too */
    bool good = true;
    for (int i = 0; i < 10; i++) {
        struct client *client = client_open(WIRE_TRANSPORT_PROCESS);
        good = client != NULL && good;
        if (client != NULL) {
            good = client_wait(client, 0, client_fill(client, 0, 0, 1, 1)) && good;
            kill(gpu_wire_link_pid(client->link), SIGKILL);
            good = is_lost_once(client) && good;
            client_destroy(client);
        }
    }
    check(good, "a host that reaps every child");
    check(restarts_leave_nothing(RESTARTS_IN_HOSTS), "also those that follow each other");
    signal(SIGCHLD, SIG_DFL);
}

/* Signals that the host blocks or ignores are not the child's. */
static void signal_mask(void) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    signal(SIGTERM, SIG_IGN);
    struct client *client = client_open(WIRE_TRANSPORT_PROCESS);
    sigprocmask(SIG_SETMASK, &before, NULL);
    bool good = client != NULL;
    if (client != NULL) {
        kill(gpu_wire_link_pid(client->link), SIGINT);
        good = client_wait(client, 0, client_fill(client, 0, 0, 1, 1));
        check(good, "the child ignores SIGINT");
        kill(gpu_wire_link_pid(client->link), SIGTERM);
        good = is_lost_once(client) && strstr(client->lost_text, "SIGTERM") != NULL;
        client_destroy(client);
    }
    signal(SIGTERM, SIG_DFL);
    check(good, "and has no other signal blocked or ignored");
}

/* A host that ends without a word, whatever the executor is doing. */
static void host_dies(bool is_hung, const char *what) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        check(false, "pipe");
        return;
    }
    pid_t host = fork();
    if (host == 0) {
        struct client *client = client_open(WIRE_TRANSPORT_PROCESS);
        int pid = client != NULL ? gpu_wire_link_pid(client->link) : 0;
        if (client != NULL && is_hung) {
            client_fill(client, 0, 0, 1, 0);
            client_wait_ms(client, 0, client_wait_flag(client, 0, 0), 30);
        }
        ssize_t rc = write(ends[1], &pid, sizeof pid);
        kill(getpid(), SIGKILL);
        _exit(rc > 0);
    }
    int pid = 0;
    ssize_t got = read(ends[0], &pid, sizeof pid);
    waitpid(host, NULL, 0);
    close(ends[0]);
    close(ends[1]);
    check(got == sizeof pid && pid != 0 && ends_within_ms(pid, 10000), what);
}

/* Little address space: a smaller arena, not a failure. */
static void little_address_space(void) {
    if (CLIENT_IS_SANITIZED) {
        tap_skip(&tap, "little address space", "a sanitizer needs more than that itself");
        return;
    }
    for (int process = 0; process < 2; process++) {
        pid_t child = fork();
        if (child == 0) {
            struct rlimit limit = {UINT64_C(6) << 30, UINT64_C(6) << 30};
            setrlimit(RLIMIT_AS, &limit);
            struct client *client =
                client_open(process ? WIRE_TRANSPORT_PROCESS : WIRE_TRANSPORT_INLINE);
            bool good = client != NULL && client->link->arena_bytes < limit.rlim_cur &&
                        client_wait(client, 0, client_fill(client, 0, 0, 1, 1)) &&
                        client_close(client);
            _exit(good ? 0 : 1);
        }
        int status = 0;
        waitpid(child, &status, 0);
        check(status == 0, process ? "6 GiB of address space: a child with a smaller arena"
                                   : "6 GiB of address space: a smaller arena");
    }
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    unusable_executors();
    started_by_hand();
    inherits_nothing();
    crowded_descriptors();
    crash();
    killed_anywhere();
    killed_while_full();
    stopped_while_full();
    floods();
    overwritten_counters();
    stopped_or_hung();
    restarted();
    check(restarts_leave_nothing(RESTARTS), "1,000 restarts: the same descriptors and threads");
    check(!has_children(), "and no zombie");
    leaks_nothing(WIRE_TRANSPORT_INLINE, "inline");
    leaks_nothing(WIRE_TRANSPORT_THREAD, "thread");
    leaks_nothing(WIRE_TRANSPORT_PROCESS, "process");
    ignoring_host();
    reaping_host();
    signal_mask();
    host_dies(false, "a host that dies takes its child with it");
    host_dies(true, "also while a kernel runs for ever");
    little_address_space();
    return tap_finish(&tap);
}
