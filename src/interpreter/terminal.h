/* The terminal while a line is edited: its mode, which comes back however the program ends, and the
 * signals that keys send. They come in while somebody waits for a key and while tasks run, and at
 * no other time, so that libedit is never interrupted. */
#ifndef GPU_INTERPRETER_TERMINAL_H
#define GPU_INTERPRETER_TERMINAL_H

#include <signal.h>

/* What has come in; whoever sees it clears it. */
struct terminal_events {
    volatile sig_atomic_t interrupted, resized, stopped, continued;
};
extern struct terminal_events terminal_events;

/* From here on the mode is not the program's own, and signals are events. */
void terminal_enter(void);
void terminal_leave(void);
/* Signals that may come in while somebody waits: for ppoll. */
const sigset_t *terminal_waiting(void);
/* Tasks run between these. Ctrl-C interrupts one that keeps the prompt waiting. */
void terminal_tasks_begin(void);
void terminal_tasks_end(void);
/* Stops the program as Ctrl-Z would. Returns when it goes on. */
void terminal_stop(void);

#endif
