"""Of many memory snapshots, those of the ranks that failed are read, and the last ones of others beside them."""

import pickle

import pytest

from analyzers.incident.analyzer_reports import MOST_SNAPSHOTS, snapshots_to_read
from analyzers.run import discover

EMPTY = pickle.dumps({"segments": [], "device_traces": [[]]}, protocol=4)


def run_with(folder, ranks, steps, failed=()):
    for step in steps:
        for rank in range(ranks):
            place(folder, f"iteration_{step}", rank)
    for rank in failed:
        place(folder, f"iteration_{steps[-1]}_exit", rank)
    return discover(folder)


def place(folder, name, rank):
    path = folder / "memory_snapshot" / name / f"rank{rank}_memory_snapshot.pickle"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(EMPTY)


@pytest.mark.parametrize(("ranks", "steps"), [(4, (10, 20)), (16, (10, 20))])
def test_few_snapshots_are_all_read(tmp_path, ranks, steps):
    assert len(snapshots_to_read(run_with(tmp_path, ranks, steps))) == ranks * len(steps)


def test_of_many_those_of_the_last_step_are_read(tmp_path):
    read = snapshots_to_read(run_with(tmp_path, 20, (10, 20)))
    assert {snapshot.step for snapshot in read} == {20}


def test_beside_those_of_failed_ranks_the_last_ones_of_others_are_read(tmp_path):
    read = snapshots_to_read(run_with(tmp_path, 40, (10, 20), failed=(3,)))
    assert [snapshot.rank for snapshot in read if snapshot.exit] == [3]
    others = [snapshot for snapshot in read if not snapshot.exit]
    assert len(others) == MOST_SNAPSHOTS - 1
    assert {snapshot.step for snapshot in others} == {20}
    assert all(snapshot.rank != 3 for snapshot in others)
