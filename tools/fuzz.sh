#!/bin/sh
# Fuzzing, as `make fuzz` runs it: tools/fuzz.sh [TARGETS...], by default all of spec/fuzz/, one after another, each for
# FUZZ_SECONDS from its corpus. Builds them, by a clang with libFuzzer, in build/fuzz. What is found lies in
# build/fuzz/found, and is a failure; inputs that reach something new in build/fuzz/corpus.
#   tools/fuzz.sh --compiler   says which clang that is; fails where there is none
#   tools/fuzz.sh --merge [TARGETS...]   takes what build/fuzz/corpus has reached into the corpora of the tree
# The last line is the sum of the counts.
set -u
MAKE=${MAKE:-make}
FUZZ_SECONDS=${FUZZ_SECONDS:-600}
# An input that takes longer is a finding.
FUZZ_TIMEOUT=${FUZZ_TIMEOUT:-25}
# 0: another one each time.
FUZZ_SEED=${FUZZ_SEED:-0}
out=$PWD/build/fuzz

# Version 15 is the first that has _Float16 on x86.
compiler() {
    scratch=$(mktemp -d)
    printf '_Float16 x; int LLVMFuzzerTestOneInput(const char *bytes, long count) { return bytes[count - 1] + (int)x; }' \
        > "$scratch/try.c"
    for cc in ${FUZZ_CC:-clang clang-19 clang-18 clang-17 clang-16 clang-15}; do
        if command -v "$cc" > /dev/null &&
            $cc -w -fsanitize=fuzzer,address,undefined -o "$scratch/try" "$scratch/try.c" 2> /dev/null; then
            rm -rf "$scratch"
            echo "$cc"
            return 0
        fi
    done
    rm -rf "$scratch"
    return 1
}

cc=$(compiler)
if [ "${1:-}" = --compiler ]; then
    echo "$cc"
    [ -n "$cc" ]
    exit
fi
merge=
if [ "${1:-}" = --merge ]; then
    merge=yes
    shift
fi
[ $# -gt 0 ] || set -- $(grep -l '^FUZZ_TARGET\|^FUZZ_READER' spec/fuzz/*.c | sed 's|.*/||; s|\.c$||')
if [ -z "$cc" ]; then
    for target in "$@"; do
        echo "skipped fuzzing of $target: there is no clang with libFuzzer (make deps)"
    done
    echo "0 passed, 0 failed, $# skipped"
    exit 0
fi

mkdir -p "$out/found" "$out/corpus"
programs=
for target in "$@"; do
    programs="$programs build/fuzz/spec/fuzz/$target"
done
# Without CUDA: a GPU's backend reads nothing that is fuzzed.
$MAKE --no-print-directory BUILD=build/fuzz CC="$cc" CFLAGS="-O1 -g" SANITIZE=fuzzer-no-link,address,undefined \
    CUDA_HOME=/nowhere FUZZ=yes $programs > "$out/build.log" 2>&1 || {
    tail -n 60 "$out/build.log"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
}

export GPULUA_CACHE="$out/cache"
# Leaks are looked for at the end: behind each input that takes most of the time. Memory that a file asks for and the system does not have is refused.
export ASAN_OPTIONS="allocator_may_return_null=1:detect_leaks=1:max_allocation_size_mb=1024"
symbolizer=$(command -v llvm-symbolizer || command -v addr2line)
ASAN_OPTIONS="$ASAN_OPTIONS:external_symbolizer_path=$symbolizer"
export UBSAN_OPTIONS="print_stacktrace=1:external_symbolizer_path=$symbolizer"
export LSAN_OPTIONS="suppressions=$PWD/tools/lsan.supp:print_suppressions=0"
passed=0 failed=0
for target in "$@"; do
    program=$out/spec/fuzz/$target
    corpus=spec/fuzz/corpus/$target
    mkdir -p "$out/corpus/$target" "$corpus"
    if [ -n "$merge" ]; then
        "$program" -set_cover_merge=1 -use_counters=0 -max_len=8192 -verbosity=0 "$corpus" "$out/corpus/$target" || failed=$((failed + 1))
        continue
    fi
    options=
    [ ! -e "spec/fuzz/$target.dict" ] || options="-dict=spec/fuzz/$target.dict"
    # shellcheck disable=SC2086
    if "$program" -max_total_time="$FUZZ_SECONDS" -timeout="$FUZZ_TIMEOUT" -seed="$FUZZ_SEED" -rss_limit_mb=3072 -malloc_limit_mb=0 -max_len=8192 \
        -artifact_prefix="$out/found/$target-" -detect_leaks=0 $options "$out/corpus/$target" "$corpus" \
        > "$out/$target.log" 2>&1 < /dev/null; then
        passed=$((passed + 1))
        grep -aE '^Done ' "$out/$target.log" | sed "s/^Done/fuzzing of $target:/"
    else
        failed=$((failed + 1))
        echo "--- fuzzing of $target has found something: $out/found/"
        tail -n 80 "$out/$target.log"
        echo "---"
    fi
done
[ -z "$merge" ] || exit "$failed"
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
