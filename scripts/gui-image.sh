#!/bin/sh
# Makes the image trajgym/browser:bookworm (Chromium and Playwright) on trajgym/base:bookworm. Does
# nothing if it is there and up to date; --force builds it anew.
#
# Chromium comes from Debian's mirror, Playwright from wheels that are fetched here with this
# machine's pip settings: no browser is downloaded from anywhere else.
# PYTHON  an interpreter with pip; default python3
# IMAGE   the name of the image
set -eu

image=${IMAGE:-trajgym/browser:bookworm}
root=$(cd "$(dirname "$0")/.." && pwd)
# The image carries a digest of what it is made from: one made from something else is made anew.
inputs=$(cd "$root" && cat scripts/gui-image.sh envs/gui/images/browser/* | sha256sum | cut -c1-16)
python=${PYTHON:-python3}

say() { echo "gui-image: $*" >&2; }

if [ "${1:-}" != --force ] && \
    [ "$(docker image inspect -f '{{index .Config.Labels "trajgym.inputs"}}' "$image" 2>/dev/null)" \
        = "$inputs" ]; then
    say "$image is up to date"
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
    --dest "$work/wheels" 'playwright>=1.60'
say "building $image"
docker build --quiet --label trajgym.image=browser \
    --label "trajgym.inputs=$inputs" -t "$image" "$work" >/dev/null
say "$image is ready"
