"""The timeline of the trace page: gestures, keys, search, selection, and that the picture agrees with the data."""

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from dashboard import TIMELINE, VIEW, see_timeline, timeline_place, zoom_timeline

from analyzers.rooms import room_for
from analyzers.run import Kind, discover
from analyzers.store import Options
from analyzers.traces import views
from analyzers.traces.slices import KINDS, slices
from workbench.web.pages import trace, trace_timeline
from workbench.web.served_run import served_run

pytestmark = pytest.mark.browser
FIXTURES = Path(__file__).parents[3] / "fixtures"
CANVAS = "[data-timeline] canvas[tabindex]"


@pytest.fixture(scope="module")
def traced(serving, tmp_path_factory):
    """Fixture: the address of a dashboard of a run with traces of two ranks."""
    with serving(discover(FIXTURES / "straggler_data_2ranks"), tmp_path_factory.mktemp("dropped")) as address:
        yield address


@pytest.fixture
def timeline(traced, page_of):
    """Fixture: a browser page that shows the timeline of rank 0."""
    page = page_of(traced)
    page.goto(f"{traced}/trace?file=0")
    see_timeline(page)
    return page


def query_of(page):
    """Return the query of a page's address, in whatever order it is."""
    return parse_qs(urlsplit(page.url).query)


def click(page, track, depth, at):
    """Click a line of the timeline at a time, and wait until the page shows the event."""
    page.mouse.click(*timeline_place(page, track, depth, at))
    page.wait_for_selector("#callers + ol li")
    see_timeline(page)


def drag(page, start, end, key=None):
    """Drag the mouse between two places of the page, with a key held."""
    if key:
        page.keyboard.down(key)
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=4)
    page.mouse.up()
    if key:
        page.keyboard.up(key)


def test_a_link_shows_the_same_view_in_another_browser(traced, timeline, page_of):
    """Zoom, click, select a range, pin, fold, search; then back, forward, and the link in another browser."""
    page = timeline
    zoom_timeline(page, [100_000_000, 550_000_000])
    page.wait_for_function("() => new URL(location).searchParams.has('steps')")
    zoomed = query_of(page)
    click(page, "thread 7119", 2, 300_000_000)
    assert page.locator("#callers + ol li").first.inner_text() == "FSDP::pre_forward"
    page.go_back()
    page.wait_for_function("() => !new URL(location).searchParams.has('event')")
    assert query_of(page) == zoomed
    page.go_forward()
    page.wait_for_selector("#callers + ol li")
    see_timeline(page)
    drag(page, *(timeline_place(page, "thread 7119", depth, at) for depth, at in ((1, 2e8), (3, 3e8))), key="Shift")
    page.wait_for_selector("#selection h2")
    page.locator(".timeline .pin").nth(1).press("Enter")
    page.locator(".timeline .head button[aria-expanded='true']").first.press("Enter")
    page.fill("#event-name", "all_gather")
    page.wait_for_function("() => new URL(location).searchParams.get('find') === 'all_gather'")
    page.wait_for_load_state("networkidle")
    state = f"""() => {{ const {{ view, range, tracks, sought, focus }} = {TIMELINE};
                const marked = ["pinned", "folded"].map((property) => tracks.keys(property));
                return [view, range.low, range.high, marked, sought, focus.row]; }}"""
    other = page_of(traced)
    other.goto(page.url)
    see_timeline(other)
    assert other.evaluate(state) == page.evaluate(state)
    for place in ("#selection", "#callers + ol", ".timeline .matches", ".timeline .heads"):
        assert other.locator(place).inner_text() == page.locator(place).inner_text()
    assert query_of(other) == query_of(page)
    other.click("nav.tabs >> text=Where the time goes")
    other.wait_for_selector("#shares .barlayer .point")
    assert other.evaluate(state) == page.evaluate(state)


def test_a_wheel_zooms_at_the_mouse_and_a_drag_moves(timeline):
    page = timeline
    low, high = page.evaluate(VIEW)
    x, y = timeline_place(page, "thread 7119", 0, 150_000_000)
    page.mouse.move(x, y)
    for _ in range(5):
        page.mouse.wheel(0, -200)
    page.wait_for_function("() => location.search.includes('steps=10.')")
    near, far = page.evaluate(VIEW)
    assert far - near < (high - low) / 4
    box = page.locator(CANVAS).bounding_box()
    under = near + (far - near) * (x - box["x"]) / box["width"]
    assert under == pytest.approx(150_000_000, abs=(far - near) / 200)
    drag(page, (x, y), (x - 100, y))
    moved, _ = page.evaluate(VIEW)
    assert moved - near == pytest.approx(100 * (far - near) / box["width"], rel=0.05)
    assert "event" not in query_of(page)


def test_keys_move_zoom_and_select(timeline):
    """Arrow keys go from event to event and say which it is; letters move the view; Enter shows the callers."""
    page = timeline
    page.focus(CANVAS)
    low, high = page.evaluate(VIEW)
    page.keyboard.press("w")
    near, far = page.evaluate(VIEW)
    assert low < near < far < high
    page.keyboard.press("d")
    assert page.evaluate(VIEW)[0] > near
    page.keyboard.press("0")
    assert page.evaluate(VIEW) == [low, high]
    for key in ("ArrowRight", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    said = page.locator(".timeline .spoken").inner_text()
    assert "level 2" in said
    name = said.split(",")[0]
    page.keyboard.press("m")
    page.wait_for_selector(f"#selection td:has-text('{name}')")
    page.keyboard.press("f")
    start, end = page.evaluate(f"() => [{TIMELINE}.focus.start, {TIMELINE}.focus.start + {TIMELINE}.focus.dur]")
    near, far = page.evaluate(VIEW)
    assert near < start < end < far
    page.keyboard.press("Enter")
    page.wait_for_selector("#callers")
    assert page.locator("#event").inner_text().startswith(name)
    see_timeline(page)
    assert page.evaluate("document.activeElement.getAttribute('role')") == "application"
    page.keyboard.press("Escape")
    page.wait_for_function("() => !new URL(location).searchParams.has('pick')")
    assert page.locator("#selection").inner_text() == ""


@pytest.mark.parametrize(
    ("name", "letters", "shown"),
    [
        ("torch/nn/modules/module.py(1782): _call_impl", 50, "torch/nn/modules/module.py(1782): _call_impl"),
        ("torch/nn/modules/module.py(1782): _call_impl", 12, "_call_impl"),
        ("nn.Module: FeedForward_3", 8, "FeedFor…"),
        ("aten::scaled_dot_product", 8, "aten::s…"),
    ],
)
def test_a_label_without_room_keeps_what_tells_it_apart(timeline, name, letters, shown):
    """Paths and kinds at the beginning are the same all over a trace."""
    assert timeline.evaluate("([name, letters]) => window.timeline.fitted(name, letters)", [name, letters]) == shown


def test_a_search_counts_what_matches_and_leads_to_it(timeline):
    page, found = timeline, slices(discover(FIXTURES / "straggler_data_2ranks").of(Kind.TRACE)[0])
    named = [i for i, name in enumerate(found.name) if "all_gather" in found.names[name]]
    page.fill("#event-name", "ALL_gather")
    assert page.locator(".timeline .matches").inner_text().startswith(f"{len(named)} matches")
    page.press("#event-name", "Enter")
    first = min(named, key=lambda i: found.start[i])
    assert page.evaluate(f"{TIMELINE}.focus.start") == found.start[first]
    page.focus(CANVAS)
    page.keyboard.press("n")
    assert page.evaluate(f"{TIMELINE}.focus.start") > found.start[first]
    page.fill("#event-name", "no such kernel")
    assert page.locator(".timeline .matches").inner_text() == "no match"


def test_a_selected_range_says_what_it_holds(timeline):
    """The edges of a range lie on the edges of events near the mouse, so that a gap is measured exactly."""
    page, found = timeline, slices(discover(FIXTURES / "straggler_data_2ranks").of(Kind.TRACE)[0])
    line = next(line for line in found.lines if line.lane.startswith("thread 7124"))
    gather = max(range(line.first, line.last), key=lambda i: found.dur[i])
    start, dur = int(found.start[gather]), int(found.dur[gather])
    low, high = (timeline_place(page, "thread 7124", 0, at) for at in (start, start + dur))
    drag(page, (low[0] + 2, low[1]), (high[0] - 2, high[1]), key="Shift")
    page.wait_for_function("() => new URL(location).searchParams.has('pick')")
    assert query_of(page)["pick"][0].split()[:2] == [str(start), str(start + dur)]
    row = page.locator("#selection tbody tr").first.locator("td").all_inner_texts()
    assert row[0] == "gloo:all_gather"
    assert row[3] == "100 %"


def test_two_ranks_share_a_clock(traced, page_of):
    """The tracks of a second rank are below those of the first; a click there shows that rank's event."""
    page = page_of(traced)
    page.goto(f"{traced}/trace?file=0&beside=1")
    see_timeline(page)
    titles = page.locator(".timeline .head button:first-child").all_inner_texts()
    assert {title.lstrip("▾ ").split()[0] for title in titles} == {"r0", "r1"}
    [first, second] = discover(FIXTURES / "straggler_data_2ranks").of(Kind.TRACE)
    shifts = views.axis([first, second])["shift_ns"].tolist()
    begins = page.evaluate(f"{TIMELINE}.sources[1].whole.low")
    assert begins == slices(second).start.min() + shifts[1] - shifts[0]
    page.focus(CANVAS)
    lane, x, y = page.evaluate(
        f"""() => {{ const timeline = {TIMELINE}, track = timeline.tracks.all.find((one) => one.source.key === '1');
            timeline.scroll.scrollTop = track.offset;
            const {{ whole }} = track.source, first = whole.lineAt.get(`0 ${{track.lane}}`).first;
            const top = timeline.tracks.top(track, timeline.scroll.scrollTop) + window.timeline.ROW / 2;
            return [track.lane, timeline.x(whole.start[first] + whole.dur[first] / 2), top]; }}"""
    )
    box = page.locator(CANVAS).bounding_box()
    page.mouse.click(box["x"] + x, box["y"] + y)
    page.wait_for_selector("#callers")
    assert query_of(page)["of"] == ["1"]
    assert f"rank 1, {lane}" in page.locator(".inspector").inner_text()


SHARES = f"""() => {{
  const timeline = {TIMELINE}, {{ raster, tracks, ratio }} = timeline, {{ ROW, rows }} = window.timeline;
  return tracks.all.map((track) => {{
    const categories = track.source.palette.categories(), top = tracks.top(track, timeline.scroll.scrollTop);
    return Array.from({{ length: rows(track) }}, (_, depth) => {{
      const counts = {{}}, y0 = Math.round((top + depth * ROW) * ratio);
      const y1 = Math.round((top + (depth + 1) * ROW - 1) * ratio);
      const image = timeline.canvas.getContext("2d").getImageData(0, y0, timeline.canvas.width, y1 - y0);
      for (const pixel of new Uint32Array(image.data.buffer)) {{
        const category = categories[pixel];
        if (category !== undefined) counts[category] = (counts[category] || 0) + 1;
      }}
      return {{ lane: track.lane, depth, counts, pixels: image.width * image.height }};
    }});
  }}).flat();
}}"""


@pytest.mark.parametrize(("part", "theme"), [((0, 1), "light"), ((0.2, 0.6), "dark"), ((0.4, 0.44), "light")])
def test_the_picture_agrees_with_the_data(serving, page_of, tmp_path, script, part, theme):
    """In each line of streams, the share of the pixels in a kind's colour is the share of the time of its events."""
    script("traced_job").large(tmp_path / "rank0_trace.json.gz", 40_000)
    run = discover(tmp_path)
    found = slices(run.of(Kind.TRACE)[0])
    whole = int((found.start + found.dur).max())
    low, high = (int(edge * whole) for edge in part)
    with serving(run, tmp_path) as address:
        page = page_of(address)
        page.emulate_media(color_scheme=theme)
        page.goto(f"{address}/trace?from={low}&to={high}")
        see_timeline(page)
        # Names of slices are text, which covers the colours.
        page.evaluate("() => { window.timeline.paintLabels = () => {}; }")
        page.evaluate(f"{TIMELINE}.paint()")
        drawn = {(line["lane"], line["depth"]): line for line in page.evaluate(SHARES)}
    checked = 0
    for line in (line for line in found.lines if line.on_device):
        start, end = (column[line.first : line.last] for column in (found.start, found.start + found.dur))
        seen = (end.clip(low, high) - start.clip(low, high)).astype(float)
        counts, pixels = (drawn[line.lane, line.depth][name] for name in ("counts", "pixels"))
        for kind in range(len(KINDS)):
            share = seen[found.kind[line.first : line.last] == kind].sum() / (high - low)
            assert counts.get(str(kind), 0) / pixels == pytest.approx(share, abs=0.02), (line, KINDS[kind])
            checked += share > 0.1
    assert checked >= 2


def test_joined_events_are_replaced_as_one_zooms_in(serving, page_of, tmp_path, script, monkeypatch):
    """Of a trace with too many events the server sends joined ones; those in view are sent one by one."""
    from workbench.web.pages import trace_timeline

    monkeypatch.setattr(trace_timeline, "slices", lambda *asked: slices(*asked, 3000))
    trace_timeline.packed_events.cache_clear()
    script("traced_job").large(tmp_path / "rank0_trace.json.gz", 40_000)
    run = discover(tmp_path)
    exact = slices(run.of(Kind.TRACE)[0])
    with serving(run, tmp_path) as address:
        page = page_of(address)
        page.goto(f"{address}/trace")
        see_timeline(page)
        assert "short ones joined" in page.locator(".timeline .note").inner_text()
        assert page.evaluate(f"{TIMELINE}.sources[0].whole.count.reduce((a, b) => a + b)") == exact.events
        middle = int(exact.start[exact.lines[0].last // 2])
        zoom_timeline(page, [middle, middle + 1_000_000])
        page.wait_for_function(f"() => {TIMELINE}.sources[0].part !== null")
        assert page.evaluate(f"{TIMELINE}.sources[0].events({TIMELINE}.view).joined") == 0
    trace_timeline.packed_events.cache_clear()


def test_steps_in_the_header_move_the_timeline(timeline):
    """What the timeline wrote into the address stays when steps are typed, or all of them are asked for."""
    page = timeline
    whole = page.evaluate(VIEW)
    click(page, "thread 7119", 2, 300_000_000)
    page.fill("#event-name", "fwd")
    page.wait_for_function("() => new URL(location).searchParams.get('find') === 'fwd'")
    page.fill("#steps", "10.5-10.7")
    page.keyboard.press("Enter")
    page.wait_for_function(f"low => ({VIEW})()[0] > low + 1e8", arg=whole[0])
    see_timeline(page)
    assert page.evaluate(f"{TIMELINE}.sought") == "fwd"
    page.fill("#event-name", "")
    page.wait_for_function("() => !new URL(location).searchParams.has('find')")
    page.click("#reset")
    page.wait_for_function(f"whole => String(({VIEW})()) === String(whole)", arg=whole)
    see_timeline(page)
    assert page.locator(".timeline .matches").inner_text() == ""
    assert page.locator("#callers").count() == 1


def test_another_theme_keeps_what_is_shown(timeline):
    """The timeline writes its state into the address without Dash, which must not lose it when it draws anew."""
    page = timeline
    zoom_timeline(page, [100_000_000, 300_000_000])
    page.fill("#event-name", "fwd")
    page.wait_for_function("() => new URL(location).searchParams.get('find') === 'fwd'")
    before = page.evaluate(f"{TIMELINE}.config.hues.page")
    page.click("#theme")
    page.wait_for_function(f"before => {TIMELINE}.config.hues.page !== before", arg=before)
    see_timeline(page)
    assert page.evaluate(VIEW) == [100_000_000, 300_000_000]
    assert page.locator(".timeline .matches").inner_text().startswith("1 match,")


def test_a_telephone_shows_the_timeline(traced, page_of):
    page = page_of(traced, {"width": 390, "height": 844})
    page.goto(f"{traced}/trace?file=0")
    see_timeline(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator(CANVAS).bounding_box()["width"] > 220


@pytest.fixture(scope="module")
def launching(serving, tmp_path_factory):
    """Fixture: the address of a dashboard of a trace in which a call launches a kernel, 30 us before it begins."""
    folder = tmp_path_factory.mktemp("launching")
    runtime, operator = {"cat": "cuda_runtime", "tid": 9}, {"cat": "cpu_op", "tid": 9}
    kernel = {"cat": "kernel", "tid": 7, "pid": 0}
    events = [
        {"name": "aten::mm", "ts": 100, "dur": 20, **operator},
        {"name": "cudaLaunchKernel", "ts": 105, "dur": 5, **runtime, "args": {"correlation": 1}},
        {"name": "gemm", "ts": 135, "dur": 50, **kernel, "args": {"correlation": 1, "device": 0, "stream": 7}},
        {"name": "aten::add", "ts": 200, "dur": 10, **operator},
    ]
    text = json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "X", "pid": 8, **event} for event in events]})
    (folder / "rank0_trace.json").write_text(text)
    with serving(discover(folder), tmp_path_factory.mktemp("dropped")) as address:
        yield address


@pytest.mark.parametrize("search", ["event", "launches_of"])
def test_a_click_searches_the_trace_once(monkeypatch, search):
    """The timeline and the text beside it show the same event and launches."""
    searched = []
    search_of = getattr(trace_timeline, search)

    def counted(artefact, row, options):
        searched.append(row)
        return search_of(artefact, row, options)

    monkeypatch.setattr(trace_timeline, search, counted)
    for cached in (trace_timeline.event_in, trace_timeline.launches_from):
        cached.cache_clear()
    run = discover(FIXTURES / "straggler_data_2ranks")
    trace.layout(served_run(run, room_for(run), Options()), {"event": "40"})
    assert searched == [40]


def test_a_trace_of_an_unknown_rank_is_called_so(tmp_path):
    event = {"ph": "X", "pid": 8, "tid": 9, "cat": "cpu_op", "name": "aten::mm", "ts": 100, "dur": 20}
    (tmp_path / "some.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    run = discover(tmp_path / "some.json")
    shown = str(trace.layout(served_run(run, room_for(run), Options()), {}))
    assert "Unknown rank: share of the recorded time" in shown
    assert "None: " not in shown


INK = """() => {
    const { overlay } = document.querySelector("[data-timeline]").timeline;
    const { data } = overlay.getContext("2d").getImageData(0, 0, overlay.width, overlay.height);
    let drawn = 0;
    for (let i = 3; i < data.length; i += 4) drawn += data[i] > 0;
    return drawn;
}"""
"""Returns how many pixels above the slices are drawn."""


def test_arrows_and_links_lead_from_a_call_to_what_it_launched(launching, page_of):
    page = page_of(launching)
    page.goto(f"{launching}/trace")
    see_timeline(page)
    click(page, "thread 9", 0, 101_000 - 100_000)
    assert page.locator("#launches").inner_text() == "Launches 1 event on the device"
    assert page.locator("#launches + ol").inner_text() == "gemm, 50.0 µs, begins 30.0 µs after its call"
    with_arrow = page.evaluate(INK)
    page.click("#launches + ol a")
    page.wait_for_selector(".inspector .label:text-is('Launch')")
    see_timeline(page)
    assert "cudaLaunchKernel, 30.0 µs before it began" in page.locator(".inspector").inner_text()
    page.click(".inspector a:text('cudaLaunchKernel')")
    page.wait_for_selector("#event:text-is('cudaLaunchKernel')")
    # An event without a launch has no arrow: less is drawn.
    click(page, "thread 9", 0, 101_000)
    page.wait_for_selector("#event:text-is('aten::add')")
    see_timeline(page)
    assert page.locator("#launches").count() == 0
    assert page.evaluate(INK) < with_arrow
