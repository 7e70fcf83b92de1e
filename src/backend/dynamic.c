/* Opening libraries at run time (see dynamic.h). */
#include "backend/dynamic.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define PATH_BYTES 4096

static void *open_one(const char *path, char *tried, size_t tried_bytes, char *reason,
                      size_t reason_bytes) {
    size_t used = strlen(tried);
    snprintf(tried + used, tried_bytes - used, "%s%s", used > 0 ? ", " : "", path);
    (void)dlerror();
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        const char *words = dlerror();
        /* Of several reasons the one that is not just "not there" helps most. */
        bool missing = words == NULL || strstr(words, "No such file") != NULL;
        if (words != NULL && (reason[0] == '\0' || !missing)) {
            snprintf(reason, reason_bytes, "%s", words);
        }
    }
    return library;
}

gpulua_status gpu_backend_library_open(const char *what, const char *const *names,
                                       const char *const *folders, void **library,
                                       struct backend_error *error) {
    char tried[640] = "", reason[256] = "";
    *library = NULL;
    for (size_t i = 0; names[i] != NULL && *library == NULL; i++) {
        *library = open_one(names[i], tried, sizeof tried, reason, sizeof reason);
    }
    for (size_t f = 0; folders != NULL && folders[f] != NULL && *library == NULL; f++) {
        for (size_t i = 0; names[i] != NULL && *library == NULL; i++) {
            char path[PATH_BYTES];
            int length = snprintf(path, sizeof path, "%s/%s", folders[f], names[i]);
            if (folders[f][0] != '\0' && strchr(names[i], '/') == NULL && length > 0 &&
                (size_t)length < sizeof path) {
                *library = open_one(path, tried, sizeof tried, reason, sizeof reason);
            }
        }
    }
    if (*library == NULL) {
        return gpu_backend_fail(error, GPULUA_LIBRARY_UNAVAILABLE, 0,
                                "%s could not be loaded; tried %s (%s)", what, tried, reason);
    }
    return GPULUA_OK;
}
