"""`workbench doctor`: what this machine has, what is set wrong, and how to mend it."""

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from analyzers.errors import Exit
from analyzers.report import Finding, Report, Severity, Status, Verdict, ranked, status_of, tool_version
from analyzers.store import cache_folder
from workbench.clashes import clashes
from workbench.launch.plan import devices

PACKAGES = ("torch", "tensorboard", "numpy", "pandas", "msgspec", "isal", "textual", "dash", "plotly", "typer")
VARIABLES = (
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
    """What was looked at: package versions (None: absent), devices, variables that are set, tools found."""

    python: str
    packages: dict[str, str | None]
    cuda_devices: int
    variables: dict[str, str]
    tools: dict[str, str | None]
    cache: str


def examine(*, as_json: bool) -> Exit:
    """Print the findings; the exit status is 0 even if some are errors, as with every analysis."""
    report = diagnosis()
    print(report.json().decode() if as_json else text(report))
    return Exit.OK


def diagnosis() -> Report[DoctorData]:
    data = DoctorData(
        python=platform.python_version(),
        packages={name: installed(name) for name in PACKAGES},
        cuda_devices=devices(),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        tools={name: shutil.which(name) for name in ("py-spy", "nvidia-smi", "chromium", "g++")},
        cache=str(cache_folder()),
    )
    findings = ranked(problems(data))
    sentence = "; ".join(f.title for f in findings if f.severity != Severity.INFO) or "nothing is set wrong"
    verdict = Verdict(status=status_of(findings), kind="doctor", sentence=sentence, confidence=1.0)
    return Report(
        schema="workbench.doctor/1", version=tool_version(), inputs=[], verdict=verdict, findings=findings, data=data
    )


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def problems(data: DoctorData) -> Iterator[Finding]:
    """What is wrong, and what merely limits."""
    yield from training_problems(data)
    yield from recorder_problems(data.variables)
    yield from clashes()
    if not writable(Path(data.cache)):
        yield finding(
            "doctor.cache",
            Severity.WARNING,
            f"the cache folder {data.cache} cannot be written to",
            "Every artefact is read anew each time.",
            "set WORKBENCH_CACHE to a folder that can",
        )


def training_problems(data: DoctorData) -> Iterator[Finding]:
    torch = data.packages["torch"]
    if torch is None:
        yield finding(
            "doctor.no_torch",
            Severity.INFO,
            "torch is not installed",
            "Analysing works without it; launching does not.",
            "pip install 'torch-workbench[train]'",
        )
    elif tuple(int(part) for part in torch.split("+")[0].split(".")[:2]) < (2, 9):
        yield finding(
            "doctor.old_torch",
            Severity.WARNING,
            f"torch {torch} is older than 2.9",
            "The trainer needs 2.9 or newer.",
            "pip install -U 'torch>=2.9'",
        )
    if torch and not data.cuda_devices:
        yield finding(
            "doctor.no_gpu", Severity.INFO, "no CUDA device", "Jobs run on CPU with gloo.", "nothing, if that is meant"
        )


def recorder_problems(variables: dict[str, str]) -> Iterator[Finding]:
    if variables.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        yield finding(
            "doctor.detail",
            Severity.WARNING,
            "TORCH_DISTRIBUTED_DEBUG=DETAIL makes Flight Recorder useless",
            "Its wrapper's own collectives fill the ring, and every entry loses its group.",
            "unset TORCH_DISTRIBUTED_DEBUG, or set it to INFO",
        )
    rings = [variables[name] for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE") if name in variables]
    if "0" in rings:
        yield finding(
            "doctor.no_ring",
            Severity.WARNING,
            "Flight Recorder is switched off",
            "A hang leaves no dump behind.",
            "set TORCH_FR_BUFFER_SIZE to 20000",
        )
    if variables.get("TORCH_NCCL_DUMP_ON_TIMEOUT") in ("0", "false"):
        yield finding(
            "doctor.no_dump",
            Severity.WARNING,
            "no dump is written at a timeout",
            "TORCH_NCCL_DUMP_ON_TIMEOUT is off.",
            "set TORCH_NCCL_DUMP_ON_TIMEOUT=1",
        )
    if variables.get("CUDA_LAUNCH_BLOCKING") == "1":
        yield finding(
            "doctor.blocking",
            Severity.WARNING,
            "CUDA_LAUNCH_BLOCKING=1 makes every step slow",
            "Each kernel is waited for, so step times and traces mean nothing.",
            "unset CUDA_LAUNCH_BLOCKING",
        )


def finding(name: str, severity: Severity, title: str, why: str, mend: str) -> Finding:
    return Finding(id=name, severity=severity, title=title, why=why, next=mend, confidence=1.0)


def writable(folder: Path) -> bool:
    """Whether the folder, or the nearest one above it that exists, can be written to."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return os.access(there, os.W_OK)


def text(report: Report[DoctorData]) -> str:
    data = report.data
    have = [("python", data.python), *((name, found or "-") for name, found in data.packages.items())]
    have += [("CUDA devices", str(data.cuda_devices)), *((name, found or "-") for name, found in data.tools.items())]
    lines = [f"{'✓' if report.verdict.status is Status.OK else '!'} {report.verdict.sentence}", ""]
    lines += [f"  {name:<14}{found}" for name, found in have]
    lines += [f"  {name}={value}" for name, value in data.variables.items()]
    for found in report.findings:
        lines += ["", f"{found.severity}: {found.title}. {found.why}", f"  next: {found.next}"]
    return "\n".join(lines)
