"""Provide a browser, and recorded runs with faults on which the terminal app and the dashboard are tested."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dashboard import BROWSER, FOLDER, PATIENCE_MS, TOKEN

from analyzers.rooms import room_for
from analyzers.run import Run, discover
from analyzers.store import Options

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """Fixture: the folder of the recorded runs."""
    return FIXTURES


@pytest.fixture(scope="session")
def oom() -> Run:
    """Fixture: a run of two ranks; rank 1 ran out of memory in step 6."""
    return discover(FIXTURES / "oom_2ranks")


@pytest.fixture(scope="session")
def stuck() -> Run:
    """Fixture: a run of two ranks; rank 1 is in an endless Python loop in step 6."""
    return discover(FIXTURES / "stuck_2ranks")


@pytest.fixture(scope="module")
def site(oom, tmp_path_factory) -> Iterator[str]:
    """Fixture: the address of a dashboard of the out-of-memory run."""
    with served(oom, tmp_path_factory.mktemp("dropped")) as address:
        yield address


@pytest.fixture(scope="session")
def serving():
    """Fixture: `serving(run, folder)` is a context manager that serves a dashboard and yields its address."""
    return served


@contextmanager
def served(run, folder: Path) -> Iterator[str]:
    """Serve a dashboard of a run or a view like `workbench serve`, and yield its address."""
    from workbench.web.http_server import Door, listening
    from workbench.web.served_run import ServedRun, served_run
    from workbench.web.server import assembled

    view = run if isinstance(run, ServedRun) else served_run(run, room_for(run), Options())
    server = listening("127.0.0.1", 0, assembled(view, folder, Door(TOKEN, FOLDER)))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.port}/{FOLDER}"
    server.stop()
    thread.join()


@pytest.fixture(scope="module")
def browser():
    """Fixture: Chromium for the tests of a module; its event loop must not run while other tests use their own."""
    if BROWSER is None:
        pytest.skip("needs a system chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = p.chromium.launch(executable_path=BROWSER, args=options)
        yield browser
        browser.close()


CUT_OFF = ("net::ERR_CONNECTION", "net::ERR_SOCKET_NOT_CONNECTED", "the server did not respond", "ChunkLoadError")
"""Error messages that a page logs if its dashboard ends first, which cuts off its last requests; tests ignore them."""


@pytest.fixture
def page_of(browser):
    """Fixture: `page_of(address)` opens a page that fails its test if it logs an error or loads anything from
    elsewhere.
    """
    opened, asked, errors = [], [], []

    def open_one(address, viewport=None):
        page = browser.new_page(viewport=viewport or {"width": 1280, "height": 720})
        if address.startswith("http"):
            page.request.get(f"{address}/?token={TOKEN}")
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: asked.append((address, request.url)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        opened.append(page)
        return page

    yield open_one
    for page in opened:
        page.close()
    assert not [error for error in errors if not any(said in error for said in CUT_OFF)]
    assert not [url for address, url in asked if not url.startswith((address, "data:", "blob:"))]


@pytest.fixture
def page(site, page_of):
    """Fixture: a page of the browser (see `page_of`) that shows the dashboard `site`."""
    return page_of(site)
