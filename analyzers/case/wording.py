"""Write the phrases that occur in several sentences about logs."""

import re

from analyzers.case.facts import LogEvent
from analyzers.case.hypothesis import Case
from analyzers.words import process_group, rank_names, source_line

MESSAGES = {"send", "recv", "isend", "irecv", "batch_isend_irecv", "wait"}
"""The functions of torch.distributed that send to or receive from one rank."""
NEW_GROUP = "new_group"
_MESSAGE_LENGTH = 240
BAR = re.compile(r"^.{0,60}?\d{1,3}%\|[^|]{0,200}\|[^\[\n]{0,40}\[[^\]\n]{0,120}\]\s*(?=\S)")
"""Matches a progress bar before a message in one line."""
_TIME_PREFIX_LENGTH = 120


def who(ranks: list[int], otherwise: str = "a process") -> str:
    """Return ranks as `rank 1` or `ranks 0-3`; `otherwise` if the list is empty."""
    return rank_names(ranks) if ranks else otherwise


def place(event: LogEvent) -> str:
    """Return the user's function and line of an event as ` in load (data/text.py:41)`; empty if they are not known."""
    if not event.source:
        return ""
    file, _, line = event.source.rpartition(":")
    where = source_line(file, int(line))
    # Code outside of functions has the name <module>, which reads like a gap.
    named = event.function and event.function != "<module>"
    return f" in {event.function} ({where})" if named else f" in {where}"


def at_line(event: LogEvent) -> str:
    """Return the line of an event, to follow an operation, as ` (data/text.py:41, in load)`; empty if it is not known.

    After the name of an operation, `place` would read as if the operation were in another one: `all_reduce in load`.
    """
    if not event.source:
        return ""
    file, _, line = event.source.rpartition(":")
    named = event.function and event.function != "<module>"
    return f" ({source_line(file, int(line))}{f', in {event.function}' if named else ''})"


def at_step(event: LogEvent) -> str:
    """Return the last step printed before an event as ` after step 6`; empty if no step is known."""
    return f" after step {event.step}" if event.step is not None else ""


def quoted(event: LogEvent) -> str:
    """Return the first line of an event's message, shortened to fit into a sentence."""
    # What underlines a line of a traceback may stand before the message of another rank in the same line.
    line = event.headline.lstrip("^~ ") or event.headline
    return shortened(" ".join(BAR.sub("", line).split()) or line)


def shortened(text: str) -> str:
    """Return a text cut to the length that fits into a sentence."""
    return text if len(text) <= _MESSAGE_LENGTH else text[: _MESSAGE_LENGTH - 1] + "…"


def operation_name(event: LogEvent) -> str:
    """Return the name of an event's collective, as far as logged: `ALLREDUCE #4411 of process group default_pg`."""
    name = event.facts.operation or "the collective"
    number = f" #{event.seq}" if event.seq is not None else ""
    return name + number + (f" of {process_group(event.group)}" if event.group else "")


def first_with(case: Case, name: str) -> LogEvent:
    """Return the first event of a cause whose `facts` have the field `name`, or else its most informative event."""
    return next((e for e in case.failure.events if getattr(e.facts, name)), case.lead)
