"""`workbench bisect`: the first operation that two recorded runs compute otherwise."""

from pathlib import Path

from analyzers import parity
from analyzers.errors import Exit
from analyzers.run import discover
from analyzers.store import Options
from workbench.ask import limited_to
from workbench.command_options.options import DocumentOptions, FailOn
from workbench.commands.output import deliver
from workbench.progress import shown_progress


def bisect(a: Path, b: Path, document: DocumentOptions, tolerance: float | None, fail_on: FailOn | None) -> Exit:
    """Compare run `b` with run `a`, print the report, and return the exit status.

    `tolerance` is the relative difference that is allowed; None: the rounding of each tensor's dtype.
    """
    options, runs = Options(), (discover(a), discover(b))
    with shown_progress(*runs), limited_to(options, *runs):
        report = parity.bisect(*runs, options, tolerance)
    return deliver(report, document, runs[0], fail_on)
