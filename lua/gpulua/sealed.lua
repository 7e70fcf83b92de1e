-- Handles that are tables, for scripts that are not trusted. Some have what a script must not get: kernels of libraries
-- believe the sizes that they are given, graphed functions know the upvalues of what they call, and a metatable's __gc
-- runs where nobody can stop it. So in a sandbox the script gets an empty table in the place of the handle, with the
-- same methods.

if not require "gpulua.core".is_sandbox then
  return function(handle)
    return handle
  end
end

local entries <const> = require "gpulua.entries"
local handles <const> = setmetatable({}, { __mode = "k" }) -- by what the script has
local faces <const> = {} -- metatables of that, by those of handles

local function face_of(metatable, methods)
  local face = { __name = metatable.__name, __index = {} }
  for name, method in pairs(methods) do
    if type(method) == "function" and string.sub(name, 1, 2) ~= "__" then
      face.__index[name] = function(self, ...)
        return method(handles[self], ...)
      end
    end
  end
  entries(face.__index)
  for _, event in ipairs { "__call", "__close", "__gc", "__tostring" } do
    local method <const> = metatable[event]
    face[event] = method and function(self, ...)
      return method(handles[self], ...)
    end
  end
  return face
end

--- sealed(handle, methods) -> what the script gets: in a sandbox a table that has the methods alone, else the handle.
return function(handle, methods)
  local metatable = getmetatable(handle)
  faces[metatable] = faces[metatable] or face_of(metatable, methods)
  local seen = setmetatable({}, faces[metatable])
  handles[seen] = handle
  return seen
end
