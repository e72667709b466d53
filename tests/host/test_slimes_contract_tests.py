"""slime's own plugin contract tests, on our functions. Skipped where slime's checkout is not on PYTHONPATH."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs_slime

RUNS = {
    "rollout": ("rollout", ["--rollout-function-path", "slime_agl.rollout.generate"]),
    "generate": ("generate", ["--custom-generate-function-path", "slime_agl.generate.generate"]),
    "paths": (
        "path_loading",
        [
            "--eval-function-path",
            "slime_agl.rollout.generate",
            "--custom-rm-path",
            "slime_agl.reward.custom_rm",
            "--dynamic-sampling-filter-path",
            "slime_agl.reward.check_reward_nonzero_std",
        ],
    ),
    "group_rm": ("path_loading", ["--custom-rm-path", "slime_agl.reward.custom_group_rm", "--group-rm"]),
    "hooks": ("runtime_hook", ["--custom-reward-post-process-path", "slime_agl.reward.normalize_rewards"]),
}


@pytest.mark.parametrize("name", RUNS)
def test_slimes_contract_tests_pass(name: str):
    spec = importlib.util.find_spec("slime.utils.types") if importlib.util.find_spec("slime") else None
    if spec is None or spec.origin is None:
        pytest.skip("slime is not on PYTHONPATH")
    checkout = Path(spec.origin).parents[2]
    file, flags = RUNS[name]
    test = checkout / "tests" / "plugin_contracts" / f"test_plugin_{file}_contracts.py"
    if not test.is_file():
        pytest.skip(f"{test} is not there: slime has to be a checkout")
    ignored = ["-p", "no:cacheprovider", "-W", "ignore", "-q"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), str(checkout)])}
    done = subprocess.run(
        [sys.executable, str(test), *flags, *ignored], cwd=checkout, env=env, capture_output=True, text=True
    )
    said = (done.stdout + done.stderr).splitlines()
    missing = [line for line in said if line.startswith(("ModuleNotFoundError", "E   ModuleNotFoundError"))]
    if done.returncode and missing and "slime_agl" not in missing[0]:
        pytest.skip(f"slime needs packages that are not installed: {missing[0]}")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
