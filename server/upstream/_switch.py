"""Pausing the engine itself, where it has an endpoint for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.server._errors import UpstreamError

if TYPE_CHECKING:
    from trajgym.server.control import PauseMode
    from trajgym.server.upstream._client import Upstream

__all__ = ["EngineSwitch"]

_SGLANG = {"keep": "in_place", "abort": "abort", "wait": "retract"}


class EngineSwitch:
    """Pauses and resumes an engine: vLLM (``VLLM_SERVER_DEV_MODE=1``), SGLang, or none.

    Args:
        upstream: the engine.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def pause(self, mode: PauseMode) -> bool:
        """Pause the engine; return False if it has no such endpoint.

        Raises:
            UpstreamError: the endpoint answers with an error.
        """
        if self._upstream.kind == "sglang":
            return await self._post("/pause_generation", {"mode": _SGLANG[mode]})
        return await self._post(f"/pause?mode={mode}", None)

    async def resume(self) -> bool:
        """Resume the engine; return False if it has no such endpoint.

        Raises:
            UpstreamError: the endpoint answers with an error.
        """
        path = "/continue_generation" if self._upstream.kind == "sglang" else "/resume"
        return await self._post(path, None)

    async def _post(self, path: str, body: Any) -> bool:
        if self._upstream.kind == "hosted":
            return False
        status, text = await self._upstream.post_control(path, body)
        if status in {404, 405}:
            return False
        if status >= 400:
            raise UpstreamError(f"{path}: the engine answered {status}: {text[:200]}")
        return True
