/* The compiler's commands: preprocessing, the precompiled shim, compiling, and asking it about the
 * source as it was written. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/cache.h"
#include "backend/cpu/fibre.h"
#include "backend/cpu/job.h"
#include "backend/cpu/messages.h"
#include "backend/cpu/process.h"

#define END_MARK "#pragma gpulua_end"

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
    char *list[CPU_ARGUMENTS_MAX];
    size_t count;
};

static void argument_add(struct arguments *arguments, const char *text) {
    /* posix_spawn takes char * and changes nothing. */
    if (arguments->count < CPU_ARGUMENTS_MAX - 1) {
        arguments->list[arguments->count++] = (char *)(uintptr_t)text;
        arguments->list[arguments->count] = NULL;
    }
}

static void arguments_add(struct arguments *arguments, const char *const *texts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        argument_add(arguments, texts[i]);
    }
}

/* No quotes of the source: gcc would read them from a file of the source's name, if there is one.
 */
static const char *caret_flag(const struct job *job) {
    return job->compiler.is_clang ? "-fno-caret-diagnostics" : "-fno-diagnostics-show-caret";
}

static void source_add(struct job *job, struct text *text) {
    gpu_text_format(text, "#line 1 \"");
    gpu_cpu_quoted_add(text, job->source->name);
    gpu_text_format(text, "\"\n%s\n", job->source->text);
}

gpulua_status gpu_cpu_preprocess(struct job *job, char **preprocessed) {
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
    if (job->is_checked) { /* gpulua_kernel.h wants to know */
        argument_add(&arguments, "-DGPULUA_CHECKED");
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
        return no_memory ? gpu_cpu_out_of_memory(job) : not_run(job);
    }
    free(text.bytes);
    /* Where the exit code is unknown, the last line and the log tell. */
    char *end = strstr(process.output, END_MARK);
    if (process.exit_code > 0 || end == NULL ||
        (process.exit_code < 0 && strstr(process.log, "error") != NULL)) {
        char *log = messages_translate(job, process.log, false, NULL);
        gpu_cpu_process_free(&process);
        return gpu_cpu_compile_failed(job, log);
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
    /* Each access by itself and in the open: no vectors, and memory functions as calls. Its line
     * is found by tables of lines and of what was inlined (lines.h), and by frames. */
    static const char *const checked[] = {"-O2",
                                          "-DGPULUA_CHECKED",
                                          "-fsanitize=thread",
                                          "-fsanitize=alignment",
                                          "-fno-builtin-memcpy",
                                          "-fno-builtin-memset",
                                          "-fno-builtin-memmove",
                                          "-fno-omit-frame-pointer",
                                          "-g1"};
    /* gcc would also make one access of several branches', with the line of one of them. */
    static const char *const gcc_checked[] = {
        "-fno-tree-vectorize", "-fno-hoist-adjacent-loads",
        "-fno-code-hoisting",  "-fno-tree-sink",
        "-fno-tree-cselim",    "-fno-tree-tail-merge",
        "-fno-crossjumping",   "--param=tsan-distinguish-volatile=1"};
    static const char *const clang_checked[] = {"-fdebug-compilation-dir",
                                                "/gpulua", /* which no file's name begins with */
                                                "-fno-vectorize",
                                                "-fno-slp-vectorize",
                                                "-mllvm",
                                                "-tsan-distinguish-volatile=1",
                                                "-mllvm",
                                                "-tsan-instrument-read-before-write=1"};
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
    arguments_add(arguments, checked, job->is_checked ? sizeof checked / sizeof *checked : 0);
    if (job->is_checked && job->compiler.is_clang) {
        arguments_add(arguments, clang_checked, sizeof clang_checked / sizeof *clang_checked);
    } else if (job->is_checked) {
        arguments_add(arguments, gcc_checked, sizeof gcc_checked / sizeof *gcc_checked);
    }
    for (size_t i = 0; i < job->flag_count; i++) {
        argument_add(arguments, job->flags[i]);
    }
}

void gpu_cpu_flags_add(struct job *job, struct text *text) {
    struct arguments arguments = {.count = 0};
    bool is_clang = job->compiler.is_clang;
    for (int i = 0; i < 2; i++) {
        job->compiler.is_clang = i != 0;
        code_flags_add(job, &arguments);
    }
    job->compiler.is_clang = is_clang;
    for (size_t i = 0; i < arguments.count; i++) {
        gpu_text_format(text, "%s\n", arguments.list[i]);
    }
}

/* Is the file there, and does it begin with these four? */
static bool begins_with(const char *path, const char *wanted) {
    char begin[4] = "";
    FILE *file = fopen(path, "re");
    bool is_it = file != NULL && fread(begin, sizeof begin, 1, file) == 1 &&
                 memcmp(begin, wanted, sizeof begin) == 0;
    if (file != NULL) {
        fclose(file);
    }
    return is_it;
}

/* Of the hooks, too, whose name begins as its own does. Or it crashed, for which that may be the
 * reason. */
static bool blames_precompiled(const struct job *job, const char *log) {
    const char *const words[] = {strrchr(job->precompiled, '/') + 1, "PCH file", "AST file",
                                 "internal compiler error", "PLEASE submit a bug report"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strstr(log, words[i]) != NULL) {
            return true;
        }
    }
    return false;
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

#define SEAL_BYTES 32

static void seal_of(const void *bytes, size_t byte_count, char seal[SEAL_BYTES + 1]) {
    struct gpu_cache_key key;
    gpu_cache_key_init(&key, &bytes, &byte_count, 1);
    snprintf(seal, SEAL_BYTES + 1, "%.32s", key.hex);
}

/* Behind an object, where no linker looks: what it was when it was made. A linker would take one
 * with a hole in its code as it is. */
static bool seal(const char *path) {
    char text[SEAL_BYTES + 1];
    size_t byte_count;
    void *bytes = file_read(path, &byte_count);
    FILE *file = bytes != NULL ? fopen(path, "ae") : NULL;
    bool ok = file != NULL;
    if (ok) {
        seal_of(bytes, byte_count, text);
        ok = fwrite(text, 1, SEAL_BYTES, file) == SEAL_BYTES;
        ok = fclose(file) == 0 && ok;
    }
    free(bytes);
    return ok;
}

static bool is_sealed(const char *path) {
    char text[SEAL_BYTES + 1];
    size_t byte_count;
    char *bytes = file_read(path, &byte_count);
    bool is_it = bytes != NULL && byte_count > SEAL_BYTES;
    if (is_it) {
        seal_of(bytes, byte_count - SEAL_BYTES, text);
        is_it = memcmp(bytes + byte_count - SEAL_BYTES, text, SEAL_BYTES) == 0;
    }
    free(bytes);
    return is_it;
}

/* Has the compiler make a file in the shim's folder of a header, by arguments that lack the two; an
 * object is sealed. */
static bool header_compile(struct job *job, struct arguments *arguments, const char *header,
                           const char *path, bool is_object) {
    char making[CPU_PATH_BYTES + 128];
    if ((size_t)snprintf(making, sizeof making, "%s/" CACHE_TEMPORARY_PREFIX "XXXXXX",
                         job->shim_folder) >= sizeof making) {
        return false;
    }
    int file = mkstemp(making);
    if (file < 0) {
        return false;
    }
    close(file);
    argument_add(arguments, "-o");
    argument_add(arguments, making);
    argument_add(arguments, header);
    struct cpu_process process;
    struct stat facts;
    bool ok = gpu_cpu_process_run(arguments->list, "", 0, &process);
    if (ok) {
        ok = process.exit_code <= 0 && stat(making, &facts) == 0 && facts.st_size > 0 &&
             (!is_object || seal(making)) && rename(making, path) == 0;
        gpu_cpu_process_free(&process);
    }
    if (!ok) {
        unlink(making);
    }
    return ok;
}

/* The precompiled shim for this compiler, made when it is not there. False: there is none, and the
 * plain header has to do; so it is for flags of the user's own, which could be any number, and
 * where nobody else would find it. gcc
 * looks for it by itself in gpulua_cuda.h.gch/. */
static bool precompiled_make(struct job *job, char *path, size_t path_bytes) {
    struct arguments arguments = {.count = 0};
    char header[CPU_PATH_BYTES + 32], folder[CPU_PATH_BYTES + 64], processor[8192];
    if (job->flag_count > 0 || job->has_own_folder) {
        return false;
    }
    snprintf(header, sizeof header, "%s/gpulua_cuda.h", job->shim_folder);
    snprintf(folder, sizeof folder, "%s.%s", header, job->compiler.is_clang ? "clang" : "gch");
    argument_add(&arguments, job->compiler.path);
    argument_add(&arguments, "-x");
    argument_add(&arguments, "c++-header");
    code_flags_add(job, &arguments);

    const void *parts[CPU_ARGUMENTS_MAX + 2];
    size_t bytes[CPU_ARGUMENTS_MAX + 2], count = 0;
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
    if ((size_t)snprintf(path, path_bytes, "%s/%.32s", folder, key.hex) >= path_bytes) {
        return false;
    }
    /* gcc passes over one that does not begin so, and takes its time. */
    if (begins_with(path, job->compiler.is_clang ? "CPCH" : "gpch")) {
        return true;
    }
    mkdir(folder, 0700);
    return header_compile(job, &arguments, header, path, false);
}

/* What begins every command that reads code behind the shim. */
static void shim_add(struct job *job, struct arguments *arguments) {
    if (job->header[0] == '\0') {
        snprintf(job->header, sizeof job->header, "%s/gpulua_cuda.h", job->shim_folder);
        job->has_precompiled = precompiled_make(job, job->precompiled, sizeof job->precompiled);
        job->hooks[0] = '\0';
    }
    bool is_named = job->has_precompiled && job->compiler.is_clang;
    argument_add(arguments, job->compiler.path);
    argument_add(arguments, "-x");
    argument_add(arguments, "c++");
    code_flags_add(job, arguments);
    argument_add(arguments, is_named ? "-include-pch" : "-include");
    argument_add(arguments, is_named ? job->precompiled : job->header);
}

/* What check mode's code calls: an object beside the precompiled shim, because compiling that takes
 * longer than most kernels; where there is none, it is compiled with the kernel. */
static void hooks_add(struct job *job, struct arguments *arguments) {
    char header[CPU_PATH_BYTES + 32];
    snprintf(header, sizeof header, "%s/gpulua_hooks.h", job->shim_folder);
    if (job->has_precompiled && job->hooks[0] == '\0') {
        struct arguments making = {.count = 0};
        snprintf(job->hooks, sizeof job->hooks, "%s.o", job->precompiled);
        shim_add(job, &making);
        argument_add(&making, "-c");
        if (!is_sealed(job->hooks) && !header_compile(job, &making, header, job->hooks, true)) {
            job->hooks[0] = '\0';
        }
    }
    if (job->hooks[0] == '\0') {
        argument_add(arguments, "-include");
        argument_add(arguments, header);
    }
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
    gpu_cpu_expressions_add(job, &text);
    struct cpu_process process;
    char *log = NULL;
    if (!text.failed && gpu_cpu_process_run(arguments.list, text.bytes, text.length, &process)) {
        log = process.log;
        free(process.output);
    }
    gpu_text_finish(&text);
    return log;
}

char *gpu_cpu_log_choose(struct job *job, const char *rewritten) {
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
    if (log != NULL && !gpu_cpu_messages_failed(log)) { /* it is not about the source at all */
        free(log);
        log = strdup(rewritten);
    }
    return log;
}

static gpulua_status code_make(struct job *job, const struct text *text, bool is_watched,
                               void **code, size_t *code_bytes, char **log) {
    struct arguments arguments = {.count = 0};
    char object[CPU_PATH_BYTES + 32], frame[64], shim[CPU_PATH_BYTES + 64];
    snprintf(object, sizeof object, "%s/.new-XXXXXX", job->folder);
    /* What one function may put on its stack. Up to a quarter of it, frames that are more together
     * are left to the canary (fibre.h); larger ones each have a look at the room there is. */
    uint32_t stack_bytes = job->rewritten.has_fibres ? CPU_STACK_BYTES : CPU_SERIAL_STACK_BYTES;
    snprintf(frame, sizeof frame, "%s=%u",
             job->compiler.is_clang ? "-Wframe-larger-than" : "-Werror=frame-larger-than",
             is_watched ? stack_bytes / 4 * 3 : stack_bytes / 4);
    shim_add(job, &arguments);
    if (job->is_checked) {
        hooks_add(job, &arguments);
    }
    argument_add(&arguments, frame);
    if (job->compiler.is_clang) {
        argument_add(&arguments, "-Werror=frame-larger-than");
    }
    if (is_watched) {
        snprintf(shim, sizeof shim, "-finstrument-functions-exclude-file-list=%s",
                 job->shim_folder);
        argument_add(&arguments, job->compiler.is_clang ? "-finstrument-functions-after-inlining"
                                                        : "-finstrument-functions");
        if (!job->compiler.is_clang) {
            argument_add(&arguments, shim);
        }
        argument_add(&arguments, "-include");
        argument_add(&arguments, "gpulua_stack.h");
        argument_add(&arguments, "-I");
        argument_add(&arguments, job->shim_folder);
    }
    static const char *const link[] = {"-shared", "-nodefaultlibs", "-Wl,-z,defs", "-Wl,-Bsymbolic",
                                       "-o"};
    arguments_add(&arguments, link, sizeof link / sizeof *link);
    int file = mkstemp(object);
    if (file < 0) {
        return gpu_backend_fail(job->error, GPULUA_IO, errno, "writing to '%.512s': %s",
                                job->folder, strerror(errno));
    }
    close(file);
    argument_add(&arguments, object);
    argument_add(&arguments, "-");
    if (job->hooks[0] != '\0') {
        argument_add(&arguments, "-x");
        argument_add(&arguments, "none");
        argument_add(&arguments, job->hooks);
    }
    static const char *const libraries[] = {"-lm", "-lc", "-lgcc"};
    arguments_add(&arguments, libraries, sizeof libraries / sizeof *libraries);
    struct cpu_process process;
    if (!gpu_cpu_process_run(arguments.list, text->bytes, text->length, &process)) {
        gpulua_status status = not_run(job);
        unlink(object);
        return status;
    }
    /* A compiler that fails leaves nothing, and then there is nothing to read. */
    *code = process.exit_code > 0 ? NULL : file_read(object, code_bytes);
    unlink(object);
    if (*code == NULL && job->has_precompiled && !job->is_made_anew &&
        blames_precompiled(job, process.log)) {
        gpu_cpu_process_free(&process);
        unlink(job->precompiled);
        unlink(job->hooks);
        job->header[0] = '\0';
        job->is_made_anew = true;
        return code_make(job, text, is_watched, code, code_bytes, log);
    }
    if (*code == NULL) {
        *log = process.log;
        process.log = NULL;
    }
    gpu_cpu_process_free(&process);
    return *code != NULL ? GPULUA_OK : GPULUA_COMPILE_FAILED;
}

gpulua_status gpu_cpu_compile_text(struct job *job, const struct text *text, void **code,
                                   size_t *code_bytes, char **log) {
    *log = NULL;
    gpulua_status status = code_make(job, text, false, code, code_bytes, log);
    if (*log != NULL && strstr(*log, "frame-larger-than") != NULL) {
        free(*log);
        *log = NULL;
        status = code_make(job, text, true, code, code_bytes, log);
    }
    return status;
}
