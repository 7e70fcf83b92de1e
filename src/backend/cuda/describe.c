/* What a source defines, asked of the compiler (see describe.h).
 *
 * Everything in the section begins with gpulua_, because it stands behind the user's text and under
 * the user's macros. It is C++14: a user may ask for that. */
#include "backend/cuda/describe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KERNEL_ARRAY "gpulua_described_kernel_"
#define GLOBAL_ARRAY "gpulua_described_global_"

/* Words of the language that the section uses, in case the user's text has macros of these names.
 */
static const char *const section_words[] = {
    "auto",   "bool",     "char",     "class",  "const",  "constexpr", "decltype", "double",
    "else",   "extern",   "float",    "for",    "if",     "int",       "long",     "nullptr",
    "return", "short",    "signed",   "sizeof", "static", "struct",    "template", "typedef",
    "type",   "typename", "unsigned", "void",   "while"};

/* The name of a C type is what the compiler prints for it: "... [with T = TYPE]". Blanks behind
 * commas and before stars are left out, so that compilers agree on more of them. */
static const char section_head[] =
    "#pragma nv_diag_suppress 1444\n" /* double4 and kin are deprecated since CUDA 13 */
    "struct __half; struct __half2; struct __nv_bfloat16; struct __nv_bfloat162;\n"
    "template <class> struct gpulua_tag {};\n"
    "template <class...> struct gpulua_list {};\n"
    "template <class... gpulua_p> __device__ gpulua_list<gpulua_p...>\n"
    "gpulua_params(void (*)(gpulua_p...));\n"
    "struct gpulua_out { char *gpulua_to; unsigned long gpulua_at; };\n"
    "template <unsigned long gpulua_n> struct gpulua_text { char gpulua_bytes[gpulua_n]; };\n"
    "__device__ constexpr void gpulua_put_char(gpulua_out &gpulua_o, char gpulua_c) {\n"
    "  if (gpulua_o.gpulua_to) { gpulua_o.gpulua_to[gpulua_o.gpulua_at] = gpulua_c; }\n"
    "  gpulua_o.gpulua_at++;\n"
    "}\n"
    "__device__ constexpr void gpulua_put(gpulua_out &gpulua_o, const char *gpulua_s) {\n"
    "  while (*gpulua_s) { gpulua_put_char(gpulua_o, *gpulua_s++); }\n"
    "}\n"
    "__device__ constexpr void gpulua_put_number(gpulua_out &gpulua_o, unsigned long gpulua_v) {\n"
    "  if (gpulua_v > 9) { gpulua_put_number(gpulua_o, gpulua_v / 10); }\n"
    "  gpulua_put_char(gpulua_o, char('0' + gpulua_v % 10));\n"
    "}\n"
    "template <class gpulua_t> __device__ constexpr const char *gpulua_pretty() {\n"
    "  return __PRETTY_FUNCTION__;\n"
    "}\n"
    "template <class gpulua_t> struct gpulua_held { gpulua_t gpulua_v; };\n" /* a reference, too */
    "template <class gpulua_t> __device__ constexpr void gpulua_put_other(gpulua_out &gpulua_o) {\n"
    "  const char *gpulua_s = gpulua_pretty<gpulua_t>();\n"
    "  while (gpulua_s[0] != ' ' || gpulua_s[1] != '=' || gpulua_s[2] != ' ') { gpulua_s++; }\n"
    "  gpulua_s += 3;\n"
    "  unsigned long gpulua_n = 0;\n"
    "  for (unsigned long gpulua_i = 0; gpulua_s[gpulua_i]; gpulua_i++) {\n"
    "    if (gpulua_s[gpulua_i] == ']') { gpulua_n = gpulua_i; }\n"
    "  }\n"
    "  gpulua_put_char(gpulua_o, '?');\n"
    "  for (unsigned long gpulua_i = 0; gpulua_i < gpulua_n; gpulua_i++) {\n"
    "    bool gpulua_skip = gpulua_s[gpulua_i] == ' ' &&\n"
    "      ((gpulua_i > 0 && gpulua_s[gpulua_i - 1] == ',') || gpulua_s[gpulua_i + 1] == '*');\n"
    "    if (!gpulua_skip) { gpulua_put_char(gpulua_o, gpulua_s[gpulua_i]); }\n"
    "  }\n"
    "  typedef gpulua_held<gpulua_t> gpulua_h;\n"
    "  gpulua_put_char(gpulua_o, '/'); gpulua_put_number(gpulua_o, sizeof(gpulua_h));\n"
    "  gpulua_put_char(gpulua_o, '/'); gpulua_put_number(gpulua_o, alignof(gpulua_h));\n"
    "}\n"
    "template <class gpulua_t> struct gpulua_plain {\n"
    "  typedef gpulua_t type; static constexpr bool gpulua_const = false; };\n"
    "template <class gpulua_t> struct gpulua_plain<const gpulua_t> {\n"
    "  typedef gpulua_t type; static constexpr bool gpulua_const = true; };\n"
    "template <class gpulua_t> struct gpulua_plain<volatile gpulua_t> {\n"
    "  typedef gpulua_t type; static constexpr bool gpulua_const = false; };\n"
    "template <class gpulua_t> struct gpulua_plain<const volatile gpulua_t> {\n"
    "  typedef gpulua_t type; static constexpr bool gpulua_const = true; };\n"
    "template <class gpulua_t>\n"
    "__device__ constexpr const char *gpulua_scalar(gpulua_tag<gpulua_t>) { return nullptr; }\n"
    "template <class gpulua_t>\n"
    "__device__ constexpr const char *gpulua_vector(gpulua_tag<gpulua_t>) { return nullptr; }\n";

/* Behind the tables of types. */
static const char section_tail[] =
    /* An enumeration is the number that it is kept as. */
    "template <class gpulua_t, bool = __is_enum(gpulua_t)> struct gpulua_number {\n"
    "  typedef gpulua_t type; };\n"
    "template <class gpulua_t> struct gpulua_number<gpulua_t, true> {\n"
    "  typedef __underlying_type(gpulua_t) type; };\n"
    "template <class gpulua_t>\n"
    "__device__ constexpr void gpulua_put_param(gpulua_out &gpulua_o, gpulua_tag<gpulua_t>) {\n"
    "  typedef typename gpulua_number<gpulua_t>::type gpulua_u;\n"
    "  const char *gpulua_s = gpulua_scalar(gpulua_tag<gpulua_u>());\n"
    "  if (!gpulua_s && alignof(gpulua_t) <= 16) {\n"
    "    gpulua_s = gpulua_vector(gpulua_tag<gpulua_t>());\n"
    "  }\n"
    "  if (gpulua_s) { gpulua_put(gpulua_o, gpulua_s); }\n"
    "  else { gpulua_put_other<gpulua_t>(gpulua_o); }\n"
    "}\n"
    "template <class gpulua_t>\n"
    "__device__ constexpr void gpulua_put_param(gpulua_out &gpulua_o, gpulua_tag<gpulua_t *>) {\n"
    "  typedef typename gpulua_number<typename gpulua_plain<gpulua_t>::type>::type gpulua_u;\n"
    "  const char *gpulua_s = gpulua_scalar(gpulua_tag<gpulua_u>());\n"
    "  if (!gpulua_s) { gpulua_s = gpulua_vector(gpulua_tag<gpulua_u>()); }\n"
    "  if (!gpulua_s) { gpulua_put_other<gpulua_t *>(gpulua_o); return; }\n"
    "  gpulua_put(gpulua_o, gpulua_plain<gpulua_t>::gpulua_const ? \"in \" : \"inout \");\n"
    "  gpulua_put(gpulua_o, gpulua_s);\n"
    "  gpulua_put_char(gpulua_o, '*');\n"
    "}\n"
    "template <class... gpulua_p>\n"
    "__device__ constexpr void gpulua_put_all(gpulua_out &gpulua_o, gpulua_list<gpulua_p...>) {\n"
    "  int gpulua_order[] = {0, (gpulua_put_param(gpulua_o, gpulua_tag<gpulua_p>()),\n"
    "                            gpulua_put_char(gpulua_o, '\\n'), 0)...};\n"
    "  (void)gpulua_order;\n"
    "}\n"
    "template <class gpulua_t> struct gpulua_element { typedef gpulua_t type; };\n"
    "template <class gpulua_t, unsigned long gpulua_n> struct gpulua_element<gpulua_t[gpulua_n]> "
    "{\n"
    "  typedef typename gpulua_element<gpulua_t>::type type; };\n"
    /* Of managed variables the type can only be had with a reference around it. */
    "template <class gpulua_t> struct gpulua_direct { typedef gpulua_t type; };\n"
    "template <class gpulua_t> struct gpulua_direct<gpulua_t &> { typedef gpulua_t type; };\n"
    /* A variable: element type and count. Of vectors the parts count, of anything else the bytes.
     */
    "template <class gpulua_t>\n"
    "__device__ constexpr void gpulua_put_all(gpulua_out &gpulua_o, gpulua_tag<gpulua_t>) {\n"
    "  typedef typename gpulua_element<gpulua_t>::type gpulua_e;\n"
    "  typedef typename gpulua_plain<gpulua_e>::type gpulua_u;\n"
    "  const char *gpulua_s = gpulua_scalar(gpulua_tag<gpulua_u>());\n"
    "  const char *gpulua_v = gpulua_vector(gpulua_tag<gpulua_u>());\n"
    "  unsigned long gpulua_n = sizeof(gpulua_t);\n"
    "  if (gpulua_s) { gpulua_put(gpulua_o, gpulua_s); gpulua_n /= sizeof(gpulua_u); }\n"
    "  else if (gpulua_v) {\n"
    "    unsigned long gpulua_lanes = 0;\n"
    "    for (; *gpulua_v != 'x'; gpulua_v++) { gpulua_put_char(gpulua_o, *gpulua_v); }\n"
    "    gpulua_lanes = (unsigned long)(gpulua_v[1] - '0');\n"
    "    gpulua_n = gpulua_n / sizeof(gpulua_u) * gpulua_lanes;\n"
    "  } else { gpulua_put(gpulua_o, \"u8\"); }\n"
    "  gpulua_put_char(gpulua_o, ' '); gpulua_put_number(gpulua_o, gpulua_n);\n"
    "  gpulua_put(gpulua_o, gpulua_plain<gpulua_e>::gpulua_const ? \" const\\n\" : \" "
    "mutable\\n\");\n"
    "}\n"
    "template <class gpulua_l> __device__ constexpr unsigned long gpulua_length() {\n"
    "  gpulua_out gpulua_o = {nullptr, 0};\n"
    "  gpulua_put_all(gpulua_o, gpulua_l());\n"
    "  return gpulua_o.gpulua_at;\n"
    "}\n"
    "template <class gpulua_l>\n"
    "__device__ constexpr gpulua_text<gpulua_length<gpulua_l>() + 1> gpulua_make() {\n"
    "  gpulua_text<gpulua_length<gpulua_l>() + 1> gpulua_x{};\n"
    "  gpulua_out gpulua_o = {gpulua_x.gpulua_bytes, 0};\n"
    "  gpulua_put_all(gpulua_o, gpulua_l());\n"
    "  return gpulua_x;\n"
    "}\n";

/* The types of backend.h: scalars and vectors, by value and behind pointers. */
struct type_name {
    const char *c, *name;
};
static const struct type_name scalars[] = {
    {"char", "i8"},           {"signed char", "i8"},   {"unsigned char", "u8"},
    {"bool", "u8"},           {"short", "i16"},        {"unsigned short", "u16"},
    {"int", "i32"},           {"unsigned int", "u32"}, {"long", "i64"},
    {"unsigned long", "u64"}, {"long long", "i64"},    {"unsigned long long", "u64"},
    {"float", "f32"},         {"double", "f64"},       {"__half", "f16"},
    {"__nv_bfloat16", "bf16"}};
static const struct type_name vectors[] = {
    {"char", "i8"},      {"uchar", "u8"},      {"short", "i16"}, {"ushort", "u16"},
    {"int", "i32"},      {"uint", "u32"},      {"long", "i64"},  {"ulong", "u64"},
    {"longlong", "i64"}, {"ulonglong", "u64"}, {"float", "f32"}, {"double", "f64"}};

static void put_overload(struct text *out, const char *function, const char *c, const char *name) {
    gpu_text_format(out,
                    "__device__ constexpr const char *gpulua_%s(gpulua_tag<%s>) "
                    "{ return \"%s\"; }\n",
                    function, c, name);
}

static void put_types(struct text *out) {
    char c[64], name[16];
    gpu_text_format(out, "__device__ constexpr const char *gpulua_scalar(gpulua_tag<void>) "
                         "{ return \"void\"; }\n");
    for (size_t i = 0; i < sizeof scalars / sizeof scalars[0]; i++) {
        put_overload(out, "scalar", scalars[i].c, scalars[i].name);
    }
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        for (int lanes = 2; lanes <= 4; lanes++) {
            snprintf(c, sizeof c, "%s%d", vectors[i].c, lanes);
            snprintf(name, sizeof name, "%sx%d", vectors[i].name, lanes);
            put_overload(out, "vector", c, name);
        }
    }
    put_overload(out, "vector", "dim3", "u32x3");
    put_overload(out, "vector", "__half2", "f16x2");
    put_overload(out, "vector", "__nv_bfloat162", "bf16x2");
    /* Since CUDA 13 four 8-byte parts come with either alignment, as types of their own. */
    gpu_text_format(out, "#if __CUDACC_VER_MAJOR__ >= 13\n");
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        if (vectors[i].name[1] != '6' || vectors[i].name[2] != '4') {
            continue;
        }
        for (int alignment = 16; alignment <= 32; alignment *= 2) {
            snprintf(c, sizeof c, "%s4_%da", vectors[i].c, alignment);
            snprintf(name, sizeof name, "%sx4", vectors[i].name);
            put_overload(out, "vector", c, name);
        }
    }
    gpu_text_format(out, "#endif\n");
}

void gpu_cuda_section_write(struct text *out, const struct cuda_names *names) {
    /* Two line ends: the user's last line may end in a backslash. */
    gpu_text_format(out, "\n\n#line 1 \"" CUDA_TYPES_NAME "\"\n");
    for (size_t i = 0; i < sizeof section_words / sizeof section_words[0]; i++) {
        gpu_text_format(out, "#undef %s\n", section_words[i]);
    }
    gpu_text_format(out, "%s", section_head);
    put_types(out);
    gpu_text_format(out, "%s#line 1 \"" CUDA_SECTION_NAME "\"\n", section_tail);
    for (size_t i = 0; i < names->count; i++) {
        const struct cuda_name *name = &names->list[i];
        if (name->is_dropped) {
            gpu_text_format(out, "\n");
        } else if (name->is_global) {
            gpu_text_format(
                out,
                "extern __device__ const auto " GLOBAL_ARRAY
                "%zu = gpulua_make<gpulua_tag<gpulua_direct<decltype((%s))>::type>>();\n",
                i, name->expression);
        } else {
            gpu_text_format(out,
                            "extern __device__ const auto " KERNEL_ARRAY
                            "%zu = gpulua_make<decltype(gpulua_params(%s))>();\n",
                            i, name->expression);
        }
    }
}

/* ---- names ---- */

bool gpu_cuda_names_add(struct cuda_names *names, const char *expression, size_t length,
                        bool is_global, enum cuda_name_origin origin) {
    char *copy = malloc(length + 1);
    if (copy == NULL) {
        return false;
    }
    size_t used = 0;
    int depth = 0;
    for (size_t i = 0; i < length; i++) {
        char c = expression[i];
        depth += c == '<' || c == '(' ? 1 : c == '>' || c == ')' ? -1 : 0;
        bool is_blank = c == ' ' || c == '\t' || c == '\r';
        if (!(is_blank && depth <= 0) && !(c == '&' && used == 0)) {
            copy[used++] = is_blank ? ' ' : c;
        }
    }
    copy[used] = '\0';
    bool is_there = used == 0;
    for (size_t i = 0; i < names->count && !is_there; i++) {
        is_there = strcmp(names->list[i].expression, copy) == 0;
        if (is_there && origin == CUDA_NAME_ASKED) {
            names->list[i].origin = origin;
        }
    }
    struct cuda_name *grown = NULL;
    if (!is_there) {
        grown = realloc(names->list, (names->count + 1) * sizeof *grown);
    }
    if (grown == NULL) {
        free(copy);
        return is_there;
    }
    names->list = grown;
    names->list[names->count++] =
        (struct cuda_name){.expression = copy, .is_global = is_global, .origin = origin};
    return true;
}

void gpu_cuda_names_free(struct cuda_names *names) {
    for (size_t i = 0; i < names->count; i++) {
        free(names->list[i].expression);
        free(names->list[i].lowered);
    }
    free(names->list);
    *names = (struct cuda_names){0};
}

void gpu_cuda_names_params(struct cuda_names *names, const struct backend_source_names *scan) {
    for (size_t i = 0; i < names->count; i++) {
        struct cuda_name *name = &names->list[i];
        /* "ns::f<float>" goes by "ns::f" */
        size_t length = strcspn(name->expression, "<");
        for (size_t k = 0; k < scan->kernel_count && !name->is_global; k++) {
            const struct backend_source_kernel *kernel = &scan->kernels[k];
            if (strlen(kernel->name) == length &&
                memcmp(kernel->name, name->expression, length) == 0) {
                name->param_names = kernel->param_names;
                name->param_count = kernel->param_count;
            }
        }
    }
}

/* ---- reading the PTX ---- */

/* The bytes of array `index` as text. PTX leaves zeros at the end out, and the whole initialiser
 * where all are zero. */
static bool array_read(struct text *out, const char *ptx, const char *array, size_t index) {
    char symbol[64];
    int length = snprintf(symbol, sizeof symbol, " %s%zu[", array, index);
    const char *at = strstr(ptx, symbol);
    if (at == NULL) {
        return false;
    }
    at += length;
    const char *end = strchr(at, ';');
    const char *open = strchr(at, '{');
    if (end == NULL) {
        return false;
    }
    for (at = open != NULL && open < end ? open + 1 : end; at < end && *at != '}';) {
        char *behind;
        unsigned long value = strtoul(at, &behind, 10);
        if (behind == at || value > 255) {
            return false;
        }
        char byte = (char)value;
        if (byte == '\0') {
            break;
        }
        gpu_text_add(out, &byte, 1);
        at = behind + strspn(behind, ", \n");
    }
    return true;
}

static void kernel_line(struct text *out, const struct cuda_name *name, const char *types) {
    size_t count = 0;
    for (const char *at = types; *at != '\0'; at++) {
        count += *at == '\n' ? 1 : 0;
    }
    bool named = name->param_names != NULL && name->param_count == count;
    gpu_text_format(out, "kernel %s", name->expression);
    for (size_t i = 0; i < count; i++) {
        size_t length = strcspn(types, "\n");
        gpu_text_format(out, "%s", i > 0 ? ", " : " ");
        if (named) {
            gpu_text_format(out, "%s: ", name->param_names[i]);
        } else {
            gpu_text_format(out, "p%zu: ", i + 1);
        }
        gpu_text_add(out, types, length);
        types += length + 1;
    }
    gpu_text_format(out, "\n");
}

bool gpu_cuda_description_read(struct text *out, const struct cuda_names *names, const char *ptx) {
    bool good = true;
    for (size_t i = 0; i < names->count && good; i++) {
        const struct cuda_name *name = &names->list[i];
        if (name->is_dropped) {
            continue;
        }
        struct text bytes = {0};
        good = array_read(&bytes, ptx, name->is_global ? GLOBAL_ARRAY : KERNEL_ARRAY, i);
        if (good && name->is_global) {
            /* Memory that kernels cannot write is constant, whatever its type says. */
            const char *text = gpu_text_get(&bytes);
            size_t length = strcspn(text, "m\n");
            if (name->is_constant && text[length] == 'm') {
                gpu_text_format(out, "global %s %.*sconst\n", name->expression, (int)length, text);
            } else {
                gpu_text_format(out, "global %s %s", name->expression, text);
            }
        } else if (good) {
            kernel_line(out, name, gpu_text_get(&bytes));
        }
        out->failed = out->failed || bytes.failed;
        gpu_text_finish(&bytes);
    }
    return good;
}

/* "_ZN1a1bEPf" to "a::b": plain nested names only, an unnamed namespace left out. False: something
 * else, such as an instance of a template. */
static bool name_read(struct text *out, const char *symbol, size_t length) {
    const char *at = symbol, *end = symbol + length;
    if (length < 2 || memcmp(at, "_Z", 2) != 0) {
        gpu_text_add(out, symbol, length); /* extern "C" */
        return true;
    }
    at += 2;
    bool nested = at < end && *at == 'N';
    at += nested ? 1 : 0;
    at += at < end && *at == 'L' ? 1 : 0;
    while (at < end && *at >= '1' && *at <= '9') {
        size_t part = 0;
        while (at < end && *at >= '0' && *at <= '9') {
            part = part * 10 + (size_t)(*at++ - '0');
            if (part > length) {
                return false;
            }
        }
        if (part > (size_t)(end - at)) {
            return false;
        }
        if (part < 8 || memcmp(at, "_GLOBAL_", 8) != 0) {
            gpu_text_format(out, "%s%.*s", out->length > 0 ? "::" : "", (int)part, at);
        }
        at += part;
        if (!nested) {
            return at < end && *at != 'I';
        }
    }
    return nested && at < end && *at == 'E' && out->length > 0;
}

static char *variable_symbol(const char *name) {
    struct text out = {0};
    bool nested = strstr(name, "::") != NULL;
    gpu_text_format(&out, "%s", nested ? "_ZN" : name);
    while (nested && *name != '\0') {
        size_t length = strcspn(name, ":");
        if (length > 0) {
            gpu_text_format(&out, "%zu%.*s", length, (int)length, name);
        }
        name += length + strspn(name + length, ":");
    }
    gpu_text_format(&out, "%s", nested ? "E" : "");
    return gpu_text_take(&out);
}

/* The next kernel's symbol in the PTX, NULL behind the last. */
static const char *entry_next(const char *ptx, size_t *length) {
    const char *at = strstr(ptx, ".entry ");
    if (at != NULL) {
        at += strlen(".entry ");
        *length = strcspn(at, "( \t\n");
    }
    return at;
}

char *gpu_cuda_name_symbol(const struct cuda_name *name, const char *ptx) {
    if (name->is_global) {
        return variable_symbol(name->expression);
    }
    size_t length = 0;
    char *symbol = NULL;
    for (const char *at = entry_next(ptx, &length); at != NULL && symbol == NULL;
         at = entry_next(at, &length)) {
        struct text text = {0};
        if (name_read(&text, at, length) && strcmp(gpu_text_get(&text), name->expression) == 0) {
            symbol = strndup(at, length);
        }
        gpu_text_finish(&text);
    }
    return symbol;
}

bool gpu_cuda_has_entry(const char *ptx, const char *symbol) {
    size_t length = 0;
    for (const char *at = entry_next(ptx, &length); at != NULL; at = entry_next(at, &length)) {
        if (strlen(symbol) == length && memcmp(at, symbol, length) == 0) {
            return true;
        }
    }
    return false;
}

bool gpu_cuda_names_find(struct cuda_names *names, const char *ptx) {
    size_t before = names->count;
    size_t length = 0;
    for (const char *at = entry_next(ptx, &length); at != NULL; at = entry_next(at, &length)) {
        bool is_known = false;
        for (size_t i = 0; i < names->count; i++) {
            const char *lowered = names->list[i].lowered;
            is_known = is_known || (lowered != NULL && strlen(lowered) == length &&
                                    memcmp(lowered, at, length) == 0);
        }
        struct text name = {0};
        if (!is_known && name_read(&name, at, length) && !name.failed) {
            (void)gpu_cuda_names_add(names, name.bytes, name.length, false, CUDA_NAME_FOUND);
        }
        gpu_text_finish(&name);
    }
    return names->count > before;
}
