"""Spans, unions and exposed times, compared with a plain computation over every interval."""

import gzip
import json
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzers import traces
from analyzers.traces import views

RELAXED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
CAUSES = ("host", "dependency", "launch", "unexplained")
FIELDS = {
    "span": "span_ns",
    "busy": "busy_ns",
    "compute": "compute_ns",
    "communication": "communication_ns",
    "memory": "memory_ns",
    "exposed": "exposed_communication_ns",
    "overlapped": "overlapped_communication_ns",
    "exposed_memory": "exposed_memory_ns",
}


def truth(made, device=0):
    """Return (start, end, kind) of the device work in a test's trace."""
    kinds = {"gemm": "compute", "ncclDevKernel_AllReduce": "communication"}
    return [
        (e["ts"], e["ts"] + e["dur"], kinds.get(e["name"], "memory"))
        for e in made.events
        if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset") and e["args"]["device"] == device
    ]


def agrees(account, expected):
    return {name: getattr(account, field) for name, field in FIELDS.items()} == expected


@RELAXED
@given(seed=st.integers(0, 10_000), count=st.integers(1, 80))
def test_agrees_with_the_oracle(maker, oracle, seed, count):
    made = maker.busy_day(seed, count, devices=2)
    for account in maker.accounts(made.text()):
        assert agrees(account, oracle(truth(made, account.device)))
        parts = account.compute_ns + account.exposed_communication_ns + account.exposed_memory_ns + account.idle_ns
        assert parts == account.span_ns
        assert sum(getattr(account, f"idle_{cause}_ns") for cause in CAUSES) == account.idle_ns


@RELAXED
@given(seed=st.integers(0, 10_000), after=st.integers(0, 10**18), compact=st.booleans(), late=st.booleans())
def test_order_shift_and_layout_change_nothing(maker, seed, after, compact, late):
    made = maker.busy_day(seed)
    plain = maker.accounts(made.text())
    made.events.reverse()
    moved = maker.accounts(made.text(after=after, compact=compact, late=late, base=False))
    for one, other in zip(plain, moved, strict=True):
        assert [getattr(one, f) for f in FIELDS.values()] == [getattr(other, f) for f in FIELDS.values()]
        assert one.kernels == other.kernels
        assert [s.busy_ns for s in one.step_times] == [s.busy_ns for s in other.step_times]


@RELAXED
@given(seed=st.integers(0, 1000), share=st.floats(0.3, 1), packed=st.booleans())
def test_a_cut_file_is_read_as_far_as_it_goes(maker, oracle, seed, share, packed):
    made = maker.busy_day(seed, 30)
    data = gzip.compress(made.text()) if packed else made.text()
    columns = maker.opened(data[: int(len(data) * share)]).columns
    count = len(columns["start"])
    assert columns["start"].tolist() == [e["ts"] for e in made.events[:count]]
    assert count == len(made.events) or any(problem["kind"] == "cut_off" for problem in columns.meta["problems"])


def test_steps_take_what_was_launched_in_them(maker, oracle):
    made = maker.Tracing()
    made.step(1, 0, 100_000)
    made.step(2, 100_000, 100_000)
    made.kernel("gemm", 150_000, 1_000, launch=(99_000, 500))
    made.kernel("gemm", 160_000, 3_000, launch=(120_000, 500))
    made.kernel("gemm", 170_000, 5_000)
    [account] = maker.accounts(made.text())
    assert [(s.step, s.busy_ns, s.dur_ns) for s in account.step_times] == [(1, 1_000, 100_000), (2, 3_000, 100_000)]
    assert account.unlinked_events == 1
    assert account.kernels[0].total_ns == 9_000
    assert (account.kernels[0].min_ns, account.kernels[0].max_ns, account.kernels[0].mean_ns) == (1_000, 5_000, 3_000)


def test_idle_is_the_hosts_until_the_next_launch_returned(maker):
    made = maker.Tracing()
    made.kernel("gemm", 1_000, 1_000, launch=(0, 100))
    made.kernel("gemm", 9_000, 1_000, launch=(4_000, 1_000))
    [account] = maker.accounts(made.text())
    assert (account.idle_host_ns, account.idle_launch_ns) == (3_000, 4_000)


def test_host_account_of_a_gloo_trace(maker):
    made = maker.Tracing(backend="gloo")
    made.step(1, 0, 100_000)
    made.event("aten::linear", "cpu_op", 1_000, 10_000)
    made.event("aten::addmm", "cpu_op", 2_000, 6_000)
    made.event("c10d::allreduce_", "cpu_op", 12_000, 500)
    made.event("gloo:all_reduce", "user_annotation", 8_000, 20_000, tid=77)
    made.event("aten::copy_", "cpu_op", 9_000, 100, tid=77)
    [account] = maker.accounts(made.text())
    assert (account.source, account.device, account.device_events) == ("cpu", None, 3)
    assert (account.compute_ns, account.communication_ns, account.exposed_communication_ns) == (10_000, 20_000, 17_000)
    spent = {kernel.name: kernel.total_ns for kernel in account.kernels}
    assert spent == {"gloo:all_reduce": 20_000, "aten::addmm": 6_000, "aten::linear": 4_000}


@RELAXED
@given(values=st.lists(st.integers(0, 2**62), min_size=1, max_size=20), base=st.booleans())
def test_times_are_exact_to_the_nanosecond(maker, values, base):
    made = maker.Tracing()
    limit = 2**43 * 1000 if base else 4 * 10**18
    values = [value % limit for value in values]
    if not base and max(values) < 10**17:
        values.append(1_790_857_026_123_456_789)
        values.reverse()
    for value in values:
        made.event("op", "cpu_op", value, 1)
    assert maker.opened(made.text(base=base)).columns["start"].tolist() == values


@pytest.mark.real
def test_real_files_agree_with_the_oracle(real_traces, oracle):
    assert real_traces
    for artefact in real_traces:
        raw = artefact.path.read_bytes()
        document = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw, parse_float=Decimal)
        report = traces.analyze([artefact])
        for account in report.data.ranks:
            if account.source == "device":
                expected = list(device_events(document["traceEvents"], account.device))
                assert account.device_events == len(expected)
                assert agrees(account, oracle(expected)), artefact.path.name
            views.spans(artefact, limit=50)


def device_events(events, device):
    for event in events:
        cat, args = event.get("cat"), event.get("args", {})
        on_mtia = cat == "mtia_ccp_events" and "correlation" in args
        if event.get("ph") != "X" or not (on_mtia or cat in ("kernel", "gpu_memcpy", "gpu_memset")):
            continue
        if int(args.get("device", event["pid"])) == device:
            communicates = "Collective name" in args or any(w in event["name"].lower() for w in ("nccl", "rccl"))
            kind = "memory" if cat.startswith("gpu_") else "communication" if communicates else "compute"
            start = int(Decimal(event["ts"]) * 1000)
            yield start, start + int(Decimal(event["dur"]) * 1000), kind
