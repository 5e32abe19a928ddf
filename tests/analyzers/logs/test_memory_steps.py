"""The next step where device memory ran out, from the sizes and the traceback in a log."""

import pytest

from analyzers import logs
from benchmarks.advice.on_device.__main__ import faults
from benchmarks.advice.on_device.later_cases import LATER
from benchmarks.advice.on_device.messages import MAIN, MESSAGES, STEP, Message, out_of_memory, traceback
from wild import recorded

CASES = [case for case in (*MESSAGES, *LATER) if isinstance(case, Message)]


def report_on(folder, text):
    path = folder / "train.log"
    path.write_text(text)
    return logs.analyze(path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_first_advice_is_what_an_expert_would_say(tmp_path, case):
    report = report_on(tmp_path, case.text)
    findings = [{"title": f.title, "next": f.next, "why": f.why, "severity": f.severity} for f in report.findings]
    assert faults(case, report.verdict.status, findings) == []


@pytest.mark.parametrize(("unused", "advised"), [("6.00 GiB", False), ("9.00 GiB", True)])
def test_memory_in_pieces_comes_first_where_it_is_a_tenth_of_what_is_reserved(tmp_path, unused, advised):
    error = out_of_memory("2.00 GiB", "79.15 GiB", "11.06 MiB", "79.13 GiB", "68.00 GiB", unused)
    [finding] = [f for f in report_on(tmp_path, traceback(MAIN, STEP, error=error)).findings if f.id == "logs.oom"]
    assert ("expandable_segments" in finding.next) is advised


def test_the_loss_in_pieces_comes_first_in_a_public_log():
    """Four ranks failed with a request for 18.84 GiB in the cross-entropy of transformers."""
    [log] = [path for path in recorded("logs").iterdir() if path.name == "ve_oom.txt"]
    [finding] = [f for f in logs.analyze(log).findings if f.id == "logs.oom"]
    assert finding.next.startswith("Compute the loss in pieces of the sequence")
    assert "use_liger_kernel=True" in finding.next


def test_the_number_of_a_rank_shows_that_there_are_others(tmp_path):
    text = out_of_memory("18.00 GiB", "79.33 GiB", "8.41 GiB", "70.91 GiB", "68.60 GiB", "842.11 MiB")
    [finding] = [f for f in report_on(tmp_path, f"[rank62]: {text}\n").findings if f.id == "logs.oom"]
    assert finding.next.startswith("First compare rank 62 with the other ranks")
