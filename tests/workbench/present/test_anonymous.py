"""An anonymised report tells what happened, but contains no names of people or machines."""

import gzip
import json
import pickle
import shutil
import time
from pathlib import Path

import pytest

from analyzers.rooms import ask, room_for
from analyzers.run import discover
from analyzers.store import Options
from workbench.command_options.options import Format
from workbench.present import render
from workbench.present.anonymous import Anonymiser, anonymised

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture
def veil():
    return Anonymiser(
        ["gpu-17.corp", "gpu-17"], ["in /opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py:134"]
    )


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
    """Fixture: a run in a folder whose name reveals a person, and its report."""
    home = tmp_path_factory.mktemp("alice") / "moonshot"
    shutil.copytree(FIXTURES / request.param, home)
    run = discover(home)
    return run, ask(room_for(run), run, Options())


@pytest.mark.parametrize("form", list(Format))
def test_no_document_names_the_place(told, form):
    """The answer is the same, with the same ids and numbers, but nothing shows in which folder the run was."""
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
    """Return all numbers in a document, in order."""
    if isinstance(value, dict | list):
        return [n for inner in (value.values() if isinstance(value, dict) else value) for n in numbers(inner)]
    return [value] if isinstance(value, int | float) else []


SECRETS = {"/job": "/home/alice/moonshot", '"vm"': '"gpu-secret-17.corp"'}
PLANTED = (
    "alice",
    "moonshot",
    "gpu-secret",
    "corp",
    "hunter",
    "10.1.2.3",
    "hf_qpx",
    "sk-proj",
    "r3dis",
    "@uni",
    "jdoe",
    "lake9",
)
LOG = """Traceback (most recent call last):
  File "/home/alice/moonshot/train.py", line 3, in step
RuntimeError: user=jdoe on host=lake9 could not reach https://alice:r3disPass@cache.corp.internal/x?token=abcdefgh \
for hf_QpXzRtYuIoPaSdFgHjKlZxCv and sk-proj-4fJ8sK2lQ9xZ7vB1nM3c, mail jdoe@uni-x.example
"""


def planted(value):
    """Return nested plain values in which every path of the fixtures is inside a person's home folder."""
    if isinstance(value, str):
        return value.replace("/job", "/home/alice/moonshot").replace("/venv/", "/home/alice/env/")
    if isinstance(value, dict):
        return {planted(key): planted(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(planted, value))
    return value


def plant(source, target):
    """Copy a file of a run, and insert secrets."""
    data = source.read_bytes()
    packed = data[:2] == b"\x1f\x8b"
    unpacked = gzip.decompress(data) if packed else data
    if unpacked[:1] == b"\x80":
        unpacked = pickle.dumps(planted(pickle.loads(unpacked)))
    else:
        text = unpacked.decode()
        for plain, secret in SECRETS.items():
            text = text.replace(plain, secret)
        unpacked = text.encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(unpacked) if packed else unpacked)


@pytest.fixture(scope="module", params=["oom_2ranks", "stuck_2ranks", "straggler_data_2ranks"])
def telling(request, tmp_path_factory):
    """Fixture: a run whose files name a person, a project, hosts and addresses."""
    home = tmp_path_factory.mktemp("alice") / "moonshot"
    source = FIXTURES / request.param
    for path in source.rglob("*"):
        if path.is_file() and path.suffix != ".bin":
            plant(path, home / path.relative_to(source))
    manifest = json.loads((home / "run.json").read_text())
    manifest["hosts"] = {"0": "gpu-secret-17.corp", "1": "10.1.2.3"}
    manifest["argv"] += ["--job.description", "hunter of /home/alice"]
    (home / "run.json").write_text(json.dumps(manifest))
    logs = home / "logs" / "launch"
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / "rank_1.log").open("a") as log:
        log.write(LOG)
    run = discover(home)
    return run, ask(room_for(run), run, Options())


@pytest.mark.parametrize("form", list(Format))
def test_planted_secrets_do_not_get_out(telling, form):
    """The plain document shows the secrets of snapshots, traces, dumps and step logs; the anonymous one has none."""
    run, report = telling
    plain = render(report, form, run)
    assert "moonshot" in plain
    hidden, nowhere = anonymised(report, run)
    document = render(hidden, form, nowhere)
    assert [name for name in PLANTED if name in document.casefold()] == []
    assert "read it before you share it" in " ".join(document.split())


def test_an_anonymous_page_keeps_its_charts(telling):
    """The charts show bytes and seconds, but no names."""
    run, report = telling
    drawn = render(report, Format.HTML, run).count("<svg")
    hidden, nowhere = anonymised(report, run)
    assert render(hidden, Format.HTML, nowhere).count("<svg") == drawn > 0


@pytest.mark.parametrize("part", ["a.", "a_", "a", "a@", "1.", "/a", "ab:"])
def test_a_text_without_end_costs_little_and_is_left_out(part):
    began = time.process_time()
    text = part * 4_000
    assert Anonymiser([], [text])(f"frame {text} end") == f"frame <{len(text)} characters> end"
    assert time.process_time() - began < 1
