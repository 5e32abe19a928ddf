"""Implement `workbench doctor`: check versions, devices and settings of this machine, and say how to correct them."""

import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from analyzers import cache
from analyzers.cache import Entry, cache_folder
from analyzers.errors import Exit
from analyzers.native import NativeState, native_state
from analyzers.report import Finding, Report, Severity, Status, Verdict, ranked, status_of
from analyzers.words import duration, joined_sentences, quantity, size
from workbench.errors import UsageProblem
from workbench.launch.plan import gpu_count
from workbench.launch.torchtitan import conflicts, installed_torchtitan, package_version
from workbench.package_clashes import clashes
from workbench.remote.copies import REMOTE_FOLDER

PACKAGES = ("torch", "tensorboard", "numpy", "pandas", "msgspec", "isal", "textual", "dash", "plotly", "typer")
_VARIABLES = (
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_DISTRIBUTED_DEBUG",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "NCCL_DEBUG",
    "OMP_NUM_THREADS",
)


class DoctorData(msgspec.Struct, frozen=True):
    """The field `data` of `workbench.doctor/1`: the versions, devices and settings of this machine.

    `python` is the version of Python, and `packages` maps packages to their versions (None: not installed).
    `cuda_devices` is the number of CUDA devices. `variables` has the environment variables that are set and that matter
    for recording. `tools` maps programs to their paths (None: not found). `cache` is the folder in which results are
    kept. `native_readers` says whether large recordings are read in C++, and if not, why.
    """

    python: str
    packages: dict[str, str | None]
    cuda_devices: int
    variables: dict[str, str]
    tools: dict[str, str | None]
    cache: str
    native_readers: NativeState


def examine(*, as_json: bool) -> Exit:
    """Print the report on this machine; as for every analysis, the exit status is 0 even if the report has errors."""
    report = diagnosis()
    print(report.json().decode() if as_json else _as_text(report))
    return Exit.OK


def diagnosis() -> Report[DoctorData]:
    data = DoctorData(
        python=platform.python_version(),
        packages={name: package_version(name) for name in PACKAGES} | other_trainers(),
        cuda_devices=gpu_count(),
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        tools={name: shutil.which(name) for name in ("py-spy", "nvidia-smi", "chromium", "g++")},
        cache=str(cache_folder() or "a temporary folder"),
        native_readers=native_state(),
    )
    findings = ranked(problems(data))
    sentence = joined_sentences([f.title for f in findings if f.severity != Severity.INFO]) or "no problem found"
    verdict = Verdict(status=status_of(findings), kind="doctor", sentence=sentence, confidence=1.0)
    return Report(schema="workbench.doctor/1", inputs=[], verdict=verdict, findings=findings, data=data)


def other_trainers() -> dict[str, str | None]:
    found = installed_torchtitan(sys.path)
    return {"torchtitan": found.version} if found else {}


def problems(data: DoctorData) -> Iterator[Finding]:
    """Yield a finding for each wrong setting of the machine, and for each setting that limits what workbench can do."""
    yield from _training_problems(data)
    yield from _reader_problems(data)
    yield from _torchtitan_problems()
    yield from _recorder_problems(data.variables)
    yield from clashes()
    if not writable(Path(data.cache)):
        yield finding(
            "doctor.cache",
            Severity.WARNING,
            f"the cache folder {data.cache} cannot be written to",
            "Every command reads all files again.",
            "set WORKBENCH_CACHE to a folder that can be written to",
        )


def _training_problems(data: DoctorData) -> Iterator[Finding]:
    torch = data.packages["torch"]
    if torch is None:
        yield finding(
            "doctor.no_torch",
            Severity.INFO,
            "torch is not installed",
            "The analysis works without torch; `launch`, `demo`, `estimate` and `tokens` do not.",
            "pip install 'torch-workbench[train]'",
        )
    elif tuple(int(part) for part in torch.split("+")[0].split(".")[:2]) < (2, 9):
        yield finding(
            "doctor.old_torch",
            Severity.WARNING,
            f"torch {torch} is older than 2.9",
            "The trainer needs torch 2.9 or newer.",
            "pip install -U 'torch>=2.9'",
        )
    if torch and not data.cuda_devices:
        yield finding(
            "doctor.no_gpu",
            Severity.INFO,
            "no CUDA device found",
            "Jobs run on CPU with gloo.",
            "on a GPU machine check `nvidia-smi`",
        )


_WITHOUT_NATIVE = {
    NativeState.NOT_BUILT: "They are built with the installation; there was no C++20 compiler, or no headers of Python",
    NativeState.NOT_LOADED: "They are there, but were built for another system or Python",
    NativeState.OTHER_VERSION: "They are there, but were built from another revision of workbench",
}


def _reader_problems(data: DoctorData) -> Iterator[Finding]:
    if data.native_readers is not NativeState.USED:
        # What pip keeps of a build without a compiler would be installed again.
        again = "pip install --force-reinstall --no-deps --no-cache-dir torch-workbench"
        compiler = "" if data.tools["g++"] else "install a C++ compiler (g++ 10 or newer, or clang), then "
        yield finding(
            "doctor.plain_readers",
            Severity.INFO,
            "large recordings are read in Python, as the native readers are not in use",
            f"{_WITHOUT_NATIVE[data.native_readers]}. The answers are the same, after two to five times as long.",
            f"{compiler}run `{again}`; in a clone `pip install --no-deps --editable .`",
        )


def _torchtitan_problems() -> Iterator[Finding]:
    found = installed_torchtitan(sys.path)
    for conflict in conflicts(found) if found else ():
        yield finding("doctor.torchtitan", Severity.WARNING, conflict.title, conflict.why, f"run `{conflict.command}`")


_RING_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""The environment variables for the size of Flight Recorder's buffer, the newer name first."""


def _recorder_problems(variables: dict[str, str]) -> Iterator[Finding]:
    if variables.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        yield finding(
            "doctor.detail",
            Severity.WARNING,
            "TORCH_DISTRIBUTED_DEBUG=DETAIL makes Flight Recorder dumps useless",
            "It wraps each process group: the wrapper's own collectives fill the buffer, and entries lose their group.",
            "unset TORCH_DISTRIBUTED_DEBUG, or set it to INFO",
        )
    ring = next((name for name in _RING_SIZES if variables.get(name) == "0"), None)
    if ring:
        yield finding(
            "doctor.no_ring",
            Severity.WARNING,
            f"{ring}=0 turns PyTorch's Flight Recorder off",
            "Flight Recorder keeps the last collectives of each rank. Without it a hang leaves no dumps, and"
            " `workbench hang` can only use stacks and logs.",
            f"remove {ring}=0 where the job is started, and set TORCH_FR_BUFFER_SIZE=20000",
        )
    if variables.get("TORCH_NCCL_DUMP_ON_TIMEOUT") in ("0", "false"):
        yield finding(
            "doctor.no_dump",
            Severity.WARNING,
            "TORCH_NCCL_DUMP_ON_TIMEOUT is off",
            "A collective that times out will leave no dumps.",
            "set TORCH_NCCL_DUMP_ON_TIMEOUT=1",
        )
    if variables.get("CUDA_LAUNCH_BLOCKING") == "1":
        yield finding(
            "doctor.blocking",
            Severity.WARNING,
            "CUDA_LAUNCH_BLOCKING=1 slows down every step",
            "The host waits for each kernel, so step times and traces say nothing about a normal run.",
            "remove it where the job is started (shell profile, job script), unless you are looking for the kernel"
            " that fails",
        )


def finding(name: str, severity: Severity, title: str, why: str, fix: str) -> Finding:
    return Finding(id=name, severity=severity, title=title, why=why, next=fix, confidence=1.0)


def writable(folder: Path) -> bool:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return os.access(existing, os.W_OK)


def _as_text(report: Report[DoctorData]) -> str:
    data = report.data
    items = [("python", data.python), *data.packages.items(), ("CUDA devices", str(data.cuda_devices))]
    used = data.native_readers is NativeState.USED
    readers = "in C++" if used else f"in Python (those in C++: {data.native_readers})"
    items.append(("readers", readers))
    lines = [f"{'✓' if report.verdict.status is Status.OK else '!'} {report.verdict.sentence}", ""]
    lines += [f"  {name:<16}{value or 'not installed'}" for name, value in (*items, *data.tools.items())]
    lines += [f"  {name}={value}" for name, value in data.variables.items()]
    for problem in report.findings:
        lines += ["", f"{problem.severity}: {problem.title}. {problem.why}", f"  next: {problem.next}"]
    return "\n".join(lines)


def manage(limit: int | None, *, clear: bool) -> Exit:
    """Set the size limit of the cache, if one is given; then print the contents of the cache, or delete them.

    `limit` is in bytes. `clear` deletes everything.

    Raises:
        UsageProblem: There is no folder for a cache, or the limit is too small for a single file.
        CacheFailure: The folder cannot be written.
    """
    folder = cache.cache_folder()
    if folder is None:
        raise UsageProblem("this user has no home folder, so nothing is kept", "set WORKBENCH_CACHE to a folder")
    copies = folder / REMOTE_FOLDER
    if limit is not None:
        cache.set_limit(folder, limit)
        cache.prune(copies, limit)
    print(cleared(folder, copies) if clear else described(folder, copies))
    return Exit.OK


def cleared(folder: Path, copies: Path) -> str:
    deleted = [*cache.clear(folder), *cache.clear(copies)]
    return f"deleted {quantity(len(deleted), 'entry')} ({total(deleted)}) from {folder}"


def described(folder: Path, copies: Path) -> str:
    """Return three or four lines of text about the cache: its folder, its contents, and its limit.

    `copies` is the folder with copies of remote files.
    """
    limit = size(cache.limit_bytes(folder))
    lines = [f"folder  {folder}", f"holds   {contents(cache.entries(folder))}"]
    if runs := cache.entries(copies):
        lines.append(f"copies  {contents(runs)}, of files at URLs")
    return "\n".join(
        [*lines, f"limit   {limit}{' of each' if runs else ''}; the entries used longest ago are deleted first"]
    )


def contents(entries: list[Entry]) -> str:
    kept = f"{quantity(len(entries), 'entry')}, {total(entries)}"
    return f"{kept}, used between {age(entries[-1])} and {age(entries[0])} ago" if entries else kept


def total(entries: list[Entry]) -> str:
    return size(sum(entry.size for entry in entries))


def age(entry: Entry) -> str:
    return duration(max(0.0, time.time() - entry.used))
