"""Groups of sessions, sealed when their members have ended, and their feed to trainers."""

from trajgym.server.feeding._api import FeedApi
from trajgym.server.feeding._client import Feed
from trajgym.server.feeding._groups import GroupBook, Signals
from trajgym.server.feeding._log import FeedLog, Staleness
from trajgym.server.feeding._take import FedGroup

__all__ = ["FedGroup", "Feed", "FeedApi", "FeedLog", "GroupBook", "Signals", "Staleness"]
