/* Core dumps of the GPU, for who asks for them: a small one, without its memory, which cuda-gdb
 * opens. The driver writes it when a kernel faults, and then ends this process, which is what the
 * script's side is told (recovery.c). It can be told to spare the process, but then it calls the
 * kernel's end a success (seen with 580.159.04); and for the moment between the dump and the end of
 * the process it does so, too. So no stream of such a device writes words, and no event is over
 * that is asked for behind the beginning of a dump. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backend/cuda/say.h"

#define PATH_BYTES 1024u /* with its NUL; the driver takes no more */

/* Attributes, and bits of the last one; headers before 12.5 do not have all of them. */
enum { ENABLE = 1, LIGHTWEIGHT = 3, DUMP_FILE = 5, FLAGS = 7 };
enum { SKIP_IMAGES_AND_MEMORY = 15, SKIP_CONSTANTS = 32 };

static gpulua_status set(struct backend_device *device, int attribute, void *value, size_t bytes,
                         const char *call, struct backend_error *error) {
    CUresult result =
        device->cu.cuCoredumpSetAttributeGlobal((CUcoredumpSettings)attribute, value, &bytes);
    return gpu_cuda_result(device, result, call, __FILE__, __LINE__, error);
}

gpulua_status gpu_cuda_dump_begin(struct backend_device *device, const char *base,
                                  struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    bool yes = true;
    if (cu->cuCoredumpSetAttributeGlobal == NULL) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                                "coredump: this driver writes none when asked by a program (CUDA "
                                "12.1 does)");
    }
    /* Each life of a device is another process. */
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s-%d.core", base, (int)getpid());
    if (length < 0 || (size_t)length >= sizeof path) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "coredump: the folder's name is too long for the driver");
    }
    device->dump_path = strdup(path);
    if (device->dump_path == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    int flags = SKIP_IMAGES_AND_MEMORY | (cu->version >= 13000 ? SKIP_CONSTANTS : 0);
    gpulua_status status = set(device, DUMP_FILE, path, (size_t)length + 1,
                               "cuCoredumpSetAttributeGlobal(file)", error);
    if (status == GPULUA_OK && cu->version >= 12050) {
        status =
            set(device, FLAGS, &flags, sizeof flags, "cuCoredumpSetAttributeGlobal(flags)", error);
    } else if (status == GPULUA_OK) {
        status = set(device, LIGHTWEIGHT, &yes, sizeof yes,
                     "cuCoredumpSetAttributeGlobal(lightweight)", error);
    }
    if (status == GPULUA_OK) {
        status =
            set(device, ENABLE, &yes, sizeof yes, "cuCoredumpSetAttributeGlobal(enable)", error);
    }
    if (status == GPULUA_OK) {
        /* Of the GPU, and not of this process, which nobody has asked for. */
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    }
    return status;
}

bool gpu_cuda_dump_has_begun(const struct backend_device *device) {
    return device->dump_path != NULL && access(device->dump_path, F_OK) == 0;
}
