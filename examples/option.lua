-- The price of an option by chance: gpulua examples/option.lua [PATHS]
--
-- A European call gives the right to buy a share at the strike when the time is over. Where the share will be then is
-- drawn for each path: it moves as geometric Brownian motion does (Black and Scholes, 1973), so one normal number for
-- each path is enough. The mean of what the paths pay, discounted, is the price; their spread says how far off it is.
-- Beside it the price in closed form.

local gpu = require "gpulua"

local SHARE <const>, STRIKE <const> = 100, 105
local RATE <const>, VOLATILITY <const>, YEARS <const> = 0.02, 0.25, 1.5
local PATHS <const> = 1 << 22 -- by default

local paths = math.tointeger(arg[1] or PATHS)
if not paths or paths < 2 then
  io.stderr:write("usage: gpulua examples/option.lua [PATHS], at least 2\n")
  os.exit(2)
end

local dev = gpu.device()
local rng = dev:rng { generator = "philox", seed = 1973 }
local z = dev:buffer("f32", paths)
rng:normal(z, 0, 1)
local paid = gpu.map("discount * max(share * exp(drift + spread * z) - strike, 0)", { z = z, share = SHARE,
  strike = STRIKE, discount = math.exp(-RATE * YEARS), drift = (RATE - VOLATILITY ^ 2 / 2) * YEARS,
  spread = VOLATILITY * math.sqrt(YEARS) })
local price = gpu.reduce("mean", paid):get()
local off = gpu.map("paid - price", { paid = paid, price = price })
local error_of_price = gpu.reduce("norm", off):get() / math.sqrt(paths - 1) / math.sqrt(paths)

-- The part of a normal distribution below x: a series that ends in less than 100 terms where anything is to be seen.
local function normal_below(x)
  local term, sum = x, x
  for k = 1, 200 do
    term = term * x * x / (2 * k + 1)
    sum = sum + term
  end
  return 0.5 + sum * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
end
local spread = VOLATILITY * math.sqrt(YEARS)
local d1 = (math.log(SHARE / STRIKE) + (RATE + VOLATILITY ^ 2 / 2) * YEARS) / spread
local exact = SHARE * normal_below(d1) - STRIKE * math.exp(-RATE * YEARS) * normal_below(d1 - spread)

print(("a call at %g on a share at %g, %g years, volatility %g %%, interest %g %%"):format(STRIKE, SHARE, YEARS,
  VOLATILITY * 100, RATE * 100))
print(("%d paths: %.4f, standard error %.4f"):format(paths, price, error_of_price))
print(("closed form: %.4f, %.1f standard errors away"):format(exact, math.abs(price - exact) / error_of_price))
