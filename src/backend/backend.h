/* The contract of a device backend. One ops table; the executor is its only caller.
 *
 * Threads: all slots are called from the executor's thread, except module_compile, which is called
 * from the executor's compile thread, or before there is one (never twice at once), and `sink`,
 * which a backend may call from any thread of its own. event_query and device_status may also be
 * called from a second thread of the executor (it watches while an inline script sleeps), never at
 * once with another slot but module_compile. event_wait is called from threads of the executor's
 * own, at any time.
 *
 * Errors: a slot returns GPULUA_OK or a status and fills `error` (driver code, text with the call
 * that failed, and for compilers the whole log in `log`, malloc'ed). GPULUA_DEVICE_LOST means that
 * the device is gone for good in this process.
 *
 * Work slots are asynchronous and in order within a stream. `seq` is the work's position on its
 * stream: a backend that finds out later that a piece of work failed says so through sink.failed
 * before any word or event behind it moves. */
#ifndef GPU_BACKEND_H
#define GPU_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpulua.h"
#include "wire/record.h"

#define GPU_BACKEND_VERSION 1u

struct backend_error {
    gpulua_status status;
    int32_t driver_code;
    char message[1024];
    char *log; /* owned by the receiver: free it; NULL: none */
};

/* As `= {0}`, without writing a kilobyte on the way of every launch. */
static inline void gpu_backend_error_init(struct backend_error *error) {
    error->status = GPULUA_OK;
    error->driver_code = 0;
    error->message[0] = '\0';
    error->log = NULL;
}

/* Ranges of a module's variable. */
struct backend_touched {
    const struct backend_module *module;
    const char *name;
    uint64_t address;
    const struct wire_touch *touches; /* valid only during the call */
    uint32_t count;
};

/* Why work failed. */
struct backend_failure {
    gpulua_status status; /* KERNEL_FAILED for an assert, DEVICE_LOST for what ends the device */
    const char *text;
    const struct wire_place *places; /* as in struct wire_failed */
    uint32_t place_count;
};

struct backend_sink {
    void *user;
    /* Work (stream slot, seq) failed. `node`: of a graph, in which of its nodes, counted as for
     * `timed`; else 0. */
    void (*failed)(void *user, uint32_t stream, uint64_t seq, uint32_t node,
                   const struct backend_failure *failure);
    /* The device is lost, told on whatever thread that is found out; once is enough. */
    void (*lost)(void *user, int32_t driver_code, const char *text);
    /* From now on until it is over, on whatever thread: device_status is to be asked again and
     * again, also while nobody waits for work. */
    void (*alarmed)(void *user, bool is_alarmed);
    /* A line for the host's log. */
    void (*log)(void *user, const char *line);
    /* A word or an event moved (backends whose completion comes from threads of their own): wake
     * who sleeps. */
    void (*moved)(void *user);
    /* Check mode: work (stream slot, seq) has been done, one of those that could have been, by
     * slot. Before its word moves. */
    void (*ran)(void *user, uint32_t stream, uint64_t seq, const struct wire_point *ready,
                uint32_t ready_count);
    /* Check mode: what the launch (stream slot, seq), or one of its nodes, has done to a variable
     * of its module. Before `ran`. */
    void (*touched)(void *user, uint32_t stream, uint64_t seq,
                    const struct backend_touched *touched);
    /* Where tells_times says so: a piece of work (stream slot, seq), or a part of one, was done
     * from then to then, ns on the monotonic clock of the host. Of a launched graph with the node,
     * counted from 1 as they were put together, with those of bodies, which may be told of often;
     * 0: not known, or of no graph; WIRE_NODES_MISSING and how many: not all is told by node. Nodes
     * alone are told of also where events tell the rest, before the event behind the launch is
     * over. */
    void (*timed)(void *user, uint32_t stream, uint64_t seq, uint32_t node, int64_t begin_ns,
                  int64_t end_ns);
};

struct text;           /* backend/text.h */
struct backend_device; /* defined by each backend; begins with `const struct backend_ops *ops` */
struct backend_stream;
struct backend_event;
struct backend_slab;
struct backend_module;
struct backend_kernel;
struct backend_graph;

enum backend_query { BACKEND_DONE = 0, BACKEND_PENDING = 1, BACKEND_FAILED = 2 };

struct backend_open_info {
    int ordinal;            /* cuda:N; negative: the one that `context` is of */
    const char *cache_path; /* NULL: the default */
    /* In a process of the device's own alone: a kernel's fault writes a core dump into the file
     * `coredump_base`-PID.core, if the device can be told to (UNSUPPORTED), and ends the process.
     * NULL: none. */
    const char *coredump_base;
    /* Check mode: every access of a kernel is held against what its launch declares, and `seed`
     * decides the order in which work that may run does. Only where sees_accesses is set. */
    bool is_checked;
    uint64_t seed;
    /* Which of the operations that are ready is done next, as numbers from 0 in the order of their
     * slots: "2.0.1"; then always the first. NULL: the seed decides. */
    const char *order;
    bool is_apart; /* in a process of its own, in which there is nothing else */
    bool sleeps;   /* event_wait will be called */
    bool is_timed; /* event_times will be called */
    /* Of the driver, the host's: the device lives in this context, which stays as it is; NULL: in
     * one of its own. And what stream_foreign is to give; NULL: nothing. CUDA alone. */
    void *context, *stream;
    struct backend_sink sink;
};

struct backend_source {
    const char *name;    /* for messages and #line: "pipeline.lua:12" or "kernels.cu" */
    const char *text;    /* NUL-terminated CUDA C */
    const char *options; /* lines: "define NAME VALUE", "name EXPRESSION" (template instances),
                            "include PATH", "flag TEXT" (passed to the compiler); "" for none */
    const char *keep;    /* what comes of it also goes into files of this name and a suffix:
                            ".ptx" and ".cubin", or ".cpp" and ".so"; NULL: it does not */
    struct wire_compiled *outcome; /* out, but for took_ns, where it goes well; NULL: not wanted */
    /* Where code of the source has to run to be described: does the work in a process that can do
     * nothing else. False: that has not ended well. NULL: it is done in this one. */
    bool (*apart)(void (*work)(void *user), void *user);
};

/* What a launch declares that it does with a range of memory (check mode). */
struct backend_use {
    uint64_t address, bytes;
    uint32_t access; /* WIRE_USE_READ, WIRE_USE_WRITE, or both */
    uint16_t param;  /* of the kernel, from 0 */
    uint16_t part;   /* a structure has several */
    char name[48];   /* NUL-terminated; "" if unknown */
};

struct backend_launch {
    struct backend_kernel *kernel;
    struct backend_stream *stream;
    uint64_t seq;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;
    const void *args; /* laid out as a C struct of the parameters; addresses are real; valid only
                         during the call */
    uint32_t args_bytes;
    const struct backend_use *uses; /* check mode; valid only during the call */
    uint32_t use_count;
};

/* A conditional node: which of its bodies is done follows from an integer in device memory, when
 * the node is reached (gpu_wire_control_choose). */
struct backend_control {
    enum wire_control_kind kind;
    uint64_t address;
    uint32_t elem_bytes; /* 1, 2, 4 or 8 */
    uint32_t body_count; /* 1; IF: 1 or 2; SWITCH: up to WIRE_CONTROL_BODIES_MAX */
};

struct backend_ops {
    uint32_t version; /* GPU_BACKEND_VERSION */
    const char *name; /* "cuda", "cpu" */

    /* Devices present; 0 with `error` saying why not (library missing: names tried). Callable
     * before device_open. */
    int (*device_count)(struct backend_error *error);
    gpulua_status (*device_open)(const struct backend_open_info *info,
                                 struct backend_device **device, struct backend_error *error);
    /* What it needs that is not part of it, a line each: "found NAME WHERE" or "missing NAME WHY",
     * with tabs between. May run programs. */
    void (*describe)(struct text *text);
    /* Waits for all work unless the device is lost; frees all that is left. */
    void (*device_close)(struct backend_device *device);
    void (*device_facts)(struct backend_device *device, struct wire_device_facts *facts);
    gpulua_status (*memory_info)(struct backend_device *device, struct wire_memory_facts *facts,
                                 struct backend_error *error);
    /* Once the device is known lost: its status and text; GPULUA_OK while it is well. Never blocks.
     */
    gpulua_status (*device_status)(struct backend_device *device, struct backend_error *error);

    /* Device memory. `*address` is what kernels see; at least 512-byte aligned. */
    gpulua_status (*slab_create)(struct backend_device *device, uint64_t bytes,
                                 struct backend_slab **slab, uint64_t *address,
                                 struct backend_error *error);
    void (*slab_destroy)(struct backend_device *device, struct backend_slab *slab);
    /* Memory from the driver's pool: work put on the stream from here on may use it, other streams
     * have to be made to wait for such work. slab_destroy gives it back to the pool, once every use
     * is over. Both NULL: there is no pool. */
    gpulua_status (*pool_alloc)(struct backend_stream *stream, uint64_t bytes,
                                struct backend_slab **slab, uint64_t *address,
                                struct backend_error *error);
    /* What the pool keeps goes back to the system. */
    void (*pool_trim)(struct backend_device *device);
    /* Memory of somebody else's in this process that kernels will use, and that they do no more.
     * NULL: nobody wants to know. */
    void (*memory_adopt)(struct backend_device *device, uint64_t address, uint64_t bytes);
    void (*memory_leave)(struct backend_device *device, uint64_t address);
    /* Pins host memory (page, arena chunk) for the device. NULL: not needed. Failing is not fatal.
     * `writable` memory can be the target of stream_word. */
    gpulua_status (*host_register)(struct backend_device *device, void *base, uint64_t bytes,
                                   struct backend_error *error);
    void (*host_unregister)(struct backend_device *device, void *base);
    /* Where kernels find registered memory; 0: it is not registered. NULL: where it is. */
    uint64_t (*host_address)(struct backend_device *device, const void *at);

    gpulua_status (*stream_create)(struct backend_device *device, uint32_t slot, int priority,
                                   struct backend_stream **stream, struct backend_error *error);
    /* A stream of ours that stands for the `stream` of the opening: what the host puts there is in
     * order with what is put on this one. NULL: there are none. */
    gpulua_status (*stream_foreign)(struct backend_device *device, uint32_t slot,
                                    struct backend_stream **stream, struct backend_error *error);
    /* The stream's work is over or lost. */
    void (*stream_destroy)(struct backend_device *device, struct backend_stream *stream);
    /* Behind all work so far on the stream: *word = value (release), then sink.moved. */
    gpulua_status (*stream_word)(struct backend_stream *stream, _Atomic uint64_t *word,
                                 uint64_t value, struct backend_error *error);
    /* Later work on the stream starts after the event's last record. */
    gpulua_status (*stream_wait)(struct backend_stream *stream, struct backend_event *event,
                                 struct backend_error *error);

    /* Streams of other libraries, as the driver's handles. What the handle of ours is; a foreign
     * one goes on behind the event's last record; ours goes on behind all that is on a foreign one
     * now. All NULL: the driver has no streams that others know. */
    uint64_t (*stream_native)(struct backend_stream *stream);
    gpulua_status (*stream_give)(struct backend_event *event, uint64_t foreign,
                                 struct backend_error *error);
    gpulua_status (*stream_take)(struct backend_stream *stream, uint64_t foreign,
                                 struct backend_error *error);

    /* Captures of the host's: the driver turns what it puts on a stream, its own or one of ours
     * that stream_native was asked about, into a graph of its own, and nothing of ours may go
     * there. All NULL: there are none. CAPTURE_ACTIVE: the stream is being captured. */
    gpulua_status (*capture_begin)(struct backend_device *device, uint64_t foreign,
                                   enum wire_capture_mode mode, struct backend_error *error);
    gpulua_status (*capture_look)(struct backend_device *device, uint64_t foreign,
                                  enum wire_capture_state *state, struct backend_error *error);
    /* `graph` NULL: it is dropped, whoever has begun it, and if it is not there nothing happens.
     * CAPTURE_INVALIDATED: nothing has come of it, and it is over; STREAM_MISUSE: it goes on, as it
     * belongs to another thread; CLOSED: it was over. */
    gpulua_status (*capture_end)(struct backend_device *device, uint64_t foreign, uint64_t *graph,
                                 struct backend_error *error);
    /* Calls of slots between these two, on a thread, do not break captures that the host has under
     * way in this process, and leave behind them the driver's state of the thread, its current
     * context, as it was; `before` is what calls_begin has answered. A thread of our own says once
     * that it is for good. While calls are held, the state may wait for the end of that: a count of
     * the thread. All NULL: no call does. */
    int (*calls_begin)(bool for_good);
    void (*calls_end)(int before);
    void (*calls_hold)(bool is_held);

    /* Events, recordable again and again; waits already issued keep the older record. */
    gpulua_status (*event_create)(struct backend_device *device, struct backend_event **event,
                                  struct backend_error *error);
    void (*event_destroy)(struct backend_device *device, struct backend_event *event);
    gpulua_status (*event_record)(struct backend_event *event, struct backend_stream *stream,
                                  struct backend_error *error);
    enum backend_query (*event_query)(struct backend_event *event, struct backend_error *error);
    /* Is all that is on the stream over? Takes no memory: for work that no event could be recorded
     * behind. The stream is not captured. NULL, or PENDING for good: nobody can tell. */
    enum backend_query (*stream_query)(struct backend_stream *stream, struct backend_error *error);
    /* Blocks without taking processor time until the event's last record is over (DONE), or nobody
     * can tell any more when it is (FAILED; event_query says why). At once with other slots; but
     * one thread at most for an event, which is neither recorded again nor destroyed meanwhile.
     * NULL, or PENDING: it has to be asked for. */
    enum backend_query (*event_wait)(struct backend_event *event);
    /* When the last records of two events were over, which both are, in ns on the monotonic clock
     * of the host: what lies between them to the resolution of the device, where it lies to a few
     * microseconds. Only where is_timed is set. NULL: nobody can tell. */
    gpulua_status (*event_times)(struct backend_event *begin, struct backend_event *end,
                                 int64_t *begin_ns, int64_t *end_ns, struct backend_error *error);

    /* Of a device that was opened with is_timed: does it tell of each piece of work by itself when
     * it was done? Then trace_begin and trace_end stand around each call of a work slot, and what
     * is over is told by the end of trace_flush; no event is asked for its time. NULL: no. */
    bool (*tells_times)(struct backend_device *device);
    void (*trace_begin)(struct backend_device *device, uint32_t slot, uint64_t seq);
    void (*trace_end)(struct backend_device *device);
    void (*trace_flush)(struct backend_device *device);

    /* Work is expected in a moment, from this thread: does once what launching it does, with work
     * that does nothing and writes `word`, so that the driver's code and tables are at hand then.
     * The first call prepares that, and may take some milliseconds, or wait for work that is under
     * way. False: that cannot be done, and is not tried again. NULL: there is nothing to prepare.
     */
    bool (*warm)(struct backend_device *device, _Atomic uint64_t *word);

    /* Check mode, else never called; NULL: work is done without being asked for. Somebody waits for
     * (stream, seq): returns when it is over. Seq 0: when some work has been done, if there is any.
     * Stream NULL: when all work is over. */
    void (*ask)(struct backend_device *device, struct backend_stream *stream, uint64_t seq);

    /* Check mode, else never called; NULL: nobody wants to know. A block of device memory that the
     * script has made; one that it has freed, where ("": unknown); and the end of one's memory:
     * every use of it is over. `label` may be "". `is_scratch`: of a graph's temporary, where no
     * launch finds what another one has left. */
    void (*block_create)(struct backend_device *device, uint64_t number, uint64_t address,
                         uint64_t bytes, const char *label, bool is_scratch);
    /* Somebody else may write there from now on. */
    void (*block_written)(struct backend_device *device, uint64_t address, uint64_t bytes);
    void (*block_free)(struct backend_device *device, uint64_t number, const char *where);
    void (*block_over)(struct backend_device *device, uint64_t address, uint64_t bytes);

    /* Device addresses, host pointers. Host memory may be pageable; it stays valid until the work
     * is over. */
    gpulua_status (*copy)(struct backend_stream *stream, uint64_t seq, uint64_t dst, uint64_t src,
                          uint64_t bytes, struct backend_error *error);
    gpulua_status (*upload)(struct backend_stream *stream, uint64_t seq, uint64_t dst,
                            const void *src, uint64_t bytes, struct backend_error *error);
    gpulua_status (*download)(struct backend_stream *stream, uint64_t seq, void *dst, uint64_t src,
                              uint64_t bytes, struct backend_error *error);
    /* elem_count copies of an element of 1, 2, 4, 8 or 16 bytes. */
    gpulua_status (*fill)(struct backend_stream *stream, uint64_t seq, uint64_t dst,
                          const void *element, uint32_t elem_bytes, uint64_t elem_count,
                          struct backend_error *error);
    gpulua_status (*launch)(const struct backend_launch *launch, struct backend_error *error);

    /* Graphs: work with a partial order, put together once and launched often. All NULL: none.
     *
     * graph_begin gives a graph and a stream of its own. What the work slots above put on that
     * stream until graph_end is not done: it becomes the graph's. graph_node begins a node,
     * numbered from 0: it starts when the nodes `deps` (lower numbers, each once) are over, and is
     * what one call of a work slot puts on the stream behind it; without such a call it is nothing
     * but its dependencies. The stream takes no other slot and is not destroyed by the caller. A
     * slot that fails has added nothing that is ever launched: the graph is then to be destroyed.
     */
    gpulua_status (*graph_begin)(struct backend_device *device, struct backend_graph **graph,
                                 struct backend_stream **stream, struct backend_error *error);
    gpulua_status (*graph_node)(struct backend_graph *graph, const uint32_t *deps,
                                uint32_t dep_count, struct backend_error *error);
    /* Conditional nodes. Both NULL: there are none. graph_control makes the node that was begun
     * last one, instead of a work slot, and begins its first body: graph_node then begins nodes of
     * that, numbered from 0 again, and so on up to graph_body_end, which begins the next body, or
     * goes back to where the node is. A body has nodes that do something. */
    gpulua_status (*graph_control)(struct backend_graph *graph,
                                   const struct backend_control *control,
                                   struct backend_error *error);
    gpulua_status (*graph_body_end)(struct backend_graph *graph, struct backend_error *error);
    /* Before graph_begin of a graph that will have some: UNSUPPORTED says what is missing. NULL:
     * nothing is to be prepared. */
    gpulua_status (*graph_control_prepare)(struct backend_device *device,
                                           struct backend_error *error);
    /* No more nodes: it can be launched. */
    gpulua_status (*graph_end)(struct backend_graph *graph, struct backend_error *error);
    /* Behind what is on the stream: what the first launch would do beside launching. */
    gpulua_status (*graph_upload)(struct backend_stream *stream, struct backend_graph *graph,
                                  struct backend_error *error);
    /* All of it as one piece of work on the stream: `seq` is what sink.failed names when a node
     * fails. Two launches of one graph run one after the other. */
    gpulua_status (*graph_launch)(struct backend_stream *stream, uint64_t seq,
                                  struct backend_graph *graph, struct backend_error *error);
    /* Between these two, one call of a work slot on the graph's stream, of the kind that node
     * `node` has been made by (`is_launch`: a launch), says what the node does in launches from now
     * on; those before, over or not, are not affected. graph_patched gets what the work slot
     * returned, and returns that, or what it fails with itself; `error` is set already in the first
     * case. */
    gpulua_status (*graph_patch)(struct backend_graph *graph, uint32_t node, bool is_launch,
                                 struct backend_error *error);
    gpulua_status (*graph_patched)(struct backend_graph *graph, gpulua_status status,
                                   struct backend_error *error);
    /* Built or not; no launch of it is in flight. Its modules are still there. */
    void (*graph_destroy)(struct backend_device *device, struct backend_graph *graph);

    /* Kernels that print: their text is out when this returns. Called when the streams concerned
     * are idle, before the script is told that they are. NULL: kernels print by themselves. */
    void (*flush_output)(struct backend_device *device);

    /* Compiles CUDA C into something module_load takes, using the disk cache. May take seconds.
     * COMPILE_FAILED with `log`. `*description` (malloc'ed) has one line for each name that the
     * source defines:
     *
     *     kernel NAME SIGNATURE      kernel saxpy n: i32, a: f32, x: in f32*, y: inout f32*
     *     value NAME NUMBER          of libraries: what the script's side has to know
     *     global NAME TYPE COUNT const|mutable
     *
     * NAME ends at the first blank outside of brackets ("f<float, 3>"). An unsupported parameter is
     * written `name: ?C-TYPE/BYTES/ALIGNMENT` (a struct by value, ...). TYPE is an element type: of
     * vectors (float4) that of their parts, which COUNT counts; of anything else u8, and COUNT its
     * bytes. */
    gpulua_status (*module_compile)(struct backend_device *device,
                                    const struct backend_source *source, void **image,
                                    size_t *image_bytes, char **description,
                                    struct backend_error *error);
    /* The same without a device, outside of check mode. NULL: it takes one. */
    gpulua_status (*source_compile)(const struct backend_source *source, void **image,
                                    size_t *image_bytes, char **description,
                                    struct backend_error *error);
    /* Loads an image from module_compile (flag `compiled`), or PTX or cubin as given by a user. */
    gpulua_status (*module_load)(struct backend_device *device, const void *image,
                                 size_t image_bytes, bool compiled, struct backend_module **module,
                                 struct backend_error *error);
    /* A library whose calls are launched like kernels (one block of one thread): "blas"
     * (backend/blas.h). `options`: lines, by library. `*description` as from module_compile.
     * LIBRARY_UNAVAILABLE says which package has it. Blocks while it is loaded. NULL: there are
     * none. */
    gpulua_status (*library_open)(struct backend_device *device, const char *name,
                                  const char *options, struct backend_module **module,
                                  char **description, struct backend_error *error);
    void (*module_unload)(struct backend_device *device, struct backend_module *module);
    /* Lives as long as its module. `name` as in the description, or the symbol in a PTX or cubin.
     * INVALID_ARGUMENT: no such kernel. `*prints`: launches of it need flush_output. */
    gpulua_status (*kernel_get)(struct backend_module *module, const char *name,
                                struct backend_kernel **kernel, bool *prints,
                                struct wire_kernel_facts *facts, struct backend_error *error);
    gpulua_status (*global_get)(struct backend_module *module, const char *name, uint64_t *address,
                                uint64_t *bytes, struct backend_error *error);

    /* Words and events are moved by threads of this process, which call sink.moved: a word behind
     * each operation costs next to nothing, and nobody needs to poll. False: the device itself
     * writes words, and the executor looks at what the script side wants. */
    bool moves_by_threads;

    /* It has a check mode of its own (is_checked). False: the executor makes one, by hashing what a
     * launch may not change, with the slots above. */
    bool sees_accesses;
};

/* The backends of this build, NULL-terminated; cuda first where it is built in. */
extern const struct backend_ops *const gpu_backend_table[];
extern const struct backend_ops gpu_backend_cpu;
extern const struct backend_ops gpu_backend_cuda;

/* By name; NULL if not in this build. */
const struct backend_ops *gpu_backend_find(const char *name);

/* Formats into error->message and returns status. */
gpulua_status gpu_backend_fail(struct backend_error *error, gpulua_status status,
                               int32_t driver_code, const char *format, ...)
    __attribute__((cold, format(printf, 4, 5)));

/* ---- shared by the backends ---- */

/* backend/source.c: what can be read off the text without parsing C: names of __global__ functions
 * and their parameter names and constness of pointers is asked of the compiler, not here. */
struct backend_source_kernel {
    char *name;         /* owned */
    char **param_names; /* owned; may be fewer or more than the compiler finds */
    size_t param_count;
    bool is_template;
};
struct backend_source_names {
    struct backend_source_kernel *kernels;
    size_t kernel_count;
    char **globals; /* module-scope __device__, __constant__, __managed__ variables */
    bool *global_is_constant;
    size_t global_count;
};
gpulua_status gpu_backend_source_scan(const char *text, struct backend_source_names *names);
void gpu_backend_source_free(struct backend_source_names *names);
/* The text in which kernels with a gpulua_ctx (kernel/gpulua_kernel.h) ask first whether they are
 * to skip themselves, every line where it was. `*entered` is malloc'ed; NULL: there are none such.
 */
gpulua_status gpu_backend_source_enter(const char *text, char **entered);

/* backend/cache.c: compiled code on disk, by content. At most 256 MiB, oldest out, safe against
 * concurrent writers and readers, corrupt entries ignored. Key: any bytes; they are hashed together
 * with the version of this build. */
struct gpu_cache_key {
    char hex[65];
};
void gpu_cache_key_init(struct gpu_cache_key *key, const void *const *parts,
                        const size_t *part_bytes, size_t count);
/* Reads an entry. False: not there. `*bytes` malloc'ed. */
bool gpu_cache_get(const char *cache_path, const struct gpu_cache_key *key, const char *suffix,
                   void **bytes, size_t *byte_count);
/* Writes an entry (temporary file, rename). That it could not be is all that `outcome`, which may
 * be NULL, says of it: the cache is an optimisation. */
void gpu_cache_put(const char *cache_path, const struct gpu_cache_key *key, const char *suffix,
                   const void *bytes, size_t byte_count, struct wire_compiled *outcome);
/* The folder in use: `cache_path`, else $GPULUA_CACHE, else $XDG_CACHE_HOME/gpulua, else
 * ~/.cache/gpulua, else a folder of ours under /tmp that only we can write. Created when missing.
 * False: none can be had. */
bool gpu_cache_folder(const char *cache_path, char *folder, size_t folder_bytes);
/* Where that says false: why, in words. */
void gpu_cache_folder_why(const char *cache_path, char *text, size_t text_bytes);
/* False, with errno: what a compiler writes has no room in a folder that can be used. */
bool gpu_cache_has_room(const char *folder);

/* Folders in it whose name is this and hex digits count with all that is in them, and are evicted
 * like entries, by when they were held last; never while somebody holds them. */
#define GPU_CACHE_FOLDER_PREFIX "shim-"
/* Adds the line "cache FOLDER BYTES LIMIT", with tabs between; FOLDER is "" if none can be used. */
void gpu_cache_describe(const char *cache_path, struct text *text);
/* Keeps such a folder where it is until the descriptor is closed (the process may also just end).
 * -1: it is not there. */
int gpu_cache_folder_hold(const char *path);
/* Takes it away at once, whoever holds it: it is damaged. */
void gpu_cache_folder_drop(const char *path);

#endif
