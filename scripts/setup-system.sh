#!/bin/sh
# Prepare a machine for the test suite: Debian packages, Docker engine, base image. As root it
# installs and starts what is missing; otherwise it only reports what is missing.
set -eu
cd "$(dirname "$0")/.."

missing=
for pair in git:git bwrap:bubblewrap mmdebstrap:mmdebstrap iptables:iptables dockerd:docker.io; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair#*:}"
done

if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        # shellcheck disable=SC2086 # a list of names
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing \
            >/dev/null
    else
        echo "not installed:$missing (install them to run every test)" >&2
    fi
fi

# Other distributions may not have it; its test then fails with the reason.
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v runsc >/dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends runsc \
        >/dev/null || echo "runsc (gVisor) can't be installed" >&2
fi

scripts/docker-engine.sh
scripts/base-image.sh
# A Debian python3 has no pip: the environment that the tests run in does.
if [ -x .venv/bin/python ]; then
    PYTHON=${PYTHON:-$PWD/.venv/bin/python}
    export PYTHON
fi
scripts/desktop-image.sh
scripts/gui-image.sh
scripts/browsergym-image.sh
