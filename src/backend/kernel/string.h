// memcpy, memset and their kin are built in, as far as the device has them.
