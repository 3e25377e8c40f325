"""A workflow that records the answers of AReaL's engine."""

from __future__ import annotations

from typing import Any

from recording import note

from trajgym.adapters.areal import TrajgymWorkflow


class RecordedWorkflow(TrajgymWorkflow):
    """The workflow, with an engine that records each response as AReaL returned it."""

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
        _record(engine)
        return await super().arun_episode(engine, data)


def _record(engine: Any) -> None:
    if getattr(engine, "answers_are_recorded", False):
        return
    generate = engine.agenerate

    async def agenerate(request: Any) -> Any:
        sent = len(request.input_ids)
        response = await generate(request)
        note(request.rid, sent, response.output_tokens, response.output_logprobs)
        return response

    engine.agenerate, engine.answers_are_recorded = agenerate, True
