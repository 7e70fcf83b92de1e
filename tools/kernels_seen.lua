-- Helper of busted: every CUDA C source that the specs compile on the CPU device, with its options, becomes a
-- file in the folder GPULUA_KERNELS, so that NVRTC can be asked for its opinion where there is no GPU.

local busted = require "busted"
local gpu = require "gpulua"

local folder = assert(os.getenv "GPULUA_KERNELS", "GPULUA_KERNELS is not set")
local methods = debug.getregistry()["gpulua.device"].methods
local compile = methods.compile
local sources, known = {}, {}

-- Options as lines that spec/backend/nvrtc_check.c understands; nil for options that it does not.
local function lines_of(opts)
  local lines = {}
  for key, value in pairs(opts or {}) do
    if key == "defines" then
      for name, text in pairs(value) do
        if text then
          lines[#lines + 1] = ("// compile: define %s %s\n"):format(name, text == true and 1 or text)
        end
      end
    elseif key == "names" then
      for _, name in ipairs(type(value) == "table" and value or { value }) do
        lines[#lines + 1] = ("// compile: name %s\n"):format(name)
      end
    elseif key ~= "name" then
      return nil
    end
  end
  table.sort(lines)
  return table.concat(lines)
end

local function note(source, opts)
  if type(source) == "string" and (opts == nil or type(opts) == "table") then
    local ok, lines = pcall(lines_of, opts)
    local text = ok and lines and source .. "\n" .. lines
    if text and not known[text] then
      known[text] = true
      sources[#sources + 1] = { source = source, opts = opts, text = text }
    end
  end
end

-- Messages name the innermost line of a script: with this name the function passes for one of the library's own.
methods.compile = load([[
  local compile, note = ...
  return function(dev, source, opts, ...)
    note(source, opts)
    return compile(dev, source, opts, ...)
  end]], "=gpulua/kernels_seen")(compile, note)

-- What the CPU device refused says nothing about NVRTC. It is asked again, since at the call nobody was left to see.
busted.subscribe({ "exit" }, function()
  local dev <close> = gpu.device "cpu"
  local count = 0
  for _, entry in ipairs(sources) do
    local ok, mod = pcall(compile, dev, entry.source, entry.opts)
    if ok then
      mod:close()
      count = count + 1
      local file <close> = assert(io.open(("%s/spec-%03d.cu"):format(folder, count), "w"))
      assert(file:write(entry.text))
    end
  end
  return nil, true
end)
