"""Rule-based grading of an answer text, without a computer algebra system."""

from __future__ import annotations

import re
import string
from collections import Counter
from fractions import Fraction

_FRACTION = re.compile(r"(-?)\\frac\{(-?\d+)\}\{(-?\d+)\}|(-?\d+)/(\d+)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?:\D|$))")
_SHORT_FRACTION = re.compile(r"\\frac(\d)(\d)")
_TEXT = re.compile(r"\\(?:text|mathrm|mathbf)\{([^{}]*)\}")
_NOISE = re.compile(r"\\left|\\right|\\!|\\,|\\;|\\\$|\$|\\?%|\^\{?\\circ\}?|\s+")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


def boxed_answer(text: str) -> str | None:
    r"""What the last `\boxed{...}` (or `\fbox{...}`) of `text` holds; None without one, or when it is not closed."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    start = text.index("{", start)
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + 1 : at]
    return None


def math_correct(response: str, label: object) -> bool:
    r"""Whether the last boxed answer of `response` is `label`, which may itself be boxed.

    Answers are equal when their texts are, after LaTeX spacing, `\text`, dollar and percent signs,
    degrees and thousands separators are removed; or when both are numbers of the same value. A
    fraction is not equal to a whole number, nor to a fraction written otherwise. slime grades
    symbolically beyond that: `\sqrt{8}` and `2\sqrt{2}` differ here and agree there.
    """
    answer = boxed_answer(response)
    truth = str(label or "")
    if "\\boxed" in truth:
        truth = boxed_answer(truth) or ""
    if answer is None or not truth:
        return False
    answer, truth = _plain(answer), _plain(truth)
    if answer == truth:
        return True
    numbers = _number(answer), _number(truth)
    if None in numbers or numbers[0] != numbers[1]:
        return False
    fractions = [_FRACTION.fullmatch(text) is not None for text in (answer, truth)]
    return not all(fractions) and not (any(fractions) and numbers[0].denominator == 1)


def f1(response: str | None, label: str) -> float:
    """Harmonic mean of precision and recall over words, as SQuAD counts them; yes and no must match whole."""
    if response is None:
        return 0.0
    said, truth = _words(response), _words(label)
    if said != truth and not _CLOSED_ANSWERS.isdisjoint({" ".join(said), " ".join(truth)}):
        return 0.0
    shared = (Counter(said) & Counter(truth)).total()
    return 2.0 * shared / (len(said) + len(truth)) if shared else 0.0


def _plain(text: str) -> str:
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = _NOISE.sub("", _TEXT.sub(r"\1", text)).rstrip(".").lower()
    return _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", _THOUSANDS.sub("", text))


def _number(text: str) -> Fraction | None:
    match = _FRACTION.fullmatch(text)
    try:
        if match is None:
            return Fraction(text)
        sign, over, under, plain_over, plain_under = match.groups()
        if plain_over is not None:
            return Fraction(int(plain_over), int(plain_under))
        return Fraction(int(over), int(under)) * (-1 if sign else 1)
    except (ValueError, ZeroDivisionError):
        return None


def _words(text: str) -> list[str]:
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return _ARTICLES.sub(" ", bare).split()
