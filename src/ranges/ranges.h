/* Ranges for profilers: what gpulua does on the host, as NVTX v3 tells it to whatever tool listens
 * (Nsight Systems and others; the NVTX documentation, "NVTX3 C API"). Off unless GPULUA_NVTX asks;
 * then each call here costs one branch. Any thread may call, and nothing here blocks or fails: no
 * tool, no memory or a build without NVTX's headers mean that nobody is told. */
#ifndef GPU_RANGES_RANGES_H
#define GPU_RANGES_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The catalogue. A range's message is "gpulua." and its name and, behind a blank, what it is about;
 * its category is the name; its domain is "gpulua". Those that end in the same call of ours are
 * pushed and popped; the others are started and ended, and may overlap. Payloads are unsigned. */
/* clang-format off */
#define GPU_RANGE_TABLE(X)                                                                                  \
    X(LAUNCH, "launch", "a kernel's launch, while the driver takes it. Payload: its number on its stream")  \
    X(LIBRARY, "library", "the same of a library's call")                                                   \
    X(COPY, "copy", "a copy, also from or to the host, while the driver takes it. Payload: as above")       \
    X(FILL, "fill", "a fill, while the driver takes it. Payload: as above")                                 \
    X(MARK, "mark", "a point on a stream and what it waits for. Payload: as above")                         \
    X(GRAPH, "graph", "a graph's launch or upload, while the driver takes it. Payload: as above")           \
    X(OPEN, "open", "a device is opened")                                                                   \
    X(COMPILE, "compile", "source is compiled")                                                             \
    X(LOAD, "load", "a module's image is loaded")                                                           \
    X(INSTANTIATE, "instantiate", "a graph is made executable. Payload: its number")                        \
    X(ALLOCATE, "allocate", "memory is asked of the driver. Payload: bytes")                                \
    X(WAIT, "wait", "the script's thread waits for the device, and nothing else goes on in it")             \
    X(SLEEP, "sleep", "the script's thread sleeps until one of its tasks can go on")                        \
    X(SCRIPT, "script", "gpu.range(name) of a script: here the message is its own name")
/* clang-format on */

enum gpu_range_kind {
#define X(id, name, about) GPU_RANGE_##id,
    GPU_RANGE_TABLE(X)
#undef X
        GPU_RANGE_KIND_COUNT
};

/* What a message has of a label at most, with its NUL. */
#define GPU_RANGE_TEXT_BYTES 256u

extern bool gpu_ranges_are_on; /* set before other threads begin, and never cleared */

/* Does the value of GPULUA_NVTX (NULL: it is not set) ask for ranges? "", "0", "false" and "off" do
 * not. */
bool gpu_ranges_wanted(const char *setting);
/* Was NVTX there when gpulua was built? Without it nothing is told. */
bool gpu_ranges_are_built(void);
void gpu_ranges_enable(void);
const char *gpu_range_kind_name(enum gpu_range_kind kind);

/* A label as any tool may show it: valid UTF-8 without control characters, which become U+FFFD as
 * bytes that are no UTF-8 do, and cut between two characters where it does not fit. Returns its
 * length in bytes. `room` counts the NUL, and is not 0. */
size_t gpu_range_text(char *to, size_t room, const char *text, size_t byte_count);

void gpu_range_do_push(enum gpu_range_kind kind, const char *label, uint64_t payload);
void gpu_range_do_pop(void);
uint64_t gpu_range_do_start(enum gpu_range_kind kind, const char *label, size_t byte_count,
                            uint64_t payload);
void gpu_range_do_end(uint64_t range);

/* Around code that comes back here: true, if there is something to be popped. `label` NULL: none.
 */
static inline bool gpu_range_push(enum gpu_range_kind kind, const char *label, uint64_t payload) {
    if (__builtin_expect(gpu_ranges_are_on, 0)) {
        gpu_range_do_push(kind, label, payload);
        return true;
    }
    return false;
}
static inline void gpu_range_pop(bool is_pushed) {
    if (__builtin_expect(is_pushed, 0)) {
        gpu_range_do_pop();
    }
}

#endif
