/* Exchange by DLPack, with tensors made by hand: what goes out, what comes in, what is refused, and
 * whose memory is whose until when. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

#include "host/dlpack.h"
#include "host/exchange.h"

/* A producer: tensors over memory of its own, and how often each deleter was called. */
struct producer {
    struct DLManagedTensor plain;
    struct DLManagedTensorVersioned versioned;
    int64_t shape[9], strides[9];
    int deleted;
    gpulua_buffer *lets_go; /* when it is deleted; NULL: nothing */
};

static void deleted_plain(struct DLManagedTensor *self) {
    ((struct producer *)self->context)->deleted++;
}
static void deleted_versioned(struct DLManagedTensorVersioned *self) {
    struct producer *p = self->context;
    p->deleted++;
    gpulua_buffer_release(p->lets_go);
}

/* f32, one dimension, versioned 1.0 and unversioned over the same. */
static void produce(struct producer *p, void *data, int64_t count) {
    memset(p, 0, sizeof *p);
    p->shape[0] = count;
    p->strides[0] = 1;
    p->plain.tensor = (struct dlpack_tensor){.data = data,
                                             .device = {.kind = DLPACK_CPU},
                                             .dim_count = 1,
                                             .type = {DLPACK_FLOAT, 32, 1},
                                             .shape = p->shape,
                                             .strides = p->strides};
    p->plain.context = p;
    p->plain.deleter = deleted_plain;
    p->versioned.version.major = 1;
    p->versioned.tensor = p->plain.tensor;
    p->versioned.context = p;
    p->versioned.deleter = deleted_versioned;
}

static gpulua_status take(gpulua *g, struct producer *p, const gpulua_exchange *exchange,
                          gpulua_buffer **buffer) {
    p->versioned.tensor = p->plain.tensor;
    return gpulua_dlpack_import(gpulua_state(g), 0, &p->versioned, exchange, buffer);
}

static gpulua_exchange ordered(gpulua_order order) {
    gpulua_exchange exchange;
    gpulua_exchange_init(&exchange);
    exchange.order = order;
    return exchange;
}

/* Ends what is over: imports go back in a call of the device's. */
static void settle(gpulua *g) {
    run(g, "collectgarbage() dev:synchronize() dev:stats() ok = true");
}

/* ---- export ---- */

static void test_export(void) {
    static const struct {
        const char *name;
        int code, bits;
    } types[] = {{"i8", 0, 8},   {"u8", 1, 8},   {"i16", 0, 16}, {"u16", 1, 16},  {"i32", 0, 32},
                 {"u32", 1, 32}, {"i64", 0, 64}, {"u64", 1, 64}, {"f16", 2, 16},  {"bf16", 4, 16},
                 {"f32", 2, 32}, {"f64", 2, 64}, {"c64", 5, 64}, {"c128", 5, 128}};
    gpulua *g = open_object(GPULUA_ISOLATE_NONE);
    lua_State *L = gpulua_state(g);
    struct DLManagedTensor *plain = NULL;
    struct DLManagedTensorVersioned *versioned = NULL;
    void *bytes = NULL;
    CHECK(run(g, prelude));
    CHECK(run(g, "x = dev:upload('f32', {1, 2, 3, 4, 5, 6}):view('f32', {2, 3}) ok = true\n"
                 "s = dev:upload('i64', {1, 2, 3, 4}):slice(2, 3)"));
    gpulua_buffer *x = global_buffer(g, "x"), *s = global_buffer(g, "s");
    CHECK(gpulua_buffer_map(g, x, GPULUA_READ, &bytes) == GPULUA_OK);
    CHECK(gpulua_dlpack_export(L, x, NULL, &versioned) == GPULUA_OK);
    CHECK(gpulua_dlpack_export_unversioned(L, x, NULL, &plain) == GPULUA_OK);
    CHECK(versioned->version.major == 1 && versioned->flags == 0);
    for (int i = 0; i < 2; i++) {
        const struct dlpack_tensor *t = i ? &plain->tensor : &versioned->tensor;
        CHECK((char *)t->data + t->byte_offset == bytes); /* no copy */
        CHECK(t->device.kind == DLPACK_CPU && t->device.ordinal == 0 && t->type.lanes == 1);
        CHECK(t->dim_count == 2 && t->shape[0] == 2 && t->shape[1] == 3);
        CHECK(t->strides[0] == 3 && t->strides[1] == 1);
    }
    versioned->deleter(versioned);
    plain->deleter(plain);
    CHECK(gpulua_dlpack_export(L, s, NULL, &versioned) == GPULUA_OK);
    CHECK(((int64_t *)versioned->tensor.data)[0] == 2 && versioned->tensor.shape[0] == 2);
    versioned->deleter(versioned);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        gpulua_buffer_info info;
        gpulua_buffer *b;
        gpulua_buffer_info_init(&info);
        info.type = types[i].name;
        info.dim_count = 1;
        info.shape[0] = 3;
        gpulua_buffer_new(L, 0, &info, &b);
        gpulua_dlpack_export(L, b, NULL, &versioned);
        CHECK(versioned->tensor.type.code == types[i].code &&
              versioned->tensor.type.bits == types[i].bits);
        gpulua_buffer *back; /* and in again: the same type */
        CHECK(gpulua_dlpack_import(L, 0, versioned, NULL, &back) == GPULUA_OK);
        gpulua_buffer_describe(back, &info);
        CHECK(strcmp(info.type, types[i].name) == 0 && !info.is_external);
        gpulua_buffer_release(back);
        gpulua_buffer_release(b);
    }
    gpulua_exchange read_only = ordered(GPULUA_ORDER_READY);
    read_only.is_read_only = 1;
    CHECK(gpulua_dlpack_export(L, x, &read_only, &versioned) == GPULUA_OK);
    CHECK(versioned->flags == DLPACK_FLAG_READ_ONLY);
    versioned->deleter(versioned);
    FAILS(gpulua_dlpack_export_unversioned(L, x, &read_only, &plain), GPULUA_UNSUPPORTED,
          "read only");
    CHECK(plain == NULL);
    gpulua_exchange stream = ordered(GPULUA_ORDER_STREAM);
    stream.stream = 2;
    FAILS(gpulua_dlpack_export(L, x, &stream, &versioned), GPULUA_UNSUPPORTED, "no streams");
    stream.stream = 0;
    FAILS(gpulua_dlpack_export(L, x, &stream, &versioned), GPULUA_INVALID_ARGUMENT, "stream 0");
    stream.order = (gpulua_order)9;
    FAILS(gpulua_dlpack_export(L, x, &stream, &versioned), GPULUA_INVALID_ARGUMENT, "order 9");
    stream.struct_bytes = 1;
    FAILS(gpulua_dlpack_export(L, x, &stream, &versioned), GPULUA_INVALID_ARGUMENT,
          "exchange_init");
    CHECK(versioned == NULL);
    CHECK(run(g, "ok = dev:stats().exports_live == 0"));
    gpulua_buffer_release(x);
    gpulua_buffer_release(s);
    gpulua_close(g);
}

/* The consumer sees what was launched before: the export waits. */
static void test_export_order(void) {
    gpulua *g = open_object(GPULUA_ISOLATE_NONE);
    lua_State *L = gpulua_state(g);
    struct DLManagedTensorVersioned *t = NULL;
    CHECK(run(g, prelude));
    CHECK(run(g, "a = dev:stream {} x = dev:buffer('f32', 4):fill(1) y = dev:buffer('f32', 4)\n"
                 "dev:synchronize() p = mod.spin:launch({grid = 1, block = 1, stream = a}, x, 4, "
                 "200000000) ok = true"));
    gpulua_buffer *x = global_buffer(g, "x"), *y = global_buffer(g, "y");
    gpulua_exchange none = ordered(GPULUA_ORDER_NONE);
    CHECK(gpulua_dlpack_export(L, x, &none, &t) == GPULUA_OK);
    CHECK(run(g, "ok = not p:done()")); /* nobody waits */
    t->deleter(t);
    CHECK(gpulua_dlpack_export(L, x, NULL, &t) == GPULUA_OK);
    CHECK(((float *)t->tensor.data)[3] == 2);
    t->deleter(t);
    /* What failed is not given away. */
    CHECK(run(g, "bad = dev:compile [[extern \"C\" __global__ void bad(float *y) "
                 "{ y[0] = 1; assert(false); }]]\n"
                 "q = bad.bad:launch(one, y) ok = true"));
    FAILS(gpulua_dlpack_export(L, y, NULL, &t), GPULUA_KERNEL_FAILED, "bad");
    CHECK(t == NULL);
    run(g, "pcall(q.await, q) pcall(dev.synchronize, dev) ok = true");
    gpulua_buffer_release(x);
    gpulua_buffer_release(y);
    gpulua_close(g);
}

/* ---- import ---- */

static void test_import(void) {
    gpulua *g = open_object(GPULUA_ISOLATE_NONE);
    lua_State *L = gpulua_state(g);
    float *data = aligned_alloc(64, 64);
    struct producer p, again;
    gpulua_buffer *x = NULL, *second = NULL;
    gpulua_buffer_info info;
    void *bytes = NULL;
    CHECK(run(g, prelude));
    for (int i = 0; i < 16; i++) {
        data[i] = (float)i;
    }
    for (int round = 0; round < 2; round++) {
        produce(&p, data, 16);
        gpulua_exchange exchange = ordered(GPULUA_ORDER_DEFAULT);
        exchange.label = "theirs";
        CHECK((round ? gpulua_dlpack_import_unversioned(L, 0, &p.plain, &exchange, &x)
                     : take(g, &p, &exchange, &x)) == GPULUA_OK);
        gpulua_buffer_describe(x, &info);
        CHECK(info.is_external && !info.is_read_only && info.elem_count == 16);
        CHECK(strcmp(info.label, "theirs") == 0);
        CHECK(gpulua_buffer_map(g, x, GPULUA_READ, &bytes) == GPULUA_OK && bytes == data);
        set_global(g, "x", x);
        gpulua_buffer_release(x);
        data[0] = 0;
        CHECK(run(g, "mod.add:launch(one, x, 16) ok = x:read()[1] == 1"));
        CHECK(data[0] == 1 && p.deleted == 0); /* in place */
        CHECK(run(g, "ok = dev:stats().imports_live == 1 and dev:stats().bytes_live == 0"));
        /* Memory that is there already is the same memory, also a part of it. */
        produce(&again, data + 4, 4);
        CHECK(take(g, &again, NULL, &second) == GPULUA_OK && again.deleted == 1);
        set_global(g, "part", second);
        gpulua_buffer_release(second);
        CHECK(run(g, "a, b = dev:stream {}, dev:stream {}\n"
                     "mod.spin:launch({grid = 1, block = 1, stream = a}, x, 16, 100000000)\n"
                     "mod.add:launch({grid = 1, block = 1, stream = b}, part, 4)\n"
                     "ok = part:read()[1] == x:read()[5]"));
        produce(&again, data + 12, 8);
        FAILS(take(g, &again, NULL, &second), GPULUA_INVALID_ARGUMENT, "across the end");
        CHECK(run(g, "part:close() mod.spin:launch(one, x, 16, 50000000) x:close() ok = true"));
        CHECK(p.deleted == 0); /* the kernel has it */
        settle(g);
        CHECK(p.deleted == 1);
        CHECK(run(g, "ok = dev:stats().imports_live == 0"));
    }
    /* Before what is known. */
    produce(&p, data + 8, 4);
    CHECK(take(g, &p, NULL, &x) == GPULUA_OK);
    produce(&again, data, 16);
    FAILS(take(g, &again, NULL, &second), GPULUA_INVALID_ARGUMENT, "import the whole first");
    CHECK(again.deleted == 0);
    /* What was freed, and is in use, is waited for; then it comes in anew. */
    set_global(g, "x", x);
    CHECK(run(g, "mod.spin:launch(one, x, 4, 50000000) x:free() ok = true"));
    gpulua_buffer_release(x);
    produce(&again, data, 16);
    CHECK(take(g, &again, NULL, &x) == GPULUA_OK && p.deleted == 1);
    gpulua_close(g); /* gives it back */
    CHECK(again.deleted == 1);
    gpulua_buffer_release(x);
    CHECK(again.deleted == 1);
    /* No deleter. */
    g = open_object(GPULUA_ISOLATE_NONE);
    produce(&p, data, 16);
    p.versioned.deleter = NULL;
    CHECK(take(g, &p, NULL, &x) == GPULUA_OK);
    gpulua_buffer_release(x);
    gpulua_close(g);
    free(data);
}

static void test_shapes(void) {
    gpulua *g = open_object(GPULUA_ISOLATE_NONE);
    float data[24] = {0};
    struct producer p;
    gpulua_buffer *x = NULL;
    gpulua_buffer_info info;
    produce(&p, data, 2);
    p.plain.tensor.dim_count = 3;
    p.shape[1] = 1, p.shape[2] = 12;
    p.strides[0] = 12, p.strides[1] = 777, p.strides[2] = 1; /* of one element: any */
    CHECK(take(g, &p, NULL, &x) == GPULUA_OK);
    gpulua_buffer_describe(x, &info);
    CHECK(info.dim_count == 3 && info.shape[0] == 2 && info.shape[1] == 1 && info.shape[2] == 12);
    gpulua_buffer_release(x);
    p.plain.tensor.strides = NULL;
    CHECK(take(g, &p, NULL, &x) == GPULUA_OK);
    gpulua_buffer_release(x);
    p.plain.tensor.dim_count = 0; /* a scalar */
    p.plain.tensor.shape = NULL;
    CHECK(take(g, &p, NULL, &x) == GPULUA_OK);
    gpulua_buffer_describe(x, &info);
    CHECK(info.dim_count == 1 && info.shape[0] == 1 && info.byte_count == 4);
    gpulua_buffer_release(x);
    produce(&p, data, 3);
    p.plain.tensor.byte_offset = 8;
    CHECK(take(g, &p, NULL, &x) == GPULUA_OK);
    void *bytes;
    CHECK(gpulua_buffer_map(g, x, GPULUA_READ, &bytes) == GPULUA_OK && bytes == data + 2);
    gpulua_buffer_release(x);
    produce(&p, data, 5);
    p.plain.tensor.type = (struct dlpack_type){DLPACK_BOOL, 8, 1};
    CHECK(take(g, &p, NULL, &x) == GPULUA_OK);
    gpulua_buffer_describe(x, &info);
    CHECK(strcmp(info.type, "u8") == 0);
    gpulua_buffer_release(x);
    gpulua_close(g);
}

static void test_refusals(void) {
    gpulua *g = open_object(GPULUA_ISOLATE_NONE);
    lua_State *L = gpulua_state(g);
    float data[32] = {0};
    struct producer p;
    gpulua_buffer *x = NULL;
#define REFUSED(code, text, ...)                                                                   \
    do {                                                                                           \
        struct dlpack_tensor *t = &p.plain.tensor;                                                 \
        produce(&p, data, 8);                                                                      \
        __VA_ARGS__;                                                                               \
        (void)t;                                                                                   \
        FAILS(take(g, &p, NULL, &x), code, text);                                                  \
        FAILS(gpulua_dlpack_import_unversioned(L, 0, &p.plain, NULL, &x), code, text);             \
        CHECK(x == NULL && p.deleted == 0); /* it stays the caller's */                            \
    } while (0)
    REFUSED(GPULUA_UNSUPPORTED, "4 lanes", t->type.lanes = 4);
    REFUSED(GPULUA_UNSUPPORTED, "0 lanes", t->type.lanes = 0);
    REFUSED(GPULUA_UNSUPPORTED, "type code 2 with 24 bits", t->type.bits = 24);
    REFUSED(GPULUA_UNSUPPORTED, "type code 3 with 64", t->type.code = 3, t->type.bits = 64);
    REFUSED(GPULUA_UNSUPPORTED, "type code 10 with 8", t->type.code = 10, t->type.bits = 8);
    REFUSED(GPULUA_UNSUPPORTED, "type code 5 with 32", t->type.code = 5);
    REFUSED(GPULUA_INVALID_ARGUMENT, "-1 dimensions", t->dim_count = -1);
    REFUSED(GPULUA_INVALID_ARGUMENT, "without a shape", t->shape = NULL);
    REFUSED(GPULUA_UNSUPPORTED, "9 dimensions", t->dim_count = 9);
    REFUSED(GPULUA_INVALID_ARGUMENT, "dimension 1 of its shape is -5", p.shape[0] = -5);
    REFUSED(GPULUA_UNSUPPORTED, "no elements", p.shape[0] = 0);
    REFUSED(GPULUA_INVALID_ARGUMENT, "more elements", p.shape[0] = INT64_MAX);
    REFUSED(GPULUA_INVALID_ARGUMENT, "more elements", t->dim_count = 3, t->strides = NULL;
            p.shape[0] = p.shape[1] = p.shape[2] = INT64_C(1) << 40);
    REFUSED(GPULUA_INVALID_ARGUMENT, "17592186044416 bytes, a buffer has at most 17592186043904",
            p.shape[0] = INT64_C(1) << 42);
    REFUSED(GPULUA_INVALID_ARGUMENT, "no memory at address 508", t->data = (void *)508);
    REFUSED(GPULUA_INVALID_ARGUMENT, "over the end of all memory",
            t->byte_offset = UINT64_MAX - 64);
    REFUSED(GPULUA_INVALID_ARGUMENT, "over the end of all memory", p.shape[0] = INT64_MAX / 4;
            t->data = (void *)(UINTPTR_MAX - 4095));
    REFUSED(GPULUA_UNSUPPORTED, "stride 2 of dimension 1", p.strides[0] = 2);
    REFUSED(GPULUA_UNSUPPORTED, "stride -1 of dimension 1", p.strides[0] = -1);
    REFUSED(GPULUA_UNSUPPORTED, "stride 1 of dimension 1, where compact rows have 4",
            t->dim_count = 2, p.shape[0] = 2, p.shape[1] = 4, p.strides[0] = 1, p.strides[1] = 2;
            p.strides[1] = 1);
    REFUSED(GPULUA_INVALID_ARGUMENT, "null pointer", t->data = NULL);
    REFUSED(GPULUA_INVALID_ARGUMENT, "not aligned for f32", t->byte_offset = 2);
    REFUSED(GPULUA_INVALID_ARGUMENT, "not aligned for c128", t->byte_offset = 4,
            t->type = (struct dlpack_type){DLPACK_COMPLEX, 128, 1});
    REFUSED(GPULUA_INVALID_ARGUMENT, "on cuda:1, the device to import it for is cpu",
            t->device.kind = DLPACK_CUDA, t->device.ordinal = 1);
    REFUSED(GPULUA_UNSUPPORTED, "kind 10 (ROCM)", t->device.kind = DLPACK_ROCM);
    REFUSED(GPULUA_UNSUPPORTED, "kind 99 (unknown)", t->device.kind = 99);
#undef REFUSED
    FAILS(gpulua_dlpack_import(L, 0, NULL, NULL, &x), GPULUA_INVALID_ARGUMENT, "null pointer");
    FAILS(gpulua_dlpack_import_unversioned(L, 0, NULL, NULL, &x), GPULUA_INVALID_ARGUMENT,
          "null pointer");
    produce(&p, data, 8);
    p.versioned.version.major = 2;
    p.versioned.version.minor = 7;
    p.plain.tensor.shape = (int64_t *)8; /* nothing of another version is looked at */
    FAILS(take(g, &p, NULL, &x), GPULUA_UNSUPPORTED, "DLPack 2.7");
    p.versioned.version.major = 0;
    FAILS(take(g, &p, NULL, &x), GPULUA_UNSUPPORTED, "DLPack 0.7");
    produce(&p, data, 8);
    p.versioned.version.minor = 99; /* newer minor versions only add */
    CHECK(take(g, &p, NULL, &x) == GPULUA_OK);
    gpulua_buffer_release(x);
    gpulua_exchange stream = ordered(GPULUA_ORDER_STREAM);
    stream.stream = 1;
    produce(&p, data + 16, 8);
    FAILS(take(g, &p, &stream, &x), GPULUA_UNSUPPORTED, "no streams");
    CHECK(p.deleted == 0);
    lua_pushboolean(L, 1);
    FAILS(gpulua_dlpack_import(L, 1, &p.versioned, NULL, &x), GPULUA_INVALID_ARGUMENT,
          "device expected");
    CHECK(p.deleted == 0);
    gpulua_close(g);
}

/* Memory that nobody has ordered is refused wherever a script could race on it. */
static void test_unordered(void) {
    gpulua *g = open_object(GPULUA_ISOLATE_NONE);
    lua_State *L = gpulua_state(g);
    float data[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct producer p, again;
    gpulua_buffer *x = NULL, *second = NULL;
    gpulua_recorder *r = NULL;
    gpulua_recorder_info info;
    gpulua_exchange none = ordered(GPULUA_ORDER_NONE);
    CHECK(run(g, prelude));
    produce(&p, data, 8);
    CHECK(take(g, &p, &none, &x) == GPULUA_OK);
    set_global(g, "x", x);
    CHECK(run(g, "local c, m = code(mod.add.launch, mod.add, one, x, 8)\n"
                 "ok = c == 'StreamMisuse' and m:find('external memory', 1, true)"));
    CHECK(run(g, "y = dev:buffer('f32', 8)\n"
                 "ok = code(x.fill, x, 1) == 'StreamMisuse' and code(y.copy, y, x) == "
                 "'StreamMisuse' and code(x.copy, x, y) == 'StreamMisuse'\n"
                 "  and code(x.read, x) == 'StreamMisuse' and code(x.write, x, {1}, 1) == "
                 "'StreamMisuse'"));
    CHECK(run(g, "r = dev:recorder {} r:read(x) local c, m = code(r.preflight, r)\n"
                 "ok = c == 'StreamMisuse' and m:find('external', 1, true) r:cancel()"));
    CHECK(gpulua_recorder_new(L, NULL, &r) == GPULUA_OK);
    gpulua_recorder_write(r, x, "frame");
    FAILS(gpulua_recorder_preflight(g, r), GPULUA_STREAM_MISUSE, "frame: external memory");
    gpulua_recorder_release(r);
    gpulua_recorder_info_init(&info);
    info.is_permissive = 1;
    CHECK(gpulua_recorder_new(L, &info, &r) == GPULUA_OK);
    gpulua_recorder_write(r, x, "frame");
    CHECK(gpulua_recorder_preflight(g, r) == GPULUA_OK &&
          gpulua_recorder_commit(g, r) == GPULUA_OK);
    gpulua_recorder_release(r);
    /* With an order it is like any other. */
    gpulua_exchange ready = ordered(GPULUA_ORDER_READY);
    produce(&again, data, 8);
    CHECK(take(g, &again, &ready, &second) == GPULUA_OK && again.deleted == 1);
    CHECK(run(g, "mod.add:launch(one, x, 8) ok = x:read()[8] == 2"));
    gpulua_buffer_release(second);
    gpulua_buffer_release(x);
    gpulua_close(g);
    CHECK(p.deleted == 1);
}

static void test_read_only(void) {
    gpulua *g = open_object(GPULUA_ISOLATE_NONE);
    lua_State *L = gpulua_state(g);
    float data[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct producer p;
    gpulua_buffer *x = NULL;
    gpulua_buffer_info info;
    void *bytes;
    struct DLManagedTensor *plain;
    struct DLManagedTensorVersioned *versioned;
    gpulua_recorder *r = NULL;
    CHECK(run(g, prelude));
    produce(&p, data, 8);
    p.versioned.flags = DLPACK_FLAG_READ_ONLY;
    CHECK(take(g, &p, NULL, &x) == GPULUA_OK);
    gpulua_buffer_describe(x, &info);
    CHECK(info.is_read_only);
    set_global(g, "x", x);
    CHECK(run(g, "y = dev:buffer('f32', 8) mod.twice:launch(one, x, y, 8) ok = y:read()[8] == 2"));
    CHECK(run(g, "local c, m = code(mod.add.launch, mod.add, one, x, 8)\n"
                 "ok = c == 'InvalidArgument' and m:find('read only', 1, true) and m:find('add')"));
    CHECK(run(g, "ok = code(x.fill, x, 1) == 'InvalidArgument' and code(x.copy, x, y) == "
                 "'InvalidArgument' and code(x.write, x, {1}, 1) == 'InvalidArgument'"));
    CHECK(gpulua_recorder_new(L, NULL, &r) == GPULUA_OK);
    gpulua_recorder_write(r, x, "x");
    FAILS(gpulua_recorder_preflight(g, r), GPULUA_INVALID_ARGUMENT, "read only");
    gpulua_recorder_release(r);
    CHECK(gpulua_buffer_map(g, x, GPULUA_READ, &bytes) == GPULUA_OK);
    FAILS(gpulua_buffer_map(g, x, GPULUA_WRITE, &bytes), GPULUA_INVALID_ARGUMENT, "read only");
    FAILS(gpulua_dlpack_export_unversioned(L, x, NULL, &plain), GPULUA_UNSUPPORTED, "read only");
    CHECK(gpulua_dlpack_export(L, x, NULL, &versioned) == GPULUA_OK);
    CHECK(versioned->flags == DLPACK_FLAG_READ_ONLY);
    versioned->deleter(versioned);
    gpulua_buffer_release(x);
    gpulua_close(g);
    CHECK(p.deleted == 1 && data[0] == 1);
}

/* What a producer does when it gets its memory back: lets go of another buffer, and waits for a
 * thread that works on the same device. */
struct holder {
    struct producer producer;
    gpulua_buffer *held;
    gpulua *other; /* or NULL */
};

static void *work_there(void *user) {
    (void)run(user, "require('gpulua').device():buffer('f32', 8):fill(1):read() ok = true");
    return NULL;
}

static void deleted_holder(struct DLManagedTensorVersioned *self) {
    struct holder *holder = self->context;
    pthread_t thread;
    gpulua_buffer_release(holder->held);
    if (holder->other && pthread_create(&thread, NULL, work_there, holder->other) == 0) {
        pthread_join(thread, NULL);
    }
    holder->producer.deleted++;
}

static void test_deleter(bool is_shared, bool at_close) {
    gpulua_config config;
    gpulua_device_config device_config;
    struct holder holder = {0};
    float data[8] = {0};
    gpulua_buffer *x = NULL;
    gpulua_device_config_init(&device_config);
    gpulua_config_init(&config);
    device_config.device = config.device = "cpu";
    device_config.isolation = config.isolation = GPULUA_ISOLATE_NONE;
    config.shared_device = is_shared ? gpulua_device_open(&device_config) : NULL;
    gpulua *g = gpulua_new(&config);
    holder.other = is_shared ? gpulua_new(&config) : NULL;
    CHECK(run(g, prelude));
    CHECK(run(g, "x = dev:buffer('f32', 8) ok = true"));
    lua_getglobal(gpulua_state(g), "x");
    CHECK(gpulua_to_buffer(gpulua_state(g), -1, &holder.held) == GPULUA_OK);
    lua_pop(gpulua_state(g), 1);
    produce(&holder.producer, data, 8);
    holder.producer.versioned.context = &holder;
    holder.producer.versioned.deleter = deleted_holder;
    CHECK(take(g, &holder.producer, NULL, &x) == GPULUA_OK);
    if (at_close) {
        gpulua_close(g);
        gpulua_buffer_release(x);
    } else {
        gpulua_buffer_release(x);
        settle(g);
        gpulua_close(g);
    }
    CHECK(holder.producer.deleted == 1);
    gpulua_close(holder.other);
    gpulua_device_close(config.shared_device);
}

/* Vectors and views of memory that begins anywhere: aligned by where it really is. */
static void test_alignment(void) {
    gpulua *g = open_object(GPULUA_ISOLATE_NONE);
    _Alignas(64) float data[24] = {0};
    struct producer p;
    gpulua_buffer *x = NULL;
    CHECK(run(g, prelude));
    CHECK(run(g, "quad = dev:compile [[extern \"C\" __global__ void quad(float4 *x) { x[0].x = 5; "
                 "}]] ok = true"));
    for (int at = 0; at < 4; at++) {
        produce(&p, data + at, 8);
        CHECK(take(g, &p, NULL, &x) == GPULUA_OK);
        set_global(g, "x", x);
        gpulua_buffer_release(x);
        CHECK(run(g, at == 0 ? "quad.quad:launch(one, x) ok = x:read()[1] == 5"
                             : "ok = code(quad.quad.launch, quad.quad, one, x) == "
                               "'InvalidArgument'"));
        CHECK(run(g, at % 2 == 0 ? "ok = #x:view('f64', 4) == 4"
                                 : "ok = code(x.view, x, 'f64', 4) == 'InvalidArgument'"));
        CHECK(run(g, "x:close() x = nil collectgarbage() dev:synchronize() ok = "
                     "dev:stats().imports_live == 0"));
    }
    gpulua_close(g);
}

/* ---- memory that goes out and comes back ---- */

static void test_identity(void) {
    gpulua *g = open_object(GPULUA_ISOLATE_NONE);
    lua_State *L = gpulua_state(g);
    struct DLManagedTensorVersioned *out = NULL;
    struct producer p;
    gpulua_buffer *back = NULL;
    gpulua_buffer_info info;
    gpulua_recorder *r = NULL;
    gpulua_exchange none = ordered(GPULUA_ORDER_NONE);
    CHECK(run(g, prelude));
    CHECK(run(g, "x = dev:buffer('f32', 16, {label = 'x'}):fill(1) h = dev:host('f32', 8) h[5] = 3 "
                 "ok = true"));
    for (int i = 0; i < 2; i++) {
        gpulua_buffer *x = global_buffer(g, i ? "h" : "x");
        CHECK(gpulua_dlpack_export(L, x, NULL, &out) == GPULUA_OK);
        /* By way of somebody else, in a tensor of theirs, a part of it, and with no order. */
        produce(&p, (float *)out->tensor.data + 4, 4);
        CHECK(take(g, &p, &none, &back) == GPULUA_OK && p.deleted == 1);
        gpulua_buffer_describe(back, &info);
        CHECK(!info.is_external && info.elem_count == 4 && info.is_host == i);
        set_global(g, "back", back);
        CHECK(gpulua_recorder_new(L, NULL, &r) == GPULUA_OK);
        gpulua_recorder_write(r, back, "back");
        CHECK(gpulua_recorder_preflight(g, r) == GPULUA_OK);
        gpulua_recorder_release(r);
        CHECK(run(g, i ? "ok = back[1] == 3"
                       : "a, b = dev:stream {}, dev:stream {}\n"
                         "mod.spin:launch({grid = 1, block = 1, stream = a}, x, 16, 100000000)\n"
                         "mod.add:launch({grid = 1, block = 1, stream = b}, back, 4)\n"
                         "ok = back:read()[1] == 3 and x:read()[4] == 2"));
        CHECK(!i || run(g, "h:write(back, 1) ok = h[1] == 3 and h[4] == 0 and "
                           "code(h.write, h, back, 3) == 'InvalidArgument'"));
        gpulua_buffer_release(back);
        /* Our own tensor, handed back: its deleter is ours. */
        CHECK(gpulua_dlpack_import(L, 0, out, NULL, &back) == GPULUA_OK);
        gpulua_buffer_release(back);
        CHECK(run(g, "ok = dev:stats().exports_live == 0"));
        gpulua_buffer_release(x);
    }
    /* Ours, but freed. */
    gpulua_buffer *x = global_buffer(g, "x");
    CHECK(gpulua_dlpack_export(L, x, NULL, &out) == GPULUA_OK);
    CHECK(run(g, "x:free() ok = true"));
    FAILS(gpulua_dlpack_import(L, 0, out, NULL, &back), GPULUA_USE_AFTER_FREE, "no live buffer");
    out->deleter(out);
    gpulua_buffer_release(x);
    gpulua_close(g);
}

/* ---- whose memory it is, and until when ---- */

static void test_lifetimes(void) {
    gpulua *g = open_object(GPULUA_ISOLATE_NONE);
    lua_State *L = gpulua_state(g);
    struct DLManagedTensorVersioned *out[3] = {NULL};
    CHECK(run(g, prelude));
    CHECK(run(g, "x = dev:buffer('f32', 1 << 18):fill(7) h = dev:host('f32', 4):fill(8)\n"
                 "dev:synchronize() before = dev:stats().bytes_live ok = true"));
    gpulua_buffer *x = global_buffer(g, "x"), *h = global_buffer(g, "h");
    CHECK(gpulua_dlpack_export(L, x, NULL, &out[0]) == GPULUA_OK);
    CHECK(gpulua_dlpack_export(L, h, NULL, &out[1]) == GPULUA_OK);
    gpulua_buffer_release(x);
    gpulua_buffer_release(h);
    /* Freed for scripts; its bytes are not given to another. */
    CHECK(run(g, "x:free() h:close() h = nil collectgarbage() collectgarbage()\n"
                 "for i = 1, 50 do local b <close> = dev:buffer('f32', 1 << 18):fill(0) end\n"
                 "for i = 1, 50 do local b <close> = dev:host('f32', 4):fill(0) end\n"
                 "dev:synchronize() ok = dev:stats().bytes_live == before"));
    CHECK(((float *)out[0]->tensor.data)[1234] == 7 && ((float *)out[1]->tensor.data)[3] == 8);
    out[0]->deleter(out[0]);
    CHECK(run(g, "dev:synchronize() dev:buffer('f32', 1):close() ok = dev:stats().bytes_live == 0 "
                 "and dev:stats().exports_live == 1"));
    /* And past the end of all. */
    CHECK(run(g, "x = dev:buffer('f32', 1 << 18):fill(9) y = dev:buffer('f32', 4):fill(10) ok = "
                 "true"));
    x = global_buffer(g, "x");
    gpulua_buffer *y = global_buffer(g, "y");
    CHECK(gpulua_dlpack_export(L, x, NULL, &out[0]) == GPULUA_OK);
    CHECK(gpulua_dlpack_export(L, y, NULL, &out[2]) == GPULUA_OK);
    gpulua_buffer_release(x);
    gpulua_close(g);
    ((float *)out[0]->tensor.data)[5] += 1;
    CHECK(((float *)out[0]->tensor.data)[5] == 10 && ((float *)out[1]->tensor.data)[3] == 8);
    out[0]->deleter(out[0]);
    CHECK(((float *)out[2]->tensor.data)[3] == 10);
    out[1]->deleter(out[1]);
    out[2]->deleter(out[2]); /* frees what is left of the device */
    gpulua_buffer_release(y);
    /* A deleter may let go of what else the host holds, whoever makes it run. */
    struct producer first, second_one;
    float pair[2][4] = {{1}, {2}};
    for (int i = 0; i < 2; i++) {
        g = open_object(GPULUA_ISOLATE_NONE);
        CHECK(run(g, prelude));
        produce(&first, pair[0], 4);
        produce(&second_one, pair[1], 4);
        CHECK(take(g, &first, NULL, &x) == GPULUA_OK);
        CHECK(take(g, &second_one, NULL, &first.lets_go) == GPULUA_OK);
        if (i == 0) {
            gpulua_buffer_release(x);
            settle(g);
            CHECK(first.deleted == 1 && second_one.deleted == 1);
        }
        gpulua_close(g);
        CHECK(first.deleted == 1 && second_one.deleted == 1);
        if (i == 1) {
            gpulua_buffer_release(x);
        }
    }
    /* What came in and went out again is its owner's when the last of both is over. */
    struct producer p;
    float data[8] = {1};
    for (int i = 0; i < 2; i++) {
        g = open_object(GPULUA_ISOLATE_NONE);
        L = gpulua_state(g);
        CHECK(run(g, prelude));
        produce(&p, data, 8);
        CHECK(take(g, &p, NULL, &x) == GPULUA_OK);
        CHECK(gpulua_dlpack_export(L, x, NULL, &out[0]) == GPULUA_OK);
        CHECK(gpulua_dlpack_export(L, x, NULL, &out[2]) == GPULUA_OK);
        gpulua_buffer_release(x);
        settle(g);
        out[0]->deleter(out[0]);
        if (i == 1) {
            out[2]->deleter(out[2]);
            settle(g);
        }
        CHECK(p.deleted == i);
        gpulua_close(g);
        CHECK(p.deleted == i); /* lent still */
        if (i == 0) {
            out[2]->deleter(out[2]);
        }
        CHECK(p.deleted == 1);
    }
    /* A state of the host's, where handles outlive the close. */
    L = luaL_newstate();
    luaL_openlibs(L);
    gpulua_config config;
    gpulua_config_init(&config);
    config.device = "cpu";
    g = gpulua_attach(L, &config);
    CHECK(run(g, prelude) && run(g, "x = dev:host('f32', 4):fill(5) ok = true"));
    x = global_buffer(g, "x");
    CHECK(gpulua_dlpack_export(L, x, NULL, &out[0]) == GPULUA_OK);
    gpulua_close(g);
    gpulua_buffer_release(x);
    lua_close(L);
    CHECK(((float *)out[0]->tensor.data)[3] == 5);
    out[0]->deleter(out[0]);
}

/* Deleters come from other threads, at any time, also across the close. */
#define LENT_COUNT 400
struct returning {
    struct DLManagedTensorVersioned *lent[LENT_COUNT];
    atomic_int next, given;
    float sum[4];
};

struct returner {
    struct returning *all;
    int number;
};

static void *return_some(void *user) {
    struct returner *self = user;
    for (;;) {
        int i = atomic_fetch_add(&self->all->next, 1);
        if (i >= LENT_COUNT) {
            return NULL;
        }
        while (atomic_load(&self->all->given) <= i) {}
        struct DLManagedTensorVersioned *t = self->all->lent[i];
        self->all->sum[self->number] += ((float *)t->tensor.data)[0];
        t->deleter(t);
    }
}

static void test_threads(void) {
    static struct returning all;
    for (int round = 0; round < 2; round++) { /* closed behind, closed meanwhile */
        gpulua *g = open_object(GPULUA_ISOLATE_NONE);
        lua_State *L = gpulua_state(g);
        pthread_t threads[4];
        struct returner returners[4];
        gpulua_buffer_info info;
        float sum = 0;
        memset(&all, 0, sizeof all);
        gpulua_buffer_info_init(&info);
        info.type = "f32";
        info.dim_count = 1;
        info.shape[0] = 64;
        for (int i = 0; i < 4; i++) {
            returners[i] = (struct returner){&all, i};
            pthread_create(&threads[i], NULL, return_some, &returners[i]);
        }
        bool is_well = true;
        for (int i = 0; i < LENT_COUNT; i++) {
            gpulua_buffer *b;
            void *bytes;
            info.is_host = i % 3 == 0;
            is_well = is_well && gpulua_buffer_new(L, 0, &info, &b) == GPULUA_OK &&
                      gpulua_buffer_map(g, b, GPULUA_WRITE, &bytes) == GPULUA_OK;
            if (is_well) {
                ((float *)bytes)[0] = (float)(i % 5);
                is_well = gpulua_dlpack_export(L, b, NULL, &all.lent[i]) == GPULUA_OK;
                gpulua_buffer_release(b);
            }
            if (round == 0) {
                atomic_store(&all.given, i + 1);
            }
            sum += (float)(i % 5);
        }
        CHECK(is_well);
        atomic_store(&all.given, LENT_COUNT);
        if (round == 1) {
            gpulua_close(g);
        }
        for (int i = 0; i < 4; i++) {
            pthread_join(threads[i], NULL);
        }
        CHECK(all.sum[0] + all.sum[1] + all.sum[2] + all.sum[3] == sum);
        if (round == 0) {
            CHECK(run(g, "gpu = require 'gpulua' dev = gpu.device() dev:synchronize()\n"
                         "dev:buffer('f32', 1):close()\n"
                         "ok = dev:stats().exports_live == 0 and dev:stats().bytes_live == 0"));
            gpulua_close(g);
        }
    }
}

/* Under process only the arena is shared. */
static void test_process(void) {
    gpulua *g = open_object(GPULUA_ISOLATE_PROCESS);
    lua_State *L = gpulua_state(g);
    struct DLManagedTensorVersioned *out = NULL;
    float data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct producer p;
    gpulua_buffer *back = NULL;
    gpulua_buffer_info info;
    if (!CHECK(run(g, prelude))) {
        gpulua_close(g);
        return;
    }
    CHECK(run(g, "x = dev:buffer('f32', 8):fill(1) h = dev:host('f32', 8):fill(2) ok = true"));
    gpulua_buffer *x = global_buffer(g, "x"), *h = global_buffer(g, "h");
    FAILS(gpulua_dlpack_export(L, x, NULL, &out), GPULUA_UNSUPPORTED, "process of its own");
    CHECK(run(g, "h:copy(x) ok = true"));
    CHECK(gpulua_dlpack_export(L, h, NULL, &out) == GPULUA_OK);
    CHECK(((float *)out->tensor.data)[7] == 1);
    ((float *)out->tensor.data)[7] = 70;
    CHECK(run(g, "x:copy(h) ok = x:read()[8] == 70"));
    CHECK(gpulua_dlpack_import(L, 0, out, NULL, &back) == GPULUA_OK);
    gpulua_buffer_describe(back, &info);
    CHECK(info.is_host && !info.is_external);
    gpulua_buffer_release(back);
    produce(&p, data, 8);
    FAILS(take(g, &p, NULL, &back), GPULUA_UNSUPPORTED, "copy it");
    CHECK(p.deleted == 0);
    gpulua_exchange copy = ordered(GPULUA_ORDER_READY);
    copy.may_copy = 1;
    copy.label = "copied";
    CHECK(take(g, &p, &copy, &back) == GPULUA_OK && p.deleted == 1);
    gpulua_buffer_describe(back, &info);
    CHECK(info.is_host && !info.is_external && strcmp(info.label, "copied") == 0);
    set_global(g, "c", back);
    CHECK(run(g, "x:copy(c) mod.add:launch(one, x, 8) ok = x:read()[8] == 9 and #c == 8"));
    CHECK(data[7] == 8);
    CHECK(gpulua_dlpack_export(L, h, NULL, &out) == GPULUA_OK);
    gpulua_buffer_release(back);
    gpulua_buffer_release(x);
    gpulua_buffer_release(h);
    gpulua_close(g);
    CHECK(((float *)out->tensor.data)[7] == 70);
    out->deleter(out);
}

/* Check mode sees what others write, and what kernels do with it. */
static void test_checked(void) {
    gpulua_config config;
    gpulua_config_init(&config);
    config.device = "cpu";
    config.check = 1;
    config.on_error = print_error;
    config.isolation = GPULUA_ISOLATE_NONE;
    gpulua *g = gpulua_new(&config);
    lua_State *L = gpulua_state(g);
    float data[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct producer p;
    gpulua_buffer *x = NULL, *fresh = NULL;
    struct DLManagedTensorVersioned *out = NULL;
    CHECK(run(g, prelude));
    produce(&p, data, 8);
    CHECK(take(g, &p, NULL, &x) == GPULUA_OK);
    set_global(g, "x", x);
    gpulua_buffer_release(x);
    /* In one task: what tasks do is for check mode to be in no order. */
    CHECK(run(g, "local y = dev:buffer('f32', 8) mod.twice:launch(one, x, y, 8)\n"
                 "local is_well = y:read()[8] == 16\n"
                 "local p = mod.add:launch(one, x, 9)\n"
                 "ok = is_well and code(p.await, p) == 'OutOfBounds' pcall(dev.synchronize, dev)"));
    CHECK(data[8] == 9);
    CHECK(run(g, "x:close() x = nil ok = true"));
    settle(g);
    CHECK(p.deleted == 1 && data[0] == 2 && data[7] == 9); /* freed, but not ours to poison */
    /* Neighbours in one word are told apart, whichever goes first. */
    uint8_t bytes[4] = {1, 2, 3, 4};
    struct producer parts[2];
    gpulua_buffer *part[2];
    CHECK(run(g, "sum = dev:compile [[extern \"C\" __global__ void sum(const unsigned char *x, "
                 "int n, int *to) { for (int i = 0; i < n; i++) to[0] += x[i]; }]] ok = true"));
    for (int first = 0; first < 2; first++) {
        for (int i = 0; i < 2; i++) {
            produce(&parts[i], bytes + 1 + i, i + 1);
            parts[i].plain.tensor.type = (struct dlpack_type){DLPACK_UINT, 8, 1};
            CHECK(take(g, &parts[i], NULL, &part[i]) == GPULUA_OK);
            set_global(g, i ? "b" : "a", part[i]);
            gpulua_buffer_release(part[i]);
        }
        CHECK(run(g, "local to <close> = dev:buffer('i32', 1):fill(0)\n"
                     "sum.sum:launch(one, a, 1, to) sum.sum:launch(one, b, 2, to) ok = "
                     "to:read()[1] == 9"));
        CHECK(run(g, first ? "b:close() b = a a = nil ok = true" : "a:close() a = nil ok = true"));
        settle(g);
        CHECK(run(g, first ? "local to <close> = dev:buffer('i32', 1):fill(0)\n"
                             "sum.sum:launch(one, b, 1, to) ok = to:read()[1] == 2"
                           : "local to <close> = dev:buffer('i32', 1):fill(0)\n"
                             "sum.sum:launch(one, b, 2, to) ok = to:read()[1] == 7"));
        CHECK(run(g, "b:close() b = nil ok = true"));
        settle(g);
    }
    CHECK(run(g, "z = dev:buffer('f32', 8) ok = true")); /* never written by the device */
    fresh = global_buffer(g, "z");
    CHECK(gpulua_dlpack_export(L, fresh, NULL, &out) == GPULUA_OK);
    ((float *)out->tensor.data)[7] = 4;
    out->deleter(out);
    CHECK(run(
        g, "local y = dev:buffer('f32', 8) mod.twice:launch(one, z, y, 8) ok = y:read()[8] == 8"));
    gpulua_buffer_release(fresh);
    gpulua_close(g);
    CHECK(p.deleted == 1);
}

/* Check mode by hashes looks neither at memory that its owner may change at any time, nor next to
 * it, and never again when the owner has it back. */
static void test_hashed(void) {
    static const char add_one[] = "local y <close> = dev:buffer('f32', 8):fill(1)\n"
                                  "mod.add:launch(one, y, 8) ok = y:read()[8] == 2";
    gpulua_config config;
    gpulua_config_init(&config);
    config.device = "cpu";
    config.check = 2;
    config.on_error = print_error;
    config.isolation = GPULUA_ISOLATE_NONE;
    gpulua *g = gpulua_new(&config);
    size_t bytes = 1 << 16;
    float *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct producer p;
    gpulua_buffer *x = NULL;
    CHECK(run(g, prelude));
    CHECK(
        run(g, "y = dev:buffer('f32', 8):fill(1) mod.add:launch(one, y, 8) ok = y:read()[8] == 2"));
    produce(&p, data + 40, 8);
    for (int order = 0; order < 2; order++) {
        gpulua_exchange exchange = ordered(order ? GPULUA_ORDER_READY : GPULUA_ORDER_NONE);
        CHECK(take(g, &p, &exchange, &x) == GPULUA_OK);
        set_global(g, "x", x);
        for (int i = 0; i < 3; i++) {
            data[39] += 1; /* in front of it */
            data[40] += 1; /* its first */
            CHECK(run(g, add_one));
        }
        gpulua_buffer_release(x);
        CHECK(run(g, "x:close() x = nil ok = true"));
        settle(g);
        CHECK(p.deleted == order + 1);
    }
    munmap(data, bytes);
    CHECK(run(g, add_one));
    gpulua_close(g);
}

int main(void) {
    test_export();
    test_export_order();
    test_import();
    test_shapes();
    test_refusals();
    test_unordered();
    test_read_only();
    for (int way = 0; way < 4; way++) {
        test_deleter(way & 1, way & 2);
    }
    test_alignment();
    test_identity();
    test_lifetimes();
    test_threads();
    test_process();
    test_checked();
    test_hashed();
    return tap_finish(&tap);
}
