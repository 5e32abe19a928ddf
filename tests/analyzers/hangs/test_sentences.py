"""The sentences about a hang: each class and each reason has one."""

from itertools import product

import pytest

from analyzers.hangs.classify.cause import Cause, HostState, RanksInOp
from analyzers.hangs.findings.explanations import detail, why
from analyzers.hangs.findings.next_steps import next_step
from analyzers.hangs.findings.titles import title, with_victims
from analyzers.hangs.model import Culprit, Frame, HangClass, Reason
from analyzers.hangs.reading.exits import Ending, RankEnd
from analyzers.hangs.reading.side_formats import ExitFile, ProcessState

BARRIER, BACKWARD = Frame("save", "/job/train.py", 98), Frame("step", "/job/train.py", 22)


CAUSES = [kind for kind in HangClass if kind is not HangClass.HEALTHY]


def ranks_in(ranks, operation, shape, line):
    return RanksInOp(ranks, operation, shape, line, group="dp", seq=6, p2p=False)


def cause_of(kind, reason, *, frames=(BARRIER,), **facts):
    culprit = Culprit(
        ranks=[0], kind=kind, group="1", group_desc="dp", seq=6, operation="all_reduce", frames=list(frames),
        victims=[1, 2, 3], step=4,
    )  # fmt: skip
    odd, usual = ranks_in([0], "barrier", "", BARRIER), ranks_in([1, 2, 3], "all_reduce", "8x8 float32", BACKWARD)
    return Cause(culprit, reason, **{"sides": (usual, odd), "issued": odd, "expected": usual, "members": 4, **facts})


def test_a_rank_that_is_alone_in_its_group_has_not_joined_as_all():
    alone = title(cause_of(HangClass.ALL_ARRIVED, Reason.ALL_JOINED))
    assert alone.startswith("rank 0 has joined, as the only member, ")


@pytest.mark.parametrize(("kind", "reason"), list(product(CAUSES, Reason)))
def test_every_class_and_reason_has_sentences(kind, reason):
    cause = cause_of(kind, reason)
    for text in (title(cause), with_victims(cause), why(cause), next_step(cause)):
        assert text
        assert "None" not in text
        assert "{" not in text
    assert "rank 0" in title(cause)
    assert isinstance(detail(cause), str)


def test_both_sides_of_a_mismatch_with_their_lines():
    cause = cause_of(HangClass.MISMATCH, Reason.MAJORITY)
    assert title(cause) == (
        "rank 0 called barrier (job/train.py:98) at step 4 in collective #6 of process group dp,"
        " while ranks 1-3 called all_reduce of 8x8 float32 (job/train.py:22)"
    )
    assert why(cause).startswith("the ranks called different operations, so none of them can complete.")
    assert why(cause).endswith("Rank 0 is named as the cause because the other 3 of 4 ranks agree with each other")
    assert next_step(cause) == "compare job/train.py:22 with job/train.py:98, and make every rank take the same branch"


def test_a_mismatch_of_shapes_names_both_shapes():
    sides = (
        ranks_in([1, 2, 3], "all_reduce", "1024 float32", BACKWARD),
        ranks_in([0], "all_reduce", "0 float32", BACKWARD),
    )
    cause = cause_of(HangClass.MISMATCH, Reason.MAJORITY, sides=sides, issued=sides[1], expected=sides[0])
    assert title(cause) == (
        "rank 0 passed an empty tensor (0 elements, float32) to all_reduce at step 4, while ranks 1-3 passed a tensor"
        " of 1024 float32, in collective #6 of process group dp (job/train.py:22)"
    )


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (
            RankEnd(0, Ending.EXIT_CODE, exit_code=-9),
            "rank 0 died at step 4 before all_reduce #6 of process group dp: killed by signal 9 (SIGKILL)",
        ),
        (
            RankEnd(0, Ending.NO_ERROR),
            (
                "rank 0 ended normally at step 4 before all_reduce #6 of process group dp, while the other ranks went"
                " on in step (job/train.py:22)"
            ),
        ),
        (
            RankEnd(0, Ending.PROCESS_EXITED),
            "rank 0 exited at step 4 before all_reduce #6 of process group dp without an error message",
        ),
        (
            RankEnd(0, Ending.EXCEPTION, exit_file=ExitFile(0, error="ValueError", message="no", traceback=[BACKWARD])),
            "rank 0 died at step 4 before all_reduce #6 of process group dp: ValueError: no in step (job/train.py:22)",
        ),
        (None, "rank 0 probably died at step 4 before all_reduce #6 of process group dp: it left no dump"),
    ],
)
def test_how_a_rank_ended(end, expected):
    reason = Reason.ENDED if end else Reason.NO_DUMP
    assert title(cause_of(HangClass.DEAD, reason, frames=(), end=end)) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (HostState(), "find out why job/train.py:98 does not return"),
        (HostState(holds_gil=True), "find out why the C call at job/train.py:98 does not return, as it holds the GIL"),
        (HostState(process=ProcessState.STOPPED), "continue the process with `kill -CONT PID`"),
        (HostState(process=ProcessState.IN_KERNEL), "check the storage and the drivers of the host"),
    ],
)
def test_what_to_do_about_a_stuck_rank(host, expected):
    assert next_step(cause_of(HangClass.HOST_STUCK, Reason.RUNS_OWN_CODE, host=host)).startswith(expected)
