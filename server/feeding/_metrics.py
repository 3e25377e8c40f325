"""Metrics of groups and of the feed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajgym.rollout.monitoring import family, single

if TYPE_CHECKING:
    from trajgym.server.feeding._groups import GroupBook
    from trajgym.server.feeding._log import FeedLog

__all__ = ["feed_metrics"]


def feed_metrics(groups: GroupBook, log: FeedLog) -> str:
    """Return them in Prometheus' text format."""
    lines = [
        *single("groups_open", "gauge", "Groups that are not sealed.", groups.open),
        *family(
            "feed_behind",
            "gauge",
            "Sealed groups that a consumer has not acknowledged.",
            "consumer",
            log.behind(),
        ),
        *family(
            "feed_groups_total", "counter", "Groups sent to consumers.", "consumer", log.delivered
        ),
        *family(
            "feed_stale_total",
            "counter",
            "Sessions that were too old for a consumer.",
            "consumer",
            log.stale,
        ),
    ]
    return "\n".join([*lines, ""])
