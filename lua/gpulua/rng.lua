-- Random numbers: device:rng{ generator = "philox", seed = 42 }. Each draw fills a buffer, and is an op like a launch.
--
-- A generator has one sequence of random words of 32 bits, which its seed decides, and a place in it, `offset`. A draw
-- of n numbers takes the words from there on, and moves the place behind them: one word for a number of 32 bits, two,
-- from an even place on, for one of 64 bits (of sobol64, whose words have 64 bits, one). So draws in pieces give what
-- one large draw gives, and the same seed gives the same bits and uniform numbers on every device. Tasks that draw from
-- one generator get what time decides, unless they wait for each other; check mode finds that.
--
--   philox      Philox4x32-10, kernels of ours: the words of cuRAND's in its legacy order. Seed and place are on the
--               device: draws can be captured, and each launch of the graph draws the numbers that come next, as the
--               same draws made at once would. Draws of one generator follow each other, on whatever streams.
--               After 2^64 words the sequence begins anew.
--   xorwow, mrg32k3a, sobol32, scrambled_sobol32, sobol64, scrambled_sobol64
--               The words are cuRAND's, what is made of them is ours. The CPU device needs that library as well
--               (libcurand, part of the CUDA toolkit). Draws cannot be captured. mrg32k3a's 2^32 - 209 values are
--               spread over the words of 32 bits. Sobol's are points of `dimensions` coordinates: a buffer gets the
--               first coordinate of all its points, then the second, and so on (a shape of { dimensions, points }), and
--               the place counts points; sobol32 has numbers of 32 bits, and its points begin anew after 2^32,
--               sobol64 of 64. restore() makes cuRAND set the generator up anew, which takes milliseconds.

local core = require "gpulua.core"
local arguments = require "gpulua.arguments"
local sealed = require "gpulua.sealed"
local distributions = require "gpulua.distributions"
local make_once <const> = require "gpulua.once"
local fail <const> = arguments.fail
local dims, names, widths = core.dims, distributions.names, distributions.widths

local rng = {}
rng.__index = rng
rng.__name = "gpulua.rng"

local threads <const> = 256
local mean_max <const> = 1048576 -- of Poisson's
local lost_words <const> = 1 << 48 -- more than any graphs have drawn when a device is lost
local once <const> = { grid = 1, block = 1, label = "rng advance" }
local labels <const> = { bits = "rng bits", uniform = "rng uniform", normal = "rng normal",
  log_normal = "rng log_normal", poisson = "rng poisson" }

-- How a library's generators are numbered; legacy is its order with the same words on every device.
local library_generators <const> = { xorwow = 101, mrg32k3a = 121, sobol32 = 201, scrambled_sobol32 = 202,
  sobol64 = 203, scrambled_sobol64 = 204 }
local orderings <const> = {
  philox = { legacy = 0 },
  xorwow = { legacy = 103, best = 100, seeded = 102 },
  mrg32k3a = { legacy = 103, best = 100 },
}
local quasi_ordering <const> = { legacy = 201 }
local dimensions_max <const> = 20000

-- ---- what is given ----

local draw_options <const> = arguments.options ""

-- What a draw needs: the element type, the number of elements.
local function check_draw(self, what, x, given)
  arguments.check_self(what, self, rng, "gpulua.rng")
  if not self.kernels then
    core.raise("Closed", "attempt to use a closed rng")
  elseif given ~= nil then
    arguments.check(what, given, draw_options)
  end
  local kind, count = dims(x)
  if not kind then
    arguments.fail_buffer(what, "a buffer", x)
  elseif not names[what][kind] then
    core.raise("Unsupported", string.format("%s: the buffer is %s; it takes %s", what, kind, distributions.types(what)))
  elseif x.device ~= self.device then
    fail(what, "the buffer is on %s, the rng on %s", x.device.name, self.device.name)
  end
  return kind, count
end

local function number(what, name, value, default, least)
  if value == nil and default then
    return default
  elseif type(value) ~= "number" or value ~= value or value < least or math.abs(value) == math.huge then
    fail(what, "%s: a finite number%s expected, got %s", name, least == 0 and " from 0 on" or "",
      type(value) == "number" and tostring(value) or core.type(value) or type(value))
  end
  return value
end

-- ---- drawing ----

local function config_for(self, what, thread_count, given)
  local grid = (thread_count + threads - 1) // threads
  grid = grid < self.blocks_max and grid or self.blocks_max
  if given then
    return { grid = grid, block = threads, stream = given.stream, label = given.label or labels[what] }
  end
  local config = self.configs[what] -- the next call's, too: a launch reads it once
  config.grid = grid
  return config
end

local function draw_philox(self, what, kind, x, count, given, a, b, c, d)
  local width = widths[kind]
  local config = config_for(self, what, count * width // 4 + 2, given) -- blocks of the sequence, two of them in part
  local op = self.kernels[names[what][kind]]:launch(config, count, self.state_words, x, a, b, c, d)
  if core.stream_number(self.device, given and given.stream) then
    self.place = (width == 2 and self.place + 1 & ~1 or self.place) + count * width
    self.draws = self.draws + 1
  else
    self.is_captured = true
  end
  self.kernels.advance:launch(config.stream and { grid = 1, block = 1, stream = config.stream, label = once.label }
    or once, count, width, self.state_words)
  return op
end

local function draw_library(self, what, kind, x, count, given, a, b, c, d)
  local name, dimensions, width = self.generator, self.dimensions, widths[kind]
  if not core.stream_number(self.device, given and given.stream) then
    core.raise("Unsupported",
      string.format("%s: draws of %s cannot be captured, each launch of the graph would draw the same; "
        .. "philox's can", what, name))
  end
  local words, place = count * width, self.offset
  if not dimensions then
    place = width == 2 and place + 1 & ~1 or place
  elseif (width == 2) ~= self.is_wide then
    core.raise("Unsupported", string.format("%s: the buffer is %s; %s makes numbers of %d bits", what, kind, name,
      self.is_wide and 64 or 32))
  elseif count % dimensions ~= 0 then
    fail(what, "%d elements are no whole number of points with %d dimensions", count, dimensions)
  else
    words = count
  end
  local behind = place + words // (dimensions or 1)
  if math.ult(behind, place) then
    core.raise("OutOfBounds", string.format("%s: the sequence of %s ends with place 2^64 - 1", what, name))
  end
  local config = config_for(self, what, count, given)
  local op = self.words:launch({ grid = 1, block = 1, stream = config.stream, label = config.label }, x, self.order,
    words, self.seed, place, library_generators[name], self.ordering_code, dimensions or 0)
  self.offset = behind
  if what == "bits" then
    return op
  end
  return self.kernels[names[what][kind]]:launch(config, count, x, a, b, c, d)
end

--- rng:bits(x, [{stream=, label=}]) -> op. Fills x (u32, i32, u64, i64) with random bits, of the word or words as they
-- are; of two, the first is the lower half. Does not block, as no draw does. InvalidArgument, Unsupported (a type, or a
-- capture, see above), OutOfBounds (behind place 2^64 - 1, which philox does not have), Closed, and those of
-- kernel:launch; likewise of all draws.
function rng.bits(self, x, given)
  local kind, count = check_draw(self, "bits", x, given)
  return self:draw("bits", kind, x, count, given, 0, 0, 0, 0)
end

--- rng:uniform(x, [{stream=, label=}]) -> op. Fills x (f32, f64) with numbers in (0, 1]: f32: w 2^-32 + 2^-33 of the
-- word w, rounded, which is cuRAND's; from 2^-33 on. f64: v 2^-53 + 2^-54 of the highest 53 bits v of two words,
-- rounded; from 2^-54 on. 1 comes of the words next to 2^32: 2^-26 of them in f32, 2^-53 in f64.
function rng.uniform(self, x, given)
  local kind, count = check_draw(self, "uniform", x, given)
  return self:draw("uniform", kind, x, count, given, 0, 0, 0, 0)
end

local function draw_normal(self, what, x, mean, deviation, given)
  local kind, count = check_draw(self, what, x, given)
  mean = number(what, "mean", mean, 0, -math.huge)
  return self:draw(what, kind, x, count, given, mean, number(what, "deviation", deviation, 1, 0), 0, 0)
end

--- rng:normal(x, [mean = 0, deviation = 1], [{stream=, label=}]) -> op. Fills x (f32, f64) with normal numbers.
-- Philox's come by twos from uniform numbers u and v, at an even place and behind it, as Box and Muller have it:
-- sqrt(-2 ln u) sin(2 pi v), then with cos. Others' are each what the inverse of the distribution gives for the middle
-- of the word's part of (0, 1), of 2^-32 (f32) or 2^-52 (f64), so that Sobol's stay evenly spread. Both are within 6.8
-- (f32) and 8.7 (f64) deviations of the mean, and on every device within 4e-6 (f32) and 1e-14 (f64) deviations of what
-- these formulas give.
function rng.normal(self, x, mean, deviation, given)
  return draw_normal(self, "normal", x, mean, deviation, given)
end

--- rng:log_normal(x, [mean = 0, deviation = 1], [{stream=, label=}]) -> op. Fills x (f32, f64) with e to the power of
-- what normal gives.
function rng.log_normal(self, x, mean, deviation, given)
  return draw_normal(self, "log_normal", x, mean, deviation, given)
end

--- rng:poisson(x, mean, [{stream=, label=}]) -> op. Fills x (u32, i32, u64, i64) with numbers of Poisson's distribution
-- of that mean, 0 to 1048576: of each word the least k whose probability of k or less reaches the middle of the word's
-- part of (0, 1), as above. It is looked for from the most likely number on, about sqrt(mean) steps. Numbers that are
-- less likely than 2^-32 (with 64 bits 2^-52) altogether do not come. Devices differ where rounding decides, in less
-- than one of 10^9.
function rng.poisson(self, x, mean, given)
  local kind, count = check_draw(self, "poisson", x, given)
  if number("poisson", "mean", mean, nil, 0) > mean_max then
    fail("poisson", "mean: %d is the most, got %s", mean_max, tostring(mean))
  end
  return self:draw("poisson", kind, x, count, given, distributions.poisson(mean))
end

-- ---- state ----

local state_fields <const> = { generator = true, seed = true, offset = true, ordering = true, dimensions = true }

local function whole(call, name, value)
  local integer = math.tointeger(value)
  if type(value) ~= "number" or not integer then
    fail(call, "%s: a whole number expected, got %s", name, core.type(value) or type(value) == "number"
      and tostring(value) or type(value))
  end
  return integer
end

-- A copy of a state as state() gives it, or of options, with all that is not said.
local function check_state(given, call)
  arguments.check(call, given, state_fields)
  local made = { generator = given.generator == nil and "philox" or given.generator,
    ordering = given.ordering == nil and "legacy" or given.ordering,
    seed = given.seed == nil and 0 or whole(call, "seed", given.seed),
    offset = given.offset == nil and 0 or whole(call, "offset", given.offset) }
  local name = made.generator
  if name ~= "philox" and not library_generators[name] then
    fail(call, "generator: philox, xorwow, mrg32k3a, sobol32, scrambled_sobol32, sobol64 or scrambled_sobol64 "
      .. "expected, got %s", tostring(name))
  end
  local known = orderings[name] or quasi_ordering
  if not known[made.ordering] then
    fail(call, "ordering: %s has no '%s'", name, tostring(made.ordering))
  end
  if known == quasi_ordering then
    local dimensions = given.dimensions == nil and 1 or whole(call, "dimensions", given.dimensions)
    if dimensions < 1 or dimensions > dimensions_max then
      fail(call, "dimensions: 1 to %d expected, got %d", dimensions_max, dimensions)
    elseif made.seed ~= 0 then
      fail(call, "seed: %s has none", name)
    end
    made.dimensions = dimensions
  elseif given.dimensions ~= nil then
    fail(call, "dimensions: %s has none", name)
  end
  return made
end

local function check_open(self, what, method)
  arguments.check_self(method, self, rng, "gpulua.rng")
  if not self.kernels then
    core.raise("Closed", "attempt to use a closed rng")
  elseif not core.stream_number(self.device) then
    core.raise("CaptureActive", what .. " cannot be captured")
  end
end

--- rng:state() -> { generator=, seed=, offset=, ordering=, dimensions= }, numbers and strings, from which device:rng
-- makes the generator as it is behind the draws so far, launches of graphs among them. Waits for philox's draws; yields
-- in a task. CaptureActive: it cannot be captured.
function rng.state(self)
  check_open(self, "an rng's state", "state")
  local seed, offset = self.seed, self.offset
  if self.state_words then
    local draws = self.draws
    seed, offset = table.unpack(self.state_words:read())
    if self.draws == draws then -- others may have drawn meanwhile
      self.place = offset
    end
  end
  return { generator = self.generator, seed = seed, offset = offset, ordering = self.ordering,
    dimensions = self.dimensions }
end

--- rng:restore(state) -> rng. Draws go on from there: those made from now on, and graphs launched from now on. Does
-- not block. InvalidArgument: the state is of another generator, ordering or number of dimensions. CaptureActive.
function rng.restore(self, state)
  check_open(self, "restoring an rng", "restore")
  local wanted = check_state(state, "restore")
  for _, name in ipairs { "generator", "ordering", "dimensions" } do
    if wanted[name] ~= self[name] then
      fail("restore", "%s: this rng's is %s, the state's %s", name, tostring(self[name]), tostring(wanted[name]))
    end
  end
  for _, name in ipairs { "seed", "offset" } do
    if state[name] == nil then
      fail("restore", "a state as rng:state() gives it expected: it has no %s", name)
    end
  end
  self.seed = wanted.seed
  if self.state_words then
    self.place, self.draws = wanted.offset, self.draws + 1
    self.state_words:write { wanted.seed, wanted.offset }
  else
    self.offset = wanted.offset
  end
  return self
end

-- ---- the handle ----

--- rng:close(). Idempotent; what it has launched goes on, and graphs that draw from it.
function rng.close(self)
  arguments.check_self("close", self, rng, "gpulua.rng")
  local held = self.state_words or self.order
  if held then
    held:close()
  end
  self.kernels, self.words, self.state_words, self.order = nil, nil, nil, nil
end
rng.__close = rng.close
rng.__gc = rng.close

function rng.__tostring(self)
  return string.format("gpulua.rng %s on %s%s", self.generator, self.device.name, self.kernels and "" or " (closed)")
end

require "gpulua.entries"(rng)

local libraries = setmetatable({}, { __mode = "k" }) -- by device: the call of the library

--- device:rng([{generator = "philox", seed = 0, offset = 0, ordering = "legacy", dimensions = 1}]) -> rng, or
-- device:rng{state=} as rng:state() gave it. seed and offset: 64 bits each. ordering: legacy, the same words on every
-- device; for xorwow also best and seeded, for mrg32k3a best, as cuRAND has them for the device. dimensions: 1 to
-- 20000, of Sobol's, which have no seed. The first time it compiles kernels and loads the library: waits, and yields
-- in a task. InvalidArgument names what is wrong; LibraryUnavailable what is missing; CaptureActive: it cannot be
-- captured.
return function(device, options)
  if not core.stream_number(device) then
    core.raise("CaptureActive", "an rng cannot be made in a capture")
  end
  if type(options) == "table" and options.state ~= nil then
    for name in pairs(options) do
      if name ~= "state" then
        fail("rng", "with a state there is no option '%s'", tostring(name))
      end
    end
    options = options.state
  end
  local state = check_state(options == nil and {} or options, "rng")
  local made = setmetatable({ device = device, generator = state.generator, ordering = state.ordering,
    dimensions = state.dimensions, blocks_max = device.multiprocessors * 16, configs = {} }, rng)
  for what in pairs(labels) do
    made.configs[what] = { block = threads, label = labels[what] }
  end
  local kernels = distributions.kernels(device, state.generator == "philox" and "draw" or "make")
  if state.generator == "philox" then
    made.draw, made.seed, made.place, made.draws = draw_philox, state.seed, state.offset, 0
    local function rebuild(words)
      if made.is_captured then -- how often graphs have drawn is known to the device alone
        made.place = made.place + lost_words
      end
      words:write { made.seed, made.place }
    end
    made.state_words = device:buffer("i64", 2,
      { label = "rng state", rebuild = not core.is_sandbox and rebuild or nil }) -- sandboxes have none
    made.state_words:write { state.seed, state.offset }
  else
    made.words = make_once(libraries, device, device, function()
      local module = core.library(device, "rng")
      return module:kernel "words", module
    end)
    made.draw, made.seed, made.offset = draw_library, state.seed, state.offset
    made.is_wide = string.find(state.generator, "64$") ~= nil
    made.ordering_code = (orderings[state.generator] or quasi_ordering)[state.ordering]
    made.order = device:buffer("u8", 1, { label = "rng order", durable = "space" })
    made.order:fill(0) -- draws follow each other, as cuRAND needs it
  end
  made.kernels = kernels
  return sealed(made, rng)
end
