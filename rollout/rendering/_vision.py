"""A renderer for vision-language models, whose processor makes the placeholders of images."""

from __future__ import annotations

import copy
import re
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from trajgym.rollout._policy import PolicyRejected
from trajgym.rollout.rendering._image_spans import find_images
from trajgym.rollout.rendering._prepare import IMAGE
from trajgym.rollout.rendering._processor import (
    open_image,
    placeholder_ids,
    placeholder_of,
    processor_name,
)
from trajgym.rollout.rendering._template import HFCodec, TemplateRenderer
from trajgym.trajectory import blob_hashes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.rollout.rendering._tool_text import ToolFormat
    from trajgym.trajectory import ImageRef, IntArray, Message, ToolSchema

__all__ = ["VisionRenderer"]

_MARKED = re.compile(f"{IMAGE}([^{IMAGE}]*){IMAGE}")
_MOST_KEPT = 1024


class _Placeholders:
    """The placeholder ids of each image; cached, because each turn shows them again."""

    def __init__(self, processor: Any, placeholder: str) -> None:
        self._processor = processor
        self._placeholder = placeholder
        self._kept: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, blob: str, images: Mapping[str, bytes]) -> tuple[int, ...]:
        with self._lock:
            if blob in self._kept:
                self._kept.move_to_end(blob)
                return self._kept[blob]
        if blob not in images:
            raise PolicyRejected(
                f"the messages show image {blob[:12]!r}, whose bytes are not in request.images",
            )
        made = self._make(open_image(images[blob]))
        with self._lock:
            self._kept[blob] = made
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return made

    def _make(self, image: Any) -> tuple[int, ...]:
        # As a batch with one text, into which the processor writes the placeholders only.
        made = self._processor(
            text=[self._placeholder], images=[image], add_special_tokens=False, return_tensors=None
        )
        ids = made["input_ids"][0]
        return tuple(int(i) for i in ids)


class _VisionCodec(HFCodec):
    """A processor's tokenizer and template; images are represented by their hash between marks."""

    def __init__(self, processor: Any, options: Mapping[str, Any]) -> None:
        super().__init__(processor.tokenizer, {"chat_template": _template(processor), **options})
        self.images: Mapping[str, bytes] = {}
        self._as_parts = False
        self._as_parts = "QZX7" not in self.template([_asked("QZX7")], (), open_turn=True)
        self.placeholder = placeholder_of(processor)
        self._check_placeholder(processor)
        (self.placeholder_id,) = super().encode(self.placeholder)
        self._made = _Placeholders(processor, self.placeholder)

    def encode(self, text: str) -> list[int]:
        blobs = _MARKED.findall(text)
        if not blobs:
            return super().encode(text)
        # Encoded with one placeholder per image, as the processor does, and then expanded.
        ids: list[int] = []
        left = iter(blobs)
        for identity in super().encode(_MARKED.sub(lambda _: self.placeholder, text)):
            if identity == self.placeholder_id:
                ids.extend(self.ids_of(next(left)))
            else:
                ids.append(identity)
        return ids

    def ids_of(self, blob: str) -> tuple[int, ...]:
        return self._made.of(blob, self.images)

    def template(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, open_turn: bool
    ) -> str:
        blobs = [b for m in messages for b in _MARKED.findall(m["content"])]
        text = super().template([self._parts(m) for m in messages], tools, open_turn=open_turn)
        if not blobs:
            return text
        pieces = text.split(self.placeholder)
        if len(pieces) != len(blobs) + 1:
            raise PolicyRejected(
                f"the chat template shows {len(pieces) - 1} of {len(blobs)} images: it takes none "
                f"in messages of some role ({sorted({m['role'] for m in messages})})",
            )
        marked = [f"{IMAGE}{blob}{IMAGE}{piece}" for blob, piece in zip(blobs, pieces[1:])]  # noqa: B905 - checked
        return "".join([pieces[0], *marked])

    def _parts(self, message: Message) -> Message:
        """Return the message with its images and texts as parts for the template."""
        content = message["content"]
        if not self._as_parts and IMAGE not in content:
            return message
        texts = _MARKED.split(content)  # text, hash, text, ...
        parts: list[dict[str, Any]] = []
        for place, text in enumerate(texts):
            if place % 2:
                parts.append({"type": "image"})
            elif text:
                parts.append({"type": "text", "text": text})
        return {**message, "content": parts or [{"type": "text", "text": ""}]}

    def _check_placeholder(self, processor: Any) -> None:
        bare = HFCodec.template(self, [_asked_parts({"type": "image"})], (), open_turn=True)
        if bare.count(self.placeholder) != 1 or len(super().encode(self.placeholder)) != 1:
            raise PolicyRejected(
                f"the template of {type(processor).__name__} writes an image as {bare!r:.200}, "
                f"which must contain {self.placeholder!r} once as a special token",
            )


class VisionRenderer(TemplateRenderer):
    """Renders text and images for a transformers vision-language model.

    The ids are those that the processor makes from the whole conversation: the encoded text of its
    template, with placeholders for each image. A span of placeholders is one image
    (:class:`~trajgym.trajectory.ImageRef`). Prompts are extended as with text; a prompt with other
    images at the same places is a different prompt, even if the placeholder ids are equal.

    Args:
        processor: a transformers processor with a tokenizer, an image processor and a chat
            template whose images are one special token each (Qwen-VL, SmolVLM, Idefics 3, ...).
        tool_format: see :class:`TemplateRenderer`.
        markers: see :class:`TemplateRenderer`.
        template_options: see :class:`TemplateRenderer`.
        stop_tokens: see :class:`TemplateRenderer`.

    Raises:
        PolicyRejected: there is no chat template, or it does not show images.
        InvalidInput: the processor does not support images.
    """

    _codec: _VisionCodec

    def __init__(
        self,
        processor: Any,
        *,
        tool_format: ToolFormat | None = None,
        markers: tuple[str, str] | None = None,
        template_options: Mapping[str, Any] | None = None,
        stop_tokens: Sequence[str] = (),
    ) -> None:
        codec = _VisionCodec(processor, template_options or {})
        self._build(codec, _template(processor), tool_format, markers, stop_tokens, images=True)
        self.processor = processor
        self.processor_name = processor_name(processor)
        self.placeholder_ids = placeholder_ids(processor)

    def showing(self, images: Mapping[str, bytes]) -> VisionRenderer:
        """See :meth:`Renderer.showing`."""
        bound = copy.copy(self)
        bound._codec = copy.copy(self._codec)
        bound._codec.images = images
        return bound

    def images_in(
        self, prompt_ids: IntArray | Sequence[int], messages: Sequence[Message]
    ) -> tuple[ImageRef, ...]:
        """See :meth:`Renderer.images_in`."""
        return find_images(
            prompt_ids,  # type: ignore[arg-type]
            blob_hashes(messages),
            ids_of=self._codec.ids_of,
            placeholder_ids=self.placeholder_ids,
            processor=self.processor_name,
        )


def _template(processor: Any) -> str:
    template = getattr(processor, "chat_template", None) or getattr(
        processor.tokenizer, "chat_template", None
    )
    if isinstance(template, dict):
        template = template.get("default")
    if not template:
        raise PolicyRejected(
            f"{type(processor).__name__} has no chat template: use an instruct model's, or set "
            "processor.chat_template",
        )
    return str(template)


def _asked(text: str) -> Message:
    return {"role": "user", "content": text}


def _asked_parts(*parts: dict[str, Any]) -> Message:
    return {"role": "user", "content": list(parts)}
