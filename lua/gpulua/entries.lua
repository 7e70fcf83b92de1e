-- What a script calls is to know the line that calls it, also of `return gpu.map(...)`: a function written in Lua would
-- take its caller's place there, and the line be that of the caller's caller. One of C's does not.

local entry <const> = require "gpulua.core".entry

--- entries(functions) -> the same table, its functions (but metamethods) replaced by such as keep their caller's line.
return function(functions)
  for name, value in pairs(functions) do
    if type(value) == "function" and string.sub(name, 1, 2) ~= "__" then
      functions[name] = entry(value)
    end
  end
  return functions
end
