"""Format outcomes as plain-text tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from corpus.stock import Template
from corpus.trial import EXTENDED, FORKS, LOOKS_BACK, REFUSED, Outcome
from slime_agl.chat.proof.probes import KINDS

Outcomes = Sequence[tuple[Template, dict[str, Outcome]]]
LISTS = ("complete", "eos", "closer", "opener", "behind", "unrelated", "only one")
COLUMNS = (EXTENDED, LOOKS_BACK, FORKS, REFUSED)


def show(outcomes: Outcomes, *, name_cases: bool) -> int:
    """Print the outcomes. Returns the exit status: 1 if a continuation lost words."""
    by_list = defaultdict(list)
    for template, found in outcomes:
        for name, outcome in found.items():
            by_list["only one" if name.startswith("only ") else name].append((template, outcome))
    print(f"{len(outcomes)} templates, {len(KINDS)} kinds of continuation\n")
    print("Kinds by stop list")
    _print(["stop list", "lists", *COLUMNS, "rewritten", "forked late", "checked", "lost"], _lists(by_list))
    complete = [(template, found["complete"]) for template, found in outcomes if "complete" in found]
    print("\nKinds by family, complete stop list")
    _print(["family", "templates", *COLUMNS, "rewritten", "lost"], _families(complete))
    print("\nTemplates by kind, complete stop list")
    _print(["kind", *COLUMNS, "rewritten"], _kinds(complete))
    print("\nWhy kinds fork, all stop lists")
    reasons = Counter(why for found in by_list.values() for _, one in found for why in one.reasons.values())
    _print(["reason", "kinds"], [[name, count] for name, count in reasons.most_common() if name != "template_refused"])
    late = Counter(why for found in by_list.values() for _, one in found for why in one.late.elements())
    if late:
        print("\nForks of single continuations where the kind is proven")
        _print(["reason", "continuations"], [list(pair) for pair in late.most_common()])
    lost = [(template, name, case) for template, found in outcomes for name, one in found.items() for case in one.lost]
    if name_cases:
        for template, found in outcomes:
            for name, one in found.items():
                for why, count in one.late.items():
                    print(f"late: {template.name} [{name}] {why} x{count}")
        for template, name, case in lost:
            print(f"lost: {template.name} [{name}] {case}")
    cases = {(template.name, name, case.partition(" #")[0]) for template, name, case in lost}
    templates = {name for name, *_ in cases}
    print(
        f"\n{len(lost)} continuations lost words of the new messages: {len(cases)} kinds of {len(templates)} templates"
    )
    return 1 if lost else 0


def _lists(by_list: dict[str, list[tuple[Template, Outcome]]]) -> Iterable[list]:
    for name in LISTS:
        found = [one for _, one in by_list.get(name, [])]
        if found:
            late, checked = (
                sum(count) for count in zip(*((one.late.total(), one.checked) for one in found), strict=True)
            )
            yield [name, len(found), *_counts(found), late, checked, sum(len(one.lost) for one in found)]


def _families(found: list[tuple[Template, Outcome]]) -> Iterable[list]:
    families = defaultdict(list)
    for template, outcome in found:
        families[template.family].append(outcome)
    for family, ones in sorted(families.items(), key=lambda pair: -len(pair[1])):
        yield [family, len(ones), *_counts(ones), sum(len(one.lost) for one in ones)]


def _kinds(found: list[tuple[Template, Outcome]]) -> Iterable[list]:
    for kind in KINDS:
        counts = Counter(outcome.verdicts[kind] for _, outcome in found)
        yield [kind, *(counts[column] for column in COLUMNS), sum(kind in outcome.rewrites for _, outcome in found)]


def _counts(found: list[Outcome]) -> list[int]:
    counts = Counter(verdict for one in found for verdict in one.verdicts.values())
    return [*(counts[column] for column in COLUMNS), sum(len(one.rewrites) for one in found)]


def _print(head: list[str], rows: Iterable[list]) -> None:
    lines = [head, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    for line in lines:
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        print("  ".join(cells))
