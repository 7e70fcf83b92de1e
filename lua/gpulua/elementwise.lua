-- The kernels of gpu.map: an expression as CUDA C with its arguments.

local core = require "gpulua.core"
local expression = require "gpulua.expression"
local generated = require "gpulua.generated"

local c_type <const>, stored <const> = expression.c_type, generated.stored
local names_max <const> = 126 -- with the number of elements and out, as many parameters as kernels have
local repeated_max <const> = 2000 -- characters of code that a thread has for each of its elements

-- Where all elements have one size, a thread has 16 bytes of them, which it loads and stores at once where they lie at
-- a multiple of 16. (Kernels of the CPU device get vector instructions from their compiler, across threads.)
local function elements_of_a_thread(made)
  local bytes = generated.bytes[made.type]
  for _, param in ipairs(made.params) do
    if param.buffer and not param.is_one and generated.bytes[param.type] ~= bytes then
      return 1
    end
  end
  return #made.lets + #made.code <= repeated_max and 16 // bytes or 1
end

--- elementwise(text, given, wanted, is_wide) -> what expression.compile gives, with `source`, its `signature` and
-- `per_thread`, how many elements a thread of the kernel map does: one, unless is_wide.
return function(text, given, wanted, is_wide)
  local made = expression.compile(text, given, wanted)
  if #made.params > names_max then
    core.raise("InvalidArgument", string.format("map: %d buffers, scalars and numbers are given, %d are the most",
      #made.params, names_max))
  end
  local t = made.type
  local takes, signature, values, plain, wide = {}, {}, { "long long i" }, { "i" }, { "i + k" }
  local loads, pointers = {}, { "(size_t)out" }
  for i, param in ipairs(made.params) do
    local is_memory = param.buffer ~= nil
    -- Check mode names it. No macro is named like it: those that end with _ begin with _.
    local own = string.find(param.name, "^_") and string.format("p%d%s0", i, param.name) or param.name .. "_"
    takes[i] = string.format(is_memory and "const %s *%s" or "%s %s", (is_memory and stored or c_type)[param.type], own)
    signature[i] = string.format("%s: %s", param.name, is_memory and string.format("in %s*", param.type)
      or param.type == "real" and "f64" or "i64")
    values[i + 1] = string.format("%s v%d", c_type[param.type], i)
    plain[i + 1] = is_memory and generated.load(param.type, string.format("%s[%s]", own, param.is_one and "0" or "i"))
      or own
    wide[i + 1] = plain[i + 1]
    if is_memory and not param.is_one then
      wide[i + 1] = generated.load(param.type, string.format("l%d[k]", i))
      pointers[#pointers + 1] = "(size_t)" .. own
      loads[#loads + 1] = string.format("    const int4 all%d = *(const int4 *)(%s + i);\n    %s l%d[PER];\n"
        .. "    memcpy(l%d, &all%d, 16);\n", i, own, stored[param.type], i, i, i)
    end
  end
  takes[#takes + 1] = string.format("%s *out", stored[t])
  signature[#signature + 1] = string.format("out: out %s*", t)
  made.per_thread = is_wide and elements_of_a_thread(made) or 1
  local one = string.format([[
%sstatic __device__ __forceinline__ %s gpulua_one(%s) {
%s  return %s;
}
]], expression.helpers, stored[t], table.concat(values, ", "), made.lets, generated.store(t, made.code))
  local body
  if made.per_thread == 1 then
    body = string.format([[
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[i] = gpulua_one(%s);
]], table.concat(plain, ", "))
  else
    body = string.gsub(string.format([[
  long long i = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * PER;
  if (n - i >= PER && (%s) %% 16 == 0) {
    %s made[PER];
%s#pragma unroll
    for (int k = 0; k < PER; k++) made[k] = gpulua_one(%s);
    int4 all;
    memcpy(&all, made, 16);
    *(int4 *)(out + i) = all;
    return;
  }
  for (long long end = n - i < PER ? n : i + PER; i < end; i++) out[i] = gpulua_one(%s);
]], table.concat(pointers, " | "), stored[t], table.concat(loads), table.concat(wide, ", "),
      table.concat(plain, ", ")), "%f[%w_]PER%f[^%w_]", made.per_thread)
  end
  made.source = generated.with_headers(string.format('%sextern "C" __global__ void map(long long n, %s) {\n%s}\n', one,
    table.concat(takes, ", "), body))
  local count = "n"
  while given[count] do
    count = count .. "_"
  end
  made.signature = string.format("%s: i64, %s", count, table.concat(signature, ", "))
  return made
end
