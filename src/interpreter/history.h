/* The file in which typed chunks outlive the prompt.
 *
 * One entry a line, the oldest first; in entries a newline is \n and a backslash \\. Processes
 * share it: each writes its entries behind those of the others, under a lock of the file. What
 * cannot be read or written is left alone without a word. */
#ifndef GPU_INTERPRETER_HISTORY_H
#define GPU_INTERPRETER_HISTORY_H

#include <stddef.h>

/* So many entries are kept, of so many bytes in the file together; what is longer than an entry may
 * be is not written. A file that has grown to twice that is cut when it is next read. */
#define HISTORY_ENTRIES_MAX 1000
#define HISTORY_BYTES_MAX (1 << 20)
#define HISTORY_ENTRY_BYTES_MAX (1 << 16)

/* Finds the file: $GPULUA_HISTORY (empty: there is none), else gpulua/history in $XDG_STATE_HOME or
 * ~/.local/state, whose folders are made. Calls `each` with the entries, the oldest first. */
void history_open(void (*each)(const char *text, size_t byte_count));
/* Writes an entry. Blocks for 0.1 s at most, while another process has the lock. */
void history_add(const char *text, size_t byte_count);

#endif
