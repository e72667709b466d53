"""Aider: chat completions through LiteLLM, streamed. It has no tools: it edits the files that its replies quote."""

from slime_agl.harness.program import Program

PROGRAM = Program(
    name="aider",
    version="0.86.2",
    registry="pip",
    packages=("aider-chat==$version",),
    executable="aider",
    command=(
        'aider --model "openai/$AGL_MODEL" --message-file "$AGL_PROMPT_FILE" --yes-always --no-git --no-check-update '
        "--analytics-disable --no-show-model-warnings --no-show-release-notes --no-pretty --no-detect-urls "
        '--no-suggest-shell-commands --edit-format diff --map-tokens 0 --chat-history-file "$HOME/aider.md" '
        '--input-history-file "$HOME/aider.txt" $(find . -type f -size -64k -not -path "*/.*" | head -n 50)'
    ),
    env={
        "OPENAI_API_BASE": "$OPENAI_BASE_URL",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
    exits={1: "error", 2: "configuration"},
)
