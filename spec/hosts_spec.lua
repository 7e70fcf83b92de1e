-- Programs that have gpulua in them, built against what `make install` has installed.

local built = require "spec.built"
local lfs = require "lfs"
local support = require "spec.support"

local missing = built.missing()
local said = built.said

local function it_(name, f)
  it(name, function()
    if missing then
      pending(missing)
    end
    f()
  end)
end

describe("hosts:", function()
  local folder, prefix, hosts, flags

  setup(function()
    if missing then
      return
    end
    folder = built.folder()
    prefix = folder .. "/usr"
    built.install(prefix)
    hosts = lfs.currentdir() .. "/examples/hosts/"
    flags = ("$(PKG_CONFIG_PATH=%s/lib/pkgconfig pkg-config --cflags --libs gpulua) -Wl,-rpath,%s/lib"):format(prefix,
      prefix)
    assert(lfs.mkdir(folder .. "/elsewhere"))
  end)
  teardown(function()
    if folder then
      os.execute("rm -r " .. folder)
    end
  end)

  --- Compiles a host with all warnings as errors, and returns a command that runs it, from another folder.
  local function host(compiler, source, name, more)
    local warnings = built.runs("cd %s && %s -Wall -Wextra -Wpedantic -Werror -o %s %s %s %s", folder, compiler, name,
      source, flags, more or "")
    assert.equal("", warnings)
    return ("cd %s/elsewhere && ../%s"):format(folder, name)
  end

  local cc, cxx = os.getenv "CC" or "cc", os.getenv "CXX" or "c++"

  --- What examples/hosts/README.md shows of a command.
  local function shown(command)
    local text = support.read_file "examples/hosts/README.md"
    local _, last = assert(text:find("\n    $ ./" .. command .. "\n", 1, true))
    local lines = {}
    for line in text:sub(last + 1):gmatch "([^\n]*)\n" do
      if not line:find "^    [^$]" then
        break
      end
      lines[#lines + 1] = line:sub(5) .. "\n"
    end
    return table.concat(lines)
  end

  it_("minimal.c runs scripts", function()
    local minimal = host(cc .. " -std=c99", hosts .. "minimal.c", "minimal")
    local lines = 0
    for line in io.lines(hosts .. "minimal.c") do
      lines = lines + (line:find "^/%*" and 0 or line:find "%S" and 1 or 0)
    end
    assert.truthy(lines <= 20, lines)
    assert.equal(shown "minimal examples/saxpy.lua", said(minimal .. " " .. lfs.currentdir() .. "/examples/saxpy.lua"))
    support.write_file(folder .. "/kernel.lua", built.kernel)
    assert.equal("42\n", said(minimal .. " ../kernel.lua"))
    assert.equal("7\n", said("echo 'print(7)' | (" .. minimal .. ")"))
    local output, status = built.run(minimal .. " nowhere.lua")
    assert.equal("minimal: cannot open nowhere.lua: No such file or directory\n", output)
    assert.equal(1, status)
    output, status = built.run("echo 'error \"mine\"' | (%s)", minimal)
    assert.equal("minimal: stdin:1: mine\n", output)
    assert.equal(1, status)
  end)

  it_("threads.c has four states on one device", function()
    local threads = host(cc .. " -std=c11", hosts .. "threads.c", "threads", "-pthread")
    assert.equal(shown "threads", said(threads))
  end)

  it_("cpp-host.cpp, from C++11 on, with every compiler that is here", function()
    local first
    local seen = {} -- one has more than one name: once
    for _, compiler in ipairs { cxx, "g++", "clang++" } do
      -- By its file and what it runs: that of ccache, for one, is behind any number of compilers.
      local path = built.run("readlink -f \"$(command -v %s)\" || echo %s\n%s -print-prog-name=cc1plus", compiler,
        compiler, compiler)
      local is_new = not seen[path] and os.execute(("command -v %s > /dev/null"):format(compiler))
      seen[path] = true
      for _, standard in ipairs(is_new and { 11, 14, 17, 20 } or {}) do
        first = host(("%s -std=c++%d"):format(compiler, standard), hosts .. "cpp-host.cpp", "cpp-host")
        assert.equal(shown "cpp-host", built.runs("GPULUA_DEVICE=cpu; export GPULUA_DEVICE; %s", first))
      end
    end
    said(assert(first))
  end)

  it_("cuda-host.c shares memory, streams and a context of its own", function()
    local include = (os.getenv "CUDA_HOME" or "/usr/local/cuda") .. "/include"
    if not lfs.attributes(include .. "/cuda.h") then
      pending("no cuda.h in " .. include)
    end
    local cuda = host(cc .. " -std=c11 -D_GNU_SOURCE -isystem " .. include, hosts .. "cuda-host.c", "cuda-host", "-ldl")
    local output, status = built.run(cuda)
    if status == 77 then
      assert.equal("skipped: no GPU with a CUDA driver\n", output)
      pending "no GPU with a CUDA driver"
    end
    assert.equal(
      "the primary context: all is as it should be\n"
        .. "a context of cuCtxCreate: all is as it should be\n"
        .. "the host's stream there: all is as it should be\n"
        .. "a thread of gpulua's there: all is as it should be\n",
      output
    )
    assert.equal(0, status)
  end)

  --- What tools/abi.sh says of the header, and its exit status.
  local function abi(header)
    local output, status = built.run("CC=%s sh tools/abi.sh check %s", built.quoted(cc), header)
    if status == 77 then
      pending(output)
    end
    return output, status
  end

  it_("the ABI is the last release's, or has more", function()
    assert.equal("abi: that of the last release\n", (abi "src/gpulua.h"))
  end)

  it_("an ABI that breaks programs is found, one that has more is not", function()
    local text, path = support.read_file "src/gpulua.h", folder .. "/changed.h"
    local function with(from, to)
      local first, last = text:find(from, 1, true)
      support.write_file(path, text:sub(1, assert(first, from) - 1) .. to .. text:sub(last + 1))
      return abi(path)
    end
    for _, change in ipairs {
      { "GPULUA_API const char *gpulua_version(void);", "", "gpulua_version" },
      { "GPULUA_READ_WRITE = 3", "GPULUA_READ_WRITE = 4", "from value '3' to '4'" },
      { "gpulua_step(gpulua *g, int", "gpulua_step(gpulua *g, long", "size changed from 32 to 64" },
      { "uint64_t check_seed;", "uint32_t check_seed;", "type size changed from 64 to 32" },
      { "    int trace;\n", "    int trace;\n    uint64_t more;\n", "'uint64_t more'" },
      { "    gpulua_isolation isolation; ", "    gpulua_isolation isolation; int more; ", "'int more'" },
      { "    int trace;\n", "", "'int trace'" },
      { "uint64_t log_events, log_drops;\n", "uint64_t log_events;\n", "type size changed from 960 to 896" },
      { "void *cuda_stream;\n} gpulua_config;", "uint64_t cuda_stream;\n    uint64_t more;\n} gpulua_config;",
        "'void*' to 'typedef uint64_t'" },
    } do
      local output, status = with(change[1], change[2])
      assert.equal(1, status, change[2])
      assert.truthy(output:find(change[3], 1, true), output)
      assert.truthy(output:find("\nabi: programs that were built against the release will not work", 1, true), output)
    end
    for _, addition in ipairs {
      { "GPULUA_READ_WRITE = 3", "GPULUA_READ_WRITE = 3, GPULUA_MORE = 4" },
      { "GPULUA_API const char *gpulua_version(void);", "%s\nGPULUA_API int gpulua_new_one(int x);" },
      { "} gpulua_config;", "uint64_t more; void *(*other)(int); int small, smaller;\n%s" },
      { "} gpulua_error;", "const char *more;\n%s" },
    } do
      local output, status = with(addition[1], addition[2]:format(addition[1]))
      assert.equal(0, status, output)
    end
    local output, status = with("} gpulua_config;", "int more;\n} gpulua_config;")
    assert.equal(1, status)
    assert.truthy(output:find("abi: a struct has padding at its end", 1, true), output)
  end)

  it_("misuse_test.c calls every function of gpulua.h", function()
    local source = support.read_file "spec/host/misuse_test.c" .. support.read_file "spec/host/misuse_calls.h"
    -- Captures of streams can be had on CUDA alone, or of a driver that is made up.
    for name in support.read_file "spec/host/stream_capture_test.c":gmatch "gpulua_stream_capture_%w+" do
      source = source .. " " .. name
    end
    local count, missed = 0, {}
    for name in support.read_file "src/gpulua.h":gmatch "\nGPULUA_API [^(]-%f[%w_](gpulua_[%w_]+)%(" do
      count = count + 1
      local macro = name:gsub("_sized$", "")
      missed[#missed + 1] = not source:find(macro .. "%f[^%w_]") and name or nil
    end
    assert.are.same({}, missed)
    assert.truthy(count > 60, count)
  end)

  it_("structs_test.c has every struct of gpulua.h, and every function that takes one", function()
    local header, source = support.read_file "src/gpulua.h", support.read_file "spec/host/structs_test.c"
    local count, missed = 0, {}
    for name, first in header:gmatch "\ntypedef struct gpulua_([%w_]+) {%s*([^;]*;)" do
      count = count + 1
      assert.equal("size_t struct_bytes;", first, name)
      missed[#missed + 1] = not source:find("%f[%u]%u+%(" .. name .. ", %d+%)") and name or nil
      for call, parameters in header:gmatch "\nGPULUA_API [^(]-%f[%w_](gpulua_[%w_]+)(%b());" do
        if parameters:find("gpulua_" .. name .. " %*") and not call:find "_init_sized$" then
          missed[#missed + 1] = not source:find(call .. "%f[^%w_]") and call or nil
        end
      end
    end
    assert.are.same({}, missed)
    assert.truthy(count >= 14, count)
  end)

  -- A client: 64 connections with a request each at once, some times; the answers of a few are computed here, too. Then
  -- what clients do wrong. Prints what /stats says, and what else does not fit.
  local client = [==[
import http.client, os, signal, socket, sys
port, server = int(sys.argv[1]), int(sys.argv[2])
count = 65536
points = [((k * 0.754877666) % 1, (k * 0.569840291) % 1) for k in range(count)]
def get(connection, target):
    connection.request("GET", target)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()
def raw(text, wants_answer=True):
    with socket.create_connection(("127.0.0.1", port), 20) as s:
        s.sendall(text)
        return s.recv(64).decode().split("\r\n")[0] if wants_answer else None
connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(64)]
[c.connect() for c in connections]
for i in range(4):
    y = i / 4 + 0.1
    os.kill(server, signal.SIGSTOP)  # what is sent meanwhile arrives together
    for number, connection in enumerate(connections):
        connection.request("GET", f"/nearest?x={number / 64}&y={y}")
    os.kill(server, signal.SIGCONT)
    for number, connection in enumerate(connections):
        answer, x = connection.getresponse(), number / 64
        status, body = answer.status, answer.read().decode()
        if status != 200:
            print("status", status, body)
        elif number % 16 == 3 and i < 2:
            square = lambda p: (p[0] - x) ** 2 + (p[1] - y) ** 2
            if square(points[int(body)]) > min(map(square, points)) + 1e-6:
                print("not the nearest:", x, y, body)
connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
print(get(connection, "/stats")[1], end="")
print(get(connection, "/nearest?x=1")[0], get(connection, "/nowhere")[0], get(connection, "/fails"))
print(raw(b"POST / HTTP/1.1\r\n\r\n"), raw(b"GET /" + b"x" * 9000))
# Those that go away before they are answered, and two requests in one packet.
for i in range(20):
    raw(b"GET /nearest?x=0.5&y=0.5 HTTP/1.1\r\n\r\n", False)
with socket.create_connection(("127.0.0.1", port), 20) as s:
    s.sendall(b"GET /nowhere HTTP/1.0\r\n\r\n" * 2)
    print(s.makefile("rb").read().count(b"404"))  # closed behind the first
with socket.create_connection(("127.0.0.1", port), 20) as s:
    s.sendall(b"GET /nowhere HTTP/1.1\r\n\r\n" * 2)
    got = b""
    while got.count(b"404") < 2:
        got += s.recv(4096)
print(get(connection, "/nearest?x=0.25&y=0.1")[0])
# Left open, and with work under way, when the service is ended.
connection.request("GET", "/nearest?x=0.5&y=0.5")
]==]

  it_("libuv.c serves requests by tasks, and those that come together by one launch", function()
    local python = support.python()
    if not python then
      pending "no python3 for a client"
    elseif not os.execute "pkg-config --exists libuv" then
      pending "no libuv (Debian: libuv1-dev)"
    end
    local server = host(cc .. " -std=gnu11", hosts .. "libuv.c", "libuv", "$(pkg-config --cflags --libs libuv)")
    support.write_file(folder .. "/client.py", client)
    support.write_file(folder .. "/service.lua", support.read_file(hosts .. "libuv.lua")
      .. "\nlocal nearest_or = handle\n"
      .. "function handle(path, query) if path == 'fails' then error 'mine' end return nearest_or(path, query) end\n")
    local function stats(environment)
      local output = built.runs([[cd %s && export GPULUA_DEVICE=cpu %s && rm -f address
        (%s ../service.lua 0) > address 2> errors & server=$!
        for i in $(seq 1200); do [ -s address ] && break; sleep 0.05; done
        timeout -k 5 40 %s client.py $(sed 's/.*:\([0-9]*\).*/\1/' address) $server; status=$?
        (sleep 20; kill -9 $server) > /dev/null 2>&1 & dog=$!
        kill $server; wait $server; echo "ended $? $status"
        kill $dog; cat errors]], folder, environment, (server:gsub("&& ", "&& exec ")), python)
      local requests, launches, rest = output:match "^(%d+) requests, (%d+) launches, at most %d+ in one\n(.*)$"
      assert.truthy(requests, output)
      local _, lines = support.read_file(folder .. "/service.lua"):gsub("\n", "")
      assert.equal("400 404 (500, 'failed\\n')\nHTTP/1.1 400 Not OK HTTP/1.1 431 Not OK\n1\n200\nended 0 0\n"
        .. "libuv: ../service.lua:" .. lines .. ": mine\n", rest)
      assert.equal(256, tonumber(requests))
      return tonumber(launches)
    end
    for _, isolate in ipairs { "none", "thread", "process" } do
      assert.truthy(stats("GPULUA_ISOLATE=" .. isolate) <= 64)
    end
    assert.equal(256, stats "BATCH=1")
  end)

  it_("the blocks of docs/embedding.md are a program, which prints what is said there", function()
    local text, blocks = assert(support.read_file "docs/embedding.md"), {}
    for block in text:gmatch "```c\n(.-)```" do
      blocks[#blocks + 1] = block
    end
    assert.truthy(#blocks >= 7)
    support.write_file(folder .. "/embedding.c", table.concat(blocks))
    local wanted = text:match "```text\n(.-)```"
    assert.equal(wanted, said(host(cc .. " -std=c11", "embedding.c", "embedding")))
    local commands = {}
    for command in text:gmatch "```sh\n(cc [^\n]*)\n```" do
      commands[#commands + 1] = command
      built.runs("cd %s && export PKG_CONFIG_PATH=%s/lib/pkgconfig && %s -o embedded", folder, prefix,
        command:gsub("host%.c", "embedding.c"))
      local is_static = command:find "libgpulua%.a"
      assert.equal(not is_static, built.run("ldd %s/embedded | grep libgpulua", folder) ~= "")
      assert.equal(wanted, built.runs("cd %s/elsewhere && LD_LIBRARY_PATH=%s/lib ../embedded", folder, prefix))
    end
    assert.equal(2, #commands)
  end)
end)
