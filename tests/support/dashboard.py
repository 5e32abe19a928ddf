"""Use a page of the dashboard in a test: act on its charts, and wait for the result."""

import http.cookiejar
import shutil
import urllib.request

TOKEN = "s3cret"
"""The access token of every dashboard that the tests start."""
FOLDER = "f0lder"
"""The first folder in the path of every address of these dashboards."""
PATIENCE_MS = 120_000
"""Milliseconds that a page may take, because the machine may be busy."""
BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""The browser of the tests, or None; the headless shell, which has no window, starts faster and needs less memory."""
ZOOM = """([name, span]) => {
  const graph = document.querySelector(`#${name} .js-plotly-plot`);
  graph.dispatchEvent(new PointerEvent('pointerdown', { bubbles: true }));
  Plotly.relayout(graph, { 'xaxis.range': span });
}"""
SHOWN = "name => document.querySelector(`#${name} .js-plotly-plot`)?._fullLayout?.xaxis?.range"
LISTENS = "name => document.querySelector(`#${name} .js-plotly-plot:not(.dash-graph--pending) .xy`) !== null"


def heard(page, chart, gesture):
    """Perform an action on a chart once Dash reacts to actions, and wait until the address changes."""
    page.wait_for_function(LISTENS, arg=chart)
    page.wait_for_load_state("networkidle")
    before = page.url
    gesture()
    page.wait_for_function("before => location.href !== before", arg=before)


def zoom(page, chart, span):
    """Zoom a chart to the range `span` of its axis, like a mouse."""
    heard(page, chart, lambda: page.evaluate(ZOOM, [chart, span]))


def shows(page, chart, low, high):
    """Wait until the axis of a chart reaches from `low` to `high`."""
    page.wait_for_function(f"([name, span]) => String(({SHOWN})(name)) === String(span)", arg=[chart, [low, high]])


TIMELINE = "document.querySelector('[data-timeline]').timeline"
VIEW = f"() => {{ const {{ low, high }} = {TIMELINE}.view; return [Math.round(low), Math.round(high)]; }}"


def see_timeline(page):
    """Wait until the timeline of a trace shows what the page asks for."""
    page.wait_for_selector("[data-drawn]")
    page.wait_for_load_state("networkidle")
    page.wait_for_function(f"() => {TIMELINE}.shown === document.querySelector('[data-timeline]').dataset.timeline")


def zoom_timeline(page, span):
    """Zoom the timeline of a trace to the time range `span`, in ns, and wait until the address names the range."""
    see_timeline(page)
    page.evaluate(f"span => {TIMELINE}.show(...span)", span)
    page.wait_for_function("from => new URL(location).searchParams.get('from') == from", arg=span[0])
    page.wait_for_load_state("networkidle")


def timeline_place(page, track, depth, at):
    """Return the position on the page of the time `at`, in ns, of a line of the timeline."""
    page.locator("[data-timeline]").scroll_into_view_if_needed()
    box = page.locator("[data-timeline] canvas[tabindex]").bounding_box()
    x, y = page.evaluate(
        f"""([name, depth, at]) => {{
            const timeline = {TIMELINE}, track = timeline.tracks.all.find((one) => one.lane.startsWith(name));
            const {{ ROW }} = window.timeline;
            return [timeline.x(at), timeline.tracks.top(track, timeline.scroll.scrollTop) + (depth + 0.5) * ROW];
        }}""",
        [track, depth, at],
    )
    return box["x"] + x, box["y"] + y


def visitor(site):
    """Return a urllib opener that opens addresses of a dashboard with the cookie of its token."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    opener.open(f"{site}/report.json?token={TOKEN}", timeout=PATIENCE_MS / 1000).close()
    return opener
