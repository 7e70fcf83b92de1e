-- Random programs against sequential execution, bit for bit:
-- gpulua bench/random.lua [device [seeds or seconds ("300s") [operations [first seed]]]]. Run it from the tree's root.
-- GPULUA_ISOLATE chooses the transport; GPULUA_UNFENCED=1 leaves the fences out, to see that they are needed.

local gpu = require "gpulua"
local programs = require "spec.programs"
local support = require "spec.support"

local name = arg[1] or "cpu"
local amount = arg[2] or "1000"
local operation_count = assert(math.tointeger(tonumber(arg[3] or 10000)), "operations: a whole number")
local first = assert(math.tointeger(tonumber(arg[4] or 1)), "first seed: a whole number")
local seconds = tonumber(amount:match "^([%d.]+)s$")
local seed_count = seconds and math.maxinteger or
  assert(math.tointeger(tonumber(amount)), "how many seeds, or seconds as '300s'")

local dev <close> = gpu.device(name, { unfenced = os.getenv "GPULUA_UNFENCED" and true or nil })
local where = programs.open(dev)
local start, ran, differing = support.now(), 0, 0
while ran < seed_count and not (seconds and support.now() - start >= seconds) do
  local seed = first + ran
  local difference = programs.run(where, seed, operation_count)
  ran = ran + 1
  if difference then
    differing = differing + 1
    print(("seed %d: %s"):format(seed, difference))
  end
end
programs.close(where)
local took, stats = support.now() - start, dev:stats()
print(("%s: %d programs of %d operations in %.1f s, %d with a difference"):format(dev.name, ran, operation_count, took,
  differing))
print(("waits issued %d, left out %d, hazards widened %d"):format(stats.waits_issued, stats.waits_elided,
  stats.hazards_widened))
os.exit(differing == 0)
