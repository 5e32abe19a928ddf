"""Collectives with a root, which only the project's recorders note, and dumps of a job that was restarted."""

import struct

import pytest

from tests.analyzers.hangs.test_last_word import GROUP, SECOND, collection, one_is_missing, side_files


def noted(folder, recorder, rank, roots, *, operation="gather"):
    """Write the roots of the last calls of a rank: the first call is number 5, as older rows were overwritten."""
    rows = [
        struct.pack("<qq40sq64s", number, recorder.start_ns + number, f"{operation} root {root}".encode(), 0, b"0")
        for number, root in enumerate(roots, 5)
    ]
    (folder.path / f"p2p_{rank}.bin").write_bytes(b"".join(rows))


def waiting_in(folder, recorder, operation="gather"):
    """Write dumps of three ranks: rank 1 has completed the second call of a collective, and waits in a barrier."""
    side_files(folder, 3)
    for rank in range(3):
        calls = [recorder.entry(GROUP, number, op=operation, backend="gloo") for number in (1, 2)]
        last = recorder.entry(GROUP, 3, op="barrier", backend="gloo", done=False)
        calls = [*calls, last] if rank == 1 else [calls[0], calls[1] | {"retired": False}]
        folder.write({rank: recorder.dump(calls, {})})
    collection(folder, recorder.start_ns + 9 * SECOND, ["ok"] * 3)


@pytest.mark.parametrize("operation", ["gather", "broadcast"])
def test_the_rank_with_another_root_is_to_blame_and_not_those_that_wait(folder, recorder, operation):
    waiting_in(folder, recorder, operation)
    for rank in range(3):
        noted(folder, recorder, rank, [0, 1 if rank == 2 else 0], operation=operation)
    verdict = folder.report().verdict
    assert (verdict.kind, verdict.ranks) == ("mismatch", [2])
    direction = "to" if operation == "gather" else "from"
    assert f"Rank 2 called {operation} of 4x4 float32 {direction} rank 1 (me/train.py:1)" in verdict.sentence
    assert f"ranks 0-1 called {operation} of 4x4 float32 {direction} rank 0" in verdict.sentence


def test_equal_roots_blame_nobody_for_a_root(folder, recorder):
    waiting_in(folder, recorder)
    for rank in range(3):
        noted(folder, recorder, rank, [0, 0])
    assert folder.report().verdict.kind == "lagging"


def test_roots_that_one_rank_does_not_know_are_left_out(folder, recorder):
    waiting_in(folder, recorder)
    noted(folder, recorder, 0, [0, 1])
    assert folder.report().verdict.kind == "lagging"


def test_dumps_from_before_a_restart_are_not_read_with_the_files_of_the_last_attempt(folder, recorder):
    one_is_missing(folder, recorder)
    assert folder.report().verdict.ranks == [0]
    for rank in range(3):
        groups = {"0": {"desc": "default_pg", "ranks": [0, 1, 2]}}
        content = {"rank": rank, "world_size": 3, "pid": 200 + rank, "attempt": 1, "groups": groups}
        folder.side(f"groups_{rank}.json", content)
    first = folder.path / "collection.json"
    first.write_text(first.read_text().replace('"reason"', '"attempt": 0, "reason"', 1))
    assert folder.report().verdict.ranks == [
        0
    ]  # how the last attempt ended is not known: the earlier hang is all that is
    error = {"rank": 1, "pid": 201, "error": "KeyError", "message": "'lr'", "time_ns": recorder.start_ns + 60 * SECOND}
    folder.side("exit_1.json", error)
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks) == ("dead", [1])
    assert report.data.ranks_with_dump == []
    outdated = "no dump of ranks 0-2: the only one is from before the job's last restart and shows another attempt"
    assert outdated in report.verdict.missing
