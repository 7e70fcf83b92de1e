-- Random programs on eight streams and 64 buffers with overlapping views end as if their operations had run one after
-- the other (spec/programs.lua; the long runs: bench/random.lua).

local programs = require "spec.programs"
local support = require "spec.support"

describe("random programs", function()
  local dev, where
  setup(function()
    dev = support.open()
    where = programs.open(dev)
  end)
  teardown(support.close_all)

  it("of 10,000 operations end as if they had run in order", function()
    for seed = 1, 3 do
      assert.equal(nil, programs.run(where, seed, 10000), "seed " .. seed)
    end
  end)

  it("of 300 operations end as if they had run in order", function()
    for seed = 2001, 2030 do
      assert.equal(nil, programs.run(where, seed, 300), "seed " .. seed)
    end
  end)

  it("end so, too, on devices that look at each launch of a graph by itself, or write no words", function()
    for _, opts in ipairs { { trace = true }, { in_flight = 20 }, { watchdog = 600 },
      { attribution = "exact", completion = "word" }, { completion = "event" }, { completion = "block" } } do
      local own = support.open(opts)
      local there = programs.open(own)
      for seed = 3001, 3003 do
        assert.equal(nil, programs.run(there, seed, 400), next(opts) .. ", seed " .. seed)
      end
      programs.close(there)
      own:close()
    end
  end)

  it("leave nothing behind", function()
    support.without_leak(dev, function()
      programs.run(where, 7, 1000)
    end)
  end)

  it("of 10,000 operations end as if they had run in order, 1,000 seeds #slow", function()
    if not os.getenv "GPULUA_SLOW" then
      pending "GPULUA_SLOW=1 runs it"
    end
    for seed = 1, 1000 do
      assert.equal(nil, programs.run(where, seed, 10000), "seed " .. seed)
    end
  end)

  it("twin: without fences they do not", function()
    support.wants_time(pending)
    local is_there, unfenced = pcall(support.open, { unfenced = true })
    if not is_there then
      pending(unfenced.message)
    end
    local other = programs.open(unfenced)
    local wrong, seed = 0, 0
    while wrong == 0 and seed < 100 do -- on a fast device one program may end well by luck
      seed = seed + 1
      wrong = programs.run(other, seed, 10000) and 1 or 0
    end
    programs.close(other)
    unfenced:close()
    assert.truthy(wrong > 0)
  end)
end)
