"""Write the corpus that ships with trajgym: the same bytes every time.

Usage: python -m tests.search.world [FOLDER]

FOLDER is where ``passages.jsonl`` and ``questions.jsonl`` go; by default the package's data.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.search.world.questions import write_world

BUILTIN = Path(__file__).parents[3] / "envs" / "search" / "data" / "builtin"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the built-in corpus and its questions.")
    parser.add_argument("folder", type=Path, nargs="?", default=BUILTIN)
    write_world(parser.parse_args().folder)


if __name__ == "__main__":
    main()
