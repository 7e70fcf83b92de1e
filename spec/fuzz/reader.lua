-- Reads a file with a function of gpulua's, as a script does. It gives buffers, or raises an error that names the file
-- and says that it is at fault; either way nothing is left behind. Anything else is a finding, which is raised.

local gpu = require "gpulua"

local module, name = ...
local load = require(module)[name]
local dev = gpu.device()

local expected <const> = { InvalidData = true, Unsupported = true, OutOfBudget = true }

local function close(result)
  for _, buffer in pairs(gpu.type(result) and { result } or result) do
    buffer:close()
  end
end

local function check_error(err, path)
  if type(err) == "string" or not expected[err.code] then
    error("not what is said of a bad file: " .. tostring(err))
  end
  if err.code ~= "OutOfBudget" and not err.message:find(path, 1, true) then
    error("does not name the file: " .. tostring(err))
  end
end

return function(path)
  local ok, result = pcall(load, dev, path)
  if ok then
    close(result)
  else
    check_error(result, path)
  end
  dev:synchronize()
  if dev:stats().bytes_live > 0 then
    collectgarbage() -- of handles that the reader dropped
    dev:synchronize()
  end
  local stats = dev:stats()
  if stats.bytes_live ~= 0 or stats.ops_in_flight ~= 0 or stats.staging_bytes ~= 0 then
    error(("left behind: %d bytes, %d ops, %d bytes of staging"):format(stats.bytes_live, stats.ops_in_flight,
      stats.staging_bytes))
  end
end
