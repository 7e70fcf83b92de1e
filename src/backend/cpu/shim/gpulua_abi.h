/* What a compiled module and the runtime know of each other. Read as C by the library and as C++
 * by the module, which includes no system header; hence the compiler's own names for types. Both
 * sides are built from one tree: CPU_ABI_VERSION guards images from the disk cache.
 *
 * Where the context is: every thread of a kernel runs on a stack inside a region that is
 * CPU_REGION_BYTES long, aligned to its length, and begins with a struct cpu_context. So the stack
 * pointer with its low bits cleared is the context's address: no thread-local variable is needed,
 * and a __device__ function finds its thread as cheaply as a kernel does. */
#ifndef GPULUA_ABI_H
#define GPULUA_ABI_H

#define CPU_ABI_VERSION 7u
#define CPU_REGION_BYTES (1ul << 29)

/* One thread of a block that runs on a stack of its own. */
struct cpu_thread {
    unsigned index[3]; /* threadIdx */
    unsigned linear;   /* x + blockDim.x * (y + blockDim.y * z) */
    void *stack_pointer;
    unsigned long value;  /* what it brought to a warp operation; its result afterwards */
    unsigned source_lane; /* of a shuffle; the predicate of __match_all_sync afterwards */
    unsigned mask;        /* of the warp operation that it waits in */
    void *sanitizer;      /* fibre state of a sanitizer, when the library is built with one */
    unsigned long check_bits; /* check mode: who it is and its time, as in tags of accesses */
    const void *site;         /* check mode: where it waits last, as in the context */
};

enum cpu_vote { CPU_VOTE_COUNT, CPU_VOTE_AND, CPU_VOTE_OR };

enum cpu_warp_operation {
    CPU_WARP_SYNC,
    CPU_WARP_SHUFFLE,
    CPU_WARP_BALLOT,
    CPU_WARP_MATCH_ANY,
    CPU_WARP_MATCH_ALL,
    CPU_WARP_ADD,
    CPU_WARP_MIN_SIGNED,
    CPU_WARP_MAX_SIGNED,
    CPU_WARP_MIN_UNSIGNED,
    CPU_WARP_MAX_UNSIGNED,
    CPU_WARP_AND,
    CPU_WARP_OR,
    CPU_WARP_XOR
};

struct cpu_context;

/* Check mode: what an access does. */
enum cpu_access {
    CPU_ACCESS_READ = 1,
    CPU_ACCESS_WRITE = 2,
    CPU_ACCESS_ATOMIC = 4,
    CPU_ACCESS_VOLATILE = 8,
    CPU_ACCESS_UNALIGNED = 16, /* may lie anywhere */
    CPU_ACCESS_RANGE = 32      /* of any length: a struct, memcpy */
};

/* Check mode: of what lies where it may not, as the compiler numbers it. */
enum cpu_use { CPU_USE_LOAD, CPU_USE_STORE };

/* What the runtime does for a module. */
struct cpu_services {
    /* A failed assert: the launch is over, nothing of it runs on. Does not return. */
    void (*fail)(struct cpu_context *context, const char *expression, const char *file,
                 unsigned line);
    void (*barrier)(struct cpu_context *context);
    unsigned (*barrier_vote)(struct cpu_context *context, enum cpu_vote vote, unsigned predicate);
    unsigned long (*warp)(struct cpu_context *context, enum cpu_warp_operation operation,
                          unsigned mask, unsigned long value, unsigned source_lane);
    unsigned (*active_mask)(struct cpu_context *context, unsigned site);
    void (*yield)(struct cpu_context *context);
    unsigned long (*time_ns)(void);
    /* Check mode only. Before the access is made; does not return if it may not be. */
    void (*access)(struct cpu_context *context, const void *address, unsigned long bytes,
                   unsigned flags);
    /* Something of a type is used where none may lie; returns if that is no matter. */
    void (*misplaced)(struct cpu_context *context, const void *address, unsigned alignment,
                      const char *type, enum cpu_use use);
    /* is_wide: for other blocks too, not for those of its own alone. */
    void (*fence)(struct cpu_context *context, unsigned is_wide);
    /* Takes memory from the heap, or gives `address` back if it is not null. */
    void *(*heap)(struct cpu_context *context, void *address, unsigned long bytes);
    /* Of modules with large frames only (gpulua_stack.h). A function has begun, and all of its frame
     * is above `address`; does not return if the stack has no room for it. */
    void (*frame)(struct cpu_context *context, const void *address);
};

struct cpu_context {
    const struct cpu_services *services;
    struct cpu_thread *current; /* the thread that runs */
    void *dynamic_shared;
    const void *args;
    unsigned grid[3], block[3], block_index[3];
    unsigned has_printed;
    /* Only for kernels without fibres: the blocks to run, x fastest. */
    unsigned long first_block, block_count;
    const unsigned *has_failed; /* another worker's block has failed: stop */
    void *check;                /* check mode: the launch, as check/ knows it */
    /* Check mode: of the access, barrier or warp operation that is being told of, the address behind
     * it, and the frame that it is in: that of the caller, and the address behind the call. Null: not
     * known. */
    const void *site;
    void *const *frame;
    /* Check mode: the place in the source of the barrier that the thread comes to. */
    const char *barrier_file;
    unsigned barrier_line, barrier_column;
};

/* ---- what a module says of itself, in the symbol gpulua_module ---- */

enum cpu_param_kind { CPU_PARAM_SCALAR, CPU_PARAM_IN, CPU_PARAM_INOUT, CPU_PARAM_OTHER };

/* A type: "f32" with lanes 1 (float), "f32" with lanes 4 (float4), "void"; other types have a null
 * element and are named by `spelling`, the name of a function that has the type in it. */
struct cpu_type_facts {
    const char *element;
    const char *spelling;
    unsigned lanes;
    enum cpu_param_kind kind;
    unsigned bytes, alignment;
};

struct cpu_kernel_table {
    const char *name;
    /* Without fibres: runs context->block_count blocks. With, and in check mode: runs
     * context->current of one block. */
    void (*run)(struct cpu_context *context);
    const struct cpu_type_facts *params;
    unsigned param_count;
    unsigned has_fibres;
    unsigned threads_max;    /* __launch_bounds__; 0: none */
    const char *param_names; /* "n,x,y" as far as known */
    unsigned cluster[3];     /* __cluster_dims__, of which a grid has a whole number */
};

struct cpu_global_table {
    const char *name;
    void *address;
    unsigned long bytes;
    struct cpu_type_facts type; /* of one element */
    unsigned long count;
    unsigned is_constant;
};

struct cpu_module_table {
    unsigned version; /* CPU_ABI_VERSION */
    unsigned kernel_count, global_count;
    /* Compiled for check mode, or with a look at each frame: set to 1 once its kernels can run; else
     * null. */
    unsigned *is_checked;
    const struct cpu_kernel_table *kernels;
    const struct cpu_global_table *globals;
};

#endif
