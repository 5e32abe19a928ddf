"""The axes of the charts of an HTML report, and what the report looks like on a telephone."""

import re

import pandas as pd
import pytest

from analyzers.hangs import HangData, views
from analyzers.rooms import ask, room_for
from analyzers.run import discover
from analyzers.store import Options
from workbench.axes import apart, byte_marks, duration_marks
from workbench.colours import css_themes
from workbench.command_options.options import Format
from workbench.present import render
from workbench.present.collective_matrix import STYLE, matrix_figure
from workbench.present.figure import prose
from workbench.present.svg_charts import step_labels
from workbench.rooms import data_of


@pytest.fixture(scope="module")
def document(oom):
    """Fixture: the HTML report of a run that ran out of memory in step 6."""
    return render(ask(room_for(oom), oom, Options()), Format.HTML, oom)


def labels(figure, part):
    """Return the texts of the labels of an axis."""
    within = re.search(rf'<div class="{part}">(.*?)</div>', figure)[1]
    return re.findall(r"<span[^>]*>([^<]*)</span>", within)


def test_charts_have_axes_in_units_and_steps(document):
    memory, phases = re.findall(r"<figure>.*?</figure>", document, re.DOTALL)
    assert document.index(memory) < document.index('<figure class="matrix">') < document.index(phases)
    assert labels(memory, "up")[:2] == ["0 B", "32.0 MiB"]
    assert labels(memory, "across") == ["step 5", "✗ step 6"]
    assert "in the last 2 steps, rank 1" in memory
    assert labels(phases, "up") == ["0.0 s", "0.5 s", "1.0 s", "1.5 s"]
    assert labels(phases, "across") == ["step 1", "2", "3", "4", "5"]


def test_phases_of_one_colour_are_hatched_differently(document):
    _, phases = re.findall(r"<figure>.*?</figure>", document, re.DOTALL)
    fills = re.findall(r'fill="([^"]+)"/>', re.sub("<pattern.*?</pattern>", "", phases))
    assert len(fills) == len({*fills}) > 4


@pytest.mark.parametrize("name", ["stuck_4ranks", "nan_2ranks"])
def test_no_two_phases_of_the_legend_have_one_colour(fixtures, name):
    """Garbage collection and the writing of logs had the same olive."""
    run = discover(fixtures / name)
    shown = re.findall(r"<figure>.*?</figure>", render(ask(room_for(run), run, Options()), Format.HTML, run), re.DOTALL)
    fills = re.findall(r'fill="([^"]+)"/>', re.sub("<pattern.*?</pattern>", "", shown[-1]))
    assert len(fills) == len({*fills}) > 4


def test_ticks_are_round_and_apart():
    assert [label for _, label in byte_marks(200 << 20)][-1] == "192.0 MiB"
    assert [label for _, label in duration_marks(1.9e9, 5)] == ["0.0 s", "0.5 s", "1.0 s", "1.5 s"]
    assert apart([(0.0, "a"), (0.1, "b"), (0.3, "c")], 0.2) == [(0.0, "a"), (0.3, "c")]
    assert [label for _, label in step_labels(range(1, 301))] == ["step 50", "100", "150", "200", "250", "300"]


def test_commands_are_code_and_texts_stay_escaped():
    assert prose("Run `a <b>` now") == "Run <code>a &lt;b&gt;</code> now"
    assert prose("a ` <alone>") == "a ` &lt;alone&gt;"


@pytest.mark.parametrize("name", ["deadlock_4ranks", "mismatch_shape_4ranks", "skip_4ranks"])
def test_a_hang_has_the_states_of_its_collectives_first(fixtures, name):
    """They are those of the dashboard's hang page, from the same views; the file needs no server."""
    run = discover(fixtures / name)
    report = ask(room_for(run), run, Options())
    document = render(report, Format.HTML, run)
    figure = re.search(r'<figure class="matrix">.*?</figure>', document, re.DOTALL)[0]
    assert document.index(figure) < document.index("<figure>")
    group = data_of(report, HangData).culprits[0].group
    frame = views.matrix(run, group)
    rows = re.findall(r"<tr><th>rank (\d+)</th>(.*?)</tr>", figure)
    assert [int(rank) for rank, _ in rows] == frame.index.tolist()
    states = [re.findall(r'title="([^"]+)"', cells) for _, cells in rows]
    assert states == frame.replace("", "not recorded").to_numpy().tolist()
    assert re.findall(r'<th colspan="1">#(\d+)</th>', figure) == [str(number) for number in frame.columns]
    assert "<script" not in document


def test_a_matrix_of_many_ranks_stays_small():
    """Rows in which something is not done are kept; labels name the last of several columns, the last one included."""
    states = pd.DataFrame("done", index=[f"{i}, {500 + i}" for i in range(100)], columns=range(100, 160))
    states.iloc[99, -1] = "missing"
    figure = matrix_figure("State", states)
    rows = re.findall(r"<tr><th>([^<]+)</th><td", figure)
    assert len(rows) == 64
    assert rows[0] == "ranks 99, 599"
    assert "... and 36 more rows" in figure
    spans = [int(span) for span in re.findall(r'colspan="(\d+)"', figure)]
    assert sum(spans) == 60
    assert "#159</th></tr>" in figure
    assert "●" not in figure.partition("<table")[2]


@pytest.mark.browser
def test_the_end_of_a_wide_matrix_is_in_sight_on_a_telephone(page_of, tmp_path):
    states = pd.DataFrame("done", index=range(8), columns=range(60))
    states.iloc[3, -1] = "missing"
    style = f"{css_themes()}{STYLE}.wide {{ overflow-x: auto }}"
    target = tmp_path / "matrix.html"
    target.write_text(f"<!doctype html><meta charset=utf-8><style>{style}</style>{matrix_figure('State', states)}")
    page = page_of("file://", {"width": 390, "height": 844})
    page.goto(f"file://{target}")
    box = page.locator("td.error").bounding_box()
    assert 200 < box["x"] < 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.browser
def test_only_tables_scroll_to_the_side_on_a_telephone(document, page_of, tmp_path):
    target = tmp_path / "report.html"
    target.write_text(document)
    page = page_of("file://", {"width": 390, "height": 844})
    page.goto(f"file://{target}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert all(box["height"] > 200 for box in (svg.bounding_box() for svg in page.locator("svg").all()))
