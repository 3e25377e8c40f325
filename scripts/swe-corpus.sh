#!/bin/sh
# Make the corpus of validated bugs again: recipes into envs/swe/data/corpus, the yield of each
# package into a folder that benchmarks/bench_swe.py reads. Takes about a quarter of an hour on one core.
#   scripts/swe-corpus.sh [COUNT]
set -eu
cd "$(dirname "$0")/.."
count=${1:-12}
python=${PYTHON:-.venv/bin/python}
reports=build/swe-corpus
mkdir -p "$reports"
while read -r package version; do
    "$python" -m trajgym.cli swe build --mutate "$package" "$version" --count "$count" --test-seconds 30 \
        --out envs/swe/data/corpus --report "$reports/$package-$version.json" </dev/null ||
        echo "$package $version: no task" >&2
done <<END
cachetools 5.5.0
toolz 1.0.0
semver 3.0.2
funcy 2.0
more-itertools 10.3.0
sqlparse 0.5.1
END
