-- One request of examples/hosts/libuv.lua in a process of its own, for bench/service.sh:
-- gpulua bench/service_once.lua X Y
dofile(arg[0]:gsub("[^/]*$", "") .. "../examples/hosts/libuv.lua")
local _, body = handle("nearest", ("x=%s&y=%s"):format(arg[1], arg[2])) -- luacheck: globals handle
io.write(body)
