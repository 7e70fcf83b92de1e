// Check mode: the compiler's access instrumentation calls functions of gpulua_hooks.h, which is
// compiled once, as the precompiled header is, and linked to each module.
#ifndef GPULUA_CHECK_H
#define GPULUA_CHECK_H

#ifndef GPULUA_CHECKED
#define GPULUA_CHECK_FLAG nullptr
#else
#define GPULUA_CHECK_FLAG (&gpulua_check_flag)

extern unsigned gpulua_check_flag __attribute__((visibility("hidden")));

#endif
#endif
