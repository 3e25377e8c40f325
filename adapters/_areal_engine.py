"""AReaL's inference engine as a token engine."""

from __future__ import annotations

import asyncio
import time
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from trajgym.envs import Truncate
from trajgym.rollout import (
    Generation,
    PolicyGarbage,
    PolicyUnavailable,
    TokenEngine,
)
from trajgym.trajectory import InvalidInput, Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from trajgym.trajectory import IntArray, Sampling

__all__ = ["ArealEngine", "check_distribution", "is_paused"]

_POLL = 0.25
_LEAVE = 10.0
"""Seconds for a cancelled call to end."""
_FINISH: Mapping[str, Literal["stop", "length", "abort"]] = {"length": "length", "abort": "abort"}


def check_distribution(gconfig: Any) -> None:
    """Refuse settings under which the engine samples from another distribution than the loss has.

    Args:
        gconfig: AReaL's ``GenerationHyperparameters``.

    Raises:
        InvalidInput: greedy or beam search, no temperature, a cut (``top_p``, ``top_k``), a
            penalty, or stop strings, which cut a response between its tokens.
    """
    plain: dict[str, tuple[Any, ...]] = {
        "greedy": (False,),
        "use_beam_search": (False,),
        "top_p": (1.0,),
        "frequency_penalty": (0.0,),
        "min_new_tokens": (0,),
        "stop": (None, []),
    }
    for name, allowed in plain.items():
        if (value := getattr(gconfig, name)) not in allowed:
            raise InvalidInput(
                f"gconfig.{name}={value!r}: what is sampled would not come from the distribution "
                f"that the trainer's loss assumes; leave it at {allowed[0]!r}",
            )
    if not gconfig.temperature > 0:
        raise InvalidInput(f"gconfig.temperature={gconfig.temperature}: it must be above 0")
    if 0 < gconfig.top_k < 1_000_000:
        raise InvalidInput(f"gconfig.top_k={gconfig.top_k} cuts the distribution; leave it out")


def is_paused(engine: Any) -> bool:
    """Return whether AReaL holds new requests back, as it does while weights are replaced."""
    executor = getattr(engine, "workflow_executor", None)
    return executor is not None and bool(executor.is_paused())


class ArealEngine(TokenEngine):
    """Samples with ``agenerate``: AReaL interrupts and continues a response by itself.

    Every session has one request id, which keeps it on one server.

    Versions are those that AReaL reports, token by token, which it reads when an answer is there:
    one that crosses a weight update on the wire is labelled too new. So the first run of a
    response has a range that begins with the version at its request. Later runs were asked for
    after the update that ended the run before, because AReaL pauses for updates.

    Args:
        engine: AReaL's ``InferenceEngine``.
        gconfig: AReaL's ``GenerationHyperparameters``: ``max_tokens`` bounds prompt and response.
        timeout: seconds until a turn without an answer counts as failed; pauses don't count.
        on_answer: called when an answer is there, with the version that AReaL then has.
    """

    name = "areal"
    logprob_mode = "processed"

    def __init__(
        self,
        engine: Any,
        gconfig: Any,
        *,
        timeout: float = 600.0,
        on_answer: Callable[[int], object] | None = None,
    ) -> None:
        self._engine = engine
        self._gconfig = gconfig
        self._timeout = timeout
        self._on_answer = on_answer or (lambda _: None)

    async def generate(
        self,
        prompt_ids: IntArray | Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        stop_ids: Collection[int],
        session: str = "",
    ) -> Generation:
        """See :meth:`TokenEngine.generate`. A response that fills ``gconfig.max_tokens`` is cut.

        Raises:
            trajgym.envs.Truncate: the prompt leaves no room below ``gconfig.max_tokens``.
            PolicyUnavailable: AReaL gave up, or no answer came in time.
            PolicyGarbage: its answer is to another prompt.
        """
        from areal.api import ModelRequest

        prompt = [int(i) for i in prompt_ids]
        room = self._gconfig.max_tokens - len(prompt)
        if room < 1:
            raise Truncate(
                "context",
                f"the prompt has {len(prompt)} tokens and gconfig.max_tokens is "
                f"{self._gconfig.max_tokens}",
            )
        temperature = self._gconfig.temperature
        config = self._gconfig.new(
            n_samples=1,
            max_new_tokens=min(max_tokens, room),
            temperature=temperature if sampling.temperature is None else sampling.temperature,
            stop_token_ids=sorted({*stop_ids, *self._gconfig.stop_token_ids}),
        )
        request = ModelRequest(input_ids=prompt, gconfig=config)
        if session:
            request.rid = session
        version, response = await self._answer(request)
        self._on_answer(int(self._engine.get_version()))
        if list(response.input_tokens) != prompt:
            raise PolicyGarbage("AReaL answered another prompt than the one that it was given")
        return Generation(
            response.output_tokens,
            response.output_logprobs,
            _segments(version, response.output_versions),
            _FINISH.get(response.stop_reason, "stop"),
        )

    async def _answer(self, request: Any) -> tuple[int, Any]:
        """Wait for AReaL on a clock that stands still while it is paused.

        Returns:
            The version at the request, and the response.
        """
        while is_paused(self._engine):  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(_POLL)
        version = int(self._engine.get_version())
        call = asyncio.ensure_future(self._engine.agenerate(request))
        spent = 0.0
        try:
            while not call.done():
                before, paused = time.monotonic(), is_paused(self._engine)
                await asyncio.wait({call}, timeout=min(_POLL, self._timeout))
                spent += 0.0 if paused else time.monotonic() - before
                if spent >= self._timeout and not call.done():
                    raise PolicyUnavailable(
                        f"AReaL gave no answer within {self._timeout:g} s; raise turn_timeout= if "
                        "the servers are that slow",
                    )
            return version, call.result()
        except (PolicyUnavailable, asyncio.CancelledError):
            raise
        except Exception as error:
            raise PolicyUnavailable(f"AReaL's engine failed: {error!r}") from error
        finally:
            if not call.done():
                call.cancel()
                await asyncio.wait({call}, timeout=_LEAVE)


def _segments(first: int, reported: Sequence[int]) -> tuple[Segment, ...]:
    """Return runs of versions; ``first`` is the oldest that the first of them can have."""
    segments: list[Segment] = []
    oldest = first
    for version, run in groupby(reported):
        segments.append(Segment(len(list(run)), min(oldest, version), version))
        oldest = version + 1
    return tuple(segments)
