"""Converts published record shapes to one, with SWE-bench's field names and additional ones.

Each shape has a function that returns the fields of :class:`SweRecord`; all other fields of a row
are kept unchanged.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from trajgym.envs.swe._errors import InvalidTask
from trajgym.envs.swe._lists import strings_of
from trajgym.envs.swe._logs import R2E, r2e_id
from trajgym.envs.swe._paths import is_test_path
from trajgym.envs.swe._reverse import reverse_patch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Shape", "normalised", "shape_of"]

Shape: TypeAlias = Literal[
    "swe-bench", "swe-rebench", "swe-smith", "r2e-gym", "multi-swe-bench", "swe-bench-pro"
]

_NUMBERED = re.compile(r"[\w.-]+__[\w.-]+-\d+")
_LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
_PARSERS = {
    "go": "parse_log_gotest", "rust": "parse_log_cargo", "java": "parse_log_maven",
    "javascript": "parse_log_jest", "typescript": "parse_log_jest", "python": "parse_log_pytest",
}  # fmt: skip
"""Parsers of the ``swebench`` package by Multi-SWE-bench's languages."""
_ISSUE = re.compile(r"\[ISSUE\](.*?)\[/ISSUE\]", re.DOTALL)
_MARKED = re.compile(r">>>>> Start Test Output'?\s*\n(.*?)\n[^\n]*>>>>> End Test Output", re.DOTALL)


def shape_of(row: Mapping[str, Any]) -> Shape:
    """Return which published shape a row has; SWE-bench's if no other fits."""
    if "org" in row and "fix_patch" in row:
        return "multi-swe-bench"
    if "parsed_commit_content" in row or "expected_output_json" in row:
        return "r2e-gym"
    if "before_repo_set_cmd" in row or "dockerhub_tag" in row:
        return "swe-bench-pro"
    if str(row.get("repo", "")).startswith("swesmith/"):
        return "swe-smith"
    if {"install_config", "docker_image", "docker_specs", "image_name"} & row.keys():
        return "swe-rebench"
    return "swe-bench"


def normalised(
    row: Mapping[str, Any], *, shape: Shape | None = None, where: str = "record"
) -> dict[str, Any]:
    """Return a row of any published shape with the fields of :class:`SweRecord`.

    Raises:
        InvalidTask: a field of that shape is malformed.
    """
    if row.get("shape") or isinstance(row.get("source"), dict):
        return dict(row)  # already converted
    chosen = shape or shape_of(row)
    if chosen not in get_args(Shape):
        raise InvalidTask(f"{where}: shape {chosen!r} is not one of {', '.join(get_args(Shape))}")
    made = {key: value for key, value in row.items() if value is not None}
    if isinstance(made.get("source"), str):
        made["published_source"] = made.pop("source")
    for name in _LISTS:
        if name not in made and name.lower() in made:
            made[name] = made.pop(name.lower())
    try:
        made |= _SHAPES[chosen](made)
    except KeyError as error:
        raise _unreadable(where, row, chosen, f"field {error.args[0]} is missing") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise _unreadable(where, row, chosen, str(error)) from error
    return {**made, "shape": chosen}


def _unreadable(where: str, row: Mapping[str, Any], shape: str, said: str) -> InvalidTask:
    if isinstance(row.get("instance_id"), str):
        where = f"{where}, record {row['instance_id']!r}"
    return InvalidTask(f"{where}, read as {shape}: {said}")


def _bench(row: dict[str, Any]) -> dict[str, Any]:
    identity = str(row.get("instance_id", ""))
    name = f"swebench/sweb.eval.x86_64.{identity.lower().replace('__', '_1776_')}:latest"
    default = name if _NUMBERED.fullmatch(identity) else ""
    made: dict[str, Any] = {"image": row.get("image") or row.get("image_name") or default}
    install = dict(row.get("install_config") or {})
    if parser := row.get("log_parser"):
        install["log_parser"] = parser
    marked = _MARKED.search(str(row.get("eval_script") or ""))
    if marked and "test_cmd" not in install:
        install["test_cmd"] = marked[1].strip()
        install["whole_command"] = True
    if install:
        made["install_config"] = install
    return made


def _rebench(row: dict[str, Any]) -> dict[str, Any]:
    image = row.get("docker_image") or row.get("image_name") or row.get("base_image_name")
    install = _loaded(row.get("install_config")) or {}
    for name in ("test_cmd", "log_parser"):
        if name in row and name not in install:
            install[name] = row[name]
    if isinstance(command := strings_or_text(install.get("test_cmd")), list):
        install["test_cmd"] = " && ".join(command)
    made: dict[str, Any] = {"image": image or ""}
    if install:
        made["install_config"] = {key: v for key, v in install.items() if v is not None}
    return made


def _smith(row: dict[str, Any]) -> dict[str, Any]:
    """SWE-smith publishes the bug; the branch with the bug has the instance's name."""
    return {
        "patch": reverse_patch(row["patch"], f"record {row.get('instance_id')!r}"),
        "bug_patch": row["patch"],
        "test_patch": "",
        "base_commit": row.get("base_commit") or str(row["repo"]).rpartition(".")[2],
        "image": row.get("image_name", ""),
        "problem_statement": row.get("problem_statement")
        or _failing_statement(row.get("FAIL_TO_PASS")),
    }


def _r2e(row: dict[str, Any]) -> dict[str, Any]:
    commit = _loaded(row.get("parsed_commit_content")) or {}
    expected = _loaded(row.get("expected_output_json")) or {}
    image = row.get("docker_image", "")
    fixed = row.get("commit_hash") or commit.get("new_commit_hash") or image.rpartition(":")[2]
    patch, tests = _diffs_of(commit.get("file_diffs") or [])
    issue = _ISSUE.search(row.get("problem_statement", ""))
    return {
        "instance_id": row.get("instance_id") or f"{row['repo_name']}__{fixed}",
        "repo": row["repo_name"],
        "base_commit": commit.get("old_commit_hash", ""),
        "image": image,
        "patch": patch,
        "test_patch": tests,
        "problem_statement": (issue[1] if issue else row["problem_statement"]).strip(),
        "expected_results": expected,
        "FAIL_TO_PASS": [r2e_id(name) for name, status in expected.items() if status == "PASSED"],
        "PASS_TO_PASS": [],
        "install_config": row.get("install_config")
        or {"test_cmd": "bash run_tests.sh", "whole_command": True, "log_parser": R2E},
    }


def _multi(row: dict[str, Any]) -> dict[str, Any]:
    org, repo, number = row["org"], row["repo"], row["number"]
    issues = strings_or_text(row.get("resolved_issues")) or []
    texts = [
        f"{issue.get('title', '')}\n{issue.get('body') or ''}".strip()
        for issue in (issues.tolist() if hasattr(issues, "tolist") else issues)
        if isinstance(issue, dict)
    ]
    tests = {kind: _names(row.get(f"{kind}_tests")) for kind in ("f2p", "n2p", "s2p", "p2p")}
    made: dict[str, Any] = {}
    language = str(row.get("lang") or row.get("language") or "").lower()
    if not row.get("install_config") and language and language not in _PARSERS:
        raise ValueError(
            f"lang {language!r}: there is no parser for its test output, only for "
            f"{', '.join(_PARSERS)}; give the record an install_config with test_cmd and log_parser"
        )
    if not row.get("install_config") and language in _PARSERS:
        made["install_config"] = {
            "test_cmd": "bash /home/run.sh", "whole_command": True,
            "log_parser": _PARSERS[language],
        }  # fmt: skip
    return made | {
        "repo_dir": row.get("repo_dir") or f"/home/{repo}",
        "instance_id": row.get("instance_id") or f"{org}__{repo}-{number}",
        "repo": f"{org}/{repo}",
        "base_commit": _loaded(row["base"])["sha"],
        "image": row.get("image") or f"mswebench/{org}_m_{repo}:pr-{number}".lower(),
        "patch": row["fix_patch"],
        "problem_statement": "\n\n".join(texts) or f"{row['title']}\n{row.get('body') or ''}",
        "FAIL_TO_PASS": [*tests["f2p"], *tests["n2p"], *tests["s2p"]],
        "PASS_TO_PASS": tests["p2p"],
    }


def _pro(row: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    selected = strings_or_text(row.get("selected_test_files_to_run")) or []
    if row.get("run_script") and row.get("parser_script") and not row.get("install_config"):
        made["install_config"] = {
            "run_script": row["run_script"], "parser_script": row["parser_script"],
            "script_arguments": [",".join(selected) if isinstance(selected, list) else selected],
        }  # fmt: skip
    tag = row.get("dockerhub_tag")
    parts = (row.get("problem_statement"), row.get("requirements"), row.get("interface"))
    return made | {
        "image": row.get("image") or (f"jefzda/sweap-images:{tag}" if tag else ""),
        "repo_dir": row.get("repo_dir", "/app"),
        "problem_statement": "\n\n".join(str(part) for part in parts if part),
        "selected_test_files_to_run": selected,
    }


_SHAPES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "swe-bench": _bench,
    "swe-rebench": _rebench,
    "swe-smith": _smith,
    "r2e-gym": _r2e,
    "multi-swe-bench": _multi,
    "swe-bench-pro": _pro,
}


def strings_or_text(value: Any) -> Any:
    """Return the value as a list if it is one in any form, else the value itself."""
    try:
        return strings_of(value)
    except ValueError:
        return value


def _loaded(value: Any) -> Any:
    """Return an object that may be given as JSON text."""
    return json.loads(value) if isinstance(value, str) and value.strip() else value


def _names(value: Any) -> list[str]:
    """Return test names; parquet adds the keys of all other rows to a mapping, with None."""
    if isinstance(value, dict):
        return [str(key) for key, entry in value.items() if entry is not None]
    found = strings_of(value if value is not None else [])
    return [str(name) for name in found] if isinstance(found, list) else []


def _failing_statement(tests: Any) -> str:
    names = _names(tests)
    shown = "\n".join(f"- {name}" for name in names[:20])
    return f"{len(names)} tests fail that passed before. Find the cause and fix it.\n{shown}"


def _diffs_of(files: list[Any]) -> tuple[str, str]:
    """Return source patch and test patch from old and new content, as R2E-Gym stores them."""
    patches: tuple[list[str], list[str]] = ([], [])
    for file in files:
        path = file["header"]["file"]["path"]
        old, new = file.get("old_file_content"), file.get("new_file_content")
        if not old and not new:
            continue
        patches[is_test_path(path)].append(_git_diff(path, old or "", new or ""))
    return "".join(patches[0]), "".join(patches[1])


def _git_diff(path: str, old: str, new: str) -> str:
    head = [f"diff --git a/{path} b/{path}\n"]
    if not old:
        head.append("new file mode 100644\n")
    elif not new:
        head.append("deleted file mode 100644\n")
    names = (f"a/{path}" if old else "/dev/null", f"b/{path}" if new else "/dev/null")
    head += [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(_lines(old), _lines(new), *names)
    ]
    return "".join(head)


def _lines(text: str) -> list[str]:
    """Split at line feeds only, as git does."""
    *ended, last = text.split("\n")
    return [*(f"{line}\n" for line in ended), *([last] if last else [])]
