"""From the first page to the evidence of a finding, on recorded runs, by following links."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from dashboard import heard

from analyzers.rooms import ask, room_for
from analyzers.run import discover
from analyzers.store import Options

pytestmark = pytest.mark.browser
FIXTURES = Path(__file__).parents[2] / "fixtures"
HEIGHT = 800
SEEN = {
    "oom": ("#timeline .scatterlayer", "out of memory"),
    "leak": ("#since .waterfalllayer", "What changed between entries"),
    "order_cycle": ("#operations table", "rank 3"),
    "mismatch": ("#operations table", "rank 3"),
    "skipped": ("#operations table", "rank 3"),
    "dead": ("#matrix .heatmaplayer", "rank 3"),
    "host_stuck": (".stacks li:not(.dim)", "rank 3"),
    "nonfinite_loss": ("#loss .scatterlayer", "not finite"),
    "straggler": ("#phases .barlayer", "Phases of each step of rank 3"),
}
"""{class of verdict: what a click on the evidence must show, and a text that must be on it}."""
PICTURES = {"oom": "Allocated memory", "leak": "Allocated memory", "nonfinite_loss": "Loss", "straggler": "rank 3"}
"""{class of verdict: caption of the chart beside it}; for all other classes the chart shows collectives by rank."""


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.glob("*_4ranks")))
def test_one_click_from_the_verdict_to_the_evidence(name, serving, page_of, tmp_path):
    run = discover(FIXTURES / name)
    verdict = ask(room_for(run), run, Options()).verdict
    with serving(run, tmp_path) as address:
        page = page_of(address, {"width": 1280, "height": HEIGHT})
        page.goto(address)
        page.wait_for_selector("#verdict")
        assert verdict.sentence in page.locator("#verdict").inner_text()
        if verdict.kind == "healthy":
            assert page.locator("#verdict a").count() == 0
            return
        assert page.locator("#verdict >> text=Next").is_visible()
        assert bottom(page, "#verdict .evidence") < HEIGHT
        page.wait_for_selector("#picture .main-svg")
        assert PICTURES.get(verdict.kind, "collectives") in page.locator("figcaption").inner_text()
        assert bottom(page, "#picture") < HEIGHT
        page.click("#verdict .evidence a")
        part, text = SEEN[verdict.kind]
        page.wait_for_selector(part)
        page.wait_for_function("part => document.querySelector(part).getBoundingClientRect().top >= 0", arg=part)
        page.wait_for_function(f"part => document.querySelector(part).getBoundingClientRect().top < {HEIGHT}", arg=part)
        assert text in page.locator("main").text_content()


def bottom(page, selector):
    box = page.locator(selector).bounding_box()
    return box["y"] + box["height"]


def test_the_instant_of_an_out_of_memory_is_the_one_in_sight(serving, page_of, tmp_path):
    """The evidence opens the failed rank's snapshot, with the failed entry and its step inside the selected range."""
    with serving(discover(FIXTURES / "oom_4ranks"), tmp_path) as address:
        page = page_of(address)
        page.goto(address)
        page.click("#verdict .evidence a")
        page.wait_for_selector("#timeline .scatterlayer .trace")
        assert "Rank 3, device 0, after step 5, out of memory" in page.locator("main h2").all_text_contents()
        assert "a request of " in page.locator("#instant").inner_text()
        assert "step 6" in page.locator("#timeline .annotation").all_text_contents()


def test_two_instants_are_compared(serving, page_of, tmp_path):
    """If a trace entry is marked and another selected, bars lead from the bytes of the first to those of the other."""
    with serving(discover(FIXTURES / "leak_4ranks"), tmp_path) as address:
        page = page_of(address)
        page.goto(f"{address}/memory?entry=3000")
        page.click("text=Compare other instants with this one")
        page.wait_for_selector("#changes")
        heard(page, "timeline", lambda: (page.fill("#entry", "13000"), page.keyboard.press("Enter")))
        page.wait_for_function("() => document.querySelector('#changes')?.innerText.includes('3000 and 13000')")
        page.wait_for_selector("#since .waterfalllayer")
        assert "since=3000" in page.url
        page.click("main >> text=Stop comparing")
        page.wait_for_function("() => !document.querySelector('#changes')")


def test_a_click_on_a_rank_leads_to_its_stack(serving, page_of, tmp_path):
    with serving(discover(FIXTURES / "stuck_4ranks"), tmp_path) as address:
        page = page_of(address)
        page.goto(f"{address}/hang")
        page.wait_for_selector("#matrix .heatmaplayer")
        page.wait_for_load_state("networkidle")
        box = page.locator("#matrix .nsewdrag").bounding_box()
        page.mouse.click(box["x"] + 40, box["y"] + box["height"] - 8)
        page.wait_for_function("() => location.search.includes('rank=3')")
        page.wait_for_selector(".stacks .dim")
        assert "loop_in_python" in page.locator(".stacks li:not(.dim)").last.inner_text()
        assert not page.locator(".stacks", has_text="_call_impl").count()
        page.click("#drawer >> text=show library frames")
        page.wait_for_selector(".stacks:has-text('_call_impl')")
        assert "rank=3" in page.url


def test_the_settings_take_the_height_that_the_window_has(serving, page_of, tmp_path):
    """No word of the command is broken at its hyphens."""
    manifest = json.loads((FIXTURES / "oom_2ranks" / "run.json").read_text())
    manifest["config"]["model"] |= {f"key_{number}": number for number in range(100)}
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    with serving(discover(tmp_path), tmp_path / "dropped") as address:
        page = page_of(address, {"width": 1920, "height": 1080})
        page.goto(f"{address}/config")
        page.wait_for_selector(".config article.long tr:nth-child(20)")
        box = page.locator(".config article.long").bounding_box()
        assert 1080 - 60 < box["y"] + box["height"] <= 1080
        lines = page.locator(".config code span").evaluate_all("spans => spans.map(one => one.getClientRects().length)")
        assert set(lines) == {1}


def test_the_collective_that_hangs_has_its_number_on_the_axis(site, page):
    page.goto(f"{site}/hang")
    page.wait_for_selector("#matrix .heatmaplayer")
    last = page.evaluate("document.querySelector('#matrix .js-plotly-plot')._fullData[0].x.at(-1)")
    labels = page.locator("#matrix .xtick text")
    assert labels.last.text_content() == last
    boxes = [label.bounding_box() for label in labels.all()]
    assert all(box["height"] < box["width"] for box in boxes), "a label is on its side"
    assert all(a["x"] + a["width"] <= b["x"] for a, b in pairwise(boxes))


def test_the_configuration_says_where_it_came_from(site, page):
    """The page says whether a flag, a registry function or the default set a key, and can be searched."""
    page.goto(f"{site}/config")
    page.wait_for_selector("table")
    assert row(page, "faults.name") == ["faults.name", "oom", "flag --faults.name", "✓ honoured"]
    assert row(page, "training.seq_len")[2] == "llama3 llama3_debugmodel"
    assert row(page, "optimizer.beta2")[2] == "default"
    page.fill("#key", "timeout")
    page.keyboard.press("Enter")
    page.wait_for_url("**key=timeout*")
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length < 10")
    assert row(page, "comm.train_timeout_seconds")[1] == "12"


def row(page, key):
    named = page.locator("td:first-child", has_text=re.compile(f"^{re.escape(key)}$"))
    return page.locator("tbody tr", has=named).locator("td").all_text_contents()


def test_pages_without_a_rank_in_the_address_show_the_culprit(serving, page_of, tmp_path):
    with serving(discover(FIXTURES / "straggler_data_4ranks"), tmp_path) as address:
        page = page_of(address, {"width": 1280, "height": HEIGHT})
        page.goto(f"{address}/trace")
        assert page.wait_for_selector(".toolbar h2").inner_text() == "Events of rank 3, step 10"
        page.goto(f"{address}/steps")
        assert page.wait_for_selector("text=Phases of each step of rank 3")


def test_a_phone_gets_fewer_collectives_and_ticks(serving, page_of, tmp_path):
    with serving(discover(FIXTURES / "oom_4ranks"), tmp_path) as address:
        page = page_of(address, {"width": 390, "height": 844})
        page.goto(f"{address}/hang")
        page.wait_for_selector("#matrix .heatmaplayer")
        assert page.evaluate("document.querySelector('#matrix .js-plotly-plot').data[0].x.length") == 16
        page.goto(f"{address}/memory")
        page.wait_for_selector("#timeline .xtick text")
        boxes = [tick.bounding_box() for tick in page.locator("#timeline .xtick text").all()]
        assert 1 < len(boxes) <= 4
        assert all(left["x"] + left["width"] < right["x"] for left, right in pairwise(boxes))
        page.set_viewport_size({"width": 1280, "height": HEIGHT})
        page.goto(f"{address}/hang")
        page.wait_for_function("() => document.querySelector('#matrix .js-plotly-plot')?.data[0].x.length === 60")
