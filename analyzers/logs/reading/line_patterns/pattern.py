"""Define `Pattern`, which recognises a kind of log line and turns each such line into an event.

A pattern has a word that the line must contain, a regular expression that it must match, and a function that takes
the match and returns the event.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from analyzers.case.facts import EventKind, Facts, Reason


class Found(NamedTuple):
    """An event that a log line reports, without its position in the log, which is added later.

    `rank` is a global rank; ranks within a process group are in `facts`. `group` is the name of the process group,
    `seq` the sequence number of the operation.
    """

    kind: EventKind
    facts: Facts = Facts()
    rank: int | None = None
    group: str | None = None
    seq: int | None = None


Build = Callable[["re.Match[str]"], Found | None]


class Pattern(NamedTuple):
    """A kind of log line: a word in it, an expression that it matches, and a function that returns its event.

    `word` has no digits, because it is looked up in lines whose digits were removed. `build` may return None for a
    match that reports nothing.
    """

    word: str
    expression: "re.Pattern[str]"
    build: Build


def pattern(word: str, expression: str, build: Build) -> Pattern:
    """Return a `Pattern` of lines that contain `word` and match the regular expression `expression`.

    `build` returns the event of a match.
    """
    return Pattern(word, re.compile(expression), build)


def plain(word: str, kind: EventKind, reason: Reason | None = None, expression: str = "") -> Pattern:
    """Return a `Pattern` whose event always has this `kind` and `reason`, and no facts from the line.

    Without `expression` the line only has to contain `word`.
    """
    found = Found(kind, Facts(reason=reason))
    return Pattern(word, re.compile(expression or re.escape(word)), lambda _: found)


def number(text: str | None) -> int | None:
    """Return the text that a group of a regular expression matched, as an integer.

    The result is None if the group did not match, or if the text is longer than any valid number.
    """
    return int(text) if text and len(text) < 19 else None


def numbers(text: str) -> list[int]:
    """Return the numbers in a text such as `4, 5, 7`."""
    return [int(digits) for digits in re.findall(r"\d{1,9}", text)]
