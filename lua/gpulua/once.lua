-- What several tasks may come to want at once, and one of them makes.

local core = require "gpulua.core"

local begun = setmetatable({}, { __mode = "k" }) -- by table and key: { gate = a task that ends when it is over }

local ending <const> = { __close = function(work)
  work.all[work.key] = nil
  if work.gate then
    work.gate:cancel()
  end
end }

-- False: who runs cannot wait for tasks.
local function wait(work)
  work.gate = work.gate or core.spawn_root(core.sleep, math.huge)
  local ok, err = pcall(work.gate.join, work.gate)
  if not ok and err.code ~= "NotYieldable" then
    error(err, 0)
  end
  return ok
end

--- once(known, key, device, make) -> known[key], whether it was made here. While one task is in make(), which waits for
-- the device, others wait for it; if that raises, or the task is cancelled, the next one tries. A second result of
-- make() is closed if another was first after all. On a checked device tasks make it beside each other: one that waits
-- for another would be behind all that it did, which otherwise time decides.
return function(known, key, device, make)
  local all = begun[known] or {}
  begun[known] = all
  while known[key] == nil and all[key] and not device.check and wait(all[key]) do end
  local made, leftover
  if known[key] == nil then
    local work <close> = not all[key] and setmetatable({ all = all, key = key }, ending) or nil
    all[key] = all[key] or work
    made, leftover = make()
  end
  if known[key] == nil then
    known[key] = made
    return made, true
  elseif leftover then
    leftover:close()
  end
  return known[key], false
end
