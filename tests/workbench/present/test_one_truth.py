"""Terminal app, dashboard and documents show the same findings: the same ids, ranks, words and numbers."""

import gzip
import html
import json
import pickle
import re
from collections import Counter
from pathlib import Path

import pytest
from dashboard import BROWSER, PATIENCE_MS, TOKEN
from textual.widgets import Static

from analyzers.rooms import ask, room_for
from analyzers.run import discover
from analyzers.store import Options
from analyzers.words import rank_ranges, size
from terminal import app_on, settle
from workbench.command_options.options import Format
from workbench.present import render
from workbench.present.table import sections
from workbench.tui.panes.home import finding_line, whole_finding
from workbench.web.pages import memory
from workbench.web.query import memory_query
from workbench.web.served_run import served_run

FIXTURES = Path(__file__).parents[2] / "fixtures"
NAMES = ["oom_2ranks", "stuck_4ranks", "straggler_data_2ranks", "nan_2ranks"]


@pytest.fixture(scope="module", params=NAMES)
def asked(request):
    """Fixture: a recorded run with a fault, and its report."""
    run = discover(FIXTURES / request.param)
    return run, ask(room_for(run), run, Options())


def words(text):
    """Return the words of a text, without layout, markup, boxes, and the marks of code."""
    plain = re.sub(r"<[^>]+>", " ", re.sub(r"</?code>|`", "", text))
    return " ".join(re.sub(r"[│┃▏█\\]", " ", html.unescape(plain)).split())


def parts(finding):
    """Return the texts of a finding that must be shown everywhere."""
    about = [rank_ranges(finding.ranks)] if finding.ranks else []
    return [finding.id, *about, *map(words, (finding.title, finding.why, finding.next))]


def test_documents_tell_every_finding(asked):
    run, report = asked
    text, page = words(render(report, Format.TEXT, run)), words(render(report, Format.HTML, run))
    markdown = words(render(report, Format.MARKDOWN, run).replace("\\", ""))
    for finding in report.findings[:8]:
        for part in parts(finding):
            assert part in page
            assert part in markdown
            assert part in text
    assert words(report.verdict.sentence) in text


def test_json_is_the_report_itself(asked):
    run, report = asked
    document = json.loads(render(report, Format.JSON, run))
    told_ids = [(f["id"], f["ranks"], f["step"], f["confidence"]) for f in document["findings"]]
    assert told_ids == [(f.id, f.ranks, f.step, f.confidence) for f in report.findings]


def test_numbers_of_the_tables_are_in_every_document(asked):
    run, report = asked
    texts = [words(render(report, form, run).replace("\\", "")) for form in (Format.TEXT, Format.MARKDOWN, Format.HTML)]
    for section in sections(report):
        for row in section.rows:
            for column in section.numeric:
                assert all(words(row[column]) in text for text in texts), (section.title, row)


async def test_the_terminal_app_tells_every_finding(asked):
    run, report = asked
    app = app_on(run)
    async with app.run_test(size=(200, 50)) as pilot:
        await settle(app, pilot)
        shown = app.report.findings
        assert [f.id for f in shown] == [f.id for f in report.findings]
        for finding in shown:
            drawn = words(f"{finding_line(finding).plain} {whole_finding(finding).plain}")
            for part in parts(finding):
                assert part in drawn


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="needs a system chromium")
def test_the_page_tells_every_finding(asked, serving, tmp_path):
    from playwright.sync_api import sync_playwright

    run, report = asked
    with serving(run, tmp_path) as address, sync_playwright() as p:
        browser = p.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{address}/?token={TOKEN}")
        page.wait_for_selector("#verdict")
        drawn = words(page.locator("#page").text_content())
        cells = {words(cell) for cell in page.locator("td").all_text_contents()}
        browser.close()
    assert words(report.verdict.sentence) in drawn
    for finding in report.findings:
        for part in parts(finding):
            assert part in drawn
    for section in sections(report):
        assert {words(row[column]) for row in section.rows for column in section.numeric} <= cells


async def test_the_failed_instant_has_one_number(oom):
    """The expected number is the sum of the blocks at the end, because nothing was freed after the failure."""
    [failed] = [d for d in ask("memory", oom, Options()).data.devices if d.oom]
    with gzip.open(failed.path) as file:
        snapshot = pickle.load(file)
    trace = snapshot["device_traces"][0]
    [entry] = [number for number, each in enumerate(trace) if each["action"] == "oom"]
    later = Counter(each["action"] for each in trace[entry:])
    assert later == {"oom": 1}  # so that what is alive at the end was alive then
    held = sum(b["requested_size"] for s in snapshot["segments"] for b in s["blocks"] if b["state"] != "inactive")
    assert (failed.oom.index, failed.oom.allocated_bytes) == (entry, held)
    amount = size(held)
    text = words(render(ask("memory", oom, Options()), Format.TEXT, oom))
    assert f"{amount} was allocated" in text
    assert f"Memory by category at the failed allocation, rank 1, after entry {entry}" in text
    app = app_on(oom, "memory")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        beside = str(app.query_one("#categories", Static).render())
    assert beside.startswith(
        f"entry {entry}   {amount} allocated\n✗ an allocation of {size(failed.oom.requested_bytes)} failed"
    )
    drawn = memory.chart(served_run(oom, "memory", Options()), failed, memory_query({}, failed), None)
    points = [layer["customdata"].index(entry) for layer in drawn["data"]]
    assert {drawn["layout"]["shapes"][0]["x0"]} == {
        layer["x"][point] for layer, point in zip(drawn["data"], points, strict=True)
    }
    assert sum(layer["y"][point] for layer, point in zip(drawn["data"], points, strict=True)) == held
