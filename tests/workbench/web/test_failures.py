"""Test that a page or a callback that fails says so in the browser, and that the server's terminal has the error."""

from dataclasses import replace

import pytest

from workbench.web import app
from workbench.web.pages import hang

pytestmark = pytest.mark.browser


def fail(*_args: object) -> None:
    raise KeyError("rank \x1b[31m<b>7</b>")


def fail_when_clicked(click: object) -> None:
    if click:
        fail()


def test_a_page_that_fails_names_the_error(site, page, monkeypatch, capsys):
    """The frame stays, the message has the error without control characters, and leads back to the overview."""
    monkeypatch.setitem(app.PAGES, "steps", replace(app.PAGES["steps"], layout=fail))
    page.goto(f"{site}/steps")
    page.wait_for_selector("#failed")
    text = page.locator("#failed").inner_text()
    assert text.startswith("The page Steps cannot be shown.")
    assert "KeyError: 'rank" in text
    assert "<b>7</b>" in text
    assert "\x1b" not in text
    assert "terminal" in text
    assert "KeyError" in capsys.readouterr().err
    page.click("text=Back to the overview")
    page.wait_for_selector("#verdict")


def test_a_page_whose_range_fails_names_the_error(site, page, monkeypatch):
    """The range of steps is made beside the page, and may fail alone."""
    monkeypatch.setitem(app.PAGES, "steps", replace(app.PAGES["steps"], window=fail))
    page.goto(f"{site}/steps")
    page.wait_for_selector("#failed")


def test_a_callback_that_fails_says_so_until_the_page_changes(site, page, monkeypatch, capsys):
    """The page stays as it is; the message goes when another page is shown."""
    monkeypatch.setattr(hang, "clicked_point", fail_when_clicked)
    page.goto(f"{site}/hang")
    page.wait_for_selector("#matrix .heatmaplayer")
    page.wait_for_load_state("networkidle")
    assert page.locator("#failure").inner_text() == ""
    page.locator("#matrix .nsewdrag").first.click()
    page.wait_for_function("() => document.getElementById('failure').textContent.includes('KeyError')")
    assert page.locator("#matrix .heatmaplayer").count() == 1
    assert "KeyError" in capsys.readouterr().err
    page.click("nav >> text=Overview")
    page.wait_for_selector("#verdict")
    page.wait_for_function("() => document.getElementById('failure').textContent === ''")


def test_an_unknown_page_leads_back(site, page):
    page.goto(f"{site}/nowhere")
    page.click("main >> text=Back to the overview")
    page.wait_for_selector("#verdict")
