#!/bin/sh
# Make the corpus of validated bugs again: recipes into envs/swe/data/corpus, the yield of each
# package into a folder that benchmarks/bench_swe.py reads. Takes about half an hour on one core.
#   scripts/swe-corpus.sh [COUNT]
set -eu
cd "$(dirname "$0")/.."
count=${1:-13}
python=${PYTHON:-.venv/bin/python}
reports=build/swe-corpus
mkdir -p "$reports"
while read -r package version; do
    "$python" -m trajgym.cli swe build --mutate "$package" "$version" --count "$count" \
        --out envs/swe/data/corpus --report "$reports/$package-$version.json"
done <<END
boltons 23.1.0
cachetools 5.5.0
click 8.1.4
more-itertools 10.3.0
sqlparse 0.5.1
toolz 1.0.0
END
