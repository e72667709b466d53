"""A recorded run made by hand: conversations with tools, subagents, retries and failures, in any size."""

from __future__ import annotations

import random
import re
from array import array
from pathlib import Path

from slime_agl.record.run import RecordedExecution, RecordedSample, RecordWriter
from slime_agl.record.said import Said
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.segments import segments
from slime_agl.trace.turn import Sampled, Turn

WORDS = """the a report says that total of all orders in march was higher than expected because two large customers paid
late and one shipment had been counted twice so we subtract it look at table row column value result check again sum
average discount price number therefore answer is next step compute call tool with query index page read file line error
while parsing token expected found retry then compare both numbers they differ by three""".split()
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {"type": "object", "properties": {key: {"type": "string"}}},
        },
    }
    for name, text, key in (
        ("search", "Search the documents.", "query"),
        ("calculator", "Evaluate an arithmetic expression.", "expression"),
    )
]
PIECE = re.compile(r"<\|[a-z_]+\|>|\s?\w+|\s|[^\w\s]")
GROUP = 8
HEADER = {
    "agent": "shop.agent:answer",
    "model": "policy",
    "checkpoint": "",
    "stop_ids": [],
    "trainer": {"advantage_estimator": "grpo", "rewards_normalization": True, "grpo_std_normalization": True},
}


class Vocabulary:
    """Every word is a token, which keeps its first id."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._texts: list[bytes] = []

    def ids(self, text: str) -> array:
        return array("i", [self._id(piece) for piece in PIECE.findall(text)])

    def token_bytes(self, ids: list[int]) -> list[bytes]:
        return [self._texts[i] for i in ids]

    def _id(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._texts)
            self._texts.append(piece.encode())
        return self._ids[piece]


def write_run(folder: Path, *, executions: int, tokens: int, steps: int = 4, seed: int = 0) -> None:
    """Write one file per step. tokens: of all executions, about a third of them sampled."""
    luck, vocabulary = random.Random(seed), Vocabulary()
    each = max(40, tokens // max(1, executions))
    made = 0
    for step in range(steps):
        header = {"name": "step", "step": step, **HEADER}
        writer = RecordWriter(folder / f"step-{step:06d}.jsonl", header, vocabulary.token_bytes)
        while made < executions * (step + 1) // steps:
            writer.write(_execution(made, each, luck, vocabulary, skill=0.35 + 0.1 * step))
            made += 1
        writer.close()


def _execution(
    number: int, tokens: int, luck: random.Random, vocabulary: Vocabulary, skill: float
) -> RecordedExecution:
    group = number // GROUP
    task = f"Question {group}: what was the total of order {100 + group} after the discount of {5 + group % 7} percent?"
    ledger = Ledger(f"ro-{number:05d}-{luck.getrandbits(40):010x}", "at-0")
    said: dict[int, Said] = {}
    turns = luck.choice((1, 2, 3, 3, 4, 6))
    share = max(12, tokens // turns)
    clock = 1_760_000_000.0 + number
    system = {"role": "system", "content": "You are a careful accountant. Use the tools; answer with a number."}
    added = [system, {"role": "user", "content": task}]
    parent: int | None = None
    for at in range(turns):
        forks = at == turns - 1 and turns >= 4 and luck.random() < 0.4
        if forks:
            parent, added = None, [{"role": "user", "content": "Summarise: " + _words(luck, share // 2)}]
        last = at == turns - 1
        reply = _reply(luck, max(6, share // 3), last=last)
        prompt = "".join(f"<|im_start|>{m['role']}\n{m.get('content') or ''}<|im_end|>\n" for m in added)
        ids = vocabulary.ids(_shown(reply) + "<|im_end|>")
        part = Sampled(
            ids=ids,
            logprobs=array("d", [-luck.expovariate(2.5) for _ in ids]),
            finish="stop",
            weight_version=str(number // 130),
            cached_tokens=0 if parent is None else ledger.length(parent),
        )
        ledger.commit(
            Turn(
                index=at,
                parent=parent,
                new_ids=vocabulary.ids(prompt + "<|im_start|>assistant\n"),
                parts=(part,),
                turn_id=f"chatcmpl-{at}",
                fork="compaction" if forks else "",
                model="policy",
                started=clock,
                ended=clock + 0.4 + len(ids) / 50,
                engine_seconds=0.3 + len(ids) / 50,
            )
        )
        said[at] = Said(added, reply, TOOLS)
        clock += 0.6 + len(ids) / 50
        parent, added = at, [_result(reply, luck, max(6, share // 2))]
    return _with_outcome(ledger, said, task, number, luck, skill)


def _with_outcome(
    ledger: Ledger, said: dict[int, Said], task: str, number: int, luck: random.Random, skill: float
) -> RecordedExecution:
    failed = luck.random() < 0.04
    reward = 0.0 if failed else luck.choice((1.0, 1.0, 0.5)) if luck.random() < skill else 0.0
    samples = []
    for at, segment in enumerate(segments(ledger)):
        mask = array("b")
        for place, turn in enumerate(segment.turns[segment.first_trained :]):
            trains = turn.index in segment.trained and not failed
            mask.extend([0] * (len(turn.new_ids) if place else 0) + [int(trains)] * turn.output_length)
        samples.append(
            RecordedSample(
                index=number,
                group_index=number // GROUP,
                rollout_id=number,
                segment=at,
                status="failed" if failed else "completed",
                reward=reward,
                mask=mask,
                removed=failed,
            )
        )
    turns = ledger.turns
    error = 'Traceback (most recent call last):\n  File "agent.py", line 41, in answer\nTimeoutError: search took 30 s'
    return RecordedExecution(
        ledger=ledger,
        task={"question": task, "answer": str(100 + number // GROUP)},
        reward=reward,
        failure="agent_error" if failed else "",
        error=error if failed else "",
        started=turns[0].started,
        seconds=turns[-1].ended - turns[0].started + 0.2,
        samples=tuple(samples),
        rewards=((len(turns), {"primary": reward}),),
        said=said,
    )


def _words(luck: random.Random, count: int) -> str:
    return " ".join(luck.choices(WORDS, k=max(1, count)))


def _reply(luck: random.Random, words: int, *, last: bool) -> dict[str, object]:
    text = _words(luck, words)
    if last:
        return {"role": "assistant", "content": f"{text}. The answer is {luck.randrange(1000)}."}
    name, key = luck.choice((("search", "query"), ("calculator", "expression")))
    value = _words(luck, 4) if key == "query" else f"{luck.randrange(99)} * {luck.randrange(99)}"
    call = {
        "id": f"call_{luck.getrandbits(24):06x}",
        "type": "function",
        "function": {"name": name, "arguments": f'{{"{key}": "{value}"}}'},
    }
    return {"role": "assistant", "content": None, "reasoning_content": text, "tool_calls": [call]}


def _shown(reply: dict) -> str:
    functions = [call["function"] for call in reply.get("tool_calls", ())]
    calls = "".join(
        f'\n<tool_call>\n{{"name": "{one["name"]}", "arguments": {one["arguments"]}}}\n</tool_call>'
        for one in functions
    )
    thought = f"<think>\n{reply['reasoning_content']}\n</think>\n" if "reasoning_content" in reply else ""
    return f"{thought}{reply['content'] or ''}{calls}"


def _result(reply: dict, luck: random.Random, words: int) -> dict[str, object]:
    calls = reply.get("tool_calls") or [{"id": ""}]
    return {"role": "tool", "tool_call_id": calls[0]["id"], "content": _words(luck, words)}
