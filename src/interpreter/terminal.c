#include "interpreter/terminal.h"

#include <stdbool.h>
#include <stdlib.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "interpreter/program.h"

/* A task that runs for longer is what Ctrl-C is about, and not the line. */
#define TASK_LONG_MS 200

/* What ends the program: the mode is put back first. */
static const int ends[] = {SIGHUP, SIGTERM, SIGQUIT, SIGABRT, SIGSEGV,
                           SIGBUS, SIGFPE,  SIGILL,  SIGTRAP, SIGSYS};
static const int events[] = {SIGINT, SIGWINCH, SIGTSTP, SIGCONT};
#define END_COUNT (sizeof ends / sizeof ends[0])
#define EVENT_COUNT (sizeof events / sizeof events[0])

struct terminal_events terminal_events;

static struct {
    volatile sig_atomic_t is_entered;
    volatile sig_atomic_t runs_tasks;
    struct timespec began; /* of those */
    struct termios mode;   /* the program's own */
    sigset_t mask;         /* the same */
    struct sigaction ends[END_COUNT], events[EVENT_COUNT];
} outer;

/* ---- handlers ---- */

static bool task_takes_long(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - outer.began.tv_sec) * 1000 +
               (now.tv_nsec - outer.began.tv_nsec) / 1000000 >=
           TASK_LONG_MS;
}

static void on_event(int number) {
    switch (number) {
    case SIGINT:
        if (outer.runs_tasks && task_takes_long()) {
            gpulua_interrupt(program.g);
            clock_gettime(CLOCK_MONOTONIC, &outer.began); /* who runs next has time of its own */
        } else {
            terminal_events.interrupted = 1;
        }
        break;
    case SIGWINCH:
        terminal_events.resized = 1;
        break;
    case SIGTSTP:
        terminal_events.stopped = 1;
        break;
    default:
        terminal_events.continued = 1;
        break;
    }
}

static void put_mode_back(void) {
    if (outer.is_entered) {
        outer.is_entered = 0;
        tcsetattr(STDIN_FILENO, TCSANOW, &outer.mode);
    }
}

static void on_end(int number) {
    put_mode_back();
    for (size_t i = 0; i < END_COUNT; i++) {
        if (ends[i] == number) {
            sigaction(number, &outer.ends[i], NULL);
        }
    }
    raise(number); /* it comes when this handler returns */
}

/* ---- in and out ---- */

static void take(int number, void (*handler)(int), struct sigaction *before) {
    struct sigaction action = {.sa_handler = handler};
    sigemptyset(&action.sa_mask);
    sigaction(number, NULL, before);
    if (before->sa_handler != SIG_IGN || number == SIGINT) {
        sigaction(number, &action, NULL);
    }
}

void terminal_enter(void) {
    static bool is_registered;
    sigset_t blocked;
    if (!is_registered) {
        is_registered = atexit(put_mode_back) == 0;
    }
    terminal_events = (struct terminal_events){0};
    tcgetattr(STDIN_FILENO, &outer.mode);
    sigemptyset(&blocked);
    for (size_t i = 0; i < EVENT_COUNT; i++) {
        sigaddset(&blocked, events[i]);
    }
    sigprocmask(SIG_BLOCK, &blocked, &outer.mask);
    for (size_t i = 0; i < EVENT_COUNT; i++) {
        take(events[i], on_event, &outer.events[i]);
    }
    outer.is_entered = 1;
    for (size_t i = 0; i < END_COUNT; i++) {
        take(ends[i], on_end, &outer.ends[i]);
    }
}

void terminal_leave(void) {
    put_mode_back();
    for (size_t i = 0; i < END_COUNT; i++) {
        sigaction(ends[i], &outer.ends[i], NULL);
    }
    for (size_t i = 0; i < EVENT_COUNT; i++) {
        sigaction(events[i], &outer.events[i], NULL);
    }
    sigprocmask(SIG_SETMASK, &outer.mask, NULL);
}

const sigset_t *terminal_waiting(void) {
    return &outer.mask;
}

void terminal_tasks_begin(void) {
    clock_gettime(CLOCK_MONOTONIC, &outer.began);
    outer.runs_tasks = 1;
    sigprocmask(SIG_SETMASK, &outer.mask, NULL);
}

void terminal_tasks_end(void) {
    sigset_t blocked;
    sigemptyset(&blocked);
    for (size_t i = 0; i < EVENT_COUNT; i++) {
        sigaddset(&blocked, events[i]);
    }
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    outer.runs_tasks = 0;
}

void terminal_stop(void) {
    struct sigaction now, usual = {.sa_handler = SIG_DFL};
    sigset_t stop, go_on;
    sigemptyset(&usual.sa_mask);
    sigaction(SIGTSTP, &usual, &now);
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &stop, NULL); /* here it stops */
    sigprocmask(SIG_BLOCK, &stop, NULL);
    sigaction(SIGTSTP, &now, NULL);
    sigemptyset(&go_on);
    sigaddset(&go_on, SIGCONT);
    (void)sigtimedwait(&go_on, NULL, &(struct timespec){0}); /* that is no news */
    terminal_events.stopped = 0;
}
