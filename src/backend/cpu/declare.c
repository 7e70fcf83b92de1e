/* Declarations of a source (see declare.h).
 *
 * A walk over namespace and class scope, one declaration after the other. A declaration that has a
 * parameter list and then a { is a function and ends with its }; a class body is walked like a
 * namespace; everything else ends with its semicolon. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/declare.h"

/* What the words of one declaration say. */
struct declaration {
    size_t begin, end; /* its ; or the } of its body */
    size_t name;       /* the word before the parameters; 0: none */
    size_t params_open;
    size_t body_open; /* of a function or a class; 0: none */
    size_t value;     /* the first = outside brackets; 0: none */
    bool is_kernel, is_device, is_constant, is_shared, is_const, is_extern, is_constexpr;
    bool is_template, is_instantiation, is_class, is_operator, is_typedef;
    bool is_enum, is_other; /* a static_assert, a class or an enum by itself, ... */
};

struct scope {
    char *prefix;             /* owned: "a::b::", "" at the top */
    struct declaration class; /* of a class scope: what its declarators belong to */
    bool is_class;
};

struct walk {
    struct cpu_tokens *tokens;
    struct cpu_declarations *found;
    struct scope *scopes; /* owned */
    size_t depth, capacity;
    bool failed;
};

static struct cpu_token *token_at(struct walk *w, size_t at) {
    size_t count = w->tokens->code_count;
    return &w->tokens->items[w->tokens->code[at < count ? at : count]];
}

static bool is_at(struct walk *w, size_t at, const char *text) {
    return gpu_cpu_token_is(token_at(w, at), text);
}

static bool is_in(struct walk *w, size_t at, const char *const *list) {
    for (; *list != NULL; list++) {
        if (is_at(w, at, *list)) {
            return true;
        }
    }
    return false;
}

static bool is_word_at(struct walk *w, size_t at) {
    return token_at(w, at)->kind == CPU_TOKEN_WORD;
}

/* Behind a bracket's partner, or behind the token. */
static size_t step(struct walk *w, size_t at) {
    size_t partner = token_at(w, at)->partner;
    return partner > at ? partner + 1 : at + 1;
}

/* Behind the > that closes the < at `at`; at + 1 if it seems to compare. */
static size_t skip_angles(struct walk *w, size_t at) {
    size_t depth = 0;
    for (size_t i = at; i < w->tokens->code_count; i = step(w, i)) {
        if (is_at(w, i, "<")) {
            depth++;
        } else if (is_at(w, i, ">") && --depth == 0) {
            return i + 1;
        } else if (is_at(w, i, ";") || is_at(w, i, "}")) {
            break;
        }
    }
    return at + 1;
}

static char *join(struct walk *w, const char *a, const char *b, const char *c) {
    size_t length = strlen(a) + strlen(b) + strlen(c) + 1;
    char *text = malloc(length);
    if (text == NULL) {
        w->failed = true;
        return NULL;
    }
    strcpy(text, a);
    strcat(text, b);
    strcat(text, c);
    return text;
}

static const char *prefix_of(const struct walk *w) {
    return w->depth > 0 ? w->scopes[w->depth - 1].prefix : "";
}

static const char *word_text(struct walk *w, size_t at) {
    unsigned word = token_at(w, at)->word;
    return word != 0 ? w->tokens->words[word - 1] : "";
}

static bool room_for(struct walk *w, void **array, size_t count, size_t item_bytes) {
    if (count != 0 && (count & (count - 1)) != 0) {
        return true;
    }
    void *grown = realloc(*array, (count == 0 ? 1 : 2 * count) * item_bytes);
    if (grown == NULL) {
        w->failed = true;
        return false;
    }
    *array = grown;
    return true;
}

/* ---- scopes ---- */

static void scope_push(struct walk *w, char *prefix, const struct declaration *class) {
    void *scopes = w->scopes;
    if (prefix == NULL || !room_for(w, &scopes, w->depth, sizeof *w->scopes)) {
        free(prefix);
        w->failed = true;
        return;
    }
    w->scopes = scopes;
    struct scope *scope = &w->scopes[w->depth++];
    memset(scope, 0, sizeof *scope);
    scope->prefix = prefix;
    if (class != NULL) {
        scope->class = *class;
        scope->is_class = true;
    }
}

/* `namespace a::b {` and `extern "C" {`: opens the scope and gives what is behind the {. 0: it is
 * something else. */
static size_t block_open(struct walk *w, size_t at) {
    size_t i = at;
    if (is_at(w, i, "extern") && token_at(w, i + 1)->kind == CPU_TOKEN_STRING &&
        is_at(w, i + 2, "{")) {
        scope_push(w, join(w, prefix_of(w), "", ""), NULL);
        return i + 3;
    }
    i += is_at(w, i, "inline");
    if (!is_at(w, i, "namespace")) {
        return 0;
    }
    char *prefix = join(w, prefix_of(w), "", "");
    for (i++; prefix != NULL && !is_at(w, i, "{"); i++) {
        if (i >= w->tokens->code_count || is_at(w, i, ";") || is_at(w, i, "=")) {
            free(prefix);
            return 0;
        }
        if (is_word_at(w, i) && !is_at(w, i, "inline")) {
            char *longer = join(w, prefix, word_text(w, i), "::");
            free(prefix);
            prefix = longer;
        }
    }
    scope_push(w, prefix, NULL);
    return i + 1;
}

/* ---- one declaration ---- */

static void word_note(struct walk *w, size_t at, struct declaration *d) {
    d->is_kernel = d->is_kernel || is_at(w, at, "__global__");
    d->is_device = d->is_device || is_at(w, at, "__device__") || is_at(w, at, "__managed__") ||
                   is_at(w, at, "__constant__");
    d->is_constant = d->is_constant || is_at(w, at, "__constant__");
    d->is_shared = d->is_shared || is_at(w, at, "__shared__");
    d->is_const = d->is_const || is_at(w, at, "const");
    d->is_extern = d->is_extern || is_at(w, at, "extern");
    d->is_constexpr = d->is_constexpr || is_at(w, at, "constexpr");
    d->is_typedef = d->is_typedef || is_at(w, at, "typedef") || is_at(w, at, "using");
    d->is_enum = d->is_enum || is_at(w, at, "enum");
    d->is_other = d->is_other || is_at(w, at, "static_assert") || is_at(w, at, "namespace") ||
                  is_at(w, at, "friend");
    d->is_operator = d->is_operator || is_at(w, at, "operator");
    d->is_class =
        d->is_class || is_at(w, at, "struct") || is_at(w, at, "class") || is_at(w, at, "union");
}

/* A ( behind a name; not that of an attribute, of alignas, decltype, __launch_bounds__, nor of a
 * pointer to a function. */
static bool is_parameter_list(struct walk *w, size_t begin, size_t at,
                              const struct declaration *d) {
    static const char *const takers[] = {"__launch_bounds__",
                                         "__attribute__",
                                         "__align__",
                                         "__builtin_align__",
                                         "alignas",
                                         "decltype",
                                         "__cluster_dims__",
                                         "__maxnreg__",
                                         "__block_size__",
                                         "noexcept",
                                         "explicit",
                                         "static_assert",
                                         "int",
                                         "void",
                                         "float",
                                         "double",
                                         "char",
                                         "short",
                                         "long",
                                         "unsigned",
                                         "signed",
                                         "bool",
                                         "const",
                                         "auto",
                                         NULL};
    if (at <= begin) {
        return false;
    }
    return d->is_operator || is_at(w, at - 1, ">") ||
           (is_word_at(w, at - 1) && !is_in(w, at - 1, takers));
}

/* Behind a constructor's parameters, : a(1), b{2} stands before the body. */
static bool is_initialiser(struct walk *w, size_t open, size_t colon) {
    if (colon == 0 || !(is_word_at(w, open - 1) || is_at(w, open - 1, ">"))) {
        return false;
    }
    size_t next = step(w, open);
    return is_at(w, next, ",") || is_at(w, next, "{");
}

/* Reads from `begin` to the declaration's end. */
static void declaration_read(struct walk *w, size_t begin, struct declaration *d) {
    memset(d, 0, sizeof *d);
    d->begin = begin;
    size_t i = begin, colon = 0;
    while (i < w->tokens->code_count) {
        if (is_at(w, i, "template")) {
            d->is_template = true;
            d->is_instantiation = !is_at(w, i + 1, "<");
            i = d->is_instantiation ? i + 1 : skip_angles(w, i + 1);
            continue;
        }
        if (is_at(w, i, ";") || is_at(w, i, "}")) {
            break;
        }
        if (is_word_at(w, i) && d->params_open == 0) {
            word_note(w, i, d);
        }
        if (is_at(w, i, "=") && d->value == 0 && !d->is_operator) {
            d->value = i;
        } else if (is_at(w, i, ":") && d->params_open != 0) {
            colon = i;
        } else if (is_at(w, i, "(") && d->params_open == 0 && d->value == 0 &&
                   is_parameter_list(w, begin, i, d)) {
            /* operator()(..): the second pair. */
            bool is_call = is_at(w, i - 1, "operator");
            i = is_call ? step(w, i) : i;
            d->params_open = i;
            size_t name = i - 1;
            if (is_at(w, name, ">")) { /* f<int>(..), a specialisation */
                size_t depth = 0;
                for (; name > begin; name--) {
                    depth += is_at(w, name, ">");
                    if (is_at(w, name, "<") && --depth == 0) {
                        name--;
                        break;
                    }
                }
                d->is_template = true;
            }
            d->name = name;
        } else if (is_at(w, i, "{")) {
            bool is_function = d->params_open != 0 && d->value == 0;
            if (is_function && is_initialiser(w, i, colon)) {
                i = step(w, i);
                continue;
            }
            if (is_function || (d->is_class && d->value == 0 && d->body_open == 0)) {
                d->body_open = i;
                d->is_class = !is_function;
                d->end = is_function ? step(w, i) - 1 : i;
                return;
            }
        } else if (is_at(w, i, "<") && d->value == 0 && i > begin && is_word_at(w, i - 1) &&
                   !is_at(w, i - 1, "operator")) {
            size_t next = skip_angles(w, i);
            i = next;
            continue;
        }
        i = step(w, i);
    }
    d->is_class = false;
    d->end = i;
}

/* ---- functions ---- */

/* The name that a parameter [from, to) declares; 0: none. */
static size_t param_name(struct walk *w, size_t from, size_t to) {
    static const char *const types[] = {
        "int",  "unsigned", "long",   "short",  "char",     "float",        "double",     "bool",
        "void", "const",    "signed", "size_t", "volatile", "__restrict__", "__restrict", NULL};
    size_t end = from;
    while (end < to && !is_at(w, end, "=") && !is_at(w, end, "[")) {
        end = step(w, end);
    }
    size_t last = end - 1;
    if (end < from + 2 || !is_word_at(w, last) || is_in(w, last, types) ||
        is_at(w, last - 1, "::") || is_at(w, last - 1, "struct") || is_at(w, last - 1, "enum")) {
        return 0;
    }
    return last;
}

static void params_read(struct walk *w, struct cpu_function *f) {
    if (f->params_close == f->params_open + 1 ||
        (f->params_close == f->params_open + 2 && is_at(w, f->params_open + 1, "void"))) {
        return;
    }
    size_t from = f->params_open + 1;
    for (size_t i = from; i <= f->params_close; i = step(w, i)) {
        if (is_at(w, i, "<") && i > from && is_word_at(w, i - 1)) {
            i = skip_angles(w, i) - 1;
            continue;
        }
        if (i < f->params_close && !is_at(w, i, ",")) {
            continue;
        }
        void *names = f->param_names;
        if (!room_for(w, &names, f->param_count, sizeof *f->param_names)) {
            return;
        }
        f->param_names = names;
        f->param_names[f->param_count++] = param_name(w, from, i);
        from = i + 1;
    }
}

static void function_add(struct walk *w, const struct declaration *d) {
    void *functions = w->found->functions;
    if (!room_for(w, &functions, w->found->function_count, sizeof *w->found->functions)) {
        return;
    }
    w->found->functions = functions;
    struct cpu_function *f = &w->found->functions[w->found->function_count];
    *f = (struct cpu_function){
        .qualified = join(w, prefix_of(w), word_text(w, d->name), ""),
        .begin = d->begin,
        .name = d->name,
        .params_open = d->params_open,
        .params_close = step(w, d->params_open) - 1,
        .is_kernel = d->is_kernel,
        .is_template = d->is_template,
        .is_operator = d->is_operator || (d->name > 0 && is_at(w, d->name - 1, "~")),
        .is_instantiation = d->is_instantiation,
        .is_for_device = d->is_kernel || d->is_device,
        .is_trivial = d->name > 0 && is_at(w, d->name - 1, "::"),
    };
    if (f->qualified == NULL) {
        return;
    }
    w->found->function_count++;
    f->body_open = d->body_open != 0 ? d->body_open : f->params_close;
    f->body_close = d->body_open != 0 ? d->end : f->params_close;
    for (size_t i = f->params_close; d->body_open == 0 && i < d->end; i++) {
        f->is_trivial = f->is_trivial || is_at(w, i, "default") || is_at(w, i, "delete");
    }
    if (f->is_kernel) {
        params_read(w, f);
    }
}

/* ---- variables ---- */

static void variable_add(struct walk *w, size_t name, const struct declaration *d) {
    void *variables = w->found->variables;
    if (!room_for(w, &variables, w->found->variable_count, sizeof *w->found->variables)) {
        return;
    }
    w->found->variables = variables;
    char *qualified = join(w, prefix_of(w), word_text(w, name), "");
    if (qualified == NULL) {
        return;
    }
    w->found->variables[w->found->variable_count++] =
        (struct cpu_variable){qualified, name, d->is_constant || d->is_const, d->is_device};
}

/* The name in (*name)(..), (*name[2])(..) or (&name)[3]; 0: that is something else. */
static size_t inner_name(struct walk *w, size_t open) {
    size_t i = open + 1;
    while (is_at(w, i, "*") || is_at(w, i, "&") || is_at(w, i, "const")) {
        i++;
    }
    return i > open + 1 && is_word_at(w, i) ? i : 0;
}

/* Declarators from `at` to the semicolon: the word before = [ { , or ; is a name. `struct X;` has
 * none. */
static void variables_read(struct walk *w, size_t at, const struct declaration *d) {
    static const char *const keys[] = {"struct", "class", "union", NULL};
    bool has_name = is_in(w, at, keys) && d->end == at + 2;
    for (size_t i = at; i <= d->end; i = step(w, i)) {
        if (is_at(w, i, "<") && i > at && is_word_at(w, i - 1) && !has_name) {
            i = skip_angles(w, i) - 1;
            continue;
        }
        size_t inner = is_at(w, i, "(") && !has_name ? inner_name(w, i) : 0;
        if (inner != 0) {
            variable_add(w, inner, d);
            has_name = true;
            continue;
        }
        bool is_end = i == d->end || is_at(w, i, ",");
        bool is_begin_of_value = is_at(w, i, "=") || is_at(w, i, "[") || is_at(w, i, "{");
        if ((is_end || is_begin_of_value) && !has_name && i > at && is_word_at(w, i - 1)) {
            variable_add(w, i - 1, d);
            has_name = true;
        }
        if (is_at(w, i, ",")) {
            has_name = false;
        }
    }
}

/* A variable's value may be a lambda that others call by the variable's name. */
static void value_add(struct walk *w, const struct declaration *d) {
    size_t name = d->value - 1;
    if (name <= d->begin || !is_word_at(w, name)) {
        return;
    }
    struct declaration f = *d;
    f.name = name;
    f.params_open = d->value;
    f.body_open = 0;
    function_add(w, &f);
    if (!w->failed) {
        struct cpu_function *added = &w->found->functions[w->found->function_count - 1];
        added->params_close = d->value;
        added->body_open = d->value;
        added->body_close = d->end;
        added->is_kernel = false;
        added->is_trivial = true;
    }
}

static void declaration_add(struct walk *w, const struct declaration *d) {
    bool is_in_class = w->depth > 0 && w->scopes[w->depth - 1].is_class;
    if (d->is_typedef) {
        return;
    }
    if (d->params_open != 0 && d->value == 0) {
        function_add(w, d);
        return;
    }
    if (d->value != 0) {
        value_add(w, d);
    }
    /* Constants that no kernel could see changed need no place in device memory. */
    bool is_variable = d->is_device || (!d->is_const && !d->is_enum);
    if (is_variable && !d->is_shared && !d->is_extern && !d->is_constexpr && !d->is_template &&
        !is_in_class && !d->is_other) {
        variables_read(w, d->begin, d);
    }
}

/* A } at namespace or class scope; gives what is behind it and, for a class, its declarators. */
static size_t scope_close(struct walk *w, size_t at) {
    if (w->depth == 0) {
        return at + 1;
    }
    struct scope scope = w->scopes[--w->depth];
    free(scope.prefix);
    if (!scope.is_class) {
        return at + 1;
    }
    struct declaration rest;
    declaration_read(w, at + 1, &rest);
    if (rest.body_open != 0) {
        return at + 1; /* no semicolon: not C++, go on somehow */
    }
    rest.is_device = scope.class.is_device;
    rest.is_constant = scope.class.is_constant;
    rest.is_const = scope.class.is_const;
    rest.is_shared = scope.class.is_shared;
    rest.is_extern = scope.class.is_extern;
    rest.is_constexpr = scope.class.is_constexpr;
    rest.is_typedef = scope.class.is_typedef;
    rest.is_template = scope.class.is_template;
    if (rest.end > at + 1) {
        rest.begin = at; /* the } stands for the type: a name has something before it */
        declaration_add(w, &rest);
    }
    return rest.end + 1;
}

static void class_open(struct walk *w, const struct declaration *d) {
    static const char *const keys[] = {"struct", "class", "union", NULL};
    const char *name = "";
    for (size_t i = d->begin; i < d->body_open; i++) {
        if (is_in(w, i, keys) && is_word_at(w, i + 1)) {
            name = word_text(w, i + 1);
        }
    }
    scope_push(w, join(w, prefix_of(w), name, "::"), d);
}

bool gpu_cpu_declarations_find(struct cpu_tokens *tokens, struct cpu_declarations *found) {
    struct walk walk = {.tokens = tokens, .found = found};
    struct walk *w = &walk;
    memset(found, 0, sizeof *found);
    for (size_t i = 0; i < tokens->code_count && !w->failed;) {
        size_t behind = block_open(w, i);
        if (behind != 0) {
            i = behind;
            continue;
        }
        if (is_at(w, i, "}")) {
            i = scope_close(w, i);
            continue;
        }
        bool is_label = is_at(w, i, "public") || is_at(w, i, "private") || is_at(w, i, "protected");
        if (is_at(w, i, ";") || (is_label && is_at(w, i + 1, ":"))) {
            i += is_label ? 2 : 1;
            continue;
        }
        struct declaration d;
        declaration_read(w, i, &d);
        if (d.is_class && d.body_open != 0) {
            class_open(w, &d);
            i = d.body_open + 1;
            continue;
        }
        declaration_add(w, &d);
        i = is_at(w, d.end, "}") && d.body_open == 0 ? d.end : d.end + 1;
    }
    while (w->depth > 0) {
        free(w->scopes[--w->depth].prefix);
    }
    free(w->scopes);
    return !w->failed && !tokens->failed;
}

void gpu_cpu_declarations_free(struct cpu_declarations *found) {
    for (size_t i = 0; i < found->function_count; i++) {
        free(found->functions[i].qualified);
        free(found->functions[i].param_names);
    }
    for (size_t i = 0; i < found->variable_count; i++) {
        free(found->variables[i].qualified);
    }
    free(found->functions);
    free(found->variables);
    memset(found, 0, sizeof *found);
}

size_t gpu_cpu_declarations_function(const struct cpu_declarations *found, size_t at) {
    for (size_t i = 0; i < found->function_count; i++) {
        const struct cpu_function *f = &found->functions[i];
        if (at > f->body_open && at < f->body_close) {
            return i;
        }
    }
    return SIZE_MAX;
}
