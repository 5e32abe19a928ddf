"""What-if estimates, compared with simulated jobs without the fault."""

import pytest

from analyzers import run, traces
from benchmarks.traced_job import job
from benchmarks.what_if.traces import CASES, steps_ns

STEPS = 3


@pytest.mark.parametrize("case", CASES[3:5] + CASES[7:], ids=lambda case: case.name)
def test_a_prediction_is_the_time_of_the_job_without_the_fault(tmp_path, case):
    job(tmp_path / "faulty", case.world, STEPS, case.parts, faults=case.faults)
    job(tmp_path / "ideal", case.world, STEPS, case.ideal_parts, faults=case.ideal_faults)
    faulty, ideal = (
        traces.analyze(run.discover(tmp_path / name).of(run.Kind.TRACE)).data for name in ("faulty", "ideal")
    )
    [saved] = [row.saved_ns for row in faulty.what_ifs if (row.change, row.name, row.rank) == case.asked]
    assert steps_ns(faulty) - saved == pytest.approx(steps_ns(ideal), rel=0.05)
