#!/bin/sh
# Makes the image trajgym/base:bookworm (Debian bookworm with python3, git and patch, and the user
# `agent`). Does nothing if it is there; --force builds it anew.
#
# Takes debian:bookworm-slim from the engine or a registry. Where neither has it, mmdebstrap makes
# a minimal Debian from the package mirror under a name of ours, and the same Dockerfile builds on it.
#
# TRAJGYM_BASE       the image to build on; set it to skip the search
# TRAJGYM_PULL_WAIT  seconds that a pull may take (default 60)
set -eu

image=trajgym/base:bookworm
public=debian:bookworm-slim
private=trajgym/debian:bookworm
here=$(cd "$(dirname "$0")" && pwd)

say() { echo "base-image: $*" >&2; }
fail() { say "$*"; exit 1; }
have() { docker image inspect "$1" >/dev/null 2>&1; }

docker version >/dev/null 2>&1 || fail "no Docker engine answers; start Docker (or, in a checkout of trajgym on Debian, run scripts/docker-engine.sh)"
if [ "${1:-}" != --force ] && have "$image"; then
    say "$image is there"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

make_private() {
    [ "$(id -u)" = 0 ] || fail "no registry answers; making a base image offline needs root"
    if ! command -v mmdebstrap >/dev/null; then
        say "installing mmdebstrap"
        apt-get -qq -o DPkg::Lock::Timeout=120 update >/dev/null || true
        DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 install -y \
            --no-install-recommends mmdebstrap >/dev/null || fail "mmdebstrap can't be installed"
    fi
    say "no registry has $public: making $private from the package mirror"
    # The packages go in here, so that building on it needs no network.
    mmdebstrap --quiet --variant=minbase \
        --include=ca-certificates,git,patch,python3,python3-venv \
        --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/info/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        bookworm "$work/root.tar" || fail "mmdebstrap failed"
    docker import --change 'CMD ["bash"]' \
        --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
        "$work/root.tar" "$private" >/dev/null
    rm -f "$work/root.tar"
}

copy_authorities() {
    for file in /usr/local/share/ca-certificates/*.crt; do
        [ -f "$file" ] && cp "$file" "$1/"
    done
    return 0
}

base=${TRAJGYM_BASE:-}
[ -n "$base" ] || ! have "$public" || base=$public
[ -n "$base" ] || ! have "$private" || base=$private
if [ -z "$base" ] && timeout "${TRAJGYM_PULL_WAIT:-60}" docker pull -q "$public" >/dev/null 2>&1; then
    base=$public
fi
if [ -z "$base" ]; then
    make_private
    base=$private
fi

cp -R "$here" "$work/context"
copy_authorities "$work/context/ca"
say "building $image on $base"
docker build --quiet --build-arg "BASE=$base" --label trajgym.image=base -t "$image" \
    "$work/context" >/dev/null
say "$image is ready"
