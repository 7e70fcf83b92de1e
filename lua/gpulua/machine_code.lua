-- What compilers make of kernels, as text: PTX, which NVRTC writes, and SASS, the GPU's own instructions, which a
-- disassembler of the CUDA toolkit reads out of a cubin. For `gpulua --kernel`.

local machine_code = {}

--- names(ptx) -> { name in the source = symbol }: of PTX that dev:compile has kept.
function machine_code.names(ptx)
  local names = {}
  for name, symbol in string.gmatch(ptx, "// kernel ([^\n]-) = ([%w_$]+)\n") do
    names[name] = symbol
  end
  return names
end

--- of_ptx(ptx) -> { symbol = the text of its entry }
function machine_code.of_ptx(ptx)
  local entries, symbol, lines = {}, nil, nil
  for line in string.gmatch(ptx, "([^\n]*)\n?") do
    local begun = not symbol and string.match(line, "^[%s%w._]*%.entry%s+([%w_$]+)")
    if begun then
      symbol, lines = begun, {}
    end
    if symbol then
      lines[#lines + 1] = line
      if line == "}" then
        entries[symbol], symbol = table.concat(lines, "\n"), nil
      end
    end
  end
  return entries
end

--- of_sass(text) -> { symbol = { instructions } }: of what `cuobjdump -sass` or `nvdisasm -c` print. An instruction is
-- "@!P0 IMAD R1, R2, R3, R4"; labels in front of one are left out.
function machine_code.of_sass(text)
  local functions, instructions = {}, nil
  for line in string.gmatch(text, "[^\n]+") do
    local symbol = string.match(line, "^%s*Function : ([%w_$]+)") or string.match(line, "^%s*%.text%.([%w_$]+):")
    if symbol then
      instructions = {}
      functions[symbol] = instructions
    end
    local instruction = instructions and string.match(line, "^%s*/%*%x+%*/%s+(.-)%s*;")
    if instruction then
      instructions[#instructions + 1] = instruction
    end
  end
  return functions
end

--- counts(instructions) -> a list of { name, count }, the most frequent first. NOPs, which fill up the end, and what
-- follows a dot are left out.
function machine_code.counts(instructions)
  local by_name, list = {}, {}
  for _, instruction in ipairs(instructions) do
    local name = string.match(string.gsub(instruction, "^@!?U?P%w+%s+", ""), "^[%u%d]+")
    if name and name ~= "NOP" then
      if not by_name[name] then
        by_name[name] = { name, 0 }
        list[#list + 1] = by_name[name]
      end
      by_name[name][2] = by_name[name][2] + 1
    end
  end
  table.sort(list, function(a, b) return a[2] > b[2] or (a[2] == b[2] and a[1] < b[1]) end)
  return list
end

local tools <const> = { { "cuobjdump", "-sass" }, { "nvdisasm", "-c" } }

local function quoted(path) return "'" .. string.gsub(path, "'", "'\\''") .. "'" end

local function read(command)
  local pipe = io.popen(command)
  local text = pipe and pipe:read "a"
  local ok = pipe and pipe:close()
  return ok and text ~= "" and text or nil
end

--- disassemble(path) -> the SASS of a cubin, as a tool of the toolkit prints it. nil: there is none, in PATH or in the
-- toolkit's folder (CUDA_HOME). Blocks.
function machine_code.disassemble(path)
  local home = os.getenv "CUDA_HOME" or os.getenv "CUDA_PATH" or "/usr/local/cuda"
  for _, tool in ipairs(tools) do
    for _, folder in ipairs { "", home .. "/bin/" } do
      local text = read(string.format("%s %s %s 2> /dev/null", quoted(folder .. tool[1]), tool[2], quoted(path)))
      if text then
        return text
      end
    end
  end
end

return machine_code
