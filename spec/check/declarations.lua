-- What a kernel does with each buffer, found out from its results alone, and what check mode says when its declaration
-- is wrong. For check_spec.lua and bench/declarations.lua.
--
-- A case: { name =, source =, opts = of compile, kernel =, config =, args = function(dev) -> list,
-- touches_last = arguments whose last element is read although no result depends on it, covers = function(p, is_last):
-- are all bytes of argument p, or those of its last element, declared `in` by another one as well? }.

local declarations = {}

local pipelines = require "spec.pipelines"

-- ---- corpus ----

-- An exclusive sum loads its last element and leaves it out.
local touches_last = { blelloch = { true } }

function declarations.known()
  local cases, known = {}, require "spec.check.barriers"
  for _, kernel in ipairs(known.kernels) do
    cases[#cases + 1] = { name = kernel.name, kernel = kernel.name, source = known.source, config = kernel.config,
      args = kernel.args, touches_last = touches_last[kernel.name] }
  end
  return cases
end

--- The launches of generated pipelines, with their views of buffers that are larger.
function declarations.pipelines(first, last, operation_count)
  local cases = {}
  for number = first, last do
    local pipeline = pipelines.make(number, operation_count)
    for i, step in ipairs(pipeline.steps) do
      if step.kind == "blend" or step.kind == "join" then
        local n = (step.to[3] - step.to[2] + 1) * pipelines.part
        cases[#cases + 1] = { name = ("pipeline %d, %d"):format(number, i), source = pipelines.source,
          kernel = step.kind == "join" and "join2" or "blend", config = { grid = 1, block = n },
          args = function(dev)
            local buffers = {}
            for b = 1, pipeline.buffer_count do
              buffers[b] = dev:upload("i32", pipelines.elem_count, function(k) return k * 17 + b * 1001 end)
            end
            local function slice(of)
              return buffers[of[1]]:slice((of[2] - 1) * pipelines.part + 1, of[3] * pipelines.part)
            end
            if step.kind == "join" then
              return { n, slice(step.a), slice(step.b), slice(step.to), step.k }
            end
            return { n, slice(step.a), slice(step.to), step.k }
          end,
          covers = function(p, is_last)
            local own = p == 2 and step.a or p == 3 and step.kind == "join" and step.b
            local other = own == step.a and step.b or step.a
            return own and step.kind == "join" and own[1] == other[1] and own[3] <= other[3] and
              other[2] <= (is_last and own[3] or own[2])
          end }
      end
    end
  end
  return cases
end

--- The first launch of each kernel of a script, with copies of its buffers as they were then. `run` runs the script.
function declarations.captured(run)
  local cases, sources, seen = {}, {}, {}
  local device, kernel = package.loaded["gpulua.device"], package.loaded["gpulua.kernel"]
  local compile, launch = device.compile, kernel.launch
  device.compile = function(dev, source, opts)
    sources[#sources + 1] = { source = source, opts = opts }
    return compile(dev, source, opts)
  end
  kernel.launch = function(k, config, ...)
    local name = tostring(k):match "^gpulua%.kernel (%S+)"
    if not seen[name] then
      seen[name] = true
      local from
      for _, of in ipairs(sources) do
        from = of.source:find(name .. "%s*%(") and of or from
      end
      local args = table.pack(...)
      for i = 1, args.n do
        local b = args[i]
        if type(b) == "userdata" then
          args[i] = { type = b.type, count = #b, bytes = b:bytes() }
        end
      end
      local own = type(config) ~= "table" and config or
        { grid = config.grid, block = config.block, shared = config.shared }
      cases[#cases + 1] = { name = name, kernel = name, source = from.source, opts = from.opts, config = own,
        args = function(dev)
          local list = {}
          for i = 1, args.n do
            local of = args[i]
            list[i] = type(of) == "table" and dev:buffer(of.type, of.count):write(of.bytes) or of
          end
          return list
        end }
    end
    return launch(k, config, ...)
  end
  local ok, err = pcall(run)
  device.compile, kernel.launch = compile, launch
  assert(ok, err)
  return cases
end

-- ---- what a kernel does ----

local function params_of(k)
  local params = {}
  for text in k:signature():gmatch "[^,]+" do
    local head, access, rest = text:match "^(.-)(%l+)( [%w]+%*)%s*$"
    params[#params + 1] = { text = text, head = head, access = access, rest = rest,
      step = math.tointeger(tonumber(rest and rest:match "x(%d)%*" or 1)) }
  end
  return params
end

local function signature_of(params, changed, access)
  local list = {}
  for i, param in ipairs(params) do
    local own = i == changed and access or param.is_needed or param.access
    list[i] = own and param.head .. own .. param.rest or param.text
  end
  return table.concat(list, ",")
end

local function bytes_of(args)
  local list = {}
  for i, value in ipairs(args) do
    list[i] = type(value) == "userdata" and value:bytes() or false
  end
  return list
end

--- The contents before and after; nil: it failed, which it does not with its own data.
local function run(dev, k, case, change)
  local args = case.args(dev)
  if change then
    change(args)
  end
  local before = bytes_of(args)
  return pcall(function()
    k:launch(case.config, table.unpack(args)):await()
    return { before = before, after = bytes_of(args) }
  end)
end

local changes = {
  function(v) return v + 1 end,
  function(v) return v ~ 0x55 end,
  function() return 0 end,
  function() return 1000003 end,
  function() return 2 end,
}

local masks = { u8 = 0xff, i8 = 0x7f, u16 = 0xffff, i16 = 0x7fff }

--- Another content of argument `p`, from element `from` on.
local function changed(p, from, f)
  return function(args)
    local buffer = args[p]
    local count = #buffer
    from = from > 0 and from or count + from + 1
    local list = buffer:read(from, count)
    for i, v in ipairs(list) do
      local is_float = math.type(v) == "float"
      local new = f(is_float and (math.tointeger(v) or 1) or v)
      list[i] = is_float and new + 0.0 or new & (masks[buffer.type] or -1)
    end
    buffer:write(list, from)
  end
end

--- Where two strings differ, from byte `from` on, at bytes that `where(i)` holds for.
local function differ(a, b, from, where)
  if a == b then
    return false
  end
  for i = from, #a do
    if a:byte(i) ~= b:byte(i) and (not where or where(i)) then
      return true
    end
  end
  return false
end

--- Does it read and write argument p, and do so with its last elements?
local function look(dev, k, case, p, base, step)
  local found = { reads = false, writes = false, last = false }
  local width = #base.before[p] // #case.args(dev)[p] * step
  local last = #base.before[p] - width + 1
  local function note(result)
    found.writes = found.writes or differ(result.before[p], result.after[p], 1)
    found.last = found.last or differ(result.before[p], result.after[p], last)
  end
  note(base)
  for _, from in ipairs { 1, -step } do
    for _, f in ipairs(changes) do
      local ok, result = run(dev, k, case, changed(p, from, f))
      local is_read = not ok
      if ok then
        note(result)
        for q = 1, #base.after do
          local a, b = base.after[q], result.after[q]
          is_read = is_read or a and q ~= p and a ~= b or q == p and differ(a, b, 1, function(i)
            return a:byte(i) ~= base.before[p]:byte(i) or b:byte(i) ~= result.before[p]:byte(i)
          end)
        end
      end
      found.reads = found.reads or is_read
      found.last = found.last or from ~= 1 and is_read
    end
  end
  return found
end

local function look_at_all(dev, k, case, params)
  local ok, base = run(dev, k, case)
  assert(ok, base)
  local found = {}
  for p, param in ipairs(params) do
    if param.access and base.before[p] then
      found[p] = look(dev, k, case, p, base, param.step)
      found[p].last = found[p].last or case.touches_last and case.touches_last[p] or false
    end
  end
  return found
end

-- ---- mutants ----

local modules = setmetatable({}, { __mode = "k" })
local kinds = { "read dropped", "write dropped", "in and out swapped", "range shrunk", "wider than needed" }
declarations.kinds = kinds

local function attempt(dev, k, case, cut)
  local args = case.args(dev)
  if cut then
    args[cut.at] = args[cut.at]:slice(1, #args[cut.at] - cut.count)
  end
  local op = k:launch(case.config, table.unpack(args))
  local ok, err = pcall(op.await, op)
  return not ok and err or nil
end

--- Mutates the declaration of each pointer in turn. Adds to `counts[kind]`: mutants, needed, caught, reported (though
--- not needed), and to counts.originals, counts.alarms; `say` is told of what is missed or should not be there.
function declarations.mutate(dev, case, counts, say)
  local loaded = modules[dev] or {}
  modules[dev] = loaded
  loaded[case.source] = loaded[case.source] or dev:compile(case.source, case.opts)
  local mod = loaded[case.source]
  local k = mod:kernel(case.kernel)
  local params = params_of(k)
  case.found = case.found or look_at_all(dev, k, case, params)
  for p, param in ipairs(params) do
    local found = case.found[p]
    if found then
      param.found = found
      param.is_needed = found.reads and (found.writes and "inout" or "in") or found.writes and "out" or nil
    end
  end
  local err = attempt(dev, mod:kernel(case.kernel, signature_of(params)), case)
  counts.originals = counts.originals + 1
  if err then
    counts.alarms = counts.alarms + 1
    say(("%s, as it is used: %s: %s"):format(case.name, signature_of(params), err.message))
  end
  local function mutant(kind, p, access, cut, is_needed)
    local count = counts[kind]
    local failure = attempt(dev, mod:kernel(case.kernel, signature_of(params, p, access)), case, cut)
    count.mutants = count.mutants + 1
    count.needed = count.needed + (is_needed and 1 or 0)
    count.caught = count.caught + (is_needed and failure and 1 or 0)
    count.reported = count.reported + (failure and not is_needed and 1 or 0)
    if (failure ~= nil) ~= is_needed then
      say(("%s, argument %d, %s: %s"):format(case.name, p, kind, failure and failure.message or "missed"))
    end
  end
  for p, param in ipairs(params) do
    local needed = param.is_needed
    if needed == "inout" then
      mutant("read dropped", p, "out", nil, true)
      mutant("write dropped", p, "in", nil, true)
    elseif needed then
      local is_covered = case.covers and case.covers(p, false) or false
      mutant("in and out swapped", p, needed == "in" and "out" or "in", nil, not is_covered)
      if param.access == "inout" then -- const T * cannot be
        mutant("wider than needed", p, "inout", nil, false)
      end
    end
    local elems = needed and #case.args(dev)[p]
    if needed and elems > param.step then
      local is_covered = case.covers and case.covers(p, true) or false
      mutant("range shrunk", p, nil, { at = p, count = param.step }, param.found.last and not is_covered)
    end
  end
end

function declarations.counts()
  local counts = { originals = 0, alarms = 0 }
  for _, kind in ipairs(kinds) do
    counts[kind] = { mutants = 0, needed = 0, caught = 0, reported = 0 }
  end
  return counts
end

return declarations
