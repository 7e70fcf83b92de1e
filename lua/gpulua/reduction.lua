-- Reductions as CUDA C: what each of them does with each type, and the kernels.
--
-- Elements go to lanes, whose values are joined in a tree of neighbours. Which element goes to which lane follows from
-- sizes alone, so results depend neither on the device nor on where memory lies. On a GPU a thread has as many lanes as
-- 16 bytes have elements, and warps and blocks join theirs; on the CPU device one thread has all lanes of a block, as
-- an array, which its compiler turns into vector instructions, and no barrier is left.

local core = require "gpulua.core"
local expression = require "gpulua.expression"
local generated = require "gpulua.generated"

local block <const> = 256 -- threads, or what does their work
local rows_max <const> = 16 -- elements of a lane of a row
local column_bytes <const> = 128 -- of neighbouring columns that a block reads
local per_thread_max <const> = 4 -- columns of a thread: there is a value for each
local column_values <const> = 1024 -- of a block of columns: at most so many threads, and fewer if each has several
local at_once_max <const> = 8 -- elements of a column that a lane loads together

-- ---- what is computed ----

local is_float <const> = { f16 = true, bf16 = true, f32 = true, f64 = true }
local is_complex <const> = { c64 = true, c128 = true }

local function is_integer(t) return not is_float[t] and not is_complex[t] end
local function wide(t) return is_float[t] and (t == "f64" and t or "f32") or t end

-- What changes no value that it is joined with: for sums of floats -0.
local function extreme_of(t, is_high)
  if is_float[t] then
    return (is_high and "" or "-") .. "__int_as_float(0x7f800000)"
  elseif string.sub(t, 1, 1) == "u" then
    return is_high and string.format("(%s)~0ull", expression.c_type[t]) or "0"
  end
  return string.format("(%s)%s(1ull << %d)", expression.c_type[t], is_high and "~" or "", 8 * generated.bytes[t] - 1)
end

-- Of each: the type of values (what is accumulated) and of the result, and code: `none`; `take`, the value of an
-- element x; `grow`, value a with element x (if it is not the join with its value); `join` of values a and b; `finish`,
-- the result of value a of `count` elements.
local ops = {}

function ops.sum(t)
  if is_complex[t] then
    local make = t == "c64" and "make_float2" or "make_double2"
    return { value = t, result = t, none = make .. "(-0.0, -0.0)", join = make .. "(a.x + b.x, a.y + b.y)" }
  elseif is_integer(t) then
    local u = string.sub(t, 1, 1) == "u" and "u64" or "i64"
    return { value = u, result = u, none = "0", join = "(value)((unsigned long long)a + (unsigned long long)b)" }
  end
  return { value = wide(t), result = wide(t), none = "-0.0", join = "a + b" }
end

function ops.prod(t)
  if is_complex[t] then
    core.raise("Unsupported", string.format("reduce: 'prod' of complex numbers (%s) is not supported", t),
      generated.parts_hint(t, "x"))
  end
  local op = ops.sum(t)
  op.none, op.join = "1", string.gsub(op.join, "%+", "*")
  return op
end

function ops.mean(t)
  local op = ops.sum(is_integer(t) and "f64" or t)
  op.finish = is_complex[t] and string.gsub(op.none, "%(.*", "") .. "(a.x / (double)count, a.y / (double)count)"
    or "a / (double)count"
  return op
end

-- In f64, where squares of all other floats are exact. fma says that the squares of f64 are never rounded on their own,
-- whatever the compiler.
function ops.norm(t)
  local grow = "fma((double)(%s), (double)(%s), %s)"
  local function squares(from)
    if is_complex[t] then
      return string.format(grow, "x.x", "x.x", string.format(grow, "x.y", "x.y", from))
    end
    local x = generated.load(t, "x")
    return string.format(grow, x, x, from)
  end
  return { value = "f64", result = (t == "c64" or is_float[t] and t ~= "f64") and "f32" or "f64", none = "0.0",
    take = squares "0.0", grow = squares "a", join = "a + b", finish = "sqrt(a)" }
end

-- A value that is not a number is the result of all.
local function extreme(t, is_max)
  if is_complex[t] then
    core.raise("InvalidArgument", string.format("reduce: complex numbers (%s) have no order", t),
      generated.parts_hint(t, "x"))
  end
  local is_after = is_max and ">=" or "<="
  return { value = wide(t), result = t, none = extreme_of(t, not is_max),
    join = is_float[t] and string.format("(a %s b || a != a) ? a : b", is_after)
      or string.format("a %s b ? a : b", is_after) }
end

-- `before`: does b come before a, wherever they are?
local function place_of(t, is_max)
  local op = extreme(t, is_max)
  op.result = "i64"
  op.before = is_float[t] and string.format("!(b %s a) && a == a", is_max and "<=" or ">=")
    or is_max and "b > a" or "b < a"
  return op
end

function ops.max(t) return extreme(t, true) end
function ops.min(t) return extreme(t, false) end
function ops.argmax(t) return place_of(t, true) end
function ops.argmin(t) return place_of(t, false) end

--- describe(op, t) -> { value = and result = types, ... }, or nil if there is no such reduction.
local function describe(op, t)
  return ops[op] and ops[op](t)
end

-- ---- code ----

-- In these texts, names in capitals stand for what `source` puts there.

-- A lane has a value; where its place counts too, also that: its number from 0 on among what a block joins.
local lanes_of_values <const> = [[
template <int N> struct lanes {
  value v[N];
  INLINE int at(int) const { return 0; }
  INLINE void put(int l, value x, int) { v[l] = x; }
  template <class S> INLINE void set(int l, typename S::element x, int) { v[l] = S::take(x); }
  template <class S> INLINE void add(int l, typename S::element x, int) { v[l] = S::grow(v[l], x); }
  INLINE void place(int, int, int) { }
  INLINE void join(int l, int a, int b) { v[l] = joined(v[a], v[b]); }
#if THREADS > 1
  INLINE void join_down(int by, int width) { v[0] = joined(v[0], down(v[0], by, width)); }
#endif
};
struct one {
  value v;
  INLINE int at() const { return 0; }
};
static INLINE one one_of(value v, int) { return {v}; }
static INLINE one join_ones(one a, one b) { return {joined(a.v, b.v)}; }
static INLINE result finish(value a, long long place, long long count) { return FINISH; }
]]

local lanes_of_places <const> = [[
static INLINE bool is_before(value b, value a) { return BEFORE; } // wherever they are
struct one {
  value v;
  int place;
  INLINE int at() const { return place; }
};
static INLINE one one_of(value v, int place) { return {v, place}; }
static INLINE one join_ones(one a, one b) {
  bool is_b = is_before(b.v, a.v) || (b.place < a.place && !is_before(a.v, b.v));
  return {is_b ? b.v : a.v, is_b ? b.place : a.place};
}
template <int N> struct lanes {
  value v[N];
  int places[N];
  INLINE int at(int l) const { return places[l]; }
  INLINE void put(int l, value x, int place) { v[l] = x, places[l] = place; }
  template <class S> INLINE void set(int l, typename S::element x, int place) { put(l, S::take(x), place); }
  template <class S> INLINE void add(int l, typename S::element x, int place) { // place is behind what is there
    value b = S::take(x);
    bool is_b = is_before(b, v[l]);
    v[l] = is_b ? b : v[l], places[l] = is_b ? place : places[l];
  }
  INLINE void place(int l, int step, int first) { places[l] = places[l] * step + first; }
  INLINE void join_with(int l, one a, one b) {
    one c = join_ones(a, b);
    put(l, c.v, c.place);
  }
  INLINE void join(int l, int a, int b) { join_with(l, {v[a], places[a]}, {v[b], places[b]}); }
#if THREADS > 1
  INLINE void join_down(int by, int width) {
    join_with(0, {v[0], places[0]}, {down(v[0], by, width), down(places[0], by, width)});
  }
#endif
};
static INLINE result finish(value a, long long place, long long count) { return FINISH; }
]]

local head <const> = [[
#define INLINE __device__ __forceinline__
#if THREADS > 1
#define UNROLL _Pragma("unroll")
template <class T> INLINE T down(T a, int by, int width) { return (T)__shfl_down_sync(~0u, a, by, width); }
template <> INLINE float2 down(float2 a, int by, int width) {
  return make_float2(down(a.x, by, width), down(a.y, by, width));
}
template <> INLINE double2 down(double2 a, int by, int width) {
  return make_double2(down(a.x, by, width), down(a.y, by, width));
}
#define WHOLE INLINE
#else
#define UNROLL
#define WHOLE __device__ __noinline__ // one copy is enough for the compiler to vectorise
#endif
typedef STORED stored;
typedef VALUE value;
typedef RESULT result;
static INLINE value none() { return NONE; }
static INLINE value joined(value a, value b) { return JOIN; }
struct elements { // what a launch joins
  typedef stored element;
  static INLINE value take(stored x) { return TAKE; }
  static INLINE value grow(value a, stored x) { return GROW; }
};
struct values { // what the launch before has left of them
  typedef value element;
  static INLINE value take(value x) { return x; }
  static INLINE value grow(value a, value x) { return joined(a, x); }
};
LANES_CODE
// The tree: neighbours, then neighbours of these; `side` trees lie side by side, their lanes `step` apart.
template <int N, class Lanes> static INLINE void join_lanes(Lanes &s, int step = 1, int side = 1) {
  if constexpr (N > 1) {
    UNROLL for (int l = 0; l < N / 2; l++) {
      for (int c = 0; c < side; c++) s.join(l * step + c, 2 * l * step + c, (2 * l + 1) * step + c);
    }
    join_lanes<N / 2>(s, step, side);
  }
}
]]

local division <const> = [[
static INLINE void divide(long long a, long long b, long long &quotient, long long &rest) {
  if (((a | b) >> 32) == 0) {
    quotient = (unsigned)a / (unsigned)b, rest = (unsigned)a % (unsigned)b;
  } else {
    quotient = a / b, rest = a % b;
  }
}
]]

-- Along the last axis: n elements from x on, one row of WIDTH lanes after another. A thread has MINE of these lanes.
local along <const> = [[
template <class S, int WIDTH, int MINE, bool IS_ALIGNED>
static INLINE void take_rows(lanes<MINE> &s, const typename S::element *x, int rows, int lane) {
#if THREADS > 1
#pragma unroll 4
#endif
  for (int k = 0; k < rows; k++) {
    const typename S::element *row = x + k * WIDTH + lane;
#if THREADS > 1
    typename S::element loaded[MINE];
    if constexpr (IS_ALIGNED) {
      int4 all = *(const int4 *)row;
      memcpy(loaded, &all, sizeof all);
    } else {
      UNROLL for (int l = 0; l < MINE; l++) loaded[l] = row[l];
    }
#else
    const typename S::element *loaded = row;
#endif
    if (k == 0) {
      UNROLL for (int l = 0; l < MINE; l++) s.template set<S>(l, loaded[l], 0);
    } else {
      UNROLL for (int l = 0; l < MINE; l++) s.template add<S>(l, loaded[l], k);
    }
  }
  UNROLL for (int l = 0; l < MINE && rows > 0; l++) s.place(l, WIDTH, lane + l); // until here, the row
}
template <class S, int WIDTH, int MINE>
static WHOLE void take_all(lanes<MINE> &s, const typename S::element *x, int n, int lane) {
  const int rows = n / WIDTH;
  constexpr bool is_wide = THREADS > 1 && MINE * sizeof(typename S::element) == 16;
  if (is_wide && (size_t)x % 16 == 0) {
    take_rows<S, WIDTH, MINE, is_wide>(s, x, rows, lane);
  } else {
    take_rows<S, WIDTH, MINE, false>(s, x, rows, lane);
  }
  UNROLL for (int l = 0; l < MINE; l++) {
    const int at = rows * WIDTH + lane + l;
    if (at < n && rows > 0) s.template add<S>(l, x[at], at);
    else if (at < n) s.template set<S>(l, x[at], at);
    else if (rows == 0) s.put(l, none(), 0x7fffffff);
  }
  join_lanes<MINE>(s);
#if THREADS > 1
  const int width = GROUP < 32 ? GROUP : 32;
  UNROLL for (int by = 1; by < width; by *= 2) s.join_down(by, width);
#endif
}
]]

-- Rows in pieces: a block for each piece. What comes of it goes to `out`, if that is given, else to `part` and (its
-- place in the row) `places`, which the next launch takes as x and `from`.
local pieces <const> = [[
extern "C" __global__ void reduce(const STAGE::element *x, const long long *from, long long length, long long pieces,
                                  long long count, value *part, long long *places, result *out) {
  const int width = BLOCK * 16 / (int)sizeof(STAGE::element), mine = width / THREADS;
  long long row, piece;
  divide(blockIdx.x, pieces, row, piece);
  const long long start = piece * (width * ROWS), left = length - start;
  const int n = left < width * ROWS ? (int)left : width * ROWS;
  lanes<mine> s;
  take_all<STAGE, width, mine>(s, x + (row * length + start), n, (int)threadIdx.x * mine);
#if THREADS > 1
  __shared__ value found[THREADS / 32];
  __shared__ int at[THREADS / 32];
  if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = s.v[0], at[threadIdx.x / 32] = s.at(0);
  __syncthreads();
  lanes<THREADS / 32> all;
  UNROLL for (int w = 0; w < THREADS / 32; w++) all.put(w, found[w], at[w]);
  join_lanes<THREADS / 32>(all);
#else
  const lanes<mine> &all = s;
#endif
  if (threadIdx.x != 0) return;
  const long long place = from ? from[row * length + start + all.at(0)] : start + all.at(0);
  if (out) out[row] = finish(all.v[0], place, count);
  else part[blockIdx.x] = all.v[0];
  if (places) places[blockIdx.x] = place;
}
]]

-- Short rows: LANES lanes for each, those of GROUP threads, as many groups as a block has.
local rows <const> = [[
extern "C" __global__ void reduce(const stored *x, long long length, long long rows, result *out) {
  const int groups = BLOCK / GROUP, mine = THREADS > 1 ? LANES / GROUP : LANES;
  const int lane = THREADS > 1 ? (int)threadIdx.x % GROUP * mine : 0;
  for (int g = (int)threadIdx.x / GROUP; g < groups; g += THREADS > 1 ? groups : 1) {
    const long long row = (long long)blockIdx.x * groups + g;
    const bool is_row = row < rows;
    lanes<mine> s;
    take_all<elements, LANES, mine>(s, x + (is_row ? row * length : 0), is_row ? (int)length : 0, lane);
    if (is_row && lane == 0) out[row] = finish(s.v[0], s.at(0), length);
  }
}
]]

-- Any other axis, behind which there are `inner` elements: segments of it, each by LANES lanes. A lane takes AT_ONCE
-- elements in a tree, LANES apart, then as many again. On a GPU a thread has a lane of PER_THREAD columns side by side,
-- which it loads together, and neighbours read neighbours: a block whole segments, if they are narrow enough, so that
-- what it reads is one run. The CPU device's takes `side` columns at a time.
local columns <const> = [[
#if THREADS > 1
struct few { one of[PER_THREAD]; };
static INLINE few join_few(few a, few b) {
  UNROLL for (int c = 0; c < PER_THREAD; c++) a.of[c] = join_ones(a.of[c], b.of[c]);
  return a;
}
static INLINE few no_few() {
  few a;
  UNROLL for (int c = 0; c < PER_THREAD; c++) a.of[c] = one_of(none(), 0x7fffffff);
  return a;
}
template <class element> struct alignas(PER_THREAD * sizeof(element)) together { element of[PER_THREAD]; };
template <class S, int N, bool IS_WHOLE, bool IS_ALIGNED>
static INLINE few take_some(const typename S::element *x, long long step, int row, int n) {
  if constexpr (N == 1) {
    if (!IS_WHOLE && row >= n) return no_few();
    together<typename S::element> loaded;
    if constexpr (IS_ALIGNED) {
      loaded = *(const together<typename S::element> *)x;
    } else {
      UNROLL for (int c = 0; c < PER_THREAD; c++) loaded.of[c] = x[c];
    }
    few a;
    UNROLL for (int c = 0; c < PER_THREAD; c++) a.of[c] = one_of(S::take(loaded.of[c]), row);
    return a;
  } else {
    return join_few(take_some<S, N / 2, IS_WHOLE, IS_ALIGNED>(x, step, row, n),
                    take_some<S, N / 2, IS_WHOLE, IS_ALIGNED>(x + N / 2 * step, step, row + N / 2 * LANES, n));
  }
}
template <class S, bool IS_ALIGNED>
static INLINE few take_columns(const typename S::element *x, long long inner, int n, int lane) {
  few a = no_few();
  int row = lane;
  for (; row - lane + LANES * AT_ONCE <= n; row += LANES * AT_ONCE) {
    a = join_few(a, take_some<S, AT_ONCE, true, IS_ALIGNED>(x + row * inner, LANES * inner, row, n));
  }
  if (row - lane < n) {
    a = join_few(a, take_some<S, AT_ONCE, false, IS_ALIGNED>(x + row * inner, LANES * inner, row, n));
  }
  return a;
}
#else
// Lane l has the `columns` values from columns * l on. What lies side by side is one run: of short rows, several.
static INLINE int clamp(int a, int most) { return a < 0 ? 0 : a < most ? a : most; }
template <class S, int SIDE>
static WHOLE void take_columns(lanes<LANES * SIDE> &__restrict__ s, const typename S::element *__restrict__ x,
                               long long inner, int n, int columns) {
  const int rows = HAS_PLACES || columns < inner ? 1 : LANES, run = rows * columns;
  const int pair = AT_ONCE > 1 ? 2 : 1, half = AT_ONCE / pair, most = BLOCK;
  for (int l = 0; l < LANES * columns; l++) s.put(l, none(), 0x7fffffff);
  for (int first = 0; first < n; first += LANES * AT_ONCE) {
    for (int lane = 0; lane < LANES; lane += rows) {
      for (int begin = 0; begin < run; begin += most) {
        const int width = clamp(run - begin, most);
        lanes<half * most> some;
        for (int k = 0; k < half; k++) {
          const int row = first + k * pair * LANES + lane, next = row + LANES;
          const int there = clamp(clamp(n - row, rows) * columns - begin, width);
          const int both = pair < 2 ? 0 : clamp(clamp(n - next, rows) * columns - begin, width);
          const typename S::element *a = x + (row * inner + begin), *b = a + LANES * inner;
          for (int i = 0; i < both; i++) {
            one c = join_ones(one_of(S::take(a[i]), row), one_of(S::take(b[i]), next));
            some.put(k * most + i, c.v, c.at());
          }
          for (int i = both; i < there; i++) some.template set<S>(k * most + i, a[i], row);
          for (int i = there; i < width; i++) some.put(k * most + i, none(), 0x7fffffff);
        }
        join_lanes<half>(some, most, width);
        for (int i = 0; i < width; i++) {
          const int l = lane * columns + begin + i;
          one c = join_ones(one_of(s.v[l], s.at(l)), one_of(some.v[i], some.at(i)));
          s.put(l, c.v, c.at());
        }
      }
    }
  }
  join_lanes<LANES>(s, columns, columns);
}
#endif
extern "C" __global__ void __launch_bounds__(VALUES / PER_THREAD)
reduce(const STAGE::element *x, const long long *from, long long length, long long segments, long long segment,
       long long inner, long long total, long long count, value *part, long long *places, result *out) {
  // Columns of segments, or groups of PER_THREAD of them.
  const int mine = THREADS > 1 ? (int)blockDim.x / LANES : BLOCK;
  const int side = THREADS > 1 ? PER_THREAD : LANES > 8 ? BLOCK * 8 / LANES : BLOCK;
  long long id = ((long long)blockIdx.x * mine + threadIdx.x % mine) * PER_THREAD;
  const long long end = THREADS > 1 ? id + 1 : id + mine;
  const int lane = threadIdx.x / mine;
  while (id < end) {
    long long outer = 0, piece = 0, column = 0, rest;
    if (id < total) {
      divide(id, inner, rest, column);
      divide(rest, segments, outer, piece);
    }
    const long long start = piece * segment, left = length - start, before = outer * length;
    const int n = id >= total ? 0 : (int)(left < segment ? left : segment);
    const STAGE::element *first = x + ((before + start) * inner + column);
#if THREADS > 1
    const int columns = PER_THREAD;
    const bool is_aligned = PER_THREAD > 1 && (size_t)x % (PER_THREAD * sizeof(STAGE::element)) == 0;
    few a = is_aligned ? take_columns<STAGE, true>(first, inner, n, lane)
                       : take_columns<STAGE, false>(first, inner, n, lane);
    __shared__ value found[PER_THREAD][VALUES / PER_THREAD];
    __shared__ int found_at[PER_THREAD][VALUES / PER_THREAD];
    for (int by = 1; by < LANES; by *= 2) { // neighbours, then neighbours of these
      UNROLL for (int c = 0; c < PER_THREAD; c++) {
        if (lane % (2 * by) == by) found[c][threadIdx.x] = a.of[c].v, found_at[c][threadIdx.x] = a.of[c].at();
      }
      __syncthreads();
      const int other = (int)threadIdx.x + by * mine;
      UNROLL for (int c = 0; c < PER_THREAD; c++) {
        if (lane % (2 * by) == 0) a.of[c] = join_ones(a.of[c], one_of(found[c][other], found_at[c][other]));
      }
    }
    if (n == 0 || lane > 0) return;
    lanes<PER_THREAD> s;
    UNROLL for (int c = 0; c < PER_THREAD; c++) s.put(c, a.of[c].v, a.of[c].at());
#else
    if (n == 0) return;
    int columns = side;
    if (columns > inner - column) columns = (int)(inner - column);
    if (columns > end - id) columns = (int)(end - id);
    if (columns > total - id) columns = (int)(total - id);
    lanes<LANES * side> s;
    take_columns<STAGE, side>(s, first, inner, n, columns);
#endif
    UNROLL for (int c = 0; c < columns; c++) {
      long long place = start + s.at(c);
      if (from) place = from[(before + place) * inner + column + c];
      if (out) out[id + c] = finish(s.v[c], place, count);
      else part[id + c] = s.v[c];
      if (places) places[id + c] = place;
    }
    id += columns;
  }
}
]]

local parts <const> = { pieces = division .. along .. pieces, rows = along .. rows, columns = division .. columns }

-- The threads of a GPU that have so many lanes.
local function threads_of(t, lanes) return math.max(1, lanes * generated.bytes[t] // 16) end

--- source(op, t, wanted, form, lanes, at_once, threads, is_rest) -> CUDA C of the kernel reduce: the reduction `op` of
-- elements of type t, or (is_rest) of values that a launch before has left of them, to results of type `wanted`.
-- `form`: "pieces", "rows" (with `lanes` lanes each) or "columns" (with `lanes`, `at_once` and `per_thread` of
-- columns_of); `threads` of a block: 256 (those of columns can have more and fewer), or 1, which does what these do and
-- has one column at a time.
local function source(op, t, wanted, form, lanes, at_once, threads, is_rest, per_thread)
  local what, stored = describe(op, t), generated.stored
  local take = what.take or generated.load(t, "x")
  local finish = what.before and "place + 1" or what.finish or "a"
  if not is_complex[what.result] then
    finish = generated.store(wanted, string.format("(%s)(%s)", expression.c_type[wanted], finish))
  elseif wanted ~= what.result then
    finish = string.format("make_%s((%s).x, (%s).y)", stored[wanted], finish, finish)
  end
  local text = string.gsub(head, "LANES_CODE\n", what.before and lanes_of_places or lanes_of_values) .. parts[form]
  local words = { STORED = stored[t], VALUE = stored[what.value], RESULT = stored[wanted], NONE = what.none,
    JOIN = what.join, TAKE = take, GROW = what.grow or string.format("joined(a, %s)", take), BEFORE = what.before,
    HAS_PLACES = what.before and 1 or 0,
    FINISH = finish, STAGE = is_rest and "values" or "elements", THREADS = threads, BLOCK = block, LANES = lanes,
    GROUP = form == "rows" and threads_of(t, lanes) or block, ROWS = rows_max, AT_ONCE = at_once,
    PER_THREAD = threads > 1 and per_thread or 1, VALUES = column_values }
  return generated.with_headers((string.gsub(text, "%f[%w_]%u[%u_]+%f[^%w_]", words)))
end

--- step(t) -> how many elements of type t a block (of pieces) joins in one launch.
local function step(t) return block * 16 // generated.bytes[t] * rows_max end

--- lanes(t, length) -> how many lanes a row of so many elements of type t has, if it is short, and how many rows are a
-- block's; nil: it is long.
local function lanes(t, length)
  local count, most = 1, 16 // generated.bytes[t]
  while count < length and (count < most or count < 32 * most and count * 4 < length) do
    count = count * 2
  end
  if length <= count * rows_max then
    return count, block // threads_of(t, count)
  end
end

local function power_of_two(least)
  local power = 1
  while power < least do
    power = power * 2
  end
  return power
end

--- columns_of(t, outer, length, inner) -> how many lanes a column has; how many elements of it a lane takes at once;
-- how many a block joins in one launch; how many columns side by side a thread of a GPU loads together; how many such
-- threads side by side a block has. Enough lanes that those of neighbouring columns fill a block, and no more than
-- there is work for; few rounds where there is little to do, because each of them waits for memory, and where a thread
-- has more to load in one. None of it but the last two depends on what a GPU likes: these change no result.
local function columns_of(t, outer, length, inner)
  local width = math.min(power_of_two(inner), column_bytes // generated.bytes[t])
  local at_once = math.min(power_of_two(length), at_once_max)
  local count = math.min(block // width, power_of_two((length + at_once - 1) // at_once))
  local per_thread = math.max(1, math.min(per_thread_max, 16 // generated.bytes[t], inner & -inner))
  local rounds = outer * length * inner < 1 << 26 and 4 or per_thread > 1 and 8 or 16
  local side, whole = block // count, inner // per_thread
  if whole * count * per_thread <= column_values then
    side = math.max(side // whole, 1) * whole
  end
  return count, at_once, count * at_once * rounds, per_thread, side
end

return { describe = describe, source = source, step = step, lanes = lanes, columns_of = columns_of, block = block,
  ops = ops }
