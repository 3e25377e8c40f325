"""``python3 -m trajgym_driver``: requests on stdin, answers on stdout, one JSON object per line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from typing import Any

from ._browser import BrowserGone, Refused
from ._driver import Driver

_LINE = 64 << 20


async def _lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=_LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def _answer(driver: Driver, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": True, **await driver.answer(request["op"], request)}
    except Refused as error:
        return {"ok": False, "kind": "refused", "error": str(error)}
    except BrowserGone as error:
        return {"ok": False, "kind": "gone", "error": str(error)}
    except Exception as error:  # noqa: BLE001 - boundary: reported to the library
        if driver.browser is not None and await driver.browser.has_ended():
            return {"ok": False, "kind": "gone", "error": f"Chromium has ended: {error!r}"[:2000]}
        output = traceback.format_exc(limit=8)
        return {"ok": False, "kind": "fault", "error": f"{error!r}"[:2000], "trace": output}


async def main() -> None:
    """Serve requests until stdin ends."""
    # Output of libraries must not mix with the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    reader, driver = await _lines(), Driver()
    try:
        while line := await reader.readline():
            request = json.loads(line)
            answer = {"id": request["id"], **await _answer(driver, request)}
            answers.write(json.dumps(answer).encode() + b"\n")
            answers.flush()
    finally:
        await driver.close()


if __name__ == "__main__":
    asyncio.run(main())
