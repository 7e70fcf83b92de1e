/* What checked devices have done, in which order: kept for dev:order, and written to the file that
 * $GPULUA_CHECK_LOG names, a line for each operation as it is submitted (op) and as it is done
 * (ran), and for all that the script sees (read). lua/gpulua/seeds.lua reads that file. */
#ifndef GPU_BINDING_ORDER_H
#define GPU_BINDING_ORDER_H

#include <stddef.h>

#include <lua.h>

#include "binding/deed.h"

struct order;

struct seen_read {
    const char *strand;
    uint32_t number; /* of the strand's reads */
    const char *source;
    int line;
    uint64_t block_number;
    const char *label; /* of the buffer, or "" */
};

struct order *gpu_lua_order_create(void); /* NULL: no memory */
void gpu_lua_order_destroy(struct order *order);
void gpu_lua_order_submitted(struct order *order, const struct deed *deed);
/* `ready`: deeds, NULL for those that are not known any more. */
void gpu_lua_order_ran(struct order *order, const struct gpu_device *device, struct deed *deed,
                       void *const *ready, uint32_t ready_count);
bool gpu_lua_order_is_logged(const struct order *order);
void gpu_lua_order_read(struct order *order, const struct seen_read *read, const void *bytes,
                        size_t byte_count);
/* The device is closed. */
void gpu_lua_order_forget(struct order *order, const struct gpu_device *device);
/* Pushes the list that dev:order() answers. */
void gpu_lua_order_push(lua_State *L, const struct order *order, const struct gpu_device *device);

/* FNV-1a, 64 bits (Fowler, Noll, Vo). */
uint64_t gpu_lua_hash(const void *bytes, size_t byte_count);

#endif
