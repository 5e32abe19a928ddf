"""Read a run that ran out of memory, or nearly did: its `run.json`, and the finding from its memory snapshots."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from analyzers import memory
from analyzers.errors import InputError
from analyzers.files import read_json
from analyzers.memory.model import Device, Remedy
from analyzers.rooms import required_files
from analyzers.run import Kind, Run
from analyzers.store import Options
from workbench.documents import Settings

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
        recorded = self.manifest.get("command")
        return self.own_command or tuple(str(word) for word in (recorded if isinstance(recorded, list) else ()))

    @property
    def ranks(self) -> int:
        size = self.manifest.get("world_size")
        return size if isinstance(size, int) and size > 0 else 1

    @property
    def limits(self) -> dict[str, int]:
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
    report = memory.analyze(required_files(run, Kind.SNAPSHOT), options)
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


_BATCH_FLAG = re.compile(
    r"--?(?:(?:local|train|micro|per_device(?:_train)?|per_gpu(?:_train)?|device|train_micro)_)?batch_?size|--?bs"
)
"""Matches flags that set a batch size, with underscores in place of the dashes within their names."""


def batch_flag(command: Sequence[str]) -> tuple[int, str, int] | None:
    """Return (index of the word with the batch size, its flag, the batch size) in the words of a command.

    Return None if no known flag for the batch size has a number larger than 1.

    >>> batch_flag(["python", "train.py", "--batch-size", "32"])
    (3, '--batch-size', 32)
    >>> batch_flag(["train.py", "--per_device_train_batch_size=8"])
    (1, '--per_device_train_batch_size', 8)
    """
    for position, word in enumerate(command):
        flag, equals, value = word.partition("=")
        if not _BATCH_FLAG.fullmatch("--" + flag.lstrip("-").replace("-", "_")) or not flag.startswith("-"):
            continue
        at = position if equals else position + 1
        text = value if equals else command[at] if at < len(command) else ""
        if text.isdecimal() and int(text) > 1:
            return at, flag, int(text)
    return None


def script_changes(command: Sequence[str]) -> Iterator[Settings]:
    """Yield changes of a user's command to smaller batches (a half, a quarter and so on), as {flag: batch size}."""
    named = batch_flag(command)
    batch = named[2] if named else 1
    while named and (batch := batch // 2):
        yield {named[1]: batch}


def changed_command(run: RecordedRun, change: Settings, folder: Path) -> list[str]:
    """Return the user's command with the changed batch size, and with the run's folder replaced by `folder`."""
    words = list(run.command)
    if named := batch_flag(words):
        at, flag, _ = named
        words[at] = f"{flag}={change[flag]}" if "=" in words[at] else str(change[flag])
    return [moved(word, run.folder, folder) for word in words]


def moved(word: str, old: Path, new: Path) -> str:
    """Return a word of a command; if it is a path in the folder `old`, this folder is replaced by `new`.

    A flag such as `--out=PATH` may come before the path.
    """
    flag, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    path = Path(value).resolve() if value else None
    if path is None or not path.is_relative_to(old.resolve()):
        return word
    return f"{flag}{equals}{new / path.relative_to(old.resolve())}"


def process_options(run: RecordedRun, folder: Path) -> list[str]:
    """Return the options of `workbench launch` for a person's own command: only the number of processes is recorded."""
    number = next((after for word, after in pairwise(_recorded_options(run)) if word == "--nproc"), "")
    return [*(("--nproc", number) if number.isdecimal() else ()), "--job.dump_folder", str(folder)]


def _recorded_options(run: RecordedRun) -> list[str]:
    argv = run.manifest.get("argv")
    words = [word for word in (argv if isinstance(argv, list) else []) if isinstance(word, str)]
    return words[words.index("launch") + 1 : words.index("--")] if "launch" in words and "--" in words else []


def launch_options(run: RecordedRun, folder: Path) -> list[str]:
    """Return the options of `workbench launch` that start the first run again, but with its outputs in `folder`."""
    given = _recorded_options(run)
    kept: list[str] = []
    for before, word in pairwise(["", *given]):
        own = word.startswith("--job.dump_folder=") or word in ("--no-watch", "--job.dump_folder")
        if not own and before != "--job.dump_folder":
            kept.append(word)
    return [*kept, "--job.dump_folder", str(folder)]
