"""Text from a file is shown as text everywhere, even if it contains markup, HTML, terminal escapes or links."""

import json
import pickle
import re
import shutil

import pytest

from analyzers.rooms import ask, room_for
from analyzers.run import discover
from analyzers.store import Options
from terminal import app_on, press
from workbench.command_options.options import Format
from workbench.present import html, render

NAME = "<img src=x onerror=alert(1)>[bold red]red[/]\x1b]0;owned\x07\x1b[2J`*_|#"
TURNED = "\u202egnp.exe\u200b"
"""A name that is displayed as another one: it is read from right to left, and has a space without width."""
FILE = "/job/<script>alert(2)</script>\x1b[31m.py"
SAFE_NAME = NAME.translate({0x1B: None, 0x07: None})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Fixture: a snapshot of two blocks whose frames contain markup and escapes."""
    frames = [{"name": NAME, "filename": FILE, "line": 7}]
    entries = [
        {"action": "alloc", "addr": 4096 + 512 * i, "size": 512, "stream": 0, "time_us": i, "frames": frames}
        for i in range(2)
    ]
    blocks = [
        {"size": 512, "requested_size": 512, "address": entry["addr"], "state": "active_allocated", "frames": frames}
        for entry in entries
    ]
    segment = {
        "device": 0, "address": 4096, "total_size": 1024, "allocated_size": 1024, "active_size": 1024,
        "requested_size": 1024, "stream": 0, "segment_type": "small", "blocks": blocks,
    }  # fmt: skip
    home = tmp_path_factory.mktemp("hostile") / "<b>run[red]"
    home.mkdir()
    with (home / "rank0_memory_snapshot.pickle").open("wb") as file:
        pickle.dump({"segments": [segment], "device_traces": [entries]}, file)
    return discover(home)


def test_documents_carry_no_escape_and_no_tag(run):
    report = ask(room_for(run), run, Options())
    for form in (Format.TEXT, Format.MARKDOWN, Format.HTML):
        document = render(report, form, run)
        assert "\x1b" not in document
        assert "\x07" not in document
    html = render(report, Format.HTML, run)
    assert "<img" not in html
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "\\u001b" in render(report, Format.JSON, run), "JSON keeps what was there, as an escape of its own"


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_the_terminal_app_shows_it_as_text(run, size):
    app = app_on(run)
    drawn = ""
    async with app.run_test(size=size) as pilot:
        for key in ("", "1", "2", "v", "v"):
            drawn += await press(app, pilot, key)
    assert "\x1b" not in drawn
    assert "<script>" in drawn or "<img src=x" in drawn


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    """Fixture: a run in which kernels, threads, phases, hosts, settings and arguments contain markup and escapes."""
    home = tmp_path_factory.mktemp("hostile") / "<i>run"
    shutil.copytree(run.root, home)
    events = [
        {
            "ph": "X",
            "cat": cat,
            "name": NAME + TURNED + "x" * 100_000 * long,
            "pid": 0,
            "tid": 7,
            "ts": 10 * i,
            "dur": 9,
        }
        | {"args": {"device": 0, "stream": 7, "correlation": i}}
        for i, (cat, long) in enumerate([("kernel", 0), ("kernel", 1), ("cpu_op", 0), ("user_annotation", 0)])
    ]
    thread = {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "ts": 0, "args": {"name": NAME}}
    (home / "rank0_trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [*events, thread]}))
    head = {"schema": "workbench.steps/1", "rank": 0, "world_size": 1, "host": NAME, "device": NAME, "started_ns": 1}
    rows = [
        {
            "step": n,
            "start_ns": n * 10**9,
            "dur_ns": 10**8,
            "phases": {NAME: 9**8, TURNED: 10},
            "tags": [NAME],
            "loss": 1.0,
        }
        for n in range(1, 9)
    ]
    (home / "steps").mkdir()
    (home / "steps" / "rank_0.jsonl").write_text("\n".join(map(json.dumps, [head, *rows])))
    manifest = {
        "schema": "workbench.run/1", "argv": ["x", "--training.steps", NAME, "--job.description", TURNED],
        "hosts": {"0": NAME}, "config": {NAME: {NAME: NAME}, "job": {"description": NAME + TURNED}},
        "versions": {NAME: NAME}, "world_size": 1,
    }  # fmt: skip
    (home / "run.json").write_text(json.dumps(manifest))
    return discover(home)


PLACES = {
    "": "#verdict",
    "memory?by=stack": "#tree .icicle",
    "memory?find=%3Cimg%20src%3Dx%3E": "#drawer table",
    "memory?by=line&find=%3Cimg%20src%3Dx%3E&colour=phase&tab=tree": "#tree .icicle",
    "trace?colour=stream": "[data-drawn]",
    "trace?event=1&find=%3Cimg": "[data-drawn]",
    "trace?tab=calls": "#calls .icicle",
    "steps": "#phases .barlayer .point",
    "config": "table",
    "config?key=%3Cimg%20src=x%3E": "table",
    "source?at=%3Cscript%3Ealert(3)%3C/script%3E.py:1": "#page > *",
    "nowhere%3Cimg%20src=x%3E": "#page > *",
}


@pytest.mark.browser
def test_the_page_shows_it_as_text(whole, serving, page_of, tmp_path):
    with serving(whole, tmp_path) as address:
        page, opened, seen = page_of(address), [], ""
        page.on("dialog", lambda dialog: (opened.append(dialog.message), dialog.dismiss()))
        for place, drawn in PLACES.items():
            page.goto(f"{address}/{place}")
            page.wait_for_selector(drawn)
            page.wait_for_load_state("networkidle")
            assert page.locator("main img, main script, main i, main b").count() == 0, place
            assert page.evaluate("document.documentElement.scrollWidth") <= 1280, place
            text = page.locator("body").text_content()
            assert not {"\u202e", "\u200b", "\x1b"} & set(text), place
            assert len(text) < 100_000, place
            seen += text
        assert SAFE_NAME[:28] in seen
        assert "\\u202egnp.exe" in seen
    assert opened == []


def test_published_markdown_notifies_nobody_and_links_nowhere():
    """Sites make links of such text by themselves, whatever is escaped; GitHub's rules, and those of GitLab."""
    text = "see https://evil.test/x or www.evil.test, cc @all me@evil.test WWW.evil.test ftp://x"
    escaped = html.escape(text)
    assert not re.search(r"@\w|://|www\.", escaped, re.IGNORECASE)
    assert re.sub(r"<!-- -->|\\\\", "", escaped) == text
    assert html.code("a `b` ``c``\nd") == "``` a `b` ``c`` d ```"
    assert html.code("/home/me@host/run_1") == "`/home/me@host/run_1`"
