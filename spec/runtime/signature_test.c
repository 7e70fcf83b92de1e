/* Signatures: what each part means, every refusal and its position, and hostile texts. */
#include "runtime/module.h"
#include "runtime/report.h"

#include <stdlib.h>
#include <string.h>

#include "backend/tap.h"

/* One line for each parameter: "name|kind type lanes access out offset+bytes|text". */
static void describe(const struct gpu_signature *signature, char *to, size_t to_bytes) {
    static const char *const kinds[] = {"value", "pointer", "unsupported"};
    size_t used = (size_t)snprintf(to, to_bytes, "%u:", signature->args_bytes);
    for (uint32_t i = 0; i < signature->param_count && used < to_bytes; i++) {
        const struct gpu_param *p = &signature->params[i];
        used += (size_t)snprintf(to + used, to_bytes - used, " %s|%s %s %u %u %d %u+%u|%s", p->name,
                                 kinds[p->kind],
                                 p->type < GPU_TYPE_COUNT ? gpu_type_name(p->type) : "-", p->lanes,
                                 p->access, p->is_out, p->byte_offset, p->byte_count, p->text);
    }
}

static void test_good(struct tap *tap) {
    static const struct {
        const char *text, *wanted;
    } cases[] = {
        {"", "0:"},
        {"  \t\n", "0:"},
        {"i32", "4: |value i32 1 0 0 0+4|i32"},
        {"n: i32, a: f32, x: in f32*, y: inout f32*",
         "24: n|value i32 1 0 0 0+4|i32 a|value f32 1 0 0 4+4|f32 x|pointer f32 1 1 0 8+8|in f32*"
         " y|pointer f32 1 3 0 16+8|inout f32*"},
        {"f32*", "8: |pointer f32 1 3 0 0+8|inout f32*"},
        {" out : out f32x4 * ", "8: out|pointer f32 4 2 1 0+8|out f32x4*"},
        {"in: i8", "1: in|value i8 1 0 0 0+1|i8"},
        {"in void*,out void*,void*",
         "24: |pointer - 1 1 0 0+8|in void* |pointer - 1 2 1 8+8|out void*"
         " |pointer - 1 3 0 16+8|inout void*"},
        {"i8,i16,i8,i32,i8,i64,u8,f16,bf16,f64",
         "40: |value i8 1 0 0 0+1|i8 |value i16 1 0 0 2+2|i16 |value i8 1 0 0 4+1|i8"
         " |value i32 1 0 0 8+4|i32 |value i8 1 0 0 12+1|i8 |value i64 1 0 0 16+8|i64"
         " |value u8 1 0 0 24+1|u8 |value f16 1 0 0 26+2|f16 |value bf16 1 0 0 28+2|bf16"
         " |value f64 1 0 0 32+8|f64"},
        {"i8, c128, c64", "40: |value i8 1 0 0 0+1|i8 |value c128 1 0 0 16+16|c128"
                          " |value c64 1 0 0 32+8|c64"},
        {"in f16x2*, f64x2*, u8x3*", "24: |pointer f16 2 1 0 0+8|in f16x2*"
                                     " |pointer f64 2 3 0 8+8|inout f64x2*"
                                     " |pointer u8 3 3 0 16+8|inout u8x3*"},
        {"x: in c64*", "8: x|pointer c64 1 1 0 0+8|in c64*"},
        {"?Params/24/8", "24: |unsupported - 1 0 0 0+24|Params"},
        {"i32, p: ?std::pair<int, a/b>/12/4, f32",
         "20: |value i32 1 0 0 0+4|i32 p|unsupported - 1 0 0 4+12|std::pair<int, a/b>"
         " |value f32 1 0 0 16+4|f32"},
        {"f: ?void (*)(int, float)/8/8 , i8",
         "9: f|unsupported - 1 0 0 0+8|void (*)(int, float) |value i8 1 0 0 8+1|i8"},
        {"gpulua_ctx", "104:"},
        {"n: i32, x: in f32*, ctx: ?gpulua_ctx/104/8",
         "120: n|value i32 1 0 0 0+4|i32 x|pointer f32 1 1 0 8+8|in f32*"},
        {"i32, gpulua_ctx ", "112: |value i32 1 0 0 0+4|i32"},
        {"?gpulua_ctx/24/8", "24: |unsupported - 1 0 0 0+24|gpulua_ctx"},
        {"i32, ?gpulua_ctx/104/4",
         "108: |value i32 1 0 0 0+4|i32 |unsupported - 1 0 0 4+104|gpulua_ctx"},
        {"i8, ?big/64/64", "128: |value i8 1 0 0 0+1|i8 |unsupported - 1 0 0 64+64|big"},
        {"f32x4", "16: 1.x|value f32 1 0 0 0+4|f32 1.y|value f32 1 0 0 4+4|f32"
                  " 1.z|value f32 1 0 0 8+4|f32 1.w|value f32 1 0 0 12+4|f32"},
        {"i8, v: f32x3, i8, u: f64x2",
         "48: |value i8 1 0 0 0+1|i8 v.x|value f32 1 0 0 4+4|f32 v.y|value f32 1 0 0 8+4|f32"
         " v.z|value f32 1 0 0 12+4|f32 |value i8 1 0 0 16+1|i8 u.x|value f64 1 0 0 32+8|f64"
         " u.y|value f64 1 0 0 40+8|f64"},
        {"n: i32, p: { a: i8, x: in f32*, b: i16 }, m: i8",
         "33: n|value i32 1 0 0 0+4|i32 p.a|value i8 1 0 0 8+1|i8 p.x|pointer f32 1 1 0 16+8|in "
         "f32* p.b|value i16 1 0 0 24+2|i16 m|value i8 1 0 0 32+1|i8"},
        {"{i32,{i8,f64},q:{u8}},{i16[3], u8}",
         "40: 1.1|value i32 1 0 0 0+4|i32 1.2.1|value i8 1 0 0 8+1|i8 1.2.2|value f64 1 0 0 "
         "16+8|f64"
         " 1.q.1|value u8 1 0 0 24+1|u8 2.1.1|value i16 1 0 0 32+2|i16"
         " 2.1.2|value i16 1 0 0 34+2|i16 2.1.3|value i16 1 0 0 36+2|i16"
         " 2.2|value u8 1 0 0 38+1|u8"},
        {"p: {v: u8x4[2], s: i8}", "12: p.v.1.x|value u8 1 0 0 0+1|u8 p.v.1.y|value u8 1 0 0 1+1|u8"
                                   " p.v.1.z|value u8 1 0 0 2+1|u8 p.v.1.w|value u8 1 0 0 3+1|u8"
                                   " p.v.2.x|value u8 1 0 0 4+1|u8 p.v.2.y|value u8 1 0 0 5+1|u8"
                                   " p.v.2.z|value u8 1 0 0 6+1|u8 p.v.2.w|value u8 1 0 0 7+1|u8"
                                   " p.s|value i8 1 0 0 8+1|i8"},
        {"p: {q: {a: i8, b: i32}[2], c: i8}",
         "20: p.q.1.a|value i8 1 0 0 0+1|i8 p.q.1.b|value i32 1 0 0 4+4|i32"
         " p.q.2.a|value i8 1 0 0 8+1|i8 p.q.2.b|value i32 1 0 0 12+4|i32"
         " p.c|value i8 1 0 0 16+1|i8"},
        {"p: {i16 [ 2 ][2], in f32*[2]}",
         "24: p.1.1.1|value i16 1 0 0 0+2|i16 p.1.1.2|value i16 1 0 0 2+2|i16"
         " p.1.2.1|value i16 1 0 0 4+2|i16 p.1.2.2|value i16 1 0 0 6+2|i16"
         " p.2.1|pointer f32 1 1 0 8+8|in f32* p.2.2|pointer f32 1 1 0 16+8|in f32*"},
        {"{{u8[2], u16}[1][2]}",
         "8: 1.1.1.1.1.1|value u8 1 0 0 0+1|u8 1.1.1.1.1.2|value u8 1 0 0 1+1|u8"
         " 1.1.1.1.2|value u16 1 0 0 2+2|u16 1.1.1.2.1.1|value u8 1 0 0 4+1|u8"
         " 1.1.1.2.1.2|value u8 1 0 0 5+1|u8 1.1.1.2.2|value u16 1 0 0 6+2|u16"},
        {"{i32}, gpulua_ctx", "112: 1.1|value i32 1 0 0 0+4|i32"},
        {"a_very_long_parameter_name_that_does_not_fit_in_the_field: i32",
         "4: a_very_long_parameter_name_that_does_not_fit...|value i32 1 0 0 0+4|i32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gpu_signature *signature = NULL;
        struct gpu_error error = {0};
        char got[1024] = "refused";
        if (gpu_signature_parse(cases[i].text, &signature, &error) == GPULUA_OK) {
            describe(signature, got, sizeof got);
            uint32_t bytes = signature->has_context ? sizeof(struct gpu_report_context) : 0;
            for (uint32_t k = 0; k < signature->param_count; k++) {
                bytes += signature->params[k].byte_count;
            }
            tap_check(tap, signature->has_gaps == (bytes != signature->args_bytes), "and its gaps");
        }
        char name[160];
        snprintf(name, sizeof name, "good: '%s'", i == 1 ? "only blanks" : cases[i].text);
        if (!tap_equal(tap, got, cases[i].wanted, name)) {
            printf("# %s\n", error.message);
        }
        free(signature);
    }
}

static bool is_refused(const char *text, int position, const char *part, char *message,
                       size_t message_bytes) {
    struct gpu_signature *untouched = (struct gpu_signature *)(uintptr_t)64;
    struct gpu_signature *signature = untouched;
    struct gpu_error error = {0};
    gpulua_status status = gpu_signature_parse(text, &signature, &error);
    char wanted[32];
    snprintf(wanted, sizeof wanted, "position %d:", position);
    snprintf(message, message_bytes, "%s", error.message);
    if (status == GPULUA_OK) {
        free(signature);
        return false;
    }
    return status == GPULUA_INVALID_ARGUMENT && error.code == status && signature == untouched &&
           strstr(error.message, wanted) != NULL && strstr(error.message, part) != NULL;
}

static void test_bad(struct tap *tap) {
    static const struct {
        const char *text;
        int position;
        const char *part;
    } cases[] = {
        {"i33", 1, "'i33'"},
        {"gpulua_ctx, i32", 1, "the last parameter"},
        {"i32, ?gpulua_ctx/104/8, i32", 6, "the last parameter"},
        {"gpulua_ctx*", 1, "'gpulua_ctx'"},
        {"in gpulua_ctx", 4, "'gpulua_ctx'"},
        {"n: i32, x: in float*", 15, "'float'"},
        {"i32,", 5, "parameter was expected"},
        {",i32", 1, "type was expected"},
        {"i32,,f32", 5, "type was expected"},
        {"i32 f32", 5, "',' or the end"},
        {"i32; f32", 4, "',' or the end"},
        {"n:", 3, "type was expected"},
        {"n: , i32", 4, "type was expected"},
        {": i32", 1, "type was expected"},
        {"3: i32", 1, "type was expected"},
        {"n: m: i32", 4, "'m'"},
        {"void", 1, "void*"},
        {"in i32", 4, "by value"},
        {"out f64", 5, "by value"},
        {"in", 3, "type was expected"},
        {"in out f32*", 4, "'out'"},
        {"const f32*", 1, "'const'"},
        {"f32**", 5, "pointers to pointers"},
        {"in f32* *", 9, "pointers to pointers"},
        {"in f32x4", 4, "by value"},
        {"f32[3]", 1, "only in a structure"},
        {"{", 2, "type was expected"},
        {"{}", 2, "type was expected"},
        {"{i32", 5, "',' or '}' was expected"},
        {"{i32,}", 6, "type was expected"},
        {"{i32}}", 6, "',' or the end"},
        {"i32}", 4, "',' or the end"},
        {"p: i32 {f32}", 8, "',' or the end"},
        {"p {f32}", 1, "unknown type 'p'"},
        {"in {f32}", 4, "type was expected"},
        {"p: {a: i32, a: f32}", 13, "'a' is there twice"},
        {"a: {x: f32}, a: f32", 14, "'a' is there twice"},
        {"p: {b: f32, b: f32x2}", 13, "'b' is there twice"},
        {"p: {a: f32, a: {z: f32}}", 16, "'a' is there twice"},
        {"p: {fffffffffffffffffffffffffffffffffffffffffffffffff: f32}", 5, "at most 47"},
        {"p: {ffffffffffffffffffffffff: {gggggggggggggggggggggggg: f32}}", 32, "at most 47"},
        {"p: {a: f32[0]}", 12, "0"},
        {"p: {a: f32[129]}", 12, "too large"},
        {"p: {a: f32[99999999999]}", 12, "too large"},
        {"p: {a: f32[}", 12, "a number was expected"},
        {"p: {a: f32[3}", 13, "']' was expected"},
        {"p: {a: f32[3 4]}", 14, "']' was expected"},
        {"p: {a: f32[]}", 12, "a number is missing"},
        {"p: {a: f32[-1]}", 12, "a number was expected"},
        {"p: {a: f32[2][0]}", 15, "0"},
        {"p: {a: f32[2] [2}", 17, "']' was expected"},
        {"p: {a: f32[128], b: i8}", 18, "more than 128"},
        {"p: {a: f32[16][9]}", 5, "more than 128"},
        {"p: {a: {x: i8, y: i8}[65]}", 9, "more than 128"},
        {"p: {a: f32[2]*}", 14, "',' or '}'"},
        {"p: {a: f32}[2]", 1, "only in a structure"},
        {"in f32*[2]", 1, "only in a structure"},
        {"?T/4/4[2]", 7, "digit"},
        {"p: {a: i8[1][1][1][1][1][1][1][1][1][1]}", 5, "more than 10 deep"},
        {"p: {a: i8[1][1][1][1][1][1][1][1][1][1][1]}", 40, "more than 10 dimensions"},
        {"p: {c: gpulua_ctx}", 5, "last parameter"},
        {"p: {c: ?T/4/4}", 8, "type was expected"},
        {"{{{{{{{{{{{i32}}}}}}}}}}}", 11, "more than 10 deep"},
        {"in f32x5*", 4, "x2, x3 or x4"},
        {"in f32x*", 4, "x2, x3 or x4"},
        {"in f32x1*", 4, "x2, x3 or x4"},
        {"in f32x22*", 4, "x2, x3 or x4"},
        {"in c64x2*", 4, "x2, x3 or x4"},
        {"x: i32, x: f32", 9, "twice"},
        {"*", 1, "type was expected"},
        {"i32 *x", 6, "',' or the end"},
        {"?", 2, "?C-TYPE"},
        {"?T", 2, "?C-TYPE"},
        {"?T/8", 2, "?C-TYPE"},
        {"?/8/8", 2, "?C-TYPE"},
        {"?T//8", 4, "missing"},
        {"?T/8/", 6, "missing"},
        {"?T/8x/8", 5, "digit"},
        {"?T/0/8", 4, "is 0"},
        {"?T/8/0", 6, "is 0"},
        {"?T/8/3", 6, "power of two"},
        {"?T/4097/8", 4, "too large"},
        {"?T/99999999999999999999/8", 4, "too large"},
        {"n ?T/8/8", 3, "':' or ','"},
        {"?A/4096/8, i8", 12, "4096 bytes"},
        {"\xC3\xA9", 1, "type was expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char message[1024];
        char name[160];
        snprintf(name, sizeof name, "bad: '%s' at %d", cases[i].text, cases[i].position);
        if (!tap_check(tap,
                       is_refused(cases[i].text, cases[i].position, cases[i].part, message,
                                  sizeof message),
                       name)) {
            printf("# %s\n", message);
        }
    }
}

static void test_limits(struct tap *tap) {
    char text[GPU_PARAMS_MAX * 4 + 16] = "";
    for (unsigned i = 0; i < GPU_PARAMS_MAX; i++) {
        strcat(text, i == 0 ? "i8" : ",i8");
    }
    struct gpu_signature *signature = NULL;
    struct gpu_error error = {0};
    gpulua_status status = gpu_signature_parse(text, &signature, &error);
    tap_check(tap,
              status == GPULUA_OK && signature->param_count == GPU_PARAMS_MAX &&
                  signature->args_bytes == GPU_PARAMS_MAX,
              "128 parameters are accepted");
    free(signature);
    int position = (int)strlen(text) + 2;
    strcat(text, ",i8");
    char message[1024];
    tap_check(tap, is_refused(text, position, "more than 128", message, sizeof message),
              "a 129th is refused");
    status = gpu_signature_parse("?A/4096/8", &signature, &error);
    tap_check(tap, status == GPULUA_OK && signature->args_bytes == 4096,
              "4096 bytes of arguments are accepted");
    free(signature);

    /* A text longer than any message: the position is still there. */
    static char longer[8192];
    memset(longer, ' ', sizeof longer - 1);
    memcpy(longer + 5000, "i31", 3);
    tap_check(tap, is_refused(longer, 5001, "'i31'", message, sizeof message),
              "a message that had to be cut keeps its position");
}

static uint64_t random_next(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

/* What is opened is closed, and there is a value for each parameter. */
static bool is_balanced(const struct gpu_signature *signature) {
    const struct gpu_part *parts = gpu_signature_parts(signature);
    uint32_t values = 0, depth = 0;
    for (uint32_t i = 0; i < signature->part_count; i++) {
        if (parts[i].kind == GPU_PART_CLOSE && depth-- == 0) {
            return false;
        }
        depth += parts[i].kind == GPU_PART_OPEN;
        values += parts[i].kind == GPU_PART_VALUE;
    }
    return depth == 0 && (signature->part_count == 0 || values == signature->param_count);
}

/* Texts of the grammar's own pieces, some replaced by arbitrary bytes. What is accepted must be
 * consistent; what is refused must name a position inside the text. */
static void test_fuzz(struct tap *tap) {
    static const char *const pieces[] = {
        "i32",   "f32",   "in ", "out ", "inout ", "*",   ",",   ":",    " ",      "x",
        "f32x4", "?",     "/",   "8",    "<",      ">",   "(",   "void", "c64",    "name",
        "u8",    "99999", "/4",  "/8/8", "?T/4/4", "n: ", ", ",  "i8",   "bf16x2", "\t",
        "in",    "f64*",  "{",   "}",    "{n:",    "},",  "[2]", "}[2]"};
    uint64_t seed = UINT64_C(0x2545F4914F6CDD1D);
    unsigned accepted = 0;
    unsigned refused = 0;
    unsigned wrong = 0;
    for (int round = 0; round < 100000; round++) {
        char text[256] = "";
        uint64_t count = random_next(&seed) % 14;
        for (uint64_t i = 0; i < count; i++) {
            strcat(text, pieces[random_next(&seed) % (sizeof pieces / sizeof pieces[0])]);
        }
        if (random_next(&seed) % 4 == 0 && text[0] != '\0') {
            text[random_next(&seed) % strlen(text)] = (char)(1 + random_next(&seed) % 255);
        }
        /* On the heap with no slack, so that a sanitizer sees a read past the end. */
        size_t bytes = strlen(text) + 1;
        char *exact = malloc(bytes);
        memcpy(exact, text, bytes);
        struct gpu_signature *signature = NULL;
        struct gpu_error error = {0};
        if (gpu_signature_parse(exact, &signature, &error) == GPULUA_OK) {
            accepted++;
            uint32_t end = 0, whole_end = 0;
            for (uint32_t i = 0; i < signature->param_count; i++) {
                const struct gpu_param *param = &signature->params[i];
                whole_end = param->whole_offset + param->whole_bytes;
                wrong += param->byte_offset < param->whole_offset ||
                         param->byte_offset + param->byte_count > whole_end ||
                         param->number > signature->number_count || param->byte_offset < end ||
                         param->byte_count == 0 || param->text[0] == '\0' ||
                         (param->access != 0) != (param->kind == GPU_PARAM_POINTER);
                end = param->byte_offset + param->byte_count;
            }
            wrong += whole_end != signature->args_bytes;
            wrong += !is_balanced(signature);
            free(signature);
        } else {
            refused++;
            size_t position = 0;
            wrong += sscanf(error.message, "signature, position %zu:", &position) != 1 ||
                     position < 1 || position > bytes;
        }
        free(exact);
    }
    printf("# %u accepted, %u refused\n", accepted, refused);
    tap_check(tap, wrong == 0 && accepted > 1000 && refused > 1000, "fuzz: 100,000 texts");
}

int main(void) {
    struct tap tap = {0};
    test_good(&tap);
    test_bad(&tap);
    test_limits(&tap);
    test_fuzz(&tap);
    return tap_finish(&tap);
}
