/* Structures by value, from their definitions (structure.h).
 *
 * No compiler says of a structure what is in it. Its definition does where it is as plain as this:
 *
 *     struct NAME { { member } } ;   or   typedef struct [ NAME ] { { member } } NAME ;
 *     member     := { "const" | "volatile" } type declarator { "," declarator } ";"
 *     type       := the words of a number or a vector | [ "struct" ] NAME | "struct" { { member } }
 *     declarator := [ "*" { "const" | "__restrict__" } ] NAME { "[" NUMBER "]" }
 *
 * Anything else in it, a directive, a word that is a macro, a second definition of the name or one
 * that a condition may leave out, and it is left as it was. Sizes and offsets are held against what
 * the compiler says of the whole. */
#include "runtime/structure.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/module.h"
#include "runtime/report.h"
#include "runtime/writer.h"

#define SOURCE_BYTES_MAX 262144u /* nothing is looked for in a larger one */
#define TEXT_BYTES 8192u
#define WORDS_MAX 1024u
#define FINDS_MAX 32u /* structures of a signature, each time that they are there */
#define OPEN_MAX 64u

/* One of the source: a word, a number or a character. Of length 0: the end. */
struct token {
    const char *start;
    size_t length;
    bool is_word, is_directive; /* the whole line */
};

struct reader {
    const char *at;
    struct token token; /* the one to come */
};

/* What is written so far, of one parameter. */
struct result {
    const char *source;
    struct gpu_writer to;
    struct token words[WORDS_MAX]; /* that it was made of */
    uint32_t word_count;
    uint32_t *finds_left; /* of all parameters */
    bool is_plain;        /* nothing was found that is not told of above */
};

static bool is_word_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static const char *skip_line(const char *at) { /* with those that it goes on in */
    while (*at != '\0' && (*at != '\n' || at[-1] == '\\')) {
        at++;
    }
    return at;
}

/* Behind blanks and comments. */
static const char *skip_blanks(const char *at) {
    for (;;) {
        at += strspn(at, " \t\r\n\v\f\\");
        if (at[0] == '/' && at[1] == '/') {
            at = skip_line(at);
        } else if (at[0] == '/' && at[1] == '*') {
            const char *end = strstr(at + 2, "*/");
            at = end ? end + 2 : at + strlen(at);
        } else {
            return at;
        }
    }
}

static const char *skip_quoted(const char *at) {
    const char quote = *at++;
    while (*at != '\0' && *at != '\n' && *at != quote) {
        at += at[0] == '\\' && at[1] != '\0' ? 2 : 1;
    }
    return at + (*at == quote);
}

static void next(struct reader *reader) {
    const char *start = skip_blanks(reader->at), *at = start;
    bool is_word = is_word_char(*at);
    if (*at == '#') {
        at = skip_line(at);
    } else if (*at == '"' || *at == '\'') {
        at = skip_quoted(at);
    } else if (is_word) {
        while (is_word_char(*at)) {
            at++;
        }
    } else if (*at != '\0') {
        at++;
    }
    reader->at = at;
    reader->token = (struct token){.start = start,
                                   .length = (size_t)(at - start),
                                   .is_word = is_word,
                                   .is_directive = *start == '#'};
}

static bool token_is(struct token token, const char *text) {
    return strlen(text) == token.length && memcmp(token.start, text, token.length) == 0;
}

static bool is_same(struct token a, struct token b) {
    return a.length == b.length && memcmp(a.start, b.start, a.length) == 0;
}

static bool take(struct reader *reader, const char *text) {
    bool is = token_is(reader->token, text);
    if (is) {
        next(reader);
    }
    return is;
}

/* The word to come is used; and is gone past. */
static void use(struct result *result, struct reader *reader) {
    result->is_plain = result->is_plain && reader->token.is_word && result->word_count < WORDS_MAX;
    if (result->is_plain) {
        result->words[result->word_count++] = reader->token;
    }
    next(reader);
}

/* Is what "define" or "-D" is in front of, a word of the result? */
static bool is_used(const struct result *result, const char *at) {
    struct reader reader = {.at = at};
    next(&reader);
    bool is = false;
    for (uint32_t i = 0; i < result->word_count && !is; i++) {
        is = is_same(result->words[i], reader.token);
    }
    return is;
}

/* A word that is a macro stands for something else; and who packs says so in a directive, too. */
static bool has_macros(const struct result *result, const char *options) {
    bool has = false;
    struct reader reader = {.at = result->source};
    for (next(&reader); reader.token.length > 0 && !has; next(&reader)) {
        struct reader line = {.at = reader.token.start + reader.token.is_directive};
        next(&line);
        has = reader.token.is_directive &&
              (token_is(line.token, "pragma")
                   ? (next(&line), token_is(line.token, "pack"))
                   : token_is(line.token, "define") && is_used(result, line.at));
    }
    static const char *const marks[] = {"define ", "-D"};
    for (size_t i = 0; i < 2; i++) {
        for (const char *at = options; at && !has && (at = strstr(at, marks[i]));) {
            at += strlen(marks[i]);
            has = is_used(result, at);
        }
    }
    return has;
}

/* ---- types ---- */

static const struct {
    const char *c, *name;
} types[] = {{"void", "void"},
             {"bool", "u8"},
             {"char", "i8"},
             {"float", "f32"},
             {"double", "f64"},
             {"int8_t", "i8"},
             {"uint8_t", "u8"},
             {"int16_t", "i16"},
             {"uint16_t", "u16"},
             {"int32_t", "i32"},
             {"uint32_t", "u32"},
             {"int64_t", "i64"},
             {"uint64_t", "u64"},
             {"size_t", "u64"},
             {"__half", "f16"},
             {"half", "f16"},
             {"__half2", "f16x2"},
             {"__nv_bfloat16", "bf16"},
             {"__nv_bfloat162", "bf16x2"},
             {"dim3", "u32x3"}};
static const struct {
    const char *c, *name;
} vectors[] = {{"char", "i8"},      {"uchar", "u8"},      {"short", "i16"}, {"ushort", "u16"},
               {"int", "i32"},      {"uint", "u32"},      {"long", "i64"},  {"ulong", "u64"},
               {"longlong", "i64"}, {"ulonglong", "u64"}, {"float", "f32"}, {"double", "f64"}};

/* "float3" as "f32x3". */
static bool vector_name(struct token word, char *name, size_t room) {
    char lanes = word.length > 1 ? word.start[word.length - 1] : '\0';
    struct token element = {.start = word.start, .length = word.length - 1};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors && lanes >= '2' && lanes <= '4'; i++) {
        if (token_is(element, vectors[i].c)) {
            snprintf(name, room, "%sx%c", vectors[i].name, lanes);
            return true;
        }
    }
    return false;
}

/* "unsigned long long int" as "u64". */
static bool take_integer(struct result *result, struct reader *reader, char *name, size_t room) {
    static const char *const words[] = {"unsigned", "signed", "long", "short", "char", "int"};
    uint32_t seen = 0, all = sizeof words / sizeof *words;
    for (uint32_t i = 0; i < all; i++) {
        if (token_is(reader->token, words[i])) {
            seen |= 1u << i;
            use(result, reader);
            i = UINT32_MAX; /* from the first word on */
        }
    }
    result->is_plain = result->is_plain && !(seen && token_is(reader->token, "double"));
    if (seen) {
        snprintf(name, room, "%c%u", seen & 1u ? 'u' : 'i',
                 seen & 4u    ? 64u
                 : seen & 8u  ? 16u
                 : seen & 16u ? 8u
                              : 32u);
    }
    return seen != 0;
}

static bool take_number(struct result *result, struct reader *reader, char *name, size_t room) {
    if (take_integer(result, reader, name, room)) {
        return true;
    }
    bool is = vector_name(reader->token, name, room);
    for (size_t i = 0; i < sizeof types / sizeof *types && !is; i++) {
        is = token_is(reader->token, types[i].c);
        if (is) {
            snprintf(name, room, "%s", types[i].name);
        }
    }
    if (is) {
        use(result, reader);
    }
    return is;
}

/* ---- structures ---- */

/* 1: what follows the directive may be left out; -1: that ends. */
static int condition_of(struct token token) {
    struct reader line = {.at = token.start + 1};
    next(&line);
    bool begins = token_is(line.token, "if") || token_is(line.token, "ifdef") ||
                  token_is(line.token, "ifndef");
    return begins ? 1 : token_is(line.token, "endif") ? -1 : 0;
}

/* To behind the '{' of the one of that name. False: there is none, or not one alone, or it may be
 * left out. */
static bool find(struct result *result, struct reader *reader, struct token name) {
    struct token before = {.length = 0};
    const char *open[OPEN_MAX] = {NULL}, *closed = NULL, *found = NULL;
    uint32_t depth = 0, count = 0;
    int conditions = 0;
    reader->at = result->source;
    for (next(reader); reader->token.length > 0;) {
        struct token token = reader->token;
        uint32_t before_count = count;
        next(reader);
        if (token.is_directive) {
            conditions += condition_of(token);
        } else if (token_is(token, "{")) {
            open[depth++ % OPEN_MAX] = reader->token.start;
        } else if (token_is(token, "}")) {
            depth -= depth > 0;
            closed = open[depth % OPEN_MAX];
        } else if (is_same(token, name) && token_is(before, "}") && token_is(reader->token, ";")) {
            count += closed != found; /* "typedef struct NAME { ... } NAME;" is one */
            found = closed;
        } else if (is_same(token, name) && token_is(before, "struct") &&
                   token_is(reader->token, "{")) {
            count++;
            found = reader->at;
            found = skip_blanks(found);
        } else if (is_same(token, name) &&
                   (token_is(reader->token, "{") || token_is(reader->token, ":")) &&
                   (token_is(before, ")") || token_is(before, "struct") ||
                    token_is(before, "class") || token_is(before, "union"))) {
            count += 2; /* with attributes, a base, or members that are private */
        }
        count += count > before_count && conditions > 0 ? 2 : 0;
        before = token;
    }
    reader->at = found;
    if (count == 1) {
        next(reader);
    }
    return count == 1;
}

static void put_body(struct result *result, struct reader *reader);

static void put_named(struct result *result, struct token name) {
    struct reader reader = {.at = result->source};
    result->is_plain = result->is_plain && *result->finds_left > 0 && find(result, &reader, name);
    *result->finds_left -= *result->finds_left > 0;
    if (result->is_plain) {
        put_body(result, &reader);
    }
}

/* Behind the type, up to "," or ";". `name`: of the type; "" of a structure, which `put` is to
 * write. */
static void put_declarator(struct result *result, struct reader *reader, const char *name,
                           bool is_const, struct token structure, const char *body) {
    bool is_pointer = take(reader, "*");
    while (take(reader, "const") || take(reader, "__restrict__") || take(reader, "__restrict")) {}
    bool is_named =
        reader->token.is_word && !(*reader->token.start >= '0' && *reader->token.start <= '9');
    bool is_void = strcmp(name, "void") == 0;
    result->is_plain = result->is_plain && is_named && (is_pointer ? name[0] != '\0' : !is_void);
    gpu_put(&result->to, "%.*s: ", (int)reader->token.length, reader->token.start);
    use(result, reader);
    if (name[0] != '\0') {
        gpu_put(&result->to, "%s%s%s", is_pointer ? is_const ? "in " : "inout " : "", name,
                is_pointer ? "*" : "");
    } else if (body) {
        struct reader inner = {.at = body};
        next(&inner);
        put_body(result, &inner);
    } else {
        put_named(result, structure);
    }
    while (result->is_plain && take(reader, "[")) {
        struct token length = reader->token;
        gpu_put(&result->to, "[%.*s]", (int)length.length, length.start);
        result->is_plain = strspn(length.start, "0123456789") == length.length;
        use(result, reader);
        result->is_plain = take(reader, "]") && result->is_plain;
    }
}

/* Past the '}' that ends it. */
static void skip_body(struct reader *reader) {
    for (uint32_t depth = 1; depth > 0 && reader->token.length > 0; next(reader)) {
        depth += token_is(reader->token, "{") ? 1u : token_is(reader->token, "}") ? UINT32_MAX : 0;
    }
}

static void put_member(struct result *result, struct reader *reader) {
    struct token structure = {.length = 0};
    const char *body = NULL;
    char name[16] = "";
    bool is_const = false;
    while (token_is(reader->token, "const") || token_is(reader->token, "volatile")) {
        is_const |= take(reader, "const") || !take(reader, "volatile");
    }
    bool is_struct = take(reader, "struct");
    if (is_struct && token_is(reader->token, "{")) {
        body = reader->at;
        next(reader);
        skip_body(reader);
    } else if (is_struct || !take_number(result, reader, name, sizeof name)) {
        structure = reader->token;
        use(result, reader);
    }
    is_const |= take(reader, "const"); /* "float const *x" */
    do {
        put_declarator(result, reader, name, is_const, structure, body);
        result->is_plain = result->is_plain && result->to.length < TEXT_BYTES;
        if (token_is(reader->token, ",")) {
            gpu_put(&result->to, ", ");
        }
    } while (result->is_plain && take(reader, ","));
    result->is_plain = take(reader, ";") && result->is_plain;
}

/* The members, from the first on, in braces. */
static void put_body(struct result *result, struct reader *reader) {
    gpu_put(&result->to, "{ ");
    for (bool is_first = true; result->is_plain && !token_is(reader->token, "}");
         is_first = false) {
        gpu_put(&result->to, "%s", is_first ? "" : ", ");
        put_member(result, reader);
    }
    gpu_put(&result->to, " }");
}

/* ---- a whole signature ---- */

/* "?ns::NAME/16/8" at `at`: writes what it is, or that again. Returns its end. */
static const char *put_described(struct gpu_writer *to, const char *at, const char *source,
                                 const char *options, uint32_t *finds_left) {
    const char *end = at + strcspn(at, "/");
    const char *name = end;
    while (name > at + 1 && is_word_char(name[-1])) {
        name--;
    }
    const struct token context = {.start = GPU_REPORT_CONTEXT_NAME,
                                  .length = sizeof GPU_REPORT_CONTEXT_NAME - 1};
    const char *behind = end + strspn(end, "/0123456789");
    struct result *result = name < end ? calloc(1, sizeof *result) : NULL;
    char *text = result ? malloc(TEXT_BYTES) : NULL;
    bool is_whole =
        text && !memchr(at, '<', (size_t)(end - at)) &&
        !is_same((struct token){.start = name, .length = (size_t)(end - name)}, context);
    if (is_whole) {
        *result = (struct result){.source = source,
                                  .to = {.text = text, .room = TEXT_BYTES},
                                  .finds_left = finds_left,
                                  .is_plain = true};
        put_named(result, (struct token){.start = name, .length = (size_t)(end - name)});
        is_whole =
            result->is_plain && result->to.length < TEXT_BYTES && !has_macros(result, options);
    }
    if (is_whole) {
        gpu_put(to, "%s", text);
    } else {
        gpu_put(to, "%.*s", (int)(behind - at), at);
    }
    free(text);
    free(result);
    return behind;
}

/* Do the kernel's parameters lie alike? */
static bool lies_alike(const struct gpu_signature *a, const struct gpu_signature *b) {
    bool is = a->args_bytes == b->args_bytes && a->number_count == b->number_count &&
              a->has_context == b->has_context;
    for (uint32_t i = 0, k = 0; is && i < a->param_count; i++) {
        while (k < b->param_count && b->params[k].number < a->params[i].number) {
            k++;
        }
        is = k < b->param_count && b->params[k].number == a->params[i].number &&
             b->params[k].whole_offset == a->params[i].whole_offset &&
             b->params[k].whole_bytes == a->params[i].whole_bytes;
    }
    return is;
}

static struct gpu_signature *parse(const char *text) {
    struct gpu_signature *signature = NULL;
    struct gpu_error ignored = {0};
    if (gpu_signature_parse(text, &signature, &ignored)) {
        gpu_error_finish(&ignored);
        return NULL;
    }
    return signature;
}

struct gpu_signature *gpu_structures_signature(const char *described, const char *source,
                                               const char *options) {
    struct gpu_writer to = {.room = strlen(described) + 1 + GPU_PARAMS_MAX * TEXT_BYTES / 16};
    to.text = strchr(described, '?') && strlen(source) < SOURCE_BYTES_MAX ? malloc(to.room) : NULL;
    if (!to.text) {
        return NULL;
    }
    uint32_t finds_left = FINDS_MAX;
    for (const char *at = described; *at != '\0';) {
        if (*at == '?') {
            at = put_described(&to, at, source, options, &finds_left);
        } else {
            gpu_put(&to, "%c", *at++);
        }
    }
    struct gpu_signature *made =
        to.length < to.room && strcmp(to.text, described) != 0 ? parse(to.text) : NULL;
    struct gpu_signature *wanted = made ? parse(described) : NULL;
    if (!wanted || !lies_alike(wanted, made)) {
        free(made);
        made = NULL;
    }
    free(wanted);
    free(to.text);
    return made;
}
