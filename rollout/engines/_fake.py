"""An engine without a model, for tests of environments, adapters and policies."""

from __future__ import annotations

import asyncio
import marshal
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from trajgym.rollout._ids import as_list
from trajgym.rollout._policy import PolicyError, PolicyGarbage, PolicyUnavailable
from trajgym.rollout.engines._base import Generation, TokenEngine
from trajgym.rollout.rendering._byte import ByteRenderer
from trajgym.trajectory import InvalidInput, Segment

if TYPE_CHECKING:
    from collections.abc import Collection

    from trajgym.rollout.rendering._base import Renderer
    from trajgym.rollout.rendering._image_spans import ShownImage
    from trajgym.trajectory import IntArray, Message, Sampling

__all__ = ["FakeCall", "FakeEngine", "FakeScript", "FakeText", "Fault"]

_MOST_ENCODED = 256
"""Number of replies whose ids are kept."""

FakeText: TypeAlias = "str | Message | Sequence[int]"
"""A response: its text (markers become special ids), a message, or the ids themselves."""
FakeScript: TypeAlias = "Sequence[FakeText] | Callable[[FakeCall], FakeText] | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeCall:
    """One turn that is requested from a fake engine.

    Args:
        session: the sticky key.
        turn: number of responses that the prompt already contains.
        prompt_ids: the ids before the turn.
        seed: the request's seed.
    """

    session: str
    turn: int
    prompt_ids: tuple[int, ...]
    seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault that is injected into one call.

    Args:
        call: index of the engine's call, from 0, over all sessions.
        kind: ``error`` raises; ``abort`` stops sampling as if the engine dropped the request;
            ``hang`` waits until it is cancelled; ``pause`` waits and reports the pause.
        after_tokens: number of tokens before an abort.
        seconds: duration of a pause.
        error: the exception to raise; ``PolicyUnavailable`` if None.
    """

    call: int
    kind: Literal["error", "abort", "hang", "pause"] = "error"
    after_tokens: int = 0
    seconds: float = 0.0
    error: PolicyError | None = None


@dataclass(slots=True)
class _Update:
    """A weight update that is scheduled within a call."""

    after_tokens: int
    count: int = 1
    call: int | None = None


class _Run(NamedTuple):
    """What one call sampled."""

    ids: list[int]
    logprobs: list[float]
    versions: list[int]


class FakeEngine(TokenEngine):
    """Samples a script's replies, or random letters; deterministic for a given seed and prompt.

    There is no state between calls: the index of the script's reply is found from the prompt, so a
    forked, resumed or repeated turn gets the same ids and log-probs. A reply that was cut by
    ``max_tokens`` continues where it stopped, after any ids that were inserted in between (to close
    a reasoning block).

    Args:
        script: one reply per turn, or a function from :class:`FakeCall` to a reply; random letters
            and a stop id if None. An exhausted list raises ``PolicyGarbage``.
        renderer: encodes the script's text and finds turns in prompts.
        seed: combined with the request's seed.
        version: initial policy version.
        hide_boundaries: report a weight update within a call as a range over the whole call, like
            engines that don't report where it happened.
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
        """Number of calls made."""
        self.running = 0
        """Number of calls in progress."""
        self.cancelled = 0
        """Number of calls cancelled."""
        self.closed = False
        self._script = script
        self._seed = seed
        self._hide = hide_boundaries
        self._faults = list(faults)
        self._updates: list[_Update] = []
        self._encoded: dict[bytes, list[int]] = {}
        """The ids of replies, by their content; scripts repeat few in many sessions."""
        self._encoded_by = self.renderer
        if isinstance(script, (str, bytes, Mapping)):
            raise InvalidInput("script: one reply; put it in a list, one item per turn")

    def update_weights(self, *, after_tokens: int | None = None, call: int | None = None) -> None:
        """Increase the policy version, now or within a call.

        Args:
            after_tokens: update within a call, after this many of its tokens.
            call: index of the call; the next one if None.
        """
        if after_tokens is None and call is None:
            self.version += 1
        else:
            self._updates.append(_Update(after_tokens or 0, call=call))

    def inject(self, fault: Fault) -> None:
        """Inject a fault into a later call."""
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
            if faults:
                await self._suffer(faults, call)
            prompt = np.asarray(prompt_ids, dtype=np.int32)
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
        """See :meth:`TokenEngine.generate_seeing`; the images are ignored."""
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
        """See :meth:`TokenEngine.score`; equal to the log-probs of :meth:`generate`."""
        state = _mix(f"{self._seed}:{sampling.seed}".encode(), prompt_ids)
        return _logprobs(_states(state, as_list(response_ids)))

    async def close(self) -> None:
        """Mark the engine as closed."""
        self.closed = True

    async def _suffer(self, faults: Mapping[str, Fault], call: int) -> None:
        if "pause" in faults:
            await asyncio.sleep(faults["pause"].seconds)
        if "hang" in faults:
            await asyncio.Event().wait()
        if "error" in faults:
            raise faults["error"].error or PolicyUnavailable(f"fault requested at call {call}")

    def _plan(self, prompt: IntArray, session: str, seed: int | None) -> list[int] | None:
        """Return the script's ids for this turn, or None for random ones."""
        if self._script is None:
            return None
        turn, begin = self._position(prompt)
        if callable(self._script):
            before = tuple(prompt[:begin].tolist())
            call = FakeCall(session=session, turn=turn, prompt_ids=before, seed=seed)
            reply = self._script(call)
        elif turn < len(self._script):
            reply = self._script[turn]
        else:
            raise PolicyGarbage(
                f"the script of {self.name!r} has {len(self._script)} replies, and turn {turn} "
                "(from 0) was requested",
            )
        return _rest(self._ids(reply), prompt[begin:].tolist())

    def _ids(self, reply: Any) -> list[int]:
        if not isinstance(reply, (str, dict)):
            return as_list(reply)
        try:
            content = marshal.dumps(reply, 2)  # version 2 depends on nothing but values
        except ValueError:
            return self.renderer.encode_response(reply)
        if self._encoded_by is not self.renderer or len(self._encoded) >= _MOST_ENCODED:
            self._encoded_by = self.renderer
            self._encoded.clear()
        found = self._encoded.get(content)
        if found is None:
            found = self._encoded[content] = self.renderer.encode_response(reply)
        return found

    def _position(self, prompt: IntArray) -> tuple[int, int]:
        """Return the number of earlier turns, and where the current one begins."""
        opening = list(self.renderer.opening_ids)
        if not opening:
            raise InvalidInput(
                "this renderer's template marks the beginning of a turn with nothing, so a script "
                "can't tell turns apart: use the default renderer",
            )
        size = len(opening)
        starts = [at + size for at in (prompt == opening[0]).nonzero()[0].tolist()]
        if size > 1:
            starts = [end for end in starts if prompt[end - size : end].tolist() == opening]
        return max(len(starts) - 1, 0), starts[-1] if starts else len(prompt)

    def _run(
        self,
        prompt: IntArray,
        planned: list[int] | None,
        sampling: Sampling,
        most: int,
        stop_ids: Collection[int],
        call: int,
    ) -> _Run:
        state = _mix(f"{self._seed}:{sampling.seed}".encode(), prompt)
        if planned is None:
            ids, states = _random(state, most, stop_ids)
        else:
            ids = _until_stop(planned[:most], stop_ids)
            states = _states(state, ids)
        return _Run(ids, _logprobs(states), self._versions(len(ids), call))

    def _versions(self, size: int, call: int) -> list[int]:
        """Return the version of each of a call's tokens, making the updates within the call."""
        if not self._updates:
            return [self.version] * size
        updates = self._take_updates(call)
        versions = []
        for at in range(size):
            self.version += sum(u.count for u in updates if u.after_tokens == at)
            versions.append(self.version)
        self.version += sum(u.count for u in updates if u.after_tokens >= size)
        return versions

    def _take_updates(self, call: int) -> list[_Update]:
        taken = [u for u in self._updates if u.call is None or u.call == call]
        self._updates = [u for u in self._updates if u not in taken]
        return taken

    def _segments(self, run: _Run) -> tuple[Segment, ...]:
        if not run.ids:
            return ()
        if self._hide or run.versions[0] == run.versions[-1]:
            return (Segment(len(run.ids), run.versions[0], run.versions[-1]),)
        versions, counts = np.unique(np.array(run.versions), return_counts=True)
        return tuple(
            Segment(int(n), int(version), int(version))
            for version, n in zip(versions, counts, strict=True)
        )


def _rest(full: list[int], said: list[int]) -> list[int]:
    """Return the ids after ``said``, some of which may have been inserted."""
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


def _until_stop(ids: list[int], stop_ids: Collection[int]) -> list[int]:
    if isinstance(stop_ids, frozenset) and stop_ids.isdisjoint(ids[:-1]):
        return ids
    for at, identity in enumerate(ids):
        if identity in stop_ids:
            return ids[: at + 1]
    return ids


def _random(state: int, most: int, stop_ids: Collection[int]) -> tuple[list[int], list[int]]:
    """Return random ids, and the state after each."""
    ids: list[int] = []
    states: list[int] = []
    while len(ids) < most and not (ids and ids[-1] in stop_ids):
        ids.append(_letter(state, stop_ids))
        state = _states(state, ids[-1:])[0]
        states.append(state)
    return ids, states


def _states(state: int, ids: list[int]) -> list[int]:
    """Return the state after each id; the next id and the log-prob derive from it."""
    return [state := zlib.crc32(one, state) for one in [i.to_bytes(4, "little") for i in ids]]


def _mix(seed: bytes, ids: IntArray | Sequence[int]) -> int:
    return zlib.crc32(np.asarray(ids, dtype="<i4").tobytes(), zlib.crc32(seed))


def _unit(state: int) -> float:
    """Return a pseudo-random number in [0, 1)."""
    return ((state * 2654435761) & 0xFFFFFFFF) / 0xFFFFFFFF


def _logprobs(states: list[int]) -> list[float]:
    """Return the log-prob of each id: ``log(0.05 + 0.94 * _unit(state))``."""
    return [log(0.05 + 0.94 * (((s * 2654435761) & 0xFFFFFFFF) / 0xFFFFFFFF)) for s in states]


def _letter(state: int, stop_ids: Collection[int]) -> int:
    """Return a lower-case letter, a space, or occasionally a stop id."""
    choice = int(_unit(state ^ 0x5BD1E995) * 32)
    if choice >= 30 and stop_ids:
        return min(stop_ids)
    return 32 if choice >= 26 else 97 + choice
