-- docs/coverage.md names tests: each of them must exist.

describe("docs/coverage.md", function()
  local function read(path)
    local file = io.open(path, "rb")
    if not file then
      return nil
    end
    local text = file:read "a"
    file:close()
    return text
  end

  it("names tests that are there", function()
    local texts, missing, count = {}, {}, 0
    for row in assert(read "docs/coverage.md"):gmatch "\n|([^\n]*)|" do
      local path
      local at = 1 -- paths in backquotes, each followed by the names of tests in it
      while true do
        local path_start, path_end, found_path = row:find("`(spec/[%w_/]+%.%w+)`", at)
        local name_start, name_end, found_name = row:find('"([^"]+)"', at)
        if path_start and (not name_start or path_start < name_start) then
          path, at = found_path, path_end + 1
          texts[path] = texts[path] or read(path)
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
