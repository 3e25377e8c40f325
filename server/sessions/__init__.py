"""Sessions of outside agents and their running calls."""

from trajgym.server.sessions._book import ENV, SessionBook, Settings
from trajgym.server.sessions._flight import Flight, Listener
from trajgym.server.sessions._live import LiveSession
from trajgym.server.sessions._watch import CallWatch

__all__ = ["ENV", "CallWatch", "Flight", "Listener", "LiveSession", "SessionBook", "Settings"]
