"""A small agent: one shell tool, and the standard library. Runs inside the sandbox."""

import json
import os
import subprocess
import sys
import urllib.request

BASE, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
BASH = {"type": "function", "function": {"name": "bash", "parameters": PARAMETERS}}


def ask(messages):
    body = {"model": os.environ["TRAJGYM_MODEL"], "messages": messages, "tools": [BASH]}
    body |= {"temperature": 0.0}
    request = urllib.request.Request(
        f"{BASE}/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {KEY}"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["message"]


messages = [{"role": "user", "content": sys.stdin.read()}]
while True:
    message = ask(messages)
    messages.append(message)
    if not message.get("tool_calls"):
        break
    for call in message["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        text = done.stdout + done.stderr
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
print("finished:", messages[-1]["content"])
