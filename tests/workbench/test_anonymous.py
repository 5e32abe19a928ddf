"""A report that tells what happened, and not to whom."""

import json
import shutil
from pathlib import Path

import pytest

from analyzers.run import discover
from analyzers.store import Options
from workbench.ask import ask, room_for
from workbench.options import Format
from workbench.present import render
from workbench.present.anonymous import Veil, anonymised

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def veil():
    return Veil(["gpu-17.corp", "gpu-17"], ["in /opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py:134"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("forward /home/alice/moonshot/net.py:12", "forward folder1/folder2/folder3/file1.py:12"),
        ("net.py:12 and net.py:40", "file1.py:12 and file1.py:40"),
        ("/opt/lib/python3.11/threading.py:9", "folder1/folder2/python3.11/threading.py:9"),
        ("modules/linear.py:134", "modules/linear.py:134"),
        ("refused by gpu-17.corp (10.0.0.7)", "refused by host1 (address1)"),
        ("~/run/rank_3", "folder1/folder2/rank_3"),
        ("forward/backward took 3/4 of 2.13.0", "forward/backward took 3/4 of 2.13.0"),
        ("C:\\Users\\bob\\train.py", "folder1/folder2/folder3/file1.py"),
    ],
)
def test_what_identifies_has_a_stand_in(veil, text, told):
    assert veil(text) == told


@pytest.fixture(scope="module", params=["oom_2ranks", "straggler_data_4ranks"])
def told(request, tmp_path_factory):
    """A run in a folder with a telling name, and its report."""
    home = tmp_path_factory.mktemp("alice") / "moonshot"
    shutil.copytree(FIXTURES / request.param, home)
    run = discover(home)
    return run, ask(room_for(run), run, Options())


@pytest.mark.parametrize("form", list(Format))
def test_no_document_names_the_place(told, form):
    """The same answer with the same ids and numbers, and nothing of where the run lay."""
    run, report = told
    hidden, nowhere = anonymised(report, run)
    assert [f.id for f in hidden.findings] == [f.id for f in report.findings]
    assert (hidden.verdict.kind, hidden.verdict.ranks) == (report.verdict.kind, report.verdict.ranks)
    document = render(hidden, form, nowhere)
    for name in ("alice", "moonshot", str(run.root.parent)):
        assert name not in document
    if form is Format.JSON:
        assert numbers(json.loads(report.json())) == numbers(json.loads(document))


def numbers(value):
    """All numbers of a document, in order."""
    if isinstance(value, dict | list):
        return [n for inner in (value.values() if isinstance(value, dict) else value) for n in numbers(inner)]
    return [value] if isinstance(value, int | float) else []
