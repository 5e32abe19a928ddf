"""Measure memory on a device: categories, the recorder's cost, errors of estimates, total and tracked memory."""

import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.case import Case, Measured, Place, check, run_python, run_trainer
from benchmarks.gpu.training import BF16, LARGE, SMALL

WIDTH, LAYERS = 256, 4
MANY, FEW = 512, 16
"""Rows of a batch: with few of them memory is highest in the optimizer's step, where all gradients are there."""
EXACT = 0.01
"""Tolerated relative difference between bytes in blocks and requested bytes: a device rounds blocks up."""
RULES_RIGHT = 0.9
ESTIMATE_OFF = 0.10
ALWAYS_ON, STEP_S = 0.01, 0.05
IDLE_S = 2.0
ESTIMATES: dict[str, tuple[str, ...]] = {
    "float32": (),
    "bfloat16": BF16,
    "recompute_full": ("--activation_checkpoint.mode", "full"),
    "large": (*LARGE, *BF16),
}


def cases() -> Iterator[Case]:
    """Yield the cases about memory."""
    yield Case("categories", "exactness", compare_categories)
    yield Case("overhead", "memory_recorder", partial(compare_cost, always_on=False))
    yield Case("overhead", "always_on", partial(compare_cost, always_on=True))
    for name, flags in ESTIMATES.items():
        yield Case("estimate", name, partial(compare_estimate, flags=flags), limit_s=240, needs_cuda=name == "large")
    yield Case("device_memory", "tracked", compare_total)


def small_model(device: str, rows: int = MANY) -> tuple[Any, Any, Callable[..., None]]:
    """Return a model, its optimizer, and a step of training in phases: `train(phase)`."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [
        layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, WIDTH))
    ]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def train(phase: Callable[[str], Any]) -> None:
        with phase("data_wait"):
            batch = torch.randn(rows, WIDTH, device=device)
        with phase("fwd"):
            loss = model(batch).square().mean()
        with phase("bwd"):
            loss.backward()
        with phase("optim"):
            optimizer.step()
            optimizer.zero_grad()

    return model, optimizer, train


def compare_categories(place: Place) -> Measured:
    """Compare the categories at the peak with the sizes of the tensors, and with the guesses of the rules without
    tags.
    """
    from analyzers.memory import analyze
    from benchmarks.blocks.categories import HIDING, scores
    from workbench.recorders.memory.recorder import MemoryRecorder

    model, optimizer, train = small_model(place.device, FEW)
    memory = MemoryRecorder(place.folder, model, optimizer, freq=4)
    for step in range(1, 5):
        with memory.step(step):
            train(memory.phase)
    path = place.folder / "iteration_4" / "rank0_memory_snapshot.pickle"
    place.keep(path)
    [device] = analyze(path).data.devices
    weights = sum(parameter.nbytes for parameter in model.parameters())
    state = sum(
        value.nbytes
        for values in optimizer.state.values()
        for value in values.values()
        if value.device.type == place.device
    )
    truth = {"parameters": weights, "gradients": weights, "optimizer_state": state}
    right = {}
    for way, hide in HIDING.items():
        found, _ = scores(path, hide)
        right[way] = round(float(found.trace() / max(1, found.sum())), 4)
    measured: Measured = {
        "exact": device.categories_exact,
        "at_peak": device.categories,
        "of_tensors": truth,
        "rules_right": dict(right),
        "consistent": device.consistent,
        "missing": [str(lack) for lack in device.missing],
    }
    for name, wanted in truth.items():
        noted = device.categories.get(name, 0)
        check(abs(noted - wanted) <= EXACT * wanted + 4096, f"{name}: {noted} B, the tensors have {wanted} B", measured)
    del right["python"]  # too few of its blocks have frames on such a small model
    check(min(right.values()) >= RULES_RIGHT, "the rules guess too many blocks wrong", measured)
    return measured


def compare_cost(place: Place, *, always_on: bool) -> Measured:
    """Return the time that recorders add to a step: the always-on recorders, or the memory recorder while it
    records.

    What is always on takes less than two equal steps differ by chance. So its own calls are timed where they are made,
    between the operations of a real step, without what contexts that do nothing take there; and its threads while the
    job sleeps.
    """
    from contextlib import nullcontext

    import torch
    import torch.distributed as dist

    from workbench.recorders import RecorderOptions, Recorders

    options = RecorderOptions(
        str(place.folder),
        enable_memory_snapshot=not always_on,
        memory_snapshot_freq=10**6,
        memory_snapshot_window=10**6,
    )
    Recorders.prepare(options)
    if not place.on_cuda:
        torch.set_num_threads(1)  # waiting threads take processor time that no recorder causes
    model, optimizer, train = small_model(place.device, FEW)
    dist.init_process_group("nccl" if place.on_cuda else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    others = threads_here()
    recorders = Recorders(options, model=model, optimizer=optimizer)
    seconds: dict[str, list[tuple[float, float]]] = {"bare": [], "recorded": []}
    own, nothing = OwnTime(), OwnTime()
    gc.disable()
    for step in range(1, 201 if always_on else 31):

        def record(step: int = step) -> None:
            with own.of(recorders.step(step)):
                train(lambda phase: own.of(recorders.phase(phase)))

        def leave_out() -> None:
            with nothing.of(nullcontext()):
                train(lambda _: nothing.of(nullcontext()))

        ways = {"bare": leave_out, "recorded": record}
        for name in ways if step % 2 else reversed(ways):
            seconds[name].append(timed(place, ways[name]))
        own.end_step()
        nothing.end_step()
    threads = idle_share(threads_here() - others) * STEP_S
    recorders.close()
    pairs = {name: zip(*times[5:], strict=True) for name, times in seconds.items()}
    (bare_wall, bare_cpu), (wall, cpu) = pairs["bare"], pairs["recorded"]
    added = statistics.median(b - a for a, b in zip(bare_cpu, cpu, strict=True))
    calls = statistics.median(own.steps[5:]) - statistics.median(nothing.steps[5:])
    measured: Measured = {
        "bare_step_ms": round(statistics.median(bare_wall) * 1e3, 3),
        "recorded_step_ms": round(statistics.median(wall) * 1e3, 3),
        "bare_cpu_ms": round(statistics.median(bare_cpu) * 1e3, 3),
        "added_cpu_us": round(added * 1e6, 1),
        "calls_cpu_us": round(calls * 1e6, 1),
        "threads_cpu_us": round(threads * 1e6, 1),
        "share_of_50_ms": round((calls + threads) / STEP_S, 4),
    }
    dist.destroy_process_group()
    if always_on:
        check(calls + threads < ALWAYS_ON * STEP_S, "what is always on takes over 1 % of a step of 50 ms", measured)
    return measured


class OwnTime:
    """Measures the processor time that contexts take to be entered and left, without that of what runs inside them."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self._sum = 0.0

    @contextmanager
    def of(self, context: AbstractContextManager[Any]) -> Iterator[None]:
        """Run a context, and add its own time to that of the current step."""
        before = time.thread_time()
        context.__enter__()
        self._sum += time.thread_time() - before
        yield
        before = time.thread_time()
        context.__exit__(None, None, None)
        self._sum += time.thread_time() - before

    def end_step(self) -> None:
        """Begin the next step."""
        self.steps.append(self._sum)
        self._sum = 0.0


def threads_here() -> set[str]:
    """Return the ids of the threads of this process, as Linux shows them."""
    return {path.name for path in Path("/proc/self/task").iterdir()}


def idle_share(threads: set[str]) -> float:
    """Return the share of a processor that some threads of this process take while the main thread sleeps."""
    before = seconds_of(threads)
    time.sleep(IDLE_S)
    return (seconds_of(threads) - before) / IDLE_S


def seconds_of(threads: set[str]) -> float:
    """Return the processor seconds of threads of this process so far."""
    return sum(int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) for thread in threads) / 1e9


def timed(place: Place, run: Callable[[], None]) -> tuple[float, float]:
    """Return (wall seconds, processor seconds) of a call; the wall time includes work queued on the device."""
    import torch

    wall, cpu = time.perf_counter(), time.process_time()
    run()
    cpu = time.process_time() - cpu
    if place.on_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - wall, cpu


def compare_estimate(place: Place, flags: tuple[str, ...]) -> Measured:
    """Compare the estimate of a run with the peak in its snapshot and in its step log."""
    from analyzers.memory import analyze

    folder = place.folder / "run"
    recording = ("--profiling.enable_memory_snapshot", "--profiling.profile_freq", "3", "--training.steps", "3")
    settings = (*SMALL, *flags)
    run_trainer(place, folder, *settings, *recording, limit_s=150)
    [device, *_] = analyze(folder / "memory_snapshot").data.devices
    done = run_python(place, "-m", "trainer.estimate", *settings, WORLD_SIZE="1")
    check(done.returncode == 0, "the estimate failed", {"output": done.stderr[-1000:]})
    estimate = json.loads(done.stdout)["ranks"][0]
    error = estimate["peak_bytes"] / device.peak_allocated_bytes - 1
    measured: Measured = {
        "measured_bytes": device.peak_allocated_bytes,
        "estimated_bytes": estimate["peak_bytes"],
        "error": round(error, 4),
        "measured_categories": device.categories,
        "estimated_categories": estimate["categories"],
        "reserved_bytes": device.peak_reserved_bytes,
    }
    check(abs(error) <= ESTIMATE_OFF, f"the estimate is off by {error:+.1%}", measured)
    return measured


def compare_total(place: Place) -> Measured:
    """Compare the total memory of the device or process with the memory that the allocator or the recorder tracks."""
    import pickle

    folder = place.folder / "run"
    recording = ("--profiling.enable_memory_snapshot", "--profiling.profile_freq", "4", "--training.steps", "4")
    run_trainer(place, folder, *SMALL, *recording)
    path: Path = folder / "memory_snapshot" / "iteration_4" / "rank0_memory_snapshot.pickle"
    place.keep(path)
    snapshot = pickle.loads(path.read_bytes())
    details = snapshot["workbench"]
    tracked = sum(segment["total_size" if place.on_cuda else "allocated_size"] for segment in snapshot["segments"])
    total = details["device_used_bytes" if place.on_cuda else "process_bytes"]
    measured: Measured = {
        "of": "device" if place.on_cuda else "process",
        "used_bytes": total,
        "tracked_bytes": tracked,
        "untracked_bytes": total - tracked,
        "limit_bytes": details["limit_bytes"],
        "lost_notes": details["lost_notes"],
    }
    check(tracked <= total, "more is tracked than is used", measured)
    return measured
