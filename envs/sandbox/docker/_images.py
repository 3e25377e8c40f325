"""Images made from containers. Everything here blocks."""

from __future__ import annotations

import json
import tempfile
from typing import Any

__all__ = ["KIND", "REPOSITORY", "keep_image", "layer_count"]

KIND = "trajgym.kind"
REPOSITORY = "trajgym/snapshot"
MAX_LAYERS = 100
"""Storage drivers allow about 125; a deeper image is flattened into one layer."""


def keep_image(api: Any, container: str, tag: str) -> None:
    """Make an image from a container's files."""
    seen = api.inspect_container(container)
    labels = {**(seen["Config"].get("Labels") or {}), KIND: "snapshot"}
    if layer_count(api, seen["Image"]) < MAX_LAYERS:
        changes = [f"LABEL {KIND}=snapshot"]
        api.commit(container, repository=REPOSITORY, tag=tag, changes=changes)
        return
    # Paused, as by a commit, so that the files are those of one moment.
    api.pause(container)
    try:
        with tempfile.TemporaryFile() as file:
            for piece in api.export(container):
                file.write(piece)
            file.seek(0)
            changes = [f"LABEL {_word(key)}={_word(value)}" for key, value in labels.items()]
            variables = [entry.partition("=") for entry in seen["Config"].get("Env") or []]
            changes += [f"ENV {key}={_word(value)}" for key, _, value in variables]
            said = api.import_image_from_data(file, repository=REPOSITORY, tag=tag, changes=changes)
    finally:
        api.unpause(container)
    _check(said)


def layer_count(api: Any, image: str) -> int:
    """Return how many layers an image has."""
    return len(api.inspect_image(image)["RootFS"].get("Layers") or [])


def _word(text: str) -> str:
    return json.dumps(text).replace("$", "\\$")


def _check(said: str) -> None:
    for line in said.splitlines():
        if line.strip() and "error" in json.loads(line):
            import docker.errors

            raise docker.errors.APIError(json.loads(line)["error"])
