"""Open every view of a run in the dashboard or the terminal app, and measure the seconds of each."""

import asyncio
import json
import time
from pathlib import Path

from analyzers.run import discover
from analyzers.store import Options
from workbench.ask import room_for

PATIENCE_S = 300
KEYS = ("1", "2", "3", "4", "5", "6", "7", "enter", "+", "]", "escape")


def timed_views(face: str, folder: Path) -> dict[str, float]:
    """Return {view name: seconds} for a run; `face` is "pages" (dashboard) or "terminal".

    Raises:
        WorkbenchError: The run cannot be analysed.
    """
    return timed_pages(folder) if face == "pages" else asyncio.run(timed_screens(folder))


def timed_pages(folder: Path) -> dict[str, float]:
    """Request each page of the dashboard from its server, like a browser, and return {page: seconds}."""
    from workbench.web.app import LAYOUTS, make_app
    from workbench.web.served_run import served_run

    run, took = discover(folder), {}
    began = time.monotonic()
    served = served_run(run, room_for(run), Options(jobs=1))
    took["the report"] = time.monotonic() - began
    client = make_app(served).server.test_client()
    [turn] = [one for one in client.get("/_dash-dependencies").json if "page.children" in one["output"]]
    for name in LAYOUTS:
        if name not in ("", "config", "source") and name not in served.rooms.names:
            continue
        began = time.monotonic()
        answer = client.post("/_dash-update-component", json=request_for(turn, f"/{name}"))
        took[f"/{name}"] = time.monotonic() - began
        if answer.status_code >= 400:
            raise RuntimeError(f"/{name}: {answer.status_code}")
    return took


def request_for(turn: dict[str, list[dict[str, str]] | str], path: str) -> dict[str, object]:
    """Return the body of the request with which the page's script asks for the page at `path`."""
    values = {"pathname": path, "search": ""}
    inputs = [{**one, "value": values.get(one["property"])} for one in turn["inputs"] if isinstance(one, dict)]
    state = [
        {**one, "value": {"own": {}, "steps": ""} if one["id"] == "window" else None}
        for one in turn["state"]
        if isinstance(one, dict)
    ]
    outputs = [dict(zip(("id", "property"), name.split("."), strict=True)) for name in outputs_of(str(turn["output"]))]
    body = {"output": turn["output"], "outputs": outputs, "inputs": inputs, "state": state}
    return json.loads(json.dumps(body | {"changedPropIds": ["address.pathname"]}))  # type: ignore[no-any-return]


def outputs_of(joined: str) -> list[str]:
    """Return the output names in the text with which Dash names several outputs."""
    return joined.strip(".").split("...")


async def timed_screens(folder: Path) -> dict[str, float]:
    """Open each view of the terminal app, press keys that zoom and descend, and return {view: seconds}."""
    from workbench.tui.app import WorkbenchApp
    from workbench.tui.subject import RunSubject

    run, took = discover(folder), {}
    app = WorkbenchApp(RunSubject(run, room_for(run), Options(jobs=1)))
    began = time.monotonic()
    async with app.run_test(size=(120, 40)) as pilot:
        for key in ("", *KEYS):
            if not app.is_running:
                break
            if key:
                await pilot.press(key)
            async with asyncio.timeout(PATIENCE_S):
                while not all(worker.is_finished for worker in app.workers):
                    await pilot.pause(0.02)
            await pilot.pause()
            took[f"key {key}" if key else "the report"] = time.monotonic() - began
            began = time.monotonic()
    return took
