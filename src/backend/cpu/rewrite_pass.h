/* Inside the token pass (see rewrite.h): one source while it is changed. Each file has one of its
 * jobs:
 *   rewrite.c  finds which functions wait and ask, changes kernels' heads, puts all together
 *   refuse.c   what is not supported
 *   dialect.c  division, shared memory, threadIdx and its kin
 *   hide.c     names of the user's that hide these
 *   guard.c    guards at the head of a kernel */
#ifndef GPU_CPU_REWRITE_PASS_H
#define GPU_CPU_REWRITE_PASS_H

#include <string.h>

#include "backend/cpu/declare.h"
#include "backend/cpu/rewrite.h"
#include "backend/cpu/tokens.h"

/* Who comes, at last, to a word of some set: by the names of functions, and without one. */
struct reach {
    bool *words; /* owned; by word: it is of the set, or a function of this name comes to one */
    bool some;   /* some function does */
    bool all;    /* so does what has no name where it is called: an operator, a constructor */
};

struct rewrite {
    struct cpu_tokens tokens;
    struct cpu_declarations found;
    struct cpu_source *source;
    const struct cpu_rewrite_info *info;
    struct reach waits; /* for barriers */
    struct reach asks;  /* for threadIdx */
    size_t *kernel_of;  /* owned; by code token: 1 + the kernel whose parameters or body it is in */
    char *refusals;     /* owned */
};

/* A line of the log: "file:line: error: 'what': why". */
void gpu_cpu_refuse(struct rewrite *r, size_t at, const char *what, const char *why);
/* Both add to r->refusals; a token's construct, and functions and variables of the host. */
void gpu_cpu_construct_check(struct rewrite *r, size_t at);
void gpu_cpu_annotations_check(struct rewrite *r);

/* First of all: what is renamed is none of CUDA's. */
void gpu_cpu_hidden_rename(struct rewrite *r);
void gpu_cpu_division_guard(struct rewrite *r, size_t at);
void gpu_cpu_shared_rewrite(struct rewrite *r, size_t at);
void gpu_cpu_index_rewrite(struct rewrite *r, size_t at);

/* Guards at the head of a kernel: behind declarations without effects, one `if (..)`, or several
 * `if (..) return;` and then perhaps one. */
void gpu_cpu_guards_rewrite(struct rewrite *r, struct cpu_function *kernel);

/* ---- tokens by their place in the code ---- */

static inline struct cpu_token *token_at(struct rewrite *r, size_t at) {
    return &r->tokens.items[r->tokens.code[at < r->tokens.code_count ? at : r->tokens.code_count]];
}

static inline bool is_at(struct rewrite *r, size_t at, const char *text) {
    return gpu_cpu_token_is(token_at(r, at), text);
}

static inline bool is_word_at(struct rewrite *r, size_t at) {
    return token_at(r, at)->kind == CPU_TOKEN_WORD;
}

static inline bool word_in(const struct cpu_token *token, const char *const *list) {
    for (; *list != NULL; list++) {
        if (gpu_cpu_token_is(token, *list)) {
            return true;
        }
    }
    return false;
}

static inline void replace(struct rewrite *r, size_t at, const char *text) {
    token_at(r, at)->replaced = text;
}

static inline void blank_out(struct rewrite *r, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) {
        replace(r, i, "");
    }
}

/* A member of something: x.threadIdx is not ours. */
static inline bool is_member(struct rewrite *r, size_t at) {
    return at > 0 && (is_at(r, at - 1, ".") || is_at(r, at - 1, "->") || is_at(r, at - 1, "::"));
}

/* A word that can be a type or a namespace: none of those that stand before an expression. */
static inline bool is_name_at(struct rewrite *r, size_t at) {
    static const char *const others[] = {
        "return", "else", "case", "throw",    "new",      "delete",   "goto",      "sizeof", "do",
        "and",    "or",   "not",  "operator", "typename", "co_yield", "co_return", NULL};
    return is_word_at(r, at) && !word_in(token_at(r, at), others);
}

/* The bracket that the token is in; SIZE_MAX: none. */
static inline size_t enclosing(struct rewrite *r, size_t at) {
    while (at > 0) {
        at--;
        size_t partner = token_at(r, at)->partner;
        if (partner > at) {
            return at;
        }
        at = partner != 0 ? partner : at;
    }
    return SIZE_MAX;
}

/* The semicolon of the declaration that the token is in. */
static inline size_t statement_end(struct rewrite *r, size_t at) {
    while (at < r->tokens.code_count && !is_at(r, at, ";")) {
        size_t partner = token_at(r, at)->partner;
        at = partner > at ? partner + 1 : at + 1;
    }
    return at;
}

#endif
