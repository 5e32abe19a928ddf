"""The benchmark of what findings cost knows the functions that find something."""

import pytest

from benchmarks.finding_costs import FAILED, costs, recorded, snapshots


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (
            snapshots("plain"),
            "file.pickle",
            {"training_loop.training_loop", "leaks.growing_stacks", "scenarios.savings"},
        ),
        (FAILED, "file.pickle", {"oom.last_oom", "scenarios.savings"}),
        (recorded("gloo"), "trace.json.gz", {"waits.causes", "communication.parts"}),
    ],
    ids=["snapshot", "failed request", "trace"],
)
def test_the_cost_of_each_finding_is_a_part_of_the_whole(tmp_path, kind, name, expected):
    kind.write(tmp_path / name, 5000)
    total, found = costs(kind, tmp_path / name)
    assert expected <= {cost.function for cost in found}
    assert all(0 <= cost.seconds < total for cost in found)
