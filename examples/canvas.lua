-- A small RGB canvas for the examples' pictures: rectangles, anti-aliased lines, triangles and text.
-- Coordinates are pixels, (0, 0) the upper left corner; colours are {red, green, blue}, 0 to 255.

local canvas = {}
canvas.__index = canvas

-- Glyphs 5 pixels wide and 7 high (those with a tail: 9), a row in two hexadecimal digits, top first.
local font = {
  [" "] = "00000000000000", ["0"] = "0E11131519110E", ["1"] = "040C040404040E", ["2"] = "0E11010204081F",
  ["3"] = "1F02040201110E", ["4"] = "02060A121F0202", ["5"] = "1F101E0101110E", ["6"] = "0608101E11110E",
  ["7"] = "1F010204080808", ["8"] = "0E11110E11110E", ["9"] = "0E11110F01020C", ["."] = "00000000000C0C",
  [","] = "00000000000C0408", [":"] = "000C0C000C0C00", ["-"] = "0000001F000000", ["+"] = "0004041F040400",
  ["/"] = "01010204081010", ["("] = "02040808080402", [")"] = "08040202020408", ["="] = "00001F001F0000",
  ["%"] = "18190204081303", ["A"] = "0E11111F111111", ["B"] = "1E11111E11111E", ["C"] = "0E11101010110E",
  ["D"] = "1C12111111121C", ["E"] = "1F10101E10101F", ["F"] = "1F10101E101010", ["G"] = "0E11101711110F",
  ["H"] = "1111111F111111", ["I"] = "0E04040404040E", ["J"] = "0702020202120C", ["K"] = "11121418141211",
  ["L"] = "1010101010101F", ["M"] = "111B1515111111", ["N"] = "11111915131111", ["O"] = "0E11111111110E",
  ["P"] = "1E11111E101010", ["Q"] = "0E11111115120D", ["R"] = "1E11111E141211", ["S"] = "0F10100E01011E",
  ["T"] = "1F040404040404", ["U"] = "1111111111110E", ["V"] = "11111111110A04", ["W"] = "11111115151B11",
  ["X"] = "11110A040A1111", ["Y"] = "11110A04040404", ["Z"] = "1F01020408101F", ["a"] = "00000E010F110F",
  ["b"] = "1010161911111E", ["c"] = "00000E1010110E", ["d"] = "01010D1311110F", ["e"] = "00000E111F100E",
  ["f"] = "0609081C080808", ["g"] = "00000F11110F01010E", ["h"] = "10101619111111", ["i"] = "04000C0404040E",
  ["j"] = "0200060202020212" .. "0C", ["k"] = "10101214181412", ["l"] = "0C04040404040E",
  ["m"] = "00001A15151111", ["n"] = "00001619111111", ["o"] = "00000E1111110E", ["p"] = "00001E11111E101010",
  ["q"] = "00000F11110F010101", ["r"] = "00001619101010", ["s"] = "00000F100E011E", ["t"] = "08081C08080906",
  ["u"] = "0000111111130D", ["v"] = "00001111110A04", ["w"] = "0000111115150A", ["x"] = "0000110A040A11",
  ["y"] = "00001111110F01010E", ["z"] = "00001F0204081F",
}

-- A canvas of one colour.
function canvas.new(width, height, colour)
  local self = setmetatable({ width = width, height = height, red = {}, green = {}, blue = {} }, canvas)
  for i = 1, width * height do
    self.red[i], self.green[i], self.blue[i] = colour[1], colour[2], colour[3]
  end
  return self
end

-- Mixes a pixel with a colour: coverage 0 leaves it, 1 replaces it. Outside of the canvas: nothing.
function canvas:blend(x, y, colour, coverage)
  if x < 0 or y < 0 or x >= self.width or y >= self.height then
    return
  end
  local i = y * self.width + x + 1
  self.red[i] = self.red[i] + (colour[1] - self.red[i]) * coverage
  self.green[i] = self.green[i] + (colour[2] - self.green[i]) * coverage
  self.blue[i] = self.blue[i] + (colour[3] - self.blue[i]) * coverage
end

function canvas:rectangle(left, top, width, height, colour)
  for y = top, top + height - 1 do
    for x = left, left + width - 1 do
      self:blend(x, y, colour, 1)
    end
  end
end

-- A line through points {x1, y1, x2, y2, ...}. Each pixel takes the coverage of the nearest piece, once, so that
-- many short pieces look like one stroke.
function canvas:line(points, thickness, colour)
  local half, coverage = thickness / 2, {}
  for k = 1, #points - 3, 2 do
    local x1, y1, x2, y2 = points[k], points[k + 1], points[k + 2], points[k + 3]
    local dx, dy = x2 - x1, y2 - y1
    local squared = math.max(dx * dx + dy * dy, 1e-12)
    for y = math.floor(math.min(y1, y2) - half - 1), math.ceil(math.max(y1, y2) + half + 1) do
      for x = math.floor(math.min(x1, x2) - half - 1), math.ceil(math.max(x1, x2) + half + 1) do
        local along = math.min(math.max(((x - x1) * dx + (y - y1) * dy) / squared, 0), 1)
        local ex, ey = x - x1 - along * dx, y - y1 - along * dy
        local c = math.min(half + 0.5 - math.sqrt(ex * ex + ey * ey), 1)
        local at = y * self.width + x
        if c > 0 and x >= 0 and x < self.width and c > (coverage[at] or 0) then
          coverage[at] = c
        end
      end
    end
  end
  for at, c in pairs(coverage) do
    self:blend(at % self.width, at // self.width, colour, c)
  end
end

-- A triangle that points down to (x, y).
function canvas:marker(x, y, side, colour)
  for row = 0, side - 1 do
    local half = row / 1.7
    for column = math.floor(-half - 1), math.ceil(half + 1) do
      self:blend(x + column, y - row, colour, math.max(0, math.min(1, half + 0.5 - math.abs(column))))
    end
  end
end

function canvas.text_width(text, scale)
  return (#text * 6 - 1) * scale
end

-- Text with its upper left corner at (x, y); align "center" or "right" moves it left.
function canvas:text(x, y, text, scale, colour, align)
  if align then
    x = math.floor(x - canvas.text_width(text, scale) / (align == "center" and 2 or 1))
  end
  for character in text:gmatch(".") do
    local glyph = assert(font[character], "no glyph for " .. character)
    for row = 0, #glyph // 2 - 1 do
      local bits = tonumber(glyph:sub(row * 2 + 1, row * 2 + 2), 16)
      for column = 0, 4 do
        if bits >> (4 - column) & 1 == 1 then
          self:rectangle(x + column * scale, y + row * scale, scale, scale, colour)
        end
      end
    end
    x = x + 6 * scale
  end
end

-- Pixels as a string of bytes, red, green, blue.
function canvas:bytes()
  local rows = {}
  local char, floor = string.char, math.floor
  for y = 0, self.height - 1 do
    local row = {}
    for i = y * self.width + 1, (y + 1) * self.width do
      row[#row + 1] = char(floor(self.red[i] + 0.5), floor(self.green[i] + 0.5), floor(self.blue[i] + 0.5))
    end
    rows[#rows + 1] = table.concat(row)
  end
  return table.concat(rows)
end

return canvas
