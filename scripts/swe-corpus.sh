#!/bin/sh
# Rebuild the corpus of validated bugs: recipes in envs/swe/data/corpus, and the yield of each package
# in a folder that benchmarks/bench_swe.py reads. Takes about half an hour on one core.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
reports=build/swe-corpus
mkdir -p "$reports"
while read -r package version count; do
    "$python" -m trajgym.cli swe build --mutate "$package" "$version" --count "$count" \
        --test-seconds 60 --out envs/swe/data/corpus --report "$reports/$package-$version.json" \
        </dev/null
done <<END
boltons 23.1.0 8
cachetools 5.5.0 12
funcy 2.0 12
more-itertools 10.3.0 12
sqlparse 0.5.1 12
toolz 1.0.0 12
END
