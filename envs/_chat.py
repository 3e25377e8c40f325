"""Chat models that environments call: judges and simulated users."""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from trajgym.envs._errors import EnvironmentFault
from trajgym.trajectory import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.trajectory import Message

__all__ = ["ChatModel", "Said"]


class Said(NamedTuple):
    """The answer of a model.

    Attributes:
        text: the text, without surrounding whitespace.
        policy: the model, as ``openai:<model>``.
        usage: token counts; None if the endpoint reports none.
        started_at: Unix time (s) of the call.
        seconds: duration of the call, including retries.
    """

    text: str
    policy: str
    usage: Usage | None = None
    started_at: float = 0.0
    seconds: float = 0.0


class ChatModel(BaseModel):
    """A model behind an OpenAI-compatible endpoint, as a setting of an environment.

    Attributes:
        base_url: the URL of the endpoint.
        model: the name of the model.
        api_key_env: environment variable with the API key; need not be set if the endpoint
            requires no key.
        temperature: sampling temperature.
        seed: sent with each call, so that endpoints that support it give the same answers again.
        max_tokens: maximum number of tokens of one answer.
        seconds: time limit (s) for one answer, including retries.
        tries: maximum number of tries.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str
    model: str
    api_key_env: str = "OPENAI_API_KEY"
    temperature: float = Field(default=0.0, ge=0)
    seed: int | None = None
    max_tokens: int = Field(default=1000, ge=1)
    seconds: float = Field(default=120.0, gt=0)
    # "attempts" is the earlier name; it is removed in the next version.
    tries: int = Field(default=5, ge=1, validation_alias=AliasChoices("tries", "attempts"))

    async def ask(self, messages: Sequence[Message], part: str) -> Said:
        """Return the model's answer to a conversation.

        Args:
            messages: the conversation.
            part: the part that calls the model, ``judge`` or ``user``; if there is no answer, the
                attempt ends ``failed:<part>``.

        Raises:
            EnvironmentFault: the call failed or timed out, or the answer is empty.
        """
        # Importing the SDK and loading certificates would block the event loop.
        openai = await asyncio.to_thread(importlib.import_module, "openai")
        client = await asyncio.to_thread(
            openai.AsyncOpenAI,
            base_url=self.base_url,
            api_key=os.environ.get(self.api_key_env) or "none",
            max_retries=self.tries - 1,
            timeout=self.seconds,
        )
        request: dict[str, Any] = {
            "model": self.model,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "messages": list(messages),
        }
        if self.seed is not None:
            request["seed"] = self.seed
        started_at, started = time.time(), time.monotonic()
        where = f"{part} model {self.base_url}"
        try:
            async with asyncio.timeout(self.seconds), client:
                answer = await client.chat.completions.create(**request)
        except (openai.OpenAIError, TimeoutError) as error:
            why = str(error) or f"no answer within {self.seconds:g} s"
            raise EnvironmentFault(part, f"{where}: {why}") from error
        text = ((answer.choices[0].message.content if answer.choices else None) or "").strip()
        if not text:
            raise EnvironmentFault(part, f"{where}: the answer is empty")
        used = answer.usage
        return Said(
            text=text,
            policy=f"openai:{self.model}",
            usage=used
            and Usage(prompt_tokens=used.prompt_tokens, completion_tokens=used.completion_tokens),
            started_at=started_at,
            seconds=time.monotonic() - started,
        )
