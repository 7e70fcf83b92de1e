/* Budgets: how much may be outstanding at once, and how tight it is. An account is what is counted;
 * the device has one under all of its memory, and each budget of a script one of its own. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/graph.h"
#include "runtime/memory/stack.h"

struct gpu_listener {
    void (*f)(void *user, enum gpu_pressure level);
    void *user;
    struct gpu_seat *seat; /* on a shared device: whose thread it is called on */
    bool is_due;
};

struct budget_memory {
    struct gpu_memory base;
    struct gpu_account account;
    char label[GPU_BLOCK_LABEL_BYTES];
};

/* ---- pressure ---- */

/* From how many percent of the limit on. */
static const uint8_t level_percent[GPU_PRESSURE_COUNT] = {0, 50, 70, 85, 95};

const char *gpu_pressure_name(enum gpu_pressure level) {
    static const char *const names[GPU_PRESSURE_COUNT] = {"none", "low", "medium", "high",
                                                          "critical"};
    return names[level];
}

static uint64_t level_begin_bytes(const struct gpu_account *account, uint32_t level) {
    uint64_t percent = level_percent[level];
    /* Rounded up: 50% of 3 bytes is 2. Without overflow. */
    return account->limit_bytes / 100 * percent + (account->limit_bytes % 100 * percent + 99) / 100;
}

static void set_level(struct gpu_account *account, uint32_t level) {
    account->level = (uint8_t)level;
    account->level_begin_bytes = level_begin_bytes(account, level);
    account->level_end_bytes =
        level + 1 < GPU_PRESSURE_COUNT ? level_begin_bytes(account, level + 1) : UINT64_MAX;
}

static void change_level(struct gpu_account *account) {
    uint32_t level = GPU_PRESSURE_COUNT - 1u;
    while (level > 0 && account->used_bytes < level_begin_bytes(account, level)) {
        level--;
    }
    if (level == account->level) {
        return; /* of a limit of a few bytes several levels may begin at one */
    }
    set_level(account, level);
    for (uint32_t i = 0; i < account->listener_count; i++) {
        struct gpu_listener *listener = &account->listeners[i];
        if (listener->seat) {
            listener->is_due = listener->seat->is_pressed = true;
        } else {
            listener->f(listener->user, (enum gpu_pressure)level);
        }
    }
}

static void tell(struct gpu_account *account, const struct gpu_seat *seat, bool is_leaving) {
    for (uint32_t i = 0; i < account->listener_count; i++) {
        struct gpu_listener *listener = &account->listeners[i];
        if (listener->seat == seat && is_leaving) {
            account->listeners[i--] = account->listeners[--account->listener_count];
        } else if (listener->seat == seat && listener->is_due) {
            listener->is_due = false;
            listener->f(listener->user, (enum gpu_pressure)account->level);
        }
    }
}

static void add_used(struct gpu_account *account, uint64_t byte_count) {
    account->used_bytes += byte_count;
    if (account->used_bytes >= account->level_end_bytes) {
        change_level(account);
    }
}

void gpu_account_release(struct gpu_account *account, uint64_t byte_count) {
    account->used_bytes -= byte_count;
    if (account->used_bytes < account->level_begin_bytes) {
        change_level(account);
    }
}

void gpu_account_init(struct gpu_account *account, uint64_t limit_bytes) {
    *account = (struct gpu_account){.limit_bytes = limit_bytes};
    set_level(account, GPU_PRESSURE_NONE);
}

void gpu_account_finish(struct gpu_account *account) {
    free(account->listeners);
    account->listeners = NULL;
    account->listener_count = 0;
}

/* ---- reserving ---- */

static struct gpu_account *account_of(const struct gpu_memory *memory);

void gpu_accounts_tell(struct gpu_device *device, const struct gpu_seat *seat, bool is_leaving) {
    tell(&device->account, seat, is_leaving);
    for (const struct gpu_memory *memory = device->memories; memory; memory = memory->next) {
        if (account_of(memory)) {
            tell(account_of(memory), seat, is_leaving);
        }
    }
}

/* `label`: of what was to be allocated, or NULL. */
static gpulua_status refuse(struct gpu_device *device, const struct gpu_account *account,
                            uint64_t retiring_bytes, uint64_t byte_count, const char *label,
                            struct gpu_error *error) {
    uint64_t limit = account->limit_bytes, current = account->used_bytes - retiring_bytes;
    uint64_t remaining = limit > current ? limit - current : 0;
    char whose[GPU_BLOCK_LABEL_BYTES + 64] = "device";
    if (account != &device->account) {
        const struct budget_memory *memory =
            (const void *)((const char *)account - offsetof(struct budget_memory, account));
        bool is_named = memory->label[0] != '\0';
        snprintf(whose, sizeof whose, "%s%s%s on",
                 is_named ? "memory '" : "a memory with a budget of its own", memory->label,
                 is_named ? "'" : "");
    }
    gpu_error_set(error, GPULUA_OUT_OF_BUDGET,
                  "%llu bytes%s%s asked of %s %s, %llu of %llu in use, %llu left",
                  (unsigned long long)byte_count, label ? " for " : "", label ? label : "", whose,
                  device->title, (unsigned long long)current, (unsigned long long)limit,
                  (unsigned long long)remaining);
    error->requested_bytes = byte_count;
    error->current_bytes = current;
    error->remaining_bytes = remaining;
    error->limit_bytes = limit;
    return GPULUA_OUT_OF_BUDGET;
}

/* What must be freed before it fits is in use by nobody but the device: that is worth waiting for.
 */
static gpulua_status wait_for_room(struct gpu_account *account, const uint64_t *retiring_bytes,
                                   struct gpu_device *device, uint64_t byte_count,
                                   struct gpu_error *error) {
    uint64_t room = account->limit_bytes - byte_count;
    gpulua_status status = GPULUA_OK;
    while (account->used_bytes > room && account->used_bytes - *retiring_bytes <= room &&
           gpu_device_wait_retiring(device, error, &status)) {
        if (status) {
            return status;
        }
        (void)gpu_device_reap(device);
    }
    return GPULUA_OK;
}

bool gpu_device_lacks_room(const struct gpu_device *device, uint64_t byte_count) {
    uint64_t limit = device->account.limit_bytes, used = device->account.used_bytes;
    uint64_t passing = device->stats.graph_bytes + device->stats.bytes_pending;
    return byte_count <= limit && used > passing && used - passing > limit - byte_count;
}

gpulua_status gpu_account_reserve(struct gpu_account *account, const uint64_t *retiring_bytes,
                                  struct gpu_device *device, struct gpu_memory_request *request,
                                  uint64_t byte_count, struct gpu_error *error) {
    uint64_t limit = account->limit_bytes;
    if (__builtin_expect(byte_count <= limit && account->used_bytes <= limit - byte_count, 1)) {
        add_used(account, byte_count);
        return GPULUA_OK;
    }
    if (byte_count <= limit) {
        (void)gpu_device_reap(device);
        gpulua_status status = wait_for_room(account, retiring_bytes, device, byte_count, error);
        if (status == GPULUA_OK && account->used_bytes > limit - byte_count) {
            device->stats.oom_retries++;
            status = gpu_memory_recover(device, request, error);
            if (status == GPULUA_OK) {
                status = wait_for_room(account, retiring_bytes, device, byte_count, error);
            }
            while (status == GPULUA_OK && account == &device->account &&
                   account->used_bytes > limit - byte_count &&
                   !gpu_device_lacks_room(device, byte_count) && /* else they would go in vain */
                   gpu_graphs_evict(device, -1, error, &status)) {
                status = wait_for_room(account, retiring_bytes, device, byte_count, error);
            }
            device->stats.recoveries +=
                status == GPULUA_OK && account->used_bytes <= limit - byte_count;
        }
        if (status) {
            return status;
        }
        if (account->used_bytes <= limit - byte_count) {
            add_used(account, byte_count);
            return GPULUA_OK;
        }
    }
    return refuse(device, account, *retiring_bytes, byte_count, request->label, error);
}

static gpulua_status budget_allocate(struct gpu_memory *base, struct gpu_memory_request *request,
                                     struct gpu_grant *grant, struct gpu_error *error) {
    struct gpu_account *account = &((struct budget_memory *)base)->account;
    uint64_t byte_count = request->byte_count;
    if (!request->is_reserved) {
        gpulua_status status = gpu_account_reserve(account, &base->retiring_bytes, base->device,
                                                   request, byte_count, error);
        if (status) {
            return status;
        }
    }
    gpulua_status status = gpu_memory_allocate(base->upstream, request, grant, error);
    if (status) {
        gpu_account_release(account, byte_count);
    }
    return status;
}

static void budget_deallocate(struct gpu_memory *base, struct gpu_grant *grant,
                              const struct gpu_block *block) {
    uint64_t byte_count = grant->byte_count;
    gpu_memory_deallocate(base->upstream, grant, block);
    gpu_account_release(&((struct budget_memory *)base)->account, byte_count);
}

static gpulua_status budget_init(struct gpu_memory *base, const struct gpu_memory_info *info,
                                 struct gpu_error *error) {
    if (info->limit_bytes == 0) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT, "a budget of 0 bytes");
    }
    struct budget_memory *memory = (struct budget_memory *)base;
    gpu_account_init(&memory->account, info->limit_bytes);
    (void)gpu_label_copy(memory->label, sizeof memory->label, info->label);
    return GPULUA_OK;
}

static void budget_finish(struct gpu_memory *base) {
    gpu_account_finish(&((struct budget_memory *)base)->account);
}

static const struct gpu_memory_ops budget_ops = {
    .kind = "budget",
    .allocate = budget_allocate,
    .deallocate = budget_deallocate,
    .finish = budget_finish,
};
const struct gpu_memory_class gpu_memory_budget_class = {
    .ops = &budget_ops, .bytes = sizeof(struct budget_memory), .init = budget_init};

/* ---- groups ---- */

static struct gpu_account *account_of(const struct gpu_memory *memory) {
    return memory->kind == GPU_MEMORY_BUDGET ? &((struct budget_memory *)(uintptr_t)memory)->account
                                             : NULL;
}

/* Gives back what the levels above `end` (NULL: and the device) have reserved for one block. */
static void unreserve(struct gpu_memory *memory, const struct gpu_memory *end,
                      uint64_t byte_count) {
    for (; memory != end; memory = memory->upstream) {
        struct gpu_account *account = account_of(memory);
        if (account) {
            gpu_account_release(account, byte_count);
        }
        byte_count = gpu_memory_below_bytes(memory, byte_count);
        if (!memory->upstream) {
            gpu_account_release(&memory->device->account, byte_count);
        }
    }
}

void gpu_memory_unreserve(struct gpu_memory *memory, uint64_t byte_count) {
    GPU_ENTER_WHOLE(memory->device);
    if (memory->device->memory) { /* else the device is closed, and its memory gone */
        unreserve(memory, NULL, gpu_block_granted_bytes(byte_count));
    }
}

gpulua_status gpu_memory_reserve(struct gpu_memory *memory, const uint64_t *byte_counts,
                                 uint32_t count, const struct gpu_block_info *caller,
                                 struct gpu_error *error) {
    GPU_ENTER(memory->device);
    struct gpu_device *device = memory->device;
    struct gpu_memory_request request = {
        .label = caller->label, .collect = caller->collect, .caller = caller->caller};
    gpulua_status status = gpu_device_check(device, error);
    struct gpu_memory *level = memory;
    for (; level && status == GPULUA_OK; level = level->upstream) {
        struct gpu_account *account = account_of(level);
        const uint64_t *retiring_bytes = &level->retiring_bytes;
        if (!account && !level->upstream) {
            account = &device->account;
            retiring_bytes = &device->stats.bytes_pending;
        }
        uint64_t total = 0;
        for (uint32_t i = 0; account && i < count; i++) {
            uint64_t bytes = gpu_block_granted_bytes(byte_counts[i]);
            for (const struct gpu_memory *above = memory; above != level; above = above->upstream) {
                bytes = gpu_memory_below_bytes(above, bytes);
            }
            if (byte_counts[i] > INT64_MAX || __builtin_add_overflow(total, bytes, &total)) {
                total = UINT64_MAX;
                break;
            }
        }
        if (account) {
            status = gpu_account_reserve(account, retiring_bytes, device, &request, total, error);
        }
        if (status) {
            break;
        }
    }
    if (status && level) {
        for (uint32_t i = 0; i < count && level != memory; i++) {
            unreserve(memory, level, gpu_block_granted_bytes(byte_counts[i]));
        }
    }
    return status;
}

/* ---- questions ---- */

/* NULL: it stands on the device's alone. */
static const struct gpu_memory *nearest_budget(const struct gpu_memory *memory) {
    return gpu_memory_find((struct gpu_memory *)(uintptr_t)memory, GPU_MEMORY_BUDGET);
}

static struct gpu_account *nearest_account(const struct gpu_memory *memory) {
    const struct gpu_memory *budget = nearest_budget(memory);
    return budget ? account_of(budget) : &memory->device->account;
}

gpulua_status gpu_memory_refuse(const struct gpu_memory *memory, uint64_t byte_count,
                                const char *label, struct gpu_error *error) {
    const struct gpu_memory *budget = nearest_budget(memory);
    uint64_t retiring_bytes = budget ? budget->retiring_bytes : memory->device->stats.bytes_pending;
    return refuse(memory->device, nearest_account(memory), retiring_bytes, byte_count, label,
                  error);
}

uint64_t gpu_memory_remaining_bytes(const struct gpu_memory *memory, uint64_t *limit_bytes) {
    GPU_ENTER(memory->device);
    const struct gpu_account *account = &memory->device->account;
    uint64_t least = account->limit_bytes - account->used_bytes;
    *limit_bytes = account->limit_bytes;
    for (; memory; memory = memory->upstream) {
        account = account_of(memory);
        if (account && account->limit_bytes - account->used_bytes <= least) {
            least = account->limit_bytes - account->used_bytes;
            *limit_bytes = account->limit_bytes;
        }
    }
    return least;
}

enum gpu_pressure gpu_memory_pressure(const struct gpu_memory *memory) {
    GPU_ENTER(memory->device);
    return (enum gpu_pressure)nearest_account(memory)->level;
}

bool gpu_memory_listen(struct gpu_memory *memory, void (*f)(void *user, enum gpu_pressure level),
                       void *user) {
    GPU_ENTER_WHOLE(memory->device, f == NULL);
    struct gpu_account *account = nearest_account(memory);
    for (uint32_t i = 0; i < account->listener_count; i++) {
        if (account->listeners[i].user == user) {
            account->listeners[i].f = f;
            if (!f) {
                account->listeners[i] = account->listeners[--account->listener_count];
            }
            return true;
        }
    }
    if (!f) {
        return true;
    }
    struct gpu_listener *grown =
        realloc(account->listeners, (account->listener_count + 1u) * sizeof *account->listeners);
    if (!grown) {
        return false;
    }
    account->listeners = grown;
    grown[account->listener_count++] =
        (struct gpu_listener){.f = f, .user = user, .seat = gpu_seat_of(memory->device)};
    return true;
}
