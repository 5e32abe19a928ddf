"""Every room is whole: what its records name exists, and each face that claims a room shows its reports."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from finding_ids import finding_ids
from meshes import meshes
from recordings import recordings
from textual.widgets import TabbedContent

from analyzers import compare, parity, tokens
from analyzers.report import Report, json_schema
from analyzers.rooms import JOINED, PARITY, ROOMS, ask, imported
from analyzers.run import Run, discover
from analyzers.store import Options
from terminal import settle
from workbench.cli import app as command_line
from workbench.command_options.options import Format
from workbench.commands.capabilities import capabilities, document_type
from workbench.commands.doctor import diagnosis
from workbench.console import clean
from workbench.present import render
from workbench.present.html import escape
from workbench.present.table import sections
from workbench.rooms import FACES, data_by_room, data_of, data_type, evidence_link
from workbench.tui.app import WorkbenchApp
from workbench.tui.panes.home import HomePane
from workbench.tui.subject import Subject, ViewTabs
from workbench.web.page import Page, evidence_address
from workbench.web.served_run import ServedRun

FIXTURES = Path(__file__).parents[1] / "fixtures"
RECORDED = {
    "memory": "oom_2ranks",
    "hang": "mismatch_shape_2ranks",
    "trace": "straggler_data_2ranks",
    "steps": "straggler_2ranks",
    "logs": "oom_2ranks",
    JOINED: "oom_2ranks",
}
"""{room: a recorded run that it has something to say about}."""
STARTED_BY_COMMANDS = {"estimate", "plan", "proof", "rerun"}
"""Documents for which a command starts the trainer or a whole job; the tests of these commands render them."""


class Answer(NamedTuple):
    report: Report[object]
    runs: tuple[Run, ...]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """Return {room or document: a real report}."""
    found = {}
    for room, name in RECORDED.items():
        run = discover(FIXTURES / name)
        found[room] = Answer(ask(room, run, Options()), (run,))
    both = (discover(FIXTURES / "healthy_2ranks"), discover(FIXTURES / "straggler_2ranks"))
    found["compare"] = Answer(compare.analyze(*both), both)
    several = discover(meshes(tmp_path_factory.mktemp("meshes")))
    found[PARITY] = Answer(ask(PARITY, several, Options(cache=False)), (several,))
    a, b = map(discover, recordings(tmp_path_factory.mktemp("recorded")))
    found["bisect"] = Answer(parity.bisect(a, b), (a, b))
    rows = tmp_path_factory.mktemp("tokens") / "rows.jsonl"
    rows.write_text(json.dumps({"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]}) + "\n")
    nothing = Run(rows.parent, ())
    found["tokens"] = Answer(tokens.analyze(tokens.find_files([rows], None), Options(cache=False)), (nothing,))
    found["doctor"] = Answer(diagnosis(), (nothing,))
    found["capabilities"] = Answer(capabilities(command_line), (nothing,))
    return found


def places() -> Iterator[str]:
    """Yield every place that a record names."""
    for room in ROOMS.values():
        yield from filter(None, (room.data, room.analyze))
    for faces in FACES.values():
        named = (faces.data, faces.tables, faces.charts, faces.coloured, faces.page, faces.pane, faces.picture)
        yield from filter(None, named)


@pytest.mark.parametrize("place", sorted(set(places())))
def test_what_the_records_name_exists(place: str) -> None:
    found = imported(place)
    assert isinstance(found, Page) if place.startswith("workbench.web") else callable(found)


def test_a_name_that_is_no_place_fails() -> None:
    with pytest.raises(AttributeError):
        imported("analyzers.memory:nothing")
    with pytest.raises(ModuleNotFoundError):
        imported("analyzers.nothing:analyze")


def test_every_room_has_faces_and_every_document_data(answers: dict[str, Answer]) -> None:
    assert set(ROOMS) <= set(FACES)
    assert {name for name, faces in FACES.items() if not faces.data} == set(ROOMS)
    assert set(answers) | STARTED_BY_COMMANDS == set(FACES)
    for name, answer in answers.items():
        assert type(answer.report.data) is data_type(name)


@pytest.mark.parametrize("name", FACES)
def test_every_document_has_a_schema(name: str) -> None:
    assert data_type(name).__name__ in json_schema(document_type(name))["$defs"]


@pytest.mark.parametrize("name", sorted(set(FACES) - STARTED_BY_COMMANDS))
def test_every_document_has_the_tables_of_the_room(answers: dict[str, Answer], name: str) -> None:
    """Only a document of the workbench that is printed in its own way has none."""
    report, runs = answers[name]
    titles = [table.title for table in sections(report)]
    assert bool(titles) == bool(FACES[name].tables)
    for title in filter(None, titles):
        assert clean(title) in " ".join(render(report, Format.TEXT, runs[0]).split()) or "\n" in title
        assert escape(title) in render(report, Format.MARKDOWN, runs[0])
    page = render(report, Format.HTML, runs[0])
    assert page.count("<table>") == len(titles)
    assert "<figure>" in page or not FACES[name].charts or name == "hang"
    assert msgspec.json.decode(render(report, Format.JSON, runs[0]), type=document_type(name)) == report


@pytest.mark.parametrize("name", [name for name, faces in FACES.items() if faces.page])
def test_the_dashboard_has_a_page_of_each_room_that_claims_one(answers: dict[str, Answer], name: str) -> None:
    report, runs = answers[name]
    served = ServedRun(runs[0], Options(), report, *runs[1:])
    page: Page = imported(FACES[name].page)
    shown = str(page.layout(served, {}))
    assert page.title
    assert "This run has no" not in shown
    assert len(shown) > 500
    assert all(evidence_address(served, found) for found in report.findings if evidence_link(found))


@pytest.mark.parametrize("name", [name for name, faces in FACES.items() if faces.pane])
async def test_the_terminal_app_has_a_view_of_each_room_that_claims_one(answers: dict[str, Answer], name: str) -> None:
    report, runs = answers[name]
    app = WorkbenchApp(Subject(name, runs, Options(), partial(lambda shown: shown, report), "workbench"))
    async with app.run_test(size=(160, 50)) as pilot:
        await settle(app, pilot)
        first = "HomePane" if name == "logs" else FACES[name].pane.partition(":")[2]
        assert type(app.query_one(ViewTabs).pane).__name__ == first
        await pilot.press("1")
        await settle(app, pilot)


async def test_a_room_without_a_view_of_its_own_is_shown_at_home(answers: dict[str, Answer]) -> None:
    report, runs = answers["tokens"]
    app = WorkbenchApp(Subject("tokens", runs, Options(), partial(lambda shown: shown, report), "workbench"))
    async with app.run_test(size=(160, 50)) as pilot:
        await settle(app, pilot)
        assert type(app.query_one(ViewTabs).pane) is HomePane
        assert app.query_one(TabbedContent).tab_count == 1


@pytest.mark.parametrize("name", ["memory", "hang", JOINED, "compare", "doctor"])
def test_a_report_with_the_data_of_another_room_is_an_error(answers: dict[str, Answer], name: str) -> None:
    """It was shown without tables."""
    report, runs = answers[name]
    other = answers["logs"].report.data
    wrong = msgspec.structs.replace(report, data=other)
    for show in (sections, data_by_room, partial(data_of, kind=type(other))):
        with pytest.raises(TypeError, match="not LogsData"):
            show(wrong)
    for form in (Format.TEXT, Format.MARKDOWN, Format.HTML):
        with pytest.raises(TypeError, match="not LogsData"):
            render(wrong, form, runs[0])


def test_a_report_of_no_room_is_an_error(answers: dict[str, Answer]) -> None:
    report, runs = answers["memory"]
    unknown = msgspec.structs.replace(report, schema="workbench.nothing/1")
    with pytest.raises(TypeError, match=r"workbench\.nothing/1"):
        sections(unknown)
    with pytest.raises(TypeError, match=r"workbench\.nothing/1"):
        render(unknown, Format.HTML, runs[0])


def test_no_finding_is_claimed_twice() -> None:
    claimed = [name for faces in FACES.values() for ids in faces.evidence.values() for name in ids]
    assert len(claimed) == len(set(claimed))
    assert not [one for one in claimed for other in claimed if one.startswith(f"{other}.")]


def test_the_findings_whose_evidence_is_claimed_exist() -> None:
    """A renamed finding would lead to the view as a whole, and nobody would notice."""
    known = finding_ids()
    claimed = {name for faces in FACES.values() for ids in faces.evidence.values() for name in ids}
    assert {name for name in claimed if not any(one == name or one.startswith(f"{name}.") for one in known)} == set()
