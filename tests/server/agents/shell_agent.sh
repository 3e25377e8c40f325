#!/bin/sh
# A shell script as an agent: it runs the shell lines that the model answers with, and reports what
# they printed.
set -eu
say='
import json, os, pathlib, sys, urllib.request

talk = pathlib.Path(os.environ["TRAJGYM_AGENT_DIR"], "talk.json")
messages = json.loads(talk.read_text()) if talk.exists() else []
messages.append({"role": "user", "content": sys.stdin.read()})
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"model": os.environ["TRAJGYM_MODEL"], "messages": messages}).encode(),
    {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
talk.write_text(json.dumps([*messages, message]))
print(message["content"])
'
ask() { python3 -c "$say"; }

lines=$TRAJGYM_AGENT_DIR/lines.sh
ask <"$TRAJGYM_PROMPT_FILE" >"$lines"
sh "$lines" 2>&1 | ask
