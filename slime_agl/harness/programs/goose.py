"""Goose: chat completions, streamed. npm has the program itself for Linux on x86-64 only.

Before each call it moves a message with the time and the share of the context that is used, which changes what the
model has seen already; it leaves that out for a model whose context is below 32,000 tokens.
"""

from slime_agl.harness.program import Program, ShellTool

PROGRAM = Program(
    name="goose",
    version="1.52.0",  # 1.37.0 splits an answer with a text and a call into two messages, which is another conversation
    registry="npm",
    packages=("@aaif/goose-binary-linux-x64@$version",),
    executable="goose-binary-linux-x64",
    command=(
        "goose-binary-linux-x64 run --no-session --no-profile --with-builtin developer --output-format stream-json "
        '--instructions "$AGL_PROMPT_FILE" < /dev/null'
    ),
    env={
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": "$AGL_MODEL",
        "OPENAI_HOST": "$ANTHROPIC_BASE_URL",  # it adds /v1/chat/completions
        "OPENAI_TIMEOUT": "3000",
        "GOOSE_STREAM_TIMEOUT": "3000",
        "GOOSE_MODE": "auto",  # asks nobody
        "GOOSE_DISABLE_KEYRING": "1",
        "GOOSE_TELEMETRY_ENABLED": "false",
        # The calls that make titles and those that shorten the conversation, and the message that moves.
        "GOOSE_DISABLE_SESSION_NAMING": "true",
        "GOOSE_DISABLE_TOOL_CALL_SUMMARY": "true",
        "GOOSE_TOOL_PAIR_SUMMARIZATION": "false",
        "GOOSE_AUTO_COMPACT_THRESHOLD": "0",
        "GOOSE_CONTEXT_LIMIT": "31999",
    },
    exits={1: "error", 2: "configuration"},
    shell=ShellTool(name="shell"),
)
