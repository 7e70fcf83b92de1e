/* Loading libedit (see libedit.h). */
#include "interpreter/libedit.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool load(struct libedit *libedit, const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        return false;
    }
#define X(type, name, arguments)                                                                   \
    {                                                                                              \
        void *symbol = dlsym(library, #name);                                                      \
        if (!symbol) {                                                                             \
            return false;                                                                          \
        }                                                                                          \
        memcpy(&libedit->name, &symbol, sizeof symbol);                                            \
    }
    LIBEDIT_TABLE(X)
#undef X
    libedit->library = library;
    return true;
}

const struct libedit *libedit_load(void) {
    static struct libedit loaded;
    const char *asked = getenv("GPULUA_LIBEDIT");
    if (loaded.library) {
        return &loaded;
    }
    /* The first is Debian's and Fedora's links to it, the second upstream's own name. */
    bool ok = asked && asked[0] ? load(&loaded, asked)
                                : load(&loaded, "libedit.so.2") || load(&loaded, "libedit.so.0");
    return ok ? &loaded : NULL;
}
