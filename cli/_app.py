"""The command tree. The module that implements a command is imported when the command runs."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trajgym.cli._signals import end_like_ctrl_c
from trajgym.cli._terminal import fail, say
from trajgym.cli.commands._checking import (
    check,
    check_deriver,
    check_env,
    check_sandbox,
    lint,
    verify,
)
from trajgym.cli.commands._collecting import collect, evaluate
from trajgym.cli.commands._dataset import dataset_app
from trajgym.cli.commands._exchange import export, exports, formats, import_
from trajgym.cli.commands._inspecting import frames, plot, show, stats, top, view, watch
from trajgym.cli.commands._memory import memory_app
from trajgym.cli.commands._rewards import annotate, derivers, rescore, reward
from trajgym.cli.commands._sandboxes import sandboxes_app
from trajgym.cli.commands._search import search_app
from trajgym.cli.commands._serving import mcp, serve
from trajgym.cli.commands._starting import agents, demo, envs, init
from trajgym.cli.commands._swe import swe_app

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Commands = Mapping[str, Callable[..., None] | typer.Typer]

__all__ = ["app", "main"]

_PANELS: Mapping[str, Commands] = {
    "Start": {
        "demo": demo,
        "init": init,
        "envs": envs,
        "agents": agents,
        "sandboxes": sandboxes_app,
    },
    "Collect": {"collect": collect, "eval": evaluate},
    "Look at runs": {
        "show": show,
        "view": view,
        "stats": stats,
        "top": top,
        "watch": watch,
        "frames": frames,
        "plot": plot,
    },
    "Compute rewards": {
        "reward": reward,
        "derivers": derivers,
        "rescore": rescore,
        "annotate": annotate,
    },
    "Export and import": {
        "export": export,
        "exports": exports,
        "import": import_,
        "formats": formats,
    },
    "Serve": {"serve": serve, "mcp": mcp},
    "Check": {
        "check": check,
        "verify": verify,
        "lint": lint,
        "check-env": check_env,
        "check-deriver": check_deriver,
        "check-sandbox": check_sandbox,
    },
    "Prepare tasks and data": {
        "swe": swe_app,
        "search": search_app,
        "dataset": dataset_app,
        "memory": memory_app,
    },
}
"""The commands by panel of `trajgym --help`, in the order in which a newcomer needs them.

Within a panel, typer lists groups of commands after the other commands.
"""

app = typer.Typer(
    name="trajgym",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _panel, _commands in _PANELS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC)
"""Errors of the file system that the user can correct; others are bugs and keep their traceback."""


def main() -> None:
    """Run the command line.

    The exit status is 0 on success, 1 if something failed, 2 for wrong usage and 130 after
    Ctrl-C. Errors of the package and of the file system are printed as one line without a
    traceback.
    """
    end_like_ctrl_c()
    sys.path.insert(0, str(Path.cwd()))  # so that --env my_module:MyEnv finds the user's file
    try:
        app()
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        fail(str(error))
    except Exception as error:  # any but the package's own is a bug, and raised again
        from trajgym.trajectory import TrajgymError  # not at the start: `--help` does without it

        if not isinstance(error, TrajgymError):
            raise
        fail(str(error))


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say(f"trajgym {version('trajgym')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Append a log to this file: JSON lines, with the session of each.",
        ),
    ] = None,
) -> None:
    """Environments, token-exact trajectories and structural rewards for training LLM agents."""
    del version
    if log is not None:
        from trajgym.rollout.monitoring import log_to

        log_to(log)
