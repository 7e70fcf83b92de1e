-- For specs that build, install or pack gpulua: what is built already, in a folder that they may change. The sources
-- stay where they are, and only what other settings or times ask for is compiled again.

local lfs = require "lfs"
local support = require "spec.support"

local built = {}

local build = os.getenv "GPULUA_BUILD" or "build"
if not build:find "^/" then
  build = lfs.currentdir() .. "/" .. build
end

--- A script that prints 42, by a kernel on the default device.
built.kernel = [==[
local gpu = require "gpulua"
local mod = gpu.device():compile [[
  extern "C" __global__ void twice(int n, int *x) { int i = threadIdx.x; if (i < n) x[i] *= 2; }]]
local x = gpu.device():upload("i32", { 1, 2, 21 })
mod.twice:launch({ grid = 1, block = 32 }, 3, x):await()
print(x:read()[3])]==]

--- Why such specs have nothing to look at here; nil: they have.
function built.missing()
  if support.isolation() ~= "none" or support.is_checked() then
    return "once is enough"
  elseif (support.read_file(build .. "/flags") or ""):find("-fsanitize", 1, true) then
    return "what is installed has no sanitizers"
  end
end

--- The command line, with what is filled in, if there is anything.
local function line(command, ...)
  return select("#", ...) > 0 and command:format(...) or command
end

--- Runs a shell's command line. Returns its output (both streams) and its exit status. LUA_PATH and the like are of the
-- suite, whose make is not the one that the command may run.
function built.run(command, ...)
  local script = "unset LUA_PATH LUA_CPATH LUA_INIT MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES\n" .. line(command, ...)
  local pipe = assert(io.popen(("{ timeout -k 10 500 sh -c %s; } 2>&1"):format(built.quoted(script))))
  local output = pipe:read "a"
  local _, _, status = pipe:close()
  return output, status
end

--- The same; the status must be 0.
function built.runs(command, ...)
  local output, status = built.run(command, ...)
  if status ~= 0 then
    error(("%s\nended with %d:\n%s"):format(line(command, ...), status, output), 2)
  end
  return output
end

function built.quoted(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

--- A new empty folder, for the spec to remove.
function built.folder()
  local folder = os.tmpname()
  os.remove(folder)
  assert(lfs.mkdir(folder))
  return folder
end

--- The compiler's settings, as make wants them: those that the suite was built with.
function built.settings()
  local words = {}
  for _, name in ipairs { "CC", "CXX", "CFLAGS" } do
    local value = os.getenv(name)
    if value and value ~= "" then
      words[#words + 1] = name .. "=" .. built.quoted(value)
    end
  end
  return table.concat(words, " ")
end

local copy

--- A copy of the build folder's objects, in the build folder. Made once.
function built.copy()
  if not copy then
    copy = build .. "/test/copy"
    built.runs("rm -rf %s && mkdir -p %s && cd %s && cp -a obj flags *.c %s", copy, copy, build, copy)
    copy = built.quoted(copy)
  end
  return copy
end

--- Installs what is built below `prefix`, in `stage` if there is one.
function built.install(prefix, stage)
  built.runs("make -s install BUILD=%s %s DESTDIR=%s PREFIX=%s", built.copy(), built.settings(), stage or "", prefix)
end

--- The output of `command` under each way to drive a device; it must be the same under all of them.
function built.said(command)
  local first
  for _, isolate in ipairs { "none", "thread", "process" } do
    local output = built.runs("export GPULUA_ISOLATE=%s GPULUA_DEVICE=cpu\n%s", isolate, command)
    if first and first ~= output then
      error(("%s\nunder %s:\n%s\nwithout:\n%s"):format(command, isolate, output, first), 2)
    end
    first = output
  end
  return first
end

return built
