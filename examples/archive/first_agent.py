"""The first agent of the archive: one question, one answer. It runs inside the sandbox."""

import json
import os
import urllib.request
from pathlib import Path


def ask(messages):
    body = {"model": os.environ["TRAJGYM_MODEL"], "messages": messages}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def prompt(task):
    return task


def cleaned(text):
    return text


def accepted():
    return True


task = Path(os.environ["TRAJGYM_PROMPT_FILE"]).read_text()
messages = [{"role": "user", "content": prompt(task)}]
for _ in range(3):
    answer = ask(messages)
    Path("answer.txt").write_text(cleaned(answer))
    if accepted():
        break
    messages.append({"role": "assistant", "content": answer})
    messages.append({"role": "user", "content": "The check failed. Answer again."})
