/* The token pass: threadIdx and its kin as names of the user's own, which hide CUDA's (see
 * rewrite.h). Such a name is another one behind the pass, from its declaration to the end of its
 * scope; a member keeps its name, which in its class then is not CUDA's. */
#include "backend/cpu/rewrite_pass.h"

static const char *const names[] = {"threadIdx", "blockIdx", "blockDim", "gridDim", NULL};

/* Is it a further one of `int a = 1, b`? */
static bool is_next_declarator(struct rewrite *r, size_t at) {
    size_t open = enclosing(r, at), begin = at;
    while (begin > 0 && begin - 1 != open && !is_at(r, begin - 1, ";") &&
           !is_at(r, begin - 1, "}")) {
        size_t partner = token_at(r, begin - 1)->partner;
        begin = partner != 0 && partner < begin - 1 ? partner : begin - 1;
    }
    size_t name = begin;
    while (name < at && (is_at(r, name, "const") || is_at(r, name, "static") ||
                         is_at(r, name + 1, "::") || is_at(r, name, "::"))) {
        name++;
    }
    name++;
    while (name < at && (is_at(r, name, "*") || is_at(r, name, "&"))) {
        name++;
    }
    return is_name_at(r, begin) && name < at && is_word_at(r, name) &&
           (open == SIZE_MAX || is_at(r, open, "{"));
}

static bool is_declared(struct rewrite *r, size_t at) {
    static const char *const behind[] = {"=", ";", ",", ")", "[", "{", "(", ":", ">", NULL};
    static const char *const signs[] = {"*", "&", "&&", ">", "const", NULL};
    if (at == 0 || is_member(r, at) || !word_in(token_at(r, at + 1), behind)) {
        return false;
    }
    size_t before = at - 1;
    while (before > 0 && word_in(token_at(r, before), signs)) {
        before--;
    }
    if (is_at(r, before, ",")) {
        return is_next_declarator(r, at);
    }
    return is_name_at(r, before) || (before < at - 1 && is_at(r, before + 1, ">"));
}

/* The { of a class that the token is a member in the body of? */
static bool is_class_body(struct rewrite *r, size_t open, size_t *name) {
    static const char *const keys[] = {"struct", "class", "union", NULL};
    for (size_t i = open; i > 0; i--) {
        if (is_at(r, i - 1, ";") || is_at(r, i - 1, "}") || is_at(r, i - 1, "{") ||
            is_at(r, i - 1, ")")) {
            return false;
        }
        if (word_in(token_at(r, i - 1), keys)) {
            *name = i;
            return true;
        }
    }
    return false;
}

static bool is_namespace_body(struct rewrite *r, size_t open) {
    size_t i = open;
    while (i > 0 && (is_word_at(r, i - 1) || is_at(r, i - 1, "::"))) {
        i--;
        if (is_at(r, i, "namespace")) {
            return true;
        }
    }
    return i > 0 && token_at(r, i - 1)->kind == CPU_TOKEN_STRING; /* extern "C" { */
}

/* Is it in the <> of a template's head? */
static bool is_of_template(struct rewrite *r, size_t at) {
    size_t depth = 0;
    for (size_t i = at; i > 0 && !is_at(r, i - 1, ";") && !is_at(r, i - 1, "{"); i--) {
        depth += is_at(r, i - 1, ">");
        if (is_at(r, i - 1, "<") && depth-- == 0) {
            return i > 1 && is_at(r, i - 2, "template");
        }
    }
    return false;
}

/* Behind the body that follows, or the statement. */
static size_t body_end(struct rewrite *r, size_t at) {
    while (at < r->tokens.code_count && !is_at(r, at, ";") && !is_at(r, at, "{")) {
        size_t partner = token_at(r, at)->partner;
        at = partner > at ? partner + 1 : at + 1;
    }
    return is_at(r, at, "{") && token_at(r, at)->partner > at ? token_at(r, at)->partner : at;
}

/* `replaced`: NULL: as it is, and nobody's but the user's. */
static void rename_all(struct rewrite *r, unsigned word, size_t from, size_t to,
                       const char *replaced) {
    for (size_t i = from; i < to; i++) {
        if (token_at(r, i)->word == word && !is_member(r, i) && token_at(r, i)->replaced == NULL) {
            replace(r, i, replaced != NULL ? replaced : r->tokens.words[word - 1]);
        }
    }
}

/* Members are used by functions that are defined behind the class, too. */
static void member_keep(struct rewrite *r, unsigned word, size_t class_name) {
    for (size_t i = 0; i < r->found.function_count; i++) {
        const struct cpu_function *f = &r->found.functions[i];
        if (f->name >= 2 && is_at(r, f->name - 1, "::") &&
            token_at(r, f->name - 2)->word == token_at(r, class_name)->word) {
            rename_all(r, word, f->params_open, f->body_close, NULL);
        }
    }
}

static void hide(struct rewrite *r, size_t at) {
    unsigned word = token_at(r, at)->word;
    const char *text = r->tokens.words[word - 1];
    const char *own = gpu_cpu_tokens_note(&r->tokens, "gpulua_own_%s", text);
    size_t open = enclosing(r, at), class_name = 0;
    if (is_of_template(r, at)) {
        rename_all(r, word, at, body_end(r, at), own);
    } else if (open == SIZE_MAX || (is_at(r, open, "{") && is_namespace_body(r, open))) {
        gpu_cpu_refuse(r, at, text,
                       "a name of CUDA's, which nothing outside of functions and classes can have "
                       "on the CPU device: give it another one");
    } else if (is_at(r, open, "{") && is_class_body(r, open, &class_name)) {
        rename_all(r, word, open, token_at(r, open)->partner, NULL);
        member_keep(r, word, class_name);
    } else if (is_at(r, open, "{")) {
        rename_all(r, word, at, token_at(r, open)->partner, own);
    } else {
        rename_all(r, word, at, body_end(r, token_at(r, open)->partner + 1), own);
    }
}

void gpu_cpu_hidden_rename(struct rewrite *r) {
    for (size_t i = 0; i < r->tokens.code_count; i++) {
        if (token_at(r, i)->replaced == NULL && word_in(token_at(r, i), names) &&
            is_declared(r, i)) {
            hide(r, i);
        }
    }
}
