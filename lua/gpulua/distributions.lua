-- Random numbers as kernels, for rng.lua: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
-- as 1, 2, 3", 2011), and what is made of random words, its own or a library's.
--
-- Philox makes four words of 32 bits, a block, of a counter and the seed as its key. Block b has the counter (b / 65536
-- in 64 bits, b mod 65536, 0), which is the order of cuRAND's CURAND_RNG_PSEUDO_PHILOX4_32_10. So each number follows
-- from the seed and its place alone, with whatever draw or thread it comes. Seed and place lie on the device, and
-- there the place moves on: each launch of a graph draws new numbers.

local once <const> = require "gpulua.once"

local source <const> = [[
typedef unsigned int u32;
typedef unsigned long long u64;

struct block {
  u32 w[4];
  __device__ void get(int i, u32 &word) const { word = w[i]; }
  __device__ void get(int i, u64 &word) const { word = (u64)w[2 * i + 1] << 32 | w[2 * i]; }
};

__device__ static inline block philox(u32 c0, u32 c1, u32 c2, u32 c3, u32 k0, u32 k1) {
  for (int round = 0; round < 10; round++) {
    u32 low0 = 0xD2511F53u * c0, high0 = __umulhi(0xD2511F53u, c0);
    u32 low1 = 0xCD9E8D57u * c2, high1 = __umulhi(0xCD9E8D57u, c2);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  block made = {{c0, c1, c2, c3}};
  return made;
}

// ---- numbers of words ----

__device__ static inline float closed(u32 w) { return (float)w * 0x1p-32f + 0x1p-33f; } // (0, 1]
__device__ static inline double closed(u64 w) { return (double)(w >> 11) * 0x1p-53 + 0x1p-54; }
__device__ static inline double inside(u32 w) { return ((double)w + 0.5) * 0x1p-32; } // (0, 1)
__device__ static inline double inside(u64 w) { return ((double)(w >> 12) + 0.5) * 0x1p-52; }

// What all distributions have: the type T of their numbers, the word W that each is made of.
template <class number, class word> struct distribution {
  typedef number T;
  typedef word W;
  __device__ void set(double, double, double, double) {}
};

template <class T, class W> struct bits : distribution<T, W> {
  __device__ T of(W w) const { return (T)w; }
};

template <class T, class W> struct uniform : distribution<T, W> {
  __device__ T of(W w) const { return closed(w); }
};

template <class T, class W> struct shifted : distribution<T, W> {
  T mean, deviation;
  __device__ void set(double a, double b, double, double) {
    mean = (T)a;
    deviation = (T)b;
  }
};

// Of each number by the inverse of the distribution.
template <class T, class W> struct normal : shifted<T, W> {
  __device__ T of(W w) const { return this->mean + this->deviation * (T)normcdfinv(inside(w)); }
};

template <class T, class W> struct log_normal : normal<T, W> {
  __device__ T of(W w) const { return exp(normal<T, W>::of(w)); }
};

// The least k whose probability of k or less reaches u, looked for from the mode on: its probability and that of it or
// less are known.
template <class T, class W> struct poisson : distribution<T, W> {
  double mean, mode, below, at;
  __device__ void set(double a, double b, double c, double d) {
    mean = a;
    mode = b;
    below = c;
    at = d;
  }
  __device__ T of(W w) const {
    double u = inside(w), k = mode, sum = below, p = at;
    if (u <= sum) {
      double inverse = mean > 0.0 ? 1.0 / mean : 0.0;
      while (k > 0.0 && u <= sum - p) {
        sum -= p;
        p *= k * inverse;
        k -= 1.0;
      }
    } else {
      while (u > sum && p > 1e-20) {
        k += 1.0;
        p *= mean / k;
        sum += p;
      }
    }
    return (T)k;
  }
};

// Two by two (Box and Muller).
__device__ static inline void turn(float length, float part, float *e) {
  float s, c;
  sincospif(2.0f * part, &s, &c);
  e[0] = length * s;
  e[1] = length * c;
}
__device__ static inline void turn(double length, double part, double *e) {
  double s, c;
  sincospi(2.0 * part, &s, &c);
  e[0] = length * s;
  e[1] = length * c;
}
__device__ static inline float length_of(float u) { return sqrtf(-2.0f * logf(u)); }
__device__ static inline double length_of(double u) { return sqrt(-2.0 * log(u)); }

// ---- kernels ----

// How the numbers of a block are made: each of its word, or normal ones by pairs.
template <class D> struct each : D {
  __device__ void make(const block &b, typename D::T *e) const {
    for (int i = 0; i < (int)(16 / sizeof *e); i++) {
      typename D::W w;
      b.get(i, w);
      e[i] = this->of(w);
    }
  }
};
template <class T, class W> struct pairs : shifted<T, W> {
  __device__ void make(const block &b, T *e) const {
    for (int i = 0; i < (int)(16 / sizeof *e); i += 2) {
      W v, w;
      b.get(i, v);
      b.get(i + 1, w);
      turn(length_of(closed(v)), closed(w), e + i);
    }
    for (int i = 0; i < (int)(16 / sizeof *e); i++) e[i] = this->mean + this->deviation * e[i];
  }
};
template <class T, class W> struct log_pairs : pairs<T, W> {
  __device__ void make(const block &b, T *e) const {
    pairs<T, W>::make(b, e);
    for (int i = 0; i < (int)(16 / sizeof *e); i++) e[i] = exp(e[i]);
  }
};

template <class T> struct alignas(16) stored { T e[16 / sizeof(T)]; };

__device__ static inline u64 rounded(u64 place, u32 width) { return (place + width - 1) & ~(u64)(width - 1); }

// state: the seed, the place. A block is stored at once where its numbers lie so in memory.
template <class D>
__device__ static inline void draw(u64 n, const long long *state, typename D::T *out, const D &how) {
  typedef typename D::T T;
  const u32 count = 16 / sizeof(T), width = sizeof(T) / 4;
  const u64 seed = (u64)state[0], first = rounded((u64)state[1], width) / width;
  const u64 first_block = first / count;
  const u32 skipped = (u32)(first % count); // of the first block
  const u64 block_count = (skipped + n + count - 1) / count;
  const bool is_aligned = (((u64)out - skipped * sizeof(T)) & 15) == 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < block_count; i += gridDim.x * (u64)blockDim.x) {
    u64 b = (first_block + i) & 0x3fffffffffffffff, at = i * count - skipped;
    stored<T> made;
    how.make(philox((u32)(b >> 16), (u32)(b >> 48), (u32)b & 0xffff, 0, (u32)seed, (u32)(seed >> 32)), made.e);
    if (is_aligned && i * count >= skipped && at + count <= n) {
      *(stored<T> *)(out + at) = made;
    } else {
      for (u32 k = 0; k < count; k++) {
        if (at + k < n) out[at + k] = made.e[k]; // before the beginning, at + k is a large number
      }
    }
  }
}

extern "C" __global__ void advance(u64 n, u32 width, long long *state) {
  state[1] = (long long)(rounded((u64)state[1], width) + n * width);
}

// The numbers are made of the words that are in their place.
template <class D> __device__ static inline void replace(u64 n, void *x, const D &how) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (u64)blockDim.x) {
    typename D::W word = ((const typename D::W *)x)[i];
    ((typename D::T *)x)[i] = how.of(word);
  }
}

]]

-- A kernel of each distribution and type: Philox's numbers, or those of words that a library has put in their place.
local kernel_texts <const> = {
  draw = [[
extern "C" __global__ void NAME(u64 n, const long long *state, void *out, double a, double b, double c, double d) {
  DRAWN how;
  how.set(a, b, c, d);
  draw(n, state, (T *)out, how);
}
]],
  make = [[
extern "C" __global__ void NAME(u64 n, void *x, double a, double b, double c, double d) {
  MADE how;
  how.set(a, b, c, d);
  replace(n, x, how);
}
]],
}
local signatures <const> = {
  draw = "n: u64, state: in i64*, out: out void*, a: f64, b: f64, c: f64, d: f64",
  make = "n: u64, x: inout void*, a: f64, b: f64, c: f64, d: f64",
}

local made_of <const> = {
  bits = { drawn = "each<bits<T, W> >", "u32", "u64" },
  uniform = { drawn = "each<uniform<T, W> >", made = "uniform<T, W>", "f32", "f64" },
  normal = { drawn = "pairs<T, W>", made = "normal<T, W>", "f32", "f64" },
  log_normal = { drawn = "log_pairs<T, W>", made = "log_normal<T, W>", "f32", "f64" },
  poisson = { drawn = "each<poisson<T, W> >", made = "poisson<T, W>", "u32", "u64" },
}
local c_types <const> = { u32 = "u32", u64 = "u64", f32 = "float", f64 = "double" }
local unsigned <const> = { i32 = "u32", i64 = "u64" }

local distributions = {}

--- The element types that a distribution's numbers may have, in words.
function distributions.types(what)
  return made_of[what][1] == "u32" and "u32, i32, u64, i64" or "f32, f64"
end

--- By distribution and element type, the name of the kernel.
distributions.names = {}
for what, made in pairs(made_of) do
  distributions.names[what] = {}
  for _, kind in ipairs { "u32", "i32", "u64", "i64", "f32", "f64" } do
    local stored = unsigned[kind] or kind
    if stored == made[1] or stored == made[2] then
      distributions.names[what][kind] = what .. "_" .. stored
    end
  end
end

--- By element type, how many words of 32 bits a number takes.
distributions.widths = { u32 = 1, i32 = 1, f32 = 1, u64 = 2, i64 = 2, f64 = 2 }

local kernels = { draw = setmetatable({}, { __mode = "k" }), make = setmetatable({}, { __mode = "k" }) } -- by device

--- The kernels that `draw` Philox's numbers and advance its state, or those that `make` numbers of words (not of bits,
-- which are words), by name. The first time they are compiled.
function distributions.kernels(device, how)
  if kernels[how][device] then
    return kernels[how][device]
  end
  local parts, names = { source }, {}
  for _, what in ipairs { "bits", "uniform", "normal", "log_normal", "poisson" } do
    local made = made_of[what]
    for _, kind in ipairs(how == "draw" and made or made.made and made or {}) do
      local name = distributions.names[what][kind]
      local text = string.gsub(kernel_texts[how], "DRAWN", made.drawn)
      text = string.gsub(string.gsub(text, "MADE", made.made or ""), "NAME", name)
      names[#names + 1] = name
      parts[#parts + 1] = string.gsub(string.gsub(text, "%f[%w]T%f[%W]", c_types[kind]), "%f[%w]W%f[%W]",
        distributions.widths[kind] == 2 and "u64" or "u32")
    end
  end
  return (once(kernels[how], device, device, function()
    local module = device:compile(table.concat(parts), { name = "rng.cu" })
    local made = { advance = module:kernel("advance", "n: u64, width: u32, state: inout i64*") }
    for _, name in ipairs(names) do
      made[name] = module:kernel(name, signatures[how])
    end
    return made, module
  end))
end

-- ---- Poisson's ----

local latest = {} -- mean, mode, the probability of the mode or less, that of the mode

--- What kernels of "poisson" take as a, b, c, d. Probabilities are those of the mode times products of quotients, and
-- sum up to 1.
function distributions.poisson(mean)
  if latest[1] ~= mean then
    local mode <const> = mean // 1
    local below, above, part = 0.0, 0.0, 1.0
    for k = mode, 1, -1 do
      part = part * k / mean
      below = below + part
      if part < 1e-20 then
        break
      end
    end
    part = 1.0
    local k = mode
    repeat
      k = k + 1
      part = part * mean / k
      above = above + part
    until part < 1e-20
    local total <const> = below + 1.0 + above
    latest = { mean, mode, (below + 1.0) / total, 1.0 / total }
  end
  return table.unpack(latest)
end

return distributions
