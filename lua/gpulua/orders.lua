-- Running a function again and again: under many seeds of the CPU device's check mode, each on a device of its own,
-- and several times on one device. For gpulua.busted; nothing in here knows busted.

local compare = require "gpulua.compare"
local core = require "gpulua.core"
local error_text <const> = require "gpulua.leftovers".error_text
local explore = require "gpulua.seeds"

local orders = {}

local variable <const> = "GPULUA_TEST_SEEDS"

--- "1,17" or "1-200" -> list of seeds; nil, what is wrong.
local function parse(text)
  local list = {}
  for word in string.gmatch(text .. ",", "%s*(.-)%s*,") do
    local first, last = string.match(word, "^(%d+)%-(%d+)$")
    first, last = math.tointeger(tonumber(first or string.match(word, "^%d+$"))), math.tointeger(tonumber(last))
    last = last or first
    if not first or last < first or last - first >= 1e6 then
      return nil, string.format("%s: seeds like 17 or 1,17 or 1-200 expected, got '%s'", variable, text)
    end
    for seed = first, last do
      list[#list + 1] = seed
    end
  end
  return list
end

--- The seeds that `given` means: a number (from 1 to it), a list, nil (from 1 to `default`); $GPULUA_TEST_SEEDS wins.
-- nil, what is wrong.
function orders.seeds(given, default)
  local text = os.getenv(variable)
  if text and text ~= "" then
    return parse(text)
  elseif given == nil then
    given = default
  end
  local list = {}
  if math.type(given) == "integer" and given >= 1 then
    for seed = 1, given do
      list[seed] = seed
    end
  elseif type(given) == "table" and #given > 0 then
    for i, seed in ipairs(given) do
      if math.type(seed) ~= "integer" or seed < 0 then
        return nil, string.format("seeds: whole numbers from 0 on expected, got %s", tostring(seed))
      end
      list[i] = seed
    end
  else
    return nil, string.format("seeds: a number from 1 on or a list of seeds expected, got %s",
      type(given) == "table" and "an empty table" or tostring(given))
  end
  return list
end

--- "200 seeds (1 to 200)"
local function seeds_text(list)
  local first, last = list[1], list[#list]
  if #list == 1 then
    return "seed " .. first
  end
  return string.format("%d seeds (%s)", #list, last - first == #list - 1 and string.format("%d to %d", first, last)
    or table.concat(list, ", ", 1, math.min(#list, 8)) .. (#list > 8 and ", ..." or ""))
end

local function indented(text)
  return "  " .. string.gsub(text, "\n", "\n  ")
end

-- Errors that are found by the order of things, or by looking at each access: those are what seeds are for.
local findings <const> = { RaceFound = true, UndeclaredAccess = true }

--- What busted's `pending` raises is nobody's failure.
local function pass_on(err)
  local meta = type(err) == "table" and debug.getmetatable(err)
  if type(meta) == "table" and meta.__type == "pending" or core.type(err) == "error" and
    (err.code == "Interrupted" or err.code == "Cancelled") then
    error(err, 0)
  end
end

--- Runs f(device, ...) as a task, and all that it leaves to be done. Its results, frozen; nil, its error.
local function outcome_of(f, device, ...)
  local task = core.spawn_run(f, device, ...)
  local results = table.pack(pcall(task.await, task))
  if not results[1] then
    pass_on(results[2])
    return nil, results[2], task:traceback()
  end
  local frozen = { n = results.n - 1 }
  local ok, err = pcall(function()
    for i = 1, frozen.n do
      local problem
      frozen[i], problem = compare.freeze(results[i + 1], "result " .. i)
      if not frozen[i] then
        frozen.problem = problem
        return
      end
    end
    device:synchronize()
  end)
  if not ok then
    pass_on(err)
    return nil, err
  end
  return frozen
end

--- What differs between two lists of results; nil: nothing.
local function difference(a, b)
  if a.n ~= b.n then
    return string.format("%d results and %d", a.n, b.n)
  end
  for i = 1, a.n do
    local text = compare.difference(a[i], b[i], "result " .. i)
    if text then
      return text
    end
  end
  return nil
end

local closed_text <const> = "the function has closed its device"

local function is_closed(device) return core.type(device) == "closed device" end

--- f(device, seed) on a device of its own in check mode: { results = or error =, order =, seed = }.
local function run_seed(f, seed, options)
  local opened = { check = true, seed = seed }
  for name, value in pairs(options or {}) do
    opened[name] = value
  end
  local device <close> = core.device("cpu", opened)
  local before = core.task_seed(seed) -- another device in check mode may be open
  local run = { seed = seed }
  local ok, err = pcall(function()
    run.results, run.error, run.traceback = outcome_of(f, device, seed)
  end)
  core.task_seed(before)
  if not ok then
    error(err, 0)
  end
  if is_closed(device) then
    run.problem = closed_text
    return run
  end
  run.order = device:order()
  run.problem = run.results and run.results.problem
  if not run.problem and not run.error and #run.order == 0 then
    run.problem = "the function gave no work to the device that it was called with"
  end
  return run
end

local function places(name)
  local list = {}
  for place in string.gmatch(string.match(name, "^[^#]*"), "[^.]+") do
    list[#list + 1] = place
  end
  return list
end

--- The names of operations begin with their task's, "1.7.2#3", which counts on from run to run in the place where the
-- task of the run itself is: the first place where the names of two runs differ. Gives them the same ones.
local function same_names(a, b)
  local first, second, depth = places(a[1].name), places(b[1].name), 1
  while first[depth] and first[depth] == second[depth] do
    depth = depth + 1
  end
  for list, own in pairs { [a] = first, [b] = second } do
    local root = table.concat(own, ".", 1, math.min(depth, #own))
    for _, op in ipairs(list) do
      local rest = string.sub(op.name, #root + 1)
      if string.sub(op.name, 1, #root) == root and string.find(rest, "^[.#]") then
        op.name = "run" .. rest
      end
    end
  end
end

local function explained(a, b)
  same_names(a.order, b.order)
  return table.concat(explore.explain({ ran = explore.rename(a.order), reads = {} },
    { ran = explore.rename(b.order), reads = {} }), "\n")
end

local function again(name, ...)
  local list = table.concat({ ... }, ",")
  return string.format("again: { seeds = {%s} } in the call of %s, or %s=%s in the environment",
    string.gsub(list, ",", ", "), name, variable, list)
end

--- The first seed under which f is not what it is under the others. Returns true, what was run; false, what was found;
-- nil, what makes the call useless: f gives the device no work, or returns what cannot be compared, or it fails
-- whatever the seed, which is an error of f's and no race (found out with `is_twin` alone, which wants one).
local function under_seeds(f, seeds, options, name, is_twin)
  local first
  for _, seed in ipairs(seeds) do
    local run = run_seed(f, seed, options)
    if run.problem then
      return nil, run.problem
    end
    local text = run.error and error_text(run.error)
    local is_finding = core.type(run.error) == "error" and findings[run.error.code]
    if text and (is_finding or not is_twin or first and not first.error) then
      local trace = core.type(run.error) ~= "error" and run.traceback
      return false, string.format("seed %d:\n%s%s\n%s", seed, indented(text), trace and "\n" .. indented(trace) or "",
        again(name, seed))
    elseif first and first.error and not text then
      return false, string.format("seed %d:\n%s\n%s", first.seed, indented(error_text(first.error)),
        again(name, first.seed))
    end
    local differs = first and not text and difference(first.results, run.results)
    if differs then
      return false, string.format("seed %d differs from seed %d:\n%s\n%s\n%s", seed, first.seed, indented(differs),
        explained(first, run), again(name, first.seed, seed))
    end
    first = first or run
  end
  if first.error then
    return nil, string.format("the function fails under each of %s, so that the order is not why: %s",
      seeds_text(seeds), error_text(first.error))
  end
  return true, seeds_text(seeds), first
end

local function checked(given, known)
  if given ~= nil and type(given) ~= "table" then
    return string.format("a table of options is expected, got %s", core.type(given) or type(given))
  end
  for name in pairs(given or {}) do
    if not known[name] then
      local names = {}
      for each in pairs(known) do
        names[#names + 1] = each
      end
      table.sort(names)
      return string.format("there is no option '%s'; there are: %s", tostring(name), table.concat(names, ", "))
    end
  end
  local options = given and given.options
  if options ~= nil and type(options) ~= "table" then
    return string.format("options: a table expected, got %s", core.type(options) or type(options))
  end
  for _, name in ipairs { "check", "seed" } do
    if options and options[name] ~= nil then
      return string.format("options: %s is not to be given: each run has its own", name)
    end
  end
  return nil
end

--- racefree(f[, { seeds =, options = }][, is_twin]) -> true or false, what there is to say; or nil, what is wrong with
-- argument n, n. See busted.lua.
function orders.racefree(f, given, is_twin)
  local problem = checked(given, { seeds = true, options = true })
  if problem then
    return nil, problem, 2
  end
  given = given or {}
  local seeds, wrong = orders.seeds(given.seeds, 200)
  if not seeds then
    return nil, wrong, 2
  end
  local ok, text = under_seeds(f, seeds, given.options, "racefree", is_twin)
  return ok, text, 1
end

--- deterministic(f[, { runs =, seeds =, device = }]) -> as racefree. See busted.lua.
function orders.deterministic(f, given)
  local problem = checked(given, { runs = true, seeds = true, device = true, options = true })
  if problem then
    return nil, problem, 2
  end
  given = given or {}
  local runs = given.runs == nil and 3 or given.runs
  if math.type(runs) ~= "integer" or runs < 0 or runs == 1 then
    return nil, string.format("runs: a whole number from 2 on, or 0, expected, got %s", tostring(runs)), 2
  end
  local device = given.device
  if device ~= nil and type(device) ~= "string" and core.type(device) ~= "device" then
    return nil, string.format("device: a device or its name expected, got %s", core.type(device) or type(device)), 2
  end
  if runs > 0 and core.type(device) ~= "device" then
    device = core.device(device)
  end
  local first
  for number = 1, runs do
    local results, err, traceback = outcome_of(f, device)
    if is_closed(device) then
      return nil, closed_text, 1
    elseif not results then
      return false, string.format("run %d of %d on %s:\n%s%s", number, runs, device.name, indented(error_text(err)),
        traceback and core.type(err) ~= "error" and "\n" .. indented(traceback) or ""), 1
    elseif results.n == 0 or results.problem then
      return nil, results.problem or "the function returned nothing that could be compared", 1
    end
    local differs = first and difference(first, results)
    if differs then
      return false, string.format("run %d of %d on %s differs from the first:\n%s", number, runs, device.name,
        indented(differs)), 1
    end
    first = first or results
  end
  if given.seeds == 0 then
    return true, string.format("%d runs on %s", runs, runs > 0 and device.name or "no device"), 1
  end
  local seeds, wrong = orders.seeds(given.seeds, 20)
  if not seeds then
    return nil, wrong, 2
  end
  local ok, text, run = under_seeds(f, seeds, given.options, "deterministic", false)
  if ok and run.results.n == 0 then
    return nil, "the function returned nothing that could be compared", 1
  elseif ok and runs > 0 then
    text = string.format("%d runs on %s and %s", runs, device.name, text)
  end
  return ok, text, 1
end

return orders
