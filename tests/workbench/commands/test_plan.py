"""Test the report of a plan if nothing fits, or if nothing was found in time."""

import pytest

from analyzers.report import Status
from workbench.commands.plan import too_large, verdict
from workbench.trainer_answers import PlanData


def data(*, complete):
    return PlanData(
        world_size=2, model="llama3 debugmodel", parameters=1, limit_bytes=1 << 30, margin=0.1, device="cpu",
        candidates=9, rehearsed=4, complete=complete, seconds=1.0, plans=[], next_larger=None, smallest_bytes=2 << 30,
    )  # fmt: skip


@pytest.mark.parametrize(("complete", "status"), [(True, Status.ERROR), (False, Status.UNKNOWN)])
def test_nothing_found_in_time_is_unknown(complete, status):
    """Only a search that was completed shows that nothing fits."""
    found = data(complete=complete)
    findings = [too_large(found)] if complete else []
    assert verdict(found, findings).status is status
