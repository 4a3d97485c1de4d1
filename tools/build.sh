#!/usr/bin/env bash
# build.sh MODULE LDFLAGS NAME=PACKAGE...
#
# Builds programs of a module into BIN (default .bin) and says while it does how far it is.
# All of them are built by one `go build`, so that no package is compiled twice. GOGC is
# the compiler's: it is short-lived, and memory is cheaper than its time.
set -euo pipefail

repository=$(cd "$(dirname "$0")/.." && pwd)
module=$1 ldflags=$2
shift 2
bin=${BIN:-.bin}
[[ $bin == /* ]] || bin=$repository/$bin
names=("${@%%=*}") packages=("${@#*=}")
mkdir -p "$bin"
work=$(mktemp -d "$bin/.building.XXXXXX")
reporter=
trap '[ -z "$reporter" ] || kill "$reporter" 2>/dev/null; rm -rf "$work"' EXIT
cd "$repository/$module"

# show SECONDS: how many of the packages are compiled, and how long the rest takes at most:
# packages that an earlier build has compiled cost nothing.
total=$(go list -deps "${packages[@]}" | wc -l)
show() {
  local compiled=0 left=
  [ -f "$work/log" ] && compiled=$(grep -c . "$work/log" || true)
  if [ "$compiled" -gt 200 ] && [ "$compiled" -lt "$total" ]; then
    left=", at most $(( ($1 * (total - compiled) / compiled + 59) / 60 )) min left"
  fi
  printf 'build: %d min %02d s, %d of %d packages%s\n' $(($1 / 60)) $(($1 % 60)) "$compiled" "$total" "$left"
}

echo "build: ${names[*]}"
began=$SECONDS
(while sleep 15; do show $((SECONDS - began)); done) &
reporter=$!
if ! GOGC=400 go build -v -ldflags "$ldflags" -o "$work/" "${packages[@]}" 2>"$work/log"; then
  grep -vE '^[a-zA-Z0-9._/-]+$' "$work/log" >&2 || cat "$work/log" >&2 # not the names of packages
  echo "build: ${names[*]}: failed" >&2
  exit 1
fi
for i in "${!names[@]}"; do
  built=$(go list -f '{{.Target}}' "${packages[$i]}")
  mv "$work/$(basename "$built")" "$bin/${names[$i]}"
  touch "$bin/${names[$i]}"
done
echo "build: ${names[*]}: done in $((SECONDS - began)) s"
