/* Arrays (.npy) that come from anywhere: npy.load, as a script calls it. */
#include "fuzz/fuzz.h"

FUZZ_READER(npy, "gpulua.npy", "load")
