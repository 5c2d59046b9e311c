#!/usr/bin/env bash
# The Debian package: builds it in target/debian, from this checkout.
#
#   server/ops/package.sh                         # needs: cargo install --locked --version 3.6.3 cargo-deb
#   server/ops/package.sh notices                 # licences of what is linked in, on stdout
#   server/ops/package.sh files DIR PROGRAM       # manual pages, completions, changelog and notices alone
#
# server/Cargo.toml says what goes where. Flags for cargo: CARGO_BUILD_TARGET and the like.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# What the program holds of other people's crates, each with the text of its licence.
notices() {
    local crate licence
    echo "coppice is built from these crates, under the licences named."
    cargo tree --locked --quiet -p coppice-server -e normal --prefix none --format '{p}|{l}' | sed 's/ (\*)$//' |
        grep -v '^coppice-' | sed 's/ (proc-macro)//' | sort -u |
        while IFS='|' read -r crate licence; do
            printf '\n%s\n%s: %s\n\n' "$(printf '=%.0s' {1..100})" "$crate" "$licence"
            find "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"${crate/ v/-}" -maxdepth 4 -type f \
                \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) -exec cat {} +
        done
}

# Made from the program itself: `coppice man`, `coppice completions`.
files() {
    local dir=$1 program=$2 version
    version=$(cargo pkgid --locked -p coppice-server | sed 's/.*[#@]//')
    rm -rf "$dir" && mkdir -p "$dir/man" "$dir/completions"
    "$program" man --dir "$dir/man"
    "$program" completions bash >"$dir/completions/coppice"
    "$program" completions zsh >"$dir/completions/_coppice"
    "$program" completions fish >"$dir/completions/coppice.fish"
    gzip -9n "$dir"/man/*.1
    gzip -9n <CHANGELOG.md >"$dir/changelog.gz"
    notices | gzip -9n >"$dir/notices.gz"
    # What Debian's tools read; what changed stands in changelog.gz, which is CHANGELOG.md.
    gzip -9n >"$dir/changelog.Debian.gz" <<EOF
coppice ($version-1) unstable; urgency=medium

  * Version $version: see changelog.gz beside this file.

 -- Coppice developers <coppice@users.noreply.github.com>  $(date -R -u -d "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}")
EOF
}

case ${1:-deb} in
notices) notices ;;
files) files "$2" "$3" ;;
deb)
    cargo build --release --locked -p coppice-server --bin coppice
    release=${CARGO_TARGET_DIR:-target}/${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}release
    files "$release/package" "$release/coppice"
    cargo deb --locked --no-build -p coppice-server
    ;;
*)
    sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
