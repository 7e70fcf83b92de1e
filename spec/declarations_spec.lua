-- Declarations of kernels, mutated one by one: check mode reports what the kernel as it runs violates, and nothing
-- else. The whole table: bench/declarations.lua.

local declarations = require "spec.check.declarations"
local gpu = require "gpulua"
local support = require "spec.support"

describe("a wrong declaration", function()
  if support.is_gpu() then
    pending "check mode is the CPU device's"
    return
  end

  local function counts_of(cases)
    local dev <close> = gpu.device("cpu", { check = true, seed = 4 })
    local counts, said = declarations.counts(), {}
    for _, case in ipairs(cases) do
      declarations.mutate(dev, case, counts, function(text) said[#said + 1] = text end)
    end
    return counts, table.concat(said, "\n")
  end

  --- All that is needed is caught, and nothing else is reported.
  local function holds(cases, least)
    local counts, said = counts_of(cases)
    local needed = 0
    assert.equal(0, counts.alarms, said)
    for _, kind in ipairs(declarations.kinds) do
      assert.equal(counts[kind].needed, counts[kind].caught, kind .. ": " .. said)
      assert.equal(0, counts[kind].reported, kind .. ": " .. said)
      needed = needed + counts[kind].needed
    end
    assert.truthy(needed >= least, needed)
    assert.equal(#cases, counts.originals)
    return counts
  end

  it("of one of the known kernels is caught, none that is right or wider is", function()
    local counts = holds(declarations.known(), 180)
    assert.truthy(counts["read dropped"].needed > 5)
    assert.truthy(counts["write dropped"].needed > 5)
    assert.truthy(counts["wider than needed"].mutants > 30)
  end)

  it("of views that overlap is caught, where no other view of the launch has the bytes", function()
    local counts = holds(declarations.pipelines(1, 12, 8), 150)
    assert.truthy(counts["in and out swapped"].mutants > counts["in and out swapped"].needed)
  end)
end)
