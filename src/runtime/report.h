/* Reports of kernels with a gpulua_ctx: what failed in a launch, as the device wrote it into memory
 * of the host. */
#ifndef GPU_RUNTIME_REPORT_H
#define GPU_RUNTIME_REPORT_H

#include "runtime/state.h"

#define GPU_REPORT_NEEDS_MAX 4u
/* What a kernel gets for its last parameter, with wire addresses, 0 for none.
 * kernel/gpulua_kernel.h has the same with pointers. */
struct gpu_report_context {
    uint64_t report;
    struct gpu_report_need {
        uint64_t word, number;
    } own, whole, needs[GPU_REPORT_NEEDS_MAX];
};
#define GPU_REPORT_RELOCS_MAX (3u + GPU_REPORT_NEEDS_MAX)
#define GPU_REPORT_CONTEXT_NAME "gpulua_ctx"

struct gpu_report;

/* Whose it is. */
struct gpu_report_of {
    const char *source; /* interned: of the kernel */
    const char *label;  /* of a graph's node; interned. NULL: the operation's own */
    struct gpu_site site;
};

/* A new one with nothing in it, for the caller to release. */
gpulua_status gpu_report_take(struct gpu_device *device, const struct gpu_report_of *of,
                              struct gpu_report **report, struct gpu_error *error);
/* An operation of several launches has a list of them, of which the first is what others that
 * depend on the operation look at. */
void gpu_report_link(struct gpu_report *report, struct gpu_report *next);
/* So that the first launch finds memory: when a kernel is made that reports. */
gpulua_status gpu_reports_prepare(struct gpu_device *device, struct gpu_error *error);
struct gpu_report *gpu_report_retain(struct gpu_report *report);
void gpu_report_release(struct gpu_report *report);  /* NULL: nothing */
void gpu_reports_release(struct gpu_report *report); /* and those behind it */
/* What the kernel of `report` gets, that depends on these. `whole`: of the graph that it is in;
 * NULL: of none, or alone there. */
void gpu_report_context(const struct gpu_report *report, const struct gpu_report *whole,
                        struct gpu_report *const *needs, uint32_t need_count,
                        struct gpu_report_context *context);
/* The offsets of its addresses; returns how many. What is not there is 0, and stays that. */
uint32_t gpu_report_relocs(uint32_t need_count, uint16_t relocs[GPU_REPORT_RELOCS_MAX]);

/* The operation is one that these launches may fail: it retains what its dependencies have, and
 * `report` and those behind it, which are its own (or NULL). */
void gpu_report_attach(struct gpu_op *op, const struct gpu_waits *waits, struct gpu_report *report);
/* The reports, at most GPU_REPORT_NEEDS_MAX, borrowed, that work with these waits depends on. More
 * are left out: then a kernel runs that could have skipped itself. */
uint32_t gpu_report_needs(const struct gpu_device *device, const struct gpu_waits *waits,
                          struct gpu_report *needs[GPU_REPORT_NEEDS_MAX]);
/* The operation is over, or was never submitted. */
void gpu_report_detach(struct gpu_op *op);

/* Fails each operation whose kernel has reported something, and what depends on it. */
void gpu_reports_look(struct gpu_device *device);
void gpu_reports_close(struct gpu_device *device); /* nothing is pending any more */

#endif
