"""The sentence on the ranks that wait for a culprit says which of them are in the operation that it names."""

import pytest

from analyzers.hangs import Culprit, HangClass, Wait
from analyzers.incident.chain import Waiting
from analyzers.incident.report import waiting_text

WAIT = Wait(rank=0, waits_for=[3], group="1", seq=62, operation="all_reduce")
CULPRIT = Culprit(ranks=[3], kind=HangClass.HOST_STUCK, victims=[0, 1, 2])


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        (Waiting(CULPRIT, WAIT, "tp", 3), "ranks 0-2 wait in all_reduce #62 of process group tp for it"),
        (Waiting(CULPRIT, WAIT, "tp", 1), "ranks 0-2 wait for it, 1 of them in all_reduce #62 of process group tp"),
        (Waiting(CULPRIT), "ranks 0-2 wait for it"),
    ],
)
def test_it_names_the_operation_of_those_that_are_in_it(waiting: Waiting, expected: str) -> None:
    assert waiting_text(waiting) == expected
