"""Measure how often loss spikes, single stalls and the first step of a straggler are found in simulated step logs, and
how often they are reported where there are none.

    python -m benchmarks.step_logs.faults [spikes|short|stalls|dates ...] [--seeds 300] [--part tuned|kept|all]

Every run is random: shape and noise of the curve, length, position and size of the fault. Healthy runs include random
walks, heavy tails, warm-up, drops of the learning rate and periodic checkpoints. A third of the seeds is kept back:
rules are not tuned on it.
"""

import argparse
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Row = tuple[str, bool]
"""A kind of run, and whether the answer was right."""


def is_kept(seed: int) -> bool:
    """Return whether a seed is kept back, so that no rule is tuned on it."""
    return seed % 3 == 0


# Losses


def healthy_loss(chance: np.random.Generator, count: int) -> tuple[str, np.ndarray]:
    """Return (kind, values) of a healthy loss curve."""
    kind = str(
        chance.choice(["power", "exponential", "random_walk", "heavy_tail", "lr_drop", "warm_up", "flat", "small"])
    )
    t = np.arange(1, count + 1)
    power = chance.uniform(0.1, 0.6)
    base = chance.uniform(2, 8) * t**-power + chance.uniform(0.2, 2.5)
    noise = chance.uniform(0.005, 0.06)
    factor = 1 + noise * chance.normal(size=count)
    if kind == "exponential":
        base = 10 * np.exp(-t / chance.uniform(0.05, 0.4) / count) + chance.uniform(0.01, 0.5)
    elif kind == "random_walk":
        factor = factor + np.cumsum(chance.normal(size=count)) * noise / 6
    elif kind == "heavy_tail":
        factor = 1 + noise / 2 * chance.standard_t(4, size=count)
    elif kind == "lr_drop":
        base = np.where(t > count * chance.uniform(0.3, 0.8), base * chance.uniform(0.6, 0.9), base)
    elif kind == "warm_up":
        base = base + chance.uniform(2, 6) * np.exp(-t / chance.uniform(2, 15))
    elif kind == "flat":
        base = np.full(count, chance.uniform(0.3, 5))
    elif kind == "small":
        base, factor = base / 100, np.exp(chance.uniform(0.05, 0.2) * chance.normal(size=count))
    return kind, np.maximum(base * factor, 1e-6)


def with_spike(chance: np.random.Generator, loss: np.ndarray) -> tuple[str, np.ndarray, int]:
    """Return (position of the spike in words, curve with the spike, index of the spike's first value)."""
    place = str(chance.choice(["early", "middle", "late", "end"]))
    count = len(loss)
    places = {
        "early": int(chance.integers(12, 30)),
        "middle": int(chance.integers(30, max(31, count // 2))),
        "late": int(chance.integers(count // 2, count - 10)),
        "end": count - 1 - int(chance.integers(0, 2)),
    }
    at = min(places[place], count - 1)
    around = loss[max(0, at - 8) : at]
    level, scatter = float(np.median(around)), float(np.std(np.diff(around)) / math.sqrt(2)) if len(around) > 2 else 0.0
    height = max(float(chance.uniform(0.3, 2.0)) * level, 12 * scatter)
    length = int(chance.choice([1, 1, 2, 5, 15]))
    loss = loss.copy()
    decay = np.exp(-np.arange(length) / max(1, length / 3))
    end = min(count, at + length)
    loss[at:end] += height * decay[: end - at]
    return place, loss, at


def spike_rows(seed: int) -> Iterator[Row]:
    """Yield whether a spike is found in a curve that has one, and whether none is found in a healthy curve."""
    chance = np.random.default_rng(seed)
    count = int(chance.choice([60, 200, 600, 2000]))
    kind, loss = healthy_loss(chance, count)
    yield f"healthy, {kind}", not spike_steps(loss)
    place, spiked, at = with_spike(chance, loss)
    found = spike_steps(spiked)
    yield f"spike, {place}", any(abs(step - (at + 1)) <= 1 for step in found)
    yield "spike, no other one", all(at <= step <= at + 17 for step in found)


def short_rows(seed: int) -> Iterator[Row]:
    """Yield the same as `spike_rows` for runs of 10 to 30 steps, with a spike of one to three of them."""
    chance = np.random.default_rng(10_000 + seed)
    count = int(chance.integers(10, 31))
    kind, loss = healthy_loss(chance, count)
    yield f"healthy, {kind}", not spike_steps(loss)
    at = int(chance.integers(4, count))
    before = loss[max(0, at - 6) : at]
    # The scatter of neighbours contains the slope of the curve: a spike stands out from both.
    scatter = float(np.std(np.diff(before)))
    length = int(chance.integers(1, 4))
    spiked = loss.copy()
    spiked[at : at + length] += max(float(chance.uniform(0.4, 2.0)) * float(before[-1]), 10 * scatter)
    found = spike_steps(spiked)
    yield f"spike, {'before step 9' if at < 8 else 'from step 9 on'}", at + 1 in found
    yield "spike, no other one", set(found) <= {at + 1}


def spike_steps(loss: np.ndarray) -> list[int]:
    """Return the steps at which a spike of the loss is reported."""
    from analyzers.steps.losses import events
    from analyzers.steps.model import EventKind

    steps = steps_of_columns({"step": np.arange(1, len(loss) + 1), "loss": loss})
    return [event.step for event in events(steps) if event.kind is EventKind.LOSS_SPIKE]


# Step times


def healthy_times(chance: np.random.Generator, count: int) -> tuple[str, np.ndarray]:
    """Return (kind, values in seconds) of healthy step times."""
    kind = str(
        chance.choice(
            ["normal", "log_normal", "heavy_tail", "random_walk", "warm_up", "periodic", "two_levels", "lengths"]
        )
    )
    usual = float(np.exp(chance.uniform(np.log(0.01), np.log(20))))
    factor = 1 + chance.uniform(0.005, 0.1) * np.abs(chance.normal(size=count))
    if kind == "log_normal":
        factor = np.exp(chance.uniform(0.05, 0.35) * chance.normal(size=count))
    elif kind == "heavy_tail":
        factor = 1 + 0.05 * np.abs(chance.standard_t(3, size=count))
    elif kind == "random_walk":
        factor = factor * np.exp(np.cumsum(chance.normal(size=count)) * 0.01)
    elif kind == "warm_up":
        factor[:3] += chance.uniform(5, 100, size=3)
    elif kind == "periodic":
        factor[int(chance.integers(5, 20)) :: int(chance.integers(10, 25))] += chance.uniform(2, 30)
    elif kind == "two_levels":
        factor[count // 2 :] *= chance.uniform(1.2, 3)
    elif kind == "lengths":
        factor = chance.uniform(0.5, 2, size=count)
    return kind, usual * factor


def stall_rows(seed: int) -> Iterator[Row]:
    """Yield whether a single long step is found in a run that has one, and whether none is found in a healthy run."""
    from analyzers import steps as room

    chance = np.random.default_rng(seed)
    count = int(chance.choice([40, 150, 600, 2000]))
    kind, times = healthy_times(chance, count)
    numbers = {"step": np.arange(1, count + 1), "loss": np.full(count, 2.0)}
    yield f"healthy, {kind}", not long_steps(room, numbers | {"step_time_s": times})
    at = int(chance.integers(count // 4, count - 1))
    slow = times.copy()
    factor = float(np.exp(chance.uniform(np.log(8), np.log(300))))
    slow[at] = max(float(np.median(times)) * factor, 2.5 * float(times[5:].max()))
    found = long_steps(room, numbers | {"step_time_s": slow})
    yield f"stall, in {kind}", at + 1 in found
    yield "stall, no other one", set(found) <= {at + 1}


def long_steps(_: Any, columns: dict[str, np.ndarray]) -> list[int]:
    """Return the steps that are reported as single stalls."""
    try:
        from analyzers.steps.step_times import single_stalls
    except ImportError:
        return []
    return [stall.step for stall in single_stalls(steps_of_columns(columns))]


# Stragglers


def date_rows(seed: int) -> Iterator[Row]:
    """Yield whether the first step of a straggler is found exactly, and within two steps; also for healthy runs."""
    from analyzers import store

    chance = np.random.default_rng(seed)
    job_type = simulated_job()
    ranks, count = int(chance.choice([2, 4, 8])), int(chance.choice([30, 60, 150]))
    device = str(chance.choice(["cpu", "cuda"]))
    noise = float(chance.uniform(0.005, 0.08))
    phase, extra = (
        str(chance.choice(["data_wait", "fwd", "gc"])),
        float(np.exp(chance.uniform(np.log(30), np.log(300)))),
    )
    begin, late = int(chance.integers(1, count // 2)), int(chance.integers(0, ranks))
    wobble = float(chance.uniform(0, 0.5))
    meets = ("bwd", "gc") if phase == "bwd" else ("bwd",)
    random_extra = {step: extra * (1 + wobble * chance.normal()) for step in range(count + 2)}

    def more(rank: int, step: int) -> dict[str, float]:
        return {phase: max(0.0, random_extra[step])} if rank == late and step >= begin else {}

    store.read_in_child, kept = in_process(), store.read_in_child
    try:
        for name, function in (("healthy", lambda *_: {}), ("late", more)):
            with tempfile.TemporaryDirectory() as folder:
                job = job_type(
                    Path(folder), ranks=ranks, steps=count, noise=noise, seed=seed, device=device, meets=meets
                )
                found = room_stragglers(job.run(function))
            if name == "healthy":
                yield "healthy", not found
                continue
            of_rank = [s for s in found if s.rank == late]
            yield f"found, {phase}", bool(of_rank)
            if of_rank:
                off = of_rank[0].first_step - begin
                yield f"begin to the step, {'from the start' if begin <= 2 else device}", off == 0
                yield "begin within one step", abs(off) <= 1
                yield "begin within two steps", abs(off) <= 2
    finally:
        store.read_in_child = kept


def room_stragglers(artefacts: Any) -> list[Any]:
    """Return the stragglers that the analyzer of step logs reports."""
    from analyzers import steps, store

    return steps.analyze(list(artefacts), store.Options(cache=False, jobs=1)).data.stragglers


def simulated_job() -> Any:
    """Return the simulator of the tests, in which it is known which rank delays which."""
    import runpy

    return runpy.run_path(str(Path(__file__).parents[1] / "tests" / "analyzers" / "steps" / "conftest.py"))["Job"]


def in_process() -> Callable[..., None]:
    """Return a reader that reads in this process, which takes a tenth of the time of a child process."""
    import importlib

    from analyzers import cached_columns

    def read(paths: Any, reader: str, target: Path, _: int | None) -> None:
        cached_columns.write_entry(target, *importlib.import_module(reader).read(list(paths)))

    return read


def steps_of_columns(columns: dict[str, np.ndarray]) -> Any:
    """Return the steps in a table of columns, without a file."""
    from analyzers.steps.columns import RawTable
    from analyzers.steps.loading import Chunk, Source, combined, steps_of
    from analyzers.steps.mapping import steps_of_rows
    from analyzers.steps.reading.log_lines import Table

    table = Table()
    table.add(
        0, steps_of_rows("-", RawTable({name: np.asarray(c, dtype=float) for name, c in columns.items()})).content
    )
    chunk = Chunk(table.columns(), table.meta(), [0], 0)
    return steps_of(Source(), combined([chunk]), [], [])


PARTS: dict[str, Callable[[int], Iterator[Row]]] = {
    "spikes": spike_rows,
    "short": short_rows,
    "stalls": stall_rows,
    "dates": date_rows,
}


def main() -> int:
    """Print for each kind of run how often the result was right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--part", choices=("tuned", "kept", "all"), default="all")
    options = parser.parse_args()
    wanted = {"tuned": (False,), "kept": (True,), "all": (False, True)}[options.part]
    for name in options.parts:
        right, total = Counter[str](), Counter[str]()
        for seed in range(options.seeds):
            if is_kept(seed) in wanted:
                for kind, answer in PARTS[name](seed):
                    right[kind] += answer
                    total[kind] += 1
        for kind in sorted(total):
            print(f"{name:7} {options.part:6} {kind:34} {right[kind]:4} of {total[kind]:4}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
