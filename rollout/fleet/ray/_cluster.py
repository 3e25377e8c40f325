"""A Ray cluster as a fleet sees it: its nodes, and how many sandboxes each can hold."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trajgym.rollout.fleet._errors import FleetFailed
from trajgym.rollout.fleet.ray._actor import Capacity, probe
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["RESOURCE", "Node", "connect", "need_ray", "nodes", "on_node", "probed"]

_log = logging.getLogger(__name__)
RESOURCE = "sandboxes"
"""The custom resource by which a node declares how many sandboxes it can hold."""


@dataclass(frozen=True, slots=True)
class Node:
    """A living node.

    Args:
        id: its hexadecimal id.
        name: its host name.
        declared: how many sandboxes it declares to hold; None if it declares nothing.
        available: how many of these no actor has reserved.
        leaving: whether it is being drained.
    """

    id: str
    name: str
    declared: int | None
    available: int
    leaving: bool


def need_ray() -> None:
    """Raise unless Ray is installed.

    Raises:
        MissingExtra: it is not.
    """
    try:
        import ray  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingExtra("ray", "ray") from error


def connect(address: str | None, seconds: float) -> bool:
    """Connect this process to a cluster; blocks.

    Args:
        address: ``HOST:PORT`` of the cluster, ``auto`` for the one that this machine belongs to, or
            None for ``$RAY_ADDRESS``, else ``auto``. Ignored if the process is connected, as it is
            in the processes of a trainer that runs on Ray.
        seconds: deadline.

    Returns:
        Whether this call connected it.

    Raises:
        FleetFailed: there is no cluster, or it does not answer in time.
        InvalidInput: the address is one of Ray Client, or no address.
    """
    import ray

    if ray.is_initialized():
        return False
    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    if "://" in where:
        raise InvalidInput(
            f"Ray address {where!r}: connect from a node of the cluster, with HOST:PORT or auto "
            "(`ray job submit` runs a command there)"
        )
    until = time.monotonic() + seconds
    if where != "auto":
        _check_port(where, seconds)
    failed: list[BaseException] = []

    def init() -> None:
        try:
            ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR)
        except BaseException as error:  # noqa: BLE001 - boundary: Ray; raised by the caller
            failed.append(error)

    # In a thread, because Ray's own deadlines add up to minutes.
    thread = threading.Thread(target=init, name="trajgym-ray-init", daemon=True)
    thread.start()
    thread.join(max(0.0, until - time.monotonic()))
    if thread.is_alive():
        raise FleetFailed(f"the Ray cluster at {where} did not answer within {seconds:g} s")
    if failed:
        advice = "; `ray start --head` starts one" if where == "auto" else ""
        raise FleetFailed(f"no Ray cluster at {where}: {_first_line(failed[0])}{advice}")
    return True


def _check_port(where: str, seconds: float) -> None:
    host, colon, port = where.rpartition(":")
    if not colon or not port.isdigit():
        raise InvalidInput(f"Ray address {where!r}: expected HOST:PORT, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except (OSError, OverflowError) as error:
        raise FleetFailed(f"no Ray cluster at {where}: {error}") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def nodes() -> dict[str, Node]:
    """Return the living nodes by id; blocks.

    Raises:
        RayError: the cluster does not answer.
    """
    import ray
    from ray._private import state  # Ray has no public function for resources by node

    available = state.available_resources_per_node()
    draining = state.state.get_draining_nodes()
    found = {}
    for node in ray.nodes():
        if node["Alive"]:
            name = node["NodeID"]
            declared = node["Resources"].get(RESOURCE)
            found[name] = Node(
                name,
                node["NodeManagerHostname"],
                None if declared is None else int(declared),
                int(available.get(name, {}).get(RESOURCE, 0)),
                name in draining,
            )
    return found


def on_node(node: str, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
    """Call a function on a node and return its result; blocks.

    Raises:
        RayError: the node has left, the function raised, or it did not return in time.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    remote = ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
    reference = remote.remote(*arguments)
    try:
        return ray.get(reference, timeout=seconds)
    except ray.exceptions.GetTimeoutError:
        ray.cancel(reference, force=True)
        raise


def probed(found: Mapping[str, Node], seconds: float) -> dict[str, Capacity]:
    """Return what the nodes can hold that declare nothing, by id; blocks."""
    import ray

    capacities = {}
    for node in found.values():
        try:
            capacities[node.id] = on_node(node.id, probe, seconds=seconds)
        except ray.exceptions.RayError as error:
            _log.warning("node %s: its capacity is not known: %s", node.name, _first_line(error))
    return capacities
