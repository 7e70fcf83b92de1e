#error "8-bit floating-point types are not supported on the CPU device"
