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
    finding.
    """

    folder: Path
    manifest: Mapping[str, Any]
    device: Device
    finding: str

    @property
    def is_own_trainer(self) -> bool:
        """Whether our trainer made the run, so that its settings can be changed."""
        return isinstance(self.manifest.get("config"), dict)

    @property
    def ranks(self) -> int:
        """The number of ranks of the run."""
        return int(self.manifest.get("world_size") or 1)

    @property
    def limits(self) -> dict[str, int]:
        """The memory limits that the run's processes inherited, as {name: bytes}."""
        return dict(self.manifest.get("memory_limits") or {})

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


def recorded_run(run: Run, options: Options) -> RecordedRun:
    """Return the run with its finding about a failed allocation, or about memory close to the limit.

    Raises:
        InputError: The run has no such finding, or no run.json.
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
        raise InputError(
            f"--prove: no run.json in {run.root} says what was run",
            "start the job with `workbench launch`, and give its folder",
        ) from error
    return RecordedRun(run.root, manifest, device, finding.id)
