"""The events of text logs in a real browser: a table, and the log lines around the selected event."""

from pathlib import Path

import pytest

from analyzers.run import discover

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
