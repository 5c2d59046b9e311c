#!/usr/bin/env bash
# redis-cli and redis-benchmark, unmodified.
set -euo pipefail
host=$1 port=$2
cli() { redis-cli -h "$host" -p "$port" "$@"; }
is() { [ "$1" = "$2" ] || { echo "expected $2, read $1"; exit 1; }; }
is "$(cli ping)" PONG
is "$(cli set cli:a 1)" OK
is "$(cli incr cli:a)" 2
is "$(cli -3 get cli:none)" ""
is "$(cli --csv mget cli:a cli:none)" '"2",NULL'
is "$(printf 'multi\nset cli:b 1\nincr cli:b\nexec\n' | cli | tail -1)" 2
is "$(cli set cli:ttl x ex 100 && cli ttl cli:ttl)" $'OK\n100'
is "$(cli -c set cli:c 1)" OK
cli lpush cli:l x | grep -q "LPUSH is not supported"
seq 1 2000 | sed 's/.*/SET cli:bulk:& &/' | cli --pipe | grep -q "errors: 0, replies: 2000"
is "$(cli --scan --pattern 'cli:bulk:1??' | wc -l)" 100
cli --scan --pattern 'cli:bulk:*' | xargs redis-cli -h "$host" -p "$port" del >/dev/null
echo "redis-cli ok"
redis-benchmark -h "$host" -p "$port" -n 2000 -c 20 -P 8 -r 1000 -q \
    -t ping_inline,ping_mbulk,set,get,incr,mset | tr '\r' '\n' | grep "per second"
echo "redis-benchmark ok"
