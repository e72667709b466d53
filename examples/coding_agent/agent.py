"""A coding agent in 40 lines, as a command: the model gets one tool, a shell. Needs Python only."""

import json
import os
import subprocess
import urllib.request

TURNS = 20
TOOL = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a shell command in the project's folder.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


def ask(messages):
    body = json.dumps({"model": os.environ["AGL_MODEL"], "messages": messages, "tools": [TOOL]})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers)) as answer:
        return json.load(answer)["choices"][0]["message"]


def run(call):
    try:
        command = json.loads(call["function"]["arguments"])["command"]
    except (KeyError, TypeError, ValueError) as error:
        return f"not a call of shell: {error!r}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    return f"{done.stdout}{done.stderr}"[-4000:] or f"status {done.returncode}, no output"


with open(os.environ["AGL_PROMPT_FILE"], encoding="utf-8") as file:
    messages = [{"role": "user", "content": file.read()}]
for _ in range(TURNS):
    message = ask(messages)
    messages.append(message)
    if not message.get("tool_calls"):
        break
    messages += [{"role": "tool", "tool_call_id": call["id"], "content": run(call)} for call in message["tool_calls"]]
