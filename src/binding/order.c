#include "binding/order.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ORDER_MAX 4096u /* operations that are kept */
#define TEXT_BYTES 512u /* of one piece of a line; longer ones are cut */

struct done {                        /* an operation that has been done */
    const struct gpu_device *device; /* compared, never followed */
    struct deed *deed;               /* retained */
    struct deed **ready;             /* owned, each retained */
    uint32_t ready_count;
};

struct order {
    struct done *done; /* owned */
    uint32_t count, capacity;
    FILE *log; /* owned; NULL: none */
};

uint64_t gpu_lua_hash(const void *bytes, size_t byte_count) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < byte_count; i++) {
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

struct order *gpu_lua_order_create(void) {
    struct order *order = calloc(1, sizeof *order);
    const char *log = getenv("GPULUA_CHECK_LOG");
    if (order && log && log[0]) {
        order->log = fopen(log, "ae");
    }
    return order;
}

static void done_finish(struct done *done) {
    for (uint32_t k = 0; k < done->ready_count; k++) {
        gpu_lua_deed_release(done->ready[k]);
    }
    free(done->ready);
    gpu_lua_deed_release(done->deed);
}

void gpu_lua_order_destroy(struct order *order) {
    for (uint32_t i = 0; i < order->count; i++) {
        done_finish(&order->done[i]);
    }
    free(order->done);
    if (order->log) {
        fclose(order->log);
    }
    free(order);
}

/* ---- the log ---- */

bool gpu_lua_order_is_logged(const struct order *order) {
    return order->log != NULL;
}

static void put(struct order *order, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(struct order *order, const char *format, ...) {
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length > 0) {
        size_t count = (size_t)length < sizeof text ? (size_t)length : sizeof text - 1;
        (void)fwrite(text, 1, count, order->log);
    }
}

/* What a script has named, without what has a meaning in the log. */
static void put_name(struct order *order, const char *name) {
    char text[TEXT_BYTES];
    size_t length = strlen(name);
    length = length < sizeof text ? length : sizeof text - 1;
    for (size_t i = 0; i < length; i++) {
        bool is_plain = (unsigned char)name[i] >= ' ' && name[i] != ';';
        text[i] = is_plain ? name[i] : '_';
    }
    (void)fwrite(text, 1, length, order->log);
}

void gpu_lua_order_submitted(struct order *order, const struct deed *deed) {
    if (!order->log) {
        return;
    }
    put(order, "op\t%s\t", deed->name);
    put_name(order, deed->label);
    put(order, "\t");
    put_name(order, deed->source);
    put(order, ":%d\t%llu\t", deed->line, (unsigned long long)deed->stream);
    for (uint32_t i = 0; i < deed->use_count; i++) {
        const struct deed_use *use = &deed->uses[i];
        if (!use->is_private) {
            put(order, "%llu:%llu:%llu:%u:", (unsigned long long)use->block_number,
                (unsigned long long)use->byte_begin, (unsigned long long)use->byte_end,
                use->access);
            put_name(order, use->label);
            put(order, ";");
        }
    }
    put(order, "\n");
}

void gpu_lua_order_read(struct order *order, const struct seen_read *read, const void *bytes,
                        size_t byte_count) {
    put(order, "read\t%s!%u\t", read->strand, read->number);
    put_name(order, read->source);
    put(order, ":%d\t%llu\t", read->line, (unsigned long long)read->block_number);
    put_name(order, read->label);
    put(order, "\t%zu-%016llx\n", byte_count, (unsigned long long)gpu_lua_hash(bytes, byte_count));
}

/* ---- what was done ---- */

static void keep(struct order *order, const struct gpu_device *device, struct deed *deed,
                 void *const *ready, uint32_t ready_count) {
    if (order->count == order->capacity) {
        uint32_t capacity = order->capacity ? order->capacity * 2 : 256;
        struct done *grown =
            capacity <= ORDER_MAX ? realloc(order->done, capacity * sizeof *grown) : NULL;
        if (!grown) {
            return;
        }
        order->done = grown;
        order->capacity = capacity;
    }
    struct done *done = &order->done[order->count];
    *done = (struct done){.device = device, .deed = deed};
    done->ready = calloc(ready_count, sizeof(struct deed *));
    if (!done->ready) {
        return;
    }
    gpu_lua_deed_retain(deed);
    for (uint32_t i = 0; i < ready_count; i++) {
        if (ready[i]) {
            done->ready[done->ready_count++] = gpu_lua_deed_retain(ready[i]);
        }
    }
    order->count++;
}

void gpu_lua_order_ran(struct order *order, const struct gpu_device *device, struct deed *deed,
                       void *const *ready, uint32_t ready_count) {
    keep(order, device, deed, ready, ready_count);
    if (!order->log) {
        return;
    }
    put(order, "ran\t%s\t", deed->name);
    for (uint32_t i = 0; i < ready_count; i++) {
        const struct deed *other = ready[i];
        put(order, "%s%s", i ? " " : "", other ? other->name : "?");
    }
    put(order, "\n");
}

void gpu_lua_order_forget(struct order *order, const struct gpu_device *device) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < order->count; i++) {
        if (order->done[i].device == device) {
            done_finish(&order->done[i]);
        } else {
            order->done[kept++] = order->done[i];
        }
    }
    order->count = kept;
}

/* ---- as a table ---- */

static void push_deed(lua_State *L, const struct deed *deed) {
    lua_createtable(L, 0, 8);
    lua_pushstring(L, deed->name);
    lua_setfield(L, -2, "name");
    lua_pushstring(L, deed->label);
    lua_setfield(L, -2, "label");
    lua_pushfstring(L, "%s:%d", deed->source, deed->line);
    lua_setfield(L, -2, "site");
    lua_pushinteger(L, (lua_Integer)deed->stream);
    lua_setfield(L, -2, "stream");
    lua_pushinteger(L, (lua_Integer)deed->seq);
    lua_setfield(L, -2, "seq");
    lua_createtable(L, (int)deed->wait_count, 0);
    for (uint32_t i = 0; i < deed->wait_count; i++) {
        lua_createtable(L, 2, 0);
        lua_pushinteger(L, (lua_Integer)deed->waits[i].stream);
        lua_rawseti(L, -2, 1);
        lua_pushinteger(L, (lua_Integer)deed->waits[i].seq);
        lua_rawseti(L, -2, 2);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    lua_setfield(L, -2, "waits");
    lua_createtable(L, (int)deed->use_count, 0);
    for (uint32_t i = 0, count = 0; i < deed->use_count; i++) {
        const struct deed_use *use = &deed->uses[i];
        if (use->is_private) {
            continue;
        }
        lua_createtable(L, 5, 0);
        lua_pushinteger(L, (lua_Integer)use->block_number);
        lua_rawseti(L, -2, 1);
        lua_pushinteger(L, (lua_Integer)use->byte_begin);
        lua_rawseti(L, -2, 2);
        lua_pushinteger(L, (lua_Integer)use->byte_end);
        lua_rawseti(L, -2, 3);
        lua_pushinteger(L, use->access);
        lua_rawseti(L, -2, 4);
        lua_pushstring(L, use->label);
        lua_rawseti(L, -2, 5);
        lua_rawseti(L, -2, (lua_Integer)++count);
    }
    lua_setfield(L, -2, "uses");
}

void gpu_lua_order_push(lua_State *L, const struct order *order, const struct gpu_device *device) {
    lua_newtable(L);
    lua_Integer count = 0;
    for (uint32_t i = 0; i < order->count; i++) {
        const struct done *done = &order->done[i];
        if (done->device != device) {
            continue;
        }
        push_deed(L, done->deed);
        lua_createtable(L, (int)done->ready_count, 0);
        for (uint32_t k = 0; k < done->ready_count; k++) {
            lua_pushstring(L, done->ready[k]->name);
            lua_rawseti(L, -2, (lua_Integer)k + 1);
        }
        lua_setfield(L, -2, "ready");
        lua_rawseti(L, -2, ++count);
    }
}
