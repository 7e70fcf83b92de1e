-- Race patterns of two published sets, in our own words: irregular graph codes with planted bugs (Indigo: Liu, Azami,
-- Walters, Burtscher, ISPASS 2022) and scoped synchronisation (ScoR: Kamath, George, Basu, ISCA 2020). Each has a right
-- version and wrong ones, made by replacing one line; a fourth field says why check mode does not see that one.
--
-- The graph is a ring of 64 nodes with two more edges each, as rows: `first` (65 numbers) and `to` (192). A pattern's
-- bugs: { kind, line of the right version, what stands there instead }.

local races = {}

local function pattern(set, name, config, args, bugs, source)
  races[#races + 1] = { set = set, name = name, config = config, args = args, bugs = bugs, source = source }
end

local nodes = 64

local function graph(dev)
  return dev:upload("i32", nodes + 1, function(i) return (i - 1) * 3 end),
    dev:upload("i32", nodes * 3, function(i)
      local v, k = (i - 1) // 3, (i - 1) % 3
      return k == 0 and (v + 1) % nodes or (v * 7 + k * 11) % nodes
    end)
end
local function data(dev)
  return dev:upload("i32", nodes, function(i) return i * 7919 % 1009 end)
end
local function zeros(dev, n)
  return dev:buffer("i32", n):fill(0)
end

--- Arguments: the graph, what `more` makes.
local function with_graph(more)
  return function(dev)
    local first, to = graph(dev)
    return { first, to, table.unpack(more(dev)) }
  end
end

local by_thread, by_block = { grid = 2, block = 32 }, { grid = nodes, block = 64 }
local by_warp = { grid = 8, block = 256 }

pattern("Indigo", "conditional_edge_thread", by_thread, with_graph(function(dev) return { zeros(dev, 1) } end), {
  { "atomic", "atomicAdd(count, 1);", "count[0] += 1;" },
  { "bounds", "e < first[v + 1]", "e <= first[v + 1]" },
}, [[
  extern "C" __global__ void conditional_edge_thread(const int *first, const int *to, int *count) {
    int v = blockIdx.x * blockDim.x + threadIdx.x;
    for (int e = first[v]; e < first[v + 1]; e++) {
      if (v < to[e]) {
        atomicAdd(count, 1);
      }
    }
  }]])

pattern("Indigo", "conditional_edge_block", by_block, with_graph(function(dev) return { zeros(dev, 1) } end), {
  { "sync", "__syncthreads(); // zeroed", ";" },
  { "sync", "__syncthreads(); // counted", ";" },
  { "atomic", "atomicAdd(&own, 1);", "own += 1;" },
  { "atomic", "atomicAdd(count, own);", "count[0] += own;" },
}, [[
  extern "C" __global__ void conditional_edge_block(const int *first, const int *to, int *count) {
    __shared__ int own;
    int v = blockIdx.x;
    if (threadIdx.x == 0) own = 0;
    __syncthreads(); // zeroed
    for (int e = first[v] + threadIdx.x; e < first[v + 1]; e += blockDim.x) {
      if (v != to[e]) {
        atomicAdd(&own, 1);
      }
    }
    __syncthreads(); // counted
    if (threadIdx.x == 40) {
      atomicAdd(count, own);
    }
  }]])

pattern("Indigo", "conditional_vertex_thread", by_thread,
  with_graph(function(dev) return { data(dev), zeros(dev, 1) } end), {
    { "atomic", "atomicMax(largest, best);", "if (best > largest[0]) largest[0] = best;" },
    { "guard", "atomicMax(largest, best);", "if (best > largest[0]) atomicMax(largest, best);" },
    { "bounds", "e < first[v + 1]", "e <= first[v + 1]" },
  }, [[
  extern "C" __global__ void conditional_vertex_thread(const int *first, const int *to, const int *data, int *largest) {
    int v = blockIdx.x * blockDim.x + threadIdx.x, best = 0;
    for (int e = first[v]; e < first[v + 1]; e++) {
      best = max(best, data[to[e] ]);
    }
    if (best > data[v]) {
      atomicMax(largest, best);
    }
  }]])

pattern("Indigo", "conditional_vertex_warp", by_warp,
  with_graph(function(dev) return { data(dev), zeros(dev, 1) } end), {
    { "atomic", "atomicMax(largest, best);", "if (best > largest[0]) largest[0] = best;" },
    { "guard", "atomicMax(largest, best);", "if (best > largest[0]) atomicMax(largest, best);" },
  }, [[
  extern "C" __global__ void conditional_vertex_warp(const int *first, const int *to, const int *data, int *largest) {
    int v = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32, best = 0;
    for (int e = first[v] + lane; e < first[v + 1]; e += 32) {
      best = max(best, data[to[e] ]);
    }
    for (int d = 16; d > 0; d /= 2) best = max(best, __shfl_down_sync(0xffffffff, best, d));
    if (lane == 0 && best > data[v]) {
      atomicMax(largest, best);
    }
  }]])

pattern("Indigo", "conditional_vertex_block", by_block,
  with_graph(function(dev) return { data(dev), zeros(dev, 1) } end), {
    { "sync", "__syncthreads(); // stored", ";" },
    { "sync", "__syncthreads(); // halved", ";" },
    { "atomic", "atomicMax(largest, s[0]);", "largest[0] = max(largest[0], s[0]);" },
    { "guard", "atomicMax(largest, s[0]);", "if (s[0] > largest[0]) atomicMax(largest, s[0]);" },
  }, [[
  extern "C" __global__ void conditional_vertex_block(const int *first, const int *to, const int *data, int *largest) {
    __shared__ int s[64];
    int v = blockIdx.x, best = 0;
    for (int e = first[v] + threadIdx.x; e < first[v + 1]; e += blockDim.x) {
      best = max(best, data[to[e] ]);
    }
    s[threadIdx.x] = best;
    __syncthreads(); // stored
    for (int half = 32; half > 0; half /= 2) {
      if (threadIdx.x < half) s[threadIdx.x] = max(s[threadIdx.x], s[threadIdx.x + half]);
      __syncthreads(); // halved
    }
    if (threadIdx.x == 0 && s[0] > data[v]) {
      atomicMax(largest, s[0]);
    }
  }]])

pattern("Indigo", "pull_thread", by_thread, with_graph(function(dev) return { data(dev), data(dev) } end), {
  { "race", "best = max(best, data[to[e] ]);", "best = max(best, next[to[e] ]);" },
  { "bounds", "e < first[v + 1]", "e <= first[v + 1]" },
}, [[
  extern "C" __global__ void pull_thread(const int *first, const int *to, const int *data, int *next) {
    int v = blockIdx.x * blockDim.x + threadIdx.x, best = data[v];
    for (int e = first[v]; e < first[v + 1]; e++) {
      best = max(best, data[to[e] ]);
    }
    next[v] = best;
  }]])

pattern("Indigo", "pull_warp", by_warp, with_graph(function(dev) return { data(dev), data(dev) } end), {
  { "race", "if (lane == 0) next[v] = best;", "next[v] = best;" },
  { "race", "best = max(best, data[to[e] ]);", "best = max(best, next[to[e] ]);" },
}, [[
  extern "C" __global__ void pull_warp(const int *first, const int *to, const int *data, int *next) {
    int v = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32, best = data[v];
    for (int e = first[v] + lane; e < first[v + 1]; e += 32) {
      best = max(best, data[to[e] ]);
    }
    for (int d = 16; d > 0; d /= 2) best = max(best, __shfl_down_sync(0xffffffff, best, d));
    if (lane == 0) next[v] = best;
  }]])

pattern("Indigo", "pull_block", by_block, with_graph(function(dev) return { data(dev), data(dev) } end), {
  { "sync", "__syncthreads(); // set", ";" },
  { "sync", "__syncthreads(); // pulled", ";" },
  { "atomic", "atomicMax(&best, data[to[e] ]);", "best = max(best, data[to[e] ]);" },
  { "guard", "atomicMax(&best, data[to[e] ]);", "if (data[to[e] ] > best) atomicMax(&best, data[to[e] ]);" },
}, [[
  extern "C" __global__ void pull_block(const int *first, const int *to, const int *data, int *next) {
    __shared__ int best;
    int v = blockIdx.x;
    if (threadIdx.x == 0) best = data[v];
    __syncthreads(); // set
    for (int e = first[v] + threadIdx.x; e < first[v + 1]; e += blockDim.x) {
      atomicMax(&best, data[to[e] ]);
    }
    __syncthreads(); // pulled
    if (threadIdx.x == 33) next[v] = best;
  }]])

pattern("Indigo", "push_thread", by_thread, with_graph(function(dev) return { data(dev), data(dev) } end), {
  { "atomic", "atomicMax(&next[to[e] ], own);", "next[to[e] ] = max(next[to[e] ], own);" },
  { "guard", "atomicMax(&next[to[e] ], own);", "if (next[to[e] ] < own) atomicMax(&next[to[e] ], own);" },
  { "bounds", "e < first[v + 1]", "e <= first[v + 1]" },
}, [[
  extern "C" __global__ void push_thread(const int *first, const int *to, const int *data, int *next) {
    int v = blockIdx.x * blockDim.x + threadIdx.x, own = data[v];
    for (int e = first[v]; e < first[v + 1]; e++) {
      atomicMax(&next[to[e] ], own);
    }
  }]])

pattern("Indigo", "push_warp", by_warp, with_graph(function(dev) return { data(dev), data(dev) } end), {
  { "atomic", "atomicMax(&next[to[e] ], own);", "next[to[e] ] = max(next[to[e] ], own);" },
  { "guard", "atomicMax(&next[to[e] ], own);", "if (next[to[e] ] < own) atomicMax(&next[to[e] ], own);" },
}, [[
  extern "C" __global__ void push_warp(const int *first, const int *to, const int *data, int *next) {
    int v = (blockIdx.x * blockDim.x + threadIdx.x) / 32, own = data[v];
    for (int e = first[v] + threadIdx.x % 32; e < first[v + 1]; e += 32) {
      atomicMax(&next[to[e] ], own);
    }
  }]])

local worklist = with_graph(function(dev) return { data(dev), zeros(dev, 1), zeros(dev, nodes) } end)

pattern("Indigo", "worklist_thread", by_thread, worklist, {
  { "atomic", "int at = atomicAdd(count, 1);", "int at = count[0]++;" },
  { "race", "list[at] = v;", "list[at / 2] = v;" },
  { "bounds", "e < first[v + 1]", "e <= first[v + 1]" },
}, [[
  extern "C" __global__ void worklist_thread(const int *first, const int *to, const int *data, int *count, int *list) {
    int v = blockIdx.x * blockDim.x + threadIdx.x, is_wanted = 0;
    for (int e = first[v]; e < first[v + 1]; e++) {
      is_wanted |= data[to[e] ] > data[v];
    }
    if (is_wanted) {
      int at = atomicAdd(count, 1);
      list[at] = v;
    }
  }]])

pattern("Indigo", "worklist_block", by_thread, worklist, {
  { "sync", "__syncthreads(); // zeroed", ";" },
  { "sync", "__syncthreads(); // counted", ";" },
  { "sync", "__syncthreads(); // reserved", ";" },
  { "atomic", "rank = atomicAdd(&own, 1);", "rank = own++;" },
  { "atomic", "start = atomicAdd(count, own);", "{ start = count[0]; count[0] += own; }" },
}, [[
  extern "C" __global__ void worklist_block(const int *first, const int *to, const int *data, int *count, int *list) {
    __shared__ int own, start;
    int v = blockIdx.x * blockDim.x + threadIdx.x, rank = -1;
    if (threadIdx.x == 0) own = 0;
    __syncthreads(); // zeroed
    if (data[to[first[v] ] ] != data[v]) {
      rank = atomicAdd(&own, 1);
    }
    __syncthreads(); // counted
    if (threadIdx.x == 0) start = atomicAdd(count, own);
    __syncthreads(); // reserved
    if (rank >= 0) list[start + rank] = v;
  }]])

pattern("Indigo", "path_compression", by_thread, function(dev)
  return { dev:upload("i32", nodes, function(i) return math.max(0, i - 2) end), zeros(dev, nodes) }
end, {
  { "atomic", "atomicMin(&parent[v], root);", "parent[v] = root;" },
  { "race", "int up = atomicAdd(&parent[root], 0);", "int up = parent[root];" },
}, [[
  extern "C" __global__ void path_compression(int *parent, int *out) {
    int v = blockIdx.x * blockDim.x + threadIdx.x, root = v;
    while (true) {
      int up = atomicAdd(&parent[root], 0);
      if (up == root) break;
      root = up;
    }
    atomicMin(&parent[v], root);
    out[v] = root;
  }]])

local scopes = "an atomic operation is one for all blocks, whatever its scope"

local function words(dev)
  return { zeros(dev, 1), zeros(dev, 4) }
end

pattern("ScoR", "lock_of_blocks", { grid = 8, block = 32 }, words, {
  { "fence", "__threadfence(); // taken", ";", "an atomic operation acquires, with a fence behind it or without" },
  { "fence", "__threadfence(); // before it is given back", ";" },
  { "fence scope", "__threadfence(); // before it is given back", "__threadfence_block();" },
  { "lock", "while (atomicCAS(lock, 0, 1) != 0) { }", ";" },
  { "lock", "atomicExch(lock, 0);", "lock[0] = 0;" },
}, [[
  extern "C" __global__ void lock_of_blocks(int *lock, int *sum) {
    if (threadIdx.x == 0) {
      while (atomicCAS(lock, 0, 1) != 0) { }
      __threadfence(); // taken
      sum[0] = sum[0] + 1;
      __threadfence(); // before it is given back
      atomicExch(lock, 0);
    }
  }]])

pattern("ScoR", "counter_of_blocks", { grid = 8, block = 32 }, words, {
  { "atomic scope", "atomicAdd(sum, 1);", "atomicAdd_block(sum, 1);", scopes },
  { "atomic", "atomicAdd(sum, 1);", "sum[0] = sum[0] + 1;" },
}, [[
  extern "C" __global__ void counter_of_blocks(int *lock, int *sum) {
    if (threadIdx.x == 0) {
      atomicAdd(sum, 1);
      atomicAdd(lock, 1);
    }
  }]])

pattern("ScoR", "counter_of_threads", { grid = 1, block = 128 }, words, {
  { "atomic", "atomicAdd_block(sum, 1);", "sum[0] = sum[0] + 1;" },
}, [[
  extern "C" __global__ void counter_of_threads(int *lock, int *sum) {
    atomicAdd_block(sum, 1);
    atomicAdd(lock, 1);
  }]])

pattern("ScoR", "last_block_adds", { grid = 4, block = 32 }, words, {
  { "fence", "__threadfence();", ";" },
  { "fence scope", "__threadfence();", "__threadfence_block();" },
  { "atomic scope", "atomicAdd(done, 1) == 3", "atomicAdd_block(done, 1) == 3", scopes },
  { "atomic", "atomicAdd(done, 1) == 3", "done[0]++ == 3" },
}, [[
  extern "C" __global__ void last_block_adds(int *done, int *parts) {
    if (threadIdx.x == 0) {
      parts[blockIdx.x] = blockIdx.x + 1;
      __threadfence();
      if (atomicAdd(done, 1) == 3) {
        int all = 0;
        for (int i = 0; i < 4; i++) all += parts[i];
        parts[0] = all;
      }
    }
  }]])

pattern("ScoR", "work_stealing", { grid = 4, block = 32 }, words, {
  { "atomic scope", "int at = atomicAdd(next, 1);", "int at = atomicAdd_block(next, 1);", scopes },
  { "atomic", "int at = atomicAdd(next, 1);", "int at = next[0]++;" },
}, [[
  extern "C" __global__ void work_stealing(int *next, int *out) {
    if (threadIdx.x == 0) {
      int at = atomicAdd(next, 1);
      while (at < 4) {
        out[at] = blockIdx.x;
        at = atomicAdd(next, 1);
      }
    }
  }]])

--- One source with all of them, right and wrong, and a list of { of =, name =, kind = or nil, unseen = or nil }.
function races.all()
  local texts, list = {}, {}
  for _, p in ipairs(races) do
    texts[#texts + 1] = p.source
    list[#list + 1] = { of = p, name = p.name }
    for i, bug in ipairs(p.bugs) do
      local kind, right, wrong = table.unpack(bug)
      local name = ("%s_%d"):format(p.name, i)
      local from, to = p.source:find(right, 1, true)
      assert(from, p.name .. ": " .. right)
      local text = p.source:sub(1, from - 1) .. wrong .. p.source:sub(to + 1)
      texts[#texts + 1] = text:gsub("void " .. p.name, "void " .. name)
      list[#list + 1] = { of = p, name = name, kind = kind, unseen = bug[4] }
    end
  end
  return table.concat(texts, "\n"), list
end

--- Runs all of them. Returns the list, with the code of what was found or nil in `code`.
function races.run(dev)
  local source, list = races.all()
  local mod = dev:compile(source)
  for _, case in ipairs(list) do
    local op = mod[case.name]:launch(case.of.config, table.unpack(case.of.args(dev)))
    local ok, err = pcall(op.await, op)
    case.code = not ok and err.code or nil
  end
  return list
end

return races
