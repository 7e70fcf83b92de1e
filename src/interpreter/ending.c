/* SIGTERM and SIGHUP where a trace or a flight is written at the end: it is, and then the program
 * ends by the signal. A script hears of it as of Ctrl-C, but cannot go on: one that catches what it
 * hears for ever is left where it is. */
#include <string.h>
#include <unistd.h>

#include "interpreter/program.h"

/* What runs for longer ends where it is interrupted next; and what is interrupted nowhere, as in a
 * C function, is cut off, and what is written with it: who sends the signal kills within 10, often.
 */
#define SCRIPT_SECONDS 4
#define CALL_SECONDS 5
#define CLOSE_SECONDS 2 /* a kernel may never end */

static const int ends[] = {SIGTERM, SIGHUP};
#define END_COUNT (sizeof ends / sizeof *ends)

static volatile sig_atomic_t seconds, is_script_over, is_closing;
static bool is_taken[END_COUNT];

static void end_by(int number) {
    signal(number, SIG_DFL);
    raise(number);
    _exit(128 + number); /* the first process of a container does not die of it */
}

static void on_second(int number) {
    static const char text[] = ": the script does not end, and nothing of it is written\n";
    (void)number;
    seconds++;
    if (!is_script_over && !program.is_left && seconds >= CALL_SECONDS) {
        ssize_t put = write(STDERR_FILENO, program.name, strlen(program.name));
        put = put < 0 ? put : write(STDERR_FILENO, text, sizeof text - 1);
        end_by(program.end_signal);
    }
    if (is_closing) {
        end_by(program.end_signal);
    }
    if (!is_script_over && !program.is_left) {
        gpulua_interrupt(program.g); /* the one before was caught */
        alarm(1);
    }
}

/* timeout(1) and shells send it twice at once: what comes a second later is meant. */
static void on_end(int number) {
    if (program.end_signal) {
        if (seconds > 0) {
            signal(number, SIG_DFL);
            raise(number); /* it comes when this handler returns */
        }
        return;
    }
    program.end_signal = number;
    program.was_interrupted = 1;
    signal(SIGPIPE, SIG_IGN); /* who read what the program says may have ended, too */
    signal(SIGALRM, on_second);
    alarm(1);
    if (!is_script_over) {
        gpulua_interrupt(program.g);
    }
}

void ending_take_signals(void) {
    for (size_t i = 0; i < END_COUNT; i++) {
        struct sigaction before;
        is_taken[i] = sigaction(ends[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL &&
                      signal(ends[i], on_end) != SIG_ERR;
    }
}

void ending_leave_signals(void) {
    for (size_t i = 0; i < END_COUNT; i++) {
        struct sigaction now;
        if (is_taken[i] && sigaction(ends[i], NULL, &now) == 0 && now.sa_handler == on_end) {
            signal(ends[i], SIG_DFL);
        }
        is_taken[i] = false;
    }
}

bool ending_is_overdue(void) {
    return program.end_signal && !is_script_over && seconds >= SCRIPT_SECONDS;
}

bool ending_is_due(void) {
    return program.end_signal && seconds > 0;
}

void ending_begin(void) {
    if (program.end_signal) {
        gpulua_step(program.g, 0); /* takes an interrupt that nobody has taken */
    }
    is_script_over = 1;
}

bool ending_close(void) {
    ending_leave_signals();
    if (program.end_signal) {
        fflush(NULL);
        is_closing = 1;
        alarm(CLOSE_SECONDS);
    }
    return program.end_signal != 0;
}

void ending_finish(void) {
    if (program.end_signal) {
        fflush(NULL);
        end_by(program.end_signal);
    }
}
