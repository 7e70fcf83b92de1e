-- What `gpulua --kernel FILE.cu` shows of each kernel of a file.

local core = require "gpulua.core"
local file = require "gpulua.file"
local gpu = require "gpulua"
local machine_code = require "gpulua.machine_code"

local kernel_facts = {}

local block_sizes <const> = { 32, 64, 128, 256, 512, 1024 }

local function size(bytes)
  return bytes >= 1024 and string.format("%.4g KiB", bytes / 1024) or string.format("%d B", bytes)
end

local shown_counts <const> = 8 -- kinds of instructions

-- The instructions of a kernel, by how often they are there.
local function counts_line(instructions)
  local counts, total, parts = machine_code.counts(instructions), 0, {}
  for i, count in ipairs(counts) do
    total = total + count[2]
    parts[i] = i <= shown_counts and string.format("%d %s", count[2], count[1]) or nil
  end
  return string.format("  %d instructions: %s%s", total, table.concat(parts, ", "),
    #counts > shown_counts and ", ..." or "")
end

-- `code`: { names =, ptx =, sass = (nil: no disassembler) }, by symbol.
local function add_code(lines, name, code, shows_code)
  local symbol = code.names[name] or name
  local sass, ptx = code.sass and code.sass[symbol], code.ptx[symbol]
  if sass then
    lines[#lines + 1] = counts_line(sass)
  end
  if shows_code then
    lines[#lines + 1] = "  PTX:"
    lines[#lines + 1] = ptx or "  there is none"
    lines[#lines + 1] = "  SASS:"
    if sass then
      for at, instruction in ipairs(sass) do
        lines[#lines + 1] = string.format("  %5d  %s", at, instruction)
      end
    else
      lines[#lines + 1] = "  shown where cuobjdump or nvdisasm of the CUDA toolkit are, in PATH or in CUDA_HOME/bin"
    end
  end
end

local function lines_of(lines, kernel, code, shows_code)
  local facts = kernel:attributes()
  lines[#lines + 1] = string.format("%s(%s)", core.shown(facts.name), kernel:signature())
  local registers = facts.registers > 0 and string.format("%d", facts.registers) or "not known"
  lines[#lines + 1] = string.format("  registers %s, shared memory %s, local memory %s a thread, arguments %s, "
    .. "at most %d threads a block", registers, size(facts.shared_bytes), size(facts.local_bytes),
    size(facts.args_bytes), facts.block_threads_max)
  if facts.local_bytes > 0 then
    lines[#lines + 1] = "  local memory is device memory: for what has no room in registers, and for arrays that are "
      .. "indexed by what is not known when they are compiled"
  end
  lines[#lines + 1] = "  threads a block  blocks at once  warps at once  occupancy  limited by"
  for _, threads in ipairs(block_sizes) do
    if threads <= facts.block_threads_max then
      local blocks, occupancy = kernel:occupancy(threads)
      lines[#lines + 1] = string.format("  %15d  %14d  %6d of %3d  %7.0f %%  %s", threads, blocks, occupancy.warps,
        occupancy.warps_max, 100 * occupancy.share, occupancy.limiter)
    end
  end
  if code then
    add_code(lines, facts.name, code, shows_code)
  end
  lines[#lines + 1] = ""
end

-- Compiles, and reads what has come of it, through files that are gone afterwards. The code is nil on the CPU device.
local function compile(device, source, path)
  local prefix = os.tmpname()
  local ok, module = pcall(device.compile, device, source, { name = path, keep = prefix })
  local ptx = ok and device.kind == "cuda" and file.read(prefix .. ".ptx", "kernel")
  local sass = ptx and machine_code.disassemble(prefix .. ".cubin")
  for _, suffix in ipairs { "", ".ptx", ".cubin", ".cpp", ".so" } do
    os.remove(prefix .. suffix)
  end
  if not ok then
    error(module, 0)
  end
  return module, ptx and { names = machine_code.names(ptx), ptx = machine_code.of_ptx(ptx),
    sass = sass and machine_code.of_sass(sass) }
end

--- Compiles the file for the device of the command line, and gives what there is to know of its kernels as text; with
-- `shows_code`, also PTX and SASS, which a GPU's have. Yields in a task. Io, CompileFailed, as device:compile;
-- InvalidArgument: no kernel in it; Unsupported: code of the CPU device.
function kernel_facts.text(path, shows_code)
  local source = file.read(path, "kernel")
  local device = gpu.device()
  if shows_code and device.kind ~= "cuda" then
    core.raise("Unsupported", "--code: the CPU device has no PTX and no SASS", "--device cuda has them; what the CPU "
      .. "device makes of kernels, C++ and a shared object, dev:compile(source, { keep = NAME }) leaves in files")
  end
  if not string.find(source, "%S") then
    core.raise("InvalidArgument", string.format("kernel: %s is empty", path))
  end
  local module <close>, code = compile(device, source, path)
  local names = module:kernels()
  local lines = { string.format("%s on %s (%s)", core.shown(path), device.name, device.model), "" }
  if #names == 0 then
    core.raise("InvalidArgument", string.format("kernel: %s has no __global__ function", path),
      "templates have to be instantiated: dev:compile{ names = ... }")
  end
  local refused, shown_count = nil, 0
  for _, name in ipairs(names) do
    local ok, kernel = pcall(module.kernel, module, name)
    if ok then
      shown_count = shown_count + 1
      lines_of(lines, kernel, code, shows_code)
    elseif kernel.code ~= "InvalidArgument" then
      error(kernel, 0)
    else -- it cannot be launched; the others are none the worse for it
      refused = refused or kernel
      lines[#lines + 1] = string.format("%s: %s", core.shown(name), kernel.message)
      lines[#lines + 1] = ""
    end
  end
  if shown_count == 0 then
    error(refused, 0)
  end
  lines[#lines] = nil
  return table.concat(lines, "\n")
end

--- The same; or nil and what went wrong, for people.
function kernel_facts.try(path, shows_code)
  local ok, result = pcall(kernel_facts.text, path, shows_code)
  if ok then
    return result
  elseif not result.message then
    return nil, tostring(result)
  end
  return nil, result.message .. (result.hint ~= "" and "\n  hint: " .. result.hint or "")
end

return kernel_facts
