#!/bin/sh
# The service of examples/hosts/libuv.c under load on loopback, by wrk, with batching (requests that arrive together share
# a launch) and without, beside a process for each request and beside Python asyncio services with what is there of
# PyTorch, CuPy and NumPy (bench/peers/service.py). BUILD, DEVICE as for make; SECONDS_EACH (60), CONNECTIONS (64), ROUNDS (1),
# PROCESSES (CONNECTIONS): how many requests the service with a process for each has at once, each of them a context of a GPU.
# An argument is part of the names of those that are wanted. Prints a line for each service and round: requests, errors, wrong answers, requests a second, milliseconds.
set -eu
only=${1:-}
build=${BUILD:-build} device=${DEVICE:-cpu} seconds=${SECONDS_EACH:-60} connections=${CONNECTIONS:-64} rounds=${ROUNDS:-1} processes=${PROCESSES:-${CONNECTIONS:-64}}
for program in wrk curl; do
    command -v $program > /dev/null || { echo "bench/service.sh: $program is missing (Debian: $program)" >&2; exit 1; }
done
out=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill $server 2> /dev/null; rm -rf "$out"' EXIT
${CC:-cc} -O2 -Isrc $(pkg-config --cflags lua5.4 libuv) examples/hosts/libuv.c -o "$out/libuv" \
    -L"$build" -Wl,-rpath,"$(cd "$build" && pwd)" -lgpulua $(pkg-config --libs lua5.4 libuv)
export GPULUA_EXECUTOR="$PWD/$build/gpulua-exec" GPULUA_CACHE="$PWD/$build/test-cache" GPULUA_DEVICE="$device"
export GPULUA="$build/gpulua"

# measure NAME CONNECTIONS COMMAND...: starts it, waits for its address, puts load on it.
measure() {
    name=$1 count=$2
    shift 2
    case $name in
    *"$only"*) ;;
    *) return 0 ;;
    esac
    : > "$out/address"
    "$@" > "$out/address" 2> "$out/errors" &
    server=$!
    for _ in $(seq 600); do
        [ ! -s "$out/address" ] && kill -0 $server 2> /dev/null || break
        sleep 0.1
    done
    address=$(cat "$out/address")
    if [ -z "$address" ]; then
        echo "$name: does not start: $(tail -n 1 "$out/errors")"
    else
        # Ten answers that all have to give alike.
        answers=$(for i in 0 1 2 3 4 5 6 7 8 9; do curl -s "${address}nearest?x=0.$i&y=0.$((9 - i))1"; done | tr '\n' ' ')
        [ "${first_answers:=$answers}" = "$answers" ] || echo "$name: other answers: $answers, not $first_answers"
        threads=$((count < 2 ? count : 2))
        wrk -t "$threads" -c "$count" -d "${seconds}s" --timeout 10s -s bench/service_load.lua "$address" > "$out/wrk" 2>&1
        echo "$name: $(grep '^requests' "$out/wrk" || tail -n 3 "$out/wrk")"
        sed 's/^/    /' "$out/errors"
    fi
    kill -TERM $server 2> /dev/null || true
    wait $server 2> /dev/null || true
    server=
}

python=python3
/usr/bin/python3 -c 'import torch' 2> /dev/null && python=/usr/bin/python3
round=0
while [ "$round" -lt "$rounds" ]; do
    for isolate in none process; do
        for batch in 64 1; do
            measure "gpulua, $isolate, at most $batch in a launch" "$connections" \
                env BATCH=$batch GPULUA_ISOLATE=$isolate "$out/libuv" examples/hosts/libuv.lua 0
        done
    done
    for library in torch cupy numpy; do
        if ! $python -c "import $library" 2> /dev/null; then
            echo "asyncio and $library: not here"
            continue
        fi
        for batch in 64 1; do
            measure "asyncio and $library, at most $batch at a time" "$connections" \
                env BATCH=$batch $python bench/peers/service.py $library
        done
    done
    measure "a process of gpulua for each request, $processes at once" "$processes" $python bench/peers/service.py process
    round=$((round + 1))
done
