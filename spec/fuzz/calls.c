/* Programs of calls on everything that scripts can call, with values of every kind: see calls.lua.
 */
#include "fuzz/fuzz.h"

FUZZ_TARGET(calls) {
    static lua_State *L;
    if (!L) {
        L = fuzz_script("spec/fuzz/calls.lua", (const char *const[]){NULL});
    }
    fuzz_call(L, bytes, byte_count);
    return 0;
}
