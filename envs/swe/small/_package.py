"""Generate a small package with bugs from a seed: its files, its cases and the fixes."""

from __future__ import annotations

import ast
import random
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs.swe._mutate import edits_of, is_python
from trajgym.envs.swe.small._functions import KINDS, NAMES, Kind, arguments
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Bug", "Case", "Package", "make_package", "wrong_lines"]

_RULES = frozenset({"operator", "comparison", "boolean", "off-by-one", "arguments"})
_MODULES = 2
_FUNCTIONS = 3
"""The number of functions of each module."""
_SHOWN, _HIDDEN = 4, 6
"""The numbers of cases per function: in the package's own check, and hidden ones for grading."""


class Case(NamedTuple):
    """A call and the ``repr`` of its correct value."""

    module: str
    function: str
    call: str
    value: str


class Bug(NamedTuple):
    """A wrong line and the correct one, both without indentation."""

    file: str
    function: str
    wrong: str
    right: str


class Package(NamedTuple):
    """A package with bugs.

    Attributes:
        name: the name of the package.
        files: the text of each file by path, with the bugs.
        fixed: the same files without the bugs.
        bugs: the bugs, in the order in which the check reports them.
        shown: the cases of the package's own check.
        hidden: the cases that are used for grading.
        failing: indices of the hidden cases that fail because of the bugs.
    """

    name: str
    files: dict[str, str]
    fixed: dict[str, str]
    bugs: tuple[Bug, ...]
    shown: tuple[Case, ...]
    hidden: tuple[Case, ...]
    failing: tuple[int, ...]


class _Function(NamedTuple):
    module: str
    name: str
    kind: Kind
    parameters: tuple[str, ...]
    line: str

    def text(self, line: str) -> str:
        nouns = dict(zip(self.kind.parameters.split(), self.parameters, strict=True))
        says = self.kind.says.format(**nouns)
        head = f"def {self.name}({', '.join(self.parameters)}):"
        return f'{head}\n    """{says}"""\n    {line}\n'

    def values(self, line: str, given: Iterable[Iterable[object]]) -> list[str]:
        """Return the ``repr`` of each call's value, or the name of the exception it raises."""
        scope: dict[str, Any] = {}
        exec(self.text(line), scope)  # noqa: S102  # our own text, made of constants
        return [_value(scope[self.name], arguments) for arguments in given]


def _value(function: Callable[..., object], arguments: Iterable[object]) -> str:
    try:
        return repr(function(*arguments))
    except Exception as error:  # noqa: BLE001  # the name of the exception is the value
        return type(error).__name__


@lru_cache(maxsize=1024)
def make_package(seed: int, bugs: int, *, held_out: bool = False) -> Package:
    """Return the package generated from a seed: two modules with three functions each.

    Args:
        seed: the same seed always gives the same package.
        bugs: number of wrong functions, 1 to 6.
        held_out: use a package name that no package without ``held_out`` has.

    Raises:
        InvalidInput: ``bugs`` is out of range.
    """
    most = _MODULES * _FUNCTIONS
    if not 1 <= bugs <= most:
        raise InvalidInput(f"bugs is {bugs}; it must be 1 to {most}, the number of functions")
    chance = random.Random(f"{seed} {held_out}")  # noqa: S311  # repeatable
    while True:
        made = _attempt(chance, bugs, held_out)
        if _unambiguous(made):
            return made


def _unambiguous(package: Package) -> bool:
    """Return whether each wrong and each correct line is unique in its file."""
    return all(
        package.files[bug.file].count(bug.wrong) == 1 == package.fixed[bug.file].count(bug.right)
        and bug.right not in package.files[bug.file]
        for bug in package.bugs
    )


def _attempt(chance: random.Random, bugs: int, held_out: bool) -> Package:
    most = _MODULES * _FUNCTIONS
    name = chance.choice(NAMES["held out" if held_out else "packages"])
    functions = _functions(chance)
    broken = sorted(chance.sample(range(most), bugs))
    lines = [one.line for one in functions]
    shown: list[Case] = []
    hidden: list[Case] = []
    failing: list[int] = []
    for at, one in enumerate(functions):
        if at in broken:
            candidates = wrong_lines(one.line)
            chance.shuffle(candidates)
        while True:
            given = [arguments(one.kind.parameters, chance) for _ in range(_SHOWN + _HIDDEN)]
            right = one.values(one.line, given)
            if at not in broken:
                break
            wrong = one.values(candidates[0], given)
            differ = [
                i for i, pair in enumerate(zip(right, wrong, strict=True)) if len({*pair}) > 1
            ]
            if any(i < _SHOWN for i in differ) and any(i >= _SHOWN for i in differ):
                lines[at] = candidates[0]
                failing += [len(hidden) + i - _SHOWN for i in differ if i >= _SHOWN]
                break
            candidates.append(candidates.pop(0))
        calls = [f"{one.name}({', '.join(map(repr, values))})" for values in given]
        cases = [Case(one.module, one.name, *pair) for pair in zip(calls, right, strict=True)]
        shown += cases[:_SHOWN]
        hidden += cases[_SHOWN:]
    found = tuple(
        Bug(f"{name}/{functions[at].module}.py", functions[at].name, lines[at], functions[at].line)
        for at in broken
    )
    files = _files(name, functions, lines, shown)
    fixed = _files(name, functions, [one.line for one in functions], shown)
    return Package(name, files, fixed, found, tuple(shown), tuple(hidden), tuple(failing))


def wrong_lines(line: str) -> list[str]:
    """Return the distinct lines that small mutations make of a line."""
    return list(_wrong_lines(line))


@lru_cache(maxsize=4096)
def _wrong_lines(line: str) -> tuple[str, ...]:
    source = f"def f():\n    {line}\n".encode()
    made = (edit.apply(source) for edit in edits_of(source) if edit.rule in _RULES)
    lines = [text.decode().splitlines()[1].strip() for text in made if is_python(text)]
    return tuple(one for one in dict.fromkeys(lines) if _differs(one, line))


def _differs(one: str, other: str) -> bool:
    return ast.dump(ast.parse(f"def f():\n {one}")) != ast.dump(ast.parse(f"def f():\n {other}"))


def _functions(chance: random.Random) -> list[_Function]:
    """Return functions of different kinds, three for each of two modules."""
    modules = sorted(chance.sample(NAMES["modules"], _MODULES))
    kinds = chance.sample(KINDS, _MODULES * _FUNCTIONS)
    made = []
    for at, kind in enumerate(kinds):
        nouns = {one: chance.choice(NAMES[one]) for one in kind.parameters.split()}
        name = f"{kind.verb}_{chance.choice(NAMES['a'])}"
        line = kind.body[0].format(**nouns)
        made.append(_Function(modules[at // _FUNCTIONS], name, kind, tuple(nouns.values()), line))
    return made


_CHECK = '''\
"""Says which functions are wrong: python3 check.py"""
from {name} import {modules}

CASES = [
{cases}
]
wrong = {{}}
for function, call, value in CASES:
    try:
        got = repr(eval(call))
    except Exception as error:
        got = type(error).__name__
    if got != value:
        wrong.setdefault(function, f"FAIL {{call}}: got {{got}}, expected {{value}}")
print(*wrong.values(), sep="\\n", end="\\n" if wrong else "")
print(f"{{len({{case[0] for case in CASES}}) - len(wrong)}} passed, {{len(wrong)}} failed")
raise SystemExit(bool(wrong))
'''


def _files(
    name: str, functions: list[_Function], lines: list[str], shown: list[Case]
) -> dict[str, str]:
    modules: dict[str, list[str]] = {}
    for one, line in zip(functions, lines, strict=True):
        modules.setdefault(one.module, []).append(one.text(line))
    files = {f"{name}/{module}.py": "\n\n".join(texts) for module, texts in modules.items()}
    cases = "\n".join(
        f"    ({one.function!r}, {f'{one.module}.{one.call}'!r}, {one.value!r})," for one in shown
    )
    check = _CHECK.format(name=name, modules=", ".join(modules), cases=cases)
    return {f"{name}/__init__.py": "", **files, "check.py": check}
