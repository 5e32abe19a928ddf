"""Read a run that ran out of memory, or nearly did: its `run.json`, and the finding from its memory snapshots."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzers.errors import InputError
from analyzers.files import read_json
from analyzers.memory.model import Device, Remedy
from analyzers.run import Run
from analyzers.store import Options
from workbench.ask import memory_report

FINDINGS = ("memory.oom", "memory.near_limit")


@dataclass(frozen=True)
class RecordedRun:
    """A run that ran out of memory or came near its limit, from its files.

    `manifest` is the content of its `run.json`, `finding` the id of the finding, and `device` the device of the
    finding. `own_command` is the command that the person gave for a second run; empty: the recorded one is used.
    """

    folder: Path
    manifest: Mapping[str, Any]
    device: Device
    finding: str
    own_command: tuple[str, ...] = ()

    @property
    def is_own_trainer(self) -> bool:
        """Whether our trainer made the run and is to run again, so that its settings can be changed."""
        return not self.own_command and isinstance(self.manifest.get("config"), dict)

    @property
    def command(self) -> tuple[str, ...]:
        """The words of the command of a second run: the person's, or else the recorded ones; empty if unknown."""
        recorded = self.manifest.get("command")
        return self.own_command or tuple(str(word) for word in (recorded if isinstance(recorded, list) else ()))

    @property
    def ranks(self) -> int:
        """The number of ranks of the run."""
        size = self.manifest.get("world_size")
        return size if isinstance(size, int) and size > 0 else 1

    @property
    def limits(self) -> dict[str, int]:
        """The memory limits that the run's processes inherited, as {name: bytes}."""
        limits = self.manifest.get("memory_limits")
        named = limits.items() if isinstance(limits, dict) else ()
        return {name: bytes_ for name, bytes_ in named if isinstance(bytes_, int) and 0 < bytes_ < 1 << 63}

    @property
    def room_bytes(self) -> int:
        """The bytes that tensors may use: allocated plus free bytes at the failure; without a failure, the limit."""
        oom = self.device.oom
        return oom.allocated_bytes + oom.device_free_bytes if oom else self.device.limit_bytes or 0

    def growing_bytes(self) -> int:
        """Return the bytes that grow with the batch at the failed allocation, including the failed request."""
        half = next((saving for saving in self.device.savings if saving.remedy is Remedy.HALF_BATCH), None)
        oom = self.device.oom
        return (half.of_bytes if half else 0) + (oom.requested_bytes if oom else 0)


def recorded_run(run: Run, options: Options, own_command: tuple[str, ...] = ()) -> RecordedRun:
    """Return the run with its finding about a failed allocation, or about memory close to the limit.

    Raises:
        InputError: The run has no such finding, or no run.json, which a person's own command makes unnecessary.
    """
    report = memory_report(run, options)
    finding = next((finding for finding in report.findings if finding.id in FINDINGS), None)
    if finding is None:
        raise InputError(
            "--prove: no allocation failed in this run, and its memory is not close to the limit",
            "give the folder of a run that ran out of memory",
        )
    devices = [d for d in report.data.devices if d.oom or finding.id != "memory.oom"]
    device = max(devices, key=lambda d: d.oom.allocated_bytes if d.oom else d.peak_allocated_bytes)
    try:
        manifest = read_json(run.root / "run.json")
    except (OSError, ValueError) as error:
        if own_command:
            return RecordedRun(run.root, {}, device, finding.id, own_command)
        raise InputError(
            f"--prove: no run.json in {run.root} says what was run",
            "give the command of the job: --prove -- COMMAND...",
        ) from error
    return RecordedRun(run.root, manifest, device, finding.id, own_command)
