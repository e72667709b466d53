"""OpenHands: chat completions through LiteLLM, not streamed: its command line has nobody to stream to.

It asks PyPI for its newest version and clones skills from GitHub at each start, and has no switch for either; it is
started with both replaced. Without a condenser in its settings it makes no summaries.
"""

from slime_agl.harness.program import Program, ShellTool

SETTINGS = """\
{
  "kind": "Agent",
  "llm": {
    "model": "openai/$AGL_MODEL",
    "base_url": "$OPENAI_BASE_URL",
    "api_key": "$OPENAI_API_KEY",
    "usage_id": "agent",
    "timeout": 3000,
    "native_tool_calling": true
  },
  "tools": [],
  "system_prompt_kwargs": {"cli_mode": true, "llm_security_analyzer": true},
  "condenser": null
}
"""

START = """\
import sys

import openhands_cli

openhands_cli.__version__ = "0.0.0"  # a version that it does not compare with PyPI's
import openhands.sdk.skills.skill as skill
from openhands_cli.entrypoint import main

skill.update_skills_repository = lambda *given, **more: None
with open(sys.argv.pop()) as prompt:
    sys.argv += ["--task", prompt.read()]
main()
"""

PROGRAM = Program(
    name="openhands",
    version="1.16.0",
    registry="pip",
    packages=("openhands==$version",),
    executable="openhands",
    python=("3.12",),
    command=(
        '"$(dirname "$(readlink -f "$(command -v openhands)")")/python" "$HOME/.openhands/start.py" --headless --json '
        '"$AGL_PROMPT_FILE" < /dev/null'
    ),
    files={".openhands/agent_settings.json": SETTINGS, ".openhands/start.py": START},
    env={
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it downloads a price list
        "OPENHANDS_SUPPRESS_BANNER": "1",
    },
    exits={1: "error", 2: "configuration"},
    shell=ShellTool(name="terminal", more={"security_risk": "LOW", "summary": "Run it"}),
)
