/* The options of a compilation, as the script side writes them (backend.h). */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/job.h"

static bool list_add(char ***list, size_t *count, char *item) {
    char **grown = item != NULL ? realloc(*list, (*count + 2) * sizeof *grown) : NULL;
    if (grown == NULL) {
        free(item);
        return false;
    }
    *list = grown;
    grown[(*count)++] = item;
    grown[*count] = NULL;
    return true;
}

static void list_free(char **list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        free(list[i]);
    }
    free(list);
}

__attribute__((format(printf, 1, 2))) static char *text_of(const char *format, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    return length < 0 ? NULL : text;
}

static const char usual_standard[] = "-std=c++17";

/* Flags of NVRTC that mean something to a host compiler by another name, or nothing. */
static bool flag_add(struct job *job, const char *flag) {
    static const char *const meaningless[] = {"-use_fast_math",
                                              "-G",
                                              "-lineinfo",
                                              "-generate-line-info",
                                              "-device-debug",
                                              "-maxrregcount",
                                              "-arch",
                                              "-gpu-architecture",
                                              "-rdc",
                                              "-relocatable-device-code",
                                              "-extra-device-vectorization",
                                              "-dopt",
                                              "-ftz",
                                              "-prec-div",
                                              "-prec-sqrt",
                                              "-dlto",
                                              "-restrict",
                                              "-extended-lambda",
                                              "-w",
                                              "-disable-warnings",
                                              "-modify-stack-limit",
                                              "-ptxas-options",
                                              "-Xptxas",
                                              "-split-compile",
                                              "-minimal",
                                              "-device-int128",
                                              "-no-cache",
                                              "-no-source-include",
                                              "-optimization-info",
                                              "-builtin-move-forward",
                                              "-builtin-initializer-list",
                                              "-diag-error",
                                              "-diag-warn",
                                              "-diag-suppress",
                                              "-display-error-number",
                                              "-no-display-error-number",
                                              "-pch",
                                              "-create-pch",
                                              "-use-pch",
                                              "-pch-dir",
                                              "-pch-verbose",
                                              "-pch-messages",
                                              "-instantiate-templates-in-pch",
                                              NULL};
    static const struct {
        const char *name, *ours;
    } renamed[] = {{"-define-macro=", "-D"}, {"-undefine-macro=", "-U"}, {"-include-path=", "-I"}};
    const char *bare = flag[0] == '-' && flag[1] == '-' ? flag + 1 : flag;
    size_t length = strcspn(bare, "= ");
    if (strncmp(bare, "-std=", 5) == 0) {
        static const char *const old[] = {"-std=c++03", "-std=c++11", "-std=c++14", NULL};
        bool is_old = false; /* which the shim is not written in */
        for (size_t i = 0; old[i] != NULL; i++) {
            is_old = is_old || strcmp(bare, old[i]) == 0;
        }
        if (!is_old) {
            job->standard = strcmp(bare, usual_standard) == 0 ? usual_standard : bare;
        }
        return true;
    }
    if (strncmp(bare, "-fmad=", 6) == 0) {
        job->contract = strcmp(bare + 6, "false") == 0 ? "-ffp-contract=off" : "-ffp-contract=fast";
        return true;
    }
    if (strcmp(bare, "-default-device") == 0 ||
        strcmp(bare, "-device-as-default-execution-space") == 0) {
        job->is_device_default = true;
        return true;
    }
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++) {
        size_t bytes = strlen(renamed[i].name);
        if (strncmp(bare, renamed[i].name, bytes) == 0) {
            job->reads_files = job->reads_files || renamed[i].ours[1] == 'I';
            return list_add(&job->macros, &job->macro_count,
                            text_of("%s%s", renamed[i].ours, bare + bytes));
        }
    }
    const char *file = strncmp(bare, "-include=", 9) == 0        ? bare + 9
                       : strncmp(bare, "-pre-include=", 13) == 0 ? bare + 13
                                                                 : NULL;
    if (file != NULL) {
        job->reads_files = true;
        return list_add(&job->flags, &job->flag_count, text_of("-include%s", file));
    }
    if (bare[0] == '-' && bare[1] != '\0' && strchr("DUI", bare[1]) != NULL) {
        job->reads_files = job->reads_files || bare[1] == 'I';
        return list_add(&job->macros, &job->macro_count, text_of("%s", bare));
    }
    for (size_t i = 0; meaningless[i] != NULL; i++) {
        if (strlen(meaningless[i]) == length && strncmp(bare, meaningless[i], length) == 0) {
            return true;
        }
    }
    job->reads_files = true; /* -include, @file: who knows */
    return list_add(&job->flags, &job->flag_count, text_of("%s", flag));
}

static bool option_add(struct job *job, char *line) {
    char *rest = line + strcspn(line, " ");
    if (*rest != '\0') {
        *rest++ = '\0';
    }
    rest += strspn(rest, " ");
    if (strcmp(line, "define") == 0) {
        char *value = rest + strcspn(rest, " ");
        if (*value != '\0') {
            *value++ = '\0';
        }
        return list_add(&job->macros, &job->macro_count, text_of("-D%s=%s", rest, value));
    }
    if (strcmp(line, "include") == 0) {
        job->reads_files = true;
        return list_add(&job->macros, &job->macro_count, text_of("-I%s", rest));
    }
    if (strcmp(line, "name") == 0) {
        return list_add(&job->names, &job->name_count, text_of("%s", rest));
    }
    return strcmp(line, "flag") != 0 || flag_add(job, rest);
}

gpulua_status gpu_cpu_options_read(struct job *job) {
    job->standard = usual_standard;
    job->contract = "-ffp-contract=fast";
    char *copy = strdup(job->source->options != NULL ? job->source->options : "");
    bool ok = copy != NULL;
    char *state = NULL;
    for (char *line = ok ? strtok_r(copy, "\n", &state) : NULL; ok && line != NULL;
         line = strtok_r(NULL, "\n", &state)) {
        ok = option_add(job, line);
    }
    /* The copies outlive the loop in what was taken from them, but for these two. */
    if (ok && job->standard != usual_standard) {
        char *kept = strdup(job->standard);
        ok = list_add(&job->flags, &job->flag_count, kept);
        job->standard = kept;
    }
    free(copy);
    job->reads_files = job->reads_files || strstr(job->source->text, "include") != NULL;
    if (job->macro_count + job->flag_count > CPU_ARGUMENTS_MAX - 64) {
        return gpu_backend_fail(job->error, GPULUA_INVALID_ARGUMENT, 0,
                                "compiling '%.256s': too many options", job->source->name);
    }
    return ok ? GPULUA_OK : gpu_cpu_out_of_memory(job);
}

void gpu_cpu_job_finish(struct job *job) {
    if (job->shim_hold >= 0) {
        close(job->shim_hold);
    }
    if (job->has_own_folder) {
        gpu_cache_folder_drop(job->folder);
    }
    list_free(job->names, job->name_count);
    list_free(job->macros, job->macro_count);
    list_free(job->flags, job->flag_count);
    gpu_cpu_source_free(&job->rewritten);
}
