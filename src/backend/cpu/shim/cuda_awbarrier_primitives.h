#error "asynchronous barriers are not supported on the CPU device"
