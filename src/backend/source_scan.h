/* Inside backend/source*.c: the tokens of a source, and ways to walk over them. */
#ifndef GPU_SOURCE_SCAN_H
#define GPU_SOURCE_SCAN_H

#include <string.h>

#include "backend/backend.h"

enum token_kind {
    TOKEN_WORD,
    TOKEN_PUNCTUATOR, /* one character, or :: -> << */
    TOKEN_LITERAL,
    TOKEN_IF, /* directives that matter */
    TOKEN_ELSE,
    TOKEN_ENDIF
};

enum {
    WORD_GLOBAL = 1, /* __global__, or a macro that says so */
    WORD_DEVICE = 2, /* __device__, __managed__ */
    WORD_CONSTANT = 4
};

struct token {
    enum token_kind kind;
    unsigned words;   /* WORD_* of a TOKEN_WORD; on TOKEN_IF: 1 + its literal value 0 or 1 */
    const char *text; /* borrowed from scan.text */
    size_t length;
};

struct macro {
    const char *name;
    size_t length;
    unsigned words;
};

struct source_entry {
    size_t offset;            /* in the scan's text */
    const struct token *name; /* of the parameter; NULL: it has none */
    bool is_body;             /* behind its {; else behind the type of a parameter without a name */
};

struct scan {
    char *text;           /* owned; spliced */
    struct token *tokens; /* owned */
    size_t token_count, token_capacity;
    struct macro *macros; /* owned; only those that matter */
    size_t macro_count;
    struct backend_source_names *names;
    struct source_entry *entries; /* owned; bodies of kernels with a gpulua_ctx, in order */
    size_t entry_count;
    bool failed; /* no memory */
};

/* ---- source_tokens.c ---- */

/* The text into tokens, without those that no compiler sees. `scan->failed`: no memory. */
void gpu_source_tokens_cut(struct scan *scan, const char *text);

static inline bool token_is(const struct token *token, const char *text) {
    return token->length == strlen(text) && memcmp(token->text, text, token->length) == 0;
}

bool gpu_source_token_in(const struct token *token, const char *const *list);

static inline bool is_punctuator(const struct scan *scan, size_t at, const char *text) {
    return at < scan->token_count && scan->tokens[at].kind == TOKEN_PUNCTUATOR &&
           token_is(&scan->tokens[at], text);
}

static inline bool is_word(const struct scan *scan, size_t at) {
    return at < scan->token_count && scan->tokens[at].kind == TOKEN_WORD;
}

static inline bool is_word_of(const struct scan *scan, size_t at, const char *text) {
    return is_word(scan, at) && token_is(&scan->tokens[at], text);
}

/* +1 for an opening bracket, -1 for a closing one, else 0. */
int gpu_source_bracket_step(const struct token *token);
/* Behind the bracket that closes the one at `at`. Branches of a conditional inside each start at
 * the depth of their #if; the #else of a conditional that began outside ends the group, because the
 * other branch has an opening of its own. */
size_t gpu_source_skip_group(const struct scan *scan, size_t at);
/* Behind the > that closes the < at `at`; `at` + 1 where it is no bracket after all, which is
 * assumed of one that is not closed within 1,024 tokens. */
size_t gpu_source_skip_angles(const struct scan *scan, size_t at, size_t end);

/* ---- source_names.c: what is found goes into scan->names ---- */

/* prefix::name, `name` being the tokens from..to without blanks. NULL: no memory. */
char *gpu_source_name_make(struct scan *scan, const char *prefix, size_t from, size_t to);
/* First token of the qualified name that ends at `last`: a::b::last. */
size_t gpu_source_name_start(const struct scan *scan, size_t last, size_t begin);
/* Takes `name`. The parameters are in the parentheses that open at `open`; `to` is behind them. */
void gpu_source_kernel_add(struct scan *scan, char *name, size_t open, size_t to, bool is_template,
                           bool is_definition);
void gpu_source_global_add(struct scan *scan, const char *prefix, size_t from, size_t to,
                           bool is_constant);

#endif
