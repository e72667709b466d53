"""A request's result is independent of concurrent and earlier requests, and of where its keys come from."""

from __future__ import annotations

from slime_agl.local.engine.score import teacher_logprobs, teacher_logprobs_batch

PROMPTS = [[1, 2, 3], [9] * 40, [7, 8, 9, 10, 11], [200], list(range(100, 160)), [5, 6]]


def difference(left, right):
    return max(abs(a - b) for a, b in zip(left, right, strict=True))


def test_reported_logprobs_are_those_of_teacher_forcing(drive, model):
    engine = drive()
    for temperature in (0.7, 1.0, 1.6):
        for prompt, answer in zip(PROMPTS, engine.ask_together(PROMPTS, temperature=temperature), strict=True):
            ids = [*prompt, *answer.output_ids]
            teacher = teacher_logprobs(model, ids, len(answer.output_ids), temperature)
            assert difference(answer.logprobs, teacher) < 1e-4


def test_a_filter_does_not_change_the_reported_logprob(drive, model):
    answer = drive().ask([1, 2, 3], temperature=0.9, top_p=0.6, top_k=5, min_p=0.05)
    teacher = teacher_logprobs(model, [1, 2, 3, *answer.output_ids], 12, 0.9)
    assert difference(answer.logprobs, teacher) < 1e-4


def test_a_batch_answers_as_single_requests_do(drive):
    together = drive().ask_together(PROMPTS, temperature=0.8, sampling_seed=3)
    alone = drive(prefix_tokens=0)
    for prompt, answer in zip(PROMPTS, together, strict=True):
        single = alone.ask(prompt, temperature=0.8, sampling_seed=3)
        assert answer.output_ids == single.output_ids
        assert difference(answer.logprobs, single.logprobs) < 1e-4


def test_requests_that_end_early_leave_the_others_undisturbed(drive):
    lengths = [3, 40, 1, 25, 7, 12]
    engine = drive(max_running=3)
    engine.backend.pause("in_place")
    sent = [
        engine.send(prompt, temperature=0, max_new_tokens=length)
        for prompt, length in zip(PROMPTS, lengths, strict=True)
    ]
    engine.backend.resume()
    answers = [updates.get(timeout=20) for updates in sent]
    assert [len(answer.output_ids) for answer in answers] == lengths
    alone = drive(prefix_tokens=0)
    for prompt, length, answer in zip(PROMPTS, lengths, answers, strict=True):
        assert answer.output_ids == alone.ask(prompt, temperature=0, max_new_tokens=length).output_ids


def test_temperature_zero_takes_the_most_likely_token_with_its_plain_logprob(drive, model):
    answer = drive().ask([1, 2, 3], temperature=0)
    assert answer.output_ids == drive().ask([1, 2, 3], temperature=1.0, top_k=1).output_ids
    teacher = teacher_logprobs(model, [1, 2, 3, *answer.output_ids], 12, 0)
    assert difference(answer.logprobs, teacher) < 1e-4


def test_the_next_turn_of_a_conversation_reuses_what_is_known(drive, model):
    engine = drive()
    first = engine.ask([1, 2, 3, 4], temperature=0.8)
    held = [1, 2, 3, 4, *first.output_ids]
    second = engine.ask([*held, 50, 51, 52], temperature=0.8)
    assert first.cached_tokens == 0
    # The last sampled token was never fed to the model, so it has no keys and values yet.
    assert second.cached_tokens == len(held) - 1
    teacher = teacher_logprobs(model, [*held, 50, 51, 52, *second.output_ids], 12, 0.8)
    assert difference(second.logprobs, teacher) < 1e-4


def test_requests_of_one_batch_share_their_prompt(drive):
    answers = drive().ask_together([[4] * 30] * 3, temperature=1.0)
    assert [answer.cached_tokens for answer in answers] == [0, 29, 29]


def test_a_prompt_longer_than_a_prefill_chunk_and_the_first_slots_is_right(drive, model):
    prompt = [index % 250 for index in range(1300)]
    answer = drive().ask(prompt, temperature=0.8)
    assert difference(answer.logprobs, teacher_logprobs(model, [*prompt, *answer.output_ids], 12, 0.8)) < 1e-4


def test_room_for_keys_bounds_how_many_run_together(drive):
    answers = drive(kv_tokens=64).ask_together(PROMPTS, temperature=0, max_new_tokens=30)
    assert [len(answer.output_ids) for answer in answers] == [30] * len(PROMPTS)


def test_a_seeded_request_continues_the_same_from_prompt_plus_partial_output(drive):
    engine = drive()
    whole = engine.ask([1, 2, 3], sampling_seed=11, temperature=1.2).output_ids
    rest = engine.ask([1, 2, 3, *whole[:5]], sampling_seed=11, temperature=1.2, max_new_tokens=7).output_ids
    assert whole == (*whole[:5], *rest)


def test_seeds_differ_and_the_engine_seed_makes_unseeded_requests_repeatable(drive):
    assert drive(seed=5).ask([1, 2]).output_ids == drive(seed=5).ask([1, 2]).output_ids
    engine = drive()
    answers = {engine.ask([1, 2], sampling_seed=seed, temperature=1.5).output_ids for seed in range(4)}
    assert len(answers) == 4


def test_teacher_forcing_of_many_is_teacher_forcing_of_each(model):
    sequences = [([*prompt, 1, 2, 3], 3) for prompt in PROMPTS] + [([1, 2], 0)]
    together = teacher_logprobs_batch(model, sequences, 0.9, batch_size=3)
    assert together[-1] == []
    for (tokens, length), scores in zip(sequences[:-1], together, strict=False):
        assert difference(scores, teacher_logprobs(model, tokens, length, 0.9)) < 1e-5
