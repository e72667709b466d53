"""A teacher's logprobs are on every Sample of a step, each at its token's place; a wrong teacher stops the step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import agentlightning as agl
import openai
import pytest

from slime_agl.engine import scorer
from slime_agl.engine.retry import Backoff
from slime_agl.errors import ConfigError, TeacherError
from slime_agl.host import Sample
from slime_agl.testing import FakeTeacher
from slime_agl.testing.agents import chat_agent
from tests.conftest import flat

OPD = {"use_opd": True, "opd_type": "sglang"}


@pytest.fixture
def teacher() -> Iterator[FakeTeacher]:
    with FakeTeacher() as one:
        yield one


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once."""
    monkeypatch.setattr(scorer, "Backoff", lambda: Backoff(first=0.0, longest=0.0))


@agl.rollout
async def two_agents(task: Any, llm: Any) -> float:
    """Two turns of a planner and one of a coder, with a user message between; fails where the prompt has `!`."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
        for model, turns in (("planner", 2), ("coder", 1)):
            messages: list[Any] = [{"role": "user", "content": f"{model}: {task['prompt']}"}]
            for _ in range(turns):
                answer = await ai.chat.completions.create(model=model, messages=messages)
                messages += [answer.choices[0].message.model_dump(exclude_none=True)]
                messages += [{"role": "user", "content": "and then?"}]
    if "!" in task["prompt"]:
        raise RuntimeError("as told")
    return 1.0


def right(teacher: FakeTeacher, sample: Sample) -> bool:
    return sample.teacher_log_probs == pytest.approx(teacher.scores(sample.tokens, sample.response_length), abs=1e-9)


def test_every_token_of_every_sample_is_scored_at_its_place(fake_sglang, run_rollout, teacher, token_exact):
    fake_sglang.answer_with(lambda request: "some answer")
    output = run_rollout(two_agents, ["a", "b"], n_samples=2, rollout_batch_size=2, agl={"teacher": teacher.url}, **OPD)
    samples = flat(output.samples)
    assert len(samples) == 8 and any(0 in sample.loss_mask for sample in samples)
    assert all(right(teacher, sample) for sample in samples)
    assert token_exact(fake_sglang, output.samples)
    assert output.metrics["rollout/agl/teacher/tokens"] == sum(sum(sample.loss_mask) for sample in samples)
    gaps = [
        mine - its
        for sample in samples
        for kept, mine, its in zip(sample.loss_mask, sample.rollout_log_probs, sample.teacher_log_probs, strict=True)
        if kept
    ]
    assert output.metrics["rollout/agl/teacher/reverse_kl"] == pytest.approx(sum(gaps) / len(gaps))


def test_only_what_is_needed_is_scored_and_nothing_sampled(fake_sglang, run_rollout, teacher):
    fake_sglang.answer_with(lambda request: "some answer")
    (sample,) = flat(run_rollout(chat_agent, ["a"], agl={"teacher": teacher.url}, **OPD).samples)
    request = teacher.requests[-1]
    assert request.input_ids == tuple(sample.tokens) and request.sampling.max_new_tokens == 0
    assert request.score_from == len(sample.tokens) - sample.response_length - 1
    assert request.sampling.temperature == 1.0


def test_a_placeholder_has_zeros_that_the_teacher_was_not_asked_for(fake_sglang, run_rollout, teacher):
    fake_sglang.answer_with(lambda request: "some answer")
    output = run_rollout(one_fails, ["a"], n_samples=2, agl={"teacher": teacher.url}, **OPD)
    failed, worked = sorted(flat(output.samples), key=lambda sample: not sample.remove_sample)
    assert failed.remove_sample and failed.teacher_log_probs == [0.0] * failed.response_length
    assert not worked.remove_sample and right(teacher, worked)
    assert tuple(failed.tokens) not in teacher.scored


def test_masked_copies_that_fill_a_batch_have_the_scores_of_their_original(fake_sglang, run_rollout, teacher):
    fake_sglang.answer_with(lambda request: "some answer")
    fixed = {"global_batch_size": 4, "micro_batch_size": 1, "actor_num_nodes": 1, "actor_num_gpus_per_node": 3}
    output = run_rollout(two_agents, ["a"], n_samples=4, agl={"teacher": teacher.url}, **OPD, **fixed)
    samples = flat(output.samples)
    assert sum("fills_batch" in sample.metadata["agl"] for sample in samples) == 1
    assert all(right(teacher, sample) for sample in samples)


def test_a_failure_that_trains_is_scored(fake_sglang, run_rollout, teacher):
    fake_sglang.answer_with(lambda request: "some answer")
    section = {"teacher": teacher.url, "failure": "negative"}
    samples = flat(run_rollout(two_agents, ["a!"], agl=section, **OPD).samples)
    assert len(samples) == 2 and all(right(teacher, sample) for sample in samples)


@agl.rollout
async def one_fails(task: Any, llm: Any) -> float:
    number = next(COUNT)
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
        await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": f"number {number}"}])
    if number == 0:
        raise RuntimeError("the first fails")
    return 1.0


COUNT = itertools.count()


def test_an_evaluation_asks_no_teacher(fake_sglang, run_rollout, teacher):
    fake_sglang.answer_with(lambda request: "some answer")
    output = run_rollout(chat_agent, ["a"], evaluation=True, agl={"teacher": teacher.url}, **OPD)
    (samples,) = [entry["samples"] for entry in output.data.values()]
    assert samples[0].teacher_log_probs is None and teacher.requests == []


def test_a_mapping_gives_agents_and_sources_their_own_teacher(fake_sglang, run_rollout, teacher):
    fake_sglang.answer_with(lambda request: "some answer")
    rows = [{"prompt": name, "metadata": {"source_name": name}} for name in ("math", "code")]
    with FakeTeacher(salt=1) as other, FakeTeacher(salt=2) as third:
        section = {"teacher": {"planner": teacher.url, "math": other.url, "code": third.url}}
        samples = flat(run_rollout(two_agents, rows, rollout_batch_size=2, agl=section, **OPD).samples)
        of = {(s.prompt, s.metadata["agl"]["segment"]): s for s in samples}
        assert right(teacher, of["math", 0]) and right(teacher, of["code", 0])
        assert right(other, of["math", 1]) and right(third, of["code", 1])


def test_a_sample_without_a_teacher_is_an_error_that_names_it(fake_sglang, run_rollout, teacher):
    fake_sglang.answer_with(lambda request: "some answer")
    with pytest.raises(ConfigError, match="teachers for planer, and sample 0 is of agent 'planner' .*Did you mean 'pl"):
        run_rollout(two_agents, ["a"], agl={"teacher": {"planer": teacher.url}}, **OPD)


def test_a_frozen_model_is_named_and_the_trained_one_is_not_taken(fake_sglang, run_rollout, teacher):
    fake_sglang.answer_with(lambda request: "some answer")
    host, _, port = teacher.url.removeprefix("http://").partition(":")
    own = fake_sglang.url.removeprefix("http://").partition(":")
    routers = {"actor": (own[0], int(own[2])), "wise": (host, int(port))}
    more = {"sglang_model_routers": routers, **OPD}
    (sample,) = flat(run_rollout(chat_agent, ["a"], agl={"teacher": "wise"}, **more).samples)
    assert right(teacher, sample)
    with pytest.raises(ConfigError, match=r"agl.teacher is 'actor', .* \(frozen: wise\)"):
        run_rollout(chat_agent, ["a"], agl={"teacher": "actor"}, **more)


def test_a_teacher_that_falters_is_asked_again(fake_sglang, run_rollout, teacher):
    fake_sglang.answer_with(lambda request: "some answer")
    teacher.fails = [503, 503, 500]
    (sample,) = flat(run_rollout(chat_agent, ["a"], agl={"teacher": teacher.url}, **OPD).samples)
    assert right(teacher, sample)


def shifted(entries: list[list[Any]]) -> list[list[Any]]:
    """Each token with the logprob of the next."""
    rows = [*entries[1:], entries[-1]]
    return [[after[0], *entry[1:]] for after, entry in zip(rows, entries, strict=True)]


def without(value: float | None) -> Callable[[list[list[Any]]], list[list[Any]]]:
    return lambda entries: [*entries[:-1], [value, *entries[-1][1:]]]


def otherwise(entries: list[list[Any]]) -> list[list[Any]]:
    return [*entries[:-1], [entries[-1][0], entries[-1][1] + 1, None]]


SPOILED = [
    (
        lambda entries: entries[:1],
        r"has 1 entries in input_token_logprobs, the request has \d+ ids and needs .* \d+",
    ),
    (without(None), r"has the logprob None at token \d+ of \d+.*NaN"),
    (without(0.5), r"has the logprob 0.5 at token \d+ of \d+; one lies between -10000 and 0"),
    (without(-3.4e38), "has the logprob -3.4e.38 at token"),
    (otherwise, r"scores the id \d+ at token \d+ of \d+, it was sent \d+"),
]


@pytest.mark.parametrize("spoil, words", SPOILED)
def test_scores_that_cannot_be_right_stop_the_step(fake_sglang, run_rollout, teacher, spoil, words: str):
    """Also after the proof: the teacher turns bad once the agent runs."""

    def answer(request: Any) -> str:
        teacher.spoil = spoil
        return "some answer"

    fake_sglang.answer_with(answer)
    with pytest.raises(TeacherError, match=words):
        run_rollout(chat_agent, ["a"], agl={"teacher": teacher.url}, **OPD)


@pytest.mark.parametrize(
    "spoil, words",
    [
        (
            shifted,
            r"scores 16 tokens otherwise than it sampled them: .*\d in the mean, 0.25 is allowed; shifted",
        ),
        (lambda entries: [[value and value - 3, *rest] for value, *rest in entries], "otherwise than it sampled them"),
    ],
)
def test_a_teacher_that_scores_wrongly_is_refused_before_an_agent_runs(
    fake_sglang, run_rollout, teacher, spoil, words: str
):
    teacher.spoil = spoil
    with pytest.raises(TeacherError, match=words):
        run_rollout(chat_agent, ["a"], agl={"teacher": teacher.url}, **OPD)
    assert fake_sglang.requests == []


def test_a_teacher_with_another_tokenizer_is_refused_with_both_encodings(
    fake_sglang, run_rollout, teacher, monkeypatch
):
    encode = teacher.encode
    monkeypatch.setattr(teacher, "encode", lambda text: [7, *encode(text)][:-1])
    with pytest.raises(TeacherError, match=r"another tokenizer: .* to \d+ ids, 7, .* the policy's to \d+, "):
        run_rollout(chat_agent, ["a"], agl={"teacher": teacher.url}, **OPD)
    assert fake_sglang.requests == []


def test_a_teacher_that_begins_its_texts_with_a_token_is_not_another(fake_sglang, run_rollout, teacher, monkeypatch):
    fake_sglang.answer_with(lambda request: "some answer")
    encode = teacher.encode
    monkeypatch.setattr(teacher, "encode", lambda text: [7, *encode(text)])
    assert flat(run_rollout(chat_agent, ["a"], agl={"teacher": teacher.url}, **OPD).samples)


def test_a_teacher_with_too_short_a_context_is_refused_with_both_numbers(fake_sglang, run_rollout):
    with FakeTeacher(context_length=512) as small:
        with pytest.raises(TeacherError, match=r"below 512 tokens, .* have 512; start it with --context-length 513"):
            run_rollout(chat_agent, ["a"], rollout_max_context_len=512, agl={"teacher": small.url}, **OPD)
        fake_sglang.answer_with(lambda request: " ".join(["word"] * 600))
        with pytest.raises(TeacherError, match=r"refuses a Sample of \d+ tokens .*context length \(512 tokens\)"):
            run_rollout(chat_agent, ["a"], rollout_max_response_len=600, agl={"teacher": small.url}, **OPD)


def test_a_teacher_that_is_not_there_or_never_answers_is_named(fake_sglang, run_rollout, teacher, monkeypatch):
    monkeypatch.setattr(scorer, "START_SECONDS", 0.2)
    fake_sglang.answer_with(lambda request: "some answer")
    gone = FakeTeacher()
    with gone:
        url = gone.url
    with pytest.raises(TeacherError, match=f"the teacher at {url} does not answer"):
        run_rollout(chat_agent, ["a"], agl={"teacher": url, "teacher_seconds": 0.5}, **OPD)

    def answer(request: Any) -> str:
        teacher.fails = [503] * 100_000
        return "some answer"

    fake_sglang.answer_with(answer)
    with pytest.raises(
        TeacherError, match=r"no scores within 2 s \(agl.teacher_seconds\); the last of \d+ failures .*503"
    ):
        run_rollout(chat_agent, ["a"], agl={"teacher": teacher.url, "teacher_seconds": 2.0}, **OPD)


def test_samples_that_workers_made_are_scored_there(fake_sglang, run_rollout, teacher):
    fake_sglang.answer_with(lambda request: "some answer")
    section = {"teacher": teacher.url, "workers": {"count": 1, "slots": 4}}
    agent = "slime_agl.testing.agents:chat_agent"
    samples = flat(run_rollout(agent, ["a", "b"], rollout_batch_size=2, agl=section, **OPD).samples)
    assert len(samples) == 2 and all(right(teacher, sample) for sample in samples)


def test_without_reward_a_pure_distillation_names_zero(fake_sglang, run_rollout, teacher):
    fake_sglang.answer_with(lambda request: "some answer")
    section = {"teacher": teacher.url, "reward": "slime_agl.reward.zero"}
    (sample,) = flat(run_rollout(silent, ["a"], agl=section, **OPD).samples)
    assert sample.reward == 0.0 and right(teacher, sample)


@agl.rollout
async def silent(task: Any, llm: Any) -> None:
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
        await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
