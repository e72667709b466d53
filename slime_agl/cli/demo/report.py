"""Print and write the results of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slime_agl.chat.template.loader import load_tokenizer
from slime_agl.cli.visible import safe_text, visible
from slime_agl.cli.workers import told
from slime_agl.local.train.driver import EvalResult, StepResult

TEACHER_TOLERANCE = 1e-4
TRAINED, MASKED = "bold black on green", "black on bright_black"
# Heading -> (figure, format).
COLUMNS = {
    "reward": ("reward", ".3f"),
    "execs": ("executions", ""),
    "turns": ("turns", ".2f"),
    "segs": ("segments", ".2f"),
    "trained": ("trained", ""),
    "masked": ("masked", ""),
    "tok/s": ("tokens_per_second", ".0f"),
    "gw ms": ("gateway_ms", ".2f"),
    "Δlogp": ("teacher_difference", ".1e"),
}
LEGEND = (
    "execs = executions; turns and segs are per execution; trained and masked are response tokens; "
    "gw ms = gateway time per turn; Δlogp = max |rollout - teacher forced|"
)
# Fields of a Sample that samples.jsonl keeps.
FIELDS = (
    "group_index index rollout_id prompt tokens response response_length label reward loss_mask rollout_log_probs "
    "weight_versions remove_sample metadata session_id non_generation_time"
).split()


@dataclass(frozen=True, slots=True)
class StepChecks:
    """checked: trained tokens found in the engine's own record. in_flight: requests left at the engine.

    teacher: max |rollout logprob - teacher-forced logprob|, to stay below TEACHER_TOLERANCE.
    """

    checked: int
    in_flight: int
    teacher: float

    @property
    def held(self) -> bool:
        return self.in_flight == 0 and self.teacher < TEACHER_TOLERANCE


class DemoReport:
    """Collects a demo; the table and a coloured sample go to stdout, everything to `out` if given."""

    def __init__(self, out: Path | None) -> None:
        self.console = Console()
        self._out = out
        self._rows: list[dict[str, Any]] = []
        self._samples: list[dict[str, object]] = []
        self._example: Any = None
        self._checkpoint = ""
        self.all_held = True

    def started(self, checkpoint: Path, url: str, workers: int | None) -> None:
        self._checkpoint = str(checkpoint)
        named = Text("model ") + safe_text(checkpoint.name, "bold")
        where = f", engine on CPU behind the real sglang-router at {url}{told(workers)}"
        self.console.print(named + safe_text(where, "default"))

    def step(self, result: StepResult, checks: StepChecks) -> None:
        rewards = [_execution_reward(entry) for group in result.groups for entry in group]
        self._add(f"train {result.rollout_id}", result.samples, rewards, result, "rollout", checks)
        self._example = max([*filter(None, [self._example]), *result.samples], key=_instructive)

    def evaluation(self, entry: dict[str, list[Any]], result: EvalResult, checks: StepChecks) -> None:
        self._add("eval", entry["samples"], entry["rewards"], result, "eval", checks)

    def _add(
        self,
        title: str,
        samples: list[Any],
        rewards: list[float],
        result: StepResult | EvalResult,
        prefix: str,
        checks: StepChecks,
    ) -> None:
        self.all_held &= checks.held
        metrics = result.metrics
        trained = sum(sum(sample.loss_mask) for sample in samples)
        row = {
            "step": title,
            "reward": sum(rewards) / len(rewards),
            "executions": metrics[f"{prefix}/agl/executions"],
            "turns": metrics[f"{prefix}/agl/turns_per_execution"],
            "segments": metrics[f"{prefix}/agl/segments_per_execution"],
            "trained": trained,
            "masked": sum(sample.response_length for sample in samples) - trained,
            "tokens_per_second": metrics.get(f"{prefix}/agl/sampled_tokens", 0) / result.seconds,
            "gateway_ms": metrics.get(f"{prefix}/agl/gateway_ms_per_turn", 0.0),
            "seconds": result.seconds,
            "checked_tokens": checks.checked,
            "teacher_difference": checks.teacher,
            "held": checks.held,
        }
        self._rows.append(row | {"metrics": metrics})
        self._samples += [{"step": title, **_sample_row(sample)} for sample in samples]

    def finish(self, temperature: float) -> None:
        """Print the table, one sample and the verdict; write the files."""
        self.console.print(self._table())
        self.console.print(LEGEND, style="dim")
        if self._example is not None:
            self._print_sample(self._example)
        worst = max((row["teacher_difference"] for row in self._rows), default=0.0)
        checked = sum(row["checked_tokens"] for row in self._rows)
        verdict = "[bold green]all invariants held[/]" if self.all_held else "[bold red]an invariant is broken[/]"
        self.console.print(
            f"{verdict}: {checked} trained tokens are the engine's own, none was re-encoded; "
            f"max |rollout - teacher-forced logprob| = {worst:.1e} (temperature {temperature})"
        )
        if self._out is not None:
            self._write(self._out)

    def broken(self, error: Exception) -> None:
        told = Text("invariant broken", "bold red") + Text(f": {visible(str(error))}", "default")
        self.console.print(told, soft_wrap=True)

    def _table(self) -> Table:
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("step", no_wrap=True)
        for name in COLUMNS:
            table.add_column(name, justify="right", no_wrap=True)
        for row in self._rows:
            table.add_row(safe_text(row["step"]), *(format(row[key], spec) for key, spec in COLUMNS.values()))
        return table

    def _print_sample(self, sample: Any) -> None:
        tokenizer = load_tokenizer(self._checkpoint)
        start = len(sample.tokens) - sample.response_length
        text = Text()
        for at, token in enumerate(sample.tokens[start:]):
            text.append(visible(tokenizer.decode([token])), style=TRAINED if sample.loss_mask[at] else MASKED)
        turns = sample.metadata["agl"]["turns"]
        facts = f"index {sample.index}, rollout_id {sample.rollout_id}, {turns} turns, reward {sample.reward}"
        self.console.print(
            safe_text(f"\none Sample ({facts}): "),
            Text(" trained ", style=TRAINED),
            Text(" masked ", style=MASKED),
            f"after {start} prompt tokens",
        )
        self.console.print(text, "\n")

    def _write(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        lines = b"".join(orjson.dumps(row, option=orjson.OPT_NON_STR_KEYS) + b"\n" for row in self._samples)
        (out / "samples.jsonl").write_bytes(lines)
        summary = {"all_held": self.all_held, "steps": self._rows}
        (out / "metrics.json").write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
        self.console.print(
            safe_text(f"wrote {out / 'samples.jsonl'} ({len(self._samples)} samples) and {out / 'metrics.json'}")
        )


def _instructive(sample: Any) -> tuple[bool, float]:
    """Sort key for the printed Sample: several turns first, then the reward."""
    return not sample.remove_sample and sample.metadata["agl"]["turns"] > 1, sample.reward


def _execution_reward(entry: Any) -> float:
    """The reward of an execution: that of its Sample, or of the first of several."""
    return (entry[0] if isinstance(entry, list) else entry).reward


def _sample_row(sample: Any) -> dict[str, object]:
    row = {name: getattr(sample, name) for name in FIELDS}
    return row | {"status": sample.status.value, "prefix_cache_info": sample.prefix_cache_info.to_dict()}
