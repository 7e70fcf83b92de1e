-- Random programs, eagerly and as graphs; and after random binds.

local source = require "spec.graph_kernels"
local support = require "spec.support"

describe("random programs", function()
  local dev, mod
  local n <const> = 96
  setup(function()
    dev = support.open()
    mod = dev:compile(source)
  end)
  teardown(support.close_all)

  -- A list of operations on a few buffers with overlapping views, as functions of the set of buffers; and the numbers
  -- that some of them add, by operation.
  local function program(seed, count)
    local random = support.random(seed)
    local function pick(limit) return random(1, limit) end
    local operations, numbers, adds = {}, {}, {}
    local put = mod:kernel("put", "in i32*, in i32*, out i32*, i32")
    for i = 1, count do
      local kind = pick(10)
      local a, b, c = pick(5), pick(5), pick(5)
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

  local function run(operations, set)
    local views = {}
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

  local function same(seeds, count, binds)
    for seed = 1, seeds do
      local operations, numbers, adds = program(seed, count)
      local random = support.random(seed)
      local eager, captured = fresh(), fresh()
      local graph <close> = dev:capture(function() run(operations, captured) end)
      for round = 1, 3 do
        if binds and #adds > 0 then
          assert.is_true((rebind(random, graph, eager, captured, numbers, adds))) -- the same edges
        end
        run(operations, eager)
        graph:launch()
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

  it("give the same eagerly and as graphs", function()
    same(30, 60)
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
