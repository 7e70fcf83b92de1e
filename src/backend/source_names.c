/* The names that a source defines (see source_scan.h). */
#include <stdlib.h>
#include <string.h>

#include "backend/source_scan.h"

char *gpu_source_name_make(struct scan *scan, const char *prefix, size_t from, size_t to) {
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

size_t gpu_source_name_start(const struct scan *scan, size_t last, size_t begin) {
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
        text = gpu_source_name_make(scan, "", name, name + 1);
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
            while (is_word(scan, name) && gpu_source_token_in(&scan->tokens[name], qualifiers)) {
                name++;
            }
            return is_word(scan, name) ? name : SIZE_MAX; /* (*name)[3], (*name)(int) */
        }
        if (gpu_source_bracket_step(&scan->tokens[i]) > 0) {
            i = gpu_source_skip_group(scan, i);
            continue;
        }
        if (is_punctuator(scan, i, "<")) {
            i = gpu_source_skip_angles(scan, i, to);
            continue;
        }
        if (is_word(scan, i) && !gpu_source_token_in(&scan->tokens[i], qualifiers)) {
            bool is_type = gpu_source_token_in(&scan->tokens[i], types);
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
        if (gpu_source_bracket_step(&scan->tokens[i]) > 0) {
            i = gpu_source_skip_group(scan, i);
        } else if (is_punctuator(scan, i, "<")) {
            i = gpu_source_skip_angles(scan, i, end);
        } else {
            i++;
        }
        i = i > end ? end : i;
    }
}

void gpu_source_kernel_add(struct scan *scan, char *name, size_t open, size_t to, bool is_template,
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

void gpu_source_global_add(struct scan *scan, const char *prefix, size_t from, size_t to,
                           bool is_constant) {
    struct backend_source_names *names = scan->names;
    char *name = gpu_source_name_make(scan, prefix, from, to);
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
