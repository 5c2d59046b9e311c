#!/usr/bin/env bash
# A hot spot moves over six nodes, and the cluster follows it by itself: `rebalance = auto`, `auto_split = load`.
#
#   cargo build --release && tests/demonstration/hot_spot.sh
#
# --bin DIR: where the programs are [target/release]
# --rate N: puts per second, all of them to a hundredth of the keys [4000]
# --seconds N: how long each place is hot [180]
#
# Each phase begins with all puts at one node. Every ten seconds a line says which share of them the busiest node leads,
# how many nodes lead some, and how many changes the cluster has made. Exit 0: in each phase the busiest node came to
# lead at most two fifths, no put failed, and nothing went back where it came from within a minute.
set -euo pipefail

rate=4000 seconds=180
bin="$(cd "$(dirname "$0")/../.." && pwd)/target/release"
while [ $# -gt 0 ]; do
    case "$1" in
        --bin) bin="$2"; shift ;;
        --rate) rate="$2"; shift ;;
        --seconds) seconds="$2"; shift ;;
        *) echo "hot_spot.sh: unknown argument $1" >&2; exit 2 ;;
    esac
    shift
done
for program in coppice coppice-load; do
    [ -x "$bin/$program" ] || { echo "hot_spot.sh: no $bin/$program: cargo build --release, or --bin DIR" >&2; exit 2; }
done

home="$(mktemp -d "${TMPDIR:-/tmp}/coppice-hot-spot.XXXXXX")"
demo="" load=""
finish() {
    local exit=$?
    trap - EXIT INT TERM
    for pid in $load $demo; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    [ "$exit" = 0 ] || tail -n 5 "$home"/*.out "$home"/*.err >&2 || true
    rm -rf "$home"
    exit "$exit"
}
trap finish EXIT INT TERM

"$bin/coppice" demo --nodes 6 --partitions 6 --data-dir "$home/data" --no-prompt >"$home/demo.out" 2>"$home/demo.err" &
demo=$!
for _ in $(seq 300); do
    ! grep -q '^ready' "$home/demo.out" || break
    kill -0 "$demo" || exit 1
    sleep 0.1
done
COPPICE_ENDPOINTS=$(sed -n 's/^ *n[0-9]* *client \([^ ]*\).*/\1/p' "$home/demo.out" | paste -sd,)
export COPPICE_ENDPOINTS
"$bin/coppice" config set rebalance auto
"$bin/coppice" config set auto_split load

# Changes that the cluster made by itself so far, with their times.
changes() { cat "$home"/data/*.log | grep 'the topology changes by itself' | sort || true; }

# Those of them that take back another one of the last minute: `p2: the leader moves from n2 to n4`, and to n2 again.
taken_back() {
    changes | sed -n 's/^.*T\(..\):\(..\):\(..\).*what="\(p[0-9]*: [^"]* moves\) from \(n[0-9]*\) to \(n[0-9]*\)".*/\1 \2 \3 \5 \6 \4/p' |
        awk '{ now = $1 * 3600 + $2 * 60 + $3; from = $4; to = $5; $1 = $2 = $3 = $4 = $5 = ""
               if (now - at[$0, to, from] < 60 && (($0, to, from) in at)) print now, $0, from, to
               at[$0, from, to] = now }'
}

# "SHARE NODES": which part of the load, in percent, the busiest node leads, and how many nodes lead a tenth of that.
spread() {
    "$bin/coppice" partition ls -o json | grep -o '"commands_per_second":[0-9]*\|"leader":"n[0-9]*"' | tr -d '"' |
        awk -F: '$1 == "leader" { load[$2] += last; all += last } { last = $2 }
             END { for (n in load) if (load[n] > most) most = load[n]
                   for (n in load) if (load[n] * 10 > most) nodes++
                   printf "%d %d", (all ? 100 * most / all : 100), nodes }'
}

failed=0
for place in 0.380..0.390 0.448..0.458 0.412..0.422; do
    echo "# $rate puts a second, all of them to the keys at $place of the key space"
    "$bin/coppice-load" run --workload put --within "$place" --entries 100k --rate "$rate" --clients 200 \
        --duration "${seconds}s" -o json -q >"$home/load.out" 2>"$home/load.err" &
    load=$!
    before=$(changes | wc -l) least=100
    for second in $(seq 10 10 $((seconds - 10))); do
        sleep 10
        read -r share nodes <<<"$(spread)"
        echo "$second s: the busiest of $nodes nodes leads $share %, $(($(changes | wc -l) - before)) changes"
        [ "$share" -ge "$least" ] || least=$share
    done
    wait "$load" || exit 1
    load=""
    lost=$(grep -o '"failed":[0-9]*' "$home/load.out" | grep -o '[0-9]*$' | head -n 1)
    echo "# the busiest node came to lead $least %; $lost puts failed"
    [ "$least" -le 40 ] && [ "$lost" = 0 ] || failed=1
done
changes | sed 's/^\(.\{19\}\).*what=/\1 /'
if [ -n "$(taken_back)" ]; then
    echo "# taken back within a minute:"
    taken_back
    failed=1
fi
exit "$failed"
