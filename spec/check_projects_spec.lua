-- Kernels as projects have them, in check mode: right ones are clean, and of a mistake the finding names what to mend.

local gpu = require "gpulua"
local projects = require "spec.check.projects"
local support = require "spec.support"

local seeds <const> = 4

--- The line of a mark, from 1.
local function marked(source, mark)
  local at = assert(source:find("//@" .. mark .. "\n", 1, true), mark)
  return select(2, source:sub(1, at):gsub("\n", "")) + 1
end

local function is_one_of(value, wanted)
  for _, each in ipairs(type(wanted) == "table" and wanted or { wanted }) do
    if value == each then
      return true
    end
  end
  return false
end

local function lines_of(source, marks)
  local lines = {}
  for i, mark in ipairs(type(marks) == "table" and marks or { marks }) do
    lines[i] = marked(source, mark)
  end
  return lines
end

do -- where the suite's devices are: each transport runs this for itself
  describe("check mode: kernels of projects", function()
    local function each(f)
      for seed = 1, seeds do
        local dev <close> = gpu.device("cpu", { check = true, seed = seed })
        for _, own in ipairs(projects) do
          f(dev, own)
        end
      end
    end

    it("that are right are clean, and compute what they should", function()
      each(function(dev, own)
        local mod = dev:compile(own.source, { name = "project.cu" })
        local op, result = own.run(dev, mod:kernel "kernel", false, mod)
        op:await()
        for i, want in ipairs(own.want()) do
          local got = result:read(i, i)[1]
          assert.truthy(math.abs(got - want) <= 1e-4 * math.max(1, math.abs(want)),
            ("%s: %d: %s, wanted %s"):format(own.name, i, got, want))
        end
      end)
    end)

    it("with one mistake each are found out, by a finding that names what to mend", function()
      each(function(dev, own)
        local mistake = own.mistake
        local source, count = own.source, 1
        if mistake.from then
          source, count = source:gsub(mistake.from, mistake.to)
        end
        assert.equal(1, count, own.name)
        local mod = dev:compile(source, { name = "project.cu" })
        local kernel = mod:kernel("kernel", mistake.signature)
        local op = own.run(dev, kernel, true, mod)
        local ok, err = op:join()
        local what = own.name .. ": " .. mistake.name .. ": " .. (ok and "not found" or err.message)
        assert.is_false(ok, what)
        assert.truthy(is_one_of(err.code, mistake.code), what)
        for _, part in ipairs(mistake.says) do
          assert.truthy(err.message:find(part, 1, true), what)
        end
        if support.has_libdw() then
          local place = err.places[1]
          if mistake.at then
            assert.truthy(is_one_of(place.line, lines_of(source, mistake.at)), what)
            assert.equal("project.cu", place.source)
          end
          assert.equal(mistake.caller and marked(source, mistake.caller), place.caller and place.caller.line, what)
          if mistake.other then
            assert.equal(marked(source, mistake.other), err.places[2].line, what)
          end
        end
      end)
    end)
  end)
end
