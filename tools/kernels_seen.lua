-- Helper of busted: every CUDA C source that the specs compile on the CPU device, with its options, becomes a
-- file in the folder GPULUA_KERNELS, so that NVRTC can be asked for its opinion where there is no GPU.

local busted = require "busted"
require "gpulua"

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
      sources[#sources + 1] = text
    end
  end
end

-- Messages, and sources without a name of their own, name the innermost line of a script: with this name the function
-- passes for one of the library's own. What the CPU device refuses says nothing about NVRTC, and raises.
methods.compile = load([[
  local compile, note = ...
  local function noted(source, opts, ...) -- all that comes back, also from who resumes what waits for it
    note(source, opts)
    return ...
  end
  return function(dev, source, opts, ...)
    return noted(source, opts, compile(dev, source, opts, ...))
  end]], "=gpulua/kernels_seen")(compile, note)

busted.subscribe({ "exit" }, function()
  for i, text in ipairs(sources) do
    local file <close> = assert(io.open(("%s/spec-%03d.cu"):format(folder, i), "w"))
    assert(file:write(text))
  end
  return nil, true
end)
