#!/bin/sh
# mypy can't follow an editable install's import hooks: show it the folders under their import
# names instead, as links.
set -eu
cd "$(dirname "$0")/.."
view=build/typing
rm -rf "$view"
mkdir -p "$view/trajgym"
for folder in trajectory rewards envs rollout adapters cli; do
    ln -s "$PWD/$folder" "$view/trajgym/$folder"
    set -- "$@" -p "trajgym.$folder"
done
MYPYPATH="$view" exec "${PYTHON:-python}" -m mypy "$@"
