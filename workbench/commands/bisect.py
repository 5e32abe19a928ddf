"""Implement `workbench bisect`: find the first operation that computes different values in two recorded runs."""

from pathlib import Path

from analyzers import parity
from analyzers.errors import Exit
from analyzers.rooms import limited_to
from analyzers.run import discover
from analyzers.store import Options
from workbench.command_options.options import FailOn, ShowOptions
from workbench.commands.output import deliver
from workbench.progress import shown_progress


def bisect(a: Path, b: Path, show: ShowOptions, tolerance: float | None, fail_on: FailOn | None) -> Exit:
    """Compare run `b` with run `a`, open an app or print the report, and return the exit status.

    `tolerance` is the largest relative difference that is allowed. None allows the differences that rounding can cause
    in each tensor's dtype.
    """
    options, runs = Options(), (discover(a), discover(b))
    if show.interactive and not fail_on:
        from workbench.tui.app import open_app
        from workbench.tui.subject import bisection

        open_app(bisection(*runs, options, tolerance))
        return Exit.OK
    with shown_progress(options, *runs) as options, limited_to(options, *runs):
        report = parity.bisect(*runs, options, tolerance)
    if show.web:
        from workbench.web.served_run import ServedRun
        from workbench.web.server import serve_view

        serve_view(ServedRun(runs[0], options, report, runs[1]), "bisect")
        return Exit.OK
    return deliver(report, show, runs[0], fail_on)
