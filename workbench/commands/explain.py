"""Implement `workbench explain`: say what a failure of the catalogue is, how it shows, and what to do."""

import difflib
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markdown import Markdown

from workbench.errors import UsageProblem
from workbench.present.failure_page import CHAPTERS, ENTRIES, FINDINGS, Entry, chapter, page


def explain(name: str | None, *, listed: bool) -> None:
    """Print the page of the failure `name`, or a line for each failure of this class, of this chapter, or at all."""
    if listed or name is None:
        _print_lines((*ENTRIES, *FINDINGS) if name is None else _found(name))
        return
    found = _found(name)
    if len(found) > 1:
        _print_lines(found)
        return
    text = page(found[0])
    if sys.stdout.isatty():
        Console(highlight=False).print(Markdown(text))
    else:
        print(text, end="")


def _found(name: str) -> list[Entry]:
    """Return the entries that a name means: an id, a finding's id such as `logs.oom`, a class, or a chapter.

    Raises:
        UsageProblem: There is none.
    """
    if exact := [entry for entry in (*ENTRIES, *FINDINGS) if entry.id == name]:
        return list(exact)
    last = name.rpartition(".")[2]
    found = [entry for entry in ENTRIES if entry.kind == last] or chapter(name)
    found = found or [entry for entry in ENTRIES if entry.id.partition(".")[2] == last]
    if not found:
        names = [
            *(entry.id for entry in (*ENTRIES, *FINDINGS)),
            *CHAPTERS,
            *{str(entry.kind) for entry in ENTRIES if entry.kind},
        ]
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "`workbench explain --list` prints all"
        raise UsageProblem(f"no failure {name}", hint)
    return list(found)


def _print_lines(entries: Sequence[Entry]) -> None:
    width = max(len(entry.id) for entry in entries)
    for entry in entries:
        print(f"{entry.id:{width}}  {entry.what}")
