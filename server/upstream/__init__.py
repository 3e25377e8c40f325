"""The engine behind the proxy: requests, streams, answers, and resuming after an abort."""

from trajgym.server.upstream._check import check_upstream
from trajgym.server.upstream._client import EngineKind, Upstream
from trajgym.server.upstream._exchange import Exchange
from trajgym.server.upstream._sse import EventReader
from trajgym.server.upstream._switch import EngineSwitch

__all__ = ["EngineKind", "EngineSwitch", "EventReader", "Exchange", "Upstream", "check_upstream"]
