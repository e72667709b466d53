"""`slime-agl doctor -- FLAGS OF SLIME`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from slime_agl.cli.main import main
from slime_agl.preflight.flags import read_flags


def findings(*words: str) -> list[tuple[str, str]]:
    done = CliRunner().invoke(main, ["doctor", "--json", *words])
    told = json.loads(done.output)["findings"]
    return [(one["verdict"], " ".join(map(str, one.values()))) for one in told if "slime's arguments" in one.values()]


def test_flags_are_read_as_slime_would():
    words = [
        "--kl-coef",
        "0.1",
        "--use-opd",
        "--opd-type=sglang",
        "--rollout-stop",
        "a",
        "b",
        "--disable-rewards-normalization",
    ]
    expected = {"kl_coef": 0.1, "use_opd": True, "opd_type": "sglang", "rollout_stop": ["a", "b"]}
    assert read_flags(words) == {**expected, "rewards_normalization": False}


def test_the_doctor_names_all_flags_that_a_run_would_refuse():
    told = findings(
        "--",
        "--advantage-estimator",
        "ppo",
        "--kl-coef",
        "0.1",
        "--use-rollout-logprobs",
        "--use-opd",
        "--opd-type",
        "sglang",
    )
    assert [verdict for verdict, _ in told] == ["fail", "fail"]
    assert "--use-rollout-logprobs" in told[0][1] and "--opd-type megatron" in told[1][1]


def test_arguments_of_slime_in_the_yaml_count_with_the_flags(tmp_path: Path):
    config = tmp_path / "agl.yaml"
    config.write_text("agl: {agent: a.b}\nmask_offpolicy_in_partial_rollout: true\n", encoding="utf-8")
    told = findings("--config", str(config), "--", "--advantage-estimator", "reinforce_plus_plus", "--partial-rollout")
    assert [verdict for verdict, _ in told] == ["fail"]


def test_what_depends_on_the_agent_is_worth_a_look_and_good_flags_pass():
    told = findings("--", "--advantage-estimator", "grpo")
    assert [verdict for verdict, _ in told] == ["look", "pass"]
    told = findings("--", "--custom-reward-post-process-path", "slime_agl.reward.normalize_rewards")
    assert [verdict for verdict, _ in told] == ["pass"]


def test_a_value_that_no_rollout_can_work_with_is_one_of_the_findings():
    assert findings("--", "--rollout-temperature", "0")[0][0] == "fail"
