/* External: memory of other libraries in this process (see exchange.h). Each import is a slab of
 * its own on the wire; nothing is allocated, and no budget counts it. */
#include <stdlib.h>
#include <string.h>

#include "runtime/exchange.h"
#include "runtime/memory/stack.h"

struct gpu_import {
    struct gpu_import *next, **link; /* of the device, or lent out past its end */
    void (*release)(void *user);
    void *user;
};

static void import_unlink(struct gpu_import *import) {
    *import->link = import->next;
    if (import->next) {
        import->next->link = import->link;
    }
}

static void import_link(struct gpu_import *import, struct gpu_import **list) {
    import->next = *list;
    import->link = list;
    if (import->next) {
        import->next->link = &import->next;
    }
    *list = import;
}

static void import_end(struct gpu_import *import) {
    import_unlink(import);
    void (*release)(void *user) = import->release;
    void *user = import->user;
    free(import);
    release(user); /* last: it is code of somebody else's */
}

/* On a shared device its owner is told when the lock is let go of: it may wait for somebody who
 * waits for that. */
static void import_return(struct gpu_device *device, struct gpu_import *import) {
    if (device->share) {
        gpu_import_leave(import, &device->share->returned);
    } else {
        import_end(import);
    }
}

void gpu_imports_return(struct gpu_device *device) {
    while (device->imports) {
        import_return(device, device->imports);
    }
}

void gpu_imports_end(struct gpu_import **list) {
    while (*list) {
        import_end(*list);
    }
}

void gpu_import_leave(struct gpu_import *import, struct gpu_import **list) {
    import_unlink(import);
    import_link(import, list);
}

/* ---- what is known ---- */

static struct gpu_block *live_block_at(const struct gpu_device *device, bool is_host,
                                       uint64_t address) {
    for (struct gpu_block *block = device->blocks; block; block = block->next) {
        if (block->is_host == is_host && address >= block->address &&
            address - block->address < block->byte_count) {
            return block;
        }
    }
    return NULL;
}

static gpulua_status take_known(struct gpu_block *known, uint64_t address,
                                const struct gpu_import_info *info, struct gpu_block **block,
                                uint64_t *byte_offset, struct gpu_error *error) {
    *byte_offset = address - known->address;
    if (info->byte_count > known->byte_count - *byte_offset) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "import: %llu bytes run across the end of memory that is known "
                             "already (allocation %llu%s%s): %llu bytes of it are left there",
                             (unsigned long long)info->byte_count,
                             (unsigned long long)known->number, known->label[0] ? ", " : "",
                             known->label, (unsigned long long)(known->byte_count - *byte_offset));
    }
    if (known->is_foreign) {
        known->is_trackable = known->is_trackable || info->is_ordered;
        known->is_read_only = known->is_read_only && info->is_read_only;
    }
    *block = gpu_block_retain(known);
    return GPULUA_OK;
}

static gpulua_status no_live_buffer(struct gpu_device *device, struct gpu_error *error) {
    return gpu_error_set(error, GPULUA_USE_AFTER_FREE,
                         "import: the memory is of device %s, but no live buffer of its has it",
                         device->title);
}

/* `*block` NULL: nobody knows it. */
static gpulua_status find_known(struct gpu_device *device, const struct gpu_import_info *info,
                                struct gpu_block **block, uint64_t *byte_offset,
                                struct gpu_error *error) {
    uint64_t arena = (uint64_t)(uintptr_t)device->link->arena;
    *block = NULL;
    if (info->address >= arena && info->address - arena < device->link->arena_bytes) {
        uint64_t offset = info->address - arena;
        struct gpu_block *known = live_block_at(device, true, offset);
        return known ? take_known(known, offset, info, block, byte_offset, error)
                     : no_live_buffer(device, error);
    }
    if (device->isolation == GPULUA_ISOLATE_PROCESS) {
        return gpu_error_set(error, GPULUA_UNSUPPORTED,
                             "import: device %s lives in a process of its own, which does not see "
                             "memory of this one: copy it",
                             device->title);
    }
    if (info->is_host && strcmp(device->kind, "cpu") != 0) {
        return gpu_error_set(error, GPULUA_UNSUPPORTED,
                             "import: kernels of device %s cannot use memory of the host: copy it",
                             device->title);
    }
    bool is_settled = false;
    for (;;) {
        struct wire_slab_facts facts;
        gpulua_status status =
            gpu_slab_find(device, 0, info->address, info->byte_count, &facts, error);
        if (status || facts.slab == 0) {
            return status;
        }
        uint64_t begin = facts.address + facts.begin;
        uint64_t first = info->address < begin ? begin : info->address;
        struct gpu_block *known =
            live_block_at(device, false, gpu_wire_address(facts.slab, first - facts.address));
        if (known && first == info->address) {
            return take_known(known, gpu_wire_address(facts.slab, first - facts.address), info,
                              block, byte_offset, error);
        }
        if (known) {
            return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                                 "import: %llu bytes run into memory that is known already, after "
                                 "%llu of them: import the whole first",
                                 (unsigned long long)info->byte_count,
                                 (unsigned long long)(first - info->address));
        }
        /* Perhaps an import from before, whose last uses are not over yet, or were not when asking
         * began. */
        if (is_settled) {
            return no_live_buffer(device, error);
        }
        is_settled = !gpu_device_wait_retiring(device, error, &status);
        if (status) {
            return status;
        }
        (void)gpu_device_reap(device);
    }
}

/* ---- imports ---- */

static gpulua_status adopt(struct gpu_device *device, const struct gpu_import_info *info,
                           uint32_t *slab, struct gpu_error *error) {
    gpulua_status status = gpu_slab_number_take(device, slab, error);
    if (status) {
        return status;
    }
    struct wire_record record = {
        .length_bytes = sizeof record, .opcode = WIRE_OP_SLAB_ADOPT, .object = *slab};
    record.u.foreign.address = info->address;
    record.u.foreign.bytes = info->byte_count;
    status = gpu_request_wait(device, &record, "import", NULL, NULL, error);
    if (status) {
        gpu_slab_number_give(device, *slab);
    }
    return status;
}

gpulua_status gpu_import(struct gpu_device *device, const struct gpu_import_info *info,
                         struct gpu_block **block, uint64_t *byte_offset, bool *is_known,
                         struct gpu_error *error) {
    GPU_ENTER(device);
    gpulua_status status = gpu_device_check(device, error);
    if (status) {
        return status;
    }
    uint64_t bytes_max = GPU_BLOCK_BYTES_MAX - GPU_RANGE_ALIGN_BYTES; /* of what a slab can name */
    if (info->byte_count > bytes_max) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "import: %llu bytes, a buffer has at most %llu",
                             (unsigned long long)info->byte_count, (unsigned long long)bytes_max);
    }
    gpu_device_run_deferred(device);
    status = find_known(device, info, block, byte_offset, error);
    *is_known = *block != NULL;
    if (status || *is_known) {
        return status;
    }
    struct gpu_import *import = calloc(1, sizeof *import);
    if (!import) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for an import");
    }
    uint32_t slab;
    status = adopt(device, info, &slab, error);
    if (status) {
        free(import);
        return status;
    }
    uint64_t address = gpu_wire_address(slab, info->address % GPU_RANGE_ALIGN_BYTES);
    struct gpu_block *made =
        gpu_block_create_foreign(device, address, info->byte_count, info->label);
    if (!made) {
        gpu_slab_number_give(device, slab);
        free(import);
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for an import");
    }
    import->release = info->release;
    import->user = info->user;
    import_link(import, &device->imports);
    made->grant.range.region = slab;
    made->grant.tag = import;
    made->is_trackable = info->is_ordered;
    made->is_read_only = info->is_read_only;
    device->stats.imports_live++;
    struct gpu_ref all = {.block = made, .byte_count = info->byte_count};
    gpu_ref_written(&all);
    *block = made;
    *byte_offset = 0;
    return GPULUA_OK;
}

static void external_deallocate(struct gpu_memory *memory, struct gpu_grant *grant,
                                const struct gpu_block *block) {
    (void)block;
    gpu_slab_number_give(memory->device, grant->range.region);
    memory->device->stats.imports_live--;
    if (memory->device->state != GPU_DEVICE_LOST) {
        import_return(memory->device, grant->tag);
    } /* else what is given up may run on: its owner has it back when the device is closed */
}

static gpulua_status external_allocate(struct gpu_memory *memory,
                                       struct gpu_memory_request *request, struct gpu_grant *grant,
                                       struct gpu_error *error) {
    (void)memory;
    (void)request;
    (void)grant;
    return gpu_error_set(error, GPULUA_UNSUPPORTED, "external memory is imported, not allocated");
}

static const struct gpu_memory_ops external_ops = {
    .kind = "external", .allocate = external_allocate, .deallocate = external_deallocate};
const struct gpu_memory_class gpu_memory_external_class = {
    .ops = &external_ops, .bytes = sizeof(struct gpu_memory), .is_bottom = true};
