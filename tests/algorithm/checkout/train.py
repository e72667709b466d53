"""A driver with the shape of slime's: flags, a YAML file of settings, a rollout function by path.

It only rolls out, and ends as slime's does: it does not tell the rollout function.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import yaml
from slime.utils.arguments import add_arguments

from slime_agl.host import load_object
from slime_agl.local.train.driver import LocalDriver
from slime_agl.testing.host import make_args
from slime_agl.testing.sglang import FakeSGLang
from slime_agl.testing.tokenizer import tool_call_text


def answer(request: Any) -> str:
    """Call the tool `add` where an agent has it, then answer."""
    said = request.text
    if '"add"' in said and "<tool_response>" not in said and "<|im_start|>tool" not in said:
        return tool_call_text("add", {"a": 3, "b": 7})
    return f"so it is {10 if 'add' in said else len(request.input_ids)}"


def main() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args, unknown = parser.parse_known_args()  # as slime's, it ignores what it does not know
    with open(args.custom_config_path, encoding="utf-8") as file:
        settings = yaml.safe_load(file)
    with FakeSGLang() as fake:
        fake.answer_with(answer)
        given = {name: value for name, value in vars(args).items() if value is not None and name != "hf_checkpoint"}
        full = make_args(fake, args.hf_checkpoint, **given, **settings)
        assert load_object(full.rollout_function_path)
        driver = LocalDriver(full)
        for step in range(args.num_rollout):
            result = driver.step(step)
            told = {"step": step, "rewards": [sample.reward for sample in result.samples], "at": os.getcwd()}
            sys.stdout.write(f"TOLD {json.dumps(told)}\n")
        environment = {"extra": os.environ.get("EXTRA"), "job": os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR")}
        sys.stdout.write(f"TOLD {json.dumps({'unknown': unknown, **environment})}\n")


if __name__ == "__main__":
    main()
