-- Writes the CUDA C in Lua sources to files of its own, for a compiler: lua5.4 tools/kernels.lua FOLDER FILES...
-- Prints the paths written. CUDA C is a long string with a kernel in it; one that is a format still to be
-- filled in (%s) is left out.

local folder = arg[1]

local written = 0
for i = 2, #arg do
  local file <close> = assert(io.open(arg[i], "r"))
  local text = file:read("a")
  for at, level in text:gmatch("()%[(=*)%[") do
    local source = text:match("^%[" .. level .. "%[(.-)%]" .. level .. "%]", at)
    local is_kernel = source and source:find("__global__", 1, true)
    if is_kernel and not source:find("%%[%d.]*[sdfgx]") then
      local _, line = text:sub(1, at):gsub("\n", "")
      written = written + 1
      local path = ("%s/%s-%d.cu"):format(folder, arg[i]:gsub("/", "-"), line + 1)
      local out <close> = assert(io.open(path, "w"))
      -- Messages then name the script and its line.
      assert(out:write(('#line %d "%s"\n'):format(line + 1, arg[i]), source, "\n"))
      print(path)
    end
  end
end
if written == 0 then
  error("no kernel was found")
end
