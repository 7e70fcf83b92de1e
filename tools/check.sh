#!/bin/sh
# The suite under sanitizers, as `make check` runs it:
#   address, undefined behaviour and leaks, with a Lua 5.4 built from its source with LUA_USE_APICHECK (`make deps`
#   fetches the source), or, without that, the installed Lua;
#   threads: the C test programs;
# and, where it is there, with valgrind: C test programs that run no kernels.
# The last line is the sum of the counts. A report of a sanitizer is a failure even where no test noticed.
set -u
MAKE=${MAKE:-make}
DEVICE=${DEVICE:-cpu}
CC=${CC:-cc}
root=$PWD
out=build/check
mkdir -p "$out"
status=0
passed=0 failed=0 skipped=0
: > "$out/reports"

add_counts() {
    line=$(grep -aE '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$1" | tail -n 1)
    set -- ${line:-0 passed, 1 failed, 0 skipped}
    passed=$((passed + $1)) failed=$((failed + $3)) skipped=$((skipped + $5))
}

# The thread that looks for leaks while a process ends may itself crash (google/sanitizers, issue 1353): then nobody has
# looked there, which is no finding. One process in some ten thousand does; more in a run is something else.
crashes_max=2
looker_crashed='^(Tracer caught signal|==[0-9]+==LeakSanitizer has encountered a fatal error|==[0-9]+==HINT: )'

# reports NAME: what sanitizers wrote, each a failure, for the end of the output, where it is found. One process writes one
# file.
reports() {
    crashes=0
    for file in "$out/$1/reports"/report.*; do
        [ -s "$file" ] || continue
        { echo "--- $1: $file"; cat "$file"; } >> "$out/reports"
        if ! grep -qvE "$looker_crashed" "$file" && [ "$crashes" -lt "$crashes_max" ]; then
            crashes=$((crashes + 1))
            skipped=$((skipped + 1))
            echo "skipped: leaks of one process: LeakSanitizer itself crashed" >> "$out/reports"
        else
            failed=$((failed + 1))
        fi
    done
}

# Lua with its API checks on. Objects are kept until the source or this script changes. No sanitizer is in Lua's own code,
# of which it makes half the speed: what is looked at is ours. Its memory is malloc's, and watched wherever ours uses it.
lua_source=$(ls -d build/deps/lua-5.4*/src 2> /dev/null | tail -n 1)
lua_settings=
if [ -n "$lua_source" ]; then
    if [ "$out/lua/liblua5.4.a" -ot tools/check.sh ] || [ ! -e "$out/lua/liblua5.4.a" ]; then
        rm -rf "$out/lua"
        mkdir -p "$out/lua"
        echo "building Lua with LUA_USE_APICHECK"
        # Modules are looked for where the installed Lua looks.
        lua_path=$(lua5.4 -E -e 'print(package.path)')
        lua_cpath=$(lua5.4 -E -e 'print(package.cpath)')
        (
            cd "$out/lua" || exit 1
            for file in "$root/$lua_source"/*.c; do
                case $file in
                */lua.c | */luac.c | */ltests.c) continue ;;
                esac
                $CC -std=gnu11 -O2 -g -fno-omit-frame-pointer -fPIC -DLUA_COMPAT_5_3 -DLUA_USE_LINUX -DLUA_USE_APICHECK \
                    "-DLUA_PATH_DEFAULT=\"$lua_path\"" "-DLUA_CPATH_DEFAULT=\"$lua_cpath\"" -c "$file" || exit 1
            done
            ar rcs liblua5.4.a ./*.o
        ) || exit 1
    fi
    lua_settings="LUA_STATIC=$root/$out/lua/liblua5.4.a"
    lua_include="-I$root/$lua_source -DLUA_USE_APICHECK"
else
    echo "skipped: Lua with LUA_USE_APICHECK: its source is not in build/deps (make deps fetches it where apt can)"
    skipped=$((skipped + 1))
    lua_include=
fi

# build NAME SANITIZE [make's arguments...]: all that `run` runs, and an empty folder for reports. Says nothing: run makes
# what is missing, and says why. Reports want lines, and nothing of variables: -g1.
build() {
    build_folder=$out/$1 build_sanitize=$2
    shift 2
    rm -rf "$build_folder/reports"
    mkdir -p "$build_folder/reports"
    $MAKE --no-print-directory -j2 test-build BUILD="$build_folder" SANITIZE="$build_sanitize" CFLAGS="-O1 -g1" \
        BENCH_PROGRAMS= NVRTC_CHECK= "$@" > "$build_folder/build.log" 2>&1 < /dev/null
}

# run NAME LOG SANITIZE [make's arguments...]: runs what was built; make says to LOG what it did.
run() {
    folder=$out/$1 log=$2 sanitize=$3
    shift 3
    $MAKE --no-print-directory test-run BUILD="$folder" SANITIZE="$sanitize" CFLAGS="-O1 -g1" DEVICE="$DEVICE" \
        BENCH_PROGRAMS= NVRTC_CHECK= "$@" > "$folder/$log" 2>&1 < /dev/null
}

# finish NAME LOG STATUS: what came of `run`.
finish() {
    log=$out/$1/$2
    [ "$3" -eq 0 ] || status=1
    # Compiler lines are of no interest unless it was the build that failed.
    if grep -aqE '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log"; then
        grep -avE '^  [A-Z]+ +[^ ]+$|^make' "$log"
    else
        tail -n 60 "$log"
    fi
    add_counts "$log"
}

# Crashes of kernels are part of the suite: signals are left alone, so that a child dies of them as it would without
# sanitizers, and the reports are about our code. Each process writes its own file, so that a child's report is seen.
options="log_path=$root/$out/address/reports/report:handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0"
options="$options:handle_abort=0:allocator_may_return_null=1"
# What counts is the report. A process in which the looker for leaks crashed would end with this code otherwise, whatever
# its own is, and one that is ended in the middle lacks its counts anyway.
options="$options:exitcode=0"
export ASAN_OPTIONS="$options:detect_leaks=1:detect_stack_use_after_return=0"
export UBSAN_OPTIONS="$options:print_stacktrace=1"
export TEST_TIMEOUT_S=1800 # for what takes twice as long and more with them
export LSAN_OPTIONS="suppressions=$root/tools/lsan.supp:print_suppressions=0"
# What a kernel is compiled to is the same with and without sanitizers: what the suite compiled before, if it ran, is used.
export GPULUA_CACHE="${GPULUA_CACHE:-$root/build/test-cache}"
# What C programs start, of all that make builds.
thread_products='PRODUCTS=$(INTERPRETER) $(EXECUTOR)'
# Stock Lua loads the module with the sanitizers' runtime only if that is there from the start.
asan_library=$($CC -print-file-name=libasan.so)
echo "building with address,undefined and with thread"
build address address,undefined $lua_settings ${lua_include:+"LUA_CFLAGS=$lua_include"}
build thread thread "$thread_products"

# What sanitizers do not see, memory that was never written. Compiled kernels may use instructions that valgrind lacks, so
# these are programs without any. Beside all others, with what they leave of the processors.
valgrind_programs="host/heap_test executor/rhythm_test wire/ring_test runtime/range_test runtime/signature_test"
valgrind_programs="$valgrind_programs runtime/types_test backend/source_test"
run_valgrind() {
    for program in $valgrind_programs; do
        log=$out/valgrind/$(basename "$program")
        $MAKE --no-print-directory "build/spec/$program" > "$log" 2>&1 &&
            nice -n 10 valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite \
                "build/spec/$program" > "$log" 2>&1 < /dev/null
        echo $? > "$log.status"
    done
}
valgrind=
if command -v valgrind > /dev/null; then
    rm -rf "$out/valgrind"
    mkdir -p "$out/valgrind"
    run_valgrind &
    valgrind=$!
fi

# Address space randomised further than the runtime expects ends it at once on some kernels.
export TSAN_OPTIONS="log_path=$root/$out/thread/reports/report:handle_segv=0:handle_sigbus=0:handle_abort=0"
TSAN_OPTIONS="$TSAN_OPTIONS:second_deadlock_stack=1:die_after_fork=0"
# A process that ends while it has threads waits a second for what they do meanwhile, and thousands end here.
TSAN_OPTIONS="$TSAN_OPTIONS:atexit_sleep_ms=50"
steady=
if command -v setarch > /dev/null && setarch "$(uname -m)" -R true 2> /dev/null; then
    steady="setarch $(uname -m) -R"
fi
# C programs, many of which watch the time: one of each kind at once (TEST_JOBS=1). With threads they take
# twice as long: those behind the others with addresses are as many as make both rows end at the same time.
# No race can be found in programs that start no thread; that these do not is looked at below.
threadless="backend/cache_test backend/fft_test backend/graph_test backend/nvrtc_test backend/source_test"
threadless="$threadless backend/tracer_bodies_test backend/tracer_test executor/arena_test executor/assertions_test"
threadless="$threadless executor/rhythm_test host/heap_test ranges/ranges_test runtime/error_test runtime/occupancy_test"
threadless="$threadless runtime/range_test runtime/signature_test runtime/types_test"
echo "testing C programs with address,undefined and, beside that, with thread"
first='' behind=''
for file in $(find spec -name '*_test.c' | sort); do
    program=${file#spec/} program=${program%.c}
    case " $threadless " in
    *" $program "*) continue ;;
    esac
    case $program in
    wire/link_test) behind="$behind $out/thread/spec/$program" ;;
    *) first="$first $out/thread/spec/$program" ;;
    esac
done

# run_threads ROW PROGRAM...
run_threads() {
    row=$1
    shift
    # OpenBLAS is not built with the sanitizer, which does not see how its threads wait for each other.
    OPENBLAS_NUM_THREADS=1 MAKE="$steady $MAKE" ISOLATE='' TEST_JOBS=1 TEST_LOGS="$root/$out/thread/test/$row" \
        run thread "$row.log" thread "$thread_products" TEST_PROGRAMS="$*"
}

# shellcheck disable=SC2086
(run_threads first $first) &
threads=$!
ISOLATE='' TEST_JOBS=1 run address programs.log address,undefined $lua_settings ${lua_include:+"LUA_CFLAGS=$lua_include"}
finish address programs.log $?
for program in $threadless; do
    grep -aqx '# has started no thread' "$out/address/test/spec-$(echo "$program" | tr / -).log" && continue
    echo "spec/$program starts threads: tools/check.sh leaves it out where races are looked for"
    failed=$((failed + 1))
done
# shellcheck disable=SC2086
(run_threads behind $behind)
finish thread behind.log $?
wait $threads
finish thread first.log $?
reports thread
# A thread runs what none runs, in this process as well; the C programs run none, too. What takes 5 minutes without takes
# 12 with them, and longer on a slow machine. So of what compilers, check mode, the interpreter and files are asked,
# and of what is computed, the first transport is enough; `make test` asks it of each. That is the thread: each process
# that begins and ends under sanitizers takes a tenth of a second.
once="blas busted check check_findings check_lines check_projects checked complete control cuda_c cuda_c_calls"
once="$once cuda_c_math cuda_c_names data_fuzz declarations definitions definitions_errors edges examples fft globals"
once="$once hashes hazard interpreter machine_code map messages module npy npz nvtx progress prompt readable reduce"
once="$once rng rng_library seeds show structure task_results test_run timeline trace_bodies trace_script types"
once="$once variables wav"
echo "testing specs with address,undefined"
TEST_TIMEOUT_S=2700 ISOLATE="thread process" ONCE="$once" GPULUA_LUA="env LD_PRELOAD=$asan_library lua5.4" \
    run address specs.log address,undefined TEST_PROGRAMS= $lua_settings ${lua_include:+"LUA_CFLAGS=$lua_include"}
finish address specs.log $?
reports address

if [ -n "$valgrind" ]; then
    wait "$valgrind"
    echo "tested with valgrind"
    for program in $valgrind_programs; do
        log=$out/valgrind/$(basename "$program")
        [ "$(cat "$log.status")" = 0 ] || { failed=$((failed + 1)); tail -n 40 "$log"; }
        grep -aE '^[0-9]+ passed, ' "$log" | sed "s|^|spec/$program: |"
        add_counts "$log"
    done
else
    echo "skipped: valgrind is not here"
    skipped=$((skipped + 1))
fi

cat "$out/reports"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$status" -eq 0 ]
