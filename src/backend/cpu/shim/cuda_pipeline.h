#error "asynchronous copies are not supported on the CPU device"
