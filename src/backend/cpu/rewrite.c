/* The token pass over one source (see rewrite.h): changes inside functions. declare.c finds the
 * functions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/declare.h"
#include "backend/cpu/rewrite.h"
#include "backend/cpu/tokens.h"

struct rewrite {
    struct cpu_tokens tokens;
    struct cpu_declarations found;
    struct cpu_source *source;
    const struct cpu_rewrite_info *info;
    bool *waits;       /* owned; by word: a function of this name may reach a barrier */
    bool *asks;        /* owned; by word: a function of this name may ask for threadIdx */
    size_t *kernel_of; /* owned; by code token: 1 + the kernel whose parameters or body it is in */
    char *refusals;    /* owned */
    bool all_wait;     /* a barrier in an operator: any expression may reach it */
};

/* ---- small helpers ---- */

static struct cpu_token *token_at(struct rewrite *r, size_t at) {
    return &r->tokens.items[r->tokens.code[at < r->tokens.code_count ? at : r->tokens.code_count]];
}

static bool is_at(struct rewrite *r, size_t at, const char *text) {
    return gpu_cpu_token_is(token_at(r, at), text);
}

static bool is_word_at(struct rewrite *r, size_t at) {
    return token_at(r, at)->kind == CPU_TOKEN_WORD;
}

static bool word_in(const struct cpu_token *token, const char *const *list) {
    for (; *list != NULL; list++) {
        if (gpu_cpu_token_is(token, *list)) {
            return true;
        }
    }
    return false;
}

static void replace(struct rewrite *r, size_t at, const char *text) {
    token_at(r, at)->replaced = text;
}

static void blank_out(struct rewrite *r, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) {
        replace(r, i, "");
    }
}

/* A member of something: x.threadIdx is not ours. */
static bool is_member(struct rewrite *r, size_t at) {
    return at > 0 && (is_at(r, at - 1, ".") || is_at(r, at - 1, "->") || is_at(r, at - 1, "::"));
}

/* A line of the log: "file:line: error: 'what': why". */
static void refuse(struct rewrite *r, size_t at, const char *what, const char *why) {
    const struct cpu_token *token = token_at(r, at);
    char *longer = NULL;
    int length =
        asprintf(&longer, "%s%s:%u: error: '%s': %s\n", r->refusals != NULL ? r->refusals : "",
                 r->tokens.files[token->file], token->line, what, why);
    if (length < 0) {
        r->tokens.failed = true;
        return;
    }
    free(r->refusals);
    r->refusals = longer;
}

/* ---- what is not supported ---- */

#define UNSUPPORTED " is not supported on the CPU device"

static const struct {
    const char *name; /* with a * at the end: a prefix */
    const char *why;
} refused[] = {
    {"asm", "inline PTX"},
    {"__asm", "inline PTX"},
    {"__asm__", "inline PTX"},
    {"cooperative_groups", "cooperative groups"},
    {"cudaTextureObject_t", "a texture"},
    {"cudaSurfaceObject_t", "a surface"},
    {"tex1D*", "a texture"},
    {"tex2D*", "a texture"},
    {"tex3D*", "a texture"},
    {"texCubemap*", "a texture"},
    {"surf1D*", "a surface"},
    {"surf2D*", "a surface"},
    {"surf3D*", "a surface"},
    {"surfCubemap*", "a surface"},
    {"nvcuda", "a tensor core operation"},
    {"cudaLaunchDevice*", "dynamic parallelism"},
    {"cudaDeviceSynchronize", "dynamic parallelism"},
    {"cudaGetParameterBuffer*", "dynamic parallelism"},
    {"__pipeline_*", "an asynchronous copy"},
    {"__cluster_*", "a thread block cluster"},
    {"__cvta_*", "an address of one memory space"},
    {"__nvvm_*", "an NVVM intrinsic"},
    {"__nv_*", "a libdevice function"},
};

static void construct_check(struct rewrite *r, size_t at) {
    const struct cpu_token *token = token_at(r, at);
    if (gpu_cpu_token_is(token, "<<<")) {
        refuse(r, at, "<<<", "dynamic parallelism" UNSUPPORTED);
        return;
    }
    if (token->kind != CPU_TOKEN_WORD || is_member(r, at)) {
        return;
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        size_t length = strcspn(refused[i].name, "*");
        bool is_prefix = refused[i].name[length] == '*';
        if (token->length >= length && memcmp(token->text, refused[i].name, length) == 0 &&
            (is_prefix || token->length == length) && strncmp(token->text, "__nv_bf", 7) != 0 &&
            strncmp(token->text, "__nv_half", 9) != 0) {
            refuse(r, at, r->tokens.words[token->word - 1],
                   gpu_cpu_tokens_note(&r->tokens, "%s" UNSUPPORTED, refused[i].why));
            return;
        }
    }
}

/* NVRTC compiles for the device only, and so do we: what is not marked for it belongs to a host. */
static void annotations_check(struct rewrite *r) {
    for (size_t i = 0; i < r->found.function_count; i++) {
        const struct cpu_function *f = &r->found.functions[i];
        bool is_marked = f->is_for_device || f->is_trivial || f->is_instantiation;
        for (size_t k = 0; !is_marked && k < r->found.function_count; k++) {
            is_marked = r->found.functions[k].is_for_device &&
                        strcmp(r->found.functions[k].qualified, f->qualified) == 0;
        }
        if (!is_marked) {
            refuse(r, f->name, f->qualified,
                   "a function without __device__ belongs to the host and cannot be compiled");
        }
    }
    for (size_t i = 0; i < r->found.variable_count; i++) {
        const struct cpu_variable *v = &r->found.variables[i];
        if (!v->is_for_device) {
            refuse(r, v->name, v->qualified,
                   "a variable without __device__ or __constant__ belongs to the host");
        }
    }
}

/* ---- who waits, who asks ---- */

static const char *const waiting_words[] = {"__syncthreads",
                                            "__syncthreads_count",
                                            "__syncthreads_and",
                                            "__syncthreads_or",
                                            "__syncwarp",
                                            "__shfl_sync",
                                            "__shfl_up_sync",
                                            "__shfl_down_sync",
                                            "__shfl_xor_sync",
                                            "__ballot_sync",
                                            "__any_sync",
                                            "__all_sync",
                                            "__match_any_sync",
                                            "__match_all_sync",
                                            "gpulua_active_mask",
                                            "__reduce_add_sync",
                                            "__reduce_min_sync",
                                            "__reduce_max_sync",
                                            "__reduce_and_sync",
                                            "__reduce_or_sync",
                                            "__reduce_xor_sync",
                                            "__nanosleep",
                                            NULL};

static bool mentions(struct rewrite *r, size_t from, size_t to, const bool *words) {
    for (size_t i = from; i < to; i++) {
        unsigned word = token_at(r, i)->word;
        if (word != 0 && words[word]) {
            return true;
        }
    }
    return false;
}

/* Names of functions that mention a word of the set join it, until no more do. */
static void names_close(struct rewrite *r, bool *words, bool *all) {
    bool has_changed = true;
    while (has_changed) {
        has_changed = false;
        for (size_t i = 0; i < r->found.function_count; i++) {
            const struct cpu_function *f = &r->found.functions[i];
            unsigned name = token_at(r, f->name)->word;
            if (f->is_kernel || (name != 0 && words[name]) ||
                !mentions(r, f->params_open, f->body_close, words)) {
                continue;
            }
            if (f->is_operator) {
                has_changed = has_changed || !*all;
                *all = true;
            } else if (name != 0) {
                words[name] = true;
                has_changed = true;
            }
        }
    }
}

static bool names_find(struct rewrite *r) {
    unsigned thread_index = gpu_cpu_tokens_word(&r->tokens, "threadIdx");
    for (size_t i = 0; waiting_words[i] != NULL; i++) {
        gpu_cpu_tokens_word(&r->tokens, waiting_words[i]);
    }
    size_t count = r->tokens.word_count + 1;
    r->waits = calloc(count, sizeof *r->waits);
    r->asks = calloc(count, sizeof *r->asks);
    if (r->waits == NULL || r->asks == NULL) {
        return false;
    }
    for (size_t i = 0; waiting_words[i] != NULL; i++) {
        r->waits[gpu_cpu_tokens_word(&r->tokens, waiting_words[i])] = true;
    }
    names_close(r, r->waits, &r->all_wait);
    bool all_ask = false;
    r->asks[thread_index] = true;
    names_close(r, r->asks, &all_ask);
    r->asks[thread_index] = all_ask;
    return true;
}

/* ---- division ---- */

static bool is_nonzero_number(const struct cpu_token *token) {
    if (token->kind != CPU_TOKEN_NUMBER) {
        return false;
    }
    bool is_hex = token->length > 1 && (token->text[1] == 'x' || token->text[1] == 'X');
    for (size_t i = is_hex ? 2 : 0; i < token->length; i++) {
        char c = token->text[i];
        bool is_hex_digit = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        if ((c >= '1' && c <= '9') || (is_hex && is_hex_digit)) {
            return true;
        }
        if (!is_hex && c != '0' && c != '.' && c != '\'') {
            return c == 'f' || c == 'F'; /* 0.f: floating */
        }
    }
    return false;
}

static bool is_floating_number(const struct cpu_token *token) {
    return token->kind == CPU_TOKEN_NUMBER && memchr(token->text, '.', token->length) != NULL;
}

static void division_guard(struct rewrite *r, size_t at) {
    static const struct {
        const char *sign, *guarded;
    } divisions[] = {{"/", "/ gpulua_d /"},
                     {"%", "% gpulua_d %"},
                     {"/=", "/= gpulua_d /="},
                     {"%=", "%= gpulua_d %="}};
    if (at == 0 || gpu_cpu_token_is(token_at(r, at - 1), "operator") ||
        is_nonzero_number(token_at(r, at + 1)) || is_floating_number(token_at(r, at + 1)) ||
        is_floating_number(token_at(r, at - 1))) {
        return;
    }
    for (size_t i = 0; i < sizeof divisions / sizeof *divisions; i++) {
        if (is_at(r, at, divisions[i].sign)) {
            replace(r, at, divisions[i].guarded);
        }
    }
}

/* ---- shared memory ---- */

/* The declaration that the token is in: from behind the last ; { or }, to its semicolon. */
static size_t statement_begin(struct rewrite *r, size_t at) {
    while (at > 0 && !is_at(r, at - 1, ";") && !is_at(r, at - 1, "{") && !is_at(r, at - 1, "}")) {
        at--;
    }
    return at;
}

static size_t statement_end(struct rewrite *r, size_t at) {
    while (at < r->tokens.code_count && !is_at(r, at, ";")) {
        size_t partner = token_at(r, at)->partner;
        at = partner > at ? partner + 1 : at + 1;
    }
    return at;
}

/* extern __shared__ T name[]: inside a function a reference; outside, a function of this name would
 * do, but the name is used like an array: each function that mentions it gets a reference. */
static void dynamic_shared(struct rewrite *r, size_t at, size_t begin, size_t end) {
    size_t name = end;
    for (size_t i = at; i + 1 < end; i++) {
        if (is_word_at(r, i) && is_at(r, i + 1, "[")) {
            name = i;
            break;
        }
    }
    if (name == end) {
        return;
    }
    for (size_t i = begin; i < end; i++) {
        if (is_at(r, i, "extern") || is_at(r, i, "__shared__")) {
            replace(r, i, "");
        }
    }
    const char *text = r->tokens.words[token_at(r, name)->word - 1];
    size_t function = gpu_cpu_declarations_function(&r->found, at);
    if (function != SIZE_MAX) {
        replace(r, name, gpu_cpu_tokens_note(&r->tokens, "(&%s)", text));
        token_at(r, end)->before = " = gpulua_dynamic_shared()";
        return;
    }
    char *declaration = NULL;
    size_t from = r->tokens.code[begin], to = r->tokens.code[end];
    replace(r, name, gpu_cpu_tokens_note(&r->tokens, "(&%s)", text));
    declaration = gpu_cpu_tokens_text(&r->tokens, from, to, true, true);
    if (declaration == NULL) {
        r->tokens.failed = true;
        return;
    }
    unsigned word = token_at(r, name)->word;
    for (size_t i = 0; i < r->found.function_count; i++) {
        const struct cpu_function *f = &r->found.functions[i];
        bool has_own = false, is_used = false;
        for (size_t k = f->params_open; k < f->body_close; k++) {
            if (token_at(r, k)->word == word && !is_member(r, k)) {
                is_used = is_used || k > f->body_open;
                has_own = has_own || k < f->body_open;
            }
        }
        if (is_used && !has_own && is_at(r, f->body_open, "{")) {
            struct cpu_token *open = token_at(r, f->body_open);
            open->behind =
                gpu_cpu_tokens_note(&r->tokens, "%s %s = gpulua_dynamic_shared();",
                                    open->behind != NULL ? open->behind : "", declaration);
        }
    }
    free(declaration);
    blank_out(r, begin, end);
}

static void shared_rewrite(struct rewrite *r, size_t at) {
    size_t begin = statement_begin(r, at), end = statement_end(r, at);
    bool is_extern = false, is_static = false;
    for (size_t i = begin; i < end && i < at + 2; i++) {
        is_extern = is_extern || is_at(r, i, "extern");
        is_static = is_static || is_at(r, i, "static");
    }
    if (is_extern) {
        dynamic_shared(r, at, begin, end);
        return;
    }
    const char *storage = is_static ? "thread_local" : "static thread_local";
    size_t open = at + 2;
    if (is_at(r, at + 1, "alignas") && is_at(r, open, "(") && token_at(r, open)->partner > open) {
        /* alignas must come before the words of the type, and `static` is one of them. */
        size_t close = token_at(r, open)->partner;
        replace(r, at, "");
        token_at(r, close)->behind = gpu_cpu_tokens_note(&r->tokens, " %s", storage);
        return;
    }
    replace(r, at, storage);
}

/* ---- indices ---- */

static const struct {
    const char *name, *call;
} indices[] = {{"threadIdx", "gpulua_thread_index()"},
               {"blockIdx", "gpulua_block_index()"},
               {"blockDim", "gpulua_block_dim()"},
               {"gridDim", "gpulua_grid_dim()"}};

/* Does the lambda or class that holds `at` in the kernel keep the kernel's parameters out? */
static bool is_cut_off(struct rewrite *r, const struct cpu_function *kernel, size_t at) {
    for (size_t i = kernel->body_open + 1; i < at; i++) {
        size_t partner = token_at(r, i)->partner;
        if (is_at(r, i, "{") && partner > at) {
            /* Backwards over what can stand before the body of a lambda: [..] (..) mutable -> T. */
            size_t k = i - 1;
            while (k > kernel->body_open &&
                   (is_word_at(r, k) || is_at(r, k, "->") || is_at(r, k, "*") || is_at(r, k, "&") ||
                    is_at(r, k, "::"))) {
                if (is_at(r, k, "struct") || is_at(r, k, "class") || is_at(r, k, "union")) {
                    return true;
                }
                k--;
            }
            if (is_at(r, k, ")")) {
                k = token_at(r, k)->partner - 1;
            }
            if (is_at(r, k, "]") && token_at(r, k)->partner < k) {
                size_t open = token_at(r, k)->partner;
                bool is_lambda = !is_word_at(r, open - 1) && !is_at(r, open - 1, ")") &&
                                 !is_at(r, open - 1, "]");
                bool has_default = (is_at(r, open + 1, "=") || is_at(r, open + 1, "&")) &&
                                   (is_at(r, open + 2, ",") || is_at(r, open + 2, "]"));
                if ((is_lambda || is_at(r, open - 1, "return")) && !has_default) {
                    return true;
                }
            }
        }
    }
    return false;
}

static void index_rewrite(struct rewrite *r, size_t at) {
    if (is_member(r, at)) {
        return;
    }
    for (size_t i = 0; i < sizeof indices / sizeof *indices; i++) {
        if (!is_at(r, at, indices[i].name)) {
            continue;
        }
        size_t number = r->kernel_of[at];
        if (number == 0) {
            replace(r, at, indices[i].call);
        } else if (is_cut_off(r, &r->found.functions[number - 1], at)) {
            replace(r, at, indices[i].call);
            r->found.functions[number - 1].flags |= CPU_KERNEL_CONTEXT;
        }
    }
}

/* ---- guards ---- */

/* Names that may be called without an effect in an index or a condition. */
static const char *const harmless_calls[] = {"int",   "unsigned", "long", "short",  "char",
                                             "float", "double",   "bool", "size_t", "min",
                                             "max",   "sizeof",   NULL};

/* Does evaluating [from, to) do nothing but compute from parameters and locals? Reading memory is
 * left out too: it would be read twice. */
static bool is_harmless(struct rewrite *r, size_t from, size_t to) {
    static const char *const effects[] = {"++", "--", "+=",  "-=",     "*=",    "/=", "%=", "&=",
                                          "|=", "^=", "<<=", "[",      "]",     "{",  "}",  "->",
                                          ";",  "?",  "new", "delete", "throw", NULL};
    for (size_t i = from; i < to; i++) {
        const struct cpu_token *token = token_at(r, i);
        if (word_in(token, effects) || token->kind == CPU_TOKEN_STRING) {
            return false;
        }
        bool is_operand_before =
            i > from && (is_word_at(r, i - 1) || token_at(r, i - 1)->kind == CPU_TOKEN_NUMBER ||
                         is_at(r, i - 1, ")") || is_at(r, i - 1, ">"));
        if ((gpu_cpu_token_is(token, "*") || gpu_cpu_token_is(token, "&")) && !is_operand_before) {
            return false;
        }
        if (gpu_cpu_token_is(token, "(") && i > from && is_word_at(r, i - 1) &&
            !word_in(token_at(r, i - 1), harmless_calls)) {
            return false;
        }
        /* `==` and its kin are signs of their own; >>= comes in pieces. An `=` is left that begins
         * another variable: `, j = ..`. */
        if (gpu_cpu_token_is(token, "=") && (i < from + 2 || !is_at(r, i - 2, ","))) {
            return false;
        }
        if (gpu_cpu_token_is(token, ">=") && i > from && is_at(r, i - 1, ">")) {
            return false;
        }
    }
    return true;
}

/* `const T *p = ..`: words and their like, two of them words at least, then the value. */
static bool is_plain_declaration(struct rewrite *r, size_t from, size_t to) {
    size_t words = 0, at = from;
    for (; at < to && !is_at(r, at, "="); at++) {
        if (is_word_at(r, at)) {
            static const char *const statements[] = {"return",  "goto",       "break",  "continue",
                                                     "static",  "__shared__", "extern", "using",
                                                     "typedef", "delete",     NULL};
            if (word_in(token_at(r, at), statements)) {
                return false;
            }
            words++;
        } else if (!is_at(r, at, "::") && !is_at(r, at, "*") && !is_at(r, at, "&")) {
            return false;
        }
    }
    return words >= 2 && at < to && is_word_at(r, at - 1) && is_harmless(r, at + 1, to);
}

/* Variables that say where a thread is: blockIdx.x * blockDim.x + threadIdx.x and the like, which
 * grow with threadIdx and do not wrap. A guard that only compares them with parameters holds for a
 * whole block if it holds for the block's last thread. */
#define POSITIONS_MAX 8

struct positions {
    unsigned words[POSITIONS_MAX];
    size_t count;
};

/* Is [from, to) one of the usual spellings? The component is that of the last token. */
static bool is_position(struct rewrite *r, size_t from, size_t to) {
    static const char *const spellings[] = {
        "threadIdx",
        "blockIdx*blockDim+threadIdx",
        "blockDim*blockIdx+threadIdx",
        "threadIdx+blockIdx*blockDim",
        "threadIdx+blockDim*blockIdx",
        "(blockIdx*blockDim)+threadIdx",
        "(blockDim*blockIdx)+threadIdx",
        "threadIdx+(blockIdx*blockDim)",
        "threadIdx+(blockDim*blockIdx)",
    };
    char text[64] = "", component = 0;
    size_t used = 0;
    for (size_t i = from; i < to; i++) {
        const struct cpu_token *token = token_at(r, i);
        if (gpu_cpu_token_is(token, ".")) {
            const struct cpu_token *member = token_at(r, ++i);
            if (i >= to || member->length != 1 || (component != 0 && component != *member->text)) {
                return false;
            }
            component = *member->text;
        } else if (used + token->length < sizeof text) {
            memcpy(text + used, token->text, token->length);
            used += token->length;
        } else {
            return false;
        }
    }
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        if (component != 0 && strcmp(text, spellings[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Notes the positions that a declaration [from, to) declares. */
static void positions_note(struct rewrite *r, size_t from, size_t to, struct positions *positions) {
    for (size_t i = from; i < to; i++) {
        if (!is_at(r, i, "=")) {
            continue;
        }
        size_t end = i + 1;
        while (end < to && !is_at(r, end, ",")) {
            end = token_at(r, end)->partner > end ? token_at(r, end)->partner + 1 : end + 1;
        }
        if (positions->count < POSITIONS_MAX && is_position(r, i + 1, end)) {
            positions->words[positions->count++] = token_at(r, i - 1)->word;
        }
    }
}

static bool is_position_word(struct rewrite *r, size_t at, const struct positions *positions) {
    for (size_t i = 0; i < positions->count; i++) {
        if (token_at(r, at)->word != 0 && token_at(r, at)->word == positions->words[i]) {
            return true;
        }
    }
    return false;
}

static bool is_parameter(struct rewrite *r, const struct cpu_function *kernel, size_t at) {
    for (size_t i = 0; i < kernel->param_count; i++) {
        size_t name = kernel->param_names[i];
        if (name != 0 && token_at(r, name)->word == token_at(r, at)->word) {
            return true;
        }
    }
    return token_at(r, at)->kind == CPU_TOKEN_NUMBER;
}

/* position < limit && ..; of a guard that returns, position >= limit || .. */
static bool is_monotone(struct rewrite *r, const struct cpu_function *kernel, size_t from,
                        size_t to, bool is_stop, const struct positions *positions) {
    const char *joint = is_stop ? "||" : "&&";
    for (size_t i = from; i < to; i += 4) {
        bool is_left = is_position_word(r, i, positions);
        size_t limit = is_left ? i + 2 : i;
        bool is_less = is_at(r, i + 1, "<") || is_at(r, i + 1, "<=");
        bool is_greater = is_at(r, i + 1, ">") || is_at(r, i + 1, ">=");
        if (i + 3 > to || (i + 3 < to && !is_at(r, i + 3, joint)) ||
            (!is_left && !is_position_word(r, i + 2, positions)) ||
            !is_parameter(r, kernel, limit) || !(is_left != is_stop ? is_less : is_greater)) {
            return false;
        }
    }
    return true;
}

/* Guards at the head of a kernel: behind declarations without effects, one `if (..)`, or several
 * `if (..) return;` and then perhaps one. */
static void guards_rewrite(struct rewrite *r, struct cpu_function *kernel) {
    size_t at = kernel->body_open + 1, last_return = 0;
    struct positions positions = {.count = 0};
    bool is_growing = true;
    while (at < kernel->body_close) {
        if (!is_at(r, at, "if")) {
            size_t end = statement_end(r, at);
            if (end >= kernel->body_close || !is_plain_declaration(r, at, end)) {
                break;
            }
            positions_note(r, at, end, &positions);
            at = end + 1;
            continue;
        }
        size_t open = at + 1, close = token_at(r, open)->partner;
        if (!is_at(r, open, "(") || close <= open || !is_harmless(r, open + 1, close)) {
            break;
        }
        bool is_bare = is_at(r, close + 1, "return") && is_at(r, close + 2, ";");
        bool is_braced = is_at(r, close + 1, "{") && is_at(r, close + 2, "return") &&
                         is_at(r, close + 3, ";") && is_at(r, close + 4, "}");
        bool is_stop = is_bare || is_braced;
        is_growing = is_growing && is_monotone(r, kernel, open + 1, close, is_stop, &positions);
        if (!is_stop) {
            replace(r, open, "(const bool gpulua_go = gpulua_part == GPULUA_WORK || (");
            replace(r, close,
                    "); gpulua_part == GPULUA_PROBE) { gpulua_pass = gpulua_go; return; } "
                    "else if (gpulua_go)");
            kernel->flags |= CPU_KERNEL_GUARD | (is_growing ? CPU_KERNEL_MONOTONE : 0u);
            return;
        }
        replace(r, open, "(const bool gpulua_stop = gpulua_part != GPULUA_WORK && (");
        replace(r, close,
                "); gpulua_part == GPULUA_PROBE && gpulua_stop) { gpulua_pass = false; return; } "
                "else if (gpulua_stop)");
        last_return = close + (is_bare ? 2 : 4);
        at = last_return + 1;
        if (is_at(r, at, "else")) {
            break;
        }
    }
    if (last_return != 0) {
        struct cpu_token *token = token_at(r, last_return);
        /* An `else` would be cut off; it makes no sense behind a return, so nobody is hurt. */
        if (!is_at(r, last_return + 1, "else")) {
            token->behind = " if (gpulua_part == GPULUA_PROBE) return;";
            kernel->flags |= CPU_KERNEL_GUARD | (is_growing ? CPU_KERNEL_MONOTONE : 0u);
        }
    }
}

/* ---- kernels ---- */

static const char *const bounds_words[] = {"__launch_bounds__", "__maxnreg__", "__cluster_dims__",
                                           "__block_size__", NULL};

static void kernel_head(struct rewrite *r, struct cpu_function *kernel) {
    bool is_inline = false;
    for (size_t i = kernel->begin; i < kernel->params_open; i++) {
        is_inline = is_inline || kernel->is_instantiation || is_at(r, i, "inline") ||
                    is_at(r, i, "__inline__") || is_at(r, i, "__forceinline__");
    }
    for (size_t i = kernel->begin; i < kernel->params_open; i++) {
        if (is_at(r, i, "__global__")) {
            replace(r, i,
                    is_inline ? "__attribute__((always_inline))"
                              : "inline __attribute__((always_inline))");
        } else if (is_at(r, i, "__noinline__")) {
            replace(r, i, "");
        } else if (word_in(token_at(r, i), bounds_words)) {
            size_t open = i + 1, close = token_at(r, open)->partner;
            if (!is_at(r, open, "(") || close <= open) {
                continue;
            }
            if (is_at(r, i, "__launch_bounds__")) {
                size_t end = open + 1;
                while (end < close && !is_at(r, end, ",")) {
                    end = token_at(r, end)->partner > end ? token_at(r, end)->partner + 1 : end + 1;
                }
                kernel->bounds_from = open + 1;
                kernel->bounds_to = end;
            }
            blank_out(r, i, close + 1);
            i = close;
        }
    }
    size_t open = kernel->params_open, close = kernel->params_close;
    bool is_void = close == open + 2 && is_at(r, open + 1, "void");
    if (is_void) {
        replace(r, open + 1, "");
    }
    token_at(r, open)->behind =
        is_void || close == open + 1 ? "GPULUA_HIDDEN_PARAMS" : "GPULUA_HIDDEN_PARAMS, ";
}

/* Parameters without their default arguments, for a typedef. NULL: no memory. */
static char *params_text(struct rewrite *r, const struct cpu_function *kernel) {
    char *text = strdup("");
    size_t i = kernel->params_open + 1;
    while (i < kernel->params_close && text != NULL) {
        size_t end = i, value = 0;
        int angles = 0;
        for (; end < kernel->params_close; end++) {
            size_t partner = token_at(r, end)->partner;
            if (value == 0 && is_at(r, end, "=")) {
                value = end;
            }
            angles += is_at(r, end, "<") ? 1 : is_at(r, end, ">") && angles > 0 ? -1 : 0;
            if (partner > end) {
                end = partner;
            } else if (is_at(r, end, ",") && angles == 0) {
                break;
            }
        }
        char *one = gpu_cpu_tokens_text(&r->tokens, r->tokens.code[i],
                                        r->tokens.code[value != 0 ? value : end], true, true);
        char *longer = NULL;
        if (one == NULL || asprintf(&longer, "%s, %s", text, one) < 0) {
            longer = NULL;
        }
        free(one);
        free(text);
        text = longer;
        i = end + 1;
    }
    return text;
}

static void kernel_typedef(struct rewrite *r, const struct cpu_function *kernel, size_t number) {
    if (kernel->is_template || kernel->body_close == kernel->params_close) {
        return;
    }
    bool is_void = is_at(r, kernel->params_open + 1, "void") &&
                   kernel->params_close == kernel->params_open + 2;
    char *params = is_void ? strdup("") : params_text(r, kernel);
    if (params == NULL) {
        r->tokens.failed = true;
        return;
    }
    token_at(r, kernel->body_close)->behind = gpu_cpu_tokens_note(
        &r->tokens, " typedef void gpulua_type_%zu(GPULUA_HIDDEN_TYPES%s);", number, params);
    free(params);
}

static void kernels_rewrite(struct rewrite *r) {
    for (size_t i = 0; i < r->found.function_count; i++) {
        struct cpu_function *f = &r->found.functions[i];
        if (!f->is_kernel) {
            continue;
        }
        kernel_head(r, f);
        if (f->body_close == f->params_close) {
            continue; /* a declaration only */
        }
        if (r->all_wait || mentions(r, f->body_open, f->body_close, r->waits)) {
            f->flags |= CPU_KERNEL_FIBRES;
            r->source->has_fibres = true;
        } else {
            guards_rewrite(r, f);
        }
        if (mentions(r, f->body_open, f->body_close, r->asks)) {
            f->flags |= CPU_KERNEL_CONTEXT;
        }
        kernel_typedef(r, f, i);
    }
}

static void tokens_rewrite(struct rewrite *r) {
    for (size_t i = 0; i < r->tokens.code_count; i++) {
        const struct cpu_token *token = token_at(r, i);
        construct_check(r, i);
        if (token->kind == CPU_TOKEN_SIGN) {
            if (*token->text == '/' || *token->text == '%') {
                division_guard(r, i);
            }
        } else if (token->kind == CPU_TOKEN_WORD) {
            index_rewrite(r, i);
        }
    }
    for (size_t i = 0; i < r->tokens.code_count; i++) {
        if (is_at(r, i, "__shared__") && token_at(r, i)->replaced == NULL) {
            shared_rewrite(r, i);
        }
    }
    if (r->info->keeps_unroll) {
        return;
    }
    for (size_t i = 0; i < r->tokens.count; i++) {
        struct cpu_token *token = &r->tokens.items[i];
        if (token->kind == CPU_TOKEN_DIRECTIVE && !token->is_foreign &&
            strncmp(token->text, "#pragma", 7) == 0 && strstr(token->text, "unroll") != NULL &&
            strstr(token->text, "unroll") < token->text + token->length) {
            token->replaced = "";
        }
    }
}

/* ---- results ---- */

static bool kernel_export(struct rewrite *r, const struct cpu_function *f, size_t number) {
    struct cpu_source_kernel *kernel = &r->source->kernels[r->source->kernel_count++];
    *kernel = (struct cpu_source_kernel){
        .name = strdup(f->qualified),
        .number = (unsigned)number,
        .flags = f->flags,
        .is_template = f->is_template,
        .is_definition = f->body_close != f->params_close,
    };
    bool ok = kernel->name != NULL;
    if (f->bounds_to > f->bounds_from) {
        kernel->bounds = gpu_cpu_tokens_text(&r->tokens, r->tokens.code[f->bounds_from],
                                             r->tokens.code[f->bounds_to], true, false);
        ok = ok && kernel->bounds != NULL;
    }
    kernel->param_names = calloc(f->param_count + 1, sizeof *kernel->param_names);
    for (size_t i = 0; ok && kernel->param_names != NULL && i < f->param_count; i++) {
        size_t name = f->param_names[i];
        kernel->param_names[kernel->param_count++] =
            strdup(name != 0 ? r->tokens.words[token_at(r, name)->word - 1] : "");
        ok = kernel->param_names[i] != NULL;
    }
    return ok && kernel->param_names != NULL;
}

static bool results_export(struct rewrite *r) {
    struct cpu_source *source = r->source;
    source->kernels = calloc(r->found.function_count + 1, sizeof *source->kernels);
    source->globals = calloc(r->found.variable_count + 1, sizeof *source->globals);
    if (source->kernels == NULL || source->globals == NULL) {
        return false;
    }
    for (size_t i = 0; i < r->found.function_count; i++) {
        if (r->found.functions[i].is_kernel && !kernel_export(r, &r->found.functions[i], i)) {
            return false;
        }
    }
    for (size_t i = 0; i < r->found.variable_count; i++) {
        const struct cpu_variable *v = &r->found.variables[i];
        struct cpu_source_global *global = &source->globals[source->global_count++];
        *global = (struct cpu_source_global){strdup(v->qualified), v->is_constant};
        if (global->name == NULL) {
            return false;
        }
    }
    source->text = gpu_cpu_tokens_text(&r->tokens, 0, r->tokens.count, false, true);
    source->is_unbalanced = r->tokens.is_unbalanced;
    source->refusals = r->refusals;
    r->refusals = NULL;
    return source->text != NULL;
}

static void kernel_ranges_note(struct rewrite *r) {
    for (size_t i = 0; i < r->found.function_count; i++) {
        const struct cpu_function *f = &r->found.functions[i];
        for (size_t k = f->params_open; f->is_kernel && k <= f->body_close; k++) {
            r->kernel_of[k] = i + 1;
        }
    }
}

gpulua_status gpu_cpu_source_rewrite(const struct cpu_rewrite_info *info,
                                     struct cpu_source *source) {
    memset(source, 0, sizeof *source);
    struct rewrite rewrite = {.source = source, .info = info};
    struct rewrite *r = &rewrite;
    bool ok = gpu_cpu_tokens_cut(&r->tokens, info->text, info->shim_folder) &&
              gpu_cpu_declarations_find(&r->tokens, &r->found) && names_find(r);
    if (ok) {
        r->kernel_of = calloc(r->tokens.code_count + 1, sizeof *r->kernel_of);
        ok = r->kernel_of != NULL;
    }
    if (ok) {
        kernel_ranges_note(r);
        if (!info->is_device_default) {
            annotations_check(r);
        }
        tokens_rewrite(r);
        kernels_rewrite(r);
        ok = !r->tokens.failed && results_export(r) && !r->tokens.failed;
    }
    free(r->refusals);
    free(r->kernel_of);
    free(r->waits);
    free(r->asks);
    gpu_cpu_declarations_free(&r->found);
    gpu_cpu_tokens_free(&r->tokens);
    if (!ok) {
        gpu_cpu_source_free(source);
        return GPULUA_OUT_OF_MEMORY;
    }
    return GPULUA_OK;
}

void gpu_cpu_source_free(struct cpu_source *source) {
    for (size_t i = 0; i < source->kernel_count; i++) {
        struct cpu_source_kernel *kernel = &source->kernels[i];
        for (size_t k = 0; k < kernel->param_count; k++) {
            free(kernel->param_names[k]);
        }
        free(kernel->param_names);
        free(kernel->bounds);
        free(kernel->name);
    }
    for (size_t i = 0; i < source->global_count; i++) {
        free(source->globals[i].name);
    }
    free(source->kernels);
    free(source->globals);
    free(source->refusals);
    free(source->text);
    memset(source, 0, sizeof *source);
}
