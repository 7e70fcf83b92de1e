/* Archives (.npz) that come from anywhere: npy.load_all, as a script calls it. */
#include "fuzz/fuzz.h"

FUZZ_READER(npz, "gpulua.npy", "load_all")
