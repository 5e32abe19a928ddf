"""The sentences about a hang: each class and each reason has one."""

from dataclasses import replace
from itertools import product

import msgspec
import pytest

from analyzers.hangs.classify.cause import Cause, HostState, Process, RanksInOp
from analyzers.hangs.findings.catalogue import detail, next_step, title, why, with_victims
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
        (
            None,
            (
                "rank 0 is missing at step 4 in all_reduce #6 of process group dp: it left no dump, so it died or could"
                " not write one"
            ),
        ),
    ],
)
def test_how_a_rank_ended(end, expected):
    reason = Reason.ENDED if end else Reason.NO_DUMP
    assert title(cause_of(HangClass.DEAD, reason, frames=(), end=end)) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (
            HostState(),
            "find out which condition ends the loop in save (job/train.py:98), or what the call on this line",
        ),
        (HostState(holds_gil=True), "look at the C function that job/train.py:98 calls: it does not return and holds"),
        (HostState(process=ProcessState.STOPPED), "continue the process with `kill -CONT 4711` on host node-1, and"),
        (HostState(process=ProcessState.IN_KERNEL), "check the storage and the drivers of the host"),
    ],
)
def test_what_to_do_about_a_stuck_rank(host, expected):
    cause = cause_of(HangClass.HOST_STUCK, Reason.RUNS_OWN_CODE, host=host, process=Process(4711, "node-1"))
    assert next_step(cause).startswith(expected)


@pytest.mark.parametrize(
    ("process", "command"),
    [
        (Process(4711, "node-1"), "`py-spy dump --locals --pid 4711` on host node-1 shows"),
        (Process(4711), "`py-spy dump --locals --pid 4711` shows"),
        (Process(), "`py-spy dump --locals --pid PID` on its host shows"),
    ],
)
def test_the_command_names_the_process_and_host_that_were_recorded(process, command):
    assert command in next_step(cause_of(HangClass.HOST_STUCK, Reason.RUNS_OWN_CODE, process=process))


LIB = "/usr/lib/python3.11"
TORCH = f"{LIB}/site-packages/torch"


@pytest.mark.parametrize(
    ("calls", "advice", "options"),
    [
        ([("wait", f"{LIB}/threading.py"), ("get", f"{LIB}/queue.py")], "put items into the queue that save", ""),
        ([("wait", f"{LIB}/threading.py")], "release the lock, or set the event, for which save", ""),
        ([("join", f"{LIB}/threading.py")], "find out why the thread does not end for which save", ""),
        ([("result", f"{LIB}/concurrent/futures/_base.py")], "what the tasks do for which save", ""),
        ([("select", f"{LIB}/selectors.py"), ("wait", f"{LIB}/subprocess.py")], "why the command", "--subprocesses "),
        ([("poll", f"{LIB}/queue.py"), ("__next__", f"{TORCH}/utils/data/dataloader.py")], "loader", "--subprocesses "),
        ([("readinto", f"{LIB}/socket.py"), ("request", f"{LIB}/http/client.py")], "which server does not", ""),
        ([("interaction", f"{LIB}/pdb.py")], "remove the breakpoint or prompt in save (job/train.py:98)", ""),
        ([("search", f"{LIB}/re/__init__.py")], "look at the pattern that save", ""),
        ([("relu", f"{TORCH}/nn/functional.py")], "what relu (nn/functional.py:7) waits", "--locals "),
        ([("pthread_cond_wait", "libc.so.6")], "which condition ends the loop in save", "--locals "),
    ],
)  # fmt: skip
def test_what_a_stuck_rank_waits_for(calls, advice, options):
    frames = (*(Frame(name, file, 7) for name, file in calls), BARRIER)
    cause = cause_of(HangClass.HOST_STUCK, Reason.RUNS_OWN_CODE, frames=frames, process=Process(4711, "node-1"))
    assert advice in next_step(cause)
    assert f"`py-spy dump {options}--pid 4711` on host node-1" in next_step(cause)


def test_a_rank_that_holds_the_gil_is_asked_for_its_c_function():
    host, process = HostState(holds_gil=True), Process(4711, "node-1")
    step = next_step(cause_of(HangClass.HOST_STUCK, Reason.RUNS_OWN_CODE, host=host, process=process))
    assert step.endswith("while it hangs, `py-spy dump --native --pid 4711` on host node-1 names it")


def test_a_lambda_has_no_loop():
    cause = cause_of(HangClass.HOST_STUCK, Reason.RUNS_OWN_CODE, frames=[Frame("<lambda>", "/job/train.py", 98)])
    assert next_step(cause).startswith("find out what the call in <lambda> (job/train.py:98) waits for;")


def test_a_rank_without_a_dump_may_still_be_asked_for_its_stack():
    cause = cause_of(HangClass.DEAD, Reason.NO_DUMP, frames=(), process=Process(4711, "node-1"))
    assert "if its process is still alive, `py-spy dump --pid 4711` on host node-1 shows" in next_step(cause)


@pytest.mark.parametrize(
    ("message", "recorder"),
    [
        ("DefaultCPUAllocator: can't allocate memory", "workbench.recorders.MemoryRecorder"),
        ("CUDA out of memory.", "torch.cuda.memory._record_memory_history()"),
    ],
)
def test_the_recorder_that_sees_the_memory_is_named(message, recorder):
    """PyTorch's own recorder shows nothing of a CPU."""
    exit_file = ExitFile(0, error="RuntimeError", message=message, out_of_memory=True, traceback=[BACKWARD])
    end = RankEnd(0, Ending.EXCEPTION, exit_file=exit_file)
    cause = cause_of(HangClass.DEAD, Reason.ENDED, frames=(), end=end)
    culprit = msgspec.structs.replace(cause.culprit, out_of_memory=True)
    cause = replace(cause, culprit=culprit)
    assert recorder in next_step(cause)
    assert ("host memory" in why(cause)) == ("CPU" in message)


@pytest.mark.parametrize(("backend", "is_device"), [("gloo", False), ("nccl", True)])
def test_no_device_is_blamed_on_the_cpu(folder, recorder, backend, is_device):
    """All ranks are in one collective that does not complete."""
    dumps = {}
    for rank in range(2):
        entries = [recorder.entry(("0", "default_pg"), 1, backend=backend, done=False)]
        dumps[rank] = recorder.dump(entries, {"0": ("default_pg", [0, 1])})
    finding = folder.write(dumps).report().findings[0]
    assert finding.id == "hang.all_arrived"
    assert ("xid" in finding.next) == is_device


@pytest.mark.parametrize(
    ("size", "told"), [((5, 1000), "Give rank 2 as many rows at"), ((8, 999), "Print the tensor's")]
)
def test_a_smaller_last_batch_is_to_be_dropped_or_padded(folder, recorder, size, told):
    dumps = {}
    for rank in range(3):
        shape = size if rank == 2 else (8, 1000)
        last = recorder.entry(("0", "default_pg"), 1, op="all_gather", backend="gloo", done=False, size=shape)
        dumps[rank] = recorder.dump([last], {})
    finding = folder.write(dumps).report().findings[0]
    assert (finding.id, finding.ranks) == ("hang.mismatch", [2])
    assert finding.next.startswith(told)
