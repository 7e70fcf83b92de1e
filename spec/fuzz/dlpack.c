/* Tensors of other libraries (DLPack), with whatever in their fields: an import takes them, or says
 * what is wrong and leaves them alone. Memory that nobody has is never touched; what is there holds
 * what it held; each tensor that was taken is given back once. */
#include "host/dlpack.h"
#include "fuzz/fuzz.h"

#define MEMORY_BYTES 512u
#define TENSORS 6u

struct producer {
    struct DLManagedTensor plain;
    struct DLManagedTensorVersioned versioned;
    int64_t *shape, *strides; /* owned, of exactly as many as there are dimensions */
    int deleted;
};

static void deleted_plain(struct DLManagedTensor *self) {
    ((struct producer *)self->context)->deleted++;
}

static void deleted_versioned(struct DLManagedTensorVersioned *self) {
    ((struct producer *)self->context)->deleted++;
}

/* Numbers that mean something, and any. */
static int64_t number(struct fuzz_input *input) {
    static const int64_t notable[] = {0,         1,         2,          3,         4,         -1,
                                      INT64_MAX, INT64_MIN, UINT32_MAX, INT32_MAX, 1LL << 62, 128};
    int64_t any;
    uint8_t kind = fuzz_byte(input);
    if (kind < sizeof notable / sizeof notable[0]) {
        return notable[kind];
    }
    if (kind & 1) {
        return kind / 8;
    }
    fuzz_take(input, &any, sizeof any);
    return any;
}

static int64_t *numbers(struct fuzz_input *input, int32_t count) {
    uint8_t kind = fuzz_byte(input);
    count = count < 0 ? 0 : count > 12 ? 12 : count; /* more than buffers have: nobody looks */
    if (kind == 0) {
        return NULL;
    }
    int64_t *list = malloc((size_t)count * sizeof *list + (count == 0));
    for (int32_t i = 0; i < count; i++) {
        list[i] = number(input);
    }
    return list;
}

static void produce(struct producer *p, struct fuzz_input *input, uint8_t *memory) {
    uint8_t where = fuzz_byte(input), kind = fuzz_byte(input);
    int32_t dim_count = (kind & 1) ? kind >> 4 : (int32_t)number(input);
    struct dlpack_tensor *t = &p->plain.tensor;
    memset(p, 0, sizeof *p);
    p->shape = numbers(input, dim_count);
    p->strides = numbers(input, dim_count);
    t->data = where == 0     ? NULL
              : where < 0xc0 ? (void *)(memory + where * 4u % (MEMORY_BYTES + 8u))
                             : (void *)(uintptr_t)number(input);
    t->device.kind = (kind & 2) ? (int32_t)number(input) : DLPACK_CPU;
    t->device.ordinal = (kind & 2) ? (int32_t)number(input) : 0;
    t->dim_count = dim_count;
    fuzz_take(input, &t->type, sizeof t->type);
    if (kind & 4) {
        t->type = (struct dlpack_type){.code = DLPACK_FLOAT, .bits = 32, .lanes = 1};
    }
    t->shape = p->shape;
    t->strides = p->strides;
    t->byte_offset = (kind & 8) ? (uint64_t)number(input) : 0;
    p->plain.context = p;
    p->plain.deleter = deleted_plain;
    p->versioned.version.major = fuzz_byte(input) == 0xff ? 9 : 1;
    p->versioned.flags = fuzz_byte(input);
    p->versioned.tensor = *t;
    p->versioned.context = p;
    p->versioned.deleter = deleted_versioned;
}

static bool is_ours(const gpulua_buffer_info *info, const struct dlpack_tensor *t,
                    const uint8_t *memory) {
    uintptr_t at = (uintptr_t)t->data + t->byte_offset, begin = (uintptr_t)memory;
    return at >= begin && at - begin <= MEMORY_BYTES &&
           info->byte_count <= MEMORY_BYTES - (at - begin);
}

/* What was taken is what was offered, to the byte. */
static void check_buffer(gpulua *g, gpulua_buffer *buffer, const struct dlpack_tensor *t,
                         const uint8_t *memory) {
    gpulua_buffer_info info;
    void *bytes = NULL;
    gpulua_buffer_info_init(&info);
    gpulua_buffer_describe(buffer, &info);
    FUZZ_CHECK(info.elem_count > 0 && info.byte_count >= info.elem_count);
    for (int32_t i = 0; i < t->dim_count; i++) {
        FUZZ_CHECK(info.shape[i] == t->shape[i]);
    }
    if (is_ours(&info, t, memory)) {
        FUZZ_CHECK(gpulua_buffer_map(g, buffer, GPULUA_READ, &bytes) == GPULUA_OK);
        FUZZ_CHECK(bytes == (uint8_t *)t->data + t->byte_offset);
    }
}

FUZZ_TARGET(dlpack) {
    static gpulua *g;
    struct fuzz_input input = {bytes, byte_count};
    struct producer producers[TENSORS] = {0};
    gpulua_buffer *taken[TENSORS] = {0};
    uint8_t *memory = aligned_alloc(64, MEMORY_BYTES);
    g = g ? g : fuzz_object();
    lua_State *L = gpulua_state(g);
    for (uint32_t i = 0; i < MEMORY_BYTES; i++) {
        memory[i] = (uint8_t)i;
    }
    uint32_t count = 0;
    for (; count < TENSORS && input.byte_count > 0; count++) {
        struct producer *p = &producers[count];
        gpulua_exchange exchange;
        gpulua_exchange_init(&exchange);
        uint8_t kind = fuzz_byte(&input);
        exchange.order = (gpulua_order)((kind >> 1 & 7) - 1);
        exchange.stream = kind >> 4;
        produce(p, &input, memory);
        gpulua_status status =
            (kind & 1)
                ? gpulua_dlpack_import(L, 0, &p->versioned, &exchange, &taken[count])
                : gpulua_dlpack_import_unversioned(L, 0, &p->plain, &exchange, &taken[count]);
        FUZZ_CHECK((status == GPULUA_OK) == (taken[count] != NULL));
        FUZZ_CHECK(lua_gettop(L) == 0);
        if (status == GPULUA_OK) {
            check_buffer(g, taken[count], &p->plain.tensor, memory);
        } else {
            FUZZ_CHECK(p->deleted == 0 && gpulua_last_error(g)->code == status &&
                       gpulua_last_error(g)->message[0] != '\0');
        }
    }
    bool was_taken[TENSORS];
    for (uint32_t i = 0; i < count; i++) {
        was_taken[i] = taken[i] != NULL;
        gpulua_buffer_release(taken[i]);
    }
    FUZZ_CHECK(luaL_dostring(L, "collectgarbage() local dev = require 'gpulua'.device()\n"
                                "dev:synchronize() assert(dev:stats().imports_live == 0)") == 0);
    for (uint32_t i = 0; i < count; i++) {
        FUZZ_CHECK(producers[i].deleted == (was_taken[i] ? 1 : 0));
        free(producers[i].shape);
        free(producers[i].strides);
    }
    for (uint32_t i = 0; i < MEMORY_BYTES; i++) {
        FUZZ_CHECK(memory[i] == (uint8_t)i);
    }
    free(memory);
    return 0;
}
