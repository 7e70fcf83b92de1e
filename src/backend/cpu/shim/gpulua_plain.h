// A kernel's source as it was written, for a compiler that only looks for errors in it: messages
// then have the user's lines, columns and types. Read behind gpulua_cuda.h and gpulua_macros.h, in
// place of the token pass of rewrite.c; nothing that is compiled so is ever run.
#ifndef GPULUA_PLAIN_H
#define GPULUA_PLAIN_H

#define __global__
#define __shared__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __block_size__(...)

extern const uint3 threadIdx, blockIdx;
extern const dim3 blockDim, gridDim;

#endif
