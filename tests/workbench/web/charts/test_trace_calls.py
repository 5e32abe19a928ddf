"""The tree of the calls of a trace on the dashboard's trace page."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pandas as pd
import pytest
from dashboard import see_timeline, zoom_timeline

from analyzers.run import Kind, discover
from analyzers.traces import views
from workbench.web.components.tree import subtree, with_room_for_children

FIXTURES = Path(__file__).parents[3] / "fixtures"
NAMES = "() => [...document.querySelectorAll('#calls g.slice')].map(slice => slice.__data__.data.data.label)"


@pytest.fixture
def calls(page_of, serving, tmp_path):
    """Fixture: the trace page of a run with Python functions in its traces, with the tree of calls by function."""
    with serving(discover(FIXTURES / "traces" / "allocating"), tmp_path) as address:
        page = page_of(address)
        page.goto(f"{address}/trace?file=1&tab=calls&by=function")
        page.wait_for_selector("#calls g.slice")
        see_timeline(page)
        yield page


@pytest.mark.browser
def test_functions_in_libraries_are_shown_on_demand(calls):
    artefact = discover(FIXTURES / "traces" / "allocating").of(Kind.TRACE)[1]
    users, every = (set(views.tree(artefact, by=by)["name"]) for by in ("user_function", "function"))
    page = calls
    shown = {name.replace("&lt;", "<").replace("&gt;", ">") for name in page.evaluate(NAMES)[1:]}
    assert shown == users
    assert shown < every
    page.click("#drawer >> text=show library frames")
    page.wait_for_selector("#calls g.slice:has-text('built-in')")
    assert len(page.evaluate(NAMES)) > 3 * len(shown)
    assert parse_qs(urlsplit(page.url).query)["library"] == ["1"]


@pytest.mark.browser
def test_a_click_selects_a_call_and_keeps_the_visible_range(calls):
    page = calls
    zoom_timeline(page, [1_000_000, 5_000_000])
    page.locator("#calls g.slice", has_text="step").first.click()
    page.wait_for_selector("#path")
    query = parse_qs(urlsplit(page.url).query)
    assert (query["from"], query["to"], query["by"]) == (["1000000"], ["5000000"], ["function"])
    assert page.locator("#path li").last.inner_text().endswith("step")
    page.wait_for_function(f"() => ({NAMES})()[1] === 'allocating_job.py(39): step'")
    page.wait_for_load_state("networkidle")
    page.locator("#calls g.slice").first.click()
    page.wait_for_function(f"() => ({NAMES})()[1]?.endsWith('main')")
    page.click("#drawer >> text=by module")
    page.wait_for_selector("#calls g.slice:has-text('Block_0')")
    assert "under" not in parse_qs(urlsplit(page.url).query)


def test_a_call_is_drawn_at_least_as_long_as_the_calls_in_it():
    """Plotly draws nothing at all for a tree in which children are larger than their parent."""
    frame = pd.DataFrame({"node": [0, 1, 2, 3], "parent": [-1, 0, 1, 1], "ns": [5, 4, 4, 3]})
    grown = with_room_for_children(frame, "ns")
    assert grown["ns"].tolist() == [7, 7, 4, 3]
    below, up = subtree(grown, 1, "ns")
    assert (below["node"].tolist(), below["parent"].tolist(), up) == ([1, 2, 3], [-1, 1, 1], 0)
