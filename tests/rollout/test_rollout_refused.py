"""An execution that failed names the first request that its gateway refused, wherever it is judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import agentlightning as agl
import aiohttp
import pytest

from slime_agl.errors import AgentError
from slime_agl.record.reading import read_run
from slime_agl.report.checks import judge

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
PATHS = {"field": "chat/completions", "address": "chat", "key": "chat/completions", "late": "chat/completions"}


async def post(llm: Any, path: str, body: object, key: str = "") -> int:
    headers = {"Authorization": f"Bearer {key or llm.api_key}"}
    async with aiohttp.ClientSession() as http, http.post(f"{llm.endpoint}/{path}", json=body, headers=headers) as got:
        return got.status


@agl.rollout
async def careless(task: Any, llm: Any) -> float:
    """Ends well whatever its requests come to, as a program does whose exit status nobody reads."""
    what = task["prompt"]
    if what == "late":
        await post(llm, PATHS[what], ASK)
    if what == "probe":
        await post(llm, "telemetry", {})
        what = "field"
    await post(llm, PATHS[what], ASK | {"turbo": True}, key="sk-agl-other" if what == "key" else "")
    await post(llm, "chat/completions", ASK | {"boost": True})
    return 0.0


REFUSALS = {
    "field": "POST /v1/chat/completions: 400 invalid_request_error: turbo is not a field",
    "probe": "POST /v1/chat/completions: 400 invalid_request_error: turbo is not a field",
    "key": "POST /v1/chat/completions: 401 invalid_api_key: the API key does not belong to this attempt",
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_step_in_which_nothing_was_answered_quotes_the_first_refusal(run_rollout, tmp_path: Path, what: str):
    with pytest.raises(AgentError) as told:
        run_rollout(careless, [what] * 8, agl={"record_dir": str(tmp_path)})
    words = str(told.value)
    assert REFUSALS[what] in words and "boost" not in words and "no_llm_call 8" in words
    assert "the gateway refused what their agents sent" in words and "endpoint of the LLM resource" not in words
    (record,) = read_run(tmp_path)
    assert {one.failure for one in record.executions} == {"no_llm_call"}
    assert all(one.refused.startswith(REFUSALS[what]) and REFUSALS[what] in one.error for one in record.executions)
    findings = {finding.name: finding for finding in judge([record])}
    assert REFUSALS[what] in findings["agents end well"].words and findings["agents end well"].verdict == "fail"


def test_a_path_that_is_not_served_is_quoted_where_nothing_else_was_asked(run_rollout, fake_sglang):
    @agl.rollout
    async def astray(task: Any, llm: Any) -> float:
        await post(llm, "../chat", ASK)
        return 0.0

    with pytest.raises(AgentError, match="POST /chat: 404 not_found_error"):
        run_rollout(astray, ["x"] * 8)


def test_a_refusal_among_answered_requests_fails_nothing_and_is_told(run_rollout, fake_sglang, tmp_path: Path):
    fake_sglang.answer_with(lambda request: "said")
    output = run_rollout(careless, ["late"], agl={"record_dir": str(tmp_path)})
    assert output.metrics["rollout/agl/refused_requests"] == 2
    (record,) = read_run(tmp_path)
    (one,) = record.executions
    assert (one.failure, one.error) == ("", "") and "turbo" in one.refused
    (finding,) = [finding for finding in judge([record]) if finding.name == "refused requests"]
    assert finding.verdict == "look" and "2 requests were refused" in finding.words and "turbo" in finding.words
