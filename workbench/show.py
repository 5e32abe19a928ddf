"""Which face an answer gets: the terminal app, the dashboard, or a document on stdout or in a file."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzers.errors import Exit, InputError
from analyzers.report import Report, Severity
from analyzers.run import Run, discover, newest_step, selected
from analyzers.store import Options
from workbench.ask import ROOMS, ask, find, require, room_for
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.options import FailOn, Format
from workbench.present import render
from workbench.present.anonymous import anonymised

SUFFIXES = {".html": Format.HTML, ".md": Format.MARKDOWN, ".json": Format.JSON, ".txt": Format.TEXT}
UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


@dataclass(frozen=True)
class Look:
    """How an answer is to be shown."""

    printed: Format | None = None
    output: Path | None = None
    force: bool = False
    no_tui: bool = False
    web: bool = False
    fail_on: FailOn | None = None

    @property
    def interactive(self) -> bool:
        """Whether the terminal app opens: on a terminal, when no document was asked for."""
        asked_for_document = self.printed or self.output or self.no_tui
        return not asked_for_document and on_terminal()


def on_terminal() -> bool:
    """Whether the terminal app can run: it reads keys from stdin and draws on stderr."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def reading(*, rank: int | None, step: int | None, jobs: int | None, cache: bool, max_memory: str | None) -> Options:
    """Reading options out of what the command line says."""
    chosen: dict[str, Any] = {"jobs": jobs} if jobs else {}
    return Options(rank=rank, step=step, cache=cache, max_memory=parsed_size(max_memory), **chosen)


def parsed_size(text: str | None, option: str = "--max-memory") -> int | None:
    """Bytes in a size such as `4GiB`, `500M` or `123456`."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if not found:
        raise UsageProblem(f"{option} {text}: not a size", "write it like 4GiB or 500M")
    return int(float(found[1]) * (1 << UNITS[found[2].upper()]))


def answer(room: str | None, paths: Sequence[Path], options: Options, look: Look) -> Exit:
    """Ask, show, and say with the exit status whether a finding reaches `--fail-on`."""
    run = find(paths)
    room = room or room_for(run)
    if look.interactive:
        from workbench.tui.app import WorkbenchApp

        WorkbenchApp(run, room, options).run()
        return Exit.OK
    if look.web:
        from workbench.web.server import serve_report

        serve_report(run, room, options)
        return Exit.OK
    return deliver(ask(room, run, options), look, run)


def explore(folder: Path) -> Exit:
    """The terminal app on all that a folder holds."""
    from workbench.tui.app import WorkbenchApp

    run = find([folder])
    WorkbenchApp(run, room_for(run), Options()).run()
    return Exit.OK


def memory_further(
    paths: Sequence[Path], options: Options, look: Look, *, breakdown: bool, changes: str | None
) -> Exit:
    """The memory report with the tables that are made only when asked for, as a document."""
    from analyzers.memory import with_further

    run = find(paths)
    report = ask("memory", run, options)
    snapshots = require(run, *ROOMS["memory"])
    return deliver(with_further(report, snapshots, options, breakdown=breakdown, changes=changes), look, run)


def exported(paths: Sequence[Path], options: Options, target: Path, *, force: bool) -> Exit:
    """The traces of a run's last recorded step as one file for Perfetto."""
    from analyzers.traces.export import export

    artefacts = newest_step(selected(require(find(paths), *ROOMS["trace"]), options.rank, options.step))
    with writing(target, force=force):
        count = export(artefacts, target, options)
    note(f"wrote {count} events to {target}: open it at https://ui.perfetto.dev")
    return Exit.OK


def compared(a: Path, b: Path, look: Look, fail_on: str | None) -> Exit:
    """Two runs side by side, and whether the second passes a gate."""
    from analyzers import compare
    from workbench.failing import gate

    limits = gate(fail_on)
    runs = discover(a), discover(b)
    report = compare.analyze(*runs, Options(), limits.limits)
    delivered = deliver(report, look, runs[0])
    return Exit.FINDINGS if limits.fails(report) else delivered


def written(path: Path, output: Path | None, *, force: bool, anonymise: bool) -> Exit:
    """A report on whatever lies at `path`, in the format that the file's name asks for."""
    if output is None:
        raise UsageProblem("report: no file to write to", "add -o report.html (or .md, .json)")
    run = find([path])
    told = ask(room_for(run), run, Options())
    if anonymise:
        told, run = anonymised(told, run)
    return deliver(told, Look(output=output, force=force), run)


def deliver(report: Report[Any], look: Look, run: Run) -> Exit:
    """Print the report or write it to a file; the exit status of the contract."""
    document = render(report, chosen_format(look), run)
    if look.output:
        save(document, look.output, force=look.force)
        note(f"wrote {look.output}")
    else:
        sys.stdout.write(document)
    return exit_for(report, look.fail_on)


def chosen_format(look: Look) -> Format:
    """What was asked for, else what the file's name says, else text."""
    if look.printed:
        return look.printed
    if look.output and look.output.suffix not in SUFFIXES:
        raise UsageProblem(f"{look.output}: no known format", f"name it {', '.join(SUFFIXES)}, or give --format")
    return SUFFIXES[look.output.suffix] if look.output else Format.TEXT


def save(document: str, path: Path, *, force: bool) -> None:
    """Write a document, but not over one that is there."""
    with writing(path, force=force):
        path.write_text(document)


@contextmanager
def writing(path: Path, *, force: bool) -> Iterator[None]:
    """Guards the writing of a file: refuses to overwrite one, and tells in words why it cannot be written."""
    if path.exists() and not force:
        raise UsageProblem(f"{path} exists", "choose another name, or add --force")
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "choose a folder that exists and can be written to") from error


def exit_for(report: Report[Any], fail_on: FailOn | None) -> Exit:
    worst = report.worst()
    if fail_on and worst and worst.weight >= Severity(fail_on).weight:
        return Exit.FINDINGS
    return Exit.OK
