"""A small Ray cluster on this machine, whose nodes come and go."""

from __future__ import annotations

import logging
import time
from typing import Any

import ray
from ray.cluster_utils import Cluster

from tests.ray_nodes import add_node

__all__ = ["Nodes"]

_STORE = 80 * 1024**2
_SECONDS = 120.0


class Nodes:
    """Nodes of a cluster; the head has no room for sandboxes. Every method blocks.

    Ray adds nodes in the main thread only.
    """

    def __init__(self) -> None:
        head = {
            "num_cpus": 2,
            "resources": {"sandboxes": 0},
            "object_store_memory": _STORE,
            "include_dashboard": False,
            # A dead node is noticed after 5 refused connections, not 15 s; a slow one has 10 s.
            "_system_config": {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500},
        }
        self.cluster = Cluster()
        add_node(self.cluster, **head)
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        self._nodes: list[Any] = []

    @property
    def address(self) -> str:
        """Where a process connects."""
        return str(self.cluster.address)

    @property
    def ids(self) -> list[str]:
        """Ids of the nodes that were added and not removed."""
        return [node.node_id for node in self._nodes]

    def add(self, sandboxes: int) -> str:
        """Add a node; return its id."""
        node = add_node(
            self.cluster,
            num_cpus=1,
            resources={"sandboxes": sandboxes},
            object_store_memory=_STORE,
        )
        self._nodes.append(node)
        return str(node.node_id)

    def kill(self, name: str, *, graceful: bool = False) -> None:
        """Kill a node's processes, or let them end, and wait until the cluster knows."""
        node = next(one for one in self._nodes if one.node_id == name)
        self._nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=graceful)
        until = time.monotonic() + _SECONDS
        while any(one["NodeID"] == name and one["Alive"] for one in ray.nodes()):
            assert time.monotonic() < until, f"{name} is still in the cluster"
            time.sleep(0.05)

    def clear(self) -> None:
        """Let all nodes but the head leave."""
        for name in self.ids:
            self.kill(name, graceful=True)

    def close(self) -> None:
        """End the cluster."""
        ray.shutdown()
        self.cluster.shutdown()
