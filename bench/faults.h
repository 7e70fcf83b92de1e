/* Kernels that fault, or do not end, or do nothing, for benches of what comes of that. */
#ifndef BENCH_FAULTS_H
#define BENCH_FAULTS_H

#include <time.h>

static const char faults_ptx[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry wild() { .reg .b64 %a; mov.u64 %a, 16; st.volatile.global.u32 [%a], 1; ret; "
    "}\n"
    ".visible .entry odd(.param .u64 p) { .reg .b64 %a; ld.param.u64 %a, [p]; add.u64 %a, %a, 1;"
    " st.volatile.global.u32 [%a], 1; ret; }\n"
    ".visible .entry stop() { trap; ret; }\n"
    ".visible .entry nothing() { ret; }\n"
    ".visible .entry spin() { L: bra L; }\n"
    /* each block for so many ns */
    ".visible .entry busy(.param .u64 ns) { .reg .b64 %a, %b; .reg .pred %q;"
    " mov.u64 %a, %globaltimer; ld.param.u64 %b, [ns]; add.u64 %a, %a, %b;"
    " L: mov.u64 %b, %globaltimer; setp.lt.u64 %q, %b, %a; @%q bra L; ret; }\n";

static inline double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

#endif
