-- Programs on a terminal of ours: script(1) makes it, and what it is sent is drawn on a screen that can be looked at.

local system = require "system"
local support = require "spec.support"

local terminal = {}

-- ---- screens ----

local screen = {}
screen.__index = screen

local wide <const> = { { 0x1100, 0x115f }, { 0x2e80, 0xa4cf }, { 0xac00, 0xd7a3 }, { 0xf900, 0xfaff },
  { 0xff00, 0xff60 }, { 0x1f300, 0x1faff } }

local function width_of(code)
  for _, range in ipairs(wide) do
    if code >= range[1] and code <= range[2] then return 2 end
  end
  return code >= 0x300 and code <= 0x36f and 0 or 1
end

--- A screen as xterm has one. What has left it at the top stays in its lines.
function terminal.screen(columns, rows)
  return setmetatable({ columns = columns, rows = rows, lines = { {} }, row = 1, column = 1, rest = "" }, screen)
end

local function line_at(self, row)
  while #self.lines < row do self.lines[#self.lines + 1] = {} end
  return self.lines[row]
end

local function cut(line, from)
  for at = #line, from, -1 do line[at] = nil end
end

local function put(self, character, code)
  local width = width_of(code)
  if width == 0 then
    local line, at = line_at(self, self.row), self.column - 1
    while at > 1 and line[at] == "" do at = at - 1 end
    line[at] = (line[at] or "") .. character
    return
  end
  if self.column + width - 1 > self.columns then -- also behind the last column, where xterm waits
    self.row, self.column = self.row + 1, 1
  end
  local line = line_at(self, self.row)
  if self.inserts then
    for _ = 1, width do table.insert(line, self.column, " ") end
    cut(line, self.columns + 1)
  end
  for at = #line + 1, self.column - 1 do line[at] = " " end
  line[self.column] = character
  if width == 2 then
    line[self.column + 1] = ""
  end
  self.column = self.column + width
end

-- CSI sequences: the functions get the first number, or nil.
local sequences <const> = {
  A = function(self, n)
    self.row = math.max(self.row - (n or 1), math.max(1, #self.lines - self.rows + 1))
  end,
  B = function(self, n) self.row = math.min(self.row + (n or 1), #self.lines) end,
  C = function(self, n) self.column = math.min(self.column + (n or 1), self.columns) end,
  D = function(self, n) self.column = math.max(math.min(self.column, self.columns) - (n or 1), 1) end,
  G = function(self, n) self.column = n or 1 end,
  K = function(self, n)
    assert(not n or n == 0, "EL")
    cut(line_at(self, self.row), self.column)
  end,
  J = function(self, n)
    assert(not n or n == 0, "ED")
    cut(line_at(self, self.row), self.column)
    for row = #self.lines, self.row + 1, -1 do self.lines[row] = nil end
  end,
  P = function(self, n)
    for _ = 1, n or 1 do
      if self.column <= #line_at(self, self.row) then table.remove(self.lines[self.row], self.column) end
    end
  end,
  ["@"] = function(self, n)
    for _ = 1, n or 1 do table.insert(line_at(self, self.row), self.column, " ") end
    cut(self.lines[self.row], self.columns + 1)
  end,
  h = function(self, n) self.inserts = assert(n == 4, "a mode") end,
  l = function(self, n) self.inserts = not assert(n == 4, "a mode") end,
}

local controls <const> = {
  ["\r"] = function(self) self.column = 1 end,
  ["\n"] = function(self)
    self.row = self.row + 1
    line_at(self, self.row)
  end,
  ["\b"] = function(self) self.column = math.max(math.min(self.column, self.columns) - 1, 1) end,
  ["\t"] = function(self) self.column = math.min((self.column - 1) // 8 * 8 + 9, self.columns) end,
  ["\a"] = function(self) self.bells = (self.bells or 0) + 1 end,
}

--- Draws bytes. A command for the terminal that neither a line editor nor the program has reason to send is an error.
function screen:feed(bytes)
  local text, at = self.rest .. bytes, 1
  while at <= #text do
    local number, final = text:match("^\27%[(%d*)([%a@])", at)
    local character = text:match("^" .. utf8.charpattern, at)
    if number then
      local sequence = sequences[final] or error(("CSI %s%s"):format(number, final))
      sequence(self, math.tointeger(number))
      at = at + 2 + #number + #final
    elseif text:find("^\27%[?%d*$", at) or not (character and (utf8.len(character) or #text - at >= 4)) then
      break -- the rest of it is still to come
    elseif character:find "%c" then
      (controls[character] or error(("control %q"):format(text:sub(at, at + 9))))(self)
      at = at + 1
    else
      put(self, character, utf8.codepoint(character))
      at = at + #character
    end
  end
  self.rest = text:sub(at)
end

--- What is in front of the cursor in its line.
function screen:before_cursor()
  return table.concat(line_at(self, self.row), "", 1, math.min(self.column - 1, #line_at(self, self.row)))
end

--- Its lines from the first that was ever there, without blanks at their ends but for those in front of the cursor.
function screen:text()
  local lines = {}
  for i, line in ipairs(self.lines) do
    lines[i] = table.concat(line):gsub("%s+$", "")
  end
  local before = self:before_cursor()
  lines[self.row] = #lines[self.row] < #before and before or lines[self.row]
  return (table.concat(lines, "\n"):gsub("\n+$", ""))
end

--- Is nothing below the cursor's line?
function screen:is_at_end()
  return not table.concat(self.lines[self.row + 1] or {}):find "%S" and #self.lines <= self.row + 1
end

-- ---- sessions ----

local session = {}
session.__index = session

function terminal.is_there()
  return (os.execute "command -v script > /dev/null 2>&1 && command -v mkfifo > /dev/null 2>&1")
end

--- Starts `command` on a terminal. Options: columns (80), rows (24), environment (as a shell has it, in front of
-- the command).
function terminal.open(command, options)
  options = options or {}
  local folder = support.path ""
  assert(os.execute(("mkdir %s && mkfifo %s/keys"):format(folder, folder)))
  local columns, rows = options.columns or 80, options.rows or 24
  support.write_file(folder .. "/run", ([[
    tty > %s/tty
    stty cols %d rows %d
    stty -a > %s/before
    TERM=xterm env %s sh -c 'echo $$ > %s/pid; exec %s'
    echo $? > %s/status
    stty -a > %s/after
  ]]):format(folder, columns, rows, folder, options.environment or "", folder, command, folder, folder))
  local keys = assert(io.open(folder .. "/keys", "r+")) -- which does not wait for the other end
  local making = "script -qfec 'sh %s/run' /dev/null < %s/keys > %s/output 2>&1 &"
  assert(os.execute(making:format(folder, folder, folder)))
  return setmetatable({ folder = folder, keys = keys, screen = terminal.screen(columns, rows), output = "" }, session)
end

--- Types.
function session:send(text)
  assert(self.keys:write(text))
  self.keys:flush()
end

--- Draws what has come, but for the terminal's own echo of Ctrl-C: that is written behind the signal, and so anywhere
-- in what the program answers.
function session:look()
  local all = support.read_file(self.folder .. "/output") or ""
  if all:sub(-1) == "^" then
    all = all:sub(1, -2) -- the rest of it may be still to come
  end
  local new = all:sub(#self.output + 1)
  self.output = all
  self.screen:feed((new:gsub("%^C", "")))
  return self.screen:text()
end

--- Waits until f() is true; `what` it was is told if it does not come.
function session:wait(what, f)
  local deadline = support.now() + 30
  while true do
    local text = self:look()
    if f(text) then
      return text
    end
    if support.now() > deadline then
      error(("%s has not come:\n%s"):format(what, text), 2)
    end
    system.sleep(0.01)
  end
end

--- Waits for a text on the screen, behind what was waited for before.
function session:expect(wanted)
  local at
  self:wait(("%q"):format(wanted), function(text)
    at = select(2, text:find(wanted, (self.seen or 0) + 1, true))
    return at
  end)
  self.seen = at
end

--- Waits until the last line is this, up to the cursor.
function session:expect_line(wanted)
  self:wait(("the line %q"):format(wanted), function()
    return self.screen:before_cursor() == wanted and self.screen:is_at_end()
  end)
end

--- Types the end of a line, and waits for the next prompt. Returns what is between.
function session:finish(text)
  self:look()
  local from = #self.screen.lines
  self:send(text .. "\r")
  self:wait("a new prompt", function()
    return self.screen.row > from and self.screen:before_cursor() == "> "
  end)
  local lines = {}
  for i = from + 1, self.screen.row - 1 do
    lines[#lines + 1] = table.concat(self.screen.lines[i]):gsub("%s+$", "")
  end
  return table.concat(lines, "\n")
end

--- The same with all of a line that fits into a row.
function session:enter(text)
  self:expect_line "> "
  return self:finish(text)
end

--- Gives the terminal another size.
function session:resize(columns, rows)
  self.screen.columns, self.screen.rows = columns, rows
  assert(os.execute(("stty -F %s cols %d rows %d"):format(self:file("tty"), columns, rows)))
end

function session:file(name)
  local text
  self:wait(name, function()
    text = support.read_file(self.folder .. "/" .. name)
    return text and text:find "\n"
  end)
  return (text:gsub("%s+$", ""))
end

--- Waits for the end of the command. Returns its exit code, and whether it has left the terminal's mode as it was.
function session:wait_end()
  local function mode(name)
    return (self:file(name):gsub("rows %d+; columns %d+", ""))
  end
  return math.tointeger(self:file "status"), mode "after" == mode "before"
end

--- Ends the command if it still runs, and takes its files away.
function session:close()
  if not support.read_file(self.folder .. "/status") then
    os.execute(("kill -KILL $(cat %s/pid) 2> /dev/null"):format(self.folder))
  end
  local deadline = support.now() + 10
  while (support.read_file(self.folder .. "/after") or "") == "" and support.now() < deadline do
    system.sleep(0.01) -- it still writes
  end
  self.keys:close()
  os.execute("rm -r " .. self.folder)
end
session.__close = session.close

return terminal
