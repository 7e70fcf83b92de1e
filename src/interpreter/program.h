/* What the files of the interpreter share: the program, and how chunks run. */
#ifndef GPU_INTERPRETER_PROGRAM_H
#define GPU_INTERPRETER_PROGRAM_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

#include <lua.h>

#include "gpulua.h"

struct program {
    const char *name;  /* of the program, in front of messages */
    gpulua *g;         /* for the signal handler */
    bool has_reported; /* an error that no task got */
    bool is_closing;
    bool line_is_open;            /* one of progress, on standard error */
    bool keeps_flight;            /* --flight, or GPULUA_FLIGHT */
    const char *trace, *timeline; /* --trace, --timeline; NULL: none */
    bool summarizes;              /* --summary */
    bool checks;                  /* --check */
    volatile sig_atomic_t was_interrupted;
    volatile sig_atomic_t is_left;    /* the script, in the middle of what it does */
    volatile sig_atomic_t end_signal; /* SIGTERM or SIGHUP, where they are taken; 0: none came */
};
extern struct program program;

/* Writes to stdout or stderr; on a terminal without control characters (but newlines and tabs),
 * which might be commands for it. */
void program_put(FILE *stream, const char *text, size_t byte_count);
/* A line on standard error, behind the name if there is one. */
void program_say(const char *name, const char *message);

/* ---- chunk.c: chunks as tasks ---- */

/* Runs tasks until `task` (an index; 0: all of them) is over. */
void chunk_run_tasks(lua_State *L, int task);
/* Stack: chunk, `arg_count` arguments. Replaces them with true and the results, or with false and a
 * message. Returns how many there are behind the boolean; -1: failed. */
int chunk_run(lua_State *L, int arg_count);
/* The same for what is typed: tasks that it has spawned go on when it is over, and Ctrl-C is not
 * for them. */
int chunk_run_typed(lua_State *L, int arg_count);
/* Status of loading on top of a chunk or a message: runs it without results. False: it failed,
 * which has been said; so below. */
bool chunk_do(lua_State *L, int status, int arg_count);
bool chunk_do_string(lua_State *L, const char *text, const char *name);
bool chunk_do_file(lua_State *L, const char *path); /* NULL: standard input */
/* Requires "mod", or "global=mod", into a global. */
bool chunk_do_library(lua_State *L, const char *text);

/* ---- ending.c: SIGTERM and SIGHUP, where something is written at the end ---- */

/* From here on one of them ends the script, is kept in program.end_signal, and interrupts nothing
 * that is written at the end. Those that are ignored stay so. */
void ending_take_signals(void);
/* From here on they are as usual. What is another handler's by now is its own. */
void ending_leave_signals(void);
/* One has come, and the script has had time to end by itself. */
bool ending_is_due(void);
/* And so much of it that it goes on no further from where it is interrupted. */
bool ending_is_overdue(void);
/* What is written at the end follows. */
void ending_begin(void);
/* What closes the devices follows, which is given a limited time if one has come. Whether it has.
 */
bool ending_close(void);
/* Ends the program by the one that has come. */
void ending_finish(void);

/* ---- output.c ---- */

/* Of a state whose libraries are open, before a script has seen them. */
void output_take_over(lua_State *L);

/* ---- interactive.c ---- */

/* Reads lines and runs them until the input ends. */
void interactive_run(lua_State *L);

#endif
