-- The rock, made, tested, packed and installed. `make install` as a user has it: what is where, the manual page, what
-- shells complete, and that `make uninstall` takes away what install gave.

local built = require "spec.built"
local lfs = require "lfs"
local support = require "spec.support"

--- Everything below a folder: path -> "folder", where a link points to, or a file's bytes, each with its mode.
local function tree(folder)
  local seen = {}
  local function walk(path)
    for name in lfs.dir(path) do
      local full = path .. "/" .. name
      if name ~= "." and name ~= ".." then
        local mode = lfs.symlinkattributes(full, "mode")
        local rest = mode == "link" and lfs.symlinkattributes(full, "target")
          or mode == "file" and support.read_file(full) or ""
        seen[full:sub(#folder + 2)] = ("%s %s %s"):format(mode, lfs.symlinkattributes(full, "permissions"), rest)
        if mode == "directory" then
          walk(full)
        end
      end
    end
  end
  walk(folder)
  return seen
end

--- What one tree has and the other has not, or has otherwise; sorted.
local function difference(from, to)
  local paths = {}
  for path, what in pairs(from) do
    paths[#paths + 1] = to[path] ~= what and path or nil
  end
  table.sort(paths)
  return paths
end

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

-- From sources alone, without CUDA's headers, and not optimised: that takes less time. Who builds first compiles all of
-- it; make finds that done for those behind, who have the same compiler and flags.
local flags <const> = "CC=cc CFLAGS=-Werror=unused"
local from = "unset DEVICE CC CXX\ncd %s && ISOLATE= MAKEFLAGS=-j2 BUILD=build CUDA_HOME=/nowhere "
local workplace, sources

local function copy_sources()
  if not workplace then
    workplace = built.folder()
    sources = workplace .. "/gpulua"
    from = from:format(sources)
    built.runs("mkdir %s %s/elsewhere && cp -a Makefile LICENSE README.md bench lua rockspec spec src tools types %s",
      sources, workplace, sources)
    support.write_file(workplace .. "/kernel.lua", built.kernel)
  end
end

teardown(function()
  if workplace then
    os.execute("rm -rf " .. workplace)
  end
end)

describe("the rock", function()
  local no_luarocks = not os.execute "command -v luarocks-5.4 zip unzip > /dev/null"
  local folder, make, enter

  setup(function()
    if not missing and not no_luarocks then
      copy_sources()
      folder = workplace
      make = from .. "luarocks-5.4"
      enter = ("cd %s/elsewhere && eval \"$(luarocks-5.4 path --tree %s/%%s)\""):format(folder, folder)
    end
  end)

  local function rock(name, f)
    it_(name, function()
      if no_luarocks then
        pending "no luarocks-5.4, or no zip or unzip for it"
      end
      f()
    end)
  end

  --- The module and the command of the rock in a tree work from another folder.
  local function works(name)
    local where = enter:format(name)
    assert.equal("42\n", said(where .. " && lua5.4 -lgpulua ../kernel.lua"))
    assert.equal("42\n", said(where .. " && gpulua ../kernel.lua"))
    assert.equal(("%s/%s/lib/lua/5.4/gpulua.so\n"):format(folder, name),
      built.runs(where .. [=[ && lua5.4 -e 'print(package.searchpath("gpulua", package.cpath))']=]))
    assert.equal(("%s/%s/bin/gpulua\n"):format(folder, name), built.runs(where .. " && command -v gpulua"))
    -- What docs/editor.md says.
    local types = built.runs("luarocks-5.4 --tree %s/%s show --rock-dir gpulua", folder, name):match "%S+" .. "/types"
    assert.truthy(lfs.attributes(types .. "/library/gpulua.lua") and lfs.attributes(types .. "/luacheck.lua"), types)
  end

  rock("is made from sources, without CUDA, and works from another folder", function()
    built.runs("%s make --tree %s/made rockspec/gpulua-scm-1.rockspec %s", make, folder, flags)
    works "made"
    local cuda = built.runs("%s/made/bin/gpulua --info", folder):match "cuda: ([^\n]*)"
    if not lfs.attributes "/usr/include/cuda.h" then
      assert.truthy(cuda:find("this build of gpulua has no backend 'cuda'", 1, true), cuda)
    end
  end)

  rock("is tested by luarocks test", function()
    local test = make .. " test rockspec/gpulua-scm-1.rockspec -- " .. flags .. " NVRTC_CHECK= RANGE_LISTENER= "
      .. "BENCH_PROGRAMS= TEST_PROGRAMS=build/spec/runtime/types_test"
    local output, status = built.run("%s", test)
    assert.equal(0, status, output)
    assert.truthy(output:find "\n%d+ passed, 0 failed, 0 skipped\n", output)
    local program = sources .. "/spec/runtime/types_test.c"
    support.write_file(program, support.read_file(program):gsub("return tap_finish", "tap_check(&tap, 0, \"no\"); %0"))
    output, status = built.run("%s", test)
    assert.not_equal(0, status, output)
    assert.truthy(output:find "\n%d+ passed, 1 failed, 0 skipped\n", output)
  end)

  rock("is packed, installed into an empty tree, and removed again", function()
    built.runs("cd %s && luarocks-5.4 pack gpulua --tree %s/made", folder, folder)
    -- What it was made of is not there any more.
    assert(os.rename(sources, sources .. "-away"))
    assert(os.rename(folder .. "/made", folder .. "/made-away"))
    built.runs("cd %s && luarocks-5.4 install --tree %s/empty gpulua-scm-1.linux-*.rock", folder, folder)
    works "empty"
    built.runs("luarocks-5.4 remove --tree %s/empty gpulua", folder)
    for path in pairs(tree(folder .. "/empty")) do
      assert.falsy(path:find "gpulua", path)
    end
    assert(os.rename(sources .. "-away", sources))
  end)

  rock("of a release says what the other says, and is built from the release's tag", function()
    local scm, release = {}, {}
    local version = require "gpulua".version
    local path = ("rockspec/gpulua-%s-1.rockspec"):format(version)
    assert(loadfile("rockspec/gpulua-scm-1.rockspec", "t", scm))()
    assert(loadfile(path, "t", release))()
    assert.equal(version .. "-1", release.version)
    assert.equal("v" .. version, release.source.tag)
    scm.version, scm.source.tag = release.version, release.source.tag
    assert.are.same(scm, release)

    if not os.execute "command -v git > /dev/null" then
      pending "no git"
    end
    -- What the rock above was made of is there already, made to look newer than the tag's sources, which are the same
    -- ones. It is linked by their names, so that of a source that the tag lacks nothing is in the rock.
    local objects = folder .. "/objects"
    built.runs([[mkdir -p %s/build/obj && cd %s/build && cp -a . %s && cd %s || exit 1
      rm -rf obj/*.o obj/interpreter gpulua* lua && find obj -name '*.o' -exec touch -d '+1 day' {} +]], sources,
      sources, objects, objects)
    built.runs("cd %s && git init -q && echo /build > .git/info/exclude && git add . && git -c user.name=nobody -c "
      .. "user.email=nobody commit -q -m sources && git tag %s && git rm -q Makefile", sources, release.source.tag)
    local text, count = support.read_file(path):gsub("git%+file://%.", "git+file://" .. sources)
    assert.equal(1, count)
    support.write_file(sources .. "/" .. path, text)
    local output = built.runs("%s build --tree %s/release %s %s", make:gsub("BUILD=build", "BUILD=" .. objects), folder,
      path, flags)
    assert.truthy(output:find(" CC +" .. objects .. "/obj/interpreter/"), output)
    built.runs("cd %s && git checkout -q %s Makefile", sources, release.source.tag)
    works "release"
  end)
end)

it_("make deps says what is missing, and nothing of how it looks", function()
  local folder = built.folder()
  built.runs("for name in sh ls id mkdir mktemp rm grep; do ln -s \"$(command -v $name)\" %s; done", folder)
  local output, status = built.run("trap '' PIPE; PATH=%s sh tools/deps.sh all", folder)
  os.execute("rm -r " .. folder)
  assert.equal(1, status)
  assert.truthy(output:find("  Lua 5.4, lua5.4 (Debian: lua5.4)\n", 1, true), output)
  for line in output:gmatch "[^\n]+" do
    assert.truthy(line:find "^gpulua: " or line:find "^  .* %(Debian: [%w .+-]+%)$", line)
  end
end)

it_("all that make test runs is made where CUDA's headers are not there", function()
  copy_sources()
  local output, status = built.run("%s make %s test-build", from, flags)
  assert.equal(0, status, output)
end)

describe("make install", function()
  local folder, prefix

  setup(function()
    if missing then
      return
    end
    folder = built.folder()
    prefix = folder .. "/usr"
    -- Staged, and put where it belongs afterwards, as packages are made.
    built.install(prefix, folder .. "/stage")
    assert.is_nil(lfs.attributes(prefix))
    assert(os.rename(folder .. "/stage" .. prefix, prefix))
    assert(lfs.mkdir(folder .. "/elsewhere"))
  end)
  teardown(function()
    if folder then
      os.execute("rm -r " .. folder)
    end
  end)

  it_("puts things where they belong", function()
    local want = { "bin/gpulua", "include/gpulua.h", "lib/libgpulua.a", "lib/libgpulua.so", "lib/pkgconfig/gpulua.pc",
      "lib/lua/5.4/gpulua.so", "lib/lua/5.4/gpulua/core.so", "libexec/gpulua-exec", "share/man/man1/gpulua.1",
      "share/bash-completion/completions/gpulua", "share/zsh/site-functions/_gpulua",
      "share/fish/vendor_completions.d/gpulua.fish", "share/gpulua/types/library/gpulua.lua",
      "share/doc/gpulua/README.md", "share/doc/gpulua/LICENSE", "share/doc/gpulua/docs/tutorial.md",
      "share/doc/gpulua/docs/pictures/ecg.png", "share/doc/gpulua/examples/saxpy.lua" }
    for _, path in ipairs(want) do
      assert.truthy(lfs.attributes(prefix .. "/" .. path), path)
    end
    assert.truthy(support.read_file(prefix .. "/lib/pkgconfig/gpulua.pc"):find("prefix=" .. prefix .. "\n", 1, true))
    -- Nothing knows of the stage, or of the tree that it was built in.
    assert.equal("", (built.run("grep -rlI %s/stage %s", folder, prefix)))
  end)

  it_("runs kernels from another folder, also in a process of their own", function()
    support.write_file(folder .. "/kernel.lua", built.kernel)
    assert.equal("42\n", said(("cd %s/elsewhere && ../usr/bin/gpulua ../kernel.lua"):format(folder)))
    -- By its name, and through a link.
    built.runs("ln -s usr/bin/gpulua %s/linked", folder)
    assert.equal("42\n", said(("cd %s/elsewhere && PATH=%s/bin:$PATH && gpulua ../kernel.lua"):format(folder, prefix)))
    assert.equal("42\n", said(("cd %s/elsewhere && ../linked ../kernel.lua"):format(folder)))
    assert.equal("42\n",
      said(("cd %s/elsewhere && LUA_CPATH='%s/lib/lua/5.4/?.so' lua5.4 ../kernel.lua"):format(folder, prefix)))
  end)

  it_("takes away what it gave, and nothing else", function()
    local place = folder .. "/place"
    built.runs("mkdir -p %s && cd %s && mkdir -p bin lib/lua/5.4 share/man/man1 lib/pkgconfig && touch bin/gpulua2 "
      .. "lib/libgpulua2.so lib/lua/5.4/gpulua2.so share/man/man1/gpulua.3 && ln -s nowhere lib/pkgconfig/gpulua2.pc",
      place, place)
    local install = ("make -s BUILD=%s %s PREFIX=%s"):format(built.copy(), built.settings(), place)
    local before = tree(place)
    built.runs("%s install", install)
    local installed = tree(place)
    assert.are.same({}, difference(before, installed))
    built.runs("%s install", install) -- over itself
    assert.are.same(difference(installed, before), difference(tree(place), before))
    built.runs("%s uninstall", install)
    local after = tree(place)
    assert.are.same({}, difference(before, after))
    for _, path in ipairs(difference(after, before)) do -- folders that others may use
      assert.truthy(after[path]:find "^directory", path)
      assert.falsy(path:find "gpulua", path)
    end
    built.runs("%s uninstall", install) -- nothing is there: fine
    assert.are.same(difference(after, before), difference(tree(place), before))
    -- Others can read what somebody has installed who usually lets nobody.
    built.runs("umask 077 && %s install", install)
    assert.are.same({}, difference(installed, tree(place)))
    built.runs("umask 077 && %s install DESTDIR=%s/private", install, folder)
    built.runs("test -z \"$(find %s/private/* ! -perm -o=r)\"", folder)
    built.runs("%s uninstall", install)
    -- What somebody has put into our folder stays.
    built.runs("%s install && touch %s/lib/lua/5.4/gpulua/mine.so && %s uninstall", install, place, install)
    assert.truthy(tree(place)["lib/lua/5.4/gpulua/mine.so"])
  end)

  describe("for its user:", function()
    local function options()
      local help, names = built.runs("%s/bin/gpulua --help", prefix), {}
      for name in help:gmatch "\n  (%-%-?%w+)" do
        names[#names + 1] = not names[name] and name or nil
        names[name] = true
      end
      return names
    end

    it_("the manual page has every option, and is well formed", function()
      local page = prefix .. "/share/man/man1/gpulua.1"
      local text = support.read_file(page):gsub("\\%-", "-")
      local names = options()
      assert.truthy(#names >= 15)
      for _, name in ipairs(names) do
        assert.truthy(text:find("\n.It Fl " .. name:sub(2):gsub("%-", "%%-") .. "%f[^%w]"), name)
      end
      -- Of the environment it has all but what tests and other programs of ours set.
      local known, count = support.read_file "docs/architecture.md":match "\n## Environment\n(.-)\n## ", 0
      for name in known:gmatch "GPULUA_%u[%u%d_]+" do
        if not name:find "_TEST_" and not name:find "_CHECK_" and name ~= "GPULUA_PREPARED" then
          count = count + 1
          assert.truthy(text:find("\n%.It [^\n]*Ev " .. name .. "%f[%s]"), name)
        end
      end
      assert.truthy(count >= 20, count)
      if os.execute "command -v mandoc > /dev/null" then
        assert.equal("", (built.run("mandoc -T lint -W warning %s", page)))
        assert.truthy(built.runs("mandoc -T utf8 %s | col -b", page):find("--device cpu|cuda|cuda:N", 1, true), page)
      end
      if os.execute "command -v man > /dev/null && command -v groff > /dev/null" then
        assert.equal("", (built.run("LC_ALL=C.UTF-8 MANWIDTH=80 man --warnings -l %s > /dev/null", page)))
      end
    end)

    it_("bash completes options, their values and names of files", function()
      local place = folder .. "/files"
      built.runs("mkdir -p '%s/sub dir' && cd %s && touch a.lua 'b c.lua' k.cu t.json", place, place)
      local script = ("cd %s && . %s/share/bash-completion/completions/gpulua\n"):format(place, prefix) .. [[
        complete -p gpulua | grep -q _gpulua || exit 1
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
        _gpulua
        printf '%s\n' "${COMPREPLY[@]}" | sort]]
      local function completes(wanted, ...)
        local words = {}
        for i, word in ipairs { "gpulua", ... } do
          words[i] = built.quoted(word)
        end
        local output = built.runs("LC_ALL=C bash -c %s bash %s", built.quoted(script), table.concat(words, " "))
        assert.equal(wanted, (output:gsub("\n$", ""):gsub("\n", "|")))
      end
      local names = options()
      table.sort(names)
      completes(table.concat(names, "|"), "-")
      completes("--device", "--de")
      completes("cpu|cuda", "--device", "")
      completes("cuda", "--device", "=", "cu")
      completes("cpu|cuda", "--device", "=")
      completes("none|process|thread", "--isolate", "")
      completes("hashes", "--check", "=", "h")
      completes("a.lua|b c.lua|k.cu|sub dir|t.json", "--check", "")
      completes("k.cu|sub dir", "--kernel", "")
      completes("sub dir|t.json", "--trace", "")
      completes("", "-e", "")
      completes("", "--seeds", "7")
      completes("b c.lua", "--device", "cpu", "b")
      completes("--isolate", "--device", "cuda", ":", "1", "--is")
      completes("b c.lua", "--device", "=", "cpu", "b")
      completes("a.lua", "-i", "a")
      completes("", "a.lua", "--de") -- the script's own
      completes("k.cu", "a.lua", "k")
    end)

    it_("zsh and fish complete the same", function()
      local fish = prefix .. "/share/fish/vendor_completions.d/gpulua.fish"
      local zsh = prefix .. "/share/zsh/site-functions/_gpulua"
      for _, path in ipairs { fish, zsh } do
        local text = support.read_file(path)
        for _, name in ipairs(options()) do
          local plain = name:gsub("^%-%-", "")
          assert.truthy(text:find(name, 1, true) or text:find(" -l " .. plain .. " ", 1, true)
            or text:find(" -s " .. plain:sub(2) .. " ", 1, true), name)
        end
      end
      local has_fish, has_zsh = os.execute "command -v fish > /dev/null", os.execute "command -v zsh > /dev/null"
      if has_fish then
        local function completes(wanted, line)
          local script = ("source %s; complete -C %s | string split -f1 \\t"):format(fish, built.quoted(line))
          local output = built.run("cd %s/elsewhere && HOME=%s fish --no-config -c %s", folder, folder,
            built.quoted(script))
          assert.equal(wanted, (output:gsub("\n$", ""):gsub("\n", "|")))
        end
        completes("--device", "gpulua --de")
        completes("cpu|cuda", "gpulua --device ")
        completes("--device=cpu|--device=cuda", "gpulua --device=")
        completes("--info|--isolate", "gpulua --device cpu --i")
        completes("", "gpulua a.lua --de")
      end
      if has_zsh then
        -- An interactive shell on a terminal of its own: a tab, and away with the line.
        local script = ([[
          zmodload zsh/zpty
          zpty shell zsh -f -i
          zpty -w shell "PS1=; fpath=(%s \$fpath); autoload -Uz compinit; compinit -u -D"
          zpty -w shell "cd %s/elsewhere; print rea''dy"
          zpty -r -m shell line '*ready*'
          zpty -w -n shell $'gpulua --dev\t-and-\x15'
          zpty -w shell 'print do''ne'
          zpty -r -m shell line '*done*'
          print -r -- $line]]):format(zsh:match "^(.*)/", folder)
        -- On a busy machine the line may be gone before it has been completed: then once more.
        local output
        for _ = 1, 5 do
          output = built.runs("cd %s && HOME=%s TERM=dumb timeout 60 zsh -f -c %s", folder, folder,
            built.quoted(script))
          if output:find("--device", 1, true) then
            break
          end
        end
        assert.truthy(output:find("--device", 1, true), output)
      end
      if not (has_fish and has_zsh) then
        pending("no " .. (has_fish and "zsh" or "fish"))
      end
    end)
  end)
end)
