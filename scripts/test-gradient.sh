#!/bin/sh
# The same recorded sessions through the losses of TRL, verl and AReaL, each in its own environment
# (their pins exclude each other): the gradients must be one. Makes what is missing of the three.
#
#   scripts/test-gradient.sh [pytest arguments]
set -eu
cd "$(dirname "$0")/.."
for trainer in trl verl areal; do
    scripts/test-$trainer.sh --collect-only -q >/dev/null
done
export HF_HUB_OFFLINE=1 TRL_EXPERIMENTAL_SILENCE=1 TOKENIZERS_PARALLELISM=false
export RAY_AUTH_MODE=disabled CUDA_VISIBLE_DEVICES=
exec .venv-areal/bin/python -m pytest tests/gradient "$@"
