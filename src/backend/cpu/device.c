/* The CPU device: the backend's ops table, device memory, facts. */
#include "backend/cpu/device.h"
#include "backend/cpu/check/check.h"
#include "backend/cpu/compile.h"
#include "backend/cpu/graph.h"
#include "backend/cpu/library.h"
#include "backend/cpu/lines.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "backend/cpu/check/schedule.h"

#define SLAB_ALIGN_BYTES 4096u

/* ---- facts ---- */

static uint64_t physical_bytes(void) {
    long pages = sysconf(_SC_PHYS_PAGES);
    long page_bytes = sysconf(_SC_PAGE_SIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
}

/* The first line "KEY ...: VALUE" of a file under /proc; false if there is none. */
static bool read_proc(const char *path, const char *key, char *value, size_t value_bytes) {
    FILE *file = fopen(path, "re");
    char line[512];
    bool is_found = false;
    while (file != NULL && !is_found && fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) == 0 && colon != NULL) {
            colon += 1 + strspn(colon + 1, " \t");
            colon[strcspn(colon, "\n")] = '\0';
            snprintf(value, value_bytes, "%s", colon);
            is_found = true;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return is_found;
}

static void read_name(char *name, size_t name_bytes) {
    struct utsname system;
    if (!read_proc("/proc/cpuinfo", "model name", name, name_bytes) || name[0] == '\0') {
        snprintf(name, name_bytes, "%s processor",
                 uname(&system) == 0 ? system.machine : "unknown");
    }
}

static int cpu_device_count(struct backend_error *error) {
    (void)error;
    return 1;
}

static void cpu_device_facts(struct backend_device *device, struct wire_device_facts *facts) {
    memset(facts, 0, sizeof *facts);
    facts->memory_bytes = device->memory_bytes;
    facts->multiprocessors = device->schedule == NULL ? device->worker_count : gpu_cpu_core_count();
    facts->warp_threads = 32;
    facts->block_threads_max = CPU_BLOCK_THREADS_MAX;
    facts->block_max[0] = 1024;
    facts->block_max[1] = 1024;
    facts->block_max[2] = 64;
    facts->grid_max[0] = 0x7fffffffu;
    facts->grid_max[1] = 65535;
    facts->grid_max[2] = 65535;
    facts->shared_bytes_max = CPU_SHARED_BYTES_MAX;
    facts->mp_threads = CPU_BLOCK_THREADS_MAX; /* a core runs one block at a time */
    facts->mp_blocks = 1;
    facts->has_words = 1;
    facts->priority_lowest = 0;
    facts->priority_highest = CPU_PRIORITY_HIGHEST;
    facts->graph_node_bytes = CPU_GRAPH_NODE_BYTES;
    memcpy(facts->name, device->name, sizeof facts->name);
}

static gpulua_status cpu_memory_info(struct backend_device *device, struct wire_memory_facts *facts,
                                     struct backend_error *error) {
    (void)error;
    char text[64];
    uint64_t free_bytes = device->memory_bytes - device->slab_bytes;
    if (read_proc("/proc/meminfo", "MemAvailable", text, sizeof text)) {
        uint64_t available_bytes = strtoull(text, NULL, 10) * 1024u;
        free_bytes = available_bytes < free_bytes ? available_bytes : free_bytes;
    }
    facts->bytes_total = device->memory_bytes;
    facts->bytes_free = free_bytes;
    return GPULUA_OK;
}

static gpulua_status cpu_device_status(struct backend_device *device, struct backend_error *error) {
    (void)device;
    (void)error;
    return GPULUA_OK; /* what kills it kills the process */
}

/* ---- opening and closing ---- */

static gpulua_status cpu_device_open(const struct backend_open_info *info,
                                     struct backend_device **device, struct backend_error *error) {
    if (info->ordinal != 0) {
        return gpu_backend_fail(error, GPULUA_NO_DEVICE, 0, "there is one CPU device, not cpu:%d",
                                info->ordinal);
    }
    struct backend_device *made = aligned_alloc(_Alignof(struct backend_device), sizeof *made);
    if (made == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "out of memory");
    }
    memset(made, 0, sizeof *made);
    made->ops = &gpu_backend_cpu;
    made->sink = info->sink;
    made->memory_bytes = physical_bytes();
    long page_bytes = sysconf(_SC_PAGE_SIZE);
    made->page_bytes =
        page_bytes > (long)SLAB_ALIGN_BYTES ? (uint64_t)page_bytes : SLAB_ALIGN_BYTES;
    read_name(made->name, sizeof made->name);
    if (info->cache_path != NULL) {
        made->cache_path = strdup(info->cache_path);
        if (made->cache_path == NULL) {
            free(made);
            return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "out of memory");
        }
    }
    gpulua_status status = GPULUA_OK;
    made->is_timed = info->is_timed;
    if (info->is_checked) {
        gpu_cpu_lines_open();
        made->check = gpu_check_create(info->seed, &made->sink);
        status = made->check != NULL
                     ? gpu_cpu_schedule_create(made, info, error)
                     : gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "out of memory");
    } else {
        status = gpu_cpu_pool_start(made, error);
    }
    if (status != GPULUA_OK) {
        gpu_check_destroy(made->check);
        free(made->cache_path);
        free(made);
        return status;
    }
    *device = made;
    return GPULUA_OK;
}

static void free_slab(struct backend_slab *slab) {
    munmap(slab->base, slab->span_bytes);
    free(slab);
}

static void cpu_slab_destroy(struct backend_device *device, struct backend_slab *slab) {
    if (device->check != NULL) {
        gpu_check_slab_destroy(device->check, (uint64_t)(uintptr_t)slab->base + device->page_bytes);
    } else if (gpu_cpu_kept_put(device, slab)) {
        return;
    }
    device->slab_bytes -= slab->bytes;
    *slab->link = slab->next;
    if (slab->next != NULL) {
        slab->next->link = slab->link;
    }
    free_slab(slab);
}

static void cpu_device_close(struct backend_device *device) {
    while (device->streams != NULL) {
        gpu_cpu_stream_destroy(device, device->streams); /* waits for its work */
    }
    while (device->graphs != NULL) {
        gpu_cpu_graph_destroy(device, device->graphs);
    }
    if (device->schedule != NULL) {
        gpu_cpu_schedule_destroy(device);
    } else {
        gpu_cpu_pool_stop(device);
    }
    while (device->modules != NULL) {
        struct cpu_module_entry *entry = device->modules;
        device->modules = entry->next;
        gpu_cpu_module_unload(entry->module);
        free(entry);
    }
    for (struct backend_slab *slab = device->slabs; slab != NULL;) {
        struct backend_slab *next = slab->next;
        free_slab(slab);
        slab = next;
    }
    gpu_check_destroy(device->check);
    free(device->cache_path);
    free(device);
}

/* ---- memory ---- */

/* Pages that nobody touches cost nothing; a page on either side faults for whoever runs off. */
static gpulua_status cpu_slab_create(struct backend_device *device, uint64_t bytes,
                                     struct backend_slab **slab, uint64_t *address,
                                     struct backend_error *error) {
    if (bytes > device->memory_bytes - device->slab_bytes) {
        gpu_cpu_kept_trim(device);
    }
    if (bytes == 0 || bytes > device->memory_bytes - device->slab_bytes) {
        return gpu_backend_fail(
            error, bytes == 0 ? GPULUA_INVALID_ARGUMENT : GPULUA_OUT_OF_MEMORY, 0,
            "%" PRIu64 " bytes asked for, %" PRIu64 " of %" PRIu64 " bytes of memory are taken",
            bytes, device->slab_bytes, device->memory_bytes);
    }
    uint64_t page = device->page_bytes;
    uint64_t inner_bytes = (bytes + page - 1) & ~(page - 1);
    struct backend_slab *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "out of memory");
    }
    made->bytes = bytes;
    made->span_bytes = inner_bytes + 2 * page;
    void *base =
        mmap(NULL, made->span_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        int code = errno;
        free(made);
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, code, "mmap of %" PRIu64 " bytes: %s",
                                bytes, strerror(code));
    }
    made->base = base;
    if (mprotect(made->base + page, inner_bytes, PROT_READ | PROT_WRITE) != 0) {
        int code = errno;
        munmap(base, made->span_bytes);
        free(made);
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, code,
                                "mprotect of %" PRIu64 " bytes: %s", bytes, strerror(code));
    }
    made->next = device->slabs;
    made->link = &device->slabs;
    if (made->next != NULL) {
        made->next->link = &made->next;
    }
    device->slabs = made;
    device->slab_bytes += bytes;
    *slab = made;
    *address = (uint64_t)(uintptr_t)(made->base + page);
    if (device->check != NULL) {
        gpu_check_slab_create(device->check, *address, bytes);
    }
    return GPULUA_OK;
}

/* Only check mode wants to know where memory is. */
static void cpu_memory_adopt(struct backend_device *device, uint64_t address, uint64_t bytes) {
    if (device->check != NULL) {
        gpu_check_slab_create(device->check, address, bytes);
    }
}

static void cpu_memory_leave(struct backend_device *device, uint64_t address) {
    if (device->check != NULL) {
        gpu_check_slab_destroy(device->check, address);
    }
}

static void cpu_block_written(struct backend_device *device, uint64_t address, uint64_t bytes) {
    gpu_check_filled(device->check, address, bytes);
}

static void cpu_block_create(struct backend_device *device, uint64_t number, uint64_t address,
                             uint64_t bytes, const char *label, bool is_scratch) {
    gpu_check_block_create(device->check, number, address, bytes, label, is_scratch);
}

static void cpu_block_free(struct backend_device *device, uint64_t number, const char *where) {
    gpu_check_block_free(device->check, number, where);
}

/* Nothing may touch it any more: what does so all the same, unseen, reads this. */
static void cpu_block_over(struct backend_device *device, uint64_t address, uint64_t bytes) {
    (void)device;
    memset((void *)(uintptr_t)address, WIRE_POISON_BYTE, bytes);
}

/* In check mode a launch takes what it declares along, behind its arguments. */
static gpulua_status cpu_launch(const struct backend_launch *launch, struct backend_error *error) {
    if (launch->stream->device->check == NULL) {
        return gpu_cpu_launch_put(launch, error);
    }
    struct backend_launch packed = *launch;
    void *args = gpu_check_launch_pack(launch->stream->device->check, launch, &packed.args_bytes);
    packed.args = args;
    gpulua_status status = args != NULL
                               ? gpu_cpu_launch_put(&packed, error)
                               : gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "out of memory");
    free(args);
    return status;
}

/* ---- modules ---- */

static gpulua_status cpu_module_compile(struct backend_device *device,
                                        const struct backend_source *source, void **image,
                                        size_t *image_bytes, char **description,
                                        struct backend_error *error) {
    return gpu_cpu_module_compile(device->cache_path, device->check != NULL, source, image,
                                  image_bytes, description, error);
}

static gpulua_status cpu_source_compile(const struct backend_source *source, void **image,
                                        size_t *image_bytes, char **description,
                                        struct backend_error *error) {
    return gpu_cpu_module_compile(NULL, false, source, image, image_bytes, description, error);
}

static gpulua_status module_enter(struct backend_device *device, struct cpu_module_entry *entry,
                                  gpulua_status status, struct backend_module **module) {
    if (status != GPULUA_OK) {
        free(entry);
        return status;
    }
    entry->next = device->modules;
    device->modules = entry;
    *module = (struct backend_module *)entry->module;
    return GPULUA_OK;
}

static gpulua_status cpu_module_load(struct backend_device *device, const void *image,
                                     size_t image_bytes, bool compiled,
                                     struct backend_module **module, struct backend_error *error) {
    struct cpu_module_entry *entry = malloc(sizeof *entry);
    if (entry == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "out of memory");
    }
    gpulua_status status = gpu_cpu_module_load(device->cache_path, image, image_bytes, compiled,
                                               &entry->module, error);
    return module_enter(device, entry, status, module);
}

static gpulua_status cpu_library_open(struct backend_device *device, const char *name,
                                      const char *options, struct backend_module **module,
                                      char **description, struct backend_error *error) {
    struct cpu_module_entry *entry = malloc(sizeof *entry);
    if (entry == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "out of memory");
    }
    gpulua_status status = gpu_cpu_library_open(name, options, &entry->module, description, error);
    return module_enter(device, entry, status, module);
}

static void cpu_module_unload(struct backend_device *device, struct backend_module *module) {
    for (struct cpu_module_entry **link = &device->modules; *link != NULL; link = &(*link)->next) {
        struct cpu_module_entry *entry = *link;
        if ((struct backend_module *)entry->module == module) {
            *link = entry->next;
            gpu_cpu_module_unload(entry->module);
            free(entry);
            return;
        }
    }
}

static gpulua_status cpu_kernel_get(struct backend_module *module, const char *name,
                                    struct backend_kernel **kernel, bool *prints,
                                    struct wire_kernel_facts *facts, struct backend_error *error) {
    *prints = false; /* they print by themselves */
    return gpu_cpu_kernel_get((struct cpu_module *)module, name, (struct cpu_kernel **)kernel,
                              facts, error);
}

static gpulua_status cpu_global_get(struct backend_module *module, const char *name,
                                    uint64_t *address, uint64_t *bytes,
                                    struct backend_error *error) {
    return gpu_cpu_global_get((struct cpu_module *)module, name, address, bytes, error);
}

const struct backend_ops gpu_backend_cpu = {
    .version = GPU_BACKEND_VERSION,
    .name = "cpu",
    .device_count = cpu_device_count,
    .describe = gpu_cpu_compiler_describe,
    .device_open = cpu_device_open,
    .device_close = cpu_device_close,
    .device_facts = cpu_device_facts,
    .memory_info = cpu_memory_info,
    .device_status = cpu_device_status,
    .slab_create = cpu_slab_create,
    .slab_destroy = cpu_slab_destroy,
    .pool_alloc = gpu_cpu_kept_alloc,
    .pool_trim = gpu_cpu_kept_trim,
    .stream_create = gpu_cpu_stream_create,
    .stream_destroy = gpu_cpu_stream_destroy,
    .stream_word = gpu_cpu_stream_word,
    .stream_wait = gpu_cpu_stream_wait,
    .event_create = gpu_cpu_event_create,
    .event_destroy = gpu_cpu_event_destroy,
    .event_record = gpu_cpu_event_record,
    .stream_query = gpu_cpu_stream_query,
    .event_query = gpu_cpu_event_query,
    .event_wait = gpu_cpu_event_wait,
    .event_times = gpu_cpu_event_times,
    .block_create = cpu_block_create,
    .block_free = cpu_block_free,
    .block_written = cpu_block_written,
    .memory_adopt = cpu_memory_adopt,
    .memory_leave = cpu_memory_leave,
    .block_over = cpu_block_over,
    .ask = gpu_cpu_schedule_ask,
    .copy = gpu_cpu_copy,
    .upload = gpu_cpu_upload,
    .download = gpu_cpu_download,
    .fill = gpu_cpu_fill,
    .launch = cpu_launch,
    .graph_begin = gpu_cpu_graph_begin,
    .graph_node = gpu_cpu_graph_node,
    .graph_control = gpu_cpu_graph_control,
    .graph_body_end = gpu_cpu_graph_body_end,
    .graph_end = gpu_cpu_graph_end,
    .graph_upload = gpu_cpu_graph_upload,
    .graph_launch = gpu_cpu_graph_launch,
    .graph_patch = gpu_cpu_graph_patch,
    .graph_patched = gpu_cpu_graph_patched,
    .graph_destroy = gpu_cpu_graph_destroy,
    .module_compile = cpu_module_compile,
    .source_compile = cpu_source_compile,
    .module_load = cpu_module_load,
    .library_open = cpu_library_open,
    .module_unload = cpu_module_unload,
    .kernel_get = cpu_kernel_get,
    .global_get = cpu_global_get,
    .moves_by_threads = true,
    .sees_accesses = true,
};
