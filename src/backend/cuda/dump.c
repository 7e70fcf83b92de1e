/* Core dumps of the GPU, for who asks for them: a small one, without its memory, which cuda-gdb
 * opens. The driver writes it when a kernel faults, and then ends this process, which is what the
 * script's side is told (recovery.c). It can be told to spare the process, but then it calls the
 * kernel's end a success (seen with 580.159.04).
 *
 * Of a kernel that has written to a wild address and is over before that is found out it does so
 * anyway (the same driver; also cuCtxSynchronize), some 0.2 s before it ends the process. But no
 * kernel comes to its end any more that is begun behind that. So an end is proven by that of a
 * kernel which is begun when the driver has told it, on a stream of its own; and streams of such a
 * device write no words, which nobody could doubt. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backend/cuda/say.h"
#include "wire/sync.h"

#define PATH_BYTES 1024u /* with its NUL; the driver takes no more */
/* A GPU that is full has no room for a kernel: what is over by then without a dump is well. */
#define PROOF_NS_MAX INT64_C(1000000000)

/* Attributes, and bits of the last one; headers before 12.5 do not have all of them. */
enum { ENABLE = 1, LIGHTWEIGHT = 3, DUMP_FILE = 5, FLAGS = 7 };
enum { SKIP_IMAGES_AND_MEMORY = 15, SKIP_CONSTANTS = 32 };

struct cuda_dump {
    char path[PATH_BYTES];
    CUstream stream; /* of the proofs */
    CUmodule module;
    CUfunction function;
};

static const char proof_ptx[] = ".version 6.0\n"
                                ".target sm_50\n"
                                ".address_size 64\n"
                                ".visible .entry gpulua_proof()\n"
                                "{\n"
                                "  ret;\n"
                                "}\n";

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
    struct cuda_dump *dump = calloc(1, sizeof *dump);
    if (dump == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    device->dump = dump;
    /* Each life of a device is another process. */
    int length = snprintf(dump->path, sizeof dump->path, "%s-%d.core", base, (int)getpid());
    if (length < 0 || (size_t)length >= sizeof dump->path) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "coredump: the folder's name is too long for the driver");
    }
    int flags = SKIP_IMAGES_AND_MEMORY | (cu->version >= 13000 ? SKIP_CONSTANTS : 0);
    gpulua_status status = set(device, DUMP_FILE, dump->path, (size_t)length + 1,
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

/* With the device: behind the first operation the code would not be there until all is over that
 * runs (see module.c). */
gpulua_status gpu_cuda_dump_prepare(struct backend_device *device, struct backend_error *error) {
    const struct cuda_driver *cu = &device->cu;
    struct cuda_dump *dump = device->dump;
    gpulua_status status = CU(device, error,
                              cu->cuStreamCreateWithPriority(&dump->stream, CU_STREAM_NON_BLOCKING,
                                                             device->facts.priority_highest));
    return status == GPULUA_OK ? gpu_cuda_own_kernel(device, proof_ptx, "gpulua_proof",
                                                     &dump->module, &dump->function, error)
                               : status;
}

void gpu_cuda_dump_close(struct backend_device *device) {
    const struct cuda_driver *cu = &device->cu;
    struct cuda_dump *dump = device->dump;
    if (dump != NULL && dump->stream != NULL) {
        (void)cu->cuStreamDestroy(dump->stream);
    }
    if (dump != NULL && dump->module != NULL) {
        (void)cu->cuModuleUnload(dump->module);
    }
}

void gpu_cuda_dump_free(struct backend_device *device) {
    free(device->dump);
    device->dump = NULL;
}

/* ---- what is over ---- */

static gpulua_status begin_proof(struct backend_event *event, struct backend_error *error) {
    struct backend_device *device = event->device;
    const struct cuda_driver *cu = &device->cu;
    const struct cuda_dump *dump = device->dump;
    gpulua_status status = gpu_cuda_enter(device, error);
    if (status == GPULUA_OK && event->proof == NULL) {
        status = CU(device, error, cu->cuEventCreate(&event->proof, CU_EVENT_DISABLE_TIMING));
    }
    if (status == GPULUA_OK) {
        status =
            CU(device, error,
               cu->cuLaunchKernel(dump->function, 1, 1, 1, 1, 1, 1, 0, dump->stream, NULL, NULL));
    }
    if (status == GPULUA_OK) {
        status = CU(device, error, cu->cuEventRecord(event->proof, dump->stream));
    }
    event->proof_ns = (int64_t)gpu_wire_now_ns();
    return status;
}

enum backend_query gpu_cuda_dump_prove(struct backend_event *event, struct backend_error *error) {
    struct backend_device *device = event->device;
    const struct cuda_driver *cu = &device->cu;
    gpulua_status status = event->proof_ns == 0 ? begin_proof(event, error) : GPULUA_OK;
    if (status == GPULUA_OK && event->proof_ns > 0) {
        CUresult result;
        CU_HOT(device, result, cu->cuEventQuery(event->proof));
        if (result == CUDA_ERROR_NOT_READY &&
            (int64_t)gpu_wire_now_ns() - event->proof_ns < PROOF_NS_MAX) {
            return BACKEND_PENDING;
        }
        status =
            result == CUDA_ERROR_NOT_READY
                ? GPULUA_OK
                : gpu_cuda_result(device, result, "cuEventQuery(proof)", __FILE__, __LINE__, error);
    }
    if (status == GPULUA_DEVICE_LOST) {
        return BACKEND_FAILED;
    }
    if (status != GPULUA_OK) { /* without memory there is no proof; the file may tell */
        free(error->log);
        error->log = NULL;
    }
    event->proof_ns = -1;
    return access(device->dump->path, F_OK) == 0 ? BACKEND_PENDING : BACKEND_DONE;
}
