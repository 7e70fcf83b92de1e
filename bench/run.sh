#!/bin/sh
# Runs the raw driver and gpulua in turn, so that both see the same machine in the same minute, and prints medians over the
# rounds with ratios. BUILD, DEVICE as for make; ROUNDS (default 5).
set -eu
build=${BUILD:-build} device=${DEVICE:-cpu} rounds=${ROUNDS:-5}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
: > "$out/raw"
: > "$out/none"
: > "$out/thread"
: > "$out/process"
round=0
while [ "$round" -lt "$rounds" ]; do
    # Without CUDA's headers it was not built.
    [ ! -x "$build/bench/raw_driver" ] || "$build/bench/raw_driver" | grep -v '^#' >> "$out/raw" || true
    for transport in none thread process; do
        "$build/gpulua" --device "$device" --isolate "$transport" bench/script.lua >> "$out/$transport"
    done
    round=$((round + 1))
done
"$build/bench/startup" 41 lua5.4 -e '' > "$out/start-lua"
"$build/bench/startup" 41 "$build/gpulua" -e '' > "$out/start-gpulua"
exec lua5.4 bench/table.lua "$out" "$device"
