"""The HTML report as a single file: in a browser, without a server or a network, and printed."""

from pathlib import Path

import pytest

from analyzers.rooms import ask, room_for
from analyzers.run import discover
from analyzers.store import Options
from workbench.command_options.options import Format
from workbench.present import render

pytestmark = pytest.mark.browser
FIXTURES = Path(__file__).parents[2] / "fixtures"
INK = "getComputedStyle(document.body).color"


@pytest.mark.parametrize("name", ["oom_2ranks", "stuck_4ranks", "straggler_data_2ranks"])
def test_a_report_opens_from_a_file(name, page_of, tmp_path):
    """The page requests nothing but the file itself; it is readable in light, in dark, on a telephone and on paper."""
    run = discover(FIXTURES / name)
    report = ask(room_for(run), run, Options())
    target = tmp_path / "report.html"
    target.write_text(render(report, Format.HTML, run))
    page = page_of("file://")
    page.goto(f"file://{target}")
    assert report.verdict.sentence in page.locator(".verdict").inner_text()
    assert report.findings[0].next.replace("`", "") in page.locator(".finding").first.inner_text()
    inks = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        inks[scheme] = page.evaluate(INK)
    assert inks["light"] != inks["dark"]
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(INK) == inks["light"], "white letters on white paper"
    assert len(page.pdf()) > 5000
    page.emulate_media(media="screen")
    assert all(box["height"] > 100 for box in (svg.bounding_box() for svg in page.locator("svg").all()))
