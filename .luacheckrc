std = "lua54"
max_line_length = 120
exclude_files = { "build" }

files["spec"] = { std = "lua54+busted" }
-- luacheck says nothing of methods' unused self; other unused arguments begin with _.
self = false
-- "not (x >= 0)" is how a NaN is caught.
ignore = { "581" }
