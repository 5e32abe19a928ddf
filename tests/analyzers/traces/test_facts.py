"""Each result for a rank, compared with a plain computation or checked on a trace made for it."""

import gzip
import json
import re
from collections import defaultdict
from decimal import Decimal
from statistics import median, pstdev

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzers.traces.launches import LATENCY_NS

RELAXED = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
GEMM, NCCL = "gemm", "ncclDevKernel_AllReduce"


@pytest.fixture
def one(maker):
    def account(made):
        [found] = maker.accounts(made.text())
        return found

    return account


def events_of(made):
    """Return (name, start, end, launch start, launch end) of device work; launch times are None without a launch."""
    calls = {e["args"]["correlation"]: e for e in made.events if e["cat"] == "cuda_runtime"}
    for e in made.events:
        if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            call = calls.get(e["args"]["correlation"])
            launch = (call["ts"], call["ts"] + call["dur"]) if call else (None, None)
            yield e["name"], e["ts"], e["ts"] + e["dur"], *launch


def plain_idle(events):
    """Return the causes of idle gaps, by a plain loop; of several kernels after a gap, one with a known launch
    counts.
    """
    parts = dict.fromkeys(("host", "dependency", "launch", "unexplained"), 0)
    lasting = sorted((e for e in events if e[2] > e[1]), key=lambda e: e[1])
    reach = lasting[0][2] if lasting else 0
    for event in lasting:
        start, begin = event[1], reach
        if start > begin:
            behind = [e for e in events if e[1] == start]
            launch_end = min((e[4] for e in behind if e[4] is not None), default=None)
            known = next((e[4] for e in behind if e[4] is not None), None)
            parts_of_gap(parts, begin, start, known if known is not None else launch_end)
        reach = max(reach, event[2])
    return parts


def parts_of_gap(parts, begin, start, launch_end):
    if launch_end is None:
        parts["unexplained"] += start - begin
    elif launch_end <= begin:
        parts["dependency"] += start - begin
    else:
        returned = min(launch_end, start)
        parts["host"] += returned - begin
        parts["launch"] += min(start - returned, LATENCY_NS)
        parts["unexplained"] += max(start - returned - LATENCY_NS, 0)


@RELAXED
@given(seed=st.integers(0, 10_000), count=st.integers(1, 60))
def test_idle_launches_and_statistics_agree_with_plain_loops(maker, seed, count):
    made = maker.busy_day(seed, count)
    [account] = maker.accounts(made.text())
    events = list(events_of(made))
    assert {part: getattr(account, f"idle_{part}_ns") for part in plain_idle(events)} == plain_idle(events)
    by_name = defaultdict(list)
    for name, start, end, *_ in events:
        by_name[name].append(end - start)
    for kernel in account.kernels:
        spent = by_name[kernel.name]
        assert (kernel.count, kernel.total_ns) == (len(spent), sum(spent))
        assert (kernel.min_ns, kernel.max_ns, kernel.median_ns) == (min(spent), max(spent), int(median(spent)))
        assert abs(kernel.std_ns - pstdev(spent)) <= 1
    delays = sorted(start - end for _, start, _, launch, end in events if launch is not None)
    if delays:
        assert account.launches.count == len(delays)
        assert account.launches.delay_median_ns == delays[len(delays) // 2]
        assert account.launches.early == sum(delay < 0 for delay in delays)
        assert account.launches.queue_max == longest_queue(events)


def longest_queue(events):
    linked = [(launch, start) for _, start, _, launch, _ in events if launch is not None and start > launch]
    return max((sum(launch <= at < start for launch, start in linked) for at, _ in linked), default=0)


@RELAXED
@given(seed=st.integers(0, 10_000), count=st.integers(1, 40))
def test_streams_phases_and_steps_share_out_all_work(maker, oracle, seed, count):
    made = maker.busy_day(seed, count)
    [account] = maker.accounts(made.text())
    for parts in (account.streams, account.phases or account.streams):
        assert sum(part.events for part in parts) == account.device_events
        assert sum(part.work_ns for part in parts) == sum(kernel.total_ns for kernel in account.kernels)
    for part in [*account.streams, *account.phases, *account.step_times]:
        assert part.compute_ns + part.exposed_communication_ns + part.exposed_memory_ns + part.idle_ns == part.span_ns


def test_exposed_communication_blocks_only_what_is_launched(maker, one):
    made = maker.Tracing()
    made.kernel(GEMM, 1_000, 1_000, launch=(0, 100))
    made.kernel(NCCL, 2_000, 10_000, launch=(200, 100), stream=20)  # exposed from 2000 to 12000
    made.kernel(GEMM, 12_000, 1_000, launch=(4_900, 100))  # launched at 5000, so it waits for 7000 ns
    made.kernel(NCCL, 13_000, 5_000, launch=(300, 100), stream=20)
    made.kernel(GEMM, 99_000, 1_000, launch=(90_000, 100))  # the host came late: this one blocked nothing
    assert (one(made).exposed_communication_ns, one(made).blocking_communication_ns) == (15_000, 7_000)


def test_a_host_that_synchronises_is_blocked_too(maker, one):
    made = maker.Tracing()
    made.kernel(GEMM, 1_000, 1_000, launch=(0, 100))
    made.kernel(NCCL, 2_000, 10_000, launch=(200, 100), stream=20)
    made.event("cudaStreamSynchronize", "cuda_runtime", 3_000, 9_000, correlation=99)
    account = one(made)
    assert account.blocking_communication_ns == 9_000
    assert [(call.name, call.count, call.total_ns) for call in account.synchronisations] == [
        ("cudaStreamSynchronize", 1, 9_000)
    ]


def test_copies_tell_their_bandwidth(maker, one):
    made = maker.Tracing()
    made.kernel("Memcpy HtoD (Pinned -> Device)", 1_000, 1_000, launch=(0, 100), cat="gpu_memcpy", bytes=25_000)
    made.kernel("Memcpy HtoD (Pinned -> Device)", 5_000, 3_000, launch=(0, 100), cat="gpu_memcpy", bytes=75_000)
    [copy] = one(made).copies
    assert (copy.count, copy.bytes, copy.total_ns, copy.bytes_per_s) == (2, 100_000, 4_000, 25_000_000_000)


def test_what_control_processors_of_mtia_run_is_work_but_not_their_own_requests(one, maker):
    made = maker.Tracing()
    made.event("runFunction", "mtia_runtime", 0, 1_000, correlation=1)
    made.event("fc-dtype_Float", "mtia_ccp_events", 2_000, 5_000, pid=9, tid=4, correlation=1, stream=1)
    made.event("dma_request", "mtia_ccp_events", 3_000, 500, pid=9, tid=4, direction="DEVICE_TO_HOST", size=16)
    account = one(made)
    assert (account.source, account.device, account.device_events) == ("device", 9, 1)
    assert (account.compute_ns, account.unlinked_events) == (5_000, 0)
    assert [kernel.name for kernel in account.kernels] == ["fc-dtype_Float"]


@pytest.mark.parametrize("key", ["bytes", "size"])
def test_what_a_copy_moves_may_be_noted_with_its_call_alone(maker, one, key):
    made = maker.Tracing()
    made.kernel("Memcpy HtoD (Host -> Device)", 1_000, 1_000, cat="gpu_memcpy", kind="HtoD")
    made.event("hipMemcpyWithStream", "cuda_runtime", 0, 100, correlation=made.correlation, **{key: "25000"})
    [copy] = one(made).copies
    assert (copy.count, copy.bytes, copy.bytes_per_s) == (1, 25_000, 25_000_000_000)


@pytest.mark.parametrize(
    ("name", "sent", "received", "size", "factor"),
    [
        ("allreduce", 1000, 1000, 2000, 2 * 7 / 8),
        ("_allgather_base", 1000, 8000, 16_000, 7 / 8),
        ("_reduce_scatter_base", 8000, 1000, 16_000, 7 / 8),
        ("broadcast", 1000, 1000, 2000, 1),
    ],
)
def test_collectives_tell_size_and_bandwidth(maker, one, name, sent, received, size, factor):
    made = maker.Tracing(world=8)
    told = {"Collective name": name, "Process Group Name": "3", "In msg nelems": sent, "Out msg nelems": received}
    for start, dur in ((0, 4_000), (10_000, 2_000), (20_000, 9_000)):
        made.kernel(NCCL, start, dur, launch=(start, 10), **told, **{"dtype": "BFloat16", "Group size": 8})
    [found] = one(made).collectives
    assert (found.name, found.group, found.group_size, found.count, found.bytes) == (name, "3", 8, 3, size)
    assert (found.min_ns, found.median_ns, found.total_ns) == (2_000, 4_000, 15_000)
    assert found.algorithm_bytes_per_s == size * 1e9 / 2_000
    assert found.bus_bytes_per_s == pytest.approx(found.algorithm_bytes_per_s * factor)


def test_a_kernel_without_arguments_takes_those_of_its_operator(maker, one):
    made = maker.Tracing(world=2)
    told = {"Collective name": "allreduce", "In msg nelems": 10, "Out msg nelems": 10, "dtype": "Float"}
    made.event("record_param_comms", "cpu_op", 0, 1_000, **told)
    made.kernel(NCCL, 2_000, 500, launch=(100, 100))
    [found] = one(made).collectives
    assert (found.name, found.bytes, found.group_size) == ("allreduce", 40, 2)


FORMULAS = {
    "aten::mm": ([[3, 4], [4, 5]], 2 * 3 * 4 * 5),
    "aten::addmm": ([[5], [3, 4], [4, 5], [], []], 2 * 3 * 4 * 5),
    "aten::bmm": ([[7, 3, 4], [7, 4, 5]], 2 * 7 * 3 * 4 * 5),
    "aten::_scaled_dot_product_flash_attention": (
        [[2, 3, 11, 8], [2, 3, 13, 8], [2, 3, 13, 8]],
        2 * 2 * 3 * 11 * 13 * 8 * 2,
    ),
    "aten::_scaled_dot_product_flash_attention_backward": (
        [[2, 3, 11, 8], [2, 3, 11, 8], [2, 3, 13, 8], [2, 3, 13, 8]],
        5 * 2 * 2 * 3 * 11 * 13 * 8,
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_operations_are_counted_by_shape(maker, one, name):
    dims, expected = FORMULAS[name]
    made = maker.Tracing()
    made.event(name, "cpu_op", 0, 100, **{"Input Dims": dims, "Input type": ["float"] * len(dims)})
    made.kernel(GEMM, 200, 50, launch=(10, 10))
    account = one(made)
    [operator] = account.operators
    assert (account.flops, operator.flops, operator.device_ns, operator.kernels) == (expected, expected, 50, 1)


@pytest.mark.parametrize(("step_ns", "timed_ns"), [(400, 400), (80 * 200, 80 * 200), (120 * 200, 200)])
def test_the_rate_is_over_the_step_unless_the_file_is_an_excerpt_of_it(maker, one, step_ns, timed_ns):
    dims, operations = FORMULAS["aten::mm"]
    made = maker.Tracing()
    made.step(1, 0, step_ns)
    made.event("aten::mm", "cpu_op", 0, 100, **{"Input Dims": dims, "Input type": ["float"] * 2})
    made.kernel(GEMM, 100, 200, launch=(10, 10))
    assert one(made).flops_per_s == round(operations / timed_ns * 1e9)


def test_the_rate_is_over_the_work_where_the_host_is_far_ahead_of_the_device(maker, one):
    """The steps end after 20 ns on the host; their two products keep the device busy from 100 to 700."""
    dims, operations = FORMULAS["aten::mm"]
    made = maker.Tracing()
    for number in (0, 1):
        made.step(number + 1, 10 * number, 10)
        made.event("aten::mm", "cpu_op", 10 * number, 8, **{"Input Dims": dims, "Input type": ["float"] * 2})
        made.kernel(GEMM, 100 + 300 * number, 300, launch=(10 * number + 2, 3))
    assert one(made).flops_per_s == round(2 * operations / 600 * 1e9)


def test_a_convolution_is_counted_once_however_deep_its_operators_nest(maker, one):
    made, dims = maker.Tracing(), [[2, 3, 9, 9], [4, 3, 3, 3], [4], [], [], [], [], [], []]
    concrete = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    told = {"Input Dims": dims, "Input type": ["float"] * 3 + [""] * 6, "Concrete Inputs": concrete}
    made.event("aten::conv2d", "cpu_op", 0, 100, **told)
    made.event("aten::convolution", "cpu_op", 1, 98, **told)
    assert one(made).flops == 2 * (2 * 4 * 5 * 5) * (3 * 3 * 3)


def test_shapes_that_make_no_sense_count_nothing(maker, one):
    made = maker.Tracing()
    for dims in ([], [[1]], [["x", 2], [2, 3]], "nonsense", [[1 << 40, 1 << 40], [1 << 40, 1 << 40]], {"a": 1}):
        made.event("aten::mm", "cpu_op", 0, 10, **{"Input Dims": dims, "Input type": 7})
    assert one(made).flops == 0


def test_kernels_are_due_to_operators_modules_annotations_and_lines(maker, one):
    made = maker.Tracing()
    made.event("train.py(12): main", "python_function", 0, 1_000)
    made.event("torch/nn/modules/module.py(1): _call_impl", "python_function", 5, 900)
    made.event("nn.Module: Block_0", "python_function", 10, 500)
    made.event("nn.Module: Linear_3", "python_function", 20, 400)
    made.event("aten::linear", "cpu_op", 30, 300, **{"Sequence number": 7, "Fwd thread id": 0})
    made.event("aten::mm", "cpu_op", 40, 200)
    made.kernel(GEMM, 2_000, 70, launch=(50, 10))
    made.event("mine", "user_annotation", 700, 200)
    made.kernel("other", 3_000, 30, launch=(750, 10))
    backward = {"Sequence number": 7, "Fwd thread id": 1}
    made.event("autograd::engine::evaluate_function: MmBackward0", "cpu_op", 1_200, 100, tid=5, **backward)
    made.event("MmBackward0", "cpu_op", 1_210, 80, tid=5, **backward)
    made.event("cudaLaunchKernel", "cuda_runtime", 1_220, 10, tid=5, correlation=77)
    made.event(GEMM, "kernel", 4_000, 90, pid=0, tid=7, correlation=77, device=0, stream=7)
    account = one(made)

    def due(costs):
        return {cost.name: (cost.device_ns, cost.kernels) for cost in costs}

    assert due(account.operators)["aten::linear"] == due(account.operators)["aten::mm"] == (70, 1)
    assert due(account.modules) == {"Block_0": (160, 2), "Linear_3": (160, 2)}
    assert due(account.annotations) == {"mine": (30, 1)}
    sources = {kernel.name: (kernel.operator, kernel.module, kernel.line) for kernel in account.kernels}
    assert sources["other"] == ("", "", "train.py(12): main")
    assert sources[GEMM] == ("MmBackward0", "Linear_3", "train.py(12): main")
    assert due(account.lines) == {"train.py(12): main": (100, 2)}
    assert {phase.name: phase.events for phase in account.phases} == {"other": 2, "backward": 1}


def test_own_time_leaves_out_what_is_called(maker, one):
    made = maker.Tracing()
    made.event("aten::a", "cpu_op", 0, 100)
    made.event("aten::b", "cpu_op", 10, 30)
    made.event("aten::a", "cpu_op", 20, 10)
    found = {cost.name: (cost.count, cost.host_ns, cost.own_ns) for cost in one(made).operators}
    assert found == {"aten::a": (2, 100, 80), "aten::b": (1, 30, 20)}


def test_performance_counters_are_added_up(maker, one):
    made = maker.Tracing()
    made.kernel(GEMM, 100, 50, launch=(10, 5))
    for value in (7, 5):
        made.event(
            "gemm range", "cuda_profiler_range", 100, 50, **{"smsp__inst_executed.sum": value, "text": "no number"}
        )
    [counter] = one(made).counters
    assert (counter.range, counter.name, counter.count, counter.total) == (
        "gemm range",
        "smsp__inst_executed.sum",
        2,
        12,
    )


def test_graphs_compilations_and_repeated_kernels_are_told(maker, one):
    made = maker.Tracing()
    for i in range(4):
        for place, name in enumerate(("a", "b", "c")):
            made.kernel(name, i * 1_000 + place * 100, 50, launch=(i * 1_000, 5))
    made.event("cudaGraphLaunch", "cuda_runtime", 9_000, 20, correlation=500)
    for i in range(2):
        made.event("inside", "kernel", 9_100 + 100 * i, 40, pid=0, tid=7, correlation=500, device=0, stream=7)
    made.event("Torch-Compiled Region: 0/0", "cpu_op", 0, 10)
    made.event("Torch-Compiled Region: 0/1", "cpu_op", 20, 10)
    made.event("_compile.compile_inner (dynamo_timed)", "cpu_op", 40, 500)
    account = one(made)
    assert (account.graphs.launches, account.graphs.kernels, account.graphs.device_ns) == (1, 2, 80)
    compiled = account.compiled
    assert (compiled.regions, compiled.recompiled, compiled.compilations, compiled.compile_ns) == (2, 1, 1, 500)
    [sequence] = account.sequences
    assert (sequence.names, sequence.count, sequence.total_ns) == (["a", "b", "c"], 4, 600)
    assert maker.problems(made.text())[0]["shared_correlation"]["count"] == 1


@pytest.mark.real
def test_real_files_agree_with_plain_loops(real_traces, maker):
    for artefact in real_traces:
        raw = artefact.path.read_bytes()
        if len(raw) > 3_000_000:
            continue
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        document = json.loads(text, parse_float=Decimal)
        for account in maker.accounts(text, f"{artefact.path.name}.json"):
            if account.source == "device":
                agree_with_document(account, document["traceEvents"])


def agree_with_document(account, events):
    launching = [e for e in events if e.get("ph") == "X" and re.search("runtime|driver", e["cat"])]
    calls = {e["args"]["correlation"] for e in launching if "correlation" in e["args"]}
    device = [e for e in events if e.get("ph") == "X" and e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    device += [e for e in events if e.get("cat") == "mtia_ccp_events" and "correlation" in e["args"]]
    mine = [e for e in device if int(e["args"].get("device", e["pid"])) == account.device]
    linked = [e for e in mine if e["args"].get("correlation") in calls]
    assert account.unlinked_events == len(mine) - len(linked)
    noted = {e["args"]["correlation"]: size_of(e) for e in launching if "correlation" in e["args"]}
    copying = [e["args"] for e in mine if e["cat"].startswith("gpu_")]
    moved = sum(int(args.get("bytes", noted.get(args.get("correlation"), 0))) for args in copying)
    assert sum(copy.bytes for copy in account.copies) == moved
    total = sum(int(e["dur"] * 1000) for e in linked)
    assert sum(part.work_ns for part in account.phases if part.name != "no launch") in (total, 0)


def size_of(event):
    return int(event["args"].get("bytes", event["args"].get("size", 0)))
