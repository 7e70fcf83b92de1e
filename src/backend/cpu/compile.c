/* CUDA C to a shared object, with the machine's C++ compiler.
 *
 *   1. The compiler preprocesses the source; only the shim's headers and the user's are in reach,
 *      as with NVRTC.
 *   2. rewrite.c changes what C++ does not know, and lists kernels and variables.
 *   3. Behind the text comes a table of them, made of templates: so their types are the compiler's
 *      word, not ours. The compiler makes a shared object of all, behind the precompiled shim.
 *   4. The object is loaded once to read the table, which becomes the description.
 *   Where the compiler refuses 3, it reads the source once more as it was written, and what it says
 *   of that is the log (messages.h).
 *
 * The shim's headers (src/backend/cpu/shim/) are embedded in the library (shim.h) and written to a
 * folder of the cache, named by their content. Integer arithmetic is as in C++, floating point as
 * on the GPU: IEEE, with products fused into sums. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/cpu/compile.h"
#include "backend/cpu/messages.h"
#include "backend/cpu/module.h"
#include "backend/cpu/process.h"
#include "backend/cpu/rewrite.h"
#include "backend/text.h"

#define CACHE_SUFFIX "cpu"
#define ARGUMENTS_MAX 256
#define END_MARK "#pragma gpulua_end"

struct job {
    const struct backend_source *source;
    struct backend_error *error;
    struct cpu_compiler compiler;
    char cache_folder[CPU_PATH_BYTES];
    char shim_folder[CPU_PATH_BYTES];
    char **names; /* owned: name expressions */
    size_t name_count;
    char **macros; /* owned: -D, -U, -I, for preprocessing */
    size_t macro_count;
    char **flags; /* owned: other flags */
    size_t flag_count;
    const char *standard;             /* -std=... */
    const char *contract;             /* -ffp-contract=... */
    bool is_device_default;           /* -default-device */
    bool reads_files;                 /* the source includes something, or a flag may */
    char header[CPU_PATH_BYTES + 32]; /* the shim; "" until it was needed */
    char precompiled[CPU_PATH_BYTES + 256];
    bool has_precompiled;
    struct cpu_source rewritten;
};

/* ---- text ---- */

/* As a string literal's inside. */
static void text_add_quoted(struct text *text, const char *string) {
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

static gpulua_status out_of_memory(struct job *job) {
    return gpu_backend_fail(job->error, GPULUA_OUT_OF_MEMORY, 0, "no memory for compiling '%.256s'",
                            job->source->name);
}

/* ---- options ---- */

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
                                              NULL};
    const char *bare = flag[0] == '-' && flag[1] == '-' ? flag + 1 : flag;
    size_t length = strcspn(bare, "= ");
    if (strncmp(bare, "-std=", 5) == 0) {
        job->standard = bare;
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

static gpulua_status options_read(struct job *job) {
    job->standard = "-std=c++17";
    job->contract = "-ffp-contract=fast";
    char *copy = strdup(job->source->options != NULL ? job->source->options : "");
    bool ok = copy != NULL;
    char *state = NULL;
    for (char *line = ok ? strtok_r(copy, "\n", &state) : NULL; ok && line != NULL;
         line = strtok_r(NULL, "\n", &state)) {
        ok = option_add(job, line);
    }
    /* The copies outlive the loop in what was taken from them, but for these two. */
    if (ok && strcmp(job->standard, "-std=c++17") != 0) {
        char *kept = strdup(job->standard);
        ok = list_add(&job->flags, &job->flag_count, kept);
        job->standard = kept;
    }
    free(copy);
    job->reads_files = job->reads_files || strstr(job->source->text, "include") != NULL;
    if (job->macro_count + job->flag_count > ARGUMENTS_MAX - 64) {
        return gpu_backend_fail(job->error, GPULUA_INVALID_ARGUMENT, 0,
                                "compiling '%.256s': too many options", job->source->name);
    }
    return ok ? GPULUA_OK : out_of_memory(job);
}

static void expressions_add(struct job *job, struct text *text);

/* ---- running the compiler ---- */

/* The first error for the message, all in the log, which is taken over. */
static gpulua_status compile_failed(struct job *job, char *log) {
    if (log == NULL) {
        return out_of_memory(job);
    }
    size_t length;
    const char *line = gpu_cpu_messages_first(log, &length);
    gpu_backend_fail(job->error, GPULUA_COMPILE_FAILED, 0, "%.*s", (int)length, line);
    if (job->error != NULL) {
        job->error->log = log;
    } else {
        free(log);
    }
    return GPULUA_COMPILE_FAILED;
}

/* A log about the user's source, malloc'ed (see messages.h). */
static char *messages_translate(struct job *job, const char *log, bool is_rewritten,
                                const char *confirmed_by) {
    char folder[CPU_PATH_BYTES + 1];
    snprintf(folder, sizeof folder, "%s/", job->shim_folder);
    const struct cpu_messages_info info = {log, job->source->name, folder, is_rewritten,
                                           confirmed_by};
    return gpu_cpu_messages_translate(&info);
}

static gpulua_status not_run(struct job *job) {
    return gpu_backend_fail(job->error, GPULUA_LIBRARY_UNAVAILABLE, errno,
                            "C++ compiler '%.512s' cannot be run: %s", job->compiler.path,
                            strerror(errno));
}

struct arguments {
    char *list[ARGUMENTS_MAX];
    size_t count;
};

static void argument_add(struct arguments *arguments, const char *text) {
    /* posix_spawn takes char * and changes nothing. */
    if (arguments->count < ARGUMENTS_MAX - 1) {
        arguments->list[arguments->count++] = (char *)(uintptr_t)text;
        arguments->list[arguments->count] = NULL;
    }
}

/* No quotes of the source: gcc would read them from a file of the source's name, if there is one.
 */
static const char *caret_flag(const struct job *job) {
    return job->compiler.is_clang ? "-fno-caret-diagnostics" : "-fno-diagnostics-show-caret";
}

static void source_add(struct job *job, struct text *text) {
    gpu_text_format(text, "#line 1 \"");
    text_add_quoted(text, job->source->name);
    gpu_text_format(text, "\"\n%s\n", job->source->text);
}

/* The source with its macros expanded, malloc'ed. */
static gpulua_status preprocess(struct job *job, char **preprocessed) {
    struct arguments arguments = {.count = 0};
    char macros[CPU_PATH_BYTES + 32];
    snprintf(macros, sizeof macros, "%s/gpulua_macros.h", job->shim_folder);
    const char *const fixed[] = {job->compiler.path,
                                 "-E",
                                 "-x",
                                 "c++",
                                 job->standard,
                                 "-nostdinc",
                                 "-fno-diagnostics-color",
                                 caret_flag(job),
                                 "-include",
                                 macros,
                                 "-I",
                                 job->shim_folder};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        argument_add(&arguments, fixed[i]);
    }
    for (size_t i = 0; i < job->macro_count; i++) {
        argument_add(&arguments, job->macros[i]);
    }
    for (size_t i = 0; i < job->flag_count; i++) {
        argument_add(&arguments, job->flags[i]);
    }
    argument_add(&arguments, "-");
    struct text text = {0};
    source_add(job, &text);
    gpu_text_format(&text, END_MARK "\n");
    struct cpu_process process;
    if (text.failed || !gpu_cpu_process_run(arguments.list, text.bytes, text.length, &process)) {
        bool no_memory = text.failed;
        free(text.bytes);
        return no_memory ? out_of_memory(job) : not_run(job);
    }
    free(text.bytes);
    /* Where the exit code is unknown, the last line and the log tell. */
    char *end = strstr(process.output, END_MARK);
    if (process.exit_code > 0 || end == NULL ||
        (process.exit_code < 0 && strstr(process.log, "error") != NULL)) {
        char *log = messages_translate(job, process.log, false, NULL);
        gpu_cpu_process_free(&process);
        return compile_failed(job, log);
    }
    *end = '\0';
    free(process.log);
    *preprocessed = process.output;
    return GPULUA_OK;
}

/* Flags that the precompiled shim and the source must share. */
static void code_flags_add(struct job *job, struct arguments *arguments) {
    static const char *const common[] = {"-O3",
                                         "-fPIC",
                                         "-fvisibility=hidden",
                                         "-fno-exceptions",
                                         "-fno-rtti",
                                         "-fno-math-errno",
                                         "-fno-trapping-math",
                                         "-fno-strict-aliasing",
                                         "-fno-threadsafe-statics",
                                         "-fopenmp-simd",
                                         "-fno-semantic-interposition",
                                         "-fno-asynchronous-unwind-tables",
                                         "-nostdinc",
                                         "-fno-diagnostics-color",
                                         "-Wno-attributes",
                                         "-Wno-unknown-pragmas",
                                         "-Wno-overflow"};
    static const char *const gcc[] = {"-fno-gnu-unique", "-Wno-builtin-declaration-mismatch",
                                      "-Wno-psabi"};
    static const char *const clang[] = {"-fno-spell-checking", "-Wno-unused-value",
                                        "-Wno-return-type-c-linkage", "-Wno-pass-failed",
                                        "-Wno-unused-command-line-argument"};
    argument_add(arguments, job->standard);
    argument_add(arguments, job->contract);
    argument_add(arguments, caret_flag(job));
    for (size_t i = 0; i < sizeof common / sizeof *common; i++) {
        argument_add(arguments, common[i]);
    }
#if defined(__x86_64__)
    argument_add(arguments, "-march=native");
#else
    argument_add(arguments, "-mcpu=native");
#endif
    for (size_t i = 0; job->compiler.is_clang && i < sizeof clang / sizeof *clang; i++) {
        argument_add(arguments, clang[i]);
    }
    for (size_t i = 0; !job->compiler.is_clang && i < sizeof gcc / sizeof *gcc; i++) {
        argument_add(arguments, gcc[i]);
    }
    for (size_t i = 0; i < job->flag_count; i++) {
        argument_add(arguments, job->flags[i]);
    }
}

/* The precompiled shim for this compiler, made when it is not there. False: there is none, and the
 * plain header has to do; so it is for flags of the user's own, which could be any number. gcc
 * looks for it by itself in gpulua_cuda.h.gch/. */
static bool precompiled_make(struct job *job, char *path, size_t path_bytes) {
    struct arguments arguments = {.count = 0};
    char header[CPU_PATH_BYTES + 32], folder[CPU_PATH_BYTES + 64], making[CPU_PATH_BYTES + 128];
    char processor[8192];
    if (job->flag_count > 0) {
        return false;
    }
    snprintf(header, sizeof header, "%s/gpulua_cuda.h", job->shim_folder);
    snprintf(folder, sizeof folder, "%s.%s", header, job->compiler.is_clang ? "clang" : "gch");
    argument_add(&arguments, job->compiler.path);
    argument_add(&arguments, "-x");
    argument_add(&arguments, "c++-header");
    code_flags_add(job, &arguments);

    const void *parts[ARGUMENTS_MAX + 2];
    size_t bytes[ARGUMENTS_MAX + 2], count = 0;
    for (; count < arguments.count; count++) {
        parts[count] = arguments.list[count];
        bytes[count] = strlen(arguments.list[count]);
    }
    gpu_cpu_processor_identity(processor, sizeof processor);
    parts[count] = processor;
    bytes[count++] = strlen(processor);
    parts[count] = job->compiler.identity;
    bytes[count++] = strlen(job->compiler.identity);
    struct gpu_cache_key key;
    gpu_cache_key_init(&key, parts, bytes, count);
    if ((size_t)snprintf(path, path_bytes, "%s/%.32s", folder, key.hex) >= path_bytes ||
        (size_t)snprintf(making, sizeof making, "%s/.XXXXXX", job->shim_folder) >= sizeof making) {
        return false;
    }
    if (access(path, R_OK) == 0) {
        return true;
    }
    mkdir(folder, 0700);
    int file = mkstemp(making);
    if (file < 0) {
        return false;
    }
    close(file);
    argument_add(&arguments, "-o");
    argument_add(&arguments, making);
    argument_add(&arguments, header);
    struct cpu_process process;
    struct stat facts;
    bool ok = gpu_cpu_process_run(arguments.list, "", 0, &process);
    if (ok) {
        ok = process.exit_code <= 0 && stat(making, &facts) == 0 && facts.st_size > 0 &&
             rename(making, path) == 0;
        gpu_cpu_process_free(&process);
    }
    if (!ok) {
        unlink(making);
    }
    return ok;
}

static void *file_read(const char *path, size_t *byte_count) {
    FILE *file = fopen(path, "re");
    struct stat facts;
    void *bytes = NULL;
    if (file != NULL && fstat(fileno(file), &facts) == 0 && facts.st_size > 0) {
        *byte_count = (size_t)facts.st_size;
        bytes = malloc(*byte_count);
        if (bytes != NULL && fread(bytes, 1, *byte_count, file) != *byte_count) {
            free(bytes);
            bytes = NULL;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return bytes;
}

/* What begins every command that reads code behind the shim. */
static void shim_add(struct job *job, struct arguments *arguments) {
    if (job->header[0] == '\0') {
        snprintf(job->header, sizeof job->header, "%s/gpulua_cuda.h", job->shim_folder);
        job->has_precompiled = precompiled_make(job, job->precompiled, sizeof job->precompiled);
    }
    bool is_named = job->has_precompiled && job->compiler.is_clang;
    argument_add(arguments, job->compiler.path);
    argument_add(arguments, "-x");
    argument_add(arguments, "c++");
    code_flags_add(job, arguments);
    argument_add(arguments, is_named ? "-include-pch" : "-include");
    argument_add(arguments, is_named ? job->precompiled : job->header);
}

/* "-DNAME(x)=VALUE" as a line of the source: on the command line the shim would see it, too. */
static void macro_add(struct text *text, const char *flag) {
    const char *name = flag + 2;
    size_t length = strcspn(name, "=");
    if (flag[1] == 'U') {
        gpu_text_format(text, "#undef %s\n", name);
    } else {
        gpu_text_format(text, "#define %.*s %s\n", (int)length, name,
                        name[length] == '=' ? name + length + 1 : "1");
    }
}

/* What the compiler says of the source as it was written, malloc'ed. NULL: it could not be asked.
 */
static char *plain_log(struct job *job) {
    struct arguments arguments = {.count = 0};
    char macros[CPU_PATH_BYTES + 32], plain[CPU_PATH_BYTES + 32];
    snprintf(macros, sizeof macros, "%s/gpulua_macros.h", job->shim_folder);
    snprintf(plain, sizeof plain, "%s/gpulua_plain.h", job->shim_folder);
    shim_add(job, &arguments);
    const char *const last[] = {"-fsyntax-only", "-include", macros,          "-include",
                                plain,           "-I",       job->shim_folder};
    for (size_t i = 0; i < sizeof last / sizeof *last; i++) {
        argument_add(&arguments, last[i]);
    }
    struct text text = {0};
    for (size_t i = 0; i < job->macro_count; i++) {
        if (job->macros[i][1] == 'I') {
            argument_add(&arguments, job->macros[i]);
        } else {
            macro_add(&text, job->macros[i]);
        }
    }
    argument_add(&arguments, "-");
    source_add(job, &text);
    expressions_add(job, &text);
    struct cpu_process process;
    char *log = NULL;
    if (!text.failed && gpu_cpu_process_run(arguments.list, text.bytes, text.length, &process)) {
        log = process.log;
        free(process.output);
    }
    gpu_text_finish(&text);
    return log;
}

/* A log for the user, malloc'ed, from that of the rewritten text: where the source as written is
 * wrong on the same lines, what the compiler says of that; it has the user's columns and types. */
static char *log_choose(struct job *job, const char *rewritten) {
    char folder[CPU_PATH_BYTES + 1];
    snprintf(folder, sizeof folder, "%s/", job->shim_folder);
    const struct cpu_messages_info info = {rewritten, job->source->name, folder, true, NULL};
    char *plain = plain_log(job);
    /* Without a bracket the token pass, too, has read what was not meant. */
    bool is_reliable = gpu_cpu_messages_about_source(&info) && !job->rewritten.is_unbalanced;
    char *log = plain != NULL
                    ? messages_translate(job, plain, false, is_reliable ? rewritten : NULL)
                    : NULL;
    free(plain);
    if (log == NULL || !gpu_cpu_messages_failed(log)) {
        free(log);
        log = gpu_cpu_messages_translate(&info);
    }
    return log;
}

/* Text to a shared object. */
static gpulua_status compile(struct job *job, const struct text *text, void **code,
                             size_t *code_bytes) {
    struct arguments arguments = {.count = 0};
    char object[CPU_PATH_BYTES + 32], frame[64];
    snprintf(object, sizeof object, "%s/.new-XXXXXX", job->cache_folder);
    /* What one function may put on its stack; threads of blocks with barriers have small ones. */
    snprintf(frame, sizeof frame, "%s=%u",
             job->compiler.is_clang ? "-Wframe-larger-than" : "-Werror=frame-larger-than",
             job->rewritten.has_fibres ? 192u * 1024u : 3u * 1024u * 1024u);
    shim_add(job, &arguments);
    argument_add(&arguments, frame);
    if (job->compiler.is_clang) {
        argument_add(&arguments, "-Werror=frame-larger-than");
    }
    static const char *const link[] = {"-shared", "-nodefaultlibs", "-Wl,-z,defs", "-Wl,-Bsymbolic",
                                       "-o"};
    for (size_t i = 0; i < sizeof link / sizeof *link; i++) {
        argument_add(&arguments, link[i]);
    }
    int file = mkstemp(object);
    if (file < 0) {
        return gpu_backend_fail(job->error, GPULUA_IO, errno, "writing to '%.512s': %s",
                                job->cache_folder, strerror(errno));
    }
    close(file);
    argument_add(&arguments, object);
    static const char *const inputs[] = {"-", "-lm", "-lc", "-lgcc"};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        argument_add(&arguments, inputs[i]);
    }
    struct cpu_process process;
    if (!gpu_cpu_process_run(arguments.list, text->bytes, text->length, &process)) {
        gpulua_status status = not_run(job);
        unlink(object);
        return status;
    }
    /* A compiler that fails leaves nothing, and then there is nothing to read. */
    *code = process.exit_code > 0 ? NULL : file_read(object, code_bytes);
    unlink(object);
    gpulua_status status =
        *code != NULL ? GPULUA_OK : compile_failed(job, log_choose(job, process.log));
    gpu_cpu_process_free(&process);
    return status;
}

/* ---- the table behind the text ---- */

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

static bool is_listed(const struct cpu_source *source, const char *name) {
    for (size_t i = 0; i < source->kernel_count; i++) {
        const struct cpu_source_kernel *kernel = &source->kernels[i];
        if (!kernel->is_template && kernel->is_definition && strcmp(kernel->name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Messages about an expression then begin with SOURCE: name 'EXPRESSION', as those of NVRTC. */
static void expression_file_add(struct job *job, struct text *text, const char *expression) {
    gpu_text_format(text, "\n# 1 \"");
    text_add_quoted(text, job->source->name);
    gpu_text_format(text, CPU_EXPRESSION_FILE);
    text_add_quoted(text, expression);
    gpu_text_format(text, "'\"\n");
}

/* The name expressions behind the source as it was written. */
static void expressions_add(struct job *job, struct text *text) {
    for (size_t i = 0; i < job->name_count; i++) {
        if (!is_listed(&job->rewritten, job->names[i])) {
            expression_file_add(job, text, job->names[i]);
            gpu_text_format(text, "static const auto gpulua_name_%zu = ", i);
            expression_add(text, job->names[i], false);
            gpu_text_format(text, ";\n");
        }
    }
}

static void table_add(struct job *job, struct text *text) {
    const struct cpu_source *source = &job->rewritten;
    size_t kernel_count = 0;
    gpu_text_format(text, "\n# 1 \"" CPU_TABLE_FILE
                          "\"\nstatic const cpu_kernel_table gpulua_kernels[] = {");
    for (size_t i = 0; i < source->kernel_count; i++) {
        const struct cpu_source_kernel *kernel = &source->kernels[i];
        if (kernel->is_template || !kernel->is_definition) {
            continue;
        }
        size_t prefix = strlen(kernel->name);
        while (prefix > 0 && kernel->name[prefix - 1] != ':') {
            prefix--;
        }
        gpu_text_format(
            text, "gpulua_kernel<static_cast<::%.*sgpulua_type_%u *>(&::%s), %u>(\"%s\", %s), ",
            (int)prefix, kernel->name, kernel->number, kernel->name, kernel->flags, kernel->name,
            kernel->bounds != NULL ? kernel->bounds : "0");
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
        text_add_quoted(text, job->names[i]);
        gpu_text_format(text, "\", 0), ");
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
        "const cpu_module_table gpulua_module = {CPU_ABI_VERSION, %zu, %zu, gpulua_kernels, "
        "gpulua_globals};\n}\n",
        kernel_count, source->global_count);
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

static void describe(struct job *job, const struct cpu_module_table *table, struct text *text) {
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

/* ---- all of it ---- */

static void key_make(struct job *job, const char *preprocessed, struct gpu_cache_key *key) {
    char digest[17], processor[8192];
    gpu_cpu_shim_digest(digest);
    gpu_cpu_processor_identity(processor, sizeof processor);
    const char *const parts[] = {job->source->name,
                                 job->source->text,
                                 job->source->options,
                                 job->compiler.identity,
                                 processor,
                                 digest,
                                 preprocessed != NULL ? preprocessed : ""};
    const void *bytes[7];
    size_t lengths[7];
    for (size_t i = 0; i < 7; i++) {
        bytes[i] = parts[i] != NULL ? parts[i] : "";
        lengths[i] = strlen(bytes[i]);
    }
    gpu_cache_key_init(key, bytes, lengths, 7);
}

static bool cached(const char *cache_path, const struct gpu_cache_key *key, void **image,
                   size_t *image_bytes, char **description) {
    const char *text;
    const void *code;
    size_t code_bytes;
    if (!gpu_cache_get(cache_path, key, CACHE_SUFFIX, image, image_bytes)) {
        return false;
    }
    if (gpu_cpu_image_open(*image, *image_bytes, &text, &code, &code_bytes)) {
        *description = strdup(text);
        if (*description != NULL) {
            return true;
        }
    }
    free(*image);
    return false;
}

/* What a GPU's linker refuses is refused here. */
static gpulua_status shared_bytes_check(struct job *job, const void *code, size_t code_bytes,
                                        const struct cpu_module_table *table) {
    for (uint32_t i = 0; i < table->kernel_count; i++) {
        const char *name = table->kernels[i].name;
        uint32_t bytes = gpu_cpu_code_shared_bytes(code, code_bytes, name);
        if (bytes > CPU_SHARED_STATIC_BYTES_MAX) {
            char *log = text_of("%s: error: kernel '%s' has %u bytes of static shared memory, "
                                "allowed are %u; use extern __shared__ for more\n",
                                job->source->name, name, bytes, CPU_SHARED_STATIC_BYTES_MAX);
            return compile_failed(job, log);
        }
    }
    return GPULUA_OK;
}

/* Code, loaded once for its table, to an image and its description. */
static gpulua_status image_make(struct job *job, const void *code, size_t code_bytes, void **image,
                                size_t *image_bytes, char **description) {
    struct cpu_module module;
    gpulua_status status = gpu_cpu_code_open(code, code_bytes, &module, job->error);
    if (status != GPULUA_OK) {
        return status;
    }
    struct text text = {0};
    describe(job, module.table, &text);
    status = shared_bytes_check(job, code, code_bytes, module.table);
    gpu_cpu_code_close(&module);
    if (status != GPULUA_OK) {
        free(text.bytes);
        return status;
    }
    if (text.failed ||
        !gpu_cpu_image_make(gpu_text_get(&text), code, code_bytes, image, image_bytes)) {
        free(text.bytes);
        return out_of_memory(job);
    }
    *description = gpu_text_take(&text);
    return *description != NULL ? GPULUA_OK : out_of_memory(job);
}

/* Preprocessed text to an image. */
static gpulua_status build(struct job *job, const char *preprocessed, void **image,
                           size_t *image_bytes, char **description) {
    char prefix[CPU_PATH_BYTES + 1];
    snprintf(prefix, sizeof prefix, "%s/", job->shim_folder);
    const struct cpu_rewrite_info info = {preprocessed, prefix, job->compiler.is_clang,
                                          job->is_device_default};
    gpulua_status status = gpu_cpu_source_rewrite(&info, &job->rewritten);
    if (status != GPULUA_OK) {
        return out_of_memory(job);
    }
    if (job->rewritten.refusals != NULL) {
        const char *refusals = job->rewritten.refusals;
        return compile_failed(job, job->rewritten.is_unbalanced ? log_choose(job, refusals)
                                                                : strdup(refusals));
    }
    if (job->rewritten.kernel_count == 0 && job->rewritten.global_count == 0) {
        return gpu_backend_fail(job->error, GPULUA_INVALID_ARGUMENT, 0,
                                "'%.256s' defines no kernel (a function that is __global__) and no "
                                "variable in device memory",
                                job->source->name);
    }
    struct text text = {0};
    gpu_text_format(&text, "%s", job->rewritten.text);
    table_add(job, &text);
    void *code = NULL;
    size_t code_bytes = 0;
    status = text.failed ? out_of_memory(job) : compile(job, &text, &code, &code_bytes);
    free(text.bytes);
    if (status == GPULUA_OK) {
        status = image_make(job, code, code_bytes, image, image_bytes, description);
        free(code);
    }
    return status;
}

static gpulua_status job_run(struct job *job, const char *cache_path, void **image,
                             size_t *image_bytes, char **description) {
    struct gpu_cache_key key;
    gpulua_status status = options_read(job);
    status = status ? status : gpu_cpu_compiler_find(&job->compiler, job->error);
    if (status != GPULUA_OK) {
        return status;
    }
    /* What is included is part of the key, so then the cache is asked behind the preprocessor. */
    key_make(job, NULL, &key);
    if (!job->reads_files && cached(cache_path, &key, image, image_bytes, description)) {
        return GPULUA_OK;
    }
    if (!gpu_cache_folder(cache_path, job->cache_folder, sizeof job->cache_folder)) {
        return gpu_backend_fail(job->error, GPULUA_IO, 0,
                                "there is no folder for compiled code: set GPULUA_CACHE to one");
    }
    char *preprocessed = NULL;
    status = gpu_cpu_compiler_ask(&job->compiler, job->error);
    status = status ? status
                    : gpu_cpu_shim_folder(job->cache_folder, job->shim_folder,
                                          sizeof job->shim_folder, job->error);
    status = status ? status : preprocess(job, &preprocessed);
    if (status != GPULUA_OK) {
        return status;
    }
    if (job->reads_files) {
        key_make(job, preprocessed, &key);
    }
    if (!job->reads_files || !cached(cache_path, &key, image, image_bytes, description)) {
        status = build(job, preprocessed, image, image_bytes, description);
        if (status == GPULUA_OK) {
            gpu_cache_put(cache_path, &key, CACHE_SUFFIX, *image, *image_bytes);
        }
    }
    free(preprocessed);
    return status;
}

gpulua_status gpu_cpu_module_compile(const char *cache_path, const struct backend_source *source,
                                     void **image, size_t *image_bytes, char **description,
                                     struct backend_error *error) {
    struct job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no memory for compiling");
    }
    job->source = source;
    job->error = error;
    gpulua_status status = job_run(job, cache_path, image, image_bytes, description);
    list_free(job->names, job->name_count);
    list_free(job->macros, job->macro_count);
    list_free(job->flags, job->flag_count);
    gpu_cpu_source_free(&job->rewritten);
    free(job);
    return status;
}
