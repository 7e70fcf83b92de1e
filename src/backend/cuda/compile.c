/* CUDA C to an image, with NVRTC (see compile.h).
 *
 * One compilation gives the code, and through the section of describe.h what the source defines.
 * Names come from the text (source.c), which may be wrong about them: code behind #if, overloads.
 * When all errors are about names that nobody asked for, these are dropped and the source is
 * compiled again; kernels that macros made are found in the compiled code and added, once. */
#include "backend/cuda/compile.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/describe.h"
#include "backend/cuda/image.h"
#include "backend/file.h"
#include "backend/kernel_headers.h"
#include "backend/text.h"

#define CACHE_SUFFIX "cuda"
#define EXPRESSION_BYTES 4096
#define NVRTC_SECTION_NAME "__nv_name_map"
#define DEFINES_NAME "gpulua_defines.h"

struct options {
    char **list; /* owned, and each of them */
    size_t count, capacity;
    bool cacheable;                      /* everything that counts is in the cache's key */
    bool has_architecture, has_standard; /* flags of the user's own */
    bool failed;                         /* no memory */
};

struct job {
    const struct cuda_nvrtc *nvrtc;
    const struct backend_source *source;
    struct backend_error *error;
    struct backend_source_names scan;
    struct cuda_names names;
    struct options options;
    struct text defines; /* a header that is read first */
    char *log;           /* of the last compilation; owned */
    char *ptx;           /* owned */
    void *code;
    size_t code_bytes;
    char dropped[256]; /* the first name that was dropped, and why */
    bool found;        /* names were looked for in the code */
};

/* ---- options ---- */

__attribute__((format(printf, 2, 3))) static void option_add(struct options *options,
                                                             const char *format, ...) {
    if (options->count == options->capacity) {
        size_t capacity = options->capacity ? options->capacity * 2 : 16;
        char **grown = realloc(options->list, capacity * sizeof *grown);
        if (grown == NULL) {
            options->failed = true;
            return;
        }
        options->list = grown;
        options->capacity = capacity;
    }
    va_list arguments;
    va_start(arguments, format);
    char *option = NULL;
    if (vasprintf(&option, format, arguments) < 0) {
        options->failed = true;
    } else {
        options->list[options->count++] = option;
    }
    va_end(arguments);
}

static void options_free(struct options *options) {
    for (size_t i = 0; i < options->count; i++) {
        free(options->list[i]);
    }
    free(options->list);
}

static bool starts_with(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

/* Macros are lines of a header, not --define-macro: that would break NVRTC's own headers, which it
 * reads first (T=float). */
static struct text *defines_of(struct job *job) {
    if (job->defines.length == 0) {
        option_add(&job->options, "--pre-include=" DEFINES_NAME);
    }
    return &job->defines;
}

static void flag_add(struct job *job, const char *flag) {
    struct options *options = &job->options;
    if (starts_with(flag, "-D") && flag[2] != '\0') {
        size_t length = strcspn(flag, "=");
        gpu_text_format(defines_of(job), "#define %.*s %s\n", (int)length - 2, flag + 2,
                        flag[length] == '=' ? flag + length + 1 : "1");
        return;
    }
    if (starts_with(flag, "-U") && flag[2] != '\0') {
        gpu_text_format(defines_of(job), "#undef %s\n", flag + 2);
        return;
    }
    option_add(options, "%s", flag);
    /* The contents of files that a flag brings in would not be in the cache's key. */
    if (starts_with(flag, "-I") || starts_with(flag, "--include-path") ||
        starts_with(flag, "-include") || starts_with(flag, "--pre-include")) {
        options->cacheable = false;
    }
    options->has_architecture |=
        starts_with(flag, "--gpu-architecture") || starts_with(flag, "-arch");
    options->has_standard |= starts_with(flag, "--std") || starts_with(flag, "-std");
}

static gpulua_status option_read(struct job *job, char *line) {
    struct options *options = &job->options;
    char *value = line + strcspn(line, " \t");
    if (*value != '\0') {
        *value++ = '\0';
        value += strspn(value, " \t");
    }
    if (value[0] == '\0') {
        return gpu_backend_fail(job->error, GPULUA_INVALID_ARGUMENT, 0,
                                "compile options: nothing behind '%s'", line);
    }
    if (strcmp(line, "define") == 0) {
        gpu_text_format(defines_of(job), "#define %s\n", value);
    } else if (strcmp(line, "name") == 0) {
        options->failed |=
            !gpu_cuda_names_add(&job->names, value, strlen(value), false, CUDA_NAME_ASKED);
    } else if (strcmp(line, "include") == 0) {
        option_add(options, "--include-path=%s", value);
        options->cacheable = false;
    } else if (strcmp(line, "flag") == 0) {
        flag_add(job, value);
    } else {
        return gpu_backend_fail(job->error, GPULUA_INVALID_ARGUMENT, 0,
                                "compile options: '%s' is none of define, name, include, flag",
                                line);
    }
    return GPULUA_OK;
}

/* Does the text include a file that is found beside us, not among the toolkit's headers? */
static bool text_includes_local(const char *text) {
    for (const char *at = strstr(text, "include"); at != NULL; at = strstr(at, "include")) {
        at += strlen("include");
        const char *quote = at + strspn(at, " \t");
        size_t length = *quote == '"' ? strcspn(quote + 1, "\"\n") : 0;
        if (length > 0) {
            char *path = strndup(quote + 1, length);
            bool is_local = path == NULL || access(path, F_OK) == 0;
            free(path);
            if (is_local) {
                return true;
            }
        }
    }
    return false;
}

/* The newest architecture that NVRTC and the device both know. */
static gpulua_status architecture_choose(struct job *job, uint32_t compute, bool *is_virtual,
                                         int *chosen) {
    const struct cuda_nvrtc *nvrtc = job->nvrtc;
    int count = 0, list[256];
    *chosen = 0;
    if (nvrtc->nvrtcGetNumSupportedArchs(&count) == NVRTC_SUCCESS && count > 0 &&
        count <= (int)(sizeof list / sizeof list[0]) &&
        nvrtc->nvrtcGetSupportedArchs(list) == NVRTC_SUCCESS) {
        for (int i = 0; i < count; i++) {
            if (list[i] <= (int)compute && list[i] > *chosen) {
                *chosen = list[i];
            }
        }
    }
    *is_virtual = *chosen != (int)compute;
    if (*chosen == 0) {
        return gpu_backend_fail(job->error, GPULUA_UNSUPPORTED, 0,
                                "NVRTC %d.%d does not compile for compute capability %u.%u",
                                nvrtc->major, nvrtc->minor, compute / 10, compute % 10);
    }
    return GPULUA_OK;
}

static gpulua_status options_read(struct job *job, uint32_t compute) {
    int chosen;
    bool is_virtual;
    gpulua_status status = architecture_choose(job, compute, &is_virtual, &chosen);
    job->options.cacheable = !text_includes_local(job->source->text);
    char *lines = strdup(job->source->options != NULL ? job->source->options : "");
    char *rest = lines;
    for (char *line = strsep(&rest, "\n"); line != NULL && status == GPULUA_OK;
         line = strsep(&rest, "\n")) {
        line += strspn(line, " \t\r");
        if (line[0] != '\0') {
            status = option_read(job, line);
        }
    }
    job->options.failed |= lines == NULL;
    free(lines);
    if (!job->options.has_architecture) {
        option_add(&job->options, "--gpu-architecture=%s_%d", is_virtual ? "compute" : "sm",
                   chosen);
    }
    if (!job->options.has_standard) {
        option_add(&job->options, "--std=c++17");
    }
    if (job->nvrtc->include[0] != '\0') {
        option_add(&job->options, "--include-path=%s", job->nvrtc->include);
        option_add(&job->options, "--include-path=%s/cccl", job->nvrtc->include);
    }
    if (status == GPULUA_OK && job->options.failed) {
        status = gpu_backend_fail(job->error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
    }
    return status;
}

/* ---- one compilation ---- */

static gpulua_status nvrtc_failed(struct job *job, nvrtcResult result, const char *call) {
    return gpu_backend_fail(
        job->error,
        result == NVRTC_ERROR_OUT_OF_MEMORY ? GPULUA_OUT_OF_MEMORY : GPULUA_LIBRARY_ERROR,
        (int32_t)result, "%s: %s (%d)", call, job->nvrtc->nvrtcGetErrorString(result), (int)result);
}

/* Returns from the function that uses it, as all calls of a library here do. */
#define RTC(call)                                                                                  \
    do {                                                                                           \
        nvrtcResult rtc_result = job->nvrtc->call;                                                 \
        if (rtc_result != NVRTC_SUCCESS) {                                                         \
            return nvrtc_failed(job, rtc_result, #call);                                           \
        }                                                                                          \
    } while (0)

static gpulua_status no_memory(struct job *job) {
    return gpu_backend_fail(job->error, GPULUA_OUT_OF_MEMORY, 0, "no host memory to compile '%s'",
                            job->source->name);
}

static gpulua_status log_read(struct job *job, nvrtcProgram program) {
    size_t byte_count = 0;
    RTC(nvrtcGetProgramLogSize(program, &byte_count));
    free(job->log);
    job->log = calloc(1, byte_count + 1);
    if (job->log == NULL) {
        return no_memory(job);
    }
    if (byte_count > 0) {
        RTC(nvrtcGetProgramLog(program, job->log));
    }
    return GPULUA_OK;
}

/* What NVRTC is asked for: functions by name, variables by address. False: too long. */
static bool expression_make(char expression[EXPRESSION_BYTES], const struct cuda_name *name) {
    int length = snprintf(expression, EXPRESSION_BYTES, "%s%s", name->is_global ? "&" : "",
                          name->expression);
    return length < EXPRESSION_BYTES;
}

static gpulua_status code_read(struct job *job, nvrtcProgram program) {
    size_t ptx_bytes = 0, cubin_bytes = 0;
    RTC(nvrtcGetPTXSize(program, &ptx_bytes));
    RTC(nvrtcGetCUBINSize(program, &cubin_bytes));
    free(job->ptx);
    free(job->code);
    job->ptx = calloc(1, ptx_bytes + 1);
    job->code = calloc(1, cubin_bytes + 1);
    job->code_bytes = cubin_bytes;
    if (job->ptx == NULL || job->code == NULL) {
        return no_memory(job);
    }
    RTC(nvrtcGetPTX(program, job->ptx));
    if (cubin_bytes > 0) {
        RTC(nvrtcGetCUBIN(program, job->code));
    }
    for (size_t i = 0; i < job->names.count; i++) {
        struct cuda_name *name = &job->names.list[i];
        const char *lowered = NULL;
        char expression[EXPRESSION_BYTES];
        if (name->is_dropped || name->by_symbol) {
            continue;
        }
        (void)expression_make(expression, name);
        RTC(nvrtcGetLoweredName(program, expression, &lowered));
        free(name->lowered);
        name->lowered = strdup(lowered);
        if (name->lowered == NULL) {
            return no_memory(job);
        }
    }
    return GPULUA_OK;
}

/* Compiles once. `*result` is the compiler's own answer; a status other than OK is trouble around
 * it. */
static gpulua_status program_run(struct job *job, nvrtcProgram program, nvrtcResult *result) {
    for (size_t i = 0; i < job->names.count; i++) {
        const struct cuda_name *name = &job->names.list[i];
        char expression[EXPRESSION_BYTES];
        if (!expression_make(expression, name)) {
            return gpu_backend_fail(job->error, GPULUA_INVALID_ARGUMENT, 0,
                                    "compile options: a name is longer than %d characters",
                                    EXPRESSION_BYTES - 2);
        }
        if (!name->is_dropped && !name->by_symbol) {
            RTC(nvrtcAddNameExpression(program, expression));
        }
    }
    *result = job->nvrtc->nvrtcCompileProgram(program, (int)job->options.count,
                                              (const char *const *)job->options.list);
    gpulua_status status = log_read(job, program);
    if (status == GPULUA_OK && *result == NVRTC_SUCCESS) {
        status = code_read(job, program);
    }
    return status;
}

/* Headers of the C library that the shim of the CPU device has, too, and NVRTC does not: a source
 * that one of the devices takes, the other must take. */
static const char *const header_names[] = {"stdint.h", "cstdint", "assert.h",
                                           "cassert",  "math.h",  "cmath"};
#define HEADER_COUNT (sizeof header_names / sizeof *header_names)
#define INTEGERS /* the same types as the toolkit's own <cuda/std/cstdint> has them */             \
    "#pragma once\n"                                                                               \
    "typedef signed char int8_t; typedef unsigned char uint8_t;\n"                                 \
    "typedef short int16_t; typedef unsigned short uint16_t;\n"                                    \
    "typedef int int32_t; typedef unsigned uint32_t;\n"                                            \
    "typedef long long int64_t; typedef unsigned long long uint64_t;\n"                            \
    "typedef int64_t intptr_t; typedef uint64_t uintptr_t;\n"                                      \
    "typedef int64_t intmax_t; typedef uint64_t uintmax_t;\n"                                      \
    "#ifndef INT8_MAX\n"                                                                           \
    "#define INT8_MAX 127\n#define INT8_MIN (-128)\n#define UINT8_MAX 255\n"                       \
    "#define INT16_MAX 32767\n#define INT16_MIN (-32768)\n#define UINT16_MAX 65535\n"              \
    "#define INT32_MAX 2147483647\n#define INT32_MIN (-INT32_MAX - 1)\n"                           \
    "#define UINT32_MAX 4294967295u\n"                                                             \
    "#define INT64_MAX 9223372036854775807ll\n#define INT64_MIN (-INT64_MAX - 1)\n"                \
    "#define UINT64_MAX 18446744073709551615ull\n"                                                 \
    "#endif\n"
#define MATH                                                                                       \
    "#pragma once\n"                                                                               \
    "#ifndef NAN\n#define NAN __int_as_float(0x7fffffff)\n#endif\n"                                \
    "#ifndef INFINITY\n#define INFINITY __int_as_float(0x7f800000)\n#endif\n"
static const char *const header_texts[] = {INTEGERS, INTEGERS, "", "", MATH, MATH};

static gpulua_status compile_once(struct job *job, nvrtcResult *result) {
    struct text text = {0};
    gpu_text_add(&text, job->source->text, strlen(job->source->text));
    gpu_cuda_section_write(&text, &job->names);
    nvrtcProgram program = NULL;
    gpulua_status status;
    size_t own_count = gpu_kernel_headers_file_count, count = HEADER_COUNT;
    const char *names[HEADER_COUNT + own_count + 1], *texts[HEADER_COUNT + own_count + 1];
    memcpy(names, header_names, sizeof header_names);
    memcpy(texts, header_texts, sizeof header_texts);
    names[count] = DEFINES_NAME;
    texts[count++] = gpu_text_get(&job->defines);
    for (size_t i = 0; i < own_count; i++, count++) {
        names[count] = gpu_kernel_headers_files[i].name;
        texts[count] = (const char *)gpu_kernel_headers_files[i].bytes;
    }
    if (text.failed || job->defines.failed) {
        status = no_memory(job);
    } else {
        *result = job->nvrtc->nvrtcCreateProgram(&program, text.bytes, job->source->name,
                                                 (int)count, texts, names);
        status = *result == NVRTC_SUCCESS ? program_run(job, program, result)
                                          : nvrtc_failed(job, *result, "nvrtcCreateProgram");
    }
    if (program != NULL) {
        (void)job->nvrtc->nvrtcDestroyProgram(&program);
    }
    gpu_text_finish(&text);
    return status;
}

/* ---- errors ---- */

/* Is `line` a message about our section, or about the one that NVRTC makes of name expressions?
 * `*index`: the number of the name that it is about in ours, else SIZE_MAX. */
static bool line_is_ours(const char *line, size_t *index) {
    unsigned long number;
    *index = SIZE_MAX;
    if (sscanf(line, CUDA_SECTION_NAME "(%lu)", &number) == 1 && number > 0) {
        *index = number - 1;
        return true;
    }
    return starts_with(line, NVRTC_SECTION_NAME "(");
}

static bool line_is_error(const char *line, size_t length) {
    static const char *const marks[] = {"error:", "ptxas error", "ptxas fatal", "nvvm error"};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        /* Indented lines quote the source. */
        if (line[0] != ' ' && memmem(line, length, marks[i], strlen(marks[i])) != NULL) {
            return true;
        }
    }
    return false;
}

/* The length of a line without "at line 3 of SECTION" at its end: who instantiated a template first
 * was our section. */
static size_t length_without_ours(const char *line, size_t length) {
    static const char end[] = " of " CUDA_SECTION_NAME;
    static const char at_line[] = " at line ";
    size_t end_length = sizeof end - 1;
    if (length < end_length || memcmp(line + length - end_length, end, end_length) != 0) {
        return length;
    }
    const char *at = memmem(line, length, at_line, sizeof at_line - 1);
    return at != NULL ? (size_t)(at - line) : length;
}

/* The log without what it says about our section: a user's errors make errors there as well. A
 * message is a line and the lines behind it up to an empty one. */
static void log_filter(struct text *out, const char *log) {
    bool skipping = false, at_start = true;
    for (const char *line = log; *line != '\0';) {
        size_t length = strcspn(line, "\n"), index;
        bool ours = at_start && (line_is_ours(line, &index) || starts_with(line, CUDA_TYPES_NAME));
        skipping = ours || (skipping && !at_start);
        at_start = length == 0;
        unsigned long count;
        char kind[16];
        bool is_total = sscanf(line, "%lu %15s detected in the compilation", &count, kind) == 2 &&
                        memmem(line, length, "detected in the compilation", 27) != NULL;
        bool is_remark = starts_with(line, "Remark: The warnings can be suppressed");
        if (!skipping && !is_total && !is_remark && (length > 0 || out->length > 0)) {
            gpu_text_add(out, line, length_without_ours(line, length));
            gpu_text_add(out, "\n", 1);
        }
        line += line[length] == '\n' ? length + 1 : length;
    }
    while (out->length > 0 && out->bytes[out->length - 1] == '\n') {
        out->bytes[--out->length] = '\0';
    }
    gpu_text_add(out, "\n", 1);
}

static gpulua_status compile_failed(struct job *job, const char *log) {
    /* The first error goes into the message. */
    const char *first = log;
    while (*first != '\0' && !line_is_error(first, strcspn(first, "\n"))) {
        first += strcspn(first, "\n");
        first += *first == '\n' ? 1 : 0;
    }
    first = *first != '\0' ? first : log;
    gpulua_status status = gpu_backend_fail(job->error, GPULUA_COMPILE_FAILED, 0, "%.*s",
                                            (int)strcspn(first, "\n"), first);
    if (job->error != NULL) {
        free(job->error->log);
        job->error->log = strdup(log);
    }
    return status;
}

/* What the compiler says of name `index`: "identifier "f" is undefined". */
static void name_complaint(const struct job *job, size_t index, char *to, size_t to_bytes) {
    char start[64];
    snprintf(start, sizeof start, CUDA_SECTION_NAME "(%zu): error: ", index + 1);
    const char *at = strstr(job->log, start);
    at = at != NULL ? at + strlen(start) : "";
    size_t length = strcspn(at, "\n");
    if (memmem(at, length, "gpulua_params", 13) != NULL) {
        at = "it is no kernel, or one of several with this name: name it with its type, as in "
             "static_cast<void (*)(int *)>(f)";
        length = strlen(at);
    }
    snprintf(to, to_bytes, "'%s': %.*s", job->names.list[index].expression, (int)length, at);
}

static gpulua_status name_failed(struct job *job, const char *complaint) {
    struct text log = {0};
    gpu_text_format(&log, "%s: name %s\n", job->source->name, complaint);
    gpulua_status status = compile_failed(job, gpu_text_get(&log));
    gpu_text_finish(&log);
    return status;
}

static bool same_but_blanks(const char *a, const char *b, const char *b_end) {
    for (;;) {
        a += strspn(a, " ");
        while (b < b_end && *b == ' ') {
            b++;
        }
        if (*a == '\0' || b == b_end || *a != *b) {
            return *a == '\0' && b == b_end;
        }
        a++;
        b++;
    }
}

/* NVRTC refuses expressions that our section had no objection to: managed variables, and kernels
 * that share their name with a built-in function ("all"). They go by their symbols. */
static bool expressions_sort(struct job *job) {
    static const char mark[] = "Input name expression was: \"";
    bool progress = false;
    for (const char *at = strstr(job->log, mark); at != NULL; at = strstr(at, mark)) {
        at += sizeof mark - 1;
        const char *end = at + strcspn(at, "\"\n");
        for (size_t i = 0; i < job->names.count; i++) {
            struct cuda_name *name = &job->names.list[i];
            char expression[EXPRESSION_BYTES];
            (void)expression_make(expression, name);
            if (!name->is_dropped && !name->by_symbol && same_but_blanks(expression, at, end)) {
                name->by_symbol = true;
                progress = true;
            }
        }
    }
    return progress;
}

static void name_drop(struct job *job, size_t index, const char *complaint) {
    if (job->dropped[0] == '\0') {
        snprintf(job->dropped, sizeof job->dropped, "%.*s", (int)sizeof job->dropped - 1,
                 complaint);
    }
    job->names.list[index].is_dropped = true;
}

/* After a compilation that succeeded: names without code, which are no kernels or only declared. */
static gpulua_status symbols_find(struct job *job) {
    for (size_t i = 0; i < job->names.count; i++) {
        struct cuda_name *name = &job->names.list[i];
        if (name->is_dropped) {
            continue;
        }
        if (name->by_symbol) {
            free(name->lowered);
            name->lowered = gpu_cuda_name_symbol(name, job->ptx);
        }
        bool is_declared = name->lowered != NULL && !name->is_global && job->ptx[0] != '\0' &&
                           !gpu_cuda_has_entry(job->ptx, name->lowered);
        if (name->lowered == NULL || is_declared) {
            char complaint[768];
            snprintf(complaint, sizeof complaint, "'%s': it is %s", name->expression,
                     is_declared ? "declared, and defined nowhere" : "no __global__ function");
            if (name->origin == CUDA_NAME_ASKED) {
                return name_failed(job, complaint);
            }
            name_drop(job, i, complaint);
        }
    }
    return GPULUA_OK;
}

/* Names that our section had objections to, in a log without other errors. */
static gpulua_status names_sort(struct job *job, bool *progress) {
    for (const char *line = job->log; *line != '\0';) {
        size_t length = strcspn(line, "\n"), index;
        if (line_is_error(line, length) && line_is_ours(line, &index) && index < job->names.count &&
            !job->names.list[index].is_dropped) {
            char complaint[768];
            name_complaint(job, index, complaint, sizeof complaint);
            if (job->names.list[index].origin == CUDA_NAME_ASKED) {
                return name_failed(job, complaint);
            }
            name_drop(job, index, complaint);
            *progress = true;
        }
        line += line[length] == '\n' ? length + 1 : length;
    }
    *progress = *progress || expressions_sort(job);
    return GPULUA_OK;
}

/* After a failed compilation. OK: names were dropped, compile again. */
static gpulua_status errors_sort(struct job *job, nvrtcResult result) {
    if (result == NVRTC_ERROR_INVALID_OPTION) {
        return gpu_backend_fail(job->error, GPULUA_INVALID_ARGUMENT, (int32_t)result,
                                "compile options: %.*s", (int)strcspn(job->log, "\n"), job->log);
    }
    bool others = false, progress = false;
    for (const char *line = job->log; *line != '\0';) {
        size_t length = strcspn(line, "\n"), index;
        others = others || (line_is_error(line, length) && !line_is_ours(line, &index));
        line += line[length] == '\n' ? length + 1 : length;
    }
    if (!others) {
        gpulua_status status = names_sort(job, &progress);
        if (status != GPULUA_OK || progress) {
            return status;
        }
    }
    if (job->log[0] == '\0') {
        return nvrtc_failed(job, result, "nvrtcCompileProgram");
    }
    struct text log = {0};
    log_filter(&log, job->log);
    /* Nothing left: the user's macros have hurt our section, which then is what must be shown. */
    bool empty = strstr(gpu_text_get(&log), "error") == NULL;
    gpulua_status status = compile_failed(job, empty ? job->log : gpu_text_get(&log));
    gpu_text_finish(&log);
    return status;
}

/* ---- all of it ---- */

static gpulua_status names_read(struct job *job) {
    gpulua_status status = gpu_backend_source_scan(job->source->text, &job->scan);
    bool good = status == GPULUA_OK;
    struct cuda_names asked = job->names; /* from the options: behind the others, in order */
    job->names = (struct cuda_names){0};
    for (size_t i = 0; i < job->scan.kernel_count && good; i++) {
        const struct backend_source_kernel *kernel = &job->scan.kernels[i];
        if (!kernel->is_template) {
            good = gpu_cuda_names_add(&job->names, kernel->name, strlen(kernel->name), false,
                                      CUDA_NAME_SCANNED);
        }
    }
    for (size_t i = 0; i < asked.count && good; i++) {
        const char *name = asked.list[i].expression;
        good = gpu_cuda_names_add(&job->names, name, strlen(name), false, CUDA_NAME_ASKED);
    }
    gpu_cuda_names_free(&asked);
    for (size_t i = 0; i < job->scan.global_count && good; i++) {
        const char *name = job->scan.globals[i];
        size_t before = job->names.count;
        good = gpu_cuda_names_add(&job->names, name, strlen(name), true, CUDA_NAME_SCANNED);
        if (good && job->names.count > before) {
            job->names.list[before].is_constant = job->scan.global_is_constant[i];
        }
    }
    return good ? GPULUA_OK : no_memory(job);
}

static gpulua_status nothing_found(struct job *job) {
    bool has_template = false;
    for (size_t i = 0; i < job->scan.kernel_count; i++) {
        has_template = has_template || job->scan.kernels[i].is_template;
    }
    return gpu_backend_fail(
        job->error, GPULUA_INVALID_ARGUMENT, 0, "'%s' defines no kernel and no variable%s%s%s",
        job->source->name,
        has_template ? ": of a template, name the instances that you want (\"f<float>\")" : "",
        job->dropped[0] != '\0' ? ": " : "", job->dropped);
}

/* The PTX begins with what its functions are called in the source: "// kernel scale<float> = NAME".
 */
static gpulua_status code_keep(const struct job *job) {
    const char *prefix = job->source->keep;
    struct text ptx = {0};
    for (size_t i = 0; i < job->names.count; i++) {
        const struct cuda_name *name = &job->names.list[i];
        if (!name->is_dropped && !name->is_global) {
            gpu_text_format(&ptx, "// kernel %s = %s\n", name->expression, name->lowered);
        }
    }
    gpu_text_add(&ptx, job->ptx, strlen(job->ptx));
    gpulua_status status =
        ptx.failed ? gpu_backend_fail(job->error, GPULUA_OUT_OF_MEMORY, 0, "no host memory")
                   : gpu_backend_keep(prefix, ".ptx", ptx.bytes, ptx.length, job->error);
    gpu_text_finish(&ptx);
    if (status == GPULUA_OK && job->code_bytes > 0) { /* else the driver makes it of the PTX */
        status = gpu_backend_keep(prefix, ".cubin", job->code, job->code_bytes, job->error);
    }
    return status;
}

static gpulua_status image_make(struct job *job, void **image, size_t *image_bytes,
                                char **description) {
    struct text lines = {0}, symbols = {0};
    gpulua_status status = GPULUA_OK;
    if (!gpu_cuda_description_read(&lines, &job->names, job->ptx)) {
        status =
            gpu_backend_fail(job->error, GPULUA_LIBRARY_ERROR, 0,
                             "'%s': the compiled code lacks its description", job->source->name);
    }
    for (size_t i = 0; i < job->names.count; i++) {
        const struct cuda_name *name = &job->names.list[i];
        if (!name->is_dropped) {
            gpu_text_format(&symbols, "%c %s\t%s\n", name->is_global ? 'g' : 'k', name->expression,
                            name->lowered);
        }
    }
    struct cuda_image parts = {.description = gpu_text_get(&lines),
                               .symbols = gpu_text_get(&symbols),
                               .code = job->code_bytes > 0 ? job->code : job->ptx,
                               .code_bytes =
                                   job->code_bytes > 0 ? job->code_bytes : strlen(job->ptx) + 1,
                               .prints = gpu_cuda_code_prints(job->ptx, strlen(job->ptx))};
    if (status == GPULUA_OK) {
        bool whole = !lines.failed && !symbols.failed;
        *image = whole ? gpu_cuda_image_make(&parts, image_bytes) : NULL;
        *description = *image != NULL ? gpu_text_take(&lines) : NULL;
        if (*description == NULL) {
            free(*image);
            *image = NULL;
            status = no_memory(job);
        }
    }
    gpu_text_finish(&lines);
    gpu_text_finish(&symbols);
    return status;
}

static gpulua_status job_run(struct job *job) {
    gpulua_status status = names_read(job);
    while (status == GPULUA_OK) {
        gpu_cuda_names_params(&job->names, &job->scan);
        nvrtcResult result = NVRTC_SUCCESS;
        status = compile_once(job, &result);
        if (status == GPULUA_OK && result != NVRTC_SUCCESS) {
            status = errors_sort(job, result); /* drops at least one name, or fails */
        } else if (status == GPULUA_OK) {
            status = symbols_find(job);
            if (status != GPULUA_OK || job->found || !gpu_cuda_names_find(&job->names, job->ptx)) {
                break;
            }
            job->found = true;
        }
    }
    size_t left = 0;
    for (size_t i = 0; i < job->names.count; i++) {
        left += job->names.list[i].is_dropped ? 0 : 1;
    }
    if (status == GPULUA_OK && left == 0) {
        status = nothing_found(job);
    }
    return status;
}

static void key_make(struct gpu_cache_key *key, const struct job *job) {
    struct text options = {0};
    for (size_t i = 0; i < job->options.count; i++) {
        gpu_text_format(&options, "%s\n", job->options.list[i]);
    }
    gpu_text_format(&options, "NVRTC %d.%d, described 2\n", job->nvrtc->major, job->nvrtc->minor);
    for (size_t i = 0; i < gpu_kernel_headers_file_count; i++) {
        const struct gpu_embedded_file *file = &gpu_kernel_headers_files[i];
        gpu_text_add(&options, (const char *)file->bytes, file->byte_count);
    }
    const char *asked = job->source->options != NULL ? job->source->options : "";
    const char *settings = gpu_text_get(&options);
    const void *parts[] = {job->source->name, job->source->text, asked, settings};
    size_t part_bytes[] = {strlen(job->source->name), strlen(job->source->text), strlen(asked),
                           strlen(settings)};
    gpu_cache_key_init(key, parts, part_bytes, 4);
    gpu_text_finish(&options);
}

static bool cached(const char *cache_path, const struct gpu_cache_key *key, void **image,
                   size_t *image_bytes, char **description) {
    struct cuda_image parts;
    if (!gpu_cache_get(cache_path, key, CACHE_SUFFIX, image, image_bytes)) {
        return false;
    }
    *description =
        gpu_cuda_image_read(*image, *image_bytes, &parts) ? strdup(parts.description) : NULL;
    if (*description == NULL) {
        free(*image);
        *image = NULL;
    }
    return *image != NULL;
}

gpulua_status gpu_cuda_compile(const struct cuda_nvrtc *nvrtc, uint32_t compute,
                               const char *cache_path, const struct backend_source *source,
                               void **image, size_t *image_bytes, char **description,
                               struct backend_error *error) {
    struct job job = {.nvrtc = nvrtc, .source = source, .error = error};
    struct gpu_cache_key key;
    *image = NULL;
    *image_bytes = 0;
    *description = NULL;
    gpulua_status status = options_read(&job, compute);
    if (status == GPULUA_OK) {
        key_make(&key, &job);
        bool can_take = job.options.cacheable && source->keep == NULL;
        if (!can_take || !cached(cache_path, &key, image, image_bytes, description)) {
            status = job_run(&job);
            if (status == GPULUA_OK && source->keep != NULL) {
                status = code_keep(&job);
            }
            if (status == GPULUA_OK) {
                status = image_make(&job, image, image_bytes, description);
            }
            if (status == GPULUA_OK && job.options.cacheable) {
                gpu_cache_put(cache_path, &key, CACHE_SUFFIX, *image, *image_bytes,
                              source->outcome);
            }
        } else if (source->outcome != NULL) {
            source->outcome->was_cached = true;
        }
    }
    free(job.log);
    free(job.ptx);
    free(job.code);
    options_free(&job.options);
    gpu_text_finish(&job.defines);
    gpu_cuda_names_free(&job.names);
    gpu_backend_source_free(&job.scan);
    return status;
}
