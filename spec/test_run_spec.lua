-- What runs the suite ends when it is told to, and all that it has started with it.

local built = require "spec.built"
local support = require "spec.support"

describe("tools/test.sh", function()
  for _, signal in ipairs { "INT", "TERM", "HUP" } do
    it("ends by SIG" .. signal .. ", and with it what it has begun", function()
      if support.isolation() ~= "none" or support.is_checked() then
        pending "once is enough"
      end
      local folder = built.folder()
      support.write_file(folder .. "/program", "#!/bin/sh\nsleep 60 &\necho $! > " .. folder .. "/pid\nwait\n")
      local output, status = built.run([[
        chmod +x %s/program
        BUILD=%s ISOLATE= env --default-signal=INT sh tools/test.sh %s/program &
        for _ in $(seq 100); do [ ! -s %s/pid ] || break; sleep 0.1; done
        kill -%s $!
        start=$(date +%%s)
        wait $!
        echo "status $?, after $(($(date +%%s) - start < 10 ? 0 : 1))"
        for _ in $(seq 20); do kill -0 $(cat %s/pid) 2> /dev/null || exit 0; sleep 0.1; done
        kill $(cat %s/pid)
        exit 1]], folder, folder, folder, folder, signal, folder, folder)
      os.execute("rm -r " .. folder)
      assert.equal("status 130, after 0\n", output)
      assert.equal(0, status)
    end)
  end
end)
