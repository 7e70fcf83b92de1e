-- What the library never does in a host's process, seen from what it asks of the C library.

describe("the library", function()
  local build = os.getenv "GPULUA_BUILD" or "build"

  local function undefined(name)
    local pipe = assert(io.popen(("nm -D --undefined-only %s/%s 2>&1"):format(build, name)))
    local found = {}
    for line in pipe:lines() do
      local symbol = line:match "%s[Uw]%s+([%w_]+)"
      if symbol then
        found[symbol] = true
      end
    end
    pipe:close()
    return found
  end

  for _, name in ipairs { "libgpulua.so", "lua/gpulua/core.so" } do
    it(name .. " neither prints, nor exits, nor aborts, nor forks, nor takes signals", function()
      local found = undefined(name)
      assert.is_true(found.malloc and found.lua_error, "nm gave nothing")
      for _, symbol in ipairs { "printf", "vprintf", "__printf_chk", "puts", "putchar", "perror", "stderr", "exit",
        "_exit", "quick_exit", "abort", "signal", "sigaction", "bsd_signal", "fork", "vfork", "atexit", "setlocale",
        "setenv", "chdir", "lua_atpanic", "lua_setwarnf" } do
        assert.is_nil(found[symbol], symbol)
      end
    end)

    it(name .. " brings no Lua of its own and needs no CUDA to be loaded", function()
      local pipe = assert(io.popen(("nm -D --defined-only %s/%s; readelf -d %s/%s"):format(build, name, build, name)))
      local text = pipe:read "a"
      pipe:close()
      assert.truthy(text:find("luaopen_gpulua_core", 1, true), text)
      assert.is_nil(text:find "[^_]lua_pcallk")
      assert.is_nil(text:find "NEEDED[^\n]*cuda")
      assert.is_nil(text:find "NEEDED[^\n]*lua5")
      for symbol in text:gmatch " T ([%w_]+)" do -- nothing but the public names
        assert.truthy(symbol:find "^gpulua_" or symbol:find "^luaopen_gpulua", symbol)
      end
    end)
  end
end)
