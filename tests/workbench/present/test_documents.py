"""A report in all document formats: each has the same verdict, ids and numbers."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from command_line import run

from analyzers.memory import extend
from analyzers.rooms import ask, room_for
from analyzers.run import Kind
from analyzers.store import Options
from analyzers.words import size
from workbench.command_options.options import Format
from workbench.present import render
from workbench.present.table import sections

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture
def report(oom):
    return ask(room_for(oom), oom, Options())


@pytest.mark.parametrize("form", [Format.TEXT, Format.MARKDOWN, Format.HTML])
def test_every_document_tells_verdict_and_findings(oom, report, form):
    flat = " ".join(render(report, form, oom).replace("\\", "").split())
    for part in report.verdict.sentence.split():
        assert part.replace("'", "&#x27;") in flat or part in flat
    for finding in report.findings[:8]:
        assert finding.id in flat


def test_json_is_the_contract(oom, report):
    document = json.loads(render(report, Format.JSON, oom))
    assert document["schema"] == "workbench.incident/1"
    assert set(document) == {"schema", "tool", "version", "inputs", "verdict", "findings", "data"}
    answer = {"headline", "finding", "failure", "next", "tested", "ruled_out"}
    assert set(document["verdict"]) == {"status", "class", "ranks", "sentence", "confidence", "missing"} | answer
    assert document["verdict"]["finding"] == "memory.oom"
    assert len(document["verdict"]["headline"]) <= 90
    assert document["verdict"]["class"] == "oom"
    assert {"memory", "hang", "trace", "steps", "chain"} <= set(document["data"])


def test_html_stands_alone(oom, report):
    html = render(report, Format.HTML, oom)
    assert "http://" not in html
    assert "https://" not in html
    assert "<script" not in html


def test_html_has_pictures_of_the_same_numbers(oom, report):
    """The pictures show the memory of the failed rank up to its peak, and its steps.

    The topmost band ends at the top of the picture.
    """
    html = render(report, Format.HTML, oom)
    [failed] = [device for device in report.data.memory.devices if device.oom]
    assert f"rank {failed.rank}: {size(failed.peak_allocated_bytes)} at the peak" in html
    assert f"Phases of each step, rank {failed.rank}" in html
    pictures = re.findall(r"<svg.*?</svg>", html)
    assert len(pictures) == 2
    for picture in pictures:
        heights = [float(y) for path in re.findall(r' d="([^"]+)"', picture) for y in re.findall(r" (-?[\d.]+)H", path)]
        assert (min(heights), max(heights)) == (0.0, 220.0)


def test_tables_have_as_many_cells_as_heads(report):
    for section in sections(report):
        assert {len(row) for row in section.rows} == {len(section.columns)}


def test_each_door_tells_its_part(oom):
    """The commands memory, hang and steps answer from the run's folder, each as JSON of its own schema."""
    for door in ("hang", "steps"):
        ended = run(door, str(oom.root), "--json")
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)["schema"] == f"workbench.{door}/1"


def test_fail_on_sets_the_exit_status(oom):
    assert run("inspect", str(oom.root), "--fail-on", "error").returncode == 1


def test_the_documents_fit_their_schema(oom, report):
    """`workbench schema` names every key that the document has."""
    schema = json.loads(run("schema", "incident").stdout)
    document = json.loads(report.json())
    top = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    assert set(document) <= set(top["properties"])


def test_a_healthy_run_has_nothing_to_explain():
    """What is only worth knowing is a finding, but no reason for the verdict."""
    ended = run("inspect", str(FIXTURES / "healthy_2ranks"))
    assert "✓ healthy" in ended.stdout
    assert "\nWhy" not in ended.stdout


def test_a_warning_about_a_run_without_a_failure_is_told_whole(oom, report):
    """The verdict says that nothing failed, so the headline of the only warning must stand beside it."""
    warning = msgspec.structs.replace(report.findings[0], id="memory.kept", title="6.0 MiB stay allocated")
    verdict = msgspec.structs.replace(report.verdict, kind="healthy", sentence="Nothing failed.")
    quiet = msgspec.structs.replace(report, verdict=verdict, findings=[warning])
    assert "\nFinding  6.0 MiB stay allocated" in render(quiet, Format.TEXT, oom)
    assert "\nFinding " not in render(report, Format.TEXT, oom)


@pytest.mark.parametrize("form", [Format.TEXT, Format.MARKDOWN, Format.HTML])
def test_what_is_asked_for_beside_stands_in_every_document(oom, form):
    snapshots = oom.of(Kind.SNAPSHOT)
    usual = ask("memory", oom, Options())
    further = extend(usual, snapshots, Options(), breakdown=True, changes="batch=2x")
    assert not usual.data.breakdown
    flat = render(further, form, oom)
    told = max(further.data.what_if, key=lambda answer: answer.new_peak_bytes)
    assert size(told.new_peak_bytes) in flat
    fullest = max(further.data.breakdown, key=lambda one: one.peak_bytes)
    for holder in fullest.categories:
        assert size(holder.bytes) in flat
    assert json.loads(render(further, Format.JSON, oom))["data"]["what_if"][0]["changes"][0]["value"] == "2x"
