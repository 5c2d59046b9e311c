#!/usr/bin/env bash
# What a restart costs: a node of a local cluster is filled, overwritten, and started again. For each load: memory
# before, at `ready` and 15 s after it, how long the start took, and how much of that was processor time.
#
#   cargo build --release && tests/demonstration/restart.sh
#
# --bin DIR: where coppice and coppice-load are [target/release]
# --loads L: each ENTRIES/BYTES/SECONDS: entries, bytes of a value, how long they are overwritten [12M/8/20 2M/100/40]
# --kill: the node is killed; otherwise it gets SIGTERM
# --rest S: seconds between the end of the load and that [10]
set -euo pipefail

bin="$(cd "$(dirname "$0")/../.." && pwd)/target/release" loads="12M/8/20 2M/100/40" with=TERM rest=10
while [ $# -gt 0 ]; do
    case "$1" in
        --bin) bin="$2"; shift ;;
        --loads) loads="$2"; shift ;;
        --kill) with=KILL ;;
        --rest) rest="$2"; shift ;;
        *) echo "restart.sh: unknown argument $1" >&2; exit 2 ;;
    esac
    shift
done
for program in coppice coppice-load; do
    [ -x "$bin/$program" ] || { echo "restart.sh: no $bin/$program: cargo build --release" >&2; exit 2; }
done

home="$(mktemp -d "${TMPDIR:-/tmp}/coppice-restart.XXXXXX")" demo=
finish() {
    local exit=$?
    trap - EXIT INT TERM
    [ -z "$demo" ] || kill "$demo" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$home"
    exit "$exit"
}
trap finish EXIT INT TERM

# Starts a cluster of one node, or resumes it, and waits until it serves.
start() {
    : >"$home/out"
    "$bin/coppice" demo --nodes 1 --no-prompt --data-dir "$home/data" >"$home/out" 2>"$home/err" &
    demo=$!
    until grep -q '^ready' "$home/out"; do
        kill -0 "$demo" 2>/dev/null || { cat "$home/err" >&2; exit 1; }
        sleep 0.05
    done
    node="$(sed -n 's/^ *n1 .*pid \([0-9]*\).*/\1/p' "$home/out")"
    COPPICE_ENDPOINTS="$(sed -n 's/^ *n1  client \([^ ]*\) .*/\1/p' "$home/out")"
    export COPPICE_ENDPOINTS
}
memory() { awk -v "what=$1:" '$1 == what { printf "%d", $2 / 1024 }' "/proc/$node/status"; }

echo "entries/bytes/seconds   memory MB: before, at ready, most, 15 s later   ready s   processor s   log MB   checkpoints MB"
for load in $loads; do
    IFS=/ read -r entries bytes seconds <<<"$load"
    rm -rf "$home/data"
    start
    "$bin/coppice-load" --quiet fill --entries "$entries" --value-size "$bytes" >/dev/null
    "$bin/coppice-load" --quiet run --workload put --clients 64 --entries "$entries" --value-size "$bytes" \
        --duration "${seconds}s" -o json >/dev/null
    sleep "$rest"
    before="$(memory VmRSS)" log="$(du -sm "$home/data/n1/log" | cut -f1)"
    checkpoints="$(du -sm "$home/data/n1/checkpoints" | cut -f1)"
    kill "-$with" "$node"
    while kill -0 "$node" 2>/dev/null; do sleep 0.05; done
    kill "$demo" && wait "$demo" || true
    began="$(date +%s%N)"
    start
    took="$(awk -v ns="$(($(date +%s%N) - began))" 'BEGIN { printf "%.1f", ns / 1e9 }')"
    processor="$(awk '{ printf "%.1f", ($14 + $15) / 100 }' "/proc/$node/stat")"
    ready="$(memory VmRSS)" most="$(memory VmHWM)"
    sleep 15
    printf '%-22s  %d, %d, %d, %d   %s   %s   %d   %d\n' "$load" "$before" "$ready" "$most" "$(memory VmRSS)" "$took" \
        "$processor" "$log" "$checkpoints"
    kill "$demo" && wait "$demo" || true
    demo=
done
