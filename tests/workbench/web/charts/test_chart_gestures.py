"""Gestures on charts in a real browser: the legend shows one series alone, and keys move through a tree of memory."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from analyzers.run import discover

pytestmark = pytest.mark.browser
FIXTURES = Path(__file__).parents[3] / "fixtures"
SCREEN = {"width": 1280, "height": 800}
VISIBLE = """() => document.querySelector('#timeline .js-plotly-plot')._fullData
  .filter(trace => trace.visible === true).map(trace => trace.name)"""
CHOSEN = "() => [...document.querySelectorAll('g.slice.chosen')].map(part => part.__data__.data.data.label)"
FOCUSED = "() => document.activeElement.closest('figure[data-tree]') !== null"


@pytest.fixture
def opened(page_of, serving, tmp_path):
    """Fixture: `opened(run, path, *parts)` opens a page of a recorded run and waits until it has these parts."""
    with ExitStack() as servers:

        def open_one(run, path, *parts):
            address = servers.enter_context(serving(discover(FIXTURES / run), tmp_path))
            page = page_of(address, SCREEN)
            page.goto(f"{address}/{path}")
            for part in parts:
                page.wait_for_selector(part)
            page.wait_for_load_state("networkidle")
            return page

        yield open_one


@pytest.fixture
def memory(opened):
    """Fixture: the memory page of a run whose memory grows."""
    return opened("leak_2ranks", "memory", "#tree g.slice", "#timeline .legendtoggle")


def turned(page, count):
    """Wait until `count` layers of the chart are shown, and return their names."""
    page.wait_for_function(f"count => ({VISIBLE})().length === count", arg=count)
    return page.evaluate(VISIBLE)


def test_a_click_in_the_legend_shows_one_layer_and_a_second_click_all(memory):
    every = memory.evaluate(VISIBLE)
    entry = memory.locator("#timeline .legend .traces", has_text="activations").locator(".legendtoggle")
    entry.click()
    assert turned(memory, 1) == ["activations"]
    entry.click()
    assert turned(memory, len(every)) == every


@pytest.mark.parametrize("key", ["Control", "Shift"])
def test_with_ctrl_or_shift_a_click_in_the_legend_hides_one_layer(memory, key):
    every = memory.evaluate(VISIBLE)
    entry = memory.locator("#timeline .legend .traces", has_text="activations").locator(".legendtoggle")
    entry.click(modifiers=[key])
    assert turned(memory, len(every) - 1) == [name for name in every if name != "activations"]


def test_keys_move_through_the_tree_and_zoom_into_it(memory):
    """The chart that a zoom draws anew has the focus again."""
    memory.locator("figure[data-tree]").focus()
    for key, chosen in (
        ("ArrowDown", "14.5 MiB live"), ("ArrowDown", "layers"), ("ArrowRight", "output"), ("ArrowLeft", "layers"),
        ("ArrowUp", "14.5 MiB live"), ("ArrowDown", "layers"),
    ):  # fmt: skip
        memory.keyboard.press(key)
        assert memory.evaluate(CHOSEN) == [chosen]
    memory.keyboard.press("Enter")
    memory.wait_for_function("() => new URL(location).searchParams.has('under')")
    memory.wait_for_selector("#path")
    memory.wait_for_function(FOCUSED)
    memory.wait_for_load_state("networkidle")
    memory.keyboard.press("Backspace")
    memory.wait_for_function("() => !new URL(location).searchParams.has('under')")


def test_a_level_of_the_tree_is_as_high_as_a_line_of_text(memory):
    """Four levels of the tree took the height of a whole window."""
    heights = memory.locator("#tree g.slice path").evaluate_all(
        "parts => parts.map(part => Math.round(part.getBoundingClientRect().height))"
    )
    assert max(heights) <= 32


def test_the_step_under_the_pointer_is_shown_in_all_charts_of_the_steps(opened):
    """As with the shared crosshair of Grafana; values have units."""
    page = opened("straggler_2ranks", "steps", "#loss .js-plotly-plot .trace")
    box = page.locator("#times .js-plotly-plot").bounding_box()
    # A busy browser may not yet listen to the first moves.
    for x in range(380, 580, 4):
        page.mouse.move(box["x"] + x, box["y"] + 70)
        page.wait_for_timeout(50)
        if page.locator("#loss .hoverlayer .legend").count():
            break
    page.wait_for_selector("#loss .hoverlayer .legend")
    titles = [page.locator(f"#{name} .hoverlayer .legendtitletext").text_content() for name in ("phases", "loss")]
    assert titles[0] == titles[1]
    assert titles[0].startswith("step ")
    assert " ms" in page.locator("#phases .hoverlayer").text_content()
    page.mouse.move(10, 500)
    page.wait_for_function("() => !document.querySelector('.hoverlayer .legend')")
