/* Names of statuses, from the table in gpulua.h. */
#include "gpulua.h"

GPULUA_API const char *gpulua_status_name(gpulua_status status) {
    switch (status) {
    case GPULUA_OK:
        return "OK";
#define X(number, name, code, meaning, hint)                                                       \
    case GPULUA_##name:                                                                            \
        return code;
        GPULUA_STATUS_TABLE(X)
#undef X
    }
    /* No default above, so that the compiler names a status left out; a host may still pass any
     * number. */
    return "Unknown";
}
