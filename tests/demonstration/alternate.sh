#!/usr/bin/env bash
# What a change costs: two local clusters, A and B, take the same loads in turn, and the ratio of each pair is printed.
#
#   cargo build --release && tests/demonstration/alternate.sh --b-flags --tls            # what TLS costs
#   tests/demonstration/alternate.sh --a-bin OLD/target/release                          # two builds
#   tests/demonstration/alternate.sh --b-users                                           # what access control costs
#
# --a-bin DIR, --b-bin DIR: where coppice and coppice-load of each cluster are [target/release]
# --a-flags F, --b-flags F: words for its `coppice demo`
# --b-users: cluster B has users, and its load shows a token
# --pairs N: runs of each load on each cluster [5]
# --seconds N: length of a run, of which a tenth at each end does not count [5]
# --loads L: of packed, messages, alone, gets, ranges, across [packed messages alone gets ranges across]
#
# Clusters have 3 nodes and 4 partitions with 1 M entries. Closed loops; everything shares this machine. For each load:
# the median of A and of B, and the median, least and greatest of the ratios B/A of neighbours, of throughput (more is
# better), or of the p50 for `alone` (less is better).
set -euo pipefail

bin="$(cd "$(dirname "$0")/../.." && pwd)/target/release"
declare -A bins=([a]="$bin" [b]="$bin") flags=([a]="" [b]="") pids=() env=([a]="" [b]="")
users="" pairs=5 seconds=5 loads="packed messages alone gets ranges across"
while [ $# -gt 0 ]; do
    case "$1" in
        --a-bin) bins[a]="$2"; shift ;;
        --b-bin) bins[b]="$2"; shift ;;
        --a-flags) flags[a]="$2"; shift ;;
        --b-flags) flags[b]="$2"; shift ;;
        --b-users) users=1 ;;
        --pairs) pairs="$2"; shift ;;
        --seconds) seconds="$2"; shift ;;
        --loads) loads="$2"; shift ;;
        *) echo "alternate.sh: unknown argument $1" >&2; exit 2 ;;
    esac
    shift
done
for cluster in a b; do
    for program in coppice coppice-load; do
        [ -x "${bins[$cluster]}/$program" ] ||
            { echo "alternate.sh: no ${bins[$cluster]}/$program: cargo build --release" >&2; exit 2; }
    done
done

home="$(mktemp -d "${TMPDIR:-/tmp}/coppice-alternate.XXXXXX")"
finish() {
    local exit=$?
    trap - EXIT INT TERM
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$home"
    exit "$exit"
}
trap finish EXIT INT TERM

# Starts a demo and waits until it serves; env[CLUSTER] then holds what its clients need.
start() {
    local cluster="$1" out="$home/$1.out" endpoints
    # shellcheck disable=SC2086 # flags are words
    "${bins[$cluster]}/coppice" demo --no-prompt ${flags[$cluster]} >"$out" 2>"$home/$cluster.err" &
    pids[$cluster]=$!
    for _ in $(seq 600); do
        grep -q '^ready' "$out" && break
        kill -0 "${pids[$cluster]}" 2>/dev/null || { cat "$home/$cluster.err" >&2; return 1; }
        sleep 0.1
    done
    endpoints=$(sed -n 's/^ *n[0-9]*  client \([^ ]*\) .*/\1/p' "$out" | paste -sd, -)
    env[$cluster]="COPPICE_ENDPOINTS=$endpoints $(sed -n 's/.*export \(COPPICE_TLS_.*\)/\1/p' "$out")"
}

with() {
    local cluster="$1" program="$2"
    shift 2
    # shellcheck disable=SC2086 # variables are words
    env ${env[$cluster]} "${bins[$cluster]}/$program" "$@"
}

start a
start b
if [ -n "$users" ]; then
    (umask 077; with b coppice user add root --role admin >"$home/token")
    env[b]+=" COPPICE_TOKEN_FILE=$home/token"
fi
for cluster in a b; do with "$cluster" coppice-load --quiet fill --entries 1M >/dev/null; done

# What a load is, and which figure of it counts.
words() {
    case "$1" in
        packed) echo "--workload put --clients 1000" ;;
        messages) echo "--workload put --clients 1000 --pack 0 --connections 64" ;;
        alone) echo "--workload put --clients 1" ;;
        gets) echo "--workload get --clients 1000" ;;
        ranges) echo "--workload range --range-keys 1000 --clients 64" ;;
        across) echo "--workload range --range-keys 1000 --clients 64 --cross-percent 100" ;;
        *) echo "alternate.sh: no load $1" >&2; return 2 ;;
    esac
}

# The figure of one run.
run() {
    local cluster="$1" load="$2" text
    # shellcheck disable=SC2046 # words
    text=$(with "$cluster" coppice-load --quiet run $(words "$load") --duration "${seconds}s" -o json)
    if [ "$load" = alone ]; then
        sed -n 's/^[^[]*"p50_ms":\([0-9.]*\).*/\1/p' <<<"$text" | head -n 1
    else
        sed -n 's/^[^[]*"commands_per_second":\([0-9.]*\).*/\1/p' <<<"$text" | head -n 1
    fi
}

middle() { sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

printf '%-10s %14s %14s %8s %8s %8s\n' load A B B/A least greatest
for load in $loads; do
    : >"$home/pairs"
    for pair in $(seq "$pairs"); do
        # Who is first takes turns, too.
        if [ $((pair % 2)) = 1 ]; then
            a=$(run a "$load") b=$(run b "$load")
        else
            b=$(run b "$load") a=$(run a "$load")
        fi
        echo "$a $b" >>"$home/pairs"
    done
    ratios=$(awk '{ print $2 / $1 }' "$home/pairs")
    printf '%-10s %14s %14s %8.3f %8.3f %8.3f\n' "$load" "$(awk '{ print $1 }' "$home/pairs" | middle)" \
        "$(awk '{ print $2 }' "$home/pairs" | middle)" "$(middle <<<"$ratios")" \
        "$(sort -g <<<"$ratios" | head -n 1)" "$(sort -g <<<"$ratios" | tail -n 1)"
done
