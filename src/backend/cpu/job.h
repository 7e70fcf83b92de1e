/* Inside compiling (see compile.c): one source on its way to a module. Each file has one of its
 * jobs:
 *   compile.c  the steps, the cache, the image
 *   options.c  the options that a script gives
 *   command.c  the compiler's commands, and what is made of its log
 *   table.c    the table behind the text, and the description that is read from it */
#ifndef GPU_CPU_JOB_H
#define GPU_CPU_JOB_H

#include "backend/cpu/compile.h"
#include "backend/cpu/module.h"
#include "backend/cpu/rewrite.h"
#include "backend/text.h"

#define CPU_ARGUMENTS_MAX 256

struct job {
    const struct backend_source *source;
    struct backend_error *error;
    struct cpu_compiler compiler;
    char folder[CPU_PATH_BYTES]; /* where compilers write: the cache's, or one of its own */
    bool has_own_folder;
    char shim_folder[CPU_PATH_BYTES]; /* in it */
    int shim_hold; /* owned: descriptor that keeps the folder in the cache; -1: none */
    char **names;  /* owned: name expressions */
    size_t name_count;
    char **macros; /* owned: -D, -U, -I, for preprocessing */
    size_t macro_count;
    char **flags; /* owned: other flags */
    size_t flag_count;
    const char *standard;             /* -std=... */
    const char *contract;             /* -ffp-contract=... */
    bool is_checked;                  /* for check mode: with access instrumentation */
    bool is_device_default;           /* -default-device */
    bool reads_files;                 /* the source includes something, or a flag may */
    char header[CPU_PATH_BYTES + 32]; /* the shim; "" until it was needed */
    char precompiled[CPU_PATH_BYTES + 256];
    bool has_precompiled;
    char hooks[CPU_PATH_BYTES + 260]; /* check mode's, as an object; "": none, or not yet */
    bool is_made_anew;                /* one of them was damaged */
    struct cpu_source rewritten;
};

/* ---- compile.c ---- */

gpulua_status gpu_cpu_out_of_memory(struct job *job);
/* The first error for the message, all in the log, which is taken over; NULL: no memory for one. */
gpulua_status gpu_cpu_compile_failed(struct job *job, char *log);

/* ---- options.c ---- */

gpulua_status gpu_cpu_options_read(struct job *job);
/* Frees what the job owns, its folder with it. */
void gpu_cpu_job_finish(struct job *job);

/* ---- command.c ---- */

/* What code is compiled with, by either compiler: which of them it is need not be known yet. */
void gpu_cpu_flags_add(struct job *job, struct text *text);
/* The source with its macros expanded, malloc'ed. */
gpulua_status gpu_cpu_preprocess(struct job *job, char **preprocessed);
/* Rewritten text to a shared object. Of a compiler that fails, COMPILE_FAILED and its log. */
gpulua_status gpu_cpu_compile_text(struct job *job, const struct text *text, void **code,
                                   size_t *code_bytes, char **log);
/* A log for the user, malloc'ed, from that of the rewritten text: where the source as written is
 * wrong on the same lines, what the compiler says of that; it has the user's columns and types. */
char *gpu_cpu_log_choose(struct job *job, const char *rewritten);

/* ---- table.c ---- */

/* As a string literal's inside. */
void gpu_cpu_quoted_add(struct text *text, const char *string);
/* The table of kernels and variables behind the rewritten text. */
size_t gpu_cpu_table_add(struct job *job, struct text *text);
/* The name expressions behind the source as it was written. */
void gpu_cpu_expressions_add(struct job *job, struct text *text);
/* What the loaded table says, as module_compile has to (backend.h). */
void gpu_cpu_describe(struct job *job, const struct cpu_module_table *table, struct text *text);

#endif
