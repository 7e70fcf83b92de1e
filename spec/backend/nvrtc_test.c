/* backend/cuda: what can be tested with NVRTC and without a GPU: compiling, descriptions, errors.
 */
#include <stdlib.h>

#include "backend/backend.h"
#include "tap.h"

static struct tap tap;

#ifdef GPULUA_CUDA

#include "backend/cuda/check.h"
#include "backend/cuda/image.h"
#include "executor/executor.h"

static void describe(const char *text, const char *options, const char *wanted, const char *what) {
    char *description = NULL;
    struct backend_error error = {0};
    gpulua_status status =
        gpu_cuda_compile_check("kernels.cu", text, options, NULL, &description, &error);
    tap_equal(&tap, status == GPULUA_OK ? description : error.message, wanted, what);
    if (status != GPULUA_OK && error.log != NULL) {
        printf("# %s\n", error.log);
    }
    free(error.log);
    free(description);
}

/* `in_message` and `in_log` must occur, `not_in_log` must not. */
static void fail(const char *text, const char *options, gpulua_status wanted,
                 const char *in_message, const char *in_log, const char *not_in_log,
                 const char *what) {
    char *description = NULL;
    struct backend_error error = {0};
    gpulua_status status =
        gpu_cuda_compile_check("kernels.cu", text, options, NULL, &description, &error);
    const char *log = error.log != NULL ? error.log : "";
    bool good = status == wanted && error.status == wanted && description == NULL &&
                strstr(error.message, in_message) != NULL && strstr(log, in_log) != NULL &&
                (not_in_log == NULL || strstr(log, not_in_log) == NULL);
    if (!tap_check(&tap, good, what)) {
        printf("# %s: %s\n# log: %s\n", gpulua_status_name(status), error.message, log);
    }
    free(error.log);
    free(description);
}

static void scalars_and_pointers(void) {
    describe("__global__ void saxpy(int n, float a, const float *x, float *y) {"
             " int i = threadIdx.x; if (i < n) { y[i] += a * x[i]; } }",
             "", "kernel saxpy n: i32, a: f32, x: in f32*, y: inout f32*\n", "a kernel");
    describe("__global__ void none() {}", "", "kernel none\n", "without parameters");
    describe("__global__ void f(char a, signed char b, unsigned char c, bool d, short e, "
             "unsigned short f, int g, unsigned h, long i, unsigned long j, long long k, "
             "unsigned long long l, float m, double n, size_t o) {}",
             "",
             "kernel f a: i8, b: i8, c: u8, d: u8, e: i16, f: u16, g: i32, h: u32, i: i64, j: u64, "
             "k: i64, l: u64, m: f32, n: f64, o: u64\n",
             "scalars");
    describe("#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
             "__global__ void f(__half a, half *b, const __half2 *c, __nv_bfloat16 d, "
             "nv_bfloat16 *e, const nv_bfloat162 *f) {}",
             "",
             "kernel f a: f16, b: inout f16*, c: in f16x2*, d: bf16, e: inout bf16*, f: in bf16x2*"
             "\n",
             "16-bit floats");
    describe("__global__ void f(const float *__restrict__ a, volatile int *b, const volatile "
             "unsigned *c, float *const d, const double *const __restrict__ e, void *f, const void "
             "*g, bool *h, float i[], const int j[4]) {}",
             "",
             "kernel f a: in f32*, b: inout i32*, c: in u32*, d: inout f32*, e: in f64*, f: inout "
             "void*, g: in void*, h: inout u8*, i: inout f32*, j: in i32*\n",
             "pointers");
    describe("__global__ void f(float4 *a, const float2 *b, float3 *c, double2 *d, double4 *e, "
             "char4 *f, uchar3 *g, short2 *h, ushort4 *i, int4 *j, uint2 *k, long2 *l, ulong4 *m, "
             "longlong2 *n, ulonglong3 *o, dim3 *p, dim3 q) {}",
             "",
             "kernel f a: inout f32x4*, b: in f32x2*, c: inout f32x3*, d: inout f64x2*, e: inout "
             "f64x4*, f: inout i8x4*, g: inout u8x3*, h: inout i16x2*, i: inout u16x4*, j: inout "
             "i32x4*, k: inout u32x2*, l: inout i64x2*, m: inout u64x4*, n: inout i64x2*, o: inout "
             "u64x3*, p: inout u32x3*, q: u32x3\n",
             "vectors");
    describe("struct P { float a; double b; }; enum E { A }; template <class T, int N> struct X { "
             "T t[N]; }; __global__ void f(P p, P *q, float **r, E e, X<int, 3> x, X<X<P, 2>, 1> "
             "*y, float4 v, void (*g)(int, int), int (*rows)[3]) {}",
             "",
             "kernel f p: ?P/16/8, q: ?P*/8/8, r: ?float**/8/8, e: i32, x: ?X<int,3>/12/4, y: "
             "?X<X<P,2>,1>*/8/8, v: f32x4, g: ?void (*)(int,int)/8/8, rows: ?int "
             "(*)[3]/8/8\n",
             "what needs a signature by hand");
    describe("struct P { char a[3]; }; __global__ void f(const P &p, int &n) {}", "",
             "kernel f p: ?const P &/8/8, n: ?int &/8/8\n", "references, which are addresses");
    describe(
        "enum way { forth, back }; enum exact : unsigned { z }; enum class wide : unsigned char "
        "{ y }; __global__ void f(way w, way *v, exact e, const wide *p, wide q) {}",
        "", "kernel f w: i32, v: inout i32*, e: u32, p: in u8*, q: u8\n", "enumerations");
}

static void names(void) {
    describe("typedef float real; using vec = const float4;\n#define PTR(T) const T *\n#define R "
             "__restrict__\n__global__ void f(real a, vec *b, PTR(real) R c, PTR(unsigned char) d) "
             "{}",
             "", "kernel f a: f32, b: in f32x4*, c: in f32*, d: in u8*\n", "typedefs and macros");
    describe("__global__ void f(int, float *) {} __global__ void g(int n, float *);\n"
             "__global__ void g(int m, float *x) {}",
             "", "kernel f p1: i32, p2: inout f32*\nkernel g m: i32, x: inout f32*\n",
             "parameters without names");
    describe("template <class T, int N> __global__ void t(T *x, const T y) { x[N] = y; }\n"
             "namespace a { template <class T> __global__ void u(const T *z) {} }",
             "name t<float, 3>\nname t<int,4>\n  name   a::u< double >  \nname a::u<float4>",
             "kernel t<float, 3> x: inout f32*, y: f32\nkernel t<int,4> x: inout i32*, y: i32\n"
             "kernel a::u< double > z: in f64*\nkernel a::u<float4> z: in f32x4*\n",
             "template instances");
    describe(
        "namespace a { namespace b { __global__ void f(int n) {} } namespace { __global__ void "
        "g() {} } } extern \"C\" __global__ void h(int n) {} extern \"C\" { __global__ void "
        "i() {} } static __global__ void j(int n) {}",
        "", "kernel a::b::f n: i32\nkernel a::g\nkernel h n: i32\nkernel i\nkernel j n: i32\n",
        "namespaces and linkage");
    describe("__global__ void o(int *a) {} __global__ void o(float *b) {} __global__ void p() {}",
             "name static_cast<void (*)(float *)>(o)",
             "kernel p\nkernel static_cast<void (*)(float *)>(o) p1: inout f32*\n", "overloads");
    describe("__global__ void o(int *a) {} __global__ void o(float *b) {} __global__ void p() {}",
             "name (void (*)(float *))o", "kernel p\nkernel (void (*)(float *))o p1: inout f32*\n",
             "overloads by a C cast");
    describe("__global__ void all(char *x) {} extern \"C\" __global__ void any(int n) {} "
             "namespace n { __global__ void min(float *x) {} }",
             "", "kernel all x: inout i8*\nkernel any n: i32\nkernel n::min x: inout f32*\n",
             "names that the compiler uses itself");
    describe("#define MAKE(name) __global__ void name(int n) {}\nMAKE(a) namespace n { MAKE(b) }\n"
             "extern \"C\" { MAKE(c) }\n__global__ void d() {}",
             "", "kernel d\nkernel a p1: i32\nkernel c p1: i32\nkernel n::b p1: i32\n",
             "kernels made by macros");
    describe("#ifdef ABSENT\n__global__ void a() {}\n__device__ int v;\n#else\n__global__ void b() "
             "{}\n#endif\n#if N == 3\n__global__ void c() {}\n#endif",
             "define N 3", "kernel b\nkernel c\n", "code behind conditionals");
    describe("#define T int\n#define N 16\n#define name value\n#define type 3\n#define char short\n"
             "#define put get\n__global__ void f(T n, char c) {}  // no line end \\",
             "", "kernel f n: i32, c: i16\n", "a user's macros do not reach the section");
    describe("__global__ void f(A a, B b) {}", "define A float\ndefine B const double *\n",
             "kernel f a: f32, b: in f64*\n", "define");
    describe(
        "__global__ void f(T *to) { to[0] = PLUS(1, 2); }\n"
        "template <typename E> __device__ E same(E e) { return e; }\n"
        "__global__ void g(PAIR) {}\n#if A != 1 || defined B || SAME(x, x) != 2\n#error\n#endif",
        "define T float\ndefine PLUS(x, y) x + y\ndefine PAIR int a, int b\ndefine SAME(x, y) 2\n"
        "define B 5\nflag -DA\nflag -UB",
        "kernel f to: inout f32*\nkernel g p1: i32, p2: i32\n",
        "what would hurt NVRTC's own headers, with commas, blanks and parameters");
    describe("__global__ void __launch_bounds__(128, 2) f(int n) {}", "flag --std=c++14",
             "kernel f n: i32\n", "flags");
}

static void globals(void) {
    describe("__constant__ float a[4][2]; __device__ int b = 3; const __device__ short c[3] = {1};"
             "static __device__ unsigned long d, e[2]; extern \"C\" { __device__ double f; }"
             "namespace n { __constant__ unsigned char g; } __managed__ long long h; namespace n { "
             "__managed__ float i[3]; }",
             "",
             "global a f32 8 const\nglobal b i32 1 mutable\nglobal c i16 3 const\nglobal d u64 1 "
             "mutable\nglobal e u64 2 mutable\nglobal f f64 1 mutable\nglobal n::g u8 1 const\n"
             "global h i64 1 mutable\nglobal n::i f32 3 mutable\n",
             "variables");
    describe(
        "struct P { int a; double b; }; __device__ P p[2]; __device__ float4 v[3]; __constant__"
        " float3 w; __device__ float *q; __device__ bool r; __device__ volatile int s;",
        "",
        "global p u8 32 mutable\nglobal v f32 12 mutable\nglobal w f32 3 const\nglobal q u8 8 "
        "mutable\nglobal r u8 1 mutable\nglobal s i32 1 mutable\n",
        "other types of variables");
    describe(
        "__device__ int n; __global__ void f(int *x) { extern __shared__ float s[]; __shared__ "
        "int t[4]; t[0] = n; s[0] = *x; *x = t[0] + (int)s[1]; }",
        "", "kernel f x: inout i32*\nglobal n i32 1 mutable\n", "beside kernels");
}

static void errors(void) {
    fail("\n\n__global__ void f(int *x) {\n  x[0] = 1\n}\n", "", GPULUA_COMPILE_FAILED,
         "kernels.cu(5): error: expected a \";\"", "kernels.cu(5): error: expected a \";\"",
         "gpulua", "a syntax error: file, line, text");
    fail("__global__ void f(int *x) { y = 1; }\n__global__ void g() { z(); }", "",
         GPULUA_COMPILE_FAILED, "kernels.cu(1): error: identifier \"y\" is undefined",
         "kernels.cu(2): error: identifier \"z\" is undefined", "gpulua", "all errors in the log");
    fail("__global__ void f(absent *x) {}", "", GPULUA_COMPILE_FAILED,
         "kernels.cu(1): error: ", "identifier \"absent\" is undefined", "gpulua",
         "an error that shows in our section as well");
    fail("template <class T> __global__ void t(T *p) {\n p->q = 1; }", "name t<int>",
         GPULUA_COMPILE_FAILED, "kernels.cu(2): error", "kernels.cu(2)", "gpulua",
         "an error in an instance");
    fail("#line 40 \"other.cu\"\n__global__ void f() { y = 1; }", "", GPULUA_COMPILE_FAILED,
         "other.cu(40)", "other.cu(40)", NULL, "#line counts");
    fail("__global__ void f() {", "", GPULUA_COMPILE_FAILED, "error", "error", NULL,
         "an unfinished function");
    fail("__global__ void f(int *x) { __shared__ int a[100000]; a[*x] = 1; *x = a[1]; }", "",
         GPULUA_COMPILE_FAILED, "uses too much shared data", "ptxas error", NULL,
         "an error of the assembler");
    fail("#include <absent.h>\n__global__ void f() {}", "", GPULUA_COMPILE_FAILED, "absent.h",
         "kernels.cu(1)", NULL, "a missing header");
    fail("template <class T> __global__ void t(T *p) {}", "name t<absent>", GPULUA_COMPILE_FAILED,
         "name 't<absent>': identifier \"absent\" is undefined", "t<absent>", NULL,
         "a name that does not exist");
    fail("__global__ void o(int *a) {} __global__ void o(float *a) {}", "name o",
         GPULUA_COMPILE_FAILED, "static_cast", "static_cast", NULL, "a name of several");
    fail("__device__ void d(int *a) { *a = 1; } __global__ void k(int *a) { d(a); }", "name d",
         GPULUA_COMPILE_FAILED, "'d': it is no __global__ function", "'d'", NULL,
         "a name of another function");
    fail("__global__ void k(int *x);", "", GPULUA_INVALID_ARGUMENT, "defines no kernel", "", NULL,
         "a kernel that is declared");
    fail("template <class T> __global__ void k(T *x);", "name k<int>", GPULUA_COMPILE_FAILED,
         "name 'k<int>': it is declared, and defined nowhere", "", NULL,
         "an instance of a template that is declared");
    describe("__global__ void k(int *x); __global__ void l(int *x) {}", "",
             "kernel l x: inout i32*\n", "beside one that is defined");
    fail("", "", GPULUA_INVALID_ARGUMENT, "defines no kernel", "", NULL, "an empty source");
    fail("__device__ void f() {}", "", GPULUA_INVALID_ARGUMENT, "defines no kernel", "", NULL,
         "a source without a kernel");
    fail("template <class T> __global__ void t(T *p) {}", "", GPULUA_INVALID_ARGUMENT,
         "name the instances", "", NULL, "a template nobody named");
    fail("__global__ void f() {}", "flag --absent", GPULUA_INVALID_ARGUMENT, "--absent", "", NULL,
         "an unknown flag");
    fail("__global__ void f() {}", "absent thing", GPULUA_INVALID_ARGUMENT, "'absent'", "", NULL,
         "an unknown option");
    fail("__global__ void f() {}", "define", GPULUA_INVALID_ARGUMENT, "nothing behind 'define'", "",
         NULL, "an option without a value");
}

static void missing(void) {
    setenv("GPULUA_LIBNVRTC", "/nowhere/libnvrtc.so.13", 1);
    fail("__global__ void f() {}", "", GPULUA_LIBRARY_UNAVAILABLE, "/nowhere/libnvrtc.so.13", "",
         NULL, "no NVRTC: what was tried is named");
    setenv("GPULUA_LIBNVRTC", "libm.so.6", 1);
    fail("__global__ void f() {}", "", GPULUA_LIBRARY_UNAVAILABLE, "nvrtcVersion", "", NULL,
         "another library: what it lacks is named");
    unsetenv("GPULUA_LIBNVRTC");
}

/* Images as they come back from the cache or over the ring: any damage is found or harmless. */
static void images(void) {
    static const char code[] = ".version 7.0\n.target sm_75\n";
    struct cuda_image image = {.description = "kernel f\nglobal v i32 1 mutable\n",
                               .symbols = "k f\t_Z1fv\nk t<int, 3>\t_Z1tIiE\ng v\tv\n",
                               .code = code,
                               .code_bytes = sizeof code,
                               .prints = true};
    size_t byte_count = 0;
    char *bytes = gpu_cuda_image_make(&image, &byte_count);
    struct cuda_image back;
    tap_check(&tap,
              gpu_cuda_image_read(bytes, byte_count, &back) && back.prints &&
                  strcmp(back.description, image.description) == 0 &&
                  back.code_bytes == sizeof code && memcmp(back.code, code, sizeof code) == 0,
              "an image comes back as it was");
    char *symbols[] = {
        gpu_cuda_image_symbol(&back, 'k', "f"), gpu_cuda_image_symbol(&back, 'k', "t<int, 3>"),
        gpu_cuda_image_symbol(&back, 'g', "v"), gpu_cuda_image_symbol(&back, 'k', "v"),
        gpu_cuda_image_symbol(&back, 'k', "")};
    tap_equal(&tap, symbols[0], "_Z1fv", "symbol of a kernel");
    tap_equal(&tap, symbols[1], "_Z1tIiE", "symbol of an instance");
    tap_equal(&tap, symbols[2], "v", "symbol of a variable");
    tap_check(&tap, symbols[3] == NULL && symbols[4] == NULL, "names that are not there");
    for (size_t i = 0; i < 5; i++) {
        free(symbols[i]);
    }
    bool refused = true;
    for (size_t length = 0; length < byte_count; length++) {
        char *part = malloc(length > 0 ? length : 1);
        memcpy(part, bytes, length);
        refused = refused && !gpu_cuda_image_read(part, length, &back);
        free(part);
    }
    tap_check(&tap, refused, "cut anywhere: refused");
    for (size_t at = 0; at < byte_count; at++) {
        for (int bit = 0; bit < 8; bit++) {
            bytes[at] = (char)(bytes[at] ^ (1 << bit));
            if (gpu_cuda_image_read(bytes, byte_count, &back)) {
                free(gpu_cuda_image_symbol(&back, 'k', "f")); /* reads nothing outside */
            }
            bytes[at] = (char)(bytes[at] ^ (1 << bit));
        }
    }
    tap_check(&tap, gpu_cuda_image_read(bytes, byte_count, &back), "bits changed: nothing bad");
    free(bytes);
    const char *why;
    static const char elf[64] = "\x7f"
                                "ELF\x02\x01";
    static const unsigned char fat[] = {0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0,
                                        255,  0,    0,    0,    0, 0, 0,  0};
    tap_check(&tap, gpu_cuda_code_kind(code, sizeof code, &why) == CUDA_CODE_PTX, "PTX");
    tap_check(&tap, gpu_cuda_code_kind(elf, sizeof elf, &why) == CUDA_CODE_NONE,
              "an empty ELF file is no cubin");
    tap_check(&tap, gpu_cuda_code_kind(elf, 20, &why) == CUDA_CODE_NONE, "a short ELF file");
    tap_check(&tap, gpu_cuda_code_kind(fat, sizeof fat, &why) == CUDA_CODE_NONE, "a short fatbin");
    tap_check(&tap, gpu_cuda_code_kind("hello", 5, &why) == CUDA_CODE_NONE, "other text");
    tap_check(&tap, gpu_cuda_code_kind("", 0, &why) == CUDA_CODE_NONE, "no bytes");
}

/* The executor's own kernels, whose arguments it lays out by hand. */
static void hashes(void) {
    describe(gpu_executor_verify_source, "",
             "kernel gpulua_take spans: in u64*, chunks: u64, count: u32, found: inout u64*\n"
             "kernel gpulua_look spans: in u64*, chunks: u64, count: u32, found: inout u64*\n",
             "the kernels that hash");
}

static void no_driver(void) {
    struct backend_error error = {0};
    struct backend_device *device = NULL;
    struct backend_open_info info = {.ordinal = 0};
    setenv("GPULUA_LIBCUDA", "/nowhere/libcuda.so.1", 1);
    tap_check(&tap,
              gpu_backend_cuda.device_count(&error) == 0 &&
                  error.status == GPULUA_LIBRARY_UNAVAILABLE &&
                  strstr(error.message, "/nowhere/libcuda.so.1") != NULL,
              "no driver: no device, and what was tried");
    tap_check(&tap,
              gpu_backend_cuda.device_open(&info, &device, &error) == GPULUA_LIBRARY_UNAVAILABLE &&
                  device == NULL,
              "no driver: open fails likewise");
    setenv("GPULUA_LIBCUDA", "libm.so.6", 1);
    tap_check(&tap,
              gpu_backend_cuda.device_count(&error) == 0 &&
                  error.status == GPULUA_LIBRARY_UNAVAILABLE &&
                  strstr(error.message, "cuInit") != NULL,
              "a library that is no driver");
    unsetenv("GPULUA_LIBCUDA");
    error = (struct backend_error){0};
    int count = gpu_backend_cuda.device_count(&error);
    tap_check(&tap, count > 0 || (error.status != GPULUA_OK && error.message[0] != '\0'),
              "this machine: devices, or a reason");
    printf("# %d devices%s%s\n", count, count > 0 ? "" : ": ", error.message);
    gpu_backend_cuda.device_close(NULL);
}

/* The whole of a file, NUL-terminated; NULL: there is none. */
static char *read_file(const char *prefix, const char *suffix) {
    char path[256], *text = NULL;
    snprintf(path, sizeof path, "%s%s", prefix, suffix);
    FILE *file = fopen(path, "rb");
    if (file != NULL) {
        text = calloc(1, 1 << 20);
        if (text != NULL) {
            text[fread(text, 1, (1 << 20) - 1, file)] = '\0';
        }
        fclose(file);
        remove(path);
    }
    return text;
}

static void keeping(void) {
    const char *text = "template <typename T> __global__ void scale(T *x) { *x *= 2; }\n"
                       "__global__ void plain(int *x) { *x = 1; }\n"
                       "__device__ int count;\n";
    char folder[] = "/tmp/gpulua-keep-XXXXXX", prefix[64], *description = NULL;
    struct backend_error error = {0};
    if (!tap_check(&tap, mkdtemp(folder) != NULL, "a folder for what is kept")) {
        return;
    }
    snprintf(prefix, sizeof prefix, "%s/kept", folder);
    gpulua_status status = gpu_cuda_compile_check("kernels.cu", text, "name scale<float>\n", prefix,
                                                  &description, &error);
    char *ptx = read_file(prefix, ".ptx"), *cubin = read_file(prefix, ".cubin");
    tap_check(&tap, status == GPULUA_OK && ptx != NULL && cubin != NULL,
              "PTX and a cubin are kept");
    if (ptx != NULL && cubin != NULL) {
        char symbol[128] = "", entry[160];
        const char *at = strstr(ptx, "// kernel scale<float> = ");
        tap_check(&tap, at != NULL && sscanf(at, "// kernel scale<float> = %127s", symbol) == 1,
                  "the PTX names the kernels of the source");
        snprintf(entry, sizeof entry, ".entry %s(", symbol);
        tap_check(&tap, strstr(ptx, entry) != NULL, "and has them");
        tap_check(&tap, strstr(ptx, "// kernel plain = ") != NULL, "also the one not asked for");
        tap_check(&tap, strstr(ptx, "// kernel count") == NULL, "variables are no kernels");
        tap_check(&tap, memcmp(cubin, "\177ELF", 4) == 0, "the cubin is an ELF file");
    }
    free(ptx);
    free(cubin);
    free(description);
    description = NULL;
    snprintf(prefix, sizeof prefix, "%s/no/kept", folder);
    status = gpu_cuda_compile_check("kernels.cu", text, "", prefix, &description, &error);
    tap_check(&tap,
              status == GPULUA_IO && description == NULL &&
                  strstr(error.message, "/no/kept.ptx") != NULL,
              "where nothing can be written, the file is named");
    free(description);
    free(error.log);
    remove(folder);
}

int main(void) {
    char *description = NULL;
    struct backend_error error = {0};
    no_driver();
    images();
    missing();
    if (gpu_cuda_compile_check("probe", "__global__ void f() {}", "", NULL, &description, &error) ==
        GPULUA_LIBRARY_UNAVAILABLE) {
        tap_skip(&tap, "compiling", error.message);
    } else {
        scalars_and_pointers();
        names();
        globals();
        errors();
        hashes();
        keeping();
    }
    free(description);
    free(error.log);
    return tap_finish(&tap);
}

#else

int main(void) {
    tap_skip(&tap, "everything", "this build has no cuda backend");
    return tap_finish(&tap);
}

#endif
