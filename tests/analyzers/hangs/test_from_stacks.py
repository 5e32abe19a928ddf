"""Test verdicts from stacks alone: which ranks are in which collective at which line, and which are in none."""

from pathlib import Path

import pytest

from analyzers import hangs

TORCH = "/usr/lib/python3.11/site-packages/torch"
HEAD = 'Process {pid}: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread {pid} (idle): "MainThread"\n'
BACKWARD = f"""    pthread_cond_wait (libc.so.6)
    c10d::Reducer::finalize_backward (libtorch_cpu.so)
    _engine_run_backward (torch/autograd/graph.py:979)
    backward ({TORCH}/autograd/__init__.py:395)
    Tensor.backward ({TORCH}/_tensor.py:623)
    <module> (/job/train.py:34)
"""
BARRIER = f"""    barrier ({TORCH}/distributed/distributed_c10d.py:5033)
    wrapper ({TORCH}/distributed/c10d_logger.py:83)
    evaluate (/job/train.py:98)
    <module> (/job/train.py:40)
"""
RECV = f"    recv ({TORCH}/distributed/distributed_c10d.py:2711)\n    <module> (/job/train.py:51)\n"
LOADS = "    load_batch (/job/data.py:8)\n    <module> (/job/train.py:30)\n"
COMPUTES = f"    relu ({TORCH}/nn/functional.py:17)\n    forward (/job/model.py:9)\n    <module> (/job/train.py:33)\n"
DEVICE = "    cuStreamSynchronize (libcuda.so.1)\n    <module> (/job/train.py:36)\n"
STARTS = f"""    _rendezvous_helper ({TORCH}/distributed/rendezvous.py:160)
    init_process_group ({TORCH}/distributed/distributed_c10d.py:1769)
    <module> (/job/train.py:12)
"""


def stacks(folder: Path, *rounds: tuple[str, ...]) -> Path:
    """Write one sample of each rank's stack for each round."""
    for number, texts in enumerate(rounds, 1):
        home = folder if number == 1 else folder / f"round_{number}"
        home.mkdir(exist_ok=True)
        for rank, text in enumerate(texts):
            (home / f"stacks_{rank}.txt").write_text(HEAD.format(pid=100 + rank) + text)
    return folder


@pytest.mark.parametrize(
    ("places", "kind", "ranks", "victims"),
    [
        ((BACKWARD, LOADS, BACKWARD), "host_stuck", [1], [0, 2]),
        ((BACKWARD, COMPUTES, BACKWARD, LOADS), "host_stuck", [1, 3], [0, 2]),
        ((BARRIER, BACKWARD, BACKWARD), "mismatch", [0], [1, 2]),
        ((BARRIER, BACKWARD), "mismatch", [0, 1], []),
        ((RECV, BACKWARD, BACKWARD), "unmatched_p2p", [], [0]),
        ((RECV, BACKWARD), "unmatched_p2p", [1], [0]),
        ((RECV, RECV.replace("recv", "send")), "unmatched_p2p", [0, 1], []),
        ((RECV.replace("recv", "new_group"), BARRIER, BARRIER), "mismatch", [], [0]),
        ((BACKWARD, BACKWARD, BACKWARD), "all_arrived", [0, 1, 2], []),
        ((STARTS, STARTS, LOADS), "host_stuck", [2], [0, 1]),
        ((DEVICE, BACKWARD), "unknown", [], []),
        ((LOADS, COMPUTES), "unknown", [], []),
    ],
)
def test_who_waits_and_who_does_not(tmp_path, places, kind, ranks, victims):
    report = hangs.analyze(stacks(tmp_path, places, places))
    assert (str(report.verdict.kind), report.verdict.ranks) == (kind, ranks)
    assert [culprit.victims for culprit in report.data.culprits] == ([victims] if ranks else [])


def test_both_sides_are_told_with_their_lines(tmp_path):
    verdict = hangs.analyze(stacks(tmp_path, (BARRIER, BACKWARD, BACKWARD))).verdict
    assert verdict.sentence == (
        "Ranks wait in different operations: rank 0 is in barrier (job/train.py:98), ranks 1-2 are in the backward pass"
        " (job/train.py:34)"
    )
    assert "Flight Recorder" in verdict.missing[0]


def test_ranks_that_moved_between_the_samples_do_not_hang(tmp_path):
    """A rank whose second sample lacks only the frames of C++ has not moved."""
    without_native = BACKWARD[BACKWARD.index("    _engine") :]
    same = hangs.analyze(stacks(tmp_path, (BACKWARD, LOADS), (without_native, LOADS)))
    assert same.verdict.kind == "host_stuck"
    moved = hangs.analyze(stacks(tmp_path, (BACKWARD, LOADS), (LOADS, LOADS)))
    assert (moved.verdict.kind, str(moved.verdict.status)) == ("healthy", "ok")


def test_the_next_step_names_the_stuck_process(tmp_path):
    """The number of the process is in the stack that py-spy wrote."""
    report = hangs.analyze(stacks(tmp_path, (BACKWARD, LOADS, BACKWARD)))
    assert "load_batch (job/data.py:8)" in report.findings[0].next
    assert "`py-spy dump --locals --pid 101`" in report.findings[0].next
