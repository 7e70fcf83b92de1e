-- The manual's site: whole, and by itself.

local lfs = require "lfs"
local support = require "spec.support"

local lua <const> = os.getenv "GPULUA_LUA" or "lua5.4"

describe("the site", function()
  if support.isolation() ~= "none" or support.is_gpu() or support.is_checked() then
    it("is made", function() pending "once is enough" end)
    return
  elseif not os.execute "command -v cmark-gfm > /dev/null" then
    it("is made", function() pending "cmark-gfm is not installed" end)
    return
  end

  local folder, site, said
  local files = {} -- of the site: path -> text

  local function make(tree, out)
    local pipe = assert(io.popen(("cd %s && %s tools/site.lua %s 1.2.3 2>&1"):format(tree, lua, out)))
    local output = pipe:read "a"
    return output, pipe:close()
  end

  -- Calls f(path, text) for each page.
  local function each_page(f)
    local count = 0
    for path, text in pairs(files) do
      if path:find "%.html$" then
        count = count + 1
        f(path, text)
      end
    end
    return count
  end

  local ids = {} -- of each page: id -> how often

  local function note_ids(path, text)
    ids[path] = {}
    for id in text:gmatch ' id="([^"]*)"' do -- quotes in texts are entities
      ids[path][id] = (ids[path][id] or 0) + 1
    end
  end

  setup(function()
    folder = support.path ""
    assert(lfs.mkdir(folder))
    site = folder .. "/site"
    said = make(".", site)
    local pipe = assert(io.popen(("cd %s && find . -type f"):format(site)))
    for path in pipe:lines() do
      files[path:sub(3)] = support.read_file(site .. "/" .. path)
    end
    pipe:close()
    each_page(note_ids)
  end)
  teardown(function()
    os.execute("rm -r " .. folder)
    files, ids = nil, nil -- busted keeps this function, and with it a hundred megabytes
  end)

  -- "docs/a.html", "../b.html" -> "b.html"
  local function resolve(from, link)
    local parts = {}
    for part in ((from:match "^(.*)/" or "") .. "/" .. link):gmatch "[^/]+" do
      if part == ".." then
        assert(table.remove(parts), link .. " leads out of the site")
      else
        parts[#parts + 1] = part
      end
    end
    return table.concat(parts, "/")
  end

  -- Links and pictures of a page that lead nowhere, and ids that are there twice; and how many links there are.
  local function broken(path, text)
    local list, count = {}, 0
    for id, times in pairs(ids[path]) do
      list[#list + 1] = times > 1 and ("%s: %d %s"):format(path, times, id) or nil
    end
    for link in text:gmatch ' [hs]r[ec]f?="([^"]*)"' do
      if not link:find "^https?:" then
        count = count + 1
        local file, anchor = link:match "^([^#]*)#?(.*)$"
        local target = file == "" and path or resolve(path, file)
        if not files[target] or anchor ~= "" and not (ids[target] or {})[anchor] then
          list[#list + 1] = ("%s: %s"):format(path, link)
        end
      end
    end
    return table.concat(list, "\n"), count
  end

  it("has every page of the manual, and each of them all others in its sidebar", function()
    assert.truthy(said:find("/index.html: %d+ pages, %d+ headings\n$"), said)
    local places = { "index.html" }
    local pipe = assert(io.popen "find docs -name '*.md'")
    for path in pipe:lines() do
      places[#places + 1] = path:gsub("%.md$", ".html")
    end
    pipe:close()
    assert.truthy(#places >= 18, #places)
    local count = each_page(function(path, text)
      local linked = {}
      for link in text:match "<nav>(.-)</nav>":gmatch 'href="([^"#]+)"' do
        linked[resolve(path, link)] = true
      end
      for _, place in ipairs(places) do
        assert.truthy(files[place], place)
        assert.truthy(linked[place], path .. ": " .. place)
      end
    end)
    assert.truthy(count > #places) -- what is linked to in the tree has pages, too
    assert.truthy(files["src/gpulua.h.html"] and files["examples/project/index.html"])
  end)

  it("has links that lead somewhere, each to an anchor that is there", function()
    local sum = 0
    each_page(function(path, text)
      local list, count = broken(path, text)
      assert.equal("", list)
      sum = sum + count
    end)
    assert.truthy(sum > 3000, sum)
  end)

  it("twin: a link that leads nowhere is found", function()
    local path = "docs/tutorial.html"
    local text = files[path]
    for _, link in ipairs { "errors.html#Nothing", "nothing.html", "#nothing" } do
      assert.equal(path .. ": " .. link, (broken(path, ('<a href="%s">'):format(link) .. text)))
    end
    note_ids(path, text .. '<a id="install">')
    assert.equal(path .. ": 2 install", (broken(path, text)))
    note_ids(path, text)
  end)

  it("loads nothing from a network", function()
    each_page(function(path, text)
      for tag, attributes in text:gmatch "<(%a+)( [^>]*)>" do
        local from = tag ~= "a" and attributes:match ' [hs]r[ec]f?="([^"]*)"'
        assert.falsy(from and (from:find "^%a+:" or from:find "^//"), path .. ": " .. tag .. attributes)
        assert.falsy(attributes:find " on%a+=", path .. ": " .. tag .. attributes)
      end
      assert.falsy(text:find "<iframe", path)
    end)
    assert.falsy(files["site.css"]:find "url%(" or files["site.css"]:find "@import")
    assert.falsy(files["search.js"]:find "fetch%(" or files["search.js"]:find "XMLHttpRequest")
    assert.falsy(files["search.js"]:find "import%s*[%(\"]")
  end)

  it("shows code as it is, in colours", function()
    local entities = { lt = "<", gt = ">", quot = '"', amp = "&" }
    local shown = {}
    for code in files["docs/tutorial.html"]:gmatch '<pre class="lua"><code>(.-)</code>' do
      shown[#shown + 1] = code:gsub("<[^>]*>", ""):gsub("&(%a+);", entities)
    end
    local at = 0
    for block in support.read_file "docs/tutorial.md":gmatch "```lua\n(.-)```" do
      at = at + 1
      assert.equal(block, shown[at])
    end
    assert.truthy(at == #shown and at >= 8, at)
    local header = files["src/gpulua.h.html"]:match '<pre class="c"><code>(.-)</code></pre>'
    assert.equal(support.read_file "src/gpulua.h", (header:gsub("<[^>]*>", ""):gsub("&(%a+);", entities)))
    assert.truthy(header:find('<span class="k">typedef</span>', 1, true))
  end)

  it("is not made of a manual with a page too many, or with a link that leads nowhere", function()
    local tree = folder .. "/tree"
    assert(os.execute(("mkdir %s && ln -s $PWD/* %s && rm %s/docs && cp -r docs %s"):format(tree, tree, tree, tree)))
    local output, ok = make(tree, folder .. "/other")
    assert.truthy(ok, output)
    support.write_file(tree .. "/docs/more.md", "# More\n")
    output, ok = make(tree, folder .. "/other")
    assert.falsy(ok)
    assert.equal("site: docs/more.md has no place in the sidebar: tools/site.lua lists the pages\n", output)
    os.remove(tree .. "/docs/more.md")
    support.write_file(tree .. "/docs/limits.md", "# Limits\n\n[here](nothing.md)\n")
    output, ok = make(tree, folder .. "/other")
    assert.falsy(ok)
    assert.equal("site: there is no docs/nothing.md\n", output)
  end)

  describe("in a browser", function()
    it("has no errors, and finds headings", function()
      local dom, errors = support.browse(pending, folder, site .. "/docs/tutorial.html?find=gemm")
      local found = dom:match '<ol class="found">(.-)</ol>'
      assert.truthy(found, errors)
      assert.truthy(found:find('<a href="../docs/reference.html#blas-gemm">blas:gemm', 1, true), found)
    end)
  end)
end)
