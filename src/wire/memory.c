/* Page and arena of a link: created on the script side, mapped by the executor. */
#include "wire/memory.h"
#include "wire/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

gpulua_status gpu_wire_fail(struct wire_error *error, gpulua_status status, int32_t code,
                            const char *format, ...) {
    if (error == NULL) {
        return status;
    }
    error->status = status;
    error->driver_code = code;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    if (length >= (int)sizeof error->message) {
        /* A cut message says so. */
        memcpy(error->message + sizeof error->message - 4, "...", 4);
    }
    return status;
}

uint64_t gpu_wire_page_span(uint32_t command_bytes, uint32_t reply_bytes) {
    return WIRE_PAGE_BYTES + command_bytes + reply_bytes;
}

/* Makes a file of memory of that size. ftruncate beyond RLIMIT_FSIZE would raise a signal in the
 * host, so that limit is looked at first. -1 and errno. */
static int memory_file(const char *name, uint64_t bytes) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        bytes > (uint64_t)limit.rlim_cur) {
        errno = EFBIG;
        return -1;
    }
    int fd = gpu_wire_descriptor(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0) {
        return -1;
    }
    if (ftruncate(fd, (off_t)bytes) != 0) {
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return fd;
}

/* Maps `bytes` of `fd`, or of private memory where fd is -1. NULL and errno. */
static void *map(int fd, uint64_t bytes) {
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED | MAP_NORESERVE;
    void *base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    return base == MAP_FAILED ? NULL : base;
}

void gpu_wire_memory_populate(void *base, uint64_t bytes) {
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)base + page_bytes - 1) & ~(page_bytes - 1);
    uintptr_t end = ((uintptr_t)base + (uintptr_t)bytes) & ~(page_bytes - 1);
    if (begin < end) {
        (void)madvise((void *)begin, end - begin, MADV_POPULATE_WRITE); /* since Linux 5.14 */
    }
}

struct wire_page *gpu_wire_page_create(int *fd, struct wire_error *error) {
    uint64_t bytes = gpu_wire_page_span(WIRE_COMMAND_RING_BYTES, WIRE_REPLY_RING_BYTES);
    int file = -1;
    if (fd != NULL) {
        file = memory_file("gpulua-page", bytes);
        if (file < 0) {
            gpu_wire_fail(error, GPULUA_IO, errno, "memfd_create of %llu bytes: %s",
                          (unsigned long long)bytes, strerror(errno));
            return NULL;
        }
    }
    struct wire_page *page = map(file, bytes);
    if (page == NULL) {
        gpu_wire_fail(error, GPULUA_OUT_OF_MEMORY, errno, "mmap of %llu bytes for rings: %s",
                      (unsigned long long)bytes, strerror(errno));
        if (file >= 0) {
            close(file);
        }
        return NULL;
    }
    page->magic = WIRE_PAGE_MAGIC;
    page->command_bytes = WIRE_COMMAND_RING_BYTES;
    page->reply_bytes = WIRE_REPLY_RING_BYTES;
    if (fd != NULL) {
        *fd = file;
    }
    return page;
}

void gpu_wire_page_destroy(struct wire_page *page) {
    if (page != NULL) {
        /* Not the sizes in the page: the other side could have written over them. */
        munmap(page, (size_t)gpu_wire_page_span(WIRE_COMMAND_RING_BYTES, WIRE_REPLY_RING_BYTES));
    }
}

uint8_t *gpu_wire_arena_create(int *fd, uint64_t bytes_max, uint64_t *arena_bytes,
                               struct wire_error *error) {
    int saved = ENOMEM;
    for (uint64_t bytes = bytes_max; bytes >= WIRE_ARENA_BYTES_MIN; bytes /= 2) {
        int file = -1;
        if (fd != NULL) {
            file = memory_file("gpulua-arena", bytes);
            if (file < 0) {
                saved = errno;
                if (saved == EFBIG || saved == EINVAL || saved == ENOMEM || saved == ENOSPC) {
                    continue;
                }
                break;
            }
        }
        uint8_t *arena = map(file, bytes);
        if (arena != NULL) {
            /* A core dump of 256 GiB of address space helps nobody. */
            madvise(arena, (size_t)bytes, MADV_DONTDUMP);
            if (fd != NULL) {
                *fd = file;
            }
            *arena_bytes = bytes;
            return arena;
        }
        saved = errno;
        if (file >= 0) {
            close(file);
        }
        if (saved != ENOMEM &&
            saved != EINVAL) { /* the latter from tools that run programs in a smaller space */
            break;
        }
    }
    gpu_wire_fail(error, GPULUA_OUT_OF_MEMORY, saved, "cannot reserve %llu bytes for the arena: %s",
                  (unsigned long long)WIRE_ARENA_BYTES_MIN, strerror(saved));
    return NULL;
}

void gpu_wire_arena_destroy(uint8_t *arena, uint64_t arena_bytes) {
    if (arena != NULL) {
        munmap(arena, (size_t)arena_bytes);
    }
}

struct wire_page *gpu_wire_page_map(int fd, struct wire_error *error) {
    struct stat file;
    uint64_t bytes = gpu_wire_page_span(WIRE_COMMAND_RING_BYTES, WIRE_REPLY_RING_BYTES);
    if (fstat(fd, &file) != 0 || (uint64_t)file.st_size != bytes) {
        gpu_wire_fail(error, GPULUA_IO, 0, "the completion page is of another build of gpulua");
        return NULL;
    }
    struct wire_page *page = map(fd, bytes);
    if (page == NULL) {
        gpu_wire_fail(error, GPULUA_OUT_OF_MEMORY, errno, "mmap of the page: %s", strerror(errno));
        return NULL;
    }
    if (page->magic != WIRE_PAGE_MAGIC || page->command_bytes != WIRE_COMMAND_RING_BYTES ||
        page->reply_bytes != WIRE_REPLY_RING_BYTES) {
        gpu_wire_fail(error, GPULUA_IO, 0,
                      "the completion page is of another build of gpulua (magic %#x, not %#x)",
                      page->magic, WIRE_PAGE_MAGIC);
        munmap(page, (size_t)bytes);
        return NULL;
    }
    return page;
}

uint8_t *gpu_wire_arena_map(int fd, uint64_t arena_bytes, struct wire_error *error) {
    struct stat file;
    if (fstat(fd, &file) != 0 || (uint64_t)file.st_size != arena_bytes) {
        gpu_wire_fail(error, GPULUA_IO, 0, "the arena's file has the wrong size");
        return NULL;
    }
    uint8_t *arena = map(fd, arena_bytes);
    if (arena == NULL) {
        gpu_wire_fail(error, GPULUA_OUT_OF_MEMORY, errno, "mmap of the arena, %llu bytes: %s",
                      (unsigned long long)arena_bytes, strerror(errno));
        return NULL;
    }
    madvise(arena, (size_t)arena_bytes, MADV_DONTDUMP);
    return arena;
}

void gpu_wire_ring_command(struct wire_ring *ring, struct wire_page *page) {
    *ring = (struct wire_ring){
        .bytes = (uint8_t *)page + WIRE_PAGE_BYTES,
        .capacity_bytes = WIRE_COMMAND_RING_BYTES,
        .head = &page->command_head,
        .tail = &page->command_tail,
    };
}

void gpu_wire_ring_reply(struct wire_ring *ring, struct wire_page *page) {
    *ring = (struct wire_ring){
        .bytes = (uint8_t *)page + WIRE_PAGE_BYTES + WIRE_COMMAND_RING_BYTES,
        .capacity_bytes = WIRE_REPLY_RING_BYTES,
        .head = &page->reply_head,
        .tail = &page->reply_tail,
    };
}
