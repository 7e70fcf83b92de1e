-- The end of a program: what the command line asks for then is there, or is said to be missing.

local build = os.getenv "GPULUA_BUILD" or "build"

describe("at its end a program", function()
  local path

  -- What the interpreter writes with these arguments, and its exit code. The script, at `path`, fills a buffer of a
  -- device that it keeps, and then does what `text` says.
  local function run(arguments, text)
    local file <close> = assert(io.open(path, "w"))
    file:write('kept = require "gpulua".device("cpu"):buffer("i32", 8):fill(1)\n', text or "")
    file:close()
    local pipe = assert(io.popen(("{ %s/gpulua %s; } 2>&1"):format(build, arguments)))
    local output = pipe:read "a"
    local _, _, code = pipe:close()
    return output, code
  end

  before_each(function() path = os.tmpname() end)
  after_each(function() os.remove(path) end)

  it("says of each file alike that it cannot be written", function()
    local output, code = run("--trace /dev/full --timeline /dev/full --summary " .. path)
    assert.equal(1, code, output)
    for _, what in ipairs { "trace", "timeline" } do
      assert.truthy(output:find(("gpulua: %s: /dev/full: cannot be written: "):format(what), 1, true), output)
    end
    assert.is_nil(output:find("traceback", 1, true), output)
  end)

  it("tells all of it also where the script has left no require", function()
    local trace, page, flown = os.tmpname(), os.tmpname(), os.tmpname()
    for _, text in ipairs { "require = nil", "require = nil setmetatable(_G, { __index = error, __newindex = error })",
      "require = error os.exit(0)" } do
      local output, code = run(("--summary --trace %s --timeline %s --flight %s %s"):format(trace, page, flown, path),
        text)
      assert.equal(0, code, output)
      assert.truthy(output:find("buffers took 512 B", 1, true), output)
      for _, name in ipairs { trace, page, flown } do
        local file <close> = assert(io.open(name))
        assert.truthy(#file:read "a" > 100, name)
        os.remove(name)
      end
      output, code = run("--check " .. path, text)
      assert.equal(0, code, output)
      assert.truthy(output:find("1 buffer of cpu is held still", 1, true), output)
    end
  end)

  it("fails where nobody could be shown the summary", function()
    assert.equal(1, select(2, run(("--summary %s 2> /dev/full"):format(path))))
    assert.equal(0, select(2, run(("--summary %s 2> /dev/null"):format(path))))
  end)
end)
