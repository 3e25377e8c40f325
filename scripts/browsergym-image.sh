#!/bin/sh
# Makes the image trajgym/browsergym:bookworm (BrowserGym's core and MiniWoB++ tasks) on
# trajgym/browser:bookworm. Does nothing if it is there and up to date; --force builds it anew.
#
# PYTHON    an interpreter with pip; default python3
# IMAGE     the name of the image
# PACKAGES  further packages with task classes, separated by spaces
set -eu

image=${IMAGE:-trajgym/browsergym:bookworm}
packages="browsergym-core>=0.14 browsergym-miniwob>=0.14 ${PACKAGES:-}"
root=$(cd "$(dirname "$0")/.." && pwd)
inputs=$( (cd "$root" && cat scripts/browsergym-image.sh scripts/gui-image.sh \
    envs/gui/images/browser/* envs/gui/images/browsergym/* && echo "$packages") \
    | sha256sum | cut -c1-16)
python=${PYTHON:-python3}

say() { echo "browsergym-image: $*" >&2; }

if [ "${1:-}" != --force ] && \
    [ "$(docker image inspect -f '{{index .Config.Labels "trajgym.inputs"}}' "$image" 2>/dev/null)" \
        = "$inputs" ]; then
    say "$image is up to date"
    exit 0
fi
"$root/scripts/gui-image.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R "$root/envs/gui/images/browsergym/." "$work"
mkdir "$work/wheels"
say "fetching wheels"
# Debian bookworm has Python 3.11, whatever runs here.
# shellcheck disable=SC2086
"$python" -m pip download --quiet --only-binary :all: --python-version 3.11 \
    --dest "$work/wheels" $packages
say "building $image"
docker build --quiet --label trajgym.image=browsergym \
    --label "trajgym.inputs=$inputs" -t "$image" "$work" >/dev/null
say "$image is ready"
