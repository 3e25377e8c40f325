#!/bin/sh
# Compare the gradients of TRL's, verl's and AReaL's losses on the same recorded sessions, each in its
# own environment, because their requirements conflict. Creates missing environments.
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
