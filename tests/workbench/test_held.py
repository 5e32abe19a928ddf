"""Memory of a trace over time, in the terminal app and on the dashboard."""

from pathlib import Path

import pytest
from dashboard import shows, zoom

from analyzers.run import discover
from terminal import app_on, press
from workbench.tui.panes.trace import Looked
from workbench.tui.widgets.held import Held

RECORDED = Path(__file__).parents[1] / "analyzers" / "traces" / "recorded" / "allocating" / "rank0_trace.json.gz"
FIXTURES = Path(__file__).parents[1] / "fixtures"


async def test_the_keys_look_closer_at_the_peak():
    app = app_on(RECORDED, "trace")
    async with app.run_test(size=(100, 36)) as pilot:
        text = await press(app, pilot, "", "V", "V")
        held, [memory] = app.query_one(Held), app.report.data.ranks[0].device_memory
        assert "memory over time of rank 0" in text
        assert "cpu, " in text
        assert "297.3 KiB allocated   ▼ 297.3 KiB" in text
        assert held.instants["allocated"].max() == memory.peak.bytes
        whole = held._whole
        await press(app, pilot, "plus", "plus")
        assert held._window[1] - held._window[0] == pytest.approx((whole[1] - whole[0]) / 4, abs=4)
        assert held.instants["allocated"].max() == memory.peak.bytes
        before = held.cursor
        await press(app, pilot, "h", "h")
        assert held.cursor == before - 2


async def test_enter_leads_from_the_finding_to_the_curve():
    app = app_on(RECORDED)
    async with app.run_test(size=(100, 36)) as pilot:
        await press(app, pilot, "", "1")
        assert app.report.findings[0].id == "trace.memory_grows"
        assert "memory over time of rank 0" in await press(app, pilot, "enter")


async def test_a_trace_without_allocations_has_no_such_reading():
    app = app_on(FIXTURES / "straggler_data_2ranks", "trace")
    async with app.run_test(size=(100, 36)) as pilot:
        await press(app, pilot, "")
        assert "held" not in app.query_one(Looked).titles


def test_the_dashboard_draws_it_below_the_events(serving, page_of, tmp_path):
    with serving(discover(RECORDED), tmp_path) as address:
        page = page_of(address)
        page.goto(f"{address}/trace")
        page.wait_for_selector("#held .scatterlayer .trace")
        drawn = "() => Math.max(...document.querySelector('#held .js-plotly-plot').data[0].y)"
        assert page.evaluate(drawn) == 304392
        zoom(page, "gantt", [1_000_000, 3_000_000])
        shows(page, "held", 1_000_000, 3_000_001)
        page.wait_for_function(f"() => ({drawn})() < 100_000")
        zoom(page, "held", [1_500_000, 2_000_000])
        shows(page, "gantt", 1_500_000, 2_000_001)
        shows(page, "held", 1_500_000, 2_000_001)
        assert page.locator("caption:has-text('What was never freed')").count() == 1
