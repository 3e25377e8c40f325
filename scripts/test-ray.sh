#!/bin/sh
# Test the fleet on real Ray clusters of this machine, in a separate environment (.venv-ray).
#
#   scripts/test-ray.sh [pytest arguments]
set -eu
cd "$(dirname "$0")/.."
venv=.venv-ray
if [ ! -e "$venv/.ready" ] || [ pyproject.toml -nt "$venv/.ready" ]; then
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet --editable '.[ray]' pytest pytest-asyncio pytest-timeout
    touch "$venv/.ready"
fi
export RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0
exec "$venv/bin/python" -m pytest tests/ray "$@"
