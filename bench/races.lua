-- What check mode says of known kernels without one of their barriers, and of published race patterns:
-- gpulua bench/races.lua [seeds]. Run it from the tree's root.

local barriers = require "spec.check.barriers"
local gpu = require "gpulua"
local races = require "spec.check.races"

local seed_count = math.tointeger(tonumber(arg[1] or 20))

local wrong, counts, by = 0, { needed = 0, caught = 0, redundant = 0, reported = 0 }, {}
local sets, order = {}, {}
for seed = 1, seed_count do
  local plain <close> = gpu.device("cpu", { check = false })
  local dev <close> = gpu.device("cpu", { check = true, seed = seed })
  for name, difference in pairs(barriers.run(dev, plain)) do
    wrong = wrong + 1
    print(("%s with seed %d: %s"):format(name, seed, difference))
  end
  for _, result in ipairs(barriers.remove(dev)) do
    local kind, hit = "needed", "caught"
    if result.is_redundant then
      kind, hit = "redundant", "reported"
    end
    counts[kind] = counts[kind] + 1
    counts[hit] = counts[hit] + (result.code and 1 or 0)
    by[result.code or "nothing"] = (by[result.code or "nothing"] or 0) + 1
    if (result.code ~= nil) == result.is_redundant then
      print(("%s with seed %d: %s"):format(result.name, seed, result.code or "missed"))
    end
  end
  for _, case in ipairs(races.run(dev)) do
    local key = case.of.set .. " | " .. (case.kind or "right")
    if not sets[key] then
      sets[key] = { total = 0, found = 0 }
      order[#order + 1] = key
    end
    sets[key].total = sets[key].total + 1
    sets[key].found = sets[key].found + (case.code and 1 or 0)
  end
end

print(("%d kernels, %d barriers, %d seeds; %d runs with all barriers had another result"):format(#barriers.kernels,
  #barriers.variants, seed_count, wrong))
print "| removed | needed | caught | not needed | of them reported |"
print "|---|---|---|---|---|"
print(("| %d | %d | %d | %d | %d |"):format(#barriers.variants * seed_count, counts.needed, counts.caught,
  counts.redundant, counts.reported))
for code, count in pairs(by) do
  print(("%s: %d"):format(code, count))
end
table.sort(order)
print "| set | kind | runs | reported |"
print "|---|---|---|---|"
for _, key in ipairs(order) do
  print(("| %s | %d | %d |"):format(key, sets[key].total, sets[key].found))
end
os.exit(wrong == 0 and counts.caught == counts.needed and counts.reported == 0)
