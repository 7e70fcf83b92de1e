/* The log of a C++ compiler, made into one about the user's source.
 *
 * What is compiled is not what was written: the token pass adds to it, and the shim and the table
 * of kernels stand around it. Such code has no place in a log, and neither have the folders that
 * it is in. A message is a line "FILE:LINE:COLUMN: error: TEXT", with lines that lead up to it
 * ("In function ..") and notes behind it. */
#ifndef GPU_CPU_MESSAGES_H
#define GPU_CPU_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>

/* The file that the table of kernels says it is from. */
#define CPU_TABLE_FILE "gpulua table"
/* Behind the source's name, the file that an expression the user asked for says it is from. */
#define CPU_EXPRESSION_FILE ": name '"

struct cpu_messages_info {
    const char *log;
    const char *name;        /* of the source: the place of what has none in it */
    const char *shim_folder; /* begins the names of our own files */
    bool is_rewritten; /* the text had gone through the token pass: columns are not the user's */
    /* Another log of the same source, or NULL: only errors on lines where that has some, too. */
    const char *confirmed_by;
};
/* Malloc'ed; without a single error in it where all were ours. NULL: no memory. */
char *gpu_cpu_messages_translate(const struct cpu_messages_info *info);

/* Is one of its errors at a line of the user's? */
bool gpu_cpu_messages_about_source(const struct cpu_messages_info *info);

/* The first line that is about an error, or else the first; not NUL-terminated. */
const char *gpu_cpu_messages_first(const char *log, size_t *length);
/* Is there an error in it? */
bool gpu_cpu_messages_failed(const char *log);

#endif
