---@meta gpulua.busted
--[[
# Tests: gpulua.busted

What `require "gpulua.busted"` gives is for specs of pipelines, with and without a GPU, that
[busted](https://lunarmodules.github.io/busted) runs. [Testing without a GPU](testing.md) begins from nothing. From
then on, a test fails that leaves something behind: buffers, graphs or streams that are held, work in flight, tasks that
are not over, failures that nobody has seen (also of devices that are lost or closed), captures that are open, which are
ended. The message names the lines. Work and tasks have a second to end by themselves.

luassert, busted's `assert`, has these in addition, with their negations (`assert.is_not.allclose`); all of them wait:

- `assert.allclose(a, b[, { rtol =, atol =, equal_nan = }])`: buffers, host buffers, scalars, tables of numbers and
  numbers, by tolerance, |x - y| <= atol + rtol * max(|x|, |y|); those of torch.testing by element type unless said;
- `assert.bitequal(a, b)`: the same, bit by bit;
- `assert.racefree(f[, { seeds = 200, options = }])`: f(device, seed) returns the same bits and raises nothing under
  each seed, on a CPU device of its own in check mode with these options of `gpu.device`;
- `assert.deterministic(f[, { runs = 3, device =, seeds = 20, options = }])`: f(device) returns the same bits each time;
- `assert.noleaks(f)`: f() leaves nothing behind, and no device open.
]]

---@class gpulua.busted
---@field inject gpulua.injections Failures on demand.
local kit = {}

---Failures that a test asks for. Each is for the device given, or for all that are open, and is withdrawn when the test
---is over.
---@class gpulua.injections
local inject = {}

---The n-th buffer from now on finds no memory: `OutOfMemory`, unless its memory's policy or a hook helps.
---
---Waits: blocks to open the default device, if none is open.
---
---Errors: `InvalidArgument`, `Closed`.
---@param n? integer 1 unless said.
---@param device? gpulua.device
function inject.oom(n, device) end

---The n-th operation from now on fails as if its kernel had faulted: the device is lost.
---
---Waits: blocks to open the default device, if none is open.
---
---Errors: `InvalidArgument`, `Closed`.
---@param n? integer 1 unless said.
---@param device? gpulua.device
function inject.fault(n, device) end

---The device's process is killed at the n-th operation from now on; without one, the same as `inject.fault`.
---
---Waits: blocks to open the default device, if none is open.
---
---Errors: `InvalidArgument`, `Closed`.
---@param n? integer 1 unless said.
---@param device? gpulua.device
function inject.lost(n, device) end

---The next launch of a kernel begins so many seconds later.
---
---Waits: yields while it compiles the kernel that delays it, once for a device.
---
---Errors: `InvalidArgument`, `Closed`, those of `device:compile`.
---@param kernel string Its name.
---@param seconds? number 1 unless said.
---@param device? gpulua.device
function inject.slow(kernel, seconds, device) end

---The test that runs, or that comes next, may leave this behind. What is left of tasks is cancelled all the same.
---
---Waits: no.
---
---Errors: `InvalidArgument`.
---@param ... "memory"|"work"|"tasks"
function kit.allow(...) end

---A block for each device, with f(device, its name) as its function. In tests and hooks, device() is the opened device,
---device(options) one of its own with these options of `gpu.device`, which is closed when the test is over. Tests of a
---device that there is not are pending, and say why; devices that GPULUA_TEST_DEVICES names have to be there.
---
---Waits: blocks to open the devices.
---
---Errors: `InvalidArgument`.
---@param devices? table Names, or tables like { "cpu", check = true }; { "cpu", "cuda" } unless said.
---@param name string Of the block.
---@param f function
function kit.describe_devices(devices, name, f) end

return kit
