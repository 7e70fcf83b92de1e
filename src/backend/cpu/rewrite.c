/* The token pass over one source (see rewrite.h): its jobs, one after the other. declare.c
 * finds the functions. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/cpu/rewrite_pass.h"

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

/* `S::S(..)` in or behind its class, or in one of a template. */
static bool is_constructor(struct rewrite *r, const struct cpu_function *f) {
    if (f->name < 2 || is_at(r, f->params_open, "=")) {
        return false;
    }
    if (is_at(r, f->name - 1, "::")) {
        return is_at(r, f->name - 2, ">") ||
               token_at(r, f->name - 2)->word == token_at(r, f->name)->word;
    }
    const char *name = strrchr(f->qualified, ':');
    size_t length = name != NULL ? strlen(name + 1) : 0, front = strlen(f->qualified) - length;
    if (name == NULL || front < length + 2) {
        return false;
    }
    const char *scope = f->qualified + front - 2 - length;
    return strncmp(scope, name + 1, length) == 0 && (scope == f->qualified || scope[-1] == ':');
}

/* Called where its name does not stand: by an expression, a declaration, a loop over a range, or
 * with the members of a class whose values it is. */
static bool is_called_unnamed(struct rewrite *r, const struct cpu_function *f) {
    return f->is_operator || is_at(r, f->name, "begin") || is_at(r, f->name, "end") ||
           is_at(r, f->params_open, "=") || is_constructor(r, f);
}

/* Names of functions that mention a word of the set join it, until no more do. */
static void names_close(struct rewrite *r, struct reach *reach) {
    bool has_changed = true;
    while (has_changed) {
        has_changed = false;
        for (size_t i = 0; i < r->found.function_count; i++) {
            const struct cpu_function *f = &r->found.functions[i];
            unsigned name = token_at(r, f->name)->word;
            bool is_known = name == 0 || reach->words[name];
            if (f->is_kernel || (is_known && reach->all) ||
                !mentions(r, f->params_open, f->body_close, reach->words)) {
                continue;
            }
            reach->some = true;
            reach->all = reach->all || is_called_unnamed(r, f);
            if (!is_known && !f->is_operator) {
                reach->words[name] = true;
                has_changed = true;
            }
        }
    }
    /* Base classes, members' values, other names for types, tables of functions. */
    size_t behind = 0;
    for (size_t i = 0; i <= r->found.function_count && !reach->all; i++) {
        bool is_last = i == r->found.function_count;
        const struct cpu_function *f = is_last ? NULL : &r->found.functions[i];
        size_t begin = is_last ? r->tokens.code_count : f->begin;
        reach->all = begin > behind && mentions(r, behind, begin, reach->words);
        behind = !is_last && f->body_close + 1 > behind ? f->body_close + 1 : behind;
    }
}

static bool names_find(struct rewrite *r) {
    unsigned thread_index = gpu_cpu_tokens_word(&r->tokens, "threadIdx");
    for (size_t i = 0; waiting_words[i] != NULL; i++) {
        gpu_cpu_tokens_word(&r->tokens, waiting_words[i]);
    }
    size_t count = r->tokens.word_count + 1;
    r->waits.words = calloc(count, sizeof *r->waits.words);
    r->asks.words = calloc(count, sizeof *r->asks.words);
    if (r->waits.words == NULL || r->asks.words == NULL) {
        return false;
    }
    for (size_t i = 0; waiting_words[i] != NULL; i++) {
        r->waits.words[gpu_cpu_tokens_word(&r->tokens, waiting_words[i])] = true;
    }
    names_close(r, &r->waits);
    r->asks.words[thread_index] = true;
    names_close(r, &r->asks);
    r->asks.words[thread_index] = false; /* kernels are given it */
    return true;
}

/* Can a function come as an argument of the kernel's template? Types and numbers are none. */
static bool takes_functions(struct rewrite *r, const struct cpu_function *kernel) {
    static const char *const others[] = {"class",   "typename", "int",      "unsigned", "bool",
                                         "size_t",  "long",     "short",    "char",     "signed",
                                         "const",   "int8_t",   "int16_t",  "int32_t",  "int64_t",
                                         "uint8_t", "uint16_t", "uint32_t", "uint64_t", NULL};
    bool is_first = false;
    for (size_t i = kernel->begin; i < kernel->name; i++) {
        if (is_at(r, i, "(") && is_at(r, i + 1, "*")) {
            return true;
        }
        if (is_first && is_word_at(r, i) && !word_in(token_at(r, i), others)) {
            return true;
        }
        is_first = (is_at(r, i, "<") && is_at(r, i - 1, "template")) || is_at(r, i, ",");
    }
    return false;
}

static bool comes_to(struct rewrite *r, const struct cpu_function *kernel,
                     const struct reach *reach) {
    return reach->all || mentions(r, kernel->body_open, kernel->body_close, reach->words) ||
           (reach->some && kernel->is_template && takes_functions(r, kernel));
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
            } else if (is_at(r, i, "__cluster_dims__")) {
                kernel->cluster_from = open + 1;
                kernel->cluster_to = close;
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
        if (comes_to(r, f, &r->waits)) {
            f->flags |= CPU_KERNEL_FIBRES;
            r->source->has_fibres = true;
        } else {
            gpu_cpu_guards_rewrite(r, f);
        }
        if (comes_to(r, f, &r->asks)) {
            f->flags |= CPU_KERNEL_CONTEXT;
        }
        kernel_typedef(r, f, i);
    }
}

static void tokens_rewrite(struct rewrite *r) {
    gpu_cpu_hidden_rename(r);
    for (size_t i = 0; i < r->tokens.code_count; i++) {
        const struct cpu_token *token = token_at(r, i);
        gpu_cpu_construct_check(r, i);
        if (token->kind == CPU_TOKEN_SIGN) {
            if (*token->text == '/' || *token->text == '%') {
                gpu_cpu_division_guard(r, i);
            }
        } else if (token->kind == CPU_TOKEN_WORD) {
            gpu_cpu_index_rewrite(r, i);
        }
    }
    for (size_t i = 0; i < r->tokens.code_count; i++) {
        if (is_at(r, i, "__shared__") && token_at(r, i)->replaced == NULL) {
            gpu_cpu_shared_rewrite(r, i);
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
    if (f->cluster_to > f->cluster_from) {
        kernel->cluster = gpu_cpu_tokens_text(&r->tokens, r->tokens.code[f->cluster_from],
                                              r->tokens.code[f->cluster_to], true, false);
        ok = ok && kernel->cluster != NULL;
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
            gpu_cpu_annotations_check(r);
        }
        tokens_rewrite(r);
        kernels_rewrite(r);
        ok = !r->tokens.failed && results_export(r) && !r->tokens.failed;
    }
    free(r->refusals);
    free(r->kernel_of);
    free(r->waits.words);
    free(r->asks.words);
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
        free(kernel->cluster);
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
