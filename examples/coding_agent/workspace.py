"""A checkout in a temporary directory, and the agent's tools on it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandbox import run_python

TESTS = "tests.py"
TEST_SECONDS = 10.0


def tool(name: str, description: str, *fields: str) -> dict[str, Any]:
    """Define a tool whose arguments are all required strings."""
    properties = {field: {"type": "string"} for field in fields}
    schema = {"type": "object", "properties": properties, "required": list(fields)}
    return {"name": name, "description": description, "input_schema": schema}


READING = [
    tool("list_files", "List the files of the repository."),
    tool("read_file", "Show a file.", "path"),
]
EDITING = [
    tool("edit_file", "Replace a text, which must stand in the file exactly once.", "path", "old", "new"),
    tool("run_tests", "Run the tests."),
]


class Workspace:
    """Context manager: writes the files, and finally removes the directory."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files
        self._directory = tempfile.TemporaryDirectory(prefix="coding_agent-")
        self._root = Path(self._directory.name).resolve()

    def __enter__(self) -> Workspace:
        for path, text in self._files.items():
            self._path(path).write_text(text, encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()

    async def use(self, name: str, arguments: Mapping[str, str]) -> str:
        """Return a tool's output, or what is wrong with the call."""
        try:
            match name:
                case "list_files":
                    return "\n".join(sorted(path.name for path in self._root.iterdir()))
                case "read_file":
                    return self._path(arguments["path"]).read_text(encoding="utf-8")
                case "edit_file":
                    return self._edit(arguments["path"], arguments["old"], arguments["new"])
                case "run_tests":
                    ran = await run_python([TESTS], cwd=self._root, seconds=TEST_SECONDS)
                    return ran.output
        except (KeyError, OSError, TypeError, ValueError) as error:
            return f"error: {error!r}"
        return f"error: there is no tool {name}"

    async def passes(self) -> bool:
        """True if the original tests pass; the agent's changes to them do not count."""
        self._path(TESTS).write_text(self._files[TESTS], encoding="utf-8")
        ran = await run_python([TESTS], cwd=self._root, seconds=TEST_SECONDS)
        return ran.status == 0 and "all tests pass" in ran.output

    def _edit(self, path: str, old: str, new: str) -> str:
        text = self._path(path).read_text(encoding="utf-8")
        if (count := text.count(old)) != 1:
            raise ValueError(f"the text stands {count} times in {path}, it must stand there once")
        self._path(path).write_text(text.replace(old, new), encoding="utf-8")
        return f"edited {path}"

    def _path(self, path: str) -> Path:
        """Resolve a path in the repository. Raises ValueError if it leads outside."""
        full = (self._root / path).resolve()
        if not full.is_relative_to(self._root):
            raise ValueError(f"{path} is outside of the repository")
        return full
