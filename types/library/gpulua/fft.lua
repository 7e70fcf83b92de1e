---@meta _
--[[
# Fourier transforms

A plan, from `device:fft`, goes between two sides: forward from x to X, with exp(-2 pi i jk / n), inverse back, with
exp(+2 pi i jk / n). Neither divides by anything, so inverse after forward gives n times what there was, n being the
product of the shape; `scale` says otherwise. Indices count from 1 in Lua, frequencies from 0: X[1] is the sum.

Elements lie row by row, one transform after another, unless strides and distances say otherwise.
]]

---A plan.
---@class gpulua.fft
---@field device gpulua.device
---@field kind "c2c"|"r2c"|"c2r"
local fft = {}

---Options of `device:fft`.
---@class gpulua.fft_options
---@field shape integer|integer[] n, or 1 to 3 dimensions; the last lies together.
---@field batch? integer That many transforms with each call; 1 by default.
---@field kind? "c2c"|"r2c"|"c2r" Complex, real both ways (n // 2 + 1 frequencies), or real, the inverse alone; "c2c".
---@field type? "f32"|"f64" Of real numbers; complex ones are c64 or c128. "f32" by default.
---@field input? gpulua.fft_layout Of what goes in: x, or X of "c2r". Packed by default.
---@field output? gpulua.fft_layout Of the other side. Packed by default.
---@field scale? number|{ forward?: number, inverse?: number } A factor for what comes out; 1 by default.
---@field overwrite? boolean The inverse may destroy X of a real plan instead of copying it; false by default.
---@field effort? "estimate"|"measure" "measure" tries out ways, on the CPU device; "estimate" by default.

---Where elements lie.
---@class gpulua.fft_layout
---@field strides? integer[] Elements from one index to the next, for each dimension; each a multiple of the next one.
---@field distance? integer Elements from one transform to the next.

---Options of `fft:forward` and `fft:inverse`.
---@class gpulua.transform_options: gpulua.call_options
---@field scale? number Instead of the plan's.

---X becomes the transforms of x, which keeps its contents. Without X a new buffer does. Buffers are flat, or of the
---plan's shape after dimensions whose product is `batch`. x and X may be the same memory where both sides lie alike.
---Calls nest: an op where X would be is passed over.
---
---```lua
---local x = dev:upload("f32", { 1, 2, 3, 4 })
---local plan = dev:fft { shape = 4, kind = "r2c", scale = { inverse = 1 / 4 } }
---local X = plan:forward(x)
---print(X.type, #X, X:read(1, 1)[1][1])      --> c64	3	10.0
---print(table.concat(plan:inverse(plan:forward(x)):read(), " ")) --> 1.0 2.0 3.0 4.0
---```
---
---Waits: no.
---
---Errors: `InvalidArgument` (what does not fit), `OutOfBounds`, `Unsupported` (a plan of kind "c2r"; on GPUs the op
---fails with it where a buffer does not begin at a multiple of a complex number), those of memory, those of work.
---@param x gpulua.buffer
---@param X? gpulua.buffer|gpulua.transform_options|gpulua.op
---@param options? gpulua.transform_options
---@return gpulua.buffer|any X With X given the op is the only result.
---@return gpulua.op op
---@overload fun(self: gpulua.fft, x: gpulua.buffer): gpulua.buffer, gpulua.op
---@overload fun(self: gpulua.fft, x: gpulua.buffer, X: gpulua.buffer, options?: gpulua.transform_options): gpulua.op
function fft:forward(x, X, options) end

---Back again. Of a real plan, what X would have to be for x to be real is assumed. X keeps its contents, unless the
---plan may `overwrite` them.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBounds`, `Unsupported` (the transforms of x overlap), those of memory, those of
---work.
---@param X gpulua.buffer
---@param x? gpulua.buffer|gpulua.transform_options|gpulua.op
---@param options? gpulua.transform_options
---@return gpulua.buffer|any x With x given the op is the only result.
---@return gpulua.op op
---@overload fun(self: gpulua.fft, X: gpulua.buffer): gpulua.buffer, gpulua.op
---@overload fun(self: gpulua.fft, X: gpulua.buffer, x: gpulua.buffer, options?: gpulua.transform_options): gpulua.op
function fft:inverse(X, x, options) end

---About all plans of the device: plans (kept), plans_max, open (handles), hits and made (calls of `device:fft`),
---work_bytes.
---
---Waits: no.
---
---Errors: `InvalidArgument`.
---@return table<string, integer> stats
function fft:stats() end

---Ends the handle. The device keeps the library's plan for the next one like it.
---
---Waits: no.
---
---Errors: none.
function fft:close() end
