"""Comparison of the memory of several ranks."""

from pathlib import Path

from analyzers import memory
from analyzers.memory import report
from analyzers.memory.snapshot import CATEGORIES
from analyzers.run import Kind, discover

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_the_snapshot_of_the_failure_speaks_for_its_rank():
    """Rank 1 wrote a snapshot after step 5 and one when it failed in step 6; both are named after step 5."""
    devices = memory.analyze(discover(FIXTURES / "oom_2ranks").of(Kind.SNAPSHOT)).data.devices
    table = report.matrix(devices)
    assert table["rank"].tolist() == [1, 0]
    [failed] = [device for device in devices if device.oom]
    assert table["peak"].iloc[0] == failed.peak_allocated_bytes
    assert table[list(CATEGORIES)].sum(axis=1).tolist() == table["peak"].tolist()
