/* The CUDA backend's objects, shared by its files. All slots run on the executor's thread, except
 * module_compile, which touches only `nvrtc`, `nvrtc_is_open` and what never changes, and
 * event_wait, which touches its event and what never changes. */
#ifndef GPU_CUDA_DEVICE_H
#define GPU_CUDA_DEVICE_H

#include "backend/backend.h"
#include "backend/cuda/library.h"

/* Everything that device_close has to free hangs in lists of the device. */
struct link {
    struct link *next, *previous;
};

/* Host memory that the device can see. */
struct host_range {
    char *base;
    uint64_t bytes;
    CUdeviceptr address;
};

/* The device's clock and the host's (timing.c). */
struct cuda_clock {
    CUstream stream; /* owned; NULL: not yet */
    CUevent events[2];
    uint32_t base;    /* the one that was over at base_ns; 0: none was */
    int64_t base_ns;  /* monotonic clock */
    int64_t apart_ns; /* the two looks that it lies between */
    int64_t tried_ns;
};

struct backend_device {
    const struct backend_ops *ops;
    struct cuda_driver cu;
    struct backend_sink sink;
    char *cache_path;       /* owned, or NULL */
    struct cuda_dump *dump; /* owned (dump.c); NULL: core dumps have not been asked for */
    CUdevice handle;
    CUcontext context; /* the primary one, retained; or a host's */
    bool has_foreign_context;
    CUstream foreign_stream; /* of the host's, for stream_foreign; NULL: there is none */
    struct wire_device_facts facts;
    uint32_t shared_bytes_default; /* of a block, before a kernel opts in to more */
    bool has_words;                /* streams can write 64-bit words */
    bool has_virtual;              /* the virtual-memory interface works */
    bool has_virtual_slabs;        /* and has been used: all slabs are to be of one kind */
    bool has_export;               /* with handles that can be exported */
    bool has_prepared;             /* prepared launches work, and nobody switched them off */
    bool has_graphs;               /* the driver has all that graph.c calls */
    bool has_control;              /* and all that control.c does */
    bool has_branches;             /* one conditional node can have several bodies */
    bool sleeps;                   /* events are waited for by threads that sleep in the driver */
    bool is_timed;                 /* events have times */
    bool launches_prepared;        /* the newest launch went through an executable graph */
    uint32_t prepared_count;       /* alive, on all streams, of kernels and of calls */
    uint32_t capture_count;        /* streams that are being captured: the context is not to be
                                      waited for */
    CUresult lost;                 /* the code that ended the device; CUDA_SUCCESS: it is well */
    char lost_text[1024];
    CUlogIterator log_at; /* of the driver's log, what has been read (log.c) */
    bool has_log;
    struct cuda_clock clock;  /* if is_timed; made when first needed */
    uint32_t tracer_place;    /* at CUPTI (tracer.c), from 1; 0: it does not trace the device */
    struct cuda_alarm *alarm; /* owned (alarm.c); NULL: the process is not the device's own */
    CUevent probe;            /* never recorded: asking after it tells of faults, and never waits */
    struct link slabs, streams, events, modules, graphs, captures;
    struct host_range *ranges; /* owned */
    size_t range_count, range_last;
    CUmemoryPool pool;    /* made when first needed; NULL: not yet */
    CUstream pool_stream; /* on which memory goes back to it */
    CUmodule fill_module; /* loaded when first needed */
    CUfunction fill_function;
    struct {
        struct backend_stream *stream; /* NULL: not prepared yet */
        struct backend_event *event;
        struct backend_kernel *kernel; /* owned: the fill's */
        uint64_t count;
        bool is_off; /* it cannot be; or others use the context, too: preparing it, which nobody
                        has asked for, might wait for work of theirs */
    } warmth;        /* warm.c */
    CUmodule choose_module; /* that of control.c, likewise */
    CUfunction choose_function;
    struct cuda_nvrtc nvrtc;
    bool nvrtc_is_open;
    struct cuda_blas *blas;                     /* owned; NULL: not opened yet */
    struct cuda_fft *fft;                       /* likewise */
    struct rng_library *rng;                    /* likewise */
    struct cuda_prepared_calls *prepared_calls; /* owned (prepared_call.c); NULL: none yet */
};

struct backend_slab {
    struct link link;
    CUdeviceptr address;
    size_t mapped_bytes; /* of a virtual one; 0: from cuMemAlloc or the pool */
    bool is_pooled;
};

/* A launch of one kernel that the driver has prepared (launch.c). */
struct cuda_prepared {
    CUgraph graph;                      /* owned */
    CUgraphExec exec;                   /* owned; NULL: not made yet */
    CUgraphNode node;                   /* of the graph */
    const struct backend_kernel *bound; /* what exec runs as it is */
    uint64_t used;                      /* the stream's launch_count when it was */
    uint32_t heat; /* launches of the kernel that it stands for, until it is worth it */
};
#define CUDA_PREPARED_PER_STREAM 8u
#define CUDA_PREPARED_MAX 256u  /* of a device; each holds about 115 KB of its memory */
#define CUDA_PREPARED_AFTER 16u /* launches of the same before one is worth the 15 us */
/* Launches (of a stream; of a device's libraries) without one of it: another may have its place. */
#define CUDA_PREPARED_STALE 256u

struct backend_stream {
    struct link link;
    struct backend_device *device; /* borrowed */
    CUstream handle;
    bool is_captured; /* a graph's own: what is put on it is not done, and it is in no list */
    bool is_given;    /* the host has its handle, and may be capturing it (capture.c) */
    bool is_foreign;  /* it is the host's */
    struct backend_graph
        *patched; /* of one that is captured: the next launch patches a node of it */
    uint64_t launch_count;
    /* Which kernel each stands for; borrowed, NULL: none. */
    const struct backend_kernel *prepared_kernels[CUDA_PREPARED_PER_STREAM];
    struct cuda_prepared prepared[CUDA_PREPARED_PER_STREAM];
};

struct backend_event {
    struct link link;
    struct backend_device *device; /* borrowed */
    CUevent handle;
    /* Where core dumps are asked for (dump.c): of what the end is proven by. */
    CUevent proof;    /* owned; NULL: not yet */
    int64_t proof_ns; /* when that was begun; 0: it was not, -1: it is over */
};

struct backend_module {
    struct link link;
    struct backend_device *device; /* borrowed */
    CUmodule handle;
    char *symbols;                      /* owned: of a compiled one, else NULL */
    const struct cuda_toolkit *library; /* toolkit.h; NULL: it is code, and `handle` the driver's */
    void *library_made;                 /* owned: what the library made for the module */
    bool prints;
    struct backend_kernel *kernels; /* owned, singly linked */
};

struct backend_kernel {
    struct backend_kernel *next;
    struct backend_device *device;        /* borrowed */
    const struct cuda_toolkit_call *call; /* of a library; NULL: a kernel */
    void *call_made;                      /* borrowed from the module */
    bool call_repeats;                    /* see calls_repeat of toolkit.h */
    CUfunction function;
    uint32_t shared_bytes_ready; /* dynamic shared memory that a launch may ask for as things are */
    uint32_t shared_bytes_max;   /* after opting in */
    uint32_t args_bytes;         /* 0: not known */
};

static inline void gpu_cuda_link(struct link *list, struct link *item) {
    item->next = list->next;
    item->previous = list;
    list->next->previous = item;
    list->next = item;
}

static inline void gpu_cuda_unlink(struct link *item) {
    item->next->previous = item->previous;
    item->previous->next = item->next;
}

/* Turns a failed call into a status, and remembers it when it means that the device is gone. */
gpulua_status gpu_cuda_failed(struct backend_device *device, CUresult result, const char *call,
                              const char *file, int line, struct backend_error *error);
gpulua_status gpu_cuda_lost(const struct backend_device *device, struct backend_error *error);

static inline gpulua_status gpu_cuda_result(struct backend_device *device, CUresult result,
                                            const char *call, const char *file, int line,
                                            struct backend_error *error) {
    return __builtin_expect(result == CUDA_SUCCESS, 1)
               ? GPULUA_OK
               : gpu_cuda_failed(device, result, call, file, line, error);
}

/* Calls are written `cu->cuName(...)`: the message then begins with the driver's own name. */
#define CU(device, error, call)                                                                    \
    gpu_cuda_result((device), (call), #call, __FILE__, __LINE__, (error))

/* context.c: what of a thread's current context is ours. */
struct cuda_thread {
    CUcontext before; /* if is_switched: current before it was `ours` */
    CUcontext ours;
    uint32_t hold_count; /* while it is not 0, ours stays current */
    bool is_switched;
    bool is_away; /* ours has been current, and `before` has been put back */
};
extern _Thread_local struct cuda_thread gpu_cuda_thread;
/* `current` is what is current now. */
gpulua_status gpu_cuda_make_current(struct backend_device *device, CUcontext current,
                                    struct backend_error *error);
CUresult gpu_cuda_come_back(struct backend_device *device);
/* Unless calls are held: what was current is so again. */
void gpu_cuda_context_restore(void);
void gpu_cuda_calls_hold(bool is_held);
/* The context that the device is to live in, and which device that is; `count`: of the driver. */
gpulua_status gpu_cuda_context_open(struct backend_device *device,
                                    const struct backend_open_info *info, int count,
                                    struct backend_error *error);
void gpu_cuda_context_close(struct backend_device *device);

/* First in every slot that calls the driver: fails when the device is lost, so that nothing can
 * hang on it, and makes the context current on this thread. The driver is asked what is current,
 * because a host that drives the device on its own thread may have changed it. */
static inline gpulua_status gpu_cuda_enter(struct backend_device *device,
                                           struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    CUcontext current = NULL;
    if (__builtin_expect(device->lost != CUDA_SUCCESS, 0)) {
        return gpu_cuda_lost(device, error);
    }
    if (__builtin_expect(
            cu->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == device->context, 1)) {
        return GPULUA_OK;
    }
    return gpu_cuda_make_current(device, current, error);
}

/* For the slots on the way of every launch, which call first and ask afterwards: these calls name a
 * stream, an event or a kernel, so the driver refuses them where another context, or none, is
 * current, and does nothing wrong. True: that was it, our context is current now, call again. */
bool gpu_cuda_was_elsewhere(struct backend_device *device, CUresult result);

/* Evaluates to the result of the call, made again if the context was not ours. Where the host's has
 * been put back, ours is made current first, as the driver would log each call that it refuses. */
#define CU_HOT(device, result, call)                                                               \
    do {                                                                                           \
        (result) = CUDA_SUCCESS;                                                                   \
        if (__builtin_expect(gpu_cuda_thread.is_away, 0)) {                                        \
            (result) = gpu_cuda_come_back(device);                                                 \
        }                                                                                          \
        (result) = (result) == CUDA_SUCCESS ? (call) : (result);                                   \
        if (__builtin_expect((result) != CUDA_SUCCESS, 0) &&                                       \
            gpu_cuda_was_elsewhere((device), (result))) {                                          \
            (result) = (call);                                                                     \
        }                                                                                          \
    } while (0)

/* Slots, by file. memory.c: */
gpulua_status gpu_cuda_memory_info(struct backend_device *device, struct wire_memory_facts *facts,
                                   struct backend_error *error);
gpulua_status gpu_cuda_slab_create(struct backend_device *device, uint64_t bytes,
                                   struct backend_slab **slab, uint64_t *address,
                                   struct backend_error *error);
void gpu_cuda_slab_destroy(struct backend_device *device, struct backend_slab *slab);
gpulua_status gpu_cuda_pool_alloc(struct backend_stream *stream, uint64_t bytes,
                                  struct backend_slab **slab, uint64_t *address,
                                  struct backend_error *error);
void gpu_cuda_pool_trim(struct backend_device *device);
void gpu_cuda_pool_close(struct backend_device *device); /* its memory is given back */
gpulua_status gpu_cuda_host_register(struct backend_device *device, void *base, uint64_t bytes,
                                     struct backend_error *error);
void gpu_cuda_host_unregister(struct backend_device *device, void *base);
uint64_t gpu_cuda_host_address(struct backend_device *device, const void *at);
gpulua_status gpu_cuda_copy(struct backend_stream *stream, uint64_t seq, uint64_t dst, uint64_t src,
                            uint64_t bytes, struct backend_error *error);
gpulua_status gpu_cuda_upload(struct backend_stream *stream, uint64_t seq, uint64_t dst,
                              const void *src, uint64_t bytes, struct backend_error *error);
gpulua_status gpu_cuda_download(struct backend_stream *stream, uint64_t seq, void *dst,
                                uint64_t src, uint64_t bytes, struct backend_error *error);
/* toolkit.c: */
gpulua_status gpu_cuda_library_module(struct backend_device *device, const char *name,
                                      const char *options, struct backend_module **module,
                                      char **description, struct backend_error *error);
/* warm.c: */
bool gpu_cuda_warm(struct backend_device *device, _Atomic uint64_t *word);

/* alarm.c: what cannot be had is done without. */
void gpu_cuda_alarm_open(struct backend_device *device);
/* The driver has said that all is well. */
void gpu_cuda_alarm_answered(struct backend_device *device);
/* Before the end of all that is the driver's, and behind it; close waits for the alarm's thread,
 * but for one that sleeps in NVML. */
void gpu_cuda_alarm_stop(struct backend_device *device);
void gpu_cuda_alarm_close(struct backend_device *device);

/* fill.c: */
gpulua_status gpu_cuda_fill(struct backend_stream *stream, uint64_t seq, uint64_t dst,
                            const void *element, uint32_t elem_bytes, uint64_t elem_count,
                            struct backend_error *error);
/* Loads the kernel, so that a fill later loads nothing. */
/* The parameters of its kernel, which is loaded then; all zero: it fills nothing. */
struct cuda_fill_args {
    uint64_t base, vector_count;
    uint32_t head_count, tail_count, words[4];
};
gpulua_status gpu_cuda_fill_prepare(struct backend_device *device, struct backend_error *error);
/* The kernel of fill.c as PTX, for tests. */
extern const char gpu_cuda_fill_ptx[];
/* A kernel of the backend's own, unless *function is there already. Its code is loaded at once. */
gpulua_status gpu_cuda_own_kernel(struct backend_device *device, const char *ptx, const char *name,
                                  CUmodule *module, CUfunction *function,
                                  struct backend_error *error);
/* stream.c: */
gpulua_status gpu_cuda_stream_create(struct backend_device *device, uint32_t slot, int priority,
                                     struct backend_stream **stream, struct backend_error *error);
gpulua_status gpu_cuda_stream_foreign(struct backend_device *device, uint32_t slot,
                                      struct backend_stream **stream, struct backend_error *error);
void gpu_cuda_stream_destroy(struct backend_device *device, struct backend_stream *stream);
gpulua_status gpu_cuda_stream_word(struct backend_stream *stream, _Atomic uint64_t *word,
                                   uint64_t value, struct backend_error *error);
uint64_t gpu_cuda_stream_native(struct backend_stream *stream);
gpulua_status gpu_cuda_stream_give(struct backend_event *event, uint64_t foreign,
                                   struct backend_error *error);
gpulua_status gpu_cuda_stream_take(struct backend_stream *stream, uint64_t foreign,
                                   struct backend_error *error);
gpulua_status gpu_cuda_stream_wait(struct backend_stream *stream, struct backend_event *event,
                                   struct backend_error *error);
gpulua_status gpu_cuda_event_create(struct backend_device *device, struct backend_event **event,
                                    struct backend_error *error);
void gpu_cuda_event_destroy(struct backend_device *device, struct backend_event *event);
gpulua_status gpu_cuda_event_record(struct backend_event *event, struct backend_stream *stream,
                                    struct backend_error *error);
enum backend_query gpu_cuda_event_query(struct backend_event *event, struct backend_error *error);
enum backend_query gpu_cuda_stream_query(struct backend_stream *stream,
                                         struct backend_error *error);
enum backend_query gpu_cuda_event_wait(struct backend_event *event);
/* timing.c: */
gpulua_status gpu_cuda_event_times(struct backend_event *begin, struct backend_event *end,
                                   int64_t *begin_ns, int64_t *end_ns, struct backend_error *error);
void gpu_cuda_clock_close(struct backend_device *device);
void gpu_cuda_flush_output(struct backend_device *device);
/* capture.c: */
void gpu_cuda_captures_init(struct backend_device *device);
void gpu_cuda_captures_close(struct backend_device *device);
int gpu_cuda_calls_begin(bool for_good);
/* calls_end puts back the context, too. */
void gpu_cuda_mode_put_back(int before);
void gpu_cuda_calls_end(int before);
/* Is a stream of this process being captured by the host, so that no context is to be waited for?
 */
bool gpu_cuda_may_be_captured(void);
gpulua_status gpu_cuda_capture_open(struct backend_device *device, uint64_t foreign,
                                    enum wire_capture_mode mode, struct backend_error *error);
gpulua_status gpu_cuda_capture_look(struct backend_device *device, uint64_t foreign,
                                    enum wire_capture_state *state, struct backend_error *error);
gpulua_status gpu_cuda_capture_close(struct backend_device *device, uint64_t foreign,
                                     uint64_t *graph, struct backend_error *error);
/* CAPTURE_ACTIVE or CAPTURE_INVALIDATED: the host is capturing the stream. */
gpulua_status gpu_cuda_check_uncaptured(struct backend_device *device, CUstream handle,
                                        struct backend_error *error);
/* Ends a capture of this stream by the host, if there is one. */
gpulua_status gpu_cuda_reclaim(struct backend_stream *stream, struct backend_error *error);
/* Is it one of ours that the host is capturing? Costs nothing unless the host has its handle. */
bool gpu_cuda_is_taken(const struct backend_stream *stream);
/* The host has its handle from now on; and the stream is about to go, with a capture of it. */
void gpu_cuda_stream_given(struct backend_stream *stream);
void gpu_cuda_capture_leave(struct backend_stream *stream);
/* launch.c: */
void gpu_cuda_prepared_init(struct backend_device *device);
/* A kernel is about to go (NULL: all of the stream's), and is not at work on it. */
void gpu_cuda_prepared_forget(struct backend_stream *stream, const struct backend_kernel *kernel);
/* The kernel's next launch on the stream is a prepared one, or a plain one. */
void gpu_cuda_prepared_choose(struct backend_stream *stream, struct backend_kernel *kernel,
                              bool is_prepared);
gpulua_status gpu_cuda_launch(const struct backend_launch *launch, struct backend_error *error);
/* graph.c: */
void gpu_cuda_graphs_init(struct backend_device *device);
gpulua_status gpu_cuda_graph_begin(struct backend_device *device, struct backend_graph **graph,
                                   struct backend_stream **stream, struct backend_error *error);
gpulua_status gpu_cuda_graph_node(struct backend_graph *graph, const uint32_t *deps,
                                  uint32_t dep_count, struct backend_error *error);
gpulua_status gpu_cuda_graph_end(struct backend_graph *graph, struct backend_error *error);
gpulua_status gpu_cuda_graph_upload(struct backend_stream *stream, struct backend_graph *graph,
                                    struct backend_error *error);
gpulua_status gpu_cuda_graph_launch(struct backend_stream *stream, uint64_t seq,
                                    struct backend_graph *graph, struct backend_error *error);
void gpu_cuda_graph_destroy(struct backend_device *device, struct backend_graph *graph);

/* patch.c: */
gpulua_status gpu_cuda_graph_patch(struct backend_graph *graph, uint32_t node, bool is_launch,
                                   struct backend_error *error);
gpulua_status gpu_cuda_graph_patch_launch(struct backend_graph *graph,
                                          const CUDA_KERNEL_NODE_PARAMS_v2 *params,
                                          struct backend_error *error);
gpulua_status gpu_cuda_graph_patched(struct backend_graph *graph, gpulua_status status,
                                     struct backend_error *error);

/* control.c: */
void gpu_cuda_control_init(struct backend_device *device);
gpulua_status gpu_cuda_control_prepare(struct backend_device *device, struct backend_error *error);
gpulua_status gpu_cuda_graph_control(struct backend_graph *graph,
                                     const struct backend_control *control,
                                     struct backend_error *error);
gpulua_status gpu_cuda_graph_body_end(struct backend_graph *graph, struct backend_error *error);
/* module.c: */
gpulua_status gpu_cuda_module_compile(struct backend_device *device,
                                      const struct backend_source *source, void **image,
                                      size_t *image_bytes, char **description,
                                      struct backend_error *error);
gpulua_status gpu_cuda_module_load(struct backend_device *device, const void *image,
                                   size_t image_bytes, bool compiled,
                                   struct backend_module **module, struct backend_error *error);
void gpu_cuda_module_unload(struct backend_device *device, struct backend_module *module);
gpulua_status gpu_cuda_kernel_get(struct backend_module *module, const char *name,
                                  struct backend_kernel **kernel, bool *prints,
                                  struct wire_kernel_facts *facts, struct backend_error *error);
gpulua_status gpu_cuda_global_get(struct backend_module *module, const char *name,
                                  uint64_t *address, uint64_t *bytes, struct backend_error *error);

#endif
