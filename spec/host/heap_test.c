/* The memory of our Lua states: blocks keep what is in them through any order of calls, the limit
 * holds, and a state runs on it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lualib.h>

#include "backend/tap.h"
#include "host/heap.h"

#define BLOCKS 512
#define ROUNDS 200000

struct entry {
    uint8_t *bytes;
    size_t byte_count;
    uint8_t mark;
};

static size_t some_size(void) {
    int kind = rand() % 10;
    return kind < 7 ? 1 + (size_t)rand() % 300 : kind < 9 ? 1 + (size_t)rand() % 5000 : 70000;
}

static int is_whole(const struct entry *entry) {
    for (size_t i = 0; i < entry->byte_count; i++) {
        if (entry->bytes[i] != entry->mark) {
            return 0;
        }
    }
    return 1;
}

static void test_blocks(struct tap *tap) {
    static struct entry entries[BLOCKS];
    struct heap *heap = gpu_heap_create(0);
    int whole = 1, aligned = 1, made = 1;
    srand(7);
    for (int i = 0; i < BLOCKS; i += 4) { /* as a state's first blocks are */
        entries[i] = (struct entry){malloc(40), 40, 1};
        memset(entries[i].bytes, 1, 40);
    }
    for (int round = 0; round < ROUNDS; round++) {
        struct entry *entry = &entries[rand() % BLOCKS];
        size_t wanted = rand() % 3 == 0 ? 0 : some_size();
        if (!entry->bytes && wanted == 0) {
            continue;
        }
        whole &= is_whole(entry);
        uint8_t *bytes =
            gpu_heap_alloc(heap, entry->bytes, entry->bytes ? entry->byte_count : 6, wanted);
        made &= (bytes != NULL) == (wanted != 0);
        aligned &= (uintptr_t)bytes % 8 == 0;
        size_t kept = entry->byte_count < wanted ? entry->byte_count : wanted;
        *entry = (struct entry){bytes, kept, entry->mark};
        whole &= is_whole(entry);
        entry->byte_count = wanted;
        entry->mark = (uint8_t)rand();
        if (bytes) {
            memset(bytes, entry->mark, wanted);
        }
    }
    for (int i = 0; i < BLOCKS; i++) {
        whole &= is_whole(&entries[i]);
        if (entries[i].bytes) {
            (void)gpu_heap_alloc(heap, entries[i].bytes, entries[i].byte_count, 0);
        }
        entries[i] = (struct entry){0};
    }
    gpu_heap_destroy(heap);
    tap_check(tap, made && aligned, "blocks of any size are made");
    tap_check(tap, whole, "they keep what is in them, alone and when they grow and shrink");
}

static void test_reuse(struct tap *tap) {
    struct heap *heap = gpu_heap_create(0);
    void *first = gpu_heap_alloc(heap, NULL, 0, 48);
    int same = 1;
    for (int i = 0; i < 1000; i++) {
        (void)gpu_heap_alloc(heap, first, 48, 0);
        void *again = gpu_heap_alloc(heap, NULL, 0, 41 + (size_t)i % 8);
        same &= again == first;
        first = gpu_heap_alloc(heap, again, 41 + (size_t)i % 8, 48);
        same &= first == again;
    }
    (void)gpu_heap_alloc(heap, first, 48, 0);
    gpu_heap_destroy(heap);
#if defined(__SANITIZE_ADDRESS__)
    (void)same;
    tap_skip(tap, "what was dropped last is used next", "each block is watched by itself");
#else
    tap_check(tap, same, "what was dropped last is used next");
#endif
}

static void test_limit(struct tap *tap) {
    struct heap *heap = gpu_heap_create(1000);
    void *a = gpu_heap_alloc(heap, NULL, 0, 600);
    tap_check(tap, a != NULL, "within the limit");
    tap_check(tap, !gpu_heap_alloc(heap, NULL, 0, 401), "a byte over it is refused");
    void *b = gpu_heap_alloc(heap, NULL, 0, 400);
    tap_check(tap, b != NULL, "the last byte is not");
    tap_check(tap, !gpu_heap_alloc(heap, b, 400, 401), "growing is counted");
    void *c = gpu_heap_alloc(heap, b, 400, 100);
    tap_check(tap, c != NULL, "shrinking is never refused");
    tap_check(tap, gpu_heap_alloc(heap, NULL, 0, 301) == NULL, "and gives back");
    (void)gpu_heap_alloc(heap, c, 100, 0);
    void *d = gpu_heap_alloc(heap, NULL, 0, 400);
    tap_check(tap, d != NULL, "as freeing does");
    (void)gpu_heap_alloc(heap, d, 400, 0);
    (void)gpu_heap_alloc(heap, a, 600, 0);
    gpu_heap_destroy(heap);
}

static void test_state(struct tap *tap) {
    struct heap *heap;
    lua_State *L = gpu_heap_state(0, &heap);
    luaL_openlibs(L);
    const char *chunk = "local t = {}\n"
                        "for round = 1, 20 do\n"
                        "  for i = 1, 2000 do t[i] = { i, tostring(i * round), ('x'):rep(i) } end\n"
                        "  for i = 1, 2000 do assert(t[i][1] == i and #t[i][3] == i) end\n"
                        "  if round % 5 == 0 then collectgarbage() end\n"
                        "end\n"
                        "return #t";
    int status = luaL_dostring(L, chunk);
    tap_check(tap, status == LUA_OK && lua_tointeger(L, -1) == 2000, "a state runs on it");
    lua_close(L);
    gpu_heap_destroy(heap);
    L = gpu_heap_state(200 << 10, &heap);
    luaL_openlibs(L);
    status = luaL_loadstring(L, "local t = {} for i = 1, 1e6 do t[i] = tostring(i) end");
    status = status == LUA_OK ? lua_pcall(L, 0, 0, 0) : status;
    tap_check(tap, status == LUA_ERRMEM, "and within its limit");
    lua_close(L);
    gpu_heap_destroy(heap);
}

int main(void) {
    struct tap tap = {0};
    test_blocks(&tap);
    test_reuse(&tap);
    test_limit(&tap);
    test_state(&tap);
    return tap_finish(&tap);
}
