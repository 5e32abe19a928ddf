"""Use the dashboard in a real browser."""

import json
import pickle
import re
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from dashboard import LISTENS, SHOWN, VIEW, see_timeline, visitor, zoom

from analyzers.run import discover
from workbench.present.table import table
from workbench.web import app
from workbench.web.components.links import table as html_table

pytestmark = pytest.mark.browser
FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_the_first_page_tells_the_verdict(site, page):
    page.goto(site)
    verdict = page.locator("#verdict").inner_text()
    assert "Rank 1 ran out of memory at step 6" in verdict
    assert page.locator("h1").count() == 1


def test_an_address_is_a_state(site, page):
    """A link to a rank's memory opens on that rank, with a drawn chart and its numbers as a table."""
    page.goto(f"{site}/memory?device=2")
    page.wait_for_selector("#timeline .scatterlayer .trace")
    asked_for = page.locator("select.picker option").nth(2).text_content()
    assert page.locator("main h2").first.text_content() == asked_for
    page.click("nav.tabs >> text=At the peak")
    page.wait_for_selector("caption:has-text('Memory by category at the peak')")
    assert page.locator("select.picker option").nth(2).evaluate("one => one.selected")


def test_zooming_asks_for_the_window(site, page):
    """After a zoom the chart has only the entries of the selected range."""
    page.goto(f"{site}/memory?axis=entry")
    page.wait_for_selector("#timeline .scatterlayer .trace")
    page.wait_for_function(LISTENS, arg="timeline")
    whole = entries(page)
    middle = (whole[0] + whole[1]) // 2
    zoom(page, "timeline", [middle - 50, middle + 50])
    low, high = entries(page)
    assert middle - 60 <= low < high <= middle + 60


def test_the_axis_is_time_or_trace_entries(site, page):
    """A zoom in seconds shows the entries of that time; the other axis then shows the same entries."""
    page.goto(f"{site}/memory?device=0&steps=all")
    page.wait_for_selector("#timeline .scatterlayer .trace")
    seconds, numbers = (
        page.evaluate(f"Array.from(document.querySelector('#timeline .js-plotly-plot')._fullData[0].{name})")
        for name in ("x", "customdata")
    )
    assert sorted(seconds) == seconds
    assert sorted(numbers) == numbers
    low, high = len(numbers) // 3, len(numbers) // 2
    zoom(page, "timeline", [seconds[low] - 1e-7, seconds[high] + 1e-7])
    page.wait_for_load_state("networkidle")
    first, last = entries(page)
    assert numbers[low - 1] < first <= last <= numbers[high + 1]
    page.click("nav[aria-label='choose the axis'] >> text=trace entries")
    page.wait_for_selector("#timeline .xtitle:has-text('allocator event')")
    assert entries(page) == (first, last)
    start, end = page.evaluate(SHOWN, "timeline")
    assert start <= first <= last <= end


def entries(page):
    x = page.evaluate("Array.from(document.querySelector('#timeline .js-plotly-plot')._fullData[0].customdata)")
    return int(x[0]), int(x[-1])


def test_a_click_on_the_timeline_goes_to_that_instant(site, page):
    """The click changes the address and the live blocks; opening the address later shows the same entry."""
    page.goto(f"{site}/memory?by=line")
    page.wait_for_selector("#timeline .scatterlayer .trace")
    page.wait_for_load_state("networkidle")
    before = page.locator("#instant").inner_text()
    assert "(a request of 8.0 MiB failed)" in before
    box = page.locator("#timeline .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
    page.wait_for_selector("#timeline .hoverlayer .legend, #timeline .hoverlayer .hovertext")
    page.mouse.click(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
    page.wait_for_function("before => document.querySelector('#instant')?.innerText !== before", arg=before)
    after = page.locator("#instant").inner_text()
    assert "by=line" in page.url
    page.goto(page.url)
    page.wait_for_selector("#tree .icicle")
    assert page.locator("#instant").inner_text() == after


@pytest.mark.parametrize("by", ["module", "line", "stack", "category"])
def test_what_is_alive_is_a_tree_a_table_and_a_list(site, page, by):
    page.goto(f"{site}/memory?device=1&by={by}")
    page.wait_for_selector("#tree .icicle")
    page.wait_for_selector("caption:has-text('Largest owners')")
    assert "activations" in page.locator("#categories li").all_inner_texts()[0]


def test_what_is_sought_is_told_and_the_rest_dims(site, page):
    """Typed words become part of the address; matching blocks are listed, and an address of memory lists its blocks."""
    page.goto(f"{site}/memory")
    page.wait_for_selector("#tree .icicle")
    page.fill("#find", "feed_forward")
    page.keyboard.press("Enter")
    page.wait_for_selector("caption:has-text('Matching blocks')")
    assert "find=feed_forward" in page.url
    address = page.locator("table:has(caption:has-text('Matching blocks')) tbody td").first.inner_text()
    page.goto(f"{site}/memory?find={address}")
    page.wait_for_selector("caption:has-text('Matching blocks')")
    lives = page.locator("table:has(caption:has-text('Matching blocks')) tbody tr td:first-child").all_inner_texts()
    assert address in lives


def test_a_click_on_the_tree_goes_below_it(site, page):
    page.goto(f"{site}/memory")
    page.wait_for_selector("#tree .icicle")
    page.wait_for_load_state("networkidle")
    page.locator("#tree .slice:has-text('layers')").first.click()
    page.wait_for_url("**under=*")
    page.wait_for_function(
        """() => { const drawn = [...document.querySelectorAll('#tree .slice')].map(one => one.textContent);
                   return drawn.length > 0 && !drawn.some(text => text.includes('tok_embeddings')); }"""
    )


def test_a_click_on_a_block_tells_its_stack_and_its_life(site, page):
    """A block is selected by mouse on the map, or by keyboard in the table; its address (URL) alone shows it again."""
    page.goto(f"{site}/memory?device=1&tab=segments")
    page.wait_for_selector("#blocks .heatmaplayer")
    page.wait_for_load_state("networkidle")
    letter = page.locator("#blocks .textpoint:has-text('A')").first
    letter.scroll_into_view_if_needed()
    box = letter.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#blocks .hoverlayer .hovertext")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#block-stack li")
    block = re.search("block=0x[0-9a-f]+", page.url)[0]
    title = page.locator("#block").inner_text()
    assert block.partition("=")[2] in title
    assert page.locator("#block-stack a[href*='source?at=']").count()
    lives = page.locator("table", has=page.locator("caption", has_text="History of address"))
    assert block.partition("=")[2] in lives.locator("tbody").inner_text()
    page.goto(page.url)
    page.wait_for_selector("#block-stack li")
    assert page.locator("#block").inner_text() == title
    page.get_by_role("link", name="Block after").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("before => document.querySelector('#block')?.innerText !== before", arg=title)
    page.go_back()
    page.wait_for_function("before => document.querySelector('#block')?.innerText === before", arg=title)
    page.locator("#block-stack a[href*='source?at=']").first.click()
    page.wait_for_selector("ol.source [aria-current]")


def test_free_memory_and_what_is_not_reserved_are_told(site, page):
    page.goto(f"{site}/memory?device=1&tab=segments")
    page.wait_for_selector("caption:has-text('Segments, largest first')")
    segments = page.locator("table", has=page.locator("caption", has_text="Segments, largest first"))
    segments.locator("tr:has(td:nth-child(6):text-is('0')) a").first.press("Enter")
    page.wait_for_selector("#block:has-text('of free memory at 0x')")
    page.goto(f"{site}/memory?device=1&block=0x7")
    page.wait_for_selector("#block:has-text('No segment contains 0x7')")


@pytest.mark.parametrize("colour", ["pool", "stream"])
def test_the_timeline_takes_other_colours(site, page, colour):
    page.goto(f"{site}/memory?colour={colour}")
    page.wait_for_selector("#timeline .scatterlayer .trace")
    assert colour in page.locator("#timeline .legend").text_content()


@pytest.mark.parametrize("name", ["json", "md", "html"])
def test_the_report_can_be_saved(site, page, name):
    page.goto(site)
    page.wait_for_selector("#verdict")
    with page.expect_download() as saved:
        page.click("header summary")
        page.click(f"header a:text-is('{name}')")
    text = saved.value.path().read_text()
    assert "memory.oom" in text


def test_a_table_can_be_saved(site, page):
    page.goto(f"{site}/memory")
    page.wait_for_selector("caption:has-text('Largest owners')")
    with page.expect_download() as saved:
        page.click("caption:has-text('Largest owners') button.save")
    lines = saved.value.path().read_text().splitlines()
    assert lines[0] == '"owner","bytes","blocks"'
    assert len(lines) > 3


def test_a_saved_table_has_counts_that_programs_can_read(site, page, monkeypatch):
    counts = table("Events", "name | count>", [("kernel", 273_942), ("1,2", 9)])
    monkeypatch.setitem(app.PAGES, "logs", replace(app.PAGES["logs"], layout=lambda *_: html_table(counts)))
    page.goto(f"{site}/logs")
    page.wait_for_selector("td:has-text('273,942')")
    with page.expect_download() as saved:
        page.click("caption:has-text('Events') button.save")
    assert saved.value.path().read_text().splitlines()[1:] == ['"kernel","273942"', '"1,2","9"']


def test_the_window_stands_in_the_address(site, page):
    """A zoom is stored in the address, and restored from it."""
    page.goto(f"{site}/memory?from=1000&to=2000")
    page.wait_for_selector("#timeline .scatterlayer .trace")
    low, high = entries(page)
    assert 1000 <= low < high <= 2000


def test_a_line_leads_to_its_source(site, page):
    """The evidence of the first finding names a line of the trainer, whose source is on this machine."""
    page.goto(site)
    page.wait_for_selector("#verdict")
    page.locator("details.card").first.locator("summary").click()
    page.locator("details.card").first.locator("code a").first.click()
    page.wait_for_selector("ol.source [aria-current]")
    assert "model.py" in page.locator("main h2").inner_text()


@pytest.mark.parametrize("at", ["/etc/passwd:1", "conftest.py:3", "../../pyproject.toml:1"])
def test_the_address_is_no_way_to_other_files(site, page, at):
    page.goto(f"{site}/source?at={at}")
    page.wait_for_selector("#page > *")
    assert page.locator("ol.source").count() == 0


def test_the_matrix_shows_who_waits(site, page):
    page.goto(f"{site}/hang")
    page.wait_for_selector("#matrix .heatmaplayer")
    page.click("nav.tabs >> text=Who waits for whom")
    page.wait_for_selector("caption:has-text('Who waits for whom')")


@pytest.fixture(scope="module")
def slow_site(serving, tmp_path_factory):
    """Fixture: the address of a dashboard of a run with a straggler and traces of both ranks."""
    run = discover(FIXTURES / "straggler_data_2ranks")
    with serving(run, tmp_path_factory.mktemp("dropped")) as address:
        yield address


def test_traces_are_drawn_together_and_one_by_one(slow_site, page_of):
    page = page_of(slow_site)
    page.goto(f"{slow_site}/trace?file=1&tab=shares")
    page.wait_for_selector("#shares .barlayer .point")
    page.goto(f"{slow_site}/trace?file=1&tab=ranks")
    for chart in ("#fleet .heatmaplayer", "#lateness .heatmaplayer"):
        page.wait_for_selector(chart)
    see_timeline(page)
    whole = page.evaluate(VIEW)
    page.goto(f"{slow_site}/trace?file=1&from=1000000&to=3000000")
    see_timeline(page)
    assert page.evaluate(VIEW) == [1_000_000, 3_000_000] != whole


def test_the_critical_path_leads_to_its_windows(slow_site, page_of):
    """The page has a track above the events, the parts of the path, and links from its pieces to the time of each."""
    page = page_of(slow_site)
    page.goto(f"{slow_site}/trace?file=0&path=1")
    see_timeline(page)
    assert page.locator(".timeline .head").first.inner_text().startswith("critical path")
    assert page.locator("caption:has-text('Critical path of step 10, rank 0')").count() == 1
    pieces = page.locator("table", has=page.locator("caption", has_text="Longest pieces of the path"))
    pieces.locator("tr:has-text('gloo:all_gather') a").first.press("Enter")
    page.wait_for_function("() => new URL(location).searchParams.has('from')")
    page.wait_for_function(
        f"""() => {{ const query = new URL(location).searchParams, [low, high] = ({VIEW})();
                   return low == query.get('from') && high == query.get('to'); }}"""
    )
    assert "path=1" in page.url


def test_steps_are_drawn_by_rank_and_phase(slow_site, page_of):
    """The phases of the late rank are shown first."""
    page = page_of(slow_site)
    page.goto(f"{slow_site}/steps")
    for chart in ("#times .scatterlayer .trace", "#phases .barlayer .point", "#loss .scatterlayer .trace"):
        page.wait_for_selector(chart)
    assert "Phases of each step of rank 1" in page.locator("main").inner_text()
    assert page.locator("#phases .legend").text_content().count("data_wait") == 1


@pytest.mark.parametrize(
    "address",
    [
        "trace",
        "trace?file=7&from=9&to=3",
        "steps",
        "steps?rank=77",
        "memory?under=77777&find=%3Cb%3E",
        "nowhere",
        "memory?device=99",
        "memory?entry=-1&by=x&block=0xffffffffffffffff",
        "memory?entry=99999999999999999999",
        "hang?group=%3Cscript%3E",
    ],
)
def test_every_address_answers(site, page, address):
    page.goto(f"{site}/{address}")
    page.wait_for_selector("#page > *")


def test_nothing_outside_is_served(site):
    """No path from the assets leads to another file of the machine; at most the page itself is returned."""
    for path in ("/assets/../app.py", "/assets/%2e%2e/%2e%2e/pyproject.toml", "/assets//etc/passwd"):
        try:
            with visitor(site).open(site + path, timeout=120) as response:
                assert b"react-entry-point" in response.read()
        except urllib.error.HTTPError as error:
            assert error.code == 404  # noqa: PT017  # an answer is allowed as well


def test_no_chart_offers_to_leave_this_machine(site, page):
    """Plotly's button that uploads a chart to its makers is removed."""
    page.goto(f"{site}/memory")
    page.wait_for_selector("#timeline .modebar-btn", state="attached")
    offered = page.eval_on_selector_all(".modebar-btn", "all => all.map(one => one.getAttribute('data-title'))")
    assert "Zoom" in offered
    assert not [title for title in offered if "share" in title.lower() or "cloud" in title.lower()]


def test_pages_carry_a_strict_policy(site):
    with visitor(site).open(site, timeout=120) as response:
        policy = response.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe-eval" not in policy


def test_a_made_up_path_is_no_way_to_a_file(site):
    """The zoom callback takes the number of a device, so that no path can be passed to it."""
    body = {
        "output": "timeline.figure",
        "outputs": {"id": "timeline", "property": "figure"},
        "inputs": [{"id": "timeline-zoom", "property": "data", "value": {"xaxis.autorange": True}}],
        "state": [{"id": "device", "property": "data", "value": "/etc/passwd"}],
        "changedPropIds": ["timeline-zoom.data"],
    }
    request = urllib.request.Request(
        f"{site}/_dash-update-component", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError):
        visitor(site).open(request, timeout=120)


def test_what_the_allocator_did_is_told_entry_by_entry(site, page):
    """The list has pages of entries, beginning with the failed one; a search leaves only the matching entries."""
    page.goto(f"{site}/memory?device=0&tab=ranges")
    page.wait_for_selector("#cached .barlayer .point")
    ranges = page.locator("table", has=page.locator("caption", has_text="Reserved ranges")).locator("tbody tr")
    assert ranges.count() == page.locator("#cached .barlayer .point").count()
    page.click("nav.tabs >> text=Trace entries")
    page.wait_for_selector("caption:has-text('Trace entries')")
    entries = page.locator("table", has=page.locator("caption", has_text="Trace entries"))
    # Of a long table only the rows in sight are in the page.
    entries.get_by_role("searchbox").fill("oom")
    assert entries.locator("tbody tr:not(.space)").count() == 1
    entries.get_by_role("searchbox").fill("")
    first = entries.locator("tbody td").first.inner_text()
    page.get_by_role("link", name="Earlier entries").click()
    page.wait_for_function(
        "first => ![...document.querySelectorAll('td')].some(cell => cell.innerText === first)", arg=first
    )
    page.goto(f"{site}/memory?device=0&find=oom&tab=entries")
    page.wait_for_selector("caption:has-text('Trace entries')")
    assert entries.locator("tbody tr").count() == 1


def test_a_snapshot_without_a_history_is_drawn_as_one_moment(serving, page_of, tmp_path):
    """Its memory is a band over the whole width, and no text names the entry -1."""
    snapshot = {"segments": [segment(64), segment(128)], "device_traces": [[]], "external_annotations": []}
    (tmp_path / "snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    with serving(discover(tmp_path / "snapshot.pickle"), tmp_path / "dropped") as address:
        page = page_of(address)
        page.goto(f"{address}/memory")
        page.wait_for_selector("#timeline .scatterlayer .js-fill")
        band = page.locator("#timeline .scatterlayer .js-fill").last.bounding_box()
        assert band["width"] > 0.8 * page.locator("#timeline .nsewdrag").bounding_box()["width"]
        assert page.locator("#instant").inner_text() == "Live memory in the snapshot"
        assert "no history" in page.locator("#timeline .xtitle").text_content()
        assert page.locator("nav[aria-label='choose the axis']").count() == 0


def segment(mib):
    """Return a segment of a snapshot that one block fills."""
    size, address = mib << 20, mib << 30
    block = {"size": size, "requested_size": size, "address": address, "state": "active_allocated", "frames": []}
    return {
        "device": 0, "address": address, "total_size": size, "allocated_size": size, "active_size": size, "stream": 0,
        "requested_size": size, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
        "frames": [], "blocks": [block],
    }  # fmt: skip
