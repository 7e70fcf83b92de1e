-- Makes the manual's site of README.md and docs/: lua5.4 tools/site.lua FOLDER VERSION
--
-- Markdown is cmark-gfm's work: the reference implementation of what GitHub shows, so that pages look alike in both
-- places. Here: the frame of a page, anchors, links between pages, colours of code. Pages lie in FOLDER as their
-- sources in the tree, so links to pictures stay as they are. What pages link to in the tree (a script, a header, a
-- folder) gets a page that shows it. Nothing is loaded from elsewhere, and each page works without a server.

package.path = "./?.lua;" .. package.path
local highlight = require "tools.highlight"

local out <const>, version <const> = arg[1], arg[2]
if not out or not version then
  io.stderr:write "usage: lua5.4 tools/site.lua FOLDER VERSION\n"
  os.exit(2)
end

local groups <const> = {
  { "Begin", "README.md", "docs/tutorial.md", "docs/examples.md" },
  { "How to", "docs/howto/from-cuda.md", "docs/howto/first-kernel.md", "docs/howto/streams-and-tasks.md",
    "docs/howto/event-loops.md", "docs/howto/graphs.md", "docs/testing.md", "docs/howto/finding-a-race.md",
    "docs/howto/surviving-a-fault.md", "docs/howto/profiling.md", "docs/embedding.md", "docs/editor.md" },
  { "Look up", "docs/reference.md", "docs/errors.md", "docs/limits.md", "docs/accuracy.md" },
  { "Behind it", "docs/design.md", "docs/comparison.md", "docs/results.md", "docs/architecture.md",
    "docs/coverage.md" },
}

local function fail(message, ...)
  io.stderr:write("site: ", message:format(...), "\n")
  os.exit(1)
end

local function quoted(path) return "'" .. path:gsub("'", "'\\''") .. "'" end

local function output_of(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read "a"
  return pipe:close() and text
end

local function read(path)
  local file <close> = io.open(path, "rb")
  return file and file:read "a"
end

local function write(path, text)
  path = out .. "/" .. path
  assert(os.execute("mkdir -p " .. quoted(path:match "^(.*)/")))
  local file <close> = assert(io.open(path, "wb"))
  assert(file:write(text))
end

-- ---- paths ----

-- "docs/howto", "../a.md" -> "docs/a.md". Nil where it leads out of the tree.
local function resolve(folder, link)
  local parts = {}
  for part in (folder .. "/" .. link):gmatch "[^/]+" do
    if part == ".." then
      if #parts == 0 then
        return nil
      end
      parts[#parts] = nil
    elseif part ~= "." then
      parts[#parts + 1] = part
    end
  end
  return table.concat(parts, "/")
end

local function folder_of(path) return path:match "^(.*)/[^/]*$" or "" end

-- From a page to a file of the site, both from its root.
local function relative(from, to)
  return ("../"):rep(select(2, from:gsub("/", ""))) .. to
end

-- What shows a path of the tree, and how: "page" (Markdown), "picture", "folder" or "source".
local kinds = {}
local function shown(path)
  if not kinds[path] then
    kinds[path] = path:find "%.md$" and read(path) and "page" or path:find "%.png$" and read(path) and "picture"
      or output_of("test -d " .. quoted(path)) and "folder" or read(path) and "source"
      or fail("there is no %s", path)
  end
  local kind = kinds[path]
  return path == "README.md" and "index.html" or kind == "page" and path:gsub("%.md$", ".html")
    or kind == "picture" and path or kind == "folder" and path .. "/index.html" or path .. ".html", kind
end

-- ---- text ----

local entities <const> = { ["&lt;"] = "<", ["&gt;"] = ">", ["&quot;"] = '"', ["&amp;"] = "&" }
local escapes <const> = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }
local function escape(text) return (text:gsub('[&<>"]', escapes)) end
local function plain(html) return (html:gsub("<[^>]*>", ""):gsub("&%a+;", entities)) end

-- As GitHub makes anchors of headings.
local function slug(text)
  return (text:lower():gsub("[^%w%s_\x80-\xff-]", ""):gsub("%s", "-"))
end

-- ---- pages ----

local style <const> = read "tools/site/site.css" or fail "there is no tools/site/site.css"
local script <const> = read "tools/site/search.js" or fail "there is no tools/site/search.js"

local order, queue, queued = {}, {}, {} -- pages in the order of the sidebar; what has to be written
local function enqueue(path)
  if not queued[path] then
    queued[path] = true
    queue[#queue + 1] = path
  end
end

-- The body of a page, its title and its headings: { level =, id =, html = }.
local function convert(path)
  local command = "cmark-gfm --unsafe -e table -e strikethrough -e autolink --to html " .. quoted(path)
  local html = output_of(command) or fail("cmark-gfm failed on %s", path)
  local place, folder, used, headings = shown(path), folder_of(path), {}, {}
  for id in html:gmatch '<a id="([^"]*)"' do
    used[id] = true
  end
  -- An anchor of its own in front of a heading becomes the heading's.
  html = html:gsub('<p><a id="([^"]*)"></a></p>\n<h(%d)>', '<h%2 id="%1">')
  html = html:gsub("<h(%d)([^>]*)>(.-)</h%d>", function(level, own, content)
    local id = own:match 'id="([^"]*)"'
    if not id then
      local base, count = slug(plain(content)), 0
      id = base
      while used[id] do
        count = count + 1
        id = base .. "-" .. count
      end
      used[id] = true
    end
    headings[#headings + 1] = { level = tonumber(level), id = id, html = content }
    return ('<h%s id="%s">%s<a class="anchor" href="#%s" aria-label="link to this place">#</a></h%s>'):format(level, id,
      content, id, level)
  end)
  local function target_of(link)
    if link:find "^%a[%w+.-]*:" or link:find "^#" then
      return link
    end
    local file, anchor = link:match "^([^#]*)(.*)$"
    local target = resolve(folder, file) or fail("%s: %s leads out of the tree", path, link)
    enqueue(target)
    return relative(place, (shown(target))) .. anchor
  end
  html = html:gsub('(<a href=")([^"]*)"', function(tag, link) return tag .. target_of(link) .. '"' end)
  -- A page that is named by its file gets its title there.
  html = html:gsub('(<a href="[^"]*">)([%w/._-]+%.md)(</a>)', function(tag, name, ending)
    local title = ("\n" .. (read(resolve(folder, name) or "") or "")):match "\n# ([^\n]+)"
    return title and tag .. escape(title) .. ending
  end)
  html = html:gsub('(<img src=")([^"]*)"', function(tag, link) return tag .. target_of(link) .. '"' end)
  -- Pages that are named and not linked.
  html = html:gsub("([^>])<code>(docs/[%w/-]+%.md)</code>", function(before, name)
    if read(name) then
      enqueue(name)
      return ('%s<a href="%s"><code>%s</code></a>'):format(before, relative(place, (shown(name))), name)
    end
  end)
  html = html:gsub('<pre><code class="language%-([^"]*)">(.-)</code></pre>', function(info, code)
    local language = info:match "^%a+"
    return ('<pre class="%s"><code>%s</code></pre>'):format(language, highlight(language, code:gsub("&%a+;", entities)))
  end)
  html = html:gsub("<table>", '<div class="table"><table>'):gsub("</table>", "</table></div>")
  local title = headings[1] and plain(headings[1].html) or path
  return html, title, headings
end

local function sidebar(pages, current, headings, place)
  local parts = {}
  for _, group in ipairs(groups) do
    parts[#parts + 1] = ("<h2>%s</h2>\n<ul>"):format(group[1])
    for i = 2, #group do
      local page = pages[group[i]]
      local is_here = group[i] == current
      parts[#parts + 1] = ('<li><a href="%s"%s>%s</a>'):format(relative(place, page.place),
        is_here and ' aria-current="page"' or "", page.short)
      if is_here then
        parts[#parts + 1] = "<ul>"
        for _, heading in ipairs(headings) do
          if heading.level == 2 then
            parts[#parts + 1] = ('<li><a href="#%s">%s</a></li>'):format(heading.id, escape(plain(heading.html)))
          end
        end
        parts[#parts + 1] = "</ul>"
      end
      parts[#parts + 1] = "</li>"
    end
    parts[#parts + 1] = "</ul>"
  end
  return table.concat(parts, "\n")
end

local function step(pages, place, path, word)
  return path and ('<a class="%s" href="%s">%s</a>'):format(word, relative(place, pages[path].place), pages[path].short)
    or ""
end

local function frame(pages, path, page)
  local place, title = page.place, escape(page.title)
  local at
  for i, other in ipairs(order) do
    at = other == path and i or at
  end
  return ([[
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%s</title>
<link rel="stylesheet" href="%s">
</head>
<body data-root="%s">
<a class="skip" href="#content">To the text</a>
<nav>
<p class="name"><a href="%s">gpulua</a> <span>%s</span></p>
<input type="search" placeholder="Search headings ( / )" aria-label="Search headings" autocomplete="off">
<ol class="found" hidden></ol>
<details open><summary>Pages</summary>
%s
</details>
</nav>
<main id="content">
%s
<footer>%s%s</footer>
</main>
<script src="%s"></script>
</body>
</html>
]]):format(title == "gpulua" and title or title .. " · gpulua", relative(place, "site.css"), relative(place, ""),
    relative(place, "index.html"), version, sidebar(pages, path, page.headings, place), page.html,
    at and step(pages, place, order[at - 1], "before") or "", at and step(pages, place, order[at + 1], "next") or "",
    relative(place, "search.js"))
end

-- ---- all of it ----

if not output_of "command -v cmark-gfm" then
  fail "cmark-gfm is not installed (Debian: cmark-gfm; make deps)"
end
local listed = {}
for _, group in ipairs(groups) do
  for i = 2, #group do
    order[#order + 1] = group[i]
    listed[group[i]] = true
    enqueue(group[i])
  end
end
for path in output_of "find docs -name '*.md'":gmatch "[^\n]+" do
  if not listed[path] then
    fail("%s has no place in the sidebar: tools/site.lua lists the pages", path)
  end
end
os.execute("rm -rf " .. quoted(out))

local pages, at = {}, 1
while queue[at] do -- converting a page may find more
  local path = queue[at]
  local place, kind = shown(path)
  if kind == "page" then
    local html, title, headings = convert(path)
    pages[path] = { place = place, html = html, title = title, short = escape(title), headings = headings }
  elseif kind == "picture" then
    write(place, read(path))
  elseif kind == "folder" then
    local files = {}
    for name in output_of(("cd %s && git ls-files 2> /dev/null || find . -type f | sed 's|^./||'"):format(quoted(path)))
        :gmatch "[^\n]+" do
      local file = path .. "/" .. name
      enqueue(file)
      files[#files + 1] = ('<li><a href="%s"><code>%s</code></a></li>'):format(relative(place, (shown(file))), name)
    end
    table.sort(files)
    pages[path] = { place = place, title = path, headings = {},
      html = ("<h1><code>%s/</code></h1>\n<ul>\n%s\n</ul>"):format(path, table.concat(files, "\n")) }
  else
    local language = path:match "%.(%a+)$" or path:match "^Makefile" or "text"
    language = ({ h = "c", cpp = "c", cu = "c", rockspec = "lua" })[language] or language
    pages[path] = { place = place, title = path, headings = {},
      html = ('<h1><code>%s</code></h1>\n<pre class="%s"><code>%s</code></pre>'):format(path, language,
        highlight(language, read(path))) }
  end
  at = at + 1
end
pages["README.md"].short = "Overview"

local index = {}
local function js(text) return '"' .. text:gsub('[\\"]', "\\%0"):gsub("<", "\\x3c") .. '"' end
for _, path in ipairs(order) do
  local page = pages[path]
  for _, heading in ipairs(page.headings) do
    index[#index + 1] = ("[%s,%s,%s]"):format(js(plain(heading.html)), js(page.title),
      js(page.place .. "#" .. heading.id))
  end
end
for path, page in pairs(pages) do
  write(page.place, frame(pages, path, page))
end
write("site.css", style)
write("search.js", "const headings = [\n" .. table.concat(index, ",\n") .. "\n];\n" .. script)
print(("%s/index.html: %d pages, %d headings"):format(out, #queue, #index))
