/* Starting gpulua-exec: what the parent passes and the child takes over. */
#ifndef GPU_WIRE_SPAWN_H
#define GPU_WIRE_SPAWN_H

#include <stdint.h>

#include "wire/link.h"

/* The child finds its descriptors at these numbers; everything above is closed. */
enum { SPAWN_FD_PAGE = 3, SPAWN_FD_ARENA = 4, SPAWN_FD_EVENT = 5, SPAWN_FD_CONTROL = 6 };
#define SPAWN_FD_FIRST 3
#define SPAWN_FD_COUNT 4
#define SPAWN_ARGUMENT "--link" /* argv[1]: started by gpulua, not by hand */

/* First message on the control socket, parent to child. Sent when the parent holds a pidfd: the
 * child is then known to be the one that answers. The child lives until the socket is closed. */
struct spawn_hello {
    uint32_t magic;       /* WIRE_PAGE_MAGIC */
    uint32_t is_confined; /* it is to run what nobody trusts (executor/confine.h) */
    uint64_t arena_bytes;
};

/* The child's answer: it takes records, or why not. */
struct spawn_answer {
    uint32_t magic;
    int32_t status; /* gpulua_status */
    char text[256];
};

struct spawn_child {
    int pid;
    int pidfd;      /* owned */
    int control_fd; /* owned; closing it ends the child */
};

/* Starts it with the three descriptors (borrowed). Whether it takes records is not known yet. */
gpulua_status gpu_wire_spawn(const struct wire_program *program, int page_fd, int arena_fd,
                             int event_fd, uint64_t arena_bytes, struct spawn_child *child,
                             struct wire_error *error);

/* Blocks until the child takes records, has died, has been silent for too long, or `*interrupt` is
 * not 0 (NULL: nobody interrupts): then it fails, and the child has to be ended. To be called once.
 */
#define SPAWN_PATIENCE_MS 30000
gpulua_status gpu_wire_spawn_await(const char *path, const struct spawn_child *child,
                                   int patience_ms, const _Atomic int *interrupt,
                                   struct wire_error *error);

/* Does it have something to say by then: its answer, or its end? For one that is not waited for. */
bool gpu_wire_spawn_has_begun(const struct spawn_child *child, int patience_ms);

/* Ends the child and reaps it. `grace_ms`: how long it may take to end by itself first. Closes what
 * `child` owns. */
void gpu_wire_spawn_end(struct spawn_child *child, int grace_ms);

/* Has the child died? Never blocks. */
bool gpu_wire_spawn_is_dead(const struct spawn_child *child);

/* Reaps a dead child and says how it died, in words. */
void gpu_wire_spawn_reap(const struct spawn_child *child, char *text, uint32_t text_bytes);

#endif
