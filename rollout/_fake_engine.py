"""An engine without a model: for tests of environments, adapters and policies."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from trajgym.rollout._byte_renderer import ByteRenderer
from trajgym.rollout._engine import Generation, ShownImage, TokenEngine
from trajgym.rollout._ids import as_list
from trajgym.rollout._policy import PolicyError, PolicyGarbage, PolicyUnavailable
from trajgym.trajectory import InvalidInput, Segment

if TYPE_CHECKING:
    from collections.abc import Collection

    from trajgym.rollout._renderer import Renderer
    from trajgym.trajectory import IntArray, Message, Sampling

__all__ = ["FakeCall", "FakeEngine", "FakeScript", "FakeText", "Fault"]

FakeText: TypeAlias = "str | Message | Sequence[int]"
"""A response: its text (markers become special ids), a message, or the ids themselves."""
FakeScript: TypeAlias = "Sequence[FakeText] | Callable[[FakeCall], FakeText] | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeCall:
    """One turn that a fake engine is asked for.

    Args:
        session: the sticky key.
        turn: how many responses the prompt holds already.
        prompt_ids: up to where the turn begins.
        seed: of the request.
    """

    session: str
    turn: int
    prompt_ids: tuple[int, ...]
    seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong in one call.

    Args:
        call: which call of the engine, from 0 and over all sessions.
        kind: ``error`` raises; ``abort`` stops sampling as an engine does that drops a request;
            ``hang`` waits until it is cancelled; ``pause`` waits and reports it.
        after_tokens: where an abort comes.
        seconds: how long a pause is.
        error: what is raised; ``PolicyUnavailable`` if None.
    """

    call: int
    kind: Literal["error", "abort", "hang", "pause"] = "error"
    after_tokens: int = 0
    seconds: float = 0.0
    error: PolicyError | None = None


@dataclass(slots=True)
class _Update:
    """A weight update that is to come inside a call."""

    after_tokens: int
    count: int = 1
    call: int | None = None


@dataclass(slots=True)
class _Run:
    """What one call has sampled."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class FakeEngine(TokenEngine):
    """Samples what a script says, or random letters; always the same for a seed and a prompt.

    Nothing is counted between calls: which reply of a script comes is read from the prompt, so a
    forked, resumed or repeated turn gets the same ids and log-probs. A script's reply that is cut
    by ``max_tokens`` goes on where it stopped; ids that were inserted meanwhile (a closed reasoning
    block) skip the script forward to after them.

    Args:
        script: one reply per turn, or a function from :class:`FakeCall` to a reply; random letters
            and a stop if None. A list that has run out raises ``PolicyGarbage``.
        renderer: encodes the script's text and finds turns in prompts.
        seed: mixed with the request's seed.
        version: policy version to begin with.
        hide_boundaries: report a weight update inside a call as a range over the whole call, as
            engines do that don't show where it was.
        faults: see :class:`Fault`.
        name: recorded with each turn.
    """

    synthetic = True
    logprob_mode = "processed"

    def __init__(
        self,
        script: FakeScript = None,
        *,
        renderer: Renderer | None = None,
        seed: int = 0,
        version: int = 0,
        hide_boundaries: bool = False,
        faults: Sequence[Fault] = (),
        name: str = "fake",
    ) -> None:
        self.name = name
        self.renderer: Renderer = renderer or ByteRenderer()
        self.version = version
        self.calls = 0
        """How many calls were made."""
        self.running = 0
        """How many calls are in progress."""
        self.cancelled = 0
        """How many calls were cancelled."""
        self.closed = False
        self._script = script
        self._seed = seed
        self._hide = hide_boundaries
        self._faults = list(faults)
        self._updates: list[_Update] = []
        if isinstance(script, (str, bytes, Mapping)):
            raise InvalidInput("script: one reply; put it in a list, one item per turn")

    def update_weights(self, *, after_tokens: int | None = None, call: int | None = None) -> None:
        """Count one weight update: now, or inside a call.

        Args:
            after_tokens: let it come in a call, after so many of its tokens.
            call: which call; the next one if None.
        """
        if after_tokens is None and call is None:
            self.version += 1
        else:
            self._updates.append(_Update(after_tokens or 0, call=call))

    def inject(self, fault: Fault) -> None:
        """Let a later call go wrong."""
        self._faults.append(fault)

    async def generate(
        self,
        prompt_ids: IntArray | Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        stop_ids: Collection[int],
        session: str = "",
    ) -> Generation:
        """See :meth:`TokenEngine.generate`."""
        call, self.calls = self.calls, self.calls + 1
        self.running += 1
        try:
            faults: dict[str, Fault] = {f.kind: f for f in self._faults if f.call == call}
            await self._suffer(faults, call)
            prompt = as_list(prompt_ids)
            planned = self._plan(prompt, session, sampling.seed)
            abort = faults.get("abort")
            most = min(max_tokens, abort.after_tokens) if abort else max_tokens
            run = self._run(prompt, planned, sampling, most, stop_ids, call)
            stopped = bool(run.ids) and run.ids[-1] in stop_ids
            finish: Literal["stop", "length", "abort"] = "length"
            if stopped:
                finish = "stop"
            elif abort and len(run.ids) == abort.after_tokens:
                finish = "abort"
            paused = faults["pause"].seconds if "pause" in faults else 0.0
            return Generation(run.ids, run.logprobs, self._segments(run), finish, paused)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def generate_seeing(
        self,
        prompt_ids: IntArray | Sequence[int],
        images: Sequence[ShownImage],
        *,
        sampling: Sampling,
        max_tokens: int,
        stop_ids: Collection[int],
        session: str = "",
    ) -> Generation:
        """See :meth:`TokenEngine.generate_seeing`; it looks at no picture."""
        del images
        return await self.generate(
            prompt_ids,
            sampling=sampling,
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            session=session,
        )

    async def score(
        self,
        prompt_ids: IntArray | Sequence[int],
        response_ids: IntArray | Sequence[int],
        *,
        sampling: Sampling,
    ) -> list[float]:
        """See :meth:`TokenEngine.score`; exactly what :meth:`generate` gave for the same seed."""
        prompt = as_list(prompt_ids)
        state = _mix(f"{self._seed}:{sampling.seed}".encode(), prompt)
        found = []
        for identity in response_ids:
            state = zlib.crc32(int(identity).to_bytes(4, "little"), state)
            found.append(_logprob(state))
        return found

    async def close(self) -> None:
        """Mark the engine as closed."""
        self.closed = True

    async def _suffer(self, faults: Mapping[str, Fault], call: int) -> None:
        if "pause" in faults:
            await asyncio.sleep(faults["pause"].seconds)
        if "hang" in faults:
            await asyncio.Event().wait()
        if "error" in faults:
            raise faults["error"].error or PolicyUnavailable(f"fault asked for at call {call}")

    def _plan(self, prompt: list[int], session: str, seed: int | None) -> list[int] | None:
        """Return the ids that the script says next, or None for random ones."""
        if self._script is None:
            return None
        turn, begin = self._position(prompt)
        if callable(self._script):
            before = tuple(prompt[:begin])
            call = FakeCall(session=session, turn=turn, prompt_ids=before, seed=seed)
            reply = self._script(call)
        elif turn < len(self._script):
            reply = self._script[turn]
        else:
            raise PolicyGarbage(
                f"the script of {self.name!r} has {len(self._script)} replies, and turn {turn} "
                "(from 0) was asked for",
            )
        return _rest(self._ids(reply), prompt[begin:])

    def _ids(self, reply: Any) -> list[int]:
        if isinstance(reply, (str, dict)):
            return self.renderer.encode_response(reply)
        return as_list(reply)

    def _position(self, prompt: list[int]) -> tuple[int, int]:
        """Return how many turns came before, and where the current one begins."""
        opening = list(self.renderer.opening_ids)
        if not opening:
            raise InvalidInput(
                "this renderer's template marks the beginning of a turn with nothing, so a script "
                "can't tell turns apart: use the default renderer",
            )
        size = len(opening)
        starts = [i + size for i in range(len(prompt)) if prompt[i : i + size] == opening]
        return max(len(starts) - 1, 0), starts[-1] if starts else len(prompt)

    def _run(
        self,
        prompt: list[int],
        planned: list[int] | None,
        sampling: Sampling,
        most: int,
        stop_ids: Collection[int],
        call: int,
    ) -> _Run:
        run = _Run()
        state = _mix(f"{self._seed}:{sampling.seed}".encode(), prompt)
        updates = self._take_updates(call)
        while len(run.ids) < most and (planned is None or len(run.ids) < len(planned)):
            self.version += sum(u.count for u in updates if u.after_tokens == len(run.ids))
            chosen = _letter(state, stop_ids) if planned is None else planned[len(run.ids)]
            state = zlib.crc32(chosen.to_bytes(4, "little"), state)
            run.ids.append(chosen)
            run.logprobs.append(_logprob(state))
            run.versions.append(self.version)
            if chosen in stop_ids:
                break
        self.version += sum(u.count for u in updates if u.after_tokens >= len(run.ids))
        return run

    def _take_updates(self, call: int) -> list[_Update]:
        taken = [u for u in self._updates if u.call is None or u.call == call]
        self._updates = [u for u in self._updates if u not in taken]
        return taken

    def _segments(self, run: _Run) -> tuple[Segment, ...]:
        if not run.ids:
            return ()
        if self._hide:
            return (Segment(len(run.ids), run.versions[0], run.versions[-1]),)
        versions, counts = np.unique(np.array(run.versions), return_counts=True)
        return tuple(
            Segment(int(n), int(version), int(version))
            for version, n in zip(versions, counts, strict=True)
        )


def _rest(full: list[int], said: list[int]) -> list[int]:
    """Return what comes after ``said``, of which some ids may have been inserted."""
    same = 0
    while same < min(len(full), len(said)) and full[same] == said[same]:
        same += 1
    inserted = said[same:]
    if not inserted:
        return full[same:]
    for at in range(same, len(full) - len(inserted) + 1):
        if full[at : at + len(inserted)] == inserted:
            return full[at + len(inserted) :]
    return full[same:]


def _mix(seed: bytes, ids: Sequence[int]) -> int:
    return zlib.crc32(np.asarray(ids, dtype="<i4").tobytes(), zlib.crc32(seed))


def _unit(state: int) -> float:
    """Return a number in 0..1 that looks random."""
    return ((state * 2654435761) & 0xFFFFFFFF) / 0xFFFFFFFF


def _logprob(state: int) -> float:
    return math.log(0.05 + 0.94 * _unit(state))


def _letter(state: int, stop_ids: Collection[int]) -> int:
    """Return a lower-case letter or a space, or now and then a stop id."""
    choice = int(_unit(state ^ 0x5BD1E995) * 32)
    if choice >= 30 and stop_ids:
        return min(stop_ids)
    return 32 if choice >= 26 else 97 + choice
