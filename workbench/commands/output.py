"""How does an answer leave a command: printed or written to a file, in which format, with which exit status?"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from analyzers.errors import Exit, InputError
from analyzers.report import Report, Severity
from analyzers.run import Run
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.options import Document, FailOn, Format
from workbench.present import render

SUFFIXES = {".html": Format.HTML, ".md": Format.MARKDOWN, ".json": Format.JSON, ".txt": Format.TEXT}


def deliver(report: Report[Any], asked: Document, run: Run, fail_on: FailOn | None = None) -> Exit:
    """Print the report or write it to a file; the exit status of the contract."""
    text = render(report, output_format(asked), run)
    if asked.output:
        save(text, asked.output, force=asked.force)
        note(f"wrote {asked.output}")
    else:
        sys.stdout.write(text)
    return exit_status(report, fail_on)


def output_format(asked: Document) -> Format:
    """What was asked for, else what the file's name says, else text."""
    if asked.form:
        return asked.form
    if asked.output and asked.output.suffix not in SUFFIXES:
        raise UsageProblem(f"{asked.output}: no known format", f"name it {', '.join(SUFFIXES)}, or give --format")
    return SUFFIXES[asked.output.suffix] if asked.output else Format.TEXT


def save(text: str, path: Path, *, force: bool) -> None:
    """Write a document, but not over one that is there."""
    with writing(path, force=force):
        path.write_text(text)


@contextmanager
def writing(path: Path, *, force: bool) -> Iterator[None]:
    """Guards the writing of a file: refuses to overwrite one, and tells in words why it cannot be written."""
    if path.exists() and not force:
        raise UsageProblem(f"{path} exists", "choose another name, or add --force")
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "choose a folder that exists and can be written to") from error


def exit_status(report: Report[Any], fail_on: FailOn | None) -> Exit:
    worst = report.worst()
    if fail_on and worst and worst.weight >= Severity(fail_on).weight:
        return Exit.FINDINGS
    return Exit.OK
