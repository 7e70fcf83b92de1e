-- Code in colours, for tools/site.lua: highlight(language, text) -> HTML. Lua and C (CUDA C), and comments of shells;
-- anything else as it is. Kernels in long strings of Lua are C. Classes: c comment, s string, n number, k keyword.

local function set(words)
  local found = {}
  for word in words:gmatch "%S+" do
    found[word] = true
  end
  return found
end

local escapes <const> = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }
local function escape(text) return (text:gsub('[&<>"]', escapes)) end

-- Strings in quotes are those of all; then rules are tried in turn: a pattern, and a class (or "word", or false for
-- plain text).
local languages <const> = {
  lua = {
    keywords = set [[and break do else elseif end false for function goto if in local nil not or repeat return then true
      until while]],
    { "^%-%-%[(=*)%[.-%]%1%]", "c" }, { "^%-%-[^\n]*", "c" }, { "^%[(=*)%[.-%]%1%]", "s" },
    { "^0[xX]%x+", "n" }, { "^%d[%d.]*[eE]?[+-]?%d*", "n" },
    { "^[%a_][%w_]*", "word" },
  },
  c = {
    keywords = set [[auto bool break case char class const constexpr continue default delete do double else enum extern
      false float for if inline int long namespace new nullptr return short signed sizeof static struct switch template
      this true try typedef union unsigned using void volatile while __global__ __device__ __shared__ __restrict__
      size_t]],
    { "^//[^\n]*", "c" }, { "^/%*.-%*/", "c" }, { "^#[^\n]*", "k" },
    { "^0[xX]%x+", "n" }, { "^%d[%w.]*", "n" }, { "^[%a_][%w_]*", "word" },
  },
  sh = {
    keywords = {},
    { "^#[^\n]*", "c" }, { "^[^%s#'\"]+", false },
  },
}

local function highlight(language, text)
  local rules = languages[language]
  if not rules then
    return escape(text)
  end
  local parts, at = {}, 1
  while at <= #text do
    local first, last, class
    local quote = text:match("^[\"']", at)
    if quote then
      first, last, class = at, at + 1, "s"
      while last <= #text and text:sub(last, last) ~= quote and text:sub(last, last) ~= "\n" do
        last = last + (text:sub(last, last) == "\\" and 2 or 1)
      end
    end
    for _, rule in ipairs(first and {} or rules) do
      first, last = text:find(rule[1], at)
      if first == at then
        class = rule[2]
        break
      end
      first = nil
    end
    if not first then
      last = at
    end
    local piece = text:sub(at, last)
    if class == "word" then
      class = rules.keywords[piece] and "k"
    end
    local opening, kernel, closing = piece:match "^(%[=*%[)(.*__global__.*)(%]=*%])$"
    parts[#parts + 1] = opening and opening .. highlight("c", kernel) .. closing
      or class and ('<span class="%s">%s</span>'):format(class, escape(piece)) or escape(piece)
    at = last + 1
  end
  return table.concat(parts)
end

return highlight
