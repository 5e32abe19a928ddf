"""Findings about time and memory name what to look at: the collective, the activity to record, the device's setting."""

import json

import pytest

from analyzers import traces
from analyzers.traces.advice import check_text
from analyzers.traces.advice_words import WORDS

MS, MIB, GIB = 1_000_000, 1 << 20, 1 << 30
NVIDIA, AMD = "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"


def findings_of(maker, made, device=""):
    """Return the findings about a trace by id; `device` is the name of the device that the file contains."""
    document = json.loads(made.text())
    document["deviceProperties"] = [{"id": 0, "name": device, "totalGlobalMem": 80 * GIB}] if device else []
    report = traces.analyze([maker.save(json.dumps(document).encode())])
    return {finding.id: finding for finding in report.findings}


def communicating(maker, name, compute_ms, elements=MIB):
    """Return a trace of 4 calls of a collective, of 10 to 40 ms, and a kernel of `compute_ms` before them."""
    made = maker.Tracing()
    at = compute_ms * MS
    made.kernel("gemm", 0, at, launch=(0, 100))
    noted = {"Collective name": name, "Process Group Name": "0", "Process Group Description": "mesh_fsdp"}
    for took in (10, 20, 30, 40):
        sizes = {"In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float", "Group size": 8}
        made.kernel("ncclDevKernel", at, took * MS, launch=(at - MS, 100), stream=20, **noted, **sizes)
        at += took * MS
    made.step(0, 0, at)
    return made


def test_the_longest_collective_is_named_with_its_times_where_compute_cannot_hide_it(maker):
    finding = findings_of(maker, communicating(maker, "all_gather", 10))["trace.exposed_communication"]
    assert "start with all_gather of process group 0, 4.0 MiB each (100 ms in 4 calls): time it alone" in finding.next
    assert "on the same ranks (nccl-tests" in finding.next
    assert "its shortest call took 10.0 ms, the median 30.0 ms" in finding.next
    assert finding.evidence[2].text.endswith("4 calls, 100 ms in total, the shortest 10.0 ms")


def test_slow_links_are_checked_with_the_size_of_the_slowest_collective(maker):
    made = communicating(maker, "allreduce", 10, 16 * MIB)
    for number in range(100):  # so many events that they are no excerpt
        made.kernel("gemm", 110 * MS + number * 1000, 1000, launch=(1 + number, 1))
    finding = findings_of(maker, made, NVIDIA)["trace.bus_bandwidth"]
    assert finding.next.endswith("To check: run nccl-tests with messages of 64.0 MiB between the same devices.")


@pytest.mark.parametrize(
    ("compute_ms", "sentence"),
    [
        (0, "Overlap with compute cannot help: nothing is computed outside of collectives."),
        (24, "Overlap with compute will not help much: it can hide at most 24.0 ms of the 100 ms."),
        (57, "Overlap with compute can hide at most 57.0 ms of the 100 ms. With FSDP2, prefetch"),
    ],
)
def test_advice_says_how_much_overlap_can_hide(maker, compute_ms, sentence):
    advice = findings_of(maker, communicating(maker, "all_gather", compute_ms))["trace.exposed_communication"].next
    assert sentence in advice
    assert ("will not help much" in advice) == ("will not help much" in sentence)


@pytest.mark.parametrize(
    ("name", "setting", "other"),
    [
        ("all_gather", "set_modules_to_forward_prefetch", "bucket_cap_mb"),
        ("allreduce", "bucket_cap_mb", "set_modules_to_forward_prefetch"),
    ],
)
def test_advice_on_overlap_fits_the_collective(maker, name, setting, other):
    advice = findings_of(maker, communicating(maker, name, 300))["trace.exposed_communication"].next
    assert "4.0 MiB each (100 ms in 4 calls): hide it behind compute. With" in advice
    assert setting in advice
    assert other not in advice


@pytest.mark.parametrize("compute_ms", [0, 300])
def test_a_small_collective_is_not_to_be_hidden_but_called_less_often(maker, compute_ms):
    advice = findings_of(maker, communicating(maker, "allreduce", compute_ms, elements=3))
    text = advice["trace.exposed_communication"].next
    assert "12 B each (100 ms in 4 calls): sending so little takes next to no time" in text
    assert "async_op=True" in text
    assert "bucket" not in text


@pytest.mark.parametrize(
    ("backend", "device", "advice"),
    [
        ("gloo", "", "If the job runs on CPUs only, there is nothing to do"),
        ("nccl", "", "The job uses GPUs: record again with"),
        ("gloo", NVIDIA, "The job uses GPUs: record again with"),
    ],
)
def test_a_trace_without_gpu_work_says_what_it_lacks(maker, backend, device, advice):
    made = maker.Tracing(backend=backend)
    made.event("aten::mm", "cpu_op", 0, 5 * MS)
    finding = findings_of(maker, made, device)["trace.cpu_only"]
    assert finding.next.startswith(advice)
    assert "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]" in finding.next
    [fact] = finding.evidence
    counted = f"operators and collectives (process group backend: {backend}) on the CPU: 1"
    assert fact.text.startswith(f"GPU kernels, copies and memsets: none; {counted}")
    assert device in fact.text


@pytest.mark.parametrize(("device", "first"), [(NVIDIA, "expandable_segments:True"), (AMD, "max_split_size_mb:512")])
def test_advice_on_fragmentation_is_a_setting_of_the_device(maker, device, first):
    made = maker.Tracing()
    made.event("aten::empty", "cpu_op", 0, 3 * MS)
    made.kernel("gemm", 0, 3 * MS)
    made.step(0, 0, 3 * MS)
    made.memory(10, GIB, 1, allocated=GIB, reserved=8 * GIB)
    finding = findings_of(maker, made, device)["trace.memory_unused"]
    assert first in finding.next.partition("Against fragmentation set ")[2].partition(". ")[0]
    assert "garbage_collection_threshold" not in finding.next  # it has no effect without a memory fraction
    assert "7.0 GiB of the memory that PyTorch reserved on CUDA device 0 (88 % of it)" in finding.title
    assert finding.evidence[0].text == "highest reserved size: 8.0 GiB of the 80.0 GiB of CUDA device 0"


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_how_to_check_an_advice_has_one_colon_per_sentence(words):
    assert all(sentence.count(": ") <= 1 for sentence in check_text(words.check).split(". "))


@pytest.mark.parametrize(("backend", "has_graphs"), [("nccl", True), ("mtia:hccl,cpu:gloo", False)])
def test_advice_on_late_launches_fits_the_device(maker, backend, has_graphs):
    """MTIA has no graphs of kernels."""
    made = maker.Tracing(backend=backend)
    for number in range(300):
        at = number * 100_000
        made.event("aten::add", "cpu_op", at, 90_000)
        made.kernel("add", at + 40_000, 2_000, launch=(at + 30_000, 5_000))
    made.step(0, 0, 300 * 100_000)
    finding = findings_of(maker, made)["trace.host_bound"]
    assert "use torch.compile" in finding.next
    assert ("CUDA graphs" in finding.next) is has_graphs
