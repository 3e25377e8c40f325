"""Joining calls into a session tree: pure functions over canonical atoms."""

from trajgym.server.joining._atoms import atoms_of, chain, head_of, print_of, tools_digest
from trajgym.server.joining._place import kept_of, place
from trajgym.server.joining._repeat import Earlier, Repeat, repeat_of
from trajgym.server.joining._roles import SET_BY_API, Role, main_root, roles_of
from trajgym.server.joining._seen import Known, Placement, Request, Seen

__all__ = [
    "SET_BY_API",
    "Earlier",
    "Known",
    "Placement",
    "Repeat",
    "Request",
    "Role",
    "Seen",
    "atoms_of",
    "chain",
    "head_of",
    "kept_of",
    "main_root",
    "place",
    "print_of",
    "repeat_of",
    "roles_of",
    "tools_digest",
]
