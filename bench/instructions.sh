#!/bin/sh
# What one call costs the script's thread on the CPU device, in instructions, which no other work on the machine changes:
#   sh bench/instructions.sh [TRANSPORT]
# Valgrind counts them for few and for many calls; the difference is that of the calls. Under none the CPU device's own
# part is in it, under thread none of it is; a process of the device's own valgrind does not run. Waiting for the device,
# which comes behind every 20th call, is in it, and differs a little from one run to the next. BUILD as for make.
set -eu
build=${BUILD:-build} transport=${1:-none} few=100 many=600
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export GPULUA_CACHE="$out/cache"

# count WHAT BURSTS
count() {
    rm -f "$out/calls"*
    valgrind --tool=callgrind --separate-threads=yes --callgrind-out-file="$out/calls" \
        "$build/gpulua" --isolate "$transport" bench/instructions.lua "$1" "$2" > "$out/log" 2>&1 ||
        { cat "$out/log" >&2; exit 1; }
    sed -n 's/^totals: *//p' "$out/calls-01"
}

"$build/gpulua" --isolate none bench/instructions.lua | while read -r what; do
    first=$(count "$what" $few)
    last=$(count "$what" $many)
    echo "$what: $(((last - first) / ((many - few) * 20)))"
done
