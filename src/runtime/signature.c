/* Signatures of kernels: text to parameters with their places in the arguments.
 *
 *     signature  := [ parameter { "," parameter } ]
 *     parameter  := [ name ":" ] ( value | pointer | structure | unsupported )
 *     value      := TYPE [ "x" 2..4 ]                      "i32", "f64", "c64", "f32x4"
 *     structure  := "{" field { "," field } "}"            "{ n: i32, x: in f32*, m: f32[16] }"
 *     field      := [ name ":" ] ( value | pointer | structure ) { "[" COUNT "]" }
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

#define PARTS_MAX (3u * GPU_PARAMS_MAX)

struct parser {
    const char *text;
    const char *at;
    struct gpu_error *error;
    struct gpu_signature *signature; /* with room for all that there may be */
    struct gpu_part *parts;          /* owned; room for PARTS_MAX */
    uint32_t part_count;
    bool has_parts;
};

/* Where parameters belong: to the kernel, or to a structure of it. */
struct scope {
    char path[48]; /* "p.q." in front of their names */
    uint32_t depth;
    uint32_t count; /* so far */
};

/* What was parsed, laid out from 0; its parameters begin at `first`. */
struct extent {
    uint32_t first, byte_count, alignment;
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
        if (!gpu_type_parse_vector(word.start, (size_t)word.length, &param->type, &param->lanes)) {
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
    param->kind = GPU_PARAM_SCALAR;
    param->byte_count = gpu_type_bytes(param->type);
    *alignment = param->byte_count;
    snprintf(param->text, sizeof param->text, "%s", gpu_type_name(param->type));
    return GPULUA_OK;
}

/* Room for one more, whose fields are 0. */
static gpulua_status add_param(struct parser *parser, const char *at, struct gpu_param **param) {
    struct gpu_signature *signature = parser->signature;
    if (signature->param_count == GPU_PARAMS_MAX) {
        return fail_at(
            parser, at,
            "more than %u arguments (of vectors, structures and arrays each part is one)",
            GPU_PARAMS_MAX);
    }
    *param = &signature->params[signature->param_count];
    return GPULUA_OK;
}

/* By what lies beside it in the same structure, or in none. Names too long to be kept whole
 * (compilers' only) cannot be compared. */
static bool is_taken(const struct parser *parser, const char *name) {
    uint32_t depth = 0;
    bool is_whole = strlen(name) < sizeof parser->parts->name - 1;
    for (uint32_t i = parser->part_count; is_whole && name[0] != '\0' && i-- > 0;) {
        const struct gpu_part *part = &parser->parts[i];
        if (part->kind == GPU_PART_CLOSE) {
            depth++;
            continue;
        }
        if (part->kind == GPU_PART_OPEN) {
            if (depth == 0) { /* what it is in */
                return false;
            }
            depth--;
        }
        if (depth == 0 && strcmp(part->name, name) == 0) {
            return true;
        }
    }
    return false;
}

static gpulua_status add_part(struct parser *parser, const char *at, enum gpu_part_kind kind,
                              const char *name, struct gpu_part **part) {
    if (parser->part_count == PARTS_MAX) {
        return fail_at(parser, at, "too many structures");
    }
    if (is_taken(parser, name)) {
        return fail_at(parser, at, "the name '%.40s' is there twice", name);
    }
    *part = &parser->parts[parser->part_count++];
    **part = (struct gpu_part){.kind = (uint8_t)kind};
    copy_cut((*part)->name, sizeof(*part)->name, name, strlen(name));
    parser->has_parts |= kind != GPU_PART_VALUE;
    return GPULUA_OK;
}

/* `proto`, as it was parsed, under its name, at so many bytes from the begin of what it is in. */
static gpulua_status add_value(struct parser *parser, const char *at, const struct scope *scope,
                               const char *name, const struct gpu_param *proto,
                               uint32_t byte_offset) {
    char full[sizeof scope->path + sizeof proto->name];
    struct gpu_param *param = NULL;
    struct gpu_part *part;
    gpulua_status status = add_param(parser, at, &param);
    if (status == GPULUA_OK) {
        status = add_part(parser, at, GPU_PART_VALUE, name, &part);
    }
    snprintf(full, sizeof full, "%s%s", scope->path, name);
    if (status == GPULUA_OK && scope->depth > 0 && strlen(full) >= sizeof param->name) {
        status = fail_at(parser, at, "a name, with those it is in, has at most %zu characters",
                         sizeof param->name - 1);
    }
    if (status == GPULUA_OK) {
        *param = *proto;
        param->byte_offset = byte_offset;
        copy_cut(param->name, sizeof param->name, full, strlen(full));
        parser->signature->param_count++;
    }
    return status;
}

/* The parts that follow are in what is opened here, a structure, unless `part` is told something
 * else. What has a name that leaves no room goes by its place. */
static gpulua_status open_part(struct parser *parser, const char *at, const struct scope *outer,
                               const char *name, struct scope *inner, struct gpu_part **part) {
    char full[sizeof outer->path + 64];
    if (outer->depth == GPU_PARTS_DEEP) {
        return fail_at(parser, at, "structures, arrays and vectors more than %u deep",
                       GPU_PARTS_DEEP);
    }
    if (strlen(name) > sizeof inner->path - 8) {
        snprintf(full, sizeof full, "%s%u.", outer->path, outer->count);
    } else {
        snprintf(full, sizeof full, "%s%s.", outer->path, name);
    }
    copy_cut(inner->path, sizeof inner->path, full, strlen(full));
    inner->depth = outer->depth + 1;
    inner->count = 0;
    return add_part(parser, at, GPU_PART_OPEN, name, part);
}

static gpulua_status close_part(struct parser *parser, const char *at) {
    struct gpu_part *part;
    return add_part(parser, at, GPU_PART_CLOSE, "", &part);
}

/* A value of one or several lanes, which CUDA has as structures. */
static gpulua_status add_lanes(struct parser *parser, const char *at, const struct scope *scope,
                               const char *name, const struct gpu_param *proto) {
    static const char *const lane_names[] = {"x", "y", "z", "w"};
    if (proto->lanes == 1) {
        return add_value(parser, at, scope, name, proto, 0);
    }
    struct scope inner;
    struct gpu_part *part;
    gpulua_status status = open_part(parser, at, scope, name, &inner, &part);
    if (status == GPULUA_OK) {
        snprintf(part->text, sizeof part->text, "%sx%u", gpu_type_name(proto->type), proto->lanes);
    }
    struct gpu_param lane = *proto;
    lane.lanes = 1;
    for (uint32_t i = 0; i < proto->lanes && status == GPULUA_OK; i++) {
        status = add_value(parser, at, &inner, lane_names[i], &lane, i * lane.byte_count);
    }
    return status != GPULUA_OK ? status : close_part(parser, at);
}

/* Lays what was parsed out behind `*end_bytes`, as a C struct would. */
static gpulua_status place(struct parser *parser, const char *start, const struct extent *extent,
                           uint32_t *end_bytes) {
    uint32_t offset = (*end_bytes + extent->alignment - 1) & ~(extent->alignment - 1);
    if (offset + extent->byte_count > GPU_ARGS_BYTES_MAX) {
        return fail_at(parser, start, "the arguments take more than %u bytes", GPU_ARGS_BYTES_MAX);
    }
    for (uint32_t i = extent->first; i < parser->signature->param_count; i++) {
        parser->signature->params[i].byte_offset += offset;
    }
    *end_bytes = offset + extent->byte_count;
    return GPULUA_OK;
}

static gpulua_status parse_item(struct parser *parser, struct scope *scope, struct extent *extent);

/* At its '{'. */
static gpulua_status parse_structure(struct parser *parser, const struct scope *scope,
                                     const char *name, struct extent *extent) {
    struct scope inner;
    struct gpu_part *part;
    gpulua_status status = open_part(parser, parser->at, scope, name, &inner, &part);
    do {
        parser->at++; /* the '{' or ',' */
        skip_blanks(parser);
        const char *start = parser->at;
        struct extent field = {0};
        if (status == GPULUA_OK) {
            status = parse_item(parser, &inner, &field);
        }
        if (status == GPULUA_OK) {
            status = place(parser, start, &field, &extent->byte_count);
        }
        extent->alignment =
            field.alignment > extent->alignment ? field.alignment : extent->alignment;
    } while (status == GPULUA_OK && *parser->at == ',');
    if (status != GPULUA_OK) {
        return status;
    }
    if (*parser->at != '}') {
        return fail_at(parser, parser->at, "',' or '}' was expected");
    }
    parser->at++;
    skip_blanks(parser);
    extent->byte_count = (extent->byte_count + extent->alignment - 1) & ~(extent->alignment - 1);
    return close_part(parser, parser->at);
}

/* What is declared at `at` under that name, behind which its type follows; no array. */
static gpulua_status parse_element(struct parser *parser, const char *at, const struct scope *scope,
                                   const char *name, struct extent *extent) {
    struct gpu_param proto = {0};
    *extent = (struct extent){.first = parser->signature->param_count, .alignment = 1};
    if (*parser->at == '{') {
        return parse_structure(parser, scope, name, extent);
    }
    if (*parser->at == '?' && scope->depth == 0) {
        gpulua_status status = parse_unsupported(parser, &proto, &extent->alignment);
        extent->byte_count = proto.byte_count;
        return status != GPULUA_OK ? status : add_value(parser, at, scope, name, &proto, 0);
    }
    gpulua_status status = parse_type(parser, take_word(parser), &proto, &extent->alignment);
    if (status != GPULUA_OK) {
        return status;
    }
    extent->byte_count = proto.byte_count;
    if (proto.kind == GPU_PARAM_SCALAR) {
        char number[16];
        snprintf(number, sizeof number, "%u", scope->count);
        extent->byte_count *= proto.lanes;
        /* float3 is three floats; the others are aligned to all of theirs, up to 16 bytes. */
        extent->alignment = proto.lanes == 3          ? proto.byte_count
                            : extent->byte_count > 16 ? 16
                                                      : extent->byte_count;
        return add_lanes(parser, at, scope, proto.lanes > 1 && name[0] == '\0' ? number : name,
                         &proto);
    }
    if (proto.kind == GPU_PARAM_UNSUPPORTED && scope->depth > 0) {
        return fail_at(parser, at, "a " GPU_REPORT_CONTEXT_NAME " is the last parameter");
    }
    return add_value(parser, at, scope, name, &proto, 0);
}

/* "[16]" */
static gpulua_status parse_length(struct parser *parser, uint32_t *length) {
    parser->at++;
    skip_blanks(parser);
    const char *start = parser->at, *end = start + strspn(start, "0123456789");
    if (*start != ']' && end == start) {
        return fail_at(parser, start, "a number was expected");
    }
    parser->at = end;
    skip_blanks(parser);
    if (*parser->at != ']') {
        return fail_at(parser, parser->at, "a ']' was expected");
    }
    parser->at++;
    skip_blanks(parser);
    return parse_number(parser, start, end, GPU_PARAMS_MAX, length);
}

/* What lies `length_count` arrays deep is at `type`, and parsed for each element of theirs. */
static gpulua_status parse_array(struct parser *parser, const char *at, const struct scope *scope,
                                 const char *name, const uint32_t *lengths, uint32_t length_count,
                                 const char *type, struct extent *extent) {
    if (length_count == 0) {
        parser->at = type;
        return parse_element(parser, at, scope, name, extent);
    }
    struct scope inner;
    struct gpu_part *part;
    *extent = (struct extent){.first = parser->signature->param_count, .alignment = 1};
    gpulua_status status = open_part(parser, at, scope, name, &inner, &part);
    if (status == GPULUA_OK) {
        part->length = (uint16_t)lengths[0];
    }
    for (uint32_t i = 0; i < lengths[0] && status == GPULUA_OK; i++) {
        struct extent element;
        char number[16];
        snprintf(number, sizeof number, "%u", i + 1);
        status =
            parse_array(parser, at, &inner, number, lengths + 1, length_count - 1, type, &element);
        if (status == GPULUA_OK) {
            status = place(parser, at, &element, &extent->byte_count);
            extent->alignment = element.alignment;
        }
    }
    return status != GPULUA_OK ? status : close_part(parser, at);
}

/* Behind the name, if there is one. */
static gpulua_status parse_declared(struct parser *parser, const char *at,
                                    const struct scope *scope, const char *name,
                                    struct extent *extent) {
    const char *type = parser->at;
    uint32_t param_count = parser->signature->param_count, part_count = parser->part_count;
    gpulua_status status = parse_element(parser, at, scope, name, extent);
    if (status != GPULUA_OK || *parser->at != '[') {
        return status;
    }
    if (scope->depth == 0) {
        return fail_at(parser, at, "an array is possible only in a structure");
    }
    uint32_t lengths[GPU_PARTS_DEEP], length_count = 0;
    while (status == GPULUA_OK && *parser->at == '[') {
        if (length_count == GPU_PARTS_DEEP) {
            return fail_at(parser, parser->at, "an array of more than %u dimensions",
                           GPU_PARTS_DEEP);
        }
        status = parse_length(parser, &lengths[length_count++]);
    }
    const char *end = parser->at;
    parser->signature->param_count = param_count;
    parser->part_count = part_count;
    if (status == GPULUA_OK) {
        status = parse_array(parser, at, scope, name, lengths, length_count, type, extent);
        parser->at = end;
    }
    return status;
}

static gpulua_status parse_item(struct parser *parser, struct scope *scope, struct extent *extent) {
    char name[sizeof parser->parts->name] = "";
    skip_blanks(parser);
    const char *at = parser->at;
    struct word word = take_word(parser);
    scope->count++;
    if (word.length > 0 && *parser->at == ':') {
        copy_cut(name, sizeof name, word.start, (size_t)word.length);
        parser->at++;
        skip_blanks(parser);
        if ((size_t)word.length >= sizeof name && (scope->depth > 0 || *parser->at == '{')) {
            return fail_at(parser, at, "a name, with those it is in, has at most %zu characters",
                           sizeof name - 1);
        }
    } else if (word.length > 0 && *parser->at == '?') {
        return fail_at(parser, parser->at, "a ':' or ',' was expected");
    } else {
        parser->at = at;
        if (scope->depth > 0 || *at == '{') { /* parts have names in any case */
            snprintf(name, sizeof name, "%u", scope->count);
        }
    }
    return parse_declared(parser, at, scope, name, extent);
}

static gpulua_status parse_all(struct parser *parser) {
    struct gpu_signature *signature = parser->signature;
    struct scope scope = {.depth = 0};
    skip_blanks(parser);
    while (*parser->at != '\0') {
        skip_blanks(parser);
        const char *start = parser->at;
        struct extent extent;
        gpulua_status status = parse_item(parser, &scope, &extent);
        if (status == GPULUA_OK) {
            status = place(parser, start, &extent, &signature->args_bytes);
        }
        if (status != GPULUA_OK) {
            return status;
        }
        struct gpu_param *first = &signature->params[extent.first];
        for (uint32_t i = extent.first; i < signature->param_count; i++) {
            signature->params[i].number = (uint16_t)scope.count;
            signature->params[i].whole_offset = signature->args_bytes - extent.byte_count;
            signature->params[i].whole_bytes = extent.byte_count;
        }
        if (is_context(first, extent.alignment)) {
            if (*parser->at != '\0') {
                return fail_at(parser, start,
                               "a " GPU_REPORT_CONTEXT_NAME " is the last parameter");
            }
            signature->has_context = true;
            signature->param_count--;
            parser->part_count--;
            return GPULUA_OK;
        }
        signature->number_count++;
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

static bool has_gaps(const struct gpu_signature *signature) {
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < signature->param_count + signature->has_context; i++) {
        bytes += signature->params[i].byte_count;
    }
    return bytes != signature->args_bytes;
}

/* What was parsed, in memory of its size. */
static struct gpu_signature *pack(const struct parser *parser) {
    const struct gpu_signature *from = parser->signature;
    size_t param_count = from->param_count + from->has_context;
    size_t part_count = parser->has_parts ? parser->part_count : 0;
    size_t bytes = sizeof *from + param_count * sizeof from->params[0];
    struct gpu_signature *packed = malloc(bytes + part_count * sizeof *parser->parts);
    if (packed != NULL) {
        memcpy(packed, from, bytes);
        packed->has_gaps = has_gaps(from);
        packed->part_count = (uint32_t)part_count;
        if (part_count > 0) {
            memcpy((uint8_t *)packed + bytes, parser->parts, part_count * sizeof *parser->parts);
        }
    }
    return packed;
}

gpulua_status gpu_signature_parse(const char *text, struct gpu_signature **signature,
                                  struct gpu_error *error) {
    struct parser parser = {.text = text, .at = text, .error = error};
    /* One more than may be counted: the gpulua_ctx. */
    parser.signature = calloc(1, sizeof *parser.signature +
                                     (GPU_PARAMS_MAX + 1) * sizeof parser.signature->params[0]);
    parser.parts = calloc(PARTS_MAX, sizeof *parser.parts);
    gpulua_status status = GPULUA_OUT_OF_MEMORY;
    struct gpu_signature *packed = NULL;
    if (parser.signature != NULL && parser.parts != NULL) {
        status = parse_all(&parser);
        packed = status == GPULUA_OK ? pack(&parser) : NULL;
    }
    if (packed != NULL) {
        *signature = packed;
    } else if (status == GPULUA_OK || status == GPULUA_OUT_OF_MEMORY) {
        status = gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a signature");
    }
    free(parser.signature);
    free(parser.parts);
    return status;
}

/* ---- parts ---- */

const struct gpu_part *gpu_part_behind(const struct gpu_part *part) {
    int depth = 0;
    do {
        depth += part->kind == GPU_PART_OPEN ? 1 : part->kind == GPU_PART_CLOSE ? -1 : 0;
        part++;
    } while (depth > 0);
    return part;
}

uint32_t gpu_part_values(const struct gpu_part *part, const struct gpu_part *end) {
    uint32_t count = 0;
    for (; part < end; part++) {
        count += part->kind == GPU_PART_VALUE;
    }
    return count;
}

/* ---- text ---- */

struct written {
    char *to;
    size_t room, length; /* so much there is, so much was wanted */
};

__attribute__((format(printf, 2, 3))) static void put(struct written *written, const char *format,
                                                      ...) {
    size_t at = written->length < written->room ? written->length : written->room;
    va_list arguments;
    va_start(arguments, format);
    char *to =
        written->to != NULL ? written->to + at : NULL; /* nothing is added to NULL, not even 0 */
    int length = vsnprintf(to, written->room - at, format, arguments);
    va_end(arguments);
    written->length += length > 0 ? (size_t)length : 0;
}

static void put_name(struct written *written, bool is_first, const char *name) {
    put(written, "%s", is_first ? "" : ", ");
    if (name[0] != '\0' && !is_digit(name[0])) { /* else it is its place */
        put(written, "%s: ", name);
    }
}

/* What is there for each element is said once, "f32[4][4]". */
static void put_type(struct written *written, const struct gpu_part *part,
                     const struct gpu_param *param) {
    const struct gpu_part *element = part;
    while (element->length > 0) {
        element++;
    }
    if (element->kind == GPU_PART_VALUE || element->text[0] != '\0') {
        put(written, "%s", element->text[0] != '\0' ? element->text : param->text);
    } else {
        put(written, "{");
        for (const struct gpu_part *next = element + 1; next->kind != GPU_PART_CLOSE;) {
            const struct gpu_part *field = next;
            next = gpu_part_behind(field);
            put_name(written, field == element + 1, field->name);
            put_type(written, field, param);
            param += gpu_part_values(field, next);
        }
        put(written, "}");
    }
    for (; part < element; part++) {
        put(written, "[%u]", (unsigned)part->length);
    }
}

size_t gpu_signature_write(const struct gpu_signature *signature, char *to, size_t room) {
    struct written written = {to, room, 0};
    put(&written, "%s", ""); /* ends it, also where there is nothing */
    const struct gpu_param *param = signature->params;
    const struct gpu_part *parts = gpu_signature_parts(signature), *part = parts;
    for (uint32_t i = 0; i < signature->param_count && signature->part_count == 0; i++) {
        put_name(&written, i == 0, param[i].name);
        put(&written, "%s", param[i].text);
    }
    while (part < parts + signature->part_count) {
        const struct gpu_part *next = gpu_part_behind(part);
        put_name(&written, part == parts, part->name);
        put_type(&written, part, param);
        param += gpu_part_values(part, next);
        part = next;
    }
    return written.length;
}

/* ---- finding ---- */

/* By name, or by its place among those beside it. */
static bool is_meant(const struct gpu_part *part, uint32_t place, const char *name, size_t bytes) {
    char number[16];
    int digits = snprintf(number, sizeof number, "%u", place);
    return (strlen(part->name) == bytes && memcmp(part->name, name, bytes) == 0) ||
           ((size_t)digits == bytes && memcmp(number, name, bytes) == 0);
}

uint32_t gpu_signature_find(const struct gpu_signature *signature, const char *path) {
    const struct gpu_part *part = gpu_signature_parts(signature);
    const struct gpu_part *end = part + signature->part_count;
    uint32_t param = 0, place = 1;
    while (part < end && part->kind != GPU_PART_CLOSE) {
        size_t bytes = strcspn(path, ".");
        bool is_opened = part->kind == GPU_PART_OPEN;
        const struct gpu_part *next = gpu_part_behind(part);
        if (is_meant(part, place, path, bytes) && is_opened == (path[bytes] == '.')) {
            if (!is_opened) {
                return param;
            }
            path += bytes + 1; /* into it */
            place = 0;
            next = part + 1;
        }
        param += gpu_part_values(part, next);
        part = next;
        place++;
    }
    return UINT32_MAX;
}
