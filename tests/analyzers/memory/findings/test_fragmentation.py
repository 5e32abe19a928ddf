"""Fragmentation is judged at the failed request or at the peak, not at the end of the recording."""

import pytest

from analyzers import memory

MIB = 1 << 20
SEGMENT = 20 * MIB


def segments_of(snapshot, size=SEGMENT):
    """Return the snapshot with its large segment cut into segments of `size` bytes; no live block crosses a border."""
    [whole] = snapshot["segments"]
    cut = {}
    for block in whole["blocks"]:
        at, end = block["address"], block["address"] + block["size"]
        while at < end:
            start = whole["address"] + (at - whole["address"]) // size * size
            stop = min(end, start + size)
            part = block | {"address": at, "size": stop - at, "requested_size": min(block["requested_size"], stop - at)}
            cut.setdefault(start, []).append(part)
            at = stop
    snapshot["segments"] = [
        whole | {"address": start, "total_size": sum(b["size"] for b in blocks), "blocks": blocks}
        for start, blocks in sorted(cut.items())
    ]
    return snapshot


def filled(maker, count=20, held=12 * MIB, gap=8 * MIB):
    """Return `count` segments of 20 MiB, in each of which `held` bytes are in use and the next `gap` bytes are free."""
    made = maker.Recording(segment_bytes=count * (held + gap))
    pairs = [(made.alloc(held), made.alloc(gap) if gap else None) for _ in range(count)]
    return made, [one for one, _ in pairs], [other for _, other in pairs if other]


def report_of(maker, made):
    return memory.analyze([maker.save(segments_of(made.snapshot()))])


def finding(report):
    return next((one for one in report.findings if one.id == "memory.fragmentation"), None)


def test_a_request_that_free_pieces_would_have_served(maker):
    made, _, gaps = filled(maker)
    for address in gaps:
        made.free(address)
    made.oom(100 * MIB, 2 * MIB, [])
    told = finding(report_of(maker, made))
    assert told.severity == "error"
    assert "100.0 MiB" in told.title + told.why
    assert "160.0 MiB" in told.title + told.why
    assert "8.0 MiB" in told.title + told.why
    assert "expandable_segments:True (on AMD GPUs: PyTorch 2.12 and ROCm 7 or later)" in told.next


def test_what_is_freed_after_the_failure_does_not_matter(maker):
    """At the failure all memory was in use; then the handler of the exception freed every second tensor."""
    made, _, gaps = filled(maker)
    made.oom(100 * MIB, 2 * MIB, [])
    for address in gaps:
        made.free(address)
    assert finding(report_of(maker, made)) is None


def test_fragmentation_at_the_failure_counts_though_all_was_freed_later(maker):
    made, kept, gaps = filled(maker)
    for address in gaps:
        made.free(address)
    made.oom(100 * MIB, 2 * MIB, [])
    for address in kept:
        made.free(address)
    report = report_of(maker, made)
    assert finding(report).severity == "error"
    assert report.verdict.kind == "oom"


def test_pieces_that_are_too_few_are_not_the_cause(maker):
    """There were 16 MiB of free pieces, which would not have been enough for a request of 100 MiB either."""
    made, _, gaps = filled(maker)
    for address in gaps[:2]:
        made.free(address)
    made.oom(100 * MIB, 2 * MIB, [])
    assert finding(report_of(maker, made)) is None


def test_free_memory_of_the_device_counts_with_the_pieces(maker):
    """Expandable segments could have joined 80 MiB in pieces and 30 MiB of the device."""
    made, _, gaps = filled(maker)
    for address in gaps[:10]:
        made.free(address)
    made.oom(100 * MIB, 30 * MIB, [])
    assert finding(report_of(maker, made)).severity == "error"


def test_what_was_freed_after_a_tight_peak_is_no_finding(maker):
    made, _, gaps = filled(maker)
    for address in gaps:
        made.free(address)
    report = report_of(maker, made)
    assert finding(report) is None
    assert report.verdict.kind == "healthy"


def test_free_pieces_at_the_peak_are_a_warning(maker):
    """At the peak 40 % of the reserved memory is in free pieces, because one small tensor needed a new segment."""
    made, _, gaps = filled(maker, held=16 * MIB, gap=4 * MIB)
    for address in gaps:
        made.free(address)
    made.alloc(SEGMENT)
    made.segment_bytes += SEGMENT
    report = report_of(maker, made)
    assert finding(report) is None or finding(report).severity != "error"


def test_many_free_pieces_at_the_peak_are_a_warning(maker):
    made, _, gaps = filled(maker)
    for address in gaps:
        made.free(address)
    for _ in range(10):
        made.alloc(SEGMENT)
    made.segment_bytes += 10 * SEGMENT
    told = finding(report_of(maker, made))
    assert told.severity == "warning"
    assert "160.0 MiB" in told.title
    assert "peak" in told.title


def test_a_state_without_a_history_is_unknown_not_fragmented(maker):
    made = maker.Recording(segment_bytes=400 * MIB)
    for _ in range(20):
        made.older(12 * MIB)
        made.older(8 * MIB)
    for address in [a for a, (held, _) in made.live.items() if held == 8 * MIB]:
        del made.live[address]
    report = report_of(maker, made)
    assert finding(report) is None
    assert report.verdict.kind == "unknown"
    assert "240.0 MiB" in report.verdict.sentence
    assert "healthy" not in report.verdict.sentence
    assert "nothing failed" not in report.verdict.sentence


def test_a_history_of_next_to_nothing_is_a_state(maker):
    made = maker.Recording(segment_bytes=400 * MIB)
    made.older(300 * MIB)
    made.alloc(512)
    assert report_of(maker, made).verdict.kind == "unknown"


@pytest.mark.parametrize("rounds", [1, 5])
def test_state_that_every_step_replaces_is_not_late(maker, rounds):
    """`state["m"] = beta * state["m"] + ...` allocates new moments in each step and frees the old ones."""
    site = [maker.frame("step", "train/adamw.py", 9), maker.frame("step", "site-packages/torch/optim/optimizer.py", 4)]
    made = maker.Recording()
    old = [made.older(3 * MIB, site) for _ in range(20)]
    weights = made.older(30 * MIB)
    for number in range(1, rounds + 1):
        made.note(f"step#{number}", "START")
        passing = made.alloc(8 * MIB)
        made.free(passing)
        new = []
        for address in old:
            new.append(made.alloc(3 * MIB, site))
            made.free(address)
        old = new
        made.note(f"step#{number}", "END")
    assert weights
    report = memory.analyze([maker.save(made.snapshot())])
    assert "memory.late_state" not in {one.id for one in report.findings}
