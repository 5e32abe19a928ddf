"""Read from NCCL's own log lines how much device memory its buffers take."""

import time

import pytest

from analyzers import logs
from analyzers.device_memory import GIB, MIB, Holder, KnownMemory, NcclProcess, account_for, process_of, with_nccl
from analyzers.logs.reading.nccl_lines import NcclLines
from tests.analyzers.test_device_memory import MESSAGE
from tests.support.nccl_logs import CASES


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_buffers_are_those_of_the_connections(case, tmp_path):
    log = tmp_path / "job.log"
    log.write_text(case.text)
    found = logs.analyze(log).data.nccl
    assert {one.rank: (one.low_bytes, one.bytes, one.high_bytes) for one in found} == case.ranks


def logged_with_nccl(tmp_path, text):
    """Return the report on a log of rank 3 that ran out of memory, after NCCL's lines `text`."""
    log = tmp_path / "job.log"
    sizes = {"requested": "2.00", "free": "1.00", "process": "76.00", "allocated": "70.00", "others": ""}
    log.write_text(text + MESSAGE.format(rank=3, **sizes) + "\n")
    return logs.analyze(log)


def test_buffers_are_a_part_of_the_device_with_the_setting_that_saves_most(tmp_path):
    """Of 5.18 GiB outside the allocator 2.06 GiB are NCCL's; without NVLS 1.5 GiB of them would be free."""
    report = logged_with_nccl(tmp_path, next(case.text for case in CASES if "NVLS" in case.name))
    parts = {part.holder: part for part in report.data.memory[0].parts}
    assert parts[Holder.NCCL].bytes == 2112 * MIB
    assert sum(part.bytes for part in parts.values()) == pytest.approx(79.33 * GIB, abs=MIB)
    finding = next(finding for finding in report.findings if finding.id == "logs.untracked_memory")
    assert finding.next.startswith("Set NCCL_NVLS_ENABLE=0: without NVLink SHARP its buffers of 1.5 GiB")
    assert any("2.1 GiB in 48 connections of 24 channels" in fact.text for fact in finding.evidence)


def test_without_lines_of_nccl_nothing_changes(tmp_path):
    report = logged_with_nccl(tmp_path, "")
    assert Holder.NCCL not in {part.holder for part in report.data.memory[0].parts}
    assert report.data.nccl == []


def test_buffers_never_exceed_what_is_outside_the_allocator():
    """A log counts communicators that were destroyed since, too."""
    account = account_for(KnownMemory(80 * GIB, 5 * GIB, 70 * GIB, 2 * GIB))
    process = NcclProcess(rank=0, device=0, host="n", pid=1, low_bytes=9 * GIB, bytes=9 * GIB, high_bytes=9 * GIB)
    parts = with_nccl(account, process)
    assert sum(part.bytes for part in parts) == 80 * GIB
    assert all(part.low_bytes <= part.bytes <= part.high_bytes for part in parts)


def test_ranks_of_communicators_without_all_ranks_are_no_ranks_of_the_job(tmp_path):
    """Two groups of two ranks each: both have a rank 0 and a rank 1, on four devices."""
    lines = next(case.text for case in CASES if case.name == "two A100, 2.18, read")
    others = lines.replace(":1000:", ":1002:").replace(":1001:", ":1003:").replace("[0] NCCL", "[2] NCCL")
    (tmp_path / "job.log").write_text(lines + others.replace("[1] NCCL", "[3] NCCL"))
    found = logs.analyze(tmp_path / "job.log").data.nccl
    assert [(one.device, one.rank) for one in found] == [(0, None), (1, None), (2, None), (3, None)]


def test_a_rank_that_was_started_again_is_the_last_process(tmp_path):
    lines = next(case.text for case in CASES if case.name == "two A100, 2.18, read")
    again = lines.replace(":1000:", ":2000:").replace(":1001:", ":2001:")
    (tmp_path / "job.log").write_text(lines + again)
    found = logs.analyze(tmp_path / "job.log").data.nccl
    assert [(one.pid, one.rank) for one in found] == [(1000, 0), (1001, 1), (2000, 0), (2001, 1)]
    assert process_of(found, 1, None).pid == 2001


def test_a_long_word_before_a_line_of_nccl_is_read_at_once():
    """An expression for the host would be tried from each of its letters, for 16 s."""
    began = time.process_time()
    NcclLines().look(b"gpu" * 3_000_000 + b"NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n", 1)
    assert time.process_time() - began < 2
