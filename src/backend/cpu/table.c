/* What stands behind the text that is compiled: a table of its kernels and variables; and the
 * description that is made of the table once it is loaded. */
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/job.h"
#include "backend/cpu/messages.h"

void gpu_cpu_quoted_add(struct text *text, const char *string) {
    for (; *string != '\0'; string++) {
        if (*string == '"' || *string == '\\') {
            gpu_text_format(text, "\\%c", *string);
        } else if ((unsigned char)*string < ' ') {
            gpu_text_add(text, " ", 1);
        } else {
            gpu_text_add(text, string, 1);
        }
    }
}

/* The last name in a name expression, ns::f<int>: f. */
static const char *expression_base(const char *expression, size_t *length) {
    const char *end = expression + strcspn(expression, "<");
    while (end > expression && end[-1] == ' ') {
        end--;
    }
    const char *start = end;
    while (start > expression && strchr(" :&)(*", start[-1]) == NULL) {
        start--;
    }
    *length = (size_t)(end - start);
    return start;
}

/* An instance's text is that of one of the kernels called so; it gets what is right for each. */
static unsigned expression_flags(const struct cpu_source *source, const char *expression) {
    size_t length;
    const char *base = expression_base(expression, &length);
    const unsigned common = CPU_KERNEL_GUARD | CPU_KERNEL_MONOTONE; /* of all or of none */
    unsigned any = 0, all = common;
    bool is_known = false;
    for (size_t i = 0; i < source->kernel_count; i++) {
        const char *name = strrchr(source->kernels[i].name, ':');
        name = name != NULL ? name + 1 : source->kernels[i].name;
        if (strlen(name) == length && strncmp(name, base, length) == 0 &&
            source->kernels[i].is_definition) {
            any |= source->kernels[i].flags;
            all &= source->kernels[i].flags;
            is_known = true;
        }
    }
    if (!is_known) {
        return CPU_KERNEL_FIBRES;
    }
    return (any & ~common) | all;
}

/* A cast that picks an overload, (void (*)(int *))f, must name the hidden parameters too. */
static void expression_add(struct text *text, const char *expression, bool is_rewritten) {
    const char *cast = strstr(expression, "(*)(");
    const char *start = expression + strspn(expression, " ");
    if (cast == NULL || !is_rewritten) {
        gpu_text_format(text, "%s%s", *start == '&' || cast != NULL ? "" : "&", start);
        return;
    }
    const char *params = cast + 4;
    const char *first = params + strspn(params, " ");
    bool is_empty = *first == ')' || strncmp(first, "void)", 5) == 0;
    gpu_text_format(text, "%.*sGPULUA_HIDDEN_TYPES%s%s", (int)(params - expression), expression,
                    is_empty ? "" : ", ", is_empty ? strchr(first, ')') : params);
}

/* Is that the name of one kernel? Of several, and of a template, it takes an expression to say
 * which; NVRTC has them so, too. */
static bool is_listed(const struct cpu_source *source, const char *name) {
    size_t count = 0;
    for (size_t i = 0; i < source->kernel_count; i++) {
        const struct cpu_source_kernel *kernel = &source->kernels[i];
        count += !kernel->is_template && kernel->is_definition && strcmp(kernel->name, name) == 0;
    }
    return count == 1;
}

/* Messages about an expression then begin with SOURCE: name 'EXPRESSION', as those of NVRTC. */
static void expression_file_add(struct job *job, struct text *text, const char *expression) {
    gpu_text_format(text, "\n# 1 \"");
    gpu_cpu_quoted_add(text, job->source->name);
    gpu_text_format(text, CPU_EXPRESSION_FILE);
    gpu_cpu_quoted_add(text, expression);
    gpu_text_format(text, "'\"\n");
}

void gpu_cpu_expressions_add(struct job *job, struct text *text) {
    for (size_t i = 0; i < job->name_count; i++) {
        if (!is_listed(&job->rewritten, job->names[i])) {
            expression_file_add(job, text, job->names[i]);
            gpu_text_format(text, "static const auto gpulua_name_%zu = ", i);
            expression_add(text, job->names[i], false);
            gpu_text_format(text, ";\n");
        }
    }
}

static void param_names_add(struct text *text, const struct cpu_source_kernel *kernel) {
    gpu_text_format(text, "\"");
    for (size_t i = 0; kernel != NULL && i < kernel->param_count; i++) {
        gpu_text_format(text, "%s%s", i > 0 ? "," : "", kernel->param_names[i]);
    }
    gpu_text_format(text, "\"");
}

/* Which kernel's text an expression names, if that is certain. */
static const struct cpu_source_kernel *instance_of(const struct cpu_source *source,
                                                   const char *expression) {
    size_t length;
    const char *base = expression_base(expression, &length);
    const struct cpu_source_kernel *found = NULL;
    for (size_t i = 0; i < source->kernel_count; i++) {
        const char *name = strrchr(source->kernels[i].name, ':');
        name = name != NULL ? name + 1 : source->kernels[i].name;
        if (source->kernels[i].is_definition && strlen(name) == length &&
            strncmp(name, base, length) == 0) {
            if (found != NULL) {
                return NULL;
            }
            found = &source->kernels[i];
        }
    }
    return found;
}

size_t gpu_cpu_table_add(struct job *job, struct text *text) {
    const struct cpu_source *source = &job->rewritten;
    size_t kernel_count = 0;
    gpu_text_format(text, "\n# 1 \"" CPU_TABLE_FILE
                          "\"\nstatic const cpu_kernel_table gpulua_kernels[] = {");
    for (size_t i = 0; i < source->kernel_count; i++) {
        const struct cpu_source_kernel *kernel = &source->kernels[i];
        if (kernel->is_template || !kernel->is_definition || !is_listed(source, kernel->name)) {
            continue;
        }
        size_t prefix = strlen(kernel->name);
        while (prefix > 0 && kernel->name[prefix - 1] != ':') {
            prefix--;
        }
        gpu_text_format(
            text, "gpulua_kernel<static_cast<::%.*sgpulua_type_%u *>(&::%s), %u>(\"%s\", %s, ",
            (int)prefix, kernel->name, kernel->number, kernel->name, kernel->flags, kernel->name,
            kernel->bounds != NULL ? kernel->bounds : "0");
        param_names_add(text, kernel);
        gpu_text_format(text, ", {%s}), ", kernel->cluster != NULL ? kernel->cluster : "");
        kernel_count++;
    }
    for (size_t i = 0; i < job->name_count; i++) {
        if (is_listed(source, job->names[i])) {
            continue;
        }
        expression_file_add(job, text, job->names[i]);
        gpu_text_format(text, "gpulua_kernel<");
        expression_add(text, job->names[i], true);
        gpu_text_format(text, ", %u>(\"", expression_flags(source, job->names[i]));
        gpu_cpu_quoted_add(text, job->names[i]);
        gpu_text_format(text, "\", 0, ");
        param_names_add(text, instance_of(source, job->names[i]));
        gpu_text_format(text, "), ");
        kernel_count++;
    }
    gpu_text_format(text, "{}};\nstatic const cpu_global_table gpulua_globals[] = {");
    for (size_t i = 0; i < source->global_count; i++) {
        const struct cpu_source_global *global = &source->globals[i];
        gpu_text_format(text, "gpulua_global(\"%s\", &::%s, %s), ", global->name, global->name,
                        global->is_constant ? "true" : "false");
    }
    gpu_text_format(
        text,
        "{}};\nextern \"C\" {\n"
        "extern __attribute__((visibility(\"default\"))) const cpu_module_table gpulua_module;\n"
        "const cpu_module_table gpulua_module = {CPU_ABI_VERSION, %zu, %zu, GPULUA_CHECK_FLAG, "
        "gpulua_kernels, gpulua_globals};\n}\n",
        kernel_count, source->global_count);
    return kernel_count;
}

/* ---- the description ---- */

static void type_add(struct text *text, const struct cpu_type_facts *type) {
    if (type->element == NULL || type->kind == CPU_PARAM_OTHER) {
        /* "const char* gpulua_spelling() [with T = Foo]", or without `with` */
        const char *start = strstr(type->spelling, "T = ");
        start = start != NULL ? start + 4 : type->spelling;
        const char *end = strrchr(start, ']');
        gpu_text_format(text, "?%.*s/%u/%u", (int)(end != NULL ? end - start : 0), start,
                        type->bytes, type->alignment);
        return;
    }
    const char *way = type->kind == CPU_PARAM_IN      ? "in "
                      : type->kind == CPU_PARAM_INOUT ? "inout "
                                                      : "";
    gpu_text_format(text, "%s%s", way, type->element);
    if (type->lanes > 1) {
        gpu_text_format(text, "x%u", type->lanes);
    }
    gpu_text_format(text, "%s", type->kind == CPU_PARAM_SCALAR ? "" : "*");
}

static const struct cpu_source_kernel *kernel_of(const struct cpu_source *source, const char *name,
                                                 uint32_t param_count) {
    size_t length;
    const char *base = expression_base(name, &length);
    for (size_t i = 0; i < source->kernel_count; i++) {
        const struct cpu_source_kernel *kernel = &source->kernels[i];
        const char *own = strrchr(kernel->name, ':');
        own = own != NULL ? own + 1 : kernel->name;
        if (kernel->param_count == param_count && kernel->is_definition &&
            (strcmp(kernel->name, name) == 0 ||
             (strlen(own) == length && strncmp(own, base, length) == 0))) {
            return kernel;
        }
    }
    return NULL;
}

void gpu_cpu_describe(struct job *job, const struct cpu_module_table *table, struct text *text) {
    for (uint32_t i = 0; i < table->kernel_count; i++) {
        const struct cpu_kernel_table *kernel = &table->kernels[i];
        const struct cpu_source_kernel *named =
            kernel_of(&job->rewritten, kernel->name, kernel->param_count);
        gpu_text_format(text, "kernel %s", kernel->name);
        for (uint32_t k = 0; k < kernel->param_count; k++) {
            gpu_text_format(text, "%s ", k == 0 ? "" : ",");
            if (named != NULL && named->param_names[k][0] != '\0') {
                gpu_text_format(text, "%s: ", named->param_names[k]);
            } else {
                gpu_text_format(text, "p%u: ", k + 1);
            }
            type_add(text, &kernel->params[k]);
        }
        gpu_text_format(text, "\n");
    }
    for (uint32_t i = 0; i < table->global_count; i++) {
        const struct cpu_global_table *global = &table->globals[i];
        gpu_text_format(text, "global %s ", global->name);
        type_add(text, &global->type);
        gpu_text_format(text, " %lu %s\n", global->count,
                        global->is_constant ? "const" : "mutable");
    }
}
