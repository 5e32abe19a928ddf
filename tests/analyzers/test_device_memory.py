"""Compute the parts of a device's used memory, and how certain each is."""

import pytest

from analyzers import logs
from analyzers.device_memory import GIB, MIB, Holder, KnownMemory, Source, account_for, is_large, untracked, would_fit
from analyzers.report import Severity

MESSAGE = (
    "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested} GiB. GPU {rank} has a"
    " total capacity of 79.33 GiB of which {free} GiB is free. {others}Including non-PyTorch memory, this process has"
    " {process} GiB memory in use. Of the allocated memory {allocated} GiB is allocated by PyTorch, and 842.00 MiB is"
    " reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


def part(parts, holder):
    return next(part for part in parts if part.holder is holder)


@pytest.mark.parametrize("process", [None, 70 * GIB, 40 * GIB])
@pytest.mark.parametrize("rounded", [False, True])
def test_parts_sum_to_the_device(process, rounded):
    """Whatever is estimated, nothing is counted twice and nothing is left out."""
    known = KnownMemory(80 * GIB, 5 * GIB, 30 * GIB, 2 * GIB, process, 64 * MIB, 128 * MIB, rounded=rounded)
    parts = account_for(known)
    assert sum(part.bytes for part in parts) == 80 * GIB
    assert all(part.low_bytes <= part.bytes <= part.high_bytes for part in parts)
    assert untracked(parts) == 80 * GIB - 5 * GIB - 32 * GIB


def test_what_libraries_take_is_a_range_as_wide_as_that_of_the_context():
    """Both sum to an exact remainder, so if the context has more, the libraries have less."""
    parts = account_for(KnownMemory(40 * GIB, GIB, 30 * GIB, 2 * GIB, 38 * GIB))
    context, libraries = part(parts, Holder.CONTEXT), part(parts, Holder.LIBRARIES)
    assert context.source is Source.TYPICAL
    assert libraries.source is Source.DIFFERENCE
    assert context.low_bytes + libraries.high_bytes == context.high_bytes + libraries.low_bytes == 6 * GIB
    assert part(parts, Holder.OTHER_PROCESSES).bytes == 40 * GIB - GIB - 38 * GIB


def test_rounding_of_the_message_is_in_the_bounds():
    parts = account_for(KnownMemory(40 * GIB, GIB, 30 * GIB, 2 * GIB, 38 * GIB, rounded=True))
    others = part(parts, Holder.OTHER_PROCESSES)
    assert others.high_bytes - others.low_bytes == pytest.approx(3 * 2 * 0.005 * GIB, abs=4)


def test_without_the_figure_of_the_process_others_are_not_told_from_libraries():
    parts = account_for(KnownMemory(40 * GIB, GIB, 30 * GIB, 2 * GIB))
    assert {part.holder for part in parts} == {
        Holder.TENSORS, Holder.CACHE, Holder.CONTEXT, Holder.OUTSIDE, Holder.FREE,
    }  # fmt: skip


def test_request_fits_where_others_give_back_enough():
    parts = account_for(KnownMemory(80 * GIB, GIB, 60 * GIB, GIB, 62 * GIB))
    assert is_large(parts)
    assert would_fit(parts, 17 * GIB)
    assert not would_fit(parts, 19 * GIB)


def logged(tmp_path, **figures):
    log = tmp_path / "job.log"
    log.write_text(MESSAGE.format(**figures) + "\n")
    return logs.analyze(log)


def test_another_process_that_fills_the_device_is_found(tmp_path):
    """A process of an earlier job uses 30 GiB, without which the request would have fitted."""
    report = logged(
        tmp_path, rank=3, requested="18.07", free="2.00", process="47.00", allocated="45.00",
        others="Process 4711 has 30.33 GiB memory in use. ",
    )  # fmt: skip
    finding = next(finding for finding in report.findings if finding.id == "logs.untracked_memory")
    assert (finding.severity, finding.ranks) == (Severity.WARNING, [3])
    assert "nvidia-smi" in finding.next
    assert part(report.data.memory[0].parts, Holder.OTHER_PROCESSES).bytes == pytest.approx(30.33 * GIB, abs=MIB)


def test_buffers_of_nccl_are_found(tmp_path):
    report = logged(
        tmp_path, rank=0, requested="2.00", free="1.00", process="78.20", allocated="68.00", others=""
    )  # fmt: skip
    finding = next(finding for finding in report.findings if finding.id == "logs.untracked_memory")
    assert "NCCL_MAX_CTAS" in finding.next
    assert "would fit" in finding.why


def test_usual_context_and_communicator_are_no_finding(tmp_path):
    report = logged(tmp_path, rank=62, requested="18.07", free="8.41", process="70.91", allocated="68.60", others="")
    assert [finding.id for finding in report.findings] == ["logs.oom"]
    assert len(report.data.memory) == 1


def test_message_without_figures_has_no_account(tmp_path):
    log = tmp_path / "job.log"
    log.write_text("RuntimeError: CUDA error: out of memory\n")
    assert logs.analyze(log).data.memory == []
