/* What can be read off CUDA C without parsing C (see backend.h): names of kernels, names of their
 * parameters, names of module-scope variables in device memory.
 *
 * The text is cut into tokens; a walk over the tokens at namespace scope looks at one declaration
 * after the other and skips the insides of functions and classes. Nothing is expanded; but macros
 * whose replacement has __global__, __device__, ... in it count as these words where they are used.
 * Both sides of a conditional are read (`#if 0` and `#if 1` apart), so a name may turn out not to
 * exist: what is right in the end is what the compiler says. Text that no compiler would take gives
 * some result or other, never an error. */
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"

/* ---- tokens ---- */

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

struct scan {
    char *text;           /* owned; spliced */
    struct token *tokens; /* owned */
    size_t token_count, token_capacity;
    struct macro *macros; /* owned; only those that matter */
    size_t macro_count;
    struct backend_source_names *names;
    bool failed; /* no memory */
};

static bool is_word_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' ||
           (unsigned char)c >= 0x80;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f' || c == '\n';
}

static bool token_is(const struct token *token, const char *text) {
    return token->length == strlen(text) && memcmp(token->text, text, token->length) == 0;
}

static bool token_in(const struct token *token, const char *const *list) {
    for (; *list != NULL; list++) {
        if (token_is(token, *list)) {
            return true;
        }
    }
    return false;
}

/* A copy of the text in which lines continued with a backslash are one line. */
static char *splice(const char *text) {
    size_t length = strlen(text);
    char *copy = malloc(length + 1);
    if (copy == NULL) {
        return NULL;
    }
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\\' && text[i + 1] == '\n') {
            i++;
        } else if (text[i] == '\\' && text[i + 1] == '\r' && text[i + 2] == '\n') {
            i += 2;
        } else {
            copy[used++] = text[i];
        }
    }
    copy[used] = '\0';
    return copy;
}

static struct token *token_add(struct scan *scan, enum token_kind kind, const char *from,
                               const char *to) {
    if (scan->token_count == scan->token_capacity) {
        size_t capacity = scan->token_capacity ? scan->token_capacity * 2 : 1024;
        struct token *grown = realloc(scan->tokens, capacity * sizeof *grown);
        if (grown == NULL) {
            scan->failed = true;
            return NULL;
        }
        scan->tokens = grown;
        scan->token_capacity = capacity;
    }
    struct token *token = &scan->tokens[scan->token_count++];
    *token = (struct token){.kind = kind, .text = from, .length = (size_t)(to - from)};
    return token;
}

static unsigned word_meaning(const struct scan *scan, const struct token *token) {
    if (token_is(token, "__global__")) {
        return WORD_GLOBAL;
    }
    if (token_is(token, "__device__") || token_is(token, "__managed__")) {
        return WORD_DEVICE;
    }
    if (token_is(token, "__constant__")) {
        return WORD_CONSTANT;
    }
    for (size_t i = 0; i < scan->macro_count; i++) {
        const struct macro *macro = &scan->macros[i];
        if (macro->length == token->length &&
            memcmp(macro->name, token->text, token->length) == 0) {
            return macro->words;
        }
    }
    return 0;
}

/* Behind a string or character literal whose quote is at `at`; an unfinished one ends with its
 * line. */
static const char *skip_quoted(const char *at) {
    char quote = *at++;
    while (*at != '\0' && *at != '\n') {
        if (*at == '\\' && at[1] != '\0' && at[1] != '\n') {
            at++;
        } else if (*at == quote) {
            return at + 1;
        }
        at++;
    }
    return at;
}

/* R"mark( ... )mark"; `at` is on the quote. */
static const char *skip_raw_string(const char *at) {
    const char *mark = at + 1;
    const char *open = mark;
    while (*open != '(' && *open != '\0' && *open != '\n' && *open != '"' && open - mark < 16) {
        open++;
    }
    if (*open != '(') {
        return skip_quoted(at);
    }
    size_t mark_length = (size_t)(open - mark);
    for (const char *end = strchr(open, ')'); end != NULL; end = strchr(end + 1, ')')) {
        if (strncmp(end + 1, mark, mark_length) == 0 && end[1 + mark_length] == '"') {
            return end + mark_length + 2;
        }
    }
    return open + strlen(open);
}

/* Behind the comment that starts at `at`, or `at`. */
static const char *skip_comment(const char *at) {
    if (at[0] == '/' && at[1] == '/') {
        const char *end = strchr(at, '\n');
        return end != NULL ? end : at + strlen(at);
    }
    if (at[0] == '/' && at[1] == '*') {
        const char *end = strstr(at + 2, "*/");
        return end != NULL ? end + 2 : at + strlen(at);
    }
    return at;
}

/* One token from `at`, which is not blank, not a comment and not the end. Returns what is behind
 * it. */
static const char *token_cut(struct scan *scan, const char *at) {
    const char *from = at;
    if (is_word_start(*at)) {
        while (is_word_start(*at) || is_digit(*at)) {
            at++;
        }
        size_t length = (size_t)(at - from);
        bool raw = length > 0 && length <= 3 && from[length - 1] == 'R';
        if (*at == '"' && length <= 3) {
            at = raw ? skip_raw_string(at) : skip_quoted(at);
            token_add(scan, TOKEN_LITERAL, from, at);
            return at;
        }
        struct token *token = token_add(scan, TOKEN_WORD, from, at);
        if (token != NULL) {
            token->words = word_meaning(scan, token);
        }
        return at;
    }
    if (is_digit(*at) || (*at == '.' && is_digit(at[1]))) {
        /* A preprocessing number, digit separators and signed exponents included. */
        while (is_word_start(*at) || is_digit(*at) || *at == '.' || *at == '\'' ||
               ((*at == '+' || *at == '-') && strchr("eEpP", at[-1]) != NULL)) {
            at++;
        }
        token_add(scan, TOKEN_LITERAL, from, at);
        return at;
    }
    if (*at == '"' || *at == '\'') {
        at = skip_quoted(at);
        token_add(scan, TOKEN_LITERAL, from, at);
        return at;
    }
    bool two = (at[0] == ':' && at[1] == ':') || (at[0] == '-' && at[1] == '>') ||
               (at[0] == '<' && at[1] == '<');
    at += two ? 2 : 1;
    token_add(scan, TOKEN_PUNCTUATOR, from, at);
    return at;
}

/* `#define NAME ... __global__ ...`: NAME stands for __global__ from here on, unless it makes a
 * whole function, whose name could not be told. The tokens of the line start at `first`. */
static void macro_note(struct scan *scan, size_t first) {
    const struct token *tokens = scan->tokens + first;
    size_t count = scan->token_count - first;
    if (count < 3 || tokens[1].kind != TOKEN_WORD) {
        return;
    }
    unsigned words = 0;
    for (size_t i = 2; i < count; i++) {
        words |= tokens[i].words;
        if (token_is(&tokens[i], "{")) {
            return;
        }
    }
    if (words == 0) {
        return;
    }
    if ((scan->macro_count & (scan->macro_count - 1)) == 0) {
        size_t capacity = scan->macro_count ? scan->macro_count * 2 : 1;
        struct macro *grown = realloc(scan->macros, capacity * sizeof *grown);
        if (grown == NULL) {
            scan->failed = true;
            return;
        }
        scan->macros = grown;
    }
    scan->macros[scan->macro_count++] =
        (struct macro){.name = tokens[1].text, .length = tokens[1].length, .words = words};
}

/* The line of a directive, `at` behind its #. Its tokens are dropped again; a conditional leaves
 * one marker. */
static const char *directive_cut(struct scan *scan, const char *at) {
    static const char *const opens[] = {"if", "ifdef", "ifndef", NULL};
    static const char *const turns[] = {"else", "elif", "elifdef", "elifndef", NULL};
    size_t first = scan->token_count;
    while (*at != '\0' && *at != '\n' && !scan->failed) {
        const char *behind = skip_comment(at);
        if (behind != at) {
            at = behind;
        } else if (is_blank(*at)) {
            at++;
        } else {
            at = token_cut(scan, at);
        }
    }
    if (scan->failed || scan->token_count == first) {
        return at;
    }
    struct token name = scan->tokens[first];
    unsigned value = 0;
    if (token_is(&name, "define")) {
        macro_note(scan, first);
    } else if (token_is(&name, "if") && scan->token_count == first + 2) {
        const struct token *condition = &scan->tokens[first + 1];
        value = token_is(condition, "0") ? 1 : token_is(condition, "1") ? 2 : 0;
    }
    scan->token_count = first;
    struct token *marker = NULL;
    if (token_in(&name, opens)) {
        marker = token_add(scan, TOKEN_IF, name.text, name.text + name.length);
    } else if (token_in(&name, turns)) {
        marker = token_add(scan, TOKEN_ELSE, name.text, name.text + name.length);
    } else if (token_is(&name, "endif")) {
        marker = token_add(scan, TOKEN_ENDIF, name.text, name.text + name.length);
    }
    if (marker != NULL) {
        marker->words = value;
    }
    return at;
}

static void tokens_cut(struct scan *scan) {
    const char *at = scan->text;
    bool line_start = true;
    while (*at != '\0' && !scan->failed) {
        const char *behind = skip_comment(at);
        if (behind != at) {
            at = behind;
        } else if (is_blank(*at)) {
            line_start = line_start || *at == '\n';
            at++;
        } else if (*at == '#' && line_start) {
            at = directive_cut(scan, at + 1);
        } else {
            at = token_cut(scan, at);
            line_start = false;
        }
    }
}

/* Takes out what stands under `#if 0`, and under the #else of `#if 1`. */
static void tokens_drop_dead(struct scan *scan) {
    size_t kept = 0, depth = 0, dead_depth = 0; /* dead_depth: depth of the #if that is dead now */
    size_t live_depth = 0;                      /* of the `#if 1` whose #else is to come; or 0 */
    for (size_t i = 0; i < scan->token_count; i++) {
        struct token token = scan->tokens[i];
        bool is_marker = true;
        if (token.kind == TOKEN_IF) {
            depth++;
            if (dead_depth == 0 && token.words == 1) {
                dead_depth = depth;
            } else if (dead_depth == 0 && token.words == 2 && live_depth == 0) {
                live_depth = depth;
            }
        } else if (token.kind == TOKEN_ELSE) {
            if (dead_depth == depth && live_depth != depth) {
                dead_depth = 0;
            } else if (dead_depth == 0 && live_depth == depth && depth > 0) {
                dead_depth = depth;
            }
        } else if (token.kind == TOKEN_ENDIF) {
            dead_depth = dead_depth == depth ? 0 : dead_depth;
            live_depth = live_depth == depth ? 0 : live_depth;
            depth -= depth > 0 ? 1 : 0;
        } else {
            is_marker = false;
        }
        if (is_marker || dead_depth == 0) {
            scan->tokens[kept++] = token;
        }
    }
    scan->token_count = kept;
}

/* ---- walking over brackets ---- */

static bool is_punctuator(const struct scan *scan, size_t at, const char *text) {
    return at < scan->token_count && scan->tokens[at].kind == TOKEN_PUNCTUATOR &&
           token_is(&scan->tokens[at], text);
}

static bool is_word(const struct scan *scan, size_t at) {
    return at < scan->token_count && scan->tokens[at].kind == TOKEN_WORD;
}

static bool is_word_of(const struct scan *scan, size_t at, const char *text) {
    return is_word(scan, at) && token_is(&scan->tokens[at], text);
}

static int bracket_step(const struct token *token) {
    if (token->kind != TOKEN_PUNCTUATOR || token->length != 1) {
        return 0;
    }
    return strchr("([{", token->text[0]) ? 1 : strchr(")]}", token->text[0]) ? -1 : 0;
}

/* Behind the bracket that closes the one at `at`. Branches of a conditional inside each start at
 * the depth of their #if; the #else of a conditional that began outside ends the group, because the
 * other branch has an opening of its own. */
static size_t skip_group(const struct scan *scan, size_t at) {
    size_t depth = 0, conditionals = 0;
    size_t depth_at_if[32]; /* deeper conditionals are read as straight text */
    for (; at < scan->token_count; at++) {
        const struct token *token = &scan->tokens[at];
        if (token->kind == TOKEN_IF) {
            if (conditionals < 32) {
                depth_at_if[conditionals] = depth;
            }
            conditionals++;
        } else if (token->kind == TOKEN_ELSE) {
            if (conditionals == 0) {
                return at;
            }
            if (conditionals <= 32) {
                depth = depth_at_if[conditionals - 1];
            }
        } else if (token->kind == TOKEN_ENDIF) {
            conditionals -= conditionals > 0 ? 1 : 0;
        } else {
            int step = bracket_step(token);
            depth += step > 0 ? 1 : 0;
            if (step < 0 && --depth == 0) {
                return at + 1;
            }
        }
    }
    return at;
}

/* Behind the > that closes the < at `at`; `at` + 1 where it is no bracket after all, which is
 * assumed of one that is not closed within 1,024 tokens. */
static size_t skip_angles(const struct scan *scan, size_t at, size_t end) {
    end = end - at > 1024 ? at + 1024 : end;
    size_t depth = 0;
    for (size_t i = at; i < end;) {
        if (is_punctuator(scan, i, "(") || is_punctuator(scan, i, "[") ||
            is_punctuator(scan, i, "{")) {
            i = skip_group(scan, i);
            continue;
        }
        if (is_punctuator(scan, i, ";") || bracket_step(&scan->tokens[i]) < 0) {
            break;
        }
        if (is_punctuator(scan, i, "<")) {
            depth++;
        } else if (is_punctuator(scan, i, ">") && --depth == 0) {
            return i + 1;
        }
        i++;
    }
    return at + 1;
}

/* ---- results ---- */

/* prefix::name, `name` being the tokens from..to without blanks. NULL: no memory. */
static char *name_make(struct scan *scan, const char *prefix, size_t from, size_t to) {
    size_t length = strlen(prefix) + 3;
    for (size_t i = from; i < to; i++) {
        length += scan->tokens[i].length;
    }
    char *name = malloc(length);
    if (name == NULL) {
        scan->failed = true;
        return NULL;
    }
    size_t used = strlen(prefix);
    memcpy(name, prefix, used);
    if (used > 0) {
        memcpy(name + used, "::", 2);
        used += 2;
    }
    for (size_t i = from; i < to; i++) {
        memcpy(name + used, scan->tokens[i].text, scan->tokens[i].length);
        used += scan->tokens[i].length;
    }
    name[used] = '\0';
    return name;
}

/* First token of the qualified name that ends at `last`: a::b::last. */
static size_t name_start(const struct scan *scan, size_t last, size_t begin) {
    size_t from = last;
    while (from >= begin + 2 && is_punctuator(scan, from - 1, "::") && is_word(scan, from - 2) &&
           !is_word_of(scan, from - 2, "void")) {
        from -= 2;
    }
    return from;
}

static void params_free(struct backend_source_kernel *kernel) {
    for (size_t i = 0; i < kernel->param_count; i++) {
        free(kernel->param_names[i]);
    }
    free(kernel->param_names);
    kernel->param_names = NULL;
    kernel->param_count = 0;
}

static void param_add(struct scan *scan, struct backend_source_kernel *kernel, size_t name) {
    char **grown =
        realloc(kernel->param_names, (kernel->param_count + 1) * sizeof *kernel->param_names);
    if (grown == NULL) {
        scan->failed = true;
        return;
    }
    kernel->param_names = grown;
    char *text = NULL;
    if (name != SIZE_MAX) {
        text = name_make(scan, "", name, name + 1);
    } else {
        char number[24];
        size_t used = sizeof number, rest = kernel->param_count + 1;
        number[--used] = '\0';
        for (; rest > 0; rest /= 10) {
            number[--used] = (char)('0' + rest % 10);
        }
        number[--used] = 'p';
        text = strdup(number + used);
    }
    if (text == NULL) {
        scan->failed = true;
        return;
    }
    kernel->param_names[kernel->param_count++] = text;
}

/* The token that names the parameter declared by from..to; SIZE_MAX: it has no name. */
static size_t param_name(const struct scan *scan, size_t from, size_t to) {
    static const char *const qualifiers[] = {
        "const",         "volatile", "__restrict__", "__restrict", "restrict",          "struct",
        "class",         "enum",     "union",        "typename",   "__grid_constant__", "register",
        "__attribute__", "alignas",  "__align__",    NULL};
    static const char *const types[] = {"void",     "bool",    "char",    "short",    "int",
                                        "long",     "float",   "double",  "signed",   "unsigned",
                                        "auto",     "wchar_t", "char8_t", "char16_t", "char32_t",
                                        "__int128", NULL};
    size_t found = SIZE_MAX, type_words = 0;
    for (size_t i = from; i < to;) {
        if (is_punctuator(scan, i, "=")) {
            break;
        }
        if (is_punctuator(scan, i, "(") &&
            (is_punctuator(scan, i + 1, "*") || is_punctuator(scan, i + 1, "&"))) {
            size_t name = i + 2;
            while (is_word(scan, name) && token_in(&scan->tokens[name], qualifiers)) {
                name++;
            }
            return is_word(scan, name) ? name : SIZE_MAX; /* (*name)[3], (*name)(int) */
        }
        if (bracket_step(&scan->tokens[i]) > 0) {
            i = skip_group(scan, i);
            continue;
        }
        if (is_punctuator(scan, i, "<")) {
            i = skip_angles(scan, i, to);
            continue;
        }
        if (is_word(scan, i) && !token_in(&scan->tokens[i], qualifiers)) {
            bool is_type = token_in(&scan->tokens[i], types);
            bool qualified = i > from && is_punctuator(scan, i - 1, "::");
            found = !is_type && !qualified && type_words > 0 ? i : SIZE_MAX;
            type_words++;
        } else if (is_punctuator(scan, i, "*") || is_punctuator(scan, i, "&")) {
            found = SIZE_MAX;
        }
        i++;
    }
    return found;
}

/* Names of the parameters in the parentheses that open at `open`; `to` is behind them. */
static void params_read(struct scan *scan, size_t open, size_t to,
                        struct backend_source_kernel *kernel) {
    size_t from = open + 1, end = to > open + 1 ? to - 1 : open + 1;
    bool seen = false;
    for (size_t i = from; i <= end && !scan->failed;) {
        if (i == end || is_punctuator(scan, i, ",")) {
            bool is_void = i == from + 1 && is_word_of(scan, from, "void");
            if (seen && !is_void) {
                param_add(scan, kernel, param_name(scan, from, i));
            }
            seen = i < end; /* f(int, ) has no second one worth a name, f() none at all */
            from = i + 1;
            i++;
            continue;
        }
        seen = true;
        if (bracket_step(&scan->tokens[i]) > 0) {
            i = skip_group(scan, i);
        } else if (is_punctuator(scan, i, "<")) {
            i = skip_angles(scan, i, end);
        } else {
            i++;
        }
        i = i > end ? end : i;
    }
}

static void kernel_add(struct scan *scan, char *name, size_t open, size_t to, bool is_template,
                       bool is_definition) {
    struct backend_source_names *names = scan->names;
    for (size_t i = 0; i < names->kernel_count; i++) {
        struct backend_source_kernel *old = &names->kernels[i];
        if (strcmp(old->name, name) == 0) {
            free(name);
            /* A definition names its parameters better than what was declared before it. */
            if (is_definition && !old->is_template) {
                params_free(old);
                params_read(scan, open, to, old);
            }
            return;
        }
    }
    struct backend_source_kernel *grown =
        realloc(names->kernels, (names->kernel_count + 1) * sizeof *names->kernels);
    if (grown == NULL) {
        free(name);
        scan->failed = true;
        return;
    }
    names->kernels = grown;
    struct backend_source_kernel *kernel = &names->kernels[names->kernel_count++];
    *kernel = (struct backend_source_kernel){.name = name, .is_template = is_template};
    params_read(scan, open, to, kernel);
}

static void global_add(struct scan *scan, const char *prefix, size_t from, size_t to,
                       bool is_constant) {
    struct backend_source_names *names = scan->names;
    char *name = name_make(scan, prefix, from, to);
    for (size_t i = 0; name != NULL && i < names->global_count; i++) {
        if (strcmp(names->globals[i], name) == 0) {
            free(name);
            return;
        }
    }
    if (name == NULL) {
        return;
    }
    char **globals = realloc(names->globals, (names->global_count + 1) * sizeof *globals);
    if (globals != NULL) {
        names->globals = globals;
    }
    bool *constants =
        realloc(names->global_is_constant, (names->global_count + 1) * sizeof *constants);
    if (constants != NULL) {
        names->global_is_constant = constants;
    }
    if (globals == NULL || constants == NULL) {
        free(name);
        scan->failed = true;
        return;
    }
    globals[names->global_count] = name;
    constants[names->global_count++] = is_constant;
}

/* ---- declarations ---- */

/* Words that are followed by parentheses of their own, which are no parameter list. */
static bool is_attribute(const struct token *token) {
    static const char *const list[] = {"__launch_bounds__",
                                       "__cluster_dims__",
                                       "__block_size__",
                                       "__maxnreg__",
                                       "__align__",
                                       "__attribute__",
                                       "alignas",
                                       "decltype",
                                       "noexcept",
                                       "requires",
                                       "__declspec",
                                       "throw",
                                       "__builtin_align__",
                                       "explicit",
                                       "static_assert",
                                       "__nv_pure__",
                                       "typeof",
                                       "__typeof__",
                                       "sizeof",
                                       NULL};
    return token->words != 0 || token_in(token, list);
}

static bool is_class_word(const struct token *token) {
    static const char *const list[] = {"struct", "class", "union", "enum", NULL};
    return token_in(token, list);
}

/* One declaration while it is read: begin..end, end being its ; or the { of its body. */
struct declaration {
    size_t begin, end, behind;
    size_t open; /* ( of the last group that may be a parameter list, 0: none (a name is first) */
    unsigned words;
    bool is_template, is_definition, is_typedef, is_extern, has_value;
};

static void declaration_word(const struct scan *scan, size_t at, struct declaration *d) {
    const struct token *token = &scan->tokens[at];
    if (d->words == 0 && token->words != 0 && d->open != 0) {
        d->begin = at; /* what came before was a macro without a semicolon */
        d->open = 0;
    }
    d->words |= token->words;
    if (token_is(token, "typedef") || token_is(token, "using") || token_is(token, "friend")) {
        d->is_typedef = true;
    } else if (token_is(token, "extern") &&
               (at + 1 >= scan->token_count || scan->tokens[at + 1].kind != TOKEN_LITERAL)) {
        d->is_extern = true;
    }
}

/* Finds the end of the declaration that begins at `begin`, and what it is. Stops early, with
 * `behind` on it, where a namespace, a linkage block or the end of the enclosing scope begins:
 * macros without a semicolon may stand before these. */
static void declaration_read(const struct scan *scan, size_t begin, struct declaration *d) {
    *d = (struct declaration){.begin = begin};
    bool is_class = false, is_trailing = false;
    size_t i = begin;
    while (i < scan->token_count) {
        const struct token *token = &scan->tokens[i];
        if (is_punctuator(scan, i, ";") || is_punctuator(scan, i, "}")) {
            d->end = i;
            d->behind = token->text[0] == ';' ? i + 1 : i;
            return;
        }
        if (i > begin &&
            (is_word_of(scan, i, "namespace") ||
             (is_word_of(scan, i, "extern") && i + 2 < scan->token_count &&
              scan->tokens[i + 1].kind == TOKEN_LITERAL && is_punctuator(scan, i + 2, "{")))) {
            d->end = d->behind = i;
            d->is_typedef = d->is_typedef || d->open == 0;
            return;
        }
        if (is_word_of(scan, i, "template") && is_punctuator(scan, i + 1, "<")) {
            d->is_template = true;
            i = skip_angles(scan, i + 1, scan->token_count);
            continue;
        }
        if (token->kind == TOKEN_WORD) {
            declaration_word(scan, i, d);
            is_class = is_class || is_class_word(token);
        } else if (is_punctuator(scan, i, "=")) {
            d->has_value = true;
        } else if (is_punctuator(scan, i, "->")) {
            is_trailing = true;
        } else if (is_punctuator(scan, i, "{")) {
            bool is_body = d->open != 0 && !d->has_value;
            size_t behind = skip_group(scan, i);
            if (is_body) {
                d->end = i;
                d->behind = behind;
                d->is_definition = true;
                return;
            }
            d->has_value = d->has_value || !is_class; /* int x{3}; */
            is_class = false;
            i = behind;
            continue;
        } else if (is_punctuator(scan, i, "(") || is_punctuator(scan, i, "[")) {
            bool is_params = i > begin && token->text[0] == '(' && !d->has_value && !is_trailing &&
                             !is_punctuator(scan, i + 1, "*") &&
                             ((is_word(scan, i - 1) && !is_attribute(&scan->tokens[i - 1])) ||
                              is_punctuator(scan, i - 1, ">"));
            d->open = is_params ? i : d->open;
            i = skip_group(scan, i);
            continue;
        }
        i++;
    }
    d->end = d->behind = i;
}

static void kernel_read(struct scan *scan, const char *prefix, const struct declaration *d) {
    size_t last = d->open - 1;
    if (is_punctuator(scan, last, ">")) {
        /* f<float>( of a specialisation: back to the <. */
        size_t depth = 0;
        for (; last > d->begin; last--) {
            depth += is_punctuator(scan, last, ">") ? 1 : 0;
            if (is_punctuator(scan, last, "<") && --depth == 0) {
                break;
            }
        }
        last -= last > d->begin ? 1 : 0;
    }
    /* Two words in a row make a declaration; a macro that makes the name itself is not followed. */
    if (last <= d->begin || !is_word(scan, last)) {
        return;
    }
    char *name = name_make(scan, prefix, name_start(scan, last, d->begin), last + 1);
    if (name != NULL) {
        kernel_add(scan, name, d->open, skip_group(scan, d->open), d->is_template,
                   d->is_definition);
    }
}

/* Declarators of a variable, one after the other. */
static void globals_read(struct scan *scan, const char *prefix, const struct declaration *d) {
    size_t name = SIZE_MAX, words = 0;
    bool in_value = false, is_class = false;
    for (size_t i = d->begin; i <= d->end && !scan->failed;) {
        bool is_end = i == d->end;
        if (is_end || is_punctuator(scan, i, ",")) {
            if (name != SIZE_MAX && words > 0) {
                global_add(scan, prefix, name_start(scan, name, d->begin), name + 1,
                           (d->words & WORD_CONSTANT) != 0);
            }
            name = SIZE_MAX;
            in_value = false;
            words = 1; /* the type is known from here on */
            i++;
            continue;
        }
        if (is_punctuator(scan, i, "(") && is_punctuator(scan, i + 1, "*") && !in_value) {
            name = is_word(scan, i + 2) ? i + 2 : SIZE_MAX; /* float (*name)(float) */
            words++;
            in_value = true;
        }
        if (bracket_step(&scan->tokens[i]) > 0) {
            if (is_punctuator(scan, i, "{") && is_class) {
                is_class = false; /* struct S { ... } name: the body belongs to the type */
                name = SIZE_MAX;
                words = 1;
            } else {
                in_value = in_value || (!is_punctuator(scan, i, "(") && name != SIZE_MAX);
            }
            i = skip_group(scan, i);
            i = i > d->end ? d->end : i;
            continue;
        }
        if (is_punctuator(scan, i, "<") && !in_value) {
            i = skip_angles(scan, i, d->end);
            continue;
        }
        in_value = in_value || is_punctuator(scan, i, "=");
        if (is_word(scan, i) && !in_value && !is_attribute(&scan->tokens[i])) {
            words += name != SIZE_MAX ? 1 : 0;
            name = i;
            is_class = is_class || is_class_word(&scan->tokens[i]);
        }
        i++;
    }
}

/* ---- scopes ---- */

struct scope {
    char *prefix; /* owned: "a::b", "" at the top */
};

/* namespace a::b {, namespace {, inline namespace a {; `at` is on `namespace`. Returns what is
 * behind its {, or 0 where it is something else (an alias, `using namespace`). */
static size_t namespace_open(struct scan *scan, size_t at, const char *prefix, char **inner) {
    size_t from = at + 1, i = from;
    while (is_punctuator(scan, i, "[") || is_word_of(scan, i, "__attribute__")) {
        i = is_word(scan, i) ? i + 1 : skip_group(scan, i);
        if (is_punctuator(scan, i, "(")) {
            i = skip_group(scan, i);
        }
        from = i;
    }
    while (is_word(scan, i) || is_punctuator(scan, i, "::")) {
        i++;
    }
    if (!is_punctuator(scan, i, "{")) {
        return 0;
    }
    *inner = i > from ? name_make(scan, prefix, from, i) : strdup(prefix);
    if (*inner == NULL) {
        scan->failed = true;
    }
    return i + 1;
}

static void declarations_read(struct scan *scan) {
    struct scope *scopes = NULL; /* prefixes of the open blocks, outermost first */
    size_t depth = 0, capacity = 0;
    for (size_t i = 0; i < scan->token_count && !scan->failed;) {
        const char *prefix = depth > 0 ? scopes[depth - 1].prefix : "";
        const struct token *token = &scan->tokens[i];
        char *inner = NULL;
        size_t behind = 0;
        if (token->kind >= TOKEN_IF || is_punctuator(scan, i, ";")) {
            i++;
            continue;
        }
        if (is_punctuator(scan, i, "}")) {
            if (depth > 0) {
                free(scopes[--depth].prefix);
            }
            i++;
            continue;
        }
        if (is_word_of(scan, i, "inline") && is_word_of(scan, i + 1, "namespace")) {
            i++;
        }
        if (is_word_of(scan, i, "namespace")) {
            behind = namespace_open(scan, i, prefix, &inner);
        } else if (is_word_of(scan, i, "extern") && i + 2 < scan->token_count &&
                   scan->tokens[i + 1].kind == TOKEN_LITERAL && is_punctuator(scan, i + 2, "{")) {
            inner = strdup(prefix);
            scan->failed = inner == NULL;
            behind = i + 3;
        } else if (is_punctuator(scan, i, "{")) {
            behind = 0;
            i = skip_group(scan, i);
            continue;
        }
        if (behind != 0) {
            if (depth == capacity) {
                capacity = capacity ? capacity * 2 : 8;
                struct scope *grown = realloc(scopes, capacity * sizeof *scopes);
                scan->failed = scan->failed || grown == NULL;
                scopes = grown != NULL ? grown : scopes;
            }
            if (scan->failed) {
                free(inner);
                break;
            }
            scopes[depth++].prefix = inner;
            i = behind;
            continue;
        }
        struct declaration d;
        declaration_read(scan, i, &d);
        if (d.is_typedef) {
            /* nothing of ours */
        } else if ((d.words & WORD_GLOBAL) != 0 && d.open != 0) {
            kernel_read(scan, prefix, &d);
        } else if ((d.words & (WORD_DEVICE | WORD_CONSTANT)) != 0 && d.open == 0 &&
                   !d.is_template && (!d.is_extern || d.has_value)) {
            globals_read(scan, prefix, &d);
        }
        i = d.behind > i ? d.behind : i + 1;
    }
    while (depth > 0) {
        free(scopes[--depth].prefix);
    }
    free(scopes);
}

gpulua_status gpu_backend_source_scan(const char *text, struct backend_source_names *names) {
    *names = (struct backend_source_names){0};
    struct scan scan = {.text = splice(text), .names = names};
    scan.failed = scan.text == NULL;
    if (!scan.failed) {
        tokens_cut(&scan);
        tokens_drop_dead(&scan);
        declarations_read(&scan);
    }
    free(scan.tokens);
    free(scan.macros);
    free(scan.text);
    if (scan.failed) {
        gpu_backend_source_free(names);
        return GPULUA_OUT_OF_MEMORY;
    }
    return GPULUA_OK;
}

void gpu_backend_source_free(struct backend_source_names *names) {
    for (size_t i = 0; i < names->kernel_count; i++) {
        params_free(&names->kernels[i]);
        free(names->kernels[i].name);
    }
    for (size_t i = 0; i < names->global_count; i++) {
        free(names->globals[i]);
    }
    free(names->kernels);
    free(names->globals);
    free(names->global_is_constant);
    *names = (struct backend_source_names){0};
}
