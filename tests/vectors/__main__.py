"""``python -m tests.vectors FILE...``: pass, fail or unsupported for each case.

Exits with 0 if every case passed, 1 if one failed, 2 if none failed but some are unsupported, 3 if
a file can't be read.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from tests.vectors import run_file


def main(paths: list[str]) -> int:
    if not paths:
        print("usage: python -m tests.vectors FILE...")
        return 3
    counts: Counter[str] = Counter()
    for path in paths:
        print(path)
        try:
            results = run_file(Path(path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"  unreadable   {type(error).__name__}: {error}")
            counts["unreadable"] += 1
            continue
        for result in results:
            print(f"  {result.status:<12} {result.name}{result.detail and ': ' + result.detail}")
            counts[result.status] += 1
    print(", ".join(f"{number} {status}" for status, number in sorted(counts.items())))
    if counts["unreadable"]:
        return 3
    return 1 if counts["fail"] else 2 if counts["unsupported"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
