-- docs/coverage.md names tests: each of them must exist.

local support = require "spec.support"

describe("docs/coverage.md", function()
  it("names tests that are there", function()
    local texts, missing, count = {}, {}, 0
    for row in assert(support.read_file "docs/coverage.md"):gmatch "\n|([^\n]*)|" do
      local path
      local at = 1 -- paths in backquotes, each followed by the names of tests in it
      while true do
        local path_start, path_end, found_path = row:find("`(spec/[%w_/]+%.%w+)`", at)
        local name_start, name_end, found_name = row:find('"([^"]+)"', at)
        if path_start and (not name_start or path_start < name_start) then
          path, at = found_path, path_end + 1
          texts[path] = texts[path] or support.read_file(path)
          if not texts[path] then
            missing[#missing + 1] = path
          end
        elseif name_start then
          count = count + 1
          if not path or not (texts[path] or ""):find(found_name, 1, true) then
            missing[#missing + 1] = ("%s: %s"):format(path, found_name)
          end
          at = name_end + 1
        else
          break
        end
      end
    end
    assert.equal("", table.concat(missing, "\n"))
    assert.truthy(count > 100, count)
  end)
end)
