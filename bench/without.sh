#!/bin/sh
# What hooks that nobody has set, and the counters of stats(), cost a launch: builds the tree twice more, without the one
# and without the other, and runs bench/script.lua on all three in turn. Prints the least and the median of ROUNDS
# (default 7): the script's share of a launch in bursts, and a launch, sustained, in ns; and where valgrind is, what a
# launch takes the script's thread on the CPU device, in instructions.
#   [DEVICE=cuda] [ISOLATE=process] [ROUNDS=7] sh bench/without.sh
set -eu
device=${DEVICE:-cpu} transport=${ISOLATE:-process} rounds=${ROUNDS:-7} jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
root=$PWD/build/without
rm -rf "$root"
mkdir -p "$root"

# tree NAME: a copy of this one
tree() {
    mkdir -p "$root/$1"
    tar -c --exclude=./build --exclude=./.git --exclude='./.gpu*' . | tar -x -C "$root/$1"
}
# leave_out FILE EXPRESSION: changes it, or fails
leave_out() {
    cp "$1" "$root/before"
    sed -i -E "$2" "$1"
    ! cmp -s "$1" "$root/before" || { echo "bench/without.sh: nothing to leave out of $1" >&2; exit 1; }
}

tree nothing
tree hooks
leave_out "$root/hooks/src/runtime/hooks.h" \
    's/return __builtin_expect\(submit->stream->device->hooks != NULL, 0\).*/(void)submit; return false;/'
tree counters
for file in op device work hazards graph/graph; do # ops_in_flight is no counter: it is what limits look at
    leave_out "$root/counters/src/runtime/$file.c" \
        's/^( *)[a-z>-]*device->stats\.(ops_completed|ops_failed|requests|records|launches|waits_elided|replays)(\+\+;)/\1;/
         s/^( *)device->stats\.record_bytes \+= .*;/\1;/'
done
for name in nothing hooks counters; do
    (cd "$root/$name" && make -j"$jobs" all > "$root/$name.log" 2>&1) || { tail -n 20 "$root/$name.log" >&2; exit 1; }
done

round=0
while [ "$round" -lt "$rounds" ]; do
    for name in nothing hooks counters; do
        (cd "$root/$name" && GPULUA_CACHE="$root/cache" build/gpulua --device "$device" --isolate "$transport" \
            bench/script.lua) >> "$root/$name.out"
    done
    round=$((round + 1))
done
# instructions NAME
instructions() {
    command -v valgrind > /dev/null || { echo "-"; return; }
    for bursts in 100 600; do
        rm -f "$root/calls"*
        (cd "$root/$1" && GPULUA_CACHE="$root/cache" valgrind --tool=callgrind --separate-threads=yes \
            --callgrind-out-file="$root/calls" build/gpulua --isolate thread bench/instructions.lua launch $bursts) \
            > "$root/calls.log" 2>&1
        sed -n 's/^totals: *//p' "$root/calls-01"
    done | awk '{ count[NR] = $1 } END { printf "%.0f\n", (count[2] - count[1]) / 10000 }'
}
# of_rounds NAME VALUE: the least and the median
of_rounds() {
    sed -n "s/^$2 \([0-9.]*\) .*/\1/p" "$root/$1.out" | sort -n |
        awk '{ v[NR] = $1 } END { printf "%.1f, %.1f\n", v[1], v[int((NR + 1) / 2)] }'
}
printf '%-18s %18s %18s %14s\n' "without" "burst, ns" "sustained, ns" "instructions"
for name in nothing hooks counters; do
    printf '%-18s %18s %18s %14s\n' "$name" "$(of_rounds $name launch_burst)" "$(of_rounds $name launch_sustained)" \
        "$(instructions $name)"
done
rm -rf "$root"
