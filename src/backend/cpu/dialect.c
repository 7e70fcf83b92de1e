/* The token pass: division, shared memory and indices inside functions (see rewrite.h). */
#include <stdlib.h>

#include "backend/cpu/rewrite_pass.h"

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

void gpu_cpu_division_guard(struct rewrite *r, size_t at) {
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

/* ---- lambdas and classes ---- */

/* What is in front of one piece of the head of a lambda or a class; `at`: it is none. */
static size_t before_head(struct rewrite *r, size_t at) {
    static const char *const signs[] = {"->", "*", "&", "::", ":", ",", NULL};
    if (is_at(r, at, ")") && token_at(r, at)->partner < at) {
        return token_at(r, at)->partner - 1;
    }
    if (is_at(r, at, ">")) {
        size_t depth = 0;
        for (size_t i = at; i > 0 && !is_at(r, i, ";") && !is_at(r, i, "{"); i--) {
            depth += is_at(r, i, ">");
            if (is_at(r, i, "<") && --depth == 0) {
                return i - 1;
            }
        }
        return at;
    }
    return is_word_at(r, at) || word_in(token_at(r, at), signs) ? at - 1 : at;
}

enum braces { BRACES_OTHER, BRACES_LAMBDA, BRACES_CLASS };

/* Whose are they? Of a lambda `capture` becomes the place of its [. */
static enum braces braces_of(struct rewrite *r, size_t open, size_t *capture) {
    /* Backwards over what can stand before the body of a lambda or a class: [..] (..) mutable
     * noexcept(..) -> T<U>, struct S : T, U. */
    size_t k = open - 1;
    for (size_t next = before_head(r, k); next != k; next = before_head(r, k)) {
        if (is_at(r, k, "struct") || is_at(r, k, "class") || is_at(r, k, "union")) {
            return BRACES_CLASS;
        }
        k = next;
    }
    if (!is_at(r, k, "]") || token_at(r, k)->partner > k) {
        return BRACES_OTHER;
    }
    *capture = token_at(r, k)->partner;
    bool is_index =
        is_word_at(r, *capture - 1) || is_at(r, *capture - 1, ")") || is_at(r, *capture - 1, "]");
    return is_index && !is_at(r, *capture - 1, "return") ? BRACES_OTHER : BRACES_LAMBDA;
}

/* ---- shared memory ---- */

/* The declaration that the token is in: from behind the last ; { or }, to its semicolon. */
static size_t statement_begin(struct rewrite *r, size_t at) {
    while (at > 0 && !is_at(r, at - 1, ";") && !is_at(r, at - 1, "{") && !is_at(r, at - 1, "}")) {
        at--;
    }
    return at;
}

static bool is_named(struct rewrite *r, size_t from, size_t to, unsigned word) {
    for (size_t i = from; i < to; i++) {
        if (token_at(r, i)->word == word && !is_member(r, i)) {
            return true;
        }
    }
    return false;
}

/* `T s`, `T *s` and `s =`, which no array takes. An expression that looks like one counts as well.
 */
static bool is_declared_at(struct rewrite *r, size_t at) {
    static const char *const signs[] = {"*", "&", "&&", "const", "__restrict__", NULL};
    static const char *const starts[] = {";", "{", "}", "(", ",", "::", NULL};
    static const char *const others[] = {"return", "else", "do", "case", "sizeof", "delete", NULL};
    size_t k = at - 1;
    while (word_in(token_at(r, k), signs)) {
        k--;
    }
    bool has_type = is_at(r, k, ">") || (is_word_at(r, k) && !word_in(token_at(r, k), others));
    bool is_first = k == at - 1 || word_in(token_at(r, k - 1), starts) ||
                    (is_word_at(r, k - 1) && !word_in(token_at(r, k - 1), others));
    return is_at(r, at + 1, "=") || (has_type && is_first);
}

static bool is_declared(struct rewrite *r, size_t from, size_t to, unsigned word) {
    for (size_t i = from; i < to; i++) {
        if (token_at(r, i)->word == word && !is_member(r, i) && is_declared_at(r, i)) {
            return true;
        }
    }
    return false;
}

/* The body gets a reference to dynamic shared memory, and a scope within that, where the source may
 * have the name for something else. */
static void reference_add(struct rewrite *r, size_t open, const char *declaration) {
    struct cpu_token *begin = token_at(r, open), *end = token_at(r, begin->partner);
    begin->behind = gpu_cpu_tokens_note(&r->tokens, "%s %s = gpulua_dynamic_shared(); {",
                                        begin->behind != NULL ? begin->behind : "", declaration);
    end->before = gpu_cpu_tokens_note(&r->tokens, "}%s", end->before != NULL ? end->before : "");
}

/* The array is no variable of the function, which lambdas would have to capture and classes could
 * not use: their bodies within from..to get references of their own, unless there is another of its
 * name. */
static void inner_references_add(struct rewrite *r, size_t from, size_t to, unsigned word,
                                 const char *declaration) {
    for (size_t i = is_declared(r, from, to, word) ? to : from; i < to; i++) {
        size_t close = token_at(r, i)->partner, capture = 0;
        if (!is_at(r, i, "{") || close < i || !is_named(r, i, close, word)) {
            continue;
        }
        enum braces braces = braces_of(r, i, &capture);
        if (braces == BRACES_LAMBDA) {
            reference_add(r, i, declaration);
        }
        for (size_t k = i + 1; k < close && braces == BRACES_CLASS; k++) {
            size_t end = token_at(r, k)->partner;
            if (is_at(r, k, "{") && is_named(r, k, end, word)) {
                reference_add(r, k, declaration); /* of a member function */
            }
            k = end > k ? end : k;
        }
    }
}

/* The end of the block that a place in a function is in. */
static size_t block_end(struct rewrite *r, size_t at) {
    while (at < r->tokens.code_count && !is_at(r, at, "}")) {
        size_t partner = token_at(r, at)->partner;
        at = partner > at ? partner + 1 : at + 1;
    }
    return at;
}

/* extern __shared__ T name[]: a reference where it stands in a function; outside, a function of
 * this name would do, but the name is used like an array: each function that names it gets a
 * reference. */
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
    unsigned word = token_at(r, name)->word;
    replace(r, name, gpu_cpu_tokens_note(&r->tokens, "(&%s)", r->tokens.words[word - 1]));
    char *declaration =
        gpu_cpu_tokens_text(&r->tokens, r->tokens.code[begin], r->tokens.code[end], true, true);
    if (declaration == NULL) {
        r->tokens.failed = true;
        return;
    }
    if (gpu_cpu_declarations_function(&r->found, at) != SIZE_MAX) {
        token_at(r, end)->before = " = gpulua_dynamic_shared()";
        inner_references_add(r, end, block_end(r, end), word, declaration);
        free(declaration);
        return;
    }
    for (size_t i = 0; i < r->found.function_count; i++) {
        const struct cpu_function *f = &r->found.functions[i];
        if (is_at(r, f->body_open, "{") && is_named(r, f->body_open, f->body_close, word) &&
            !is_named(r, f->params_open, f->body_open, word)) {
            reference_add(r, f->body_open, declaration);
        }
        inner_references_add(r, f->params_open, f->body_close, word, declaration);
    }
    free(declaration);
    blank_out(r, begin, end);
}

void gpu_cpu_shared_rewrite(struct rewrite *r, size_t at) {
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

/* Does a lambda or class that holds `at` in the kernel keep the kernel's parameters out? */
static bool is_cut_off(struct rewrite *r, const struct cpu_function *kernel, size_t at) {
    for (size_t i = kernel->body_open + 1; i < at; i++) {
        size_t capture = 0;
        if (!is_at(r, i, "{") || token_at(r, i)->partner < at) {
            continue;
        }
        enum braces braces = braces_of(r, i, &capture);
        bool has_default = (is_at(r, capture + 1, "=") || is_at(r, capture + 1, "&")) &&
                           (is_at(r, capture + 2, ",") || is_at(r, capture + 2, "]"));
        if (braces == BRACES_CLASS || (braces == BRACES_LAMBDA && !has_default)) {
            return true;
        }
    }
    return false;
}

void gpu_cpu_index_rewrite(struct rewrite *r, size_t at) {
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
