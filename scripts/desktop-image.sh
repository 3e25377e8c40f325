#!/bin/sh
# Makes the image trajgym/desktop:bookworm (an X server in memory, openbox, mousepad, pcmanfm,
# galculator, xterm) on trajgym/base:bookworm. Does nothing if it is there; --force builds it anew.
#
# No registry is needed: the base is made from the package mirror where none answers, and mss, which
# Debian does not have, comes with this machine's pip.
# PYTHON  an interpreter with pip; default python3
set -eu

image=trajgym/desktop:bookworm
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}

say() { echo "desktop-image: $*" >&2; }

"$root/scripts/base-image.sh"
if [ "${1:-}" != --force ] && docker image inspect "$image" >/dev/null 2>&1; then
    say "$image is there"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R "$root/envs/gui/images/desktop/." "$work/"
mkdir "$work/wheels"
say "fetching mss"
"$python" -m pip download --quiet --no-deps --only-binary :all: --dest "$work/wheels" mss==10.1.0
say "building $image"
docker build --quiet --label trajgym.image=desktop -t "$image" "$work" >/dev/null
say "$image is ready"
