"""`generate` in training: what it returns to slime, whatever agents and engine do."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import agentlightning as agl
import openai
import pytest

from slime_agl.errors import AgentError, ConfigError, EngineUnavailable, HostError, RewardError, TemplateError
from slime_agl.host import Sample
from slime_agl.rollout import generate
from slime_agl.testing.agents import chat_agent, failing_agent, sync_agent, tool_agent
from tests.conftest import flat


def client(llm: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0)


def test_the_signature_is_the_one_slime_calls():
    parameters = inspect.signature(generate).parameters
    assert list(parameters) == ["args", "rollout_id", "data_source", "evaluation"]
    assert parameters["evaluation"].default is False


def test_groups_come_back_whole_ordered_and_token_exact(fake_sglang, run_rollout, token_exact):
    fake_sglang.answer_with(lambda request: f"answer to {len(request.input_ids)}")
    output = run_rollout(chat_agent(turns=2), ["a", "bb", "ccc"], n_samples=2)
    assert [len(group) for group in output.samples] == [2, 2, 2]
    assert [sample.index for sample in flat(output.samples)] == list(range(6))
    assert all(sample.reward == 1.0 and sample.rollout_id == sample.index for sample in flat(output.samples))
    assert token_exact(fake_sglang, output.samples) == output.metrics["rollout/agl/trained_tokens"]


def test_tool_calls_results_and_users_are_one_segment(fake_sglang, run_rollout, token_exact):
    fake_sglang.call_tools(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}), text="Both.").say("3 and 7")
    output = run_rollout(tool_agent(), ["add them"])
    ((sample,),) = output.samples
    assert sample.metadata["agl"]["turns"] == 2 and sample.metadata["agl"]["segments"] == 1
    assert "3 and 7" in sample.response and "<tool_response>" in sample.response
    token_exact(fake_sglang, output.samples)
    first, second = fake_sglang.requests
    assert second.input_ids[: len(first.input_ids) + len(fake_sglang.answers[0].ids)] == (
        first.input_ids + fake_sglang.answers[0].ids
    )


def test_a_sampling_that_is_not_canonical_is_kept_as_it_was(fake_sglang, run_rollout, token_exact):
    """One letter a token, words spelled in pieces: the text is the same, the ids are the engine's."""
    tokenizer = fake_sglang.tokenizer
    pieces = [i for letter in "the hello" for i in tokenizer.encode(letter, add_special_tokens=False)]
    assert tokenizer.encode("the hello", add_special_tokens=False) != pieces, "the tokenizer would have said the same"
    fake_sglang.say(ids=[*pieces, tokenizer.eos_token_id]).say("even")
    output = run_rollout(chat_agent(turns=2), ["x"])
    token_exact(fake_sglang, output.samples)
    assert list(fake_sglang.requests[1].input_ids)[len(fake_sglang.requests[0].input_ids) :][: len(pieces)] == pieces


def test_an_execution_that_fans_out_makes_every_entry_a_list(fake_sglang, run_rollout, token_exact):
    @agl.rollout
    async def branching(task: Any, llm: Any) -> float:
        async with client(llm) as ai:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "one"}])
            if task["prompt"] == "two":
                await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "another"}])
        return 1.0

    fake_sglang.answer_with(lambda request: "ok")
    output = run_rollout(branching, ["one", "two"])
    (alone,), (both,) = output.samples
    assert [len(alone), len(both)] == [1, 2]
    assert both[0].rollout_id == both[1].rollout_id == 1 and both[0].group_index == both[1].group_index
    assert output.metrics["rollout/agl/forks/new_conversation"] == 1
    token_exact(fake_sglang, output.samples)


def test_branches_of_one_turn_train_it_once(fake_sglang, run_rollout, token_exact):
    @agl.rollout
    async def search(task: Any, llm: Any) -> float:
        messages: list[Any] = [{"role": "user", "content": "start"}]
        async with client(llm) as ai:
            first = await ai.chat.completions.create(model="m", messages=messages)
            messages.append(first.choices[0].message.model_dump(exclude_none=True))
            for option in ("left", "right"):
                await ai.chat.completions.create(model="m", messages=[*messages, {"role": "user", "content": option}])
        return 1.0

    fake_sglang.answer_with(lambda request: "said")
    output = run_rollout(search, ["x"])
    (((left, right),),) = output.samples
    assert left.tokens[: len(left.tokens) - left.response_length] == list(fake_sglang.requests[0].input_ids)
    assert token_exact(fake_sglang, output.samples) == sum(len(sent.ids) for sent in fake_sglang.answers)
    assert output.metrics["rollout/agl/forks/branch"] == 1


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda m: m[0].update(content="You are another."), "system_changed"),
        (lambda m: m[2].update(content="I never said this."), "history_edited"),
        (lambda m: m[1].update(content="another question"), "history_edited"),
    ],
)
def test_an_edited_history_is_a_new_segment_with_its_reason(
    fake_sglang, run_rollout, token_exact, change: Callable[[Any], None], reason: str
):
    @agl.rollout
    async def editor(task: Any, llm: Any) -> float:
        messages: list[Any] = [{"role": "system", "content": "You help."}, {"role": "user", "content": "q"}]
        async with client(llm) as ai:
            answer = await ai.chat.completions.create(model="m", messages=messages)
            messages += [{"role": "assistant", "content": answer.choices[0].message.content}]
            messages += [{"role": "user", "content": "go on"}]
            change(messages)
            await ai.chat.completions.create(model="m", messages=messages)
        return 1.0

    fake_sglang.answer_with(lambda request: "fine")
    output = run_rollout(editor, ["x"])
    assert output.metrics[f"rollout/agl/forks/{reason}"] == 1
    assert len(output.samples[0][0]) == 2
    token_exact(fake_sglang, output.samples)


def test_a_turn_cut_by_length_is_truncated_and_goes_on_token_exact(fake_sglang, run_rollout, token_exact):
    fake_sglang.say("cut off he", finish="length").say("and on", finish="length")
    ((sample,),) = run_rollout(chat_agent(turns=2), ["x"]).samples
    assert sample.status == Sample.Status.TRUNCATED
    token_exact(fake_sglang, [[sample]])


def test_a_foreign_stop_token_stays_in_the_ids(fake_sglang, run_rollout, token_exact):
    tokenizer = fake_sglang.tokenizer
    foreign = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    fake_sglang.say("hello", matched=foreign).say("again")
    output = run_rollout(chat_agent(turns=2), ["x"])
    token_exact(fake_sglang, output.samples)
    assert fake_sglang.answers[0].ids[-1] == foreign


def test_a_stop_string_of_the_agent_is_trimmed_from_the_text_but_not_from_the_tokens(
    fake_sglang, run_rollout, token_exact
):
    said: list[str] = []

    @agl.rollout
    async def stopping(task: Any, llm: Any) -> float:
        messages: list[Any] = [{"role": "user", "content": "count"}]
        async with client(llm) as ai:
            answer = await ai.chat.completions.create(model="m", messages=messages, stop=["END"], max_tokens=50)
            said.append(answer.choices[0].message.content)
            messages += [{"role": "assistant", "content": said[0]}, {"role": "user", "content": "more"}]
            await ai.chat.completions.create(model="m", messages=messages)
        return 1.0

    fake_sglang.say("one two END three").say("ok")
    ((sample,),) = run_rollout(stopping, ["x"]).samples
    assert said == ["one two "]
    assert "END" in sample.response and "three" not in sample.response
    assert fake_sglang.requests[0].sampling_params["max_new_tokens"] == 50
    assert sample.metadata["agl"]["segments"] == 1
    token_exact(fake_sglang, [[sample]])


def test_the_trainers_sampling_parameters_win(fake_sglang, run_rollout):
    @agl.rollout
    async def warm(task: Any, llm: Any) -> float:
        async with client(llm) as ai:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], temperature=0.1)
        return 1.0

    fake_sglang.answer_with(lambda request: "ok")
    output = run_rollout(warm, ["x"], rollout_temperature=0.7)
    assert fake_sglang.requests[0].sampling_params["temperature"] == 0.7
    assert output.metrics["rollout/agl/sampling_overridden"] == 1
    output = run_rollout(warm, ["x"], rollout_temperature=0.7, agl={"sampling": "agent"})
    assert fake_sglang.requests[1].sampling_params["temperature"] == 0.1
    assert output.metrics["rollout/agl/sampling_by_agent"] == 1


def test_an_overlong_conversation_tells_the_agent_and_keeps_what_was_said(fake_sglang, run_rollout, token_exact):
    codes: list[str] = []

    @agl.rollout
    async def endless(task: Any, llm: Any) -> float:
        messages: list[Any] = [{"role": "user", "content": "x"}]
        async with client(llm) as ai:
            try:
                while True:
                    answer = await ai.chat.completions.create(model="m", messages=messages)
                    messages += [answer.choices[0].message.model_dump(exclude_none=True)]
                    messages += [{"role": "user", "content": "more " * 5}]
            except openai.BadRequestError as error:
                codes.append(error.code)
        return 1.0

    fake_sglang.answer_with(lambda request: "word " * 4)
    output = run_rollout(endless, ["x"], rollout_max_context_len=200)
    ((sample,),) = output.samples
    assert codes == ["context_length_exceeded"]
    assert sample.status == Sample.Status.TRUNCATED, "as slime's own loop says it"
    assert len(sample.tokens) <= 200
    token_exact(fake_sglang, output.samples)


def test_two_hundred_agents_at_once_are_attributed_each_to_its_own(fake_sglang, run_rollout, token_exact):
    @agl.rollout
    async def echo(task: Any, llm: Any) -> float:
        async with client(llm) as ai:
            ask = [{"role": "user", "content": str(task["prompt"])}]
            answer = await ai.chat.completions.create(model="m", messages=ask)
        agl.emit_reward(float(answer.choices[0].message.content))
        return None

    fake_sglang.answer_with(lambda request: request.text.split("user\n")[1].split("<|im_end|>")[0])
    rows = [{"prompt": str(number)} for number in range(50)]
    output = run_rollout(echo, rows, n_samples=4, sglang_server_concurrency=200)
    assert [sample.reward for sample in flat(output.samples)] == [float(i // 4) for i in range(200)]
    token_exact(fake_sglang, output.samples)


def test_sync_agents_run_side_by_side(fake_sglang, run_rollout, token_exact):
    fake_sglang.answer_with(lambda request: "ok")
    output = run_rollout(sync_agent(turns=2), ["a"] * 8, n_samples=2)
    assert len(flat(output.samples)) == 16
    token_exact(fake_sglang, output.samples)


def test_a_failed_execution_is_a_masked_placeholder_in_a_whole_group(fake_sglang, run_rollout):
    @agl.rollout
    async def moody(task: Any, llm: Any) -> float:
        async with client(llm) as ai:
            answer = await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        if answer.choices[0].message.content == "bad":
            raise RuntimeError("bad mood")
        return 1.0

    fake_sglang.say("bad").say("good").say("good")
    output = run_rollout(moody, ["x"], n_samples=3, sglang_server_concurrency=1)
    (group,) = output.samples
    failed = [sample for sample in group if sample.status == Sample.Status.FAILED]
    assert len(failed) == 1 and sum(failed[0].loss_mask) == 0 and failed[0].remove_sample
    assert len(failed[0].loss_mask) == len(failed[0].rollout_log_probs) == failed[0].response_length
    assert failed[0].metadata["agl"]["failure"] == "agent_error"
    assert output.metrics["rollout/agl/untrained_tokens/agent_error"] == 4


def test_a_failed_execution_trains_under_the_negative_policy(fake_sglang, run_rollout, token_exact):
    fake_sglang.answer_with(lambda request: "said")
    agl_section = {"failure": {"agent_error": "negative", "negative_reward": -1.0}}
    ((sample,),) = run_rollout(failing_agent(after_turns=1), ["x"], agl=agl_section).samples
    assert sample.reward == -1.0 and sum(sample.loss_mask) > 0
    token_exact(fake_sglang, [[sample]])


def test_an_agent_that_always_raises_stops_the_step_with_its_traceback(fake_sglang, run_rollout):
    with pytest.raises(AgentError, match="(?s)agent_error.*RuntimeError: nothing works"):
        run_rollout(failing_agent("nothing works"), ["a", "b"], n_samples=2)
    assert fake_sglang.in_flight == 0


def test_an_agent_without_an_llm_call_is_told_apart(run_rollout):
    @agl.rollout
    async def silent(task: Any, llm: Any) -> float:
        return 1.0

    with pytest.raises(AgentError, match="without an LLM call"):
        run_rollout(silent, ["a"])


def test_a_deadline_seals_aborts_and_masks(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "never heard").hold()
    with pytest.raises(AgentError, match="deadline"):
        run_rollout(chat_agent(), ["a"], agl={"runners": {"timeout_seconds": 0.2}})
    assert fake_sglang.in_flight == 0
    assert any(path == "/abort_request" for path, _ in fake_sglang.control)


def test_a_failing_attempt_is_tried_again_and_its_tokens_are_accounted_for(fake_sglang, run_rollout, token_exact):
    tries: list[int] = []

    @agl.rollout
    async def second_time_lucky(task: Any, llm: Any) -> float:
        async with client(llm) as ai:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("not yet")
        return 1.0

    fake_sglang.answer_with(lambda request: "said")
    output = run_rollout(second_time_lucky, ["x"], agl={"failure": "retry"})
    assert output.samples[0][0].reward == 1.0
    assert output.metrics["rollout/agl/untrained_tokens/superseded_attempt"] == 5
    assert output.metrics["rollout/agl/sampled_tokens"] == 10
    token_exact(fake_sglang, output.samples)


def test_groups_that_are_not_needed_go_back_to_the_data_source(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "ok")
    output = run_rollout(chat_agent(), ["a", "b", "c", "d"], rollout_batch_size=2, over_sampling_batch_size=4)
    source = run_rollout.data_source
    assert len(output.samples) == 2 and len(source.taken) == 4 and len(source.returned) == 2
    given = {sample.index for sample in flat(output.samples)} | {group[0].index for group in source.returned}
    assert given == {0, 1, 2, 3}
    assert all(sample.tokens == [] and sample.status == Sample.Status.PENDING for sample in flat(source.returned))


def test_nothing_is_in_flight_when_generate_returns(fake_sglang, run_rollout):
    """The first request is answered; the second hangs at the engine until the step aborts it."""
    fake_sglang.answer_with(lambda request: "ok").hold()

    @agl.rollout
    async def agent(task: Any, llm: Any) -> float:
        if task["prompt"] == "slow":
            await fake_sglang.requests_arrived(1)
        async with client(llm) as ai:
            ask = [{"role": "user", "content": task["prompt"]}]
            await ai.chat.completions.create(model="m", messages=ask)
        return 1.0

    def answer_the_first() -> None:
        fake_sglang.wait_for_requests(2)
        fake_sglang.release(1)

    helper = threading.Thread(target=answer_the_first)
    helper.start()
    output = run_rollout(agent, ["slow", "fast"], rollout_batch_size=1, over_sampling_batch_size=2)
    helper.join()
    assert fake_sglang.in_flight == 0
    assert [sample.prompt for sample in flat(output.samples)] == ["fast"]
    assert [sample.prompt for sample in flat(run_rollout.data_source.returned)] == ["slow"]


def drop_odd(args: Any, group: list[Sample]) -> bool:
    return group[0].index % 2 == 0


def test_a_dynamic_filter_replaces_groups(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "ok")
    path = "tests.rollout.test_rollout_train.drop_odd"
    output = run_rollout(chat_agent(), ["a", "b"], dynamic_sampling_filter_path=path)
    assert [sample.index for sample in flat(output.samples)] == [0, 2]
    assert output.metrics["rollout/agl/dropped_groups/filtered"] >= 1


@pytest.mark.parametrize(
    "overrides, error, words",
    [
        ({"agl": {"agent": "no.such.agent"}}, ConfigError, "no.such"),
        ({"agl": {"agent": "os.path"}}, ConfigError, "agent"),
        ({"agl": {"agent": "slime_agl.testing.agents.chat_agent", "tsk": 1}}, ConfigError, "agl.tsk"),
        ({"agl": {"task": {"question": "qestion"}}}, ConfigError, "qestion"),
        ({"sglang_router_port": 9}, EngineUnavailable, "127.0.0.1:9"),
        ({"hf_checkpoint": "/nowhere"}, TemplateError, "/nowhere"),
        ({"hf_checkpoint": None}, ConfigError, "--hf-checkpoint"),
        ({"n_samples_per_prompt": 0}, ConfigError, "--n-samples-per-prompt"),
    ],
)
def test_bad_input_is_one_clear_error(run_rollout, overrides: dict[str, Any], error: type, words: str):
    with pytest.raises(error) as caught:
        run_rollout(chat_agent(), ["a"], **overrides)
    assert words in str(caught.value)


def test_a_group_of_the_wrong_size_is_refused_with_both_numbers(run_rollout, rollout_args, fake_sglang):
    class Wrong:
        def get_samples(self, count: int) -> list[list[Sample]]:
            return [[Sample(index=0)]] * count

        def add_samples(self, groups: list[list[Sample]]) -> None: ...

    args = rollout_args(n_samples_per_prompt=2, agl={"agent": "slime_agl.testing.agents.chat_agent"})
    with pytest.raises(HostError, match="a group of 1 samples, --n-samples-per-prompt is 2"):
        generate(args, 0, Wrong())


def test_no_reward_and_no_option_says_what_to_do(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "ok")
    with pytest.raises(RewardError, match="--custom-rm-path or --rm-type"):
        run_rollout(chat_agent(reward=None), ["a"])


def test_a_step_that_fails_puts_every_group_back(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "ok")
    with pytest.raises(RewardError):
        run_rollout(chat_agent(reward=None), ["a", "b", "c"], n_samples=2)
    source = run_rollout.data_source
    assert sorted(group[0].index for group in source.returned) == sorted(group[0].index for group in source.taken)
    assert fake_sglang.in_flight == 0


def test_what_cannot_be_replayed_is_refused(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "ok")
    with pytest.raises(ConfigError, match="--use-rollout-routing-replay needs --num-layers and --moe-router-topk"):
        run_rollout(chat_agent(), ["a"], use_rollout_routing_replay=True)
    experts = {"use_rollout_routing_replay": True, "num_layers": 3, "moe_router_topk": 2}
    with pytest.raises(ConfigError, match="--use-rollout-routing-replay needs data .* has no routed experts"):
        run_rollout(chat_agent(), ["a"], **experts)
    with pytest.raises(ConfigError, match="--rollout-top-p 0.9 needs data .* has no top-p token sets"):
        run_rollout(chat_agent(), ["a"], rollout_top_p=0.9)
    with pytest.raises(ConfigError, match="agl.sampling lets agents choose"):
        run_rollout(chat_agent(), ["a"], rollout_top_p=0.9, agl={"sampling": "agent"})
