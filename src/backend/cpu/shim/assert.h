// assert itself is built in, as with NVRTC.
