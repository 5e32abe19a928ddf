"""Follow a job on the live page, in a real browser, while a test writes the files of the job."""

import http.cookiejar
import shutil
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from dashboard import FOLDER, SHOWN, TOKEN
from running_job import FakeRank, manifest

from workbench.watch.live_server import assembled
from workbench.web.http_server import Door, listening

pytestmark = pytest.mark.browser
INK = "() => document.querySelector('#live-steps .js-plotly-plot')._fullLayout.font.color"


@contextmanager
def followed(folder, dropped):
    """Serve the live page of the job that writes to `folder`, and yield its address."""
    server = listening("127.0.0.1", 0, assembled(folder, dropped, Door(TOKEN, FOLDER)))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.port}/{FOLDER}"
    server.stop()
    thread.join()


def test_a_job_is_followed_from_before_it_exists(tmp_path, page_of):
    """New steps appear by themselves; a zoom stays while they do, and recorders are told apart from the phases."""
    folder, dropped = tmp_path / "job", tmp_path / "dropped"
    dropped.mkdir()
    with followed(folder, dropped) as address:
        page = page_of(address)
        page.goto(f"{address}/")
        page.wait_for_selector("#live-status:has-text('has not written a step yet')")
        folder.mkdir()
        manifest(folder)
        ranks = [FakeRank(folder, rank) for rank in range(2)]
        for rank in ranks:
            rank.begin()
        steps = iter(range(1, 100))
        for _ in range(3):
            train(ranks, next(steps))
        page.wait_for_selector("#live-status:has-text('step 3/20')")
        page.wait_for_selector("#live-steps .xy")
        drag(page)
        zoomed = page.evaluate(SHOWN, "live-steps")
        assert 0.5 < zoomed[0] < zoomed[1] < 3.5
        train(ranks, next(steps))
        page.wait_for_selector("#live-status:has-text('step 4/20')")
        page.wait_for_function("() => document.querySelector('#live-steps .js-plotly-plot')._fullData[0].x.includes(4)")
        assert page.evaluate(SHOWN, "live-steps") == pytest.approx(zoomed)
        phases = page.locator("#live-phases li").all_inner_texts()
        assert [phase.split("\n")[0] for phase in phases] == ["bwd", "fwd", "other"]
        assert "took 50 %" in page.locator("#live-phases details").text_content()
        assert page.locator("#live-ranks tbody tr").count() == 2
        ink = page.evaluate(INK)
        page.click("#theme")
        page.wait_for_function(f"before => ({INK})() !== before", arg=ink)


def drag(page):
    """Zoom into the middle third of the lowest chart by mouse."""
    box = page.locator("#live-steps .nsewdrag").last.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 3, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 2 * box["width"] / 3, y, steps=4)
    page.mouse.up()
    page.wait_for_function(f"() => ({SHOWN})('live-steps')[0] > 0.5")


def train(ranks, step):
    """Let the ranks finish a step of 2 s, of which a snapshot took 1 s."""
    for rank in ranks:
        rank.step(step, loss=7.0 - step, dur_ns=2 * 10**9, phases={"fwd": 10**8, "bwd": 4 * 10**8, "snapshot": 10**9})


def test_the_verdict_appears_and_leads_to_the_evidence(tmp_path, stuck, page_of):
    folder, dropped = tmp_path / "job", tmp_path / "dropped"
    shutil.copytree(stuck.root, folder)
    dropped.mkdir()
    with followed(folder, dropped) as address:
        page = page_of(address)
        page.goto(f"{address}/")
        page.wait_for_selector("#verdict:has-text('Rank 1 is stuck')")
        page.click("text=Report on what is recorded")
        page.wait_for_selector(".rail a:has-text('Hang')")
        assert "Rank 1 is stuck" in page.locator("#verdict").inner_text()


def test_on_a_telephone_only_the_table_of_ranks_scrolls(tmp_path, page_of):
    """A column in which no rank has a value is left out."""
    folder, dropped = tmp_path / "job", tmp_path / "dropped"
    folder.mkdir()
    dropped.mkdir()
    manifest(folder)
    ranks = [FakeRank(folder, rank) for rank in range(2)]
    for rank in ranks:
        rank.begin()
    for step in (1, 2):
        train(ranks, step)
    with followed(folder, dropped) as address:
        page = page_of(address, {"width": 390, "height": 844})
        page.goto(f"{address}/")
        page.wait_for_selector("#live-ranks tbody tr")
        # The table may be there before the style sheet is.
        page.wait_for_function("document.documentElement.scrollWidth <= 390")
        assert "full at step" not in page.locator("#live-ranks thead").inner_text()
        assert all(cell.strip() for cell in page.locator("#live-ranks tbody tr:first-child td").all_inner_texts())


def test_nothing_recorded_yet_is_said(tmp_path):
    with followed(tmp_path / "job", tmp_path) as address:
        jar = http.cookiejar.CookieJar()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
        opener.open(f"{address}/?token={TOKEN}").close()
        with pytest.raises(urllib.error.HTTPError) as refused:
            opener.open(f"{address}/open/recorded/")
        with refused.value as answer:
            assert (answer.code, "no such" in answer.read().decode()) == (404, True)
