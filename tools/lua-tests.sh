#!/bin/sh
# Lua's own test suite (https://www.lua.org/tests/, of the version that gpulua was built with) by gpulua as by lua:
#   tools/lua-tests.sh FOLDER     as `make lua-tests LUA_TESTS=FOLDER` runs it
# Each file is run by lua as it is, and by gpulua without the lines that docs/limits.md says are different. A file passes
# when gpulua's run ends as lua's does, which is well unless that version of Lua has a bug that the suite knows.
# Tests of Lua's internals want a Lua that is built for them, and skip themselves in both.
# From the environment: BUILD, LUA, CC, LUA_CFLAGS.
set -u
build=${BUILD:-build} lua=${LUA:-lua5.4} cc=${CC:-cc} seconds=${TEST_TIMEOUT_S:-300}
tests=${1:-}
if [ ! -e "$tests/all.lua" ]; then
    echo "tools/lua-tests.sh: the folder with Lua's tests expected (all.lua), from https://www.lua.org/tests/"
    exit 1
fi
gpulua=$(cd "$build" && pwd)/gpulua
lua=$(command -v "$lua")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cp -R "$tests" "$out/tests"
cd "$out/tests" || exit 1
mkdir -p libs/P1
for library in lib1 lib11 lib2 lib21 lib22; do
    # shellcheck disable=SC2086
    $cc -O2 -fPIC -shared ${LUA_CFLAGS:--I/usr/include/lua5.4} -o libs/$library.so libs/$library.c || exit 1
done
mv libs/lib22.so libs/lib2-v2.so

# Without the lines that docs/limits.md says are different, and why.
without() {
    case $1 in
    coroutine.lua) # the main chunk is a task
        sed -e '/^assert(type(main) == "thread" and ismain)$/d' \
            -e '/^assert(not coroutine.isyieldable(main) and not coroutine.isyieldable())$/d' ;;
    main.lua) # no echo of what is not typed; the stack of a task that is over; the second line of -v
        sed -e '/^RUN(.*lua -e "%s" -i < %s > %s.*, prompt, prog, out)$/,/^]], 1, true))$/d' \
            -e '/^NoRun(progname .. ": 6.n"/d' -e 's/PUC%-Rio\\nhello/PUC%-Rio\\n.*hello/' ;;
    *) cat ;;
    esac
}

# Standard input is one that nobody writes to and that does not end.
mkfifo "$out/input"
exec 9<> "$out/input"

# ending INTERPRETER FILE: its exit status, and its message, or else what it said last.
ending() {
    timeout -k 10 "$seconds" "$1" -e '_nomsg = true; Message = print' "$2" > "$out/log" 2>&1 < "$out/input" 9>&-
    status=$?
    message=$(grep -a "^$1: " "$out/log" | tail -n 1)
    echo "$status: ${message:-$(grep -av '^\.*$' "$out/log" | tail -n 1)}" | sed "s|$1|lua|g"
}

# big.lua yields, which all.lua, whose order this is, knows.
printf '%s\n' 'local f = coroutine.wrap(assert(loadfile "big.lua"))' 'assert(f() == "b")' 'assert(f() == "a")' > in_big.lua
passed=0 failed=0 skipped=0
for file in main gc db calls strings literals tpack attrib gengc locals constructs code in_big cstack nextvar pm utf8 api \
    memerr events vararg closure coroutine goto errors math sort bitwise verybig files; do
    file=$file.lua
    if [ ! -e "$file" ]; then
        echo "$file: not in this version"
        skipped=$((skipped + 1))
        continue
    fi
    by_lua=$(ending "$lua" "$file")
    without "$file" < "$file" > "$out/file"
    left_out=$(($(wc -l < "$file") - $(wc -l < "$out/file")))
    cp "$out/file" "$file"
    by_gpulua=$(ending "$gpulua" "$file")
    if [ "$by_lua" = "$by_gpulua" ]; then
        passed=$((passed + 1))
        echo "$file: $by_lua$([ "$left_out" -eq 0 ] || echo " (without $left_out lines)")"
    else
        failed=$((failed + 1))
        echo "$file: lua: $by_lua"
        echo "$file: gpulua: $by_gpulua"
    fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
