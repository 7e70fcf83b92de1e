-- docs/coverage.md names tests: each of them must exist; and what it is about must all be there.

local gpu = require "gpulua"
local support = require "spec.support"

describe("docs/coverage.md", function()
  local document = assert(support.read_file "docs/coverage.md")

  --- The rows below a heading, up to the next one: first cell -> second cell.
  local function rows_of(heading)
    local section = document:match("\n" .. heading .. "\n(.-)\n#") or document:match("\n" .. heading .. "\n(.*)$")
    assert(section, "there is no section " .. heading)
    local rows, count = {}, 0
    for promise, tests in section:gmatch "\n| (.-) | ([^\n]*) |%f[\n\0]" do
      if promise ~= "promise" and promise ~= "code" and promise ~= "invariant" then
        rows[promise] = tests
        count = count + 1
      end
    end
    return rows, count
  end

  -- How many tests the tables of a document name, and those that are not there.
  local function tests_of(text)
    local texts, missing, count = {}, {}, 0
    for row in text:gmatch "\n| ([^\n]*) |" do
      local path
      -- Paths in backquotes, each followed by the names of tests in it; what the first cell quotes is the promise.
      local at = assert(row:find(" | ", 1, true), row)
      while true do
        local path_start, path_end, found_path = row:find("`(spec/[%w_/]+%.%w+)`", at)
        local name_start, name_end, found_name = row:find('"([^"]+)"', at)
        if path_start and (not name_start or path_start < name_start) then
          path, at = found_path, path_end + 1
          texts[path] = texts[path] or support.read_file(path)
          if not texts[path] then
            missing[#missing + 1] = path
          end
        elseif name_start then
          count = count + 1
          if not path or not (texts[path] or ""):find(found_name, 1, true) then
            missing[#missing + 1] = ("%s: %s"):format(path, found_name)
          end
          at = name_end + 1
        else
          break
        end
      end
    end
    return count, table.concat(missing, "\n")
  end

  it("names tests that are there, as docs/limits.md does", function()
    for path, least in pairs { ["docs/coverage.md"] = 300, ["docs/limits.md"] = 25 } do
      local count, missing = tests_of(assert(support.read_file(path)))
      assert.equal("", missing)
      assert.truthy(count >= least, count)
    end
  end)

  it("has a test for each promise, or says that it cannot be broken yet", function()
    for line in document:gmatch "\n(| [^\n]*)" do
      local is_head = line:find "^| promise |" or line:find "^| code |" or line:find "^| invariant |"
      assert.truthy(is_head or line:find("`spec/", 1, true) or line:find("| not yet: ", 1, true), line)
    end
  end)

  it("has every error code", function()
    local rows, count = rows_of "## Error codes"
    local codes = 0
    for code in assert(support.read_file "src/gpulua.h"):gmatch 'X%(%d+, [%u_]+, "(%a+)"' do
      codes = codes + 1
      assert.truthy(rows[code], code)
      assert.truthy(rows[code]:find "spec/" or rows[code]:find "^not yet: ", code)
    end
    assert.equal(33, codes)
    assert.equal(codes, count)
  end)

  it("says of no code that occurs in the sources that it cannot occur yet", function()
    local pipe = assert(io.popen "cat src/*/*.c src/*/*/*.c src/*/*/*/*.c lua/gpulua/*.lua")
    local sources = pipe:read "a"
    pipe:close()
    local names = {}
    for name, code in assert(support.read_file "src/gpulua.h"):gmatch 'X%(%d+, ([%u_]+), "(%a+)"' do
      names[code] = name
    end
    for code, tests in pairs((rows_of "## Error codes")) do
      local occurs = sources:find("GPULUA_" .. names[code] .. "%f[^%w_]")
      assert.truthy(not tests:find "^not yet" or not occurs, code)
      assert.truthy(tests:find "^not yet" or occurs, code)
    end
  end)

  it("has the sections of the API, the exact rules, the decisions and the invariants", function()
    for _, heading in ipairs { "### Errors", "### Running", "### A pipeline", "### Types", "### Kernels", "### Waiting",
      "### Libraries and data", "### Buffer refs", "### Fencing", "### Memory and streams",
      "### Envelopes and completion", "## Decisions of the architecture", "### What is built", "### Bad input" } do
      local _, count = rows_of(heading)
      assert.truthy(count >= 4, heading)
    end
    local invariants, count = rows_of "## Invariants of the architecture"
    assert.equal(7, count)
    for number = 1, 7 do
      local found = false
      for promise in pairs(invariants) do
        found = found or promise:find("^" .. number .. "%. ") ~= nil
      end
      assert.is_true(found, number)
    end
  end)

  it("names every function, every method and every option", function()
    local function named(what)
      return document:find("%f[%w_]" .. what:gsub("%p", "%%%0") .. "%f[^%w_]") ~= nil
    end
    local missing = {}
    local dev = support.open()
    local mod = dev:compile [[ extern "C" __global__ void f(int *x) { x[0] = 1; } ]]
    local buffer <close> = dev:buffer("i32", 1)
    local host <close> = dev:host("i32", 1)
    local capture <close> = dev:capture()
    buffer:fill(0)
    local graph <close> = capture:finish()
    for _, handle in ipairs { dev, buffer, host, mod, mod.f, dev:current(), dev:current():mark(), gpu.spawn(print),
      capture, graph, dev:scalar("i32", 1), dev:pool(), dev:fft { shape = 8 } } do
      local metatable = debug.getmetatable(handle)
      for name in pairs(metatable.methods or metatable.__index) do
        if not named(name) then
          missing[#missing + 1] = metatable.__name .. ":" .. name
        end
      end
    end
    for name in pairs(getmetatable(dev:rng())) do
      if not name:find "^__" and not named(name) then
        missing[#missing + 1] = "rng:" .. name
      end
    end
    for name in pairs(gpu) do
      if name ~= "version" and not named(name) then
        missing[#missing + 1] = "gpu." .. name
      end
    end
    local options = assert(support.read_file "src/interpreter/options.c"):match '"Available options are(.-)program.name'
    for option in options:gmatch '\n%s*"  (%-%-?%w*)' do
      if not document:find(option, 1, true) then
        missing[#missing + 1] = option
      end
    end
    assert.equal("", table.concat(missing, "\n"))
    support.close_all()
  end)
end)
