"""A bad file among good ones: it is named, the others are analysed, and nothing waits or grows without limit."""

import gzip
import json
import os
import pickle
import re
import resource
import shutil
import socket
import time
from pathlib import Path

import pytest

from analyzers import child, memory
from analyzers.child import Task, memory_of_machine
from analyzers.errors import InputError
from analyzers.files import RANKS_AT_MOST, rank_in, read_json
from analyzers.rooms import ask, room_for
from analyzers.run import Kind, discover
from analyzers.store import Options
from analyzers.worker_pool import read_in_child
from workbench.command_options.options import Format
from workbench.present import render
from workbench.present.table import sections

STUCK = Path(__file__).parents[1] / "fixtures" / "stuck_2ranks"
OOM = STUCK.with_name("oom_2ranks")
NUMBER = re.compile(r"(?<![\w.\"-])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?=[,}\]\s])")
ODD_MANIFEST = {
    "exit_codes": {"²": 1, "": None},
    "world_size": "2",
    "launches": 3,
    "hosts": [],
    "config": 3,
    "status": {},
}


def bind(path):
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)
    os.chdir(here)


BAD = {
    "looping link": lambda path: path.symlink_to(path.name),
    "pipe": os.mkfifo,
    "socket": bind,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "nothing to read yet": lambda path: path.symlink_to("/proc/kmsg"),
    "folder": lambda path: path.mkdir(),
}
"""Files that cannot be read at all."""
ODD = {
    "empty": b"",
    "brackets": b"[" * 100_000,
    "braces": b'{"a":' * 100_000,
    "a number": b"7",
    "cut gzip": gzip.compress(b'{"a": 1}' * 5000)[:40],
    "odd keys": json.dumps(ODD_MANIFEST).encode(),
    "utf-16": '{"a": 1}'.encode("utf-16"),
}
SIDE_FILES = ("run.json", "dumps/collection.json", "dumps/exit_0.json", "dumps/groups_1.json")
RECORDINGS = ("dumps/rank_0", "memory_snapshot/iteration_5_exit/rank1_memory_snapshot.pickle.gz")
"""Files of the run that ran out of memory."""
PLACES = ("run.json", "dumps/exit_0.json", "dumps/rank_7", "dumps/p2p_1.bin", "steps/rank_5.jsonl", "logs/stderr.log")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(STUCK, tmp_path / "run"))


def answer(folder):
    run = discover(folder)
    return ask(room_for(run), run, Options(jobs=1))


def place(folder, name):
    path = folder / name
    path.unlink(missing_ok=True)
    return path


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_read_is_named_and_the_rest_answered(folder, kind, name):
    path = place(folder, name)
    BAD[kind](path)
    report = answer(folder)
    assert report.verdict.kind == "host_stuck"
    if kind != "folder" or name == "run.json":
        assert any(str(path) in missing for missing in report.verdict.missing)
        assert "run.unreadable" in [finding.id for finding in report.findings]


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("kind", ODD)
def test_what_holds_nonsense_costs_only_itself(folder, kind, name):
    place(folder, name).write_bytes(ODD[kind])
    assert answer(folder).verdict.kind == "host_stuck"


@pytest.mark.parametrize("name", SIDE_FILES + RECORDINGS)
@pytest.mark.parametrize("kind", ["empty", "brackets", "utf-16", "cut"])
def test_what_is_not_what_its_name_says_is_a_finding(tmp_path, monkeypatch, kind, name):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    folder = Path(shutil.copytree(STUCK.with_name("oom_2ranks"), tmp_path / "run"))
    path = folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3] if kind == "cut" else ODD[kind])
    report = answer(folder)
    texts = [evidence.source or evidence.text for finding in report.findings for evidence in finding.evidence]
    texts += [finding.why for finding in report.findings] + report.verdict.missing
    unreadable = [finding.id for finding in report.findings if "unreadable" in finding.id]
    assert unreadable
    assert "hang.unreadable_dump" in unreadable or any(str(path) in text for text in texts)
    assert report.verdict.kind in ("oom", "dead")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("steps/heartbeat_1.bin", lambda body: body[:20]),
        ("steps/heartbeat_1.bin", lambda _: b""),
        ("steps/heartbeat_1.bin", lambda body: body + b"more"),
        ("steps/heartbeat_1.bin", lambda _: b"\xfe" * 64),
        ("dumps/stacks_1.txt", lambda _: b""),
        ("dumps/stacks_1.txt", lambda body: body[: body.index(b", line")]),
        ("dumps/stacks_1.txt", lambda _: b"\0" * 4096),
        ("dumps/stacks_1.txt", lambda _: b"Killed\n"),
    ],
)
def test_a_damaged_heartbeat_or_stack_is_a_finding(folder, name, content):
    path = folder / name
    path.write_bytes(content(path.read_bytes()))
    report = answer(folder)
    [finding] = [finding for finding in report.findings if finding.id == "run.unreadable"]
    assert [evidence.source for evidence in finding.evidence] == [str(path)]
    assert any(str(path) in missing for missing in report.verdict.missing)
    assert report.data is not None


def test_whole_heartbeats_and_stacks_are_no_finding():
    for run in ("stuck_2ranks", "stuck_gil_2ranks", "stuck_sleep_2ranks", "oom_2ranks", "torchtitan_2ranks"):
        assert not discover(STUCK.with_name(run)).unreadable


@pytest.mark.parametrize("kind", ["looping link", "pipe", "endless device"])
def test_alone_it_is_an_error(tmp_path, kind):
    BAD[kind](tmp_path / "rank_0")
    with pytest.raises(InputError):
        discover(tmp_path / "rank_0")


@pytest.mark.parametrize("number", [2**63, 10**30, 10**400, -(10**4000)], ids=["2^63", "1e30", "1e400", "-1e4000"])
@pytest.mark.parametrize("name", ["run.json", "dumps/*.json", "steps/*.jsonl", "**/*.json*"])
@pytest.mark.parametrize("run", [STUCK, OOM], ids=["stuck", "oom"])
def test_integers_without_end_are_no_bug(tmp_path, monkeypatch, run, name, number):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    for path in folder.glob(name):
        path.write_text(NUMBER.sub(str(number), path.read_text()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = discover(folder)
    assert render(answer(folder), Format.HTML, found)
    if snapshots := found.of(Kind.SNAPSHOT):
        report = memory.analyze(snapshots, Options(jobs=1))
        assert sections(memory.extend(report, snapshots, Options(jobs=1), breakdown=True, changes="batch=2x"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


def dump(**parts):
    entry = {"process_group": ("0", "default_pg"), "collective_seq_id": 1, "profiling_name": "nccl:all_reduce"}
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return pickle.dumps({"version": "2.10", "pg_config": config, "entries": [entry | {"state": "scheduled"}]} | parts)


def group_of(ranks):
    return {"0": {"name": "0", "desc": "default_pg", "ranks": str(ranks)}}


@pytest.mark.parametrize(
    ("names", "parts", "side"),
    [
        (("rank_0", "rank_2000000000"), {}, {}),
        (("rank_0", "rank_" + "9" * 30), {}, {}),
        (("rank_0", "rank_1"), {"pg_config": group_of([0, 2_000_000_000])}, {}),
        (("rank_0", "rank_1"), {"pg_config": group_of(list(range(20_000)))}, {}),
        (("rank_0", "rank_1"), {}, {"world_size": 2_000_000_000}),
        (("rank_0", "rank_1"), {}, {"world_size": 10**30}),
        (("rank_0", "rank_1"), {}, {"world_size": 2, "rank": 2_000_000_000}),
    ],
)
def test_a_rank_that_no_job_has_costs_nothing(tmp_path, monkeypatch, names, parts, side):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    dumps = tmp_path / "run" / "dumps"
    dumps.mkdir(parents=True)
    for name in names:
        (dumps / name).write_bytes(dump(**parts))
    if side:
        (dumps / "groups_0.json").write_text(
            json.dumps({"schema": "workbench.groups/1", "rank": 0, "groups": {}} | side)
        )
    before = resource.getrusage(resource.RUSAGE_SELF)
    report = answer(dumps.parent)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert report.data.world_size <= RANKS_AT_MOST
    assert after.ru_utime - before.ru_utime < 20
    assert after.ru_maxrss - before.ru_maxrss < 500_000


@pytest.mark.parametrize(
    ("text", "rank"), [("7", 7), ("²", None), ("-1", None), ("2000000000", None), ("", None), (3, 3)]
)
def test_only_digits_of_a_believable_size_are_a_rank(text, rank):
    assert rank_in(text) == rank


def test_a_long_side_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(b"{}")
    os.truncate(path, 1 << 40)
    with pytest.raises(OSError, match="too long"):
        read_json(path)


def test_a_sparse_file_raises_no_limit(tmp_path):
    path = tmp_path / "rank_0"
    path.write_bytes(b"\x80\x04")
    os.truncate(path, 1 << 43)
    assert child.bytes_on_disk(path) <= 1 << 20
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError):
        read_in_child([path], "analyzers.memory.reading.reader", tmp_path / "out", None)
    assert 256 << 20 <= memory_of_machine() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    "end", ["", 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: x\n']
)
def test_holes_in_logs_cost_no_time(tmp_path, monkeypatch, end):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    logs = tmp_path / "run" / "logs"
    logs.mkdir(parents=True)
    for number in range(4):
        path = logs / f"rank_{number}.log"
        path.write_text("begin\n")
        os.truncate(path, 1 << 40)
        with path.open("a") as file:
            file.write(end)
    began = time.process_time() + sum(os.times()[2:4])
    report = answer(tmp_path / "run")
    assert report.verdict.kind == ("crashed" if end else "unknown")
    assert time.process_time() + sum(os.times()[2:4]) - began < 10


@pytest.mark.parametrize("run", [child.run_forked, child.run_in_new_interpreter])
def test_a_reader_that_waits_for_ever_is_killed(tmp_path, monkeypatch, run):
    (tmp_path / "waits.py").write_text("import time\ndef read(paths):\n    time.sleep(30)\n    return {}, {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(child, "WALL_S", 1)
    monkeypatch.setattr(child, "WALL_FACTOR", 0)  # instead of no time at all: some kernels kill a child for that
    task = Task("waits", tmp_path, [tmp_path / "rank_0"], memory=1 << 30, seconds=60)
    assert "took more than 1" in child.explain(run(task), task).message
