#!/bin/sh
# Looks for what gpulua needs and installs the Debian packages of what is missing: tools/deps.sh build|test|all
# build: to build and run; test: also to run the suite; all: also for lint and the sanitizers.
# Silent when everything is there. Fails only when something that the asked level cannot do without is still missing.
set -u
level=${1:-all}
CC=${CC:-cc}
CXX=${CXX:-c++}

has() { command -v "${1%% *}" > /dev/null 2>&1; }
header() {
    echo "#include <$1>" 2> /dev/null | $CC $(pkg-config --cflags lua5.4 2> /dev/null || echo -I/usr/include/lua5.4) \
        -E -x c - > /dev/null 2>&1
}
# A library that is loaded at run time.
shared() { ldconfig -p 2> /dev/null | grep -q -F "$1" || /sbin/ldconfig -p 2> /dev/null | grep -q -F "$1"; }
static_lua() {
    for dir in $(pkg-config --variable=libdir lua5.4 2> /dev/null) /usr/lib/*-linux-gnu /usr/local/lib /usr/lib; do
        [ -e "$dir/liblua5.4.a" ] && return 0
    done
    return 1
}
# The distribution's Python may not be the first one.
numpy() { python3 -c 'import numpy' > /dev/null 2>&1 || /usr/bin/python3 -c 'import numpy' > /dev/null 2>&1; }
fuzzer() { sh tools/fuzz.sh --compiler > /dev/null; }
browser() { has chromium || has chromium-browser || has google-chrome; }
luv() { lua5.4 -e 'require "luv"' > /dev/null 2>&1; }
libuv() { pkg-config --exists libuv > /dev/null 2>&1; }
# Under Lua 5.4, whichever version the command itself would start.
busted54() { lua5.4 -e 'require "busted.core"' > /dev/null 2>&1 && { has busted || [ -e /usr/bin/busted ]; }; }

# look LEVEL NEED WHAT PACKAGE CHECK...: notes what is missing. NEED is must or may.
look() {
    look_level=$1 need=$2 what=$3 package=$4
    shift 4
    case $level:$look_level in
    build:test | build:all | test:all) return ;;
    esac
    "$@" && return
    case "$packages " in
    *" $package "*) ;;
    *) packages="$packages $package" ;;
    esac
    missing="$missing
  $what (Debian: $package)"
    [ "$need" = may ] || required=yes
}
look_all() {
    packages= missing= required=
    look build must "a C compiler, $CC" gcc has "$CC"
    look build must "the C library's headers" libc6-dev header stdio.h
    look build must "a C++ compiler, $CXX" g++ has "$CXX"
    look build must "ar" binutils has ar
    look build must "Lua 5.4, lua5.4" lua5.4 has lua5.4
    look build must "Lua 5.4's headers" liblua5.4-dev header lauxlib.h
    look build must "Lua 5.4's static library" liblua5.4-dev static_lua
    look build must "stb_image.h" libstb-dev header stb/stb_image.h
    look build must "stb_image_write.h" libstb-dev header stb/stb_image_write.h
    look build must "OpenBLAS, the BLAS of the CPU device" libopenblas0 shared libopenblas.so.0
    look build must "FFTW for f32, the transforms of the CPU device" libfftw3-single3 shared libfftw3f.so.3
    look build must "FFTW for f64" libfftw3-double3 shared libfftw3.so.3
    look build must "zlib, for .npz and PNG files" zlib1g shared libz.so.1
    look build may "libdw, which finds the lines of what check mode finds" libdw1 shared libdw.so.1
    look build may "libedit, which edits lines at the prompt" libedit2 shared libedit.so.2
    look test must "busted for Lua 5.4" lua-busted busted54
    look test may "NumPy for Python 3, to exchange memory with" python3-numpy numpy
    look test may "pkill" procps has pkill
    look test may "pkg-config" pkg-config has pkg-config
    look test may "abidiff, to compare the ABI with the last release's" abigail-tools has abidiff
    look test may "libuv, for the example of a service" libuv1-dev libuv
    look test may "LuaRocks for Lua 5.4, to make the rock with" luarocks has luarocks-5.4
    look test may "zip, for LuaRocks" zip has zip
    look test may "cmark-gfm, to make the manual's site with" cmark-gfm has cmark-gfm
    look test may "unzip, for LuaRocks" unzip has unzip
    look test may "luv for Lua 5.4, a clock and an event loop" lua-luv luv
    look all may "luacheck" lua-check has luacheck
    look all may "clang-format" clang-format has clang-format
    look all may "valgrind" valgrind has valgrind
    look all may "a clang with libFuzzer, of version 15 or later, to fuzz with" "clang-16 libclang-rt-16-dev" fuzzer
    look all may "cppcheck" cppcheck has cppcheck
    look all may "mandoc, to look at the manual page with" mandoc has mandoc
    look all may "zsh, to try the completions with" zsh has zsh
    look all may "fish, to try the completions with" fish has fish
    look all may "Chromium, to look at timelines with" chromium browser
}

# Lua's source, for `make check`: an interpreter with sanitizers and API checks. Never required.
fetch_lua() {
    [ "$level" = all ] && has apt-get && [ -z "$(ls -d build/deps/lua-5.4*/src 2> /dev/null)" ] || return 0
    apt=build/deps/apt
    mkdir -p "$apt/lists/partial" "$apt/cache"
    apt_path=$PWD/$apt
    # The archives that packages come from, as source archives, in lists of our own: no root, no change of the system's.
    apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2> /dev/null | sort -u |
        grep -i -e debian -e ubuntu | sed 's/^/deb-src /' > "$apt/sources.list"
    (
        cd build/deps || exit 1
        set -- -q -o Dir::Etc::SourceList="$apt_path/sources.list" -o Dir::Etc::SourceParts=/dev/null \
            -o Dir::State::Lists="$apt_path/lists" -o Dir::Cache="$apt_path/cache" \
            -o Acquire::http::Timeout=15 -o Acquire::Retries=1 -o APT::Sandbox::User=
        apt-get "$@" update && apt-get "$@" source --download-only lua5.4 && tar -xzf lua5.4_*.orig.tar.gz
    ) > build/deps/lua-source.log 2>&1 ||
        echo "gpulua: Lua's source cannot be fetched; make check will run without API checks (build/deps/lua-source.log)"
    rm -rf "$apt_path"
}

look_all
if [ -n "$packages" ] && has apt-get; then
    sudo=
    if [ "$(id -u)" -ne 0 ]; then
        sudo=none
        has sudo && sudo=sudo
        [ "$sudo" = sudo ] && ! [ -t 0 ] && sudo="sudo -n"
    fi
    if [ "$sudo" = none ]; then
        echo "gpulua: not root, and there is no sudo: the rest is for root"
    else
        echo "gpulua: installing$packages"
        install="$sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::http::Timeout=15
            -o Acquire::Retries=1 install --no-install-recommends"
        log=$(mktemp)
        # Package lists may be missing or old: then again with new ones.
        $install $packages > "$log" 2>&1 || {
            $sudo apt-get -q -o Acquire::http::Timeout=15 -o Acquire::Retries=1 update >> "$log" 2>&1
            $install $packages >> "$log" 2>&1
        } || { # what there is without the rest
            for package in $packages; do
                $install "$package" >> "$log" 2>&1
            done
            tail -n 5 "$log"
        }
        rm -f "$log"
        look_all
    fi
fi
fetch_lua
if [ -n "$missing" ]; then
    echo "gpulua: missing, and not installed here:$missing"
    echo "gpulua: install with: apt-get update && apt-get install$packages"
    [ -z "$required" ] || exit 1
fi
