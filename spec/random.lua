-- What random numbers are held against: Philox in Lua, distributions in doubles, and statistics.

local random = {}

--- The four words that Philox4x32-10 makes of a counter of four and a key of two (Salmon and others, 2011).
function random.philox(c0, c1, c2, c3, k0, k1)
  for _ = 1, 10 do
    local p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2 -- below 2^64
    c0, c1, c2, c3 = p1 >> 32 ~ c1 ~ k0, p1 & 0xffffffff, p0 >> 32 ~ c3 ~ k1, p0 & 0xffffffff
    k0, k1 = k0 + 0x9E3779B9 & 0xffffffff, k1 + 0xBB67AE85 & 0xffffffff
  end
  return c0, c1, c2, c3
end

--- The word at a place of the sequence.
function random.word(seed, place)
  local block = place >> 2
  return (select((place & 3) + 1, random.philox(block >> 16 & 0xffffffff, block >> 48, block & 0xffff, 0,
    seed & 0xffffffff, seed >> 32)))
end

--- 64 bits from an even place on.
function random.wide(seed, place)
  return random.word(seed, place + 1) << 32 | random.word(seed, place)
end

local function f32(x) return (string.unpack("f", string.pack("f", x))) end

function random.uniform32(word) return f32(f32(word) * 2 ^ -32 + 2 ^ -33) end
function random.uniform64(wide) return (wide >> 11) * 2 ^ -53 + 2 ^ -54 end

--- The normal number at a place: of the pair of uniform numbers that it is in.
function random.normal(seed, place, kind)
  local width = kind == "f64" and 2 or 1
  local first = place & ~(2 * width - 1)
  local u, v
  if width == 2 then
    u, v = random.uniform64(random.wide(seed, first)), random.uniform64(random.wide(seed, first + 2))
  else
    u, v = random.uniform32(random.word(seed, first)), random.uniform32(random.word(seed, first + 1))
  end
  local length = math.sqrt(-2 * math.log(u))
  return length * (place == first and math.sin or math.cos)(2 * math.pi * v)
end

--- The least k with as much probability up to it. For means whose e^-mean is a number.
function random.poisson(mean, u)
  local k, p = 0, math.exp(-mean)
  local sum = p
  while u > sum do
    k = k + 1
    p = p * mean / k
    sum = sum + p
  end
  return k
end

function random.moments(list)
  local n, mean = #list, 0.0
  for _, x in ipairs(list) do
    mean = mean + x / n
  end
  local second, third, fourth = 0.0, 0.0, 0.0
  for _, x in ipairs(list) do
    local d = x - mean
    second, third, fourth = second + d ^ 2 / n, third + d ^ 3 / n, fourth + d ^ 4 / n
  end
  return { mean = mean, variance = second, skew = third / second ^ 1.5, kurtosis = fourth / second ^ 2 }
end

--- Kolmogorov's: the largest difference between the share of numbers below x and below(x).
function random.distance(list, below)
  local sorted = table.move(list, 1, #list, 1, {})
  table.sort(sorted)
  local largest, n = 0.0, #sorted
  for i, x in ipairs(sorted) do
    local p = below(x)
    largest = math.max(largest, i / n - p, p - (i - 1) / n)
  end
  return largest
end

--- The share of normal numbers below x, to 2e-7 (Abramowitz and Stegun, 7.1.26).
function random.normal_below(x)
  local z = math.abs(x) / math.sqrt(2)
  local t = 1 / (1 + 0.3275911 * z)
  local tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    * math.exp(-z * z) / 2
  return x < 0 and tail or 1 - tail
end

--- Pearson's statistic of a list against Poisson's distribution, and its degrees of freedom: classes of neighbours in
-- which at least 20 are expected.
function random.chi_square(list, mean)
  local counts, n, low, high = {}, #list, math.maxinteger, 0
  for _, k in ipairs(list) do
    counts[k] = (counts[k] or 0) + 1
    low, high = math.min(low, k), math.max(high, k)
  end
  local weights, total = {}, 0.0 -- from 12 deviations below the mean to 12 above
  local mode, reach = math.floor(mean), math.ceil(12 * math.sqrt(mean) + 12)
  local part = 1.0
  for k = mode, math.max(0, mode - reach), -1 do
    weights[k], total, part = part, total + part, part * k / mean
  end
  part = 1.0
  for k = mode + 1, mode + reach do
    part = part * mean / k
    weights[k], total = part, total + part
  end
  local statistic, classes, expected, seen = 0.0, 0, 0.0, 0
  for k = math.max(0, mode - reach), mode + reach do
    expected, seen = expected + weights[k] / total * n, seen + (counts[k] or 0)
    if expected >= 20 then
      statistic, classes = statistic + (seen - expected) ^ 2 / expected, classes + 1
      expected, seen = 0.0, 0
    end
  end
  assert(low >= mode - reach and high <= mode + reach)
  return statistic, classes - 1
end

return random
