"""Make a cause that shows an entry on hangs: the pages of the catalogue and tests write their sentences for it."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from analyzers.hangs.classify.cause import Cause, HostState, MemoryGrowth, Process, RanksInOp
from analyzers.hangs.findings.catalogue import entry_of
from analyzers.hangs.findings.ended import UNUSED_PARAMETERS
from analyzers.hangs.findings.entry import HangFailure
from analyzers.hangs.model import Culprit, Frame, HangClass, Reason
from analyzers.hangs.reading.exits import Ending, RankEnd
from analyzers.hangs.reading.side_formats import ExitFile, ProcessState, ThreadError
from analyzers.node_health import LostNode

_LOAD, _STEP, _SAVE = Frame("load", "data/text.py", 41), Frame("step", "train.py", 22), Frame("save", "train.py", 98)
_PROCESS = Process(4711, "node-2")


def _side(ranks: list[int], operation: str, shape: str, line: Frame) -> RanksInOp:
    is_message = operation.startswith(("send", "recv"))
    return RanksInOp(ranks, operation, shape, line, group="dp", seq=112, p2p=is_message)


_OTHERS = _side([0, 1, 2], "all_reduce", "8x8 float32", _STEP)
_SHORTER = _side([3], "all_reduce", "4x8 float32", _STEP)
_ODD = _side([3], "barrier", "", _SAVE)
_SEND, _RECV = _side([2], "send to rank 3", "8x8 float32", _STEP), _side([3], "recv from rank 2", "8x8 float16", _SAVE)
_OF_TWO = (
    Reason.DIFFERENT_HALVES, Reason.DIFFERENT_TAGS, Reason.BOTH_LACK_OTHER_HALF, Reason.BOTH_HALVES_ISSUED,
)  # fmt: skip
"""The reasons for which both ranks of a message are named."""


def example(entry: HangFailure) -> Cause | None:
    """Return a cause in which rank 3 shows an entry; None if none of the causes that are tried shows it."""
    return next((cause for cause in _causes(entry) if entry_of(cause) is entry), None)


def _causes(entry: HangFailure) -> Iterator[Cause]:
    """Yield causes among which one shows the entry; most of them show others."""
    usual = Reason.RUNS_OWN_CODE if entry.kind is HangClass.HOST_STUCK else Reason.ISSUED_LATER_OPERATIONS
    for reason in entry.reasons or (usual, Reason.ABORTED, *Reason):
        culprit = Culprit(
            ranks=[0, 1, 2, 3] if entry.kind is HangClass.ALL_ARRIVED else [3],
            kind=entry.kind or HangClass.SKIPPED,
            group="1",
            group_desc="dp",
            seq=112,
            operation="all_reduce",
            frames=[_LOAD],
            victims=[0, 1, 2],
            step=6,
        )
        plain = Cause(culprit, reason, members=4, completed=3, elements=(64, 32), process=_PROCESS)
        if entry.kind is HangClass.UNMATCHED_P2P or reason in _OF_TWO:
            ranks = [2, 3] if reason in _OF_TWO else [3]
            message = msgspec.structs.replace(culprit, ranks=ranks, operation="send to rank 3", victims=[0, 1])
            yield replace(plain, culprit=message, sides=(_SEND, _RECV), issued=_RECV, expected=_SEND)
        yield from _variants(replace(plain, sides=(_OTHERS, _SHORTER), issued=_SHORTER, expected=_OTHERS))
        yield from _variants(replace(plain, sides=(_OTHERS, _ODD), issued=_ODD, expected=_OTHERS))
        yield replace(plain, sides=(_OTHERS, _ODD))


def _variants(cause: Cause) -> Iterator[Cause]:
    """Yield a cause, and causes with another end or state of the process."""
    yield replace(cause, issued=None, sides=()) if cause.reason is Reason.ABORTED else cause
    yield replace(cause, node=LostNode("node-2", (3,), 1_700_000_000_000_000_000))
    for state in ProcessState:
        yield replace(cause, host=HostState(process=state))
    error = ThreadError(rank=3, error="KeyError", message="'labels'", traceback=[_LOAD], thread="loader")
    yield replace(cause, host=HostState(thread_error=error))
    yield replace(cause, host=HostState(task_error=error))
    yield replace(cause, host=HostState(holds_gil=True))
    yield replace(cause, end=RankEnd(3, Ending.NO_ERROR))
    yield replace(cause, end=RankEnd(3, Ending.EXIT_CODE, exit_code=-9))
    yield replace(cause, end=RankEnd(3, Ending.EXIT_CODE, exit_code=-9), growth=MemoryGrowth(2 << 30, 50 << 30, 40))
    for name, message, is_oom in (
        ("OutOfMemoryError", "CUDA out of memory", True),
        ("RuntimeError", f"{UNUSED_PARAMETERS} before starting a new one", False),
        ("KeyError", "'labels'", False),
    ):
        file = ExitFile(rank=3, error=name, message=message, out_of_memory=is_oom, traceback=[_LOAD])
        yield replace(
            cause,
            culprit=msgspec.structs.replace(cause.culprit, error=name, out_of_memory=is_oom),
            end=RankEnd(3, Ending.EXCEPTION, exit_file=file),
        )
