"""Nodes of Ray that start on a loaded machine, too."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from ray._private import services
from ray.cluster_utils import Cluster

from tests.ports import free_port

__all__ = ["add_node"]


def add_node(cluster: Cluster, **options: Any) -> Any:
    """Add a node, the first as the head, that knows the ports of its agents.

    A node ends if the agents that it starts have not chosen their ports within 15 s each; where
    other processes want the processors, their imports take longer. For a port that it knows it does
    not wait. Ray gives it all of them but one.
    """
    names = ("metrics_agent", "metrics_export", "dashboard_agent_listen", "runtime_env_agent")
    ports = {f"{name}_port": free_port() for name in names}
    start = services.start_ray_process

    def started(command: list[str], kind: str, **more: Any) -> Any:
        if kind == "raylet":
            port = ports["dashboard_agent_listen_port"]
            command = [*command, f"--dashboard_agent_listen_port={port}"]
        return start(command, kind, **more)

    with patch.object(services, "start_ray_process", started):
        return cluster.add_node(**ports, **options)
