/* backend/source.c: names read off CUDA C, and no text that can hurt it. */
#include <stdint.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "tap.h"

static struct tap tap;

/* "f(a, b) t<>(x) | x y!": kernels with their parameters, <> for templates, then globals, ! for
 * constant ones. */
static char *describe(const char *text) {
    struct backend_source_names names;
    if (gpu_backend_source_scan(text, &names) != GPULUA_OK) {
        return NULL;
    }
    size_t capacity = 1 << 16, used = 0;
    char *out = malloc(capacity);
    out[0] = '\0';
    for (size_t i = 0; i < names.kernel_count; i++) {
        const struct backend_source_kernel *kernel = &names.kernels[i];
        used += (size_t)snprintf(out + used, capacity - used, "%s%s%s(", i ? " " : "", kernel->name,
                                 kernel->is_template ? "<>" : "");
        for (size_t p = 0; p < kernel->param_count; p++) {
            used += (size_t)snprintf(out + used, capacity - used, "%s%s", p ? "," : "",
                                     kernel->param_names[p]);
        }
        used += (size_t)snprintf(out + used, capacity - used, ")");
    }
    for (size_t i = 0; i < names.global_count; i++) {
        used += (size_t)snprintf(out + used, capacity - used, "%s%s%s", i ? " " : "|",
                                 names.globals[i], names.global_is_constant[i] ? "!" : "");
    }
    gpu_backend_source_free(&names);
    return out;
}

static void expect(const char *text, const char *wanted, const char *what) {
    char *got = describe(text);
    tap_equal(&tap, got, wanted, what);
    free(got);
}

static void expect_entered(const char *text, const char *wanted, const char *what) {
    static const char header[] = "#include <gpulua_kernel.h>\n";
    char *got = NULL, *whole = malloc(strlen(header) + strlen(text) + 1);
    strcat(strcpy(whole, header), text);
    tap_check(&tap, gpu_backend_source_enter(whole, &got) == GPULUA_OK, what);
    tap_equal(&tap, got != NULL ? got + strlen(header) : "", wanted, what);
    free(got);
    got = NULL;
    tap_check(&tap, gpu_backend_source_enter(text, &got) == GPULUA_OK && got == NULL,
              "without the header it is another's type");
    free(whole);
}

static void entries(void) {
#define SKIP(name) " if (gpulua_is_skipped(" #name ")) return;"
    expect_entered("__global__ void f(int n) { }", "", "no kernel reports");
    expect_entered("__global__ void f(gpulua_ctx c) { x(); }",
                   "__global__ void f(gpulua_ctx c) {" SKIP(c) " x(); }", "one that does");
    expect_entered(
        "extern \"C\" { __global__ void __launch_bounds__(64) f(int n, gpulua_ctx ctx)\n"
        "// {\n{\n}\n}\n__global__ void g(gpulua_ctx); int h(gpulua_ctx c) { return 1; }",
        "extern \"C\" { __global__ void __launch_bounds__(64) f(int n, gpulua_ctx ctx)\n"
        "// {\n{" SKIP(ctx) "\n}\n}\n__global__ void g(gpulua_ctx); "
                            "int h(gpulua_ctx c) { return 1; }",
        "in a block, behind a comment; no declarations, no functions");
    expect_entered("#define A \\\n 1\n__global__ void f(int n, \\\r\n gpulua_ctx c) {\n}"
                   "__global__ void g(gpulua_ctx d){}",
                   "#define A \\\n 1\n__global__ void f(int n, \\\r\n gpulua_ctx c) {" SKIP(
                       c) "\n}__global__ void g(gpulua_ctx d){" SKIP(d) "}",
                   "lines that go on stay lines");
    expect_entered("template <class T> __global__ void f(T *x, gpulua_ctx c) { }",
                   "template <class T> __global__ void f(T *x, gpulua_ctx c) {" SKIP(c) " }",
                   "templates");
    expect_entered(
        "__global__ void f(gpulua_ctx c, int n) { } __global__ void g(gpulua_ctx *p) { }", "",
        "not where it is not last, or is none");
    expect_entered("__global__ void f(int n, gpulua_ctx) { } __global__ void g(gpulua_ctx const) "
                   "{}",
                   "__global__ void f(int n, gpulua_ctx gpulua_own_ctx) {" SKIP(
                       gpulua_own_ctx) " } __global__ void g(gpulua_ctx const gpulua_own_ctx) "
                                       "{" SKIP(gpulua_own_ctx) "}",
                   "also without a name");
    expect_entered("__global__ void f(const ::gpulua_ctx c [[maybe_unused]]) { }"
                   "__global__ void g(struct gpulua_ctx const d = {}) { }",
                   "__global__ void f(const ::gpulua_ctx c [[maybe_unused]]) {" SKIP(
                       c) " }__global__ void g(struct gpulua_ctx const d = {}) {" SKIP(d) " }",
                   "however it is written");
    expect_entered("#ifndef A\n__global__ void k(int *x, gpulua_ctx one)\n#else\n"
                   "__global__ void k(int *x, gpulua_ctx two)\n#endif\n{ }",
                   "", "not where a conditional decides about it");
    expect_entered("// gpulua_ctx\n#if 0\n__global__ void f(gpulua_ctx c) { }\n#endif\n", "",
                   "nothing that no compiler sees");
}

static void kernels(void) {
    expect("", "", "nothing");
    expect("__global__ void f() {}", "f()", "no parameters");
    expect("__global__ void f(void) {}", "f()", "void parameters");
    expect(
        "struct V { float x; V &operator=(const V &o) { return *this; } operator float() const { "
        "return x; } void operator()(int i) {} }; V operator+(V a, V b) { return a; } bool "
        "operator==(V a, V b) { return true; } template <class T> V operator<<(V a, T b) { return "
        "a; } int operator->*(V a, int b) { return b; } __device__ int v; V "
        "operator[](V a, int i) { return a; } __global__ void f(int n) {}",
        "f(n)|v", "behind operators");
    expect("__global__ void f(int n, float a, const float *x, float *__restrict__ y) { y[0]=a; }",
           "f(n,a,x,y)", "plain parameters");
    expect("extern \"C\" __global__ void __launch_bounds__(256, 2) f(int n) {}", "f(n)",
           "launch bounds before the name");
    expect("extern \"C\" __global__ __launch_bounds__(MAX(1, 2)) void f(int n) {}", "f(n)",
           "launch bounds before void");
    expect("__global__ void f(int n) __attribute__((cold)) {}", "f(n)", "attribute behind");
    expect("[[nodiscard]] __global__ void __cluster_dims__(2,1,1) f(int n) noexcept(true) {}",
           "f(n)", "attributes all around");
    expect("static __global__ void f(int n) {} inline __global__ void g(int m) {}", "f(n) g(m)",
           "storage classes");
    expect("__global__ void f(unsigned, const int, float *, ns::T, T, float4 v, ns::U u) {}",
           "f(p1,p2,p3,p4,p5,v,u)", "parameters without names");
    expect("__global__ void f(int (*rows)[3], float a[], const float (&b)[4], void (*g)(int, int),"
           " int n) {}",
           "f(rows,a,b,g,n)", "array and function declarators");
    expect("__global__ void f(pair<int, float> p, A<B<int>> q, A<(3 > 2)> r, int s = g(1, 2)) {}",
           "f(p,q,r,s)", "template types, default values");
    expect("__global__ void f(const __grid_constant__ P p, struct Q q, unsigned long long int n,"
           " T *const __restrict__ t) {}",
           "f(p,q,n,t)", "qualifiers");
    expect("template <class T, int N = (4 > 2), class U = A<B<int>>> __global__ void f(T *x) {}",
           "f<>(x)", "template");
    expect("template <class T> __global__ void f(T *x) {} template __global__ void f<int>(int *);"
           "template <> __global__ void f<float>(float *y) {}",
           "f<>(x)", "instantiation and specialisation");
    expect("__global__ void f(int); __global__ void f(int n) {}", "f(n)",
           "the definition names the parameters");
    expect("__global__ void f(int n) {} __global__ void f(int);", "f(n)",
           "a later declaration does not");
    expect("namespace a { namespace b::c { __global__ void f(int n) {} } namespace {"
           "__global__ void g() {} } inline namespace v1 { __global__ void h() {} } }"
           "__global__ void i() {}",
           "a::b::c::f(n) a::g() a::v1::h() i()", "namespaces");
    expect("namespace a { __global__ void f(int); } __global__ void a::f(int n) {}"
           "namespace x = a; using namespace a; __global__ void ::g() {}",
           "a::f(n) g()", "qualified definitions");
    expect("extern \"C\" { __global__ void f(int a) {} namespace n { __global__ void g() {} } }"
           "__global__ void h() {}",
           "f(a) n::g() h()", "linkage blocks");
    expect("int host(int a) { return a; } __device__ float d(float x) { if (x) { return 1; } "
           "return x; } __global__ void f(int a) { d(1); }",
           "f(a)", "other functions");
    expect("struct S { int a; __device__ void m() {} S() : a{1} {} }; enum class E : int { A, B };"
           "union U { int a; } u; struct S t = { 1 }; __global__ void f(S s) {}",
           "f(s)", "classes");
    expect("auto l = [](int x) { return x; }; using F = void (*)(int); typedef void (*G)(int);"
           "__global__ void f(int a) {}",
           "f(a)", "lambdas and type names");
    expect("REGISTER(thing)\n__global__ void f(int a) {}\nOTHER(x, y)\nnamespace q {\n"
           "MORE()\n__device__ int v;\nMORE()\n}",
           "f(a)|q::v", "macros without semicolons");
    expect("__global__ void BOUNDS(3) f(int a) {} BOUNDS(3) __global__ void g(int b) {}",
           "f(a) g(b)", "macros in between");
    expect("__global__ void f(int a) { int x = '{'; char c = '\\''; const char *s = \"}\"; }"
           "__global__ void g() {}",
           "f(a) g()", "braces in literals");
    expect("__global__ void f() { auto s = R\"x(} )\" ' } )x\"; auto t = LR\"(})\"; }"
           "__global__ void g() {}",
           "f() g()", "raw strings");
    expect("__global__ void f() { int n = 1'000'000; double d = 1e+5; }\n__global__ void g() {}",
           "f() g()", "digit separators");
    expect("auto f() -> int { return 1; } __global__ auto g(int a) -> void {}", "g(a)",
           "trailing return types");
}

static void comments(void) {
    expect("// __global__ void a() {}\n/* __global__ void b() {} */ __global__ /* x */ void // y\n"
           "c(int /* n */ m /*, int k */) {}",
           "c(m)", "comments");
    expect("const char *s = \"__global__ void a() {}\"; __global__ void b() {}", "b()", "strings");
    expect("// continued \\\n__global__ void a() {}\n__global__ void b() {}", "b()",
           "continued comment");
    expect("__glo\\\nbal__ void b\\\r\nc(int n) {}", "bc(n)", "continued words");
    expect("#define K __global__\n#define E extern \"C\" K\n#define B(n) __global__ "
           "__launch_bounds__(n)\nK void a(int x) {}\nE void b(int y) {}\nB(256) void c(int z) {}",
           "a(x) b(y) c(z)", "macros that say __global__");
    expect("#define MAKE(n) __global__ void n() {}\nMAKE(a)\n__global__ void b() {}", "b()",
           "macros that make kernels");
    expect("#define X \\\n  __global__ void a() {\n#include <__global__ void b()>\n"
           "  #  define Y }\n__global__ void c() {}\n#error don't\n__global__ void d() {}",
           "c() d()", "directives");
    expect("#if 0\n__global__ void a() {}\n#if X\n#else\n}}}\n#endif\n#else\n__global__ void b() "
           "{}\n#endif\n#if 1\n__global__ void c() {}\n#else\n__global__ void d() {}\n#endif",
           "b() c()", "#if 0 and #if 1");
    expect("#ifdef A\n__global__ void a(int n) {\n#else\n__global__ void b(int n, int m) {\n#endif"
           "\n}\n__global__ void c() {}",
           "a(n) b(n,m) c()", "heads in branches");
    expect("__global__ void a(int n) {\n#if A\nif (n) {\n#elif B\nwhile (n) {\n#else\n{\n#endif\n}"
           "\n}\n__global__ void c() {}",
           "a(n) c()", "braces in branches");
    expect("/* a */ #define K __global__\nK void f() {}", "f()", "directive behind a comment");
}

static void globals(void) {
    expect("__device__ int a; __constant__ float b[16]; __managed__ double c = 1.0;", "|a b! c",
           "kinds");
    expect("static __device__ unsigned long long a = 3, b[2] = {1, 2}, *c; int host;", "|a b c",
           "declarators");
    expect("__device__ int a{3}; __device__ const float4 b[] = {{1, 2, 3, 4}, {f(1), 2, 3, 4}};"
           "float __device__ c = g(1, 2) < 3 ? h<4, 5>() : 6, d;",
           "|a b c d", "initialisers");
    expect("extern __shared__ float s[]; __shared__ int t; extern __device__ int e;"
           "extern \"C\" __device__ int f; extern \"C\" { __constant__ int g; }",
           "|f g!", "extern");
    expect("__device__ float f(float x) { return x; } __device__ int g(int); "
           "__host__ __device__ inline int h() { return 1; } __device__ T<int, 3> i;",
           "|i", "functions are none");
    expect("__device__ __align__(16) char a[16]; alignas(8) __device__ int b;"
           "__device__ __attribute__((aligned(8))) int c;",
           "|a b c", "attributes");
    expect("__device__ int (*p)(int, int) = add; __device__ float (*q)[3];", "|p q",
           "function pointers");
    expect("__device__ struct S { int a; } s; __device__ struct S t; __device__ enum E { A } e;",
           "|s t e", "with their type");
    expect("namespace n { __constant__ int a; struct S { static __device__ int m; }; }"
           "__device__ int n::b;",
           "|n::a! n::b", "namespaces and classes");
    expect("typedef __device__ int T; template <class T> __device__ T v = T(1);"
           "template <class T> __device__ T id(T x) { return x; } __device__ int after;",
           "|after", "templates and types");
    expect("#define DEV static __device__\nDEV int a;\nDEV int f(int);", "|a", "macros");
    expect("__global__ void k() { __device__ int inner; __shared__ int s[3]; }", "k()",
           "inside of functions");
    expect("__device__ ns::U<1, (2 > 1)> a[N<3>::v], b;", "|a b", "template types");
}

static uint64_t random_next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Results are not looked at: the sanitizers and the end of the run are the check. */
static void fuzz(uint64_t seed, int rounds) {
    static const char *const pieces[] = {"__global__ ",
                                         "void ",
                                         "f",
                                         "(",
                                         ")",
                                         "{",
                                         "}",
                                         "<",
                                         ">",
                                         "template ",
                                         "namespace ",
                                         "extern ",
                                         "\"C\" ",
                                         "\"",
                                         "'",
                                         "R\"x(",
                                         ")x\"",
                                         "/*",
                                         "*/",
                                         "//",
                                         "\n",
                                         "\n#if 0\n",
                                         "\n#else\n",
                                         "\n#endif\n",
                                         "\n#if A\n",
                                         "\n#define K __global__\n",
                                         "K ",
                                         "__device__ ",
                                         "__constant__ ",
                                         "int ",
                                         "x",
                                         ",",
                                         ";",
                                         "=",
                                         "::",
                                         "->",
                                         "\\\n",
                                         "[",
                                         "]",
                                         "*",
                                         "struct ",
                                         "1'0",
                                         "1e+",
                                         "\\",
                                         "operator",
                                         "...",
                                         "&",
                                         "inline ",
                                         "\xff",
                                         "__launch_bounds__(3) ",
                                         "using ",
                                         "#",
                                         "\n#",
                                         "typedef ",
                                         "void(*"};
    size_t piece_count = sizeof pieces / sizeof pieces[0];
    for (int round = 0; round < rounds; round++) {
        size_t length = 0, wanted = random_next(&seed) % 400;
        char *text = malloc(wanted + 32);
        while (length < wanted) {
            if (random_next(&seed) % 16 == 0) {
                text[length++] = (char)(1 + random_next(&seed) % 255);
                continue;
            }
            const char *piece = pieces[random_next(&seed) % piece_count];
            size_t bytes = strlen(piece);
            memcpy(text + length, piece, bytes);
            length += bytes;
        }
        text[length] = '\0';
        char *exact = strdup(text); /* so that a read past the end is seen */
        struct backend_source_names names;
        if (gpu_backend_source_scan(exact, &names) == GPULUA_OK) {
            gpu_backend_source_free(&names);
        }
        free(exact);
        free(text);
    }
    tap_check(&tap, true, "random text");
}

static void truncations(void) {
    static const char text[] =
        "#define K(n) __global__ __launch_bounds__(n)\n#if 1\nnamespace a::b { template <class T, "
        "int N = (3 > 2)> K(256) void f(T (*x)[N], const T &y = g<1, 2>(3)) {\n#ifdef Q\n{\n#else\n"
        "{\n#endif\n} } __constant__ float c[3] = {1, 2}, (*d)(int); }\n#endif\n/* x */ // y\n"
        "const char *s = R\"z(\")z\" \"\\\"\"; extern \"C\" { __device__ struct S { int i; } s; }";
    for (size_t length = 0; length < sizeof text; length++) {
        for (size_t from = 0; from < length; from += 7) {
            char *part = strndup(text + from, length - from);
            struct backend_source_names names;
            if (gpu_backend_source_scan(part, &names) == GPULUA_OK) {
                gpu_backend_source_free(&names);
            }
            free(part);
        }
    }
    expect(text, "a::b::f<>(x,y)|a::b::c! a::b::d! s", "the whole of it");
}

/* Time must not explode on text that opens and never closes. */
static void large(void) {
    static const char *const units[] = {
        "< ",        "(", "{",  "namespace ", "__device__ x<",  "#if A\n",
        "template<", "[", "/*", "\"",         "extern \"C\" {", "f("};
    size_t bytes = 60000;
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        char *text = malloc(bytes + 32);
        size_t length = 0, unit = strlen(units[u]);
        while (length < bytes) {
            memcpy(text + length, units[u], unit);
            length += unit;
        }
        text[length] = '\0';
        struct backend_source_names names;
        if (gpu_backend_source_scan(text, &names) == GPULUA_OK) {
            gpu_backend_source_free(&names);
        }
        free(text);
    }
    tap_check(&tap, true, "large unfinished text");
}

int main(int argc, char **argv) {
    entries();
    kernels();
    comments();
    globals();
    truncations();
    large();
    fuzz(argc > 1 ? strtoull(argv[1], NULL, 10) * 2 + 1 : 88172645463325252u,
         argc > 2 ? atoi(argv[2]) : 20000);
    return tap_finish(&tap);
}
