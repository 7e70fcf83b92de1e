#!/bin/sh
# Is the ABI of gpulua.h the one of the last release? tools/abi.sh [check|release [HEADER]]
# check: compares HEADER (src/gpulua.h) with tools/gpulua.abi, which describes the release. Prints what differs; the exit
#   status is 1 if programs built against the release would not work with this one: a function that is gone, or takes or
#   answers something else; a struct that is smaller, or has a member elsewhere, of another type, or a new one in between;
#   an enumerator of another value. Additions are fine, and so are members behind the last one of a struct that begins
#   with its size. Padding at the end of a struct is not: its next member would lie in what programs leave unset.
# release: writes the description, when a version is released.
# abidw and abidiff (Debian: abigail-tools) describe and compare. They read debug information, and that of the library
# itself would tell them of all its insides: so they are given a library of the header's functions alone, without bodies.
set -u
cd "$(dirname "$0")/.." || exit 1
CC=${CC:-cc}
header=${2:-src/gpulua.h}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

command -v abidw > /dev/null && command -v abidiff > /dev/null || {
    echo "abi: abidw and abidiff are not here (Debian: abigail-tools)"
    exit 77
}
$CC -E -P "$header" | lua5.4 -e '
  local text, count = io.read("a"):gsub("(__attribute__%(%(visibility%(\"default\"%)%)%)[^;]*%));", "%1 { __builtin_trap(); }")
  assert(count > 0, "no function")
  io.write(text)' > "$scratch/functions.c" &&
    $CC -w -g -O0 -shared -fPIC -Wl,-soname,libgpulua.so -o "$scratch/functions.so" "$scratch/functions.c" &&
    abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed --no-architecture --type-id-style hash \
        "$scratch/functions.so" > "$scratch/now.abi" || exit 1
$CC -Wpadded -fsyntax-only -x c "$header" 2>&1 | grep -E 'padding (struct size|size of)' && {
    echo "abi: a struct has padding at its end, where its next member would lie"
    exit 1
}

# What structs have grown by since the release is taken off, so that all else is compared.
without_growth='
  local released = {}
  for name, bits in io.open("tools/gpulua.abi"):read("a"):gmatch "<class%-decl name=.([%w_]+). size%-in%-bits=.(%d+)" do
    released[name] = tonumber(bits)
  end
  io.write((io.read("a"):gsub("(<class%-decl name=.([%w_]+). size%-in%-bits=.)(%d+)(.-</class%-decl>)",
    function(start, name, bits, rest)
      local size = released[name]
      if size and tonumber(bits) > size and rest:match "<var%-decl name=.([%w_]+)" == "struct_bytes" then
        return start .. size .. rest:gsub("%s*<data%-member [^>]*layout%-offset%-in%-bits=.(%d+).-</data%-member>",
          function(offset) return tonumber(offset) >= size and "" or nil end)
      end
    end)))'

case ${1:-check} in
release)
    sed -e "s|$scratch/||g" "$scratch/now.abi" > tools/gpulua.abi
    ;;
check)
    lua5.4 -e "$without_growth" < "$scratch/now.abi" > "$scratch/compared.abi" || exit 1
    abidiff --no-added-syms --no-architecture tools/gpulua.abi "$scratch/compared.abi" > "$scratch/differences" || {
        cat "$scratch/differences"
        echo "abi: programs that were built against the release will not work with this. If that has to be, raise" \
            "GPULUA_VERSION_MAJOR, which is in the library's name, and say tools/abi.sh release"
        exit 1
    }
    echo "abi: that of the last release"
    ;;
*)
    echo "usage: tools/abi.sh [check|release [HEADER]]"
    exit 1
    ;;
esac
