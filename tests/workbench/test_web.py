"""The dashboard in a real browser."""

import json
import urllib.error
import urllib.request

import pytest

pytestmark = pytest.mark.browser


def test_the_first_page_tells_the_verdict(site, page):
    page.goto(site)
    verdict = page.locator("#verdict").inner_text()
    assert "rank 1 ran out of memory at step 6" in verdict
    assert page.locator("h1").count() == 1


def test_an_address_is_a_state(site, page):
    """A link to a rank's memory opens on that rank, with a drawn chart and its numbers as a table."""
    page.goto(f"{site}/memory?device=1")
    page.wait_for_selector("#timeline .scatterlayer .trace")
    shown = page.locator("main h2").inner_text()
    assert shown == "Rank 0, device 0, step 5" or "rank" in shown.lower()
    assert page.locator("caption").first.inner_text().startswith("Who holds the peak")


def test_zooming_asks_for_the_window(site, page):
    """After a zoom the chart holds entries of the window only."""
    page.goto(f"{site}/memory")
    page.wait_for_selector("#timeline .scatterlayer .trace")
    whole = entries(page)
    middle = (whole[0] + whole[1]) // 2
    with page.expect_response(lambda response: "_dash-update-component" in response.url):
        page.evaluate(
            "span => Plotly.relayout(document.querySelector('#timeline .js-plotly-plot'), {'xaxis.range': span})",
            [middle - 50, middle + 50],
        )
    page.wait_for_function(
        "low => document.querySelector('#timeline .js-plotly-plot')._fullData[0].x[0] >= low", arg=middle - 60
    )
    low, high = entries(page)
    assert middle - 60 <= low < high <= middle + 60


def entries(page):
    x = page.evaluate("Array.from(document.querySelector('#timeline .js-plotly-plot')._fullData[0].x)")
    return int(x[0]), int(x[-1])


def test_the_matrix_shows_who_waits(site, page):
    page.goto(f"{site}/hang")
    page.wait_for_selector("#matrix .heatmaplayer")
    assert "Who waits for whom" in page.locator("main").inner_text()


@pytest.mark.parametrize("address", ["trace", "steps", "nowhere", "memory?device=99", "hang?group=%3Cscript%3E"])
def test_every_address_answers(site, page, address):
    page.goto(f"{site}/{address}")
    page.wait_for_function("document.querySelector('#page').children.length > 0")


def test_nothing_outside_is_served(site):
    """Neither a path out of the assets nor a missing file gives a file of the machine."""
    for path in ("/assets/../app.py", "/assets/%2e%2e/%2e%2e/pyproject.toml", "/assets//etc/passwd"):
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(site + path, timeout=10)


def test_pages_carry_a_strict_policy(site):
    with urllib.request.urlopen(site, timeout=10) as response:
        policy = response.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe-eval" not in policy


def test_a_made_up_path_is_no_way_to_a_file(site):
    """The zoom callback takes the number of a device, not a path."""
    body = {
        "output": "timeline.figure",
        "outputs": {"id": "timeline", "property": "figure"},
        "inputs": [{"id": "timeline", "property": "relayoutData", "value": {"xaxis.autorange": True}}],
        "state": [{"id": "device", "property": "data", "value": "/etc/passwd"}],
        "changedPropIds": ["timeline.relayoutData"],
    }
    request = urllib.request.Request(
        f"{site}/_dash-update-component", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(request, timeout=10)
