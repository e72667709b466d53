"""The faults: file, original text, replacement, and the test that must fail on it."""

from __future__ import annotations

from dataclasses import dataclass


class Misplaced(Exception):
    """A fault does not match the source."""


@dataclass(frozen=True, slots=True)
class Fault:
    """file, test: relative to the root; `test` as a pytest id. old: occurs in the file exactly once."""

    file: str
    old: str
    new: str
    test: str

    def applied(self, whole: str) -> str:
        """Return the file's text with the fault. whole: without it.

        Raises:
            Misplaced: the text to change is not found exactly once, or Python code no longer compiles.
        """
        if (count := whole.count(self.old)) != 1:
            raise Misplaced(f"{self.file} holds the text to change {count} times, expected once: {self.old!r}")
        changed = whole.replace(self.old, self.new)
        if self.file.endswith(".py"):
            try:
                compile(changed, self.file, "exec")
            except SyntaxError as error:
                raise Misplaced(f"{self.file} does not compile with {self.new!r}: {error}") from error
        return changed


TRAIN = "tests/rollout/test_rollout_train.py::"
BELONGS = "tests/rollout/test_rollout_belongings.py::"
CALLS = "tests/gateway/test_gateway_calls.py::"
ABORTS = "tests/gateway/test_gateway_aborts.py::"
ORACLE = "tests/oracle/test_oracle.py::test_every_trained_token_is_the_one_that_the_engine_sampled_at_that_place[tiny]"
GROUPS_WHOLE = TRAIN + "test_groups_come_back_whole_ordered_and_token_exact"
NOT_CANONICAL = TRAIN + "test_a_sampling_that_is_not_canonical_is_kept_as_it_was"
ONE_SEGMENT = TRAIN + "test_tool_calls_results_and_users_are_one_segment"
ESCAPES, POOL = "tests/sandbox/test_sandbox_escapes.py::", "tests/sandbox/test_sandbox_pool.py::"
CONNECTIONS = "slime_agl/gateway/http/connections.py"
HTTP = "tests/gateway/test_http_connections.py::"
REPEATS = "tests/gateway/test_gateway_repeats.py::"
PARALLEL = "tests/gateway/test_gateway_parallel.py"
METRICS = "tests/guide/test_metrics_page.py::"
OWN_REWARD = BELONGS + "test_every_sample_has_the_reward_of_its_own_execution"
SAMPLES, TURNS, SAMPLING = (
    "slime_agl/executor/samples.py",
    "slime_agl/gateway/turn/commits.py",
    "slime_agl/gateway/turn/sampling.py",
)
CONVERSATION, SESSIONS, ANSWER = (
    "slime_agl/gateway/turn/conversation.py",
    "slime_agl/gateway/sessions/registry.py",
    "slime_agl/engine/generate.py",
)
SAMPLE_DONE = "            samples.append(sample)\n"
GLUE = (
    "            if at > first:\n"
    "                sample.append_response_tokens(args, tokens=turn.new_ids, trainable=False)\n"
)

FAULTS: dict[str, Fault] = {
    # prompts
    "history is encoded again": Fault(
        "slime_agl/gateway/turn/prompts.py",
        "if (node := match.node) is not None:",
        "if (node := match.node) is not None and node.index < 0:",
        ONE_SEGMENT,
    ),
    "a branch is taken for the bytes of another": Fault(
        "slime_agl/gateway/repeats.py",
        "if earlier.held is shared and earlier.length <= continued.length:",
        "if earlier.held is shared:",
        REPEATS + "test_branches_of_one_conversation_are_told_apart",
    ),
    "any body begins with an earlier one": Fault(
        "slime_agl/gateway/repeats.py",
        "if raw.startswith(memoryview(self.held)[:length]) else None",
        "",
        REPEATS + "test_a_conversation_with_another_history_is_parsed_whole",
    ),
    "any short body begins with an earlier one": Fault(
        "slime_agl/gateway/repeats.py",
        "        return hashed if hashed.digest() == self.digest else None",
        "        return hashed",
        REPEATS + "test_a_conversation_with_another_history_is_parsed_whole",
    ),
    "two protocols share what they made": Fault(
        "slime_agl/gateway/repeats.py",
        "if before is None or before.reader is not reader:",
        "if before is None:",
        REPEATS + "test_what_one_protocol_checked_is_read_by_another",
    ),
    "ignored fields are counted once": Fault(
        "slime_agl/gateway/protocols/fields.py",
        "        for name in known.counted:\n",
        "        for name in ():\n",
        REPEATS + "test_what_was_read_before_is_read_the_same",
    ),
    "a head may never end": Fault(
        CONNECTIONS,
        "if self._unused > LARGEST_HEAD and not self._deaf:",
        "if False:",
        HTTP + "test_what_never_ends_is_given_up",
    ),
    "nobody hears that a client is gone": Fault(
        CONNECTIONS,
        "(self._arriving is not None and self._arriving.held > HELD_BYTES)",
        "any(request.held > HELD_BYTES for request in self._requests)",
        HTTP + "test_a_client_is_listened_to_while_its_request_is_served",
    ),
    "trailers are headers": Fault(
        CONNECTIONS,
        "            return  # it follows a body in chunks\n",
        "            self._arriving.headers.add(name.decode(), value.decode())\n",
        HTTP + "test_requests_are_the_same_however_their_bytes_arrive",
    ),
    "what follows the last request is served": Fault(
        CONNECTIONS,
        "            self._deaf = True  # what follows the last request is not meant for anybody\n",
        "            pass\n",
        HTTP + "test_what_follows_the_last_request_is_not_read",
    ),
    "an answer may precede its request's body": Fault(
        "slime_agl/gateway/http/requests.py",
        "        self.keep_alive &= self.arrived\n",
        "",
        HTTP + "test_an_answer_before_the_bodys_end_is_the_last",
    ),
    "messages count as checked before they are": Fault(
        "slime_agl/gateway/protocols/chat.py",
        "        _check_calls(messages, known)\n        session.seen.accept(messages, self)\n",
        "        session.seen.accept(messages, self)\n        _check_calls(messages, known)\n",
        "tests/gateway/test_gateway_malformed.py::test_a_malformed_call_is_refused_wherever_a_conversation_has_it",
    ),
    "a refused call waits for an answer": Fault(
        "slime_agl/lightning/foreign_calls.py",
        "                self.shutdown(socket.SHUT_RDWR)\n",
        "                pass\n",
        "tests/rollout/test_rollout_mixing.py::test_blocking_agents_are_kept_apart_too[by_httpx_sync]",
    ),
    "returned CPUs are not waited for": Fault(
        "slime_agl/workers/placement.py",
        "            self._pause(LOOK_SECONDS)\n            nodes = self._look()\n",
        "            break\n",
        "tests/workers/test_placement.py::test_cpus_that_are_about_to_be_given_back_are_waited_for",
    ),
    "another decoder is trusted": Fault(
        "slime_agl/chat/template/encoder.py",
        "    return texts if agrees else encoder\n",
        "    return texts\n",
        "tests/chat/test_chat_encoder.py::test_ids_go_to_the_tokenizer_if_its_own_decoder_writes_other_text",
    ),
    "the turn before where a walk begins is forgotten": Fault(
        CONVERSATION,
        "        found = [node.parent for node, at in stack if at == consumed and node.parent is not None]\n",
        "        found: list[Node] = []\n",
        "tests/gateway/test_gateway_walk.py"
        "::test_the_walk_finds_the_same_turn_from_the_root_and_from_where_the_last_request_ended",
    ),
    "pieces of a prompt are written in another order": Fault(
        "slime_agl/engine/id_text.py",
        '            added = b"".join((*pieces[at:], added))\n',
        '            added = b"".join((*reversed(pieces[at:]), added))\n',
        "tests/gateway/test_gateway_held.py::test_a_text_that_grows_is_the_text_of_all_its_ids_in_few_pieces",
    ),
    "another encoder is trusted": Fault(
        "slime_agl/chat/template/encoder.py",
        "if encoder.encode(text) != token_array(",
        "if False and encoder.encode(text) != token_array(",
        "tests/chat/test_chat_encoder.py::test_an_encoder_with_other_ids_is_not_used",
    ),
    "a call cancelled early keeps its client": Fault(
        "slime_agl/gateway/sessions/calls.py",
        "        self._end()  # for a task that was cancelled before it began\n",
        "",
        "tests/gateway/test_gateway_retries.py::test_whoever_waits_for_a_call_that_is_cancelled_before_it_began_is_told",
    ),
    "output is encoded again": Fault(
        TURNS,
        "            parts=tuple(draft.parts),\n",
        "            parts=tuple(\n"
        "                replace(p, ids=array('i', self._renderer.encode(self._renderer.decode(p.ids))))\n"
        "                for p in draft.parts\n"
        "            ),\n",
        NOT_CANONICAL,
    ),
    "parallel results swapped": Fault(
        "slime_agl/gateway/turn/prompts.py",
        "normalise(list(match.new)), match.fork",
        "normalise(list(match.new)[::-1]), match.fork",
        PARALLEL,
    ),
    "parallel results swapped, Anthropic": Fault(
        "slime_agl/gateway/protocols/anthropic/blocks.py",
        'told.append({"role": "tool", "tool_call_id"',
        'told.insert(0, {"role": "tool", "tool_call_id"',
        PARALLEL,
    ),
    "the shallowest turn is continued": Fault(
        CONVERSATION, "            if end > consumed:\n", "            if not found:\n", ORACLE
    ),
    "changed tools are no fork": Fault(
        CONVERSATION,
        "stack = [self._start(root, messages) for root in self.roots if root.tools == tools and root.kwargs == kwargs]",
        "stack = [self._start(root, messages) for root in self.roots]",
        "tests/gateway/test_gateway_chat.py::test_changed_tools_are_a_new_segment",
    ),
    "a sampled stop token is written again": Fault(
        "slime_agl/chat/template/delta.py",
        "return ids[1:] if ended else ids",
        "return ids",
        "tests/gateway/test_gateway_guards.py::test_a_stop_token_does_not_leak_into_the_answer_nor_twice_into_the_next_prompt",
    ),
    # what trains
    "mask shifted by one": Fault(
        SAMPLES, SAMPLE_DONE, "            sample.loss_mask = [0, *sample.loss_mask[:-1]]\n" + SAMPLE_DONE, GROUPS_WHOLE
    ),
    "logprobs shifted by one": Fault(
        SAMPLES,
        SAMPLE_DONE,
        "            sample.rollout_log_probs = [0.0, *sample.rollout_log_probs[:-1]]\n" + SAMPLE_DONE,
        GROUPS_WHOLE,
    ),
    "glue trains": Fault(
        SAMPLES, GLUE, GLUE.replace("trainable=False", "log_probs=[0.0] * len(turn.new_ids)"), ONE_SEGMENT
    ),
    "glue trains unseen": Fault(
        SAMPLES, SAMPLE_DONE, "            sample.loss_mask = [1] * sample.response_length\n" + SAMPLE_DONE, ONE_SEGMENT
    ),
    "the stop token is dropped": Fault(
        ANSWER,
        "        ids=ids,\n        logprobs=logprobs,\n",
        "        ids=ids[:-1],\n        logprobs=logprobs[:-1],\n",
        GROUPS_WHOLE,
    ),
    "a segment trains twice": Fault(
        "slime_agl/trace/segments.py",
        "        taken |= mine\n",
        "        taken |= set()\n",
        TRAIN + "test_branches_of_one_turn_train_it_once",
    ),
    "an aborted part is lost": Fault(
        SAMPLING,
        "            draft.add(part)\n            if part.finish",
        "            draft.add(part) if part.finish != ABORT else None\n            if part.finish",
        CALLS + "test_an_abort_is_continued_from_its_partial_output",
    ),
    "a restarted turn is not counted": Fault(
        SAMPLING, "        self.dropped.append(gone)\n", "", CALLS + "test_a_constrained_turn_that_is_cut_begins_anew"
    ),
    "an abandoned turn trains": Fault(
        "slime_agl/gateway/turn/maker.py",
        "prompt, drafts, call.refused)",
        'prompt, drafts, "")',
        CALLS + "test_a_call_whose_client_is_gone_is_aborted_after_the_grace",
    ),
    "the weight version is stale": Fault(
        ANSWER,
        "weight_version=_weight_version(meta, rid)",
        'weight_version="1"',
        "tests/rollout/test_rollout_partial.py::test_a_parked_turn_goes_on_in_the_next_step_token_exact",
    ),
    "temperature ignored in logprobs": Fault(
        "slime_agl/local/engine/sampler.py",
        "    logprob = float(logprobs[token])\n",
        "    logprob = float(torch.log_softmax(scores, dim=-1)[token])\n",
        "tests/local/test_local_sampler.py::test_the_logprob_is_that_at_the_temperature_of_the_draw",
    ),
    # what belongs to whom
    "a wrong group_index": Fault(
        SAMPLES,
        "        sample.rollout_id = number\n",
        "        sample.rollout_id = number\n        sample.group_index = number\n",
        BELONGS + "test_samples_keep_the_group_and_the_number_of_the_sample_they_were_made_for",
    ),
    "evaluation goes into training": Fault(
        "slime_agl/rollout/entry.py",
        "            return await evaluate(read, executor, lasting.eval_prompts, books, lasting.brake)\n",
        "            out = await evaluate(read, executor, lasting.eval_prompts, books, lasting.brake)\n"
        '            held = [[s] * read.n_samples_per_prompt for d in out.data.values() for s in d["samples"]]\n'
        "            data_source.add_samples(held)\n"
        "            return out\n",
        BELONGS + "test_an_evaluation_leaves_training_alone",
    ),
    "a wrong sibling is credited": Fault(
        "slime_agl/rollout/groups.py",
        "        entries = list(await asyncio.gather(*tasks))\n",
        "        entries = list(await asyncio.gather(*tasks))\n"
        "        rewards = [e.samples[0].reward for e in entries[1:] + entries[:1]]\n"
        "        for entry, reward in zip(entries, rewards, strict=True):\n"
        "            for sample in entry.samples:\n"
        "                sample.reward = reward\n",
        OWN_REWARD,
    ),
    "the reward of another execution": Fault(
        "slime_agl/execution.py",
        "        reward=final.reward,\n",
        '        reward=globals().setdefault("_first", final.reward),\n',
        OWN_REWARD,
    ),
    "a span goes to the latest attempt": Fault(
        "slime_agl/lightning/tracer.py",
        "        # Not reset: the runner reads",
        "        self._buffers.update(dict.fromkeys(self._buffers, buffer))\n        # Not reset: the runner reads",
        "tests/lightning/test_attribution.py",
    ),
    "another attempt's key is let in": Fault(
        SESSIONS,
        "        if not may_enter(key, session.key, required=self._keys_required or not placeholder):\n",
        "        if not key:\n",
        CALLS + "test_another_attempts_key_is_refused_and_a_placeholder_is_not",
    ),
    "a sealed session still records": Fault(
        SESSIONS,
        "            del self._open[name]\n",
        "            session.sealed = False\n",
        CALLS + "test_after_sealing_requests_get_409_and_are_not_recorded",
    ),
    "a retry is sampled twice": Fault(
        "slime_agl/gateway/sessions/calls.py",
        "        if orphans:\n",
        "        if orphans and mark.tries:\n",
        CALLS + "test_a_retry_joins_the_call_whose_client_vanished",
    ),
    "a marked retry is sampled twice": Fault(
        "slime_agl/gateway/sessions/calls.py",
        "return max(reversed(earlier), key=lambda call: call.tries, default=None)",
        "return None",
        CALLS + "test_a_marked_retry_gets_the_committed_answer_again",
    ),
    "identical calls share an answer": Fault(
        "slime_agl/gateway/sessions/calls.py",
        "        if not mark.tries:\n            return None\n",
        "        if not mark.tries:\n            return same[0] if same else None\n",
        CALLS + "test_identical_calls_without_a_mark_are_samples_of_their_own",
    ),
    # what is compared and refused
    "rewards normalised over Samples": Fault(
        "slime_agl/credit/groups.py",
        "executions.setdefault(sample.execution, [])",
        "executions.setdefault(at, [])",
        "tests/test_reward.py::test_an_execution_of_many_samples_counts_once",
    ),
    "the baseline leaves masked executions out": Fault(
        "slime_agl/credit/groups.py",
        "        if not sample.removed:\n",
        "        if sample.trained:\n",
        "tests/credit/test_groups.py",
    ),
    "the page shows advantages of another baseline": Fault(
        "slime_agl/report/credit.py",
        "        removed=one.sample.removed,\n",
        "        removed=not any(mask),\n",
        "tests/report/test_credit.py",
    ),
    "what a filter dropped is shown as trained": Fault(
        "slime_agl/report/fate.py",
        " and not sample.removed and not execution.unused:",
        " and not sample.removed:",
        "tests/report/test_credit.py",
    ),
    "the page takes an agent's text for markup": Fault(
        "slime_agl/report/assets/data.js",
        'if (text !== undefined && text !== "") node.textContent = visible(text);',
        'if (text !== undefined && text !== "") node.innerHTML = text;',
        "tests/report/test_page.py",
    ),
    "a torn line is taken for whole": Fault(
        "slime_agl/record/following.py",
        "                    self.torn = len(line)\n                    return\n",
        "                    self.torn = len(line)\n",
        "tests/report/test_following.py",
    ),
    "a followed file is read again from its start": Fault(
        "slime_agl/record/following.py",
        "            file.seek(self._offset)\n",
        "            self._forget() if self.header else None\n            file.seek(0)\n",
        "tests/report/test_following.py",
    ),
    "the frozen model is trained": Fault(
        "slime_agl/host/args.py",
        "        if (address := trained_address(args)) is not None:\n",
        "        if (address := None) is not None:\n",
        "tests/host/test_host_served.py",
    ),
    "a tail may drop a tool result": Fault(
        "slime_agl/chat/template/delta.py",
        "        if dropped is not None:\n",
        "        if False:\n",
        "tests/chat/test_chat_seams.py",
    ),
    "calls of different keys share an answer": Fault(
        "slime_agl/gateway/sessions/calls.py",
        "        if mark.key:\n            return",
        "        if mark.key and not self._same:\n            return",
        "tests/gateway/test_gateway_retries.py",
    ),
    "the answer to another request is taken": Fault(
        ANSWER, "    if said is not None and said != rid:\n", "    if False:\n", "tests/engine/test_engine_answer.py"
    ),
    "the count of shown tokens is not checked": Fault(
        SAMPLING,
        "if part.prompt_tokens and part.prompt_tokens != sent:",
        "if False:",
        CALLS + "test_an_engine_that_saw_other_tokens_breaks_the_session",
    ),
    "a call that was cut is executable": Fault(
        "slime_agl/chat/parse/reply.py",
        "        cut = finish != STOP\n",
        "        cut = False\n",
        "tests/chat/test_chat_parse.py",
    ),
    "groups that are not needed are lost": Fault(
        "slime_agl/rollout/pool.py",
        "            self._source.add_samples(groups)\n",
        "            pass\n",
        TRAIN + "test_groups_that_are_not_needed_go_back_to_the_data_source",
    ),
    "a slow sibling is cancelled twice": Fault(
        "slime_agl/loops.py",
        "if not task.cancelling():",
        "if task:",
        "tests/rollout/test_rollout_unwinding.py",
    ),
    "work starts too far ahead": Fault(
        "slime_agl/rollout/admission.py",
        "return place + 1 < self.target - kept + steps_left * self.target",
        "return True",
        "tests/rollout/test_rollout_admission.py",
    ),
    "root's settings of the kernel are writable inside": Fault(
        "slime_agl/sandbox/bwrap.py",
        'argv += ["--ro-bind", f"/proc/{name}", f"/proc/{name}"]',
        "argv += []",
        ESCAPES + "test_the_kernels_settings_cannot_be_written",
    ),
    "every family of sockets can be opened": Fault(
        "slime_agl/sandbox/seccomp.py",
        "(RETURN, 0, 0, ERRNO | EAFNOSUPPORT)",
        "(RETURN, 0, 0, ALLOW)",
        ESCAPES + "test_what_a_network_namespace_does_not_isolate_cannot_be_opened",
    ),
    "a sandbox's keeper can be traced": Fault(
        "slime_agl/sandbox/inside/keeper.py",
        "control_process(PR_SET_DUMPABLE, 0)",
        "pass",
        ESCAPES + "test_nobody_inside_can_kill_or_trace_the_keeper",
    ),
    "links lead out of a sandbox": Fault(
        "slime_agl/sandbox/inside/files.py",
        "mode if flags & os.O_CREAT else 0, RESOLVE_IN_ROOT)",
        "mode if flags & os.O_CREAT else 0, 0)",
        ESCAPES + "test_links_lead_nowhere_outside",
    ),
    "daemons outlive a local sandbox": Fault(
        "slime_agl/sandbox/inside/keeper.py",
        "control_process(PR_SET_CHILD_SUBREAPER, 1)",
        "pass",
        "tests/sandbox/test_sandbox_contract.py::test_at_the_end_nothing_is_left",
    ),
    "a sandbox reaches other attempts": Fault(
        "slime_agl/gateway/http/sockets.py",
        'if request.path.startswith(f"{under}/"):',
        "if request.path:",
        "tests/gateway/test_gateway_sockets.py::test_a_socket_serves_its_attempt_and_no_other_path",
    ),
    "living drivers are reaped": Fault(
        "slime_agl/sandbox/home.py",
        "        return 0  # alive\n",
        "        return 1\n",
        POOL + "test_two_drivers_in_one_process_leave_each_other_alone",
    ),
    "a failed creation keeps its place": Fault(
        "slime_agl/sandbox/pool.py",
        "                self._slots.release()\n                raise\n",
        "                raise\n",
        POOL + "test_a_creation_is_tried_again_and_then_fails_with_the_last_reason",
    ),
    "a sandbox outlives its time": Fault(
        "slime_agl/sandbox/lease.py",
        "self._timer = loop.call_later(self.spec.ttl_seconds, self._expire)",
        "pass",
        POOL + "test_a_sandbox_ends_when_its_time_is_over",
    ),
    # credit, teachers, export, workers, pace
    "tool tokens are discounted over": Fault(
        "slime_agl/credit/gae.py",
        "places = [np.flatnonzero(mask) for mask in masks]",
        "places = [np.arange(len(mask)) for mask in masks]",
        "tests/credit/test_gae.py",
    ),
    "a turn's reward is the next turn's": Fault(
        "slime_agl/credit/turns.py",
        "following = [plain[after.index] for _, (after, _, _) in pairwise(spans)] + [0.0]",
        "following = [0.0] + [plain[after.index] for _, (after, _, _) in pairwise(spans)]",
        "tests/credit/test_turns.py::test_returns_and_rewards_of_one_segment",
    ),
    "turns of other prompts are compared": Fault(
        "slime_agl/credit/turns.py",
        "members.setdefault(state, []).append(at)",
        'members.setdefault((state[0], ""), []).append(at)',
        "tests/credit/test_turns.py::test_turns_of_a_state_are_compared_with_each_other_only",
    ),
    "a teacher's scores are one token late": Fault(
        "slime_agl/engine/score.py",
        "extra={FIRST_ASKED: len(ids) - count - 1},",
        "extra={FIRST_ASKED: len(ids) - count},",
        "tests/rollout/test_rollout_teacher.py::test_every_token_of_every_sample_is_scored_at_its_place",
    ),
    "an exported mask begins with the prompt": Fault(
        "slime_agl/export/rows.py",
        'mask = array("b", bytes(max(0, len(tokens) - len(sample.mask)))) + sample.mask',
        'mask = sample.mask + array("b", bytes(max(0, len(tokens) - len(sample.mask))))',
        "tests/rollout/test_rollout_sft.py::test_sft_trains_on_the_very_tokens_of_the_run",
    ),
    "a call cancelled before it begins is not answered": Fault(
        "slime_agl/workers/child.py",
        "        await asyncio.wait({call})\n",
        "        await call\n",
        "tests/workers/test_links.py::test_a_call_that_is_cancelled_before_it_could_begin_ends[subprocess]",
    ),
    "a custom tool's call is sent as JSON": Fault(
        "slime_agl/chat/template/freeform.py",
        "        return given[ARGUMENT]\n",
        "        return arguments\n",
        "tests/gateway/test_gateway_fields.py",
    ),
    "a limit that falls puts nobody off": Fault(
        "slime_agl/pace.py",
        "        self._limit = limit\n        self._let_in()\n",
        "        self._limit = None\n        self._let_in()\n",
        "tests/test_pace.py::test_a_room_lets_in_as_many_as_its_limit_in_their_order",
    ),
    "failed creations multiply": Fault(
        "slime_agl/in_process.py",
        "return error_type != SandboxExhausted.__name__ and",
        "return",
        "tests/harness/test_harness_command.py::test_retries_of_sandboxes_and_of_executions_do_not_multiply",
    ),
    # the guide
    "a metric without a row in the guide": Fault(
        "slime_agl/rollout/tally.py",
        'self._counts["dangling_reward_links"]',
        'self._counts["lost_reward_links"]',
        METRICS + "test_every_counted_name_has_a_row",
    ),
    "a reason of a fork without a row": Fault(
        CONVERSATION,
        'return "history_edited"',
        'return "history_changed"',
        METRICS + "test_every_reason_of_a_fork_has_a_row",
    ),
    "a terminal cuts long names": Fault(
        "slime_agl/cli/markdown.py",
        'table.add_column(title, overflow="fold", width=width)',
        'table.add_column(title, overflow="ellipsis", width=width)',
        "tests/guide/test_pages.py::test_a_terminal_of_any_width_shows_every_letter_of_a_page",
    ),
}
