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

#include "backend/source_scan.h"
#include "backend/text.h"

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
    return token->words != 0 || gpu_source_token_in(token, list);
}

static bool is_class_word(const struct token *token) {
    static const char *const list[] = {"struct", "class", "union", "enum", NULL};
    return gpu_source_token_in(token, list);
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
            i = gpu_source_skip_angles(scan, i + 1, scan->token_count);
            continue;
        }
        if (is_word_of(scan, i, "operator") && !d->has_value) {
            /* Its signs mean nothing here; behind them the parameters: operator()(..) the second.
             */
            i += is_punctuator(scan, i + 1, "(") ? 3 : 1;
            while (i < scan->token_count && !is_punctuator(scan, i, "(") &&
                   !is_punctuator(scan, i, ";") && !is_punctuator(scan, i, "{")) {
                i++;
            }
            if (is_punctuator(scan, i, "(")) {
                d->open = i;
                i = gpu_source_skip_group(scan, i);
            }
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
            size_t behind = gpu_source_skip_group(scan, i);
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
            i = gpu_source_skip_group(scan, i);
            continue;
        }
        i++;
    }
    d->end = d->behind = i;
}

static void entry_add(struct scan *scan, size_t behind, const struct token *name, bool is_body) {
    struct source_entry *grown =
        realloc(scan->entries, (scan->entry_count + 1) * sizeof *scan->entries);
    if (grown == NULL) {
        scan->failed = true;
        return;
    }
    const struct token *token = &scan->tokens[behind];
    scan->entries = grown;
    grown[scan->entry_count++] =
        (struct source_entry){.offset = (size_t)(token->text - scan->text) + token->length,
                              .name = name,
                              .is_body = is_body};
}

/* Is its last parameter a gpulua_ctx? Not where a conditional decides about its head: a name of the
 * other branch would be nobody's. */
static void entry_read(struct scan *scan, const struct declaration *d) {
    size_t close = gpu_source_skip_group(scan, d->open) - 1, type = 0;
    if (!d->is_definition || close <= d->open) {
        return;
    }
    for (size_t i = d->begin; i < d->end; i++) {
        if (scan->tokens[i].kind >= TOKEN_IF) {
            return;
        }
    }
    for (size_t i = d->open + 1; i < close; i++) {
        type = is_punctuator(scan, i, ",") ? 0 : is_word_of(scan, i, "gpulua_ctx") ? i : type;
        if (gpu_source_bracket_step(&scan->tokens[i]) > 0) {
            i = gpu_source_skip_group(scan, i) - 1;
        }
    }
    if (type == 0) {
        return;
    }
    size_t name = type + 1;
    while (is_word_of(scan, name, "const") || is_word_of(scan, name, "volatile")) {
        name++;
    }
    bool is_named = name < close && is_word(scan, name);
    if (name < close && !is_named) {
        return; /* a pointer, a reference, something else */
    }
    if (!is_named) {
        entry_add(scan, name - 1, NULL, false);
    }
    entry_add(scan, d->end, is_named ? &scan->tokens[name] : NULL, true);
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
    char *name =
        gpu_source_name_make(scan, prefix, gpu_source_name_start(scan, last, d->begin), last + 1);
    if (name != NULL) {
        gpu_source_kernel_add(scan, name, d->open, gpu_source_skip_group(scan, d->open),
                              d->is_template, d->is_definition);
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
                gpu_source_global_add(scan, prefix, gpu_source_name_start(scan, name, d->begin),
                                      name + 1, (d->words & WORD_CONSTANT) != 0);
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
        if (gpu_source_bracket_step(&scan->tokens[i]) > 0) {
            if (is_punctuator(scan, i, "{") && is_class) {
                is_class = false; /* struct S { ... } name: the body belongs to the type */
                name = SIZE_MAX;
                words = 1;
            } else {
                in_value = in_value || (!is_punctuator(scan, i, "(") && name != SIZE_MAX);
            }
            i = gpu_source_skip_group(scan, i);
            i = i > d->end ? d->end : i;
            continue;
        }
        if (is_punctuator(scan, i, "<") && !in_value) {
            i = gpu_source_skip_angles(scan, i, d->end);
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
        i = is_word(scan, i) ? i + 1 : gpu_source_skip_group(scan, i);
        if (is_punctuator(scan, i, "(")) {
            i = gpu_source_skip_group(scan, i);
        }
        from = i;
    }
    while (is_word(scan, i) || is_punctuator(scan, i, "::")) {
        i++;
    }
    if (!is_punctuator(scan, i, "{")) {
        return 0;
    }
    *inner = i > from ? gpu_source_name_make(scan, prefix, from, i) : strdup(prefix);
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
            i = gpu_source_skip_group(scan, i);
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
            entry_read(scan, &d);
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

static void scan_finish(struct scan *scan) {
    free(scan->entries);
    free(scan->tokens);
    free(scan->macros);
    free(scan->text);
    if (scan->failed) {
        gpu_backend_source_free(scan->names);
    }
}

gpulua_status gpu_backend_source_scan(const char *text, struct backend_source_names *names) {
    *names = (struct backend_source_names){0};
    struct scan scan = {.names = names};
    gpu_source_tokens_cut(&scan, text);
    if (!scan.failed) {
        declarations_read(&scan);
    }
    scan_finish(&scan);
    return scan.failed ? GPULUA_OUT_OF_MEMORY : GPULUA_OK;
}

/* ---- kernels that skip themselves ---- */

/* The end of a continued line, of which the scan's text has nothing. */
static size_t continuation_length(const char *at) {
    return at[0] != '\\' ? 0 : at[1] == '\n' ? 2 : at[1] == '\r' && at[2] == '\n' ? 3 : 0;
}

static void enter(const struct scan *scan, const char *text, struct text *out) {
    static const char unnamed[] = "gpulua_own_ctx";
    size_t offset = 0, next = 0;
    for (const char *at = text; *at != '\0';) {
        size_t length = continuation_length(at);
        gpu_text_add(out, at, length > 0 ? length : 1);
        offset += length == 0;
        at += length > 0 ? length : 1;
        if (length == 0 && next < scan->entry_count && offset == scan->entries[next].offset) {
            const struct source_entry *entry = &scan->entries[next++];
            const char *name = entry->name != NULL ? entry->name->text : unnamed;
            size_t chars = entry->name != NULL ? entry->name->length : strlen(unnamed);
            gpu_text_format(out, entry->is_body ? " if (gpulua_is_skipped(%.*s)) return;" : " %.*s",
                            (int)chars, name);
        }
    }
}

gpulua_status gpu_backend_source_enter(const char *text, char **entered) {
    *entered = NULL;
    if (strstr(text, "gpulua_ctx") == NULL || strstr(text, "gpulua_kernel.h") == NULL) {
        return GPULUA_OK; /* a type of the same name may be the source's own */
    }
    struct backend_source_names names = {0};
    struct scan scan = {.names = &names};
    struct text out = {0};
    gpu_source_tokens_cut(&scan, text);
    if (!scan.failed) {
        declarations_read(&scan);
    }
    if (!scan.failed && scan.entry_count > 0) {
        enter(&scan, text, &out);
        *entered = gpu_text_take(&out);
        scan.failed = *entered == NULL;
    }
    scan_finish(&scan);
    if (!scan.failed) {
        gpu_backend_source_free(&names);
    }
    return scan.failed ? GPULUA_OUT_OF_MEMORY : GPULUA_OK;
}
