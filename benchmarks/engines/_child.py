"""A child process: starts a client, and carries out what the parent asks for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import traceback
from typing import TYPE_CHECKING, Any

from benchmarks.engines._checks import Checks
from benchmarks.engines._clients import Local, Remote
from benchmarks.engines._process import MARK

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

__all__ = ["run_child"]


def tell(**fields: Any) -> None:
    print(MARK + json.dumps(fields), flush=True)


async def child(given: argparse.Namespace) -> None:
    """Start, and carry out what the parent asks for, one JSON line each."""
    client = (Local if given.child == "local" else Remote)(given)
    await client.start()
    tell(ready=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        try:
            if "check" in asked and isinstance(client, Local):
                checks = Checks(client.local, client.renderer, given.model, asked["check"])
                tell(**await checks.run())
            else:
                tell(**await client.measure(**asked))
        except Exception:  # noqa: BLE001 - reported to the parent, which goes on
            tell(error=traceback.format_exc()[-4000:])
    if isinstance(client, Local):
        await client.local.close()


def run_child(given: argparse.Namespace) -> None:
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(child(given))
    except Exception:  # noqa: BLE001 - reported to the parent
        tell(error=traceback.format_exc()[-4000:])
        raise SystemExit(1) from None
