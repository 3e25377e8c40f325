"""Rules of the code base that no linter has."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("adapters", "cli", "envs", "rewards", "rollout", "server", "trajectory")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@pytest.fixture(autouse=True)
def _no_finalisers() -> Iterator[None]:
    """Let no finaliser run while a file is parsed.

    Python 3.11 raises a SystemError if one parses too, as the report of a lost exception does.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def broad_handlers(source: str) -> list[int]:
    """Return the lines of ``except Exception`` and the like that neither re-raise nor say why."""
    lines = source.splitlines()
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = ast.walk(node.type) if node.type else [ast.Name("BaseException")]
        names = {name.id for name in caught if isinstance(name, ast.Name)}
        last = node.body[-1]
        again = isinstance(last, ast.Raise) and last.exc is None
        comments = [line.partition("#")[2] for line in lines[node.lineno - 1 : node.lineno + 1]]
        reason = "".join(comments).removeprefix(" noqa: BLE001").strip(" -")
        if names & {"Exception", "BaseException"} and not again and not reason:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    ("handler", "found"),
    [
        ("except Exception:\n    pass", True),
        ("except:\n    pass", True),
        ("except (OSError, BaseException):\n    pass", True),
        ("except Exception:  # noqa: BLE001\n    pass", True),
        ("except Exception:  # noqa: BLE001 - user code\n    pass", False),
        ("except Exception:\n    # user code\n    pass", False),
        ("except BaseException:\n    close()\n    raise", False),
        ("except ValueError:\n    pass", False),
    ],
)
def test_broad_handlers_are_found(handler: str, *, found: bool) -> None:
    """The check finds handlers without a reason, and only those."""
    assert bool(broad_handlers(f"try:\n    call()\n{handler}\n")) is found


def test_broad_handlers_have_a_reason() -> None:
    """A handler of every exception that does not raise it again has a comment with the reason."""
    bare = [f"{path}:{line}" for path in FILES for line in broad_handlers(path.read_text())]
    assert bare == []
