"""Print a report or write it to a file, in the requested format, and choose the exit status."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from analyzers.errors import Exit, InputError
from analyzers.files import write_whole
from analyzers.report import Report, Severity
from analyzers.run import Run
from workbench.command_options.options import DocumentOptions, FailOn, Format
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.present import render

SUFFIXES = {".html": Format.HTML, ".md": Format.MARKDOWN, ".json": Format.JSON, ".txt": Format.TEXT}


def deliver(report: Report[object], document: DocumentOptions, run: Run, fail_on: FailOn | None = None) -> Exit:
    text = render(report, output_format(document), run)
    if document.output:
        with refusing_to_overwrite(document.output, force=document.force, inputs=run):
            write_whole(document.output, text)
        note(f"wrote {document.output}")
    else:
        sys.stdout.write(text)
    return exit_status(report, fail_on)


def output_format(document: DocumentOptions) -> Format:
    """Return the format from `--format` or `--json`, or from the suffix of the output file; by default text.

    Raises:
        UsageProblem: The suffix is unknown.
    """
    if document.asked_format:
        return document.asked_format
    if document.output is None:
        return Format.TEXT
    if document.output.suffix not in SUFFIXES:
        raise UsageProblem(f"{document.output}: no known format", f"name it {', '.join(SUFFIXES)}, or give --format")
    return SUFFIXES[document.output.suffix]


@contextmanager
def refusing_to_overwrite(path: Path, *, force: bool, inputs: Run | None = None) -> Iterator[None]:
    """Return a context for writing the file `path`; it refuses to overwrite a file unless `force` is set.

    Raises:
        UsageProblem: The file exists, and `force` is not set or the file is one of `inputs`.
        InputError: The file cannot be written.
    """
    try:
        if path.exists() and not force and not _is_device(path):
            raise UsageProblem(f"{path} exists", "choose another name, or add --force")
        if inputs and _is_one_of(path, inputs):
            raise UsageProblem(f"{path} is a file of the run itself", "choose another name: it would be lost")
        yield
    except OSError as error:
        why = f"{path} was not written: {error.strerror or error}"
        raise InputError(why, "choose a folder that exists, can be written to, and has space") from error


def _is_device(path: Path) -> bool:
    return path.is_char_device() or path.is_fifo()


def _is_one_of(path: Path, run: Run) -> bool:
    """Return whether a path leads to a file of the run, possibly by another name such as a link."""
    try:
        target = path.stat()
    except FileNotFoundError:
        return False
    return any(os.path.samestat(target, known) for known in statuses(run))


def statuses(run: Run) -> Iterator[os.stat_result]:
    for artefact in run.artefacts:
        with suppress(OSError):
            yield artefact.path.stat()


def exit_status(report: Report[object], fail_on: FailOn | None) -> Exit:
    worst = report.worst()
    failed = fail_on and worst and worst.weight >= Severity(fail_on).weight
    return Exit.FINDINGS if failed else Exit.OK
