"""Qwen Code: chat completions, streamed."""

from slime_agl.harness.program import Program, ShellTool

SETTINGS = """\
{
  "general": {"disableAutoUpdate": true, "disableUpdateNag": true, "enableAutoUpdate": false},
  "privacy": {"usageStatisticsEnabled": false},
  "telemetry": {"enabled": false},
  "tools": {"exclude": ["web_fetch", "web_search"]}
}
"""

PROGRAM = Program(
    name="qwen_code",
    version="0.24.4",
    registry="npm",
    packages=("@qwen-code/qwen-code@$version",),
    executable="qwen",
    command=(
        'qwen --yolo --auth-type openai --model "$AGL_MODEL" --output-format stream-json '
        '--chat-recording=false < "$AGL_PROMPT_FILE"'
    ),
    files={".qwen/settings.json": SETTINGS},
    env={"OPENAI_MODEL": "$AGL_MODEL", "NO_BROWSER": "1"},
    exits={
        41: "configuration",  # no credentials
        42: "configuration",  # bad input
        52: "configuration",  # bad settings
        53: "turn_limit",
        55: "budget",
        130: "cancelled",
    },
    shell=ShellTool(name="run_shell_command", more={"is_background": False}),
)
