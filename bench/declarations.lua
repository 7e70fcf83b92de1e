-- Mutates the declaration of each pointer of many kernels in turn and counts what check mode says:
-- gpulua bench/declarations.lua [pipelines [seeds]]. Run it from the tree's root.

local declarations = require "spec.check.declarations"
local gpu = require "gpulua"

local pipeline_count = math.tointeger(tonumber(arg[1] or 25))
local seed_count = math.tointeger(tonumber(arg[2] or 3))

local cases = {}
local function add(list)
  table.move(list, 1, #list, #cases + 1, cases)
  return #list
end

local known = add(declarations.known())
local generated = add(declarations.pipelines(1, pipeline_count, 8))
local of_examples = 0
local drawn = os.tmpname() .. ".png"
for name, args in pairs {
  saxpy = {}, tasks = {},
  ecg = { "examples/data/ecg.npy" },
  edges = { "examples/data/ascent.png", drawn },
} do
  of_examples = of_examples + add(declarations.captured(function()
    local print_before = print
    print = function() end -- luacheck: ignore
    local ok, err = pcall(assert(loadfile(("examples/%s.lua"):format(name))), table.unpack(args))
    print = print_before -- luacheck: ignore
    assert(ok, err)
  end))
end
os.remove(drawn)
os.remove((drawn:gsub("%.png$", "")))

local counts = declarations.counts()
for seed = 1, seed_count do
  local dev <close> = gpu.device("cpu", { check = true, seed = seed })
  for _, case in ipairs(cases) do
    declarations.mutate(dev, case, counts, print)
    collectgarbage()
  end
end

print(("%d kernels (%d known, %d launches of %d pipelines, %d of the examples), %d seeds; %d alarms in %d right runs")
  :format(#cases, known, generated, pipeline_count, of_examples, seed_count, counts.alarms, counts.originals))
print "| mutation | mutants | needed | caught | % | not needed, and reported |"
print "|---|---|---|---|---|---|"
local needed, caught, reported = 0, 0, 0
for _, kind in ipairs(declarations.kinds) do
  local c = counts[kind]
  needed, caught, reported = needed + c.needed, caught + c.caught, reported + c.reported
  print(("| %s | %d | %d | %d | %s | %d |"):format(kind, c.mutants, c.needed, c.caught,
    c.needed > 0 and ("%.1f"):format(100 * c.caught / c.needed) or "", c.reported))
end
os.exit(caught * 100 >= needed * 99 and reported == 0 and counts.alarms == 0)
