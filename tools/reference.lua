-- Makes docs/reference.md, docs/errors.md and types/luacheck.lua of the definition files:
-- lua5.4 tools/reference.lua [--check]
-- With --check nothing is written; the exit status is 1 if a file is not what would be.

package.path = "./?.lua;" .. package.path
local definitions = require "tools.definitions"

local model = definitions.read()
if #model.findings > 0 then
  io.stderr:write(table.concat(model.findings, "\n"), "\n")
  os.exit(1)
end

local pages = { { name = "reference.md", lines = {}, anchors = {} }, { name = "errors.md", lines = {}, anchors = {} } }
local page = pages[1] -- that is written
local lines = page.lines
local function turn_to(number)
  page = pages[number]
  lines = page.lines
end
local function add(text, ...)
  lines[#lines + 1] = select("#", ...) > 0 and text:format(...) or text or ""
end

-- ---- names, links, types ----

local variables <const> = { gpulua = "gpu" } -- what examples call it

local function short(name) return (name:gsub("^gpulua%.", "")) end

local function call_name(own)
  local variable, rest = own.call:match "^([%w_]+)(.*)$"
  local shown = own.class.name == "gpulua.control" and "gpu.graph" or own.class.name == "gpulua.trace" and "gpu.trace"
    or variables[variable] or variable
  return shown .. rest
end

local function anchor_of(name) return (name:gsub("[^%w]+", "-")) end

local places = {} -- what stands in backquotes -> page, anchor
local function link_to(name, own_anchor)
  local place = places[name]
  if place and place.anchor ~= own_anchor then
    return (place.page == page and "#" or place.page.name .. "#") .. place.anchor
  end
end
for _, chapter in ipairs(model.chapters) do
  for _, item in ipairs(chapter.items) do
    local name = item.own and not item.own.is_private and call_name(item.own)
      or item.class and short(item.class.name) or item.alias and short(item.alias.name)
    if name then
      places[name] = { page = pages[1], anchor = (item.own and "" or "type-") .. anchor_of(name) }
    end
  end
end
for _, row in ipairs(model.errors) do
  places[row.code] = { page = pages[2], anchor = row.code }
end

-- Text with links to what it names. Not to where it stands.
local function linked(text, own_anchor)
  text = text:gsub("`([^`\n]+)`", function(name)
    local link = link_to(name, own_anchor)
    return link and ("[`%s`](%s)"):format(name, link)
  end)
  for _, group in ipairs(definitions.groups) do
    local heading = group:gsub("^those of", "errors of"):gsub(" ", "-")
    text = text:gsub(group:gsub(" ", "%%s+"), function(said)
      return ("[%s](%s#%s)"):format(said, page == pages[1] and "" or pages[1].name, heading)
    end)
  end
  return text
end

-- A type: names of ours are links, the rest is code.
local function type_text(text)
  local parts, at = {}, 1
  local function code(piece)
    if piece ~= "" then
      parts[#parts + 1] = "`" .. piece .. "`"
    end
  end
  for first, name, behind in text:gmatch "()gpulua%.([%w_.]+)()" do
    code(text:sub(at, first - 1))
    parts[#parts + 1] = ("[`%s`](%s)"):format(name, link_to(name) or error("no link to " .. name))
    at = behind
  end
  code(text:sub(at))
  return table.concat(parts)
end

-- ---- paragraphs ----

local function add_anchor(name)
  if page.anchors[name] then
    error("two anchors " .. name)
  end
  page.anchors[name] = true
  add('<a id="%s"></a>', name)
end

local function add_paragraphs(list, own_anchor)
  for _, paragraph in ipairs(list) do
    if paragraph.code then
      add(paragraph.is_lua and "```lua" or "```")
      add((paragraph.code:gsub("%%", "%%%%")):gsub("%%%%", "%%"))
      add "```"
    else
      lines[#lines + 1] = linked(paragraph.text, own_anchor)
    end
    add()
  end
end

local function add_item(name, kind, is_optional, text)
  lines[#lines + 1] = ("- %s%s%s%s"):format(name and "`" .. name .. "` " or "", kind,
    is_optional and ", optional" or "", text ~= "" and ": " .. linked(text) or "")
end

local function signature_of(own)
  local parts, open = {}, 0
  for i, param in ipairs(own.params) do
    local name = i == 1 and param.name or ", " .. param.name
    if param.is_optional then
      name = (i == 1 and "[" or " [") .. name
      open = open + 1
    end
    parts[i] = name
  end
  return ("%s(%s%s)"):format(call_name(own), table.concat(parts), ("]"):rep(open))
end

-- "f(x [, y])", and what comes of it.
local function overload_text(own, overload)
  local list, result = overload:match "^fun(%b()):?%s*(.*)$"
  local params = {}
  for name, optional in list:gmatch "[(,]%s*([%w_.]+)(%??)%f[:,)]" do
    if name ~= "self" then
      params[#params + 1] = { name = name, is_optional = optional == "?" }
    end
  end
  local call = signature_of { call = own.call, class = own.class, params = params }
  local field = list:match "{ ([%w_]+):" -- that has to be there
  return ("`%s`%s%s"):format(call, field and (" with `%s`"):format(field) or "",
    result ~= "" and " gives " .. type_text(result) or "")
end

local function add_function(own)
  local anchor = anchor_of(call_name(own))
  add_anchor(anchor)
  lines[#lines + 1] = ("#### %s"):format(signature_of(own):gsub("[%[%]_]", "\\%0"))
  add()
  add_paragraphs(own.text, anchor)
  if #own.params > 0 then
    add "Arguments"
    add()
    for _, param in ipairs(own.params) do
      add_item(param.name, type_text(param.type), param.is_optional, param.text)
    end
    add()
  end
  if #own.returns > 0 then
    add "Returns"
    add()
    for _, result in ipairs(own.returns) do
      add_item(result.name, type_text(result.type), false, result.text)
    end
    add()
  end
  if #own.overloads > 0 then
    add "Also"
    add()
    for _, overload in ipairs(own.overloads) do
      lines[#lines + 1] = "- " .. overload_text(own, overload)
    end
    add()
  end
  lines[#lines + 1] = "*Waits*: " .. linked(own.waits)
  add()
  lines[#lines + 1] = "*Errors*: " .. linked(own.errors, anchor)
  add()
end

local function add_class(class)
  local name = short(class.name)
  add_anchor("type-" .. anchor_of(name))
  lines[#lines + 1] = ("### Type %s"):format(name:gsub("_", "\\_"))
  add()
  add_paragraphs(class.text, "type-" .. anchor_of(name))
  for _, overload in ipairs(class.overloads) do
    lines[#lines + 1] = "Called: " .. type_text(overload)
    add()
  end
  if class.operators.len then
    add "`#` gives the number of elements."
    add()
  end
  for _, parent in ipairs(class.parents) do
    lines[#lines + 1] = ("All fields of %s, and"):format(type_text(parent))
    add()
  end
  for _, field in ipairs(class.fields) do
    add_item(field.name or ("[%s]"):format(field.key:gsub("gpulua%.", "")), type_text(field.type), field.is_optional,
      field.text)
  end
  if #class.fields > 0 then
    add()
  end
end

-- The command's name stays as it is typed.
local function capital(text) return text:find "^gpulua " and text or (text:gsub("^%l", string.upper)) end

local raisers_max <const> = 40 -- more are counted, not named

-- The other page: the codes with cause, remedy, and who raises them.
local function add_codes(alias)
  local raised, grouped = {}, {}
  for _, chapter in ipairs(model.chapters) do
    for _, item in ipairs(chapter.items) do
      for _, code in ipairs(item.own and item.own.codes or {}) do
        raised[code] = raised[code] or {}
        local list, name = raised[code], call_name(item.own)
        if list[#list] ~= name then
          list[#list + 1] = name
        end
      end
    end
  end
  local of_groups = definitions.codes_of_groups(model)
  for _, group in ipairs(definitions.groups) do
    for _, code in ipairs(of_groups[group]) do
      grouped[code] = grouped[code] or {}
      table.insert(grouped[code], group)
    end
  end
  turn_to(2)
  add "<!-- Made by `make docs` from types/library and src/gpulua.h: change it there. -->"
  add "# Error codes"
  add()
  add "Every error object has one of these in `code`; what else it has says"
  add "[the reference](reference.md#chapter-Errors). For each: its cause, its remedy, which an error object has in"
  add "`hint`, and what raises it."
  add()
  for _, entry in ipairs(alias.entries) do
    local code = entry.value:sub(2, -2)
    lines[#lines + 1] = ("- [%s](#%s): %s"):format(code, code, model.errors[code].meaning)
  end
  add()
  for _, entry in ipairs(alias.entries) do
    local row = model.errors[entry.value:sub(2, -2)]
    add_anchor(row.code)
    lines[#lines + 1] = "## " .. row.code
    add()
    lines[#lines + 1] = ("*Cause*: %s. %s"):format(capital(row.meaning), linked(entry.text, row.code))
    add()
    lines[#lines + 1] = ("*Remedy*: %s."):format(capital(row.hint:gsub("%.$", "")))
    add()
    local by = {}
    for _, group in ipairs(grouped[row.code] or {}) do
      by[#by + 1] = linked(group)
    end
    local count = #(raised[row.code] or {})
    if count > raisers_max then
      by[#by + 1] = ("%d functions, each of which says so in [the reference](%s)"):format(count, pages[1].name)
    else
      for _, name in ipairs(raised[row.code] or {}) do
        by[#by + 1] = linked("`" .. name .. "`")
      end
    end
    lines[#lines + 1] = "*Raised by*: " .. (#by > 0 and table.concat(by, ", ") or "no function by itself") .. "."
    add()
  end
  turn_to(1)
end

local function add_alias(alias)
  local name = short(alias.name)
  add_anchor("type-" .. anchor_of(name))
  lines[#lines + 1] = ("### Type %s"):format(name:gsub("_", "\\_"))
  add()
  add_paragraphs(alias.text, "type-" .. anchor_of(name))
  if name == "error_code" then
    add "Each with its cause and its remedy: [errors.md](errors.md)."
    add()
    add_codes(alias)
  end
  if alias.type then
    lines[#lines + 1] = type_text(alias.type)
    add()
  end
  local plain = {}
  for _, entry in ipairs(alias.entries) do
    if entry.text == "" then
      plain[#plain + 1] = "`" .. entry.value .. "`"
    else
      add_item(nil, "`" .. entry.value .. "`", false, entry.text)
    end
  end
  if #plain > 0 then
    lines[#lines + 1] = (#plain < #alias.entries and "- " or "") .. table.concat(plain, ", ")
  end
  if #alias.entries > 0 then
    add()
  end
end

-- ---- the page ----

local function title_of(chapter) return chapter.head:match "^# ([^\n]+)" end

add "<!-- Made by `make docs` from types/library: change it there. -->"
add "# Reference"
add()
add "Everything public of gpulua, by chapter. Editors show the same text: [editor.md](editor.md). Error codes with"
add "cause and remedy are in [errors.md](errors.md), limits in [limits.md](limits.md). Kernels are written in CUDA C;"
add "the C API is in `src/gpulua.h`."
add()
for _, chapter in ipairs(model.chapters) do
  local names = {}
  for _, item in ipairs(chapter.items) do
    local own = item.own
    if own and not own.is_private then
      names[#names + 1] = ("[`%s`](#%s)"):format(call_name(own), anchor_of(call_name(own)))
    end
  end
  lines[#lines + 1] = ("- [%s](#chapter-%s)%s"):format(title_of(chapter), anchor_of(title_of(chapter)),
    #names > 0 and ": " .. table.concat(names, " ") or "")
end
add()

for _, chapter in ipairs(model.chapters) do
  add_anchor("chapter-" .. anchor_of(title_of(chapter)))
  local is_code = false
  for line in (chapter.head .. "\n"):gmatch "([^\n]*)\n" do
    is_code = is_code ~= (line:find "^```" ~= nil)
    lines[#lines + 1] = is_code and line or (line:gsub("^#", "##"))
  end
  add()
  for i = #lines, 1, -1 do -- the chapter's text, from its anchor on
    if lines[i]:find "^<a id" then
      break
    elseif not lines[i]:find "^[#`]" then
      lines[i] = lines[i]
    end
  end
  for _, item in ipairs(chapter.items) do
    if item.class and item.class.name == chapter.module then -- the module itself
      for _, field in ipairs(item.class.fields) do
        add_item((variables[item.class.variable] or item.class.variable) .. "." .. field.name, type_text(field.type),
          field.is_optional, field.text)
      end
      add()
    elseif item.class then
      add_class(item.class)
    elseif item.alias then
      add_alias(item.alias)
    elseif not item.own.is_private then
      add_function(item.own)
    end
  end
end

-- ---- links, files ----

-- Two backquotes at once would begin another kind of code.
local function check_quotes(name, text)
  local is_code = false
  for line in text:gmatch "[^\n]+" do
    if line:find "^```" then
      is_code = not is_code
    elseif not is_code and line:find("``", 1, true) then
      error(("%s: backquotes: %s"):format(name, line))
    end
  end
end

local function page_named(name)
  for _, other in ipairs(pages) do
    if other.name == name then
      return other
    end
  end
end

for _, each in ipairs(pages) do
  each.text = table.concat(each.lines, "\n"):gsub("\n\n\n+", "\n\n"):gsub("\n*$", "\n")
  for _, heading in ipairs(each.lines) do -- as sites make them of headings
    local text = heading:match "^#+ (.*)$"
    if text then
      each.anchors[text:lower():gsub("[^%w%- _]", ""):gsub(" ", "-")] = true
    end
  end
end
for _, each in ipairs(pages) do
  check_quotes(each.name, each.text)
  for name, target in each.text:gmatch "%]%(([%w_]*%.?m?d?)#([^)]+)%)" do
    local to = name == "" and each or page_named(name)
    if not to or not to.anchors[target] then
      error(("%s: there is no %s#%s"):format(each.name, name, target))
    end
  end
end

-- What luacheck is to know of a class: functions, and fields with whatever is in them.
local function luacheck_fields(class, indent)
  local made = {}
  for _, own in ipairs(class.functions) do
    made[#made + 1] = not own.is_private and ("%s%s = {},\n"):format(indent, own.name) or nil
  end
  for _, field in ipairs(class.fields) do
    local of = model.classes[field.type]
    made[#made + 1] = of and ("%s%s = { fields = {\n%s%s} },\n"):format(indent, field.name,
      luacheck_fields(of, indent .. "  "), indent) or ("%s%s = { other_fields = true },\n"):format(indent, field.name)
  end
  return table.concat(made)
end

local luacheck <const> = ([[
-- Made by `make docs` from types/library: change it there.
-- What luacheck is to know of gpulua where a script has it as a global: gpulua -l gpulua, or -l gpu=gpulua.

local module = {
  fields = {
%s  },
}

return { read_globals = { gpulua = module, gpu = module } }
]]):format(luacheck_fields(model.classes.gpulua, "    "))

local is_check, is_same = arg[1] == "--check", true
for path, text in pairs { ["docs/reference.md"] = pages[1].text, ["docs/errors.md"] = pages[2].text,
  ["types/luacheck.lua"] = luacheck } do
  local file = io.open(path)
  local before = file and file:read "a"
  if file then
    file:close()
  end
  if before ~= text then
    if is_check then
      is_same = false
      io.stderr:write(path, " is not what types/library says: make docs\n")
    else
      local to <close> = assert(io.open(path, "w"))
      assert(to:write(text))
    end
  end
end
os.exit(is_same)
