// Integer division by zero and of the smallest number by -1: any value, but no fault.
#define SIZE 48
template <int N> struct Half {
    static const int value = N / 2;
    enum { rest = N % 4 };
};
struct Fraction {
    int top, bottom;
    __device__ Fraction operator/(int by) const { return Fraction{top, bottom * by}; }
    __device__ Fraction &operator/=(int by) {
        bottom *= by;
        return *this;
    }
    __device__ int operator%(int by) const { return top + by; }
};
struct Constants {
    static const int count = 6;
};

template <typename T> __device__ void all(const T *a, const T *b, T *out, int i) {
    out[4 * i] = a[i] / b[i];
    out[4 * i + 1] = a[i] % b[i];
    T x = a[i], y = a[i];
    x /= b[i];
    y %= b[i];
    out[4 * i + 2] = x;
    out[4 * i + 3] = y;
}
extern "C" __global__ void divide(const int *a, const int *b, int *out, const unsigned *ua,
                                  const unsigned *ub, unsigned *uout, const long long *la,
                                  const long long *lb, long long *lout, const signed char *ca,
                                  const signed char *cb, signed char *cout, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        all(a, b, out, i);
        all(ua, ub, uout, i);
        all(la, lb, lout, i);
        all(ca, cb, cout, i);
    }
}

extern "C" __global__ void expressions(int a, int b, int c, float f, float *fout, int *out) {
    int array[SIZE / 4 + SIZE % 5] = {1, 2, 3};
    constexpr int quarter = SIZE / (2 + 2);
    int o = 0;
    out[o++] = a * b / c;            // (a * b) / c
    out[o++] = a / b / c;            // (a / b) / c
    out[o++] = a / (b / c);
    out[o++] = a - b / c + a % b * c;
    out[o++] = -a / b;
    out[o++] = a / -b;
    out[o++] = (a + b) / c % b;
    out[o++] = a / b * c;
    out[o++] = a ? b / c : c / b;
    out[o++] = sizeof(array) / sizeof(array[0]);
    out[o++] = quarter + Half<10>::value + Half<SIZE / 3>::rest;
    switch (a % 7) {
    case SIZE / 12 - 1: out[o++] = 100; break;
    default: out[o++] = 200;
    }
    int x = 100, y = 100;
    x /= b / c;
    y %= b + (x /= 2);
    out[o++] = x;
    out[o++] = y;
    Fraction fraction = Fraction{a, 1} / b;
    fraction /= c;
    out[o++] = fraction.bottom;
    out[o++] = fraction % b;
    unsigned char narrow = 200;
    narrow /= (unsigned char)b;
    out[o++] = narrow;
    out[o++] = a / Constants::count;
    long long wide = (long long)a << 33;
    wide /= b;
    out[o++] = (int)(wide >> 20);
    volatile int v = 90;
    v /= c;
    out[o++] = v;
    fout[0] = f / 3;
    fout[1] = 1 / f;
    fout[2] = f / (float)b;
    float g = f;
    g /= b;
    fout[3] = g;
    double d = 1.0;
    d /= f;
    fout[4] = (float)(d / a);
    fout[5] = f / 0.0f; // infinite
    int zero = c - c;
    fout[6] = f / zero;
}
