-- Turns what run.sh collected into a Markdown table. Usage: lua5.4 bench/table.lua FOLDER DEVICE
local folder, device = arg[1], arg[2]

local function medians(name)
  local samples, order = {}, {}
  for line in io.lines(folder .. "/" .. name) do
    local key, value, unit = line:match("^(%S+) (%S+) (%S+)$")
    if key then
      if not samples[key] then
        samples[key] = { unit = unit }
        order[#order + 1] = key
      end
      table.insert(samples[key], assert(tonumber(value)))
    end
  end
  local result = {}
  for key, list in pairs(samples) do
    table.sort(list)
    result[key] = { value = list[#list // 2 + 1], unit = list.unit }
  end
  return result, order
end

local raw = medians("raw")
raw.round_trip_slept = raw.round_trip_idle -- a thread sleeps in one way only
local none, order = medians("none")
local thread, process = medians("thread"), medians("process")

local function cell(entry) return entry and ("%.0f"):format(entry.value) or "-" end
local function ratio(entry, floor)
  return entry and floor and ("%.2f"):format(entry.value / floor.value) or "-"
end

print(("Device %s, medians; ratios to the raw driver of the same run."):format(device))
print()
print("| what | unit | raw driver | none | thread | process | none / raw | thread / raw | process / raw |")
print("|---|---|---|---|---|---|---|---|---|")
for _, key in ipairs(order) do
  print(("| %s | %s | %s | %s | %s | %s | %s | %s | %s |"):format(key, none[key].unit, cell(raw[key]), cell(none[key]),
    cell(thread[key]), cell(process[key]), ratio(none[key], raw[key]), ratio(thread[key], raw[key]),
    ratio(process[key], raw[key])))
end

local function number(name)
  local file <close> = assert(io.open(folder .. "/" .. name))
  return assert(tonumber(file:read("l")))
end
local lua, gpulua = number("start-lua"), number("start-gpulua")
print(("| start and exit with -e '' | ms | lua5.4: %.2f | %.2f |  | +%.2f ms |  |"):format(lua, gpulua, gpulua - lua))
