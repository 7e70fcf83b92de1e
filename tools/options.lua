-- What others say of the interpreter's options, made of what it says itself:
--   gpulua --help | lua5.4 tools/options.lua manual|bash|zsh|fish TEMPLATE > OUT
-- Lines of the help are "  SYNTAX  WHAT IT DOES", those indented further go on with that. In the syntax, words of small
-- letters with | between them are themselves, FILE.cu is a file of that kind, and other words stand for something.
-- Templates have @OPTIONS@ and more of the kind where something has to go.

local kind, template_path = arg[1], arg[2]
local options, by_name = {}, {}

--- An option: name, text, value (as the help shows it; nil: none), is_attached (behind "=" alone), words that the value
-- may be, glob of the files that it may be.
local function add(syntax, text)
  local name, rest = syntax:match "^(%-%-?%w*)(.*)$"
  local option = by_name[name]
  if option then -- another line about it
    option.text = ("%s; %s: %s"):format(option.text, syntax, text)
  else
    option = { name = name, text = text, words = {} }
    options[#options + 1], by_name[name] = option, option
  end
  option.is_attached = option.is_attached or rest:find "^%[?=" ~= nil
  local value = rest:match "^%[=(.*)%]$" or rest:match "^[ =](.+)$"
  option.value = option.value or value
  for word in (value or ""):gmatch "[^|]+" do
    if word:find "^FILE" then
      option.glob = "*" .. word:sub(5)
    elseif name:find "^%-%-" and word:find "^%l+$" then
      table.insert(option.words, word)
    end
  end
end

local syntax, text
for line in assert(io.read "a":match "Available options are:\n(.*)", "no help of gpulua"):gmatch "[^\n]+" do
  local next_syntax, next_text = line:match "^  (%-.-)%s%s+(.*)$"
  if next_syntax then
    if syntax then
      add(syntax, text)
    end
    syntax, text = next_syntax, next_text
  else
    text = text .. " " .. line:match "^%s*(.*)$"
  end
end
add(syntax, text)

--- The lines that `make(option)` gives, nil for none.
local function lines(make)
  local out = {}
  for _, option in ipairs(options) do
    out[#out + 1] = make(option)
  end
  return table.concat(out, "\n")
end

--- The names of those that `wants` is true of.
local function names(separator, wants)
  local out = {}
  for _, option in ipairs(options) do
    out[#out + 1] = option.name ~= "-" and option.name ~= "--" and wants(option) and option.name or nil
  end
  return table.concat(out, separator)
end

local function is_dashes(option)
  return option.name == "-" or option.name == "--"
end

local parts = {}

function parts.manual()
  local function roff(words)
    return (words:gsub("\\", "\\e"):gsub("%-", "\\-"))
  end
  --- In lines that are not too long; none begins as a request does.
  local function paragraph(words)
    local out, line = {}, ""
    for word in words:gmatch "%S+" do
      if #line + #word > 75 then
        out[#out + 1], line = line, ""
      end
      line = line .. (line == "" and word:gsub("^[.']", "\\&%0") or " " .. word)
    end
    out[#out + 1] = line
    return table.concat(out, "\n")
  end
  return { OPTIONS = lines(function(option)
    local head = ".It Fl " .. roff(option.name:sub(2))
    if option.name == "-" then
      head = ".It Fl"
    elseif option.value then
      head = head .. (option.is_attached and " Ns Op Ns = Ns Ar %s Ns" or " Ar %s"):format(roff(option.value))
    end
    return head:gsub(" Ns$", "") .. "\n" .. paragraph(roff(option.text:gsub("^%l", string.upper)) .. ".")
  end) }
end

function parts.bash()
  return {
    ALL = names(" ", function() return true end),
    ATTACHED = names(" | ", function(option) return option.is_attached end),
    TAKERS = names(" | ", function(option) return option.value and not option.is_attached end),
    VALUES = lines(function(option)
      if #option.words > 0 then
        return ("    %s) words='%s' ;;"):format(option.name, table.concat(option.words, " "))
      elseif option.glob then
        return ("    %s) files='%s' ;;"):format(option.name, option.glob)
      end
    end),
  }
end

function parts.zsh()
  local function quoted(words)
    return (words:gsub("'", "'\\''"):gsub("[%[%]:]", "\\%0"))
  end
  return { OPTIONS = lines(function(option)
    if is_dashes(option) then
      return nil
    end
    local action = #option.words > 0 and ("(%s)"):format(table.concat(option.words, " "))
      or option.glob and ('_files -g "%s"'):format(option.glob) or " "
    -- -e and -l may come again and again.
    local is_short = not option.name:find "^%-%-"
    local sign = option.is_attached and "=-" or not is_short and option.value and "=" or option.value and "+" or ""
    return ("  '%s%s%s[%s]%s'"):format(is_short and option.value and "*" or "", option.name, sign, quoted(option.text),
      option.value and ("%s%s:%s"):format(option.is_attached and "::" or ":", quoted(option.value), action) or "")
  end) }
end

function parts.fish()
  local function takes_value(option)
    return option.value and not option.is_attached
  end
  return { TAKERS = names(" ", takes_value), OPTIONS = lines(function(option)
    if is_dashes(option) then
      return nil
    end
    local value = ""
    if #option.words > 0 then
      value = (option.is_attached and " -f -a '%s'" or " -x -a '%s'"):format(table.concat(option.words, " "))
    elseif option.glob then
      value = " -r -F"
    elseif option.value then
      value = " -x"
    end
    local dashes, name = option.name:match "^(%-+)(.*)$"
    return ("complete -c gpulua -n __gpulua_is_ours -%s %s%s -d '%s'"):format(dashes == "-" and "s" or "l", name, value,
      option.text:gsub("'", "\\'"))
  end) }
end

local made = assert(parts[kind], "usage: options.lua manual|bash|zsh|fish TEMPLATE")()
local file <close> = assert(io.open(template_path))
io.write((file:read "a":gsub("@(%u+)@", made)))
