-- The manual's pages: what they show is done, and prints what stands below it.
--
-- A ```lua block whose first line is `-- NAME.lua` is a file, which a ```sh block of the page runs. Any other one is a
-- script. ```sh blocks are run in the page's own folder. Behind each may stand a ```text block, which is exactly what
-- it prints; without one it prints nothing and ends well. In "```text figures" each number (with its unit) stands for
-- any, lines may come in another order, and some with figures may be missing: no wait is told of where nobody had to.
-- `<!-- not run: WHY -->` in front of a block is for what cannot be run.

local gpu = require "gpulua"
local image = require "gpulua.image"
local lfs = require "lfs"
local support = require "spec.support"

local build = os.getenv "GPULUA_BUILD" or "build"

-- Pages whose blocks are run elsewhere: in that spec, which says so.
local elsewhere = {
  ["README.md"] = { "spec/examples_spec.lua", 'io.open "README.md"' },
  ["docs/reference.md"] = { "spec/definitions_spec.lua", 'describe("the manual\'s examples"' },
  ["docs/testing.md"] = { "spec/busted_spec.lua", 'read_file "docs/testing.md"' },
  ["docs/embedding.md"] = { "spec/hosts_spec.lua", 'read_file "docs/embedding.md"' },
}

local function pages_of(folder)
  local pages = {}
  for name in lfs.dir(folder) do
    local path = folder .. "/" .. name
    if name:find "%.md$" then
      pages[#pages + 1] = path
    elseif name:find "^%w" and lfs.attributes(path, "mode") == "directory" then
      table.move(pages_of(path), 1, #pages_of(path), #pages + 1, pages)
    end
  end
  table.sort(pages)
  return pages
end

-- The blocks of a page: { kind =, text =, line =, why = }.
local function blocks_of(text)
  local blocks, block, number, why = {}, nil, 0, nil
  for line in (text .. "\n"):gmatch "(.-)\n" do
    number = number + 1
    local kind = line:match "^```(.*)$"
    if block and kind then
      block.text = table.concat(block, "\n") .. "\n"
      blocks[#blocks + 1], block = block, nil
    elseif block then
      block[#block + 1] = line
    elseif kind then
      block, why = { kind = kind, line = number, why = why }, nil
    elseif line ~= "" then
      why = line:match "^<!%-%- not run: (.+) %-%->$"
    end
  end
  assert(not block, "a block without an end")
  return blocks
end

-- The lines, with # for each number and its unit: a set, and a list.
local function without_figures(text)
  local lines = {}
  for line in text:gmatch "[^\n]+" do
    line = (" " .. line):gsub("(%s)%d[%d.]*e[+-]%d+", "%1#")
    line = line:gsub("(%s)%d[%d.]* [num]?s%f[%W]", "%1#"):gsub("(%s)%d[%d.]* [KMG]?i?B%f[%W]", "%1#")
    line = line:gsub("(%s)%d[%d.]*", "%1#"):gsub("%s+", " ")
    lines[#lines + 1], lines[line] = line, true
  end
  return lines
end

-- What of the second text is not in the first, and of the first not in the second, unless it is a figure.
local function differences(wanted, output)
  local list, missing = {}, 0
  wanted, output = without_figures(wanted), without_figures(output)
  for _, line in ipairs(output) do
    list[#list + 1] = not wanted[line] and "it prints:" .. line or nil
  end
  for _, line in ipairs(wanted) do
    missing = missing + (output[line] and 0 or 1)
    list[#list + 1] = not output[line] and (not line:find "#" or missing > 2) and "it does not print:" .. line or nil
  end
  return table.concat(list, "\n")
end

-- What is wrong with a page: a list of texts. `counts` gets how many blocks of each kind were run. `look`, if there is
-- one, is called with the folder where they were.
local function faults_of(text, counts, look)
  local folder, faults, files = support.path "", {}, {}
  assert(lfs.mkdir(folder))
  assert(lfs.link(lfs.currentdir() .. "/examples", folder .. "/examples", true))
  local function run(command)
    -- Devices are those of a user's, whatever the suite runs on.
    local whole = "cd %s && (unset GPULUA_DEVICE GPULUA_ISOLATE; PATH=%s:$PATH\n"
      .. "export LUA_CPATH='%s/lua/?.so;;'\n%s) 2>&1"
    local pipe = assert(io.popen(whole:format(folder, build, build, command)))
    local output = pipe:read "a"
    local _, _, code = pipe:close()
    return output, code
  end
  local blocks = blocks_of(text)
  for i, block in ipairs(blocks) do
    local function fault(what, ...)
      faults[#faults + 1] = ("line %d: %s"):format(block.line, what:format(...))
    end
    local behind = blocks[i + 1]
    local wanted = behind and behind.kind:find "^text" and not behind.why and behind or nil
    local output, code
    if block.why then
      if behind and behind.kind:find "^text" and not behind.why then
        fault "it is not run, but there is something that it prints"
      end
    elseif block.kind == "lua" then
      local name = block.text:match "^%-%- ([%w_]+%.lua)\n"
      support.write_file(folder .. "/" .. (name or "script.lua"), block.text)
      if name then
        files[name] = block.line
      else
        output, code = run "gpulua script.lua"
      end
    elseif block.kind == "sh" then
      for name in block.text:gmatch "[%w_]+%.lua" do
        files[name] = nil
      end
      output, code = run(block.text)
    elseif block.kind:find "^text" and not (blocks[i - 1] and blocks[i - 1].kind:find "^[ls]") then
      fault "nothing prints this"
    end
    if output then
      counts[block.kind] = (counts[block.kind] or 0) + 1
      if not wanted and (code ~= 0 or output ~= "") then
        fault("it ends with %d and prints:\n%s", code, output)
      elseif wanted and wanted.kind == "text" and wanted.text ~= output then
        fault("it prints:\n%s", output)
      elseif wanted and wanted.kind == "text figures" and differences(wanted.text, output) ~= "" then
        fault("%s", differences(wanted.text, output))
      end
    end
  end
  for name, line in pairs(files) do
    faults[#faults + 1] = ("line %d: nothing runs %s"):format(line, name)
  end
  if look then
    look(folder)
  end
  os.execute("rm -r " .. folder)
  return faults
end

-- How many of the bytes of two pictures differ by more than a shade, of all; 1 if their sizes do.
local function difference(one, other)
  local dev <close> = gpu.device "cpu"
  local a, b = image.load(dev, one), image.load(dev, other)
  if table.concat(a.shape, " ") ~= table.concat(b.shape, " ") then
    return 1
  end
  a, b = a:bytes(), b:bytes()
  local count = 0
  for i = 1, #a do
    count = count + (math.abs(a:byte(i) - b:byte(i)) > 16 and 1 or 0)
  end
  return count / #a
end

describe("the manual", function()
  if support.isolation() ~= "none" or support.is_gpu() or support.is_checked() then
    it("is tried on the CPU device", function() pending "once is enough" end)
    return
  end

  local tried = { ["docs/tutorial.md"] = { lua = 0, sh = 11 }, ["docs/editor.md"] = { lua = 1, sh = 0 },
    ["docs/examples.md"] = { lua = 0, sh = 18 } }
  local needs_luv = { ["docs/examples.md"] = true, ["docs/howto/event-loops.md"] = true }
  local shows_lines = { ["docs/examples.md"] = true, ["docs/tutorial.md"] = true,
    ["docs/howto/finding-a-race.md"] = true, ["docs/howto/surviving-a-fault.md"] = true }

  -- The pictures of the manual are those that examples draw. Rounding differs between processors, and galaxies are
  -- chaos.
  local drawn = {}
  local function compare_pictures(folder)
    for name in lfs.dir(folder) do
      local known = "docs/pictures/" .. name
      if name:find "%.png$" and lfs.attributes(known) then
        drawn[#drawn + 1] = name
        local share = difference(folder .. "/" .. name, known)
        assert.truthy(share <= 0.02, ("%s: %.3f differ"):format(name, share))
      end
    end
  end

  for _, path in ipairs(pages_of "docs") do
    if not elsewhere[path] then
      it("does what " .. path .. " says", function()
        local text, counts = assert(support.read_file(path)), { lua = 0, sh = 0 }
        if needs_luv[path] and not support.has_luv() then
          pending "no luv"
        elseif shows_lines[path] and not support.has_libdw() then
          pending "no libdw, which tells lines"
        end
        local faults = faults_of(text, counts, path == "docs/examples.md" and compare_pictures)
        assert.equal("", table.concat(faults, "\n"))
        if tried[path] then
          assert.are.same(tried[path], counts)
        end
      end)
    end
  end

  -- What README.md shows of commands: { command =, what it prints, line by line }. Those at the prompt are typed by
  -- spec/prompt_spec.lua.
  local function shown(text)
    local list, last, is_fenced = {}, nil, false
    for line in text:gmatch "([^\n]*)\n" do
      is_fenced = is_fenced ~= (line:find "^```" ~= nil)
      local command = line:match "^    %$ (.+)$"
      if not is_fenced and command then
        last = { command = command }
        list[#list + 1] = last
      elseif not is_fenced and last and line:find "^    " then
        last[#last + 1] = line:sub(5)
      else
        last = nil
      end
    end
    return list
  end

  -- Without times, numbers of processes, the processor's name, how much was done when a fault was told, and what chaos
  -- decides; in any order, for some of it comes from tasks.
  local function settled(lines)
    local list = {}
    for i, line in ipairs(lines) do
      list[i] = line:gsub("[%d.]+ us", "# us"):gsub("[%d.]+ s,", "# s,"):gsub("[%d.e+]+ pairs", "# pairs")
        :gsub("process %d+", "process #"):gsub(" of cpu %b()", " of cpu")
        :gsub("last %d+ of %d+", "last # of #"):gsub("^%d+ operations done", "# operations done")
        :gsub("^energy: .*$", "energy: #")
    end
    table.sort(list)
    return table.concat(list, "\n")
  end

  it("begins with a README.md whose commands print what stands below them", function()
    if not support.has_luv() then
      pending "no luv, which tells times"
    elseif not support.has_libdw() then
      pending "no libdw, which tells lines"
    end
    local folder, count = support.path "", 0
    assert(lfs.mkdir(folder))
    for _, name in ipairs { "examples", "build" } do
      assert(lfs.link(name == "build" and build or lfs.currentdir() .. "/" .. name, folder .. "/" .. name, true))
    end
    for _, block in ipairs(shown(assert(support.read_file "README.md"))) do
      if block.command ~= "build/gpulua" then
        count = count + 1
        local pipe = assert(io.popen(("cd %s && unset GPULUA_ISOLATE; export GPULUA_DEVICE=cpu; %s 2>&1")
          :format(folder, block.command)))
        local lines = {}
        for line in pipe:lines() do
          lines[#lines + 1] = line
        end
        pipe:close()
        if not (#block == 1 and block[1] == "...") then
          assert.equal(settled(block), settled(lines), block.command)
        end
      end
    end
    assert.equal(12, count)
    os.execute("rm -r " .. folder)
  end)

  it("has each example, and each picture that one draws", function()
    local text = assert(support.read_file "docs/examples.md")
    for name in lfs.dir "examples" do
      local example = name:match "^(%w+)%.lua$"
      if example and example ~= "canvas" then
        assert.truthy(text:find("[`" .. name .. "`](#" .. example .. ")", 1, true), name)
        assert.truthy(text:find("\n## " .. example .. "\n.-gpulua [^\n]-examples/" .. name), name)
      end
    end
    if not support.has_luv() or not support.has_libdw() then
      pending "the page of examples was not run"
    end
    table.sort(drawn)
    assert.equal("ecg.png edges.png galaxies.png heat.png noise.png penguins.png spectrogram.png",
      table.concat(drawn, " "))
  end)

  it("has no page whose blocks nobody runs", function()
    for path, where in pairs(elsewhere) do
      assert.truthy(assert(support.read_file(where[1])):find(where[2], 1, true), path)
    end
    -- What is indented is no block: drawings, and what README.md shows of commands.
    local list = {}
    for _, path in ipairs(pages_of "docs") do
      local is_fenced, before = false, ""
      for line in io.lines(path) do
        is_fenced = is_fenced ~= (line:find "^```" ~= nil)
        if not is_fenced and before == "" and line:find "^    %S" and not line:find " %-%-%->" then
          list[#list + 1] = path .. ": " .. line
        end
        before = line
      end
    end
    assert.equal("", table.concat(list, "\n"))
  end)

  -- Figures of the tables that docs/results.md does not have, and sources that are not there or not used.
  local function unfounded(text)
    local results, list, named = assert(support.read_file "docs/results.md"), {}, {}
    local body, sources = text:match "^(.-)\n## Sources\n(.*)$"
    for row in ((body or text) .. "\n"):gmatch "\n(| [^\n]*)" do
      for number in row:gsub("%[%d+%]", ""):gsub("cuLaunch%w+", ""):gmatch "%f[%w.,]%d[%d,.]*%f[^%d]" do
        if #number > 2 and not results:find("%f[%d]" .. number:gsub("%p", "%%%0") .. "%f[^%d]") then
          list[#list + 1] = number
        end
      end
    end
    for number in (body or ""):gmatch "%[(%d+)%]" do
      named[number] = true
      if not ("\n" .. sources):find("\n" .. number .. ". [^\n]*<https://") then
        list[#list + 1] = "no source " .. number
      end
    end
    for number in ("\n" .. (sources or "")):gmatch "\n(%d+)%. " do
      list[#list + 1] = not named[number] and "nobody cites " .. number or nil
    end
    return table.concat(list, "\n")
  end

  it("has measured figures, and sources, where it compares", function()
    for _, path in ipairs { "docs/comparison.md", "docs/design.md" } do
      assert.equal("", unfounded(assert(support.read_file(path))), path)
    end
    assert.equal("1,234,567\n77.7\nno source 2\nnobody cites 3",
      unfounded "x\n| a [1] | 1,234,567 |\n| b [2] | 77.7 us, 8.4 |\n## Sources\n1. <https://a>\n3. <https://b>\n")
  end)

  it("twin: what is wrong in a page is found", function()
    local function finds(text, ...)
      local faults = table.concat(faults_of(text, {}), "\n")
      for _, part in ipairs { ... } do
        assert.truthy(faults:find(part, 1, true), faults)
      end
      assert.equal(select("#", ...) == 0, faults == "", faults)
    end
    finds '```lua\nprint(1)\n```\n```text\n1\n```'
    finds('```lua\nprint(1)\n```\n```text\n2\n```', "line 1: it prints:\n1")
    finds('text\n\n```lua\nprint(1)\n```', "line 3: it ends with 0 and prints:\n1")
    finds('```lua\nerror "mishap"\n```', "it ends with 1 and prints:", "mishap")
    finds('```lua\n-- a.lua\nprint(1)\n```', "nothing runs a.lua")
    finds '```lua\n-- a.lua\nprint(1)\n```\n```sh\ngpulua a.lua\n```\n```text\n1\n```'
    finds('```sh\nfalse\n```', "it ends with 1")
    finds('```text\n1\n```', "nothing prints this")
    finds '<!-- not run: it would not end -->\n```sh\nsleep 1000\n```'
    finds('<!-- not run: why -->\n```sh\nsleep 1000\n```\n```text\n1\n```', "it is not run, but")
    finds '```sh\necho "  1.5 ms x"; echo "2 KiB"\n```\n```text figures\n13 B\n  9 ns x\n```'
    finds '```sh\necho "  1.5 ms x"\n```\n```text figures\n13 B\n  9 ns x\n```'
    finds('```sh\necho "  1.5 ms x"\n```\n```text figures\n  9 ns y\n```', "it prints: # x")
    finds('```sh\necho "  1.5 ms x"\n```\n```text figures\n  9 ns x\nhead\n```', "it does not print: head")
    finds('```sh\necho 1\n```\n```text figures\n2\n1 a\n1 b\n1 c\n```', "it does not print: # c")
  end)
end)
