"""An agent loop that records the answers of verl's servers."""

from __future__ import annotations

from typing import Any

from recording import note

from trajgym.adapters.verl import TrajgymAgentLoop


class RecordedLoop(TrajgymAgentLoop):
    """The agent loop, with a client that records each response as verl returned it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_manager = _Recorded(self.server_manager)


class _Recorded:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def generate(self, request_id: str, *, prompt_ids: list[int], **options: Any) -> Any:
        output = await self._inner.generate(request_id, prompt_ids=prompt_ids, **options)
        note(request_id, len(prompt_ids), output.token_ids, output.log_probs or ())
        return output
