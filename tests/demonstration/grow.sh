#!/usr/bin/env bash
# A cluster grows and shrinks while it serves: one partition on three nodes becomes eight on six, and then one on three
# again. The mixed load runs all the time; no command of it may fail, and its history must be linearizable.
#
#   cargo build --release && tests/demonstration/grow.sh
#
# --short: four partitions on four nodes, and fewer commands
# --bin DIR: where the programs are [target/release]
# --base-port N: the nodes listen on N to N+9, N+10 to N+19 and so on [a free stretch]
# --seconds N: how long the load runs; the changes must be done before it ends [60, with --short 20]
# --patience T: how long a verb may take [30s] and a command of the load [5s]; for machines that are busy with others
# --keep: leave the data directories, the history and the logs
# --kill: one node dies (SIGKILL) and comes back while the cluster grows, and one while it shrinks
#
# Every change is a verb as an operator types it. Exit 0: all went well; the last line says how many operations were
# checked.
set -euo pipefail

partitions=8 nodes=6 rate=600 seconds=60 base="" keep="" kills="" verbs=30s commands=5s
bin="$(cd "$(dirname "$0")/../.." && pwd)/target/release"
while [ $# -gt 0 ]; do
    case "$1" in
        --short) partitions=4 nodes=4 rate=200 seconds=20 ;;
        --seconds) seconds="$2"; shift ;;
        --patience) verbs="$2" commands="$2"; shift ;;
        --bin) bin="$2"; shift ;;
        --base-port) base="$2"; shift ;;
        --keep) keep=1 ;;
        --kill) kills=1 ;;
        *) echo "grow.sh: unknown argument $1" >&2; exit 2 ;;
    esac
    shift
done
for program in coppice coppice-load coppice-check; do
    [ -x "$bin/$program" ] || { echo "grow.sh: no $bin/$program: cargo build --release, or --bin DIR" >&2; exit 2; }
done

home="$(mktemp -d "${TMPDIR:-/tmp}/coppice-grow.XXXXXX")"
declare -A pids=()
load_pid=""

finish() {
    local exit=$?
    trap - EXIT INT TERM
    [ -z "$load_pid" ] || kill "$load_pid" 2>/dev/null || true
    for node in "${!pids[@]}"; do kill -9 "${pids[$node]}" 2>/dev/null || true; done
    wait 2>/dev/null || true
    if [ -n "$keep" ]; then
        echo "everything is in $home" >&2
    else
        [ "$exit" = 0 ] || { tail -n 5 "$home"/*.log >&2 || true; }
        rm -rf "$home"
    fi
    exit "$exit"
}
trap finish EXIT INT TERM

# Whether nobody listens on any port that the nodes will take.
is_free() {
    local node
    for node in $(seq 1 "$nodes"); do
        for port in 0 2 3; do
            ! (exec 3<>"/dev/tcp/127.0.0.1/$(($1 + (node - 1) * 10 + port))") 2>/dev/null || return 1
        done
    done
}
if [ -z "$base" ]; then
    for _ in $(seq 50); do
        base=$((20000 + RANDOM % 1000 * 10))
        if is_free "$base"; then break; fi
    done
fi

address() { echo "127.0.0.1:$((base + ($1 - 1) * 10 + $2))"; }

serve() {
    local seeds="$(address 1 2),$(address 2 2),$(address 3 2)"
    "$bin/coppice" serve --name "n$1" --data-dir "$home/n$1" --seeds "$seeds" --listen-native "$(address "$1" 0)" \
        --listen-peer "$(address "$1" 2)" --listen-resp "$(address "$1" 1)" \
        --listen-admin "$(address "$1" 3)" >>"$home/n$1.log" 2>&1 &
    pids[$1]=$!
}

# A verb as an operator types it.
say() {
    echo "\$ coppice $*"
    "$bin/coppice" "$@" --yes --output table --timeout "$verbs"
}

# Kills a node in the middle of a change and starts it again a moment later, if that was asked for.
stumble() {
    [ -n "$kills" ] || return 0
    echo "# n$1 dies, and comes back"
    kill -9 "${pids[$1]}"
    wait "${pids[$1]}" 2>/dev/null || true
    serve "$1"
}

COPPICE_ENDPOINTS="$(address 1 0),$(address 2 0),$(address 3 0)"
export COPPICE_ENDPOINTS

for node in 1 2 3; do serve "$node"; done
for _ in $(seq 200); do
    if "$bin/coppice" init --partitions 1 --if-needed >"$home/init.log" 2>&1 &&
        "$bin/coppice" status >"$home/init.log" 2>&1; then formed=1; break; fi
    sleep 0.1
done
[ -n "${formed:-}" ] || { cat "$home/init.log" >&2; exit 1; }

# Ranges span a third of the keys, so that most of them cross partitions once there are several.
"$bin/coppice-load" run --workload mixed --entries 1000 --range-keys 300 --rate "$rate" --clients 32 --trim 0s \
    --duration "${seconds}s" --timeout "$commands" --record "$home/history.jsonl" -o json >"$home/load.json" 2>"$home/load.log" &
load_pid=$!
sleep 2

for node in $(seq 4 "$nodes"); do
    serve "$node"
    sleep 0.3
    say node add "$(address "$node" 2)"
done
# The endpoints of before stay good: a client learns of new nodes from the map.
for _ in $(seq 2 "$partitions"); do
    say partition split
done
"$bin/coppice" partition ls -o table
children=$("$bin/coppice" partition ls -o json | grep -o '"id":"p[0-9]*"' | grep -o 'p[0-9]*' | grep -vx p0)
at=3
for partition in $children; do
    at=$((at % nodes + 1)) next=$((at % nodes + 1))
    third=$((next % nodes + 1))
    say partition move "$partition" --to "n$at,n$next,n$third" &
    moving=$!
    if [ "$partition" = p2 ]; then stumble 2; fi
    wait "$moving"
done
"$bin/coppice" partition ls -o table
[ "$("$bin/coppice" partition ls -o json | grep -o '"id":"p[1-9]' | wc -l)" = "$partitions" ]

echo "# $partitions partitions on $nodes nodes; and back"
for node in $(seq "$nodes" -1 4); do
    say node remove "n$node" &
    removing=$!
    if [ "$node" = 4 ]; then stumble 1; fi
    wait "$removing"
    # It holds nothing, and nobody asks it for anything any more; ranges that it had begun to give end within a second.
    sleep 2
    kill "${pids[$node]}"
    wait "${pids[$node]}" || { echo "n$node did not stop as it should" >&2; exit 1; }
    unset "pids[$node]"
done
while :; do
    last=$("$bin/coppice" partition ls -o json | grep -o '"id":"p[1-9][0-9]*"' | tail -n 1 | grep -o 'p[0-9]*')
    [ "$last" != p1 ] || break
    # What a neighbour took in before has to be on disk first; it says so.
    until say partition merge "$last" >"$home/merge.log" 2>&1; do
        grep -q "still writing down" "$home/merge.log" || { cat "$home/merge.log" >&2; exit 1; }
        sleep 0.2
    done
    cat "$home/merge.log"
done
"$bin/coppice" partition ls -o table
"$bin/coppice" node ls -o table
sleep 1

kill -0 "$load_pid" 2>/dev/null || { echo "the load ended before the changes did: give it more --seconds" >&2; exit 1; }
echo "# the load goes on to its end"
wait "$load_pid" || { echo "the load has failed:" >&2; cat "$home/load.log" "$home/load.json" >&2; exit 1; }
load_pid=""
cat "$home/load.json"
for kind in failed unknown; do
    grep -q "\"$kind\":0[,}]" "$home/load.json" || { echo "commands ended as $kind" >&2; exit 1; }
done
# The search judges by what the clients saw; with it go the checks that need no logs.
"$bin/coppice-check" history "$home/history.jsonl" --checker search >"$home/verdict" || {
    cat "$home/verdict"
    echo "the history is not linearizable, or nobody knows" >&2
    exit 1
}
cat "$home/verdict"
operations=$(grep -o '^read *[0-9]*' "$home/verdict" | grep -o '[0-9]*$')
echo "linearizable: $operations operations, none failed, from 1 partition on 3 nodes to $partitions on $nodes and back"
