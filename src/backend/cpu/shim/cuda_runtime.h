// What this header has for kernels is there without it.
