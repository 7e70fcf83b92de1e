---@meta _
--[[
# Linear algebra

`device:blas` gives cuBLAS on GPUs and OpenBLAS on the CPU device. Each call is an op like a launch: recorded, fenced,
captured and traced.

Matrices are stored row by row. A buffer of two dimensions is a matrix; of three, so many of them (batch, rows,
columns). A matrix may also lie in a longer or flat buffer: then its sizes (`m`, `n`, `k`) are given, and the leading
dimension (`lda`, ...: elements from one row to the next), counted from the buffer's first element. Vectors are buffers
of any shape, with `incx`, `incy` from one element to the next. Element types are f32, f64, c64, c128; for gemm also f16
and bf16, which are multiplied and summed as f32 and rounded once.

`transa` and `transb` are true or "t" to transpose, "c" to conjugate as well, false or "n" for neither. `alpha` and
`beta` are numbers, or pairs where the matrices are complex. Without the option for what comes out, the call makes it,
and returns it before the op.
]]

---A handle of the library.
---@class gpulua.blas
---@field device gpulua.device
local blas = {}

---Options of `device:blas`.
---@class gpulua.blas_options
---@field workspace? integer Bytes for the library on each stream; by default 8 or 32 MiB on GPUs, 0 on the CPU device.
---@field tf32? boolean Products of f32 may be rounded to 10 bits, if a call does not say; false by default.

---c = alpha a b + beta c, with a as m x k, b as k x n, c as m x n. Of three dimensions, or with `batch`, for each
---matrix; a or b of two dimensions is then the same for each. `bias` is added to each row, then `epilogue` is applied.
---c shares no memory with the others.
---
---```lua
---local blas = dev:blas()
---local a = dev:upload("f32", { 2, 2 }, { 1, 2, 3, 4 })
---local c = blas:gemm { a = a, b = a }
---print(table.concat(c:read(), " "))         --> 7.0 10.0 15.0 22.0
---blas:gemm { a = a, b = a, c = c, transa = true, beta = 1 }
---print(c:read(1, 1)[1])                     --> 17.0
---```
---
---Waits: no.
---
---Errors: `InvalidArgument` (what does not fit), `OutOfBounds` (a buffer is too short), `Unsupported` (a type; bias or
---epilogue with f64, c64, c128), those of memory, those of work.
---@param options gpulua.gemm_options
---@return gpulua.buffer c With the option c the op is the only result.
---@return gpulua.op op
---@overload fun(self: gpulua.blas, options: { c: gpulua.buffer }): gpulua.op
function blas:gemm(options) end

---y = alpha a x + beta y, with a as m x n as it is stored.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBounds`, `Unsupported`, those of memory, those of work.
---@param options gpulua.gemv_options
---@return gpulua.buffer y With the option y the op is the only result.
---@return gpulua.op op
---@overload fun(self: gpulua.blas, options: { y: gpulua.buffer }): gpulua.op
function blas:gemv(options) end

---a = alpha x y^T + a, with a as m x n; `conj`: y is conjugated.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBounds`, `Unsupported`, those of memory, those of work.
---@param options gpulua.ger_options
---@return gpulua.op op
function blas:ger(options) end

---c = alpha a + beta b, each of them transposed if that is asked for; without b: alpha a. c may be a or b itself where
---that is not transposed.
---
---```lua
---local a = dev:upload("f32", { 2, 3 }, { 1, 2, 3, 4, 5, 6 })
---print(table.concat(dev:blas():geam({ a = a, transa = true }):read(), " ")) --> 1.0 4.0 2.0 5.0 3.0 6.0
---```
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBounds`, `Unsupported`, those of memory, those of work.
---@param options gpulua.geam_options
---@return gpulua.buffer c With the option c the op is the only result.
---@return gpulua.op op
---@overload fun(self: gpulua.blas, options: { c: gpulua.buffer }): gpulua.op
function blas:geam(options) end

---c = alpha a a^T + beta c, or with transa alpha a^T a + beta c. Of c, n x n, one triangle is computed, and the rest is
---left as it is: of a new c undefined.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBounds`, `Unsupported` (a type; transa = "c" of complex numbers), those of memory,
---those of work.
---@param options gpulua.syrk_options
---@return gpulua.buffer c With the option c the op is the only result.
---@return gpulua.op op
---@overload fun(self: gpulua.blas, options: { c: gpulua.buffer }): gpulua.op
function blas:syrk(options) end

---Solves for a matrix, with a triangle a: b becomes alpha a^-1 b, or with `side = "right"` alpha b a^-1. Nothing says
---when a has no inverse: b then holds infinities, or no numbers.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBounds`, `Unsupported`, those of memory, those of work.
---@param options gpulua.trsm_options
---@return gpulua.op op
function blas:trsm(options) end

---y = alpha x + y.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBounds`, `Unsupported`, those of work.
---@param options gpulua.axpy_options
---@return gpulua.op op
function blas:axpy(options) end

---x = alpha x.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBounds`, `Unsupported`, those of work.
---@param options gpulua.scal_options
---@return gpulua.op op
function blas:scal(options) end

---y = x.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBounds`, `Unsupported`, those of work.
---@param options gpulua.vectors_options
---@return gpulua.op op
function blas:copy(options) end

---x and y change places.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBounds`, `Unsupported`, those of work.
---@param options gpulua.vectors_options
---@return gpulua.op op
function blas:swap(options) end

---x = c x + s y and y = c y - s x, with the x from before.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBounds`, `Unsupported`, those of work.
---@param options gpulua.rot_options
---@return gpulua.op op
function blas:rot(options) end

---The sum of x y; `conj`: of conjugated x.
---
---```lua
---local x = dev:upload("f64", { 1, 2, 3 })
---print(dev:blas():dot({ x = x, y = x }):get()) --> 14.0
---```
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBounds`, `Unsupported`, `CaptureActive` (in a capture, without `out`),
---`LibraryError`, those of memory, those of work.
---@param options gpulua.dot_options
---@return gpulua.scalar sum With `out` the op is the only result.
---@return gpulua.op op
---@overload fun(self: gpulua.blas, options: { out: gpulua.scalar|gpulua.buffer }): gpulua.op
function blas:dot(options) end

---The Euclidean norm. Of complex numbers it is real.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBounds`, `Unsupported`, `CaptureActive` (in a capture, without `out`), those of
---memory, those of work.
---@param options gpulua.vector_options
---@return gpulua.scalar norm With `out` the op is the only result.
---@return gpulua.op op
---@overload fun(self: gpulua.blas, options: { out: gpulua.scalar|gpulua.buffer }): gpulua.op
function blas:nrm2(options) end

---The sum of magnitudes; of a complex number that is the sum of those of its parts.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBounds`, `Unsupported`, `CaptureActive` (in a capture, without `out`), those of
---memory, those of work.
---@param options gpulua.vector_options
---@return gpulua.scalar sum With `out` the op is the only result.
---@return gpulua.op op
---@overload fun(self: gpulua.blas, options: { out: gpulua.scalar|gpulua.buffer }): gpulua.op
function blas:asum(options) end

---The index, from 1, of the first element of the largest magnitude (as in asum), an i64; 0: x has no elements.
---
---Waits: no.
---
---Errors: `InvalidArgument`, `OutOfBounds`, `Unsupported`, `CaptureActive` (in a capture, without `out`), those of
---memory, those of work.
---@param options gpulua.vector_options
---@return gpulua.scalar index With `out` the op is the only result.
---@return gpulua.op op
---@overload fun(self: gpulua.blas, options: { out: gpulua.scalar|gpulua.buffer }): gpulua.op
function blas:iamax(options) end

---Ends the handle. What it has launched goes on.
---
---Waits: no.
---
---Errors: none.
function blas:close() end

---@alias gpulua.transpose boolean|"n"|"t"|"c"
---@alias gpulua.factor number|number[]

---What every call takes.
---@class gpulua.call_options
---@field stream? gpulua.stream The one to work on; nothing: the current one.
---@field label? string For errors and traces; the call's name by default.

---Options of `blas:gemm`.
---@class gpulua.gemm_options: gpulua.call_options
---@field a gpulua.buffer
---@field b gpulua.buffer
---@field c? gpulua.buffer Of a's type, or f32 where a and b are f16 or bf16.
---@field alpha? gpulua.factor 1 by default.
---@field beta? gpulua.factor 0 by default; wants c.
---@field transa? gpulua.transpose
---@field transb? gpulua.transpose
---@field m? integer
---@field n? integer
---@field k? integer
---@field lda? integer
---@field ldb? integer
---@field ldc? integer
---@field batch? integer How many matrices.
---@field stride_a? integer Elements from one matrix to the next.
---@field stride_b? integer
---@field stride_c? integer
---@field bias? gpulua.buffer n elements of c's type; for f16, bf16 and f32.
---@field epilogue? "relu"|"gelu" Of what comes out (gelu with tanh); for f16, bf16 and f32.
---@field tf32? boolean Products of f32 may be rounded to 10 bits; what `device:blas` was told by default.

---Options of `blas:gemv`.
---@class gpulua.gemv_options: gpulua.call_options
---@field a gpulua.buffer
---@field x gpulua.buffer
---@field y? gpulua.buffer
---@field alpha? gpulua.factor 1 by default.
---@field beta? gpulua.factor 0 by default; wants y.
---@field transa? gpulua.transpose
---@field m? integer
---@field n? integer
---@field lda? integer
---@field incx? integer
---@field incy? integer

---Options of `blas:ger`.
---@class gpulua.ger_options: gpulua.call_options
---@field x gpulua.buffer m elements.
---@field y gpulua.buffer n elements.
---@field a gpulua.buffer
---@field alpha? gpulua.factor 1 by default.
---@field conj? boolean
---@field m? integer
---@field n? integer
---@field lda? integer
---@field incx? integer
---@field incy? integer

---Options of `blas:geam`.
---@class gpulua.geam_options: gpulua.call_options
---@field a gpulua.buffer
---@field b? gpulua.buffer
---@field c? gpulua.buffer
---@field alpha? gpulua.factor 1 by default.
---@field beta? gpulua.factor 1 by default; wants b.
---@field transa? gpulua.transpose
---@field transb? gpulua.transpose
---@field m? integer
---@field n? integer
---@field lda? integer
---@field ldb? integer
---@field ldc? integer

---Options of `blas:syrk`.
---@class gpulua.syrk_options: gpulua.call_options
---@field a gpulua.buffer n x k, or with transa k x n.
---@field c? gpulua.buffer
---@field alpha? gpulua.factor 1 by default.
---@field beta? gpulua.factor 0 by default; wants c.
---@field transa? gpulua.transpose
---@field uplo? "lower"|"upper" Which triangle; "lower" by default.
---@field n? integer
---@field k? integer
---@field lda? integer
---@field ldc? integer

---Options of `blas:trsm`.
---@class gpulua.trsm_options: gpulua.call_options
---@field a gpulua.buffer Of it one triangle is read.
---@field b gpulua.buffer m x n, which becomes the result.
---@field alpha? gpulua.factor 1 by default.
---@field side? "left"|"right" "left" by default.
---@field uplo? "lower"|"upper" Which triangle; "lower" by default.
---@field transa? gpulua.transpose
---@field unit? boolean The diagonal of a is taken for ones.
---@field m? integer
---@field n? integer
---@field lda? integer
---@field ldb? integer

---Options of `blas:axpy`.
---@class gpulua.axpy_options: gpulua.call_options
---@field x gpulua.buffer
---@field y gpulua.buffer
---@field alpha? gpulua.factor 1 by default.
---@field n? integer Elements; all of them by default.
---@field incx? integer
---@field incy? integer

---Options of `blas:scal`.
---@class gpulua.scal_options: gpulua.call_options
---@field x gpulua.buffer
---@field alpha gpulua.factor
---@field n? integer Elements; all of them by default.
---@field incx? integer

---Options of `blas:copy` and `blas:swap`.
---@class gpulua.vectors_options: gpulua.call_options
---@field x gpulua.buffer
---@field y gpulua.buffer
---@field n? integer Elements; all of them by default.
---@field incx? integer
---@field incy? integer

---Options of `blas:rot`.
---@class gpulua.rot_options: gpulua.call_options
---@field x gpulua.buffer
---@field y gpulua.buffer
---@field c number
---@field s number
---@field n? integer Elements; all of them by default.
---@field incx? integer
---@field incy? integer

---Options of `blas:dot`.
---@class gpulua.dot_options: gpulua.call_options
---@field x gpulua.buffer
---@field y gpulua.buffer It may be x.
---@field out? gpulua.scalar|gpulua.buffer One element of x's type. In a capture it has to be given.
---@field conj? boolean
---@field n? integer Elements; all of them by default.
---@field incx? integer
---@field incy? integer

---Options of `blas:nrm2`, `blas:asum` and `blas:iamax`.
---@class gpulua.vector_options: gpulua.call_options
---@field x gpulua.buffer
---@field out? gpulua.scalar|gpulua.buffer One element of the result's type. In a capture it has to be given.
---@field n? integer Elements; all of them by default.
---@field incx? integer
