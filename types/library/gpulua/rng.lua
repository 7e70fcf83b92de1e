---@meta _
--[[
# Random numbers

A generator, from `device:rng`, has one sequence of random words of 32 bits, which its seed decides, and a place in it,
`offset`. A draw of n numbers takes the words from there on: one for a number of 32 bits, two for one of 64 bits. So
draws in pieces give what one large draw gives, and the same seed gives the same bits and uniform numbers on every
device.

philox is Philox4x32-10, in kernels of gpulua's own; its draws can be captured, and each launch of the graph draws what
comes next. The words of the others are cuRAND's, on the CPU device too, which needs that library then; their draws
cannot be captured. Sobol's are points of `dimensions` coordinates: a buffer gets the first coordinate of all its
points, then the second, and so on. Their place counts points, and they have no seed.
]]

---A generator.
---@class gpulua.rng
---@field device gpulua.device
---@field generator gpulua.generator
---@field ordering "legacy"|"best"|"seeded"
---@field dimensions? integer Of Sobol's.
local rng = {}

---@alias gpulua.generator
---| "philox"
---| "xorwow"
---| "mrg32k3a"
---| "sobol32"
---| "scrambled_sobol32"
---| "sobol64"
---| "scrambled_sobol64"

---Options of `device:rng`; or `state = ...`, as `rng:state` gave it.
---@class gpulua.rng_options
---@field generator? gpulua.generator "philox" by default.
---@field seed? integer 64 bits; 0 by default.
---@field offset? integer 64 bits; 0 by default.
---@field ordering? "legacy"|"best"|"seeded" legacy, on every device the same; best (xorwow, mrg32k3a), seeded (xorwow).
---@field dimensions? integer Of Sobol's, 1 to 20000; 1 by default.

---Where a generator is: numbers and strings, which can be written to a file.
---@class gpulua.rng_state
---@field generator gpulua.generator
---@field seed integer
---@field offset integer
---@field ordering string
---@field dimensions? integer

---Fills a buffer of u32, i32, u64 or i64 with random bits.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `Unsupported` (a type; a capture, where the generator is not philox), `OutOfBounds`
---(past the end of the sequence, which philox does not have), those of work.
---@param x gpulua.buffer
---@param options? gpulua.call_options
---@return gpulua.op op
function rng:bits(x, options) end

---Fills a buffer of f32 or f64 with uniform numbers in (0, 1].
---
---```lua
---local x = dev:buffer("f32", 1000)
---dev:rng({ seed = 42 }):uniform(x)
---print(gpu.reduce("min", x):get() > 0, gpu.reduce("max", x):get() <= 1) --> true	true
---```
---
---Waits: no.
---
---Errors: `InvalidArgument`, `Unsupported`, `OutOfBounds`, those of work.
---@param x gpulua.buffer
---@param options? gpulua.call_options
---@return gpulua.op op
function rng:uniform(x, options) end

---Fills a buffer of f32 or f64 with normal numbers.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `Unsupported`, `OutOfBounds`, those of work.
---@param x gpulua.buffer
---@param mean? number 0 by default.
---@param deviation? number From 0 on; 1 by default.
---@param options? gpulua.call_options
---@return gpulua.op op
function rng:normal(x, mean, deviation, options) end

---Fills a buffer of f32 or f64 with e to the power of what normal gives.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `Unsupported`, `OutOfBounds`, those of work.
---@param x gpulua.buffer
---@param mean? number 0 by default.
---@param deviation? number From 0 on; 1 by default.
---@param options? gpulua.call_options
---@return gpulua.op op
function rng:log_normal(x, mean, deviation, options) end

---Fills a buffer of u32, i32, u64 or i64 with numbers of Poisson's distribution.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `Unsupported`, `OutOfBounds`, those of work.
---@param x gpulua.buffer
---@param mean number 0 to 1048576.
---@param options? gpulua.call_options
---@return gpulua.op op
function rng:poisson(x, mean, options) end

---Where it is after the draws so far, launches of graphs among them.
---
---Waits: of philox: yields until its draws are over.
---
---Errors: `CaptureActive`, `Closed`, failures of work, those of work, those of waits.
---@return gpulua.rng_state state
function rng:state() end

---Draws go on from there, and so do graphs that are launched from now on.
---
---Waits: no.
---
---Errors: `InvalidArgument` (of another generator, ordering or number of dimensions), `CaptureActive`, those of work.
---@param state gpulua.rng_state
---@return gpulua.rng rng The same one.
function rng:restore(state) end

---Ends it. What it has launched goes on, and graphs that draw from it.
---
---Waits: no.
---
---Errors: none.
function rng:close() end
