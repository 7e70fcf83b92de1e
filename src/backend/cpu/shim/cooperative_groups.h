#error "cooperative groups are not supported on the CPU device"
