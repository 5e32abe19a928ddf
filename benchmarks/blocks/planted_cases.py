"""Simulate cases on the operations of real snapshots, and analyze the snapshots that the simulated devices write."""

import argparse
import gzip
import hashlib
import pickle
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from analyzers.memory import MemoryData, analyze
from analyzers.report import Report
from analyzers.run import Artefact, Kind
from benchmarks.blocks.repeated_step import Block, Pretended, step_operations

Build = Callable[[list[Block], random.Random], tuple[Pretended, int]]
"""A function (operations of a step, random generator) that simulates a job with them.

It returns the simulated device, and how many of the oldest trace entries are lost.
"""


class Planted(Protocol):
    """A case to simulate: its name, and the function that simulates it."""

    @property
    def name(self) -> str: ...
    @property
    def build(self) -> Build: ...


PlantedT = TypeVar("PlantedT", bound=Planted)


def is_kept_back(name: str) -> bool:
    """Return whether a case belongs to the third that no rule was tuned on."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0


def simulated(
    paths: Sequence[Path], cases: Sequence[PlantedT], *, kept_back: bool
) -> Iterator[tuple[PlantedT, str, Pretended, Report[MemoryData]]]:
    """Yield (case, name of the source snapshot, simulated device, report on the snapshot that the device writes).

    Each case is simulated with the operations of a step in each snapshot of `paths`.
    """
    for path in paths:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rb") as file:
            content = pickle.load(file)  # the user names these files
        step = step_operations(max(content["device_traces"], key=len))
        for case in cases:
            name = f"{path.name} {case.name}"
            if is_kept_back(name) == kept_back:
                device, lost = case.build(step, random.Random(name))
                yield case, path.name, device, report_on(device, lost)


def report_on(device: Pretended, lost: int) -> Report[MemoryData]:
    """Return the report on the snapshot of a simulated device whose `lost` oldest trace entries are missing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0_memory_snapshot.pickle"
        path.write_bytes(pickle.dumps(device.snapshot(lost), protocol=4))
        return analyze([Artefact(path, Kind.SNAPSHOT, 0, None, False, path.stat().st_size)])


def options_of(description: str | None) -> argparse.Namespace:
    """Return the options of the command line: `snapshots`, a list of paths, and `kept_back`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshots", nargs="+", type=Path)
    parser.add_argument("--kept-back", action="store_true", help="run only the third that no rule was tuned on")
    return parser.parse_args()
