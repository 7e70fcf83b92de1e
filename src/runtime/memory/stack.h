/* What the resources have in common, for the files of runtime/memory/ and those that hold blocks.
 */
#ifndef GPU_RUNTIME_MEMORY_STACK_H
#define GPU_RUNTIME_MEMORY_STACK_H

#include "runtime/state.h"

struct gpu_memory_request {
    uint64_t byte_count;  /* a multiple of GPU_RANGE_ALIGN_BYTES */
    uint64_t asked_bytes; /* of those its user knows */
    uint64_t number;      /* of the allocation */
    const char *label;    /* or NULL */
    struct gpu_site site;
    struct gpu_stream *stream;     /* borrowed; NULL: the first task stream */
    void (*collect)(void *caller); /* a full collection of garbage; NULL: there is none */
    void *caller;
    bool is_reserved;  /* the budgets have its bytes already: for one try, also if that fails */
    bool is_collected; /* garbage has been collected for it */
    bool is_injected;  /* the first policy finds no memory below, once */
    bool is_on_stream; /* answer: stream-ordered, its first uses come behind the stream's work */
};

struct gpu_memory_ops {
    const char *kind;
    gpulua_status (*allocate)(struct gpu_memory *memory, struct gpu_memory_request *request,
                              struct gpu_grant *grant, struct gpu_error *error);
    /* All uses of it are over. Never blocks. `block` is whose it was: for its names alone. */
    void (*deallocate)(struct gpu_memory *memory, struct gpu_grant *grant,
                       const struct gpu_block *block);
    /* NULL: it holds nothing back. May block; called from calls that make or look at memory only.
     */
    uint64_t (*reap)(struct gpu_memory *memory, bool is_urgent);
    /* The device is lost, and with it what is in its memory: gives back what it holds back, without
     * a look. NULL: nothing. */
    void (*lose)(struct gpu_memory *memory);
    /* At the bottom, when the device comes up again: what grants that are there still lie in, or
     * this grant, is asked for anew, under the same numbers. NULL: there is nothing to ask for. */
    void (*restore)(struct gpu_memory *memory);
    void (*restore_grant)(struct gpu_memory *memory, const struct gpu_grant *grant);
    /* Frees what it owns, and gives back what it holds. Never blocks. NULL: nothing. */
    void (*finish)(struct gpu_memory *memory);
    /* What a request for so many bytes asks of the resource below. NULL: as many. */
    uint64_t (*below_bytes)(const struct gpu_memory *memory, uint64_t byte_count);
};

struct gpu_memory {
    const struct gpu_memory_ops *ops;
    enum gpu_memory_kind kind;
    uint32_t refs, depth;
    bool is_trackable, is_deferred;
    bool is_own;                 /* the device's: it does not retain it */
    struct gpu_device *device;   /* retained, unless is_own */
    const struct gpu_seat *seat; /* of a shared device: who made it. Compared alone */
    struct gpu_memory *upstream; /* retained; NULL: at the bottom */
    uint64_t outstanding_bytes, outstanding_count;
    uint64_t retiring_bytes;         /* of those: freed, and perhaps in use */
    struct gpu_memory *next, **link; /* of the device */
    struct gpu_deferred release;
};

/* Does somebody do something about it where there is no memory? */
bool gpu_memory_has_policy(const struct gpu_memory *memory);
gpulua_status gpu_memory_fail_injected(const struct gpu_memory_request *request,
                                       struct gpu_error *error);

/* One step down the stack. */
static inline gpulua_status gpu_memory_allocate(struct gpu_memory *memory,
                                                struct gpu_memory_request *request,
                                                struct gpu_grant *grant, struct gpu_error *error) {
    gpulua_status status = memory->ops->allocate(memory, request, grant, error);
    if (status == GPULUA_OK) {
        memory->outstanding_bytes += grant->byte_count;
        memory->outstanding_count++;
    }
    return status;
}
static inline void gpu_memory_deallocate(struct gpu_memory *memory, struct gpu_grant *grant,
                                         const struct gpu_block *block) {
    memory->outstanding_bytes -= grant->byte_count;
    memory->outstanding_count--;
    memory->ops->deallocate(memory, grant, block);
}

/* The same, once all that `stream` has been given is over; NULL: there is no such stream. Never
 * blocks. Returns the bytes that are back now. */
uint64_t gpu_grant_give(struct gpu_memory *memory, struct gpu_grant *grant,
                        const struct gpu_block *name, const struct gpu_stream *stream);

/* Those of the device: its slabs, and the arena. False: no memory. */
bool gpu_memory_open(struct gpu_device *device);
/* What all resources do then. */
void gpu_memories_lose(struct gpu_device *device);
void gpu_memories_restore(struct gpu_device *device);
/* At the close of the device, when nothing is in flight any more: forgets all memory. */
void gpu_memory_close(struct gpu_device *device);

/* The sizes of the structs that begin with a struct gpu_memory, and their tables. */
struct gpu_memory_class {
    const struct gpu_memory_ops *ops;
    size_t bytes;
    /* What the info says. NULL: nothing is wanted. */
    gpulua_status (*init)(struct gpu_memory *memory, const struct gpu_memory_info *info,
                          struct gpu_error *error);
    bool is_bottom;
};
extern const struct gpu_memory_class gpu_memory_slab_class, gpu_memory_driver_class,
    gpu_memory_direct_class, gpu_memory_budget_class, gpu_memory_statistics_class,
    gpu_memory_logging_class, gpu_memory_guard_class, gpu_memory_policy_class,
    gpu_memory_pinned_class, gpu_memory_external_class;
/* Tells the spare of the arena, as far as it does not know. */
void gpu_memory_pinned_tell(struct gpu_memory *pinned);

/* Everything that garbage, finished work and quarantines hold comes free; garbage is collected once
 * for a request. What collects it may run anything, also what closes the device: Closed. */
gpulua_status gpu_memory_recover(struct gpu_device *device, struct gpu_memory_request *request,
                                 struct gpu_error *error);
/* Behind OutOfMemory: with all that comes free so, and if it may wait, with what is freed but in
 * use; then with what graphs have on the device, one after the other, waiting for each at most so
 * long (negative: until it is over). A recovery only if it works. */
gpulua_status gpu_memory_try_again(struct gpu_memory *memory, struct gpu_memory_request *request,
                                   bool may_wait, struct gpu_grant *grant, struct gpu_error *error);
gpulua_status gpu_memory_try_evicting(struct gpu_memory *memory, struct gpu_memory_request *request,
                                      int64_t patience_ns, struct gpu_grant *grant,
                                      struct gpu_error *error);
/* Does a wait for memory end? Interrupted, Timeout; `what` it is, as "waiting for memory". */
gpulua_status gpu_memory_check_wait(struct gpu_device *device, const char *what,
                                    struct gpu_error *error);
/* Has the device's budget no room for so many bytes, even without graphs and what is freed but in
 * use? */
bool gpu_device_lacks_room(const struct gpu_device *device, uint64_t byte_count);
/* The oldest retiring block's last use is over; false: nothing retires. May block. */
bool gpu_device_wait_retiring(struct gpu_device *device, struct gpu_error *error,
                              gpulua_status *status);

/* ---- slab.c ---- */
gpulua_status gpu_slab_number_take(struct gpu_device *device, uint32_t *number,
                                   struct gpu_error *error);
/* Memory under a number of its own, which is then in record->object. Blocks. */
gpulua_status gpu_slab_ask(struct gpu_device *device, struct wire_record *record, const char *label,
                           struct gpu_error *error);
/* Ends the slab, if the executor has made it: also where asking for it failed, because then the
 * answer may have been lost on this side. */
void gpu_slab_number_give(struct gpu_device *device, uint32_t number);
/* Wholly free slabs go back to the driver; returns bytes. */
uint64_t gpu_slabs_trim(struct gpu_memory *memory);

/* ---- external.c ---- */
/* No work runs any more: the owners of all that was imported get it back. */
void gpu_imports_return(struct gpu_device *device);
/* Those of all that is in the list, at once. */
void gpu_imports_end(struct gpu_import **list);
/* Into another list. */
void gpu_import_leave(struct gpu_import *import, struct gpu_import **list);

/* ---- driver.c ---- */
/* The driver's pool gives back what it keeps. */
void gpu_driver_trim(struct gpu_device *device);

/* ---- budget.c ---- */

/* Room in an account, checked and reserved in one step. More than all of it is OutOfBudget at once;
 * what does not fit now is asked for once more when garbage is collected, finished work is reaped
 * and what is freed but in use has ended. `retiring_bytes`: how much of what is used is freed. */
gpulua_status gpu_account_reserve(struct gpu_account *account, const uint64_t *retiring_bytes,
                                  struct gpu_device *device, struct gpu_memory_request *request,
                                  uint64_t byte_count, struct gpu_error *error);
void gpu_account_release(struct gpu_account *account, uint64_t byte_count);
void gpu_account_init(struct gpu_account *account, uint64_t limit_bytes);
void gpu_account_finish(struct gpu_account *account);
/* On a shared device: calls the seat's listeners whose level has changed; or, when it leaves,
 * forgets all of its listeners. */
void gpu_accounts_tell(struct gpu_device *device, const struct gpu_seat *seat, bool is_leaving);
/* More than any budget may have: OutOfBudget, of the nearest one that the memory stands on. */
gpulua_status gpu_memory_refuse(const struct gpu_memory *memory, uint64_t byte_count,
                                const char *label, struct gpu_error *error);

/* What every resource at the bottom does first and last: the device's budget. */
static inline gpulua_status gpu_device_reserve(struct gpu_device *device,
                                               struct gpu_memory_request *request,
                                               struct gpu_error *error) {
    if (request->is_reserved) {
        request->is_reserved = false;
        return GPULUA_OK;
    }
    return gpu_account_reserve(&device->account, &device->stats.bytes_pending, device, request,
                               request->byte_count, error);
}
static inline uint64_t gpu_memory_below_bytes(const struct gpu_memory *memory,
                                              uint64_t byte_count) {
    return memory->ops->below_bytes ? memory->ops->below_bytes(memory, byte_count) : byte_count;
}

#endif
