"""A renderer for Hugging Face tokenizers with a chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.rollout._policy import PolicyRejected
from trajgym.rollout.rendering._parsing import Markers
from trajgym.rollout.rendering._text import ChatCodec, TextRenderer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.rollout.rendering._tool_text import ToolFormat
    from trajgym.trajectory import Message, ToolSchema

__all__ = ["HFCodec", "TemplateRenderer"]

_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "qzx7_tool",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {}},
    },
}
_TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>")


class HFCodec(ChatCodec):
    """A transformers tokenizer and its chat template.

    Args:
        tokenizer: the tokenizer.
        options: passed to the template.
    """

    def __init__(self, tokenizer: Any, options: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._options = dict(options)
        added = tokenizer.added_tokens_decoder.values()
        self.specials = tuple(sorted((str(t) for t in added if len(str(t)) > 1), key=len)[::-1])
        eos = tokenizer.eos_token_id
        self.eos_ids = () if eos is None else (int(eos),)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []

    def decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def template(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, open_turn: bool
    ) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                add_generation_prompt=open_turn,
                tokenize=False,
                **self._options,
            )
        except Exception as error:  # boundary: foreign template code, any error of it is a refusal
            raise PolicyRejected(
                f"the chat template of {self._tokenizer.name_or_path or 'the tokenizer'!r} refuses "
                f"the messages {[m['role'] for m in messages]}: {type(error).__name__}: {error}",
            ) from error
        return text


class TemplateRenderer(TextRenderer):
    """Renders with a tokenizer's own chat template.

    The capabilities of the template are found by trying it: whether it supports tools (in a dialect
    that can be parsed), reasoning, and a system message. If not, tools are described in the system
    prompt, reasoning is inserted into the content, and the system prompt is prepended to the first
    user message.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        tool_format: the dialect of tool calls; detected from the template if None.
        markers: the markers of reasoning; detected from the template if None.
        template_options: passed to the template (``{"enable_thinking": False}``).
        stop_tokens: texts of further special tokens that end a response.

    Raises:
        PolicyRejected: there is no chat template, or it refuses a user message.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        tool_format: ToolFormat | None = None,
        markers: tuple[str, str] | None = None,
        template_options: Mapping[str, Any] | None = None,
        stop_tokens: Sequence[str] = (),
    ) -> None:
        codec = HFCodec(tokenizer, template_options or {})
        self._build(codec, _template_text(tokenizer), tool_format, markers, stop_tokens)

    def _build(
        self,
        codec: HFCodec,
        source: str,
        tool_format: ToolFormat | None,
        markers: tuple[str, str] | None,
        stop_tokens: Sequence[str],
        *,
        images: bool = False,
    ) -> None:
        """Detect the template's capabilities, and initialise."""
        found = tool_format or _dialect(source)
        thinks = Markers(*markers) if markers else _markers(source, codec)
        ends = [end for end in (*_TURN_ENDS, *stop_tokens) if end in codec.specials]
        TextRenderer.__init__(
            self,
            codec,
            tool_format=found or "hermes",
            native_tools=found is not None and _takes_tools(codec),
            markers=thinks,
            native_reasoning="reasoning_content" in source,
            system_role=_takes_system(codec),
            stop_tokens=ends,
            images=images,
        )


def _template_text(tokenizer: Any) -> str:
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = "\n".join(str(part) for part in template.values())
    if not template:
        raise PolicyRejected(
            "the tokenizer has no chat template: use an instruct model's, or set "
            "tokenizer.chat_template",
        )
    return str(template)


def _dialect(source: str) -> ToolFormat | None:
    """Return the dialect in which a template writes calls, or None if it is not supported."""
    if "[TOOL_CALLS]" in source:
        return "mistral"
    if "<tool_call>" in source and "<function=" not in source and "<arg_key>" not in source:
        return "hermes"
    if '"parameters": ' in source and ("<|python_tag|>" in source or "ipython" in source):
        return "llama"
    return None


def _markers(source: str, codec: HFCodec) -> Markers | None:
    known = "</think>" in source or "</think>" in codec.specials
    return Markers("<think>", "</think>") if known else None


def _takes_tools(codec: HFCodec) -> bool:
    try:
        text = codec.template([{"role": "user", "content": "a"}], [_PROBE_TOOL], open_turn=True)
    except PolicyRejected:
        return False
    return "qzx7_tool" in text


def _takes_system(codec: HFCodec) -> bool:
    messages = [{"role": "system", "content": "QZX7"}, {"role": "user", "content": "a"}]
    try:
        return "QZX7" in codec.template(messages, (), open_turn=True)
    except PolicyRejected:
        return False
