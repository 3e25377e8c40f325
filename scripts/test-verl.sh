#!/bin/sh
# Tests with the real verl on a CPU, in a separate environment (.venv-verl): agent loop, trainers,
# data, and estimators compared with verl's. Only inference servers are replaced.
#
#   scripts/test-verl.sh [pytest arguments]
#
# PYTHON  the Python to build it with (default python3)
# TORCH   the PyTorch to install first (default torch==2.13.0, whose PyPI file runs on a CPU);
#         empty takes what verl asks for
set -eu
cd "$(dirname "$0")/.."

venv=.venv-verl
torch=${TORCH-torch==2.13.0}
if [ ! -e "$venv/.ready" ] || [ pyproject.toml -nt "$venv/.ready" ]; then
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    [ -z "$torch" ] || "$venv/bin/pip" install --quiet "$torch"
    "$venv/bin/pip" install --quiet --editable '.[test,verl]'
    touch "$venv/.ready"
fi

# verl's wheel has a top-level package `tests` too: `-m pytest` from here puts ours first.
# Ray must not write a token file into the user's home for an import.
export RAY_AUTH_MODE=disabled HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec "$venv/bin/python" -m pytest tests/verl_differential tests/verl -m verl "$@"
