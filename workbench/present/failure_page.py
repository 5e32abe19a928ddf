"""Write the page of a failure of the catalogue in Markdown: for `workbench explain` and for the documentation."""

import re
from collections.abc import Iterator

from analyzers.case.hypothesis import Case
from analyzers.failures.catalogue import CATALOGUE, known
from analyzers.failures.entry import Advice, Failure, Text, write
from analyzers.logs.report import case_of

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
    "numerics": "Losses and gradients",
    "training": "Trainings that learn nothing, or wait",
    "processes": "Ends of processes",
    "exceptions": "Other exceptions",
}
"""{domain of an entry: the title of its chapter}, in the order of the documentation."""
_NAME = re.compile(r"\{(\w+)\}")
_IN_SENTENCES = {"who": "a rank", "place": "", "step": "", "quote": "the message"}


def chapter(domain: str) -> list[Failure]:
    """Return the entries of one domain, in the order of the catalogue."""
    return [entry for entry in CATALOGUE if entry.domain == domain]


def page(entry: Failure, level: int = 1) -> str:
    """Return the page of an entry; `level` is that of its heading."""
    return "\n\n".join(_parts(entry, "#" * level)) + "\n"


def _parts(entry: Failure, heading: str) -> Iterator[str]:
    """Yield the paragraphs of the page of an entry."""
    case = _example_case(entry)
    yield f"{heading} {entry.id}"
    yield f"{entry.what} Class of the verdict: `{entry.kind}`."
    if why := _written(entry.why, case):
        yield f"**Why.** {why[:1].upper()}{why[1:].rstrip('.')}."
    steps = [step for advice in entry.next if (step := _step(advice, case))]
    if steps:
        yield "**What to do.**"
        yield "\n".join(f"{number}. {step[:1].upper()}{step[1:]}" for number, step in enumerate(steps, 1))
    if entry.check:
        yield f"**How to be sure.** {entry.check}"
    if entry.rules_out:
        yield f"**What rules it out.** {entry.rules_out[:1].upper()}{entry.rules_out[1:].rstrip('.')}."
    if entry.explains:
        yield f"**What follows from it.** {', '.join(f'`{name}`' for name in entry.explains)}"
    for example in entry.examples[:1]:
        yield f"**How it shows{f' ({example.source})' if example.source else ''}.**"
        yield f"```text\n{example.text.strip()}\n```"
    if entry.knowledge:
        yield f"**Source.** {entry.knowledge}"


def _example_case(entry: Failure) -> Case | None:
    """Return the case of the entry's first example; None without one."""
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
