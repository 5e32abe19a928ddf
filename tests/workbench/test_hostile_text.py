"""Text of an artefact is text on every face, whatever it says: markup, HTML, terminal escapes, links."""

import pickle

import pytest

from analyzers.run import discover
from analyzers.store import Options
from workbench.ask import ask, room_for
from workbench.options import Format
from workbench.present import render
from workbench.tui.app import WorkbenchApp
from workbench.tui.case import RunCase

NAME = "<img src=x onerror=alert(1)>[bold red]red[/]\x1b]0;owned\x07\x1b[2J`*_|#"
FILE = "/job/<script>alert(2)</script>\x1b[31m.py"
SAFE_NAME = NAME.translate({0x1B: None, 0x07: None})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A snapshot of two blocks whose frames want to be more than text."""
    frames = [{"name": NAME, "filename": FILE, "line": 7}]
    entries = [
        {"action": "alloc", "addr": 4096 + 512 * i, "size": 512, "stream": 0, "time_us": i, "frames": frames}
        for i in range(2)
    ]
    blocks = [
        {"size": 512, "requested_size": 512, "address": entry["addr"], "state": "active_allocated", "frames": frames}
        for entry in entries
    ]
    segment = {
        "device": 0, "address": 4096, "total_size": 1024, "allocated_size": 1024, "active_size": 1024,
        "requested_size": 1024, "stream": 0, "segment_type": "small", "blocks": blocks,
    }  # fmt: skip
    home = tmp_path_factory.mktemp("hostile") / "<b>run[red]"
    home.mkdir()
    with (home / "rank0_memory_snapshot.pickle").open("wb") as file:
        pickle.dump({"segments": [segment], "device_traces": [entries]}, file)
    return discover(home)


def test_documents_carry_no_escape_and_no_tag(run):
    report = ask(room_for(run), run, Options())
    for form in (Format.TEXT, Format.MARKDOWN, Format.HTML):
        document = render(report, form, run)
        assert "\x1b" not in document
        assert "\x07" not in document
    html = render(report, Format.HTML, run)
    assert "<img" not in html
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "\\u001b" in render(report, Format.JSON, run), "JSON keeps what was there, as an escape of its own"


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_the_terminal_app_shows_it_as_text(run, size):
    app = WorkbenchApp(RunCase(run, room_for(run), Options()))
    drawn = ""
    async with app.run_test(size=size) as pilot:
        for key in ("1", "2", "v", "v"):
            for _ in range(3):
                await app.workers.wait_for_complete()
                await pilot.pause()
            await pilot.press(key)
            for _ in range(3):
                await app.workers.wait_for_complete()
                await pilot.pause()
            drawn += "".join(strip.text for strip in app.screen._compositor.render_strips())
    assert "\x1b" not in drawn
    assert "<script>" in drawn or "<img src=x" in drawn


@pytest.mark.browser
def test_the_page_shows_it_as_text(run, serving, browser, tmp_path):
    with serving(run, tmp_path) as address:
        page = browser.new_page()
        opened = []
        page.on("dialog", lambda dialog: (opened.append(dialog.message), dialog.dismiss()))
        for place in ("", "memory?by=stack", "memory?by=line&find=%3Cimg%20src%3Dx%3E"):
            page.goto(f"{address}/{place}")
            page.wait_for_selector("#tree .icicle" if place else "#verdict")
            page.wait_for_load_state("networkidle")
            assert page.locator("main img, main script").count() == 0
        assert SAFE_NAME[:28] in page.locator("main").text_content()
        page.close()
    assert opened == []
