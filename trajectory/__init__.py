"""Records of sessions, the session tree, the token ledger, training rows and the store."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from trajgym.trajectory._check import check_store
from trajgym.trajectory._deprecated import moved_names as _moved_names
from trajgym.trajectory._errors import (
    ConformanceError,
    InvalidInput,
    InvalidRow,
    InvalidSession,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreSchemaMismatch,
    TrajgymError,
)
from trajgym.trajectory._follow import FollowedRun, RunChanges
from trajgym.trajectory._media import UnsupportedModality
from trajgym.trajectory._messages import (
    Message,
    ToolSchema,
    blob_hashes,
    check_message,
    image_part,
    images_to_user,
    text_of,
    tool_calls_of,
)
from trajgym.trajectory._records import (
    Attempt,
    CallResult,
    CallStatus,
    Delivery,
    Edge,
    Group,
    Member,
    Outcome,
    Sampling,
    SessionRecord,
    Status,
    StatusKind,
    Task,
    Try,
    Turn,
    Usage,
    Wire,
)
from trajgym.trajectory._row_checks import validate_row
from trajgym.trajectory._rows import (
    Dropped,
    Rows,
    RowSpan,
    Stamp,
    TrainingRow,
    attempt_turns,
    build_rows,
)
from trajgym.trajectory._run import Annotation, AttemptSummary, Blob, Run, SessionSummary
from trajgym.trajectory._staleness import (
    discount_stale,
    drop_stale,
    oldest_trained_version,
    token_staleness,
)
from trajgym.trajectory._store import Ack, Store
from trajgym.trajectory._tokens import FloatArray, ImageRef, IntArray, Segment, Span, TurnTokens
from trajgym.trajectory._tree import SessionTree

__all__ = [
    "Ack",
    "Annotation",
    "Attempt",
    "AttemptSummary",
    "Blob",
    "CallResult",
    "CallStatus",
    "ConformanceError",
    "Delivery",
    "Dropped",
    "Edge",
    "FloatArray",
    "FollowedRun",
    "Group",
    "ImageRef",
    "IntArray",
    "InvalidInput",
    "InvalidRow",
    "InvalidSession",
    "Member",
    "Message",
    "Outcome",
    "RowSpan",
    "Rows",
    "Run",
    "RunChanges",
    "Sampling",
    "Segment",
    "SessionRecord",
    "SessionSummary",
    "SessionTree",
    "Span",
    "Stamp",
    "Status",
    "StatusKind",
    "Store",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "StoreSchemaMismatch",
    "Task",
    "ToolSchema",
    "TrainingRow",
    "TrajgymError",
    "Try",
    "Turn",
    "TurnTokens",
    "UnsupportedModality",
    "Usage",
    "Wire",
    "attempt_turns",
    "blob_hashes",
    "build_rows",
    "check_message",
    "check_store",
    "discount_stale",
    "drop_stale",
    "image_part",
    "images_to_user",
    "oldest_trained_version",
    "text_of",
    "token_staleness",
    "tool_calls_of",
    "validate_row",
]

if not _TYPE_CHECKING:  # type checkers report the old places
    __getattr__ = _moved_names(__name__, "trajgym.trajectory._internal")
