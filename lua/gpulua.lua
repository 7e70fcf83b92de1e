-- `require "gpulua"` in stock Lua: the same library as gpulua.core, by its other entry.

local path = assert(package.searchpath("gpulua.core", package.cpath))
return assert(package.loadlib(path, "luaopen_gpulua"))("gpulua", path)
