"""Check each input: it is analysed or refused, and nothing harmful reaches a document, page or screen."""

import asyncio
import contextlib
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from analyzers import compare
from analyzers.errors import WorkbenchError
from analyzers.report import Report
from analyzers.rooms import JOINED, ask, room_for
from analyzers.run import Run, discover
from analyzers.store import Options
from benchmarks.fuzzing.mutations import MARKUP
from workbench.command_options.options import Format
from workbench.console import INVISIBLE
from workbench.present import render

CONTROL = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{INVISIBLE}]")
SIZES = ((80, 24), (200, 50))
PATIENCE_S = 60


class Leak(Exception):
    """A document contains control characters or markup from an input."""


def check_documents(folder: Path, baseline: Path | None = None, forms: Iterable[Format] = Format) -> str:
    """Discover and analyse the files, and render the report in these formats; return the name of the analyzer.

    Any exception except an error for the user is a failure.
    """
    run = discover(folder)
    room = room_for(run)
    report = ask(room, run, Options(jobs=1))
    for form in forms:
        check_document(form, render(report, form, run))
    if baseline is not None:
        compared = compare.analyze(discover(baseline), run, Options(jobs=1))
        check_document(Format.JSON, render(compared, Format.JSON, run))
        check_document(Format.TEXT, render(compared, Format.TEXT, run))
    check_readers(report)
    return room


def check_readers(report: Report[object]) -> None:
    crashed = [f for f in report.findings if "reader failed" in f.why or "reader crashed" in f.why]
    if crashed:
        raise Leak(crashed[0].why[:300])


def check_document(form: Format, text: str) -> None:
    text.encode()
    if form is Format.JSON:
        msgspec.json.decode(text.encode())
        json.loads(text, parse_constant=refuse)
        return
    if match := CONTROL.search(text):
        raise Leak(f"{form}: control character {match[0]!r}: {text[match.start() - 40 : match.end() + 20]!r}")
    if form in (Format.HTML, Format.MARKDOWN) and MARKUP in text:
        raise Leak(f"{form}: markup of an artefact")


def refuse(constant: str) -> None:
    raise Leak(f"JSON holds {constant}")


def check_configuration(path: Path) -> str:
    """Explain and show a configuration."""
    from workbench.commands.config import explain, show

    with contextlib.suppress(WorkbenchError):
        json.loads(explain(path, [], as_json=True))
        explain(path, [], as_json=False)
        show(path, [], as_json=False)
    return "configuration"


def check_pages(folder: Path) -> str:
    """Build each page of the dashboard as the JSON that the browser gets."""
    from dash._utils import to_json

    from workbench.web.app import PAGES
    from workbench.web.query import parse_query
    from workbench.web.served_run import served_run

    run = discover(folder)
    served = served_run(run, room_for(run), Options(jobs=1), trusted=False)
    for name, page in PAGES.items():
        if name not in ("compare", "source") and (name in ("", "config") or name in served.rooms):
            check_components(json.loads(to_json(page.layout(served, parse_query("")))))
    return "pages"


def check_components(component: Any) -> None:
    """Check the texts on a page; the browser displays them as text, not as markup."""
    for text in texts_of(component):
        if match := CONTROL.search(text):
            raise Leak(f"page: control character {match[0]!r}: {text[:80]!r}")


def texts_of(component: Any) -> Iterator[str]:
    if isinstance(component, str):
        yield component
    elif isinstance(component, list):
        for item in component:
            yield from texts_of(item)
    elif isinstance(component, dict) and "props" in component:
        yield from texts_of(component["props"].get("children"))


def check_terminal(folder: Path, rng: random.Random) -> str:
    """Open the terminal app, switch through its views, press some keys, and check the screen."""
    run = discover(folder)
    asyncio.run(walk_through(run, rng.choice(SIZES), rng.choices(["j", "enter", "]", "i", "+", "escape"], k=6)))
    return "terminal"


async def walk_through(run: Run, size: tuple[int, int], keys: Sequence[str]) -> None:
    from workbench.tui.app import WorkbenchApp
    from workbench.tui.subject import subject_of

    app = WorkbenchApp(subject_of(run, room_for(run) if room_for(run) != JOINED else JOINED, Options(jobs=1)))
    async with app.run_test(size=size) as pilot:
        for key in ("", "1", "2", "3", "4", "5", "6", "7", *keys):
            if not app.is_running:  # an input that is refused ends the app with its error
                return
            await pilot.press(*filter(None, [key]))
            async with asyncio.timeout(PATIENCE_S):
                while not all(worker.is_finished for worker in app.workers):
                    await pilot.pause(0.01)
            await pilot.pause()
            check_screen(app)


def check_screen(app: Any) -> None:
    for strip in app.screen._compositor.render_strips():  # noqa: SLF001  # what tests of screens read too
        if match := CONTROL.search(strip.text):
            raise Leak(f"terminal: control character {match[0]!r}: {strip.text.strip()[:80]!r}")
