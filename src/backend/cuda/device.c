/* CUDA devices: opening, facts, errors, closing; the table of the backend. */
#include "backend/cuda/graph.h"
#include "backend/cuda/say.h"
#include "backend/cuda/toolkit.h"
#include "backend/cuda/tracer.h"

#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */

#define ASSERT_FAILED 710 /* CUDA_ERROR_ASSERT */

/* After these the context, and with it every context of this process on the device, answers nothing
 * but errors. */
static bool is_fatal(CUresult result) {
    switch ((int)result) {
    case 4:   /* CUDA_ERROR_DEINITIALIZED: the process is ending */
    case 214: /* CUDA_ERROR_ECC_UNCORRECTABLE */
    case 220: /* CUDA_ERROR_NVLINK_UNCORRECTABLE */
    case 226: /* CUDA_ERROR_CONTAINED */
    case 700: /* CUDA_ERROR_ILLEGAL_ADDRESS */
    case 702: /* CUDA_ERROR_LAUNCH_TIMEOUT */
    case 709: /* CUDA_ERROR_CONTEXT_IS_DESTROYED */
    case ASSERT_FAILED:
    case 714: /* CUDA_ERROR_HARDWARE_STACK_ERROR */
    case 715: /* CUDA_ERROR_ILLEGAL_INSTRUCTION */
    case 716: /* CUDA_ERROR_MISALIGNED_ADDRESS */
    case 717: /* CUDA_ERROR_INVALID_ADDRESS_SPACE */
    case 718: /* CUDA_ERROR_INVALID_PC */
    case 719: /* CUDA_ERROR_LAUNCH_FAILED */
    case 721: /* CUDA_ERROR_TENSOR_MEMORY_LEAK */
        return true;
    default:
        return false;
    }
}

static gpulua_status status_of(CUresult result) {
    switch ((int)result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        return GPULUA_OUT_OF_MEMORY;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
        return GPULUA_NO_DEVICE;
    case CUDA_ERROR_NOT_SUPPORTED:
        return GPULUA_UNSUPPORTED;
    case CUDA_ERROR_STUB_LIBRARY:
        return GPULUA_LIBRARY_UNAVAILABLE;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
    case CUDA_ERROR_CAPTURED_EVENT:
        return GPULUA_CAPTURE_ACTIVE;
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_MERGE:
    case CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:
    case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
        return GPULUA_CAPTURE_INVALIDATED;
    case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
        return GPULUA_STREAM_MISUSE;
    default:
        return GPULUA_DRIVER;
    }
}

gpulua_status gpu_cuda_failed(struct backend_device *device, CUresult result, const char *call,
                              const char *file, int line, struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    const char *name = NULL, *text = NULL;
    if (cu->cuGetErrorName(result, &name) != CUDA_SUCCESS || name == NULL) {
        name = "an error that the driver has no name for";
    }
    if (cu->cuGetErrorString(result, &text) != CUDA_SUCCESS || text == NULL) {
        text = "no text";
    }
    if (strncmp(call, "cu->", 4) == 0) {
        call += 4;
    }
    gpulua_status status = is_fatal(result) ? GPULUA_DEVICE_LOST : status_of(result);
    char logged[CUDA_LOG_TEXT_BYTES];
    gpu_cuda_log_read(device, call, logged, sizeof logged);
    bool is_first = status == GPULUA_DEVICE_LOST && device->lost == CUDA_SUCCESS;
    if (is_first && (int)result == ASSERT_FAILED) {
        (void)cu->cuCtxSynchronize(); /* fails at once; prints what the assertions said */
    }
    struct backend_error made;
    gpu_backend_fail(&made, status, (int32_t)result, "%s (%d, %s) from %s at %s:%d%s%s", name,
                     (int)result, text, call, file, line,
                     logged[0] != '\0' ? "; the driver says: " : "", logged);
    if (is_first) {
        device->lost = result;
        memcpy(device->lost_text, made.message, sizeof device->lost_text);
        device->lost_text[sizeof device->lost_text - 1] = '\0';
    }
    return gpu_backend_fail(error, status, (int32_t)result, "%s", made.message);
}

gpulua_status gpu_cuda_lost(const struct backend_device *device, struct backend_error *error) {
    return gpu_backend_fail(error, GPULUA_DEVICE_LOST, (int32_t)device->lost, "%s",
                            device->lost_text);
}

/* The query answers at once, with the fault that ended the device if there was one, also when
 * nobody has asked after an operation since. */
static gpulua_status device_status(struct backend_device *device, struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status == GPULUA_OK) {
        CUresult result = cu->cuEventQuery(device->probe);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY && is_fatal(result)) {
            status =
                gpu_cuda_failed(device, result, "cuEventQuery(probe)", __FILE__, __LINE__, error);
        } else {
            gpu_cuda_alarm_answered(device);
        }
    }
    return status == GPULUA_DEVICE_LOST ? status : GPULUA_OK;
}

/* ---- opening ---- */

static gpulua_status driver_start(struct backend_device *device, int *count,
                                  struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    *count = 0;
    gpulua_status status = gpu_cuda_driver_open(&device->cu, error);
    if (status == GPULUA_OK) {
        gpu_cuda_log_begin(device);
        status = CU(device, error, cu->cuInit(0));
    }
    if (status == GPULUA_OK) {
        status = CU(device, error, cu->cuDeviceGetCount(count));
    }
    return status;
}

static int device_count(struct backend_error *error) {
    int count = 0;
    struct backend_device *device = calloc(1, sizeof *device);
    if (device == NULL) {
        gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
        return 0;
    }
    if (driver_start(device, &count, error) == GPULUA_OK && count == 0) {
        gpu_backend_fail(error, GPULUA_NO_DEVICE, 0, "the CUDA driver sees no GPU");
    }
    free(device);
    return count;
}

static gpulua_status attribute_get(struct backend_device *device, CUdevice_attribute attribute,
                                   uint32_t *value, struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    int got = 0;
    gpulua_status status =
        CU(device, error, cu->cuDeviceGetAttribute(&got, attribute, device->handle));
    *value = got > 0 ? (uint32_t)got : 0;
    return status;
}

/* What may be missing: an attribute that the driver does not know is a no. */
static bool attribute_is_set(const struct backend_device *device, CUdevice_attribute attribute) {
    int got = 0;
    return device->cu.cuDeviceGetAttribute(&got, attribute, device->handle) == CUDA_SUCCESS &&
           got != 0;
}

static gpulua_status facts_read(struct backend_device *device, struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    struct wire_device_facts *facts = &device->facts;
    uint32_t major = 0, minor = 0, opt_in = 0;
    const struct {
        CUdevice_attribute attribute;
        uint32_t *value;
    } wanted[] = {
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &facts->multiprocessors},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, &facts->warp_threads},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &facts->block_threads_max},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, &facts->block_max[0]},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, &facts->block_max[1]},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, &facts->block_max[2]},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, &facts->grid_max[0]},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, &facts->grid_max[1]},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, &facts->grid_max[2]},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, &device->shared_bytes_default},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &opt_in},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        gpulua_status status = attribute_get(device, wanted[i].attribute, wanted[i].value, error);
        if (status != GPULUA_OK) {
            return status;
        }
    }
    /* For occupancy; older drivers do not know all of them. */
    const struct {
        CUdevice_attribute attribute;
        uint32_t *value;
    } more[] = {
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &facts->mp_threads},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, &facts->mp_blocks},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, &facts->mp_registers},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, &facts->mp_shared_bytes},
        {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, &facts->shared_reserved_bytes},
    };
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        int value = 0;
        if (cu->cuDeviceGetAttribute(&value, more[i].attribute, device->handle) == CUDA_SUCCESS) {
            *more[i].value = value > 0 ? (uint32_t)value : 0;
        }
    }
    facts->mp_blocks = facts->mp_blocks != 0 ? facts->mp_blocks : 16;
    facts->compute = major * 10 + minor;
    facts->shared_bytes_max =
        opt_in > device->shared_bytes_default ? opt_in : device->shared_bytes_default;
    facts->driver_version = (uint32_t)cu->version;
    facts->graph_node_bytes = CUDA_GRAPH_NODE_BYTES;
    size_t bytes = 0;
    gpulua_status status = CU(device, error, cu->cuDeviceTotalMem(&bytes, device->handle));
    facts->memory_bytes = bytes;
    if (status == GPULUA_OK) {
        status = CU(device, error,
                    cu->cuDeviceGetName(facts->name, (int)sizeof facts->name, device->handle));
    }
    if (status == GPULUA_OK) {
        status =
            CU(device, error,
               cu->cuCtxGetStreamPriorityRange(&facts->priority_lowest, &facts->priority_highest));
    }
    device->has_words = device->dump == NULL && cu->cuStreamWriteValue64 != NULL &&
                        attribute_is_set(device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
    facts->has_words = device->has_words;
    device->has_virtual =
        cu->cuMemGetAllocationGranularity != NULL && cu->cuMemAddressReserve != NULL &&
        cu->cuMemAddressFree != NULL && cu->cuMemCreate != NULL && cu->cuMemRelease != NULL &&
        cu->cuMemMap != NULL && cu->cuMemUnmap != NULL && cu->cuMemSetAccess != NULL &&
        attribute_is_set(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    device->has_export =
        attribute_is_set(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    gpu_cuda_prepared_init(device);
    gpu_cuda_graphs_init(device);
    gpu_cuda_control_init(device);
    return status;
}

static void list_init(struct link *list) {
    list->next = list->previous = list;
}

static void device_free(struct backend_device *device) {
    gpu_cuda_alarm_close(device);
    free(device->ranges);
    free(device->warmth.kernel);
    free(device->cache_path);
    gpu_cuda_dump_free(device);
    free(device);
}

static gpulua_status device_open(const struct backend_open_info *info, struct backend_device **out,
                                 struct backend_error *error) {
    int count;
    *out = NULL;
    struct backend_device *device = calloc(1, sizeof *device);
    if (device == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    const struct cuda_driver *cu = &device->cu;
    device->ops = &gpu_backend_cuda;
    device->sink = info->sink;
    /* Where a dump is asked for, the end of an event alone says nothing (dump.c). */
    device->sleeps = info->sleeps && info->coredump_base == NULL;
    list_init(&device->slabs);
    list_init(&device->streams);
    list_init(&device->events);
    list_init(&device->modules);
    list_init(&device->graphs);
    list_init(&device->captures);
    gpulua_status status = driver_start(device, &count, error);
    gpu_cuda_captures_init(device);
    if (status == GPULUA_OK && info->cache_path != NULL) {
        device->cache_path = strdup(info->cache_path);
        if (device->cache_path == NULL) {
            status = gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
        }
    }
    if (status == GPULUA_OK && info->coredump_base != NULL) {
        status = gpu_cuda_dump_begin(device, info->coredump_base, error);
    }
    if (status == GPULUA_OK) {
        status = gpu_cuda_context_open(device, info, count, error);
    }
    if (status == GPULUA_OK) {
        status = facts_read(device, error);
    }
    if (status == GPULUA_OK && device->dump != NULL) {
        status = gpu_cuda_dump_prepare(device, error);
    }
    if (status == GPULUA_OK) {
        status = CU(device, error, cu->cuEventCreate(&device->probe, CU_EVENT_DISABLE_TIMING));
    }
    if (status != GPULUA_OK) {
        gpu_cuda_dump_close(device);
        gpu_cuda_context_close(device);
        device_free(device);
        return status;
    }
    if (info->is_timed) { /* without it events tell, too; why, --info says */
        struct backend_error unused = {0};
        device->is_timed = gpu_cuda_tracer_open(device, &unused) != GPULUA_OK;
        free(unused.log);
    }
    if (info->is_apart && info->coredump_base == NULL) { /* which the driver needs its time for */
        gpu_cuda_alarm_open(device);
    }
    *out = device;
    return GPULUA_OK;
}

/* To wait for the context would break captures that the host has under way there: of streams of its
 * own, or of another device of ours. And in a context of the host's it would be to wait for the
 * host's work; what is ours on its stream the executor has waited for. */
static void work_wait(struct backend_device *device) {
    const struct cuda_driver *cu = &device->cu;
    bool is_ours = !device->has_foreign_context && !gpu_cuda_may_be_captured();
    if (gpu_cuda_enter(device, NULL) != GPULUA_OK) {
        return;
    }
    if (is_ours) {
        (void)CU(device, NULL, cu->cuCtxSynchronize());
        return;
    }
    for (struct link *at = device->streams.next; at != &device->streams; at = at->next) {
        const struct backend_stream *stream = (const struct backend_stream *)(const void *)at;
        if (!stream->is_foreign && !gpu_cuda_is_taken(stream)) {
            (void)CU(device, NULL, cu->cuStreamSynchronize(stream->handle));
        }
    }
}

/* Of a lost device only our own memory is freed: the driver answers nothing but errors, and what it
 * holds goes with the process. */
static void device_close(struct backend_device *device) {
    if (device == NULL) {
        return;
    }
    const struct cuda_driver *cu = &device->cu;
    gpu_cuda_alarm_stop(device);
    /* First, because a context with a stream that is being captured cannot be waited for; of a
     * graph that is still at work the driver keeps what it needs. */
    gpu_cuda_tracer_close(device);
    gpu_cuda_captures_close(device);
    while (device->graphs.next != &device->graphs) {
        gpu_cuda_graph_destroy(device, (struct backend_graph *)(void *)device->graphs.next);
    }
    work_wait(device);
    while (device->modules.next != &device->modules) {
        gpu_cuda_module_unload(device, (struct backend_module *)(void *)device->modules.next);
    }
    gpu_cuda_prepared_calls_forget(device, NULL);
    gpu_cuda_blas_close(device);
    gpu_cuda_rng_close(device);
    gpu_cuda_fft_close(device);
    while (device->events.next != &device->events) {
        gpu_cuda_event_destroy(device, (struct backend_event *)(void *)device->events.next);
    }
    while (device->streams.next != &device->streams) {
        gpu_cuda_stream_destroy(device, (struct backend_stream *)(void *)device->streams.next);
    }
    while (device->slabs.next != &device->slabs) {
        gpu_cuda_slab_destroy(device, (struct backend_slab *)(void *)device->slabs.next);
    }
    gpu_cuda_pool_close(device);
    while (device->range_count > 0) {
        gpu_cuda_host_unregister(device, device->ranges[device->range_count - 1].base);
    }
    if (gpu_cuda_enter(device, NULL) == GPULUA_OK) {
        if (device->choose_module != NULL) {
            (void)cu->cuModuleUnload(device->choose_module);
        }
        if (device->fill_module != NULL) {
            (void)cu->cuModuleUnload(device->fill_module);
        }
        gpu_cuda_dump_close(device);
        gpu_cuda_clock_close(device);
        (void)cu->cuEventDestroy(device->probe);
        gpu_cuda_context_close(device);
    }
    device_free(device);
}

static void device_facts(struct backend_device *device, struct wire_device_facts *facts) {
    *facts = device->facts;
}

const struct backend_ops gpu_backend_cuda = {
    .version = GPU_BACKEND_VERSION,
    .name = "cuda",
    .device_count = device_count,
    .describe = gpu_cuda_describe,
    .device_open = device_open,
    .device_close = device_close,
    .device_facts = device_facts,
    .memory_info = gpu_cuda_memory_info,
    .device_status = device_status,
    .slab_create = gpu_cuda_slab_create,
    .slab_destroy = gpu_cuda_slab_destroy,
    .pool_alloc = gpu_cuda_pool_alloc,
    .pool_trim = gpu_cuda_pool_trim,
    .host_register = gpu_cuda_host_register,
    .host_unregister = gpu_cuda_host_unregister,
    .host_address = gpu_cuda_host_address,
    .stream_create = gpu_cuda_stream_create,
    .stream_foreign = gpu_cuda_stream_foreign,
    .stream_destroy = gpu_cuda_stream_destroy,
    .stream_word = gpu_cuda_stream_word,
    .stream_wait = gpu_cuda_stream_wait,
    .stream_native = gpu_cuda_stream_native,
    .capture_begin = gpu_cuda_capture_open,
    .capture_look = gpu_cuda_capture_look,
    .capture_end = gpu_cuda_capture_close,
    .calls_begin = gpu_cuda_calls_begin,
    .calls_end = gpu_cuda_calls_end,
    .calls_hold = gpu_cuda_calls_hold,
    .stream_give = gpu_cuda_stream_give,
    .stream_take = gpu_cuda_stream_take,
    .event_create = gpu_cuda_event_create,
    .event_destroy = gpu_cuda_event_destroy,
    .event_record = gpu_cuda_event_record,
    .event_query = gpu_cuda_event_query,
    .stream_query = gpu_cuda_stream_query,
    .event_wait = gpu_cuda_event_wait,
    .event_times = gpu_cuda_event_times,
    .tells_times = gpu_cuda_tells_times,
    .trace_begin = gpu_cuda_trace_begin,
    .trace_end = gpu_cuda_trace_end,
    .trace_flush = gpu_cuda_trace_flush,
    .warm = gpu_cuda_warm,
    .copy = gpu_cuda_copy,
    .upload = gpu_cuda_upload,
    .download = gpu_cuda_download,
    .fill = gpu_cuda_fill,
    .launch = gpu_cuda_launch,
    .graph_begin = gpu_cuda_graph_begin,
    .graph_node = gpu_cuda_graph_node,
    .graph_control = gpu_cuda_graph_control,
    .graph_body_end = gpu_cuda_graph_body_end,
    .graph_control_prepare = gpu_cuda_control_prepare,
    .graph_end = gpu_cuda_graph_end,
    .graph_upload = gpu_cuda_graph_upload,
    .graph_launch = gpu_cuda_graph_launch,
    .graph_patch = gpu_cuda_graph_patch,
    .graph_patched = gpu_cuda_graph_patched,
    .graph_destroy = gpu_cuda_graph_destroy,
    .flush_output = gpu_cuda_flush_output,
    .module_compile = gpu_cuda_module_compile,
    .module_load = gpu_cuda_module_load,
    .library_open = gpu_cuda_library_module,
    .module_unload = gpu_cuda_module_unload,
    .kernel_get = gpu_cuda_kernel_get,
    .global_get = gpu_cuda_global_get,
};
