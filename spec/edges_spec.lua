-- Waits between streams: as many as the order needs, and no more.

local edges = require "spec.edges"

describe("waits", function()
  for _, name in ipairs(edges.programs) do
    it("are at most one for each edge that is needed: " .. name, function()
      local order = edges.run(name, { seed = 1 })
      local needed, issued = edges.needed(order), edges.issued(order)
      assert.truthy(needed > 40 and issued > 40)
      assert.truthy(issued <= needed, ("%d waits, %d edges"):format(issued, needed))
      -- Looking at each argument alone would not do.
      assert.truthy(edges.naive(order) > 2 * needed)
    end)
  end

  it("are enough, in whatever order the work is done", function()
    for _, name in ipairs(edges.programs) do
      local _, expected = edges.run(name, { seed = 0 })
      for seed = 1, 4 do
        local _, contents = edges.run(name, { seed = seed })
        assert.equal(expected, contents)
      end
    end
  end)

  it("twin: without them the order matters", function()
    local _, expected = edges.run("stencil", { seed = 0 })
    local different = 0
    for seed = 1, 10 do
      local _, contents = edges.run("stencil", { seed = seed, unfenced = true })
      different = different + (contents ~= expected and 1 or 0)
    end
    assert.truthy(different > 0)
  end)

  -- More streams than a stream remembers steps of its clock: what it forgot is waited for again.
  it("are enough on more streams than a clock remembers", function()
    for number = 1, 2 do
      local order, expected = edges.run("random", { seed = 0 }, number, 150)
      assert.truthy(edges.issued(order) >= edges.needed(order))
      for seed = 1, 2 do
        local _, contents = edges.run("random", { seed = seed }, number, 150)
        assert.equal(expected, contents)
      end
    end
  end)
end)
