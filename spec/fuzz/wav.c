/* Sound that come from anywhere: wav.load, as a script calls it. */
#include "fuzz/fuzz.h"

FUZZ_READER(wav, "gpulua.wav", "load")
