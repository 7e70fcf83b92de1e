-- gpulua --info where something is wrong: it is what people are told to run then.

local dkjson = require "dkjson"

local gpulua = (os.getenv "GPULUA_BUILD" or "build") .. "/gpulua"

local function run(environment, arguments)
  local pipe = assert(io.popen(("env %s %s %s 2>&1"):format(environment, gpulua, arguments)))
  local output = pipe:read "a"
  local _, _, code = pipe:close()
  return output, code
end

describe("--info", function()
  it("says why where no device can be opened", function()
    local broken <const> = "GPULUA_EXECUTOR=/nowhere/gpulua-exec"
    local output, code = run(broken, "--isolate process --info")
    assert.equal(0, code, output)
    assert.truthy(output:find("\ncpu: no: [^\n]*/nowhere/gpulua%-exec"), output)
    assert.truthy(output:find("\nlibraries, cache: not known without a CPU device\n", 1, true), output)
    output, code = run(broken, "--isolate process --info=json")
    assert.equal(0, code, output)
    local info = assert(dkjson.decode(output))
    assert.same({ "cpu", false }, { info.devices[2].name, info.devices[2].ok })
    assert.truthy(info.devices[2].why:find("/nowhere/gpulua-exec", 1, true))
    assert.same({}, info.libraries)
    assert.is_nil(info.cache)
  end)

  it("has a cache in a folder of any name, as JSON that is UTF-8", function()
    local folder = os.tmpname()
    os.remove(folder)
    local name = folder .. "\xff\t\n\"\\\xe2\x82"
    local output, code = run(("GPULUA_CACHE='%s'"):format(name), "--info=json")
    assert.equal(0, code, output)
    assert.truthy(utf8.len(output), output)
    local info = assert(dkjson.decode(output))
    assert.equal(folder .. "\u{FFFD}\t\n\"\\\u{FFFD}\u{FFFD}", info.cache.folder)
    assert.equal(256 << 20, info.cache.limit_bytes)
    for _, library in ipairs(info.libraries) do
      assert.is_string(library.where or library.why)
      assert.not_equal("", library.name)
    end
    output, code = run(("GPULUA_CACHE='%s'"):format(name), "--info")
    assert.equal(0, code, output)
    assert.truthy(output:find(name .. ", 0.0 of 256 MiB", 1, true), output)
    os.execute(("rm -rf '%s'"):format(name))
  end)
end)
