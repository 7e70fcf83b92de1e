std = "lua54"
files["spec"] = { std = "lua54+busted" }
