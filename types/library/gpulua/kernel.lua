---@meta _
--[[
# Kernels

`device:compile` makes a module of CUDA C; `mod.name` is a kernel of it, with or without `extern "C"`, `mod["a::f"]` one
of a namespace, and `kernel:launch` puts it to work. The prototype says what a launch uses: `const T *` is read, `T *`
is read and written, others are numbers. `char` takes i8, `long long` i64, `size_t` u64, an `enum` i32 or the type that
it says, and so on; `float4 *` takes a buffer of f32 with a multiple of 4 elements, `float2 *` and `double2 *` also one
of complex numbers, `void *` any buffer. A scalar goes where there is a pointer, never where there is a number.

A signature by hand says it more narrowly, or where no prototype does (PTX, cubins): a list of `name: type`, where a
type is an element type, or `in`, `out` or `inout`, an element type and `*`. `out` is written, and never read before it
is written.

A vector by value (`float4`, in a signature `f32x4`) is a table of its elements, `{ 1, 2, 3, 4 }` or with x, y, z and w.
A structure by value is known by its definition, where the source (of at most 256 KiB) has one of that name, `struct` or
`typedef struct`, within no `#if`, and in it plain members alone: numbers, vectors, pointers to either, arrays,
structures of such. Any other needs a signature by hand, where the fields stand in braces, in their order:
`p: { dt: f32, m: f32[4][4], rows: { n: i32, x: in f32* }[2] }`. A launch is given a table of them, by name or in
order; graphs know them as `p.dt` and `p.rows.2.n`. Instead of tables all parts may stand one after the other. A pointer
to a structure (`const Params *p`, by hand `p: in void*`) takes a buffer of u8, written with `string.pack`.

A kernel with a `gpulua_ctx` from `<gpulua_kernel.h>` for its last parameter can fail its operation with a message of
its own (`gpulua_check`); scripts do not pass it.
]]

---What a source or a file of code was made into. A field that is no method is the kernel of that name.
---@class gpulua.module
---@field [string] gpulua.kernel
local module = {}

---The kernel of that name; with a signature a kernel of its own, whose launches declare that.
---
---```lua
---local mod = dev:compile [[
---  extern "C" __global__ void set(int n, int *x) { if (threadIdx.x < n) x[threadIdx.x] = 7; }]]
---local set = mod:kernel("set", "n: i32, x: out i32*")
---local x = dev:buffer("i32", 4)
---set:launch(4, 4, x)
---print(x:read(4)[1], set:signature())       --> 7	n: i32, x: out i32*
---```
---
---A structure by value, of which `y` is written alone:
---
---```lua
---local mod = dev:compile [[
---  struct Line { float *y; float slope, at_0; };
---  extern "C" __global__ void line(Line l) { int i = threadIdx.x; l.y[i] = l.slope * i + l.at_0; }]]
---local line = mod:kernel("line", "l: { y: out f32*, slope: f32, at_0: f32 }")
---local y = dev:buffer("f32", 3)
---line:launch(3, { y = y, slope = 2, at_0 = 0.5 })
---print(y:read(3, 3)[1])                     --> 4.5
---```
---
---Waits: no.
---
---Errors: `InvalidArgument` (no such kernel, or a signature that does not fit; parameters beyond `limit_params` or
---`limit_args_bytes`), `OutOfMemory`, `DeviceLost`, `Unrecoverable`, `Closed`, `Timeout`, `Interrupted`.
---@param name string
---@param signature? string
---@return gpulua.kernel kernel
function module:kernel(name, signature) end

---The names of its kernels, in the order of the source.
---
---Waits: no.
---
---Errors: `Closed`.
---@return string[] names
function module:kernels() end

---A `__device__` or `__constant__` variable, as a buffer of one dimension over it. After a loss of the device variables
---have the values again that they begin with, and such a buffer of before is `Stale`.
---
---```lua
---local mod = dev:compile [[
---  __device__ int table[4];
---  extern "C" __global__ void sum(int *x) { *x = table[0] + table[3]; }]]
---mod:global("table"):write { 1, 2, 3, 4 }
---local x = dev:buffer("i32", 1)
---mod.sum:launch({ grid = 1, block = 1 }, x)
---print(x:read()[1])                         --> 5
---```
---
---Waits: no.
---
---Errors: `InvalidArgument` (no such variable), `Capacity` (a name that is too long), `OutOfMemory`, `DeviceLost`,
---`Unrecoverable`, `Closed`, `Timeout`, `Interrupted`.
---@param name string
---@return gpulua.buffer buffer Of vectors the elements; of u8, where its type is none of ours.
function module:global(name) end

---Ends the handle. Its kernels stay as long as their handles.
---
---Waits: no.
---
---Errors: none.
function module:close() end

---A kernel.
---@class gpulua.kernel
local kernel = {}

---Puts the kernel to work. The first argument is how many threads run in all (blocks of 256; there may be some more),
---or a table; the kernel's own arguments follow. nil for a pointer is NULL. What is given is checked against the
---signature. Inside a capture it becomes a node of the graph. A `gpulua_ctx` at the end of the kernel's parameters is
---not passed: what the kernel checks with it and does not hold fails the op with `KernelFailed`.
---
---```lua
---local add = dev:compile([[
---  extern "C" __global__ void add(int n, float a, float *x) {
---    int i = blockIdx.x * blockDim.x + threadIdx.x;
---    if (i < n) x[i] += a;
---  }]]).add
---local x = dev:buffer("f32", 1000):fill(1)
---add:launch(#x, #x, 0.5, x)
---add:launch({ grid = 4, block = 250, label = "again" }, #x, 0.5, x):await()
---print(x:read(1000)[1])                     --> 2.0
---```
---
---Waits: no.
---
---Errors: `InvalidArgument` (the number, type or range of an argument; grid, block or shared memory beyond what the
---device has), those of work.
---@param config integer|gpulua.launch_options
---@param ... number|boolean|gpulua.buffer|gpulua.scalar|table|nil A table for a vector or a structure by value.
---@return gpulua.op op
function kernel:launch(config, ...) end

---What a launch declares, as "n: i32, a: f32, x: inout f32*".
---
---Waits: no.
---
---Errors: `Closed`.
---@return string signature
function kernel:signature() end

---What the driver says of it.
---
---Waits: no.
---
---Errors: `Closed`.
---@return gpulua.attributes attributes
function kernel:attributes() end

---How many blocks of so many threads, with so many bytes of dynamic shared memory, a multiprocessor holds at once (0:
---they cannot be launched), and why not more.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `Closed`.
---@param block_threads? integer 256 by default.
---@param shared_bytes? integer 0 by default.
---@return integer blocks
---@return gpulua.occupancy occupancy
function kernel:occupancy(block_threads, shared_bytes) end

---Ends the handle.
---
---Waits: no.
---
---Errors: none.
function kernel:close() end

---Options of `kernel:launch`.
---@class gpulua.launch_options
---@field grid integer|integer[] Blocks, in up to three dimensions. Has to be given.
---@field block? integer|integer[] Threads of a block, in up to three dimensions; 256 by default.
---@field shared? integer Bytes of dynamic shared memory; 0 by default.
---@field stream? gpulua.stream The one to work on; nothing: the current one.
---@field label? string For errors and traces; the kernel's name by default.

---What `kernel:attributes` gives.
---@class gpulua.attributes
---@field name string
---@field block_threads_max integer
---@field shared_bytes integer Static shared memory.
---@field registers integer Of a thread.
---@field local_bytes integer Of a thread.
---@field args_bytes integer

---The second result of `kernel:occupancy`.
---@class gpulua.occupancy
---@field warps integer Of the blocks that fit.
---@field warps_max integer Of a multiprocessor.
---@field share number warps / warps_max.
---@field limiter string What there is too little of for one more: "registers", "shared memory", "threads" or "blocks".
