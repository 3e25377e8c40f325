#!/bin/sh
# Test the adapters of trackers with the packages themselves, in a separate environment (.venv-trackers).
#
#   scripts/test-trackers.sh [pytest arguments]
set -eu
cd "$(dirname "$0")/.."
venv=.venv-trackers
if [ ! -e "$venv/.ready" ] || [ pyproject.toml -nt "$venv/.ready" ]; then
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet --editable '.[test,mlflow,tensorboard,trackio,wandb]'
    touch "$venv/.ready"
fi
export WANDB_MODE=offline
exec "$venv/bin/python" -m pytest tests/adapters/test_tracking.py "$@"
