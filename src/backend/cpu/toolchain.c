/* The machine's C++ compiler, and the shim's files on disk (see compile.h). */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/cpu/compile.h"
#include "backend/cpu/process.h"
#include "backend/cpu/shim.h"
#include "backend/text.h"

gpulua_status gpu_cpu_compiler_find(struct cpu_compiler *compiler, struct backend_error *error) {
    static const char *const usual[] = {"c++", "g++", "clang++"};
    const char *asked = getenv("GPULUA_CXX");
    memset(compiler, 0, sizeof *compiler);
    bool found = false;
    if (asked != NULL && asked[0] != '\0') {
        found = gpu_cpu_process_find(asked, compiler->path, sizeof compiler->path);
        if (!found) {
            return gpu_backend_fail(error, GPULUA_LIBRARY_UNAVAILABLE, 0,
                                    "no C++ compiler: $GPULUA_CXX names '%.512s', which cannot be "
                                    "run",
                                    asked);
        }
    }
    for (size_t i = 0; !found && i < sizeof usual / sizeof *usual; i++) {
        found = gpu_cpu_process_find(usual[i], compiler->path, sizeof compiler->path);
    }
    if (!found) {
        return gpu_backend_fail(error, GPULUA_LIBRARY_UNAVAILABLE, 0,
                                "no C++ compiler: tried $GPULUA_CXX (not set), c++, g++, clang++ "
                                "in $PATH");
    }
    char real[PATH_MAX];
    struct stat facts;
    if (realpath(compiler->path, real) == NULL || stat(real, &facts) != 0) {
        return gpu_backend_fail(error, GPULUA_LIBRARY_UNAVAILABLE, errno,
                                "C++ compiler '%.512s': %s", compiler->path, strerror(errno));
    }
    snprintf(compiler->identity, sizeof compiler->identity, "%s %lld %lld.%09ld", real,
             (long long)facts.st_size, (long long)facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec);
    return GPULUA_OK;
}

void gpu_cpu_compiler_describe(struct text *text) {
    struct cpu_compiler compiler;
    struct backend_error error;
    gpu_backend_error_init(&error);
    if (gpu_cpu_compiler_find(&compiler, &error) == GPULUA_OK) {
        gpu_text_format(text, "found\tC++ compiler\t%s\n", compiler.path);
    } else {
        gpu_text_format(text, "missing\tC++ compiler\t%s\n", error.message);
    }
    free(error.log);
}

gpulua_status gpu_cpu_compiler_ask(struct cpu_compiler *compiler, struct backend_error *error) {
    char version[] = "--version";
    char *argv[] = {compiler->path, version, NULL};
    struct cpu_process process;
    if (!gpu_cpu_process_run(argv, "", 0, &process)) {
        return gpu_backend_fail(error, GPULUA_LIBRARY_UNAVAILABLE, errno,
                                "C++ compiler '%.512s' cannot be run: %s", compiler->path,
                                strerror(errno));
    }
    compiler->is_clang = strstr(process.output, "clang") != NULL;
    gpu_cpu_process_free(&process);
    return GPULUA_OK;
}

void gpu_cpu_processor_identity(char *text, size_t text_bytes) {
    static const char *const fields[] = {"vendor_id", "cpu family", "model",           "stepping",
                                         "flags",     "Features",   "CPU implementer", "CPU part",
                                         "isa",       NULL};
    size_t used = 0;
    text[0] = '\0';
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (file == NULL) {
        return;
    }
    char line[8192];
    while (fgets(line, sizeof line, file) != NULL && line[0] != '\n') { /* the first processor */
        for (size_t i = 0; fields[i] != NULL; i++) {
            size_t length = strlen(fields[i]);
            if (strncmp(line, fields[i], length) == 0 && strchr("\t :", line[length]) != NULL &&
                used + strlen(line) < text_bytes) {
                strcpy(text + used, line);
                used += strlen(line);
                break;
            }
        }
    }
    fclose(file);
}

/* ---- the shim ---- */

void gpu_cpu_shim_digest(char digest[17]) {
    struct gpu_cache_key key;
    const void *parts[256];
    size_t bytes[256], count = 0;
    for (size_t i = 0; i < gpu_cpu_shim_file_count && count + 2 <= 256; i++) {
        parts[count] = gpu_cpu_shim_files[i].name;
        bytes[count++] = strlen(gpu_cpu_shim_files[i].name);
        parts[count] = gpu_cpu_shim_files[i].bytes;
        bytes[count++] = gpu_cpu_shim_files[i].byte_count;
    }
    gpu_cache_key_init(&key, parts, bytes, count);
    snprintf(digest, 17, "%.16s", key.hex);
}

static bool file_write(const char *path, const void *bytes, size_t byte_count) {
    FILE *file = fopen(path, "wxe");
    if (file == NULL) {
        return false;
    }
    bool ok = fwrite(bytes, 1, byte_count, file) == byte_count;
    return fclose(file) == 0 && ok;
}

/* All files, with the contents of this build's. */
static bool folder_is_whole(const char *folder) {
    char path[CPU_PATH_BYTES + 256];
    struct stat facts;
    for (size_t i = 0; i < gpu_cpu_shim_file_count; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, gpu_cpu_shim_files[i].name);
        if (stat(path, &facts) != 0 || (size_t)facts.st_size != gpu_cpu_shim_files[i].byte_count) {
            return false;
        }
    }
    return true;
}

gpulua_status gpu_cpu_shim_folder(const char *cache_folder, char *folder, size_t folder_bytes,
                                  int *hold, struct backend_error *error) {
    char digest[17], making[CPU_PATH_BYTES], path[CPU_PATH_BYTES + 256];
    gpu_cpu_shim_digest(digest);
    int length =
        snprintf(folder, folder_bytes, "%s/" GPU_CACHE_FOLDER_PREFIX "%s", cache_folder, digest);
    if (length < 0 || (size_t)length >= folder_bytes) {
        return gpu_backend_fail(error, GPULUA_IO, 0, "the path of the cache folder is too long");
    }
    for (int attempt = 0; attempt < 3; attempt++) {
        *hold = gpu_cache_folder_hold(folder);
        if (*hold >= 0) {
            if (folder_is_whole(folder)) {
                return GPULUA_OK;
            }
            close(*hold);
            *hold = -1;
            gpu_cache_folder_drop(folder);
        }
        /* Written aside and renamed: whoever finds the folder finds all of it. */
        snprintf(making, sizeof making, "%s/." GPU_CACHE_FOLDER_PREFIX "XXXXXX", cache_folder);
        if (mkdtemp(making) == NULL) {
            break;
        }
        bool ok = true;
        for (size_t i = 0; ok && i < gpu_cpu_shim_file_count; i++) {
            snprintf(path, sizeof path, "%s/%s", making, gpu_cpu_shim_files[i].name);
            ok = file_write(path, gpu_cpu_shim_files[i].bytes, gpu_cpu_shim_files[i].byte_count);
        }
        if (!ok || rename(making, folder) != 0) {
            gpu_cache_folder_drop(making); /* or somebody else was first: looked at again */
        }
    }
    return gpu_backend_fail(error, GPULUA_IO, errno,
                            "writing the headers of kernels to '%.512s': %s", folder,
                            strerror(errno));
}
