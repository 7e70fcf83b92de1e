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
    if (r->info->divides_plainly || at == 0 || gpu_cpu_token_is(token_at(r, at - 1), "operator") ||
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

#define PATH_BYTES 256u

/* A part of a path in front of the others; too long a path is none. */
static void path_prepend(char *path, const struct cpu_token *word) {
    size_t length = strlen(path);
    if (length + word->length + 3 > PATH_BYTES) {
        return;
    }
    memmove(path + word->length + 2, path, length + 1);
    memcpy(path, word->text, word->length);
    memcpy(path + word->length, "::", 2);
}

/* The namespaces that the token is in: "a::b::". */
static void path_of(struct rewrite *r, size_t at, char *path) {
    path[0] = '\0';
    while ((at = enclosing(r, at)) != SIZE_MAX) {
        size_t i = at;
        while (i > 0 && (is_word_at(r, i - 1) || is_at(r, i - 1, "::")) &&
               !is_at(r, i - 1, "namespace")) {
            i--;
        }
        for (size_t k = at; i > 0 && is_at(r, i - 1, "namespace") && k > i; k--) {
            if (is_word_at(r, k - 1)) {
                path_prepend(path, token_at(r, k - 1));
            }
        }
    }
}

/* Does the word at `at` name what is in the namespaces of `path`? Without a qualifier it may.
 * `*begin`: its first token. */
static bool names_member_of(struct rewrite *r, size_t at, const char *path, size_t *begin) {
    char given[PATH_BYTES] = "";
    size_t length = strlen(path);
    bool is_whole = false;
    *begin = at;
    if (at > 0 && (is_at(r, at - 1, ".") || is_at(r, at - 1, "->"))) {
        return false;
    }
    while (*begin > 0 && is_at(r, *begin - 1, "::") && !is_whole) {
        *begin -= 1;
        is_whole = *begin == 0 || !is_name_at(r, *begin - 1);
        if (!is_whole) {
            *begin -= 1;
            path_prepend(given, token_at(r, *begin));
        }
    }
    size_t given_length = strlen(given);
    return given_length <= length && (!is_whole || given_length == length) &&
           strcmp(path + length - given_length, given) == 0 &&
           (given_length == 0 || given_length == length || path[length - given_length - 1] == ':');
}

/* `using n::name;` of what is declared no more. */
static void using_blank_out(struct rewrite *r, unsigned word, const char *path) {
    for (size_t i = 2; i < r->tokens.code_count; i++) {
        size_t begin;
        if (token_at(r, i)->word == word && is_at(r, i + 1, ";") && is_at(r, i - 1, "::") &&
            names_member_of(r, i, path, &begin) && begin > 0 && is_at(r, begin - 1, "using")) {
            blank_out(r, begin - 1, i + 2);
        }
    }
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
    char *declaration = NULL, path[PATH_BYTES];
    path_of(r, at, path);
    size_t from = r->tokens.code[begin], to = r->tokens.code[end];
    replace(r, name, gpu_cpu_tokens_note(&r->tokens, "(&%s)", text));
    declaration = gpu_cpu_tokens_text(&r->tokens, from, to, true, true);
    if (declaration == NULL) {
        r->tokens.failed = true;
        return;
    }
    unsigned word = token_at(r, name)->word;
    using_blank_out(r, word, path);
    for (size_t i = 0; i < r->found.function_count; i++) {
        const struct cpu_function *f = &r->found.functions[i];
        bool has_own = false, is_used = false;
        for (size_t k = f->params_open; k < f->body_close; k++) {
            size_t first;
            if (token_at(r, k)->word == word && names_member_of(r, k, path, &first)) {
                is_used = is_used || k > f->body_open;
                has_own = has_own || k < f->body_open;
                blank_out(r, first, k);
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

/* Does the lambda or class that holds `at` in the kernel keep the kernel's parameters out? */
static bool is_cut_off(struct rewrite *r, const struct cpu_function *kernel, size_t at) {
    for (size_t i = kernel->body_open + 1; i < at; i++) {
        size_t partner = token_at(r, i)->partner;
        if (is_at(r, i, "{") && partner > at) {
            /* Backwards over what can stand before the body of a lambda or a class: [..] (..)
             * mutable noexcept(..) -> T<U>, struct S : T, U. */
            size_t k = i - 1;
            for (size_t next = before_head(r, k); next != k; next = before_head(r, k)) {
                if (is_at(r, k, "struct") || is_at(r, k, "class") || is_at(r, k, "union")) {
                    return true;
                }
                k = next;
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

/* ::threadIdx: CUDA's, whatever hides it. */
static bool is_global_name(struct rewrite *r, size_t at) {
    return at > 0 && is_at(r, at - 1, "::") &&
           !(at > 1 && (is_name_at(r, at - 2) || is_at(r, at - 2, ">")));
}

void gpu_cpu_index_rewrite(struct rewrite *r, size_t at) {
    bool is_global = is_global_name(r, at);
    if ((is_member(r, at) && !is_global) || token_at(r, at)->replaced != NULL) {
        return;
    }
    for (size_t i = 0; i < sizeof indices / sizeof *indices; i++) {
        if (!is_at(r, at, indices[i].name)) {
            continue;
        }
        size_t number = r->kernel_of[at];
        if (is_global) {
            replace(r, at - 1, "");
        }
        if (number == 0) {
            replace(r, at, indices[i].call);
        } else if (is_cut_off(r, &r->found.functions[number - 1], at)) {
            replace(r, at, indices[i].call);
            r->found.functions[number - 1].flags |= CPU_KERNEL_CONTEXT;
        }
    }
}
