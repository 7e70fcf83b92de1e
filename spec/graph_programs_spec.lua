-- Random programs, eagerly and as graphs; and after random binds. GPULUA_SEED=1001 begins with others than the usual.

local source = require "spec.graph_kernels"
local support = require "spec.support"

describe("random programs", function()
  local dev, mod
  local n <const> = 96
  local first_seed <const> = assert(math.tointeger(os.getenv "GPULUA_SEED" or 1))
  setup(function()
    dev = support.open()
    mod = dev:compile(source)
  end)
  teardown(support.close_all)

  -- A list of operations on a few buffers with overlapping views, as functions of the set of buffers; and the numbers
  -- that some of them add, by operation. With `temporaries`, three more buffers, which are made anew now and then.
  local function program(seed, count, temporaries)
    local buffers = temporaries and 8 or 5
    local random = support.random(seed)
    local function pick(limit) return random(1, limit) end
    local operations, numbers, adds = {}, {}, {}
    local put = mod:kernel("put", "in i32*, in i32*, out i32*, i32")
    for i = 1, count do
      local kind = pick(temporaries and 13 or 10)
      local a, b, c = pick(buffers), pick(buffers), pick(buffers)
      local length = pick(n // 2)
      local at, from = pick(n - length), pick(n - length)
      if kind <= 5 and a ~= b then
        adds[#adds + 1] = i
        numbers[i] = i
      end
      operations[i] = function(set, view)
        if kind <= 5 and a ~= b then
          mod.add:launch(length, view(set[a], from, length), view(set[b], at, length), length, numbers[i])
        elseif kind <= 7 and a ~= c and b ~= c then
          put:launch(length, view(set[a], from, length), view(set[b], at, length), view(set[c], at, length), length)
        elseif kind == 8 and a ~= b then
          view(set[a], from, length):copy(view(set[b], at, length))
        elseif kind == 9 then
          view(set[a], at, length):fill(i)
        elseif kind > 10 then
          set[5 + a % 3 + 1] = dev:buffer("i32", n + i):fill(i)
        else
          set[a]:write({ i, i + 1 }, at)
        end
      end
    end
    return operations, numbers, adds
  end

  local function fresh()
    local set = {}
    for i = 1, 5 do
      set[i] = dev:buffer("i32", n, { label = "b" .. i }):fill(i)
    end
    return set
  end

  -- Something else in a few places, in the graph and in what is run eagerly.
  local function rebind(random, graph, eager, captured, numbers, adds)
    local binds = {}
    local kind, i, j = random(1, 4), random(1, 5), random(1, 5)
    if kind == 1 then -- they change places
      binds["b" .. i], binds["b" .. j] = captured[j], captured[i]
      captured[i], captured[j] = captured[j], captured[i]
      eager[i], eager[j] = eager[j], eager[i]
    elseif kind == 2 then
      local value = random(1, 1000)
      captured[i], eager[i] = dev:buffer("i32", n):fill(value), dev:buffer("i32", n):fill(value)
      binds["b" .. i] = captured[i]
    end
    for _ = 1, kind >= 2 and 3 or 0 do
      local which = adds[random(1, #adds)] and random(1, #adds)
      numbers[adds[which]] = random(-100, 100)
      binds[("add#%d.a"):format(which)] = numbers[adds[which]]
    end
    return graph:bind(binds)
  end

  local function run(operations, set, temporaries)
    local views = {}
    set = table.move(set, 1, 5, 1, {})
    for i = 6, temporaries and 8 or 5 do
      set[i] = dev:buffer("i32", n):fill(i)
    end
    local function view(b, at, length)
      local v = b:slice(at, at + length - 1)
      views[#views + 1] = v
      return v
    end
    for _, operation in ipairs(operations) do
      operation(set, view)
    end
    for _, v in ipairs(views) do
      v:close()
    end
  end

  --- A few launches in a row that nobody has a handle on, of one stream or of several.
  local function replay(random, streams, graph, run_eagerly)
    local first = random(1, #streams)
    for i = 1, random(1, 4) do
      run_eagerly()
      graph:launch { stream = streams[i < 3 and first or random(1, #streams)] }
    end
  end

  local function same(seeds, count, binds)
    local streams = { dev:stream {}, dev:stream {}, dev:stream {} }
    for seed = first_seed, first_seed + seeds - 1 do
      local operations, numbers, adds = program(seed, count)
      local random = support.random(seed)
      local eager, captured = fresh(), fresh()
      local graph <close> = dev:capture(function() run(operations, captured) end)
      for round = 1, 3 do
        if binds and #adds > 0 then
          assert.is_true((rebind(random, graph, eager, captured, numbers, adds))) -- the same edges
        end
        replay(random, streams, graph, function() run(operations, eager) end)
        for i = 1, 5 do
          local is_same = eager[i]:bytes() == captured[i]:bytes()
          assert.is_true(is_same, ("seed %d, round %d, buffer %d"):format(seed, round, i))
        end
      end
      for i = 1, 5 do
        eager[i]:close()
        captured[i]:close()
      end
    end
  end

  -- Of which the graph keeps the memory: captured, forked, bound, made anew by an update.
  local function same_with_temporaries(seeds, count)
    local streams = { dev:stream {}, dev:stream {}, dev:stream {} }
    for seed = first_seed, first_seed + seeds - 1 do
      local operations, numbers, adds = program(seed, count, true)
      local random = support.random(seed)
      local eager, captured = fresh(), fresh()
      local graph <close> = dev:capture(function() run(operations, captured, true) end)
      local fork
      for round = 1, 4 do
        if round == 2 then
          fork = graph:fork()
          assert.are.same({ graph:nodes() }, { fork:nodes() })
        elseif #adds > 0 then
          rebind(random, graph, eager, captured, numbers, adds)
        end
        if round == 4 then
          operations = program(seed + seeds, count, true)
          graph:update(function() run(operations, captured, true) end)
        end
        replay(random, streams, round == 2 and fork or graph, function() run(operations, eager, true) end)
        for i = 1, 5 do
          local is_same = eager[i]:bytes() == captured[i]:bytes()
          assert.is_true(is_same, ("seed %d, round %d, buffer %d"):format(seed, round, i))
        end
      end
      fork:close()
      for i = 1, 5 do
        eager[i]:close()
        captured[i]:close()
      end
    end
  end

  it("give the same eagerly and as graphs", function()
    same(30, 60)
  end)

  it("give the same eagerly and as graphs with temporaries", function()
    same_with_temporaries(30, 60)
  end)

  it("give the same eagerly and as graphs with temporaries, 1,000 seeds #slow", function()
    if not os.getenv "GPULUA_SLOW" then
      pending "GPULUA_SLOW=1 runs it"
    end
    same_with_temporaries(1000, 100)
  end)

  it("give the same eagerly and as graphs, 1,000 seeds #slow", function()
    if not os.getenv "GPULUA_SLOW" then
      pending "GPULUA_SLOW=1 runs it"
    end
    same(1000, 100)
  end)

  it("give the same eagerly and as graphs after binds", function()
    same(30, 60, true)
  end)

  it("give the same eagerly and as graphs after binds, 1,000 seeds #slow", function()
    if not os.getenv "GPULUA_SLOW" then
      pending "GPULUA_SLOW=1 runs it"
    end
    same(1000, 100, true)
  end)
end)
