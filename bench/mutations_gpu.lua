-- Lost fences on a GPU without check mode: how many of those that bench/mutations.lua's check mode finds change a
-- result there by themselves. gpulua bench/mutations_gpu.lua [device [pipelines [runs [operations]]]], from the
-- tree's root. A pipeline is submitted whole while its streams are held, so nothing is over before all of it is there.

local pipelines = require "spec.pipelines"

local name = arg[1] or "cuda"
local pipeline_count = math.tointeger(tonumber(arg[2] or 30))
local run_count = math.tointeger(tonumber(arg[3] or 3))
local operation_count = math.tointeger(tonumber(arg[4] or 8))
local seed_count = 200

local counts = { caught = 0, missed = 0, masked = 0, unneeded = 0 }
local seen, false_alarms, others = 0, 0, 0
for number = 1, pipeline_count do
  local pipeline = pipelines.make(number, operation_count)
  local expected, _, waits = pipelines.run(pipeline, { seed = 0 })
  for _ = 1, run_count do
    local contents, _, waits_there = pipelines.run(pipeline, { isolate = "none" }, name)
    false_alarms = false_alarms + (contents ~= expected and 1 or 0)
    others = others + (waits_there ~= waits and 1 or 0)
  end
  for fence = 1, waits do
    local kind = pipelines.mutate(pipeline, fence, expected, seed_count)
    counts[kind] = counts[kind] + 1
    for _ = 1, kind == "caught" and run_count or 0 do
      if pipelines.run(pipeline, { isolate = "none", unfenced = fence }, name) ~= expected then
        seen = seen + 1
        break
      end
    end
  end
  collectgarbage()
end
print(("%d pipelines of %d operations; with all fences %d runs on %s differ, %d had another number of fences"):format(
  pipeline_count, operation_count, false_alarms, name, others))
print(("| needed | caught in check mode, %d seeds | changed a result on %s, %d runs | %% |"):format(seed_count, name,
  run_count))
print("|---|---|---|---|")
local needed = counts.caught + counts.missed
print(("| %d | %d | %d | %.1f |"):format(needed, counts.caught, seen, 100 * seen / math.max(1, needed)))
