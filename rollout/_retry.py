"""The retry policy of hosted policies and engines, defined where `trajgym.envs` can import it."""

from trajgym.envs._retry import (
    Limiter,
    Retry,
    Transient,
    of_status,
    retry_after,
    shared_limiter,
)

__all__ = ["Limiter", "Retry", "Transient", "of_status", "retry_after", "shared_limiter"]
