"""Tools: methods that the agent can call, with schemas generated from their signatures."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError

from trajgym.envs._errors import ToolError
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trajgym.envs._spawn import Spawn
    from trajgym.trajectory import ToolSchema

__all__ = [
    "Content",
    "Image",
    "InvalidArguments",
    "Tool",
    "ToolResult",
    "declare_tools",
    "is_tool",
    "tool",
    "tools_of",
]

_F = TypeVar("_F", bound="Callable[..., Any]")
_MARK = "__trajgym_tool__"
_PREFIX = "arg_"  # keeps parameters called `json` or `copy` off the names of pydantic's methods


@dataclass(frozen=True, slots=True)
class Image:
    """An image in an observation; the session stores the bytes once and refers to them by hash.

    Args:
        data: the encoded image.
        media_type: ``image/png``, ``image/jpeg``, ``image/webp`` or ``image/gif``.
    """

    data: bytes
    media_type: str = "image/png"


Content: TypeAlias = "str | Sequence[str | Image]"


@dataclass(slots=True, kw_only=True)
class ToolResult:
    """The result of a tool call or a response.

    Args:
        content: text, or texts and images in order.
        reward: step reward of this call, None if it has none.
        done: the episode ends with this turn; later calls of the turn are not executed.
        truncated: the name of a limit of the environment that this turn reached; the attempt then
            ends as ``truncated:<name>``, and is verified and scored.
        signals: values for derivers, merged into the turn's signals; JSON values.
        spawn: a sub-agent whose answer becomes the content; for tool calls only.
    """

    content: Content = ""
    reward: float | None = None
    done: bool = False
    truncated: str = ""
    signals: dict[str, Any] = field(default_factory=dict)
    spawn: Spawn | None = None


class InvalidArguments(ToolError):
    """The arguments of a tool call are invalid; the message is returned to the agent."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool of an environment class.

    Args:
        name: the name by which the policy calls it.
        function: the plain function on the class.
        arguments: pydantic model that validates the JSON arguments.
        schema: the JSON schema that the policy is shown.
        concurrent: whether calls in the same turn may overlap.
        parameters: names of the parameters.
        is_async: whether the function is a coroutine function.
    """

    name: str
    function: Callable[..., Any]
    arguments: type[BaseModel]
    schema: ToolSchema
    concurrent: bool
    parameters: tuple[str, ...]
    is_async: bool

    def parse(self, arguments: str) -> dict[str, Any]:
        """Return keyword arguments from the JSON text of a call.

        Raises:
            InvalidArguments: the JSON is malformed, or arguments are missing, unknown or have the
                wrong type.
        """
        try:
            model = self.arguments.model_validate_json(arguments or "{}")
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}"
                for e in error.errors(include_url=False, include_context=False, include_input=False)
            )
            raise InvalidArguments(f"invalid arguments for {self.name}: {problems}") from error
        return {name: getattr(model, _PREFIX + name) for name in self.parameters}


@overload
def tool(function: _F, /) -> _F: ...
@overload
def tool(*, name: str | None = None, concurrent: bool = False) -> Callable[[_F], _F]: ...
def tool(
    function: _F | None = None,
    /,
    *,
    name: str | None = None,
    concurrent: bool = False,
) -> _F | Callable[[_F], _F]:
    """Mark a method of an :class:`Env` as a tool.

    The schema comes from the type hints and the docstring (its first paragraph, and the ``Args:``
    section in Google style). The method returns text or a :class:`ToolResult`; ``ToolError`` and
    ``ValueError`` are reported to the agent. Plain functions run in a thread.

    Args:
        function: the method.
        name: the name by which the policy calls it; the method's name by default.
        concurrent: whether calls in the same turn may run concurrently; by default they run in
            order.
    """

    def mark(f: _F) -> _F:
        setattr(f, _MARK, (name or f.__name__, concurrent))
        return f

    return mark if function is None else mark(function)


def is_tool(function: object) -> bool:
    """Return whether a function is marked as a tool."""
    return hasattr(function, _MARK)


_known: dict[type, Mapping[str, Tool]] = {}


def tools_of(cls: type) -> Mapping[str, Tool]:
    """Return the tools of an environment class by name, in order of definition.

    Raises:
        InvalidInput: a parameter has no type hint or one without a JSON schema, or two tools have
            the same name.
    """
    if cls in _known:
        return _known[cls]
    tools: dict[str, Tool] = {}
    seen: set[str] = set()
    for base in reversed(cls.__mro__):
        for attribute in vars(base):
            function = getattr(cls, attribute, None)
            mark = getattr(function, _MARK, None)
            if mark is None or attribute in seen:
                continue
            seen.add(attribute)
            made = _make(cls, function, *mark)
            if made.name in tools:
                raise InvalidInput(f"{cls.__name__}: two tools are called {made.name!r}")
            tools[made.name] = made
    for made in getattr(cls, "added_tools", ()):
        if made.name in tools:
            raise InvalidInput(f"{cls.__name__}: two tools are called {made.name!r}")
        tools[made.name] = made
    _known[cls] = tools
    return tools


def declare_tools(cls: type, tools: Iterable[Tool]) -> None:
    """Give an environment class its tools, in place of those that its methods would make."""
    _known[cls] = {tool.name: tool for tool in tools}


def _make(cls: type, function: Any, name: str, concurrent: bool) -> Tool:
    where = f"{cls.__name__}.{function.__name__}"
    summary, described = _parse_docstring(inspect.getdoc(function) or "")
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:  # names that its module does not have
        raise InvalidInput(
            f"{where}: its type hints can't be read: {error}; define the types in the module, "
            "outside of functions and of `if TYPE_CHECKING`",
        ) from error
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise InvalidInput(f"{where}: a tool can't take *args or **kwargs")
        if parameter.name not in hints:
            raise InvalidInput(f"{where}: parameter {parameter.name!r} needs a type hint")
        default = ... if parameter.default is parameter.empty else parameter.default
        info = Field(default, alias=parameter.name, description=described.get(parameter.name))
        fields[_PREFIX + parameter.name] = (hints[parameter.name], info)
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        parameters = model.model_json_schema()
    except PydanticUserError as error:
        raise InvalidInput(f"{where}: no JSON schema for its parameters: {error}") from error
    schema = {
        "type": "function",
        "function": {
            "name": name,
            "description": summary,
            "parameters": _without_titles(parameters),
        },
    }
    names = tuple(field.removeprefix(_PREFIX) for field in fields)
    is_async = inspect.iscoroutinefunction(function)
    return Tool(name, function, model, schema, concurrent, names, is_async)


def _without_titles(schema: Any) -> Any:
    """Remove the titles that pydantic adds, which repeat the names and cost prompt tokens."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(value) for name, value in item.items()}
        if key in {"properties", "$defs"}
        else _without_titles(item)
        for key, item in schema.items()
        if key != "title"
    }


_SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Yields|Example|Examples|Note):\s*$")
_ARGUMENT = re.compile(r"^(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


def _parse_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Return the text before the sections, and the descriptions in ``Args:``."""
    summary: list[str] = []
    arguments: dict[str, str] = {}
    section, current = "", ""
    for line in doc.splitlines():
        if match := _SECTION.match(line):
            section, current = match[1], ""
        elif not section:
            summary.append(line)
        elif section.startswith("Arg") and line.strip():
            indent = len(line) - len(line.lstrip())
            entry = _ARGUMENT.match(line.strip()) if indent <= _ARG_INDENT else None
            if entry:
                current = entry[1]
                arguments[current] = entry[2]
            elif current:
                arguments[current] += f" {line.strip()}"
    return "\n".join(summary).strip(), arguments


_ARG_INDENT = 4
