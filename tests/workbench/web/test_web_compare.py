"""Compare two runs in a real browser."""

from pathlib import Path

import pytest

from analyzers import compare
from analyzers.compare import CompareData
from analyzers.run import discover
from analyzers.store import Options
from workbench.web.served_run import ServedRun

pytestmark = pytest.mark.browser
FIXTURES = Path(__file__).parents[2] / "fixtures"
DRAWN = "name => { const d = document.querySelector(`#${name} .js-plotly-plot`)._fullData[0]; return [...d.x]; }"


def view_of(a, b):
    runs = discover(a), discover(b)
    report = compare.analyze(*runs)
    return ServedRun(runs[0], Options(), report, runs[1])


@pytest.fixture(scope="module")
def site(serving, tmp_path_factory):
    """Fixture: the address of a dashboard that compares two runs with traces."""
    view = view_of(FIXTURES / "straggler_data_2ranks", FIXTURES / "straggler_data_4ranks")
    with serving(view, tmp_path_factory.mktemp("dropped")) as address:
        yield address


@pytest.mark.parametrize("chart", ["step-change", "trace-change"])
def test_what_changed_adds_up(site, page, chart):
    """The chart leads from one run's step time to the other's, part by part; the table has the same numbers."""
    page.goto(f"{site}/compare")
    page.wait_for_selector(f"#{chart} .waterfalllayer")
    first, *changes, _ = page.evaluate(DRAWN, chart)
    text = page.locator(f"#{chart} .textpoint text").all_text_contents()
    assert (first + sum(changes)) / 1e9 == pytest.approx(seconds(text[-1]), rel=0.01)
    last = page.locator(f"figure:has(#{chart}) + .wide tr:last-child td").all_text_contents()
    assert last[0] == "whole step"
    assert [seconds(cell) for cell in last[1:3]] == [seconds(text[0]), seconds(text[-1])]


def seconds(text):
    number, unit = text.split()
    return float(number) * {"ms": 1e-3, "s": 1}[unit]


def test_kernels_are_charted_and_listed(site, page):
    """The collectives of the four ranks take longest; the address can select another kind."""
    page.goto(f"{site}/compare?kind=kernel")
    page.wait_for_selector("#kernel-change .barlayer .point")
    assert "1. gloo:all_gather" in page.locator("#kernel-change .ytick").all_text_contents()
    assert all(text.endswith("s") for text in page.locator("#kernel-change .xtick text").all_text_contents())
    assert page.locator("#kernel-change .legend").count() == 0
    page.click("nav[aria-label='choose what is listed'] >> text=by phase")
    page.wait_for_selector("caption:has-text('that changed, by phase')")
    assert "kind=phase" in page.url


def test_each_run_is_one_click_away(site, page):
    page.goto(f"{site}/compare")
    page.click("main .hint a >> nth=1")
    page.wait_for_url("**/open/b/")
    page.wait_for_selector("#verdict")
    assert "straggler_data_4ranks" in page.locator("h1").inner_text()


def test_the_first_page_shows_what_changed(site, page):
    """It has the chart beside the verdict, no table without content, and names only the ends of the folders."""
    page.goto(site)
    page.wait_for_selector("#picture .waterfalllayer .point")
    end = page.locator("h1 span:last-child")
    assert end.evaluate("node => node.scrollWidth <= node.clientWidth")
    assert page.locator("h1 span").all_inner_texts() == ["workbench", "straggler_data_2ranks, straggler_data_4ranks"]
    assert page.locator("caption", has_text="Ranks").count() == 0


def test_a_chart_and_its_table_are_side_by_side(site, page):
    page.goto(f"{site}/compare")
    page.wait_for_selector("#step-change .waterfalllayer")
    chart, listed = (page.locator(f".beside > {part}").first.bounding_box() for part in ("figure", "article"))
    assert chart["x"] + chart["width"] <= listed["x"]
    assert chart["y"] <= listed["y"] < chart["y"] + chart["height"]


def test_the_memory_of_two_snapshots(serving, page_of, tmp_path):
    """The chart leads from one peak to the other, by the category, module or line that the address selects."""
    held = FIXTURES / "oom_2ranks" / "memory_snapshot"
    view = view_of(held / "iteration_5", held / "iteration_5_exit")
    with serving(view, tmp_path) as address:
        page = page_of(address)
        for by in ("categories", "modules", "lines"):
            page.goto(f"{address}/compare?by={by}")
            page.wait_for_selector("#memory-change .waterfalllayer")
            first, *changes, _ = page.evaluate(DRAWN, "memory-change")
            found = view.data(CompareData).memory
            assert (first, first + sum(changes)) == (found.a_bytes, found.b_bytes)


def test_the_labels_of_a_chart_beside_its_table_are_not_turned(serving, page_of, tmp_path):
    view = view_of(FIXTURES / "healthy_2ranks", FIXTURES / "straggler_data_2ranks")
    with serving(view, tmp_path) as address:
        page = page_of(address, {"width": 1280, "height": 800})
        page.goto(f"{address}/compare")
        page.wait_for_selector("#step-change .xtick text")
        labels = page.locator("#step-change .xtick text")
        assert labels.count() >= 3
        turns = labels.evaluate_all("labels => labels.map(label => label.getAttribute('transform') || '')")
        assert not [turn for turn in turns if "rotate(-" in turn or "rotate(3" in turn]
