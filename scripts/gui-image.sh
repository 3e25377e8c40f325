#!/bin/sh
# Makes the image trajgym/browser:bookworm (Chromium and Playwright) on trajgym/base:bookworm. Does
# nothing if it is there; --force builds it anew.
#
# Chromium comes from Debian's mirror, Playwright from wheels that are fetched here with this
# machine's pip settings: no browser is downloaded from anywhere else.
# PYTHON  an interpreter with pip; default python3
set -eu

image=trajgym/browser:bookworm
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}

say() { echo "gui-image: $*" >&2; }

if [ "${1:-}" != --force ] && docker image inspect "$image" >/dev/null 2>&1; then
    say "$image is there"
    exit 0
fi
"$root/scripts/base-image.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R "$root/envs/gui/images/browser/." "$work"
mkdir "$work/wheels"
say "fetching wheels"
# Debian bookworm has Python 3.11, whatever runs here.
"$python" -m pip download --quiet --only-binary :all: --python-version 3.11 \
    --dest "$work/wheels" 'playwright>=1.50'
say "building $image"
docker build --quiet --label trajgym.image=browser -t "$image" "$work" >/dev/null
say "$image is ready"
