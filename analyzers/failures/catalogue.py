"""Collect the entries of the catalogue, and find those that a text or a case shows."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from analyzers.case.facts import EventKind, LogClass, LogEvent
from analyzers.case.hypothesis import Case, Hypothesis, Role, Tier
from analyzers.case.wording import shortened
from analyzers.failures import (
    autograd,
    checkpoints,
    collectives,
    configuration,
    data,
    devices,
    exceptions,
    frameworks,
    hardware,
    harmless,
    host,
    mechanics,
    memory,
    network,
    numerics,
    processes,
    software,
    startup,
    training,
    versions,
)
from analyzers.failures.entry import Failure, text_of

CATALOGUE: tuple[Failure, ...] = (
    *software.ENTRIES, *memory.ENTRIES, *host.ENTRIES, *hardware.ENTRIES, *network.ENTRIES, *checkpoints.ENTRIES,
    *data.ENTRIES, *autograd.ENTRIES, *configuration.ENTRIES, *startup.ENTRIES, *collectives.ENTRIES, *numerics.ENTRIES,
    *training.ENTRIES, *devices.ENTRIES, *mechanics.ENTRIES, *harmless.ENTRIES, *frameworks.ENTRIES,
    *versions.ENTRIES, *processes.ENTRIES, *exceptions.ENTRIES,
)  # fmt: skip
"""All entries; where two show by the same text, the one that comes first is the more specific."""
BY_ID = {entry.id: entry for entry in CATALOGUE}
_TEXTUAL = [entry for entry in CATALOGUE if entry.signs]
_OF_LINES = [entry for entry in _TEXTUAL if entry.event]
_CLUES = [one for entry in CATALOGUE for one in entry.clues]
LINE_WORDS = tuple(dict.fromkeys(word for entry in CATALOGUE for word in entry.words))
"""The words of which each line has one that is read as an event only because an entry knows it."""


_WARNING = re.compile(r"^(?:\[rank\d+\]:\s?)?\S{1,300}:\d{1,6}: \w{0,30}Warning: ")
"""Matches a line of Python's module `warnings`: the program goes on."""


@lru_cache(maxsize=4096)
def shown_by(text: str) -> tuple[Failure, ...]:
    """Return the entries of which a text shows a sign, the most specific first."""
    return tuple(entry for entry in _TEXTUAL if next(entry.matches(text), None))


def kind_of_line(text: str) -> EventKind | None:
    """Return the kind of event that a line outside a traceback reports by the catalogue; None if it is not known."""
    return next((entry.event for entry in _OF_LINES if next(entry.matches(text), None)), None)


def is_clue(text: str) -> bool:
    """Return whether a line is a clue of an entry: no failure, and yet what tells one failure from another."""
    return any(one.word in text and one.expression.search(text) for one in _CLUES)


def role_of(event: LogEvent) -> Role | None:
    """Return the class and tier that the catalogue gives to an event; None if no entry with a text knows it."""
    shown = () if event.kind is EventKind.CLUE else shown_by(text_of(event))
    # A line is an event only because an entry knows it; an exception is one also where no condition holds.
    rest = shown[0] if shown and event.kind is EventKind.KNOWN else None
    entry = next((entry for entry in shown if entry.when is None or _holds_alone(entry, event)), rest)
    if not entry or entry.kind is LogClass.HEALTHY:
        return None
    is_warning = event.kind is not EventKind.EXCEPTION and _WARNING.match(event.message)
    return Role(entry.kind, Tier.WARNED if is_warning else entry.tier)


def _holds_alone(entry: Failure, event: LogEvent) -> bool:
    """Return whether the condition of an entry holds for one event, before events are joined."""
    role = Role(entry.kind, entry.tier)
    case = Case(entry.kind, [], Hypothesis(role, [event], [], (0, 0, 0, 0, 0)), events=(event,))
    return _given(entry, text_of(event), case) is not None


def _given(entry: Failure, text: str, case: Case) -> Case | None:
    """Return a case with what a text gives for the names in the texts of an entry; None if its condition does not hold.

    The text shows a sign of the entry.
    """
    match = next(entry.matches(text))
    given = {name: value or "" for name, value in match.groupdict().items()}
    case = replace(case, given=given, quote=_line_of(text, match))
    return case if entry.when is None or entry.when(case) else None


def known(case: Case) -> tuple[Failure, Case]:
    """Return the entry that a case shows, and the case with what its text gives for the names in the entry's texts."""
    events = _lead_first(case)
    # An exception without an entry of its own may come from one with an entry.
    texts = [*map(text_of, events), *(link for event in events for link in reversed(event.chain))]
    # A console or an e-mail may have broken a message within a phrase.
    texts += [" ".join(text.split()) for text in texts[: len(events)] if "\n" in text]
    shown = [(e, its) for text in texts for e in shown_by(text) if (its := _given(e, text, case))]
    # A message may quote what follows from it, and a later event of the same failure may say where it comes from.
    roots = [(e, its) for e, its in shown if not any(o.does_explain(e, case.failure) for o, _ in shown if o is not e)]
    if shown:
        return (roots or shown)[0]
    return next(entry for entry in CATALOGUE if not entry.signs and entry.when and entry.when(case)), case


def _line_of(text: str, match: re.Match[str]) -> str:
    """Return the line of a text that a match begins in, shortened; empty if it is the first line."""
    shown = match.start() + len(match[0]) - len(match[0].lstrip())
    begin = text.rfind("\n", 0, shown) + 1
    return shortened(" ".join(text[begin:].partition("\n")[0].split())) if begin else ""


def _lead_first(case: Case) -> Sequence[LogEvent]:
    """Return the events of the winning hypothesis, the one that shows the cause best first."""
    return [case.lead, *(event for event in case.failure.events if event is not case.lead)]
