"""The part of plotly.js that pages load can draw every chart of theirs."""

import re
import runpy
from pathlib import Path

from plotly import graph_objects
from plotly.basedatatypes import BaseTraceType
from plotly.offline import get_plotlyjs_version

import workbench

BUNDLE = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "plotly_bundle.py"))
TRACES = BUNDLE["TRACES"]
KINDS = {
    name.lower() for name in dir(graph_objects)
    if isinstance(made := getattr(graph_objects, name), type) and issubclass(made, BaseTraceType)
}  # fmt: skip
DRAWN = re.compile(r"\bgo\.([A-Z]\w*)|\"type\": \"(\w+)\"")


def test_it_is_of_the_version_of_the_installed_package_and_of_the_listed_traces():
    assert BUNDLE["bundled"]() == (get_plotlyjs_version(), TRACES)


def test_all_kinds_of_traces_that_the_code_draws_are_in_it():
    """plotly.js would draw any other kind as a scatter chart, without an error."""
    drawn = set()
    for path in Path(workbench.__file__).parent.rglob("*.py"):
        drawn |= {(made or typed).lower() for made, typed in DRAWN.findall(path.read_text())} & KINDS
    assert drawn == set(TRACES)
