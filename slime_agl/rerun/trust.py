"""List the code and files that a record names before any is run or loaded; use them only if the user allows it."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slime_agl.errors import RecordError

if TYPE_CHECKING:
    from slime_agl.record.run import Record, RecordedExecution
    from slime_agl.rerun.run import Pair

SMALL_FILE = 1 << 24


@dataclass(frozen=True, slots=True)
class NamedByRecord:
    """what: its role in a rerun. name: as recorded. found: the file, or the consequence. advice: the alternative."""

    what: str
    name: str
    found: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}: {self.name} ({self.found})"


def named_by_records(
    pairs: Sequence[Pair], *, given: Mapping[str, object], options: Mapping[str, object]
) -> list[NamedByRecord]:
    """List the names in the records that the user has not replaced, each once.

    given: settings from the user's own file. options: `agent`, `reward`, `model` of the command line, None if absent.
    """
    found = [one for record, execution in pairs for one in _named(record, execution, given, options)]
    return list(dict.fromkeys(found))


def require_trust(named: Sequence[NamedByRecord]) -> None:
    """Raises RecordError if a record names anything, listing all that must be trusted or replaced."""
    if named:
        advice = ", ".join(dict.fromkeys(one.advice for one in named))
        raise RecordError(
            f"the record names {len(named)} things for this machine to run or load that you did not name: "
            f"{'; '.join(map(str, named))}. "
            f"Give --trust if you know where the record comes from, or name your own: {advice}"
        )


def look_here(paths: Sequence[str]) -> None:
    """Put the working directory first on the import path if it holds a module that one of these import paths names.

    Otherwise it stays off the path, so that no file in it shadows an installed package.
    """
    here = Path.cwd()
    tops = {path.replace(":", ".").partition(".")[0] for path in paths}
    if any((here / top).is_dir() or (here / f"{top}.py").is_file() for top in tops if top.isidentifier()):
        sys.path.insert(0, str(here))


def file_of(path: str) -> str:
    """Find the file that an import path would run, without running anything."""
    parts, places = path.replace(":", ".").split("."), [str(Path.cwd()), *sys.path]
    found, search = None, places
    for at in range(1, len(parts) + 1):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:at]), search)
        if spec is None:
            break
        found = spec.origin or next(iter(spec.submodule_search_locations or ()), None)
        if spec.submodule_search_locations is None:
            break
        search = list(spec.submodule_search_locations)
    return found or "not found on this machine"


def own_code(checkpoint: str) -> str:
    """Describe what loading a checkpoint would run or download; '' for a local one without its own code."""
    place = Path(checkpoint)
    if not place.exists():
        return "not a local directory: it would be downloaded, and its code run"
    if not place.is_dir():
        return ""
    for file in sorted(place.glob("*.json")):
        if file.is_file() and file.stat().st_size < SMALL_FILE and b'"auto_map"' in file.read_bytes():
            return f"{file.resolve()} names code of its own"
    return ""


def _named(
    record: Record, execution: RecordedExecution, given: Mapping[str, object], options: Mapping[str, object]
) -> Iterator[NamedByRecord]:
    header, own = record.header, given.get("agl")
    own = own if isinstance(own, Mapping) else {}
    section = header.get("agl") or {"agent": header.get("agent")}
    arguments = {name: value for name, value in (header.get("arguments") or {}).items() if name not in given}
    for name, advice in (("agent", "--agent"), ("reward", "--reward"), ("task", "agl.task in --config")):
        path = section.get(name)
        if isinstance(path, str) and path and name not in own and options.get(name) is None:
            yield NamedByRecord(name, path, file_of(path), advice)
    if isinstance(section.get("agent"), Mapping) and "agent" not in own and options.get("agent") is None:
        yield NamedByRecord("agent", str(section["agent"]), "a program, run in a sandbox", "agl.agent in --config")
    row_path = (execution.row or {}).get("custom_rm_path")
    for path in (arguments.get("custom_rm_path"), row_path):
        if isinstance(path, str):
            yield NamedByRecord("reward function", path, file_of(path), "custom_rm_path in --config")
    if template := arguments.get("chat_template_path"):
        place = Path(str(template))
        found = str(place.resolve()) if place.exists() else "not found on this machine"
        yield NamedByRecord("chat template", str(template), found, "chat_template_path in --config")
    if routers := arguments.get("sglang_model_routers"):
        yield NamedByRecord(
            "other models", str(routers), "the agent would call them", "sglang_model_routers in --config"
        )
    checkpoint = str(header.get("checkpoint"))
    # A missing directory is reported later; only a name that is not a path would be looked up elsewhere.
    if options.get("model") is None and not (Path(checkpoint).is_absolute() and not Path(checkpoint).exists()):
        if code := own_code(checkpoint):
            yield NamedByRecord("checkpoint", checkpoint, code, "--model")
