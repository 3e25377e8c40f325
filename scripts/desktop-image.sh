#!/bin/sh
# Makes the image trajgym/desktop:bookworm (an X server in memory, openbox, mousepad, pcmanfm,
# galculator, xterm, LibreOffice Calc, AT-SPI) on trajgym/base:bookworm. Does nothing if it is there and up to
# date; --force builds it anew.
#
# No registry is needed: the base is made from the package mirror where none answers, and mss, which
# Debian does not have, comes with this machine's pip.
# PYTHON  an interpreter with pip; default python3
# IMAGE   the name of the image
set -eu

image=${IMAGE:-trajgym/desktop:bookworm}
root=$(cd "$(dirname "$0")/.." && pwd)
# The image carries a digest of what it is made from: one made from something else is made anew.
inputs=$(cd "$root" && cat scripts/desktop-image.sh envs/gui/images/desktop/* | sha256sum | cut -c1-16)
python=${PYTHON:-python3}

say() { echo "desktop-image: $*" >&2; }

"$root/scripts/base-image.sh"
if [ "${1:-}" != --force ] && \
    [ "$(docker image inspect -f '{{index .Config.Labels "trajgym.inputs"}}' "$image" 2>/dev/null)" \
        = "$inputs" ]; then
    say "$image is up to date"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R "$root/envs/gui/images/desktop/." "$work/"
mkdir "$work/wheels"
say "fetching mss"
"$python" -m pip download --quiet --no-deps --only-binary :all: --dest "$work/wheels" mss==10.1.0
say "building $image"
docker build --quiet --label trajgym.image=desktop \
    --label "trajgym.inputs=$inputs" -t "$image" "$work" >/dev/null
say "$image is ready"
