-- What `gpulua --info` shows: devices, libraries found and not found, and why; limits; the cache.

local gpu = require "gpulua"

local core = require "gpulua.core"

local info = {}

local function device_of(name)
  local ok, dev = pcall(gpu.device, name)
  if not ok then
    return { name = name, ok = false, why = type(dev) == "table" and dev.message or tostring(dev) }
  end
  local limits = {}
  for key, value in pairs(dev:stats()) do
    local limit = string.match(key, "^limit_(.+)")
    if limit then limits[limit] = value end
  end
  return { name = dev.name, ok = true, model = dev.model, multiprocessors = dev.multiprocessors,
    memory_bytes = dev.memory_bytes, compute = dev.compute, isolation = dev.isolation, limits = limits }
end

local function ranges()
  local on, built = core.ranges_are_on()
  return built and { ok = true, on = on }
    or { ok = false, why = "this gpulua was built without nvtx3/nvToolsExt.h, a header of CUDA's toolkit" }
end

--- A table: version, lua, ranges (ok; on, or why not), devices (a list: name, ok; why, or what it is and its limits),
-- and, unless the CPU device cannot be opened, of which they are asked: libraries (a list: name, ok, where or why),
-- cache (folder or nil, bytes, limit_bytes). Opens the devices; blocks or yields for that.
function info.get()
  local got = { version = gpu.version, lua = _VERSION, ranges = ranges(), libraries = {},
    devices = { device_of "cuda", device_of "cpu" } }
  if not got.devices[2].ok then
    return got
  end
  -- The cache's line is the last, and its folder may have any bytes in its name.
  local found, folder, bytes, limit = string.match(core.describe(gpu.device "cpu"),
    "^(.-\n)cache\t(.*)\t(%d+)\t(%d+)\n$")
  got.cache = { folder = folder ~= "" and folder or nil, bytes = math.tointeger(bytes),
    limit_bytes = math.tointeger(limit) }
  for kind, name, text in string.gmatch(found, "([^\t\n]*)\t([^\t\n]*)\t([^\n]*)\n") do
    local ok = kind == "found"
    got.libraries[#got.libraries + 1] = { name = name, ok = ok, where = ok and text or nil,
      why = not ok and text or nil }
  end
  return got
end

local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

--- The same as lines to read.
function info.text()
  local got = info.get()
  local lines = { string.format("gpulua %s (%s)", got.version, got.lua) }
  local function add(...) lines[#lines + 1] = string.format(...) end
  for _, dev in ipairs(got.devices) do
    if dev.ok then
      add("%s: %s, %d multiprocessors, %.1f GiB, compute %s, isolation %s", dev.name, dev.model, dev.multiprocessors,
        dev.memory_bytes / 2 ^ 30, dev.compute, dev.isolation)
      local limits = {}
      for _, key in ipairs(sorted_keys(dev.limits)) do limits[#limits + 1] = key .. " " .. dev.limits[key] end
      add("  limits: %s", table.concat(limits, ", "))
    else
      add("%s: no: %s", dev.name, dev.why)
    end
  end
  for _, library in ipairs(got.libraries) do
    add("%s: %s%s", library.name, library.ok and "" or "no: ", library.where or library.why)
  end
  add("NVTX ranges: %s", not got.ranges.ok and "no: " .. got.ranges.why or got.ranges.on and "on"
    or "off (GPULUA_NVTX=1 turns them on)")
  if not got.cache then
    add "libraries, cache: not known without a CPU device"
  elseif got.cache.folder then
    add("cache: %s, %.1f of %d MiB", got.cache.folder, got.cache.bytes / 2 ^ 20, got.cache.limit_bytes // 2 ^ 20)
  else
    add("cache: no folder can be used: kernels are compiled anew each time")
  end
  return table.concat(lines, "\n")
end

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

-- With U+FFFD for bytes that are no UTF-8, as names of files may have them.
local function utf8_of(text)
  local parts, at = {}, 1
  repeat
    local _, bad = utf8.len(text, at)
    parts[#parts + 1] = string.sub(text, at, (bad or 0) - 1)
    parts[#parts + 1] = bad and "\u{FFFD}"
    at = bad and bad + 1
  until not bad
  return table.concat(parts)
end

local function encode(value)
  if type(value) == "string" then
    local function escape(c) return escapes[c] or string.format("\\u%04x", string.byte(c)) end
    return '"' .. string.gsub(utf8_of(value), '[%c"\\]', escape) .. '"'
  elseif type(value) ~= "table" then
    return tostring(value)
  end
  local parts = {}
  if #value > 0 or next(value) == nil then
    for i, item in ipairs(value) do parts[i] = encode(item) end
    return "[" .. table.concat(parts, ",") .. "]"
  end
  for _, key in ipairs(sorted_keys(value)) do parts[#parts + 1] = encode(key) .. ":" .. encode(value[key]) end
  return "{" .. table.concat(parts, ",") .. "}"
end

--- The same as JSON, one line.
function info.json()
  return encode(info.get())
end

return info
