-- What `gpulua --kernel FILE.cu` shows of each kernel of a file.

local core = require "gpulua.core"
local file = require "gpulua.file"
local gpu = require "gpulua"

local kernel_facts = {}

local block_sizes <const> = { 32, 64, 128, 256, 512, 1024 }

local function size(bytes)
  return bytes >= 1024 and ("%.4g KiB"):format(bytes / 1024) or ("%d B"):format(bytes)
end

local function lines_of(lines, kernel, signature)
  local facts = kernel:attributes()
  lines[#lines + 1] = ("%s(%s)"):format(core.shown(facts.name), signature)
  local registers = facts.registers > 0 and ("%d"):format(facts.registers) or "not known"
  lines[#lines + 1] = ("  registers %s, shared memory %s, local memory %s a thread, arguments %s, "
    .. "at most %d threads a block"):format(registers, size(facts.shared_bytes), size(facts.local_bytes),
    size(facts.args_bytes), facts.block_threads_max)
  if facts.local_bytes > 0 then
    lines[#lines + 1] = "  local memory is device memory: for what has no room in registers, and for arrays that are "
      .. "indexed by what is not known when they are compiled"
  end
  lines[#lines + 1] = "  threads a block  blocks at once  warps at once  occupancy  limited by"
  for _, threads in ipairs(block_sizes) do
    if threads <= facts.block_threads_max then
      local blocks, occupancy = kernel:occupancy(threads)
      lines[#lines + 1] = ("  %15d  %14d  %6d of %3d  %7.0f %%  %s"):format(threads, blocks, occupancy.warps,
        occupancy.warps_max, 100 * occupancy.share, occupancy.limiter)
    end
  end
  lines[#lines + 1] = ""
end

--- Compiles the file for the device of the command line, and gives what there is to know of its kernels as text. Yields
-- in a task. Io, CompileFailed, as device:compile; InvalidArgument: no kernel in it.
function kernel_facts.text(path)
  local source = file.read(path, "kernel")
  local device = gpu.device()
  local module <close> = device:compile(source, { name = path })
  local names, lines = module:kernels(), { ("%s on %s (%s)"):format(core.shown(path), device.name, device.model), "" }
  if #names == 0 then
    core.raise("InvalidArgument", ("kernel: %s has no __global__ function"):format(path),
      "templates have to be instantiated: dev:compile{ names = ... }")
  end
  for _, name in ipairs(names) do
    local kernel = module:kernel(name)
    lines_of(lines, kernel, kernel:signature())
  end
  lines[#lines] = nil
  return table.concat(lines, "\n")
end

--- The same; or nil and what went wrong, for people.
function kernel_facts.try(path)
  local ok, result = pcall(kernel_facts.text, path)
  if ok then
    return result
  elseif not result.message then
    return nil, tostring(result)
  end
  return nil, result.message .. (result.hint ~= "" and "\nhint: " .. result.hint or "")
end

return kernel_facts
