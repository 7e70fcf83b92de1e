#error "tensor core operations are not supported on the CPU device"
