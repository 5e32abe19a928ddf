"""Every face tells the same findings: the same ids, ranks, words and numbers, walked through each of them."""

import html
import json
import re
import shutil
from pathlib import Path

import pytest

from analyzers.run import discover
from analyzers.store import Options
from analyzers.wording import ranges
from workbench.ask import ask, room_for
from workbench.options import Format
from workbench.present import render
from workbench.present.sections import sections
from workbench.tui.app import WorkbenchApp
from workbench.tui.case import RunCase
from workbench.tui.panes.home import title, told

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMES = ["oom_2ranks", "stuck_4ranks", "straggler_data_2ranks", "nan_2ranks"]


@pytest.fixture(scope="module", params=NAMES)
def asked(request):
    """A recorded incident and its report."""
    run = discover(FIXTURES / request.param)
    return run, ask(room_for(run), run, Options())


def words(text):
    """Text as a reader takes it: the layout, the markup and the box around it gone."""
    return " ".join(re.sub(r"[│┃▏█\\]", " ", html.unescape(re.sub(r"<[^>]+>", " ", text))).split())


def parts(finding):
    """What every face must say of a finding."""
    about = [ranges(finding.ranks)] if finding.ranks else []
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
    app = WorkbenchApp(RunCase(run, room_for(run), Options()))
    async with app.run_test(size=(200, 50)) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        shown = app.report.findings
        assert [f.id for f in shown] == [f.id for f in report.findings]
        for finding in shown:
            drawn = words(f"{title(finding).plain} {told(finding).plain}")
            for part in parts(finding):
                assert part in drawn


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a system chromium")
def test_the_page_tells_every_finding(asked, serving, tmp_path):
    from playwright.sync_api import sync_playwright

    run, report = asked
    with serving(run, tmp_path) as address, sync_playwright() as p:
        browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(address)
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
