"""Codex: OpenAI's Responses, streamed. Its own sandbox is off: it runs in ours."""

from slime_agl.harness.program import Program, ShellTool

CONFIG = """\
model = "$AGL_MODEL"
model_provider = "slime_agl"
check_for_update_on_startup = false
web_search = "disabled"
hide_agent_reasoning = true

[model_providers.slime_agl]
name = "slime_agl"
base_url = "$OPENAI_BASE_URL"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
stream_idle_timeout_ms = 3000000

[analytics]
enabled = false

[otel]
exporter = "none"
"""

PROGRAM = Program(
    name="codex",
    version="0.169.0",
    registry="npm",
    packages=("@openai/codex@$version",),
    executable="codex",
    command=(
        "codex exec --dangerously-bypass-approvals-and-sandbox --skip-git-repo-check --json --color never - "
        '< "$AGL_PROMPT_FILE"'
    ),
    files={".codex/config.toml": CONFIG},
    exits={1: "error", 2: "configuration"},
    shell=ShellTool(name="exec_command", command="cmd"),
)
