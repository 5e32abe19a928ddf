"""The phrases that several sentences about logs share."""

from analyzers.logs.answers.cause import Cause
from analyzers.logs.model import LogEvent
from analyzers.words import rank_names, source_line

MESSAGE_LENGTH = 240
TIME_PREFIX_LENGTH = 120


def who(ranks: list[int], otherwise: str = "a rank") -> str:
    """Return `rank 1` or `ranks 0-3`; `otherwise` if no rank is known."""
    return rank_names(ranks) if ranks else otherwise


def place(event: LogEvent) -> str:
    """Return ` in load (data/text.py:41)`; empty where the log has no traceback."""
    if not event.source:
        return ""
    file, _, line = event.source.rpartition(":")
    where = source_line(file, int(line))
    return f" in {event.function} ({where})" if event.function else f" in {where}"


def at_step(event: LogEvent) -> str:
    """Return ` after step 6`: the last step printed before the event; empty where no step is known."""
    return f" after step {event.step}" if event.step is not None else ""


def quoted(event: LogEvent) -> str:
    """Return the first line of an event's message, cut to a length that fits in a sentence."""
    text = event.headline
    return text if len(text) <= MESSAGE_LENGTH else text[: MESSAGE_LENGTH - 1] + "…"


def operation_name(event: LogEvent) -> str:
    """Return `ALLREDUCE #4411 of default_pg`, as far as the log has it."""
    name = event.facts.operation or "the collective"
    number = f" #{event.seq}" if event.seq is not None else ""
    return name + number + (f" of {event.group}" if event.group else "")


def first_with(cause: Cause, name: str) -> LogEvent:
    """Return the first event of a cause that has a fact of this name, else the one that says most."""
    return next((e for e in cause.failure.events if getattr(e.facts, name)), cause.lead)
