-- The known kernels, and what becomes of each without one of its barriers. For check_spec.lua and bench/barriers.lua.

local barriers = { kernels = {}, variants = {} }

for _, list in ipairs { "spec.check.kernels", "spec.check.more_kernels" } do
  for _, kernel in ipairs(require(list)) do
    barriers.kernels[#barriers.kernels + 1] = kernel
  end
end

local texts, without = {}, {}
for _, kernel in ipairs(barriers.kernels) do
  texts[#texts + 1] = kernel.source
  local pattern = "__sync%l+%(%);"
  local _, count = kernel.source:gsub(pattern, "")
  for gone = 1, count do
    local name, at = ("%s_without_%d"):format(kernel.name, gone), 0
    local text = kernel.source:gsub("struct [^\n]*\n", ""):gsub("void " .. kernel.name, "void " .. name)
    without[#without + 1] = text:gsub(pattern, function()
      at = at + 1
      return at == gone and ";" or nil
    end)
    barriers.variants[#barriers.variants + 1] = { of = kernel, name = name,
      is_redundant = kernel.redundant ~= nil and kernel.redundant[gone] ~= nil }
  end
end
local source = table.concat(texts, "\n")
barriers.source = source
local structs = source:match "struct [^\n]*\n"
local source_without = structs .. table.concat(without, "\n")

local function tables_of(args)
  local list = {}
  for i, value in ipairs(args) do
    -- What it computes need not be written yet.
    list[i] = type(value) == "number" and value or i < #args and select(2, pcall(value.read, value)) or nil
  end
  return list
end

--- Runs all of them, and what has no `want` on the unchecked device `plain` too. Returns what differs, by name.
function barriers.run(dev, plain)
  local mod, other, wrong = dev:compile(source), plain:compile(source), {}
  for _, kernel in ipairs(barriers.kernels) do
    local args = kernel.args(dev)
    local given = kernel.want and tables_of(args)
    mod[kernel.name]:launch(kernel.config, table.unpack(args)):await()
    local want
    if kernel.want then
      want = kernel.want(table.unpack(given, 1, #args))
    else
      local there = kernel.args(plain)
      other[kernel.name]:launch(kernel.config, table.unpack(there)):await()
      want = there[#there]:read()
    end
    for i, got in ipairs(args[#args]:read()) do
      if math.abs(got - want[i]) > 1e-3 * (1 + math.abs(want[i])) then
        wrong[kernel.name] = ("element %d is %s, not %s"):format(i, got, want[i])
        break
      end
    end
  end
  return wrong
end

--- Runs each without one of its barriers. Returns a list of { name =, of =, is_redundant =, code = or nil }.
function barriers.remove(dev)
  local mod, results = dev:compile(source_without), {}
  for i, variant in ipairs(barriers.variants) do
    local op = mod[variant.name]:launch(variant.of.config, table.unpack(variant.of.args(dev)))
    local ok, err = pcall(op.await, op)
    results[i] = { name = variant.name, of = variant.of, is_redundant = variant.is_redundant,
      code = not ok and err.code or nil }
  end
  return results
end

return barriers
