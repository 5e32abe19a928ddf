"""Answer a question about the files of a run: from the cache, or by an analysis.

This module loads the analyzers only if they are needed. So an answer from the cache takes only a third of the time.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from analyzers.errors import Exit
from analyzers.rooms import ask, find_run, room_for
from workbench.command_options.options import FailOn, Format, ReadOptions, ShowOptions
from workbench.commands import output
from workbench.commands.output import deliver, exit_status, output_format

VARIABLE = "OPENBLAS_NUM_THREADS"


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let NumPy start no threads if it is imported in this context, unless the user has set the number of threads.

    When NumPy is loaded, its linear algebra library starts a thread for each processor. The threads wait busily for
    work, and the analyzers have no such work. The environment variable is set only inside this context, because jobs
    that this process starts would inherit it.
    """
    given = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = given or "1"
    try:
        yield
    finally:
        if given is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = given


def answer(
    room: str | None, paths: Sequence[Path], read: ReadOptions, show: ShowOptions, fail_on: FailOn | None
) -> Exit:
    """Analyse the files at the paths, and open an app or print the report, as `show` says.

    `room` is the name of a room, such as "memory"; None lets the files decide. The exit status says whether a
    finding is at least as severe as `fail_on`.
    """
    key = output.key_of(room, paths, read) if _is_kept_form(show) else None
    kept = output.find(key) if key else None
    if kept:
        sys.stdout.write(printed(kept, output_format(show), full=show.full))
        return exit_status(kept.report, fail_on)
    with one_blas_thread():
        from workbench.commands import analyse
    from workbench.progress import shown_progress

    options, run = analyse.reader_options(read), find_run(paths)
    name = room or room_for(run)
    if show.interactive:
        return analyse.open_app(run, name, options)
    if show.web:
        from workbench.web.server import serve_report

        serve_report(run, name, options)
        return Exit.OK
    with shown_progress(options, run) as options:
        report = ask(name, run, options)
    # Files that changed during the analysis have another key now.
    if key and not output.may_change(report, run) and key == output.key_of(room, paths, read):
        output.keep(key, analyse.kept_report(report, run))
    return deliver(report, show, run, fail_on)


def _is_kept_form(show: ShowOptions) -> bool:
    """Return whether the report is to be printed as text or JSON; only then a stored report can be used."""
    shown = show.interactive or show.web or show.output or show.debug
    return not shown and output_format(show) in (Format.TEXT, Format.JSON)


def printed(kept: output.KeptReport, form: Format, *, full: bool = True) -> str:
    """Return a stored report as a document; it is the same document as was printed when the report was made."""
    if form is Format.JSON:
        return kept.report.json().decode() + "\n"
    from workbench.present.text import laid_out

    return laid_out(kept.report, kept.tables, kept.more, full=full)
