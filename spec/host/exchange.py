"""A host in Python: gpulua's C API through ctypes, and DLPack capsules to and from real libraries.

    exchange.py LIBGPULUA [numpy|torch|cupy ...]

A line for each test: "ok NAME", "not ok NAME: WHY", "skipped NAME: WHY". The CPU device with NumPy;
with PyTorch and CuPy device memory, on the GPU and in this process.
"""

import ctypes
import gc
import re
import sys
import threading
import traceback
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

READ, READ_WRITE = 1, 3
NONE, PROCESS = 1, 2  # isolation
DEFAULT, READY, STREAM, UNORDERED = 0, 1, 2, 3  # order


class Config(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("device", c_char_p),
        ("isolation", c_int),
        ("memory_limit_bytes", c_uint64),
        ("device_budget_bytes", c_uint64),
        ("executor_path", c_char_p),
        ("cache_path", c_char_p),
        ("trace", c_int),
        ("check", c_int),
        ("check_seed", c_uint64),
        ("flight_path", c_char_p),
        ("shared_device", c_void_p),
        ("on_error", c_void_p),
        ("on_log", c_void_p),
        ("user", c_void_p),
        ("run_limit_ms", c_uint32),
        ("sandbox", c_int),
        ("allow_compile", c_int),
        ("close_timeout_ms", c_uint32),
        ("cuda_context", c_void_p),
        ("cuda_stream", c_void_p),
    ]


class Error(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("code", c_int),
        ("message", c_char_p),
        ("hint", c_char_p),
        ("source", c_char_p),
        ("line", c_int),
        ("traceback", c_char_p),
    ]


class Info(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("type", c_char_p),
        ("dim_count", c_int),
        ("shape", c_int64 * 8),
        ("label", c_char_p),
        ("is_host", c_int),
        ("device_kind", c_char_p),
        ("elem_count", c_uint64),
        ("byte_count", c_uint64),
        ("device_ordinal", c_int),
        ("is_external", c_int),
        ("is_read_only", c_int),
        ("is_usable", c_int),
    ]


class Exchange(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("order", c_int),
        ("stream", c_size_t),
        ("stream_index", c_int),
        ("is_read_only", c_int),
        ("may_copy", c_int),
        ("label", c_char_p),
    ]


def deleter_of(address, is_versioned):
    """The deleter lies behind a tensor of 48 bytes and a pointer, or behind a version and a pointer."""
    at = 16 if is_versioned else 56
    function = c_void_p.from_address(address + at).value
    return ctypes.CFUNCTYPE(None, c_void_p)(function) if function else lambda tensor: None


# Capsules: their destructor gets one that nobody has any more, so it goes by as a plain pointer.
python = ctypes.pythonapi
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [c_void_p, c_char_p, c_void_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, c_char_p]
capsule_name = ctypes.PYFUNCTYPE(c_char_p, c_void_p)(("PyCapsule_GetName", python))
capsule_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", python))
PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"
USED = {PLAIN: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}


@ctypes.PYFUNCTYPE(None, c_void_p)
def capsule_end(capsule):
    name = capsule_name(capsule)
    if name in USED:  # nobody took the tensor
        address = capsule_pointer(capsule, name)
        deleter_of(address, name == VERSIONED)(address)


class Failure(Exception):
    pass


class Host:
    """A gpulua object; its buffers are raw handles."""

    def __init__(self, device=b"cpu", isolation=NONE):
        config = Config()
        gpulua.gpulua_config_init_sized(byref(config), ctypes.sizeof(config))
        config.device, config.isolation = device, isolation
        self.g = gpulua.gpulua_new(byref(config))
        assert self.g, gpulua.gpulua_last_error(None).contents.message
        self.L = gpulua.gpulua_state(self.g)
        self.run(PRELUDE)

    def close(self):
        gpulua.gpulua_close(self.g)
        self.g = None

    def check(self, status):
        if status != 0:
            error = gpulua.gpulua_last_error(self.g).contents
            assert error.code == status, (error.code, status)
            name = gpulua.gpulua_status_name(status).decode()
            raise Failure(name + ": " + error.message.decode())

    def run(self, text):
        """The script's global `result`, a number or nil."""
        assert lua.luaL_loadstring(self.L, text.encode()) == 0, lua.lua_tolstring(self.L, -1, None)
        lua.lua_pushnil(self.L)
        lua.lua_setglobal(self.L, b"result")
        self.check(gpulua.gpulua_load_function(self.g, 0))
        while gpulua.gpulua_step(self.g, -1) > 0:
            pass
        lua.lua_getglobal(self.L, b"result")
        result = lua.lua_tonumberx(self.L, -1, None)
        lua.lua_settop(self.L, -2)
        return result

    def buffer(self, name):
        buffer = c_void_p()
        lua.lua_getglobal(self.L, name.encode())
        status = gpulua.gpulua_to_buffer(self.L, -1, byref(buffer))
        lua.lua_settop(self.L, -2)
        self.check(status)
        return buffer

    def set(self, name, buffer):
        self.check(gpulua.gpulua_push_buffer(self.L, buffer))
        lua.lua_setglobal(self.L, name.encode())
        gpulua.gpulua_buffer_release(buffer)

    def address(self, buffer):
        address = c_void_p()
        self.check(gpulua.gpulua_buffer_map(self.g, buffer, READ, byref(address)))
        return address.value

    def describe(self, buffer):
        info = Info()
        gpulua.gpulua_buffer_describe_sized(buffer, byref(info), ctypes.sizeof(info))
        assert info.struct_bytes == ctypes.sizeof(info)
        return info

    def take(self, array, name=PLAIN, **options):
        """Imports what has __dlpack__, as its consumer."""
        exchange = Exchange()
        gpulua.gpulua_exchange_init_sized(byref(exchange), ctypes.sizeof(exchange))
        wanted = {"max_version": (1, 0)} if name == VERSIONED else {}
        if "stream_of_producer" in options:
            wanted["stream"] = options.pop("stream_of_producer")
        for key, value in options.items():
            setattr(exchange, key, value)
        capsule = array.__dlpack__(**wanted)
        name = capsule_name(id(capsule))  # a producer may answer with the other kind
        import_ = (
            gpulua.gpulua_dlpack_import
            if name == VERSIONED
            else gpulua.gpulua_dlpack_import_unversioned
        )
        buffer = c_void_p()
        tensor = capsule_pointer(id(capsule), name)
        self.check(import_(self.L, 0, tensor, byref(exchange), byref(buffer)))
        python.PyCapsule_SetName(capsule, USED[name])
        return buffer

    def give(self, buffer, is_versioned=False, **options):
        """A capsule over the buffer."""
        exchange = Exchange()
        gpulua.gpulua_exchange_init_sized(byref(exchange), ctypes.sizeof(exchange))
        for key, value in options.items():
            setattr(exchange, key, value)
        export = (
            gpulua.gpulua_dlpack_export if is_versioned else gpulua.gpulua_dlpack_export_unversioned
        )
        tensor = c_void_p()
        self.check(export(self.L, buffer, byref(exchange), byref(tensor)))
        return python.PyCapsule_New(tensor, VERSIONED if is_versioned else PLAIN, capsule_end)

    def lend(self, name, **options):
        buffer = self.buffer(name)
        info = self.describe(buffer)
        device = (2, info.device_ordinal) if info.device_kind == b"cuda" and not info.is_host else (1, 0)
        return Lent(self, buffer, device, options)


class Lent:
    """What from_dlpack takes: a buffer, until this object goes."""

    def __init__(self, host, buffer, device, options):
        self.host, self.buffer, self.device, self.options = host, buffer, device, options

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None, max_version=None, dl_device=None, copy=None):
        options = dict(self.options)
        if self.device[0] == 2 and stream != -1:
            options.update(order=STREAM, stream=stream or 1)
        elif stream == -1:
            options.update(order=UNORDERED)
        is_versioned = max_version is not None and max_version[0] >= 1
        return self.host.give(self.buffer, is_versioned, **options)

    def __del__(self):
        gpulua.gpulua_buffer_release(self.buffer)


PRELUDE = r"""
gpu = require 'gpulua'
dev = gpu.device()
mod = dev:compile [[
  extern "C" __global__ void add(float *x, int n) { for (int i = 0; i < n; i++) x[i] += 1; }
  extern "C" __global__ void spin(float *x, int n, long long ticks) {
    long long start = clock64();
    while (clock64() - start < ticks) { }
    for (int i = 0; i < n; i++) x[i] += 1;
  }
]]
one = { grid = 1, block = 1 }
"""


def load(path):
    global gpulua, lua
    # The library leaves lua_* to its host: here to the system's Lua.
    lua = ctypes.CDLL("liblua5.4.so.0", ctypes.RTLD_GLOBAL)
    gpulua = ctypes.CDLL(path)
    lua.lua_tonumberx.restype = ctypes.c_double
    lua.lua_tolstring.restype = c_char_p
    for name in ("luaL_loadstring", "lua_pushnil", "lua_setglobal", "lua_getglobal", "lua_settop"):
        getattr(lua, name).argtypes = [c_void_p]
    lua.luaL_loadstring.argtypes = lua.lua_setglobal.argtypes = [c_void_p, c_char_p]
    lua.lua_getglobal.argtypes = [c_void_p, c_char_p]
    lua.lua_settop.argtypes = [c_void_p, c_int]
    lua.lua_tonumberx.argtypes = lua.lua_tolstring.argtypes = [c_void_p, c_int, c_void_p]
    gpulua.gpulua_new.restype = gpulua.gpulua_state.restype = c_void_p
    gpulua.gpulua_last_error.restype = POINTER(Error)
    gpulua.gpulua_status_name.restype = c_char_p
    for name in ("state", "last_error", "close", "buffer_release"):
        getattr(gpulua, "gpulua_" + name).argtypes = [c_void_p]
    gpulua.gpulua_load_function.argtypes = gpulua.gpulua_step.argtypes = [c_void_p, c_int]
    gpulua.gpulua_to_buffer.argtypes = [c_void_p, c_int, c_void_p]
    gpulua.gpulua_push_buffer.argtypes = [c_void_p, c_void_p]
    gpulua.gpulua_buffer_describe_sized.argtypes = [c_void_p, c_void_p, c_size_t]
    for name in ("config", "exchange"):
        getattr(gpulua, "gpulua_" + name + "_init_sized").argtypes = [c_void_p, c_size_t]
    gpulua.gpulua_buffer_map.argtypes = [c_void_p, c_void_p, c_int, c_void_p]
    for name in ("import", "import_unversioned"):
        getattr(gpulua, "gpulua_dlpack_" + name).argtypes = [c_void_p, c_int] + 3 * [c_void_p]
    for name in ("export", "export_unversioned"):
        getattr(gpulua, "gpulua_dlpack_" + name).argtypes = 4 * [c_void_p]


# ---- tests ----

tests = {"numpy": [], "torch": [], "cupy": []}


class Skipped(Exception):
    pass


def test(library, name):
    def note(function):
        tests[library].append((name, function))
        return function

    return note


def wants_versioned(np):
    if tuple(int(part) for part in np.__version__.split(".")[:2]) < (2, 1):
        raise Skipped("NumPy " + np.__version__ + " has no versioned tensors, 2.1 does")


def refused(text, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Failure as failure:
        assert text in str(failure), failure
    else:
        raise AssertionError("not refused: " + text)


def in_place(np, name):
    host = Host()
    array = np.arange(1000, dtype=np.float32)
    buffer = host.take(array, name)
    assert host.address(buffer) == array.ctypes.data
    info = host.describe(buffer)
    assert info.is_external and info.elem_count == 1000 and info.type == b"f32"
    host.set("x", buffer)
    host.run("mod.add:launch(one, x, #x) x:await()")
    assert array[0] == 1 and array[999] == 1000
    array[5] = 50
    assert host.run("result = x:read()[6]") == 50
    host.close()


@test("numpy", "a kernel works on an array of NumPy's, in place")
def _(np):
    in_place(np, PLAIN)


@test("numpy", "the same by a versioned tensor")
def _(np):
    wants_versioned(np)
    in_place(np, VERSIONED)


def result_of(np, is_host):
    host = Host()
    host.run("x = dev:%s('f32', {2, 3}):fill(1) %s" % (
        ("host", "") if is_host else ("buffer", "mod.spin:launch(one, x, 6, 100000000)")))
    array = np.from_dlpack(host.lend("x"))
    assert array.shape == (2, 3) and array.dtype == np.float32
    assert array[1, 2] == (1 if is_host else 2), array  # it has waited for the kernel
    buffer = host.buffer("x")
    assert host.address(buffer) == array.ctypes.data
    gpulua.gpulua_buffer_release(buffer)
    del array
    gc.collect()
    assert host.run("dev:buffer('f32', 1):close() result = dev:stats().exports_live") == 0
    host.close()


@test("numpy", "a result is NumPy's without a copy")
def _(np):
    result_of(np, False)
    result_of(np, True)


@test("numpy", "a versioned tensor says what must not be written")
def _(np):
    wants_versioned(np)
    host = Host()
    host.run("x = dev:buffer('f32', 4):fill(1)")
    assert np.from_dlpack(host.lend("x")).flags.writeable
    assert not np.from_dlpack(host.lend("x", is_read_only=1)).flags.writeable
    array = np.ones(4, dtype=np.float32)
    array.flags.writeable = False
    buffer = host.take(array, VERSIONED)
    assert host.describe(buffer).is_read_only
    gpulua.gpulua_buffer_release(buffer)
    host.close()


@test("numpy", "every element type goes both ways")
def _(np):
    host = Host()
    for ours, theirs in {
        "i8": "int8", "u8": "uint8", "i16": "int16", "u16": "uint16", "i32": "int32", "u32": "uint32",
        "i64": "int64", "u64": "uint64", "f16": "float16", "f32": "float32", "f64": "float64",
        "c64": "complex64", "c128": "complex128",
    }.items():
        array = np.arange(1, 7).astype(theirs).reshape(1, 3, 2)
        buffer = host.take(array)
        info = host.describe(buffer)
        assert info.type.decode() == ours and list(info.shape[:3]) == [1, 3, 2], ours
        host.set("x", buffer)
        host.run("y = dev:buffer('%s', {1, 3, 2}) y:copy(x) y:await()" % ours)
        back = np.from_dlpack(host.lend("y"))
        assert back.dtype == array.dtype and (back == array).all(), ours
    host.close()


@test("numpy", "what is not compact or has no elements is refused")
def _(np):
    host = Host()
    array = np.zeros((4, 6), dtype=np.float32)
    refused("stride 2 of dimension 2", host.take, array[:, ::2])
    refused("Unsupported: tensor: stride", host.take, array.T)
    refused("stride -6", host.take, array[::-1])
    refused("stride 0", host.take, np.lib.stride_tricks.as_strided(array, (3,), (0,)))
    refused("no elements", host.take, array[:0])
    gpulua.gpulua_buffer_release(host.take(array[1:3]))
    host.close()


@test("numpy", "arrays outlive the buffer, the device and the object")
def _(np):
    host = Host()
    host.run("x = dev:buffer('f32', 100000):fill(3) h = dev:host('f32', 10):fill(4) dev:synchronize()")
    x, h = np.from_dlpack(host.lend("x")), np.from_dlpack(host.lend("h"))
    host.run("x:free() h:close() x, h = nil collectgarbage() collectgarbage()\n"
             "for i = 1, 20 do dev:buffer('f32', 100000):fill(0):close() dev:host('f32', 10):close() end")
    assert (x == 3).all() and (h == 4).all()
    host.close()
    gc.collect()
    assert (x == 3).all() and (h == 4).all()
    view = x[10:20]
    del x
    gc.collect()
    assert (view == 3).all()
    del view, h
    gc.collect()


@test("numpy", "an array is kept until the kernel that uses it is over")
def _(np):
    host = Host()

    class Array(np.ndarray):
        pass

    gone = []

    class Sentinel:
        def __del__(self):
            gone.append(True)

    array = np.ones(64, dtype=np.float32).view(Array)
    array.sentinel = Sentinel()
    host.set("x", host.take(array))
    del array
    host.run("mod.spin:launch(one, x, 64, 100000000) x:close() x = nil")
    assert not gone
    host.run("dev:synchronize() collectgarbage() dev:synchronize()")
    gc.collect()
    assert gone
    host.close()


@test("numpy", "an array that came back is the buffer that it was")
def _(np):
    host = Host()
    host.run("x = dev:buffer('f32', 16):fill(1)")
    array = np.from_dlpack(host.lend("x"))
    if not array.flags.writeable:  # NumPy does not hand on what it must not write
        array = np.ctypeslib.as_array(ctypes.cast(array.ctypes.data, POINTER(ctypes.c_float)), (16,))
    buffer = host.take(array[4:8], order=UNORDERED)
    info = host.describe(buffer)
    assert not info.is_external and info.elem_count == 4
    host.set("part", buffer)
    host.run("mod.spin:launch({grid = 1, block = 1, stream = dev:stream {}}, x, 16, 50000000)\n"
             "mod.add:launch({grid = 1, block = 1, stream = dev:stream {}}, part, 4)\n"
             "result = part:read()[1]")
    assert host.run("result = x:read()[5]") == 3 and array[0] == 2
    host.close()


@test("numpy", "memory without an order is external, and refused")
def _(np):
    host = Host()
    array = np.ones(4, dtype=np.float32)
    host.set("x", host.take(array, order=UNORDERED))
    assert host.run("local _, e = pcall(mod.add.launch, mod.add, one, x, 4)\n"
                    "result = e.code == 'StreamMisuse' and tostring(e):find('external') and 1 or 0") == 1
    assert host.run("local _, e = pcall(x.read, x) result = e.code == 'StreamMisuse' and 1 or 0") == 1
    refused("no streams", host.take, np.ones(4, dtype=np.float32), order=STREAM, stream=1)
    host.set("x", host.take(array, order=READY))
    assert host.run("mod.add:launch(one, x, 4) result = x:read()[1]") == 2
    host.close()


@test("numpy", "arrays are dropped by any thread")
def _(np):
    host = Host()
    arrays = []
    for i in range(200):
        host.run("x = dev:buffer('f32', 8):fill(%d) x:await()" % i)
        arrays.append(np.from_dlpack(host.lend("x")))
    sums = []

    def drop():
        total = 0
        while True:
            try:
                total += arrays.pop()[0]
            except IndexError:
                break
        sums.append(total)

    threads = [threading.Thread(target=drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        host.run("dev:buffer('f32', 8):close()")
    for thread in threads:
        thread.join()
    assert sum(sums) == sum(range(200)), sums
    assert host.run("collectgarbage() dev:synchronize() result = dev:stats().exports_live") == 0
    host.close()


@test("numpy", "host buffers are shared also from a process of its own")
def _(np):
    host = Host(isolation=PROCESS)
    host.run("x = dev:buffer('f32', 8):fill(5) h = dev:host('f32', 8) h:copy(x) h:await()")
    array = np.from_dlpack(host.lend("h"))
    assert (array == 5).all()
    refused("process of its own", host.give, host.buffer("x"))
    mine = np.arange(8, dtype=np.float32)
    refused("copy it", host.take, mine)
    host.set("copy", host.take(mine, may_copy=1))
    assert host.run("x:copy(copy) mod.add:launch(one, x, 8) result = x:read()[8]") == 8
    assert mine[7] == 7
    host.close()
    assert (array == 5).all()


@test("numpy", "the manual's lines for bindings do what they say")
def _(np):
    with open("docs/embedding.md", encoding="utf-8") as file:
        (block,) = re.findall("```python\n(.*?)```", file.read(), re.DOTALL)
    config = Config()
    exec(block, {"lib": gpulua, "config": config, "byref": byref, "c_void_p": c_void_p,
                 "c_size_t": c_size_t, "sizeof": ctypes.sizeof})
    assert config.struct_bytes == ctypes.sizeof(config)


def device_memory(zeros, from_dlpack, synchronize, stream):
    """A tensor on the GPU: in place both ways, ordered by streams, outliving the object."""
    host = Host(b"cuda", NONE)
    mine = zeros(1 << 20)
    mine += 41
    host.set("x", host.take(mine, stream_of_producer=-1, order=STREAM, stream=stream() or 1))
    host.run("mod.add:launch(one, x, 1000) y = dev:buffer('f32', 1 << 20):fill(7)\n"
             "mod.spin:launch(one, y, 1000, 200000000)")
    assert host.describe(host.buffer("x")).is_external
    theirs = from_dlpack(host.lend("y"))
    theirs[:1000] += 1  # on their stream, behind the kernel on ours
    assert host.run("result = x:read()[1000]") == 42
    synchronize()
    assert float(mine[999]) == 42 and float(mine[1000]) == 41
    assert float(theirs[999]) == 9, float(theirs[999])
    buffer = host.take(theirs, stream_of_producer=-1, order=STREAM, stream=stream() or 1)
    assert not host.describe(buffer).is_external  # ours, come back
    gpulua.gpulua_buffer_release(buffer)
    refused("StreamMisuse", use_unordered, host, zeros(4))
    host.close()
    gc.collect()
    assert float(theirs[1000]) == 7
    del theirs
    gc.collect()


def use_unordered(host, tensor):
    buffer = host.take(tensor, stream_of_producer=-1)
    recorder = c_void_p()
    gpulua.gpulua_recorder_new.argtypes = [c_void_p, c_void_p, c_void_p]
    gpulua.gpulua_recorder_read.argtypes = [c_void_p, c_void_p, c_char_p]
    gpulua.gpulua_recorder_preflight.argtypes = [c_void_p, c_void_p]
    host.check(gpulua.gpulua_recorder_new(host.L, None, byref(recorder)))
    gpulua.gpulua_recorder_read(recorder, buffer, b"tensor")
    host.check(gpulua.gpulua_recorder_preflight(host.g, recorder))


@test("torch", "device memory goes both ways without a copy")
def _(torch):
    if not torch.cuda.is_available():
        raise Skipped("no GPU for PyTorch")
    device_memory(
        lambda n: torch.zeros(n, dtype=torch.float32, device="cuda"),
        torch.from_dlpack,
        torch.cuda.synchronize,
        lambda: torch.cuda.current_stream().cuda_stream,
    )


@test("torch", "host memory goes both ways without a copy")
def _(torch):
    host = Host()
    mine = torch.arange(100, dtype=torch.float32)
    buffer = host.take(mine)
    assert host.address(buffer) == mine.data_ptr()
    host.set("x", buffer)
    host.run("mod.add:launch(one, x, 100) x:await()")
    assert float(mine[99]) == 100
    theirs = torch.from_dlpack(host.lend("x"))
    assert theirs.data_ptr() == mine.data_ptr()
    host.close()


@test("cupy", "device memory goes both ways without a copy")
def _(cupy):
    try:
        cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise Skipped("no GPU for CuPy: %s" % error)
    device_memory(
        lambda n: cupy.zeros(n, dtype=cupy.float32),
        cupy.from_dlpack,
        cupy.cuda.Device().synchronize,
        lambda: cupy.cuda.get_current_stream().ptr,
    )


def main():
    load(sys.argv[1])
    failed = False
    for library in sys.argv[2:] or list(tests):
        module, reason = None, ""
        try:
            module = __import__(library)
        except ImportError as error:
            reason = str(error)
        for name, function in tests[library]:
            line = "%s: %s" % (library, name)
            try:
                if module is None:
                    raise Skipped(reason)
                function(module)
                print("ok " + line)
            except Skipped as why:
                print("skipped %s: %s" % (line, why))
            except Exception as why:
                failed = True
                traceback.print_exc()
                print("not ok %s: %s: %s" % (line, type(why).__name__, str(why).replace("\n", " ")))
            sys.stdout.flush()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
