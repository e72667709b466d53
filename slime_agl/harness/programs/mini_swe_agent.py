"""mini-swe-agent: chat completions through LiteLLM, not streamed; one tool, `bash`."""

from slime_agl.harness.program import Program, ShellTool

PROGRAM = Program(
    name="mini_swe_agent",
    version="2.4.6",
    registry="pip",
    packages=("mini-swe-agent==$version", "mcp"),  # its LiteLLM imports mcp, which it does not ask for
    executable="mini",
    command=(
        'mini --yolo --exit-immediately --model "openai/$AGL_MODEL" --output "$HOME/trajectory.json" '
        '--task "$(cat "$AGL_PROMPT_FILE")"'
    ),
    env={
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        "OPENAI_API_BASE": "$OPENAI_BASE_URL",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it downloads a price list
    },
    exits={1: "error", 2: "configuration"},
    shell=ShellTool(name="bash", last="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
)
