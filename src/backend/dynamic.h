/* Libraries that are loaded at run time, for both backends. */
#ifndef GPU_BACKEND_DYNAMIC_H
#define GPU_BACKEND_DYNAMIC_H

#include "backend/backend.h"

/* Opens the first of `names` (NULL-terminated) that can be; names without a slash are looked for
 * where the system looks, then in `folders` (NULL-terminated, NULL entries skipped by `""`).
 * LIBRARY_UNAVAILABLE names `what`, everything that was tried, and the loader's own words. The
 * library stays loaded until the process ends: drivers start threads. */
gpulua_status gpu_backend_library_open(const char *what, const char *const *names,
                                       const char *const *folders, void **library,
                                       struct backend_error *error);

#endif
