"""What the demo prints and writes."""

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
from slime_agl.cli.visible import shown, visible
from slime_agl.local.train.driver import EvalResult, StepResult

TRAINED, MASKED = "bold black on green", "black on bright_black"


@dataclass(frozen=True, slots=True)
class StepChecks:
    """checked: trained tokens found in the engine's own record. in_flight: requests left at the engine.

    teacher: largest |rollout logprob - teacher-forced logprob|; it must stay below tolerance.
    """

    checked: int
    in_flight: int
    teacher: float
    tolerance: float

    @property
    def held(self) -> bool:
        return self.in_flight == 0 and self.teacher < self.tolerance


class Report:
    """Collects a demo run; the table and the coloured sample go to stdout, everything to `out` when given."""

    def __init__(self, out: Path | None) -> None:
        self.console = Console()
        self._out = out
        self._rows: list[dict[str, Any]] = []
        self._samples: list[dict[str, Any]] = []
        self._shown: Any = None
        self._checkpoint = ""
        self.all_held = True

    def started(self, checkpoint: Path, url: str) -> None:
        self._checkpoint = str(checkpoint)
        named = Text("model ") + shown(checkpoint.name, "bold")
        self.console.print(named + shown(f", engine on CPU behind the real sglang-router at {url}", "default"))

    def step(self, result: StepResult, checks: StepChecks) -> None:
        rewards = [execution_reward(entry) for group in result.groups for entry in group]
        self._add(
            f"train {result.rollout_id}", result.samples, rewards, result.metrics, "rollout", result.seconds, checks
        )
        self._shown = max([*filter(None, [self._shown]), *result.samples], key=_telling)

    def evaluation(self, name: str, entry: dict[str, list[Any]], result: EvalResult, checks: StepChecks) -> None:
        self._add("eval", entry["samples"], entry["rewards"], result.metrics, "eval", result.seconds, checks)

    def _add(
        self,
        title: str,
        samples: list[Any],
        rewards: list[float],
        metrics: dict[str, Any],
        prefix: str,
        seconds: float,
        checks: StepChecks,
    ) -> None:
        self.all_held &= checks.held
        trained = sum(sum(sample.loss_mask) for sample in samples)
        masked = sum(sample.response_length for sample in samples) - trained
        row = {
            "step": title,
            "reward": sum(rewards) / len(rewards),
            "executions": metrics[f"{prefix}/agl/executions"],
            "turns": metrics[f"{prefix}/agl/turns_per_execution"],
            "segments": metrics[f"{prefix}/agl/segments_per_execution"],
            "trained": trained,
            "masked": masked,
            "tokens_per_second": metrics.get(f"{prefix}/agl/sampled_tokens", 0) / seconds,
            "gateway_ms": metrics.get(f"{prefix}/agl/gateway_ms_per_turn", 0.0),
            "seconds": seconds,
            "checked_tokens": checks.checked,
            "teacher_difference": checks.teacher,
            "held": checks.held,
        }
        self._rows.append(row | {"metrics": metrics})
        self._samples += [{"step": title, **_sample_row(sample)} for sample in samples]

    def finish(self, temperature: float) -> None:
        """Print the table, one sample and the verdict; write the files."""
        self.console.print(self._table())
        self.console.print(
            "runs: executions; turns, segs: a run; trained, masked: response tokens;\n"
            "gw ms: a turn's time in the gateway; Δlogp: max |rollout - teacher forced|",
            style="dim",
        )
        if self._shown is not None:
            self._print_sample(self._shown)
        worst = max((row["teacher_difference"] for row in self._rows), default=0.0)
        checked = sum(row["checked_tokens"] for row in self._rows)
        verdict = "[bold green]all invariants held[/]" if self.all_held else "[bold red]an invariant did not hold[/]"
        self.console.print(
            f"{verdict}: {checked} trained tokens are the engine's own, none was encoded again; "
            f"max |rollout - teacher-forced logprob| = {worst:.1e} (temperature {temperature})"
        )
        if self._out is not None:
            self._write(self._out)

    def broken(self, error: Exception) -> None:
        self.console.print(
            Text("invariant broken", "bold red") + Text(f": {visible(str(error))}", "default"), soft_wrap=True
        )

    def _table(self) -> Table:
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("step", no_wrap=True)
        for name in ("reward", "runs", "turns", "segs", "trained", "masked", "tok/s", "gw ms", "Δlogp"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in self._rows:
            table.add_row(
                shown(row["step"]),
                f"{row['reward']:.3f}",
                str(row["executions"]),
                f"{row['turns']:.2f}",
                f"{row['segments']:.2f}",
                str(row["trained"]),
                str(row["masked"]),
                f"{row['tokens_per_second']:.0f}",
                f"{row['gateway_ms']:.2f}",
                f"{row['teacher_difference']:.1e}",
            )
        return table

    def _print_sample(self, sample: Any) -> None:
        tokenizer = load_tokenizer(self._checkpoint)
        start = len(sample.tokens) - sample.response_length
        text = Text()
        for at, token in enumerate(sample.tokens[start:]):
            text.append(visible(tokenizer.decode([token])), style=TRAINED if sample.loss_mask[at] else MASKED)
        where = sample.metadata["agl"]
        self.console.print(
            shown(
                f"\none Sample (index {sample.index}, rollout_id {sample.rollout_id}, {where['turns']} turns, reward {sample.reward}): "
            ),
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
            shown(f"wrote {out / 'samples.jsonl'} ({len(self._samples)} samples) and {out / 'metrics.json'}")
        )


def _telling(sample: Any) -> tuple[bool, float]:
    """How much a Sample shows: several turns first, then its reward."""
    return not sample.remove_sample and sample.metadata["agl"]["turns"] > 1, sample.reward


def execution_reward(entry: Any) -> float:
    """The reward of an execution: of its Sample, or of the first of its Samples."""
    return (entry[0] if isinstance(entry, list) else entry).reward


def _sample_row(sample: Any) -> dict[str, Any]:
    names = (
        "group_index",
        "index",
        "rollout_id",
        "prompt",
        "tokens",
        "response",
        "response_length",
        "label",
        "reward",
        "loss_mask",
        "rollout_log_probs",
        "weight_versions",
        "remove_sample",
        "metadata",
        "session_id",
        "non_generation_time",
    )
    row = {name: getattr(sample, name) for name in names}
    return row | {"status": sample.status.value, "prefix_cache_info": sample.prefix_cache_info.to_dict()}
