#!/bin/sh
# What reviewers should not have to look for. Prints every finding; the exit status is 1 if there was one.
set -u
CC=${CC:-cc}
CXX=${CXX:-c++}
LUA_CFLAGS=${LUA_CFLAGS:--I/usr/include/lua5.4}
CUDA_INCLUDE=${CUDA_INCLUDE:-}
findings=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# report TITLE: what stands in $scratch/found, one finding a line.
report() {
    if [ -s "$scratch/found" ]; then
        echo "lint: $1"
        sed 's/^/  /' "$scratch/found"
        findings=$((findings + $(wc -l < "$scratch/found")))
    fi
    : > "$scratch/found"
}
: > "$scratch/found"

sources=$(find src -name '*.[ch]' ! -path 'src/backend/cpu/shim/*' ! -path 'src/backend/kernel/*' | sort)
tests=$(find spec bench examples -name '*.[ch]' 2> /dev/null | sort)
lua_sources=$(find lua spec examples bench tools types/luacheck.lua -name '*.lua' 2> /dev/null | sort)
# Files of the tree as text: without pictures, arrays and inputs of fuzzing, without what is built.
texts=$(find . -type f ! -path './.git/*' ! -path './build/*' ! -path './.gpu/*' ! -path './.device/*' \
    ! -path './spec/fuzz/corpus/*' ! -name '*.png' ! -name '*.npy' | sort)

# Layers: each folder, and the folders that it may include from.
layer() {
    folder=$1
    allowed=$2
    [ -d "src/$folder" ] || return 0
    grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"[a-z_]+/' "src/$folder" --include='*.[ch]' |
        grep -v "^src/$folder/shim/" |
        grep -vE "include[[:space:]]*\"($allowed)/" >> "$scratch/found"
}
layer wire 'wire'
layer ranges 'ranges'
layer runtime 'runtime|wire|ranges'
layer executor 'executor|wire|backend|ranges'
layer backend 'backend|wire'
layer binding 'binding|runtime|wire|ranges'
layer host 'host|binding|runtime'
layer interpreter 'interpreter|host|ranges'
for name in cpu cuda; do
    other=cuda
    [ $name = cuda ] && other=cpu
    grep -rnE "#[[:space:]]*include[[:space:]]*\"backend/$other/" "src/backend/$name" --include='*.[ch]' \
        >> "$scratch/found" 2> /dev/null
done
report "includes against the layers of docs/architecture.md"

# shellcheck disable=SC2086
grep -nE '#[[:space:]]*include[[:space:]]*[<"](lua|lauxlib|lualib)\.h' $sources |
    grep -vE '^src/(binding|host|interpreter)/' > "$scratch/found"
report "Lua's headers outside of binding/, host/ and interpreter/"

# shellcheck disable=SC2086
grep -nE '#[[:space:]]*include[[:space:]]*[<"](cuda|nvrtc|cublas|cufft|curand|nccl|cupti|driver_types)' $sources |
    grep -vE '^src/backend/cuda/' > "$scratch/found"
report "CUDA's headers outside of backend/cuda/"

# Code without comments and strings, lines kept.
strip_code() {
    sed -e 's/\\./__/g' -e 's/"[^"]*"/""/g' "$1" |
        awk '{
            line = $0; out = ""
            while (length(line)) {
                if (inside) {
                    at = index(line, "*/")
                    if (!at) { line = ""; break }
                    line = substr(line, at + 2); inside = 0
                } else {
                    open = index(line, "/*"); slashes = index(line, "//")
                    if (slashes && (!open || slashes < open)) { out = out substr(line, 1, slashes - 1); line = ""; break }
                    if (!open) { out = out line; line = ""; break }
                    out = out substr(line, 1, open - 1); line = substr(line, open + 2); inside = 1
                }
            }
            print out
        }'
}
for file in $sources; do
    case $file in
    src/interpreter/* | src/executor/main.c) continue ;;
    src/executor/broker.c) continue ;; # a process of its own
    esac
    strip_code "$file" |
        grep -nE '(^|[^_[:alnum:].>])(v?printf|v?fprintf|puts|fputs|putchar|perror|exit|_exit|_Exit|quick_exit|abort|signal|sigaction)[[:space:]]*\(' |
        sed "s|^|$file:|" >> "$scratch/found"
done
report "printing, ending the process or signal handlers in library code"

# The words are put together here, so that this file does not hold them.
unfinished="TO""DO|FIX""ME|X""XX|HA""CK"
# shellcheck disable=SC2086
grep -nwE "$unfinished" $texts > "$scratch/found" 2> /dev/null
report "unfinished work"

homes="/wo""rk/|/ho""me/[a-z]|/ro""ot/|/Us""ers/"
# shellcheck disable=SC2086
grep -nE "$homes" $texts > "$scratch/found" 2> /dev/null
report "paths of one machine"

for file in $sources $tests $lua_sources; do
    lines=$(wc -l < "$file")
    [ "$lines" -le 1000 ] || echo "$file: $lines lines, at most 1000" >> "$scratch/found"
done
report "long files"

# Every header alone; the public one as C99 and as C++ too.
alone() {
    # shellcheck disable=SC2086
    echo "#include \"$1\"" | $2 -D_GNU_SOURCE -Isrc -Ispec $LUA_CFLAGS ${CUDA_INCLUDE:+-isystem $CUDA_INCLUDE} -Wall \
        -Wextra -Werror -fsyntax-only - > "$scratch/log" 2>&1 || {
        echo "$1: not on its own with $2" >> "$scratch/found"
        sed 's/^/    /' "$scratch/log" >> "$scratch/found"
    }
}
for header in $(printf '%s\n' $sources | grep '\.h$'); do
    case $header in
    src/backend/cuda/*) [ -n "$CUDA_INCLUDE" ] || continue ;;
    esac
    alone "${header#src/}" "$CC -std=c11 -x c"
done
alone gpulua.h "$CC -std=c99 -pedantic -x c"
alone gpulua.h "$CXX -std=c++11 -pedantic -x c++"
report "headers that do not compile alone"

# A tool that is not there is a finding too: a lint that looked at nothing must not pass.
tool() {
    command -v "$1" > /dev/null && return 0
    echo "$1 is not installed (make deps)" > "$scratch/found"
    report "tools"
    return 1
}

lua5.4 tools/reference.lua --check 2> "$scratch/found" || [ -s "$scratch/found" ] ||
    echo "tools/reference.lua failed" > "$scratch/found"
report "what is made of types/library (make docs)"

if tool clang-format; then
    # shellcheck disable=SC2086
    clang-format --dry-run -Werror $sources $tests 2>&1 | sed -n 's/^\([^ :]*\):[0-9]*:[0-9]*: error:.*/\1/p' |
        sort -u > "$scratch/found"
    report "formatting (clang-format -i)"
fi

if tool luacheck; then
    # shellcheck disable=SC2086
    luacheck -q --no-color $lua_sources > "$scratch/log" 2>&1 || cp "$scratch/log" "$scratch/found"
    report "luacheck"
fi

grep -nE ':(byte|dump|find|format|gmatch|gsub|len|lower|match|pack|packsize|rep|reverse|sub|unpack|upper)[[:space:]]*[({"'\''[]' \
    lua/gpulua/*.lua > "$scratch/found"
report "methods of strings in lua/gpulua, which a script may have taken away: string.format(...), and so on"

if tool cppcheck; then
    # uninitvar does not follow loops over the bits of a mask; compilers and sanitizers look for the same.
    cuda_files=
    [ -n "$CUDA_INCLUDE" ] || cuda_files=-isrc/backend/cuda
    cppcheck --quiet --std=c11 --language=c --enable=warning,performance,portability -Isrc -D_GNU_SOURCE -D__linux__ \
        -D__x86_64__ -D__LP64__ -D__GNUC__=12 --inline-suppr --suppress=missingIncludeSystem --suppress=unknownMacro --suppress=uninitvar \
        --suppress='*:*/stb/*' --error-exitcode=1 --template='{file}:{line}: {id}: {message}' \
        -isrc/backend/cpu/shim $cuda_files -j 2 src > "$scratch/log" 2>&1 ||
        grep -E '^[^ ]+:[0-9]+:' "$scratch/log" > "$scratch/found"
    report "cppcheck"
fi

if [ "$findings" -eq 0 ]; then
    echo "lint: clean"
else
    echo "lint: $findings findings"
    exit 1
fi
