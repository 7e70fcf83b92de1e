// C++ that the token pass must leave as it is, or get right; k1 also has values to check.
extern "C" __global__ void index(const char *p, int c, int *out) { out[threadIdx.x] = p[c]; }
extern "C" __global__ void read(int *out) { *out = 1; }
extern "C" __global__ void copy(float *dst, const float *src, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) dst[i] = src[i];
}
__device__ int write, time, signal, stat, div, string, size, half, uint, linear, current, value, x, y, z, code, facts;
__device__ float T, N, A, B, I, P;
struct Vec { float x, y, z; __device__ Vec(float a, float b, float c) : x(a), y(b), z{c} {} __device__ Vec operator+(const Vec &o) const { return Vec(x + o.x, y + o.y, z + o.z); } __device__ Vec operator/(float f) const { return Vec(x / f, y / f, z / f); } };
__device__ inline float3 operator*(float3 a, float b) { return make_float3(a.x * b, a.y * b, a.z * b); }
__device__ inline float3 operator/(float3 a, float b) { return make_float3(a.x / b, a.y / b, a.z / b); }
__device__ inline float3 operator/(float b, float3 a) { return make_float3(b / a.x, b / a.y, b / a.z); }
template <typename F> __device__ void apply(F f, int n) { for (int i = threadIdx.x; i < n; i += blockDim.x) f(i); }
__device__ int square(int v) { return v * v; }
template <typename T, T V> struct constant { static constexpr T value = V; };
enum class Mode : int { A = 16 / 4, B };
template <int N> __device__ constexpr int log2_of() { if constexpr (N <= 1) return 0; else return 1 + log2_of<N / 2>(); }
union Bits { float f; unsigned u; };
__constant__ struct { int a; float b[4]; } settings;
__constant__ const float table[2][2] = {{1.0f, 2.0f}, {3.0f, 4.0f}};
static __device__ unsigned long long total;
using index_t = unsigned int;
__global__ void k1(Vec *v, float3 *f, int n, int *out) {
  index_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  Vec a(1, 2, 3);
  v[i] = (a + a) / 2.0f;
  float d = (float)n;
  v[i] = v[i] / d;
  f[i] = make_float3(1, 2, 3) * 2.0f / d;
  f[i] = 1.0f / f[i];
  f[i] = d / f[i];
  apply([&](int k) { out[k] = square(k) / n + (int)threadIdx.x; }, n);
  struct Local { int a, b; __device__ int sum() { return a + b / (int)blockDim.x; } } local = {1, 2};
  out[i] += local.sum() + (int)Mode::A + log2_of<64>() + constant<int, 7 / 2>::value;
  Bits b; b.f = 1.0f; out[i] += b.u >> 30;
  int *p = out + n / 2, *q = &out[n % 3]; *p /= *q; (*q) %= n; p[0] /= (n > 3 ? n : 2);
  switch (n) { case 12 / 4: break; case 'a' / 2: break; default: goto done; }
  asm_like: out[0] = settings.a + (int)settings.b[1] + (int)table[1][0];
done:
  if (n == 77) goto asm_like;
  unsigned char c = 255; c %= (unsigned char)n; c /= n; out[i] += c;
  const char *s = "a / b % c <<< >>> asm"; out[i] += s[0] / n;
  auto l2 = [n](int u) -> decltype(u / n) { return u / n; }; out[i] += l2(5);
  out[i] += [](int w) { return w / 3 + (int)blockIdx.x / w; }(4);
  for (int j = 0, m = n / 2; j < m; j += m / 2 + 1) out[j] ^= j >> 1 | m << 2;
  total = total / n; atomicAdd(&total, 1ull);
}
template <typename T, int BLOCK = 256 / 2> __global__ __launch_bounds__(BLOCK) void k2(T *x, const T *__restrict__ y = nullptr) { __shared__ union { T t[BLOCK]; int i[4]; } s; s.t[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = s.t[BLOCK - 1 - threadIdx.x]; }
template __global__ void k2<double, 64>(double *, const double *);
template <> __global__ void k2<int, 32>(int *x, const int *y) { x[0] = y[0]; }
static __global__ void k3(const float *__restrict__ a, float (*b)[4], float c[3], int (*fp)(int)) { b[0][1] = a[0] + c[0]; }
namespace { __global__ void hidden(int *x) { *x = 3; } }
inline namespace v1 { __global__ void versioned(int *x) { *x = 4; } }
__global__ void declared(int *x, int y); 
__global__ void declared(int *x, int) { *x = warpSize; }
__global__ void defaulted(int n, int *x, float f = 1.0f / 3, int m = sizeof(int) / 2) { x[0] = n / m + (int)f; }
class Base { public: __device__ virtual int f() const { return 1; } __device__ virtual ~Base() {} protected: int member = 4 / 2; };
class Derived : public Base { __device__ int f() const override { __syncthreads(); return member / 1; } };
__global__ void virtuals(int *x) { Derived d; const Base *b = &d; x[threadIdx.x] = b->f(); }
__global__ void __launch_bounds__(64) bounded(int *x) { int i = threadIdx.x; if (!(i < 10 && i >= 0)) return; x[i] = 1; }
__global__ void ternary(int n, const float *a, float *b) { unsigned i = threadIdx.x + blockIdx.x * blockDim.x; if (i < (unsigned)n) { float v = a[i] > 0 ? a[i] / n : __fdividef(1, a[i]); b[i] = v; } }
__global__ void logical(int w, int h, uchar4 *img) { const int2 p = make_int2(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y); if (p.x < w && p.y < h) img[p.y * w + p.x] = make_uchar4(p.x % 256, p.y / h, 0, 255); }
