"""Annotators that run after a group is sealed and before its values are derived."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from trajgym.adapters._errors import RolloutFailed
from trajgym.envs.faults import contained, describe
from trajgym.rollout.annotators import Annotator
from trajgym.rollout.annotators._annotate import signals_of
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.rollout import SealedGroup
    from trajgym.trajectory import SessionTree, Store, Turn

__all__ = ["AnnotatorSpec", "Annotators", "as_annotators"]

AnnotatorSpec: TypeAlias = "Annotator | str | Mapping[str, Any]"
"""An annotator, ``"module:function"`` that makes one, or ``{"make": ..., "settings": {...}}``."""


class Annotators:
    """Annotates the turns of sealed groups; the sessions' deadlines don't include this time.

    When a call returns, the signals are in ``turn.signals`` and in the store. Each turn is
    annotated once: turns whose signals are in the store are skipped, and equal turns (same task,
    context, message and observation) share one cached result.

    A turn whose annotation failed has no signals. How its session is then treated is set by
    ``missing_signals`` of the trainer's worker.

    Args:
        annotators: each selects the turns that it annotates; closed by :meth:`close`.
        concurrency: most turns annotated at once, over all groups.
        turn_seconds: deadline of one turn (s).
        group_seconds: deadline of all turns of a group (s); unfinished turns count as failed.
        give_up: number of consecutive failures that ends the training, for example because of a
            wrong API key.
        cached: number of results kept in memory.

    Raises:
        InvalidInput: a number is out of range, or two annotators have the same source.
    """

    def __init__(
        self,
        annotators: Sequence[Annotator],
        *,
        concurrency: int = 8,
        turn_seconds: float = 120.0,
        group_seconds: float = 1800.0,
        give_up: int = 20,
        cached: int = 4096,
    ) -> None:
        for name, value in (
            ("concurrency", concurrency),
            ("turn_seconds", turn_seconds),
            ("group_seconds", group_seconds),
            ("give_up", give_up),
        ):
            if not value > 0:
                raise InvalidInput(f"annotators: {name} is {value}; it must be above 0")
        sources = [one.source for one in annotators]
        if len(set(sources)) != len(sources):
            raise InvalidInput(f"annotators have the sources {sources}: give each its own")
        self.failed: Counter[str] = Counter()
        """Number of turns without signals, by cause."""
        self.asked = 0
        """Number of turns passed to an annotator."""
        self._annotators = tuple(annotators)
        self._concurrency = concurrency
        self._turn_seconds = turn_seconds
        self.group_seconds = group_seconds
        self._give_up = give_up
        self._streak = 0
        self._cached = cached
        self._cache: OrderedDict[bytes, dict[str, Any]] = OrderedDict()
        self._slots: asyncio.Semaphore | None = None

    async def __call__(self, sealed: SealedGroup, store: Store | None = None) -> SealedGroup:
        """Annotate a group's sessions in place and return the group.

        Args:
            sealed: the group.
            store: the sessions' store; the signals are written to it.

        Raises:
            RolloutFailed: ``give_up`` turns in a row failed.
        """
        self._slots = self._slots or asyncio.Semaphore(self._concurrency)
        jobs = [
            (annotator, tree, turn)
            for tree in sealed.sessions
            for annotator, turn in await self._open_turns(tree, store)
        ]
        tasks = [asyncio.create_task(self._one(*job, store)) for job in jobs]
        if not tasks:
            return sealed
        try:
            done, late = await asyncio.wait(
                tasks, timeout=self.group_seconds, return_when=asyncio.FIRST_EXCEPTION
            )
            broken = next((task for task in done if task.exception()), None)
            if broken is None and late:
                self.failed["the deadline of the group"] += len(late)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if broken is not None:
            broken.result()
        return sealed

    async def close(self) -> None:
        """Close the annotators, all of them even if one fails. Idempotent."""
        async with AsyncExitStack() as ends:
            for annotator in reversed(self._annotators):
                ends.push_async_callback(annotator.close)

    async def _open_turns(
        self, tree: SessionTree, store: Store | None
    ) -> list[tuple[Annotator, Turn]]:
        done: set[tuple[int, str]] = set()
        if store is not None:
            found = await asyncio.to_thread(_annotations, store, tree.record.id)
            done = {(turn, source) for turn, source in found}
        return [
            (annotator, turn)
            for annotator in self._annotators
            for turn in _turns(annotator, tree)
            if (turn.index, annotator.source) not in done
        ]

    async def _one(
        self, annotator: Annotator, tree: SessionTree, turn: Turn, store: Store | None
    ) -> None:
        key = _key(annotator, tree, turn)
        signals = self._cache.get(key)
        if signals is None:
            signals = await self._ask(annotator, tree, turn)
            if signals is None:
                return
            self._cache[key] = signals
            while len(self._cache) > self._cached:
                self._cache.popitem(last=False)
        else:
            self._cache.move_to_end(key)
        if store is not None:
            session = tree.record.id
            await store.add_signals(session, turn.index, signals, source=annotator.source)
        turn.signals = {**turn.signals, **signals}

    async def _ask(
        self, annotator: Annotator, tree: SessionTree, turn: Turn
    ) -> dict[str, Any] | None:
        assert self._slots is not None
        async with self._slots:
            self.asked += 1
            try:
                signals = await signals_of(annotator, tree, turn, self._turn_seconds)
            except Exception as error:
                # boundary: an annotator may raise anything; only repeated failures end the training
                cause = describe(error)
                self.failed[cause] += 1
                self._streak += 1
                if self._streak >= self._give_up:
                    raise RolloutFailed(
                        f"annotator {annotator.source!r}: {self._streak} turns in a row failed, "
                        f"the last with {cause}",
                    ) from error
                return None
        self._streak = 0
        return signals


def as_annotators(
    given: Annotators | AnnotatorSpec | Sequence[AnnotatorSpec] | None,
) -> Annotators | None:
    """Return annotators made from plain data such as a configuration; None for none.

    Args:
        given: an `Annotators` object, to set its limits; otherwise one annotator or several, each
            an object, ``"module:function"``, or ``{"make": "module:function", "settings": {...}}``.
            The function is called with the settings and returns an annotator.

    Raises:
        InvalidInput: the function can't be imported, or does not return an annotator.
    """
    if given is None or isinstance(given, Annotators):
        return given
    several = [given] if isinstance(given, Annotator | str | Mapping) else list(given)
    return Annotators([_made(one) for one in several]) if several else None


def _turns(annotator: Annotator, tree: SessionTree) -> list[Turn]:
    with contained():
        return list(annotator.turns(tree))


def _made(given: AnnotatorSpec) -> Annotator:
    if isinstance(given, Annotator):
        return given
    settings: Mapping[str, Any] = {} if isinstance(given, str) else given.get("settings", {})
    path = given if isinstance(given, str) else str(given.get("make", ""))
    module, _, name = path.partition(":")
    try:
        made = getattr(import_module(module), name)(**settings)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InvalidInput(
            f"annotator {path!r} with settings {dict(settings)!r:.100}: {error}; name a function "
            "as 'module:function'",
        ) from error
    if not isinstance(made, Annotator):
        raise InvalidInput(f"annotator {path!r} made {made!r:.80}, which is not an Annotator")
    return made


def _annotations(store: Store, session: str) -> list[tuple[int, str]]:
    with store.read() as run:
        return [(one.turn, one.source) for one in run.annotations(session)]


def _key(annotator: Annotator, tree: SessionTree, turn: Turn) -> bytes:
    """Return a digest of everything in a turn that an annotator can read."""
    following = [
        *turn.observation,
        *(m for t in tree.turns if t.parent == turn.index for m in t.context),
    ]
    said = [annotator.source, tree.record.task, tree.context(turn), turn.message, following]
    text = json.dumps(said, sort_keys=True, ensure_ascii=False, default=repr)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    if turn.tokens is not None:
        digest.update(turn.tokens.response_ids.tobytes())
        digest.update(turn.tokens.logprobs.tobytes())
    return digest.digest()
