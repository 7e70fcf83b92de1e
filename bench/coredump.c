/* What the driver says of the end of a kernel that writes astray while core dumps are asked for, of
 * one that is over with that (plain) and of one that waits for its writes (fenced): in a process
 * each, which the driver then ends. Prints what an event behind the kernel says, and what comes of
 * another kernel that is begun when it has said so: nothing, as long as backend/cuda/dump.c can
 * rely on that. */
#include <cuda.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define DRIVER(X) X(cuEventQuery, CUresult, (CUevent))
#include "driver.h"

static const char ptx[] =
    ".version 7.8\n"
    ".target sm_80\n"
    ".address_size 64\n"
    ".visible .entry plain(.param .u64 at) { .reg .u64 %a; .reg .u32 %v;\n"
    "  ld.param.u64 %a, [at]; mov.u32 %v, 7; st.volatile.global.u32 [%a], %v; ret; }\n"
    ".visible .entry fenced(.param .u64 at) { .reg .u64 %a; .reg .u32 %v;\n"
    "  ld.param.u64 %a, [at]; mov.u32 %v, 7; st.volatile.global.u32 [%a], %v; membar.sys; ret; }\n"
    ".visible .entry nothing() { ret; }\n";

static int child(const char *kernel) {
    char path[64];
    CUmodule module;
    CUfunction function, nothing;
    CUstream stream, other;
    CUevent event;
    CUresult result;
    unsigned long long at = 16;
    void *args[] = {&at};
    snprintf(path, sizeof path, "/tmp/gpulua-bench-%d.core", (int)getpid());
    setenv("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "1", 1);
    setenv("CUDA_ENABLE_LIGHTWEIGHT_COREDUMP", "1", 1);
    setenv("CUDA_COREDUMP_FILE", path, 1);
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}); /* of the GPU alone */
    if (!driver_open()) {
        return 1;
    }
    CK(p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CK(p_cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CK(p_cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CK(p_cuModuleLoadData(&module, ptx));
    CK(p_cuModuleGetFunction(&function, module, kernel));
    CK(p_cuModuleGetFunction(&nothing, module, "nothing"));
    CK(p_cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, other, NULL, NULL));
    CK(p_cuStreamSynchronize(other));
    CK(p_cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL));
    CK(p_cuEventRecord(event, stream));
    while ((result = p_cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {}
    printf("%s: the event says %d\n", kernel, (int)result);
    CK(p_cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, other, NULL, NULL));
    result = p_cuStreamSynchronize(other);
    printf("%s: another kernel ends with %d\n", kernel, (int)result);
    sleep(2);
    return 0;
}

int main(void) {
    static const char *const kernels[] = {"plain", "fenced"};
    setvbuf(stdout, NULL, _IONBF, 0); /* a child has what is buffered here, too */
    for (int i = 0; i < 10; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            _exit(child(kernels[i % 2]));
        }
        int status = 0;
        if (pid < 0 || waitpid(pid, &status, 0) != pid) {
            return 1;
        }
        if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
            return WEXITSTATUS(status); /* there is no GPU, or a call has failed: it has said so */
        }
        char path[64];
        snprintf(path, sizeof path, "/tmp/gpulua-bench-%d.core", (int)pid);
        bool has_dump = unlink(path) == 0;
        printf("%s: %s %d, %s\n", kernels[i % 2],
               WIFSIGNALED(status) ? "ended by signal" : "not ended for 2 s, and left with",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
               has_dump ? "with a dump" : "without a dump");
    }
    return 0;
}
