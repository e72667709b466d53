"""Claude Code: Anthropic's Messages, streamed. It must reach no other host, so everything that calls one is off."""

from slime_agl.harness.program import Program, ShellTool

PROGRAM = Program(
    name="claude_code",
    version="2.1.330",
    registry="npm",
    packages=("@anthropic-ai/claude-code@$version",),
    executable="claude",
    command=(
        'claude --print --model "$AGL_MODEL" --output-format stream-json --verbose --dangerously-skip-permissions '
        '--disallowedTools WebSearch WebFetch < "$AGL_PROMPT_FILE"'
    ),
    env={
        # Updates, telemetry, error reports, feature flags, release notes and the calls that make titles.
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_TERMINAL_TITLE": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_COST_WARNINGS": "1",
        # Whatever model it would choose for side calls, subagents included.
        "ANTHROPIC_MODEL": "$AGL_MODEL",
        "ANTHROPIC_SMALL_FAST_MODEL": "$AGL_MODEL",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "$AGL_MODEL",
        "CLAUDE_CODE_SUBAGENT_MODEL": "$AGL_MODEL",
        # It refuses to skip permissions as root elsewhere.
        "IS_SANDBOX": "1",
        "API_TIMEOUT_MS": "3000000",
    },
    exits={1: "error"},
    shell=ShellTool(name="Bash", more={"description": "Run it"}),
)
