"""The strip above the timeline of a trace, with a window on the whole of it, and the inspector that can be hidden."""

from pathlib import Path

import pytest
from dashboard import TIMELINE, VIEW, see_timeline, zoom_timeline

from analyzers.run import Kind, discover
from analyzers.traces.slices import slices

pytestmark = pytest.mark.browser
RUN = Path(__file__).parents[3] / "fixtures" / "straggler_data_2ranks"
WIDTH = f"() => {TIMELINE}.width"
COLOURS = f"""() => {{
  const {{ minimap, tracks }} = {TIMELINE}, {{ raster }} = minimap, track = tracks.all[0];
  const categories = track.source.palette.categories(), middle = Math.floor(raster.height / minimap.tracks.length / 2);
  const pixels = [...raster.pixels.slice(middle * raster.width, (middle + 1) * raster.width)];
  return pixels.map((pixel) => categories[pixel] ?? -1);
}}"""


@pytest.fixture
def timeline(serving, page_of, tmp_path):
    """Fixture: a browser page that shows the timeline of rank 0, of 620 ms."""
    with serving(discover(RUN), tmp_path) as address:
        page = page_of(address)
        page.goto(f"{address}/trace?file=0")
        see_timeline(page)
        yield page


def strip_place(page, at):
    """Return the position on the page of the time `at`, in ns, on the strip."""
    box = page.locator(".strip").bounding_box()
    return box["x"] + page.evaluate(f"at => {TIMELINE}.minimap.x(at)", at), box["y"] + box["height"] / 2


def drag(page, start, end):
    """Drag the mouse on the strip from one time to another, in ns."""
    page.mouse.move(*strip_place(page, start))
    page.mouse.down()
    page.mouse.move(*strip_place(page, end), steps=4)
    page.mouse.up()


def pixel_ns(page):
    """Return the duration, in ns, that a pixel of the strip stands for."""
    return page.evaluate(f"() => {TIMELINE}.minimap.at(1) - {TIMELINE}.minimap.at(0)")


def test_a_drag_on_the_strip_selects_what_is_visible_and_a_click_moves_it(timeline):
    page = timeline
    drag(page, 100_000_000, 200_000_000)
    page.wait_for_function("() => new URL(location).searchParams.has('from')")
    close = 2 * pixel_ns(page)
    assert page.evaluate(VIEW) == pytest.approx([1e8, 2e8], abs=close)
    page.mouse.click(*strip_place(page, 500_000_000))
    low, high = page.evaluate(VIEW)
    assert ((low + high) / 2, high - low) == pytest.approx((5e8, 1e8), abs=close)
    page.wait_for_function("low => new URL(location).searchParams.get('from') == low", arg=low)
    assert page.locator(".strip").get_attribute("aria-valuetext").endswith("of 620.1 ms")


def test_the_window_and_its_edges_can_be_dragged(timeline):
    page = timeline
    zoom_timeline(page, [200_000_000, 400_000_000])
    close = 2 * pixel_ns(page)
    drag(page, 300_000_000, 250_000_000)
    assert page.evaluate(VIEW) == pytest.approx([1.5e8, 3.5e8], abs=close)
    drag(page, 350_000_000, 450_000_000)
    assert page.evaluate(VIEW) == pytest.approx([1.5e8, 4.5e8], abs=close)
    drag(page, 150_000_000, 250_000_000)
    assert page.evaluate(VIEW) == pytest.approx([2.5e8, 4.5e8], abs=close)


def test_keys_move_the_window_of_the_strip(timeline):
    page = timeline
    zoom_timeline(page, [200_000_000, 300_000_000])
    page.focus(".strip")
    for key, view in (
        ("ArrowRight", [210_000_000, 310_000_000]), ("ArrowLeft", [200_000_000, 300_000_000]),
        ("PageDown", [300_000_000, 400_000_000]), ("PageUp", [200_000_000, 300_000_000]), ("Home", [0, 100_000_000]),
    ):  # fmt: skip
        page.keyboard.press(key)
        assert page.evaluate(VIEW) == view
    page.keyboard.press("End")
    assert page.evaluate(VIEW)[1] == page.evaluate(f"() => {TIMELINE}.whole.high")
    page.keyboard.press("0")
    assert page.evaluate(f"() => {TIMELINE}.isWhole()")


def test_the_strip_has_the_colours_of_the_events_and_is_not_drawn_anew_when_the_view_moves(timeline):
    """What nests is drawn over what encloses it; only the window moves while one pans."""
    page = timeline
    pixels, found = page.evaluate(COLOURS), slices(discover(RUN).of(Kind.TRACE)[0])
    innermost, scale = [-1] * len(pixels), page.evaluate(f"() => {TIMELINE}.minimap.raster.width") / 620_100_000
    lane = found.lines[0].lane
    for line in sorted((line for line in found.lines if line.lane == lane), key=lambda line: line.depth):
        for i in range(line.first, line.last):
            low, high = found.start[i] * scale, (found.start[i] + found.dur[i]) * scale
            if high - low >= 4:
                innermost[round(low) : round(high)] = [int(found.kind[i])] * (round(high) - round(low))
    same = sum(ours == theirs for ours, theirs in zip(innermost, pixels, strict=True))
    assert same > 0.8 * len(pixels)
    page.evaluate(f"() => {{ {TIMELINE}.minimap.paintPicture = () => {{ window.drawnAnew = true; }}; }}")
    page.mouse.click(*strip_place(page, 300_000_000))
    zoom_timeline(page, [200_000_000, 300_000_000])
    assert page.evaluate("() => window.drawnAnew") is None
    page.fill("#event-name", "all_gather")
    page.wait_for_function("() => window.drawnAnew")


def test_a_search_is_marked_on_the_strip(timeline):
    """The long all_gather in the first half is marked; the events nested in it, which do not match, do not cover it."""
    page = timeline
    page.fill("#event-name", "FSDP::all_gather")
    page.wait_for_function(f"() => !{TIMELINE}.minimap.stale")
    pixels = page.evaluate(COLOURS)
    dim = page.evaluate(f"() => {TIMELINE}.tracks.all[0].source.palette.dim")
    assert pixels[: len(pixels) // 2].count(dim) < 0.02 * len(pixels)
    assert pixels[-len(pixels) // 10 :].count(dim) > 0.05 * len(pixels)


def test_the_inspector_can_be_hidden_for_a_wider_timeline(timeline):
    """By its button or by a key, on every page, and also after the page is loaded again."""
    page = timeline
    narrow = page.evaluate(WIDTH)
    page.click("#hide-inspector")
    page.wait_for_function(f"narrow => ({WIDTH})() > narrow + 300", arg=narrow)
    assert page.evaluate("document.activeElement.id") == "show-inspector"
    assert not page.locator(".inspector").is_visible()
    drawer, canvas = (page.locator(place).bounding_box() for place in (".drawer", ".canvas"))
    assert drawer["width"] == canvas["width"]
    page.reload()
    see_timeline(page)
    assert not page.locator(".inspector").is_visible()
    page.click("nav.pages >> text=Steps")
    page.wait_for_selector("#phases .js-plotly-plot")
    assert not page.locator(".inspector").is_visible()
    page.keyboard.press("q")
    page.wait_for_selector(".inspector", state="visible")
    page.go_back()
    see_timeline(page)
    assert page.evaluate(WIDTH) == narrow
    page.focus("#event-name")
    page.keyboard.press("q")
    assert page.locator(".inspector").is_visible()


def test_a_narrow_window_shows_the_inspector_below_even_if_it_was_hidden(timeline):
    page = timeline
    page.keyboard.press("q")
    page.wait_for_selector(".inspector", state="hidden")
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_selector(".inspector", state="visible")
    assert not page.locator("#hide-inspector").is_visible()
    assert not page.locator("#show-inspector").is_visible()
