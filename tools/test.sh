#!/bin/sh
# Runs the suite: tools/test.sh [C test programs...]
# C programs; then each file of specs in a process of its own under build/gpulua, on every transport, and specs of the
# order of work in check mode; as many at a time as there are processors, because they wait as much as they work. The last
# line is the sum of all counts, "N passed, N failed, N skipped"; the exit status is 1 when something failed.
#
# From the environment: BUILD, DEVICE; ISOLATE (transports, default "none process thread"; "" leaves the specs out); ONCE
# (names of specs, "why" for spec/why_spec.lua, "checked" for those in check mode, that the first of those transports is
# enough for);
# NVRTC_CHECK (program that compiles kernels; "" leaves that out), BUSTED (busted's script), BUSTED_FLAGS (more arguments
# for it, say --filter=npy); TEST_TIMEOUT_S (per run); TEST_JOBS (runs at a time); TEST_LOGS (folder, absolute, for what
# the runs say; default test in BUILD). Beside what specs say lies how long each test took, NAME.times.
set -u
BUILD=${BUILD:-build}
DEVICE=${DEVICE:-cpu}
ISOLATE=${ISOLATE-none process thread}
BUSTED=${BUSTED:-$(command -v busted)}
BUSTED=${BUSTED:-/usr/bin/busted}
TEST_TIMEOUT_S=${TEST_TIMEOUT_S:-900}
if [ -z "${TEST_JOBS:-}" ]; then
    TEST_JOBS=$(getconf _NPROCESSORS_ONLN 2> /dev/null || echo 1)
    # Each has contexts and memory of the one GPU: with more of them specs of memory find too little.
    [ "$DEVICE" = cpu ] || [ "$TEST_JOBS" -le 12 ] || TEST_JOBS=12
fi
case $TEST_JOBS in
*[!0-9]* | 0*) echo "tools/test.sh: TEST_JOBS is '$TEST_JOBS': how many runs at a time, at least 1" >&2; exit 2 ;;
esac

case $BUILD in
/*) build_path=$BUILD ;;
*) build_path=$PWD/$BUILD ;;
esac
logs=${TEST_LOGS:-$build_path/test}
mkdir -p "$logs"

# Specs that start programs of their own find them here; compiled kernels stay out of the user's cache.
export GPULUA_BUILD="$build_path" GPULUA_DEVICE="$DEVICE"
export GPULUA_CACHE="${GPULUA_CACHE:-$build_path/test-cache}"
# The installed interpreter, as a command line.
export GPULUA_LUA="${GPULUA_LUA:-lua5.4}"

# Of a suite that this one runs in, or that runs in this one.
once=${ONCE:-}
unset GPULUA_KERNELS TEST_LOGS ONCE

# timed COMMAND...: ends it when its time is over, or when this script is told to end. timeout makes a group of its own of
# it, which Ctrl-C does not reach, and a shell that waits in the foreground would hear of that no sooner than at the end.
running=
end() {
    trap '' INT TERM HUP
    # shellcheck disable=SC2086
    [ -z "$running" ] || { kill $running; wait $running; } 2> /dev/null
    exit 130
}
trap end INT TERM HUP
# What shells start in the background ignores interrupts, which some specs are about.
heard=
! env --default-signal=INT,QUIT true 2> /dev/null || heard="env --default-signal=INT,QUIT"
timed() {
    $heard timeout -k 10 "$TEST_TIMEOUT_S" "$@" &
    running=$!
    wait "$running"
}

# A name for a file: with - where / are, in $flat. By the shell itself, for this is done for each run by everybody.
flatten() {
    flat=$1
    while :; do
        case $flat in
        */*) flat=${flat%%/*}-${flat#*/} ;;
        *) break ;;
        esac
    done
}

# run NAME LOG COMMAND...: runs it and counts. A run that ended badly without saying what failed is a failure itself.
run() {
    name=$1 log=$2
    shift 2
    export GPULUA_TEST_CURRENT="${log%.log}.current"
    export GPULUA_TEST_TIMES="${log%.log}.times"
    rm -f "$GPULUA_TEST_CURRENT" "$GPULUA_TEST_TIMES"
    timed "$@" > "$log" 2>&1
    status=$?
    case "$status $name" in
    "0 "*) ending= ;;
    "77 kernels "*) ending= ;; # there is no NVRTC here; each kernel counts as skipped
    "124 "* | "137 "*) ending="no end within $TEST_TIMEOUT_S s" ;;
    *) ending="exit status $status" ;;
    esac
    line=$(LC_ALL=C sed -n -E '/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/h; ${ g; p; }' "$log")
    # What failed is said by the run itself.
    case $line in
    *" 0 failed,"* | '') ;;
    *) ending= ;;
    esac
    if [ -z "$line" ]; then
        ending=${ending:-ended without its counts}
        line="0 passed, 0 failed, 0 skipped"
    fi
    # shellcheck disable=SC2086
    set -- $line
    run_failed=$3
    if [ -n "$ending" ] && [ "$run_failed" -eq 0 ]; then
        run_failed=1
    fi
    if [ "$1" -eq 0 ] && [ "$run_failed" -eq 0 ] && [ "$5" -eq 0 ] && [ -z "${BUSTED_FLAGS:-}" ]; then
        run_failed=1
        ending="ran no test"
    fi
    echo "$1 $run_failed $5" >> "$logs/counts"
    # At once, for others write, too.
    {
        if [ "$run_failed" -gt 0 ]; then
            echo "--- $name failed${ending:+: $ending}"
            cat "$log"
            if [ -n "$ending" ] && [ -s "$GPULUA_TEST_CURRENT" ]; then
                printf 'the last test begun: '
                cat "$GPULUA_TEST_CURRENT"
            fi
            echo "---"
        else
            LC_ALL=C sed -n -E '/^skipped |^ok .*# SKIP/s/^/    /p' "$log"
        fi
        echo "$name: $1 passed, $run_failed failed, $5 skipped"
    } > "$log.said"
    cat "$log.said"
    rm -f "$log.said"
}

# busted's modules are looked for where the installed Lua looks, whichever Lua the interpreter was linked with.
if command -v lua5.4 > /dev/null; then
    LUA_PATH=${LUA_PATH-$(lua5.4 -e 'print(package.path)')}
    LUA_CPATH=${LUA_CPATH-$(lua5.4 -e 'print(package.cpath)')}
    export LUA_PATH LUA_CPATH
fi

run_program() {
    name=${1#"$BUILD"/}
    # A test program lies in a folder of its own, where the executor is not looked for.
    flatten "$name"
    run "$name" "$logs/$flat.log" env GPULUA_EXECUTOR="$build_path/gpulua-exec" "$1"
}

# Once, on the CPU device: the specs' kernels are collected for NVRTC.
kernels=
case " $ISOLATE " in
*" none "*) [ -z "${NVRTC_CHECK:-}" ] || [ "$DEVICE" != cpu ] || kernels=$logs/kernels ;;
esac
[ -z "$kernels" ] || rm -rf "$kernels"

files=$(find spec -name '*_spec.lua' | sort)
# On a GPU this one counts what everybody has there.
alone=
[ "$DEVICE" = cpu ] || alone=spec/resource_spec.lua
# And these lose it again and again, which takes minutes: first, or the end is a wait for them alone.
first=
[ "$DEVICE" = cpu ] || first=$(echo "$files" | grep -E '/(lost|recovery|faults)_spec\.lua$')

# run_specs TRANSPORT FILE
run_specs() {
    base=${2##*/}
    log=$logs/$1-${base%.lua}.log
    name="$2 on $DEVICE, $1" file=$2
    set -- GPULUA_ISOLATE="$1"
    if [ -n "$kernels" ] && [ "$1" = GPULUA_ISOLATE=none ]; then
        mkdir -p "$kernels/$base"
        set -- "$@" GPULUA_KERNELS="$kernels/$base"
        helper=--helper=tools/kernels_seen.lua
    else
        helper=
    fi
    # shellcheck disable=SC2086
    run "$name" "$log" env "$@" "$BUILD/gpulua" "$BUSTED" --ignore-lua -o tools/busted_output.lua $helper \
        ${BUSTED_FLAGS:-} "$file"
}

# Check mode, on the specs about the order of work (on CUDA by hashes), on the CPU device also those about what launches
# take, in one process. Another seed with every run would tell more, and fail at times that nobody can find again.
run_checked() {
    name="specs on $DEVICE in check mode, $1" log=$logs/check-$1.log isolate=$1
    set -- spec/hazard_spec.lua spec/range_spec.lua spec/stream_spec.lua spec/op_spec.lua spec/control_spec.lua
    [ "$DEVICE" != cpu ] || set -- "$@" spec/kernel_spec.lua spec/structure_spec.lua spec/programs_spec.lua \
        spec/graph_programs_spec.lua spec/temporary_spec.lua spec/update_spec.lua
    run "$name" "$log" env GPULUA_CHECK=1 GPULUA_ISOLATE="$isolate" "$BUILD/gpulua" "$BUSTED" --ignore-lua \
        -o tools/busted_output.lua "$@"
}

# What the CPU device takes, CUDA must take too: every kernel of the specs, examples and the manual, compiled by NVRTC,
# those that are alike once.
run_kernels() {
    waited=0
    for file in $files; do
        flatten "none:$file"
        while [ ! -e "$logs/taken/$flat/over" ] && [ "$waited" -lt "$TEST_TIMEOUT_S" ]; do
            sleep 1
            waited=$((waited + 1))
        done
    done
    if lua5.4 tools/kernels.lua "$kernels" examples/*.lua examples/project/src/*.lua bench/*.lua \
        docs/tutorial.md docs/howto/*.md > /dev/null 2> "$logs/kernels.log"; then
        # shellcheck disable=SC2046
        run "kernels of specs and examples with NVRTC" "$logs/kernels.log" "$NVRTC_CHECK" \
            $(cd "$kernels" && find . -name '*.cu' -exec sha256sum {} + | sort | awk -v "at=$kernels" \
                '!seen[$1]++ { print at "/" $2 }')
    else
        echo "--- kernels of specs and examples were not found"
        cat "$logs/kernels.log"
        echo "0 1 0" >> "$logs/counts"
    fi
}

# program:PATH each, from the last name on, for those of the wire take longest; TRANSPORT:FILE, or TRANSPORT:checked; the
# kernels when those that have them are over, or nearly, and others are left.
jobs='' transports=0
for program in "$@"; do
    jobs="program:$program $jobs"
done
for isolate in ${files:+$ISOLATE}; do
    for file in $first; do
        jobs="$isolate:$file $jobs"
    done
    for file in checked $files; do
        name=${file##*/}
        case " $once " in
        *" ${name%_spec.lua} "*) [ "$transports" -eq 0 ] || continue ;;
        esac
        [ "$file" = "$alone" ] || jobs="$jobs $isolate:$file"
    done
    transports=$((transports + 1))
    [ "$transports" -ne 2 ] || jobs="$jobs ${kernels:+kernels}"
done
[ "$transports" -ne 1 ] || jobs="$jobs ${kernels:+kernels}"

# Each takes the next one that nobody has taken.
take_jobs() {
    for job in $jobs; do
        flatten "$job"
        taken=$logs/taken/$flat
        [ ! -e "$taken" ] || continue
        mkdir "$taken" 2> /dev/null || continue
        case $job in
        program:*) run_program "${job#program:}" ;;
        *:checked) run_checked "${job%:*}" ;;
        kernels) run_kernels ;;
        *) run_specs "${job%:*}" "${job#*:}" ;;
        esac
        : > "$taken/over"
    done
}

rm -rf "$logs/taken"
mkdir "$logs/taken"
: > "$logs/counts"
takers=
while [ "$TEST_JOBS" -gt 0 ]; do
    (
        running=
        trap end INT TERM HUP
        take_jobs
    ) &
    takers="$takers $!"
    TEST_JOBS=$((TEST_JOBS - 1))
done
running=$takers
wait
running=
for job in $jobs; do
    flatten "$job"
    [ ! -e "$logs/taken/$flat/over" ] || continue
    echo "--- $job was not run to its end"
    echo "0 1 0" >> "$logs/counts"
done
for isolate in ${alone:+$ISOLATE}; do
    run_specs "$isolate" "$alone"
done

passed=0 failed=0 skipped=0
while read -r run_passed run_failed run_skipped; do
    passed=$((passed + run_passed)) failed=$((failed + run_failed)) skipped=$((skipped + run_skipped))
done < "$logs/counts"
if [ $((passed + failed + skipped)) -eq 0 ]; then
    echo "--- no test was run"
    failed=1
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
