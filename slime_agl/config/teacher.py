"""The values of `agl.teacher`."""

from __future__ import annotations

from collections.abc import Mapping

from slime_agl.errors import ConfigError

Teacher = str | Mapping[str, str] | None


def is_url(teacher: str) -> bool:
    return teacher.startswith(("http://", "https://"))


def teachers(value: Teacher) -> dict[str, str]:
    """URL or model name by the agent or source that it teaches; '' is everybody."""
    if value is None:
        return {}
    return {"": value} if isinstance(value, str) else dict(value)


def check_teacher(value: Teacher, seconds: float) -> None:
    """Raise ConfigError for a mapping without entries, an empty name, or a deadline that is not above 0."""
    if value is not None and not teachers(value):
        raise ConfigError("agl.teacher is an empty mapping; name a teacher for an agent or a source, or leave it out")
    for whom, teacher in teachers(value).items():
        if not teacher.strip() or ("/" in teacher and not is_url(teacher)):
            where = f"agl.teacher.{whom}" if whom else "agl.teacher"
            raise ConfigError(
                f"{where} is {teacher!r}, it must be a URL that starts with http:// or https://, or the name of a "
                "frozen model of --sglang-config"
            )
    if seconds <= 0:
        raise ConfigError(f"agl.teacher_seconds is {seconds:g}, it must be above 0")
