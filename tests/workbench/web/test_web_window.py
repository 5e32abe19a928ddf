"""A range that is selected in one chart applies to the others, on its page and on other pages."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from dashboard import LISTENS, SHOWN, VIEW, heard, see_timeline, shows, zoom, zoom_timeline

from analyzers.memory import views as memory
from analyzers.run import TIMED, Kind, discover
from analyzers.steps import views as steps
from analyzers.traces import views as traces
from workbench.axes import StepMarks
from workbench.web.components.figure import duration_ticks
from workbench.web.step_window import Window, parse_steps, steps_text

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.parametrize(
    ("text", "steps"),
    [("5", (5, 6)), ("5-7", (5, 8)), ("5 to 7", (5, 8)), ("5.25-6.7", (5.25, 6.7)), ("5.5-6", (5.5, 7))],
)
def test_steps_are_read_as_they_are_written(text, steps):
    assert parse_steps(text) == steps
    assert parse_steps(steps_text(steps)) == steps


@pytest.mark.parametrize("text", ["", "all", "7-5", "5-", "-5", "1e3", "5-7-9", "9" * 40, "<b>"])
def test_whatever_else_stands_there_is_no_window(text):
    assert parse_steps(text) is None


def test_marks_lead_there_and_back():
    """Positions on the axis become steps and back, also around a gap between steps 2 and 5, and beyond the ends."""
    marks = StepMarks(np.array([0.0, 50, 100, 200, 300]), np.array([1.0, 2, 3, 5, 6]))
    assert marks.steps_within((50, 100)) == (2, 3)
    assert marks.span_of((2, 3)) == (50, 100)
    assert marks.span_of((5, 6)) == (200, 300)
    assert marks.span_of((5.5, 90)) == (250, 300)
    assert (marks.span_of((6, 9)), marks.steps_within((300, 400)), marks.span_of((0, 1))) == (None, None, None)
    assert [step for step, _ in marks.starts()] == [1, 2, 5]


def test_the_marks_of_a_snapshot_are_those_of_its_log(oom):
    """Annotations in the snapshot and times in the step log give the same steps, including the failed one."""
    artefact = next(one for one in oom.of(Kind.SNAPSHOT) if one.exit)
    own = memory.clock(artefact)
    logged = steps.clock(oom.of(*TIMED), None, artefact.rank)
    assert own["step"].is_monotonic_increasing
    assert own["step"].iloc[-1] > 6
    blind = memory_without_marks(artefact, logged)
    both = np.linspace(own["entry"].iloc[0], own["entry"].iloc[-1] * 0.9, 50)
    known, guessed = (np.interp(both, one["entry"], one["step"]) for one in (own, blind))
    assert np.abs(known - guessed).max() < 0.5


def memory_without_marks(artefact, logged):
    """Return the step marks of the snapshot as if it had no annotations."""
    from analyzers.memory import loading, phases

    patch = pytest.MonkeyPatch()
    patch.setattr(phases, "annotated_steps", lambda _trace: [])
    found = phases.step_clock(loading.open_snapshot(artefact).device(0), logged)
    patch.undo()
    return found


def test_the_marks_of_a_trace_are_those_of_its_log():
    run = discover(FIXTURES / "straggler_data_2ranks")
    artefact = run.of(Kind.TRACE)[1]
    logged = steps.clock(run.of(*TIMED), None, artefact.rank)
    marks = traces.clock(artefact)
    assert marks["step"].tolist() == [10, 11]
    log = logged[logged["step"] == 10].iloc[0]
    assert np.diff(marks["at_ns"])[0] == pytest.approx(log["end_ns"] - log["start_ns"], rel=0.2)


def test_what_a_window_tells_the_browser():
    assert Window((3, 9), (5, 8)).state() == {"own": {"from": "3", "to": "9", "steps": "5-7"}, "steps": "5-7"}
    assert Window().state() == {"own": {}, "steps": ""}


pytest_browser = pytest.mark.browser


@pytest.fixture(scope="module")
def traced(serving, tmp_path_factory):
    """Fixture: the address of a dashboard of a run with traces and step logs."""
    with serving(discover(FIXTURES / "straggler_data_2ranks"), tmp_path_factory.mktemp("dropped")) as address:
        yield address


@pytest_browser
def test_a_window_of_memory_narrows_the_steps_and_back(site, page):
    """A range of the memory chart narrows the charts of steps; a step typed there narrows the memory chart."""
    page.goto(f"{site}/memory?device=0&axis=entry")
    zoom(page, "timeline", [9000, 11100])
    assert page.input_value("#steps") == "5.3-6" or page.input_value("#steps").startswith("5.")
    page.click("nav.pages >> text=Steps")
    page.wait_for_selector("#loss .scatterlayer .trace")
    shows(page, "phases", 4.5, 6.5)
    page.fill("#steps", "6")
    page.keyboard.press("Enter")
    page.wait_for_function("() => new URL(location).searchParams.get('steps') === '6'")
    shows(page, "times", 5.5, 6.5)
    page.click("nav.pages >> text=Memory")
    page.wait_for_selector("#timeline .scatterlayer .trace")
    first = "document.querySelector('#timeline .js-plotly-plot')._fullData[0].customdata[0]"
    assert 10000 < page.evaluate(first) < 12000
    page.click("#reset")
    page.wait_for_function("() => new URL(location).search.includes('steps=all')")
    page.wait_for_function(f"() => {first} < 5000")


@pytest_browser
def test_a_window_survives_a_click_and_other_colours(site, page):
    """The zoom in the address is kept when something else on the page is selected."""
    page.goto(f"{site}/memory?device=0&axis=entry")
    zoom(page, "timeline", [9000, 11100])
    page.click("nav[aria-label='choose the colours'] >> text=phase")
    page.wait_for_function("() => location.search.includes('colour=phase') && location.search.includes('from=9000')")
    page.wait_for_selector("#timeline .legend >> text=backward")
    page.fill("#find", "feed_forward")
    page.keyboard.press("Enter")
    page.wait_for_selector("caption:has-text('Matching blocks')")
    assert "from=9000" in page.url
    low, _ = page.evaluate(SHOWN, "timeline")
    assert low >= 8900


@pytest_browser
def test_a_link_shows_the_same_view_in_another_browser(site, page_of):
    """After zoom, click, back and forward, the address shows the same view in another browser."""
    address, chart, span, selection, name = "memory?device=0&axis=entry", "timeline", [9000, 11100], "#instant", "entry"
    page = page_of(site)
    page.goto(f"{site}/{address}")
    zoom(page, chart, span)
    zoomed = query_of(page)
    page.wait_for_load_state("networkidle")
    box = page.locator(f"#{chart} .nsewdrag").bounding_box()
    for share in (0.3, 0.35):  # the chart is told of a click only where the mouse was before
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 30)
    page.wait_for_selector(f"#{chart} .hoverlayer > *", state="attached")
    before = [selection, page.evaluate("name => document.querySelector(name)?.innerText", selection)]
    page.mouse.click(box["x"] + 0.35 * box["width"], box["y"] + 30)
    page.wait_for_function("name => new URL(location).searchParams.has(name)", arg=name)
    page.wait_for_function("before => document.querySelector(before[0])?.innerText !== before[1]", arg=before)
    page.wait_for_load_state("networkidle")
    link, selected = page.url, page.locator(selection).inner_text()
    page.go_back()
    page.wait_for_function("name => !new URL(location).searchParams.has(name)", arg=name)
    assert query_of(page) == zoomed
    other = page_of(site)
    other.goto(link)
    shows(other, chart, *page.evaluate(SHOWN, chart))
    assert other.locator(selection).inner_text() == selected
    assert query_of(other) == parse_qs(urlsplit(link).query)


def query_of(page):
    """Return the query of a page's address, in whatever order it is."""
    return parse_qs(urlsplit(page.url).query)


@pytest_browser
def test_charts_of_one_page_move_together(traced, page_of):
    """The chart of all ranks follows a zoom into the events of one rank, and the reverse; so do the charts of steps."""
    page = page_of(traced)
    page.goto(f"{traced}/trace?file=1&tab=ranks")
    zoom_timeline(page, [100_000_000, 300_000_000])
    page.wait_for_function("() => document.querySelector('#fleet .js-plotly-plot')._fullData[0].x[0] > 90e6")
    zoom(page, "fleet", [450e6, 500e6])
    page.wait_for_function(f"() => ({VIEW})()[0] > 300e6 && location.search.includes('steps=10.')")
    page.goto(f"{traced}/steps")
    zoom(page, "loss", [5.8, 8.4])
    for chart in ("times", "phases", "loss"):
        shows(page, chart, 5.5, 8.5)


@pytest_browser
def test_keys_zoom_as_a_mouse_does(site, page):
    page.goto(f"{site}/memory?device=0&steps=all&axis=entry")
    page.wait_for_selector("#timeline .scatterlayer .trace")
    page.focus("figure:has(#timeline)")
    heard(page, "timeline", lambda: page.keyboard.press("+"))
    low, high = page.evaluate(SHOWN, "timeline")
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"low => ({SHOWN})('timeline')[0] > low + 500", arg=low)
    page.keyboard.press("0")
    page.wait_for_function("() => !location.search.includes('from')")
    assert page.evaluate(SHOWN, "timeline")[1] > high


SETTLING = """() => {
  const graph = document.querySelector('#timeline .js-plotly-plot');
  graph.classList.add('dash-graph--pending');
  graph.dispatchEvent(new PointerEvent('pointerdown', { bubbles: true }));
  Plotly.relayout(graph, { 'xaxis.range': [9000, 11100] });
  Plotly.relayout(graph, { autosize: true });
}"""


@pytest_browser
def test_a_zoom_is_kept_while_the_page_settles(site, page):
    """On a slow machine a chart gets its final size after the zoom, and Dash is still busy with it."""
    page.goto(f"{site}/memory?device=0&axis=entry")
    page.wait_for_function(LISTENS, arg="timeline")
    page.evaluate(SETTLING)
    page.wait_for_function("() => location.search.includes('from=9000')", timeout=20_000)


@pytest_browser
def test_a_drag_asks_the_server_once_and_draws_its_answer(site, page):
    """Plotly draws the dragged chart itself, then the server's answer is drawn once, and nothing in between."""
    page.goto(f"{site}/memory?device=0")
    page.wait_for_function(LISTENS, arg="timeline")
    page.wait_for_load_state("networkidle")
    page.evaluate(
        """() => { window.drawn = []; const react = Plotly.react;
                   Plotly.react = (graph, ...rest) => { window.drawn.push(graph.parentElement.id);
                                                        return react(graph, ...rest); }; }"""
    )
    box = page.locator("#timeline .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 40, steps=4)
    page.mouse.up()
    page.wait_for_function("() => new URL(location).searchParams.has('from') && window.drawn.length > 0")
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.drawn") == ["timeline"]


@pytest.mark.parametrize(
    ("low", "high", "unit", "ticks"),
    [
        (0, 798_000_000, "ms", ["0", "100", "200", "300", "400", "500", "600", "700"]),
        (571_000_000, 573_000_000, "ms", ["571.0", "571.5", "572.0", "572.5", "573.0"]),
        (0, 10_689_043_629, "s", ["0", "2", "4", "6", "8", "10"]),
        (0, 100, "ns", ["0", "20", "40", "60", "80", "100"]),
    ],
)
def test_ticks_of_time_are_in_the_unit_of_the_window(low, high, unit, ticks):
    axis = duration_ticks(low, high)
    assert axis["ticktext"] == [f"{tick} {unit}" for tick in ticks]
    assert all(low <= at <= high for at in axis["tickvals"])


@pytest_browser
@pytest.mark.parametrize("colour", ["phase", "stream", "kind"])
def test_events_take_the_colours_that_are_asked_for(traced, page_of, colour):
    page = page_of(traced)
    page.goto(f"{traced}/trace?colour={colour}")
    see_timeline(page)
    legend = page.locator(".timeline .legend").text_content()
    assert {"phase": "backward", "stream": "", "kind": "communication"}[colour] in legend


@pytest_browser
def test_ranks_share_a_timeline(serving, page_of, tmp_path):
    """With a snapshot of each of four ranks, the chart has a line for each other rank, at the same steps."""
    with serving(discover(FIXTURES / "leak_4ranks"), tmp_path) as address:
        page = page_of(address)
        page.goto(f"{address}/memory?colour=rank&steps=8-9")
        page.wait_for_selector("#timeline .scatterlayer .trace")
        assert page.locator("#timeline .scatterlayer .trace").count() == 4
