"""Discover files in our folder layout and in those of all torchtitan versions."""

import gzip
import json
import os
import pickle
import subprocess

import pytest

from analyzers import kinds, run
from analyzers.errors import InputError
from analyzers.run import Kind, first_ranks

SNAPSHOT = pickle.dumps({"segments": [], "device_traces": [[]]}, protocol=4)
FLIGHT = pickle.dumps({"version": "2.10", "pg_config": {}, "entries": []}, protocol=2)
TRACE = json.dumps({"schemaVersion": 1, "traceEvents": []}).encode()

LAYOUTS = [
    ("memory_snapshot/iteration_10/rank3_memory_snapshot.pickle", SNAPSHOT, Kind.SNAPSHOT, 3, 10, False),
    ("memory_snapshot/iteration_9_exit/rank0_memory_snapshot.pickle", SNAPSHOT, Kind.SNAPSHOT, 0, 9, True),
    ("memory_snapshot/iteration_9/replica_1/rank0_memory_snapshot.pickle", SNAPSHOT, Kind.SNAPSHOT, 0, 9, False),
    ("profiling/memory_snapshot/step_000000000020_exit/000007_step_20.pickle", SNAPSHOT, Kind.SNAPSHOT, 7, 20, True),
    ("profiling/memory_snapshot/step_000000000020/leaf/000007_step_20.pickle", SNAPSHOT, Kind.SNAPSHOT, 7, 20, False),
    ("my_snapshot.pickle.gz", gzip.compress(SNAPSHOT), Kind.SNAPSHOT, None, None, False),
    ("profile_trace/iteration_5/rank1_trace.json", TRACE, Kind.TRACE, 1, 5, False),
    ("profile_traces/iteration_5/replica_0/rank1_trace.json", TRACE, Kind.TRACE, 1, 5, False),
    ("profiling/traces/iteration_5/rank1_trace.json.gz", gzip.compress(TRACE), Kind.TRACE, 1, 5, False),
    ("loose.json", b'[ {"name": "x", "ph": "X", "ts": 1}]', Kind.TRACE, None, None, False),
    ("comm_trace/rank_3", FLIGHT, Kind.FLIGHT, 3, None, False),
    ("comm_traces/rank_3", FLIGHT, Kind.FLIGHT, 3, None, False),
    ("comm_lib_trace_rank_12", FLIGHT, Kind.FLIGHT, 12, None, False),
    ("nccl_trace_rank_0", FLIGHT, Kind.FLIGHT, 0, None, False),
    ("dumps/rank_1", FLIGHT, Kind.FLIGHT, 1, None, False),
    ("dumps/round_2/rank_1.json", b'{"entries": [{"record_id": 1}]}', Kind.FLIGHT, 1, None, False),
    ("dumps/groups_1.json", b"{}", Kind.GROUPS, 1, None, False),
    ("dumps/stacks_2.txt", b"", Kind.STACKS, 2, None, False),
    ("dumps/exit_1.json", b"{}", Kind.EXIT, 1, None, False),
    ("dumps/collection.json", b"{}", Kind.COLLECTION, None, None, False),
    ("steps/rank_4.jsonl", b'{"schema":"workbench.steps/1"}\n', Kind.STEPS, 4, None, False),
    (
        "structured_logs/training.global_rank_2.20260504-101010-abc123.jsonl",
        b"{}\n",
        Kind.STRUCTURED_LOG,
        2,
        None,
        False,
    ),
    ("logs/x_y/attempt_0/1/stderr.log", b"", Kind.LOG, None, None, False),
    ("logs/x_y/attempt_0/1/error.json", b"{}", Kind.ERROR, None, None, False),
    ("tb/20260101-0101/events.out.tfevents.1", b"", Kind.TENSORBOARD, None, None, False),
    ("slurm-1.out", b"[rank0]:[titan] 2026-01-01 10:00:00,000 - root", Kind.LOG, None, None, False),
    ("job.txt", b"hello\n\x1b[31mstep:  1  \x1b[32mloss:  8.2", Kind.LOG, None, None, False),
    ("run.json", b"{}", Kind.MANIFEST, None, None, False),
    ("parity.json", b"{}", Kind.MESHES, None, None, False),
]


@pytest.mark.parametrize(
    ("path", "content", "kind", "rank", "step", "is_exit"), LAYOUTS, ids=[one[0] for one in LAYOUTS]
)
def test_layouts(tmp_path, path, content, kind, rank, step, is_exit):
    file = tmp_path / "outputs" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    (found,) = run.discover(tmp_path / "outputs").artefacts
    assert (found.kind, found.rank, found.step, found.exit, found.bytes) == (kind, rank, step, is_exit, len(content))
    assert run.discover(file).artefacts == (found,)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("checkpoint/step-1/.metadata", FLIGHT),
        ("previous/2026/dumps/rank_0", FLIGHT),
        ("dumps/.rank_0.4711", FLIGHT),
        ("notes.txt", b"hello"),
        ("truth.json", b'{"collective_seq_id": 3}'),
        ("model.pt", b"\x80\x02}q\x00."),
        ("broken.json.gz", b"\x1f\x8bnot gzip at all"),
        ("empty", b""),
    ],
)
def test_what_is_passed_by(tmp_path, path, content):
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    with pytest.raises(InputError, match="nothing of a known kind") as caught:
        run.discover(tmp_path)
    assert caught.value.hint.startswith("known are")


def test_nothing_there(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        run.discover(tmp_path / "absent")


def test_too_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "FILES_AT_MOST", 3)
    for number in range(4):
        (tmp_path / f"{number}").touch()
    with pytest.raises(InputError, match="more than 3 files"):
        run.discover(tmp_path)


def test_files_that_vanish_meanwhile_are_passed_by(tmp_path, monkeypatch):
    """A job that is still writing renames its drafts."""
    (tmp_path / "rank_0").write_bytes(FLIGHT)
    (tmp_path / "rank_1").write_bytes(FLIGHT)
    head_of = kinds.head_of

    def renamed(path):
        (tmp_path / "rank_0").unlink(missing_ok=True)
        return head_of(path)

    monkeypatch.setattr(kinds, "head_of", renamed)
    assert [a.rank for a in run.discover(tmp_path).artefacts] == [1]


def test_order_kinds_and_the_newest_step(tmp_path):
    for folder in ("iteration_9", "iteration_10", "iteration_10_exit"):
        for rank in (1, 0):
            file = tmp_path / "memory_snapshot" / folder / f"rank{rank}_memory_snapshot.pickle"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(SNAPSHOT)
    snapshots = run.discover(tmp_path).of(Kind.SNAPSHOT)
    assert [(a.step, a.rank) for a in snapshots[:2]] == [(9, 0), (9, 1)]
    newest = run.newest_step(snapshots)
    assert [(a.rank, a.exit) for a in newest] == [(0, True), (1, True)]
    assert run.newest_step([]) == []


def test_a_manifest_that_cannot_be_read_counts_as_none(tmp_path):
    (tmp_path / "run.json").write_bytes(b"[1")
    assert run.discover(tmp_path).manifest() == {}
    (tmp_path / "run.json").write_bytes(b'{"world_size": 2}')
    assert run.discover(tmp_path).manifest() == {"world_size": 2}


def test_links_to_nowhere_are_passed_by(tmp_path):
    (tmp_path / "rank_0").symlink_to(tmp_path / "absent")
    (tmp_path / "run.json").write_bytes(b"{}")
    assert len(run.discover(tmp_path).artefacts) == 1


def test_links_to_folders_are_not_followed(tmp_path):
    """They may form a ring, or lead to all files of a disk."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_bytes(b"{}")
    (tmp_path / "run" / "again").symlink_to(tmp_path / "run")
    assert len(run.discover(tmp_path / "run").artefacts) == 1


@pytest.fixture
def endless(tmp_path):
    """Fixture: a folder of 1,200 nested folders, removed here because pytest's own clean-up recurses and fails."""
    top = tmp_path / "endless"
    top.mkdir()
    yield top
    subprocess.run(["rm", "-rf", top], check=True)


def test_folders_without_end_are_named(endless):
    """A recursive walk through them would end in a RecursionError."""
    (endless / "train.log").write_text('Traceback (most recent call last):\n  File "a", line 1\nValueError: x\n')
    number = os.open(endless, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=number)
        below = os.open("d", os.O_RDONLY, dir_fd=number)
        os.close(number)
        number = below
    os.close(number)
    found = run.discover(endless)
    assert [artefact.path.name for artefact in found.artefacts] == ["train.log"]
    assert ["nested too deeply" in reason for _, reason in found.unreadable] == [True]


@pytest.mark.parametrize("content", ['{"compilerOptions": {}}', "[1, 2]", "5"])
def test_the_hint_for_other_json_says_what_it_is_not(tmp_path, content):
    (tmp_path / "tsconfig.json").write_text(content)
    with pytest.raises(InputError, match="nothing of a known kind") as caught:
        run.discover(tmp_path / "tsconfig.json")
    assert "it is JSON, but no trace" in caught.value.hint


@pytest.mark.parametrize(("rank", "first"), [(8, {"one": 8}), (-1, {}), (2**63, {}), ("8", {}), (None, {})])
def test_the_first_rank_of_a_launch_is_one_that_a_job_can_have(rank, first):
    assert first_ranks({"launches": {"one": {"first_rank": rank}, "two": 3}}) == first
