"""Starting a fleet's workers on the nodes of a Ray cluster, where they have room for sandboxes."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.rollout.fleet._errors import FleetFailed
from trajgym.rollout.fleet._launcher import Room
from trajgym.rollout.fleet.ray._actor import FleetActor, tidy_node
from trajgym.rollout.fleet.ray._cluster import (
    RESOURCE,
    connect,
    need_ray,
    nodes,
    on_node,
    probed,
)
from trajgym.rollout.fleet.ray._link import ActorLink
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from trajgym.envs import EnvSpec
    from trajgym.rollout.fleet._child import Recipe
    from trajgym.rollout.fleet._launcher import Link
    from trajgym.rollout.fleet.ray._actor import Capacity
    from trajgym.rollout.fleet.ray._cluster import Node

__all__ = ["RayLauncher"]

_FRESH = 1.0
"""Seconds for which what is known of the nodes is used."""
_PROBED = 10.0
"""Seconds for which a node's probed capacity is used."""
_PROBE = 30.0
"""Seconds for a probe, which starts a process on its node."""


class RayLauncher:
    """Starts the processes of a :class:`Fleet` as actors of a Ray cluster.

    ::

        launcher = RayLauncher("10.0.0.1:6379")
        async with Fleet(spec, tasks, make_policy, "run", processes=16, launcher=launcher) as fleet:
            async for sealed in fleet:
                ...

    A process runs on the node with the most room for sandboxes. A node declares its capacity as a
    resource: ``ray start --resources='{"sandboxes": 32}'``; then only nodes that do so are used.
    Without any, a node can hold 4 sandboxes a processor, as far as 256 MiB of free memory are
    there for each. A process for which there is no room waits for it, so nodes that join later get
    processes. Nodes that are drained get no more tasks; what was running on a node that is lost is
    run again elsewhere.

    The nodes need no common file system: a process sends its records to the fleet, which writes
    them to the run directory before it confirms them. trajgym and the environment's modules must
    be installed on every node. A process whose fleet is gone closes its sessions and exits.

    Args:
        address: ``HOST:PORT`` of the cluster, or ``auto`` for the one that this machine belongs
            to; by default ``$RAY_ADDRESS``, else ``auto``. Not used in a process that is connected
            already, such as that of a trainer which runs on Ray.
        cpus: processors that each process reserves from Ray; 0 to run beside a trainer that
            reserved them all.
        probe: whether nodes are used, and their capacity estimated, if none declares it. Otherwise
            processes wait for a node that does.
        lease: seconds without contact to the fleet after which a process ends.
        connect_seconds: deadline for connecting to the cluster.

    Raises:
        MissingExtra: Ray is not installed.
    """

    streamed = True

    def __init__(
        self,
        address: str | None = None,
        *,
        cpus: float = 0.0,
        probe: bool = True,
        lease: float = 60.0,
        connect_seconds: float = 30.0,
    ) -> None:
        need_ray()
        if not lease > 0 or not connect_seconds > 0 or cpus < 0:
            raise InvalidInput(
                f"lease {lease!r} and connect_seconds {connect_seconds!r} must be more than 0, and "
                f"cpus {cpus!r} must not be negative"
            )
        self._address = address
        self._cpus = cpus
        self._probing = probe
        self._lease = lease
        self._connect_seconds = connect_seconds
        self._connected = False
        """Whether this object connected the process to the cluster."""
        self._name = ""
        self._nodes: dict[str, Node] = {}
        self._seen_at = float("-inf")
        self._capacities: dict[str, Capacity] = {}
        self._probed_at: dict[str, float] = {}
        self._looking = asyncio.Lock()
        self._reserved: Counter[str] = Counter()
        self._launched: set[Room] = set()
        """That part of what is reserved which Ray knows, because an actor holds it."""

    # Launcher ---------------------------------------------------------------------------------

    def check(self, parts: Sequence[object]) -> None:
        """Raise ``InvalidInput`` for what can't be pickled."""
        for part in parts:
            try:
                _pickled(part)
            except Exception as error:  # boundary: whatever an object's pickling raises
                raise InvalidInput(f"{part!r} can't be sent to a node: {error}") from error

    async def open(self, environments: Sequence[EnvSpec]) -> None:
        """Connect to the cluster.

        Raises:
            FleetFailed: there is no cluster, or it does not answer in time.
            InvalidInput: an environment can't be imported elsewhere, or the address is wrong.
        """
        for spec in environments:
            if spec.resolve().__module__ == "__main__":
                raise InvalidInput(
                    f"environment {spec.id!r} is defined in the script itself; move it to a module "
                    "that the nodes can import"
                )
        self._connected = await asyncio.to_thread(connect, self._address, self._connect_seconds)
        self._name = f"trajgym-fleet-{uuid.uuid4().hex[:12]}"

    async def close(self) -> None:
        """Disconnect, if :meth:`open` connected."""
        import ray

        if self._connected:
            self._connected = False
            await asyncio.to_thread(ray.shutdown)

    async def reserve(self, sessions: int) -> Room | None:
        """Reserve room on the node that has the most; less than ``sessions`` if none has that."""
        await self._look()
        free = {name: self._free(node) for name, node in self._nodes.items() if not node.leaving}
        node = max(free, key=lambda name: (free[name], -self._reserved[name]), default="")
        if not node or free[node] < 1:
            return None
        room = Room(node, min(sessions, free[node]))
        self._reserved[node] += room.sessions
        return room

    def release(self, room: Room) -> None:
        """Give back what was reserved."""
        self._reserved[room.node] -= room.sessions
        self._launched.discard(room)

    def shortage(self) -> str:
        """Return how much room each node has."""
        if not self._nodes:
            return "the cluster has no node"
        rooms = ", ".join(f"{node.name} {self._free(node)}" for node in self._nodes.values())
        return f"room for sandboxes by node: {rooms}; the resource {RESOURCE!r} declares it"

    def launch(
        self,
        recipe: Recipe,
        room: Room,
        index: int,
        *,
        receive: Callable[[Any], None],
        on_end: Callable[[], None],
    ) -> Link:
        """Start an actor."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = self._nodes.get(room.node)
        declared = node is not None and node.declared is not None
        actor = (
            ray.remote(FleetActor)
            .options(
                name=f"{self._name}-{index}-{uuid.uuid4().hex[:8]}",
                namespace="trajgym",
                lifetime="detached",  # it closes its sessions if this process dies
                max_concurrency=4,  # a call that waits for messages, one that brings one, a start
                max_restarts=0,
                num_cpus=self._cpus,
                resources={RESOURCE: room.sessions} if declared else None,
                scheduling_strategy=NodeAffinitySchedulingStrategy(room.node, soft=False),
            )
            .remote(self._lease, str(Path.cwd()))
        )
        self._launched.add(room)
        return ActorLink(
            actor,
            _pickled(recipe),
            f"trajgym-fleet-{index}",
            is_alive=partial(_is_alive, room.node),
            receive=receive,
            on_end=on_end,
        )

    async def leaving(self) -> Collection[str]:
        """Return the nodes that are being drained."""
        await self._look()
        return [node.id for node in self._nodes.values() if node.leaving]

    async def tidy(self, node: str, environments: Sequence[EnvSpec]) -> bool:
        """Remove what dead actors left on a node; return False if the node has left."""
        if not await asyncio.to_thread(_is_alive, node):
            return False
        tidying = partial(on_node, node, tidy_node, list(environments), str(Path.cwd()))
        try:
            await asyncio.to_thread(tidying, seconds=_PROBE * 2)
        except Exception:  # boundary: Ray; raised again unless the node has left
            if await asyncio.to_thread(_is_alive, node):
                raise
            return False
        return True

    # Nodes ------------------------------------------------------------------------------------

    async def _look(self) -> None:
        async with self._looking:
            if time.monotonic() - self._seen_at < _FRESH:
                return
            try:
                self._nodes = await asyncio.to_thread(nodes)
            except Exception as error:  # boundary: Ray raises what it likes
                raise FleetFailed(f"the Ray cluster does not answer: {error}") from error
            if self._probing and all(node.declared is None for node in self._nodes.values()):
                await self._probe()
            self._seen_at = time.monotonic()

    async def _probe(self) -> None:
        now = time.monotonic()
        old = {
            name: node
            for name, node in self._nodes.items()
            if now - self._probed_at.get(name, float("-inf")) > _PROBED
        }
        if old:
            self._capacities.update(await asyncio.to_thread(probed, old, _PROBE))
            self._probed_at.update(dict.fromkeys(old, time.monotonic()))

    def _free(self, node: Node) -> int:
        if node.declared is not None:
            # Ray reports what is available with a delay, and knows nothing of what is reserved here
            # for actors that are not started.
            ours = sum(room.sessions for room in self._launched if room.node == node.id)
            others = max(0, node.declared - node.available - ours)
            return node.declared - others - self._reserved[node.id]
        capacity = self._capacities.get(node.id)
        if capacity is None or any(other.declared is not None for other in self._nodes.values()):
            return 0
        return min(capacity.by_cpu - self._reserved[node.id], capacity.by_memory)


def _pickled(part: object) -> bytes:
    from ray import cloudpickle

    pickled: bytes = cloudpickle.dumps(part)
    return pickled


def _is_alive(node: str) -> bool:
    import ray

    return any(one["NodeID"] == node and one["Alive"] for one in ray.nodes())
