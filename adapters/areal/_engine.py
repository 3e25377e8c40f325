"""AReaL's inference engine as a token engine."""

from __future__ import annotations

import asyncio
import time
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from trajgym.envs import Truncate
from trajgym.rollout import PolicyGarbage, PolicyUnavailable
from trajgym.rollout.engines import Generation, TokenEngine
from trajgym.trajectory import InvalidInput, Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from trajgym.trajectory import IntArray, Sampling

__all__ = ["ArealEngine", "check_distribution", "is_paused"]

_POLL = 0.25
_LEAVE = 10.0
"""Seconds to wait for a cancelled call."""
_FINISH: Mapping[str, Literal["stop", "length", "abort"]] = {"length": "length", "abort": "abort"}


def check_distribution(gconfig: Any) -> None:
    """Refuse sampling parameters that don't fit the loss.

    Args:
        gconfig: AReaL's ``GenerationHyperparameters``.

    Raises:
        InvalidInput: greedy or beam search, temperature 0, ``top_p``, ``top_k``, a penalty,
            ``ignore_eos``, or stop strings, which truncate a response inside a token.
    """
    plain: dict[str, tuple[Any, ...]] = {
        "greedy": (False,),
        "use_beam_search": (False,),
        "top_p": (1.0,),
        "frequency_penalty": (0.0,),
        "ignore_eos": (False,),
        "min_new_tokens": (0,),
        "stop": (None, []),
    }
    for name, allowed in plain.items():
        if (value := getattr(gconfig, name)) not in allowed:
            raise InvalidInput(
                f"gconfig.{name}={value!r}: sessions would not be sampled from the distribution "
                f"that the trainer's loss assumes; leave it at {allowed[0]!r}",
            )
    if not gconfig.temperature > 0:
        raise InvalidInput(f"gconfig.temperature={gconfig.temperature}: it must be above 0")
    if 0 < gconfig.top_k < 1_000_000:
        raise InvalidInput(f"gconfig.top_k={gconfig.top_k} cuts the distribution; leave it out")


def is_paused(engine: Any) -> bool:
    """Return whether AReaL holds back new requests, as it does during a weight update."""
    executor = getattr(engine, "workflow_executor", None)
    return executor is not None and bool(executor.is_paused())


class ArealEngine(TokenEngine):
    """Samples with ``agenerate``, in which AReaL interrupts and continues a response by itself.

    All requests of a session have the same request id, which AReaL routes to one server.

    AReaL reports a version for each token, but reads it when a response arrives: a response that
    was sent before a weight update and arrives after it has a version that is too new. Therefore
    the first run of equal versions in a response has a range that starts at the version at its
    request. AReaL pauses for updates, so that a later run was requested after the update that
    ended the run before: at a newer version than that run's, if the run before certainly arrived
    ahead of its update, otherwise at least at that run's.

    Args:
        engine: AReaL's ``InferenceEngine``.
        gconfig: AReaL's ``GenerationHyperparameters``; ``max_tokens`` bounds prompt and response.
        timeout: seconds after which a turn without a response fails, excluding pauses.
        on_answer: called with AReaL's current version when a response arrives.
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
        """See :meth:`TokenEngine.generate`. ``gconfig.max_tokens`` bounds prompt and response.

        Raises:
            trajgym.envs.Truncate: the prompt leaves no room below ``gconfig.max_tokens``.
            PolicyUnavailable: AReaL raised an error, or did not respond in time.
            PolicyGarbage: the response is to another prompt.
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
            raise PolicyGarbage("AReaL's response is to another prompt than the request's")
        return Generation(
            response.output_tokens,
            response.output_logprobs,
            _segments(version, response.output_versions),
            _FINISH.get(response.stop_reason, "stop"),
        )

    async def _answer(self, request: Any) -> tuple[int, Any]:
        """Send a request and wait for the response; the timeout excludes AReaL's pauses.

        Returns:
            The version at the request, and the response.
        """
        while is_paused(self._engine):  # noqa: ASYNC110 - AReaL has no event
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
                        f"AReaL did not respond within {self._timeout:g} s; raise turn_timeout if "
                        "the servers are that slow",
                    )
            return version, call.result()
        except (PolicyUnavailable, asyncio.CancelledError):
            raise
        except Exception as error:  # boundary: AReaL's engine raises errors of many kinds
            raise PolicyUnavailable(f"AReaL's engine failed: {error!r}") from error
        finally:
            if not call.done():
                call.cancel()
                await asyncio.wait({call}, timeout=_LEAVE)


def _segments(first: int, reported: Sequence[int]) -> tuple[Segment, ...]:
    """Return runs of equal versions; ``first`` is the version at the first run's request."""
    segments: list[Segment] = []
    oldest = first
    for version, run in groupby(reported):
        low = min(oldest, version)
        segments.append(Segment(len(list(run)), low, version))
        # A run that may have arrived after the update that ended it: the next request may have
        # been made at the version that was read then.
        oldest = version + 1 if low == version else version
    return tuple(segments)
