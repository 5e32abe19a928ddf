"""The tree of live memory in a real browser: its names have the room of their parts, stacks show library frames."""

from html import unescape
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from analyzers.run import discover

pytestmark = pytest.mark.browser
RUN = Path(__file__).parents[3] / "fixtures" / "leak_2ranks"
NAMES = """() => [...document.querySelectorAll('#tree g.slice')].map(slice => {
  const data = slice.__data__.data.data, text = slice.querySelector('text');
  return [data.label, text.textContent.trim(), text.getBoundingClientRect().width,
          slice.querySelector('path').getBoundingClientRect().width];
})"""

WRITTEN = "[...document.querySelectorAll('#tree g.slice text')].map(text => text.textContent.trim()).join('').length"
WHOLE = """() => [...document.querySelectorAll('#tree g.slice')].every(slice => {
  const text = slice.querySelector('text'), shown = text.textContent.trim(), name = slice.__data__.data.data.label;
  const room = slice.querySelector('path').getBoundingClientRect().width;
  const cut = shown.length < name.length && room > 8 * name.length && !name.includes('&');
  return !shown || (!text.getAttribute('transform').includes('scale') && !cut);
})"""
"""Whether the chart is drawn for its width: no name is made smaller, or cut although it has room (8 px a letter).

The browser needs a moment for this after the width has changed.
"""


@pytest.fixture
def tree(page_of, serving, tmp_path):
    """Fixture: the memory page of a run whose memory grows, with the tree by stack."""
    with serving(discover(RUN), tmp_path) as address:
        page = page_of(address, {"width": 1280, "height": 800})
        page.goto(f"{address}/memory?by=stack")
        page.wait_for_selector("#tree g.slice")
        page.wait_for_load_state("networkidle")
        yield page


def letters(page):
    """Return how many letters of names are shown, after a check that all that are shown have room."""
    page.wait_for_function(WHOLE)
    shown = [(unescape(label), *rest) for label, *rest in page.evaluate(NAMES)]
    for label, text, wide, room in shown:
        assert wide <= room or not text, label
    return sum(len(text) for _, text, *_ in shown)


def test_names_have_as_much_room_as_the_chart_has_in_the_browser(tree):
    """Of a frame the function is shown rather than the folder; a wider chart, or a narrower one, is written anew."""
    page = tree
    usual = letters(page)
    shown = [text for _, text, *_ in page.evaluate(NAMES)]
    assert "trainer/step.py forward_backward:41" in shown
    assert any(name in shown for name in ("model.py forward:105", "forward:76"))
    page.click("#hide-inspector")
    page.wait_for_function(f"usual => {WRITTEN} > usual + 20", arg=usual)
    assert letters(page) > usual
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function(f"usual => {WRITTEN} < usual - 20", arg=usual)
    assert letters(page) < usual


def test_a_stack_shows_the_frames_of_libraries_on_demand(tree):
    """The switch is in the link; the selected part of the other tree is not."""
    page = tree
    hidden = {label for label, *_ in page.evaluate(NAMES)}
    assert not [label for label in hidden if "_call_impl" in label]
    page.click("#drawer >> text=show library frames")
    page.wait_for_function("() => new URL(location).searchParams.get('library') === '1'")
    page.wait_for_selector("#tree g.slice:has-text('_call_impl')")
    page.reload()
    page.wait_for_selector("#tree g.slice")
    page.wait_for_load_state("networkidle")
    whole = {label for label, *_ in page.evaluate(NAMES)}
    assert {label for label in hidden if ".py " in label} <= whole
    assert len(whole) > 2 * len(hidden)
    letters(page)
    page.locator("#tree g.slice").nth(5).click()
    page.wait_for_function("() => new URL(location).searchParams.has('under')")
    page.wait_for_selector("#path")
    page.click("#drawer >> text=hide library frames")
    page.wait_for_function("() => new URL(location).searchParams.get('library') === '0'")
    assert "under" not in parse_qs(urlsplit(page.url).query)
    page.click("#drawer >> text=by module")
    page.wait_for_selector("text=hide library frames", state="hidden")
