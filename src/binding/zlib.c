/* Loading zlib (see zlib.h). */
#include "binding/zlib.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "binding/binding.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* states are of any thread */
static struct zlib loaded;

/* NULL, or what is missing. */
static const char *load(struct zlib *zlib, const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        return path;
    }
#define X(type, name, arguments)                                                                   \
    {                                                                                              \
        void *symbol = dlsym(library, #name);                                                      \
        if (!symbol) {                                                                             \
            return #name;                                                                          \
        }                                                                                          \
        memcpy(&zlib->name, &symbol, sizeof symbol);                                               \
    }
    ZLIB_TABLE(X)
#undef X
    zlib->library = library;
    return NULL;
}

const struct zlib *gpu_lua_zlib(lua_State *L) {
    const char *asked = getenv("GPULUA_LIBZ"), *missing = NULL;
    pthread_mutex_lock(&lock);
    if (!loaded.library) {
        missing = load(&loaded, asked && asked[0] ? asked : "libz.so.1");
    }
    pthread_mutex_unlock(&lock);
    if (missing) {
        gpu_lua_fail(L, GPULUA_LIBRARY_UNAVAILABLE,
                     "zlib (Debian: zlib1g) could not be loaded: %s is not there", missing);
    }
    return &loaded;
}
