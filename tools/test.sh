#!/bin/sh
# Runs the suite: tools/test.sh [C test programs...]
# C programs first, then the specs under build/gpulua on every transport. The last line is the sum of all counts,
# "N passed, N failed, N skipped"; the exit status is 1 when something failed.
#
# From the environment: BUILD, DEVICE; ISOLATE (transports, default "none process thread"; "" leaves the specs out);
# NVRTC_CHECK (program that compiles kernels; "" leaves that out), BUSTED (busted's script), BUSTED_FLAGS (more arguments for it, say --filter=npy); TEST_TIMEOUT_S (per run).
set -u
BUILD=${BUILD:-build}
DEVICE=${DEVICE:-cpu}
ISOLATE=${ISOLATE-none process thread}
BUSTED=${BUSTED:-$(command -v busted)}
BUSTED=${BUSTED:-/usr/bin/busted}
TEST_TIMEOUT_S=${TEST_TIMEOUT_S:-900}

case $BUILD in
/*) build_path=$BUILD ;;
*) build_path=$PWD/$BUILD ;;
esac
logs=$build_path/test
mkdir -p "$logs"

# Specs that start programs of their own find them here; compiled kernels stay out of the user's cache.
export GPULUA_BUILD="$build_path" GPULUA_DEVICE="$DEVICE"
export GPULUA_CACHE="${GPULUA_CACHE:-$build_path/test-cache}"
# The installed interpreter, as a command line.
export GPULUA_LUA="${GPULUA_LUA:-lua5.4}"

export GPULUA_TEST_CURRENT="$logs/current"
# Of a suite that this one runs in.
unset GPULUA_KERNELS

passed=0 failed=0 skipped=0

# timed COMMAND...: ends it when its time is over, or when this script is told to end. timeout makes a group of its own of
# it, which Ctrl-C does not reach, and a shell that waits in the foreground would hear of that no sooner than at the end.
running=
trap 'trap "" INT TERM HUP; [ -z "$running" ] || { kill "$running"; wait "$running"; } 2> /dev/null; exit 130' INT TERM HUP
# What shells start in the background ignores interrupts, which some specs are about.
heard=
! env --default-signal=INT,QUIT true 2> /dev/null || heard="env --default-signal=INT,QUIT"
timed() {
    $heard timeout -k 10 "$TEST_TIMEOUT_S" "$@" &
    running=$!
    wait "$running"
}

# add NAME LOG STATUS: counts a run. One that ended badly without saying what failed is a failure itself.
add() {
    line=$(grep -aE '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$2" | tail -n 1)
    case $3 in
    0) ending= ;;
    124 | 137) ending="no end within $TEST_TIMEOUT_S s" ;;
    *) ending="exit status $3" ;;
    esac
    # What failed is said by the run itself.
    case $line in
    *" 0 failed,"* | '') ;;
    *) ending= ;;
    esac
    if [ -z "$line" ]; then
        ending=${ending:-ended without its counts}
        line="0 passed, 0 failed, 0 skipped"
    fi
    set -- "$1" "$2" "$3" $line
    run_failed=$6
    if [ -n "$ending" ] && [ "$run_failed" -eq 0 ]; then
        run_failed=1
    fi
    if [ "$4" -eq 0 ] && [ "$run_failed" -eq 0 ] && [ "$8" -eq 0 ]; then
        run_failed=1
        ending="ran no test"
    fi
    passed=$((passed + $4))
    failed=$((failed + run_failed))
    skipped=$((skipped + $8))
    if [ "$run_failed" -gt 0 ]; then
        echo "--- $1 failed${ending:+: $ending}"
        cat "$2"
        if [ -n "$ending" ] && [ -s "$GPULUA_TEST_CURRENT" ]; then
            printf 'the last test begun: '
            cat "$GPULUA_TEST_CURRENT"
        fi
        echo "---"
    else
        grep -aE '^skipped |^ok .*# SKIP' "$2" | sed 's/^/    /'
    fi
    echo "$1: $4 passed, $run_failed failed, $8 skipped"
}

for program in "$@"; do
    name=${program#"$BUILD"/}
    log=$logs/$(echo "$name" | tr / -).log
    rm -f "$GPULUA_TEST_CURRENT"
    # A test program lies in a folder of its own, where the executor is not looked for.
    timed env GPULUA_EXECUTOR="$build_path/gpulua-exec" "$program" > "$log" 2>&1
    add "$name" "$log" $?
done

# busted's modules are looked for where the installed Lua looks, whichever Lua the interpreter was linked with.
if command -v lua5.4 > /dev/null; then
    LUA_PATH=${LUA_PATH-$(lua5.4 -e 'print(package.path)')}
    LUA_CPATH=${LUA_CPATH-$(lua5.4 -e 'print(package.cpath)')}
    export LUA_PATH LUA_CPATH
fi

if [ -n "$ISOLATE" ] && [ -n "$(find spec -name '*_spec.lua')" ]; then
    for isolate in $ISOLATE; do
        log=$logs/specs-$isolate.log
        echo "specs on $DEVICE, transport $isolate, some minutes: ${log#"$PWD/"}"
        rm -f "$GPULUA_TEST_CURRENT"
        helper=
        # Once, on the CPU device: collects the kernels for NVRTC.
        if [ -n "${NVRTC_CHECK:-}" ] && [ "$isolate $DEVICE" = "none cpu" ]; then
            export GPULUA_KERNELS="$logs/kernels"
            rm -rf "$GPULUA_KERNELS"
            mkdir -p "$GPULUA_KERNELS"
            helper=--helper=tools/kernels_seen.lua
        fi
        # shellcheck disable=SC2086
        timed env GPULUA_ISOLATE="$isolate" "$BUILD/gpulua" "$BUSTED" --ignore-lua \
            -o tools/busted_output.lua $helper ${BUSTED_FLAGS:-} > "$log" 2>&1
        add "specs on $DEVICE, transport $isolate" "$log" $?
    done
fi

# Check mode, on the specs about the order of work (on CUDA by hashes). Another seed with every run would tell more, and
# fail at times that nobody can find again.
if [ -n "$ISOLATE" ]; then
    checked="spec/hazard_spec.lua spec/range_spec.lua spec/stream_spec.lua spec/op_spec.lua spec/control_spec.lua"
    [ "$DEVICE" != cpu ] ||
        checked="$checked spec/programs_spec.lua spec/graph_programs_spec.lua spec/temporary_spec.lua spec/update_spec.lua"
    for isolate in $ISOLATE; do
        log=$logs/specs-check-$isolate.log
        echo "specs on $DEVICE in check mode, transport $isolate: ${log#"$PWD/"}"
        rm -f "$GPULUA_TEST_CURRENT"
        # shellcheck disable=SC2086
        timed env GPULUA_CHECK=1 GPULUA_ISOLATE="$isolate" "$BUILD/gpulua" "$BUSTED" --ignore-lua \
            -o tools/busted_output.lua $checked > "$log" 2>&1
        add "specs on $DEVICE in check mode, transport $isolate" "$log" $?
    done
fi

# What the CPU device takes, CUDA must take too: every kernel of the specs, examples and the manual, compiled by NVRTC.
if [ -n "${GPULUA_KERNELS:-}" ]; then
    log=$logs/kernels.log
    lua5.4 tools/kernels.lua "$GPULUA_KERNELS" examples/*.lua examples/project/src/*.lua bench/*.lua \
        docs/tutorial.md docs/howto/*.md > /dev/null 2> "$log" &&
        timed "$NVRTC_CHECK" "$GPULUA_KERNELS"/*.cu > "$log" 2>&1
    status=$?
    # 77: there is no NVRTC here; each kernel counts as skipped.
    [ $status -ne 77 ] || status=0
    add "kernels of specs and examples with NVRTC" "$log" $status
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
