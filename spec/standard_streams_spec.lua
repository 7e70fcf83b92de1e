-- gpulua started with standard streams that are closed.

local support = require "spec.support"

describe("a standard stream that is closed", function()
  local folder, script
  before_each(function()
    folder = os.tmpname()
    os.remove(folder)
    assert(os.execute("mkdir " .. folder))
    script = folder .. "/script.lua"
  end)
  after_each(function() os.execute("rm -r " .. folder) end)

  --- What the script wrote into the file `told`.
  local function run(text, closed)
    support.write_file(script, text)
    local build = os.getenv "GPULUA_BUILD" or "build"
    local output, code = support.command(("{ cd %s && timeout -k 5 60 %s script.lua %s; }"):format(folder,
      build:find "^/" and build .. "/gpulua" or "$OLDPWD/" .. build .. "/gpulua", closed))
    assert.equal(0, code, output)
    return support.read_file(folder .. "/told")
  end

  it("is no file that the script opens, and using it fails", function()
    local text = [[
      local file = io.open("told", "w")
      local _, first = io.write("out"):flush()
      file:write(first or "written", "; ", select(2, io.stderr:write "err") or "written", "; ",
        select(2, io.read(1)) or "nothing", "\n")]]
    local bad = "Bad file descriptor"
    assert.equal(("%s; %s; %s\n"):format(bad, bad, bad), run(text, "<&- >&- 2>&-"))
    assert.equal(("written; %s; nothing\n"):format(bad), run(text, "</dev/null 2>&-"))
  end)

  it("is no pipe that the device's process has with it: whoever reads there comes to its end", function()
    assert.equal("all\n", run([[
      local gpu = require "gpulua"
      local pipe = io.popen("cat > told", "w")
      local dev = gpu.device(nil, { isolate = "process" })
      dev:buffer("i32", 4):fill(1):await()
      pipe:write "all\n"
      pipe:close()]], "<&- >&- 2>&-"))
  end)
end)
