-- Reads the definition files (types/library), strictly: what LuaLS would pass over in silence is an error here.
--
-- A file begins with ---@meta and a block comment, its chapter of the manual in Markdown. Then come classes, aliases
-- and functions as LuaLS knows them. The text of a function has two paragraphs more: "Waits: ..." and "Errors: ...".
-- What a fenced block of Lua prints stands behind --> in it.

local definitions = {}

local library <const> = "types/library"
-- In the order of the manual.
definitions.files = { "gpulua", "gpulua/error", "gpulua/device", "gpulua/buffer", "gpulua/kernel",
  "gpulua/work", "gpulua/graph", "gpulua/memory", "gpulua/blas", "gpulua/fft", "gpulua/rng", "gpulua/trace",
  "gpulua/npy", "gpulua/wav", "gpulua/image", "gpulua/luv", "gpulua/busted" }

local plain_types <const> = { any = true, boolean = true, ["function"] = true, integer = true, ["nil"] = true,
  number = true, string = true, table = true, ["true"] = true, ["false"] = true, self = true }

local function complain(self, message, ...)
  self.findings[#self.findings + 1] = ("%s:%d: %s"):format(self.path, self.line, message:format(...))
end

-- ---- types ----

local parse_type

-- A cursor: { text =, at =, names = what it refers to }.
local function take(cursor, pattern)
  local first, last, capture = cursor.text:find("^%s*" .. pattern, cursor.at)
  if first then
    cursor.at = last + 1
  end
  return first and (capture or true)
end

local function expect(cursor, pattern, what)
  local got = take(cursor, pattern)
  if not got then
    error({ ("%s expected at '%s'"):format(what, cursor.text:sub(cursor.at)) }, 0)
  end
  return got
end

-- "(a: T, b?: T, ...: T)", the parenthesis taken already. Types as tables: { kind = "any of", ... }, { kind =
-- "literal", value = }, { kind = "function" }, { kind = "table", fields =, keys = { { key, value }, ... } }, { kind =
-- "list", of }, { kind = "optional", of }, { kind = "name", name =, ... }.
local function parse_parameters(cursor)
  while not take(cursor, "%)") do
    local name = take(cursor, "(%.%.%.)") or expect(cursor, "([%a_][%w_]*)", "a parameter")
    take(cursor, "%?")
    if take(cursor, ":") then
      parse_type(cursor)
    elseif name ~= "self" then
      error({ ("a type expected behind '%s'"):format(name) }, 0)
    end
    if not take(cursor, ",") then
      expect(cursor, "%)", "')'")
      break
    end
  end
end

local function parse_table(cursor)
  local made = { kind = "table", fields = {}, keys = {} }
  while not take(cursor, "}") do
    local key, name, optional
    if take(cursor, "%[") then
      key = parse_type(cursor)
      expect(cursor, "%]", "']'")
    else
      name = expect(cursor, "([%a_][%w_]*)", "a field")
      optional = take(cursor, "%?")
    end
    expect(cursor, ":", "':'")
    local value = parse_type(cursor)
    if key then
      made.keys[#made.keys + 1] = { key, value }
    else
      made.fields[name] = { type = value, is_optional = optional }
    end
    if not take(cursor, ",") then
      expect(cursor, "}", "'}'")
      break
    end
  end
  return made
end

local function parse_primary(cursor)
  local literal = take(cursor, '"([^"]*)"')
  local number = not literal and take(cursor, "(%-?%d+)")
  if literal or number then
    return { kind = "literal", value = literal or math.tointeger(number) }
  elseif take(cursor, "%(") then
    local inner = parse_type(cursor)
    expect(cursor, "%)", "')'")
    return inner
  elseif take(cursor, "fun%f[%W]") then
    expect(cursor, "%(", "'('")
    parse_parameters(cursor)
    if take(cursor, ":") then
      parse_type(cursor)
    end
    return { kind = "function" }
  elseif take(cursor, "{") then
    return parse_table(cursor)
  end
  local made = { kind = "name", name = expect(cursor, "([%a_][%w_.]*)", "a type") }
  cursor.names[#cursor.names + 1] = made.name
  if take(cursor, "<") then
    repeat
      made[#made + 1] = parse_type(cursor)
    until not take(cursor, ",")
    expect(cursor, ">", "'>'")
  end
  return made
end

function parse_type(cursor)
  local choices = { kind = "any of" }
  repeat
    local made = parse_primary(cursor)
    while true do
      if take(cursor, "%[%]") then
        made = { kind = "list", made }
      elseif take(cursor, "%?") then
        made = { kind = "optional", made }
      else
        break
      end
    end
    choices[#choices + 1] = made
  until not take(cursor, "|")
  return #choices == 1 and choices[1] or choices
end

--- The type that a text is, as a table.
function definitions.type_of(text)
  return parse_type { text = text, at = 1, names = {} }
end

local function parse_types(cursor)
  repeat
    parse_type(cursor)
  until not take(cursor, ",")
end

-- The type at the beginning of the text, the rest behind it; names go into self.uses. An overload's function may have
-- several results.
local function split_type(self, text, is_overload)
  local cursor = { text = text, at = 1, names = {} }
  local ok, failure = pcall(is_overload and parse_types or parse_type, cursor)
  if not ok then
    complain(self, "'%s': %s", text, type(failure) == "table" and failure[1] or failure)
    return text, ""
  end
  for _, name in ipairs(cursor.names) do
    self.uses[#self.uses + 1] = { name = name, path = self.path, line = self.line }
  end
  local rest = text:sub(cursor.at)
  if rest ~= "" and not rest:find "^%s" then
    complain(self, "'%s': a space expected at '%s'", text, rest)
  end
  return text:sub(1, cursor.at - 1), (rest:gsub("^%s+", ""))
end

-- ---- text ----

-- Lines to paragraphs: { text =, or code = }.
local function paragraphs_of(self, lines)
  local made, text, code = {}, nil, nil
  for _, line in ipairs(lines) do
    if code and line:find "^```" then
      made[#made + 1], code = { code = table.concat(code, "\n"), is_lua = code.is_lua }, nil
    elseif code then
      code[#code + 1] = line
    elseif line:find "^```" then
      text, code = nil, { is_lua = line == "```lua" }
    elseif line == "" then
      text = nil
    elseif text then
      text.text = text.text .. "\n" .. line
    else
      text = { text = line }
      made[#made + 1] = text
    end
  end
  if code then
    complain(self, "a block of code is not closed")
  end
  return made
end

-- Takes the paragraph that begins with this word out of the list.
local function take_paragraph(list, word)
  for i, paragraph in ipairs(list) do
    local text = paragraph.text and paragraph.text:match("^" .. word .. ":%s+(.*)$")
    if text then
      table.remove(list, i)
      return text
    end
  end
end

--- The codes that a text on errors names, and the groups: "those of work" and so on.
local groups <const> = { "those of work", "those of waits", "those of memory", "failures of work" }
definitions.groups = groups
local function codes_of(text)
  local codes, of_groups = {}, {}
  for code in text:gmatch "`(%u%a+)`" do
    codes[#codes + 1] = code
  end
  local line = text:gsub("%s+", " "):lower()
  for _, group in ipairs(groups) do
    if line:find(group, 1, true) then
      of_groups[#of_groups + 1] = group
    end
  end
  return codes, of_groups
end
definitions.codes_of = codes_of

--- The codes of each group, from the headings of that name in chapters: group -> list.
function definitions.codes_of_groups(model)
  local found = {}
  for _, chapter in ipairs(model.chapters) do
    for heading, text in (chapter.head .. "\n## "):gmatch "## ([^\n]+)\n(.-)%f[\0#]" do
      for _, group in ipairs(groups) do
        if group:gsub("^those of", "errors of") == heading:lower() then
          found[group] = codes_of(text)
        end
      end
    end
  end
  return found
end

-- ---- one file ----

local readers = {}

function readers.class(self, rest)
  local name, parents = rest:match "^([%w_.]+)%s*:?%s*(.*)$"
  if not name then
    return complain(self, "a class without a name")
  elseif self.model.classes[name] or self.model.aliases[name] then
    complain(self, "%s is there twice", name)
  end
  local class = { name = name, parents = {}, fields = {}, functions = {}, overloads = {}, operators = {},
    text = paragraphs_of(self, self.text), path = self.path, line = self.line }
  for parent in parents:gmatch "[%w_.]+" do
    class.parents[#class.parents + 1] = parent
    self.uses[#self.uses + 1] = { name = parent, path = self.path, line = self.line }
  end
  self.model.classes[name], self.class, self.text = class, class, {}
  self.chapter.items[#self.chapter.items + 1] = { class = class }
end

function readers.field(self, rest)
  local key, after = rest:match "^%[(.-)%]%s+(.*)$"
  local name, optional
  if key then
    split_type(self, key)
  else
    name, optional, after = rest:match "^([%a_][%w_]*)(%??)%s+(.*)$"
  end
  if not after then
    return complain(self, "a field without a name or a type: '%s'", rest)
  elseif not self.class then
    return complain(self, "a field of no class")
  end
  local field_type, text = split_type(self, after)
  local fields = self.class.fields
  if name and fields[name] then
    complain(self, "the field %s is there twice", name)
  end
  fields[#fields + 1] = { name = name, key = key, type = field_type, is_optional = optional == "?", text = text }
  if name then
    fields[name] = fields[#fields]
  end
end

function readers.operator(self, rest)
  local name, result = rest:match "^(%l+):%s+(.*)$"
  if not name or not self.class then
    return complain(self, "an operator of a class expected, got '%s'", rest)
  end
  split_type(self, result)
  self.class.operators[name] = result
end

function readers.overload(self, rest)
  split_type(self, rest, true)
  local list = self.class and self.class.overloads or self.own.overloads
  list[#list + 1] = rest
end

function readers.alias(self, rest)
  local name, text = rest:match "^([%w_.]+)%s*(.*)$"
  if not name then
    return complain(self, "an alias without a name")
  elseif self.model.classes[name] or self.model.aliases[name] then
    complain(self, "%s is there twice", name)
  end
  local alias = { name = name, text = paragraphs_of(self, self.text), entries = {}, type = text ~= "" and text or nil }
  if alias.type then
    local _, left = split_type(self, text)
    if left ~= "" then
      complain(self, "'%s' is left over", left)
    end
  end
  self.model.aliases[name], self.alias, self.text = alias, alias, {}
  self.chapter.items[#self.chapter.items + 1] = { alias = alias }
end

function readers.param(self, rest)
  local name, optional, after = rest:match "^([%a_.][%w_.]*)(%??)%s+(.*)$"
  if not after then
    return complain(self, "a parameter without a name or a type: '%s'", rest)
  end
  local param_type, text = split_type(self, after)
  self.own.params[#self.own.params + 1] = { name = name, type = param_type, is_optional = optional == "?",
    text = text, line = self.line }
end

readers["return"] = function(self, rest)
  local return_type, after = split_type(self, rest)
  local name, text = after:match "^([%w_.]+)%s*(.*)$"
  if after ~= "" and not name then
    complain(self, "the name of a result expected, got '%s'", after)
  end
  self.own.returns[#self.own.returns + 1] = { name = name, type = return_type, text = text or "" }
end

function readers.private(self)
  self.own.is_private = true
end

local function begin_own(self)
  self.own = { params = {}, returns = {}, overloads = {} }
  self.text, self.class, self.alias = {}, nil, nil
end

local function read_function(self, variable, separator, name, list)
  local own, class = self.own, self.variables[variable]
  own.name, own.call, own.is_method = name, variable .. separator .. name, separator == ":"
  own.path, own.line, own.class = self.path, self.line, class
  if not class then
    return complain(self, "%s is no class's variable", variable)
  elseif class.functions[name] then
    complain(self, "%s is there twice", own.call)
  end
  local at = 0
  for param in list:gmatch "[^%s,]+" do
    at = at + 1
    local known = own.params[at]
    if not known or known.name ~= param then
      complain(self, "%s: @param %s expected, got %s", own.call, param, known and known.name or "nothing")
    end
  end
  if own.params[at + 1] then
    complain(self, "%s: it has no parameter %s", own.call, own.params[at + 1].name)
  end
  own.text = paragraphs_of(self, self.text)
  own.waits, own.errors = take_paragraph(own.text, "Waits"), take_paragraph(own.text, "Errors")
  if #own.text == 0 then
    complain(self, "%s: what does it do?", own.call)
  end
  if not own.is_private then
    if not own.waits or not (own.waits:find "^no" or own.waits:find "yields" or own.waits:find "blocks") then
      complain(self, "%s: a paragraph 'Waits: no', '... yields ...' or '... blocks ...' expected", own.call)
    end
    if not own.errors or #own.errors < 5 then
      complain(self, "%s: a paragraph 'Errors: ...' with codes, or 'Errors: none.', expected", own.call)
    end
  end
  own.codes, own.groups = codes_of(own.errors or "")
  class.functions[#class.functions + 1], class.functions[name] = own, own
  self.chapter.items[#self.chapter.items + 1] = { own = own }
end

local function read_line(self, line)
  local tag, rest = line:match "^%-%-%-@(%l+)%s*(.*)$"
  if tag then
    if not readers[tag] then
      complain(self, "@%s is not known", tag)
    else
      readers[tag](self, rest)
    end
  elseif line:find "^%-%-%-|" then
    local value, text = line:match '^%-%-%-|%s*("[^"]*")%s*#?%s*(.*)$'
    value, text = value or line:match "^%-%-%-|%s*([%l.]+)%s*#?%s*", text or line:match "#%s*(.*)$" or ""
    if not value or not self.alias then
      return complain(self, "a value of an alias expected: '%s'", line)
    end
    self.alias.entries[#self.alias.entries + 1] = { value = value, text = text }
  elseif line:find "^%-%-%-" then
    self.text[#self.text + 1] = line:sub(4)
  elseif line:find "^%s*$" then
    if #self.text > 0 or #self.own.params > 0 then
      complain(self, "text that belongs to nothing")
    end
    begin_own(self)
  elseif line:find "^local " then
    local variable = line:match "^local ([%a_][%w_]*) = {}"
    if not variable or not self.class then
      complain(self, "the variable of a class expected: '%s'", line)
    else
      self.variables[variable], self.class.variable = self.class, variable
    end
    begin_own(self)
  elseif line:find "^function " then
    local variable, separator, name, list = line:match "^function ([%a_][%w_]*)([.:])([%a_][%w_]*)%((.-)%) end$"
    if not variable then
      complain(self, "a function of a class, without a body, expected: '%s'", line)
    else
      read_function(self, variable, separator, name, list)
    end
    begin_own(self)
  elseif not line:find "^return [%a_]+$" then
    complain(self, "what is this? '%s'", line)
  end
end

local function read_file(model, path, name)
  local file <close> = assert(io.open(path))
  local text = file:read "a"
  local self = { model = model, path = path, line = 1, findings = model.findings, uses = model.uses, variables = {} }
  local meta, head, behind = text:match "^%-%-%-@meta (%S+)\n%-%-%[%[\n(.-)\n%]%]\n()"
  if not meta or not (meta == "_" or meta == name:gsub("/", ".")) then
    return complain(self, "---@meta, with _ or the module's name, and the chapter as a block comment expected")
  elseif not head:find "^# %S" then
    complain(self, "the chapter has no title")
  end
  self.chapter = { path = path, module = meta ~= "_" and meta or nil, head = head, items = {} }
  model.chapters[#model.chapters + 1] = self.chapter
  begin_own(self)
  self.line = select(2, text:sub(1, behind - 1):gsub("\n", "\n"))
  for line in text:sub(behind):gmatch "([^\n]*)\n" do
    self.line = self.line + 1
    read_line(self, line)
  end
end

-- ---- all of it ----

--- The table of error codes in src/gpulua.h, in its order: a list of { code, meaning, hint }, also by code.
function definitions.error_table(path)
  local file <close> = assert(io.open(path or "src/gpulua.h"))
  local list = {}
  for code, meaning, hint in file:read "a":gmatch 'X%(%d+, [%u_]+, "(%a+)", "(.-)", "(.-)"%)' do
    list[#list + 1] = { code = code, meaning = meaning, hint = hint }
    list[code] = list[#list]
  end
  return list
end

local function check_codes(model)
  local alias = model.aliases["gpulua.error_code"]
  local seen = {}
  local function find(what, ...)
    model.findings[#model.findings + 1] = what:format(...)
  end
  for _, entry in ipairs(alias and alias.entries or {}) do
    local code = entry.value:sub(2, -2)
    seen[code] = true
    if not model.errors[code] then
      find("types/library/gpulua/error.lua: src/gpulua.h has no code %s", code)
    end
  end
  for _, row in ipairs(alias and model.errors or {}) do
    if not seen[row.code] then
      find("types/library/gpulua/error.lua: gpulua.error_code lacks '%s'", row.code)
    end
  end
  for _, class in pairs(model.classes) do
    for _, own in ipairs(class.functions) do
      for _, code in ipairs(own.codes) do
        if not model.errors[code] then
          find("%s:%d: %s: there is no error code %s", own.path, own.line, own.call, code)
        end
      end
    end
  end
end

local function new_model()
  return { chapters = {}, classes = {}, aliases = {}, findings = {}, uses = {}, errors = definitions.error_table() }
end

local function check(model)
  for _, use in ipairs(model.uses) do
    if not plain_types[use.name] and not model.classes[use.name] and not model.aliases[use.name] then
      model.findings[#model.findings + 1] = ("%s:%d: there is no type %s"):format(use.path, use.line, use.name)
    end
  end
  check_codes(model)
  return model
end

--- What the files have: { chapters, classes and aliases by name, errors, findings: a list of what is wrong }.
function definitions.read()
  local model = new_model()
  for _, name in ipairs(definitions.files) do
    read_file(model, ("%s/%s.lua"):format(library, name), name)
  end
  if not model.aliases["gpulua.error_code"] then
    model.findings[#model.findings + 1] = library .. ": there is no gpulua.error_code"
  end
  return check(model)
end

--- The same of one file, for tests.
function definitions.read_one(path)
  local model = new_model()
  read_file(model, path, "_")
  return check(model)
end

--- Every block of Lua: f(code, where it stands).
function definitions.each_example(model, f)
  local function each(list, where)
    for _, paragraph in ipairs(list) do
      if paragraph.code and paragraph.is_lua then
        f(paragraph.code, where)
      end
    end
  end
  for _, chapter in ipairs(model.chapters) do
    local lines = {}
    for line in (chapter.head .. "\n"):gmatch "([^\n]*)\n" do
      lines[#lines + 1] = line
    end
    each(paragraphs_of({ findings = {} }, lines), chapter.path)
    for _, item in ipairs(chapter.items) do
      local of = item.own or item.class or item.alias
      each(of.text, of.call or of.name)
    end
  end
end

--- The fields of a class with those of its parents: name -> field.
function definitions.fields_of(model, class)
  local found = {}
  for _, parent in ipairs(class.parents) do
    for name, field in pairs(definitions.fields_of(model, model.classes[parent])) do
      found[name] = field
    end
  end
  for _, field in ipairs(class.fields) do
    if field.name then
      found[field.name] = field
    end
  end
  return found
end

return definitions
