"""Wall time per step with heavy-tailed agents: synchronous, partial and asynchronous, and slime's own loops.

    scripts/bench/heavy_tail                             # every policy, each in a separate process
    PYTHONPATH=/path/to/slime scripts/bench/heavy_tail   # with slime's own loops, unmodified

An execution calls the engine, works for a lognormal time determined by its index, and calls it again; the engine is
scripted and answers at once. `train.py` trains and updates weights between calls, `train_async.py` trains during the
next call. All policies have the same number of execution slots. A group's age is the number of steps from its start to
its delivery.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai

from slime_agl.host import Sample
from slime_agl.lightning import _agl  # noqa: F401  # ahead of agentlightning, which it keeps off the network
from slime_agl.testing import FakeSGLang, ListDataSource, importable, make_args, save_tiny_checkpoint

import agentlightning as agl  # isort: skip

POLICIES = {
    "sync": ("train.py", {}),
    "sync, over-sampled": ("train.py", {"over_sampling_batch_size": 2}),
    "partial, over-sampled": ("train.py", {"over_sampling_batch_size": 2, "partial_rollout": True}),
    "sync, one step ahead": ("train_async.py", {}),
    "agl.async, staleness 1": ("train_async.py", {"async": 1}),
    "agl.async, staleness 2": ("train_async.py", {"async": 2}),
    "agl.async, staleness 5": ("train_async.py", {"async": 5}),
    "agl.async, staleness 20": ("train_async.py", {"async": 20}),
    "slime's default loop": ("train.py", {"slime": "slime.rollout.sglang_rollout.generate_rollout"}),
    "slime's fully async loop": (
        "train_async.py",
        {"slime": "slime.rollout.fully_async_rollout.generate_rollout_fully_async"},
    ),
}
POLL_SECONDS = 0.05  # slime's worker polls every second, too slow for executions of a second


def work_seconds(index: int, options: argparse.Namespace) -> float:
    return random.Random(f"{options.seed} {index}").lognormvariate(math.log(options.median), options.sigma)


class Clock:
    """The current step and, for slime's loops, the step in which each group started."""

    def __init__(self) -> None:
        self.step = 0
        self.started: dict[int, int] = {}


def make_agent(options: argparse.Namespace) -> Any:
    @agl.rollout
    async def agent(task: Any, llm: Any) -> float:
        messages: list[Any] = [{"role": "user", "content": task["prompt"]}]
        # Loading the system's certificates per client would dominate the measurement.
        http = httpx.AsyncClient(verify=False, trust_env=False, timeout=None)
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, http_client=http) as client:
            for last in (False, True):
                answer = await client.chat.completions.create(model="m", messages=messages)
                messages += [
                    answer.choices[0].message.model_dump(exclude_none=True),
                    {"role": "user", "content": "On."},
                ]
                if not last:
                    await asyncio.sleep(work_seconds(task["number"], options))
        return 1.0

    return agent


def make_generate(options: argparse.Namespace, clock: Clock) -> Callable[..., Any]:
    """Make the same execution as slime's --custom-generate-function-path."""

    async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
        clock.started.setdefault(sample.group_index, clock.step)
        url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
        async with httpx.AsyncClient(verify=False, trust_env=False, timeout=None) as client:
            for last in (False, True):
                body = {"input_ids": [1, 2, 3], "sampling_params": sampling_params, "return_logprob": True}
                meta = (await client.post(url, json=body)).json()["meta_info"]
                pairs = meta["output_token_logprobs"]
                sample.tokens = sample.tokens or [1, 2, 3]
                sample.append_response_tokens(
                    args, tokens=[p[1] for p in pairs], log_probs=[p[0] for p in pairs], trainable=True, meta_info=meta
                )
                if not last:
                    await asyncio.sleep(work_seconds(sample.metadata["number"], options))
        sample.reward = 1.0
        return sample

    return generate


class Numbered(ListDataSource):
    """Gives each sample an index, which fixes its work time under every policy."""

    def _next_group(self) -> list[Any]:
        group = super()._next_group()
        for sample in group:
            sample.metadata["number"] = sample.index
        return group


def drive(
    step: Callable[[int], Any], update: Callable[[], None], options: argparse.Namespace, script: str
) -> list[float]:
    """Call `step` as slime's train.py or train_async.py does. Returns the wall time of each step."""
    times, began = [], time.perf_counter()
    with ThreadPoolExecutor(1) as manager:
        coming = manager.submit(step, 0)
        for number in range(options.steps):
            coming.result()
            if script == "train_async.py" and number + 1 < options.steps:
                coming = manager.submit(step, number + 1)
            time.sleep(options.train)
            if number + 1 < options.steps:
                if script == "train_async.py":
                    coming.result()
                update()
                if script == "train.py":
                    coming = manager.submit(step, number + 1)
            times.append(time.perf_counter() - began)
            began = time.perf_counter()
    return times


def run_policy(name: str, options: argparse.Namespace) -> dict[str, float]:
    script, wish = POLICIES[name]
    clock, ages = Clock(), []
    with FakeSGLang(default="one two three") as fake, tempfile.TemporaryDirectory() as checkpoint:
        save_tiny_checkpoint(checkpoint)
        args = make_args(
            fake,
            checkpoint,
            rollout_batch_size=options.batch,
            n_samples_per_prompt=options.samples,
            over_sampling_batch_size=options.batch * wish.get("over_sampling_batch_size", 1),
            partial_rollout=wish.get("partial_rollout", False),
            num_rollout=options.steps,
            sglang_server_concurrency=options.batch * options.samples,
            rollout_num_engines=1,
            use_distributed_post=False,
        )
        source = Numbered(["a question"], options.samples)
        with importable(make_agent(options)) as agent, importable(make_generate(options, clock)) as generate:
            args.agl = {"agent": agent, "async": {"enabled": "async" in wish, "max_staleness": wish.get("async", 1)}}
            args.custom_generate_function_path = generate.replace(":", ".")
            function = load(wish.get("slime", "slime_agl.rollout.generate"), args, source)

            def step(number: int) -> None:
                clock.step = number
                output = function(args, number, source)
                for group in getattr(output, "samples", output):
                    first = group[0]
                    start = clock.started.get(first.group_index, first.metadata.get("start_rollout_id", number))
                    ages.append(number - start)

            def update() -> None:
                post(f"{fake.url}/pause_generation")
                fake.weight_version = str(int(fake.weight_version) + 1)
                post(f"{fake.url}/continue_generation")

            times = drive(step, update, options, script)
    steady = times[1:-1] or times
    return {
        "seconds": statistics.mean(steady),
        "worst": max(steady),
        "age": statistics.mean(ages),
        "oldest": max(ages),
        "started": len(source.taken),
    }


def load(path: str, args: Any, source: Any) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    function = getattr(__import__(module, fromlist=[name]), name)
    if module.startswith("slime."):
        from slime.utils.http_utils import init_http_client

        init_http_client(args)
    if "fully_async" in module:
        sys.modules[module]._get_global_worker(args, source).poll_interval = POLL_SECONDS
    return function


def post(url: str) -> None:
    request = urllib.request.Request(url, data=b"{}", headers={"Content-Type": "application/json"}, method="POST")
    urllib.request.urlopen(request).read()


COLUMNS = {"s/step": 2, "x sync": 2, "worst": 2, "age": 2, "oldest": 0, "started": 0}


def report(options: argparse.Namespace) -> None:
    mean = options.median * math.exp(options.sigma**2 / 2)
    print(
        f"{options.steps} steps of {options.batch} groups x {options.samples}, "
        f"lognormal work (median {options.median} s, sigma {options.sigma}, mean {mean:.2f} s), "
        f"{options.batch * options.samples} slots, training {options.train} s\n"
    )
    print(_row("policy", "driver", list(COLUMNS), options.markdown))
    if options.markdown:
        print("| --- | --- |" + " --- |" * len(COLUMNS))
    base = None
    for name, (script, _) in POLICIES.items():
        command = [sys.executable, "-W", "ignore", __file__, "--policy", name, *sys.argv[1:]]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            print(f"{name}: not run: {last}", file=sys.stderr)
            continue
        found = json.loads(done.stdout.strip().splitlines()[-1])
        base = base or found["seconds"]
        numbers = {"s/step": found["seconds"], "x sync": found["seconds"] / base, **found}
        cells = [f"{numbers[column]:.{digits}f}" for column, digits in COLUMNS.items()]
        print(_row(name, script, cells, options.markdown), flush=True)


def _row(policy: str, driver: str, cells: list[str], markdown: bool) -> str:
    if markdown:
        return "| " + " | ".join([policy, driver, *cells]) + " |"
    return f"{policy:26} {driver:15} " + " ".join(f"{cell:>7}" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench/heavy_tail", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", choices=POLICIES, help="run one policy, and write its numbers as JSON")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8, help="groups per step")
    parser.add_argument("--samples", type=int, default=4, help="executions per group")
    parser.add_argument("--median", type=float, default=1.0, help="seconds of work of the median execution")
    parser.add_argument("--sigma", type=float, default=1.0, help="spread of log(seconds)")
    parser.add_argument("--train", type=float, default=1.5, help="seconds that training takes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", action="store_true", help="write the table as Markdown")
    options = parser.parse_args()
    if options.policy is None:
        report(options)
        return
    logging.disable(logging.ERROR)
    print(json.dumps(run_policy(options.policy, options)))


if __name__ == "__main__":
    main()
