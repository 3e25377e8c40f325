"""Wire formats: each is parsed into chat form and written from it."""

from trajgym.server.dialects._base import ClientCall, Dialect, EventWriter, new_id
from trajgym.server.dialects._chat import ChatDialect, CompletionsDialect
from trajgym.server.dialects._messages_out import MessagesDialect
from trajgym.server.dialects._responses_out import ResponsesDialect

__all__ = [
    "ChatDialect",
    "ClientCall",
    "CompletionsDialect",
    "Dialect",
    "EventWriter",
    "MessagesDialect",
    "ResponsesDialect",
    "new_id",
]
