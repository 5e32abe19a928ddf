"""Run out of memory, and check that the snapshot can be read and that the verdict names the failed allocation.

Each job fills memory in another way under a limit. On a device, most jobs are recorded by PyTorch's own history;
`recorder` and `trainer` are recorded by ours. The jobs are functions in this file, so that the report must name them.
"""

import contextlib
import re
import resource
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.case import Case, Measured, Place, check, run_python

MIB = 1 << 20
LIMIT, CPU_MARGIN = 2048 * MIB, 256 * MIB
REQUEST = re.compile(r"[Tt]ried to allocate ([\d.]+) ?(bytes|[KMG]iB)")
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30}
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def cases() -> Iterator[Case]:
    """Yield a case for each way to run out of memory."""
    yield Case("oom", "recorder", record_with_ours)
    yield Case("oom", "trainer", fail_in_trainer)
    for name, fill in STOCK.items():
        yield Case("oom", name, partial(record_with_stock, fill=fill), needs_cuda=True)
    for name, fill in (("expandable", fill_at_once), ("expandable_fragmented", fill_with_holes)):
        yield Case("oom", name, partial(record_with_stock, fill=fill), needs_cuda=True, environment=EXPANDABLE)


def fill_at_once(kept: list[Any]) -> None:
    """Allocate a moderate tensor, then one that does not fit."""
    import torch

    kept.append(torch.zeros(256 * MIB, dtype=torch.uint8, device="cuda"))
    kept.append(torch.zeros(4 * LIMIT, dtype=torch.uint8, device="cuda"))


def fill_by_leaking(kept: list[Any]) -> None:
    """Keep a tensor of each step until the next one does not fit."""
    import torch

    while True:
        kept.append(torch.zeros(48 * MIB, dtype=torch.uint8, device="cuda"))


def fill_with_holes(kept: list[Any]) -> None:
    """Free every other tensor, so that much memory is free, and request a tensor that is larger than each free
    block.
    """
    import torch

    small = [torch.zeros(20 * MIB, dtype=torch.uint8, device="cuda") for _ in range(80)]
    kept.extend(small[::2])
    del small
    kept.append(torch.zeros(1024 * MIB, dtype=torch.uint8, device="cuda"))


def fill_private_pool(kept: list[Any]) -> None:
    """Allocate from a private memory pool until an allocation fails."""
    import torch

    pool = torch.cuda.MemPool()
    kept.append(pool)
    with torch.cuda.use_mem_pool(pool):
        while True:
            kept.append(torch.zeros(200 * MIB, dtype=torch.uint8, device="cuda"))


def fill_beside_graph(kept: list[Any]) -> None:
    """Capture a CUDA graph, whose memory pool stays allocated, then request more memory than is left."""
    import torch

    graph, source = torch.cuda.CUDAGraph(), torch.ones(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        kept.append((source @ source).relu())
    graph.replay()
    kept.extend([graph, source])
    kept.append(torch.zeros(LIMIT - 256 * MIB, dtype=torch.uint8, device="cuda"))


def fill_streams(kept: list[Any]) -> None:
    """Allocate memory on a second stream that the first stream still uses, until an allocation fails."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        kept.append(torch.zeros(512 * MIB, dtype=torch.uint8, device="cuda"))
    kept[-1].record_stream(torch.cuda.current_stream())
    torch.cuda._sleep(1_000_000)  # noqa: SLF001 - there is no public way to keep a stream busy
    kept.append(torch.zeros(2 * LIMIT, dtype=torch.uint8, device="cuda"))


STOCK: dict[str, Callable[[list[Any]], None]] = {
    "spike": fill_at_once,
    "leak": fill_by_leaking,
    "fragmented": fill_with_holes,
    "private_pool": fill_private_pool,
    "cuda_graph": fill_beside_graph,
    "streams": fill_streams,
}


def record_with_stock(place: Place, fill: Callable[[list[Any]], None]) -> Measured:
    """Run out of memory on a device with PyTorch's own history turned on, as in any script, and check the verdict."""
    import torch

    torch.cuda.set_per_process_memory_fraction(LIMIT / torch.cuda.mem_get_info()[1])
    torch.cuda.memory._record_memory_history(max_entries=100_000)  # noqa: SLF001 - the documented way
    kept: list[Any] = []
    path = place.folder / "rank0_memory_snapshot.pickle"
    message = ""
    try:
        fill(kept)
    except torch.OutOfMemoryError as error:
        message = str(error)
        torch.cuda.memory._dump_snapshot(str(path))  # noqa: SLF001 - the documented way
    return verdict_of(place, path, message, fill.__name__)


def record_with_ours(place: Place) -> Measured:
    """Run out of memory in the forward pass of a model that our recorder records."""
    import torch
    from torch import nn

    from workbench.recorders.memory.recorder import MemoryRecorder

    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).to(place.device)
    memory = MemoryRecorder(place.folder, model, torch.optim.AdamW(model.parameters()), freq=1000)
    limit_memory(place)
    message, many = "", 1024 * (512 if place.on_cuda else 64)
    try:
        for step in range(1, 4):
            with memory.step(step), memory.phase("fwd"):
                model(torch.ones(many if step == 3 else 1024, 512, device=place.device))
    except (torch.OutOfMemoryError, RuntimeError) as error:
        message = str(error)
        memory.failed(error)
    return verdict_of(
        place, place.folder / "iteration_2_exit" / "rank0_memory_snapshot.pickle", message, "record_with_ours"
    )


def limit_memory(place: Place) -> None:
    """Limit the memory of this process to little more than it uses now, or to a small part of the device."""
    import torch

    if place.on_cuda:
        torch.cuda.set_per_process_memory_fraction(LIMIT / torch.cuda.mem_get_info()[1])
        return
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    limit = pages * resource.getpagesize() + CPU_MARGIN
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def fail_in_trainer(place: Place) -> Measured:
    """Run the trainer with its fault `oom`, which runs out of memory."""
    flags = ("--module", "llama3", "--config", "llama3_debugmodel", "--faults.name", "oom", "--faults.step", "3")
    recording = (
        "--profiling.enable_memory_snapshot",
        "--profiling.profile_freq",
        "4",
        "--comm.train_timeout_seconds",
        "8",
    )
    folder = place.folder / "run"
    done = run_python(place, "-m", "trainer", "--job.dump_folder", str(folder), *flags, *recording)
    path = folder / "memory_snapshot" / "iteration_2_exit" / "rank0_memory_snapshot.pickle"
    return verdict_of(place, path, done.stdout + done.stderr, "model.py")


def verdict_of(place: Place, path: Path, message: str, culprit: str) -> Measured:
    """Return facts from the report on a snapshot, and check them against the error message of the failure."""
    from analyzers.memory import analyze

    request = REQUEST.search(message.replace("you tried", "Tried"))
    wanted = int(float(request[1]) * UNITS[request[2]]) if request else None
    measured: Measured = {"message": message[-400:], "requested_in_message": wanted}
    check(path.is_file(), "no snapshot was written", measured)
    report = analyze(path)
    [device, *_] = report.data.devices
    failure = device.oom
    measured |= {
        "bytes": path.stat().st_size,
        "class": report.verdict.kind,
        "sentence": report.verdict.sentence,
        "findings": [finding.id for finding in report.findings],
        "missing": report.verdict.missing,
        "consistent": device.consistent,
        "pools": len(device.pools),
        "requested_bytes": failure.requested_bytes if failure else None,
        "frames": failure.frames[:3] if failure else [],
    }
    place.keep(path)
    check(report.verdict.kind == "oom" and failure, "the verdict is not oom", measured)
    assert failure
    check(device.consistent, "the replay does not end at the blocks of the snapshot", measured)
    near = wanted is None or abs(failure.requested_bytes - wanted) <= max(0.01 * wanted, 512)
    check(near, "the requested bytes differ from those of the message", measured)
    check(any(culprit in frame for frame in failure.frames), f"{culprit} is not among the frames", measured)
    with contextlib.suppress(OSError):
        path.unlink()
    return measured
