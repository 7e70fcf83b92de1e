/* Devices as scripts have them. */
#ifndef GPU_BINDING_DEVICE_H
#define GPU_BINDING_DEVICE_H

#include "binding/loop.h"

struct stream_record;

/* What a host opens for several objects. It closes with the last hold on it: the host's own, and
 * one of each object. */
struct gpulua_device {
    atomic_uint refs;
    struct gpu_device *device; /* retained; shared (runtime/share.h) */
    bool is_confined;
    uint32_t close_timeout_ms;
};

/* Open devices are in the gpulua object's list and anchored there: they stay until they are closed,
 * so that what was left running is looked after. */
struct device_handle {
    struct tagged tag;
    struct gpu_device *device; /* retained; NULL: closed */
    /* Retained from the close to the collection of the handle: a call may be under way on it,
     * further up on the C stack, that has asked for the device already. */
    struct gpu_device *closed_device;
    struct device_handle *next;
    struct gpulua *g;
    bool is_linked;
    bool is_plain;                /* opened without options: gpu.device finds it again */
    struct gpulua_device *shared; /* held; NULL: the device is this object's own */
    int poll_fd;
    struct gpu_news *news;      /* told to the script; NULL: closed */
    struct script_hooks *hooks; /* owned (hooks.c); NULL: it never had any */
    /* Borrowed from the device: those that work of this object has gone to. */
    struct gpu_stream *task_streams[GPU_TASK_STREAMS];
    struct stream_record *streams;
    char requested[32]; /* the name that it was asked for by; "": the default */
    bool is_default;    /* asked for by name first, and then by none */
    int64_t waited_ms;  /* for its work, in vain, at the end */
    char label[64];
};

/* The handle's device, or raises Closed. */
struct gpu_device *gpu_lua_check_device(lua_State *L, struct gpulua *g, int index,
                                        struct device_handle **handle);
/* Pushes the handle of a device of this state; nil if it has none any more. */
void gpu_lua_push_device(lua_State *L, struct gpulua *g, struct gpu_device *device);
static inline struct device_handle *gpu_lua_find_device(const struct gpulua *g,
                                                        const struct gpu_device *device) {
    struct device_handle *handle = g->devices;
    while (handle && handle->device != device) {
        handle = handle->next;
    }
    return handle;
}
/* Raises the oldest failure of the device that nobody has seen, if there is one, or that the device
 * is lost. `is_own`: not what another task launched that has not ended, which may yet see it. */
void gpu_lua_raise_unobserved(lua_State *L, struct gpu_device *device, bool is_own);
/* Tells the host of them instead. */
void gpu_lua_device_report(struct gpulua *g, lua_State *L, struct device_handle *handle);
void gpu_lua_device_close(struct gpulua *g, struct device_handle *handle);
/* Before that: waits for work in flight, unless there is an interrupt, and tells the host's log
 * when it takes long. What a process of its own has not ended by then ends with it; false: there is
 * such work, `error` names it. */
bool gpu_lua_device_settle(struct gpulua *g, struct device_handle *handle, int64_t timeout_ms,
                           struct gpu_error *error);

/* "process" or "none". InvalidArgument, Unsupported ("thread"); `what` says where it stood. */
gpulua_status gpu_lua_isolation(const char *text, const char *what, gpulua_isolation *isolation,
                                struct gpu_error *error);
/* "word", "event" or "block"; NULL: what $GPULUA_COMPLETION says, if it does. InvalidArgument. */
gpulua_status gpu_lua_completion(const char *text, gpulua_completion *completion,
                                 struct gpu_error *error);

/* ---- shared.c ---- */
/* Is gpu.device() of that name (NULL: without one) what the host gave to this object and others? */
bool gpu_lua_shared_is_meant(const struct gpulua *g, const char *name);
/* A seat there, and the device into the handle. */
gpulua_status gpu_lua_shared_take(struct gpulua *g, struct device_handle *handle,
                                  struct gpu_error *error);
void gpu_lua_shared_leave(struct gpulua *g, struct device_handle *handle);

int gpu_lua_device_get(lua_State *L);       /* gpu.device([name[, options]]) */
int gpu_lua_device_list(lua_State *L);      /* gpu.devices() */
int gpu_lua_unclosed_devices(lua_State *L); /* core.unclosed_devices */

/* Methods of devices that are in other files. */
int gpu_lua_device_describe(lua_State *L);
int gpu_lua_device_stream(lua_State *L);   /* stream.c */
int gpu_lua_device_recorder(lua_State *L); /* recorder.c */
int gpu_lua_device_current(lua_State *L);  /* stream.c */
int gpu_lua_device_buffer(lua_State *L);   /* buffer.c */
int gpu_lua_overlap(lua_State *L);         /* map.c */
int gpu_lua_map_kind(lua_State *L);        /* map.c */
int gpu_lua_map_fits(lua_State *L);        /* map.c */
int gpu_lua_device_library(lua_State *L);  /* library.c */
int gpu_lua_library_value(lua_State *L);   /* library.c */
int gpu_lua_dims(lua_State *L);            /* library.c */
int gpu_lua_stream_number(lua_State *L);   /* library.c */
int gpu_lua_scalar_of(lua_State *L);       /* scalar.c */
int gpu_lua_device_upload(lua_State *L);   /* buffer.c */
int gpu_lua_device_host(lua_State *L);     /* host.c */
int gpu_lua_device_compile(lua_State *L);  /* module.c */
int gpu_lua_device_load(lua_State *L);     /* module.c */
int gpu_lua_device_memory(lua_State *L);   /* memory.c */
int gpu_lua_device_inject(lua_State *L);   /* inject.c */
int gpu_lua_device_flight(lua_State *L);   /* flight.c */
int gpu_lua_inject_slow(lua_State *L);     /* core.inject_slow */

/* Of the table on top: source = "file:line", where that is known. */
void gpu_lua_set_source(lua_State *L, const char *source, int line);
int gpu_lua_memory_map(lua_State *L);   /* core.memory_map */
int gpu_lua_in_flight(lua_State *L);    /* core.in_flight */
int gpu_lua_raise_unseen(lua_State *L); /* core.raise_unseen */
int gpu_lua_streams(lua_State *L);      /* stream.c: core.streams */

#endif
