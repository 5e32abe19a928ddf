"""The memory of a trace over time, in the terminal app and in the dashboard."""

import json
from pathlib import Path

import pytest
from dashboard import VIEW, shows, zoom, zoom_timeline

from analyzers.run import discover
from terminal import app_on, press
from workbench.tui.panes.trace import TraceViews
from workbench.tui.widgets.gantt import DeviceMemoryChart

RECORDED = Path(__file__).parents[3] / "fixtures" / "traces" / "allocating" / "rank0_trace.json.gz"
FIXTURES = Path(__file__).parents[3] / "fixtures"


async def test_the_keys_look_closer_at_the_peak():
    app = app_on(RECORDED, "trace")
    async with app.run_test(size=(100, 36)) as pilot:
        text = await press(app, pilot, "", "V", "V")
        held, [memory] = app.query_one(DeviceMemoryChart), app.report.data.ranks[0].device_memory
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


async def test_each_device_has_its_own_curve(tmp_path):
    """A file with two devices has two curves, and the host's is shown with the first device."""
    events = [
        {"ph": "X", "name": "gemm", "cat": "kernel", "ts": 1, "dur": 90, "pid": device, "tid": 7, "args": {}}
        for device in (0, 1)
    ]
    for kind, device, size in ((0, -1, 100), (1, 0, 2048), (1, 1, 4096)):
        told = {"Addr": 1, "Bytes": size, "Total Allocated": size, "Device Type": kind, "Device Id": device}
        where = {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "ts": 50, "pid": 3, "tid": 3}
        events.append({**where, "args": told})
    path = tmp_path / "rank0_trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    app = app_on(path, "trace")
    async with app.run_test(size=(100, 36)) as pilot:
        assert "cuda 0, " in await press(app, pilot, "", "V", "V")
        assert "▼ 2.0 KiB" in await press(app, pilot)
        assert "cuda 1, " in await press(app, pilot, "right_square_bracket")
        assert "▼ 4.0 KiB" in await press(app, pilot)


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
        assert "held" not in app.query_one(TraceViews).titles


def test_the_dashboard_draws_it_below_the_events(serving, page_of, tmp_path):
    with serving(discover(RECORDED), tmp_path) as address:
        page = page_of(address)
        page.goto(f"{address}/trace?tab=memory")
        page.wait_for_selector("#held .scatterlayer .trace")
        drawn = "() => Math.max(...document.querySelector('#held .js-plotly-plot').data[0].y)"
        assert page.evaluate(drawn) == 304392
        zoom_timeline(page, [1_000_000, 3_000_000])
        shows(page, "held", 1_000_000, 3_000_000)
        page.wait_for_function(f"() => ({drawn})() < 100_000")
        zoom(page, "held", [1_500_000, 2_000_000])
        page.wait_for_function(f"() => String(({VIEW})()) === '1500000,2000000'")
        shows(page, "held", 1_500_000, 2_000_000)
        page.click("nav.tabs >> text=All tables")
        page.wait_for_selector("caption:has-text('Memory never freed')")
