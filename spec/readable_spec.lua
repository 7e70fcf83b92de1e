-- gpu.readable: waiting for descriptors, in tasks and outside of them.

local gpu = require "gpulua"
local lfs = require "lfs"
local support = require "spec.support"

local path_of = {} -- file -> its path

-- Both ends of a pipe, as files.
local function pipe()
  local path = os.tmpname()
  os.remove(path)
  assert(os.execute("mkfifo " .. path))
  local writer = assert(io.open(path, "r+")) -- "w" would wait for a reader
  local reader = assert(io.open(path, "r"))
  writer:setvbuf "no"
  path_of[reader] = path
  return reader, writer
end

local function descriptor_of(reader)
  for name in lfs.dir "/proc/self/fd" do
    local target = tonumber(name) and lfs.symlinkattributes("/proc/self/fd/" .. name, "target")
    if target == path_of[reader] then -- the newest
      return path_of[reader] and tonumber(name)
    end
  end
end

local function close(...)
  for _, file in ipairs { ... } do
    if io.type(file) == "file" then
      file:close()
    end
    os.remove(path_of[file] or "")
  end
end

describe("gpu.readable", function()
  local reader, writer
  before_each(function() reader, writer = pipe() end)
  after_each(function() close(reader, writer) end)

  it("waits until there is something to read, and other tasks run meanwhile", function()
    local ran = {}
    local task = gpu.spawn(function()
      local is_readable = gpu.readable(reader)
      table.move({ is_readable, reader:read(1) }, 1, 2, #ran + 1, ran)
    end)
    gpu.sleep(0.01)
    assert.equal("waiting", task:status())
    ran[#ran + 1] = "other"
    writer:write "x"
    task:await()
    assert.same({ "other", true, "x" }, ran)
  end)

  it("is true at once where there is something, and of files on disk", function()
    writer:write "x"
    assert.is_true(gpu.readable(reader))
    assert.is_true(gpu.readable(reader, 0))
    local file <close> = assert(io.open("README.md"))
    assert.is_true(gpu.readable(file))
  end)

  it("is true when the other end is gone", function()
    local ended <close> = assert(io.popen "sleep 0.05")
    assert.is_true(gpu.readable(ended))
    assert.equal("", ended:read "a")
  end)

  it("is false when the time is over", function()
    local begun = os.clock()
    assert.is_false(gpu.readable(reader, 0.2))
    assert.is_false(gpu.readable(reader, 0))
    assert.truthy(os.clock() - begun < 0.15) -- processor time: it sleeps
    writer:write "x"
    assert.is_true(gpu.readable(reader, 60))
  end)

  it("takes descriptors and files", function()
    local number = assert(descriptor_of(reader))
    assert.is_false(gpu.readable(number, 0))
    writer:write "x"
    assert.is_true(gpu.readable(number, 0))
  end)

  it("wakes all who wait for the same", function()
    local tasks = {}
    for i = 1, 20 do
      tasks[i] = gpu.spawn(gpu.readable, reader, i % 2 == 0 and 60 or nil)
    end
    tasks[21] = gpu.spawn(gpu.readable, reader, 0.005)
    assert.is_false((tasks[21]:await()))
    tasks[3]:cancel()
    writer:write "x"
    for i = 1, 20 do
      local ok, result = tasks[i]:join()
      assert.equal(i ~= 3, ok)
      assert.equal(i == 3 and "Cancelled" or true, i == 3 and result.code or result)
    end
  end)

  it("waits for many at a time", function()
    local pipes, tasks = {}, {}
    for i = 1, 100 do
      local r, w = pipe()
      pipes[i] = { r, w }
      tasks[i] = gpu.spawn(function() return gpu.readable(r) and r:read(1) end)
    end
    gpu.sleep(0)
    for i = 100, 1, -1 do
      pipes[i][2]:write(string.char(i))
    end
    for i, result in ipairs { gpu.all(tasks) } do
      assert.equal(string.char(i), result)
      close(pipes[i][1], pipes[i][2])
    end
  end)

  it("is cancelled, and given up by gpu.timeout", function()
    local task = gpu.spawn(gpu.readable, reader)
    gpu.sleep(0)
    support.is_error(select(2, task:cancel():join()), "Cancelled")
    support.raises("Timeout", {}, gpu.timeout, 0.01, gpu.readable, reader)
    support.raises("Timeout", {}, gpu.timeout, 0.01, function()
      coroutine.wrap(gpu.readable)(reader, 60) -- which blocks
    end)
    writer:write "x"
    assert.is_true(gpu.readable(reader)) -- nothing of those waits is left
  end)

  it("ends where the descriptor is closed meanwhile, also when another has its number, or a child keeps it", function()
    for _, again in ipairs { "no", "another", "at once", "child" } do
      local r, w = pipe()
      local hold, release = pipe() -- what the child waits for
      local child = again == "child" and io.popen("head -c 1 " .. path_of[hold])
      local task = gpu.spawn(gpu.readable, r)
      local second = gpu.spawn(gpu.readable, r, 60)
      gpu.sleep(0)
      local path = path_of[r]
      r:close()
      local other = (again == "another" or again == "at once") and assert(io.open(path, "r"))
      local waits = again == "at once" and gpu.spawn(gpu.readable, other)
      support.is_error(select(2, task:join(5)), "InvalidArgument", "closed while it was waited for")
      support.is_error(select(2, second:join(5)), "InvalidArgument")
      if other then
        waits = waits or gpu.spawn(gpu.readable, other)
        gpu.sleep(0)
        w:write "x"
        assert.is_true(waits:await(5))
        other:close()
      end
      w:close()
      os.remove(path)
      if child then
        assert.is_false(gpu.readable(child, 0.01))
        release:write "x"
        child:close()
      end
      close(hold, release)
    end
  end)

  it("is no wait that can never end, and blocks where a task cannot yield", function()
    gpu.spawn(function()
      gpu.sleep(0.02)
      writer:write "x"
    end)
    assert.is_true(gpu.run(gpu.readable, reader))
    assert.equal("x", reader:read(1))
    local child <close> = assert(io.popen "sleep 0.02; echo y")
    assert.is_true(coroutine.wrap(function() return gpu.readable(child) end)())
    assert.is_false(coroutine.wrap(function() return gpu.readable(reader, 0.01) end)())
  end)

  it("refuses what is no open descriptor", function()
    support.raises("InvalidArgument", "a descriptor or a file expected, got nothing", gpu.readable)
    support.raises("InvalidArgument", "got string", gpu.readable, "1")
    support.raises("InvalidArgument", "got number", gpu.readable, 1.5)
    support.raises("InvalidArgument", "-1 is no descriptor", gpu.readable, -1)
    support.raises("InvalidArgument", "4294967296 is no descriptor", gpu.readable, 1 << 32)
    support.raises("InvalidArgument", "descriptor 900000 cannot be waited for", gpu.readable, 900000)
    support.raises("InvalidArgument", "cannot be waited for", gpu.readable, gpu.pollfd())
    support.raises("InvalidArgument", "argument 2 of readable: seconds", gpu.readable, reader, -1)
    local closed = io.tmpfile()
    closed:close()
    support.raises("InvalidArgument", "the file is closed", gpu.readable, closed)
  end)

  it("leaves no descriptor behind", function()
    gpu.readable(reader, 0)
    local before = support.descriptors()
    for _ = 1, 100 do
      gpu.readable(reader, 0)
      gpu.spawn(gpu.readable, reader):cancel():join()
    end
    assert.equal(before, support.descriptors())
  end)

  it("outside of tasks runs them, and wakes the loop of a host", function()
    local output, code = support.stock_script [[
      local gpu = require "gpulua"
      local path = os.tmpname()
      os.execute(("rm %s; mkfifo %s"):format(path, path))
      local other_end = io.open(path, "r+")
      local pipe = io.popen("head -c 1 " .. path)
      gpu.spawn(function()
        gpu.sleep(0.01)
        print "task"
        other_end:write "x"
        other_end:close()
      end)
      print(gpu.readable(pipe), pipe:read())
      os.remove(path)
      pipe:close()
      pipe = io.popen "sleep 0.05; echo y"
      gpu.spawn(function() print(gpu.readable(pipe), pipe:read()) end)
      local turns, left = 0
      repeat
        left = gpu.step(10)
        turns = turns + 1
      until left == 0
      print(turns < 10, gpu.timeout_hint())
    ]]
    assert.equal(0, code, output)
    assert.truthy(output:find("task\ntrue\tx\n", 1, true), output)
    assert.truthy(output:find("true\ty\n", 1, true), output)
  end)
end)
