#!/bin/sh
# Ensures that a Docker engine is running: as root, starts dockerd if none is, and installs it first
# if it is missing (Debian, Ubuntu). Does nothing if an engine is already running.
#
#   scripts/docker-engine.sh          start, and wait until it responds
#   scripts/docker-engine.sh --stop   stop the engine that this script started
#
# TRAJGYM_ENGINE_LOG   where dockerd writes (default /var/log/trajgym-dockerd.log)
# TRAJGYM_ENGINE_WAIT  seconds to wait for it (default 60)
set -eu

log=${TRAJGYM_ENGINE_LOG:-/var/log/trajgym-dockerd.log}
deadline=${TRAJGYM_ENGINE_WAIT:-60}
pidfile=/var/run/trajgym-dockerd.pid

say() { echo "docker-engine: $*" >&2; }
fail() { say "$*"; exit 1; }
answers() { timeout 5 docker version --format '{{.Server.Version}}' 2>/dev/null; }
# The number may have gone to another process since.
running() { [ -s "$pidfile" ] && grep -qx dockerd "/proc/$(cat "$pidfile")/comm" 2>/dev/null; }

stop() {
    running || { say "this script started no engine that still runs"; exit 0; }
    kill "$(cat "$pidfile")"
    left=30
    while running; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || fail "the engine did not stop in 30 s, see $log"
        sleep 1
    done
    rm -f "$pidfile"
}

install_engine() {
    command -v apt-get >/dev/null || fail "no dockerd here; install Docker and run this again"
    say "installing docker.io and iptables"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq -o DPkg::Lock::Timeout=120 update >>"$log" 2>&1 ||
        say "apt-get update failed, trying with the lists that are here"
    # Without a service manager the package's own start-up must not fail the installation.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    apt-get -qq -o DPkg::Lock::Timeout=120 install -y --no-install-recommends docker.io iptables \
        >>"$log" 2>&1 || fail "installing docker.io failed, see $log"
}

if [ "${1:-}" = --stop ]; then
    stop
    exit 0
fi

if command -v docker >/dev/null && version=$(answers); then
    say "engine $version answers already"
    exit 0
fi
case ${DOCKER_HOST:-} in
"" | unix:///var/run/docker.sock) ;;
*) fail "DOCKER_HOST=$DOCKER_HOST does not answer; unset it to start an engine here" ;;
esac
[ "$(id -u)" = 0 ] ||
    fail "no engine answers and we are not root: start Docker, join the group docker, or run this with sudo"

mkdir -p "$(dirname "$log")"
if ! command -v dockerd >/dev/null || ! command -v iptables >/dev/null; then
    install_engine
fi
if ! running; then
    say "starting dockerd, log in $log"
    rm -f "$pidfile"
    # A session of its own: it must outlive this script and the terminal that ran it.
    setsid dockerd --pidfile "$pidfile" >>"$log" 2>&1 </dev/null &
fi
begun=$(date +%s)
until version=$(answers); do
    [ $(($(date +%s) - begun)) -lt "$deadline" ] || {
        tail -n 20 "$log" >&2
        fail "dockerd did not answer in $deadline s, see $log"
    }
    sleep 0.3
done
say "engine $version answers"
