#!/bin/sh
# Tests with the real TRL on a CPU, in a separate environment (.venv-trl).
#
#   scripts/test-trl.sh [pytest arguments]
#
# TORCH names another build of PyTorch, or is empty to take what TRL asks for. Tests marked smollm2
# fetch 98 MB once; leave them out with: scripts/test-trl.sh -m 'not smollm2'
set -eu
cd "$(dirname "$0")/.."
venv=.venv-trl
torch=${TORCH-torch==2.13.0}
if [ ! -e "$venv/.ready" ] || [ pyproject.toml -nt "$venv/.ready" ]; then
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    [ -z "$torch" ] || "$venv/bin/pip" install --quiet "$torch"
    "$venv/bin/pip" install --quiet --editable '.[test,trl]' gguf
    touch "$venv/.ready"
fi
export HF_HUB_OFFLINE=1 TRL_EXPERIMENTAL_SILENCE=1 TOKENIZERS_PARALLELISM=false
exec "$venv/bin/python" -m pytest tests/trl "$@"
