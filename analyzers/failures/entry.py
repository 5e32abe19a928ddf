"""Define an entry of the catalogue: how a failure shows, what it explains, what is said of it, and what to do."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from analyzers.case.context import Context
from analyzers.case.facts import EventKind, LogClass, LogEvent
from analyzers.case.hypothesis import Case, Hypothesis, Tier
from analyzers.case.wording import at_line, at_step, place, quoted, shortened, who
from analyzers.report import shortened_headline

Text = str | Callable[[Case], str]
"""A text of an entry, or a function that writes it.

In a text, `{who}` stands for the ranks, `{place}` and `{step}` for the user's line and the last step, with a blank
before each (all empty if unknown), `{quote}` for the first line of the message, and any other name for what the named
group of the sign has matched.
"""
_DOMAINS = {
    LogClass.OOM: ("memory",),
    LogClass.HOST_OOM: ("host", "memory"),
    LogClass.CRASHED: ("exceptions",),
    LogClass.SIGNAL: ("processes",),
    LogClass.EXIT_CODE: ("processes",),
    LogClass.TERMINATED: ("processes",),
    LogClass.DATALOADER_WORKER: ("data",),
    LogClass.HARDWARE: ("hardware",),
    LogClass.NETWORK: ("network",),
    LogClass.MISMATCH: ("collectives",),
    LogClass.COLLECTIVE_TIMEOUT: ("collectives",),
    LogClass.EARLY_EXIT: ("collectives",),
    LogClass.NONFINITE_LOSS: ("numerics",),
    LogClass.STARTUP: ("startup",),
}
"""{class of a failure that no text tells apart: the chapters that know it}."""
_TEXT_AT_MOST, _SENTENCES_AT_MOST = 6000, 2000


@dataclass(frozen=True)
class Sign:
    """A text by which a failure shows.

    `word` is in each such text, in the same case, and has no digits: it is looked up first, also in lines whose digits
    were removed. `expression` is searched in the message of an exception with its further lines, or in a single line.
    """

    word: str
    expression: re.Pattern[str]


def sign(word: str, expression: str = "") -> Sign:
    """Return the sign of texts that have `word` and match `expression` (empty: any text with the word).

    The dot of an expression matches no line end.
    """
    return Sign(word, re.compile(expression or re.escape(word), re.MULTILINE))


@dataclass(frozen=True)
class Advice:
    """One thing to try next; `when` says for which cases it is meant (None: for all)."""

    text: Text
    when: Callable[[Case], bool] | None = None


@dataclass(frozen=True)
class Example:
    """A text that shows a failure as people met it.

    `source` is where it was published, such as `pytorch/pytorch#1234`; it is empty for a text that was written for the
    catalogue. `says` are words that the answer has for this text.
    """

    text: str
    source: str = ""
    says: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One failure that the workbench knows, with all that is known of it.

    `id` is its name, `domain.name`; `kind` is the class that a verdict gets from it. `what` says in a sentence or two
    what it is. It shows by one of the `signs` in a text, and where `when` is given only in cases for which that is
    true; without signs, `when` alone decides. `clues` are lines that are no failure, such as warnings, and that `when`
    may ask for by `case.printed(...)` wherever they stand in the log.

    `headline` has at most 90 characters, `why` is the mechanism. `next` is what to try, the best first, as far as its
    conditions hold. `check` says how to be sure of the cause, `rules_out` what would speak against it, and `knowledge`
    where all this comes from. `explains` names other failures that follow from this one although they may be printed
    first: ids, or whole domains as in `network.*`. `tier` rates how near to the root such failures are. `event` is the
    kind of event that a line outside a traceback becomes; None means that only exceptions show it.
    """

    id: str
    kind: LogClass
    what: str
    headline: Text
    why: Text
    next: tuple[Advice | Text, ...]
    signs: tuple[Sign, ...] = ()
    clues: tuple[Sign, ...] = ()
    when: Callable[[Case], bool] | None = None
    sentence: Text | None = None
    check: str = ""
    rules_out: str = ""
    explains: tuple[str, ...] = ()
    tier: Tier = Tier.OWN_FAILURE
    event: EventKind | None = None
    examples: tuple[Example, ...] = ()
    near_misses: tuple[str, ...] = ()
    knowledge: str = ""

    @property
    def is_specific(self) -> bool:
        """Whether the entry knows a cause, and is not only the rest of its class."""
        return not self.id.startswith(("exceptions.", "processes.unknown", "processes.exit_code"))

    @property
    def domain(self) -> str:
        """The first part of the id: the chapter of the catalogue."""
        return self.id.partition(".")[0]

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """Yield the match of each sign that the text shows."""
        for one in self.signs:
            if one.word in text and (match := one.expression.search(text)):
                yield match

    def does_explain(self, other: "Failure | None", hypothesis: Hypothesis) -> bool:
        """Return whether another hypothesis, whose text the entry `other` knows, follows from this failure.

        Without such an entry the class of the hypothesis is compared with the last part of the names in `explains`.
        """
        if other is not None:
            return other.id in self.explains or f"{other.domain}.*" in self.explains
        return any(name.partition(".")[2] == hypothesis.role.kind for name in self.explains) or any(
            f"{domain}.*" in self.explains for domain in _DOMAINS.get(hypothesis.role.kind, ())
        )

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words that a line must have to be read because of this entry."""
        lines = self.signs if self.event else ()
        return tuple(dict.fromkeys(one.word for one in (*lines, *self.clues)))


def text_of(event: LogEvent) -> str:
    """Return the whole message of an event, as far as it is kept."""
    text = f"{event.message}\n{event.details}" if event.details else event.message
    return text[:_TEXT_AT_MOST]


def write(text: Text, case: Case) -> str:
    """Return a text of an entry for a case, with the names in it filled in."""
    if not isinstance(text, str):
        return " ".join(text(case).split())[:_SENTENCES_AT_MOST]
    lead = case.lead
    names = {
        "who": who(case.ranks),
        "place": place(lead),
        "step": at_step(lead),
        "quote": case.quote or quoted(lead),
    }
    # What a text gives may have line ends, and any length.
    given = {name: shortened(value) for name, value in case.given.items()}
    return " ".join(text.format_map({**given, **names}).split()) if "{" in text else text


def next_steps(entry: Failure, case: Case) -> list[str]:
    """Return what to try next in a case of this failure, the best first.

    Left out is what the logs show to be done already, or what there is not on the job's system.
    """
    given = (step if isinstance(step, Advice) else Advice(step) for step in entry.next)
    steps = [written for step in given if (not step.when or step.when(case)) and (written := write(step.text, case))]
    fitting = [_fitted(step, case.context) for step in steps]
    fitting = [step for step in fitting if step] or steps
    package = _only_package(case) if entry.domain == "autograd" else ""
    if not package or any(package in step for step in fitting[:1]):
        return fitting
    first = (
        f"no frame shown is of your own code: if you changed nothing in {package}, look for this message among its issues, and take"
        f" a version of it that fits (`pip show {package}`); what follows is for the line itself"
    )
    return [first, *fitting]


_IN_PACKAGE = re.compile(r"(?:site|dist)-packages[/\\]([A-Za-z]\w{1,60})[/\\]")
_FRAMES_AT_LEAST = 3


def _only_package(case: Case) -> str:
    """Return the innermost package beside PyTorch if no frame of an exception is of the user's code; empty otherwise."""
    calls = case.lead.calls
    source = case.lead.source or ""
    # Without a frame of the user's code, the source of an event is that of its innermost frame.
    if len(calls) < _FRAMES_AT_LEAST or (source and not _IN_PACKAGE.search(source)):
        return ""
    packages = [match[1] for call in calls if (match := _IN_PACKAGE.search(call))]
    return next((name for name in reversed(packages) if name not in ("torch", "torchrun")), "")


_SETTING = re.compile(
    r"(?<![\w.$-])(-{0,2}[A-Za-z_][\w.-]*)=['\"]?([\w.-]*\w)['\"]?(?![\w(\[.=])|(?<![\w-])(--[a-z][\w-]+)(?![\w=-])"
)
"""Matches a setting in an advice: `name=value`, or an option."""
_NOT = re.compile(r"\b(?:not|never|without|instead of)\b[^;:]{0,40}$")
_NOT_ON_WINDOWS = re.compile(
    r"`(?:dmesg|ulimit|ldd|apt|sysctl|free|ss|getent|df|strings|sacct|lsmod)\b|\b(?:apt-get|modprobe|systemctl|ldconfig)\b"
    r"|\bLD_(?:LIBRARY_PATH|PRELOAD)\b|/dev/shm\b|--shm-size"
)
_BF16 = re.compile(r"(?i)\bbf(?:loat)?16\b")


def _without_unix(step: str) -> str:
    """Return an advice without its parts on what Windows does not have."""
    for between, at_least in (("; ", 2), (", ", 3)):
        parts = step.split(between)
        if len(parts) >= at_least:
            return between.join(part for part in parts if not _NOT_ON_WINDOWS.search(part))
    return "" if _NOT_ON_WINDOWS.search(step) else step


def _fitted(step: str, context: Context) -> str:
    """Return an advice with what the logs say against it; empty if nothing of it is left to do."""
    settings = [
        (match[1] or match[3], match[2] or "")
        for match in _SETTING.finditer(step)
        if not _NOT.search(step[: match.start()])
    ]
    done = [name if not value else f"{name}={value}" for name, value in settings if context.has(name, value)]
    if settings and len(done) == len(settings):
        return ""
    if context.is_windows and "Windows" not in step:
        step = _without_unix(step)
    if done:
        names = list(dict.fromkeys(done))
        step += f" ({' and '.join(f'`{one}`' for one in names)} {'is' if len(names) == 1 else 'are'} set already)"
    gpu = context.gpu_without_bf16
    if gpu and _BF16.search(step) and gpu not in step:
        step += f" (the {gpu} in this text has no bf16 of its own)"
    return step


def headline(entry: Failure, case: Case) -> str:
    """Return the headline of a case of this failure: at most 90 characters."""
    return shortened_headline(write(entry.headline, case))


def sentence(entry: Failure, case: Case) -> str:
    """Return the whole sentence on a case of this failure: the headline, where, when, and what was printed."""
    if entry.sentence is not None:
        return write(entry.sentence, case)
    head, lead = write(entry.headline, case), case.lead
    # Behind a headline, "in" would read as a claim about the thing before it.
    where = "" if place(lead) and place(lead) in head else at_line(lead)
    when = "" if re.search(r"\bstep \d", head) else at_step(lead)
    quote = case.quote or quoted(lead)
    return f"{head}{where}{when}" + (f": {quote}" if quote and quote not in head else "")
