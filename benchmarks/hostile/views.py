"""Open every view of a run in the dashboard or the terminal app, and measure the seconds of each."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from analyzers.rooms import room_for
from analyzers.run import discover
from analyzers.store import Options
from benchmarks.fuzzing.invariants import check_components, check_screen
from workbench.web.query import address, parse_query
from workbench.web.served_run import served_run

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from workbench.tui.app import WorkbenchApp
    from workbench.tui.widgets.view_switcher import ViewSwitcher

PATIENCE_S = 300
SCREEN = (120, 40)
VALUES_TRIED = 2
"""Number of values that are tried of each parameter of a page's address, such as the rank.

Of the parameter that selects a tab, all values are tried.
"""
MOST_VIEWS = 60
KEYS = ("j", "enter", "+", "]", "i", "escape")
"""The keys that are pressed in each view of the terminal app; a view ignores those that it does not use."""


def timed_views(face: str, folder: Path) -> dict[str, float]:
    """Return {view name: seconds} for a run; `face` is "pages" (dashboard) or "terminal".

    Raises:
        WorkbenchError: The run cannot be analysed.
        Leak: A page or screen has control characters of an artefact.
    """
    return timed_pages(folder) if face == "pages" else asyncio.run(timed_screens(folder))


def timed_pages(folder: Path) -> dict[str, float]:
    """Request each page of the dashboard from its server, like a browser, follow its links to tabs and other choices,
    and return {address: seconds}.
    """
    from workbench.web.app import PAGES, make_app

    run, began = discover(folder), time.monotonic()
    served = served_run(run, room_for(run), Options(jobs=1))
    took = {"the report": time.monotonic() - began}
    client = make_app(served).server.test_client()
    [turn] = [one for one in client.get("/_dash-dependencies").json if "page.children" in one["output"]]
    for name in PAGES:
        if name in ("", "config", "source") or name in served.rooms:
            took |= timed_addresses(client, turn, name)
    for name in ("json", "md", "html"):
        began = time.monotonic()
        assert client.get(f"/report.{name}").status_code == 200
        took[f"/report.{name}"] = time.monotonic() - began
    return took


def timed_addresses(client: Any, turn: dict[str, Any], name: str) -> dict[str, float]:
    """Request a page, and then each address of it that its links lead to, and return {address: seconds}."""
    took: dict[str, float] = {}
    waiting, tried = [""], {("", "")}
    while waiting and len(took) < MOST_VIEWS:
        search, began = waiting.pop(), time.monotonic()
        answer = client.post("/_dash-update-component", json=request_for(turn, f"/{name}", search))
        took[f"/{name}{search}"] = time.monotonic() - began
        if answer.status_code >= 400:
            raise RuntimeError(f"/{name}{search}: {answer.status_code}")
        page = answer.json["response"]["page"]["children"]
        check_components(page)
        for choice, link in choices(page, search):
            if choice not in tried and (choice[0] == "tab" or count(tried, choice[0]) < VALUES_TRIED):
                tried.add(choice)
                waiting.append(link)
    return took


def choices(page: Any, search: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield each parameter that a link of a page changes, as (name, value), and the query to which the link leads."""
    now = parse_query(search)
    for link in links_of(page):
        if link.startswith("?"):
            query = parse_query(urlsplit(link).query)
            for changed in sorted(query.items() - now.items()):
                yield changed, address(query)


def links_of(component: Any) -> Iterator[str]:
    """Yield the addresses of all links and options of a page, which is the JSON that the browser gets."""
    if isinstance(component, list):
        for item in component:
            yield from links_of(item)
    elif isinstance(component, dict) and "props" in component:
        properties = component["props"]
        yield from (str(properties[name]) for name in ("href", "value") if properties.get(name))
        yield from links_of(properties.get("children"))


def count(tried: set[tuple[str, str]], name: str) -> int:
    return sum(one == name for one, _ in tried)


def request_for(turn: dict[str, Any], path: str, search: str = "") -> dict[str, object]:
    """Return the body of the request with which the page's script asks for the page at an address."""
    values = {"pathname": path, "search": search}
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
    from workbench.tui.subject import subject_of

    run = discover(folder)
    subject = subject_of(run, room_for(run), Options(jobs=1))
    app, took = WorkbenchApp(subject), {}
    async with app.run_test(size=SCREEN) as pilot:
        took["the report"] = await timed_keys(app, pilot, "")
        for number, room in enumerate(subject.views, 1):
            if not app.is_running:  # an input that is refused ends the app with its error
                break
            took[room] = await timed_keys(app, pilot, str(number))
            took |= await timed_parts(app, pilot, room, str(number))
    return took


async def timed_parts(app: "WorkbenchApp", pilot: "Pilot[None]", room: str, key: str) -> dict[str, float]:
    """Press KEYS in each view that the pane at the number `key` can switch to, and return {view: seconds}."""
    switcher = shown_switcher(app)
    if switcher is None:
        return {f"{room}: keys": await timed_keys(app, pilot, *KEYS)}
    took, view = {}, switcher.view
    for _ in switcher.titles:
        if switcher.view != view:  # a key may have led to another view, or to another pane
            await switcher.turn_to(view)
        took[f"{room}: turned from {view}"] = await timed_keys(app, pilot, key, "v")
        assert switcher.view != view or len(switcher.titles) == 1, f"{room} does not turn from {view}"
        view = switcher.view
        took[f"{room}: {view}"] = await timed_keys(app, pilot, *KEYS)
    return took


def shown_switcher(app: "WorkbenchApp") -> "ViewSwitcher | None":
    """Return the container of several views in the pane that is shown; None if the pane has one view only."""
    from workbench.tui.subject import ViewTabs
    from workbench.tui.widgets.view_switcher import ViewSwitcher

    widgets = (widget for tabs in app.query(ViewTabs) for widget in tabs.shown_widgets)
    return next((widget for widget in widgets if isinstance(widget, ViewSwitcher)), None)


async def timed_keys(app: "WorkbenchApp", pilot: "Pilot[None]", *keys: str) -> float:
    """Press keys ("" presses none), wait after each until its answer is drawn, and return the seconds of all."""
    began = time.monotonic()
    for key in keys:
        await pilot.press(*filter(None, [key]))
        async with asyncio.timeout(PATIENCE_S):
            while not all(worker.is_finished for worker in app.workers):
                await pilot.pause(0.02)
        await pilot.pause()
        check_screen(app)
    return time.monotonic() - began
