/* The structs behind shared devices (share.h): a part of state.h. */
#ifndef GPU_RUNTIME_SEAT_H
#define GPU_RUNTIME_SEAT_H

#include <pthread.h>

#include "runtime/fork.h"
#include "runtime/op.h"

struct gpu_import;

/* One object's place at a shared device (share.h). */
struct gpu_seat {
    struct gpu_device *device; /* retained */
    struct gpu_seat *next;
    uint64_t share_number;
    uint32_t number;               /* given out once; UINT32_MAX: of nobody */
    const _Atomic int *interrupt;  /* borrowed; NULL: none */
    const struct gpu_tasks *tasks; /* borrowed; NULL: none */
    int event_fd;                  /* owned: readable when somebody else's call woke it */
    bool is_asleep, is_napping;    /* armed; and it is a call that sleeps, not a loop */
    bool is_woken;                 /* event_fd is readable */
    bool is_pressed;               /* listeners of it are due */
    struct gpu_waiter *fired;      /* whose operations have ended, in that order */
    struct gpu_waiter **fired_end; /* where the next one goes; unless there are none */
};
struct gpu_share {
    struct gpu_fork fork;
    pthread_mutex_t mutex;
    _Atomic uintptr_t owner;   /* the thread that holds it; 0: nobody does */
    uint32_t depth;            /* how often */
    struct gpu_device *device; /* NULL: destroyed */
    uint64_t number;           /* given out once */
    struct gpu_seat *seats, *spare;
    uint32_t seat_number_next;
    uint32_t asleep_count;
    struct gpu_import *returned; /* whose owners are told when the lock is let go of */
    bool wants_arming;           /* before the lock is let go */
    bool is_blocked; /* what was refused just now may be done when another seat's recorder ends */
};

#endif
