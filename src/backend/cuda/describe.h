/* What a source defines, asked of the compiler.
 *
 * To the user's text a section of our own is appended. For each name it has one constant array,
 * filled by the compiler itself with text that it makes from the types, so typedefs, macros and
 * templates are seen as they are. The arrays are read from the PTX; their lines in the section have
 * the numbers of the names, so that an error about a name is told from an error in the user's
 * text. */
#ifndef GPU_CUDA_DESCRIBE_H
#define GPU_CUDA_DESCRIBE_H

#include <stdbool.h>
#include <stddef.h>

#include "backend/backend.h"
#include "backend/text.h"

/* The file names of the section in the compiler's messages. */
#define CUDA_SECTION_NAME "gpulua names"
#define CUDA_TYPES_NAME "gpulua types" /* of its first part, which depends on no name */

enum cuda_name_origin {
    CUDA_NAME_ASKED,   /* an option says so: it must exist */
    CUDA_NAME_SCANNED, /* read off the text: dropped when the compiler does not know it */
    CUDA_NAME_FOUND    /* seen in the compiled code; likewise */
};

struct cuda_name {
    char *expression; /* owned */
    bool is_global;   /* a variable, not a kernel */
    bool is_constant; /* __constant__ */
    bool is_dropped;
    bool
        by_symbol; /* NVRTC refuses to look it up: managed variables, names of built-in functions */
    enum cuda_name_origin origin;
    char **param_names; /* borrowed from the scan, or NULL */
    size_t param_count;
    char *lowered; /* owned; the symbol in the code */
};

struct cuda_names {
    struct cuda_name *list; /* owned */
    size_t count;
};

/* Adds a name unless it is there. False: no memory. `expression` is copied; blanks outside of
 * brackets are left out, because a name ends at one. */
bool gpu_cuda_names_add(struct cuda_names *names, const char *expression, size_t length,
                        bool is_global, enum cuda_name_origin origin);
void gpu_cuda_names_free(struct cuda_names *names);

/* Parameter names for kernels from a scan of the text. `scan` must outlive `names`. */
void gpu_cuda_names_params(struct cuda_names *names, const struct backend_source_names *scan);

/* The symbol of a name that NVRTC does not look up. malloc'ed; NULL: none, or no memory. Of a
 * variable by the rules for C++ names on Linux, of a kernel the one in the code that has its
 * name. */
char *gpu_cuda_name_symbol(const struct cuda_name *name, const char *ptx);
/* Has the code a kernel of that symbol? */
bool gpu_cuda_has_entry(const char *ptx, const char *symbol);

/* Appends the section for all names that are not dropped. */
void gpu_cuda_section_write(struct text *out, const struct cuda_names *names);

/* From the compiled code to the lines of backend.h. False: an array is not there, which would be a
 * fault of this file. */
bool gpu_cuda_description_read(struct text *out, const struct cuda_names *names, const char *ptx);

/* Kernels in the PTX that are not in `names` (macros made them), as far as their names can be read
 * off their symbols. True: some were added. */
bool gpu_cuda_names_find(struct cuda_names *names, const char *ptx);

#endif
