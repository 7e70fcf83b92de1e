-- Embeds files into a C source: lua5.4 tools/embed.lua SYMBOL OUT.c FILES...
-- SYMBOL_files is an array of {name, bytes, byte_count}, SYMBOL_file_count its length. Names are the
-- files' own, without folders.

local symbol, out_path = arg[1], arg[2]
if not symbol or not out_path or not symbol:match("^[%a_][%w_]*$") then
  io.stderr:write("usage: embed.lua SYMBOL OUT.c FILES...\n")
  os.exit(2)
end

local parts = { '/* Made by tools/embed.lua. */\n#include "embedded.h"\n\n' }
local rows = {}

for i = 3, #arg do
  local file = assert(io.open(arg[i], "rb"))
  local bytes = assert(file:read("a"))
  file:close()
  local variable = ("%s_bytes_%d"):format(symbol, i - 2)
  parts[#parts + 1] = ("static const unsigned char %s[] = {"):format(variable)
  for first = 1, #bytes, 20 do
    parts[#parts + 1] = "\n    "
    for k = first, math.min(first + 19, #bytes) do
      parts[#parts + 1] = bytes:byte(k) .. ","
    end
  end
  parts[#parts + 1] = "0\n};\n\n" -- a NUL that is not counted: text is a string as it is, and no array is empty
  rows[#rows + 1] = ('    {"%s", %s, %d},\n'):format(arg[i]:match("[^/]*$"), variable, #bytes)
end

parts[#parts + 1] = ([[
extern const struct gpu_embedded_file SYMBOL_files[];
extern const size_t SYMBOL_file_count;
]]):gsub("SYMBOL", symbol)
-- The row behind the last keeps the array legal when there is no file.
parts[#parts + 1] = ("const struct gpu_embedded_file %s_files[] = {\n%s    {0, 0, 0},\n};\n"):format(
  symbol, table.concat(rows))
parts[#parts + 1] = ("const size_t %s_file_count = %d;\n"):format(symbol, #rows)

local out = assert(io.open(out_path, "wb"))
assert(out:write(table.concat(parts)))
assert(out:close())
