"""OpenCode: chat completions, streamed. A title is given, so that it asks the model for none."""

from slime_agl.harness.program import Program, ShellTool

CONFIG = """\
{
  "autoupdate": false,
  "share": "disabled",
  "model": "slime_agl/$AGL_MODEL",
  "small_model": "slime_agl/$AGL_MODEL",
  "tools": {"webfetch": false, "websearch": false},
  "permission": {"edit": "allow", "bash": "allow"},
  "provider": {
    "slime_agl": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "slime_agl",
      "options": {"baseURL": "$OPENAI_BASE_URL", "apiKey": "{env:OPENAI_API_KEY}", "timeout": false},
      "models": {"$AGL_MODEL": {"name": "$AGL_MODEL", "limit": {"context": $AGL_CONTEXT, "output": $AGL_OUTPUT}}}
    }
  }
}
"""

PROGRAM = Program(
    name="opencode",
    version="1.18.33",
    registry="npm",
    packages=("opencode-ai@$version",),
    executable="opencode",
    command='opencode run --model "slime_agl/$AGL_MODEL" --title task --format json --pure < "$AGL_PROMPT_FILE"',
    files={".config/opencode/opencode.json": CONFIG},
    env={
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    },
    exits={1: "error"},
    shell=ShellTool(name="bash", more={"description": "Run it"}),
)
