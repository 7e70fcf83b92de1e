#include "runtime/locate.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXECUTOR_NAME "gpulua-exec"

struct search {
    char *path;
    size_t path_bytes;
    char tried[700];
};

static bool try_path(struct search *search, const char *folder, const char *below) {
    int length = snprintf(search->path, search->path_bytes, "%s%s" EXECUTOR_NAME, folder, below);
    if (length < 0 || (size_t)length >= search->path_bytes) {
        return false;
    }
    if (access(search->path, X_OK) == 0) {
        return true;
    }
    size_t used = strlen(search->tried);
    snprintf(search->tried + used, sizeof search->tried - used, "%s%s", used ? ", " : "",
             search->path);
    return false;
}

static bool try_around(struct search *search, char *file) {
    char *slash = strrchr(file, '/');
    if (!slash) {
        return false;
    }
    slash[1] = '\0';
    static const char *const below[] = {"",
                                        "gpulua/",
                                        "../",
                                        "../libexec/",
                                        "../../libexec/",
                                        "../../../libexec/",
                                        "../../../../libexec/",
                                        "../lib/lua/5.4/gpulua/"}; /* of a rock, from its bin */
    for (size_t i = 0; i < sizeof below / sizeof below[0]; i++) {
        if (try_path(search, file, below[i])) {
            return true;
        }
    }
    return false;
}

static gpulua_status take_at_its_word(const char *given, const char *by, char *path,
                                      size_t path_bytes, struct gpu_error *error) {
    if (access(given, X_OK) != 0) {
        return gpu_error_set(error, GPULUA_IO,
                             "the executor '%s', named by %s, is not a program that can be run",
                             given, by);
    }
    int length = snprintf(path, path_bytes, "%s", given);
    if (length < 0 || (size_t)length >= path_bytes) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "the executor's path, named by %s, is too long", by);
    }
    return GPULUA_OK;
}

gpulua_status gpu_locate_executor(const char *configured, char *path, size_t path_bytes,
                                  struct gpu_error *error) {
    if (configured && configured[0]) {
        return take_at_its_word(configured, "the configuration", path, path_bytes, error);
    }
    const char *environment = getenv("GPULUA_EXECUTOR");
    if (environment && environment[0]) {
        return take_at_its_word(environment, "GPULUA_EXECUTOR", path, path_bytes, error);
    }
    struct search search = {.path = path, .path_bytes = path_bytes};
    char file[4096];
    Dl_info here;
    union {
        gpulua_status (*function)(const char *, char *, size_t, struct gpu_error *);
        void *address;
    } self = {.function = gpu_locate_executor};
    if (dladdr(self.address, &here) && here.dli_fname && strchr(here.dli_fname, '/')) {
        snprintf(file, sizeof file, "%s", here.dli_fname);
        if (try_around(&search, file)) {
            return GPULUA_OK;
        }
    }
    ssize_t length = readlink("/proc/self/exe", file, sizeof file - 1);
    if (length > 0) {
        file[length] = '\0';
        if (try_around(&search, file)) {
            return GPULUA_OK;
        }
    }
    return gpu_error_set(error, GPULUA_IO,
                         "the executor program " EXECUTOR_NAME " was not found; tried %s",
                         search.tried);
}
