/* Structures that kernels take by value, read from the source that defines them. */
#ifndef GPU_RUNTIME_STRUCTURE_H
#define GPU_RUNTIME_STRUCTURE_H

struct gpu_signature;

/* The signature of a kernel of that source as a compiler describes it, with the fields of its
 * structures in the place of "?C-TYPE/BYTES/ALIGNMENT", as a script would write it by hand. Of each
 * that the source defines once, with plain members; the others stay. What is found lies as the
 * compiler says. `options` may be NULL. malloc'ed; NULL: nothing is found, or no memory. */
struct gpu_signature *gpu_structures_signature(const char *described, const char *source,
                                               const char *options);

#endif
