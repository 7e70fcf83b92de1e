-- Loses each fence of random pipelines in turn and counts how many of the losses change a result within so many
-- seeds of check mode: gpulua bench/mutations.lua [pipelines [seeds [operations]]]. Run it from the tree's root.

local pipelines = require "spec.pipelines"

local pipeline_count = math.tointeger(tonumber(arg[1] or 200))
local seed_count = math.tointeger(tonumber(arg[2] or 200))
local operation_count = math.tointeger(tonumber(arg[3] or 8))

local counts = { caught = 0, missed = 0, masked = 0, unneeded = 0 }
local fences, false_alarms, seeds_needed, differing = 0, 0, {}, 0
for number = 1, pipeline_count do
  local pipeline = pipelines.make(number, operation_count)
  local expected, _, waits = pipelines.run(pipeline, { seed = 0 })
  for seed = 1, 3 do
    if pipelines.run(pipeline, { seed = seed }) ~= expected then
      differing = differing + 1
    end
  end
  for n = 1, waits do
    local kind, seed = pipelines.mutate(pipeline, n, expected, seed_count)
    fences = fences + 1
    counts[kind] = counts[kind] + 1
    if kind == "caught" then
      seeds_needed[#seeds_needed + 1] = seed
    elseif kind == "unneeded" and seed then
      false_alarms = false_alarms + 1
    elseif kind == "missed" then
      print(("missed: pipeline %d, fence %d"):format(number, n))
    end
  end
  collectgarbage()
end
table.sort(seeds_needed)
local needed = counts.caught + counts.missed
print(("%d pipelines of %d operations, %d with a difference although nothing was lost"):format(pipeline_count,
  operation_count, differing))
print(("%d fences, each lost once, %d seeds"):format(fences, seed_count))
print("| needed | caught | % | seeds, median | 99 % | most | implied by others | of them reported | no order differs |")
print("|---|---|---|---|---|---|---|---|---|")
local function quantile(q)
  return seeds_needed[math.max(1, math.ceil(#seeds_needed * q))] or 0
end
print(("| %d | %d | %.2f | %d | %d | %d | %d | %d | %d |"):format(needed, counts.caught, 100 * counts.caught / needed,
  quantile(0.5), quantile(0.99), quantile(1), counts.unneeded, false_alarms, counts.masked))
os.exit(counts.missed * 100 <= needed and false_alarms == 0 and differing == 0)
