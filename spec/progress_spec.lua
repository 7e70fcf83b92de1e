-- gpu.progress: how far long work has come, on a terminal.

local gpu = require "gpulua"
local support = require "spec.support"

describe("progress", function()
  local script <const> = [[
    local gpu = require "gpulua"
    do
      local p <close> = gpu.progress { total = 40, label = "fra\27[31mmes" }
      for i = 1, 40 do
        gpu.sleep(0.01)
        p:step()
      end
    end
    local q = gpu.progress()
    for i = 1, 20 do
      gpu.sleep(0.01)
      q:set(i * 1000000)
    end
    q:close()
    q:close()
    gpu.progress { total = 5 }:close() -- of which nothing came
    print "done"]]

  --- What a terminal of so many columns gets of a script's output.
  local function on_terminal(text, columns)
    local path, runner = os.tmpname(), os.tmpname()
    local file <close> = assert(io.open(path, "w"))
    file:write(text)
    file:close()
    local shell <close> = assert(io.open(runner, "w"))
    shell:write(("stty cols %d\n%s/gpulua %s\n"):format(columns, os.getenv "GPULUA_BUILD" or "build", path))
    shell:close()
    local pipe = assert(io.popen(("script -qec 'sh %s' /dev/null < /dev/null 2> /dev/null"):format(runner)))
    local output = pipe:read "a"
    local _, _, code = pipe:close()
    os.remove(path)
    os.remove(runner)
    return output, code
  end

  local function wants_script()
    if not os.execute "command -v script > /dev/null 2>&1" then
      pending "no script(1), which makes terminals, is here"
    end
  end

  it("shows how far it is, how fast it goes and what is left, on one line", function()
    wants_script()
    local output, code = on_terminal(script, 120)
    assert.equal(0, code, output)
    local label <const> = "fra\u{FFFD}[31mmes"
    assert.truthy(output:find("\r" .. label .. "  ", 1, true), output)
    assert.truthy(output:find "mes  %d+/40   %d%d%%  %d+/s  0:%d%d left\27%[K", output)
    local took = tonumber(output:match "mes  40/40  100%%  in (%d+%.%d) s")
    assert.truthy(took and took >= 0.4, output) -- 40 times 10 ms, and longer on a busy machine
    local lines = select(2, output:gsub("\n", ""))
    assert.equal(3, lines, output) -- one for each progress that was any, and the script's own
    local updates = select(2, output:gsub("\27%[K", ""))
    local counted = tonumber(output:match "\r20000000  in (%d+%.%d) s, %d+%.%d M/s\27%[K")
    assert.truthy(counted, output)
    assert.truthy(updates >= 4 and updates <= 10 * (took + counted) + 14, updates) -- ten times a second at most
    assert.is_nil(output:find("\27[31m", 1, true))
    assert.truthy(output:find "done", output)
  end)

  it("is never wider than the terminal", function()
    wants_script()
    local output = on_terminal(script, 20)
    local count = 0
    for line in output:gmatch "\r([^\r\n]*)\27%[K" do
      count = count + 1
      assert.truthy(utf8.len(line) <= 19, line)
    end
    assert.truthy(count >= 4, output)
    assert.truthy(output:find("40/40  100%  in ", 1, true), output)
  end)

  it("cuts a long label, and not what is behind it", function()
    wants_script()
    local output = on_terminal((script:gsub("mes\"", "mes\" .. (\"\u{e9}\"):rep(60)")), 60)
    local count = 0
    for line in output:gmatch "\r(fra\u{FFFD}%[31mmes[^\r\n]*)\27%[K" do
      count = count + 1
      assert.equal(59, utf8.len(line), line)
      assert.truthy(line:find "\u{e9}  %d+/40  +%d+%%  .*%d/s", line)
    end
    assert.truthy(count >= 3, output)
  end)

  it("counts characters that are two columns wide as two", function()
    wants_script()
    local output = on_terminal((script:gsub("mes\"", "mes\" .. (\"\u{4e2d}\"):rep(60)")), 60)
    local count = 0
    for line in output:gmatch "\r(fra\u{FFFD}%[31mmes[^\r\n]*)\27%[K" do
      count = count + 1
      local columns = utf8.len(line) + select(2, line:gsub("\u{4e2d}", ""))
      assert.truthy(columns == 59 or columns == 58, line)
      assert.truthy(line:find "\u{4e2d}  %d+/40  +%d+%%  .*%d/s", line)
    end
    assert.truthy(count >= 3, output)
  end)

  it("is a line of its own also where it is left open: behind it come messages, the end and the shell", function()
    wants_script()
    local left_open <const> = [[
      local gpu = require "gpulua"
      local p = gpu.progress { total = 10 }
      for _ = 1, 3 do p:step(2) gpu.sleep(0.12) end
      %s]]
    for ending, said in pairs { ["error 'boom'"] = "gpulua: [^\n]*boom", ["os.exit(1)"] = "$", [""] = "$",
      ["gpu.spawn(function() error 'unseen' end)"] = "gpulua: [^\n]*unseen" } do
      local output = on_terminal(left_open:format(ending), 80)
      assert.truthy(output:find("6/10[^\n\r]*\27%[K\r?\n[^\n\r]*" .. said), ending .. ": " .. output)
    end
  end)

  it("gives way to what the script writes, and comes again", function()
    wants_script()
    local output, code = on_terminal([[
      local gpu = require "gpulua"
      local p <close> = gpu.progress { total = 9 }
      local function step() gpu.sleep(0.12) p:step() end
      step() print "by print"
      step() io.write("by ", "write\n")
      step() io.stdout:write "by file\n"
      step() io.stderr:write "by error\n"
      step() io.output "/dev/null" io.write "elsewhere\n"
      step()]], 80)
    assert.equal(0, code, output)
    for i, way in ipairs { "print", "write", "file", "error" } do
      assert.truthy(output:find(("%d/9[^\n\r]*\27%%[K\r\27%%[Kby %s\r?\n"):format(i, way)), output)
    end
    assert.truthy(output:find "5/9[^\n\r]*\27%[K\r6/9[^\n\r]*\27%[K\r6/9  [^\n]*in [^\n]*\n", output)
  end)

  it("is silent where there is no terminal", function()
    assert.equal("done\n", (support.script(script)))
  end)

  it("refuses what is no count, and what comes after its end", function()
    local p <close> = gpu.progress { total = 3 }
    assert.equal(p, p:step())
    assert.equal(p, p:step(0.5):set(2))
    for _, value in ipairs { "1", 0 / 0, math.huge, {} } do
      support.raises("InvalidArgument", { "progress", "number" }, p.step, p, value)
      support.raises("InvalidArgument", { "progress", "number" }, p.set, p, value)
    end
    support.raises("InvalidArgument", { "progress", "number" }, p.set, p)
    for _, most in ipairs { math.maxinteger, 1e308, math.mininteger, -1e308 } do
      local more = math.type(most) == "float" and most or most < 0 and -1 or 1
      support.raises("InvalidArgument", { "progress", "step", "finite" }, p.step, p:set(most), more)
      assert.equal(p, p:step(-more))
    end
    for _, method in ipairs { "step", "set", "close" } do
      support.raises("InvalidArgument", { method, "gpulua.progress expected, got nil" }, p[method])
      support.raises("InvalidArgument", { method, "gpulua.progress expected, got table" }, p[method], {}, 1)
    end
    support.raises("InvalidArgument", { "total" }, gpu.progress, { total = -1 })
    support.raises("InvalidArgument", { "total" }, gpu.progress, { total = "5" })
    support.raises("InvalidArgument", { "label" }, gpu.progress, { label = 5 })
    support.raises("InvalidArgument", { "'name'" }, gpu.progress, { name = "x" })
    support.raises("InvalidArgument", { "table" }, gpu.progress, 5)
    p:close()
    support.raises("Closed", { "progress" }, p.step, p)
  end)
end)
