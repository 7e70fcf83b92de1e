-- Output handler of busted: every failure in full where it happens, then one line
-- "N passed, N failed, N skipped". Errors outside of tests count as failures. The test that runs is named in the file
-- GPULUA_TEST_CURRENT, if that is set, so that a run that crashes or hangs shows where; GPULUA_TEST_TIMES is a file for
-- the seconds that each test takes.

local pretty = require "pl.pretty"

return function(options)
  local busted = require "busted"
  local handler = require "busted.outputHandlers.base"()
  local current_path = os.getenv "GPULUA_TEST_CURRENT"
  local times_path = os.getenv "GPULUA_TEST_TIMES"
  local times = times_path and assert(io.open(times_path, "a"))

  local function print_failure(failure)
    local trace = failure.trace or {}
    local at = failure.element.trace or trace
    local message = failure.message
    if message == nil then
      message = "error without a value"
    elseif type(message) ~= "string" then
      local meta = getmetatable(message)
      message = meta and meta.__tostring and tostring(message) or pretty.write(message)
    end
    io.write(("FAILED %s\n  %s:%s\n  %s\n"):format(failure.name, at.short_src or "?", at.currentline or "?",
      (message:gsub("\n", "\n  "))))
    if failure.isError and trace.traceback then
      io.write("  ", (trace.traceback:gsub("\n", "\n  ")), "\n")
    end
    io.flush()
  end

  function handler.test_start(element)
    local current <close> = current_path and io.open(current_path, "w") or nil
    if current then
      local at = element.trace or {}
      current:write(("%s (%s:%s)\n"):format(handler.getFullName(element), at.short_src or "?", at.currentline or "?"))
    end
    if options.verbose then
      io.write("       ", handler.getFullName(element), "\n")
      io.flush()
    end
    return nil, true
  end

  function handler.test_end(element, _, status)
    if times then
      times:write(("%.3f %s %s\n"):format(element.duration or 0, (element.trace or {}).short_src or "?",
        handler.getFullName(element)))
      times:flush()
    end
    if status == "pending" then
      local pending = handler.pendings[#handler.pendings]
      local why = pending.message and ": " .. tostring(pending.message) or ""
      io.write("skipped ", pending.name, why, "\n")
    elseif status == "failure" then
      print_failure(handler.failures[#handler.failures])
    elseif status == "error" then
      print_failure(handler.errors[#handler.errors])
    end
    io.flush()
    return nil, true
  end

  function handler.outside(element)
    if element.descriptor ~= "it" then
      print_failure(handler.errors[#handler.errors])
    end
    return nil, true
  end

  function handler.exit()
    io.write(("%d passed, %d failed, %d skipped\n"):format(handler.successesCount,
      handler.failuresCount + handler.errorsCount, handler.pendingsCount))
    io.flush()
    return nil, true
  end

  busted.subscribe({ "test", "start" }, handler.test_start, { predicate = handler.cancelOnPending })
  busted.subscribe({ "test", "end" }, handler.test_end, { predicate = handler.cancelOnPending })
  busted.subscribe({ "error" }, handler.outside)
  busted.subscribe({ "failure" }, handler.outside)
  busted.subscribe({ "exit" }, handler.exit)

  return handler
end
