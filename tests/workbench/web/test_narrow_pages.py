"""What a window as narrow as a phone's shows of a page, measured in a real browser."""

import re
from pathlib import Path

import pytest

from analyzers import compare
from analyzers.run import discover
from analyzers.store import Options
from workbench.web.served_run import ServedRun

pytestmark = pytest.mark.browser
FIXTURES = Path(__file__).parents[2] / "fixtures"
PHONE = {"width": 390, "height": 844}
LINES = "node => { const r = document.createRange(); r.selectNodeContents(node); return r.getClientRects().length; }"
WIDTH = """node => {
  const range = document.createRange();
  range.selectNodeContents(node);
  return range.getBoundingClientRect().width;
}"""
BOXES = """nodes => nodes.map(node => {
  const box = node.getBoundingClientRect();
  return [box.left, box.right, box.top, box.bottom];
})"""


@pytest.fixture(scope="module")
def site(serving, tmp_path_factory):
    """Fixture: the address of a dashboard of a run that ran out of memory."""
    with serving(discover(FIXTURES / "oom_2ranks"), tmp_path_factory.mktemp("dropped")) as address:
        yield address


@pytest.fixture(scope="module")
def compared(serving, tmp_path_factory):
    """Fixture: the address of a dashboard that compares two runs."""
    a, b = (discover(FIXTURES / name) for name in ("oom_2ranks", "straggler_data_2ranks"))
    view = ServedRun(a, Options(), compare.analyze(a, b), b)
    with serving(view, tmp_path_factory.mktemp("dropped")) as address:
        yield address


@pytest.fixture
def phone(page_of, site):
    """Fixture: the first page of the run in a narrow window."""
    page = page_of(site, PHONE)
    page.goto(site)
    page.wait_for_selector("#verdict")
    page.wait_for_selector("article table")
    return page


def test_names_of_pages_are_not_broken(phone):
    lines = phone.locator("nav.pages a").evaluate_all(f"nodes => nodes.map({LINES})")
    assert set(lines) == {1}


def test_the_end_of_the_path_stays_in_the_heading(phone):
    """It tells runs apart; the beginning of the path is cut."""
    end = phone.locator("h1 span:last-child")
    assert end.inner_text() == "oom_2ranks"
    assert end.evaluate("node => node.scrollWidth <= node.clientWidth")
    assert "oom_2ranks - workbench" in phone.title()


def test_a_name_that_is_longer_than_the_path_before_it_is_whole(serving, page_of, tmp_path):
    with serving(discover(FIXTURES / "mismatch_shape_2ranks"), tmp_path) as address:
        page = page_of(address, PHONE)
        page.goto(address)
        page.wait_for_selector("#verdict")
        name = page.locator("h1 span:last-child")
        assert name.bounding_box()["width"] >= name.evaluate(WIDTH)


def test_no_short_word_of_a_first_column_is_broken(phone):
    place = phone.locator("article", has=phone.locator("caption", has_text="Files"))
    cells = place.locator("tbody td:first-child", has_text=re.compile(r"^\w{1,12}$"))
    assert set(cells.evaluate_all(f"nodes => nodes.map({LINES})")) == {1}


def test_a_long_title_of_a_table_moves_no_number_out_of_sight(phone):
    table = phone.locator("table", has=phone.locator("caption", has_text="Memory by category at the peak"))
    right = table.locator("tbody tr").first.locator("td").evaluate_all(BOXES)[1][1]
    assert right <= PHONE["width"]
    assert table.locator("button.save").evaluate_all(BOXES)[0][1] <= PHONE["width"]


def test_the_first_column_stays_while_a_table_scrolls(phone):
    """It has the name of the row; the other columns move."""
    place = phone.locator("article", has=phone.locator("caption", has_text="Files"))
    place.scroll_into_view_if_needed()
    cells = place.locator("tbody tr").first.locator("td")
    before = cells.evaluate_all(BOXES)
    place.evaluate("node => { node.scrollLeft = 100; }")
    after = cells.evaluate_all(BOXES)
    assert after[0][0] == before[0][0]
    assert after[1][0] < before[1][0]


def test_the_name_of_a_finding_is_below_its_title(phone):
    title, name = phone.locator("details.card summary").first.locator(":scope > :not(.sign)").evaluate_all(BOXES)
    assert name[2] >= title[3]


def test_all_charts_of_the_steps_are_drawn_in_full(page_of, site):
    page = page_of(site, PHONE)
    page.goto(f"{site}/steps")
    page.wait_for_selector("#loss .scatterlayer")
    canvas = page.locator(".canvas")
    assert canvas.evaluate("node => node.scrollHeight <= node.clientHeight + 1")
    assert page.locator("#phases .nsewdrag").bounding_box()["height"] > 120


def test_numbers_of_a_waterfall_are_clear_of_the_names_of_its_rows(page_of, compared):
    page = page_of(compared, PHONE)
    page.goto(f"{compared}/compare")
    page.wait_for_selector("#step-change .textpoint text")
    names = page.locator("#step-change .ytick text").evaluate_all(BOXES)
    numbers = page.locator("#step-change .textpoint text").evaluate_all(BOXES)
    assert len(names) == len(numbers) > 4
    assert max(right for _, right, *_ in names) <= min(left for left, *_ in numbers)
    assert max(right for _, right, *_ in numbers) <= PHONE["width"]


def test_a_long_name_breaks_after_a_point_or_an_underscore(page_of, site):
    """Broken within a word, such as `optimizer.weight_deca` and `y`, it is hard to read."""
    page = page_of(site, PHONE)
    page.goto(f"{site}/config")
    page.wait_for_selector("tbody td wbr", state="attached")
    cell = page.locator("td:first-child", has_text="optimizer.weight_decay")
    assert cell.evaluate("node => [...node.childNodes].map(part => part.textContent)") == [
        "optimizer.", "", "weight_", "", "decay",
    ]  # fmt: skip
    assert page.locator(".n wbr").count() == 0


def test_a_table_that_goes_on_beyond_the_edge_has_a_shade_there(phone):
    shade = "node => getComputedStyle(node).backgroundAttachment"
    wide = phone.locator("article", has=phone.locator("caption", has_text="Files"))
    assert wide.evaluate("node => node.scrollWidth > node.clientWidth")
    assert wide.evaluate(shade) == "local, local, scroll, scroll"


def test_the_first_page_shows_the_first_tables_and_the_others_on_demand(phone):
    """Each table of each analyzer made this page as long as thirteen windows."""
    more = phone.locator("details.more")
    assert more.locator("summary").inner_text().endswith("more tables")
    assert not more.locator("table").first.is_visible()
    shown = phone.locator("main .tables article").evaluate_all("articles => articles.map(one => one.ariaLabel)")
    assert shown[:2] == ["Ranks", "Chain of events"]
    assert shown[-1] == "Files"
    more.locator("summary").click()
    assert more.locator("table").first.is_visible()


def test_columns_out_of_sight_do_not_make_rows_high(phone):
    """The paths of files are to the right of the window, where two lines must do for them."""
    place = phone.locator("article", has=phone.locator("caption", has_text="Files"))
    rows = place.locator("tbody tr").evaluate_all("nodes => nodes.map(node => node.getBoundingClientRect().height)")
    assert rows
    assert max(rows) <= 46


def test_the_messages_of_log_events_wrap(page_of, serving, tmp_path):
    with serving(discover(FIXTURES / "oom_4ranks"), tmp_path) as address:
        page = page_of(address, PHONE)
        page.goto(f"{address}/logs")
        events = page.locator("#events")
        events.locator("td", has_text="RuntimeError").wait_for()
        assert events.evaluate("node => node.scrollWidth <= node.clientWidth")


def test_the_failed_step_is_named_above_the_titles_of_the_small_charts(phone):
    """They would overlap in a narrow window, where the first title reaches as far as the line of the failed step."""
    texts = phone.locator("#steps-overview .annotation-text")
    [*titles, failed] = texts.evaluate_all(BOXES)
    assert (texts.last.text_content() or "").startswith("✗ step")
    assert all(failed[3] <= title[2] + 1 for title in titles)
