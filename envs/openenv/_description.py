"""What an OpenEnv server can do: its tools, or the schema of its actions."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from functools import lru_cache
from typing import Any, NamedTuple

from trajgym.envs._errors import UnknownEnv

__all__ = ["Description", "describe", "http_url"]

_SECONDS = 30.0


class Description(NamedTuple):
    """An environment as its server describes it."""

    name: str
    about: str
    tools: tuple[dict[str, Any], ...]
    """Tools in MCP's form; empty if the environment has none."""
    action: dict[str, Any]
    """JSON schema of actions."""


def http_url(url: str) -> str:
    """Return a server's URL with the scheme of HTTP and without a slash at the end.

    Raises:
        UnknownEnv: the scheme is neither of HTTP nor of WebSockets.
    """
    scheme, _, rest = url.partition("://")
    plain = {"http": "http", "ws": "http", "https": "https", "wss": "https"}.get(scheme)
    if plain is None or not rest:
        raise UnknownEnv(f"{url!r} is not the URL of an OpenEnv server, as http://host:port is")
    return f"{plain}://{rest.rstrip('/')}"


@lru_cache(maxsize=64)
def describe(url: str) -> Description:
    """Ask a server for its description, once per process, in requests of at most 10 s.

    Raises:
        UnknownEnv: no OpenEnv server answers at the URL.
    """
    schema = _fetch(f"{url}/schema")
    if not isinstance(schema, dict) or not isinstance(schema.get("action"), dict):
        raise UnknownEnv(f"{url}/schema: no schema of actions")
    about = _fetch(f"{url}/metadata")
    about = about if isinstance(about, dict) else {}
    return Description(
        name=str(about.get("name") or "openenv"),
        about=str(about.get("description") or ""),
        tools=tuple(_tools(url)),
        action=schema["action"],
    )


def _tools(url: str) -> list[dict[str, Any]]:
    """Return the tools that the server lists; an environment without any answers with an error."""
    request = {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": 1}
    answer = _fetch(f"{url}/mcp", request)
    result = answer.get("result") if isinstance(answer, dict) else None
    listed = result.get("tools") if isinstance(result, dict) else None
    return [one for one in listed or [] if isinstance(one, dict) and one.get("name")]


def _fetch(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {} if body is None else {"content-type": "application/json"}
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - http(s), see http_url
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as got:  # noqa: S310
            return json.load(got)
    except urllib.error.HTTPError as error:
        if body is not None:
            return None  # servers of early versions have no MCP
        raise UnknownEnv(f"{url}: status {error.code}: {error.read()[:200]!r}") from error
    except (OSError, ValueError) as error:
        raise UnknownEnv(f"{url}: no response from an OpenEnv server: {error}") from error
