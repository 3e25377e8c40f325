"""The command tree: panels by theme, options that commands share, what the start needs."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from trajgym.cli import app
from trajgym.cli.commands._unfold import unfold

OWN = {
    "collect": {"out", "tasks", "mix", "as_json"},
    "eval": {"out", "tasks", "suite", "by", "against", "markdown", "as_json"},
}
"""What `collect` and `eval` take besides the options that they share."""


@dataclass
class Many:
    """Options that a command of these tests takes as one."""

    size: int = 2
    name: str = "a"


START = """
import json, sys
from typer.testing import CliRunner
from trajgym.cli import app
assert CliRunner().invoke(app, ["--help"]).exit_code == 0
print(json.dumps(sorted(sys.modules)))
"""


def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def shared(name: str) -> list[tuple[str, Any, Any]]:
    """Return name, declaration and default of the options that `collect` and `eval` share."""
    found = {one.name: one.callback for one in app.registered_commands}[name]
    assert found is not None
    return [
        (one.name, one.annotation, one.default)
        for one in inspect.signature(found, eval_str=True).parameters.values()
        if one.name not in OWN[name]
    ]


def printed(name: str, panel: str) -> list[str]:
    """Return the lines of a panel of a command's help."""
    said = CliRunner(env={"COLUMNS": "80"}).invoke(app, [name, "--help"]).output.splitlines()
    begin = next(number for number, line in enumerate(said) if line.startswith(f"╭─ {panel} ─"))
    return said[begin : next(n for n in range(begin, len(said)) if said[n].startswith("╰"))]


def test_every_command_belongs_to_a_panel() -> None:
    """`trajgym --help` lists no command outside the panels, and begins with what comes first."""
    panels: dict[str, list[str]] = {}
    for name, command in commands().items():
        panels.setdefault(command.rich_help_panel, []).append(name)
    assert None not in panels, panels.get(None)
    assert len(panels) > 5
    assert max(len(names) for names in panels.values()) < 10

    said = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["--help"]).output
    titles = [line.split("─ ")[1].split(" ─")[0] for line in said.splitlines() if "╭─ " in line]
    assert titles == ["Options", *panels]
    assert titles[1:3] == ["Start", "Collect"]


def test_collect_and_eval_offer_the_same_options() -> None:
    """What both take is the same in both: names, types, help, defaults and order."""
    assert shared("collect") == shared("eval")
    assert len(shared("collect")) > 30
    for panel in ("Model", "Agent program", "Costs and tracking"):
        assert printed("collect", panel) == printed("eval", panel)
    for name, own in OWN.items():
        taken = [one.name for one in commands()[name].params]
        assert own <= set(taken)
        assert [one for one in taken if one not in own] == [one for one, _, _ in shared(name)]


def test_the_start_needs_declarations_only() -> None:
    """`trajgym --help` loads no subpackage but the command line's, and no numeric library."""
    done = subprocess.run(
        [sys.executable, "-c", START], capture_output=True, text=True, check=True, timeout=120
    )
    loaded = json.loads(done.stdout)
    ours = {name.split(".")[1] for name in loaded if name.startswith("trajgym.")}
    assert ours == {"cli"}
    assert not {"numpy", "pydantic", "docker", "openai"} & set(loaded)


def test_a_dataclass_parameter_becomes_its_fields() -> None:
    """The fields stand in the parameter's place, and the command receives the dataclass."""
    got: list[tuple[str, Many, bool]] = []

    def command(*, first: str, many: Many, last: bool = False) -> None:
        got.append((first, many, last))

    small = typer.Typer()
    small.command()(unfold(command))
    click: Any = typer.main.get_command(small)
    assert [one.name for one in click.params][:4] == ["first", "size", "name", "last"]
    result = CliRunner().invoke(small, ["--name", "b", "--last", "one"])
    assert result.exit_code == 0, result.output
    assert got == [("one", Many(size=2, name="b"), True)]


def test_a_name_that_is_declared_twice_is_an_error() -> None:
    """A command can't hide an option that it shares behind one of its own."""

    def command(*, size: int, many: Many) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'size'"):
        unfold(command)
