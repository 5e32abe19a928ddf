"""Write the page of a failure of the catalogue in Markdown: for `workbench explain` and for the documentation."""

import re
from collections.abc import Iterator

from analyzers.case.hypothesis import Case
from analyzers.explained import Explained
from analyzers.failures.catalogue import CATALOGUE, known
from analyzers.failures.entry import Advice, Failure, Text, write
from analyzers.hangs.findings import catalogue as hangs
from analyzers.hangs.findings.entry import HangFailure
from analyzers.hangs.findings.examples import example
from analyzers.logs.report import case_of
from analyzers.memory import explained as of_memory
from analyzers.steps import explained as of_steps
from analyzers.traces import explained as of_traces
from analyzers.words import full_sentence

CHAPTERS = {
    "software": "Installed software",
    "memory": "Memory of devices",
    "host": "Host memory, limits and schedulers",
    "hardware": "Devices and drivers",
    "network": "Networks",
    "checkpoints": "Checkpoints and files",
    "data": "Data loading",
    "autograd": "Autograd, precision and wrappers",
    "configuration": "Configuration",
    "startup": "Start of a job",
    "collectives": "Collectives",
    "hang": "Hangs, by dumps and stacks of ranks",
    "numerics": "Losses and gradients",
    "training": "Trainings that learn nothing, or wait",
    "processes": "Ends of processes",
    "exceptions": "Other exceptions",
}
"""{domain of an entry: the title of its chapter}, in the order of the documentation."""
MEASURED = {
    "memory": "Findings on memory snapshots",
    "steps": "Findings on step logs",
    "trace": "Findings on traces",
}
"""{first part of the ids of findings on numbers: the title of their chapter}."""
Entry = Failure | HangFailure | Explained
ENTRIES: tuple[Failure | HangFailure, ...] = (*CATALOGUE, *hangs.CATALOGUE)
FINDINGS: tuple[Explained, ...] = (*of_memory.EXPLAINED, *of_steps.EXPLAINED, *of_traces.EXPLAINED)
_NAME = re.compile(r"\{(\w+)\}")
_IN_SENTENCES = {"who": "a rank", "place": "", "step": "", "quote": "the message"}


def chapter(domain: str) -> list[Entry]:
    return [entry for entry in ENTRIES if entry.id.startswith(f"{domain}.")]


def page(entry: Entry, level: int = 1) -> str:
    heading = "#" * level
    if isinstance(entry, Explained):
        parts = _of_numbers(entry, heading)
    else:
        parts = _of_hang(entry, heading) if isinstance(entry, HangFailure) else _of_text(entry, heading)
    return "\n\n".join(parts) + "\n"


def _of_hang(entry: HangFailure, heading: str) -> Iterator[str]:
    """Yield the paragraphs of the page of an entry on hangs, with the sentences for an example."""
    cause = example(entry)
    yield f"{heading} {entry.id}"
    yield f"{entry.what}{f' Class of the verdict: `{entry.kind}`.' if entry.kind else ''}"
    if cause:
        yield f"**How it is said.** {_sentence(hangs.title(cause))}"
        yield f"**Why.** {_sentence(hangs.why(cause))}"
        yield f"**What to do.** {_sentence(hangs.next_step(cause))}"
    yield from _known(entry)


def _of_numbers(entry: Explained, heading: str) -> Iterator[str]:
    """Yield the paragraphs of the page of a finding on numbers."""
    yield f"{heading} {entry.id}"
    yield _sentence(entry.what)
    yield f"**How it is detected.** {_sentence(entry.tested)}"
    yield f"**What to do.** {_sentence(entry.next)}"
    yield from _ruled_out(entry.rules_out)


def _sentence(text: str) -> str:
    return full_sentence(text.rstrip("."))


def _known(entry: Failure | HangFailure) -> Iterator[str]:
    """Yield the paragraphs that entries of all kinds may have."""
    if entry.check:
        yield f"**How to be sure.** {_sentence(entry.check)}"
    yield from _ruled_out(entry.rules_out)


def _ruled_out(reason: str) -> Iterator[str]:
    if reason:
        yield f"**What rules it out.** {_sentence(reason)}"


def _of_text(entry: Failure, heading: str) -> Iterator[str]:
    """Yield the paragraphs of the page of an entry."""
    case = _example_case(entry)
    yield f"{heading} {entry.id}"
    yield f"{entry.what} Class of the verdict: `{entry.kind}`."
    if why := _written(entry.why, case):
        yield f"**Why.** {_sentence(why)}"
    steps = [step for advice in entry.next if (step := _step(advice, case))]
    if steps:
        yield "**What to do.**"
        yield "\n".join(f"{number}. {step[:1].upper()}{step[1:]}" for number, step in enumerate(steps, 1))
    yield from _known(entry)
    if entry.explains:
        yield f"**What follows from it.** {', '.join(f'`{name}`' for name in entry.explains)}"
    for shown in entry.examples[:1]:
        yield f"**How it shows{f' ({shown.source})' if shown.source else ''}.**"
        yield f"```text\n{shown.text.strip()}\n```"
    if entry.knowledge:
        yield f"**Source.** {entry.knowledge}"


def _example_case(entry: Failure) -> Case | None:
    case = case_of(entry.examples[0].text) if entry.examples else None
    return known(case)[1] if case else None


def _step(advice: Advice | Text, case: Case | None) -> str:
    """Return a step, with its numbers taken from the example; empty if only a case can tell it."""
    text, when = (advice.text, advice.when) if isinstance(advice, Advice) else (advice, None)
    # A text that is made for some cases may fail for others.
    if not isinstance(text, str) and when and not (case and when(case)):
        return ""
    return _written(text, case)


def _written(text: Text, case: Case | None) -> str:
    """Return a text of an entry: as for its example, or with names in place of what a case would fill in."""
    if isinstance(text, str):
        return _NAME.sub(lambda match: _IN_SENTENCES.get(match[1], f"<{match[1]}>"), text)
    return write(text, case) if case else ""
