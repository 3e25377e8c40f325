#!/bin/sh
# Makes the image trajgym/search:0.1.0, the retrieval server, on trajgym/base:bookworm.
#
# The wheels are fetched here, with this machine's pip settings: the build itself needs no network.
# PYTHON  an interpreter of the image's version (Debian bookworm: 3.11) with pip; default python3
set -eu

image=trajgym/search:0.1.0
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}

say() { echo "search-image: $*" >&2; }

"$root/scripts/base-image.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/wheels"
say "fetching wheels"
"$python" -m pip wheel --quiet --wheel-dir "$work/wheels" "$root[search]"
: >"$work/wheels/offline"
cp "$root/envs/search/data/Dockerfile" "$work/"
say "building $image"
docker build --quiet --network none --label trajgym.image=search -t "$image" "$work" >/dev/null
say "$image is ready"
