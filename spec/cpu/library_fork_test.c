/* Forks of a process that has libraries, by several of its threads at once, while others call. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cpu/library.h"
#include "backend/tap.h"

enum { LIBRARIES = 3, FORKERS = 3, FORKS = 200 };

static struct tap tap;
static atomic_int calls_count, forks_count, wrong_count;
static atomic_bool is_over;

static void *call(void *user) {
    (void)user;
    while (!atomic_load(&is_over)) {
        gpu_cpu_library_enter();
        atomic_fetch_add(&calls_count, 1);
        usleep(20);
        atomic_fetch_sub(&calls_count, 1);
        gpu_cpu_library_leave();
    }
    return NULL;
}

/* Behind ours in front of a fork, as a library's own that stops its threads. */
static void look(void) {
    atomic_fetch_add(&wrong_count, atomic_load(&calls_count) != 0);
}

static void *fork_often(void *user) {
    (void)user;
    for (int i = 0; i < FORKS; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            gpu_cpu_library_enter();
            gpu_cpu_library_leave();
            _exit(0);
        }
        int status = -1;
        atomic_fetch_add(&forks_count, pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    }
    return NULL;
}

int main(void) {
    static const char *const names[] = {"libm.so.6", NULL};
    pthread_t callers[2], forkers[FORKERS];
    struct backend_error error = {0};
    bool is_there = pthread_atfork(look, NULL, NULL) == 0;
    void *library = NULL;
    for (int i = 0; i < LIBRARIES; i++) {
        is_there = is_there && gpu_cpu_library_load("GPULUA_NO_LIBRARY", names, "libm", &library,
                                                    &error) == GPULUA_OK;
    }
    tap_check(&tap, is_there, "libraries are there");
    alarm(120); /* for a fork or a call that never comes back */
    for (int i = 0; i < 2; i++) {
        (void)pthread_create(&callers[i], NULL, call, NULL);
    }
    for (int i = 0; i < FORKERS; i++) {
        (void)pthread_create(&forkers[i], NULL, fork_often, NULL);
    }
    for (int i = 0; i < FORKERS; i++) {
        pthread_join(forkers[i], NULL);
    }
    atomic_store(&is_over, true);
    for (int i = 0; i < 2; i++) {
        pthread_join(callers[i], NULL);
    }
    tap_check(&tap, forks_count == FORKERS * FORKS, "threads that fork at once all come back");
    tap_check(&tap, wrong_count == 0, "and in front of none of the forks is a call under way");
    return tap_finish(&tap);
}
