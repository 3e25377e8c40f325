"""A platform that lets verl's training engines run on a CPU; named in VERL_USE_EXTERNAL_MODULES."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

_MEMORY = 1 << 34


def _nothing(*_: Any, **__: Any) -> int:
    return 0


def _module() -> types.ModuleType:
    """What verl expects of ``torch.cuda``, as far as a CPU has it."""
    module = types.ModuleType("cpu_device")
    for name in ("Stream", "stream", "current_stream"):
        setattr(module, name, getattr(torch.cpu, name))
    for name in (
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "empty_cache",
        "reset_peak_memory_stats",
        "ipc_collect",
        "set_device",
        "synchronize",
    ):
        setattr(module, name, _nothing)
    properties = types.SimpleNamespace(total_memory=_MEMORY, name="cpu", multi_processor_count=1)
    given: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "current_device": lambda: "cpu",
        "device_count": lambda: 1,
        "mem_get_info": lambda *_: (_MEMORY, _MEMORY),
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "get_device_name": lambda *_: "cpu",
        "get_device_properties": lambda *_: properties,
    }
    for name, value in given.items():
        setattr(module, name, value)
    return module


_DEVICE = _module()


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """One device, which is the processor."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        return _DEVICE

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CPU_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_cpus": num_gpus}

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None


_init = torch.distributed.init_process_group


def _init_once(*args: Any, backend: str | None = None, **more: Any) -> Any:
    """Verl names a backend for the CPU and one for the device; here they are the same."""
    if backend is not None and backend.startswith("cpu:"):
        backend = "gloo"
    return _init(*args, backend=backend, **more)


torch.distributed.init_process_group = _init_once
