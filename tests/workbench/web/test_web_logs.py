"""The events of text logs in a real browser: a table, and the log lines around the selected event."""

from pathlib import Path

import pytest

from analyzers.logs import LogsData, views
from analyzers.rooms import ask, room_for
from analyzers.run import discover
from analyzers.store import Options
from workbench.present.tables.run import files
from workbench.rooms import data_of
from workbench.web.pages import logs
from workbench.web.served_run import served_run

pytestmark = pytest.mark.browser
RECORDED = Path(__file__).parents[2] / "analyzers" / "logs" / "recorded"


@pytest.fixture(scope="module")
def site(serving, tmp_path_factory):
    """Fixture: the address of a dashboard of a log of all ranks that contains markup."""
    log = tmp_path_factory.mktemp("job") / "job.log"
    text = (RECORDED / "exception.log").read_text()
    log.write_text(text.replace('tokens["labels"]', 'tokens["labels"] # <img src=x onerror=alert(1)>'))
    with serving(discover(log), tmp_path_factory.mktemp("dropped")) as address:
        yield address


def test_the_verdict_leads_to_its_line_in_the_log(site, page):
    page.goto(site)
    assert "Rank 1 failed with KeyError: 'labels'" in page.locator("#verdict").inner_text()
    page.get_by_text("Show the evidence").first.click()
    page.wait_for_selector("#excerpt")
    assert "KeyError: 'labels'" in page.locator("pre.excerpt mark").inner_text()
    assert 'tokens["labels"] # <img src=x' in page.locator("pre.excerpt").inner_text()
    assert page.locator("pre.excerpt img").count() == 0


def test_another_event_shows_other_lines(site, page):
    page.goto(f"{site}/logs")
    page.wait_for_selector("#events")
    page.locator("#events").get_by_text("connection lost").first.click()
    # A function, as the page's policy forbids to evaluate a text.
    page.wait_for_function("() => document.querySelector('pre.excerpt mark')?.innerText.includes('Connection closed')")
    assert "event=1" in page.url


def test_the_cause_is_shown_rather_than_what_it_caused(serving, page_of, tmp_path):
    """Rank 0 only lost its connection to rank 1, which ran out of memory; no step is known, so no column is empty."""
    run = discover(Path(__file__).parents[2] / "fixtures" / "oom_2ranks")
    with serving(run, tmp_path) as address:
        page = page_of(address)
        page.goto(f"{address}/logs")
        page.wait_for_selector("#excerpt")
        assert page.locator("#events tr.here td").first.inner_text() == "1"
        assert "allocate" in page.locator("pre.excerpt mark").first.inner_text()
        heads = page.locator("#events th").all()
        assert [head.inner_text() for head in heads if head.is_visible()].count("after step") == 0


def test_ranks_of_which_no_line_is_known_have_no_table():
    run = discover(Path(__file__).parents[2] / "fixtures" / "deadlock_4ranks")
    shown = str(logs.layout(served_run(run, room_for(run), Options()), {}))
    assert "Ranks in the logs" not in shown
    assert "error.json" in shown


def test_paths_of_logs_begin_where_they_differ():
    """Whole paths made the table of logs four lines high on a telephone."""
    run = discover(Path(__file__).parents[2] / "fixtures" / "oom_2ranks")
    data = data_of(ask(room_for(run), run, Options()), LogsData)
    assert [row[0] for row in files(data).rows] == ["attempt_0/0/error.json", "attempt_0/1/error.json"]


def test_a_message_that_goes_on_ends_in_dots():
    assert views.shortened("x" * 121) == "x" * 117 + "..."
    assert views.shortened("x" * 120) == "x" * 120
