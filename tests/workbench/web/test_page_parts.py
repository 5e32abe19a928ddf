"""Parts of pages: sentences with code, the matrix of a hang, pictures of traces, and what the browser makes of them."""

import json
from pathlib import Path

import pandas as pd
import pytest

from analyzers.rooms import room_for
from analyzers.run import discover
from analyzers.steps import StepsData
from analyzers.store import Options
from analyzers.traces import TraceData
from analyzers.words import duration
from workbench.present.collective_matrix import from_most_ranks
from workbench.web.components.figure import theme
from workbench.web.components.links import breakable, prose, source_parts
from workbench.web.components.rank_charts import bar_names, step_parts, time_shares
from workbench.web.components.step_charts import MARKED, line_chart, phase_stack
from workbench.web.pages import config, steps, trace
from workbench.web.pages.hang import collective_matrix
from workbench.web.pages.overview import picture
from workbench.web.served_run import served_run

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
LONG_NAME = "ncclDevKernel_ReduceScatterBase_RING_LL(ncclDevKernelArgsStorage<4096ul>)" * 2
EDGES = "nodes => nodes.map(node => node.getBoundingClientRect().right)"


def served(path):
    run = discover(path)
    return served_run(run, room_for(run), Options())


def test_commands_in_a_sentence_are_code():
    shown = prose("Run `py-spy dump --pid PID` on its host")
    assert [getattr(part, "children", part) for part in shown] == ["Run ", "py-spy dump --pid PID", " on its host"]
    assert prose("a ` alone") == ["a ` alone"]


def test_a_long_name_in_a_sentence_may_break_after_a_point_or_an_underscore():
    parts = prose("set torch.cuda.memory._record_memory_history() and 1.5")
    assert [part if isinstance(part, str) else type(part).__name__ for part in parts] == [
        "set ", "torch.", "Wbr", "cuda.", "Wbr", "memory.", "Wbr", "_record_", "Wbr", "memory_", "Wbr",
        "history()", " and 1.5",
    ]  # fmt: skip


def test_the_end_of_a_source_line_stays_together():
    parts = breakable("in forward (trainer/models/llama3/model.py:61): it")
    assert [part for part in parts if isinstance(part, str)] == [
        "in forward ", "(trainer/", "models/", "llama3/", "model.py:61):", " it",
    ]  # fmt: skip


def test_every_source_line_of_a_cell_is_a_link():
    """Ranks that called different operations have two lines in one cell; a file that is not here stays text."""
    lines = ("workbench/web/app.py:12", "nowhere_at_all.py:3", "workbench/web/rail.py:4")
    parts = source_parts("  ".join(lines))
    assert [part[0] for part in parts if not isinstance(part, str)] == [lines[0], lines[2]]
    assert "".join(part if isinstance(part, str) else part[0] for part in parts) == "  ".join(lines)


def test_the_matrix_begins_where_most_ranks_have_a_record():
    """The rank that stopped early still has what the others have overwritten."""
    frame = pd.DataFrame({1: ["", "done"], 2: ["", "done"], 3: ["done", "done"], 4: ["scheduled", "missing"]})
    frame.index = pd.Index(["0-2, 4", "3"])
    early = pd.concat([frame, frame.iloc[:1].set_axis(["5-7"])])
    shown = from_most_ranks(early)
    assert list(shown.columns) == [3, 4]
    drawn = collective_matrix(shown)
    assert list(drawn.data[0].y) == ["ranks 0-2, 4", "rank 3", "ranks 5-7"]
    assert "not recorded" not in [trace.name for trace in drawn.data]
    assert "not recorded" in [trace.name for trace in collective_matrix(frame).data]


def test_the_label_of_many_ranks_in_the_matrix_loses_its_middle():
    """The beginning was cut off; rows stay apart though their labels may be equal then."""
    rows = [f"0-{n}, {n + 2}, 999, {', '.join(map(str, range(2000, 2060, 2)))}" for n in (400, 500)]
    figure = collective_matrix(pd.DataFrame({1: ["done", "missing"]}, index=rows))
    assert figure.layout.yaxis.automargin
    assert list(figure.layout.yaxis.tickvals) == list(figure.data[0].y) == [f"ranks {row}" for row in rows]
    assert all(len(label) <= 28 and "…" in label for label in figure.layout.yaxis.ticktext)


def test_many_steps_are_drawn_without_gaps_and_marks():
    """Between hundreds of bars some gaps would be a pixel wider; hundreds of marks hide the lines of other ranks."""
    for count, mode, gap in ((MARKED, "lines+markers", 0.05), (MARKED + 1, "lines", 0)):
        frame = pd.DataFrame({"fwd": [1.0] * count}, index=range(count))
        assert {line.mode for line in line_chart(frame, duration).data} == {mode}
        assert phase_stack(frame).layout.bargap == gap


def test_the_first_page_of_traces_has_a_picture():
    """The rank of the verdict comes first."""
    shown = picture(served(TRACES / "straggler_4ranks"))
    assert shown is not None
    assert shown.children[1].figure.data[0].y[0] == "rank 3"


def test_a_single_traced_rank_is_drawn_step_by_step():
    account = served(TRACES / "straggler_4ranks").data(TraceData).ranks[0]
    drawn = {bar.name: bar for bar in step_parts(account).data}
    assert list(drawn["compute"].x) == [step.step for step in account.step_times]
    assert drawn["compute"].y[0] == account.step_times[0].compute_ns / 1e9
    assert drawn["compute"].marker.color == theme().kinds["compute"]


def test_a_trace_without_a_rank_is_of_an_unknown_rank():
    import msgspec

    account = msgspec.structs.replace(served(TRACES / "straggler_4ranks").data(TraceData).ranks[0], rank=None)
    assert bar_names([account]) == ["unknown rank"]
    assert {bar.name for bar in time_shares([account]).data} == {"compute", "exposed communication", "idle"}


def test_the_page_of_settings_has_one_search(oom):
    page = config.layout(served(oom.root), {})
    tables = [json.loads(part.to_plotly_json()["props"]["data-table"]) for part in page.children[-1:]]
    assert [content["unfiltered"] for content in tables] == [True]


@pytest.mark.browser
def test_the_shares_stay_inside_the_inspector(site, page):
    page.goto(f"{site}/memory")
    page.wait_for_selector(".inspector .parts li")
    field = page.locator(".inspector .dash-input-container").first.bounding_box()
    assert max(page.locator(".inspector .parts .n").evaluate_all(EDGES)) <= field["x"] + field["width"] + 0.5


@pytest.mark.browser
def test_a_long_name_moves_no_column_out_of_sight(site, page):
    page.goto(f"{site}/memory?tab=peaks")
    page.wait_for_selector(".body")
    rows = [[LONG_NAME, "stream 20", "communication", "25899", "308 µs", "4.28 s"]]
    heads = [["longest event", 0], ["stream", 0], ["kind", 0], ["events", 1], ["start", 1], ["duration", 1]]
    page.evaluate(
        """content => {
          const made = document.createElement("article");
          made.className = "wide";
          made.dataset.table = JSON.stringify(content);
          document.querySelector(".body").append(made);
        }""",
        {"title": "Made", "columns": heads, "rows": rows, "out": 0},
    )
    made = page.locator(".body article", has_text="Made")
    made.locator("td").first.wait_for()
    assert made.evaluate("node => node.scrollWidth <= node.clientWidth")


def test_the_step_that_failed_is_marked_although_it_has_no_bar(oom):
    """All charts of the steps reach to it."""
    shown = served(oom.root)
    for chart in steps.figures(shown, shown.data(StepsData), 1, None):
        assert [line.x0 for line in chart.layout.shapes] == [6]
        assert chart.layout.annotations[0].text == "✗ step 6"
        assert chart.layout.xaxis.autorangeoptions.include == (0.5, 6.5)
    for chart in steps.figures(shown, shown.data(StepsData), 1, (2.0, 5.0)):
        assert not chart.layout.shapes


def test_the_shares_of_many_ranks_fit_a_page(monkeypatch):
    """The rank of the verdict is among the bars, and a sentence says that there are more ranks."""
    shown = served(TRACES / "straggler_4ranks")
    monkeypatch.setattr(trace, "BARS", 2)
    hint, figure = trace.shares_section(shown, shown.data(TraceData))
    assert hint.children == "The chart shows 2 of 4 ranks; the table has all of them."
    assert list(figure.children.figure.data[0].y) == ["rank 3", "rank 0"]
    monkeypatch.setattr(trace, "BARS", 4)
    assert len(trace.shares_section(shown, shown.data(TraceData))) == 1


@pytest.mark.browser
def test_a_sentence_in_the_last_column_keeps_its_row_low_on_a_telephone(site, page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(site)
    page.wait_for_selector("#verdict")
    cells = [
        "exposed communication",
        "0-3",
        "180 ms",
        "gloo:all_gather",
        "Run one rank alone without communication. " * 3,
    ]
    heads = [["opportunity", 0], ["ranks", 0], ["saved", 1], ["mostly", 0], ["how to check", 0]]
    page.evaluate(
        """content => {
          const made = document.createElement("article");
          made.className = "wide";
          made.dataset.table = JSON.stringify(content);
          document.querySelector("#page").append(made);
        }""",
        {"title": "Made", "columns": heads, "rows": [cells], "out": 0},
    )
    made = page.locator("#page > article", has_text="Made")
    made.locator("td").first.wait_for()
    assert made.locator("tbody tr").bounding_box()["height"] <= 130
