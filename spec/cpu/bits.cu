// Bit and integer intrinsics, conversions, packed integers.
extern "C" __global__ void bits(unsigned x, unsigned y, unsigned long long l, unsigned *out,
                                unsigned long long *lout) {
    int o = 0;
    out[o++] = __popc(x);
    out[o++] = __clz(x >> 5);
    out[o++] = __clz(0);
    out[o++] = __ffs(x << 7);
    out[o++] = __ffs(0);
    out[o++] = __brev(x);
    out[o++] = __byte_perm(x, y, 0x7531);
    out[o++] = __byte_perm(x, y, 0x80c1);
    out[o++] = __funnelshift_l(x, y, 9);
    out[o++] = __funnelshift_r(x, y, 9);
    out[o++] = __funnelshift_l(x, y, 41);
    out[o++] = __funnelshift_lc(x, y, 41);
    out[o++] = __funnelshift_rc(x, y, 41);
    out[o++] = __mul24((int)x, (int)y);
    out[o++] = __umul24(x, y);
    out[o++] = __mulhi((int)x, (int)y);
    out[o++] = __umulhi(x, y);
    out[o++] = __sad((int)x, (int)y, 5u);
    out[o++] = __usad(x, y, 5u);
    out[o++] = __hadd((int)x, (int)y);
    out[o++] = __rhadd((int)x, (int)y);
    out[o++] = __uhadd(x, y);
    out[o++] = __urhadd(x, y);
    out[o++] = __dp4a((int)x, (int)y, 7);
    out[o++] = __dp4a(x, y, 7u);
    out[o++] = __dp2a_lo((int)x, (int)y, 7);
    out[o++] = __dp2a_hi(x, y, 7u);
    out[o++] = __fns(x, 4, 3);
    out[o++] = __popcll(l);
    out[o++] = __clzll((long long)(l >> 3));
    out[o++] = __ffsll((long long)(l << 40));
    lout[0] = __brevll(l);
    lout[1] = __umul64hi(l, l);
    lout[2] = (unsigned long long)__mul64hi((long long)l, -3);
    lout[3] = (unsigned long long)__double_as_longlong(__longlong_as_double((long long)l));
    lout[4] = (unsigned)__double2hiint(2.5) + (unsigned long long)__double2loint(2.5);
    lout[5] = (unsigned long long)__double_as_longlong(__hiloint2double(0x3ff80000, 0));
}

extern "C" __global__ void packed(unsigned x, unsigned y, unsigned *out) {
    int o = 0;
    out[o++] = __vadd4(x, y);
    out[o++] = __vadd2(x, y);
    out[o++] = __vaddss4(x, y);
    out[o++] = __vaddus2(x, y);
    out[o++] = __vsub4(x, y);
    out[o++] = __vsubus4(x, y);
    out[o++] = __vsubss2(x, y);
    out[o++] = __vabsdiffu4(x, y);
    out[o++] = __vabsdiffs2(x, y);
    out[o++] = __vmaxs4(x, y);
    out[o++] = __vmaxu4(x, y);
    out[o++] = __vmins2(x, y);
    out[o++] = __vminu2(x, y);
    out[o++] = __vavgu4(x, y);
    out[o++] = __vavgs4(x, y);
    out[o++] = __vhaddu4(x, y);
    out[o++] = __vneg4(x);
    out[o++] = __vabs4(x);
    out[o++] = __vabsss4(0x80ff7f01u);
    out[o++] = __vcmpeq4(x, (x & 0xffff0000u) | (y & 0xffffu));
    out[o++] = __vcmpgts4(x, y);
    out[o++] = __vcmpltu4(x, y);
    out[o++] = __vsetges2(x, y);
    out[o++] = __vsadu4(x, y);
    out[o++] = __vsads4(x, y);
}

extern "C" __global__ void conversions(const float *f, const double *d, int n, int *i, unsigned *u,
                                       long long *l, unsigned long long *ul) {
    int t = threadIdx.x;
    if (t >= n) return;
    i[t * 8] = __float2int_rn(f[t]);
    i[t * 8 + 1] = __float2int_rz(f[t]);
    i[t * 8 + 2] = __float2int_ru(f[t]);
    i[t * 8 + 3] = __float2int_rd(f[t]);
    i[t * 8 + 4] = __double2int_rn(d[t]);
    i[t * 8 + 5] = __double2int_rz(d[t]);
    i[t * 8 + 6] = __float_as_int(f[t]);
    i[t * 8 + 7] = __float_as_int(__int2float_rn(__float2int_rz(f[t])));
    u[t * 2] = __float2uint_rn(f[t]);
    u[t * 2 + 1] = __double2uint_ru(d[t]);
    l[t * 2] = __float2ll_rn(f[t]);
    l[t * 2 + 1] = __double2ll_rd(d[t]);
    ul[t] = __double2ull_rz(d[t]);
}
