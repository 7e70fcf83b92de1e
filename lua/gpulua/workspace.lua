-- Memory that a library needs while its calls are at work: in a capture a buffer of the graph's, else one for each
-- stream, which calls there share, since they come one after another. It grows to what the largest of them needs.

local core = require "gpulua.core"

local streams_max <const> = 32 -- that have one; with the next all of them go, which costs nothing but new ones

local workspace = {}
workspace.__index = workspace

--- Of at least so many bytes, for a call on the stream, or on that which work goes to here; nil for 0 bytes.
function workspace.take(self, device, stream, bytes)
  if bytes == 0 then
    return nil
  end
  local number = core.stream_number(device, stream)
  local found = number and self.kept[number]
  if found and #found >= bytes then
    return found
  end
  local made = device:buffer("u8", bytes, { label = self.label, durable = number and "space" or nil })
  if found then
    found:close()
  elseif number then
    if self.count == streams_max then
      self:drop()
    end
    self.count = self.count + 1
  end
  if number then
    self.kept[number] = made
  end
  return made
end

--- How many there are.
function workspace.bytes(self)
  local sum = 0
  for _, buffer in pairs(self.kept) do
    sum = sum + #buffer
  end
  return sum
end

--- Gives all of them back; calls under way keep theirs.
function workspace.drop(self)
  for _, buffer in pairs(self.kept) do
    buffer:close()
  end
  self.kept, self.count = {}, 0
end

--- workspace(label) -> one with nothing in it. By these labels, memory_map.lua knows that no script holds them.
return function(label)
  return setmetatable({ label = label, kept = {}, count = 0 }, workspace)
end
