"""Look at two recorded runs in a real browser."""

import pytest
from recordings import FAULT, recordings

from analyzers import parity
from analyzers.run import discover
from analyzers.store import Options
from workbench.command_options.options import Format
from workbench.present import render
from workbench.web.served_run import ServedRun


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    """Fixture: two recorded runs and their report."""
    runs = tuple(map(discover, recordings(tmp_path_factory.mktemp("recorded"))))
    return ServedRun(runs[0], Options(), parity.bisect(*runs), runs[1])


@pytest.mark.browser
def test_the_page_shows_both_sides_and_the_operation_that_differs(view, serving, page_of, tmp_path):
    """The chart's point at the fourth operation lies above what is allowed, and all before it below."""
    with serving(view, tmp_path) as site:
        page = page_of(site)
        page.goto(f"{site}/bisect")
        page.wait_for_selector("#bisect-operations .scatterlayer")
        sides = page.locator("article:has(caption:has-text('Both sides')) tr", has_text=f"activation of {FAULT}")
        assert sides.locator("td").all_text_contents()[2:7] == ["NO", "1 %", "7e-07", "4", "4.04"]
        script = "() => document.querySelector('#bisect-operations .js-plotly-plot')._fullData.map(d => [...d.y])"
        difference, allowed = page.evaluate(script)
        beyond = [y > limit for y, limit in zip(difference, allowed, strict=True)]
        assert beyond == [False] * 3 + [True] * 5
        page.click("nav[aria-label='choose step'] >> text=step 1")
        page.wait_for_selector("caption:has-text('Tensors of step 1')")
        assert "step=1" in page.url
        page.click("nav[aria-label='findings'] a")
        page.wait_for_selector("caption:has-text('Tensors of step 2')")


def test_the_saved_page_has_the_charts_and_the_text_names_the_command(view):
    html = render(view.report, Format.HTML, view.run)
    assert "Difference of B from A by operation of step 2 (log scale)</figcaption>" in html
    text = " ".join(render(view.report, Format.TEXT, view.run).split())
    assert f"workbench bisect {view.run.root} {view.other.root}" in text
