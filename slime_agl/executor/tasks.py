"""Turn slime's Sample into the task of an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slime_agl.errors import ConfigError, closest
from slime_agl.executor.columns import Columns
from slime_agl.host import Sample, load_object

TaskBuilder = Callable[[Sample], object]


def task_builder(setting: str | Mapping[str, str] | None, columns: Columns | None = None) -> TaskBuilder:
    """The function for a setting of `agl.task`.

    None: the row's metadata and `columns`, with prompt and label, which take precedence. A mapping {field: source}:
    exactly these fields. A string: an import path of f(sample), which gets no columns.

    Raises:
        ConfigError: the import path does not name a callable.
    """
    if setting is None:
        return _Sources(columns)
    if isinstance(setting, str):
        function = load_object(setting)
        if not callable(function):
            raise ConfigError(
                f"agl.task names {setting}, which is {type(function).__name__}, not a function of a Sample"
            )
        return function
    return _Renamed(setting, _Sources(columns))


class _Sources:
    def __init__(self, columns: Columns | None) -> None:
        self._columns = columns

    def __call__(self, sample: Sample) -> dict[str, object]:
        metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
        columns = {} if self._columns is None else self._columns.of(sample)
        return {**metadata, **columns, "prompt": sample.prompt, "label": sample.label}


class _Renamed:
    def __init__(self, fields: Mapping[str, str], sources: _Sources) -> None:
        self._fields, self._sources = dict(fields), sources

    def __call__(self, sample: Sample) -> dict[str, object]:
        sources = self._sources(sample)
        task = {}
        for name, source in self._fields.items():
            if source not in sources:
                raise ConfigError(
                    f"agl.task maps {name!r} to {source!r}, which the row of sample {sample.index} does not have."
                    f"{closest(source, sources)} It has: {', '.join(sorted(sources))}"
                )
            task[name] = sources[source]
        return task
