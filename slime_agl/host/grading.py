"""Rule-based grading of answers, without a computer algebra system."""

from __future__ import annotations

import re
import string
from collections import Counter
from fractions import Fraction

_FRACTION = re.compile(r"-?\d+/\d+")
_LATEX_FRACTION = re.compile(r"\\frac\{(-?\d+)\}\{(\d+)\}|\\frac(\d)(\d)")
_NAME = re.compile(r"[a-z]{1,2}=(?=[^=]*$)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?:\D|$))")
_TEXT = re.compile(r"\\(?:text|mathrm|mathbf)\{([^{}]*)\}")
_NOISE = re.compile(r"\\left|\\right|\\!|\\,|\\;|\\\$|\$|\\?%|\^\{?\\circ\}?|\s+")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


def boxed_answer(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` in `text`; None without one, or if it is not closed."""
    start = text.rfind("\\boxed{")
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
    r"""Return True if the last boxed answer of `response` equals `label`, which may itself be boxed.

    Answers are equal when their texts are, after LaTeX spacing, `\text`, dollar and percent signs,
    degrees, thousands separators and a leading `x=` are removed; or when both are numbers of the
    same value. A fraction is not equal to a whole number, nor to a fraction written otherwise.
    slime also strips units and compares symbolically: `a+b` and `b+a` differ here and agree there.
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
    value = _number(answer)
    if value is None or value != _number(truth):
        return False
    fractions = sum(_FRACTION.fullmatch(text) is not None for text in (answer, truth))
    return fractions == 0 or (fractions == 1 and value.denominator != 1)


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
    text = _NAME.sub("", _THOUSANDS.sub("", text), count=1)
    return _LATEX_FRACTION.sub(lambda match: "/".join(group for group in match.groups() if group), text)


def _number(text: str) -> Fraction | None:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None


def _words(text: str) -> list[str]:
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return _ARTICLES.sub(" ", bare).split()
