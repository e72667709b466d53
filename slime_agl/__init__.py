"""Train unmodified agents with slime, without losing a token.

Glossary. Each word has this one meaning, in code, logs, metrics and documents:

run         the whole training run
step        one call of slime's rollout function; slime calls its number `rollout_id`
mode        how the rollout orchestrates its steps: sync, partial or async
lane        training (`train`) or evaluation (`val`); parking one lane leaves the other running
group       the executions of one prompt, over which slime computes a baseline; active until a batch takes it
execution   one run of the agent for one Sample, numbered by `Sample.rollout_id`; loss and baseline count it once
rollout     Agent Lightning's store entry for an execution, named by a string id
attempt     one try at a rollout
session     the gateway's state of one attempt, from open to seal; a sealed session takes no more requests
turn        one engine answer: prompt ids, output ids, logprobs, finish reason, weight versions
ledger      the turns of one attempt as a tree; append-only
segment     a root-to-leaf chain of turns whose tokens are contiguous; becomes one Sample
fork        a turn that starts a new segment instead of extending an earlier turn
glue        the tokens between two turns of a segment (tool results, user messages, template text); never trained
credit      the reward that each Sample of an execution gets
replay      slime's routed experts and top-p sets, which the trainer replays; nothing else
record      what a run writes down about its executions
rerun       running a recorded agent again on its recorded answers
park        pause training at the end of a step with its agents alive; the next step resumes it
worker      a process that runs executions; several of them are a fleet
harness     a program that is the agent, such as a coding CLI
sandbox     where a harness runs
"""

__version__ = "0.1.0"
__all__ = ["SLIME"]  # pyright: ignore[reportUnsupportedDunderAll]: loaded on first use


def __getattr__(name: str) -> object:
    """Load `SLIME` on first use: importing Agent Lightning takes seconds."""
    if name == "SLIME":
        from slime_agl.algorithm.slime import SLIME

        return SLIME
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
