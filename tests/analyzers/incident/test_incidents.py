"""Every fault, recorded with our trainer on 2 and 4 ranks: the culprit and the cause are found from the files alone."""

from pathlib import Path

import pytest

from analyzers import incident, run

FIXTURES = Path(__file__).parents[2] / "fixtures"
STEP = 6
"""The step in which each of the faults begins."""

# class, words of the sentence
EXPECTED = {
    "healthy": ("healthy", "The run completed"),
    "oom": ("oom", "forward (trainer/models/llama3/model.py:"),
    "leak": ("leak", "(trainer/models/llama3/model.py:"),
    "stuck": ("host_stuck", "loop_in_python (trainer/faults.py:"),
    "stuck_sleep": ("host_stuck", "(trainer/faults.py:"),
    "stuck_gil": ("host_stuck", "hold_gil (trainer/faults.py:"),
    "skip": ("skipped", "skipped all_reduce #6 of process group fault_0"),
    "mismatch_shape": ("mismatch", "(0 elements, float32) to all_reduce at step 6"),
    "mismatch_type": ("mismatch", "all_gather of 1024 float32 (trainer/faults.py:"),
    "kill": ("dead", "killed by signal 9"),
    "deadlock": ("order_cycle", "all_reduce #1 of process group fault_1"),
    "straggler": ("straggler", "compute"),
    "straggler_data": ("straggler", "data"),
    "straggler_gc": ("straggler", "garbage collection"),
    "nan": ("nonfinite_loss", "NaN or infinite"),
}
HANGS = {"host_stuck", "skipped", "mismatch", "dead", "order_cycle"}


def culprits(name, ranks):
    """Return the culprit ranks; if two ranks use two groups in different orders, either may be the culprit."""
    if name == "healthy":
        return []
    return [0, 1] if (name, ranks) == ("deadlock", 2) else [ranks - 1]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", EXPECTED)
def test_the_culprit_and_the_cause(name, ranks):
    report = incident.analyze(run.discover(FIXTURES / f"{name}_{ranks}ranks"))
    verdict, (kind, words) = report.verdict, EXPECTED[name]
    assert (verdict.kind, verdict.ranks) == (kind, culprits(name, ranks))
    assert words in verdict.sentence
    if name == "healthy":
        assert (verdict.status, report.findings) == ("ok", [])
        return
    assert f"step {STEP}" in verdict.sentence
    root = report.data.chain[0]
    assert (root.kind, root.step) == (kind, STEP)
    first = report.findings[0]
    assert first.id in root.findings
    assert set(verdict.ranks) <= set(first.ranks)
    assert first.title not in first.why
    assert first.next
    if kind in HANGS:
        others = [rank for rank in range(ranks) if rank not in verdict.ranks]
        assert report.data.hang.culprits[0].victims == others
        assert not others or "wait" in verdict.sentence


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("cause", ["compute", "data", "gc"])
def test_what_makes_a_straggler_late(cause, ranks):
    name = "straggler" if cause == "compute" else f"straggler_{cause}"
    report = incident.analyze(run.discover(FIXTURES / f"{name}_{ranks}ranks"))
    assert [(s.rank, s.cause, s.first_step) for s in report.data.steps.stragglers] == [(ranks - 1, cause, STEP)]


def test_only_the_rank_that_lacks_memory_gets_advice_to_save_memory():
    report = incident.analyze(run.discover(FIXTURES / "oom_2ranks"))
    memory, gone = report.findings[:2]
    assert (memory.id, gone.id) == ("memory.oom", "hang.dead")
    assert "use a smaller batch" in memory.next
    # One layer holds nearly all of it, and is needed as a whole when it is computed again.
    assert "Activation checkpointing would not help: layers.0 alone needs" in memory.next
    assert "read the log" not in gone.next
    oom = next(device.oom for device in report.data.memory.devices if device.oom)
    assert oom.device_free_bytes < oom.requested_bytes
