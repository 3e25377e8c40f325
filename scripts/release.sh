#!/bin/sh
# Build a release in dist/ and check it: archives, metadata, an install, the command. Uploads nothing.
#
#   PYTHON=.venv/bin/python scripts/release.sh
#
# See docs/releasing.md for what to do before and after.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
version=$("$python" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')

[ -z "$(git status --porcelain)" ] || { echo "uncommitted changes: commit them first" >&2; exit 1; }
grep -q "^## \[$version\]" CHANGELOG.md || { echo "CHANGELOG.md has no section [$version]" >&2; exit 1; }

"$python" -m pip install --quiet 'build>=1.2' 'twine>=6.1'
rm -rf dist
"$python" -m build --outdir dist .
"$python" -m twine check --strict dist/*

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet dist/*.whl
cd "$folder" # outside of the checkout: only the wheel can be found
venv/bin/trajgym --help >/dev/null
venv/bin/python -c '
from importlib.metadata import distribution
for point in distribution("trajgym").entry_points:
    if point.group != "verl.plugins":
        point.load()
'
echo "dist/ holds trajgym $version: checked, installed, not uploaded"
