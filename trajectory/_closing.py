"""What has to be closed, and can stand in ``async with``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["AsyncClosing"]


class AsyncClosing(ABC):
    """Base of what holds something until it is closed; ``async with`` closes it."""

    __slots__ = ()

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
