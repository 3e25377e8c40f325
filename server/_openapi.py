"""The OpenAPI document of everything but the model endpoints, which follow their vendors' APIs."""

from __future__ import annotations

from importlib import metadata
from typing import Any, get_args

from trajgym.server.control import PauseMode
from trajgym.server.feeding import Staleness

__all__ = ["document"]

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_INDEX: Json = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_OBJECT: Json = {"type": "object"}
_TURN: Json = {
    "type": "object",
    "description": "A turn, by its index or by the id of its answer.",
    "properties": {"turn": _INDEX, "call": _TEXT},
}


def document() -> Json:
    """Return the OpenAPI 3.1 document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "trajgym session server",
            "version": metadata.version("trajgym"),
            "description": "Sessions of outside agents, their groups and the feed for trainers, "
            "weight updates and served environments. "
            "Agents themselves use /sessions/ID/v1, with the APIs of their vendors.",
        },
        "paths": {
            **_sessions(),
            **_groups(),
            **_feed(),
            **_control(),
            **_environments(),
            **_played(),
            **_operation(),
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _ERROR, "Task": _TASK},
        },
        "security": [{"token": []}, {}],
    }


_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {"message": _TEXT, "type": _TEXT},
        }
    },
}
_TASK: Json = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "string", "minLength": 1},
        "prompt": {"type": ["string", "null"]},
        "data": _OBJECT,
    },
    "additionalProperties": False,
}
_TASK_REF = {"$ref": "#/components/schemas/Task"}


def _sessions() -> Json:
    new = _shape(
        id={"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
        task={"anyOf": [{"type": "string", "minLength": 1}, _TASK_REF]},
        group=_TEXT,
        sample=_INDEX,
        labels={"type": "object", "additionalProperties": _TEXT},
    )
    end = _shape(
        status={
            "type": "string",
            "description": "completed, cancelled, truncated:<budget> or failed:<part>",
            "enum": ["completed", "cancelled", "truncated:turns", "failed:agent"],
        },
        score={"type": "number"},
        passed={"type": "boolean"},
        details=_OBJECT,
        cause=_TEXT,
    )
    reward = {
        **_TURN,
        "required": ["reward"],
        "properties": {
            **_TURN["properties"],
            "reward": {"type": "number"},
        },
    }
    rewards = {
        "type": "object",
        "required": ["rewards"],
        "properties": {"rewards": {"type": "array", "items": reward}},
    }
    role = {
        **_TURN,
        "required": ["role"],
        "properties": {
            **_TURN["properties"],
            "role": {"type": "string", "pattern": "^(main|side:[a-z]+)$"},
        },
    }
    signals = {
        **_TURN,
        "required": ["signals", "source"],
        "properties": {
            **_TURN["properties"],
            "signals": _OBJECT,
            "source": {"type": "string", "pattern": "^[a-z][a-z0-9]*$"},
        },
    }
    session = [_path("id", "the session's id")]
    return {
        "/api/sessions": {
            "post": _operation_of(
                "Create a session for an outside agent.",
                body=new,
                optional=True,
                ok=201,
                errors=(400, 409),
            ),
            "get": _operation_of(
                "List sessions, oldest first, in pages of 1,000.",
                parameters=[
                    _query("status", "how they ended, such as completed or failed"),
                    _query("group", "id of their group"),
                    _query("after", "last id of the page before"),
                ],
            ),
        },
        "/api/sessions/{id}": {
            "parameters": session,
            "get": _operation_of("Return the state of a session.", errors=(404, 409)),
        },
        "/api/sessions/{id}/tree": {
            "parameters": session,
            "get": _operation_of("Return the whole session tree.", errors=(404, 409)),
        },
        "/api/sessions/{id}/close": {
            "parameters": session,
            "post": _operation_of(
                "End a session. Idempotent.", body=end, optional=True, errors=(400, 404, 409)
            ),
        },
        "/api/sessions/{id}/rewards": {
            "parameters": session,
            "post": _operation_of(
                "Set rewards of turns. Idempotent.", body=rewards, errors=(400, 404, 409)
            ),
        },
        "/api/sessions/{id}/roles": {
            "parameters": session,
            "post": _operation_of("Set the role of a turn.", body=role, errors=(400, 404, 409)),
        },
        "/api/sessions/{id}/signals": {
            "parameters": session,
            "post": _operation_of(
                "Add a judge's signals to a turn.", body=signals, errors=(400, 404, 409)
            ),
        },
    }


def _groups() -> Json:
    new = {
        "type": "object",
        "required": ["task", "samples"],
        "properties": {
            "id": {"type": ["string", "null"], "pattern": r"^[A-Za-z0-9][A-Za-z0-9.-]{0,127}$"},
            "task": {"anyOf": [{"type": "string", "minLength": 1}, _TASK_REF]},
            "samples": {"type": "integer", "minimum": 1, "maximum": 4096},
            "seconds": {
                "type": ["number", "null"],
                "exclusiveMinimum": 0,
                "maximum": 1e9,
                "description": "deadline from now on",
            },
        },
    }
    create = _operation_of("Open a group. Idempotent.", body=new, ok=201, errors=(400, 409, 503))
    create["responses"]["200"] = {**create["responses"]["201"], "description": "It exists."}
    group = [_path("id", "the group's id")]
    return {
        "/api/groups": {"post": create},
        "/api/groups/{id}": {
            "parameters": group,
            "get": _operation_of("Return a group and its running sessions.", errors=(404,)),
        },
        "/api/groups/{id}/seal": {
            "parameters": group,
            "post": _operation_of("Seal a group with what is there. Idempotent.", errors=(404,)),
        },
    }


def _feed() -> Json:
    name = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}
    poll = _operation_of(
        "Wait for sealed groups. A JSON object a line; the last one has end: true.",
        parameters=[
            _query("consumer", "name of the consumer", name),
            _query("after", "position after which to begin; where it acknowledged", _INDEX),
            _query("limit", "most groups, of 64", {**_INDEX, "minimum": 1}),
            _query("wait", "seconds to wait for a group", {"type": "number", "minimum": 0}),
            _query("max_staleness", "most versions behind the server's", _INDEX),
            _query("stale", "what happens to older sessions", {"enum": list(get_args(Staleness))}),
            _query(
                "share",
                "place and number of consumers that divide the groups",
                {"type": "string", "enum": ["0/1", "0/2", "1/2"]},
            ),
        ],
        errors=(400, 503),
    )
    poll["responses"]["200"]["content"] = {"application/x-ndjson": {"schema": _TEXT}}
    ack = {
        "type": "object",
        "required": ["position"],
        "properties": {"position": _INDEX, "consumer": {"anyOf": [name, {"type": "null"}]}},
    }
    return {
        "/feed": {"get": poll},
        "/feed/ack": {
            "post": _operation_of(
                "Acknowledge all groups up to a position. Idempotent.", body=ack, errors=(400, 409)
            )
        },
        "/feed/consumers": {"get": _operation_of("Return how far each consumer has come.")},
    }


def _control() -> Json:
    engine = {"type": "boolean", "description": "false leaves the engine itself alone"}
    pause = _shape(mode={"type": "string", "enum": list(get_args(PauseMode))}, engine=engine)
    resume = _shape(version=_INDEX, engine=engine)
    version = {"type": "object", "required": ["version"], "properties": {"version": _INDEX}}
    return {
        "/api/control": {"get": _operation_of("Return pause state and policy version.")},
        "/api/control/pause": {
            "post": _operation_of(
                "Make new calls wait, and pause the engine.",
                body=pause,
                optional=True,
                errors=(400, 502),
            )
        },
        "/api/control/resume": {
            "post": _operation_of(
                "Let calls proceed; may set the policy version.",
                body=resume,
                optional=True,
                errors=(400, 409, 502),
            )
        },
        "/api/control/version": {
            "post": _operation_of(
                "Set the policy version; it never decreases.", body=version, errors=(400, 409)
            )
        },
    }


def _environments() -> Json:
    name = _path("name", "name of a served environment")
    handle = _path("handle", "what open returned as id")
    number = {"type": "integer", "description": "counts the requests; a repeated one is not run"}
    opening = {
        "type": "object",
        "required": ["task"],
        "properties": {
            "task": _TASK_REF,
            "seed": {"type": ["integer", "null"]},
            "snapshot": {"type": ["string", "null"]},
            "labels": {"type": "object", "additionalProperties": _TEXT},
        },
    }

    def method(summary: str, **fields: Json) -> Json:
        body = {
            "type": "object",
            "required": ["number", *fields],
            "properties": {"number": number, **fields},
        }
        operation = _operation_of(summary, body=body, errors=(400, 404, 409))
        return {"parameters": [name, handle], "post": operation}

    base = "/envs/{name}/{handle}"
    return {
        "/envs": {"get": _operation_of("List the served environments.")},
        "/envs/{name}": {
            "parameters": [name],
            "get": _operation_of("Return tools, budgets and deadlines.", errors=(404,)),
        },
        "/envs/{name}/open": {
            "parameters": [name],
            "post": _operation_of(
                "Open a task, or restore a snapshot.", body=opening, errors=(400, 404, 503)
            ),
        },
        f"{base}/call": method("Carry out a tool call.", tool=_TEXT, arguments=_TEXT),
        f"{base}/respond": method("Answer a message without tool calls.", message=_OBJECT),
        f"{base}/refuse": method("Answer a call that was refused.", error=_TEXT),
        f"{base}/verify": method("Verify, and return the outcome."),
        f"{base}/snapshot": method("Take a snapshot, and return its id."),
        f"{base}/close": {
            "parameters": [name, handle],
            "post": _operation_of("Close. Idempotent.", errors=(404,)),
        },
    }


def _played() -> Json:
    attempt = {"attempt": {"anyOf": [_INDEX, {"type": "null"}]}}
    opening = {
        "type": "object",
        "required": ["task"],
        "properties": {
            "task": {"anyOf": [{"type": "string", "minLength": 1}, _TASK_REF]},
            "id": {"type": ["string", "null"], "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
            "seed": {"anyOf": [_INDEX, {"type": "null"}]},
            "labels": {"type": ["object", "null"], "additionalProperties": _TEXT},
        },
    }
    step = {
        "type": "object",
        "description": "One of message, text and tool.",
        "properties": {
            **attempt,
            "turn": {"anyOf": [_INDEX, {"type": "null"}], "description": "its index to be"},
            "message": {**_OBJECT, "description": "an assistant message"},
            "text": _TEXT,
            "tool": _TEXT,
            "arguments": {"type": ["object", "string", "null"]},
        },
        "oneOf": [{"required": ["message"]}, {"required": ["text"]}, {"required": ["tool"]}],
    }
    reward = {
        "type": "object",
        "required": ["turn", "reward"],
        "properties": {"turn": _INDEX, "reward": {"type": "number"}},
    }
    rewards = {
        "type": "object",
        "required": ["rewards"],
        "properties": {"rewards": {"type": "array", "items": reward}},
    }
    name = _path("name", "name of a served environment")
    both = [name, _path("session", "the session's id")]
    base = "/envs/{name}/sessions"
    create = _operation_of(
        "Open a session to be played with requests.",
        body=opening,
        ok=201,
        errors=(400, 404, 409, 502, 503),
    )
    fork = _operation_of(
        "Open a rival attempt after a turn; null forks before the first one.",
        body={"type": "object", "properties": {**attempt, "turn": attempt["attempt"]}},
        optional=True,
        ok=201,
        errors=(400, 404, 409, 502),
    )
    return {
        base: {
            "parameters": [name],
            "get": _operation_of("List the open sessions.", errors=(404,)),
            "post": create,
        },
        f"{base}/{{session}}": {
            "parameters": both,
            "get": _operation_of("Return a session's state.", errors=(404,)),
        },
        f"{base}/{{session}}/tree": {
            "parameters": both,
            "get": _operation_of("Return the whole session.", errors=(404,)),
        },
        f"{base}/{{session}}/step": {
            "parameters": both,
            "post": _operation_of("Execute a turn.", body=step, errors=(400, 404, 409)),
        },
        f"{base}/{{session}}/fork": {"parameters": both, "post": fork},
        f"{base}/{{session}}/rewards": {
            "parameters": both,
            "post": _operation_of(
                "Set rewards of turns. Idempotent.", body=rewards, errors=(400, 404)
            ),
        },
        f"{base}/{{session}}/close": {
            "parameters": both,
            "post": _operation_of("Close a session.", errors=(404,)),
        },
    }


def _operation() -> Json:
    metrics = _operation_of("Return metrics in Prometheus' text format.")
    metrics["responses"]["200"]["content"] = {"text/plain": {"schema": _TEXT}}
    health = _operation_of("Return that the server runs.", errors=())
    health["security"] = []
    return {"/metrics": {"get": metrics}, "/health": {"get": health}}


def _shape(**properties: Json) -> Json:
    """Return an object of optional properties; null stands for one that is left out."""
    nullable = {name: {"anyOf": [one, {"type": "null"}]} for name, one in properties.items()}
    return {"type": "object", "properties": nullable}


def _path(name: str, description: str) -> Json:
    schema = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$"}
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": schema,
    }


def _query(name: str, description: str, schema: Json = _TEXT) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _operation_of(
    summary: str,
    *,
    body: Json | None = None,
    optional: bool = False,
    parameters: list[Json] | None = None,
    ok: int = 200,
    errors: tuple[int, ...] = (),
) -> Json:
    failed = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    operation: Json = {
        "summary": summary,
        "responses": {
            str(ok): {"description": "Done.", "content": {"application/json": {"schema": _OBJECT}}},
            **{
                str(status): {"description": _WHY[status], "content": failed}
                for status in (401, *errors)
            },
        },
    }
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        content = {"application/json": {"schema": body}}
        operation["requestBody"] = {"required": not optional, "content": content}
    return operation


_WHY = {
    400: "The request is malformed.",
    401: "The token is missing or wrong.",
    404: "There is no such session, turn, group, environment or handle.",
    409: "The state does not permit it: an id that is taken, a closed session, a lower version.",
    502: "The engine can't be reached, or refuses.",
    503: "Too much is open: environments, polls, or groups that consumers have not taken.",
}
