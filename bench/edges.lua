-- Waits between streams that the runtime makes, beside those that the order needs and those of a scheme that looks at
-- each argument alone: gpulua bench/edges.lua. Run it from the tree's root.

local edges = require "spec.edges"

print("| program | operations | edges needed | waits issued | per edge | argument by argument |")
print("|---|---|---|---|---|---|")
for _, name in ipairs(edges.programs) do
  local order = edges.run(name, { seed = 1 })
  local needed, issued, naive = edges.needed(order), edges.issued(order), edges.naive(order)
  print(("| %s | %d | %d | %d | %.2f | %d, %.2f |"):format((name:gsub("_", "-")), #order, needed, issued,
    issued / needed, naive, naive / needed))
end
