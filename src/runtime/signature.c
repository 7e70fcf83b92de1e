/* Signatures of kernels: text to parameters with their places in the arguments.
 *
 *     signature  := [ parameter { "," parameter } ]
 *     parameter  := [ name ":" ] ( value | pointer | unsupported )
 *     value      := TYPE                                   "i32", "f64", "c64"
 *     pointer    := [ "in" | "out" | "inout" ] target "*"  "in f32*", "out f32x4*", "void*"
 *     target     := TYPE [ "x" 2..4 ] | "void"
 *     unsupported:= "?" C-TYPE "/" BYTES "/" ALIGNMENT     from compilers only
 *     context    := "gpulua_ctx"                           the last one; scripts do not pass it
 *
 * Blanks may stand between all of these. A C type may hold commas, slashes and colons: it ends at
 * the first comma outside brackets, and its last two slashes delimit the numbers. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/module.h"
#include "runtime/report.h"

#define POINTER_BYTES 8u
#define ALIGNMENT_MAX 4096u

struct parser {
    const char *text;
    const char *at;
    struct gpu_error *error;
};

/* A word of the text: [start, start + length). */
struct word {
    const char *start;
    int length;
};

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static void skip_blanks(struct parser *parser) {
    while (is_blank(*parser->at)) {
        parser->at++;
    }
}

__attribute__((format(printf, 3, 4))) static gpulua_status
fail_at(const struct parser *parser, const char *at, const char *format, ...) {
    char problem[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem, sizeof problem, format, arguments);
    va_end(arguments);
    return gpu_error_set(parser->error, GPULUA_INVALID_ARGUMENT,
                         "signature, position %zu: %s: '%s'", (size_t)(at - parser->text) + 1,
                         problem, parser->text);
}

/* How much of a word messages show, for "%.*s". */
static int shown(struct word word) {
    return word.length < 40 ? word.length : 40;
}

static struct word take_word(struct parser *parser) {
    struct word word = {parser->at, 0};
    if (is_letter(*parser->at)) {
        while (is_letter(*parser->at) || is_digit(*parser->at)) {
            parser->at++;
        }
    }
    word.length = (int)(parser->at - word.start);
    skip_blanks(parser);
    return word;
}

static bool word_is(struct word word, const char *text) {
    return strlen(text) == (size_t)word.length && memcmp(word.start, text, strlen(text)) == 0;
}

/* Copies what fits; a text that was cut ends in "...". */
static void copy_cut(char *to, size_t to_bytes, const char *from, size_t from_bytes) {
    if (from_bytes < to_bytes) {
        memcpy(to, from, from_bytes);
        to[from_bytes] = '\0';
        return;
    }
    size_t kept = to_bytes - sizeof "...";
    memcpy(to, from, kept);
    memcpy(to + kept, "...", sizeof "...");
}

/* "f32x4" is an element type and lanes. Returns false when it is no type; *lanes 0: bad lanes. */
static bool split_target(struct word word, enum gpu_type *type, uint8_t *lanes) {
    *lanes = 1;
    *type = gpu_type_parse(word.start, (size_t)word.length);
    if (*type != GPU_TYPE_COUNT) {
        return true;
    }
    const char *x = memchr(word.start, 'x', (size_t)word.length);
    if (x == NULL) {
        return false;
    }
    *type = gpu_type_parse(word.start, (size_t)(x - word.start));
    if (*type == GPU_TYPE_COUNT) {
        return false;
    }
    bool is_single = word.start + word.length - x == 2 && x[1] >= '2' && x[1] <= '4';
    *lanes = is_single && gpu_type_class(*type) != GPU_CLASS_COMPLEX ? (uint8_t)(x[1] - '0') : 0;
    return true;
}

static gpulua_status parse_number(struct parser *parser, const char *start, const char *end,
                                  uint32_t max, uint32_t *number) {
    uint32_t value = 0;
    if (start == end) {
        return fail_at(parser, start, "a number is missing");
    }
    for (const char *at = start; at < end; at++) {
        if (!is_digit(*at)) {
            return fail_at(parser, at, "a digit was expected");
        }
        value = value * 10 + (uint32_t)(*at - '0');
        if (value > max) {
            return fail_at(parser, start, "the number is too large");
        }
    }
    if (value == 0) {
        return fail_at(parser, start, "the number is 0");
    }
    *number = value;
    return GPULUA_OK;
}

static const char *find_last_slash(const char *start, const char *end) {
    while (end > start && end[-1] != '/') {
        end--;
    }
    return end > start ? end - 1 : NULL;
}

static gpulua_status parse_unsupported(struct parser *parser, struct gpu_param *param,
                                       uint32_t *alignment) {
    const char *start = ++parser->at;
    int depth = 0;
    while (*parser->at != '\0' && (depth > 0 || *parser->at != ',')) {
        if (strchr("<([{", *parser->at) != NULL) {
            depth++;
        } else if (strchr(">)]}", *parser->at) != NULL && depth > 0) {
            depth--;
        }
        parser->at++;
    }
    const char *end = parser->at;
    while (end > start && is_blank(end[-1])) {
        end--;
    }
    const char *second = find_last_slash(start, end);
    const char *first = second != NULL ? find_last_slash(start, second) : NULL;
    if (first == NULL || first == start) {
        return fail_at(parser, start, "'?C-TYPE/BYTES/ALIGNMENT' was expected");
    }
    gpulua_status status =
        parse_number(parser, first + 1, second, GPU_ARGS_BYTES_MAX, &param->byte_count);
    if (status == GPULUA_OK) {
        status = parse_number(parser, second + 1, end, ALIGNMENT_MAX, alignment);
    }
    if (status != GPULUA_OK) {
        return status;
    }
    if ((*alignment & (*alignment - 1)) != 0) {
        return fail_at(parser, second + 1, "an alignment is a power of two");
    }
    param->kind = GPU_PARAM_UNSUPPORTED;
    param->type = GPU_TYPE_COUNT;
    param->lanes = 1;
    copy_cut(param->text, sizeof param->text, start, (size_t)(first - start));
    return GPULUA_OK;
}

/* The access word, if there is one. `in`, `out`, `inout` are no types, so this is unambiguous. */
static void parse_access(struct parser *parser, struct gpu_param *param, struct word *word) {
    static const struct {
        const char *text;
        uint8_t access;
    } words[] = {{"in", GPU_READ}, {"out", GPU_WRITE}, {"inout", GPU_READ_WRITE}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (word_is(*word, words[i].text)) {
            param->access = words[i].access;
            param->is_out = words[i].access == GPU_WRITE;
            *word = take_word(parser);
            return;
        }
    }
}

static gpulua_status parse_pointer(struct parser *parser, struct word target,
                                   struct gpu_param *param) {
    static const char *const access_names[] = {"", "in", "out", "inout"};
    parser->at++; /* the '*' */
    skip_blanks(parser);
    if (*parser->at == '*') {
        return fail_at(parser, parser->at, "pointers to pointers cannot be passed");
    }
    if (param->access == 0) {
        param->access = GPU_READ_WRITE;
    }
    param->kind = GPU_PARAM_POINTER;
    param->byte_count = POINTER_BYTES;
    snprintf(param->text, sizeof param->text, "%s %.*s*", access_names[param->access],
             target.length, target.start);
    return GPULUA_OK;
}

/* What gpulua_kernel.h has the kernel declare. */
static bool is_context(const struct gpu_param *param, uint32_t alignment) {
    return alignment == sizeof(uint64_t) && param->kind == GPU_PARAM_UNSUPPORTED &&
           strcmp(param->text, GPU_REPORT_CONTEXT_NAME) == 0 &&
           param->byte_count == sizeof(struct gpu_report_context);
}

static gpulua_status parse_type(struct parser *parser, struct word word, struct gpu_param *param,
                                uint32_t *alignment) {
    parse_access(parser, param, &word);
    if (word.length == 0) {
        return fail_at(parser, word.start, "a type was expected");
    }
    bool is_pointer = *parser->at == '*';
    param->type = GPU_TYPE_COUNT;
    param->lanes = 1;
    if (word_is(word, GPU_REPORT_CONTEXT_NAME) && !is_pointer && param->access == 0) {
        param->kind = GPU_PARAM_UNSUPPORTED;
        param->byte_count = sizeof(struct gpu_report_context);
        *alignment = sizeof(uint64_t);
        snprintf(param->text, sizeof param->text, "%s", GPU_REPORT_CONTEXT_NAME);
        return GPULUA_OK;
    }
    if (!word_is(word, "void")) {
        if (!split_target(word, &param->type, &param->lanes)) {
            return fail_at(parser, word.start,
                           "unknown type '%.*s' (i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64 "
                           "c64 c128, void*)",
                           shown(word), word.start);
        }
        if (param->lanes == 0) {
            return fail_at(parser, word.start, "'%.*s': x2, x3 or x4 of a real type was expected",
                           shown(word), word.start);
        }
    } else if (!is_pointer) {
        return fail_at(parser, word.start, "'void' is a type only as 'void*'");
    }
    if (is_pointer) {
        *alignment = POINTER_BYTES;
        return parse_pointer(parser, word, param);
    }
    if (param->access != 0) {
        return fail_at(parser, word.start,
                       "'%.*s' is passed by value: in, out and inout are for pointers", shown(word),
                       word.start);
    }
    if (param->lanes != 1) {
        return fail_at(parser, word.start, "'%.*s' is possible only as a pointer", shown(word),
                       word.start);
    }
    param->kind = GPU_PARAM_SCALAR;
    param->byte_count = gpu_type_bytes(param->type);
    *alignment = param->byte_count;
    snprintf(param->text, sizeof param->text, "%s", gpu_type_name(param->type));
    return GPULUA_OK;
}

static gpulua_status parse_param(struct parser *parser, const struct gpu_signature *signature,
                                 struct gpu_param *param, uint32_t *alignment) {
    skip_blanks(parser);
    struct word word = take_word(parser);
    if (word.length > 0 && *parser->at == ':') {
        copy_cut(param->name, sizeof param->name, word.start, (size_t)word.length);
        /* Names too long to be kept whole (compilers' only) cannot be compared. */
        bool is_whole = (size_t)word.length < sizeof param->name;
        for (uint32_t i = 0; is_whole && i < signature->param_count; i++) {
            if (strcmp(signature->params[i].name, param->name) == 0) {
                return fail_at(parser, word.start, "the name '%.*s' is there twice", shown(word),
                               word.start);
            }
        }
        parser->at++;
        skip_blanks(parser);
        if (*parser->at != '?') {
            word = take_word(parser);
        }
    }
    if (*parser->at == '?') {
        if (word.length > 0 && param->name[0] == '\0') {
            return fail_at(parser, parser->at, "a ':' or ',' was expected");
        }
        return parse_unsupported(parser, param, alignment);
    }
    return parse_type(parser, word, param, alignment);
}

/* Lays the parameter out behind those before it, as a C struct would. */
static gpulua_status place(struct parser *parser, const char *start, struct gpu_param *param,
                           uint32_t alignment, struct gpu_signature *signature) {
    uint32_t offset = (signature->args_bytes + alignment - 1) & ~(alignment - 1);
    if (offset + param->byte_count > GPU_ARGS_BYTES_MAX) {
        return fail_at(parser, start, "the arguments take more than %u bytes", GPU_ARGS_BYTES_MAX);
    }
    param->byte_offset = offset;
    signature->has_gaps = signature->has_gaps || offset != signature->args_bytes;
    signature->args_bytes = offset + param->byte_count;
    return GPULUA_OK;
}

static gpulua_status parse_all(struct parser *parser, struct gpu_signature *signature) {
    skip_blanks(parser);
    while (*parser->at != '\0') {
        skip_blanks(parser);
        const char *start = parser->at;
        if (signature->param_count == GPU_PARAMS_MAX) {
            return fail_at(parser, start, "more than %u parameters", GPU_PARAMS_MAX);
        }
        struct gpu_param *param = &signature->params[signature->param_count];
        uint32_t alignment = 1;
        gpulua_status status = parse_param(parser, signature, param, &alignment);
        if (status == GPULUA_OK) {
            status = place(parser, start, param, alignment, signature);
        }
        if (status != GPULUA_OK) {
            return status;
        }
        if (is_context(param, alignment)) {
            if (*parser->at != '\0') {
                return fail_at(parser, start,
                               "a " GPU_REPORT_CONTEXT_NAME " is the last parameter");
            }
            signature->has_context = true;
            return GPULUA_OK;
        }
        signature->param_count++;
        if (*parser->at == '\0') {
            return GPULUA_OK;
        }
        if (*parser->at != ',') {
            return fail_at(parser, parser->at, "',' or the end was expected");
        }
        parser->at++;
        skip_blanks(parser);
        if (*parser->at == '\0') {
            return fail_at(parser, parser->at, "a parameter was expected behind ','");
        }
    }
    return GPULUA_OK;
}

gpulua_status gpu_signature_parse(const char *text, struct gpu_signature **signature,
                                  struct gpu_error *error) {
    /* One parameter more than commas in the text is the most there can be. */
    size_t room = 1;
    for (const char *at = text; *at != '\0' && room < GPU_PARAMS_MAX; at++) {
        room += *at == ',';
    }
    struct gpu_signature *parsed = calloc(1, sizeof *parsed + room * sizeof parsed->params[0]);
    if (parsed == NULL) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a signature");
    }
    struct parser parser = {text, text, error};
    gpulua_status status = parse_all(&parser, parsed);
    if (status != GPULUA_OK) {
        free(parsed);
        return status;
    }
    *signature = parsed;
    return GPULUA_OK;
}
