-- One program in many orders: what differs, and why. `gpulua --seeds` is made of this.
--
-- A run leaves a log: a line for each operation as it was submitted (op), for each as it was done (ran),
-- and for all that the script got to see (read). Operations and reads have names that are the same in
-- every run, whichever task ran first.

local seeds = {}

local runs_max = 10000 -- of all orders of a small program

-- ---- logs ----

local function parse_uses(text)
  local uses = {}
  for number, first, past, access, label in string.gmatch(text, "(%d+):(%d+):(%d+):(%d+):([^;]*);") do
    uses[#uses + 1] = { math.tointeger(number), math.tointeger(first), math.tointeger(past), math.tointeger(access),
      label }
  end
  return uses
end

--- The text of a log as { ops = name -> op, ran = list of ops in the order in which they were done, reads =
-- list of { name =, site =, number =, hash = } by name }.
function seeds.parse(text)
  local log = { ops = {}, ran = {}, reads = {} }
  for line in string.gmatch(text, "[^\n]+") do
    local fields = {}
    for field in string.gmatch(line .. "\t", "(.-)\t") do
      fields[#fields + 1] = field
    end
    if fields[1] == "op" then
      log.ops[fields[2]] = { name = fields[2], label = fields[3], site = fields[4], stream = math.tointeger(fields[5]),
        uses = parse_uses(fields[6]) }
    elseif fields[1] == "ran" and log.ops[fields[2]] then
      local ready = {}
      for name in string.gmatch(fields[3], "%S+") do
        ready[#ready + 1] = name
      end
      log.ran[#log.ran + 1] = setmetatable({ ready = ready }, { __index = log.ops[fields[2]] })
    elseif fields[1] == "read" then
      log.reads[#log.reads + 1] = { name = fields[2], site = fields[3], number = math.tointeger(fields[4]),
        label = fields[5], hash = fields[6] }
    end
  end
  table.sort(log.reads, function(a, b)
    return a.name < b.name
  end)
  return log
end

-- ---- who depends on whom ----

--- The ranges that both use: { a's use, b's use, first byte, byte behind the last }; with `conflicts` those that
--- one of them writes.
local function shared(a, b, conflicts)
  for _, of_a in ipairs(a.uses) do
    for _, of_b in ipairs(b.uses) do
      local first, past = math.max(of_a[2], of_b[2]), math.min(of_a[3], of_b[3])
      if of_a[1] == of_b[1] and first < past and (not conflicts or (of_a[4] | of_b[4]) & 2 ~= 0) then
        return { of_a, of_b, first, past }
      end
    end
  end
  return nil
end

--- Do they conflict, by what they declare?
function seeds.conflict(a, b)
  return shared(a, b, true) ~= nil
end

--- May they be swapped without a difference, by what they declare?
local function are_independent(a, b)
  return a.stream ~= b.stream and not shared(a, b, true)
end

-- ---- all orders ----

--- What a device has done, with names that count from the first operation of each task: runs in one process go on
--- counting.
function seeds.rename(ran)
  local first = {}
  local function split(name)
    local task, number = string.match(name, "^(.*)#(%d+)$")
    return task, math.tointeger(number)
  end
  for _, op in ipairs(ran) do
    local task, number = split(op.name)
    first[task] = math.min(first[task] or number, number)
  end
  local function renamed(name)
    local task, number = split(name)
    return first[task] and string.format("%s#%d", task, number - first[task]) or name
  end
  local list = {}
  for i, op in ipairs(ran) do
    list[i] = { name = renamed(op.name), label = op.label, site = op.site, stream = op.stream, uses = op.uses,
      ready = {} }
    for k, name in ipairs(op.ready) do
      list[i].ready[k] = renamed(name)
    end
  end
  return list
end

--- Runs a program in every order of its operations that its streams and fences allow, one of each class of
--- orders that differ only in the order of independent operations (sleep sets: Godefroid, Partial-Order
--- Methods for the Verification of Concurrent Systems, 1996). run(order) runs it with that `order` of a checked
--- device and returns the list of what was done, as dev:order() gives it; it sees the outcome of each run by
--- itself. `limit`: runs at most, 10,000. Returns { orders =, redundant = runs that turned out to be
--- of a class seen before, is_complete = }.
function seeds.explore(run, limit)
  local path, result = {}, { orders = 0, redundant = 0, is_complete = true }
  repeat
    local choices = {}
    for i, node in ipairs(path) do
      for k, name in ipairs(node.ready) do
        if name == node.chosen then
          choices[i] = k - 1
        end
      end
    end
    local ran = seeds.rename(run(table.concat(choices, ".")))
    local by_name = {}
    for _, op in ipairs(ran) do
      by_name[op.name] = op
    end
    local is_redundant = false
    for i = #path + 1, #ran do
      local node = { ready = ran[i].ready, chosen = ran[i].name, done = {}, asleep = {} }
      local before = path[i - 1]
      if before then
        for _, set in ipairs { before.asleep, before.done } do
          for name in pairs(set) do
            if by_name[name] and are_independent(by_name[name], by_name[before.chosen]) then
              node.asleep[name] = true
            end
          end
        end
      end
      path[i] = node
      if node.asleep[node.chosen] then
        node.chosen = nil
        is_redundant = true
        break
      end
    end
    local counter = is_redundant and "redundant" or "orders"
    result[counter] = result[counter] + 1
    -- The deepest place where something else can be done.
    while #path > 0 do
      local node = path[#path]
      if node.chosen then
        node.done[node.chosen], node.chosen = true, nil
      end
      for _, name in ipairs(node.ready) do
        if not node.chosen and not node.done[name] and not node.asleep[name] then
          node.chosen = name
        end
      end
      if node.chosen then
        break
      end
      path[#path] = nil
    end
    if result.orders + result.redundant >= (limit or runs_max) and #path > 0 then
      result.is_complete = false
      break
    end
  until #path == 0
  return result
end

-- ---- what differs ----

local function places(log)
  local at = {}
  for i, op in ipairs(log.ran) do
    at[op.name] = i
  end
  return at
end

--- The blocks whose contents may have come to be in block `number`, in the order of that run.
local function sources(log, number)
  local tainted = { [number] = true }
  for i = #log.ran, 1, -1 do
    local op, writes = log.ran[i], false
    for _, use in ipairs(op.uses) do
      writes = writes or (use[4] & 2 ~= 0 and tainted[use[1]])
    end
    for _, use in ipairs(writes and op.uses or {}) do
      tainted[use[1]] = true
    end
  end
  return tainted
end

--- The two operations that were swapped from one run to the other and can be the cause: of those that share
--- something that what differs can depend on, the first pair in `b`; those that conflict by what they declare first.
-- Returns the earlier and the later one in `a`, and what they share; nil: there is none.
function seeds.swapped(a, b, number)
  local at_a, tainted = places(a), number and sources(b, number)
  for _, conflicts in ipairs { true, false } do
    for i, later in ipairs(b.ran) do
      for k = 1, i - 1 do
        local earlier = b.ran[k] -- in b; in a it came second
        local is_swapped = at_a[earlier.name] and at_a[later.name] and at_a[earlier.name] > at_a[later.name]
        local common = is_swapped and shared(earlier, later, conflicts)
        if common and (not tainted or tainted[common[1][1]]) then
          return later, earlier, common
        end
      end
    end
  end
  return nil
end

local function buffer_text(use)
  return use[5] ~= "" and string.format("buffer '%s'", use[5]) or string.format("the buffer of allocation %d", use[1])
end

local access_text = { "read", "write", "read and write" }

--- Lines about why run b differs from run a.
function seeds.explain(a, b)
  local lines, number = {}, nil
  for i, read in ipairs(b.reads) do
    local other = a.reads[i]
    if not other or other.name ~= read.name then
      lines[#lines + 1] = string.format("  the script read %s at %s, which it did not before", read.name, read.site)
      break
    elseif other.hash ~= read.hash then
      number = read.number
      lines[#lines + 1] = string.format("  first difference: what was read%s at %s",
        read.label ~= "" and string.format(" from buffer '%s'", read.label) or "", read.site)
      break
    end
  end
  local first, second, common = seeds.swapped(a, b, number)
  if not first then
    lines[#lines + 1] = "  no two operations that were swapped share a buffer by what they declare"
    return lines
  end
  local function text(op)
    return string.format("'%s' (%sstream %d)", op.label, op.site ~= ":0" and op.site .. ", " or "", op.stream)
  end
  lines[#lines + 1] = string.format("  swapped: %s used to come before %s", text(first), text(second))
  local edge = "  missing edge: between them, for bytes %d to %d of %s; by what they declare, they %s and %s it"
  lines[#lines + 1] = string.format(edge, common[3], common[4] - 1, buffer_text(common[1]), access_text[common[2][4]],
    access_text[common[1][4]])
  return lines
end

local function read_file(path)
  local file = io.open(path, "rb")
  local text = file and file:read "a" or ""
  if file then
    file:close()
  end
  return text
end

local function outcome(run)
  local parts = { run.code, #run.out, run.out }
  for _, read in ipairs(run.log.reads) do
    parts[#parts + 1] = read.name .. " " .. read.hash
  end
  return table.concat(parts, "\n")
end

--- What is different, in words.
local function what_differs(a, b)
  if a.code ~= b.code then
    return string.format("it ended with %s instead of %s", b.code, a.code)
  end
  return a.out ~= b.out and "its output differs" or "what it read differs"
end

local function runner(host)
  local folder = host.folder()
  local names = { log = folder .. "/log", out = folder .. "/out", err = folder .. "/err" }
  local function run(seed, order)
    os.remove(names.log)
    local arguments = table.move(host.arguments, 2, #host.arguments, 3, { host.arguments[1], "--check=" .. seed })
    local code, signal = host.spawn(arguments,
      { "GPULUA_CHECK_LOG=" .. names.log, "GPULUA_CHECK_ORDER=" .. (order or "") }, names.out, names.err)
    local made = { code = signal and "signal " .. code or "exit code " .. code, seed = seed, order = order,
      out = read_file(names.out), err = read_file(names.err), log = seeds.parse(read_file(names.log)) }
    made.outcome = outcome(made)
    return made
  end
  local function finish()
    for _, name in pairs(names) do
      os.remove(name)
    end
    os.remove(folder)
  end
  return run, finish
end

local function say(format, ...)
  io.stderr:write("gpulua: ", string.format(format, ...), "\n")
end

local longest <const> = 200

--- The first line of the output that is another: its number, and both, "nothing" where there is none.
local function line_that_differs(a, b)
  local next_a, next_b, number = string.gmatch(a.out, "[^\n]*\n?"), string.gmatch(b.out, "[^\n]*\n?"), 0
  local line_a, line_b
  repeat
    line_a, line_b, number = next_a(), next_b(), number + 1
  until line_a ~= line_b
  local function text(line)
    if (line or "") == "" then
      return "nothing"
    end
    line = string.gsub(line, "\n$", "")
    return string.gsub(#line > longest and string.sub(line, 1, longest) .. " ..." or line, "[^\t%C]", "?")
  end
  return number, text(line_a), text(line_b)
end

local function tell(first, other)
  say("%s differs from %s: %s", other.name, first.name, what_differs(first, other))
  if other.out ~= first.out then
    local number, before, now = line_that_differs(first, other)
    io.stderr:write(string.format("  line %d of the output of %s: %s\n", number, first.name, before))
    io.stderr:write(string.format("  line %d of the output of %s: %s\n", number, other.name, now))
  end
  for _, line in ipairs(seeds.explain(first.log, other.log)) do
    io.stderr:write(line, "\n")
  end
  if other.code ~= first.code then
    io.stderr:write(other.err)
  end
end

local good <const> = "exit code 0"

-- Behind "no difference": that this is no success.
local function all_ended(first)
  return first.code ~= good and ": each ended with " .. first.code or ""
end

-- On a terminal: how far it is.
local function begin_progress(label, total)
  return require "gpulua.progress" { label = label, total = total }
end

local function all_seeds(host, run, count)
  local first = nil
  local progress <close> = begin_progress("seeds", count)
  for seed = host.first, host.first + count - 1 do
    local made = run(seed)
    made.name = "seed " .. seed
    progress:step()
    if not first then
      first = made
      io.stdout:write(made.out)
      io.stderr:write(made.err)
    elseif made.outcome ~= first.outcome then
      tell(first, made)
      io.stderr:write(string.format("  again: --check=%d\n", seed))
      return 1
    end
  end
  progress:close()
  say("%d %s, no difference%s", count, count == 1 and "seed" or "seeds", all_ended(first))
  return first.code == good and 0 or 1
end

local function all_orders(host, run)
  local first, different = nil, nil
  local progress <close> = begin_progress "orders"
  local result = seeds.explore(function(order)
    local made = run(host.first, order == "" and "0" or order)
    made.name = "order " .. made.order
    progress:step()
    if not first then
      first = made
      io.stdout:write(made.out)
      io.stderr:write(made.err)
    elseif made.outcome ~= first.outcome and not different then
      different = made
    end
    return made.log.ran
  end)
  progress:close()
  if different then
    tell(first, different)
    io.stderr:write(string.format("  again: GPULUA_CHECK_ORDER=%s and --check\n", different.order))
  end
  say("%d %s, %s%s%s", result.orders, result.orders == 1 and "order" or "orders",
    result.is_complete and "all there are" or "and there are more: it is too large for that",
    result.redundant > 0 and string.format(" (found in %d runs)", result.orders + result.redundant) or "",
    different and "" or ", no difference" .. all_ended(first))
  return (different or first.code ~= good) and 1 or 0
end

--- What the interpreter calls: `host` has arguments, count, first, and the functions spawn and folder. Returns the
--- exit code.
function seeds.main(host)
  local count = host.count ~= "all" and math.tointeger(tonumber(host.count)) or nil
  if host.count ~= "all" and (not count or count < 1) then
    say("--seeds: a number from 1 on or 'all' expected, got '%s'", host.count)
    return 1
  end
  local run, finish = runner(host)
  local ok, code = pcall(count and all_seeds or all_orders, host, run, count)
  finish()
  if not ok then
    error(code, 0)
  end
  return code
end

return seeds
