/* Inside backend/cache*.c (see backend.h for what the cache is). */
#ifndef GPU_CACHE_H
#define GPU_CACHE_H

#include <stdint.h>

#include "backend/backend.h"

#define CACHE_BYTES_MAX (UINT64_C(256) << 20)
#define CACHE_BYTES_KEPT (CACHE_BYTES_MAX / 8 * 7) /* down to here: not every put evicts */
#define CACHE_TEMPORARY_PREFIX ".new-"
#define CACHE_NAME_BYTES 128
#define CACHE_ROOM_BYTES (1 << 20) /* a kernel's code, or the shim with its headers */

/* ---- cache_key.c ---- */

/* SHA-256 of both. */
void gpu_cache_hash(uint8_t digest[32], const char *name, const void *bytes, size_t byte_count);

/* ---- cache_trim.c ---- */

/* Makes room for `wanted` bytes in the folder behind the descriptor. */
void gpu_cache_trim(int folder, uint64_t wanted);
/* What the folder's entries take. */
uint64_t gpu_cache_bytes(int folder);
/* ".new-" and 16 random digits. */
bool gpu_cache_temporary_name(char name[CACHE_NAME_BYTES], const char *prefix);

#endif
